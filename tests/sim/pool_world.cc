// SPDX-License-Identifier: Apache-2.0
#include "pool_world.h"

#include <algorithm>
#include <bit>

#include "transport/pool/medium/open_pool.h"

namespace nupa::pool::sim {
namespace {

using Combined = Uncached<model::CombiningModelCpu>;
using Streamed = Flushed<model::StreamingModelCpu>;
using WrittenBack = Flushed<model::ModelCpu>;

constexpr int64_t kMs = 1'000'000;
/// A process that found nothing for so many turns sleeps for longer and longer times, so that runs with long pauses
/// take few turns. nupa-pool could be away as long if its machine were busy.
constexpr uint32_t kIdleTurns = 12;
constexpr uint32_t kMostDoublings = 7;

HeaderLine header_of(const World::Options& options) {
  HeaderLine header;
  header.hosts = options.hosts;
  header.uuid = {1, 2, 3, 4, 5, 6, 7};
  header.bytes = kTerritoriesOffset + options.hosts * World::kTerritoryBytes;
  header.block_bytes = World::kBlockBytes;
  header.ring_lines = options.ring_lines;
  header.records = World::kRecords;
  return header;
}

using SimPolicy = AnyPolicy<Combined, Streamed, WrittenBack>;

SimPolicy policy_of(World::Medium medium) {
  switch (medium) {
    case World::Medium::kCombined:
      return Combined();
    case World::Medium::kStreamed:
      return Streamed();
    case World::Medium::kWrittenBack:
      break;
  }
  return WrittenBack();
}

}  // namespace

/// The pool and the kernel as a process of a simulated host sees them, in place of PoolMemory.
class SimMemory {
 public:
  using Lock = SimLock;
  SimMemory(World& world, const Process& process)
      : world_(world), host_(process.host()), number_(process.number_), boot_(world.hosts_[host_].boot) {
    spec_.name = "simulated";
    spec_.host = host_;
  }

  const Spec& spec() const { return spec_; }
  Caches caches() const { return Caches::kFlushed; }
  Line* lines() const { return world_.memory_.lines(host_); }
  int fd() const { return static_cast<int>(number_); }
  uint64_t file_device() const { return 1; }
  uint64_t file_inode() const { return 1; }
  bool is_lost() const { return false; }
  std::array<uint8_t, 16> boot_id() const {
    std::array<uint8_t, 16> id{};
    id[0] = static_cast<uint8_t>(host_ + 1);
    std::memcpy(&id[8], &boot_, sizeof boot_);
    return id;
  }
  uint64_t random_key() const { return world_.below(UINT64_MAX - (uint64_t{1} << 33)) + (uint64_t{1} << 32); }
  ProcessLine describe_process(uint64_t instance, uint64_t incarnation) const {
    ProcessLine line;
    line.instance = instance;
    line.incarnation = incarnation;
    return line;
  }

