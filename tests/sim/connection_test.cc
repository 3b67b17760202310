// SPDX-License-Identifier: Apache-2.0
// Random programs that connect to each other over a random network, by seed. NUPA_SIM_RUNS and NUPA_SIM_SEED choose
// how many and from where; a seed that fails is named and replays alone.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "connection_world.h"

namespace nupa::cm::testing {
namespace {

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 0);
}

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kProgramsEnd = 5 * kSecond;
constexpr uint64_t kServices[] = {0x1234, kIpService + 5, kIpService + 6, 0x9900 + 3};

/// What the runs came to: a simulation in which nothing gets through proves little.
struct Tally {
  uint64_t event_counts[9] = {};
  uint64_t attributes[16] = {};
  uint64_t worlds = 0;
  uint64_t pairs = 0;
  uint64_t one_sided = 0;  ///< as many messages were lost as an end sends
  uint64_t deaths = 0;
};

class Play {
 public:
  explicit Play(uint64_t seed) : world_(2 + seed % 5, seed), random_(seed ^ 0x9e3779b97f4a7c15) {
    // A world in which nothing goes wrong, one whose network is bad, one whose peers are, too.
    calm_ = below(4) == 0;
    hostile_ = !calm_ && below(4) == 0;
    world_.near_hosts = below(2) == 0;
    world_.common.intact = !hostile_;
    if (!calm_) {
      constexpr double kLosses[] = {0, 0.01, 0.05, 0.1, 0.3};
      world_.faults.loss = kLosses[below(5)];
      world_.faults.duplication = below(2) * 0.1;
      world_.faults.delay = below(2) * 0.1;
      world_.faults.spike_ns = below(2) == 0 ? 100'000'000 : 3 * kSecond;
      world_.faults.corruption = hostile_ ? 0.05 : 0;
      mortal_ = below(3) == 0;
    }
    slow_ = !calm_ && below(3) == 0;
    world_.on_start = [this](size_t host) { begin(host); };
    for (size_t host = 0; host < world_.count(); ++host) begin(host);
    for (uint64_t deaths = mortal_ ? 1 + below(2) : 0; deaths > 0; --deaths) plan_death();
    for (uint64_t forged = hostile_ ? 50 : 0; forged > 0; --forged)
      world_.plan(time(kProgramsEnd), [this] { forge(); });
  }

  void run(Tally* tally) {
    world_.run(kProgramsEnd);
    world_.faults = {};
    world_.run();
    check_outcomes(tally);
    if (calm_) require(world_.repeats == 0, "a network that loses nothing needs no repeat");
    // Half of what is connected disconnects, and the other half lets go.
    for_each([&](size_t host, uint64_t owner, const Record& record) {
      if (record.is_up() && below(2) == 0) world_.at(host).disconnect(owner, world_.now);
    });
    world_.run();
    for_each([&](size_t, uint64_t, const Record& record) {
      if (record.disconnecting && !record.refused && !record.released)
        require(record.count(Event::kDisconnected) == 1, "disconnect() comes to its end");
      require(record.count(Event::kDisconnected) == record.count(Event::kTimeWaitExit) || record.released,
              "time wait comes to its end");
    });
    for_each([&](size_t host, uint64_t owner, const Record& record) {
      if (record.role != Role::kListener && !record.released) world_.at(host).release(owner, world_.now);
    });
    world_.run();
    uint64_t calls = 0;
    for (size_t host = 0; host < world_.count(); ++host) {
      if (!world_.alive(host)) continue;
      calls += world_.at(host).records.size();
      const ConnectionEngine& engine = world_.at(host).engine;
      require(engine.connections() == 0, "no connection is left");
      require(engine.deadline() == INT64_MAX && engine.entries() == 0, "nothing is left of connections");
    }
    require(world_.sent < 200 * (calls + world_.dead.size() + 50), "the number of messages is bounded");
    for (size_t i = 0; i < 16; ++i) tally->attributes[i] += world_.attributes[i];
    tally->deaths += world_.deaths;
    ++tally->worlds;
  }

