// SPDX-License-Identifier: Apache-2.0
/// A pool as its processes see it: join, find, life, channels, blocks. Two hosts in one process, with a clock of the
/// test; the caches of the hosts are coherent, or torn.
#include <cerrno>
#include <cstring>
#include <vector>

#include "fixture.h"

namespace nupa::pool {
namespace {

class EachCoherence : public ::testing::TestWithParam<Coherence> {
 protected:
  PoolFile file_;
  TestClock clock_;
  Process one_{file_, 0, clock_, GetParam()};
  Process other_{file_, 1, clock_, GetParam()};

  /// Both have joined, and have a channel to each other.
  void connect() {
    one_.join(7, 1);
    other_.join(8, 2);
    auto opened = one_->open_channel(other_.id());
    ASSERT_TRUE(opened) << opened.error().what();
    to_other_ = std::move(*opened);
    EXPECT_FALSE(to_other_->is_open()) << "the other process has not answered";
    Pool::News news;
    EXPECT_TRUE(other_->poll_bells(&news));
    ASSERT_EQ(news.offered, std::vector<ProcessId>{one_.id()});
    auto answered = other_->open_channel(one_.id());
    ASSERT_TRUE(answered) << answered.error().what();
    to_one_ = std::move(*answered);
    EXPECT_TRUE(to_one_->is_open());
    EXPECT_TRUE(to_other_->is_open());
  }
  std::unique_ptr<Channel> to_other_, to_one_;
};

void send(Channel& channel, uint8_t number, size_t payload_bytes) {
  Header header;
  header.bytes[0] = std::byte{number};
  header.payload_lines = static_cast<uint16_t>(lines_of(payload_bytes));
  const std::vector<std::byte> payload(payload_bytes, std::byte{number});
  ASSERT_TRUE(channel.fits(header.payload_lines));
  channel.store(0, payload.data(), payload.size());
  channel.publish(header);
}

void expect_record(Channel& channel, uint8_t number, size_t payload_bytes) {
  Header header;
  ASSERT_EQ(channel.look(&header), Channel::Look::kRecord);
  EXPECT_EQ(header.bytes[0], std::byte{number});
  ASSERT_EQ(header.payload_lines, lines_of(payload_bytes));
  std::vector<std::byte> payload(payload_bytes);
  channel.load(0, payload.data(), payload.size());
  EXPECT_EQ(payload, std::vector<std::byte>(payload_bytes, std::byte{number}));
  channel.pop();
}

TEST_P(EachCoherence, Join_TwoHosts_FindEachOtherByAddressAndSlot) {
  one_.join(7, 1);
  other_.join(8, 2);
  EXPECT_EQ(one_->find(gid_of(2), 8), other_.id());
  EXPECT_EQ(other_->find(gid_of(1), 7), one_.id());
  EXPECT_EQ(one_->find(gid_of(2), 7), std::nullopt) << "another slot";
  EXPECT_EQ(one_->find(gid_of(3), 8), std::nullopt) << "another address";
  EXPECT_EQ(one_->find_all(gid_of(2)), std::vector<ProcessId>{other_.id()});
  EXPECT_EQ(one_->find_record(1, other_.id().record), other_.id());
  EXPECT_EQ(one_->find_record(1, static_cast<uint16_t>(other_.id().record + 1)), std::nullopt);
  EXPECT_EQ(one_->find_record(2, 0), std::nullopt) << "there are two hosts";
}

TEST_P(EachCoherence, Put_RingIsFull_WritesNothingUntilTheReaderHasReported) {
  connect();
  uint32_t written = 0;
  Header header;
  while (written <= to_other_->lines() && to_other_->put(header)) ++written;
  EXPECT_EQ(written, to_other_->lines());
  for (uint32_t read = 0; read < written; ++read) {
    ASSERT_EQ(to_one_->look(&header), Channel::Look::kRecord) << read;
    to_one_->pop();
  }
  EXPECT_EQ(to_one_->look(&header), Channel::Look::kNothing);
  EXPECT_TRUE(to_other_->put(header));
}

TEST_P(EachCoherence, Update_NewGroups_AreSeenByTheOtherHost) {
  one_.join(7, 1);
  other_.join(8, 2);
  EXPECT_TRUE(one_->members(gid_of(9)).empty());
  for (int i = 0; i < 5; ++i) {
    Description description{.slots = {8}, .gids = {gid_of(2)}, .groups = {gid_of(9)}};
    description.receives_for_host = i % 2 == 0;
    ASSERT_TRUE(other_->update(description));
    const auto seen = one_->describe(other_.id());
    ASSERT_TRUE(seen);
    EXPECT_EQ(seen->receives_for_host, i % 2 == 0);
    EXPECT_EQ(seen->groups, description.groups);
  }
  EXPECT_EQ(one_->members(gid_of(9)), std::vector<ProcessId>{other_.id()});
  EXPECT_TRUE(other_->members(gid_of(9)).empty()) << "a process is no member for itself";
}

TEST_P(EachCoherence, Channel_Records_ArriveInBothDirections) {
  connect();
  for (int i = 0; i < 200; ++i) {
    const auto number = static_cast<uint8_t>(i);
    const size_t payload = i % 3 * 70;
    send(*to_other_, number, payload);
    send(*to_one_, number, payload);
    expect_record(*to_one_, number, payload);
    expect_record(*to_other_, number, payload);
  }
  Header header;
  EXPECT_EQ(to_one_->look(&header), Channel::Look::kNothing);
}

TEST_P(EachCoherence, Channel_Full_FitsAfterTheReaderHasRead) {
  connect();
  int sent = 0;
  for (; to_other_->fits(3); ++sent) send(*to_other_, static_cast<uint8_t>(sent), 3 * kLineBytes);
  EXPECT_EQ(sent, to_other_->lines() / 4);
  for (int i = 0; i < sent; ++i) expect_record(*to_one_, static_cast<uint8_t>(i), 3 * kLineBytes);
  to_one_->report();
  EXPECT_TRUE(to_other_->fits(3));
}

TEST_P(EachCoherence, Bell_Rung_NamesTheChannelOnce) {
  connect();
  Pool::News news;
  other_->poll_bells(&news);
  news = {};
  EXPECT_FALSE(other_->poll_bells(&news)) << "nobody rang";
  to_other_->ring_bell();
  EXPECT_TRUE(other_->poll_bells(&news));
  EXPECT_EQ(news.rang, std::vector<ProcessId>{one_.id()});
  EXPECT_TRUE(news.offered.empty());
  news = {};
  EXPECT_FALSE(other_->poll_bells(&news));
}

TEST_P(EachCoherence, BothOpen_AtTheSameTime_HaveOneChannel) {
  one_.join(7, 1);
  other_.join(8, 2);
  to_other_ = std::move(*one_->open_channel(other_.id()));
  to_one_ = std::move(*other_->open_channel(one_.id()));
  EXPECT_TRUE(to_one_->is_open());
  EXPECT_TRUE(to_other_->is_open());
  Pool::News news;
  one_->poll_bells(&news);
  other_->poll_bells(&news);
  EXPECT_TRUE(news.offered.empty());
  send(*to_other_, 1, 100);
  expect_record(*to_one_, 1, 100);
}

TEST_P(EachCoherence, Close_ThenOpenAgain_IsANewChannel) {
  connect();
  send(*to_other_, 1, 100);
  one_->close_channel(std::move(to_other_));
  to_other_ = std::move(*one_->open_channel(other_.id()));
  Pool::News news;
  other_->poll_bells(&news);
  ASSERT_EQ(news.offered, std::vector<ProcessId>{one_.id()}) << "the old channel does not answer the new offer";
  other_->close_channel(std::move(to_one_));
  to_one_ = std::move(*other_->open_channel(one_.id()));
  ASSERT_TRUE(to_one_->is_open());
  ASSERT_TRUE(to_other_->is_open());
  send(*to_other_, 2, 100);
  expect_record(*to_one_, 2, 100);
}

TEST_P(EachCoherence, Close_OfThePeer_IsSeen) {
  one_.join(7, 1);
  other_.join(8, 2);
  auto here = *one_->open_channel(other_.id());
  EXPECT_FALSE(here->is_closed()) << "it is not open";
  auto there = *other_->open_channel(one_.id());
  ASSERT_TRUE(here->is_open() && there->is_open());
  EXPECT_FALSE(here->is_closed());
  EXPECT_FALSE(there->is_closed());
  other_->close_channel(std::move(there));
  EXPECT_TRUE(here->is_closed());
  there = *other_->open_channel(one_.id());
  EXPECT_TRUE(here->is_closed()) << "the next one is another channel";
  one_->close_channel(std::move(here));
  other_->close_channel(std::move(there));
}

TEST_P(EachCoherence, Open_ToAProcessThatHasLeft_IsRefused) {
  one_.join(7, 1);
  other_.join(8, 2);
  other_->leave();
  const auto opened = one_->open_channel(other_.id());
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ECONNREFUSED);
}

TEST_P(EachCoherence, Life_Beats_IsAlive) {
  one_.join(7, 1);
  other_.join(8, 2);
  pass(clock_, 5'000'000'000, one_, other_);
  EXPECT_EQ(one_->life(other_.id()), Life::kAlive);
}

TEST_P(EachCoherence, Life_NoBeatForTwoSeconds_IsSilentAndComesBack) {
  one_.join(7, 1);
  other_.join(8, 2);
  EXPECT_EQ(one_->life(other_.id()), Life::kAlive);
  pass(clock_, 1'900'000'000, one_);
  EXPECT_EQ(one_->life(other_.id()), Life::kAlive);
  pass(clock_, 200'000'000, one_);
  EXPECT_EQ(one_->life(other_.id()), Life::kSilent);
  EXPECT_EQ(one_->find(gid_of(2), 8), other_.id()) << "a silent process counts as living";
  other_.beat();
  EXPECT_EQ(one_->life(other_.id()), Life::kAlive);
}

TEST_P(EachCoherence, Life_ThisProcessWasStopped_IsNoSilenceOfTheOthers) {
  one_.join(7, 1);
  other_.join(8, 2);
  EXPECT_EQ(one_->life(other_.id()), Life::kAlive);
  clock_.now_ns += 60'000'000'000;
  one_.beat();
  EXPECT_EQ(one_->life(other_.id()), Life::kAlive);
}

TEST_P(EachCoherence, Life_Goodbye_IsEnded) {
  one_.join(7, 1);
  other_.join(8, 2);
  other_->leave();
  EXPECT_EQ(one_->life(other_.id()), Life::kEnded);
  EXPECT_EQ(one_->find(gid_of(2), 8), std::nullopt);
}

TEST_P(EachCoherence, Leave_WithAnOpenChannel_WritesNoMore) {
  connect();
  one_->leave();
  EXPECT_FALSE(to_other_->fits(0));
  to_other_->publish({});
  Header header;
  EXPECT_EQ(to_one_->look(&header), Channel::Look::kNothing);
}

TEST_P(EachCoherence, Memory_OfOneHost_IsLoadedByTheOther) {
  one_.join(7, 1);
  other_.join(8, 2);
  const auto block = one_->allocate(100'000);
  ASSERT_TRUE(block) << block.error().what();
  EXPECT_EQ(block->offset % 4096, 0u);
  for (uint8_t round = 1; round < 4; ++round) {
    std::memset(block->at, round, block->bytes);
    one_->write_back(block->at, block->bytes);
    const auto place = one_->place_of(block->at + 33, 50'000);
    ASSERT_TRUE(place);
    EXPECT_EQ(place->host, 0);
    std::vector<std::byte> loaded(place->bytes);
    ASSERT_TRUE(other_->load(*place, loaded.data()));
    EXPECT_EQ(loaded, std::vector<std::byte>(place->bytes, std::byte{round}));
  }
  one_->free(*block);
}

TEST_P(EachCoherence, Memory_FreedBlocks_AreUsedAgain) {
  one_.join(7, 1);
  std::vector<Block> blocks;
  for (;;) {
    const auto block = one_->allocate(128 << 10);
    if (!block) {
      EXPECT_EQ(block.error().code(), ENOSPC);
      break;
    }
    blocks.push_back(*block);
  }
  ASSERT_GT(blocks.size(), 4u);
  for (const Block& block : blocks) one_->free(block);
  EXPECT_TRUE(one_->allocate(blocks.size() * (128 << 10))) << "free neighbours are one block";
}

TEST_P(EachCoherence, Place_OutsideOfTheBlocks_IsRefused) {
  one_.join(7, 1);
  const auto block = one_->allocate(4096);
  ASSERT_TRUE(block);
  int local = 0;
  EXPECT_EQ(one_->place_of(reinterpret_cast<std::byte*>(&local), sizeof local), std::nullopt);
  std::byte to[64];
  const Place place = *one_->place_of(block->at, sizeof to);
  EXPECT_TRUE(one_->load(place, to));
  EXPECT_FALSE(one_->load({1, place.offset, place.bytes}, to)) << "it is not in the territory of host 1";
  EXPECT_FALSE(one_->load({0, 0, 64}, to)) << "the header is no block";
  EXPECT_FALSE(one_->load({0, UINT64_MAX - 10, 64}, to));
  EXPECT_FALSE(one_->load({0, place.offset, UINT64_MAX}, to));
  EXPECT_FALSE(one_->load({40, place.offset, 64}, to));
}

INSTANTIATE_TEST_SUITE_P(Pool, EachCoherence, ::testing::Values(Coherence::kFull, Coherence::kNone),
                         [](const auto& one) { return one.param == Coherence::kFull ? "Coherent" : "Torn"; });

}  // namespace
}  // namespace nupa::pool
