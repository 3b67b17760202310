// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Hosts whose caches are not coherent, on one pool, in simulated time, by seed. Their processes run the directory, the
/// rings and the engine of the pool transport that ship. Between any two of their loads and stores of the pool another
/// process may go on, a cache may evict or fetch a line, and a process may end.
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../model/incoherent_memory.h"
#include "transport/pool/engine.h"
#include "transport/pool/medium/layout.h"
#include "transport/pool/medium/spec.h"

namespace nupa::pool::sim {

class World;

/// The lock of a simulated host's processes, in place of HostLock.
class SimLock {
 public:
  SimLock(int process, uint16_t host);
  Result<void> lock();
  bool try_lock();
  void unlock();
  bool take_record(uint16_t record);
  bool is_taken(uint16_t record);
  // Simulated processes borrow nothing.
  bool borrow_block(uint32_t) { return false; }
  void return_block(uint32_t) {}
  bool is_borrowed(uint32_t) { return false; }

 private:
  const uint32_t process_;
  const uint16_t host_;
};

/// A process of a simulated host. It joins the pool, takes turns, and sleeps between them as nupa-pool does.
class Process {
 public:
  Process(World& world, uint16_t host, uint32_t slot) : world_(world), host_(host), slot_(slot) {}
  ~Process();

  World& world() { return world_; }
  uint16_t host() const { return host_; }
  uint32_t slot() const { return slot_; }
  Engine& engine() { return *engine_; }
  Pool& pool() { return *pool_; }
  bool has_joined() const { return has_joined_; }
  /// Once it has joined, and also after its end.
  const ProcessId& id() const { return id_; }
  /// It was killed. Nothing that its code still does counts.
  bool is_dead() const { return is_dead_; }
  bool has_ended() const { return has_ended_; }
  /// Its requests, and those to it, may fail: it has ended, or others may have taken its host for dead.
  bool is_disturbed() const { return is_disturbed_ || is_dead_ || leaves_; }
  void disturb() { is_disturbed_ = true; }
  /// Why it could not join.
  const std::string& error() const { return error_; }

  /// Calls `work` in the process at `when_ns` or soon after, unless it has ended.
  void at(int64_t when_ns, std::function<void()> work);
  bool has_work() const { return !works_.empty(); }
  /// Exits as programs do: `last_work` withdraws the queue pairs.
  void leave();
  std::vector<std::function<void()>> last_work;
  /// Destroy what uses the engine. Called also for a process that was killed.
  std::vector<std::function<void()>> clean_up;

 private:
  friend class World;
  friend class SimMemory;
  void run();
  void work();
  void rest(bool worked);
  void end();

  World& world_;
  const uint16_t host_;
  const uint32_t slot_;
  uint32_t number_ = 0;  ///< of its program
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Engine> engine_;
  std::multimap<int64_t, std::function<void()>> works_;
  uint32_t idle_turns_ = 0;
  bool has_joined_ = false;
  ProcessId id_;
  bool is_dead_ = false;
  bool leaves_ = false;
  bool has_ended_ = false;
  bool is_disturbed_ = false;
  std::string error_;
};

class World {
 public:
  enum class Medium : uint8_t {
    kWrittenBack,  ///< stores are written back
    kStreamed,     ///< whole lines of payload are stored around the cache
    kCombined,     ///< no cache, and stores leave in any order
  };
  struct Options {
    uint16_t hosts = 3;
    Medium medium = Medium::kWrittenBack;
    bool evicts = true;
    uint32_t ring_lines = 64;
  };
  static constexpr uint32_t kRecords = 3;
  static constexpr uint32_t kBlockBytes = 8192;
  static constexpr uint64_t kTerritoryBytes = 256 << 10;

  World(const Options& options, uint64_t seed);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const Options& options() const { return options_; }
  model::Fibers& fibers() { return memory_.fibers(); }
  uint64_t below(uint64_t number) { return memory_.below(number); }
  bool one_in(uint64_t number) { return below(number) == 0; }
  int64_t now_ns() { return fibers().now_ns(); }
  void plan(int64_t when_ns, std::function<void()> event) { fibers().plan(when_ns, std::move(event)); }
  /// Ends the run.
  void fault(const std::string& text) { fibers().fault(text); }
  const std::string& fault() const { return memory_.fault(); }

  /// Starts a process, which joins soon.
  Process& start(uint16_t host);
  const std::vector<std::unique_ptr<Process>>& processes() const { return processes_; }
  /// The process ends without a goodbye after so many further instructions.
  void kill(Process& process, uint64_t instructions = 0);
  /// The host stands still, and goes on then.
  void pause(uint16_t host, int64_t until_ns);
  /// The host has no power for a moment, and is another boot from then on. It has no processes then.
  void power_off(uint16_t host);
  /// Lets time pass until `done()`. False: the run takes too long, or there is a fault.
  bool run(const std::function<bool()>& done) { return fibers().run(kMostSteps, done); }
  /// A process of each host joins and frees what dead ones left. Then all blocks must be free. The processes of before
  /// have ended.
  bool is_clean();

  static World& current() { return *current_; }
  static int64_t clock() { return current_->now_ns(); }

 private:
  friend class SimLock;
  friend class SimMemory;
  friend class Process;
  /// A sender that waits 500 ms for a receive repeats its request every 10 us.
  static constexpr uint64_t kMostSteps = 100'000'000;
  struct HostState {
    uint64_t boot = 1;
    uint32_t lock_holder = model::Fibers::kNone;  ///< a program
    std::array<uint32_t, kRecords> record_holders{};
    int64_t paused_until_ns = 0;
  };

  std::unique_ptr<Pool> open_pool(Process& process);
  void ended(uint32_t number);
  /// Within a program: counts the blocks of the host that are not free.
  uint32_t blocks_in_use(uint16_t host);
  void sweep(uint16_t host);

  inline static World* current_ = nullptr;
  const Options options_;
  const Geometry geometry_;
  model::IncoherentMemory memory_;
  std::vector<HostState> hosts_;
  std::vector<std::unique_ptr<Process>> processes_;
  uint32_t next_slot_ = 1;
  uint32_t sweepers_ = 0;
};

}  // namespace nupa::pool::sim
