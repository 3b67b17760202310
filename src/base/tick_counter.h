// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The processor's counter of time, one version for each kind of processor.
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#elif !defined(__aarch64__)
#error "no counter of time for this processor"
#endif

namespace nupa::base {

/// The device's raw clock: the time stamp counter on x86, the virtual counter on arm64. All cores have the same time.
inline uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  uint64_t count;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#endif
}

/// The rate of ticks() in kHz that the processor reports: CPUID 15h on x86, CNTFRQ_EL0 on arm64. 0: it reports none.
inline uint64_t reported_tick_khz() {
#if defined(__x86_64__)
  constexpr uint32_t kTscLeaf = 0x15;
  unsigned denominator = 0, numerator = 0, crystal_hz = 0, unused = 0;
  if (__get_cpuid(kTscLeaf, &denominator, &numerator, &crystal_hz, &unused) && denominator != 0 && numerator != 0 &&
      crystal_hz != 0)
    return uint64_t{crystal_hz} * numerator / denominator / 1000;
  return 0;
#else
  uint64_t hz;
  asm("mrs %0, cntfrq_el0" : "=r"(hz));
  return hz / 1000;
#endif
}

}  // namespace nupa::base
