// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nupa::base {

/// Lengths in bytes, from `least` to below least + span, that the loop of copy_block copies faster than memmove on this
/// processor: both blocks together exceed the first-level cache and fit the second. Span 0: no length is faster.
struct BlockCopyRange {
  uint64_t least;
  uint64_t span;
};
extern const BlockCopyRange kBlockCopyRange;

/// Copies blocks that do not overlap and have at least 128 bytes. On x86 the processor has to have AVX2.
void copy_block_by_loop(std::byte* to, const std::byte* from, uint64_t length);

/// memmove, except in a range of lengths where the C library uses string instructions. Between two blocks in the
/// second-level cache, those reach three quarters of the speed of plain wide loads and stores.
inline void copy_block(std::byte* to, const std::byte* from, uint64_t length) {
  if (__builtin_expect(length - kBlockCopyRange.least < kBlockCopyRange.span, 0)) {
    const uint64_t ahead = static_cast<uint64_t>(to - from);
    // A load whose low 12 address bits equal those of a store in flight waits for that store. String instructions do
    // not.
    constexpr uint64_t kPage = 4096, kOnTheWay = 1024;
    const bool entangled = ahead % kPage != 0 && ahead % kPage < kOnTheWay;
    const bool apart = ahead >= length && ahead <= -length;
    if (apart && !entangled) return copy_block_by_loop(to, from, length);
  }
  std::memmove(to, from, length);
}

}  // namespace nupa::base
