// SPDX-License-Identifier: Apache-2.0
// One flow of 100 Gbit/s whose packets take paths of unequal length, as a network that sprays them makes of it: each is
// late by chance, and overtaken by those behind it. What the spread costs, and whether real losses are still found
// fast.
#include <gtest/gtest.h>

#include <cinttypes>
#include <optional>

#include "roce_world.h"

namespace nupa::roce::testing {
namespace {

constexpr uint32_t kMtu = 4096;
constexpr uint32_t kMessage = 64 << 10;
constexpr uint64_t kRate = 12'500'000'000;  // bytes a second
constexpr int64_t kDelayNs = 6'000;
constexpr uint32_t kLowerHeaders = 66;
constexpr uint32_t kRoom = 2 << 20;
/// Bytes that may wait at the sender's port, so that its own queue is no part of the round trip.
constexpr uint64_t kOwnQueue = 16 << 10;
constexpr int64_t kMicrosecond = 1'000;
constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kPacketNs = (kMtu + kBthBytes + kIcrcBytes + kLowerHeaders) * 10 / 125;

/// Packets take paths that differ by up to `spread_ns`: all, or this share of them while the others take the shortest.
sim::LinkOptions link_with_spread(int64_t spread_ns, double share = 1) {
  sim::LinkOptions link;
  link.delay_ns = kDelayNs;
  link.rate = kRate;
  link.overhead = kLowerHeaders;
  link.faults.reordering = spread_ns == 0 ? 0 : share;
  link.faults.reorder_packets = static_cast<uint32_t>(spread_ns / kPacketNs);
  return link;
}

/// Sends by a link, while little waits for its wire.
class PortOutput final : public Output {
 public:
  explicit PortOutput(sim::SimulatedLink& link) : link_(link) {}
  Sent send(uint8_t, const Packet& packet, const Fragment* payload, uint32_t fragments) override {
    if (link_.queued(now) > kOwnQueue) {
      full = true;
      return Sent::kNotNow;
    }
    std::vector<std::byte> bytes(kMaxHeaderBytes + packet.payload_length + kIcrcBytes + 4);
    uint32_t length = encode(packet, bytes.data());
    for (uint32_t i = 0; i < fragments; ++i) {
      std::memcpy(bytes.data() + length, payload[i].data, payload[i].length);
      length += payload[i].length;
    }
    bytes.resize(length + pad_of(packet.payload_length) + kIcrcBytes);
    if (!on_send || on_send(packet)) link_.send(now, std::move(bytes));
    return Sent::kYes;
  }

  int64_t now = 0;
  bool full = false;
  std::function<bool(const Packet&)> on_send;  ///< false: the packet is lost

