// SPDX-License-Identifier: Apache-2.0
/// Tests of the paths of a requester: round trips, delivery rates, which are alive and which is next.
#include <gtest/gtest.h>

#include "engine_fixture.h"
#include "transport/roce/protocol/path_set.h"

namespace nupa::roce::test {
namespace {

constexpr int64_t kMicrosecond = 1'000;
constexpr int64_t kMillisecond = 1'000'000;

TEST(RoceRoundTrip, Rfc6298_RoundTrip_IsSmoothedByAnEighthAndItsVariationByAQuarter) {
  RoundTrip round_trip;
  EXPECT_FALSE(round_trip.known());
  EXPECT_EQ(round_trip.timeout(), 20 * kMillisecond);
  round_trip.sample(8 * kMillisecond);
  EXPECT_EQ(round_trip.smoothed(), 8 * kMillisecond);
  EXPECT_EQ(round_trip.variation(), 4 * kMillisecond);
  EXPECT_EQ(round_trip.timeout(), 24 * kMillisecond);
  round_trip.sample(16 * kMillisecond);
  EXPECT_EQ(round_trip.smoothed(), 9 * kMillisecond);
  EXPECT_EQ(round_trip.variation(), 5 * kMillisecond);
  EXPECT_EQ(round_trip.latest(), 16 * kMillisecond);
  EXPECT_EQ(round_trip.least(), 8 * kMillisecond);
  round_trip.sample(1 * kMillisecond);
  EXPECT_EQ(round_trip.smoothed(), 8 * kMillisecond);
  EXPECT_EQ(round_trip.variation(), 5 * kMillisecond + 3 * kMillisecond / 4);
  EXPECT_EQ(round_trip.least(), kMillisecond);
}

TEST(RoceRoundTrip, Timeout_IsNeverBelowTwoMilliseconds) {
  RoundTrip round_trip;
  for (int i = 0; i < 100; ++i) round_trip.sample(10 * kMicrosecond);
  EXPECT_EQ(round_trip.timeout(), 10 * kMicrosecond + 2 * kMillisecond);
}

TEST(RoceDeliveryRate, DeliveryRate_IsMeasuredOverARoundTripAnd16KiB) {
  DeliveryRate delivery;
  delivery.restart(kStart);
  delivery.arrived(kStart + 99'999, 20'000, 1);
  EXPECT_EQ(delivery.rate(), 0) << "too short";
  delivery.arrived(kStart + 100'000, 0, 1);
  EXPECT_DOUBLE_EQ(delivery.rate(), 0.2);
  delivery.arrived(kStart + 300'000, 16'383, 1);
  EXPECT_DOUBLE_EQ(delivery.rate(), 0.2) << "too few bytes";
  delivery.arrived(kStart + 300'000, 1, 1);
  EXPECT_DOUBLE_EQ(delivery.rate(), 0.18) << "it forgets a tenth at most";
  delivery.arrived(kStart + 300'000 + 999'999, 1'000'000, 1'000'000);
  EXPECT_DOUBLE_EQ(delivery.rate(), 0.18) << "less than a round trip";
  delivery.arrived(kStart + 300'000 + 1'000'000, 0, 1'000'000);
  EXPECT_DOUBLE_EQ(delivery.rate(), 1.0);
}

/// A window and a rate that the test sets.
class FixedControl final : public Congestion {
 public:
  std::string_view name() const override { return "fixed"; }
  void on_arrived(int64_t, uint32_t count, int64_t, uint32_t) override { arrived += count; }
  void on_loss(int64_t, uint32_t) override {}
  void on_timeout(int64_t) override { ++timeouts; }
  void on_notification(int64_t) override {}
  uint64_t window() const override { return bytes; }
  uint64_t rate(int64_t) override { return bytes_a_second; }
  uint64_t bytes = 4000;
  uint64_t bytes_a_second = 0;
  uint64_t arrived = 0;
  int timeouts = 0;
};

class RocePath : public ::testing::Test {
 protected:
  RocePath() {
    auto made = std::make_unique<FixedControl>();
    control = made.get();
    path.congestion = std::move(made);
  }
  FixedControl* control;
  Path path;
};

TEST_F(RocePath, BeforeHole_EarlierOrEqualTimeWithALowerNumber_IsTrue) {
  path.note_hole(kStart, 10, kStart - kMillisecond);
  EXPECT_TRUE(path.before_hole(12, kStart - kMillisecond - 1));
  EXPECT_TRUE(path.before_hole(9, kStart - kMillisecond));
  EXPECT_FALSE(path.before_hole(10, kStart - kMillisecond));
  EXPECT_FALSE(path.before_hole(9, kStart - kMillisecond + 1));
}

TEST_F(RocePath, HasRoom_WindowIsFull_AllowsOnePacketIfNothingIsUnderWay) {
  EXPECT_TRUE(path.has_room(5000)) << "nothing is under way";
  path.note_ask(kStart, 1000, true);
  path.depart(kStart, 1000);
  EXPECT_TRUE(path.has_room(3000));
  EXPECT_FALSE(path.has_room(3001));
  path.settle(1000);
  path.note_ask(kStart, 4000, false);
  path.depart(kStart, 4000);
  EXPECT_TRUE(path.has_room(5000)) << "nothing of it will be answered";
}

TEST_F(RocePath, ShouldAsk_EachQuarterOfTheWindow_IsTrue) {
  EXPECT_FALSE(path.should_ask(kStart, 999, UINT64_MAX));
  EXPECT_TRUE(path.should_ask(kStart, 1000, UINT64_MAX));
  EXPECT_TRUE(path.should_ask(kStart, 500, 2000)) << "the other end's window counts, too";
  EXPECT_FALSE(path.should_ask(kStart, 499, 2000));
  path.note_ask(kStart, 600, false);
  EXPECT_TRUE(path.should_ask(kStart, 400, UINT64_MAX));
  path.note_ask(kStart, 400, true);
  EXPECT_FALSE(path.should_ask(kStart, 400, UINT64_MAX));
}

TEST_F(RocePath, ShouldAsk_AfterHalfAMillisecond_IsTrue) {
  path.note_ask(kStart, 10, false);
  path.depart(kStart, 10);
  EXPECT_FALSE(path.should_ask(kStart + 499'999, 10, UINT64_MAX));
  EXPECT_TRUE(path.should_ask(kStart + 500'000, 10, UINT64_MAX));
  path.settle(10);
  EXPECT_FALSE(path.should_ask(kStart + 500'000, 10, UINT64_MAX)) << "nothing is under way";
}

TEST_F(RocePath, NextSend_OfAPacedPath_IsAfterThePacketsBeforeIt) {
  control->bytes_a_second = 1'000'000;
  path.depart(kStart, 1000);
  EXPECT_EQ(path.next_send_ns, kStart - 10'000 + kMillisecond) << "with a burst of ten microseconds";
  path.depart(kStart, 500);
  EXPECT_EQ(path.next_send_ns, kStart - 10'000 + kMillisecond + kMillisecond / 2);
  EXPECT_EQ(path.in_flight, 1500u);
}

TEST_F(RocePath, ReorderAndDeathTimes_RoundTrip_GrowWithIt) {
  EXPECT_EQ(path.reorder_ns(), 10'000);
  EXPECT_EQ(path.death_ns(), 200'000);
  path.round_trip.sample(kMillisecond);
  EXPECT_EQ(path.reorder_ns(), kMillisecond / 4);
  EXPECT_EQ(path.death_ns(), 3 * kMillisecond + 4 * kMillisecond / 2);
}

TEST_F(RocePath, ArrivedBytes_AreReportedToTheCongestionControlOnce) {
  path.depart(kStart, 700);
  path.settle(700);
  path.arrive(kStart + 5, 10, 700, kStart);
  EXPECT_EQ(control->arrived, 700u);
  EXPECT_EQ(path.in_flight, 0u);
  EXPECT_EQ(path.newest_arrived_ns, kStart);
  EXPECT_EQ(path.heard_ns, kStart + 5);
  path.note_arrival(kStart + 6, 11, kStart - 1);
  EXPECT_EQ(path.newest_arrived_ns, kStart) << "never backwards";
}

// ---- Several paths.

class RocePathSet : public ::testing::Test {
 protected:
  RocePathSet() {
    for (uint32_t i = 0; i < kMaxPaths; ++i) {
      auto made = std::make_unique<FixedControl>();
      controls[i] = made.get();
      paths[i].congestion = std::move(made);
    }
    paths.set_count(2);
  }
  /// The second path is proven.
  void bring_to_life(uint32_t path = 1) {
    now += kMillisecond;
    paths.transmit_probes(now, Packet{}, output);
    ASSERT_FALSE(output.packets.empty());
    uint32_t token = 0;
    for (const auto& sent : output.packets)
      if (sent.path == path) token = sent.packet.psn;
    output.take();
    now += 50 * kMicrosecond;
    paths.on_echo(token, now);
    ASSERT_EQ(paths[path].health, Path::Health::kAlive);
  }
  int pick(uint32_t bytes = 100) { return paths.pick(bytes, UINT64_MAX, now, &pacing); }
  /// As a packet that asks.
  void depart(uint32_t path, uint32_t bytes) {
    paths[path].note_ask(now, bytes, true);
    paths[path].depart(now, bytes);
  }

  PathSet paths{"none", kMtu};
  std::array<FixedControl*, kMaxPaths> controls{};
  RecordingOutput output;
  int64_t now = kStart;
  int64_t pacing = 0;
};

TEST_F(RocePathSet, FirstPath_IsAlive_OthersAreProbed) {
  EXPECT_EQ(paths[0].health, Path::Health::kAlive);
  EXPECT_EQ(paths[1].health, Path::Health::kUnproven);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(pick(), 0);
  paths.transmit_probes(now, Packet{}, output);
  ASSERT_EQ(output.packets.size(), 1u);
  EXPECT_EQ(output.packets[0].path, 1);
  EXPECT_EQ(output.packets[0].packet.opcode, kPathProbe);
  paths.transmit_probes(now, Packet{}, output);
  EXPECT_EQ(output.packets.size(), 1u) << "not twice at one time";
}

TEST_F(RocePathSet, UnansweredProbes_PausesDoubleUpTo256Times) {
  constexpr int64_t kFirstPause = 5 * kMillisecond;
  for (uint32_t i = 0; i < 12; ++i) {
    paths.transmit_probes(now, Packet{}, output);
    ASSERT_EQ(output.packets.size(), i + 1);
    ASSERT_EQ(paths.deadline(), now + (kFirstPause << std::min(i, 8u)));
    paths.transmit_probes(paths.deadline() - 1, Packet{}, output);
    ASSERT_EQ(output.packets.size(), i + 1);
    now = paths.deadline();
  }
  paths.set_count(1);
}

TEST_F(RocePathSet, EchoOfTheLatestProbe_MakesItsPathAlive) {
  paths.transmit_probes(now, Packet{}, output);
  const uint32_t token = output.packets[0].packet.psn;
  now += 30 * kMicrosecond;
  paths.on_echo(token + 1, now);
  paths.on_echo(token - 1, now);
  EXPECT_EQ(paths[1].health, Path::Health::kUnproven) << "a token that was never sent";
  paths.on_echo(token | 2u << 22, now);
  paths.on_echo(token | 3u << 22, now);
  EXPECT_EQ(paths[2].health, Path::Health::kUnproven) << "a path that is not there";
  paths.on_echo(token, now);
  EXPECT_EQ(paths[1].health, Path::Health::kAlive);
  EXPECT_EQ(paths[1].round_trip.latest(), 30 * kMicrosecond);
  EXPECT_EQ(paths.deadline(), INT64_MAX) << "no path is to be probed";
  now += kMillisecond;
  paths.on_echo(token, now);
  EXPECT_EQ(paths[1].round_trip.latest(), 30 * kMicrosecond) << "an echo that comes twice";
}

TEST_F(RocePathSet, EchoWithoutAProbe_IsIgnored) {
  paths.on_echo(1u << 22, now);
  EXPECT_EQ(paths[1].health, Path::Health::kUnproven);
}

TEST_F(RocePathSet, Pick_RunsOfEight_ChangeToThePathThatDeliversFirst) {
  bring_to_life();
  paths[0].round_trip.sample(100 * kMicrosecond);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(pick(), 0) << "the run that has begun";
  for (int i = 0; i < 8; ++i) EXPECT_EQ(pick(), 1) << "the nearer one";
  EXPECT_EQ(pick(), 1);
}

TEST_F(RocePathSet, Pick_FullPath_IsSkipped) {
  bring_to_life();
  depart(0, 3950);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(pick(), 1);
  depart(1, 3950);
  EXPECT_EQ(pick(), -1);
  EXPECT_EQ(pick(50), 1) << "what fits still goes";
}

TEST_F(RocePathSet, Pick_LimitForAllPaths_IsKept) {
  bring_to_life();
  depart(0, 300);
  depart(1, 300);
  EXPECT_EQ(paths.pick(100, 699, now, &pacing), -1);
  EXPECT_NE(paths.pick(100, 700, now, &pacing), -1);
  EXPECT_EQ(paths.in_flight(), 600u);
}

TEST_F(RocePathSet, Pick_PeerWithRoomForLessThanAPacket_AllowsOneThatAsks) {
  EXPECT_EQ(paths.pick(100, 99, now, &pacing), 0);
  EXPECT_TRUE(paths[0].should_ask(now, 100, 99));
  depart(0, 100);
  EXPECT_EQ(paths.pick(100, 99, now, &pacing), -1) << "one at a time";
  paths[0].settle(100);
  EXPECT_EQ(paths.pick(100, 99, now, &pacing), 0);
}

TEST_F(RocePathSet, Pick_PacedPath_GivesTheTimeWhenItIsReady) {
  paths[0].next_send_ns = now + 1;
  EXPECT_EQ(pick(), -1);
  EXPECT_EQ(pacing, now + 1);
  ++now;
  EXPECT_EQ(pick(), 0);
}

TEST_F(RocePathSet, Pick_TwoPacedPaths_GiveTheEarlierTime) {
  bring_to_life();
  paths[0].next_send_ns = now + 2;
  paths[1].next_send_ns = now + 5;
  EXPECT_EQ(pick(), -1);
  EXPECT_EQ(pacing, now + 2);
  std::swap(paths[0].next_send_ns, paths[1].next_send_ns);
  pacing = 0;
  EXPECT_EQ(pick(), -1);
  EXPECT_EQ(pacing, now + 2);
}

TEST_F(RocePathSet, FindDead_DeadPath_DoesNotOvertakeOthers) {
  paths.set_count(3);
  bring_to_life(1);
  now += 10 * kMillisecond;
  std::array<int64_t, kMaxPaths> oldest;
  oldest.fill(INT64_MAX);
  oldest[1] = now;
  for (const Path::Health health : {Path::Health::kDead, Path::Health::kUnproven}) {
    paths[2].health = health;
    paths[2].newest_arrived_ns = now + 1000 * kMillisecond;
    EXPECT_EQ(paths.find_dead(oldest, now + 1001 * kMillisecond), 0u);
  }
  paths[2].health = Path::Health::kAlive;
  EXPECT_EQ(paths.find_dead(oldest, now + 1001 * kMillisecond), 2u);
}

TEST_F(RocePathSet, DeadPath_IsProbedFromTheFirstPauseOn) {
  constexpr int64_t kFirstPause = 5 * kMillisecond;
  for (int i = 0; i < 4; ++i) {
    paths.transmit_probes(now, Packet{}, output);
    now = paths.deadline();
  }
  output.take();
  bring_to_life();
  depart(1, 100);
  paths.silence(now);
  ASSERT_EQ(paths[1].health, Path::Health::kDead);
  EXPECT_EQ(paths.deadline(), now) << "at once";
  paths.transmit_probes(now, Packet{}, output);
  EXPECT_EQ(paths.deadline(), now + kFirstPause);
}

TEST_F(RocePathSet, FindDead_PathOvertakenForLong_IsDead) {
  bring_to_life();
  now += 10 * kMillisecond;
  const int64_t death = paths[1].death_ns();
  std::array<int64_t, kMaxPaths> oldest;
  oldest.fill(INT64_MAX);
  oldest[1] = now;
  paths[0].newest_arrived_ns = now + death;
  EXPECT_EQ(paths.find_dead(oldest, now + death), 0u) << "not overtaken by more than that";
  paths[0].newest_arrived_ns = now + death + 1;
  EXPECT_EQ(paths.find_dead(oldest, now + death + 2), 2u);
  EXPECT_EQ(paths[1].health, Path::Health::kDead);
  EXPECT_EQ(pick(), 0);
  // It is probed at once.
  EXPECT_EQ(paths.deadline(), now + death + 2);
}

TEST_F(RocePathSet, FindDead_LastPathAlive_StaysAlive) {
  std::array<int64_t, kMaxPaths> oldest;
  oldest.fill(INT64_MAX);
  oldest[0] = now;
  EXPECT_EQ(paths.find_dead(oldest, now + 1000 * kMillisecond), 0u);
  EXPECT_EQ(paths[0].health, Path::Health::kAlive);
  EXPECT_EQ(paths.look_deadline(), INT64_MAX);
}

TEST_F(RocePathSet, Timeout_PathsWithPacketsUnderWay_DieAndAreUsedInTurn) {
  bring_to_life();
  depart(1, 100);
  paths.silence(now);
  EXPECT_EQ(controls[0]->timeouts, 0);
  EXPECT_EQ(controls[1]->timeouts, 1);
  EXPECT_EQ(paths[1].health, Path::Health::kDead);
  EXPECT_EQ(paths[0].health, Path::Health::kAlive) << "it had nothing under way";
  depart(0, 100);
  paths.silence(now);
  EXPECT_EQ(paths[0].health, Path::Health::kDead);
  const int first = pick();
  paths.silence(now);
  EXPECT_EQ(pick(), 1 - first) << "with none alive they take turns";
}

TEST_F(RocePathSet, SetCount_NeverShrinksAndIsFourAtMost) {
  paths.set_count(1);
  EXPECT_EQ(paths.count(), 2u);
  paths.set_count(9);
  EXPECT_EQ(paths.count(), 4u);
}

}  // namespace
}  // namespace nupa::roce::test
