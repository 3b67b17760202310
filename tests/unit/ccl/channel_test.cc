// SPDX-License-Identifier: Apache-2.0
/// Tests of channels between two ranks; both ends are in one process. They cover credits, lengths, and the fragments
/// that a peer may send.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "../../support/ccl_calls.h"
#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/direct.h"
#include "ccl/algorithms/messages/folded.h"
#include "ccl/algorithms/messages/transfer.h"
#include "ccl/channel/rdma_channel.h"
#include "ccl/channel/shm_channel.h"
#include "ccl/p2p/message_peer.h"
#include "channels.h"

namespace nupa::ccl {
namespace {

// ---- where messages lie ---------------------------------------------------------------------------------------------

TEST(CclChannelLayout, Fragments_UpTo32Ranks_Are128) {
  EXPECT_EQ(ChannelLayout(32).fragments(), 128u);
  EXPECT_EQ(ChannelLayout(33).fragments(), 32u);
  EXPECT_EQ(ChannelLayout(2).fragment_bytes(), 65536u);
  EXPECT_EQ(ChannelLayout(4096).fragment_bytes(), 4096u);
  for (const uint32_t ranks : {1u, 2u, 32u, 33u, 512u}) {
    const ChannelLayout layout(ranks);
    // What both ends send ahead finds room before either side learns that a fragment was taken.
    EXPECT_LE(2 * layout.ahead() + layout.reported_after(), layout.fragments()) << ranks;
    EXPECT_EQ(layout.rdma_requests(), 4 * layout.fragments());
    EXPECT_EQ(layout.bytes(), layout.offset(ranks, ChannelKind::kCollective)) << ranks;
  }
}

TEST(CclChannelLayout, Slots_OfBothDirections_AreContiguousAndUsedInTurn) {
  const ChannelLayout layout(33);
  const size_t whole = layout.offset(0, ChannelKind::kMessage);
  EXPECT_EQ(layout.in_slot(0), sizeof(ChannelHead) <= 4096 ? 4096u : 0u);
  EXPECT_EQ(layout.in_slot(31), 4096 + 31 * layout.fragment_bytes());
  EXPECT_EQ(layout.in_slot(32), layout.in_slot(0)) << "slots are used in turn";
  EXPECT_EQ(layout.out_slot(0), layout.in_slot(31) + layout.fragment_bytes());
  EXPECT_EQ(layout.out_slot(31) + layout.fragment_bytes(), whole) << "the last one ends where the next channel begins";
}

// ---- a channel in memory --------------------------------------------------------------------------------------------

std::string front_text(const MessageChannel& channel) {
  return {reinterpret_cast<const char*>(channel.front()), channel.front_bytes()};
}

TEST(CclShmChannel, Send_AllSlotsAreFull_WaitsUntilOneIsTaken) {
  MappedPair pair;
  EXPECT_FALSE(pair.ends[0].is_used() || pair.ends[1].is_used());
  for (uint32_t i = 0; i < kSmall.fragments(); ++i) {
    ASSERT_TRUE(pair.ends[0].can_send().is_over()) << i;
    send_text(pair.ends[0], "piece " + std::to_string(i));
  }
  EXPECT_FALSE(pair.ends[0].can_send().is_over()) << "the first one has not been taken";
  EXPECT_TRUE(pair.ends[0].is_used() && pair.ends[1].is_used());
  EXPECT_EQ(front_text(pair.ends[1]), "piece 0");
  pair.ends[1].pop();
  EXPECT_TRUE(pair.ends[0].can_send().is_over());
  send_text(pair.ends[0], "one more");
  EXPECT_FALSE(pair.ends[0].can_send().is_over());
  for (uint32_t i = 1; i < kSmall.fragments(); ++i) {
    ASSERT_TRUE(pair.ends[1].can_receive().is_over());
    ASSERT_EQ(front_text(pair.ends[1]), "piece " + std::to_string(i));
    pair.ends[1].pop();
  }
  ASSERT_TRUE(pair.ends[1].can_receive().is_over());
  EXPECT_EQ(front_text(pair.ends[1]), "one more");
  pair.ends[1].pop();
  EXPECT_FALSE(pair.ends[1].can_receive().is_over());
}

// ---- a channel by RDMA ----------------------------------------------------------------------------------------------

/// Keeps what is posted.
class PostedQueue final : public QueuePair {
 public:
  struct Posted {
    SendWr wr;
    Sge sge{};
  };
  std::vector<Posted> sent;

