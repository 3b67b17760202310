// SPDX-License-Identifier: Apache-2.0
// Congestion controls of the RoCEv2 engine: several senders, one bottleneck, simulated time. The figures are in
// docs/design/congestion.md. NUPA_SIM_PLOT names a file for the series behind them, as CSV.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>

#include "roce_world.h"

namespace nupa::roce::testing {
namespace {

constexpr uint32_t kMtu = 4096;
constexpr uint32_t kMessage = 64 << 10;
/// Posted at a time: more than the 1,024 packets that may be under way.
constexpr uint64_t kDepth = 68;
constexpr int64_t kMillisecond = 1'000'000;

/// The bottleneck: a port of 40 Gbit/s, 20 us there and back.
constexpr uint64_t kLinkRate = 5'000'000'000;
constexpr int64_t kDelayNs = 10'000;
constexpr uint64_t kQueueBytes = 512 << 10;
constexpr uint32_t kRoom = 256 << 10;   ///< what each receiver is ready to have under way, as a socket's buffer
constexpr uint32_t kLowerHeaders = 66;  ///< UDP 8, IPv4 20, Ethernet 38 with preamble and gap
/// Bytes of payload a second that a link of `rate` can carry.
constexpr double capacity_of(uint64_t rate) {
  return static_cast<double>(rate) * kMtu / (kMtu + kBthBytes + kIcrcBytes + kLowerHeaders);
}
constexpr double kCapacity = capacity_of(kLinkRate);

/// Marking as in DCQCN's paper, section 5.2: never below the first bound, always above the second, in between with a
/// chance that grows to kMarkChance.
constexpr uint64_t kMarkFrom = 5'000;
constexpr uint64_t kMarkAll = 200'000;
constexpr double kMarkChance = 0.01;

/// Encodes packets without their CRC: nothing is damaged here.
class PlainOutput final : public Output {
 public:
  using Send = std::function<void(std::vector<std::byte>)>;
  explicit PlainOutput(Send send) : send_(std::move(send)) {}
  Sent send(uint8_t, const Packet& packet, const Fragment* payload, uint32_t fragments) override {
    std::vector<std::byte> bytes(kMaxHeaderBytes + packet.payload_length + kIcrcBytes + 4);
    uint32_t length = encode(packet, bytes.data());
    for (uint32_t i = 0; i < fragments; ++i) {
      std::memcpy(bytes.data() + length, payload[i].data, payload[i].length);
      length += payload[i].length;
    }
    bytes.resize(length + pad_of(packet.payload_length) + kIcrcBytes);
    send_(std::move(bytes));
    return Sent::kYes;
  }

 private:
  Send send_;
};

/// The bottleneck's port, and what else is on the way.
struct Port {
  bool marks;
  uint64_t queue_bytes;  ///< 0: no limit
  double loss;           ///< at random, of the acknowledgements too
  uint64_t rate = kLinkRate;
  int64_t delay_ns = kDelayNs;
  uint32_t room = kRoom;
  uint8_t mark = kNupaMark;  ///< of both ends; 0: as the standard's
};

/// What was seen between two moments.
struct Period {
  std::vector<double> goodput;  ///< of each flow, bytes of payload a second
  double average_queue = 0;
  uint64_t most_queue = 0;
  double lost = 0;      ///< share of the packets
  double capacity = 0;  ///< of the link, as goodput counts

  double jain(size_t flows) const {
    double sum = 0;
    double squares = 0;
    for (size_t i = 0; i < flows; ++i) {
      sum += goodput[i];
      squares += goodput[i] * goodput[i];
    }
    return squares == 0 ? 0 : sum * sum / (static_cast<double>(flows) * squares);
  }
  double utilisation() const { return std::accumulate(goodput.begin(), goodput.end(), 0.0) / capacity; }
};

/// Senders that write without end to as many receivers behind one port. Acknowledgements have a way of their own.
class Bottleneck {
 public:
  Bottleneck(const std::string& name, std::string_view congestion, size_t flows, const Port& port, uint64_t seed)
      : name_(name),
        port_(port),
        random_(seed),
        pool_(static_cast<uint32_t>(flows) * kBitmapBits),
        forth_(link_options(port), seed),
        back_(way_back(port), seed + 1) {
    for (uint32_t i = 0; i < flows; ++i) flows_.push_back(std::make_unique<Flow>(*this, i, congestion));
  }

