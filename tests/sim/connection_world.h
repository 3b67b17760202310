// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Hosts with programs that connect to each other, the network between them, and the time.
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "base/gid.h"
#include "cm/engine/times.h"
#include "connection_program.h"

namespace nupa::cm::testing {

/// What one message may be answered by at once. Nothing answers itself over others: no two ends can keep each other
/// busy.
inline bool answers(Attribute question, Attribute answer) {
  const auto any = [answer](std::initializer_list<Attribute> list) {
    return std::find(list.begin(), list.end(), answer) != list.end();
  };
  switch (question) {
    case Attribute::kReq:
      return any({Attribute::kRep, Attribute::kMra, Attribute::kRej, Attribute::kDreq});
    case Attribute::kRep:
      return any({Attribute::kRtu, Attribute::kMra, Attribute::kRej, Attribute::kDreq});
    case Attribute::kRtu:
      return any({Attribute::kRej});
    case Attribute::kDreq:
      return any({Attribute::kDrep});
    case Attribute::kLap:
      return any({Attribute::kApr});
    case Attribute::kSidrReq:
      return any({Attribute::kSidrRep});
    default:
      return false;
  }
}

struct Message {
  size_t from = 0;
  uint64_t from_life = 0;
  size_t to = 0;
  Mad mad{};
};

class World {
 public:
  struct Faults {
    double loss = 0;
    double duplication = 0;
    double corruption = 0;
    double delay = 0;  ///< of a message that is overtaken
    int64_t delay_ns = 100'000;
    int64_t spread_ns = 100'000;
    int64_t spike_ns = 100'000'000;
  };
  struct Host {
    std::unique_ptr<MadOutput> output;
    std::unique_ptr<Program> program;  ///< none: dead
    uint64_t life = 0;
  };

  World(size_t hosts, uint64_t seed) : random(seed), hosts_(hosts) {
    common.broken = [](const std::string& rule) { throw std::logic_error(rule); };
    for (size_t i = 0; i < hosts; ++i) start(i);
  }

  // Hosts.

  void start(size_t index) {
    Host& host = hosts_[index];
    ++host.life;
    host.output = std::make_unique<Output>(*this, index);
    const auto prefix = static_cast<uint32_t>(index + 1) << ConnectionEngine::kIdBits;
    // Another life has other ids: a host draws its seed anew.
    host.program = std::make_unique<Program>(common, prefix, random(), *host.output);
    if (on_start) on_start(index);
  }
  void kill(size_t index) {
    keep(index);
    hosts_[index].program.reset();
    ++deaths;
  }
  bool alive(size_t index) const { return hosts_[index].program != nullptr; }
  Program& at(size_t index) { return *hosts_[index].program; }
  size_t count() const { return hosts_.size(); }
  uint64_t life(size_t index) const { return hosts_[index].life; }

  static Gid gid_of(size_t index) { return base::ipv4_gid(10, 0, 0, static_cast<uint8_t>(index + 1)); }
  /// Pairs of hosts that are processes of one host.
  bool are_near(size_t a, size_t b) const { return near_hosts && a / 2 == b / 2; }
  static constexpr uint16_t kPort = 4791;
  Way way(size_t from, size_t to) const {
    Way way;
    way.local = gid_of(from);
    way.remote = gid_of(to);
    way.port = kPort;
    way.of_nupa = true;
    if (!are_near(from, to)) return way;
    way.slot = static_cast<uint32_t>(to + 1);
    way.instance = hosts_[to].life;
    return way;
  }

  // The network.

  void send(size_t from, const Way& way, const Mad& mad) {
    const size_t to = way.remote.raw[15] - 1u;
    if (to >= hosts_.size()) common.broken("messages have a receiver");
    const std::optional<Envelope> envelope = read_envelope(mad);
    if (!envelope) return common.broken("messages can be read");
    ++sent;
    ++attributes[static_cast<size_t>(envelope->attribute) - static_cast<size_t>(Attribute::kReq)];
    if (!seen_.insert({from, mad}).second) ++repeats;
    if (receiving_) {
      if (!answers(*receiving_, envelope->attribute)) common.broken("a message has an answer that is for it");
      if (++answers_ > 3) common.broken("a message has an answer for each connection that it ends, and its own");
    }
    Message message{from, hosts_[from].life, to, mad};
    recent.push_back(message);
    if (recent.size() > 32) recent.erase(recent.begin());
    const bool gone = way.slot != 0 && way.instance != hosts_[to].life;
    if (gone || chance(faults.loss) || (drops && drops(message, *envelope))) {
      const uint32_t low = std::min(envelope->local_id, envelope->remote_id);
      ++lost[{low, std::max(envelope->local_id, envelope->remote_id)}];
      ++lost[{0, envelope->local_id}];
      return;
    }
    if (chance(faults.corruption)) {
      message.mad[random() % message.mad.size()] ^= static_cast<std::byte>(1u << random() % 8);
      if (common.intact) common.broken("worlds whose messages are changed say so");
    }
    post(message);
    while (chance(faults.duplication)) post(message);
  }
  void post(const Message& message) {
    int64_t when = now + faults.delay_ns + static_cast<int64_t>(random() % static_cast<uint64_t>(faults.spread_ns));
    if (chance(faults.delay)) when += static_cast<int64_t>(random() % static_cast<uint64_t>(faults.spike_ns));
    wire_.emplace(when, message);
  }
  void deliver(const Message& message) {
    Host& host = hosts_[message.to];
    if (host.program == nullptr) return;
    Way from = way(message.to, message.from);
    if (from.slot != 0) from.instance = message.from_life;
    if (watch) watch(message);
    const std::optional<Envelope> envelope = read_envelope(message.mad);
    receiving_ = envelope ? std::optional(envelope->attribute) : std::nullopt;
    answers_ = 0;
    if (host.program->engine.receive(message.mad, from, now) != envelope.has_value())
      common.broken("what can be read is taken");
    receiving_.reset();
  }

