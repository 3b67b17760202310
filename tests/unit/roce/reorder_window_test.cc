// SPDX-License-Identifier: Apache-2.0
/// Tests of how late a packet may be: the adaptive reordering window of RFC 8985, section 6.2, step 4; and the
/// scoreboard behind it.
#include <gtest/gtest.h>

#include "transport/roce/protocol/flights.h"
#include "transport/roce/protocol/reorder_window.h"

namespace nupa::roce {
namespace {

constexpr int64_t kWindowUs = 1'000;
constexpr int64_t kWindowStart = 1'000'000'000;
constexpr int64_t kLeastRtt = 20 * kWindowUs;
constexpr int64_t kStep = ReorderWindow::kLeastNs;

class RoceReorderWindow : public ::testing::Test {
 protected:
  /// One that was late, in a round of its own.
  void add_late_packet() {
    window.on_lost(now, 1, next);
    now += longest;
    next += 10;
    window.on_progress(now, next, longest);
    EXPECT_EQ(window.on_duplicates(1, next, next + 1, kLeastRtt, longest), 1u);
  }
  /// A loss that was one, up to the end of its recovery and beyond.
  void recover() {
    window.on_lost(now, 1, next);
    now += longest;
    window.on_progress(now, next, longest);
    next += 10;
    now += 2 * longest;
    window.on_progress(now, next, longest);
  }
  int64_t ns() const { return window.ns(kLeastRtt); }