  World& world() { return world_; }

 private:
  static void require(bool holds, const char* rule) {
    if (!holds) throw std::logic_error(rule);
  }
  uint64_t below(uint64_t bound) { return random_() % bound; }
  int64_t time(int64_t bound) { return static_cast<int64_t>(below(static_cast<uint64_t>(bound))); }
  /// How long a program thinks. In a calm world less than its peers wait.
  int64_t thought() {
    if (slow_ && below(4) == 0) return time(30 * kSecond);
    return time(below(2) == 0 && !calm_ ? 300'000'000 : 5'000'000);
  }
  template <class Do>
  void for_each(Do visit) {
    for (size_t host = 0; host < world_.count(); ++host) {
      if (!world_.alive(host)) continue;
      for (const auto& [owner, record] : std::map(world_.at(host).records)) visit(host, owner, record);
    }
  }

  /// A program starts. It is done when programs end.
  void begin(size_t host) {
    Program& program = world_.at(host);
    program.after = [this, host](uint64_t owner, Event event) { happened(host, owner, event); };
    if (!calm_) program.admits = [this] { return below(4) != 0; };
    const int64_t left = 1'000'000'000 + kProgramsEnd - world_.now;
    if (left <= 0) return;
    for (const uint64_t service : kServices) {
      if (below(4) == 0) continue;
      at(host, calm_ ? 0 : time(left / 8), [this, host, service] { listen(host, service); });
    }
    for (uint64_t connects = 2 + below(10); connects > 0; --connects)
      at(host, calm_ ? 1 + time(left) : time(left), [this, host] { connect(host); });
    for (uint64_t asks = below(3); asks > 0; --asks)
      at(host, calm_ ? 1 + time(left) : time(left), [this, host] { ask_datagram(host); });
  }
  /// In this life of the host's.
  void at(size_t host, int64_t after, std::function<void()> what) {
    world_.plan(after, [this, host, life = world_.life(host), what = std::move(what)] {
      if (world_.alive(host) && world_.life(host) == life) what();
    });
  }

  void listen(size_t host, uint64_t service) {
    ListenerAddress address;
    address.service_id = service;
    if (service >> 24 == kIpService >> 24 && below(2) == 0) {
      address.any_address = false;
      address.address = World::gid_of(host);
    } else if (below(4) == 0) {
      address.mask = ~uint64_t{0x7};
    }
    const uint64_t owner = world_.at(host).listen(address);
    if (!calm_ && below(3) == 0) at(host, time(2 * kSecond), [this, host, owner] { world_.at(host).unlisten(owner); });
  }
  void connect(size_t host) {
    ConnectionRequest request;
    request.service_id = kServices[below(4)];
    request.remote_response_timeout = static_cast<uint8_t>(12 + below(5));
    request.local_response_timeout = static_cast<uint8_t>(12 + below(5));
    request.max_cm_retries = static_cast<uint8_t>(below(16));
    request.path.ack_timeout = static_cast<uint8_t>(8 + below(8));
    const size_t to = below(world_.count());  // itself, too
    const uint64_t owner = world_.at(host).connect(request, world_.way(host, to), world_.now);
    sometimes_release(host, owner, 6);
  }
  void ask_datagram(size_t host) {
    DatagramRequest request;
    request.service_id = kServices[below(4)];
    request.response_timeout = static_cast<uint8_t>(12 + below(5));
    request.max_cm_retries = static_cast<uint8_t>(below(16));
    const Way way = world_.way(host, below(world_.count()));
    sometimes_release(host, world_.at(host).ask_datagram(request, way, world_.now), 6);
  }
  void sometimes_release(size_t host, uint64_t owner, uint64_t one_in) {
    if (below(one_in) != 0) return;
    at(host, time(below(2) == 0 ? 1'000'000 : 3 * kSecond), [this, host, owner] { release(host, owner); });
  }
  void release(size_t host, uint64_t owner) {
    if (!world_.at(host).records.at(owner).released) world_.at(host).release(owner, world_.now);
  }
  /// A call, some time after an event, unless the program has let go.
  template <class Call>
  void then(size_t host, uint64_t owner, Call call) {
    at(host, thought(), [this, host, owner, call] {
      if (!world_.at(host).records.at(owner).released) call(world_.at(host));
    });
  }

