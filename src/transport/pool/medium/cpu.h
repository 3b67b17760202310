// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The processor's instructions for lines, for the policies Flushed and Uncached: one version for each kind of
/// processor.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "transport/pool/medium/cache_policy.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif !defined(__aarch64__)
#error "no instructions for cache lines of this processor"
#endif

namespace nupa::pool {

/// How this processor writes lines back.
enum class LineInstructions : uint8_t {
  kClflush,     ///< x86: writes back and drops, in order
  kClflushopt,  ///< x86: the same without order
  kClwb,        ///< x86: writes back by clwb, which may keep the line, and drops by clflushopt
  kDc,          ///< arm64: dc cvac and dc civac
};
/// The instructions of this processor.
LineInstructions line_instructions();
/// The word for people: "clwb and clflushopt".
const char* name_of(LineInstructions instructions);

struct HardwareCpu {
  static uint64_t load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
  static void load_bytes(std::byte* to, const std::byte* from, size_t bytes) { std::memcpy(to, from, bytes); }
  static void store(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

#if defined(__x86_64__)
  static void order_stores() { asm volatile("" ::: "memory"); }  // stores of a processor stay in their order
  static void write_back(const Line* line) {
    if (chosen == LineInstructions::kClwb)
      asm volatile("clwb %0" : : "m"(*reinterpret_cast<const char*>(line)) : "memory");
    else
      invalidate(line);
  }
  static void invalidate(const Line* line) {
    if (chosen == LineInstructions::kClflush)
      asm volatile("clflush %0" : : "m"(*reinterpret_cast<const char*>(line)) : "memory");
    else
      asm volatile("clflushopt %0" : : "m"(*reinterpret_cast<const char*>(line)) : "memory");
  }
  /// Streaming stores, which leave nothing in the cache: the lines need neither to be fetched before nor to be written
  /// back. A full line leaves as a whole.
  static void stream(Line* to, const std::byte* from, size_t lines) {
    auto* target = reinterpret_cast<__m128i*>(to);
    const auto* source = reinterpret_cast<const __m128i*>(from);
    for (const __m128i* const end = target + lines * (kLineBytes / sizeof *target); target != end; ++target, ++source)
      _mm_stream_si128(target, _mm_loadu_si128(source));
  }
  static void store_fence() { asm volatile("sfence" ::: "memory"); }
  static void full_fence() { asm volatile("mfence" ::: "memory"); }
  static void load_fence() { asm volatile("lfence" ::: "memory"); }
#else
  // Lines of 64 bytes are a part of the layout; `dc` works on the processor's own, which are as long or longer.
  static void order_stores() { asm volatile("dmb ishst" ::: "memory"); }
  static void write_back(const Line* line) { asm volatile("dc cvac, %0" : : "r"(line) : "memory"); }
  static void invalidate(const Line* line) { asm volatile("dc civac, %0" : : "r"(line) : "memory"); }
  static void stream(Line* to, const std::byte* from, size_t lines) {
    std::memcpy(to, from, lines * kLineBytes);
    for (size_t at = 0; at < lines; ++at) write_back(to + at);
  }
  // `dsb`, because `dmb` does not wait for `dc`. The full system: the memory lies outside the domain of the caches.
  static void store_fence() { asm volatile("dsb sy" ::: "memory"); }
  static void full_fence() { asm volatile("dsb sy" ::: "memory"); }
  static void load_fence() { asm volatile("dmb ld" ::: "memory"); }
#endif

  static const LineInstructions chosen;
};

}  // namespace nupa::pool