  /// From now on the flow has something to send, but for a little while by chance, so that no two march in step.
  void start(size_t flow) {
    constexpr uint64_t kWithinNs = 200'000;
    flows_[flow]->starts_ns = now_ + static_cast<int64_t>(random_() % kWithinNs);
    flows_[flow]->deadline = flows_[flow]->starts_ns;
    flows_[flow]->active = true;
  }
  /// It posts nothing new.
  void stop(size_t flow) { flows_[flow]->active = false; }
  bool idle(size_t flow) { return flows_[flow]->sender.requester().idle(); }

  /// Goes on for `ns` and tells what happened.
  Period run(int64_t ns) {
    const int64_t from = now_;
    std::vector<uint64_t> before;
    for (const auto& flow : flows_) before.push_back(flow->received_bytes());
    const uint64_t lost = forth_.lost();
    const uint64_t sent = forth_.sent();
    queue_sum_ = queue_samples_ = queue_most_ = 0;
    while (now_ < from + ns) step(from + ns);
    Period period;
    period.capacity = capacity_of(port_.rate);
    for (size_t i = 0; i < flows_.size(); ++i)
      period.goodput.push_back(static_cast<double>(flows_[i]->received_bytes() - before[i]) * 1e9 /
                               static_cast<double>(ns));
    period.average_queue = static_cast<double>(queue_sum_) / static_cast<double>(queue_samples_);
    period.most_queue = queue_most_;
    period.lost = static_cast<double>(forth_.lost() - lost) / static_cast<double>(forth_.sent() - sent);
    return period;
  }

 private:
  static constexpr uint32_t kMarkedTag = 1u << 31;
  static constexpr int64_t kSampleNs = 5'000;
  static constexpr int64_t kPlotNs = 250'000;

  static sim::LinkOptions way_back(const Port& port) {
    sim::LinkOptions options;
    options.delay_ns = port.delay_ns;
    options.faults.loss = port.loss;
    return options;
  }
  static sim::LinkOptions link_options(const Port& port) {
    sim::LinkOptions options;
    options.delay_ns = port.delay_ns;
    options.rate = port.rate;
    options.queue_bytes = port.queue_bytes;
    options.faults.loss = port.loss;
    options.overhead = kLowerHeaders;
    return options;
  }

  struct Flow {
    Flow(Bottleneck& world, uint32_t index, std::string_view congestion)
        : standard(world.port_.mark == 0),
          source(kMessage),
          target(kMessage),
          to_receiver([&world, index](std::vector<std::byte> bytes) { world.enqueue(std::move(bytes), index); }),
          to_sender(
              [&world, index](std::vector<std::byte> bytes) { world.back_.send(world.now_, std::move(bytes), index); }),
          sender(source, requester_options(congestion, world.port_), {}, world.pool_),
          receiver(target, {}, responder_options(world.port_), world.pool_) {
      sender.requester().set_limits({.timeout = 10, .retry_cnt = 7, .rnr_retry = 7}, 4);
    }
    static RequesterOptions requester_options(std::string_view congestion, const Port& port) {
      RequesterOptions options;
      options.mark = port.mark;
      options.mtu = kMtu;
      options.max_wr = kDepth;
      options.congestion = congestion;
      return options;
    }
    static ResponderOptions responder_options(const Port& port) {
      ResponderOptions options;
      options.mtu = kMtu;
      options.mark = port.mark;
      options.window = port.room;
      return options;
    }
    /// Each packet once.
    uint64_t received_bytes() {
      const ResponderCounters& counters = receiver.responder().counters();
      const uint64_t let_go = standard ? counters.early : 0;
      return (counters.packets - counters.duplicates - counters.dropped - let_go) * kMtu;
    }
    void post_all() {
      const Sge sge{SimHost::kBase, kMessage, kKey};
      for (completed += source.done.size(); posted < completed + kDepth; ++posted) {
        SendWr wr;
        wr.wr_id = posted;
        wr.opcode = Opcode::kRdmaWrite;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        wr.remote_addr = SimHost::kBase;
        wr.rkey = kKey;
        sender.requester().post(wr, static_cast<uint32_t>(posted));
      }
      for (const SimHost::Done& done : source.done) ASSERT_EQ(WcStatus::kSuccess, done.status);
      source.done.clear();
    }

