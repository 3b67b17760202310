// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A pool file as hosts without coherent caches see it, for tests of whole programs on one machine. The processes of a
/// host share a copy of the pool: the host's cache. Lines move between the copy and the file when the program writes
/// them back or invalidates them, and at random: caches evict and prefetch. A write-back that the program forgets is
/// never seen by another host but by chance, and a line that it does not invalidate stays old.
///
/// Random moves come with the instructions of the policy, drawn from a seed: so they meet the lines that matter between
/// the steps that matter, and a thread of a program that repeats itself meets the same ones. A thread for them would
/// seldom meet such a line.

#include <nupa/result.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "transport/pool/medium/cache_policy.h"

namespace nupa::pool {

class TornMemory {
 public:
  /// `shared`: the mapping of the pool file `path` of `bytes` bytes, which outlives this object. The host's copy lies
  /// beside the file, and is there until remove_copies(): caches outlive processes, too.
  static Result<std::unique_ptr<TornMemory>> open(const std::string& path, Line* shared, uint64_t bytes, uint16_t host,
                                                  uint64_t seed);
  ~TornMemory();
  TornMemory(const TornMemory&) = delete;
  TornMemory& operator=(const TornMemory&) = delete;

  /// The host's copy, which programs load from and store to.
  Line* lines() { return copy_; }

  /// Removes the copies of all hosts: the pool is formatted.
  static void remove_copies(const std::string& path, uint16_t hosts);

  // Instructions of the calling thread. `line` and `word` lie in lines().
  uint64_t load(const uint64_t* word);
  void load_bytes(std::byte* to, const std::byte* from, size_t bytes);
  void store(uint64_t* word, uint64_t value);
  void write_back(const Line* line);
  void invalidate(const Line* line);
  void store_fence();
  void full_fence();

 private:
  struct Control;
  struct Stripe;
  class Locked;
  struct Thread;

  TornMemory(base::UniqueFd fd, Line* shared, uint64_t lines, uint64_t seed);
  Result<void> fill(const std::string& copy, uint64_t pool_inode);
  Thread& me();
  uint64_t index_of(const void* address) const;
  /// Something that caches do by themselves, near the line that the thread works with.
  void happen(Thread& thread, uint64_t line);
  void write_back_now(uint64_t line);
  void drop_now(uint64_t line);
  void write_back_locked(uint64_t line);

  const uint64_t id_;
  const uint64_t seed_;
  const uint64_t number_of_lines_;
  base::UniqueFd fd_;
  Line* const shared_;
  std::byte* mapped_ = nullptr;
  Control* control_ = nullptr;
  Line* copy_ = nullptr;
  Line* base_ = nullptr;  ///< each line as it was when it came or was written back: a line that differs is dirty
};

/// The processor of a host whose cache is a TornMemory, for Flushed.
class TornCpu {
 public:
  explicit TornCpu(TornMemory* memory) : memory_(memory) {}
  uint64_t load(const uint64_t* word) const { return memory_->load(word); }
  void load_bytes(std::byte* to, const std::byte* from, size_t bytes) const { memory_->load_bytes(to, from, bytes); }
  void store(uint64_t* word, uint64_t value) const { memory_->store(word, value); }
  void order_stores() const { __atomic_thread_fence(__ATOMIC_RELEASE); }
  void write_back(const Line* line) const { memory_->write_back(line); }
  void invalidate(const Line* line) const { memory_->invalidate(line); }
  void store_fence() const { memory_->store_fence(); }
  void full_fence() const { memory_->full_fence(); }
  void load_fence() const { __atomic_thread_fence(__ATOMIC_ACQUIRE); }

 private:
  TornMemory* memory_;
};

}  // namespace nupa::pool
