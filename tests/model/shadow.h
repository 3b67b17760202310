// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Stand-ins for what the library's code calls between threads. Code in namespace nupa that says std::atomic,
/// std::memcpy, _mm_pause or syscall finds the names below before those of the standard library and the system: so the
/// lines that are checked are the lines that ship. To be included before any header of the library.
#include <immintrin.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <any>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <climits>
#include <concepts>
#include <condition_variable>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checker.h"

/// base/fence.h: as the processor has it that is being modelled.
#define NUPA_UPDATES_ARE_FENCES (::model::memory() == ::model::Memory::kTso)

namespace model {

using Where = std::source_location;

/// Of the size of its value, as a lock-free std::atomic. While threads run, the value is where the execution says.
template <class T>
class Atomic {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);

 public:
  using value_type = T;
  static constexpr bool is_always_lock_free = true;

  constexpr Atomic() noexcept = default;
  // NOLINTNEXTLINE(google-explicit-constructor): as std::atomic has it
  constexpr Atomic(T value) noexcept : value_(value) {}
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;
  T operator=(T value) noexcept {
    store(value);
    return value;
  }
  operator T() const noexcept { return load(); }

  T load(std::memory_order order = std::memory_order_seq_cst, Where where = Where::current()) const {
    if (!operations::in_thread()) return value_;
    return out(operations::load(&value_, in(value_), order, {where, "load", order}));
  }
  void store(T value, std::memory_order order = std::memory_order_seq_cst, Where where = Where::current()) {
    if (!operations::in_thread()) {
      value_ = value;
      return;
    }
    operations::store(&value_, in(value_), in(value), order, {where, "store", order});
    keep();
  }
  T exchange(T value, std::memory_order order = std::memory_order_seq_cst, Where where = Where::current()) {
    return update([&](T) { return value; }, order, {where, "exchange", order});
  }
  T fetch_add(T value, std::memory_order order = std::memory_order_seq_cst, Where where = Where::current()) {
    return update([&](T old) { return static_cast<T>(old + value); }, order, {where, "fetch_add", order});
  }
  T fetch_sub(T value, std::memory_order order = std::memory_order_seq_cst, Where where = Where::current()) {
    return update([&](T old) { return static_cast<T>(old - value); }, order, {where, "fetch_sub", order});
  }
  T fetch_or(T value, std::memory_order order = std::memory_order_seq_cst, Where where = Where::current()) {
    return update([&](T old) { return static_cast<T>(old | value); }, order, {where, "fetch_or", order});
  }
  T fetch_and(T value, std::memory_order order = std::memory_order_seq_cst, Where where = Where::current()) {
    return update([&](T old) { return static_cast<T>(old & value); }, order, {where, "fetch_and", order});
  }
  bool compare_exchange_strong(T& expected, T value, std::memory_order order, std::memory_order failure,
                               Where where = Where::current()) {
    const T wanted = expected;
    if (!operations::in_thread()) {
      expected = value_;
      if (std::memcmp(&expected, &wanted, sizeof(T)) == 0) value_ = value;
      return std::memcmp(&expected, &wanted, sizeof(T)) == 0;
    }
    const Site failed{where, "failure", failure};
    expected = out(operations::update(
        &value_, in(value_), order, failure,
        [&](uint64_t old, uint64_t* fresh) {
          *fresh = in(value);
          return old == in(wanted);
        },
        {where, "compare_exchange", order}, &failed));
    keep();
    return in(expected) == in(wanted);
  }
  bool compare_exchange_strong(T& expected, T value, std::memory_order order = std::memory_order_seq_cst,
                               Where where = Where::current()) {
    const auto failure = order == std::memory_order_acq_rel   ? std::memory_order_acquire
                         : order == std::memory_order_release ? std::memory_order_relaxed
                                                              : order;
    return compare_exchange_strong(expected, value, order, failure, where);
  }
  /// Does not fail without a reason: a loop around it takes one more turn, and nothing else.
  bool compare_exchange_weak(T& expected, T value, std::memory_order order = std::memory_order_seq_cst,
                             Where where = Where::current()) {
    return compare_exchange_strong(expected, value, order, where);
  }