  uint32_t number() const override { return 7; }
  QpType type() const override { return QpType::kRc; }
  uint32_t handle() const override { return 0; }
  void* user_context() const override { return nullptr; }
  int modify(const QpAttr&, uint32_t) override { return 0; }
  int query(QpAttr*, QpOptions*) const override { return 0; }
  void post_begin() override {}
  int post(const SendWr& wr) override {
    sent.push_back({wr, wr.num_sge > 0 ? wr.sg_list[0] : Sge{}});
    return 0;
  }
  void post_end() override {}
  int post_recv(const RecvWr&) override { return 0; }
  int attach_multicast(const Gid&, uint16_t) override { return 0; }
  int detach_multicast(const Gid&, uint16_t) override { return 0; }
  int close() override { return 0; }
};

constexpr uint64_t kThere = 0x10000;

class CclRdmaChannel : public ::testing::Test {
 protected:
  ImmediateData last_note() const { return ImmediateData::unpacked(ntohl(qp.sent.back().wr.imm_or_rkey)); }

  PostedQueue qp;
  Memory memory = zeroed(kSmall.offset(0, ChannelKind::kMessage));
  RdmaChannel channel{qp, ChannelKind::kMessage, {memory.get(), 11, 12}, {kThere, 13}, 3, kSmall};
};

TEST(CclImmediateData, PackedAndUnpacked_IsEqual) {
  for (const ChannelKind kind : {ChannelKind::kCollective, ChannelKind::kMessage})
    for (const bool is_taken : {false, true})
      for (const uint32_t value : {0u, 1u, 0x3fffffffu}) {
        const ImmediateData note = ImmediateData::unpacked(ImmediateData{kind, is_taken, value}.packed());
        EXPECT_TRUE(note.channel == kind && note.is_taken == is_taken && note.value == value);
      }
}

TEST_F(CclRdmaChannel, Send_Fragment_IsWrittenToItsSlotWithItsLength) {
  send_text(channel, "first");
  channel.send(0);
  ASSERT_EQ(qp.sent.size(), 2u);
  const auto& [wr, sge] = qp.sent[0];
  EXPECT_EQ(wr.opcode, Opcode::kRdmaWriteWithImm);
  EXPECT_EQ(wr.rkey, 13u);
  EXPECT_EQ(wr.remote_addr, kThere + kSmall.in_slot(0));
  EXPECT_EQ(wr.wr_id, 2u) << "the completions belong to the channel of this kind";
  EXPECT_EQ(sge.addr, reinterpret_cast<uint64_t>(memory.get() + kSmall.out_slot(0)));
  EXPECT_EQ(sge.length, 5u);
  EXPECT_EQ(sge.lkey, 11u);
  EXPECT_EQ(qp.sent[1].wr.num_sge, 0u);
  EXPECT_EQ(qp.sent[1].wr.remote_addr, kThere + kSmall.in_slot(1));
  EXPECT_TRUE(last_note().channel == ChannelKind::kMessage && !last_note().is_taken && last_note().value == 0);
}

TEST_F(CclRdmaChannel, Send_AllSlotsAreFull_WaitsForThePeersReport) {
  for (uint32_t i = 0; i < kSmall.fragments(); ++i) {
    ASSERT_TRUE(channel.can_send().is_over()) << i;
    channel.send(1);
  }
  EXPECT_FALSE(channel.can_send().is_over());
  channel.note({ChannelKind::kMessage, true, 2});
  EXPECT_TRUE(channel.can_send().is_over());
  channel.send(1);
  EXPECT_TRUE(channel.can_send().is_over());
  channel.send(1);
  EXPECT_FALSE(channel.can_send().is_over()) << "two were taken, and not more";
}

TEST_F(CclRdmaChannel, Pop_QuarterOfTheSlots_IsReportedAtOnce) {
  for (uint32_t i = 0; i < 2 * kSmall.reported_after(); ++i) {
    channel.note({ChannelKind::kMessage, false, i});
    ASSERT_TRUE(channel.can_receive().is_over());
    EXPECT_EQ(channel.front_bytes(), i);
    EXPECT_EQ(channel.front(), memory.get() + kSmall.in_slot(i));
    channel.pop();
    EXPECT_EQ(qp.sent.size(), (i + 1) / kSmall.reported_after());
  }
  EXPECT_FALSE(channel.can_receive().is_over());
  EXPECT_TRUE(last_note().is_taken);
  EXPECT_EQ(last_note().value, kSmall.reported_after());
}

TEST_F(CclRdmaChannel, HasZeroCopySends_UntilTheLastHasArrived_IsTrue) {
  channel.send(1);
  EXPECT_FALSE(channel.has_zero_copy_sends());
  const char data[] = "sent";
  ASSERT_TRUE(channel.send_zero_copy(data, sizeof data));
  EXPECT_EQ(qp.sent.back().sge.addr, reinterpret_cast<uint64_t>(data));
  EXPECT_EQ(qp.sent.back().sge.lkey, 12u);
  channel.send(1);
  EXPECT_TRUE(channel.has_zero_copy_sends());
  channel.note_arrived();
  EXPECT_TRUE(channel.has_zero_copy_sends()) << "the one before it has arrived";
  channel.note_arrived();
  EXPECT_FALSE(channel.has_zero_copy_sends());
  EXPECT_FALSE(channel.all_arrived().is_over());
  channel.note_arrived();
  EXPECT_TRUE(channel.all_arrived().is_over());
}

TEST_F(CclRdmaChannel, NoteBreak_AfterTheLastFragment_IsNoFailure) {
  channel.send(1);
  EXPECT_TRUE(channel.note_break()) << "the peer may still need fragments";
  EXPECT_FALSE(channel.all_arrived().is_over());
  channel.note({ChannelKind::kMessage, false, 0});
  channel.pop_last();
  EXPECT_FALSE(channel.note_break());
  EXPECT_TRUE(channel.all_arrived().is_over()) << "the peer needs no more fragments";
}

TEST_F(CclRdmaChannel, IsUsed_FragmentHasArrived_IsTrue) {
  EXPECT_FALSE(channel.is_used());
  channel.note({ChannelKind::kMessage, false, 0});
  EXPECT_TRUE(channel.is_used());
}

// ---- what a rank does with the pieces of another one ----------------------------------------------------------------

/// Rank 0's steps after the others have sent pieces of so many bytes: its result, or -1: it waits for more.
int result_of(ChannelWorld& world, const std::vector<size_t>& lengths,
              const std::function<CollectiveTask(ChannelGroup&)>& begin) {
  for (uint32_t rank = 1; rank <= lengths.size(); ++rank) world.channel(rank, 0).send(lengths[rank - 1]);
  CollectiveTask steps = begin(world.group(0));
  return steps.go_on() ? steps.result() : -1;
}

TEST(CclChannelFragments, Receive_FragmentOfAnotherLength_FailsWithEproto) {
  std::byte to[16] = {};
  std::byte own[16] = {};
  const Reducer sum{{Type::kInt32, Operator::kSum}};
  const Call sums = reduce_call(sum, own, to, 2);
  const auto receives = [&](ChannelGroup& group) { return messages::receive_array(group, 1, to, 8); };
  const auto flows = [&](ChannelGroup& group) { return messages::flow(group, {1, nullptr, 0, 1, to, 8, &sum}); };
  const auto reduces = [&](ChannelGroup& group) { return messages::reduce_direct(group, sums); };
  for (const std::function<CollectiveTask(ChannelGroup&)>& one :
       {std::function<CollectiveTask(ChannelGroup&)>(receives), std::function<CollectiveTask(ChannelGroup&)>(flows),
        std::function<CollectiveTask(ChannelGroup&)>(reduces)}) {
    for (const size_t length : {size_t{0}, size_t{7}, size_t{9}, size_t{4096}}) {
      ChannelWorld world(2);
      EXPECT_EQ(result_of(world, {length}, one), EPROTO) << length;
    }
    ChannelWorld world(2);
    EXPECT_EQ(result_of(world, {8}, one), 0);
  }
  for (const std::byte byte : to) EXPECT_EQ(byte, std::byte{}) << "nothing of another length was taken";
}

TEST(CclChannelFragments, FragmentsOf_WrongLengthFromAnyRank_FailsWithEproto) {
  const auto waits = [](ChannelGroup& group) { return messages::fragments_of(group, 0, group.ranks(), 4); };
  for (uint32_t wrong = 1; wrong < 4; ++wrong) {
    ChannelWorld world(4);
    for (uint32_t rank = 1; rank < 4; ++rank) (void)world.group(0).has(rank);
    std::vector<size_t> lengths(3, 4);
    lengths[wrong - 1] = 5;
    EXPECT_EQ(result_of(world, lengths, waits), EPROTO) << wrong;
  }
  ChannelWorld world(4);
  for (uint32_t rank = 1; rank < 4; ++rank) (void)world.group(0).has(rank);
  EXPECT_EQ(result_of(world, {4, 4}, waits), -1) << "the last rank has sent nothing";
}

TEST(CclMessageDepart, Depart_RankThatWasUsed_IsWaitedForUntilItsLastFragment) {
  ChannelWorld world(3);
  for (uint32_t rank = 1; rank < 3; ++rank) (void)world.group(0).has(rank);
  world.channel(1, 0).send(0);
  world.channel(0, 1).pop();
  CollectiveTask steps = messages::depart(world.group(0));
  EXPECT_FALSE(steps.go_on()) << "rank 1 has not sent its last fragment";
  EXPECT_FALSE(world.channel(2, 0).can_receive().is_over()) << "rank 2 has nothing to do with it";
  ASSERT_TRUE(world.channel(1, 0).can_receive().is_over());
  world.channel(1, 0).send(0);
  EXPECT_TRUE(steps.go_on());
  EXPECT_EQ(steps.result(), 0);
}

/// A channel that accepts zero-copy sends.
class ZeroCopyChannel final : public MessageChannel {
 public:
  size_t fragment_bytes() const override { return 65536; }
  Wait can_send() const override { return {&done_, 0}; }
  std::byte* room() override { return room_; }
  void send(size_t) override { ++sent; }
  bool send_zero_copy(const void*, size_t) override {
    ++zero_copies;
    return true;
  }
  bool has_zero_copy_sends() const override { return zero_copies > 0; }
  Wait can_receive() const override { return {&done_, 1}; }
  const std::byte* front() const override { return room_; }
  size_t front_bytes() const override { return 0; }
  void pop() override {}
  bool is_used() const override { return true; }
  void pop_last() override {}
  Wait all_arrived() const override { return {&arrived, 1}; }
  int sent = 0;
  int zero_copies = 0;
  std::atomic<uint32_t> arrived{0};