 private:
  sim::SimulatedLink& link_;
};

/// A sender of RDMA WRITEs or READs and the other end.
class Flow {
 public:
  Flow(std::string_view congestion, int64_t spread_ns, uint64_t seed, uint32_t depth = 16,
       Opcode opcode = Opcode::kRdmaWrite)
      : depth_(depth),
        opcode_(opcode),
        forth_(link_with_spread(spread_ns), 2 * seed),
        back_(link_with_spread(spread_ns), 2 * seed + 1),
        source(kMessage),
        target(kMessage),
        to_target(forth_),
        to_source(back_),
        sender(source, requester_options(congestion), responder_options(), pool_),
        receiver(target, requester_options(congestion), responder_options(), pool_) {
    sender.requester().set_limits({.timeout = 14, .retry_cnt = 7, .rnr_retry = 7}, 16);
    sender.requester().set_room(UINT64_MAX, kRoom);
    source.on_done = [this] {
      EXPECT_EQ(WcStatus::kSuccess, source.done.back().status);
      ++completed;
      source.done.clear();
    };
  }
  void set_spread(int64_t spread_ns, double share = 1) {
    forth_.set_options(link_with_spread(spread_ns, share));
    back_.set_options(link_with_spread(spread_ns, share));
  }
  /// Goes on for `ns`, with `depth` messages posted. Returns Gbit/s of what completed.
  double run(int64_t ns) {
    const int64_t until = now + ns;
    const uint64_t before = completed;
    while (now < until) {
      post(completed + depth_);
      step(until);
    }
    return static_cast<double>((completed - before) * kMessage * 8) / static_cast<double>(ns);
  }
  void post(uint64_t until) {
    const Sge sge{SimHost::kBase, kMessage, kKey};
    for (; posted < until; ++posted) {
      SendWr wr;
      wr.wr_id = posted;
      wr.opcode = opcode_;
      wr.sg_list = &sge;
      wr.num_sge = 1;
      wr.remote_addr = SimHost::kBase;
      wr.rkey = kKey;
      sender.requester().post(wr, static_cast<uint32_t>(posted));
    }
    serve();
  }
  /// Until all that was posted is done.
  void finish(int64_t within_ns) {
    const int64_t until = now + within_ns;
    while (!sender.requester().idle() && now < until) step(until);
    EXPECT_TRUE(sender.requester().idle());
  }
  void step(int64_t until) {
    int64_t when = std::min({until, forth_.next_arrival(), back_.next_arrival(), sender.deadline()});
    if (to_target.full) when = std::min(when, now + kPacketNs);
    if (to_source.full || answers_wait_) when = std::min(when, now + kPacketNs);
    now = std::max(now, when);
    Packet packet;
    while (forth_.next_arrival() <= now) {
      const auto arrival = forth_.take();
      ASSERT_TRUE(decode(arrival.bytes.data(), static_cast<uint32_t>(arrival.bytes.size()), &packet));
      receiver.receive(packet, false, now);
      answer();
    }
    while (back_.next_arrival() <= now) {
      const auto arrival = back_.take();
      ASSERT_TRUE(decode(arrival.bytes.data(), static_cast<uint32_t>(arrival.bytes.size()), &packet));
      if (packet.opcode == kSelectiveAck) ++answers;
      sender.receive(packet, false, now);
    }
    sender.on_timer(now);
    if (answers_wait_) answer();
    serve();
  }
  const RequesterCounters& counters() { return sender.requester().counters(); }
  const Path& path() { return sender.requester().paths()[0]; }
  uint64_t packets() { return receiver.responder().counters().packets; }

  int64_t now = kMillisecond;
  uint64_t posted = 0;
  uint64_t completed = 0;
  uint64_t answers = 0;

 private:
  static RequesterOptions requester_options(std::string_view congestion) {
    RequesterOptions options;
    options.mtu = kMtu;
    options.max_wr = 64;
    options.congestion = congestion;
    return options;
  }
  static ResponderOptions responder_options() {
    ResponderOptions options;
    options.mtu = kMtu;
    options.window = kRoom;
    return options;
  }
  void serve() {
    to_target.now = now;
    to_target.full = false;
    while (sender.transmit(now, to_target, 64)) {
    }
  }
  void answer() {
    to_source.now = now;
    to_source.full = false;
    while (receiver.transmit(now, to_source, 64) && !to_source.full) {
    }
    answers_wait_ = to_source.full;
  }

  const uint32_t depth_;
  const Opcode opcode_;
  bool answers_wait_ = false;
  PacketPool pool_{kBitmapBits};
  sim::SimulatedLink forth_;
  sim::SimulatedLink back_;

