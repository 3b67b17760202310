// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The CRC-32 by the CRC instructions of arm64, which have this polynomial. crc32.cc alone includes it.
#include <sys/auxv.h>

#include "base/crc32_table.h"

namespace nupa::base {
namespace {

/// `to`: the memory to prefetch, or to copy to.
template <Beside kBeside>
[[gnu::target("+crc")]] uint32_t by_processor(uint32_t state, const std::byte* data, size_t length, std::byte* to) {
  size_t at = 0;
  for (; at + 8 <= length; at += 8) {
    uint64_t word;
    std::memcpy(&word, data + at, sizeof word);
    if constexpr (kBeside == Beside::kCopy) std::memcpy(to + at, &word, sizeof word);
    if constexpr (kBeside == Beside::kFetch)
      if (at % 64 == 0) __builtin_prefetch(to + at, 1);
    asm("crc32x %w0, %w0, %x1" : "+r"(state) : "r"(word));
  }
  if constexpr (kBeside == Beside::kCopy) {
    std::memcpy(to + at, data + at, length - at);
    data = to;
  }
  return by_table(state, data + at, length - at);
}

constexpr unsigned long kCapabilityCrc32 = 1ul << 7;  // HWCAP_CRC32
const bool kIsFast = (getauxval(AT_HWCAP) & kCapabilityCrc32) != 0;

}  // namespace
}  // namespace nupa::base
