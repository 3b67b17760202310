// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <time.h>

#include <algorithm>
#include <climits>
#include <cstdint>

#include "progress/clock.h"

namespace nupa::progress {

/// A point of CLOCK_MONOTONIC at which a wait ends. A value type; any thread.
class Deadline {
 public:
  static constexpr Deadline never() { return Deadline(INT64_MAX); }
  /// `ns`: absolute, nanoseconds.
  static constexpr Deadline at(int64_t ns) { return Deadline(ns); }
  /// `ns` 0 or less: it has passed. A time that is too long for 64 bits: never.
  static Deadline in_ns(int64_t ns, int64_t now = progress::now_ns()) {
    return Deadline(ns > INT64_MAX - now ? INT64_MAX : now + ns);
  }
  /// Negative: never, as for poll(2).
  static Deadline in_ms(int64_t ms) { return ms < 0 || ms > INT64_MAX / kNsPerMs ? never() : in_ns(ms * kNsPerMs); }

  constexpr bool is_never() const { return at_ns_ == INT64_MAX; }
  constexpr bool passed(int64_t now) const { return !is_never() && now >= at_ns_; }
  /// Reads the clock, except if the deadline is never.
  bool passed() const { return !is_never() && passed(now_ns()); }
  /// 0 if it has passed, INT64_MAX if never.
  constexpr int64_t left_ns(int64_t now) const {
    if (is_never()) return INT64_MAX;
    return now >= at_ns_ ? 0 : at_ns_ - now;
  }
  /// For ppoll(2): null if never.
  const timespec* left(timespec* storage, int64_t now = progress::now_ns()) const {
    if (is_never()) return nullptr;
    const int64_t ns = left_ns(now);
    storage->tv_sec = ns / kNsPerSecond;
    storage->tv_nsec = ns % kNsPerSecond;
    return storage;
  }
  /// For poll(2): rounded up, -1 if never.
  constexpr int left_ms(int64_t now) const {
    if (is_never()) return -1;
    const int64_t ns = left_ns(now);
    return static_cast<int>(std::min<int64_t>(ns / kNsPerMs + (ns % kNsPerMs != 0 ? 1 : 0), INT_MAX));
  }
  constexpr int64_t at_ns() const { return at_ns_; }

  friend constexpr Deadline earlier(Deadline a, Deadline b) { return Deadline(std::min(a.at_ns_, b.at_ns_)); }

 private:
  explicit constexpr Deadline(int64_t at) : at_ns_(at) {}
  int64_t at_ns_;
};

/// Pauses that double: 5, 10, 20 ... up to the longest. One owner.
class Backoff {
 public:
  constexpr Backoff(int64_t first_ns, int64_t longest_ns) : first_ns_(first_ns), longest_ns_(longest_ns) {}
  /// Returns this pause; the next one is twice as long.
  constexpr int64_t next_ns() {
    const int64_t pause = next_ns_;
    next_ns_ = std::min(2 * pause, longest_ns_);
    return pause;
  }
  constexpr void reset() { next_ns_ = first_ns_; }

 private:
  int64_t first_ns_;
  int64_t longest_ns_;
  int64_t next_ns_ = std::min(first_ns_, longest_ns_);
};

}  // namespace nupa::progress