 private:
  std::atomic<uint32_t> done_{0};
  std::byte room_[65536] = {};
};

TEST(CclZeroCopySends, Send_LargeStableArrayAndLargeFragment_IsZeroCopy) {
  constexpr size_t kLarge = 4 << 20;
  ChannelWorld world(2);
  const std::vector<std::byte> data(65536);
  const auto is_zero_copy = [&](bool stays, size_t bytes, size_t fragment) {
    ZeroCopyChannel channel;
    messages::ZeroCopySends sends(world.group(0), stays, bytes);
    sends.send(channel, data.data(), fragment);
    EXPECT_EQ(channel.sent + channel.zero_copies, 1);
    return channel.zero_copies == 1;
  };
  EXPECT_TRUE(is_zero_copy(true, kLarge, 65536));
  EXPECT_TRUE(is_zero_copy(true, kLarge, 4096));
  EXPECT_FALSE(is_zero_copy(true, kLarge, 4095));
  EXPECT_FALSE(is_zero_copy(true, kLarge - 1, 65536));
  EXPECT_FALSE(is_zero_copy(false, kLarge, 65536)) << "what changes is copied";
}

/// Provides a channel that accepts zero-copy sends.
class ZeroCopyProvider final : public ChannelGroup::Provider {
 public:
  void want(uint32_t) override {}
  Wait ready(uint32_t rank) override { return {&there_, 0, rank}; }
  MessageChannel& channel(uint32_t) override { return the_channel; }
  uint32_t ahead() const override { return 1; }
  bool is_used(uint32_t) const override { return true; }
  ZeroCopyChannel the_channel;

