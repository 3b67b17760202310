// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Runs a few threads in every way that a memory model allows. The threads are ordinary functions; what they do with
/// atomics comes here by the stand-ins in shadow.h. docs/development/model-checking.md says how to write a case.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <new>
#include <set>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "graph.h"

namespace model {

/// Builds one case: objects in zeroed memory, threads, and what holds when all threads are done. Called anew for each
/// execution; must do the same each time.
class Case {
 public:
  /// An object that lives until the execution ends, at the same address in each execution.
  template <class T, class... Arguments>
  T& make(Arguments&&... arguments) {
    T* const made = new (memory(sizeof(T), alignof(T))) T{std::forward<Arguments>(arguments)...};
    if constexpr (!std::is_trivially_destructible_v<T>) at_end([made] { made->~T(); });
    return *made;
  }
  void* memory(size_t bytes, size_t alignment = 64);
  /// An object that code under test has put on the heap, where it may lie elsewhere in each execution.
  void adopt(const void* object, size_t bytes);
  void at_end(std::function<void()> action);
  void thread(const char* name, std::function<void()> body);
  /// Called with the last values in memory, after every thread has returned.
  void finally(std::function<void()> body);
  /// Called likewise when threads wait that nobody lets go on. True: there is nothing for them to do, and no fault.
  void may_wait_if(std::function<bool()> condition);
};
using Build = std::function<void(Case&)>;

/// A place in the code where an atomic or a fence is used.
struct Site {
  std::source_location where;
  const char* operation = "";  ///< load, store, exchange, ..., fence
  std::memory_order order = std::memory_order_relaxed;

  bool operator==(const Site& other) const;
};

struct Result {
  std::string fault;  ///< empty: none
  uint64_t executions = 0;
  uint64_t dead_ends = 0;  ///< begun for a store that did not come
  std::set<std::string> outcomes;
  std::vector<Site> sites;

  bool ok() const { return fault.empty(); }
};

/// One place is run with another order than the code says; a fence made relaxed is left out.
struct Weakened {
  Site site;
  std::memory_order order = std::memory_order_relaxed;
};

/// All executions. The first one that fails ends it.
Result explore(Memory memory, const Build& build, const Weakened* weakened = nullptr);

/// Tries each weaker order at each place that the cases run through. A line for each place, in the order of the code:
/// "FUNCTION OPERATION ORDER [number]: x86 WEAKEST, C++ WEAKEST", where WEAKEST is the weakest order with which all
/// cases still pass ("none" for a fence: it may be left out). Only places in these files, named by the ends of their
/// paths.
std::vector<std::string> needed_orders(std::span<const Build> cases, std::initializer_list<std::string_view> files);

// To be called by a case's threads.
Memory memory();
/// Ends the execution with a fault.
void require(bool holds, const char* text);
/// Of the last part of a case: one of the results that there are.
void outcome(std::string text);
/// Data that is not atomic: two threads must not use the same bytes at a time if one of them writes (kCpp).
void note_access(const void* address, size_t bytes, bool writes);
/// A thread that looks again and again has nothing else to do until something that it has looked at changes.
void pause();

/// What shadow.h calls.
namespace operations {

bool in_thread();
uint64_t load(const void* address, uint64_t first_value, std::memory_order order, const Site& site);
void store(const void* address, uint64_t first_value, uint64_t value, std::memory_order order, const Site& site);
/// `change` gives the new value, or false: nothing is stored, and the order is `failure`.
uint64_t update(const void* address, uint64_t first_value, std::memory_order order, std::memory_order failure,
                const std::function<bool(uint64_t, uint64_t*)>& change, const Site& site,
                const Site* failure_site = nullptr);
/// Sleeps until the value fulfils the condition.
uint64_t await(const void* address, uint64_t first_value, std::memory_order order,
               const std::function<bool(uint64_t)>& condition);
/// Sleeps until the value fulfils the condition, and changes it in the same step.
uint64_t await_update(const void* address, uint64_t first_value, std::memory_order order,
                      const std::function<bool(uint64_t)>& condition,
                      const std::function<bool(uint64_t, uint64_t*)>& change);
void fence(std::memory_order order, Weight weight, const Site& site);
/// Where the last value goes when all threads have returned.
void at_finish(const void* address, const std::function<void(uint64_t)>& put);

}  // namespace operations
}  // namespace model