    const bool standard;
    SimHost source;
    SimHost target;
    PlainOutput to_receiver;
    PlainOutput to_sender;
    Connection sender;
    Connection receiver;
    bool active = false;
    int64_t starts_ns = 0;
    int64_t deadline = INT64_MAX;
    uint64_t posted = 0;
    uint64_t completed = 0;
    uint64_t plotted_bytes = 0;
  };

  void enqueue(std::vector<std::byte> bytes, uint32_t flow) {
    const uint64_t waiting = forth_.queued(now_);
    queue_most_ = std::max(queue_most_, waiting);
    double chance = 0;
    if (waiting > kMarkAll)
      chance = 1;
    else if (waiting > kMarkFrom)
      chance = kMarkChance * static_cast<double>(waiting - kMarkFrom) / (kMarkAll - kMarkFrom);
    const bool marked = port_.marks && std::uniform_real_distribution<double>(0, 1)(random_) < chance;
    forth_.send(now_, std::move(bytes), marked ? flow | kMarkedTag : flow);
  }
  void serve(Flow& flow) {
    if (flow.active && now_ >= flow.starts_ns) flow.post_all();
    flow.sender.on_timer(now_);
    while (flow.sender.transmit(now_, flow.to_receiver, 64)) {
    }
    flow.deadline = flow.sender.deadline();
  }
  static bool read(const sim::SimulatedLink::Arrival& arrival, Packet* packet) {
    return decode(arrival.bytes.data(), static_cast<uint32_t>(arrival.bytes.size()), packet);
  }
  void step(int64_t until) {
    int64_t when = std::min({until, forth_.next_arrival(), back_.next_arrival(), next_sample_});
    for (const auto& flow : flows_) when = std::min(when, flow->deadline);
    now_ = std::max(now_, when);
    Packet packet;
    while (forth_.next_arrival() <= now_) {
      const auto arrival = forth_.take();
      Flow& flow = *flows_[arrival.tag & ~kMarkedTag];
      ASSERT_TRUE(read(arrival, &packet));
      flow.receiver.receive(packet, (arrival.tag & kMarkedTag) != 0, now_);
      while (flow.receiver.transmit(now_, flow.to_sender, 64)) {
      }
    }
    while (back_.next_arrival() <= now_) {
      const auto arrival = back_.take();
      ASSERT_TRUE(read(arrival, &packet));
      flows_[arrival.tag]->sender.receive(packet, false, now_);
      serve(*flows_[arrival.tag]);
    }
    for (const auto& flow : flows_)
      if (flow->deadline <= now_) serve(*flow);
    if (now_ >= next_sample_) sample();
  }
  void sample() {
    next_sample_ += kSampleNs;
    queue_sum_ += forth_.queued(now_);
    ++queue_samples_;
    if (now_ < next_plot_) return;
    next_plot_ += kPlotNs;
    plot();
  }
  void plot() {
    const char* path = std::getenv("NUPA_SIM_PLOT");
    if (path == nullptr) return;
    static std::ofstream file = [path] {
      std::ofstream opened(path);
      opened << "run,time_us,queue_bytes,goodput of each flow in MB/s\n";
      return opened;
    }();
    file << name_ << ',' << now_ / 1000 << ',' << forth_.queued(now_);
    for (const auto& flow : flows_) {
      const uint64_t bytes = flow->received_bytes();
      file << ',' << static_cast<double>(bytes - flow->plotted_bytes) * 1e3 / kPlotNs;
      flow->plotted_bytes = bytes;
    }
    file << '\n';
  }

