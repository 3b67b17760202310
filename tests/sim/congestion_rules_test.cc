// SPDX-License-Identifier: Apache-2.0
// Single events of each congestion control, and the engine's calls of it. tests/sim/congestion_test.cc has whole
// networks.
#include <gtest/gtest.h>

#include <cstdlib>

#include "roce_world.h"

namespace nupa::roce::testing {
namespace {

constexpr uint32_t kMtu = 4096;
constexpr int64_t kMillisecond = 1'000'000;

uint64_t seed() {
  const char* text = std::getenv("NUPA_SIM_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 0);
}

TEST(RoceCongestionRules, MakeCongestion_EachName_ReturnsAControl) {
  for (const std::string_view name : congestion_names()) {
    const auto control = make_congestion(name, kMtu);
    ASSERT_NE(nullptr, control) << name;
    EXPECT_EQ(name, control->name());
    for (int i = 0; i < 20; ++i) control->on_timeout((i + 1) * kMillisecond);
    EXPECT_GE(control->window(), kMtu) << "at least one packet may always be under way";
  }
  EXPECT_EQ(nullptr, make_congestion("reno", kMtu));
}

TEST(RoceCongestionRules, Dcqcn_TimersPassBetweenCalls_RateIsTheSame) {
  const auto often = make_congestion("dcqcn", kMtu);
  const auto seldom = make_congestion("dcqcn", kMtu);
  const uint64_t line = often->rate(0);
  for (int i = 1; i <= 6; ++i)
    for (const auto& control : {often.get(), seldom.get()}) control->on_notification(i * 50'000);
  EXPECT_LT(often->rate(300'000), line / 32) << "alpha starts at one: halved by each";
  for (int64_t now = 300'000; now <= 20 * kMillisecond; now += 1'000) often->on_arrived(now, 0, 0, 0);
  EXPECT_EQ(often->rate(20 * kMillisecond), seldom->rate(20 * kMillisecond));
  EXPECT_GT(seldom->rate(20 * kMillisecond), line / 8);
  EXPECT_EQ(line, seldom->rate(1'000 * kMillisecond)) << "and in the end nothing limits it";
}

TEST(RoceCongestionRules, Swift_WindowBelowOnePacket_PacesAndRecovers) {
  const auto control = make_congestion("swift", kMtu);
  control->on_arrived(0, 0, 20'000, 0);
  EXPECT_EQ(0u, control->rate(0));
  int64_t now = 0;
  for (int i = 0; i < 12; ++i) control->on_arrived(now += 400'000, 0, 400'000, 0);
  EXPECT_EQ(kMtu, control->window());
  EXPECT_GT(control->rate(now), 0u);
  EXPECT_LT(control->rate(now), kMtu * 2'500ull) << "less than a packet in 400 us";
  for (int i = 0; i < 200; ++i) {
    control->on_arrived(now += 20'000, 0, 20'000, 0);
    control->on_arrived(now, kMtu, 0, 0);
  }
  EXPECT_EQ(0u, control->rate(now));
  EXPECT_GT(control->window(), 4 * kMtu);
}

TEST(RoceCongestionRules, Cubic_LossAndTimeout_ReduceOnceARoundTripAndToOnePacket) {
  constexpr uint32_t kPackets = 100;
  const auto control = make_congestion("cubic", kMtu);
  control->on_arrived(0, 0, 100'000, 0);
  control->on_arrived(0, kPackets * kMtu, 0, 0);
  const uint64_t peak = control->window();
  control->on_loss(1'000'000, 1);
  const auto reduced = static_cast<double>(peak) * 0.7;  // RFC 9438, section 4.6
  EXPECT_NEAR(reduced, static_cast<double>(control->window()), 1);
  control->on_loss(1'050'000, 20);
  EXPECT_NEAR(reduced, static_cast<double>(control->window()), 1) << "the same round trip";
  control->on_loss(1'200'000, 1);
  EXPECT_NEAR(reduced * 0.7, static_cast<double>(control->window()), 1);
  control->on_timeout(2'000'000);
  EXPECT_EQ(kMtu, control->window());
}

TEST(RoceCongestionRules, Tolerant_RandomLossOrOneTimeout_KeepsItsWindow) {
  const auto control = make_congestion("tolerant", kMtu);
  const uint64_t whole = control->window();
  EXPECT_GE(whole, 1024 * kMtu) << "from the start";
  int64_t now = 0;
  const auto send = [&](int packets, int lost_in_a_hundred) {
    for (int i = 0; i < packets; ++i) {
      now += 1'000;
      if (i % 100 < lost_in_a_hundred)
        control->on_loss(now, 1);
      else
        control->on_arrived(now, kMtu, 100'000, 0);
    }
  };
  send(20'000, 1);
  EXPECT_EQ(whole, control->window());
  control->on_timeout(now);
  EXPECT_EQ(whole, control->window());
  send(100, 0);
  control->on_timeout(now);
  EXPECT_EQ(whole, control->window()) << "not in a row";
  send(20'000, 10);
  EXPECT_LT(control->window(), whole / 2);
  control->on_timeout(now);
  control->on_timeout(now);
  EXPECT_EQ(kMtu, control->window());
}

TEST(RoceCongestionRules, Tolerant_LongRoundTrip_Paces) {
  const auto control = make_congestion("tolerant", kMtu);
  EXPECT_EQ(0u, control->rate(0)) << "nothing is known of the way";
  control->on_arrived(0, 0, 10 * kMillisecond, 0);
  const auto in_a_round_trip = static_cast<double>(control->window()) / 0.01;
  EXPECT_GT(static_cast<double>(control->rate(0)), in_a_round_trip) << "the window is used";
  EXPECT_LT(static_cast<double>(control->rate(0)), 1.5 * in_a_round_trip);
  control->on_arrived(0, 0, kMillisecond / 50, 0);
  control->on_arrived(0, 0, 10 * kMillisecond, 0);
  EXPECT_EQ(0u, control->rate(0)) << "the way is short, and whoever answers was away";
}

SendWr write_of(const Sge& sge) {
  SendWr wr;
  wr.opcode = Opcode::kRdmaWrite;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.remote_addr = SimHost::kBase;
  wr.rkey = kKey;
  return wr;
}

TEST(RoceCongestionEngine, Timeout_ProbesWithOnePacket) {
  constexpr int64_t kWay = kMillisecond / 2;
  World::Options options;
  options.congestion = "cubic";
  options.link.delay_ns = kWay;
  options.limits.timeout = 14;
  World world(options, seed());
  const Sge sge{SimHost::kBase, 8 * options.mtu, kKey};
  const auto write = [&](size_t count) {
    world.a.connection.requester().post(write_of(sge), 0);
    world.a.transmit(world.now);
    return world.run([&] { return world.a.host.done.size() == count; });
  };
  for (size_t i = 1; i <= 50; ++i) ASSERT_TRUE(write(i));
  // The other end is away for longer than the timeout, and loses nothing.
  sim::LinkOptions late = options.link;
  late.delay_ns = kWay + 3 * kMillisecond;
  world.link_to_a(0).set_options(late);
  ASSERT_TRUE(write(51));
  const RequesterCounters& counters = world.a.connection.requester().counters();
  EXPECT_EQ(1u, counters.resent_timeout) << "the packet that asks";
  EXPECT_EQ(0u, counters.resent_selective);
}

TEST(RoceCongestionEngine, LostTail_CostsOneTimeout) {
  constexpr uint32_t kTail = 64;
  World::Options options;
  options.link.delay_ns = 50'000;
  options.limits.timeout = 14;
  World world(options, seed());
  const auto write = [&](uint32_t packets, size_t count) {
    const Sge sge{SimHost::kBase, packets * options.mtu, kKey};
    world.a.connection.requester().post(write_of(sge), 0);
    world.a.transmit(world.now);
    return world.run([&] { return world.a.host.done.size() == count; });
  };
  for (size_t i = 1; i <= 20; ++i) ASSERT_TRUE(write(8, i));
  sim::LinkOptions dead = options.link;
  dead.faults.loss = 1;
  world.to_b.set_options(dead);
  world.plan(world.now + kMillisecond, [&] { world.to_b.set_options(options.link); });
  const int64_t began = world.now;
  ASSERT_TRUE(write(kTail, 21));
  EXPECT_LT(world.now - began, 4 * kMillisecond) << "the rest follows the answer to the first";
  EXPECT_LE(world.a.connection.requester().counters().resent_selective, 2 * kTail);
}

TEST(RoceCongestionEngine, Read_ThroughASmallWindow_IsRepeatedInTheSameParts) {
  // Its parts are single requests to the other end, which takes no repetition of half of one.
  for (const uint8_t mark : {uint8_t{0}, kNupaMark}) {
    for (uint64_t i = 0; i < 200; ++i) {
      World::Options options;
      options.mark_a = options.mark_b = mark;
      options.congestion = "cubic";
      options.link.faults.loss = 0.05;
      options.limits.timeout = 10;
      World world(options, seed() + i);
      const Sge sge{SimHost::kBase, 200 << 10, kKey};
      SendWr wr = write_of(sge);
      wr.opcode = Opcode::kRdmaRead;
      world.a.connection.requester().post(wr, 0);
      world.a.transmit(world.now);
      ASSERT_TRUE(world.run([&] { return world.a.host.done.size() == 1; })) << "seed " << seed() + i;
      ASSERT_EQ(WcStatus::kSuccess, world.a.host.done[0].status) << "seed " << seed() + i;
    }
  }
}

}  // namespace
}  // namespace nupa::roce::testing
