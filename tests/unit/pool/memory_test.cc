// SPDX-License-Identifier: Apache-2.0
/// Memory of programs in a pool: allocation, and what another host writes there.
#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/unique_fd.h"

#include "fixture.h"

namespace nupa::pool {
namespace {

class PoolMemoryOfPrograms : public ::testing::TestWithParam<Coherence> {
 protected:
  PoolFile file_;
  TestClock clock_;
  Process one_{file_, 0, clock_, GetParam()};
  Process other_{file_, 1, clock_, GetParam()};
};

bool is_zero(const Block& block) {
  const std::vector<std::byte> zeros(block.bytes);
  return std::memcmp(block.at, zeros.data(), zeros.size()) == 0;
}

TEST_P(PoolMemoryOfPrograms, Allocate_OfUsedBlocks_IsZero) {
  one_.join(7, 1);
  for (int round = 0; round < 3; ++round) {
    const auto block = one_->allocate(100'000);
    ASSERT_TRUE(block) << block.error().what();
    EXPECT_TRUE(is_zero(*block));
    std::memset(block->at, 0xff, block->bytes);
    one_->free(*block);
  }
}

TEST_P(PoolMemoryOfPrograms, LargestAllocation_Succeeds_AndOneByteMoreDoesNot) {
  one_.join(7, 1);
  EXPECT_EQ(other_->largest_allocation(), 0u) << "it has not joined";
  const uint64_t largest = one_->largest_allocation();
  ASSERT_GT(largest, 1u << 20);
  const auto more = one_->allocate(largest + 1);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code(), ENOSPC);
  const auto block = one_->allocate(largest);
  ASSERT_TRUE(block) << block.error().what();
  EXPECT_EQ(one_->largest_allocation(), 0u);
  EXPECT_FALSE(one_->allocate(1));
  one_->free(*block);
  EXPECT_EQ(one_->largest_allocation(), largest);
}

TEST_P(PoolMemoryOfPrograms, AllTaken_ChannelsOpenNevertheless) {
  one_.join(7, 1);
  other_.join(8, 2);
  while (one_->largest_allocation() > 0) ASSERT_TRUE(one_->allocate(one_->largest_allocation()));
  auto channel = one_->open_channel(other_.id());
  ASSERT_TRUE(channel) << channel.error().what();
  one_->close_channel(std::move(*channel));
}

TEST_P(PoolMemoryOfPrograms, Allocate_OfTwoProcesses_DoesNotOverlap) {
  Process second(file_, 0, clock_, GetParam());
  one_.join(7, 1);
  second.join(8, 2);
  const auto first = one_->allocate(50'000), next = second->allocate(50'000);
  ASSERT_TRUE(first && next);
  EXPECT_TRUE(first->offset + first->bytes <= next->offset || next->offset + next->bytes <= first->offset);
  // A process frees its own blocks alone.
  second->free(*first);
  const auto third = second->allocate(50'000);
  ASSERT_TRUE(third);
  EXPECT_NE(third->offset, first->offset);
}

TEST_P(PoolMemoryOfPrograms, Borrow_OfAnotherProcessOfTheHost_IsTheSameMemory) {
  Process second(file_, 0, clock_, GetParam());
  one_.join(7, 1);
  second.join(8, 2);
  const auto block = one_->allocate(100'000);
  ASSERT_TRUE(block);
  const auto borrowed = second->borrow(one_.id().instance, block->offset, block->bytes);
  ASSERT_NE(borrowed, nullptr);
  block->at[99'999] = std::byte{7};
  borrowed.get()[0] = std::byte{8};
  EXPECT_EQ(borrowed.get()[99'999], std::byte{7});
  EXPECT_EQ(block->at[0], std::byte{8});
}

TEST_P(PoolMemoryOfPrograms, Borrow_OfWhatTheProcessDoesNotHave_IsNull) {
  Process second(file_, 0, clock_, GetParam());
  one_.join(7, 1);
  EXPECT_EQ(second->borrow(one_.id().instance, 0, 1), nullptr) << "it has not joined";
  second.join(8, 2);
  other_.join(9, 3);
  const auto block = one_->allocate(100'000);
  ASSERT_TRUE(block);
  ASSERT_TRUE(one_->allocate(100'000)) << "a neighbour of the block";
  const uint64_t instance = one_.id().instance;
  EXPECT_EQ(second->borrow(instance + 1, block->offset, block->bytes), nullptr);
  EXPECT_EQ(second->borrow(instance, block->offset + 4096, 4096), nullptr);
  EXPECT_EQ(second->borrow(instance, block->offset, 300'000), nullptr);
  EXPECT_EQ(second->borrow(instance, block->offset, UINT64_MAX), nullptr);
  EXPECT_EQ(second->borrow(instance, 0, block->bytes), nullptr);
  EXPECT_EQ(other_->borrow(instance, block->offset, block->bytes), nullptr) << "it is of another host";
  EXPECT_NE(second->borrow(instance, block->offset, block->bytes), nullptr);
}

TEST_P(PoolMemoryOfPrograms, Free_OfABorrowedBlock_FailsUntilTheLastPointerIsDestroyed) {
  Process second(file_, 0, clock_, GetParam());
  Process third(file_, 0, clock_, GetParam());
  one_.join(7, 1);
  second.join(8, 2);
  third.join(9, 3);
  const auto block = one_->allocate(100'000);
  ASSERT_TRUE(block);
  const auto borrow = [&](Process& process) {
    return process->borrow(one_.id().instance, block->offset, block->bytes);
  };
  auto first = borrow(second), again = borrow(second);
  EXPECT_FALSE(one_->free(*block));
  first.reset();
  EXPECT_FALSE(one_->free(*block)) << "a pointer is left";
  auto of_third = borrow(third);
  again.reset();
  EXPECT_FALSE(one_->free(*block)) << "another process borrows it";
  third.end();
  EXPECT_TRUE(one_->free(*block));
  EXPECT_EQ(borrow(second), nullptr);
  of_third.reset();  // behind the end of its pool
}

TEST_P(PoolMemoryOfPrograms, Free_WhileAnotherProcessHoldsTheLock_FailsWithoutWaiting) {
  one_.join(7, 1);
  const auto block = one_->allocate(100'000);
  ASSERT_TRUE(block);
  {
    const base::UniqueFd file(open(file_.path().c_str(), O_RDWR | O_CLOEXEC));
    HostLock lock(file.get(), 0);
    ASSERT_TRUE(lock.try_lock());
    EXPECT_FALSE(one_->free(*block));
  }
  EXPECT_TRUE(one_->free(*block));
}

TEST_P(PoolMemoryOfPrograms, Reach_OnlyOnCoherentMedia) {
  one_.join(7, 1);
  other_.join(8, 2);
  const auto block = one_->allocate(100'000);
  ASSERT_TRUE(block);
  const Place place = *one_->place_of(block->at, block->bytes);
  std::byte* const at = other_->reach(place);
  if (GetParam() != Coherence::kFull) {
    EXPECT_EQ(at, nullptr);
    return;
  }
  ASSERT_NE(at, nullptr);
  EXPECT_NE(at, block->at) << "each process has a mapping of its own";
  std::memset(at, 5, 100'000);
  EXPECT_EQ(block->at[99'999], std::byte{5});
  EXPECT_EQ(other_->reach({1, place.offset, place.bytes}), nullptr) << "it is not in the territory of host 1";
  EXPECT_EQ(other_->reach({0, 0, 64}), nullptr) << "the header is no block";
  EXPECT_EQ(other_->reach({0, place.offset, UINT64_MAX}), nullptr);
  EXPECT_EQ(other_->reach({40, place.offset, 64}), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Pool, PoolMemoryOfPrograms, ::testing::Values(Coherence::kFull, Coherence::kNone),
                         [](const auto& one) { return one.param == Coherence::kFull ? "Coherent" : "Torn"; });

TEST(PoolPlace, AfterTheWriterHasLeft_WritesNothing) {
  PoolFile file;
  TestClock clock;
  Process one(file, 0, clock), other(file, 1, clock);
  one.join(7, 1);
  other.join(8, 2);
  auto channel = std::move(*other->open_channel(one.id()));
  auto back = std::move(*one->open_channel(other.id()));
  ASSERT_TRUE(channel->is_open());
  const auto block = one->allocate(4096);
  ASSERT_TRUE(block);
  std::byte* const at = other->reach(*one->place_of(block->at, block->bytes));
  const std::vector<std::byte> data(4096, std::byte{7});
  channel->place(at, data.data(), 100);
  EXPECT_EQ(block->at[99], std::byte{7});
  EXPECT_EQ(block->at[100], std::byte{0});
  other->leave();
  channel->place(at + 100, data.data(), 100);
  EXPECT_EQ(block->at[100], std::byte{0}) << "its record says that it writes no more";
  one->close_channel(std::move(back));
}

}  // namespace
}  // namespace nupa::pool