  const std::string name_;
  const Port port_;
  int64_t now_ = 0;
  std::mt19937_64 random_;
  PacketPool pool_;
  sim::SimulatedLink forth_;
  sim::SimulatedLink back_;
  std::vector<std::unique_ptr<Flow>> flows_;
  int64_t next_sample_ = 0;
  int64_t next_plot_ = 0;
  uint64_t queue_sum_ = 0;
  uint64_t queue_samples_ = 0;
  uint64_t queue_most_ = 0;
};

uint64_t seed() {
  const char* text = std::getenv("NUPA_SIM_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 0);
}

/// Eight flows that start together, seen over the second half of 100 ms.
Period eight_flows(const std::string& name, std::string_view congestion, const Port& port) {
  constexpr size_t kFlows = 8;
  constexpr int64_t kHalf = 50 * kMillisecond;
  Bottleneck world(name + ", 8 flows", congestion, kFlows, port, seed());
  for (size_t i = 0; i < kFlows; ++i) world.start(i);
  world.run(kHalf);
  const Period period = world.run(kHalf);
  std::printf("%-20s Jain %.3f, utilisation %.3f, queue %4.0f KB on average, %4.0f KB at most, lost %.2f%%\n",
              name.c_str(), period.jain(kFlows), period.utilisation(), period.average_queue / 1e3,
              static_cast<double>(period.most_queue) / 1e3, 100 * period.lost);
  return period;
}

struct Case {
  const char* name;
  const char* congestion;
  Port port;
};
void PrintTo(const Case& which, std::ostream* out) { *out << which.name; }

class RoceCongestion : public ::testing::TestWithParam<Case> {};

TEST_P(RoceCongestion, EightFlows_ShareTheLinkWithAShortQueue) {
  // The queue of a fixed window is what the window gives, on a port that can hold it.
  static const Period fixed = eight_flows("none, deep port", "none", {false, 0, 0});
  const Period period = eight_flows(GetParam().name, GetParam().congestion, GetParam().port);
  EXPECT_GE(period.jain(8), 0.95);
  EXPECT_GE(period.utilisation(), 0.85);
  EXPECT_LT(period.average_queue, fixed.average_queue / 2);
  EXPECT_LT(period.most_queue, fixed.most_queue / 2);
}

TEST_P(RoceCongestion, FifthFlow_GetsItsShareAndReturnsIt) {
  constexpr int64_t kFairAfter = 40 * kMillisecond;
  constexpr int64_t kTakenAfter = 10 * kMillisecond;
  Bottleneck world(std::string(GetParam().name) + ", 4 flows and a fifth", GetParam().congestion, 5, GetParam().port,
                   seed());
  for (size_t i = 0; i < 4; ++i) world.start(i);
  world.run(40 * kMillisecond);
  world.start(4);
  world.run(kFairAfter);
  const Period five = world.run(10 * kMillisecond);
  EXPECT_GE(five.jain(5), 0.9);
  EXPECT_GE(five.goodput[4], kCapacity / 5 / 2);
  world.stop(4);
  world.run(kTakenAfter);
  ASSERT_TRUE(world.idle(4));
  const Period four = world.run(20 * kMillisecond);
  EXPECT_GE(four.utilisation(), 0.85);
  EXPECT_GE(four.jain(4), 0.9);
  std::printf("%-20s with the fifth: Jain %.3f, its goodput %.0f of %.0f MB/s; without: Jain %.3f, utilisation %.3f\n",
              GetParam().name, five.jain(5), five.goodput[4] / 1e6, kCapacity / 5 / 1e6, four.jain(4),
              four.utilisation());
}

INSTANTIATE_TEST_SUITE_P(All, RoceCongestion,
                         ::testing::Values(Case{"dcqcn", "dcqcn", {true, kQueueBytes, 0}},
                                           Case{"swift", "swift", {false, kQueueBytes, 0}},
                                           Case{"cubic", "cubic", {false, kQueueBytes, 0}},
                                           Case{"tolerant", "tolerant", {false, kQueueBytes, 0}},
                                           Case{"cubic_with_marks", "cubic", {true, kQueueBytes, 0}}),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(RoceCongestionLoss, NoControl_ShallowPort_LosesPackets) {
  const Period period = eight_flows("none, shallow port", "none", {false, kQueueBytes, 0});
  EXPECT_GT(period.lost, 0.1) << "else the port is no bottleneck and the others prove nothing";
}

TEST(RoceCongestionLoss, Swift_RandomLoss_KeepsItsRate) {
  constexpr double kLoss = 0.005;
  const auto utilisation = [](std::string_view congestion) {
    Bottleneck world("a lossy link", congestion, 1, {false, kQueueBytes, kLoss}, seed());
    world.start(0);
    world.run(20 * kMillisecond);
    return world.run(50 * kMillisecond).utilisation();
  };
  const double swift = utilisation("swift");
  const double cubic = utilisation("cubic");
  std::printf("one flow, 0.5%% lost at random: utilisation with swift %.3f, with cubic %.3f\n", swift, cubic);
  EXPECT_GE(swift, 0.85);
  EXPECT_GT(swift, cubic);
}

/// One flow over a link of a millisecond there and back, with a queue of two bandwidth-delay products.
Port far_link(uint64_t mbit, double loss, uint8_t mark) {
  const uint64_t rate = mbit * 1'000'000 / 8;
  return {false, rate / 500, loss, rate, 500'000, 8 << 20, mark};
}

/// Of the second of two half seconds.
double far_utilisation(std::string_view congestion, const Port& link) {
  Bottleneck world("a long link", congestion, 1, link, seed());
  world.start(0);
  world.run(500 * kMillisecond);
  return world.run(500 * kMillisecond).utilisation();
}

TEST(RoceCongestionLoss, Swift_OnePercentLossOnALongLink_KeepsItsGoodput) {
  for (const uint64_t mbit : {1'000, 10'000}) {
    const double whole = far_utilisation("swift", far_link(mbit, 0, kNupaMark));
    const double lossy = far_utilisation("swift", far_link(mbit, 0.01, kNupaMark));
    std::printf("swift, %5lu Mbit/s, 1 ms: utilisation %.3f, with 1%% loss %.3f\n", mbit, whole, lossy);
    EXPECT_GE(whole, 0.85);
    EXPECT_GE(lossy, 0.8 * whole);
  }
}

TEST(RoceCongestionLoss, Tolerant_FewLosses_AreRandomAndManyAreCongestion) {
  for (const double loss : {0.0, 0.005, 0.01}) {
    Bottleneck world("a long link", "tolerant", 1, far_link(1'000, loss, kNupaMark), seed());
    world.start(0);
    world.run(500 * kMillisecond);
    const Period period = world.run(500 * kMillisecond);
    std::printf("tolerant, 1000 Mbit/s, 1 ms, %.1f%% at random: utilisation %.3f, lost %.2f%%\n", 100 * loss,
                period.utilisation(), 100 * period.lost);
    EXPECT_GE(period.utilisation(), 0.85);
    EXPECT_LE(period.lost, loss + 0.03);
  }
}

TEST(RoceCongestionLoss, Tolerant_AfterAPause_OverrunsNoFarQueue) {
  // 250 Mbit/s, 10 ms there and back, a bandwidth-delay product of queue.
  constexpr uint64_t kRate = 250'000'000 / 8;
  const Port link{false, kRate / 100, 0.01, kRate, 5 * kMillisecond, 8 << 20};
  Bottleneck world("pauses", "tolerant", 1, link, seed());
  world.start(0);
  world.run(2'000 * kMillisecond);
  double lost = 0;
  double utilisation = 0;
  constexpr int kTurns = 10;
  for (int turn = 0; turn < kTurns; ++turn) {
    world.stop(0);
    world.run(1'000 * kMillisecond);
    ASSERT_TRUE(world.idle(0));
    world.start(0);
    const Period period = world.run(200 * kMillisecond);
    lost += period.lost / kTurns;
    utilisation += period.utilisation() / kTurns;
  }
  std::printf("tolerant, 250 Mbit/s, 10 ms, 1%% at random, after pauses: utilisation %.3f, lost %.2f%%\n", utilisation,
              100 * lost);
  EXPECT_LE(lost, 0.03);
  EXPECT_GE(utilisation, 0.92) << "bursts into the queue cost more";
}

TEST(RoceCongestionLoss, GoBackN_OnALossyLink_GetsLessGoodput) {
  // docs/design/congestion.md has other rates too.
  const char* chosen = std::getenv("NUPA_SIM_MBIT");
  const uint64_t mbit = chosen == nullptr ? 1'000 : std::strtoull(chosen, nullptr, 10);
  for (const std::string_view congestion : {"tolerant", "none", "cubic", "swift", "dcqcn"}) {
    std::array<std::array<double, 2>, 2> found;
    for (const bool standard : {false, true})
      for (const bool lossy : {false, true})
        found[standard][lossy] =
            far_utilisation(congestion, far_link(mbit, lossy ? 0.01 : 0, standard ? 0 : kNupaMark));
    std::printf("%-8s, %lu Mbit/s, 1 ms: selective repeat %.3f, with 1%% loss %.3f; go-back-N %.3f, %.3f\n",
                congestion.data(), mbit, found[0][0], found[0][1], found[1][0], found[1][1]);
    if (congestion == "swift") {
      EXPECT_LT(found[1][1], found[0][1]);
    }
  }
}

}  // namespace
}  // namespace nupa::roce::testing