 private:
  const std::atomic<uint32_t> there_{0};
};

TEST(CclZeroCopySends, Settle_ZeroCopySendUnderWay_WaitsUntilItHasArrived) {
  ZeroCopyProvider provider;
  ChannelGroup group(0, {0, 1}, provider);
  const std::vector<std::byte> data(65536);
  messages::ZeroCopySends sends(group, true, 4 << 20);
  CollectiveTask unneeded = sends.settle();
  EXPECT_TRUE(unneeded.go_on()) << "there was no zero-copy send";
  sends.send(provider.the_channel, data.data(), data.size());
  CollectiveTask steps = sends.settle();
  EXPECT_FALSE(steps.go_on()) << "it may still be read";
  provider.the_channel.arrived = 1;
  EXPECT_TRUE(steps.go_on());
  EXPECT_EQ(steps.result(), 0);
}

/// What rank 0 of two has done with its large array when it begins to wait for the other one.
struct Given {
  int zero_copies;
  int sent;
};

Given given_by(const std::function<CollectiveTask(ChannelGroup&)>& begin) {
  ZeroCopyProvider provider;
  ChannelGroup group(0, {0, 1}, provider);
  CollectiveTask steps = begin(group);
  EXPECT_FALSE(steps.go_on());
  return {provider.the_channel.zero_copies, provider.the_channel.sent};
}

TEST(CclZeroCopySends, Send_ArrayThatTheCallWritesMeanwhile_IsCopied) {
  constexpr size_t kBytes = 4 << 20;
  std::vector<std::byte> in(2 * kBytes);
  std::vector<std::byte> out(2 * kBytes);
  const Reducer sum{{Type::kUint32, Operator::kSum}};
  const auto exchanges = [&](std::byte* to) {
    const Call call = exchange_call(in.data(), {kBytes}, to, {kBytes});
    return given_by([&](ChannelGroup& group) { return messages::all_to_all_direct(group, call); });
  };
  const auto reduces = [&](std::byte* to) {
    const Call call = reduce_call(sum, in.data(), to, kBytes / sizeof(uint32_t));
    return given_by([&](ChannelGroup& group) { return messages::all_reduce_one_shot(group, call); });
  };
  EXPECT_TRUE(exchanges(out.data()).zero_copies > 0 && exchanges(out.data()).sent == 0);
  EXPECT_TRUE(exchanges(in.data()).zero_copies == 0 && exchanges(in.data()).sent > 0);
  EXPECT_TRUE(reduces(out.data()).zero_copies > 0 && reduces(out.data()).sent == 0);
  EXPECT_TRUE(reduces(in.data()).zero_copies == 0 && reduces(in.data()).sent > 0);
}

TEST(CclFolded, Folded_PairOfRanks_OneOfThemTakesPart) {
  struct Expected {
    uint32_t ranks, rank, power, extra, place;
  };
  for (const Expected& one : {Expected{6, 0, 4, 2, kNoRank}, Expected{6, 1, 4, 2, 0}, Expected{6, 3, 4, 2, 1},
                              Expected{6, 4, 4, 2, 2}, Expected{6, 5, 4, 2, 3}, Expected{8, 7, 8, 0, 7}}) {
    ChannelWorld world(one.ranks);
    const messages::Folded folded(world.group(one.rank));
    EXPECT_EQ(folded.power, one.power);
    EXPECT_EQ(folded.extra, one.extra);
    EXPECT_EQ(folded.place, one.place) << one.rank << " of " << one.ranks;
    EXPECT_EQ(folded.is_in_pair(one.rank), one.rank < 2 * one.extra);
    if (one.place != kNoRank) {
      EXPECT_EQ(folded.rank_at(one.place), one.rank);
    }
  }
}

}  // namespace
}  // namespace nupa::ccl
