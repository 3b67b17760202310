#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nupa::base {

/// Lengths in bytes, least to least + span, that the loop of copy_block copies faster than memmove on this processor:
/// both blocks together are more than the first level cache holds and less than the second. Span 0: none.
struct BlockCopyRange {
  uint64_t least;
  uint64_t span;
};
extern const BlockCopyRange kBlockCopyRange;

/// Of blocks that do not overlap, 128 bytes at least.
void copy_block_by_loop(std::byte* to, const std::byte* from, uint64_t length);

/// memmove, except that in a stretch of lengths it does not use the string instructions that the C library chooses:
/// between two blocks in the second level cache they reach three quarters of what plain wide loads and stores do.
inline void copy_block(std::byte* to, const std::byte* from, uint64_t length) {
  if (__builtin_expect(length - kBlockCopyRange.least < kBlockCopyRange.span, 0)) {
    const uint64_t ahead = static_cast<uint64_t>(to - from);
    // A load whose address has the low 12 bits of a store on its way waits for it; string instructions do not care.
    constexpr uint64_t kPage = 4096, kOnTheWay = 1024;
    const bool entangled = ahead % kPage != 0 && ahead % kPage < kOnTheWay;
    const bool apart = ahead >= length && ahead <= -length;
    if (apart && !entangled) return copy_block_by_loop(to, from, length);
  }
  std::memmove(to, from, length);
}

}  // namespace nupa::base