  ReorderWindow window;
  int64_t now = kWindowStart;
  int64_t longest = 1'000 * kWindowUs;
  Seq next = 1'000;
};

TEST_F(RoceReorderWindow, Window_AtTheStart_IsAQuarterOfTheLeastRoundTripOrTenMicroseconds) {
  EXPECT_EQ(window.ns(0), 10 * kWindowUs);
  EXPECT_EQ(window.ns(40 * kWindowUs), 10 * kWindowUs);
  EXPECT_EQ(window.ns(400 * kWindowUs), 100 * kWindowUs);
}

TEST_F(RoceReorderWindow, Window_DuplicatesInEachRound_GrowsByAStep) {
  window.on_lost(now, 10, next);
  EXPECT_EQ(window.on_duplicates(1, next - 5, next, kLeastRtt, longest), 1u);
  EXPECT_EQ(ns(), 2 * kStep);
  EXPECT_EQ(window.on_duplicates(1, next - 1, next + 3, kLeastRtt, longest), 1u);
  EXPECT_EQ(ns(), 2 * kStep) << "the round in which it grew is not over";
  EXPECT_EQ(window.on_duplicates(1, next, next + 3, kLeastRtt, longest), 1u);
  EXPECT_EQ(ns(), 3 * kStep);
  EXPECT_EQ(window.ns(400 * kWindowUs), 300 * kWindowUs) << "a step is a quarter of the least round trip";
}

TEST_F(RoceReorderWindow, Window_ManyLatePackets_IsAtMostTheLongestRoundTrip) {
  longest = 3 * kStep;
  for (int i = 0; i < 10; ++i) add_late_packet();
  EXPECT_EQ(ns(), 3 * kStep);
  longest += 1;
  for (int i = 0; i < 10; ++i) add_late_packet();
  EXPECT_EQ(ns(), 4 * kStep);
}

TEST_F(RoceReorderWindow, Window_AfterSixteenRecoveries_ShrinksByAStep) {
  add_late_packet();
  add_late_packet();
  ASSERT_EQ(ns(), 3 * kStep);
  for (const int64_t left : {2, 1, 1}) {
    for (int i = 0; i < 15; ++i) {
      const int64_t before = ns();
      recover();
      EXPECT_EQ(ns(), before) << i;
    }
    recover();
    EXPECT_EQ(ns(), left * kStep);
  }
}

TEST_F(RoceReorderWindow, LatePacket_RestartsTheCountOfRecoveries) {
  add_late_packet();
  for (int i = 0; i < 14; ++i) recover();
  add_late_packet();
  ASSERT_EQ(ns(), 3 * kStep);
  for (int i = 0; i < 15; ++i) recover();
  EXPECT_EQ(ns(), 3 * kStep);
}

TEST_F(RoceReorderWindow, SeveralLosses_AtATime_AreOneRecovery) {
  add_late_packet();
  for (int i = 0; i < 40; ++i) window.on_lost(now, 1, next + static_cast<Seq>(i));
  window.on_progress(now, next - 1, longest);
  window.on_progress(now, next + 40, longest);
  for (int i = 0; i < 14; ++i) recover();
  EXPECT_EQ(ns(), 2 * kStep);
  recover();
  EXPECT_EQ(ns(), kStep);
}

TEST_F(RoceReorderWindow, Losses_AreInDoubtUntilTwoRoundTripsAfterTheirRecovery) {
  EXPECT_TRUE(window.on_lost(now, 2, next));
  EXPECT_FALSE(window.on_lost(now, 1, next)) << "of one episode";
  window.on_progress(now, next, longest);
  EXPECT_EQ(window.on_duplicates(1, next, next, kLeastRtt, longest), 1u);
  window.on_progress(now + 2 * longest - 1, next, longest);
  EXPECT_TRUE(window.in_doubt());
  window.on_progress(now + 2 * longest, next, longest);
  EXPECT_FALSE(window.in_doubt());
  EXPECT_EQ(window.on_duplicates(1, next, next, kLeastRtt, longest), 0u);
  EXPECT_TRUE(window.on_lost(now, 1, next));
}

TEST_F(RoceReorderWindow, FurtherLoss_KeepsEarlierLossesInDoubt) {
  window.on_lost(now, 1, next);
  window.on_progress(now, next, longest);
  now += longest;
  EXPECT_FALSE(window.on_lost(now, 1, next + 10));
  now += 2 * longest;
  window.on_progress(now, next + 5, longest);
  EXPECT_TRUE(window.in_doubt());
  EXPECT_EQ(window.on_duplicates(5, next, next, kLeastRtt, longest), 2u);
  EXPECT_FALSE(window.in_doubt());
}

// ---- The scoreboard.

using State = Flight::State;

TEST(RoceBitRing, Word_AtAnyStart_HoldsTheBits) {
  BitRing ring;
  for (const Seq seq : {Seq{5000}, Seq{5031}, Seq{5032}, Seq{5999}}) ring.set(seq);
  EXPECT_EQ(ring.word(5000), 1u | 1u << 31);
  EXPECT_EQ(ring.word(5001), 1u << 30 | 1u << 31);
  EXPECT_EQ(ring.first(5000), 5000u);
  EXPECT_EQ(ring.first(5001), 5031u);
  EXPECT_EQ(ring.first(5033), 5999u);
  EXPECT_EQ(ring.first(6000), 5000u + kBitmapBits) << "the place is the same";
  ring.clear(5031);
  EXPECT_FALSE(ring.has(5031));
  EXPECT_TRUE(ring.has(5032));
}

class RoceFlights : public ::testing::Test {
 protected:
  static constexpr Seq kUna = first_seq(1000);
  void send(Seq number, uint32_t path = 0, State state = State::kSent) {
    flights.send(kUna + number, ++now, 100, path, state, false);
  }
  std::vector<Seq> under_way(uint32_t path, State state = State::kSent) {
    std::vector<Seq> numbers;
    for (Seq seq = flights.oldest(path, state, kUna); seq != Flights::kNone; seq = flights.oldest(path, state, kUna)) {
      numbers.push_back(seq - kUna);
      flights.arrive(seq);
    }
    return numbers;
  }
  Flights flights{true};
  int64_t now = 0;
};

TEST_F(RoceFlights, Oldest_OfAPath_IsThePacketSentFirst) {
  for (const Seq number : {0, 1, 2, 3}) send(number);
  flights.lose(kUna, false);
  flights.arrive(kUna + 2);
  send(0);
  EXPECT_EQ(under_way(0), (std::vector<Seq>{1, 3, 0})) << "it was sent again";
  EXPECT_EQ(under_way(0), std::vector<Seq>{});
}

TEST_F(RoceFlights, Oldest_PathsAndStates_HaveTheirOwnLists) {
  send(0, 0);
  send(1, 3);
  send(2, 0, State::kAwaited);
  send(3, 3);
  EXPECT_EQ(under_way(1), std::vector<Seq>{});
  EXPECT_EQ(under_way(3), (std::vector<Seq>{1, 3}));
  EXPECT_EQ(under_way(0, State::kAwaited), std::vector<Seq>{2});
  EXPECT_EQ(under_way(0), std::vector<Seq>{0});
}

TEST_F(RoceFlights, Lose_Packets_AreCountedAndFoundByNumber) {
  for (Seq number = 0; number < kBitmapBits; ++number) send(number);
  for (const Seq number : {700, 3, 1000}) flights.lose(kUna + number, number == 3);
  EXPECT_EQ(flights.lost(), 3u);
  EXPECT_EQ(flights.first_lost(kUna), kUna + 3);
  EXPECT_TRUE(flights[kUna + 3].by_silence);
  EXPECT_FALSE(flights[kUna + 700].by_silence);
  send(3);
  EXPECT_EQ(flights.first_lost(kUna), kUna + 700);
  flights.arrive(kUna + 700);
  flights.rest(kUna + 1000);
  EXPECT_EQ(flights.lost(), 0u);
}

TEST_F(RoceFlights, Reported_PacketIsLostOrSentAgain_IsCleared) {
  for (const Seq number : {0, 1, 2}) {
    send(number);
    flights.note_reported(kUna + number);
  }
  EXPECT_EQ(flights.reported(kUna), 7u);
  flights.lose(kUna + 1, false);
  flights.rest(kUna + 2);
  EXPECT_EQ(flights.reported(kUna), 1u);
  send(0);
  EXPECT_EQ(flights.reported(kUna), 0u);
}

}  // namespace
}  // namespace nupa::roce