 public:
  SimHost source;
  SimHost target;
  PortOutput to_target;
  PortOutput to_source;
  Connection sender;
  Connection receiver;
};

class RoceSpread : public ::testing::TestWithParam<const char*> {};

TEST_P(RoceSpread, PathsOfUnequalLength_KeepNineTenthsOfTheGoodput) {
  constexpr int64_t kTime = 20 * kMillisecond;
  double even = 0;
  for (const int64_t spread : {0, 3, 8, 12, 20}) {
    Flow flow(GetParam(), spread * kMicrosecond, 1);
    const double goodput = flow.run(kTime);
    if (spread == 0) even = goodput;
    const double resent = static_cast<double>(flow.counters().resent_selective + flow.counters().resent_timeout) /
                          static_cast<double>(flow.counters().packets);
    std::printf("%-8s spread %2" PRId64 " us: %5.1f Gbit/s, %.4f sent again, %.3f answers a packet\n", GetParam(),
                spread, goodput, resent, static_cast<double>(flow.answers) / static_cast<double>(flow.packets()));
    EXPECT_GE(goodput, 0.9 * even) << spread << " us of spread";
  }
}

TEST_P(RoceSpread, FewPacketsThatAreLate_CostNoMoreThanATenth) {
  // Their round trips are seldom measured: those that count as lost tell none (Karn).
  constexpr int64_t kTime = 10 * kMillisecond;
  Flow even(GetParam(), 0, 1);
  const double goodput = even.run(kTime);
  for (const double share : {0.01, 0.1}) {
    Flow flow(GetParam(), 20 * kMicrosecond, 2);
    flow.set_spread(20 * kMicrosecond, share);
    flow.run(kTime);
    EXPECT_GE(flow.run(kTime), 0.9 * goodput) << share << " of the packets";
  }
}

TEST_P(RoceSpread, NeedlessRepetitions_EndWhenTheWindowHasGrown) {
  Flow flow(GetParam(), 20 * kMicrosecond, 3);
  flow.run(10 * kMillisecond);
  EXPECT_GT(flow.counters().late, 0u) << "otherwise there was nothing to adapt to";
  EXPECT_GT(flow.path().reorder_ns(), 2 * ReorderWindow::kLeastNs);
  const uint64_t late = flow.counters().late;
  const uint64_t packets = flow.counters().packets;
  flow.run(10 * kMillisecond);
  EXPECT_LE(flow.counters().late - late, (flow.counters().packets - packets) / 1000);
}

INSTANTIATE_TEST_SUITE_P(All, RoceSpread, ::testing::Values("tolerant", "swift", "dcqcn", "cubic", "none"),
                         [](const auto& each) { return std::string(each.param); });

TEST(RoceSpreadReads, PathsOfUnequalLength_KeepNineTenthsOfTheGoodput) {
  constexpr int64_t kTime = 20 * kMillisecond;
  Flow even("none", 0, 1, 16, Opcode::kRdmaRead);
  const double goodput = even.run(kTime);
  Flow flow("none", 20 * kMicrosecond, 1, 16, Opcode::kRdmaRead);
  flow.run(kTime);
  const double spread = flow.run(kTime);
  std::printf("READs: %.1f Gbit/s, with 20 us of spread %.1f\n", goodput, spread);
  EXPECT_GE(spread, 0.9 * goodput);
}

/// Loses packets of a flow's way forth, and measures when each leaves again.
class Losses {
 public:
  explicit Losses(Flow& flow) : flow_(flow) {
    flow.to_target.on_send = [this](const Packet& packet) { return note(packet); };
  }
  ~Losses() { flow_.to_target.on_send = nullptr; }
  /// Every `every`-th packet from now on, one at a time.
  void begin(uint32_t every) { every_ = every; }
  void end() { every_ = 0; }
  uint64_t found() const { return found_; }
  /// The longest time from a loss to the repetition.
  int64_t longest_ns() const { return longest_ns_; }

