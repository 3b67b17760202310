// SPDX-License-Identifier: Apache-2.0
/// Lanes between two ranks, here two ends in one process: credits, lengths, what a peer may say, and messages by them.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/direct.h"
#include "ccl/algorithms/messages/folded.h"
#include "ccl/channel/shm_lane.h"
#include "ccl/algorithms/messages/transfer.h"
#include "ccl/channel/rdma_lane.h"
#include "ccl/p2p/message_peer.h"
#include "ccl/planner/planner.h"
#include "../../support/ccl_calls.h"

namespace nupa::ccl {
namespace {

struct Unmap {
  size_t bytes = 0;
  void operator()(std::byte* memory) const { munmap(memory, bytes); }
};
using Memory = std::unique_ptr<std::byte, Unmap>;

/// Memory that is never touched is never there.
Memory zeroed(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return Memory(static_cast<std::byte*>(memory), {bytes});
}

/// A layout whose pieces are small, and so its channels.
const ChannelLayout kSmall(4096);
constexpr WaitRules kRules{0, true};

// ---- where messages lie --------------------------------------------------------------------------------------------

TEST(CclChannelLayout, ManyPiecesUpTo32Ranks) {
  EXPECT_EQ(ChannelLayout(32).pieces(), 128u);
  EXPECT_EQ(ChannelLayout(33).pieces(), 32u);
  EXPECT_EQ(ChannelLayout(2).piece_bytes(), 65536u);
  EXPECT_EQ(ChannelLayout(4096).piece_bytes(), 4096u);
  for (const uint32_t ranks : {1u, 2u, 32u, 33u, 512u}) {
    const ChannelLayout layout(ranks);
    // What both ends send ahead finds room before either is told that anything was taken.
    EXPECT_LE(2 * layout.ahead() + layout.told_after(), layout.pieces()) << ranks;
    EXPECT_EQ(layout.wire_requests(), 4 * layout.pieces());
    EXPECT_EQ(layout.bytes(), layout.offset(ranks, LaneKind::kCollective)) << ranks;
  }
}

TEST(CclChannelLayout, SlotsOfBothDirectionsFollowEachOther) {
  const ChannelLayout layout(33);
  const size_t whole = layout.offset(0, LaneKind::kMessage);
  EXPECT_EQ(layout.in_slot(0), sizeof(ChannelHead) <= 4096 ? 4096u : 0u);
  EXPECT_EQ(layout.in_slot(31), 4096 + 31 * layout.piece_bytes());
  EXPECT_EQ(layout.in_slot(32), layout.in_slot(0)) << "slots are used in turn";
  EXPECT_EQ(layout.out_slot(0), layout.in_slot(31) + layout.piece_bytes());
  EXPECT_EQ(layout.out_slot(31) + layout.piece_bytes(), whole) << "the last one ends where the next channel begins";
}

// ---- a lane in memory ----------------------------------------------------------------------------------------------

/// Both ends of a lane between ranks 0 and 1.
struct MappedPair {
  explicit MappedPair(const ChannelLayout& layout = kSmall)
      : here(zeroed(layout.offset(0, LaneKind::kMessage))),
        there(zeroed(layout.offset(0, LaneKind::kMessage))),
        ends{{here.get(), there.get(), 1, layout, kRules}, {there.get(), here.get(), 0, layout, kRules}} {}
  Memory here;
  Memory there;
  MappedLane ends[2];
};

void send_text(Lane& lane, const std::string& text) {
  std::memcpy(lane.room(), text.data(), text.size());
  lane.send(text.size());
}

std::string front_text(const Lane& lane) { return {reinterpret_cast<const char*>(lane.front()), lane.front_bytes()}; }

TEST(CclMappedLane, HasRoomForAsManyPiecesAsItSays) {
  MappedPair pair;
  EXPECT_FALSE(pair.ends[0].is_used() || pair.ends[1].is_used());
  for (uint32_t i = 0; i < kSmall.pieces(); ++i) {
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
  for (uint32_t i = 1; i < kSmall.pieces(); ++i) {
    ASSERT_TRUE(pair.ends[1].can_receive().is_over());
    ASSERT_EQ(front_text(pair.ends[1]), "piece " + std::to_string(i));
    pair.ends[1].pop();
  }
  ASSERT_TRUE(pair.ends[1].can_receive().is_over());
  EXPECT_EQ(front_text(pair.ends[1]), "one more");
  pair.ends[1].pop();
  EXPECT_FALSE(pair.ends[1].can_receive().is_over());
}

// ---- a lane by wire ------------------------------------------------------------------------------------------------

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

class CclWireLane : public ::testing::Test {
 protected:
  WireNote last_note() const { return WireNote::unpacked(ntohl(qp.sent.back().wr.imm_or_rkey)); }

  PostedQueue qp;
  Memory channel = zeroed(kSmall.offset(0, LaneKind::kMessage));
  WireLane lane{qp, LaneKind::kMessage, {channel.get(), 11, 12}, {kThere, 13}, 3, kSmall};
};

TEST(CclWireNote, ComesBackFromItsWord) {
  for (const LaneKind kind : {LaneKind::kCollective, LaneKind::kMessage})
    for (const bool is_taken : {false, true})
      for (const uint32_t value : {0u, 1u, 0x3fffffffu}) {
        const WireNote note = WireNote::unpacked(WireNote{kind, is_taken, value}.packed());
        EXPECT_TRUE(note.lane == kind && note.is_taken == is_taken && note.value == value);
      }
}

TEST_F(CclWireLane, PiecesGoToTheirSlotsWithTheirLength) {
  send_text(lane, "first");
  lane.send(0);
  ASSERT_EQ(qp.sent.size(), 2u);
  const auto& [wr, sge] = qp.sent[0];
  EXPECT_EQ(wr.opcode, Opcode::kRdmaWriteWithImm);
  EXPECT_EQ(wr.rkey, 13u);
  EXPECT_EQ(wr.remote_addr, kThere + kSmall.in_slot(0));
  EXPECT_EQ(wr.wr_id, 2u) << "completions are the lane's whose kind this is";
  EXPECT_EQ(sge.addr, reinterpret_cast<uint64_t>(channel.get() + kSmall.out_slot(0)));
  EXPECT_EQ(sge.length, 5u);
  EXPECT_EQ(sge.lkey, 11u);
  EXPECT_EQ(qp.sent[1].wr.num_sge, 0u);
  EXPECT_EQ(qp.sent[1].wr.remote_addr, kThere + kSmall.in_slot(1));
  EXPECT_TRUE(last_note().lane == LaneKind::kMessage && !last_note().is_taken && last_note().value == 0);
}

TEST_F(CclWireLane, WaitsForRoomUntilTheOtherEndSaysThatPiecesWereTaken) {
  for (uint32_t i = 0; i < kSmall.pieces(); ++i) {
    ASSERT_TRUE(lane.can_send().is_over()) << i;
    lane.send(1);
  }
  EXPECT_FALSE(lane.can_send().is_over());
  lane.note({LaneKind::kMessage, true, 2});
  EXPECT_TRUE(lane.can_send().is_over());
  lane.send(1);
  EXPECT_TRUE(lane.can_send().is_over());
  lane.send(1);
  EXPECT_FALSE(lane.can_send().is_over()) << "two were taken, and not more";
}

TEST_F(CclWireLane, TellsOfAQuarterOfThePiecesAtATime) {
  for (uint32_t i = 0; i < 2 * kSmall.told_after(); ++i) {
    lane.note({LaneKind::kMessage, false, i});
    ASSERT_TRUE(lane.can_receive().is_over());
    EXPECT_EQ(lane.front_bytes(), i);
    EXPECT_EQ(lane.front(), channel.get() + kSmall.in_slot(i));
    lane.pop();
    EXPECT_EQ(qp.sent.size(), (i + 1) / kSmall.told_after());
  }
  EXPECT_FALSE(lane.can_receive().is_over());
  EXPECT_TRUE(last_note().is_taken);
  EXPECT_EQ(last_note().value, kSmall.told_after());
}

TEST_F(CclWireLane, HasLoansUntilTheLastOneHasArrived) {
  lane.send(1);
  EXPECT_FALSE(lane.has_loans());
  const char data[] = "lent";
  ASSERT_TRUE(lane.lend(data, sizeof data));
  EXPECT_EQ(qp.sent.back().sge.addr, reinterpret_cast<uint64_t>(data));
  EXPECT_EQ(qp.sent.back().sge.lkey, 12u);
  lane.send(1);
  EXPECT_TRUE(lane.has_loans());
  lane.note_arrived();
  EXPECT_TRUE(lane.has_loans()) << "the one before it has arrived";
  lane.note_arrived();
  EXPECT_FALSE(lane.has_loans());
  EXPECT_FALSE(lane.all_arrived().is_over());
  lane.note_arrived();
  EXPECT_TRUE(lane.all_arrived().is_over());
}

TEST_F(CclWireLane, ABreakEndsNothingAfterTheLastPiece) {
  lane.send(1);
  EXPECT_TRUE(lane.note_break()) << "the other end may need more";
  EXPECT_FALSE(lane.all_arrived().is_over());
  lane.note({LaneKind::kMessage, false, 0});
  lane.pop_last();
  EXPECT_FALSE(lane.note_break());
  EXPECT_TRUE(lane.all_arrived().is_over()) << "nobody waits for what the other end needs no more";
}

TEST_F(CclWireLane, IsUsedByAnythingThatWasSentOrCame) {
  EXPECT_FALSE(lane.is_used());
  lane.note({LaneKind::kMessage, false, 0});
  EXPECT_TRUE(lane.is_used());
}

// ---- what a rank does with the pieces of another one ---------------------------------------------------------------

/// Ranks of one process that send each other pieces: each has a lane to each other one.
class LaneWorld {
 public:
  explicit LaneWorld(uint32_t ranks) {
    for (uint32_t from = 0; from < ranks; ++from)
      for (uint32_t to = from + 1; to < ranks; ++to) pairs_[{from, to}] = std::make_unique<MappedPair>();
    std::vector<uint32_t> members;
    for (uint32_t rank = 0; rank < ranks; ++rank) members.push_back(rank);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      ways_.push_back(std::make_unique<Ways>(*this, rank));
      groups_.push_back(std::make_unique<LaneGroup>(rank, members, *ways_.back()));
    }
  }
  LaneGroup& group(uint32_t rank) { return *groups_[rank]; }
  Lane& lane(uint32_t rank, uint32_t other) {
    auto& pair = *pairs_[{std::min(rank, other), std::max(rank, other)}];
    return pair.ends[rank < other ? 0 : 1];
  }

 private:
  class Ways final : public LaneGroup::Ways {
   public:
    Ways(LaneWorld& world, uint32_t rank) : world_(world), rank_(rank) {}
    void want(uint32_t) override {}
    Wait ready(uint32_t rank) override { return {&there_, 0, rank}; }
    Lane& lane(uint32_t rank) override { return world_.lane(rank_, rank); }
    uint32_t ahead() const override { return kSmall.ahead(); }
    bool is_used(uint32_t rank) const override { return world_.lane(rank_, rank).is_used(); }

   private:
    LaneWorld& world_;
    const uint32_t rank_;
    const std::atomic<uint32_t> there_{1};
  };

  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<MappedPair>> pairs_;
  std::vector<std::unique_ptr<Ways>> ways_;
  std::vector<std::unique_ptr<LaneGroup>> groups_;
};

/// Rank 0's steps after the others have sent pieces of so many bytes: its result, or -1: it waits for more.
int result_of(LaneWorld& world, const std::vector<size_t>& lengths, const std::function<Steps(LaneGroup&)>& begin) {
  for (uint32_t rank = 1; rank <= lengths.size(); ++rank) world.lane(rank, 0).send(lengths[rank - 1]);
  Steps steps = begin(world.group(0));
  return steps.go_on() ? steps.result() : -1;
}

TEST(CclLanePieces, OfAnotherLengthAreAnError) {
  std::byte to[16] = {};
  std::byte own[16] = {};
  const Reducer sum{{Type::kInt32, Operator::kSum}};
  const Call sums = reduce_call(sum, own, to, 2);
  const auto receives = [&](LaneGroup& group) { return lanes::receive_array(group, 1, to, 8); };
  const auto flows = [&](LaneGroup& group) { return lanes::flow(group, {1, nullptr, 0, 1, to, 8, &sum}); };
  const auto reduces = [&](LaneGroup& group) { return lanes::reduce_direct(group, sums); };
  for (const std::function<Steps(LaneGroup&)>& one :
       {std::function<Steps(LaneGroup&)>(receives), std::function<Steps(LaneGroup&)>(flows),
        std::function<Steps(LaneGroup&)>(reduces)}) {
    for (const size_t length : {size_t{0}, size_t{7}, size_t{9}, size_t{4096}}) {
      LaneWorld world(2);
      EXPECT_EQ(result_of(world, {length}, one), EPROTO) << length;
    }
    LaneWorld world(2);
    EXPECT_EQ(result_of(world, {8}, one), 0);
  }
  for (const std::byte byte : to) EXPECT_EQ(byte, std::byte{}) << "nothing of another length was taken";
}

TEST(CclLanePieces, OfEachRankAreLookedAt) {
  const auto waits = [](LaneGroup& group) { return lanes::pieces_of(group, 0, group.ranks(), 4); };
  for (uint32_t wrong = 1; wrong < 4; ++wrong) {
    LaneWorld world(4);
    for (uint32_t rank = 1; rank < 4; ++rank) (void)world.group(0).has(rank);
    std::vector<size_t> lengths(3, 4);
    lengths[wrong - 1] = 5;
    EXPECT_EQ(result_of(world, lengths, waits), EPROTO) << wrong;
  }
  LaneWorld world(4);
  for (uint32_t rank = 1; rank < 4; ++rank) (void)world.group(0).has(rank);
  EXPECT_EQ(result_of(world, {4, 4}, waits), -1) << "the last rank has sent nothing";
}

TEST(CclLaneDepart, WaitsForTheLastPieceOfWhoeverWasSpokenTo) {
  LaneWorld world(3);
  for (uint32_t rank = 1; rank < 3; ++rank) (void)world.group(0).has(rank);
  world.lane(1, 0).send(0);
  world.lane(0, 1).pop();
  Steps steps = lanes::depart(world.group(0));
  EXPECT_FALSE(steps.go_on()) << "rank 1 has not said that it goes";
  EXPECT_FALSE(world.lane(2, 0).can_receive().is_over()) << "rank 2 has nothing to do with it";
  ASSERT_TRUE(world.lane(1, 0).can_receive().is_over());
  world.lane(1, 0).send(0);
  EXPECT_TRUE(steps.go_on());
  EXPECT_EQ(steps.result(), 0);
}

/// A lane that takes loans.
class LendingLane final : public Lane {
 public:
  size_t piece_bytes() const override { return 65536; }
  Wait can_send() const override { return {&done_, 0}; }
  std::byte* room() override { return room_; }
  void send(size_t) override { ++sent; }
  bool lend(const void*, size_t) override {
    ++lent;
    return true;
  }
  bool has_loans() const override { return lent > 0; }
  Wait can_receive() const override { return {&done_, 1}; }
  const std::byte* front() const override { return room_; }
  size_t front_bytes() const override { return 0; }
  void pop() override {}
  bool is_used() const override { return true; }
  void pop_last() override {}
  Wait all_arrived() const override { return {&arrived, 1}; }
  int sent = 0;
  int lent = 0;
  std::atomic<uint32_t> arrived{0};

