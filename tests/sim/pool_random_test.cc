// SPDX-License-Identifier: Apache-2.0
// Random requests and datagrams between hosts that share a pool and have no coherent caches, by seed. Processes are
// killed at any instruction, hosts stand still or lose their power and start again. Each message arrives exactly once,
// in order and whole, nothing completes before its data, each request ends, and no block is left in use at the end.
// NUPA_SIM_RUNS and NUPA_SIM_SEED choose how many (a quarter of that number) and from where; a seed that fails is named
// and replays alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "pool_traffic.h"

namespace nupa::pool::sim {
namespace {

constexpr int64_t kUs = 1'000;
constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;
/// After this time a request that has not ended never will.
constexpr int64_t kPatienceNs = 60 * kSecond;

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 0);
}
/// A run takes as long as four of a link's.
uint64_t number_of_runs(uint64_t otherwise) {
  return std::getenv("NUPA_SIM_RUNS") == nullptr ? otherwise
                                                 : std::max<uint64_t>(from_environment("NUPA_SIM_RUNS", 0) / 4, 1);
}

/// What the runs came to: a simulation in which nothing gets through proves little.
struct Tally {
  uint64_t requests = 0;
  uint64_t succeeded = 0;
  uint64_t failed_ends = 0;
  uint64_t datagrams = 0;
  uint64_t arrived = 0;
  uint64_t kills = 0;
  uint64_t power_cuts = 0;
  uint64_t pauses = 0;
  uint64_t destroyed = 0;
  uint64_t restarts = 0;
};

class Run {
 public:
  Run(uint64_t seed, bool disturbs, Tally& tally)
      : disturbs_(disturbs), tally_(tally), world_(options_of(seed), seed) {}

  /// Returns the fault; empty: none.
  std::string run() {
    for (uint16_t host = 0; host < world_.options().hosts; ++host) start(host);
    if (world_.one_in(4)) start(0);
    if (!wait([this] { return all([](const Process& process) { return process.has_joined(); }); },
              "a join does not end"))
      return world_.fault();
    for (size_t i = 0; i < world_.processes().size(); ++i)
      for (size_t j = 0; j < i; ++j) connect(*world_.processes()[i], *world_.processes()[j]);
    if (disturbs_)
      for (uint64_t number = 1 + world_.below(2); number > 0; --number) plan_disturbance();
    if (!wait([this] { return is_over(); }, "a request does not end")) return world_.fault();
    // What is still on its way arrives.
    const int64_t until = world_.now_ns() + 300 * kMillisecond;
    world_.plan(until, [] {});
    if (!wait([&] { return world_.now_ns() >= until; }, "time stands still")) return world_.fault();
    for (const auto& end : ends_) end->check_at_the_end();
    count();
    for (const auto& process : world_.processes()) process->leave();
    if (!wait([this] { return all([](const Process& process) { return process.has_ended(); }); },
              "an exit does not end"))
      return world_.fault();
    if (!world_.is_clean() && world_.fault().empty()) return "the last processes do not end";
    return world_.fault();
  }

 private:
  static World::Options options_of(uint64_t seed) {
    std::mt19937_64 random(seed ^ 0x6a09e667f3bcc908);
    World::Options options;
    options.hosts = static_cast<uint16_t>(2 + random() % 2);
    options.medium = static_cast<World::Medium>(random() % 3);
    options.evicts = random() % 4 != 0;
    return options;
  }

  template <class Condition>
  bool all(Condition&& condition) const {
    return std::all_of(world_.processes().begin(), world_.processes().end(), [&](const auto& process) {
      return process->has_ended() || process->is_dead() || condition(*process);
    });
  }
  /// Lets time pass until the condition holds. False: it does not, and there is a fault.
  template <class Condition>
  bool wait(Condition&& condition, const char* what) {
    const int64_t limit = world_.now_ns() + kPatienceNs;
    uint32_t looks = 0;
    const bool is_there = world_.run([&] {
      constexpr uint32_t kEvery = 16;
      return (++looks % kEvery == 0 && condition()) || world_.now_ns() > limit;
    });
    if (!is_there && world_.fault().empty()) world_.fault("too many instructions");
    if (!world_.fault().empty()) return false;
    if (condition()) return true;
    std::string text = what;
    for (const auto& end : ends_)
      if (!end->is_idle()) text += "; " + end->describe();
    world_.fault(text);
    return false;
  }
  bool is_over() {
    return !world_.fibers().has_plans() && all([](const Process& process) { return !process.has_work(); }) &&
           std::all_of(ends_.begin(), ends_.end(), [](const auto& end) { return end->is_idle(); });
  }

