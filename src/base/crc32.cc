// SPDX-License-Identifier: Apache-2.0
#include "base/crc32.h"

#include <cstring>

#include "base/crc32_table.h"
#if defined(__x86_64__)
#include "base/crc32_x86.h"
#elif defined(__aarch64__)
#include "base/crc32_arm64.h"
#else
#error "no CRC-32 for this processor"
#endif

namespace nupa::base {

uint32_t crc32(uint32_t state, const std::byte* data, size_t length, const std::byte* soon) {
  if (length < 64 || !kIsFast) return by_table(state, data, length);
  if (soon == nullptr) return by_processor<Beside::kNothing>(state, data, length, nullptr);
  return by_processor<Beside::kFetch>(state, data, length, const_cast<std::byte*>(soon));
}

uint32_t crc32_copy(uint32_t state, std::byte* to, const std::byte* from, size_t length) {
  if (length >= 64 && kIsFast) return by_processor<Beside::kCopy>(state, from, length, to);
  std::memcpy(to, from, length);
  return by_table(state, to, length);
}

}  // namespace nupa::base