  // Time.

  void plan(int64_t after, std::function<void()> what) { plans_.emplace(now + after, std::move(what)); }
  int64_t next() const {
    int64_t when = INT64_MAX;
    if (!wire_.empty()) when = std::min(when, wire_.begin()->first);
    if (!plans_.empty()) when = std::min(when, plans_.begin()->first);
    for (const Host& host : hosts_)
      if (host.program) when = std::min(when, host.program->engine.deadline());
    return when;
  }
  /// False: nothing will ever happen.
  bool step() {
    const int64_t when = next();
    if (when == INT64_MAX) return false;
    now = std::max(now, when);
    if (++steps > 2'000'000) common.broken("it comes to an end");
    while (!wire_.empty() && wire_.begin()->first <= now) {
      const Message message = wire_.begin()->second;
      wire_.erase(wire_.begin());
      deliver(message);
    }
    while (!plans_.empty() && plans_.begin()->first <= now) {
      const std::function<void()> what = std::move(plans_.begin()->second);
      plans_.erase(plans_.begin());
      what();
    }
    for (Host& host : hosts_) {
      if (!host.program) continue;
      host.program->engine.on_timer(now);
      if (host.program->engine.deadline() <= now) common.broken("a timer that went off is set anew");
    }
    return true;
  }
  void run(int64_t duration = INT64_MAX / 4) {
    const int64_t until = now + duration;
    while (next() <= until && step()) {
    }
    if (duration < INT64_MAX / 4) now = until;
  }

  /// The record of an owner, dead hosts' too; nullptr: there is none.
  const Record* record(uint64_t owner, size_t* host = nullptr) const {
    for (size_t i = 0; i < hosts_.size(); ++i) {
      if (!hosts_[i].program) continue;
      const auto found = hosts_[i].program->records.find(owner);
      if (found == hosts_[i].program->records.end()) continue;
      if (host != nullptr) *host = i;
      return &found->second;
    }
    const auto found = dead.find(owner);
    return found == dead.end() ? nullptr : &found->second;
  }
  bool chance(double probability) {
    return probability > 0 && static_cast<double>(random() >> 11) * 0x1p-53 < probability;
  }

  std::mt19937_64 random;
  Common common;
  Faults faults;
  bool near_hosts = false;
  int64_t now = 1'000'000'000;
  uint64_t sent = 0;
  uint64_t repeats = 0;
  uint64_t steps = 0;
  uint64_t deaths = 0;
  uint64_t attributes[16] = {};
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> lost;  ///< by both ids, the lower first
  std::vector<Message> recent;                             ///< what forged ones look like
  std::map<uint64_t, Record> dead;                         ///< records of programs that died
  std::function<bool(const Message&, const Envelope&)> drops;
  std::function<void(const Message&)> watch;
  std::function<void(size_t)> on_start;

 private:
  class Output final : public MadOutput {
   public:
    Output(World& world, size_t index) : world_(world), index_(index) {}
    void send(const Way& way, const Mad& mad) override { world_.send(index_, way, mad); }

   private:
    World& world_;
    size_t index_;
  };
  void keep(size_t index) {
    for (const auto& [owner, record] : hosts_[index].program->records) dead[owner] = record;
  }

  std::vector<Host> hosts_;
  std::multimap<int64_t, Message> wire_;
  std::multimap<int64_t, std::function<void()>> plans_;
  std::set<std::pair<size_t, Mad>> seen_;
  std::optional<Attribute> receiving_;
  uint32_t answers_ = 0;
};

}  // namespace nupa::cm::testing