  void happened(size_t host, uint64_t owner, Event event) {
    const int64_t& now = world_.now;
    switch (event) {
      case Event::kRequest:
        if (below(5) == 0) return then(host, owner, [&now, owner](Program& program) { program.reject(owner, now); });
        then(host, owner, [&now, owner](Program& program) { program.accept(owner, now); });
        sometimes_release(host, owner, 6);
        if (below(8) == 0) then(host, owner, [&now, owner](Program& program) { program.disconnect(owner, now); });
        if (below(12) == 0) then(host, owner, [&now, owner](Program& program) { program.reject(owner, now); });
        if (!calm_ && below(8) == 0) then(host, owner, [this, owner](Program& program) { note_data(program, owner); });
        return;
      case Event::kDatagramRequest:
        if (below(4) == 0) return then(host, owner, [&now, owner](Program& program) { program.reject(owner, now); });
        then(host, owner, [&now, owner](Program& program) { program.answer_datagram(owner, now); });
        return sometimes_release(host, owner, 6);
      case Event::kReply:
        if (below(8) == 0) return then(host, owner, [&now, owner](Program& program) { program.reject(owner, now); });
        then(host, owner, [&now, owner](Program& program) { program.establish(owner, now); });
        if (below(3) == 0) then(host, owner, [&now, owner](Program& program) { program.disconnect(owner, now); });
        return sometimes_release(host, owner, 6);
      case Event::kEstablished:
        if (below(3) == 0) then(host, owner, [&now, owner](Program& program) { program.disconnect(owner, now); });
        return sometimes_release(host, owner, 6);
      default:
        return sometimes_release(host, owner, 2);
    }
  }

  /// Data comes, which a peer sends that is connected.
  void note_data(Program& program, uint64_t owner) {
    const Record* peer = world_.record(program.records.at(owner).peer);
    if (peer != nullptr && peer->established && peer->peer == owner) program.note_established(owner);
  }
  void plan_death() {
    world_.plan(time(kProgramsEnd), [this] {
      const size_t host = below(world_.count());
      if (!world_.alive(host)) return;
      if (below(2) == 0) world_.at(host).release_all(world_.now);
      const uint64_t life = world_.life(host);
      world_.kill(host);
      for (size_t other = 0; other < world_.count(); ++other) {
        if (other == host || below(4) == 0) continue;
        at(other, time(kSecond), [this, other, host, life] {
          world_.at(other).engine.peer_exited(static_cast<uint32_t>(host + 1), life, world_.now);
        });
      }
      if (below(2) == 0) world_.plan(time(kSecond), [this, host] { world_.start(host); });
    });
  }
  /// A message that was on its way lately, elsewhere or with another content.
  void forge() {
    if (world_.recent.empty()) return;
    Message message = world_.recent[below(world_.recent.size())];
    const auto mix = [&](size_t first, size_t bytes) {
      const Message& other = world_.recent[below(world_.recent.size())];
      std::copy_n(other.mad.begin() + static_cast<ptrdiff_t>(first), bytes,
                  message.mad.begin() + static_cast<ptrdiff_t>(first));
    };
    switch (below(6)) {
      case 0:
        message.mad[17] = static_cast<std::byte>(0x10 + below(11));
        break;
      case 1:
        mix(24, 4);
        break;
      case 2:
        mix(28, 4);
        break;
      case 3:
        mix(8, 8);
        break;
      case 4:  // back to its sender, as if it were the receiver's
        std::swap(message.from, message.to);
        message.from_life = world_.life(message.from);
        std::swap_ranges(message.mad.begin() + 24, message.mad.begin() + 28, message.mad.begin() + 28);
        message.mad[17] = static_cast<std::byte>(0x10 + below(11));
        break;
      default:
        message.mad[below(256)] = static_cast<std::byte>(below(256));
        break;
    }
    world_.post(message);
  }