 private:
  std::atomic<uint32_t> done_{0};
  std::byte room_[65536] = {};
};

TEST(CclLoans, AreOfLargeArraysThatStayAndLargePieces) {
  constexpr size_t kLarge = 4 << 20;
  LaneWorld world(2);
  const std::vector<std::byte> data(65536);
  const auto is_lent = [&](bool stays, size_t bytes, size_t piece) {
    LendingLane lane;
    lanes::Loans loans(world.group(0), stays, bytes);
    loans.send(lane, data.data(), piece);
    EXPECT_EQ(lane.sent + lane.lent, 1);
    return lane.lent == 1;
  };
  EXPECT_TRUE(is_lent(true, kLarge, 65536));
  EXPECT_TRUE(is_lent(true, kLarge, 4096));
  EXPECT_FALSE(is_lent(true, kLarge, 4095));
  EXPECT_FALSE(is_lent(true, kLarge - 1, 65536));
  EXPECT_FALSE(is_lent(false, kLarge, 65536)) << "what changes is copied";
}

/// One that leads to a lane that takes loans.
class LendingWays final : public LaneGroup::Ways {
 public:
  void want(uint32_t) override {}
  Wait ready(uint32_t rank) override { return {&there_, 0, rank}; }
  Lane& lane(uint32_t) override { return the_lane; }
  uint32_t ahead() const override { return 1; }
  bool is_used(uint32_t) const override { return true; }
  LendingLane the_lane;

