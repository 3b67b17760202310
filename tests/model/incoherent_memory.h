// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Hosts that share memory without coherent caches, by seed. Each host is a fiber; between any two of its instructions
/// other hosts may run, and caches may evict, fetch and complete what was started. A run depends on the seed alone.
#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "transport/pool/medium/cache_policy.h"

namespace model {

class IncoherentMemory {
 public:
  /// `evicts`: caches evict and fetch lines by themselves. Without it, a stale line stays stale.
  IncoherentMemory(uint64_t seed, uint32_t lines, uint32_t hosts, bool evicts = true);

  /// The addresses of the lines. Hosts never dereference them.
  nupa::pool::Line* lines() { return addresses_.data(); }
  /// Runs the bodies, one for each host, until all have returned. False: not within `limit` instructions, or a fault.
  bool run(const std::vector<std::function<void()>>& bodies, uint64_t limit);
  /// Within a body: ends the run.
  void fault(const std::string& text);
  const std::string& fault() const { return fault_; }
  uint64_t below(uint64_t number) { return random_() % number; }
  /// Host `host` executes no instruction any more. What is in its caches can still be written back.
  void stop(uint32_t host) { hosts_[host].stopped = true; }
  void pause() { step(); }
  /// All lines are zero in memory. Caches keep what they hold.
  void clear() { memory_.assign(memory_.size(), {}); }
  /// The cache of a host evicts all lines.
  void evict_all(uint32_t host);

  // Instructions of the host that runs. Before run(), all hosts stand still, and a host's caches are empty.
  uint64_t load(const uint64_t* word);
  void store(uint64_t* word, uint64_t value);
  void write_back(const nupa::pool::Line* line);
  void invalidate(const nupa::pool::Line* line);
  void store_fence();
  void full_fence();

  /// The memory in whose bodies this thread runs now.
  static IncoherentMemory& current() { return *current_; }

 private:
  struct Entry {
    nupa::pool::Line line;
    bool dirty = false;
  };
  struct Host {
    std::map<uint32_t, Entry> cache;
    std::set<uint32_t> writing;   ///< write-backs that have started
    std::set<uint32_t> dropping;  ///< invalidations that have started
    bool done = false;
    bool stopped = false;
    std::function<void()> body;
    std::vector<char> stack;
    ucontext_t fiber;
  };
  static void enter();
  Host& me() { return hosts_[running_]; }
  uint32_t index_of(const void* address) const;
  Entry& fill(Host& host, uint32_t line);
  /// Returns true if the line was dirty.
  bool complete_write_back(Host& host, uint32_t line);
  void drop(Host& host, uint32_t line);
  void step();
  /// Something that a cache does by itself, or when it gets to it.
  void happen(Host& host);

  inline static IncoherentMemory* current_ = nullptr;
  std::mt19937_64 random_;
  const bool evicts_;
  std::vector<nupa::pool::Line> addresses_;
  std::vector<nupa::pool::Line> memory_;
  std::vector<Host> hosts_;
  ucontext_t scheduler_{};
  uint32_t running_ = 0;
  uint64_t stretch_ = 0;
  uint64_t steps_ = 0;
  bool is_running_ = false;
  std::string fault_;
};

/// The processor of the host that runs, for nupa::pool::Flushed.
struct ModelCpu {
  static uint64_t load(const uint64_t* word) { return IncoherentMemory::current().load(word); }
  static void load_bytes(std::byte* to, const std::byte* from, size_t bytes);
  static void store(uint64_t* word, uint64_t value) { IncoherentMemory::current().store(word, value); }
  static void order_stores() {}  // stores of a host reach its cache in their order
  static void write_back(const nupa::pool::Line* line) { IncoherentMemory::current().write_back(line); }
  static void invalidate(const nupa::pool::Line* line) { IncoherentMemory::current().invalidate(line); }
  static void store_fence() { IncoherentMemory::current().store_fence(); }
  static void full_fence() { IncoherentMemory::current().full_fence(); }
  static void load_fence() {}  // loads of a host are executed in their order
};

}  // namespace model