  /// Nothing is on its way, and no timer runs: what must have come of it all.
  void check_outcomes(Tally* tally) {
    for_each([&](size_t, uint64_t owner, const Record& record) {
      for (size_t i = 0; i < 9; ++i) tally->event_counts[i] += record.event_counts[i];
      if (record.asks() && !record.released) require(record.has_answer(), "every question has an answer");
      if (record.role == Role::kAsker && !record.released)
        require(record.count(Event::kDatagramReply) + record.count(Event::kUnreachable) == 1, "one answer");
      if (calm_) require(record.count(Event::kUnreachable) == 0, "nothing is unreachable when nothing is lost");
      if (record.is_up() && !hostile_) check_pair(owner, record, tally);
    });
  }
  /// One end is connected: so is the other, unless all that it has said since was lost.
  void check_pair(uint64_t owner, const Record& record, Tally* tally) {
    const Record* peer = world_.record(record.peer);
    require(peer != nullptr, "who is connected has a peer");
    size_t host = 0;
    if (world_.record(record.peer, &host) == nullptr || world_.dead.count(record.peer) != 0) return;  // it died
    ++tally->pairs;
    if (peer->is_up() && peer->peer == owner) return;
    const uint32_t low = std::min(record.id, peer->id);
    const uint32_t lost = world_.lost[{low, std::max(record.id, peer->id)}];
    const uint32_t repeats = std::min<uint32_t>({record.max_retries, peer->max_retries, kOrphanRetries});
    require(lost > repeats, "both ends are connected, or none");
    ++tally->one_sided;
  }

  World world_;
  std::mt19937_64 random_;
  bool calm_ = false;
  bool hostile_ = false;
  bool mortal_ = false;
  bool slow_ = false;
};

void trace(World& world) {
  world.watch = [&world](const Message& message) {
    const std::optional<Envelope> envelope = read_envelope(message.mad);
    if (!envelope) return;
    std::printf("%11ld us %zu to %zu attribute %02x ids %08x %08x transaction %lx\n", world.now / 1000, message.from,
                message.to, static_cast<unsigned>(envelope->attribute), envelope->local_id, envelope->remote_id,
                envelope->transaction);
  };
}

TEST(ConnectionRandom, RandomPrograms_EventsFollowTheRulesAndNothingIsLeft) {
  const uint64_t first = number_from("NUPA_SIM_SEED", 1);
  const uint64_t runs = number_from("NUPA_SIM_RUNS", 3000);
  Tally tally;
  for (uint64_t seed = first; seed < first + runs; ++seed) {
    Play play(seed);
    if (std::getenv("NUPA_SIM_TRACE") != nullptr) trace(play.world());
    try {
      play.run(&tally);
    } catch (const std::logic_error& broken) {
      FAIL() << broken.what() << ", at " << play.world().now << " ns; seed " << seed
             << "; replay: NUPA_SIM_SEED=" << seed << " NUPA_SIM_RUNS=1";
    }
  }
  static constexpr const char* kEvents[] = {"requests",     "datagram requests", "replies",
                                            "established",  "rejected",          "unreachable",
                                            "disconnected", "time wait exits",   "datagram replies"};
  for (size_t i = 0; i < 9; ++i) std::printf("%lu %s, ", tally.event_counts[i], kEvents[i]);
  std::printf("%lu deaths, %lu ends up, of which %lu alone\n", tally.deaths, tally.pairs, tally.one_sided);
  if (runs < 500) return;
  for (size_t i = 0; i < 9; ++i) EXPECT_GT(tally.event_counts[i], 0u) << kEvents[i];
  for (size_t i = 0; i < 9; ++i) EXPECT_GT(tally.attributes[i], 0u) << "attribute " << i;
  EXPECT_GT(tally.pairs, 100 * tally.one_sided);
}

}  // namespace
}  // namespace nupa::cm::testing