 private:
  const std::atomic<uint32_t> there_{0};
};

TEST(CclLoans, AreSettledWhenAllHasArrived) {
  LendingWays ways;
  LaneGroup group(0, {0, 1}, ways);
  const std::vector<std::byte> data(65536);
  lanes::Loans loans(group, true, 4 << 20);
  Steps unneeded = loans.settle();
  EXPECT_TRUE(unneeded.go_on()) << "nothing was lent";
  loans.send(ways.the_lane, data.data(), data.size());
  Steps steps = loans.settle();
  EXPECT_FALSE(steps.go_on()) << "it may still be read";
  ways.the_lane.arrived = 1;
  EXPECT_TRUE(steps.go_on());
  EXPECT_EQ(steps.result(), 0);
}

/// What rank 0 of two has done with its large array when it begins to wait for the other one.
struct Given {
  int lent;
  int sent;
};
Given given_by(const std::function<Steps(LaneGroup&)>& begin) {
  LendingWays ways;
  LaneGroup group(0, {0, 1}, ways);
  Steps steps = begin(group);
  EXPECT_FALSE(steps.go_on());
  return {ways.the_lane.lent, ways.the_lane.sent};
}

TEST(CclLoans, AreNotOfArraysThatAreWrittenToMeanwhile) {
  constexpr size_t kBytes = 4 << 20;
  std::vector<std::byte> in(2 * kBytes);
  std::vector<std::byte> out(2 * kBytes);
  const Reducer sum{{Type::kUint32, Operator::kSum}};
  const auto exchanges = [&](std::byte* to) {
    const Call call = exchange_call(in.data(), {kBytes}, to, {kBytes});
    return given_by([&](LaneGroup& group) { return lanes::all_to_all_direct(group, call); });
  };
  const auto reduces = [&](std::byte* to) {
    const Call call = reduce_call(sum, in.data(), to, kBytes / sizeof(uint32_t));
    return given_by([&](LaneGroup& group) { return lanes::all_reduce_one_shot(group, call); });
  };
  EXPECT_TRUE(exchanges(out.data()).lent > 0 && exchanges(out.data()).sent == 0);
  EXPECT_TRUE(exchanges(in.data()).lent == 0 && exchanges(in.data()).sent > 0);
  EXPECT_TRUE(reduces(out.data()).lent > 0 && reduces(out.data()).sent == 0);
  EXPECT_TRUE(reduces(in.data()).lent == 0 && reduces(in.data()).sent > 0);
}

TEST(CclFolded, EachPairHasOneThatTakesPart) {
  struct Expected {
    uint32_t ranks, rank, power, extra, place;
  };
  for (const Expected& one : {Expected{6, 0, 4, 2, kNoRank}, Expected{6, 1, 4, 2, 0}, Expected{6, 3, 4, 2, 1},
                              Expected{6, 4, 4, 2, 2}, Expected{6, 5, 4, 2, 3}, Expected{8, 7, 8, 0, 7}}) {
    LaneWorld world(one.ranks);
    const lanes::Folded folded(world.group(one.rank));
    EXPECT_EQ(folded.power, one.power);
    EXPECT_EQ(folded.extra, one.extra);
    EXPECT_EQ(folded.place, one.place) << one.rank << " of " << one.ranks;
    EXPECT_EQ(folded.is_in_pair(one.rank), one.rank < 2 * one.extra);
    if (one.place != kNoRank) {
      EXPECT_EQ(folded.rank_at(one.place), one.rank);
    }
  }
}

// ---- whole algorithms, with more pieces than may be under way ------------------------------------------------------

/// Runs all ranks' steps in one thread, in an order that changes. False: all wait for each other, or one has failed.
bool play(std::vector<Steps>& all, uint32_t seed) {
  std::mt19937 random(seed);
  for (Steps& steps : all) (void)steps.go_on();
  while (true) {
    // Lanes change only by these steps: where nobody can go on nobody ever will.
    std::vector<Steps*> can;
    bool are_done = true;
    for (Steps& steps : all) {
      if (steps.is_done()) continue;
      are_done = false;
      if (steps.waits_for().is_over()) can.push_back(&steps);
    }
    if (are_done) break;
    if (can.empty()) return false;
    (void)can[random() % can.size()]->go_on();
  }
  return std::all_of(all.begin(), all.end(), [](const Steps& steps) { return steps.result() == 0; });
}

constexpr size_t kInPiece = 4096 / sizeof(uint32_t);
/// Nothing, less than a piece, whole pieces, and more of them than a lane has.
constexpr size_t kElements[] = {0, 1, kInPiece - 1, kInPiece, kInPiece + 1, 2 * kInPiece, 45 * kInPiece + 7};
const Reducer kSum{{Type::kUint32, Operator::kSum}};

using Numbers = std::vector<uint32_t>;

Numbers numbers_of(uint32_t rank, size_t elements) {
  Numbers numbers(elements);
  for (size_t i = 0; i < elements; ++i) numbers[i] = static_cast<uint32_t>(i * 16 + rank * 1000003);
  return numbers;
}
Numbers sum_of(uint32_t begin, uint32_t end, size_t elements) {
  Numbers sum(elements);
  for (uint32_t rank = begin; rank < end; ++rank) {
    const Numbers one = numbers_of(rank, elements);
    for (size_t i = 0; i < elements; ++i) sum[i] += one[i];
  }
  return sum;
}

using Reduce = Steps (*)(LaneGroup&, const Call&);
enum class Which : uint8_t { kAll, kRoot, kBeforeAndOwn, kBefore };

/// Each rank has its numbers in `in` and as much room in `out`, unless it is done in place.
void expect_reduced(const char* name, Reduce algorithm, Which which) {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 8u})
    for (const size_t elements : kElements)
      for (const bool in_place : {false, true}) {
        LaneWorld world(ranks);
        std::vector<Numbers> in;
        std::vector<Numbers> out(ranks, Numbers(elements));
        KeptCalls calls;
        std::vector<Steps> all;
        const uint32_t root = ranks / 2;
        for (uint32_t rank = 0; rank < ranks; ++rank) in.push_back(numbers_of(rank, elements));
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          auto* const to = in_place ? in[rank].data() : out[rank].data();
          const Operation operation = which == Which::kBefore ? Operation::kExscan : Operation::kScan;
          const Call& call = calls.keep(reduce_call(kSum, in[rank].data(), to, elements, root, {}, operation));
          all.push_back(algorithm(world.group(rank), call));
        }
        ASSERT_TRUE(play(all, ranks)) << name << " of " << elements << " at " << ranks << " ranks";
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          if ((which == Which::kRoot && rank != root) || (which == Which::kBefore && rank == 0)) continue;
          const uint32_t end = which == Which::kBefore ? rank : which == Which::kBeforeAndOwn ? rank + 1 : ranks;
          ASSERT_EQ((in_place ? in : out)[rank], sum_of(0, end, elements))
              << name << " of " << elements << " at rank " << rank << " of " << ranks;
        }
      }
}

