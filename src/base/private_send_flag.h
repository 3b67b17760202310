// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A flag of nupa::SendWr that the public headers do not have: libibverbs sets it for rsockets, and the core takes it.
/// It is here because libibverbs may include no header of the core.
#include <cstdint>

namespace nupa::send_flag {

/// With kInline, the data may be longer than the queue pair's max_inline_data. EINVAL if post() does not execute the
/// request itself, which depends on the transport. Not a bit of the verbs ABI's ibv_send_flags.
constexpr uint32_t kAnyLength = 1u << 16;

}  // namespace nupa::send_flag
