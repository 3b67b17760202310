// SPDX-License-Identifier: Apache-2.0
#include "base/block_copy.h"

#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace nupa::base {

#if defined(__x86_64__)
namespace {

BlockCopyRange range_here() {
  const long first = sysconf(_SC_LEVEL1_DCACHE_SIZE);
  const long second = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (!__builtin_cpu_supports("avx2") || first <= 0 || second <= 0) return {0, 0};
  // Source and destination together: 1.5 times the first level cache, three quarters of the second.
  const auto least = static_cast<uint64_t>(first) * 3 / 4;
  const auto below = static_cast<uint64_t>(second) * 3 / 8;
  return below > least ? BlockCopyRange{least, below - least} : BlockCopyRange{0, 0};
}

}  // namespace

const BlockCopyRange kBlockCopyRange = range_here();

__attribute__((target("avx2"))) void copy_block_by_loop(std::byte* to, const std::byte* from, uint64_t length) {
  using Word = __m256i;
  constexpr uint64_t kStep = 4 * sizeof(Word);
  const auto* source = reinterpret_cast<const Word*>(from);
  auto* target = reinterpret_cast<Word*>(to);
  // Both ends are read first and stored separately, as the loop may not fill them. The loop begins at a multiple of a
  // word, because a store across cache lines costs two.
  const Word head = _mm256_loadu_si256(source);
  const auto* last = reinterpret_cast<const Word*>(from + length - kStep);
  const Word w = _mm256_loadu_si256(last), x = _mm256_loadu_si256(last + 1);
  const Word y = _mm256_loadu_si256(last + 2), z = _mm256_loadu_si256(last + 3);
  _mm256_storeu_si256(target, head);
  const uint64_t skew = sizeof(Word) - reinterpret_cast<uintptr_t>(to) % sizeof(Word);
  for (uint64_t done = skew; done + kStep < length; done += kStep) {
    source = reinterpret_cast<const Word*>(from + done);
    target = reinterpret_cast<Word*>(to + done);
    const Word a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
    const Word c = _mm256_loadu_si256(source + 2), d = _mm256_loadu_si256(source + 3);
    _mm256_store_si256(target, a);
    _mm256_store_si256(target + 1, b);
    _mm256_store_si256(target + 2, c);
    _mm256_store_si256(target + 3, d);
  }
  target = reinterpret_cast<Word*>(to + length - kStep);
  _mm256_storeu_si256(target, w);
  _mm256_storeu_si256(target + 1, x);
  _mm256_storeu_si256(target + 2, y);
  _mm256_storeu_si256(target + 3, z);
}
#else
// memmove uses no string instructions on other processors.
const BlockCopyRange kBlockCopyRange = {0, 0};

void copy_block_by_loop(std::byte* to, const std::byte* from, uint64_t length) { std::memcpy(to, from, length); }
#endif

}  // namespace nupa::base