TEST(CclLaneAlgorithms, ReductionsOfManyPieces) {
  using namespace lanes;
  expect_reduced("one-shot", all_reduce_one_shot, Which::kAll);
  expect_reduced("slices", all_reduce_slices, Which::kAll);
  expect_reduced("doubling", all_reduce_doubling, Which::kAll);
  expect_reduced("halving", all_reduce_halving, Which::kAll);
  expect_reduced("ring", all_reduce_ring, Which::kAll);
  expect_reduced("direct", reduce_direct, Which::kRoot);
  expect_reduced(
      "binomial", [](LaneGroup& group, const Call& call) { return reduce_tree(group, call, Tree::kBinomial); },
      Which::kRoot);
  expect_reduced(
      "four-ary", [](LaneGroup& group, const Call& call) { return reduce_tree(group, call, Tree::kFourAry); },
      Which::kRoot);
  for (const Reduce scan : {scan_direct, scan_doubling}) {
    expect_reduced("scan", scan, Which::kBeforeAndOwn);
    expect_reduced("exscan", scan, Which::kBefore);
  }
}

/// Lengths of blocks, by rank, with a gap behind each.
struct Lists {
  std::vector<size_t> lengths;
  std::vector<size_t> offsets;
  explicit Lists(const std::vector<size_t>& elements, size_t gap = 3) {
    size_t at = 0;
    for (const size_t count : elements) {
      lengths.push_back(count * sizeof(uint32_t));
      offsets.push_back(at);
      at += (count + gap) * sizeof(uint32_t);
    }
  }
  Blocks blocks() const { return {0, lengths.data(), offsets.data()}; }
  size_t room() const { return (offsets.back() + lengths.back()) / sizeof(uint32_t) + 3; }
};

