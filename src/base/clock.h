#pragma once
#include <time.h>
#include <x86intrin.h>

#include <cstdint>

namespace nupa::base {

/// CLOCK_MONOTONIC in nanoseconds.
inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/// The processor's time stamp counter, the device's raw clock.
inline uint64_t ticks() { return __rdtsc(); }

}  // namespace nupa::base
