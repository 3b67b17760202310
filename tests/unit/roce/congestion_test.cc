// SPDX-License-Identifier: Apache-2.0
/// Tests of the constants of each congestion control, by its papers and RFCs. tests/sim/congestion_rules_test.cc tests
/// what they do together, tests/sim/congestion_test.cc whole networks.
#include <gtest/gtest.h>

#include <cmath>

#include "transport/roce/congestion/cubic.h"
#include "transport/roce/congestion/dcqcn.h"
#include "transport/roce/congestion/swift.h"
#include "transport/roce/congestion/tolerant.h"

namespace nupa::roce {
namespace {

constexpr uint32_t kPacket = 4096;
constexpr int64_t kMicrosecond = 1'000;
constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;

double packets_of(const Congestion& control) { return static_cast<double>(control.window()) / kPacket; }

// ---- DCQCN, section 3.1 and 5.2.

constexpr double kLine = Dcqcn::kLineRate;
constexpr int64_t kStart = kSecond;
constexpr int64_t kTimer = 55 * kMicrosecond;

class RoceDcqcn : public ::testing::Test {
 protected:
  double rate(int64_t now) { return static_cast<double>(dcqcn.rate(now)); }
  Dcqcn dcqcn;
};

TEST_F(RoceDcqcn, FirstNotification_HalvesTheRate) {
  EXPECT_EQ(rate(kStart), kLine);
  dcqcn.on_notification(kStart);
  EXPECT_EQ(rate(kStart), kLine / 2);
}

TEST_F(RoceDcqcn, LossWithin50Microseconds_CutsOnce) {
  dcqcn.on_loss(kStart, 1);
  EXPECT_EQ(rate(kStart), kLine / 2);
  dcqcn.on_loss(kStart + 49'999, 20);
  EXPECT_EQ(rate(kStart + 49'999), kLine / 2);
  dcqcn.on_loss(kStart + 50'000, 1);
  EXPECT_EQ(rate(kStart + 50'000), kLine / 4);
  dcqcn.on_notification(kStart + 50'001);
  EXPECT_EQ(rate(kStart + 50'001), kLine / 8) << "a notification has its own pause at the other end";
  dcqcn.on_timeout(kStart + 100'001);
  EXPECT_EQ(rate(kStart + 100'001), kLine / 16) << "silence is a loss";
}

TEST_F(RoceDcqcn, EachTimer_HalvesTheDistanceToTheTarget) {
  dcqcn.on_notification(kStart);
  EXPECT_EQ(rate(kStart + kTimer - 1), kLine / 2);
  EXPECT_EQ(rate(kStart + kTimer), kLine * 3 / 4);
  EXPECT_EQ(rate(kStart + 2 * kTimer), kLine * 7 / 8);
  EXPECT_LT(rate(kStart + 9 * kTimer - 1), kLine);
  EXPECT_EQ(rate(kStart + 9 * kTimer), kLine) << "nearer than a thousandth it has arrived";
}

TEST_F(RoceDcqcn, Alpha_DecaysByA256thEachTimer) {
  dcqcn.on_notification(kStart);
  const int64_t later = kStart + 2 * kTimer;
  const double alpha = std::pow(255.0 / 256, 2);
  dcqcn.on_notification(later);
  EXPECT_NEAR(rate(later), kLine * 7 / 8 * (1 - alpha / 2), 1);
  // It grows by a 256th of what is missing with each notification.
  const double grown = 255.0 / 256 * alpha + 1.0 / 256;
  const double before = kLine * 7 / 8 * (1 - alpha / 2);
  dcqcn.on_notification(later);
  EXPECT_NEAR(rate(later), before * (1 - grown / 2), 1);
}

TEST_F(RoceDcqcn, AfterFiveSteps_TargetGrowsBy40MbitAndWithBothCountersBy400) {
  dcqcn.on_notification(kStart);
  dcqcn.on_notification(kStart);  // target: half the line's rate, now at a quarter
  double target = kLine / 2;
  double current = kLine / 4;
  const auto step = [&](double growth) { current = (current + (target += growth)) / 2; };
  for (int i = 1; i <= 5; ++i) {
    step(0);
    EXPECT_NEAR(rate(kStart + i * kTimer), current, 1) << i;
  }
  step(5e6);
  EXPECT_NEAR(rate(kStart + 6 * kTimer), current, 1);
  const int64_t now = kStart + 6 * kTimer;
  for (int i = 1; i <= 5; ++i) {
    step(5e6);
    dcqcn.on_arrived(now, 9'999'999, 0, 0);
    dcqcn.on_arrived(now, 1, 0, 0);
    EXPECT_NEAR(rate(now), current, 1) << "the byte counter, 10 MB";
  }
  dcqcn.on_arrived(now, 9'999'999, 0, 0);
  EXPECT_NEAR(rate(now), current, 1);
  dcqcn.on_arrived(now, 1, 0, 0);
  step(50e6);
  EXPECT_NEAR(rate(now), current, 1) << "hyper increase";
}

TEST(RoceDcqcnLine, Target_NeverExceedsTheLineRate) {
  constexpr double kSlowLine = 100e6;  // of which one step of the target is a twentieth
  Dcqcn dcqcn(kSlowLine);
  dcqcn.on_notification(kStart);
  double current = kSlowLine / 2;
  for (int i = 1; i <= 6; ++i) {
    // The sixth step would bring the target beyond the line, and the rate to it at once.
    current = (current + kSlowLine) / 2;
    EXPECT_NEAR(static_cast<double>(dcqcn.rate(kStart + i * kTimer)), current, 1) << i;
  }
}

TEST_F(RoceDcqcn, Rate_ManyNotifications_IsAtLeastOneStep) {
  for (int i = 0; i < 100; ++i) dcqcn.on_notification(kStart);
  EXPECT_EQ(rate(kStart), 5e6);
  EXPECT_EQ(dcqcn.window(), UINT64_MAX);
}

// ---- CUBIC, RFC 9438.

TEST(RoceCubic, Window_AtTheStart_IsTenPacketsAndDoublesEachRoundTrip) {
  Cubic cubic(kPacket);
  EXPECT_EQ(packets_of(cubic), 10);
  cubic.on_arrived(kMillisecond, 10 * kPacket, 0, 0);
  EXPECT_EQ(packets_of(cubic), 20);
  cubic.on_arrived(kMillisecond, 5000 * kPacket, 0, 0);
  EXPECT_EQ(packets_of(cubic), 1024) << "what a bitmap can tell of";
}

TEST(RoceCubic, LossOrMark_LeavesSevenTenthsOncePerRoundTrip) {
  for (const bool marked : {false, true}) {
    Cubic cubic(kPacket);
    cubic.on_arrived(kMillisecond, 0, 100 * kMicrosecond, 0);
    cubic.on_arrived(kMillisecond, 90 * kPacket, 0, 0);
    ASSERT_EQ(packets_of(cubic), 100);
    const auto congest = [&](int64_t now) {
      if (marked)
        cubic.on_arrived(now, 0, 0, 1);
      else
        cubic.on_loss(now, 1);
    };
    congest(2 * kMillisecond);
    EXPECT_NEAR(packets_of(cubic), 70, 0.01);
    congest(2 * kMillisecond + 99'999);
    EXPECT_NEAR(packets_of(cubic), 70, 0.01);
    congest(2 * kMillisecond + 100'000);
    EXPECT_NEAR(packets_of(cubic), 49, 0.01);
  }
}

TEST(RoceCubic, AfterALoss_WindowFollowsTheCubicCurve) {
  // Round trips so long that Reno would be slower.
  constexpr int64_t kRoundTrip = 100 * kMillisecond;
  Cubic cubic(kPacket);
  int64_t now = kSecond;
  cubic.on_arrived(now, 0, kRoundTrip, 0);
  cubic.on_arrived(now, 90 * kPacket, 0, 0);
  cubic.on_loss(now, 1);
  now += kRoundTrip;
  const int64_t epoch = now;
  const double k = std::cbrt(100 * 0.3 / 0.4);
  const auto run_until = [&](int64_t until) {
    for (; now < until; now += kRoundTrip / 20) cubic.on_arrived(now, static_cast<uint32_t>(cubic.window() / 20), 0, 0);
  };
  const auto at = [&](double seconds) { return epoch + static_cast<int64_t>(seconds * 1e9); };
  run_until(at(k / 2));
  EXPECT_NEAR(packets_of(cubic), 100 - 0.4 * std::pow(k / 2, 3), 1);
  run_until(at(k));
  EXPECT_NEAR(packets_of(cubic), 100, 1);
}

TEST(RoceCubic, Rfc9438_LossBelowTheLastPeak_LeavesRoomForNewcomers) {  // section 4.7, fast convergence
  // Round trips so long that Reno would be slower.
  constexpr int64_t kRoundTrip = 400 * kMillisecond;
  Cubic cubic(kPacket);
  int64_t now = kSecond;
  cubic.on_arrived(now, 0, kRoundTrip, 0);
  cubic.on_arrived(now, 90 * kPacket, 0, 0);
  cubic.on_loss(now, 1);
  cubic.on_loss(now += kRoundTrip, 1);
  ASSERT_NEAR(packets_of(cubic), 49, 0.01);
  now += kRoundTrip;
  // The new peak is between the window of the loss, 70, and what it left.
  const double peak = 70 * (1 + 0.7) / 2;
  const auto until = now + static_cast<int64_t>(std::cbrt((peak - 49) / 0.4) * 1e9);
  for (; now < until; now += kRoundTrip / 20) cubic.on_arrived(now, static_cast<uint32_t>(cubic.window() / 20), 0, 0);
  EXPECT_NEAR(packets_of(cubic), peak, 1);
}

TEST(RoceCubic, Rfc9406_RoundTripsThatGrowByAnEighth_EndSlowStart) {
  for (const bool grows : {false, true}) {
    Cubic cubic(kPacket);
    cubic.on_arrived(kMillisecond, 0, 100 * kMicrosecond, 0);
    cubic.on_arrived(kMillisecond + 100 * kMicrosecond, 0, 112'500 - !grows, 0);
    cubic.on_arrived(kMillisecond + 100 * kMicrosecond, kPacket, 0, 0);
    if (grows)
      EXPECT_LT(packets_of(cubic), 10.5);
    else
      EXPECT_EQ(packets_of(cubic), 11);
  }
}

TEST(RoceCubic, Timeout_LeavesOnePacket) {
  Cubic cubic(kPacket);
  cubic.on_timeout(kMillisecond);
  EXPECT_EQ(packets_of(cubic), 1);
  cubic.on_arrived(kMillisecond, kPacket, 0, 0);
  EXPECT_EQ(packets_of(cubic), 2) << "and slow start up to seven tenths of before";
  cubic.on_arrived(kMillisecond, 5 * kPacket, 0, 0);
  EXPECT_EQ(packets_of(cubic), 7);
  cubic.on_arrived(kMillisecond, kPacket, 0, 0);
  EXPECT_LT(packets_of(cubic), 7.5);
}

TEST(RoceCubic, SecondTimeoutInARow_KeepsTheThresholdOfTheFirst) {
  Cubic cubic(kPacket);
  cubic.on_timeout(kMillisecond);
  cubic.on_timeout(2 * kMillisecond);
  EXPECT_EQ(packets_of(cubic), 1);
  for (int packets = 2; packets <= 7; ++packets) {
    cubic.on_arrived(2 * kMillisecond, kPacket, 0, 0);
    EXPECT_EQ(packets_of(cubic), packets) << "slow start up to seven tenths of the first window";
  }
}

// ---- Swift, section 3.

class RoceSwift : public ::testing::Test {
 protected:
  RoceSwift() { swift.on_arrived(now, 0, kRoundTrip, 0); }
  double packets() const { return packets_of(swift); }
  static constexpr int64_t kRoundTrip = 20 * kMicrosecond;
  int64_t now = 100 * kMicrosecond;
  Swift swift{kPacket};
};

TEST_F(RoceSwift, Window_EachRoundTrip_GrowsByOnePacket) {
  EXPECT_EQ(packets(), 2);
  swift.on_arrived(now, kPacket, 0, 0);
  EXPECT_NEAR(packets(), 2.5, 0.001);
  swift.on_arrived(now, kPacket, 0, 0);
  EXPECT_NEAR(packets(), 2.9, 0.001);
}

TEST_F(RoceSwift, Window_AfterFiveRoundTripsWithoutDelay_GrowsFiveTimesAsFast) {
  while (packets() <= 6) swift.on_arrived(now, kPacket, 0, 0);
  const auto growth = [&] {
    const double before = packets();
    swift.on_arrived(now, kPacket, 0, 0);
    return (packets() - before) * before;
  };
  EXPECT_NEAR(growth(), 1, 0.01) << "the first calm round trip";
  for (int calm = 2; calm <= 5; ++calm) {
    now += kRoundTrip;
    EXPECT_NEAR(growth(), 1, 0.01) << calm;
  }
  now += kRoundTrip - 1;
  EXPECT_NEAR(growth(), 1, 0.01) << "a nanosecond early";
  now += 1;
  EXPECT_NEAR(growth(), 5, 0.01);
}

TEST_F(RoceSwift, DelayBeyondTheTarget_HalvesTheWindowAtMostOncePerRoundTrip) {
  constexpr int64_t kDelay = 400 * kMicrosecond;
  // The standing round trip is the least of the last one: the queue has to show in both halves.
  swift.on_arrived(now += kDelay, 0, kDelay, 0);
  EXPECT_EQ(packets(), 2);
  swift.on_arrived(now += kDelay, 0, kDelay, 0);
  EXPECT_EQ(packets(), 1);
  EXPECT_EQ(swift.rate(now), 0u);
  swift.on_arrived(now += kDelay - 1, 0, kDelay, 0);
  EXPECT_EQ(swift.rate(now), 0u) << "the same round trip";
  swift.on_arrived(now += 1, 0, kDelay, 0);
  EXPECT_EQ(swift.rate(now), static_cast<uint64_t>(0.5 * kPacket * 1e9 / kDelay)) << "half a packet is kept by pacing";
}

/// With two packets the target is the least round trip (20 us), 25 us, and of the 100 us between a tenth of a packet
/// and 100 packets the share of 1 / sqrt(2): 19.8 us.
TEST_F(RoceSwift, TargetDelay_SmallerWindow_IsLonger) {
  const auto after_delay = [&](int64_t delay) {
    swift.on_arrived(now += delay, 0, delay, 0);
    swift.on_arrived(now += delay, 0, delay, 0);
    return packets();
  };
  EXPECT_EQ(after_delay(64'500), 2);
  EXPECT_LT(after_delay(65'500), 2);
}

TEST_F(RoceSwift, LongerRoute_AfterAWhile_GivesTheNewLeastRoundTrip) {
  constexpr int64_t kLonger = 400 * kMicrosecond;
  const int64_t until = now + 200 * kMillisecond;  // a hundred round trips until it looks for the least one again
  while (now < until) swift.on_arrived(now += kLonger, kPacket, kLonger, 0);
  EXPECT_EQ(swift.rate(now), 0u) << "a window of less than a packet: it takes the length for a queue";
  EXPECT_GT(packets(), 2);
}

TEST_F(RoceSwift, FiveTimeouts_LeaveTheLeastWindow) {
  for (int i = 1; i <= 4; ++i) swift.on_timeout(now += kMillisecond);
  EXPECT_NEAR(static_cast<double>(swift.rate(now)), 2.0 / 16 * kPacket * 1e9 / kRoundTrip, 1);
  swift.on_timeout(now += kMillisecond);
  EXPECT_NEAR(static_cast<double>(swift.rate(now)), 0.01 * kPacket * 1e9 / kRoundTrip, 1);
}

TEST_F(RoceSwift, AnswerBetweenTimeouts_RestartsTheirCount) {
  for (int i = 1; i <= 4; ++i) swift.on_timeout(now += kMillisecond);
  swift.on_arrived(now, 0, kRoundTrip, 0);
  swift.on_timeout(now += kMillisecond);
  EXPECT_GT(static_cast<double>(swift.rate(now)), 0.05 * kPacket * 1e9 / kRoundTrip);
}

TEST_F(RoceSwift, Loss_MoreThanTwoPercent_HalvesTheWindow) {
  for (int i = 1; i <= 5; ++i) swift.on_loss(now, 1);
  EXPECT_EQ(packets(), 2) << "five of 256";
  swift.on_loss(now, 1);
  EXPECT_EQ(packets(), 1);
}

// ---- Tolerant.

TEST(RoceTolerant, Loss_TwoPercentOfFourWindows_IsCongestion) {
  Tolerant tolerant(kPacket);
  ASSERT_EQ(packets_of(tolerant), 1024);
  for (int i = 1; i <= 81; ++i) tolerant.on_loss(kSecond, 1);
  EXPECT_EQ(packets_of(tolerant), 1024) << "of 4,096";
  tolerant.on_loss(kSecond, 1);
  EXPECT_NEAR(packets_of(tolerant), 1024 * 0.7, 0.01);
}

TEST(RoceTolerant, GoBack_SeveralPackets_CountsEachAsLost) {
  Tolerant tolerant(kPacket);
  tolerant.on_go_back(kSecond, 82);
  EXPECT_NEAR(packets_of(tolerant), 1024 * 0.7, 0.01);
  Cubic cubic(kPacket);
  cubic.on_arrived(kSecond, 90 * kPacket, 100 * kMicrosecond, 0);
  cubic.on_go_back(kSecond, 82);
  EXPECT_NEAR(packets_of(cubic), 70, 0.01) << "elsewhere one loss";
}

TEST(RoceTolerant, SecondTimeoutInARow_LeavesOnePacket) {
  Tolerant tolerant(kPacket);
  tolerant.on_timeout(kSecond);
  EXPECT_EQ(packets_of(tolerant), 1024);
  tolerant.on_arrived(kSecond, 1, 0, 0);
  tolerant.on_timeout(kSecond);
  EXPECT_EQ(packets_of(tolerant), 1024);
  tolerant.on_timeout(kSecond);
  EXPECT_EQ(packets_of(tolerant), 1);
}

TEST(RoceTolerant, RoundTripOfTwoMilliseconds_PacesAQuarterFasterThanTheWindow) {
  Tolerant near(kPacket);
  near.on_arrived(kSecond, 0, 2 * kMillisecond - 1, 0);
  EXPECT_EQ(near.rate(kSecond), 0u);
  Tolerant far(kPacket);
  far.on_arrived(kSecond, 0, 2 * kMillisecond, 0);
  EXPECT_EQ(far.rate(kSecond), static_cast<uint64_t>(1.25 * 1024 * kPacket / 0.002));
}

// ---- Losses that were none.

TEST(RoceUndo, Undo_SpuriousLosses_RestoresTheWindow) {
  Cubic cubic(kPacket);
  for (int i = 0; i < 90; ++i) cubic.on_arrived(kStart, kPacket, kMillisecond, 0);
  const double before = packets_of(cubic);
  cubic.remember();
  for (int i = 0; i < 3; ++i) cubic.on_loss(kStart + 2 * i * kMillisecond, 1);
  ASSERT_LT(packets_of(cubic), before / 2);
  cubic.undo();
  EXPECT_EQ(packets_of(cubic), before);
  cubic.on_arrived(kStart + 6 * kMillisecond, kPacket, kMillisecond, 0);
  EXPECT_EQ(packets_of(cubic), before + 1) << "still in slow start";

  Dcqcn dcqcn;
  dcqcn.remember();
  dcqcn.on_loss(kStart, 1);
  dcqcn.on_loss(kStart + 100 * kMicrosecond, 1);
  ASSERT_LT(static_cast<double>(dcqcn.rate(kStart + 100 * kMicrosecond)), kLine / 2);
  dcqcn.undo();
  EXPECT_EQ(static_cast<double>(dcqcn.rate(kStart + 100 * kMicrosecond)), kLine);

  Swift swift(kPacket);
  for (int i = 0; i < 200; ++i) swift.on_arrived(kStart + i * kMillisecond, kPacket, kMillisecond, 0);
  const double allowed = packets_of(swift);
  swift.remember();
  swift.on_loss(kStart + 200 * kMillisecond, 100);
  ASSERT_LT(packets_of(swift), allowed);
  swift.undo();
  EXPECT_GE(packets_of(swift), allowed);

  Tolerant tolerant(kPacket);
  const double most = packets_of(tolerant);
  tolerant.remember();
  tolerant.on_loss(kStart, 500);
  ASSERT_LT(packets_of(tolerant), most);
  tolerant.undo();
  EXPECT_EQ(packets_of(tolerant), most);
}

TEST(RoceUndo, Undo_SpuriousLosses_AreNotAddedToLaterOnes) {
  // 2 % of four windows are 82 packets.
  Tolerant tolerant(kPacket);
  const double most = packets_of(tolerant);
  tolerant.on_loss(kStart, 30);
  tolerant.remember();
  tolerant.on_loss(kStart, 30);
  tolerant.undo();
  tolerant.on_loss(kStart, 51);
  EXPECT_EQ(packets_of(tolerant), most);
  tolerant.on_loss(kStart, 1);
  EXPECT_LT(packets_of(tolerant), most);
}

TEST(RoceUndo, Undo_OtherSignsOfCongestion_KeepsTheReduction) {
  for (int sign = 0; sign < 3; ++sign) {
    Cubic cubic(kPacket);
    for (int i = 0; i < 90; ++i) cubic.on_arrived(kStart, kPacket, kMillisecond, 0);
    cubic.remember();
    cubic.on_loss(kStart, 1);
    const int64_t later = kStart + 2 * kMillisecond;
    if (sign == 0) cubic.on_arrived(later, 0, 0, 1);
    if (sign == 1) cubic.on_notification(later);
    if (sign == 2) cubic.on_timeout(later);
    const double left = packets_of(cubic);
    cubic.undo();
    EXPECT_EQ(packets_of(cubic), left) << sign;
  }
  for (const bool silence : {false, true}) {
    Dcqcn dcqcn;
    dcqcn.remember();
    dcqcn.on_loss(kStart, 1);
    const int64_t later = kStart + 51 * kMicrosecond;
    if (silence)
      dcqcn.on_timeout(later);
    else
      dcqcn.on_notification(later);
    const uint64_t left = dcqcn.rate(later);
    dcqcn.undo();
    EXPECT_EQ(dcqcn.rate(later), left) << silence;
  }
  for (const bool silence : {false, true}) {
    Swift swift(kPacket);
    for (int i = 0; i < 200; ++i) swift.on_arrived(kStart + i * kMillisecond, kPacket, kMillisecond, 0);
    const int64_t later = kStart + 300 * kMillisecond;
    swift.remember();
    if (silence)
      swift.on_timeout(later);
    else
      for (int i = 0; i < 4; ++i) swift.on_arrived(later + i * 5 * kMillisecond, kPacket, 10 * kMillisecond, 0);
    const double left = packets_of(swift);
    swift.undo();
    EXPECT_EQ(packets_of(swift), left) << silence;
  }
}

}  // namespace
}  // namespace nupa::roce