constexpr uint32_t kGap = 0x77777777;

/// What rank `from` has for `to`.
Numbers block_of(uint32_t from, uint32_t to, size_t elements) { return numbers_of(from * 64 + to, elements); }
size_t length_of(uint32_t from, uint32_t to) { return kElements[(from * 3 + to * 5) % std::size(kElements)]; }

void put(const Numbers& block, size_t offset, Numbers* to) {
  std::copy(block.begin(), block.end(), to->begin() + static_cast<ptrdiff_t>(offset / sizeof(uint32_t)));
}

void expect_exchanged(Steps (*algorithm)(LaneGroup&, const Call&), uint32_t ranks, bool in_place) {
  LaneWorld world(ranks);
  std::vector<Lists> gives;
  std::vector<Lists> gets;
  std::vector<Numbers> in;
  std::vector<Numbers> out;
  std::vector<Numbers> expected;
  KeptCalls calls;
  std::vector<Steps> all;
  // In place both lists are the same.
  const auto given = [&](uint32_t from, uint32_t to) {
    return in_place ? length_of(std::min(from, to), std::max(from, to)) : length_of(from, to);
  };
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    std::vector<size_t> give;
    std::vector<size_t> get;
    for (uint32_t other = 0; other < ranks; ++other) {
      give.push_back(given(rank, other));
      get.push_back(given(other, rank));
    }
    gives.emplace_back(give);
    gets.emplace_back(get);
    in.emplace_back(gives[rank].room(), kGap);
    out.emplace_back(gets[rank].room(), kGap);
    expected.emplace_back(gets[rank].room(), kGap);
    for (uint32_t other = 0; other < ranks; ++other) {
      put(block_of(rank, other, give[other]), gives[rank].offsets[other], &in[rank]);
      put(block_of(other, rank, get[other]), gets[rank].offsets[other], &expected[rank]);
    }
  }
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    auto* const to = in_place ? in[rank].data() : out[rank].data();
    const Call& call = calls.keep(exchange_call(in[rank].data(), gives[rank].blocks(), to, gets[rank].blocks(), false));
    all.push_back(algorithm(world.group(rank), call));
  }
  ASSERT_TRUE(play(all, ranks)) << ranks;
  EXPECT_EQ(in_place ? in : out, expected) << ranks << (in_place ? " in place" : "");
}

TEST(CclLaneAlgorithms, BlocksOfDifferentLengthsAreExchanged) {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 8u})
    for (const bool in_place : {false, true}) {
      expect_exchanged(lanes::all_to_all_direct, ranks, in_place);
      expect_exchanged(lanes::all_to_all_pairwise, ranks, in_place);
    }
}

TEST(CclLaneAlgorithms, BlocksOfDifferentLengthsAreGatheredByAll) {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 8u})
    for (Steps (*const algorithm)(LaneGroup&, const Call&) : {lanes::all_gather_direct, lanes::all_gather_ring}) {
      LaneWorld world(ranks);
      std::vector<size_t> lengths;
      for (uint32_t rank = 0; rank < ranks; ++rank) lengths.push_back(length_of(rank, 1));
      const Lists lists(lengths);
      Numbers expected(lists.room(), kGap);
      std::vector<Numbers> out(ranks, expected);
      std::vector<Numbers> in;
      KeptCalls calls;
      std::vector<Steps> all;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        in.push_back(block_of(rank, 0, lengths[rank]));
        put(in[rank], lists.offsets[rank], &expected);
        const Call& call =
            calls.keep(gather_call(0, in[rank].data(), lists.lengths[rank], out[rank].data(), lists.blocks(), false));
        all.push_back(algorithm(world.group(rank), call));
      }
      ASSERT_TRUE(play(all, ranks)) << ranks;
      for (uint32_t rank = 0; rank < ranks; ++rank) ASSERT_EQ(out[rank], expected) << rank << " of " << ranks;
    }
}

TEST(CclLaneAlgorithms, BlocksOfDifferentLengthsAreReducedAndScattered) {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 8u})
    for (const Reduce algorithm : {lanes::reduce_scatter_direct, lanes::reduce_scatter_ring}) {
      LaneWorld world(ranks);
      std::vector<size_t> lengths;
      for (uint32_t rank = 0; rank < ranks; ++rank) lengths.push_back(length_of(rank, 2));
      const Lists lists(lengths, 0);
      const size_t whole = lists.room() - 3;
      std::vector<Numbers> in;
      std::vector<Numbers> out;
      KeptCalls calls;
      std::vector<Steps> all;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        in.push_back(numbers_of(rank, whole));
        out.emplace_back(lengths[rank]);
        const Call& call = calls.keep(reduce_call(kSum, in[rank].data(), out[rank].data(), whole, 0, lists.blocks()));
        all.push_back(algorithm(world.group(rank), call));
      }
      ASSERT_TRUE(play(all, ranks)) << ranks;
      const Numbers sum = sum_of(0, ranks, whole);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        const auto begin = sum.begin() + static_cast<ptrdiff_t>(lists.offsets[rank] / sizeof(uint32_t));
        ASSERT_EQ(out[rank], Numbers(begin, begin + static_cast<ptrdiff_t>(lengths[rank]))) << rank << " of " << ranks;
        ASSERT_EQ(in[rank], numbers_of(rank, whole)) << "nothing of it was changed";
      }
    }
}

