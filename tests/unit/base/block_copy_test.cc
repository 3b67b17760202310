// SPDX-License-Identifier: Apache-2.0
/// Copies of any length, alignment and overlap write the same bytes as memmove, and none outside the range.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <random>
#include <thread>
#include <vector>

#include "base/block_copy.h"
#include "base/ordered_copy.h"

namespace nupa::base {
namespace {

std::vector<std::byte> noise(size_t size) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// Copies inside one buffer; what is expected comes from a second one by memmove.
template <class Copy>
void expect_as_memmove(size_t from, size_t to, size_t length, Copy copy) {
  std::vector<std::byte> copied = noise(std::max(from, to) + length + 256);
  std::vector<std::byte> expected = copied;
  std::memmove(expected.data() + to, expected.data() + from, length);
  copy(copied.data() + to, copied.data() + from, length);
  ASSERT_EQ(copied, expected) << "from " << from << " to " << to << " length " << length;
}

TEST(BlockCopy, CopyBlockByLoop_AnyAlignment_CopiesEveryByte) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this processor has no AVX2";
#endif
  for (size_t length : {128, 129, 159, 160, 161, 191, 192, 255, 256, 257, 383, 384, 385, 4096, 65528})
    for (size_t from : {0, 1, 8, 31, 32, 33})
      for (size_t skew : {0, 1, 7, 8, 31, 33})
        expect_as_memmove(from, from + length + skew, length, copy_block_by_loop);
  for (size_t length = 128; length < 700; ++length)
    expect_as_memmove(length + 64 + length % 5, 3, length, copy_block_by_loop);
}

TEST(BlockCopy, CopyBlock_OverlappingBlocks_CopiesAsMemmove) {
  std::vector<size_t> lengths{0, 1, 4096, 16384, 65536, 65528, 524288};
  for (uint64_t edge : {kBlockCopyRange.least, kBlockCopyRange.least + kBlockCopyRange.span})
    for (size_t length : {edge - std::min<uint64_t>(edge, 1), edge, edge + 1}) lengths.push_back(length);
  for (const size_t length : lengths) {
    for (size_t apart : {size_t{0}, size_t{1}, size_t{64}, size_t{4096}, length / 2, length}) {
      expect_as_memmove(apart, 0, length, copy_block);
      expect_as_memmove(0, apart, length, copy_block);
    }
    expect_as_memmove(0, length + 4096 - length % 4096 + 64, length, copy_block);
    expect_as_memmove(length + 8192 - length % 4096 + 64, 0, length, copy_block);
  }
}

TEST(OrderedCopy, CopyInOrder_AnyAlignment_CopiesEveryByte) {
  for (size_t length = 0; length < 40; ++length)
    for (size_t from = 0; from < 9; ++from)
      for (size_t skew = 0; skew < 9; ++skew) expect_as_memmove(from, 64 + skew, length, copy_in_order);
}

TEST(OrderedCopy, CopyInOrder_LastWord_BecomesVisibleAfterTheRest) {
  // A reader that polls on the last word sees the whole message.
  constexpr size_t kWords = 9;
  constexpr uint64_t kRounds = 2'000;
  alignas(64) uint64_t shown[kWords] = {};
  std::atomic<uint64_t> seen{0};
  uint64_t torn = 0;
  std::thread reader([&] {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      while (std::atomic_ref(shown[kWords - 1]).load(std::memory_order_acquire) != round) std::this_thread::yield();
      for (const uint64_t word : shown) torn += word == round ? 0 : 1;
      seen.store(round, std::memory_order_release);
    }
  });
  for (uint64_t round = 1; round <= kRounds; ++round) {
    uint64_t message[kWords];
    std::fill(std::begin(message), std::end(message), round);
    copy_in_order(reinterpret_cast<std::byte*>(shown), reinterpret_cast<const std::byte*>(message), sizeof message);
    while (seen.load(std::memory_order_acquire) != round) std::this_thread::yield();
  }
  reader.join();
  EXPECT_EQ(0u, torn);
}

/// A reader that polls on the last aligned word of an eight-byte message, which begins `before` bytes before that word.
template <class Word>
uint64_t torn_words(size_t before) {
  constexpr uint64_t kOld = 0, kNew = ~uint64_t{0};
  // Seen by the reader. Two threads that share one processor, too, interrupt each other so often.
  constexpr int kChanges = 64;
  alignas(8) std::byte bytes[16] = {};
  Word& last = *reinterpret_cast<Word*>(bytes + (before + 7) / 8 * 8);
  std::byte* const to = reinterpret_cast<std::byte*>(&last) - before;
  std::atomic<bool> enough{false};
  std::thread writer([&] {
    for (uint64_t message = kNew; !enough; message = ~message)
      copy_in_order(to, reinterpret_cast<const std::byte*>(&message), sizeof message);
  });
  uint64_t torn = 0;
  Word known = 0;
  for (int changes = 0; changes < kChanges;) {
    const Word seen = std::atomic_ref(last).load(std::memory_order_acquire);
    torn += seen == static_cast<Word>(kOld) || seen == static_cast<Word>(kNew) ? 0 : 1;
    if (seen != known)
      ++changes;
    else
      std::this_thread::yield();
    known = seen;
  }
  enough = true;
  writer.join();
  return torn;
}

TEST(OrderedCopy, CopyInOrder_AlignedLastWord_IsStoredAtOnce) { EXPECT_EQ(0u, torn_words<uint64_t>(0)); }

TEST(OrderedCopy, CopyInOrder_LastWordOfAMessageAtAnOddAddress_IsStoredAtOnce) {
  EXPECT_EQ(0u, torn_words<uint32_t>(4));
  EXPECT_EQ(0u, torn_words<uint16_t>(6));
}

}  // namespace
}  // namespace nupa::base