  int64_t soon(int64_t within) {
    return world_.now_ns() + static_cast<int64_t>(world_.below(static_cast<uint64_t>(within)));
  }

  void start(uint16_t host) {
    Process& process = world_.start(host);
    auto& end = *datagram_ends_.emplace_back(std::make_unique<DatagramEnd>(process, next_index_++));
    process.at(world_.now_ns(), [&end] {
      end.receives = 1000;
      end.open();
    });
  }
  DatagramEnd* datagram_end(const Process& process) {
    for (const auto& end : datagram_ends_)
      if (&end->process() == &process) return end.get();
    return nullptr;
  }

  /// Connects two processes with one or two pairs of queue pairs, and lets them send.
  void connect(Process& one, Process& other) {
    if (one.is_dead() || other.is_dead() || one.has_ended() || other.has_ended()) return;
    static constexpr int64_t kWindows[] = {20 * kUs, 300 * kUs, 5 * kMillisecond, 500 * kMillisecond};
    const int64_t window = kWindows[world_.below(std::size(kWindows))];
    for (uint64_t number = 1 + world_.below(2); number > 0; --number) {
      const QpType type = world_.one_in(4) ? QpType::kUc : QpType::kRc;
      auto& a = *ends_.emplace_back(std::make_unique<ConnectionEnd>(one, type, next_index_++));
      auto& b = *ends_.emplace_back(std::make_unique<ConnectionEnd>(other, type, next_index_++));
      a.set_peer(b);
      b.set_peer(a);
      QpAttr attr;
      attr.timeout = 14;
      attr.retry_cnt = 7;
      attr.rnr_retry = core::kRnrForEver;
      attr.max_rd_atomic = attr.max_dest_rd_atomic = static_cast<uint8_t>(1 + world_.below(4));
      attr.sq_psn = static_cast<uint32_t>(0xfff0 + world_.below(16));
      attr.rq_psn = static_cast<uint32_t>(world_.below(1 << 16));
      QpAttr other_attr = attr;
      std::swap(other_attr.sq_psn, other_attr.rq_psn);
      plan_end(a, attr, window, b);
      plan_end(b, other_attr, window, a);
    }
    for (uint64_t number = world_.below(12); number > 0; --number) {
      const bool forth = world_.one_in(2);
      Process& from = forth ? one : other;
      DatagramEnd& sender = *datagram_end(from);
      const DatagramEnd& receiver = *datagram_end(forth ? other : one);
      from.at(soon(window), [this, &sender, &receiver] {
        if (world_.one_in(4)) return sender.send_mad(receiver);
        sender.send(receiver);
        ++tally_.datagrams;
      });
    }
  }
  void plan_end(ConnectionEnd& end, const QpAttr& attr, int64_t window, ConnectionEnd& peer) {
    const int64_t begins = soon(200 * kUs);
    end.process().at(begins, [&end, attr] { end.connect(attr); });
    const uint64_t requests = world_.below(world_.one_in(3) ? 60 : 12);
    for (uint64_t i = 0; i < requests; ++i)
      end.process().at(begins + 1 + static_cast<int64_t>(world_.below(static_cast<uint64_t>(window))),
                       [&end] { end.post_random(); });
    // Receives come late sometimes: the sender has to wait for them.
    constexpr uint32_t kPosts = 4;
    for (uint32_t i = 0; i < kPosts; ++i)
      peer.process().at(soon(2 * window),
                        [&peer, requests] { peer.post_receives(static_cast<uint32_t>(requests / kPosts + 1)); });
  }