/// Equal blocks of all ranks, one after the other.
Numbers whole_of(uint32_t ranks, size_t elements) {
  Numbers whole;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const Numbers one = numbers_of(rank, elements);
    whole.insert(whole.end(), one.begin(), one.end());
  }
  return whole;
}

TEST(CclLaneAlgorithms, EqualBlocksFromAndToEachRoot) {
  using namespace lanes;
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 7u, 8u})
    for (const size_t elements : kElements)
      for (uint32_t root = 0; root < ranks; root += 2) {
        const size_t bytes = elements * sizeof(uint32_t);
        const Numbers whole = whole_of(ranks, elements);
        const std::string text =
            std::to_string(elements) + " at " + std::to_string(ranks) + " ranks, root " + std::to_string(root);
        for (const int kind : {0, 1, 2}) {
          LaneWorld world(ranks);
          std::vector<Numbers> data(ranks, Numbers(elements, kGap));
          data[root] = numbers_of(root, elements);
          KeptCalls calls;
          std::vector<Steps> all;
          for (uint32_t rank = 0; rank < ranks; ++rank) {
            const Call& call = calls.keep(broadcast_call(root, data[rank].data(), bytes));
            const Tree tree = kind == 1 ? Tree::kBinomial : Tree::kFourAry;
            all.push_back(kind == 0 ? broadcast_direct(world.group(rank), call)
                                    : broadcast_tree(world.group(rank), call, tree));
          }
          ASSERT_TRUE(play(all, ranks)) << "broadcast of " << text;
          for (const Numbers& one : data) ASSERT_EQ(one, numbers_of(root, elements)) << "broadcast of " << text;
        }
        for (Steps (*const algorithm)(LaneGroup&, const Call&) : {gather_direct, gather_tree}) {
          LaneWorld world(ranks);
          std::vector<Numbers> in;
          Numbers out(whole.size(), kGap);
          KeptCalls calls;
          std::vector<Steps> all;
          for (uint32_t rank = 0; rank < ranks; ++rank) {
            in.push_back(numbers_of(rank, elements));
            const Call& call =
                calls.keep(gather_call(root, in[rank].data(), bytes, rank == root ? out.data() : nullptr, {bytes}));
            all.push_back(algorithm(world.group(rank), call));
          }
          ASSERT_TRUE(play(all, ranks)) << "gather of " << text;
          ASSERT_EQ(out, whole) << "gather of " << text;
        }
        for (Steps (*const algorithm)(LaneGroup&, const Call&) : {scatter_direct, scatter_tree}) {
          LaneWorld world(ranks);
          std::vector<Numbers> out(ranks, Numbers(elements, kGap));
          KeptCalls calls;
          std::vector<Steps> all;
          for (uint32_t rank = 0; rank < ranks; ++rank) {
            const void* const from = rank == root ? whole.data() : nullptr;
            const Call& call = calls.keep(scatter_call(root, from, {bytes}, out[rank].data(), bytes));
            all.push_back(algorithm(world.group(rank), call));
          }
          ASSERT_TRUE(play(all, ranks)) << "scatter of " << text;
          for (uint32_t rank = 0; rank < ranks; ++rank)
            ASSERT_EQ(out[rank], numbers_of(rank, elements)) << "scatter of " << text;
        }
      }
}

TEST(CclLaneAlgorithms, EqualBlocksOfAll) {
  using namespace lanes;
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 7u, 8u})
    for (const size_t elements : kElements) {
      const size_t bytes = elements * sizeof(uint32_t);
      const Numbers whole = whole_of(ranks, elements);
      for (Steps (*const algorithm)(LaneGroup&, const Call&) : {all_gather_direct, all_gather_bruck, all_gather_ring}) {
        LaneWorld world(ranks);
        std::vector<Numbers> in;
        std::vector<Numbers> out(ranks, Numbers(whole.size(), kGap));
        KeptCalls calls;
        std::vector<Steps> all;
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          in.push_back(numbers_of(rank, elements));
          const Call& call = calls.keep(gather_call(0, in[rank].data(), bytes, out[rank].data(), {bytes}));
          all.push_back(algorithm(world.group(rank), call));
        }
        ASSERT_TRUE(play(all, ranks)) << elements << " at " << ranks;
        for (const Numbers& one : out) ASSERT_EQ(one, whole) << elements << " at " << ranks;
      }
      LaneWorld world(ranks);
      std::vector<Numbers> in;
      std::vector<Numbers> out(ranks, Numbers(whole.size(), kGap));
      KeptCalls calls;
      std::vector<Steps> all;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        in.push_back(numbers_of(rank, whole.size()));
        const Call& call = calls.keep(exchange_call(in[rank].data(), {bytes}, out[rank].data(), {bytes}));
        all.push_back(all_to_all_bruck(world.group(rank), call));
      }
      ASSERT_TRUE(play(all, ranks)) << elements << " at " << ranks;
      for (uint32_t rank = 0; rank < ranks; ++rank)
        for (uint32_t from = 0; from < ranks; ++from)
          ASSERT_TRUE(std::equal(out[rank].begin() + static_cast<ptrdiff_t>(from * elements),
                                 out[rank].begin() + static_cast<ptrdiff_t>((from + 1) * elements),
                                 in[from].begin() + static_cast<ptrdiff_t>(rank * elements)))
              << elements << " from " << from << " to " << rank << " of " << ranks;
    }
}

/// A barrier's pieces say nothing: what is to be seen is who waits for whom.
TEST(CclLaneAlgorithms, NobodyLeavesABarrierBeforeTheLastOneComes) {
  for (const uint32_t ranks : {2u, 3u, 5u, 8u})
    for (uint32_t late = 0; late < ranks; ++late) {
      LaneWorld world(ranks);
      std::vector<Steps> all;
      for (uint32_t rank = 0; rank < ranks; ++rank)
        if (rank != late) all.push_back(lanes::barrier(world.group(rank)));
      EXPECT_FALSE(play(all, late));
      for (const Steps& steps : all) EXPECT_FALSE(steps.is_done()) << late << " of " << ranks;
      all.push_back(lanes::barrier(world.group(late)));
      for (size_t turn = 0; turn < ranks * ranks; ++turn)
        for (Steps& steps : all)
          if (!steps.is_done()) (void)steps.go_on();
      for (const Steps& steps : all) EXPECT_TRUE(steps.is_done()) << late << " of " << ranks;
    }
}