 private:
  World& world_;
  const uint16_t host_;
  const uint32_t number_;
  const uint64_t boot_;
  Spec spec_;
};

/// Processes of a simulation look at their channels again and again.
Result<std::unique_ptr<Doorbell>> open_doorbell(const SimMemory&) {
  return fail(ENOTSUP, "a simulation has no doorbell");
}

// ---- locks ----------------------------------------------------------------------------------------------------------

SimLock::SimLock(int process, uint16_t host) : process_(static_cast<uint32_t>(process)), host_(host) {}

bool SimLock::try_lock() {
  uint32_t& holder = World::current().hosts_[host_].lock_holder;
  if (World::current().fibers().is_killed()) return true;
  if (holder != model::Fibers::kNone) return false;
  holder = process_;
  return true;
}

Result<void> SimLock::lock() {
  World& world = World::current();
  while (!try_lock()) world.fibers().sleep_until(world.now_ns() + kMs / 10);
  return {};
}

void SimLock::unlock() {
  uint32_t& holder = World::current().hosts_[host_].lock_holder;
  if (holder == process_) holder = model::Fibers::kNone;
}

bool SimLock::take_record(uint16_t record) {
  uint32_t& holder = World::current().hosts_[host_].record_holders[record];
  if (World::current().fibers().is_killed()) return true;
  if (holder != model::Fibers::kNone && holder != process_) return false;
  holder = process_;
  return true;
}

bool SimLock::is_taken(uint16_t record) {
  const uint32_t holder = World::current().hosts_[host_].record_holders[record];
  return holder != model::Fibers::kNone && holder != process_;
}

// ---- processes ------------------------------------------------------------------------------------------------------

Process::~Process() = default;

void Process::at(int64_t when_ns, std::function<void()> work) {
  works_.emplace(when_ns, std::move(work));
  if (world_.fibers().running() != number_ && !has_ended_) world_.fibers().wake(number_, when_ns);
}

void Process::leave() {
  leaves_ = true;
  if (!has_ended_) world_.fibers().wake(number_, world_.now_ns());
}

void Process::run() {
  pool_ = world_.open_pool(*this);
  Description description;
  description.slots = {slot_};
  description.gids = {pool_->gid_of(host_)};
  auto opened = Engine::open(*pool_, description, &World::clock);
  if (opened) {
    engine_ = std::move(*opened);
    id_ = engine_->self();
    has_joined_ = true;
    // Datagrams that wait for their channels leave, or are dropped, before the end.
    while (!is_dead_ && !(leaves_ && !engine_->keeps_datagrams())) {
      work();
      if (is_dead_) break;
      const bool polls = world_.one_in(4);
      rest(engine_->take_turn(polls ? progress::Receiver::kPoller : progress::Receiver::kThread));
    }
  } else if (!is_dead_) {
    error_ = opened.error().what();
  }
  end();
}

void Process::work() {
  while (!works_.empty() && works_.begin()->first <= world_.now_ns() && !is_dead_) {
    const auto work = std::move(works_.begin()->second);
    works_.erase(works_.begin());
    work();
    idle_turns_ = 0;
  }
}

void Process::rest(bool worked) {
  idle_turns_ = worked ? 0 : idle_turns_ + 1;
  const int64_t now = world_.now_ns();
  int64_t until = std::clamp(engine_->poller().wanted_at(), now + 100, now + kMs);
  if (idle_turns_ > kIdleTurns) {
    const uint32_t doublings = std::min(idle_turns_ - kIdleTurns, kMostDoublings);
    until += static_cast<int64_t>(world_.below(kMs << doublings));
  }
  if (!works_.empty()) until = std::min(until, std::max(works_.begin()->first, now));
  world_.fibers().sleep_until(until);
}

void Process::end() {
  works_.clear();
  if (engine_ != nullptr && !is_dead_) {
    for (const auto& work : last_work) work();
    engine_->finish_turns();
  }
  if (engine_ != nullptr && is_dead_) {
    // As in the child of a fork: this object does not use the pool.
    engine_->before_fork();
    engine_->in_child();
  }
  for (const auto& work : clean_up) work();
  last_work.clear();
  clean_up.clear();
  engine_.reset();
  pool_.reset();
  has_ended_ = true;
  world_.ended(number_);
}

// ---- the world ------------------------------------------------------------------------------------------------------

World::World(const Options& options, uint64_t seed)
    : options_(options),
      geometry_(header_of(options)),
      memory_(seed, static_cast<uint32_t>(lines_of(geometry_.bytes())), options.hosts,
              options.evicts && options.medium != Medium::kCombined),
      hosts_(options.hosts) {
  current_ = this;
  for (HostState& host : hosts_) host.record_holders.fill(model::Fibers::kNone);
  fibers().on_killed = [this](uint32_t number) {
    memory_.complete(number);
    ended(number);
    for (const auto& process : processes_)
      if (process->number_ == number) process->is_dead_ = true;
  };
}

World::~World() {
  for (const auto& process : processes_) process->is_dead_ = true;
  fibers().kill_all();
  processes_.clear();
  current_ = nullptr;
}

void World::ended(uint32_t number) {
  for (HostState& host : hosts_) {
    if (host.lock_holder == number) host.lock_holder = model::Fibers::kNone;
    for (uint32_t& holder : host.record_holders)
      if (holder == number) holder = model::Fibers::kNone;
  }
}

std::unique_ptr<Pool> World::open_pool(Process& process) {
  const PoolClock clock{&World::clock, [](int64_t ns) {
                          World& world = World::current();
                          world.fibers().sleep_until(world.now_ns() + ns);
                        }};
  return std::make_unique<OpenPool<SimPolicy, SimMemory>>(std::make_unique<SimMemory>(*this, process), geometry_,
                                                          policy_of(options_.medium), clock);
}

Process& World::start(uint16_t host) {
  Process& process = *processes_.emplace_back(std::make_unique<Process>(*this, host, next_slot_++));
  process.number_ = memory_.add(host, [&process] { process.run(); });
  fibers().pause(process.number_, hosts_[host].paused_until_ns);
  return process;
}

void World::kill(Process& process, uint64_t instructions) {
  if (process.has_ended_) return;
  process.disturb();
  if (instructions == 0)
    fibers().kill(process.number_);
  else
    fibers().kill_after(process.number_, instructions);
}

void World::pause(uint16_t host, int64_t until_ns) {
  hosts_[host].paused_until_ns = std::max(hosts_[host].paused_until_ns, until_ns);
  for (const auto& process : processes_)
    if (process->host() == host && !process->has_ended_) fibers().pause(process->number_, until_ns);
}

void World::power_off(uint16_t host) {
  memory_.lose_cache(host);
  for (const auto& process : processes_)
    if (process->host() == host) kill(*process);
  ++hosts_[host].boot;
  hosts_[host].paused_until_ns = 0;
}

uint32_t World::blocks_in_use(uint16_t host) {
  Line* const lines = memory_.lines(host) + geometry_.block_line(host, 0) / kLineBytes;
  BlockTable<SimPolicy> table(policy_of(options_.medium), lines, geometry_.blocks());
  uint32_t used = 0;
  const bool is_whole = table.each([&](uint32_t, uint32_t count, const BlockLine& line) {
    if (block_kind(line.word) != BlockKind::kFree) used += count;
    return true;
  });
  if (!is_whole) fault("a block table is not whole");
  return used;
}

void World::sweep(uint16_t host) {
  Process& process = *processes_.emplace_back(std::make_unique<Process>(*this, host, next_slot_++));
  ++sweepers_;
  process.number_ = memory_.add(host, [this, &process, host] {
    // Each second a process looks for what is left: at its own host, when the others have ended their dead processes.
    constexpr int64_t kLookingNs = 4'500 * kMs;
    process.pool_ = open_pool(process);
    if (const auto joined = process.pool_->join({}); !joined)
      fault(std::string("no sweeper: ") + joined.error().what());
    const int64_t until = now_ns() + 2 * kLookingNs;
    while (now_ns() < until && !process.is_dead_) {
      process.pool_->beat(now_ns());
      fibers().sleep_until(now_ns() + 100 * kMs);
    }
    if (const uint32_t used = blocks_in_use(host); used != 0 && !process.is_dead_)
      fault(std::to_string(used) + " blocks of host " + std::to_string(host) + " are not free at the end");
    process.end();
    --sweepers_;
  });
}

bool World::is_clean() {
  for (uint16_t host = 0; host < options_.hosts; ++host) sweep(host);
  return run([this] { return sweepers_ == 0; }) && fault().empty();
}

}  // namespace nupa::pool::sim
