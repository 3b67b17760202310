// SPDX-License-Identifier: Apache-2.0
#pragma once
/// An execution as a memory model sees it: which load read which store, and in which order the stores of a location
/// took effect. docs/development/model-checking.md says which axioms decide whether the execution can happen.
#include <atomic>
#include <cstdint>
#include <vector>

namespace model {

/// Events are numbered in an order that respects program order and reads-from.
__extension__ using Set = unsigned __int128;
constexpr int kMaxEvents = 128;
constexpr int kMaxThreads = 4;
constexpr int kInitial = -1;  ///< the store that gives a location its first value

enum class Memory {
  kTso,  ///< x86: a store may be delayed past later loads of its thread, and nothing else
  kCpp,  ///< C++20 (RC11): what the orders in the code promise on every processor
};

enum class Kind : uint8_t { kLoad, kStore, kUpdate, kFence };

/// A fence between threads where only one side pays (P1202): the heavy one is membarrier(2), the light one only keeps
/// the compiler from moving anything.
enum class Weight : uint8_t { kNormal, kLight, kHeavy };

struct Event {
  Kind kind = Kind::kFence;
  std::memory_order order = std::memory_order_relaxed;
  Weight weight = Weight::kNormal;
  bool locked = false;  ///< x86: a locked instruction, which is a full barrier as well
  int thread = 0;
  int location = -1;
  int from = kInitial;  ///< the store that a load or an update reads
  uint64_t read = 0;
  uint64_t written = 0;

  bool reads() const { return kind == Kind::kLoad || kind == Kind::kUpdate; }
  bool writes() const { return kind == Kind::kStore || kind == Kind::kUpdate; }
  bool is_sc() const { return order == std::memory_order_seq_cst; }
};

class Graph {
 public:
  explicit Graph(Memory memory) : memory_(memory) {}

  void clear();
  int size() const { return static_cast<int>(events_.size()); }
  const Event& event(int id) const { return events_[static_cast<size_t>(id)].event; }

  int add_location(uint64_t first_value);
  /// The stores of a location in the order in which they take effect, without the initial one.
  const std::vector<int>& stores(int location) const { return at(location).stores; }
  /// 0 for the initial store.
  int place_of(int location, int store) const;
  uint64_t value_of(int location, int store) const;

  /// Adds the event as its thread's next one; an update takes its place behind the store that it reads. False: no such
  /// execution exists. Either way it is there until undo().
  bool add(const Event& event);
  /// The same for a store at a place among those of its location: 1 is directly behind the initial one.
  bool add_store(const Event& event, int place);
  void undo();

  /// Whether event `number` (counted from 0) of a thread happens before what `thread` does next (kCpp).
  bool happened_before(int other, size_t number, int thread) const;
  size_t events_of(int thread) const { return of_thread_[thread].size(); }

 private:
  struct Node {
    Event event;
    Set before = 0;   ///< happens before it
    Set message = 0;  ///< of a store: what happens before an acquire load that reads it
    // What undo() gives back to the thread.
    int release_fence = -1;
    Set acquirable = 0;
  };
  struct Location {
    uint64_t first_value = 0;
    std::vector<int> stores;
    Set initial_readers = 0;
  };
  struct Thread {
    int release_fence = -1;  ///< the last one
    Set acquirable = 0;      ///< what an acquire fence would bring before it
  };

  const Node& node(int id) const { return events_[static_cast<size_t>(id)]; }
  const Location& at(int location) const { return locations_[static_cast<size_t>(location)]; }
  Location& at(int location) { return locations_[static_cast<size_t>(location)]; }
  Set& readers(int location, int store) { return store == kInitial ? at(location).initial_readers : readers_[store]; }
  Set readers_of(int location, int store) const {
    return store == kInitial ? at(location).initial_readers : readers_[store];
  }

  void append(const Event& event);
  bool is_consistent() const;
  bool is_coherent(int id) const;
  int floor_of(int location, Set past) const;
  Set later_stores(int location, int place) const;
  Set extended_coherence(int id) const;
  bool psc_is_acyclic() const;
  bool tso_is_acyclic() const;
  bool tso_with_membarriers(Set* after, size_t next) const;

  const Memory memory_;
  std::vector<Node> events_;
  std::vector<Location> locations_;
  Thread threads_[kMaxThreads];
  std::vector<int> of_thread_[kMaxThreads];
  Set thread_events_[kMaxThreads] = {};
  Set readers_[kMaxEvents] = {};
  Set sc_ = 0;
  std::vector<int> heavy_;
};

}  // namespace model