// ---- messages ------------------------------------------------------------------------------------------------------

using Pointer = std::shared_ptr<Message>;

/// Two ends of the messages between two ranks, with the receives of one of them.
class CclMessagePeer : public ::testing::Test {
 protected:
  void SetUp() override {
    sender.set_lane(&pair.ends[0]);
    receiver.set_lane(&pair.ends[1]);
  }
  Pointer send(const std::string& text, int32_t tag, uint8_t type = Message::kNoType) {
    auto message = std::make_shared<Message>();
    texts.push_back(std::make_unique<std::string>(text));
    message->is_send = true;
    message->from = reinterpret_cast<const std::byte*>(texts.back()->data());
    message->bytes = text.size();
    message->tag = tag;
    message->type = type;
    sender.add_send(message);
    sender.push();
    return message;
  }
  Pointer receive(std::string* room, int32_t tag, uint8_t type = Message::kNoType) {
    auto message = std::make_shared<Message>();
    message->to = reinterpret_cast<std::byte*>(room->data());
    message->bytes = room->size();
    message->tag = tag;
    message->type = type;
    message->peer = 0;
    return message;
  }
  bool pull(const Pointer& message, bool keeps = true) {
    return receiver.pull(
        [&](uint32_t source, int32_t tag) -> Pointer {
          if (message == nullptr || message->done || !message->takes(source, tag)) return nullptr;
          return message;
        },
        [&] { return keeps; });
  }

  MappedPair pair;
  MessagePeer sender{1};
  MessagePeer receiver{0};
  std::vector<std::unique_ptr<std::string>> texts;
};

TEST_F(CclMessagePeer, TakesOnlyItsTag) {
  std::string room(5, '.');
  const Pointer message = receive(&room, 7);
  send("other", 6);
  EXPECT_TRUE(pull(message));
  EXPECT_FALSE(message->done);
  send("seven", 7);
  EXPECT_TRUE(pull(message));
  EXPECT_TRUE(message->done);
  EXPECT_EQ(room, "seven");
  std::string kept(5, '.');
  const Pointer any = receive(&kept, kAnyTag);
  EXPECT_TRUE(receiver.give_kept(*any));
  EXPECT_EQ(kept, "other");
  EXPECT_EQ(any->tag, 6);
}

TEST_F(CclMessagePeer, LeavesWhatNobodyWantsInTheLane) {
  send("early", 1);
  EXPECT_FALSE(pull(nullptr, false));
  EXPECT_FALSE(receiver.is_coming());
  EXPECT_TRUE(pair.ends[1].can_receive().is_over()) << "it was taken";
  std::string room(5, '.');
  const Pointer message = receive(&room, 1);
  EXPECT_FALSE(receiver.give_kept(*message));
  EXPECT_TRUE(pull(message, false));
  EXPECT_EQ(room, "early");
}

TEST_F(CclMessagePeer, WhatIsTooShortToBeAMessageIsNotTaken) {
  std::string room(64, '.');
  const Pointer message = receive(&room, 0);
  send_text(pair.ends[0], std::string(15, 'x'));
  EXPECT_FALSE(pull(message));
  EXPECT_FALSE(message->done);
  EXPECT_TRUE(pair.ends[1].can_receive().is_over());
}

TEST_F(CclMessagePeer, WhatHasNoRoomIsLostAndTheNextOneIsWhole) {
  const size_t piece = pair.ends[0].piece_bytes();
  const std::string large(2 * piece, 'l');
  const Pointer sent = send(large, 1);
  EXPECT_TRUE(sent->done);
  send("next", 2);
  std::string room(piece + 3, '.');
  std::string guarded = room + "guard";
  const Pointer message = receive(&guarded, 1);
  message->bytes = room.size();
  while (!message->done && pull(message)) {
  }
  EXPECT_EQ(message->error, EMSGSIZE);
  EXPECT_EQ(message->bytes, large.size()) << "what was sent";
  EXPECT_EQ(guarded, std::string(room.size(), 'l') + "guard");
  std::string next(4, '.');
  const Pointer second = receive(&next, 2);
  if (!receiver.give_kept(*second)) pull(second);
  EXPECT_EQ(next, "next");
  EXPECT_EQ(second->error, 0);
}

TEST_F(CclMessagePeer, FitsExactly) {
  std::string room(4, '.');
  const Pointer message = receive(&room, 1);
  send("four", 1);
  pull(message);
  EXPECT_EQ(message->error, 0);
  EXPECT_EQ(room, "four");
}

TEST_F(CclMessagePeer, AnotherTypeIsAnErrorWhereBothSayTheirs) {
  struct Case {
    uint8_t sent, wanted;
    int error;
  };
  for (const Case& one :
       {Case{3, 3, 0}, Case{3, 4, EPROTO}, Case{Message::kNoType, 4, 0}, Case{3, Message::kNoType, 0}}) {
    std::string room(1, '.');
    const Pointer message = receive(&room, 1, one.wanted);
    send("x", 1, one.sent);
    pull(message);
    ASSERT_TRUE(message->done);
    EXPECT_EQ(message->error, one.error) << int{one.sent} << " to " << int{one.wanted};
    EXPECT_EQ(message->came_type, one.sent);
  }
}

TEST_F(CclMessagePeer, WhatIsStillComingIsNotGiven) {
  const size_t piece = pair.ends[0].piece_bytes();
  // All pieces but the last have room.
  const std::string large(kSmall.pieces() * piece, 'l');
  const Pointer sent = send(large, 1);
  EXPECT_FALSE(sent->done);
  EXPECT_TRUE(pull(nullptr));
  EXPECT_TRUE(receiver.is_coming());
  std::string room(large.size(), '.');
  const Pointer message = receive(&room, 1);
  EXPECT_FALSE(receiver.give_kept(*message));
  sender.push();
  EXPECT_TRUE(sent->done);
  pull(nullptr);
  EXPECT_FALSE(receiver.is_coming());
  EXPECT_TRUE(receiver.give_kept(*message));
  EXPECT_EQ(room, large);
}

