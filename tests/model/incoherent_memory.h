// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Hosts that share memory without coherent caches, by seed. Each host has a cache, and programs that run in turns
/// (fibers.h). Between any two of their instructions caches may evict, fetch, and complete what was started.
///
/// Lines that a host has not cached are in its lines() as they are in memory. So code that loads bytes there without an
/// instruction of this class gets what a load without effect on the cache would get. It must not store there.

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "fibers.h"
#include "transport/pool/medium/cache_policy.h"

namespace model {

class IncoherentMemory {
 public:
  /// `evicts`: caches evict and fetch lines by themselves. Without it, a stale line stays stale.
  IncoherentMemory(uint64_t seed, uint32_t lines, uint32_t hosts, bool evicts = true);
  ~IncoherentMemory();
  IncoherentMemory(const IncoherentMemory&) = delete;
  IncoherentMemory& operator=(const IncoherentMemory&) = delete;

  /// The lines as a host sees them. Programs of any host may use the addresses of any of them.
  nupa::pool::Line* lines(uint32_t host = 0) { return storage_.data() + size_t{host} * stride_; }
  Fibers& fibers() { return fibers_; }
  uint64_t below(uint64_t number) { return fibers_.below(number); }

  /// Adds a program of a host.
  uint32_t add(uint32_t host, std::function<void()> body);
  /// Runs one program for each host until all have returned. False: not within `limit` instructions, or a fault.
  bool run(const std::vector<std::function<void()>>& bodies, uint64_t limit);
  /// Within a program: ends the run.
  void fault(const std::string& text) { fibers_.fault(text); }
  const std::string& fault() const { return fibers_.fault(); }
  /// The program of run() for host `host` executes no instruction any more. What is in the host's cache can still be
  /// written back.
  void stop(uint32_t host) { fibers_.stop(host); }
  void pause() { step(); }
  /// What a program has started is complete. A kernel executes the fences for that before anyone learns of the
  /// program's end, because its locks are free only then.
  void complete(uint32_t program);
  /// All lines are zero in memory. Caches keep what they hold.
  void clear();
  /// The cache of a host evicts all lines.
  void evict_all(uint32_t host);
  /// The host has no power for a moment. What its cache has not written back is lost, or not.
  void lose_cache(uint32_t host);

  // Instructions of the program that runs. Outside of programs they are those of a program of host 0.
  uint64_t load(const uint64_t* word);
  void store(uint64_t* word, uint64_t value);
  void write_back(const nupa::pool::Line* line);
  void invalidate(const nupa::pool::Line* line);
  void store_fence();
  void full_fence();
  /// Stores that leave the line in no cache. Words get to memory in any order, up to the next store fence.
  void store_around(uint64_t* word, uint64_t value);
  /// A load from memory that no cache holds.
  uint64_t load_around(const uint64_t* word);

  /// The memory whose programs this thread runs now.
  static IncoherentMemory& current() { return *current_; }

 private:
  static constexpr uint8_t kCached = 1, kDirty = 2;
  struct Host {
    std::vector<uint8_t> state;    ///< of each line
    std::vector<uint32_t> place;   ///< of each cached line in `cached`
    std::vector<uint32_t> cached;  ///< lines
    uint32_t last = 0;             ///< the line that was used last
  };
  struct Word {
    uint32_t line;
    uint32_t word;
    uint64_t value;
  };
  /// A set of lines with an order that does not matter.
  class LineSet {
   public:
    void add(uint32_t line);
    bool has(uint32_t line) const;
    void remove(uint32_t line);
    void remove_at(size_t place);
    std::vector<uint32_t> lines;
  };
  /// What a program has started.
  struct Program {
    uint32_t host = 0;
    LineSet writing;
    LineSet dropping;
    std::vector<Word> stores;  ///< store_around()
  };

  Program& me() { return programs_[fibers_.running() + 1]; }
  nupa::pool::Line& memory(uint32_t line) { return storage_[memory_at_ + line]; }
  uint32_t index_of(const void* address) const;
  void fill(uint32_t host, uint32_t line);
  /// Returns true if the line was dirty.
  bool complete_write_back(uint32_t host, uint32_t line);
  void drop(uint32_t host, uint32_t line);
  void forget(uint32_t host, uint32_t line);
  void complete_store(Program& program, size_t place);
  /// Programs that do not cache a line see it as it is in memory.
  void show(uint32_t line);
  void step();
  /// Something that a cache does by itself, or when it gets to it.
  void happen(Program& program);
  uint32_t line_near(const Host& host);

  inline static IncoherentMemory* current_ = nullptr;
  IncoherentMemory* const before_ = current_;
  Fibers fibers_;
  const bool evicts_;
  const uint32_t number_of_lines_;
  const uint32_t stride_;   ///< a power of two
  const size_t memory_at_;  ///< behind the lines of the hosts
  std::vector<nupa::pool::Line> storage_;
  std::vector<Host> hosts_;
  std::vector<Program> programs_;  ///< the first one stands for code outside of programs
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

/// The same with streaming stores.
struct StreamingModelCpu : ModelCpu {
  static void stream(nupa::pool::Line* to, const std::byte* from, size_t lines);
};

/// The processor of a host that maps the memory with combined stores and without a cache, for nupa::pool::Uncached.
struct CombiningModelCpu {
  static uint64_t load(const uint64_t* word) { return IncoherentMemory::current().load_around(word); }
  static void load_bytes(std::byte* to, const std::byte* from, size_t bytes);
  static void store(uint64_t* word, uint64_t value) { IncoherentMemory::current().store_around(word, value); }
  static void store_fence() { IncoherentMemory::current().store_fence(); }
  static void full_fence() { IncoherentMemory::current().store_fence(); }
  static void load_fence() {}
};

}  // namespace model