  void plan_disturbance() {
    static constexpr int64_t kTimes[] = {100 * kUs, 400 * kUs, 5 * kMillisecond, 600 * kMillisecond};
    const int64_t when = soon(kTimes[world_.below(std::size(kTimes))]);
    switch (world_.below(6)) {
      case 0:
        return world_.plan(when, [this] { kill(); });
      case 1:
        return world_.plan(when, [this] { cut_power(); });
      case 2:
        return world_.plan(when, [this] { pause(100 * kMillisecond, 1'200 * kMillisecond, false); });
      case 3:
        return world_.plan(when, [this] { pause(3 * kSecond, 6 * kSecond, true); });
      case 4:
        return world_.plan(when, [this] { any_process().leave(); });
      default:
        return world_.plan(when, [this] { destroy(kTries); });
    }
  }
  Process& any_process() { return *world_.processes()[world_.below(world_.processes().size())]; }
  void kill() {
    ++tally_.kills;
    Process& process = any_process();
    world_.kill(process, world_.below(600));
    if (world_.one_in(2)) restart(process.host());
  }
  void cut_power() {
    ++tally_.power_cuts;
    const uint16_t host = any_process().host();
    world_.power_off(host);
    if (world_.one_in(2)) restart(host);
  }
  void pause(int64_t least, int64_t most, bool is_long) {
    ++tally_.pauses;
    const uint16_t host = any_process().host();
    const int64_t until = soon(most - least) + least;
    if (is_long)
      for (const auto& process : world_.processes())
        if (process->host() == host) process->disturb();
    world_.pause(host, until);
  }
  /// Destroys a queue pair whose peer waits for a response of it, if there is one within so many looks.
  static constexpr uint32_t kTries = 200;
  void destroy(uint32_t tries) {
    if (ends_.empty()) return;
    ConnectionEnd& end = *ends_[world_.below(ends_.size())];
    if (tries > 0 && !end.owes_response())
      return world_.plan(world_.now_ns() + kUs, [this, tries] { destroy(tries - 1); });
    ++tally_.destroyed;
    end.process().at(world_.now_ns(), [&end] { end.destroy(); });
  }
  /// Another process of the host, which connects to the others when it has joined.
  void restart(uint16_t host) {
    const int64_t when = soon(world_.one_in(2) ? kSecond : 10 * kMillisecond);
    world_.plan(when, [this, host] {
      ++tally_.restarts;
      start(host);
      Process& process = *world_.processes().back();
      process.at(world_.now_ns(), [this, &process] {
        for (const auto& other : world_.processes())
          if (other.get() != &process && other->has_joined()) connect(process, *other);
      });
    });
  }

  void count() {
    for (const auto& end : ends_) {
      tally_.requests += end->posted();
      tally_.succeeded += end->succeeded();
      tally_.failed_ends += end->has_failed();
    }
    for (const auto& end : datagram_ends_) tally_.arrived += end->received();
  }

  const bool disturbs_;
  Tally& tally_;
  std::vector<std::unique_ptr<ConnectionEnd>> ends_;
  std::vector<std::unique_ptr<DatagramEnd>> datagram_ends_;
  uint32_t next_index_ = 1;
  World world_;
};

Tally run_many(uint64_t runs, bool disturbs) {
  const uint64_t first = from_environment("NUPA_SIM_SEED", 1);
  runs = number_of_runs(runs);
  Tally tally;
  for (uint64_t seed = first; seed < first + runs; ++seed) {
    const std::string fault = Run(seed, disturbs, tally).run();
    if (fault.empty()) continue;
    ADD_FAILURE() << fault << "\nseed " << seed << "; replay: NUPA_SIM_SEED=" << seed << " NUPA_SIM_RUNS=1";
    return tally;
  }
  std::printf(
      "%lu of %lu requests succeeded, %lu queue pairs failed, %lu of %lu datagrams arrived; %lu kills, %lu power cuts, "
      "%lu pauses, %lu queue pairs destroyed, %lu restarts\n",
      tally.succeeded, tally.requests, tally.failed_ends, tally.arrived, tally.datagrams, tally.kills, tally.power_cuts,
      tally.pauses, tally.destroyed, tally.restarts);
  return tally;
}

/// With fewer events than these the shares below can be anything.
constexpr uint64_t kFewRuns = 20;

TEST(PoolRandom, HostsThatGoOn_AllArrives) {
  const Tally tally = run_many(120, false);
  if (::testing::Test::HasFailure()) return;
  EXPECT_EQ(tally.requests, tally.succeeded);
  EXPECT_EQ(0u, tally.failed_ends);
  if (tally.datagrams < kFewRuns) return;
  EXPECT_GT(tally.arrived, tally.datagrams / 2) << "one is lost only if the ring is full";
}

TEST(PoolRandom, HostsThatStop_EachRequestEndsAsSpecified) {
  const Tally tally = run_many(120, true);
  if (::testing::Test::HasFailure() || tally.kills < kFewRuns) return;
  EXPECT_GT(tally.succeeded, tally.requests / 4);
  EXPECT_GT(tally.failed_ends, 0u);
  EXPECT_GT(tally.restarts, 0u);
  EXPECT_GT(tally.arrived, 0u);
}

}  // namespace
}  // namespace nupa::pool::sim