 private:
  static uint64_t in(T value) {
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof(T));
    return word;
  }
  static T out(uint64_t word) {
    T value;
    std::memcpy(&value, &word, sizeof(T));
    return value;
  }
  template <class Change>
  T update(Change change, std::memory_order order, const Site& site) {
    if (!operations::in_thread()) return std::exchange(value_, change(value_));
    const T old = out(operations::update(
        &value_, in(value_), order, order,
        [&](uint64_t word, uint64_t* fresh) {
          *fresh = in(change(out(word)));
          return true;
        },
        site));
    keep();
    return old;
  }
  void keep() {
    operations::at_finish(&value_, [this](uint64_t word) { value_ = out(word); });
  }

  T value_{};
};

/// Reads of an object that others do not change while it is read: a data race if they do.
template <class T>
class AtomicRef {
 public:
  explicit AtomicRef(T& object) : object_(object) {}
  T load(std::memory_order = std::memory_order_seq_cst) const {
    note_access(&object_, sizeof(T), false);
    return object_;
  }

 private:
  T& object_;
};

/// pthread_mutex_lock(3): what happened with it held happens before what the next one does that holds it.
class Mutex {
 public:
  constexpr Mutex() noexcept = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() {
    if (!operations::in_thread()) return;
    operations::await_update(
        &held_, 0, std::memory_order_acquire, [](uint64_t held) { return held == 0; },
        [](uint64_t, uint64_t* fresh) {
          *fresh = 1;
          return true;
        });
  }
  void unlock() {
    if (operations::in_thread())
      operations::store(&held_, 0, 0, std::memory_order_release,
                        {Where::current(), "unlock", std::memory_order_release});
  }

 private:
  char held_ = 0;
};

/// pthread_cond_wait(3): who sleeps before notify_all() is woken, and nobody else. The calls order nothing themselves.
class Condition {
 public:
  void notify_all() { change(1); }
  /// No case has several that sleep on a condition of which one is notified.
  void notify_one() { change(1); }
  void wait(std::unique_lock<Mutex>& lock) {
    const uint64_t before = change(0);
    lock.unlock();
    operations::await(&calls_, 0, std::memory_order_relaxed, [before](uint64_t now) { return now != before; });
    lock.lock();
  }
  template <class Test>
  void wait(std::unique_lock<Mutex>& lock, Test test) {
    while (!test()) wait(lock);
  }
  template <class Time>
  std::cv_status wait_until(std::unique_lock<Mutex>& lock, const Time&) {
    wait(lock);
    return std::cv_status::no_timeout;
  }

 private:
  uint64_t change(uint64_t by) {
    if (!operations::in_thread()) return 0;
    return operations::update(&calls_, 0, std::memory_order_relaxed, std::memory_order_relaxed,
                              [by](uint64_t old, uint64_t* fresh) {
                                *fresh = old + by;
                                return true;
                              },
                              {Where::current(), "condition", std::memory_order_relaxed});
  }
  char calls_ = 0;
};

inline void* copy(void* to, const void* from, size_t bytes) {
  note_access(from, bytes, false);
  note_access(to, bytes, true);
  return std::memcpy(to, from, bytes);
}

}  // namespace model

/// Found instead of ::std by all code in namespace nupa.
namespace nupa::std {
using namespace ::std;

template <class T>
using atomic = model::Atomic<T>;
template <class T>
using atomic_ref = model::AtomicRef<T>;
using mutex = model::Mutex;
using condition_variable = model::Condition;

inline void atomic_thread_fence(memory_order order, model::Where where = model::Where::current()) {
  if (model::operations::in_thread()) model::operations::fence(order, model::Weight::kNormal, {where, "fence", order});
}
inline void atomic_signal_fence(memory_order order, model::Where where = model::Where::current()) {
  if (model::operations::in_thread()) model::operations::fence(order, model::Weight::kLight, {where, "fence", order});
}
inline void* memcpy(void* to, const void* from, size_t bytes) { return model::copy(to, from, bytes); }
}  // namespace nupa::std

namespace nupa {
inline void _mm_pause() { model::pause(); }
inline int sched_yield() {
  model::pause();
  return 0;
}
inline __m128i _mm_loadu_si128(const __m128i* from) {
  model::note_access(from, sizeof *from, false);
  return ::_mm_loadu_si128(from);
}
inline void _mm_store_si128(__m128i* to, __m128i value) {
  model::note_access(to, sizeof *to, true);
  ::_mm_store_si128(to, value);
}
}  // namespace nupa
