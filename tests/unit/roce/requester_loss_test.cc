// SPDX-License-Identifier: Apache-2.0
/// Tests of how a requester distinguishes loss from lateness (RFC 8985, docs/design/roce.md).
#include <gtest/gtest.h>

#include "core/seam/timers.h"
#include "engine_fixture.h"
#include "requester_fixture.h"
#include "transport/roce/protocol/requester.h"

namespace nupa::roce::test {
namespace {

TEST_F(RoceSelectiveRequester, PacketsSentTogether_AreLostAfterTheReorderTime) {
  send_messages(3);
  now += 50'000;
  Packet ack = selective(kFirstPsn - 1, {2});
  ack.trigger_valid = true;
  ack.trigger = kFirstPsn + 1;
  receive(ack);
  EXPECT_EQ(requester->lost(), 0u);
  // A round trip of 50 us, and a quarter of it.
  EXPECT_EQ(requester->deadline(), kStart + 62'501);
  now = kStart + 62'500;
  requester->on_timer(now);
  EXPECT_EQ(requester->lost(), 0u) << "one nanosecond early";
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"})) << "nothing says that a later one than 102 has arrived";
  EXPECT_EQ(counters().resent_selective, 1u);
  EXPECT_GT(requester->deadline(), now + 1'000'000) << "then silence only";
}

TEST_F(RoceSelectiveRequester, Retransmissions_LeaveLowestFirst) {
  send_messages(1);
  now += 20'000;
  send_messages(2);
  receive(selective(kFirstPsn - 1, {2}));
  ASSERT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"}));
  now += 20'000;
  send_messages(1);
  // The third was sent before the repetition of the first.
  receive(selective(kFirstPsn - 1, {2, 4}));
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks", "SEND_ONLY 102 8 bytes asks"}));
}

TEST_F(RoceSelectiveRequester, Answer_WithTheSameContent_IsExaminedOnce) {
  send_messages(64);
  std::vector<uint32_t> most;
  for (uint32_t bit = 2; bit <= 64; ++bit) most.push_back(bit);
  uint64_t before = counters().examined;
  receive(selective(kFirstPsn - 1, most));
  EXPECT_EQ(counters().examined - before, 63u + 1) << "each that has arrived, and the oldest";
  for (int i = 0; i < 10; ++i) {
    before = counters().examined;
    receive(selective(kFirstPsn - 1, most));
    EXPECT_EQ(counters().examined - before, 1u);
  }
  before = counters().examined;
  receive(selective(kFirstPsn + 63));
  EXPECT_EQ(counters().examined - before, 64u) << "once more, as all are executed";
  EXPECT_EQ(done().size(), 64u);
}

TEST_F(RoceSelectiveRequester, Answers_BehindAMissingRead_ExamineOnlyNewPackets) {
  post(Opcode::kRdmaRead, 8);
  sends();
  send_messages(100);
  for (uint32_t i = 1; i <= 100; ++i) {
    const uint64_t before = counters().examined;
    receive(selective(kFirstPsn + i));
    EXPECT_LE(counters().examined - before, i == 1 ? 3u : 2u) << i;
  }
  EXPECT_EQ(done(), Done{});
  response(Operation::kReadResponseOnly, kFirstPsn, 8);
  EXPECT_EQ(done().size(), 101u);
}

TEST_F(RoceSelectiveRequester, OldRnrNak_OfAnExecutedRequest_DelaysNothing) {
  post(Opcode::kRdmaRead, 8);
  sends();
  send_messages(1);
  receive(selective(kFirstPsn + 1));
  receive(selective(kFirstPsn, {}, syndrome(AckKind::kRnrNak, 5)));  // later ones overtook it
  now += core::rnr_timer_ns(5);
  requester->on_timer(now);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 101 8 bytes asks"}));
  receive(selective(kFirstPsn + 1));
  response(Operation::kReadResponseOnly, kFirstPsn, 8);
  EXPECT_EQ(done().size(), 2u);
}

TEST_F(RoceRequester, PacketsSkippedBeforeThePeerWasKnown_AreAcknowledgedLater) {
  post(Opcode::kRdmaRead, 8);
  post(Opcode::kSend, 8);
  post(Opcode::kRdmaRead, 8);
  ASSERT_EQ(sends().size(), 3u);
  response(Operation::kReadResponseOnly, kFirstPsn + 2, 8);  // the first one's has been lost
  ASSERT_EQ(sends().size(), 3u);
  response(Operation::kReadResponseOnly, kFirstPsn + 2, 8);  // and once more
  receive(selective(kFirstPsn + 2));
  response(Operation::kReadResponseOnly, kFirstPsn, 8);
  response(Operation::kReadResponseOnly, kFirstPsn + 2, 8);
  EXPECT_EQ(done().size(), 3u);
}

class RoceLateness : public RoceSelectiveRequester {
 protected:
  static constexpr int64_t kLeast = ReorderWindow::kLeastNs;
  RoceLateness() { start("cubic"); }
  void start(std::string_view congestion) {
    RequesterOptions controlled = options;
    controlled.congestion = congestion;
    begin(controlled);
    receive(selective(kFirstPsn - 1));
    // One round trip of 100 us, so that the window may grow, and one of 30 us, of which a quarter is less than the
    // least.
    for (const int64_t rtt : {100'000, 30'000}) {
      send_messages(1);
      now += rtt;
      receive(timed(selective(next), next));
      ++next;
    }
    ASSERT_EQ(window(), kLeast);
  }
  Packet timed(Packet ack, uint32_t trigger) const {
    ack.trigger_valid = true;
    ack.trigger = trigger;
    return ack;
  }
  /// The first of two counts as lost and goes again.
  void lose_one() {
    send_messages(1);
    now += window() + 1;
    send_messages(1);
    receive(with_duplicates(selective(next - 1, {2})));
    ASSERT_EQ(requester->lost(), 1u);
    ASSERT_EQ(sends().size(), 1u);
    next += 2;
    now += 30'000;
  }
  Packet with_duplicates(Packet ack) const {
    ack.duplicates_valid = valid;
    ack.duplicates = duplicates;
    return ack;
  }
  /// All has arrived, of which `more` packets twice.
  void arrive(uint32_t more) {
    duplicates += more;
    receive(with_duplicates(selective(next - 1)));
  }
  int64_t window() const { return requester->paths()[0].reorder_ns(); }
  uint64_t allowed() const { return requester->paths()[0].congestion->window(); }

  uint32_t next = kFirstPsn;
  uint32_t duplicates = 0;
  bool valid = true;
};

TEST_F(RoceLateness, SpuriousRetransmission_GrowsTheWindowAndIsNoCongestion) {
  const uint64_t before = allowed();
  lose_one();
  EXPECT_LT(allowed(), before);
  arrive(0);
  EXPECT_EQ(window(), kLeast);
  EXPECT_EQ(counters().late, 0u);
  arrive(1);  // the repetition, too
  EXPECT_EQ(window(), 2 * kLeast);
  EXPECT_EQ(counters().late, 1u);
  EXPECT_GE(allowed(), before);
}

TEST_F(RoceLateness, RealLoss_LeavesTheReorderWindow) {
  const uint64_t before = allowed();
  lose_one();
  arrive(0);
  EXPECT_EQ(window(), kLeast);
  EXPECT_LT(allowed(), before);
}

TEST_F(RoceLateness, TwoLosses_OneSpurious_AreCongestion) {
  send_messages(2);
  now += window() + 1;
  send_messages(1);
  receive(with_duplicates(selective(next - 1, {3})));
  ASSERT_EQ(sends().size(), 2u);
  const uint64_t left = allowed();
  next += 3;
  arrive(1);
  EXPECT_EQ(counters().late, 1u);
  EXPECT_EQ(allowed(), left);
}

TEST_F(RoceLateness, ConsecutiveSpuriousLosses_AreUndoneTogether) {
  const uint64_t before = allowed();
  lose_one();
  now += 200'000;
  lose_one();
  EXPECT_LT(allowed(), before * 6 / 10) << "twice seven tenths";
  arrive(2);
  EXPECT_GE(allowed(), before);
}

TEST_F(RoceLateness, LatePacket_BeforeItsRetransmission_IsDetected) {
  const uint64_t before = allowed();
  send_messages(1);
  now += window() + 1;
  send_messages(1);
  receive(selective(next - 1, {2}));
  ASSERT_EQ(requester->lost(), 1u);
  receive(selective(next + 1));
  EXPECT_EQ(sends(), Texts{});
  EXPECT_EQ(counters().late, 1u);
  EXPECT_EQ(window(), 2 * kLeast);
  EXPECT_GE(allowed(), before);
}

TEST_F(RoceLateness, PacketDuplicatedByTheNetwork_ChangesNothing) {
  send_messages(1);
  ++next;
  arrive(1);
  EXPECT_EQ(counters().late, 0u);
  EXPECT_EQ(window(), kLeast);
  lose_one();
  arrive(0);
  EXPECT_EQ(counters().late, 0u) << "it came before the loss";
}

TEST_F(RoceLateness, RetransmissionAfterATimeout_ChangesNothing) {
  send_messages(1);
  ++next;
  ASSERT_TRUE(wait());
  ASSERT_EQ(sends().size(), 1u);
  arrive(1);
  EXPECT_EQ(counters().late, 0u);
  EXPECT_EQ(window(), kLeast);
}

TEST_F(RoceLateness, DuplicatesField_NotValid_IsIgnored) {
  valid = false;
  lose_one();
  arrive(1);
  EXPECT_EQ(counters().late, 0u);
  EXPECT_EQ(window(), kLeast);
}

TEST_F(RoceLateness, DuplicatesCount_WrapsAndNeverDecreases) {
  duplicates = 0x7fffff;
  arrive(0);
  duplicates = 0xfffffe;
  arrive(0);
  lose_one();
  duplicates = 1;
  arrive(0);
  EXPECT_EQ(counters().late, 1u);
  lose_one();
  duplicates = 0;  // an answer that another one overtook
  arrive(0);
  EXPECT_EQ(counters().late, 1u);
  duplicates = 2;
  arrive(0);
  EXPECT_EQ(counters().late, 2u);
}

TEST_F(RoceLateness, DuplicateResponse_GrowsTheReorderWindow) {
  post(Opcode::kRdmaRead, 4 * kMtu);
  sends();
  now += 30'000;
  response(Operation::kReadResponseFirst, next, 256);
  response(Operation::kReadResponseLast, next + 3, 256);
  ASSERT_TRUE(wait());
  ASSERT_EQ(sends().size(), 1u) << "two are asked for again";
  response(Operation::kReadResponseMiddle, next + 2, 256);
  response(Operation::kReadResponseMiddle, next + 2, 256);
  EXPECT_EQ(counters().late, 1u);
  EXPECT_EQ(window(), 2 * kLeast);
  response(Operation::kReadResponseMiddle, next + 1, 256);
  EXPECT_EQ(done().back().status, WcStatus::kSuccess);
  response(Operation::kReadResponseOnly, next + 1, 256);
  EXPECT_EQ(counters().late, 2u) << "after the end of its request, too";
}

}  // namespace
}  // namespace nupa::roce::test
