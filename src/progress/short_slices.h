// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace nupa::progress {

/// The scheduler lets a thread with short slices run soon after it wakes, beside programs that never sleep (EEVDF,
/// Linux 6.12). An older kernel ignores it. For the calling thread.
void ask_for_short_slices();

}  // namespace nupa::progress