 private:
  bool note(const Packet& packet) {
    if (lost_psn_ == packet.psn) {
      longest_ns_ = std::max(longest_ns_, flow_.now - lost_ns_);
      lost_psn_.reset();
      ++found_;
      return true;
    }
    if (every_ == 0 || lost_psn_ || ++count_ % every_ != 0) return true;
    lost_psn_ = packet.psn;
    lost_ns_ = flow_.now;
    return false;
  }
  Flow& flow_;
  uint32_t every_ = 0;
  uint32_t count_ = 0;
  std::optional<uint32_t> lost_psn_;
  int64_t lost_ns_ = 0;
  int64_t longest_ns_ = 0;
  uint64_t found_ = 0;
};

TEST(RoceSpreadLosses, LossAmidTheSpread_IsFoundWithinARoundTripAndTheWindow) {
  for (const int64_t spread : {0, 20}) {
    Flow flow("none", spread * kMicrosecond, 4);
    flow.run(10 * kMillisecond);
    Losses losses(flow);
    losses.begin(500);
    // Before the window shrinks.
    while (losses.found() < 12) flow.run(100 * kMicrosecond);
    const int64_t most = flow.path().round_trip.longest() + flow.path().reorder_ns() + 4 * kMicrosecond;
    std::printf("spread %2" PRId64 " us: a loss is found in %.1f us at most, of %.1f\n", spread,
                static_cast<double>(losses.longest_ns()) / 1e3, static_cast<double>(most) / 1e3);
    EXPECT_LE(losses.longest_ns(), most);
  }
}

TEST(RoceSpreadLosses, LossInAMessageAlone_IsFoundWithinARoundTripAndTheWindow) {
  // All of it has left before the first answer comes: no packet that is sent later tells.
  Flow flow("none", 0, 1);
  flow.post(1);
  flow.finish(kMillisecond);
  Losses losses(flow);
  losses.begin(5);
  flow.post(2);
  while (losses.found() == 0 && flow.completed < 2) {
    flow.step(flow.now + kMillisecond);
    losses.end();
  }
  flow.finish(kMillisecond);
  EXPECT_EQ(losses.found(), 1u);
  EXPECT_LE(losses.longest_ns(), flow.path().round_trip.longest() + flow.path().reorder_ns() + 4 * kMicrosecond);
}

TEST(RoceSpreadLosses, SpreadEnds_ToleranceFallsAStepEachSixteenRecoveries) {
  Flow flow("none", 20 * kMicrosecond, 5);
  flow.run(10 * kMillisecond);
  flow.set_spread(0);
  flow.run(kMillisecond);
  const int64_t before = flow.path().reorder_ns();
  ASSERT_GT(before, 2 * ReorderWindow::kLeastNs);
  Losses losses(flow);
  losses.begin(1'000);
  for (int64_t window = before; window > ReorderWindow::kLeastNs;) {
    const uint64_t found = losses.found();
    while (flow.path().reorder_ns() == window) flow.run(10 * kMicrosecond);
    EXPECT_GE(losses.found() + 1, found + ReorderWindow::kPersist);
    EXPECT_LE(losses.found(), found + ReorderWindow::kPersist + 1);
    EXPECT_EQ(flow.path().reorder_ns(), window - ReorderWindow::kLeastNs);
    window = flow.path().reorder_ns();
  }
}

TEST(RoceSpreadWork, AnswersAndTheirWork_AreBoundedByThePackets) {
  Flow flow("none", 20 * kMicrosecond, 6);
  flow.run(10 * kMillisecond);
  const uint64_t packets = flow.packets();
  const uint64_t answers = flow.answers;
  const uint64_t examined = flow.counters().examined;
  constexpr int64_t kTime = 10 * kMillisecond;
  flow.run(kTime);
  const uint64_t more_packets = flow.packets() - packets;
  const uint64_t more_answers = flow.answers - answers;
  const uint64_t more_examined = flow.counters().examined - examined;
  std::printf("%" PRIu64 " packets, %" PRIu64 " answers, %" PRIu64 " packets looked at\n", more_packets, more_answers,
              more_examined);
  // The last packet of each message asks, each 32nd does, and what comes out of order is told each 2.5 us.
  EXPECT_LE(more_answers, more_packets / 16 + more_packets / 32 + kTime / 2'500);
  // Each is seen to arrive, and once more when all before it have; an answer looks at the oldest besides.
  EXPECT_LE(more_examined, 2 * more_packets + 2 * more_answers);
}

}  // namespace
}  // namespace nupa::roce::testing
