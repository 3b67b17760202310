// SPDX-License-Identifier: Apache-2.0
#pragma once
/// One case in every execution: its threads are contexts of one thread, and each of their steps is a decision that is
/// taken in every way.
#include <ucontext.h>

#include <cstdlib>
#include <memory>

#include "checker.h"

namespace model {

constexpr size_t kMemoryBytes = 1 << 20;

struct Fiber {
  enum class State { kReady, kWaits, kPauses, kDone };
  const char* name = "";
  std::function<void()> body;
  std::unique_ptr<std::byte[]> stack;
  ucontext_t context{};
  State state = State::kDone;
  int location = -1;       ///< kWaits: a store there lets it go on
  size_t stores_seen = 0;  ///< of those made there: they have been turned down
  bool skipped = false;    ///< it could have gone on, and waits for another store: the execution needs that one
  /// What was read since the last pause, and between the two before: location and store.
  std::vector<std::pair<int, int>> looked, looked_before;
};

struct Place {
  const void* address = nullptr;
  std::function<void(uint64_t)> put;
  std::vector<int> made;  ///< stores in the order in which they came about
};

struct Access {
  const std::byte* begin;
  const std::byte* end;
  int thread;
  size_t events;  ///< of its thread before it
  bool writes;
};

/// An object that counts as if it lay at `stands_for`.
struct Adopted {
  const std::byte* begin;
  size_t bytes;
  std::byte* stands_for;
};

struct Decision {
  std::vector<int> options;
  size_t taken = 0;
};

class Explorer {
 public:
  Explorer(Memory memory, const Build& build, const Weakened* weakened)
      : memory_(memory),
        build_(build),
        weakened_(weakened),
        graph_(memory),
        arena_(new (std::align_val_t{64}) std::byte[kMemoryBytes]()) {}
  ~Explorer() { ::operator delete[](arena_, std::align_val_t{64}); }

  Result run();

  // Case.
  void* memory(size_t bytes, size_t alignment) {
    used_ = (used_ + alignment - 1) / alignment * alignment;
    void* const begin = arena_ + used_;
    used_ += bytes;
    if (used_ > kMemoryBytes) abort();
    return begin;
  }
  void adopt(const void* object, size_t bytes) {
    adopted_.push_back({static_cast<const std::byte*>(object), bytes, static_cast<std::byte*>(memory(bytes, 64))});
  }
  void at_end(std::function<void()> action) { at_end_.push_back(std::move(action)); }
  void add_thread(const char* name, std::function<void()> body) {
    if (count_ == kMaxThreads) abort();
    Fiber& fiber = fibers_[count_++];
    fiber.name = name;
    fiber.body = std::move(body);
  }
  void set_finally(std::function<void()> body) { finally_ = std::move(body); }
  void set_may_wait_if(std::function<bool()> condition) { may_wait_if_ = std::move(condition); }

  Memory memory_model() const { return memory_; }

  // Threads.
  bool in_thread() const { return current_ >= 0; }
  void fail(std::string text);
  void add_outcome(std::string text) { result_.outcomes.insert(std::move(text)); }
  bool is_failed() const { return !result_.fault.empty(); }
  uint64_t load(const void* address, uint64_t first, std::memory_order order, bool locked,
                const std::function<bool(uint64_t)>* condition);
  void store(const void* address, uint64_t first, uint64_t value, std::memory_order order);
  uint64_t update(const void* address, uint64_t first, std::memory_order order, std::memory_order failure,
                  const std::function<bool(uint64_t, uint64_t*)>& change,
                  const std::function<bool(uint64_t)>* condition);
  void fence(std::memory_order order, Weight weight);
  void access(const void* address, size_t bytes, bool writes);
  void pause();
  std::memory_order order_at(const Site& site);
  void put_at_finish(const void* address, const std::function<void(uint64_t)>& put) {
    for (Place& place : places_)
      if (place.address == address) place.put = put;
  }

 private:
  Fiber& me() { return fibers_[current_]; }
  void run_once();
  void finish();
  bool next_execution();
  int pick();
  bool has_news(const Fiber& fiber) const;
  bool may_store(int except, const void* address) const;
  const void* same_each_time(const void* address) const;
  bool waits_in_vain(int thread) const;
  int location_of(const void* address, uint64_t first);
  template <class Options>
  int choose(Options options);
  template <class Accepts, class Tries>
  int choose_source(int location, Accepts accepts, Tries tries);
  void commit_store(const Event& event, int id);
  void note_store(const void* address);
  void wait_here();
  void leave();
  [[noreturn]] void abandon();
  void check_room();
  std::string story() const;
  static void enter();

  const Memory memory_;
  const Build& build_;
  const Weakened* const weakened_;
  Graph graph_;
  Result result_;
  std::vector<Decision> decisions_;
  size_t depth_ = 0;
  std::set<std::pair<int, const void*>> stores_;  ///< which thread stores where, in some execution
  bool learned_ = false;
  bool abandoned_ = false;

  std::byte* const arena_;
  size_t used_ = 0;
  std::vector<Adopted> adopted_;
  std::vector<std::function<void()>> at_end_;
  std::function<void()> finally_;
  std::function<bool()> may_wait_if_;
  Fiber fibers_[kMaxThreads];
  int count_ = 0;
  int current_ = -1;
  ucontext_t scheduler_{};
  std::vector<Place> places_;
  std::vector<Access> accesses_;
};

/// The one that runs now; null: none does.
extern Explorer* explorer;

const char* name_of(std::memory_order order);

}  // namespace model