TEST_F(CclMessagePeer, WhoWaitsForAMessageThatIsStillComingDoesNotGetTheNextOne) {
  const std::string large(kSmall.pieces() * pair.ends[0].piece_bytes(), 'l');
  send(large, 1);
  EXPECT_TRUE(pull(nullptr));
  std::string room(large.size(), '.');
  const Pointer message = receive(&room, 1);
  EXPECT_FALSE(receiver.give_kept(*message));
  send("next", 1);
  EXPECT_TRUE(pull(message));
  EXPECT_FALSE(message->done) << "the first one has come, and is kept";
  EXPECT_TRUE(receiver.give_kept(*message));
  EXPECT_EQ(room, large);
}

TEST_F(CclMessagePeer, ARankIsTakenOrAnyIs) {
  std::string room(1, '.');
  const Pointer message = receive(&room, 1);
  message->peer = 3;
  EXPECT_FALSE(message->takes(0, 1));
  EXPECT_TRUE(message->takes(3, 1));
  message->peer = kNoRank;
  EXPECT_TRUE(message->takes(0, 1));
}

TEST_F(CclMessagePeer, GivesTheOldestOfATagFirst) {
  for (const char* const text : {"a", "b", "c"}) send(text, 1);
  while (pull(nullptr)) {
  }
  for (const char* const text : {"a", "b", "c"}) {
    std::string room(1, '.');
    const Pointer message = receive(&room, 1);
    ASSERT_TRUE(receiver.give_kept(*message));
    EXPECT_EQ(room, text);
  }
}

TEST_F(CclMessagePeer, EndsWhatIsUnderWay) {
  const std::string large(2 * kSmall.pieces() * pair.ends[0].piece_bytes(), 'l');
  const Pointer sent = send(large, 1);
  std::string room(large.size(), '.');
  const Pointer message = receive(&room, 1);
  pull(message);
  EXPECT_TRUE(receiver.is_coming());
  std::vector<Message*> ended;
  sender.end([&](Message& one) { ended.push_back(&one); });
  receiver.end([&](Message& one) { ended.push_back(&one); });
  EXPECT_EQ(ended, (std::vector<Message*>{sent.get(), message.get()}));
  EXPECT_FALSE(receiver.is_coming() || sender.has_sends());
}

// ---- which algorithm is chosen -------------------------------------------------------------------------------------

std::string name_of(const Call& call, LaneGroup& group, const Wishes& wishes = {}) {
  const auto* const chosen = choose(call, group, wishes);
  return chosen == nullptr ? "none" : chosen->name;
}

Call call_of(Operation operation, size_t bytes) {
  Call call;
  call.operation = operation;
  call.elements = bytes;
  return call;
}

class NoWays final : public LaneGroup::Ways {
 public:
  void want(uint32_t) override {}
  Wait ready(uint32_t) override { return {}; }
  Lane& lane(uint32_t) override { std::abort(); }
  uint32_t ahead() const override { return 1; }
  bool is_used(uint32_t) const override { return false; }
};

TEST(CclLanePlan, UpTo16RanksReduceInTheirOrder) {
  NoWays ways;
  for (const size_t bytes : {size_t{8}, size_t{1} << 24}) {
    LaneGroup few(0, std::vector<uint32_t>(16), ways);
    LaneGroup more(0, std::vector<uint32_t>(17), ways);
    for (const Operation operation :
         {Operation::kReduce, Operation::kAllReduce, Operation::kReduceScatter, Operation::kScan, Operation::kExscan}) {
      EXPECT_EQ(choose(call_of(operation, bytes), few)->order, Order::kOfRanks) << bytes;
      EXPECT_EQ(choose(call_of(operation, bytes), more)->order, Order::kOther) << bytes;
      EXPECT_EQ(choose(call_of(operation, bytes), more, {true, ""})->order, Order::kOfRanks) << bytes;
    }
  }
}

TEST(CclLanePlan, AnOperatorOfTheProgramDoesNotGoAround) {
  NoWays ways;
  LaneGroup group(0, std::vector<uint32_t>(17), ways);
  Call call = call_of(Operation::kAllReduce, 1 << 24);
  EXPECT_EQ(name_of(call, group, {false, "ring"}), "ring");
  call.reducer.function = [](void*, const void*, size_t, int, void*) {};
  EXPECT_NE(name_of(call, group, {false, "ring"}), "ring");
  call.operation = Operation::kReduceScatter;
  EXPECT_EQ(name_of(call, group, {false, "ring"}), "direct");
}

TEST(CclLanePlan, BlocksOfUnknownLengthAreNotPutTogether) {
  NoWays ways;
  LaneGroup group(0, std::vector<uint32_t>(17), ways);
  for (const Operation operation :
       {Operation::kGather, Operation::kScatter, Operation::kAllGather, Operation::kAllToAll}) {
    Call call = call_of(operation, 8);
    const char* const name = operation == Operation::kGather || operation == Operation::kScatter ? "binomial" : "bruck";
    EXPECT_EQ(name_of(call, group, {false, name}), name);
    call.equal = false;
    EXPECT_NE(name_of(call, group, {false, name}), name);
  }
}

TEST(CclLanePlan, NoMoreThan512SourcesAreReducedAtOnce) {
  NoWays ways;
  LaneGroup most(0, std::vector<uint32_t>(kMaxSources), ways);
  LaneGroup too_many(0, std::vector<uint32_t>(kMaxSources + 1), ways);
  EXPECT_EQ(name_of(call_of(Operation::kReduce, 8), most, {true, ""}), "direct");
  EXPECT_EQ(name_of(call_of(Operation::kReduce, 8), too_many, {true, ""}), "none");
}

TEST(CclLanePlan, AnAlgorithmOfThatNameIsUsedWhereItFits) {
  NoWays ways;
  LaneGroup group(0, std::vector<uint32_t>(4), ways);
  EXPECT_EQ(name_of(call_of(Operation::kBroadcast, 8), group, {false, "four-ary"}), "four-ary");
  EXPECT_EQ(name_of(call_of(Operation::kBroadcast, 8), group, {false, "no-such"}), "direct");
  EXPECT_EQ(name_of(call_of(Operation::kAllReduce, 8), group, {true, "ring"}), "one-shot")
      << "not in the order of the ranks";
}

}  // namespace
}  // namespace nupa::ccl
