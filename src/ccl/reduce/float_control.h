// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The thread's control word of floating-point arithmetic: rounding, flushing of denormals, exceptions.
#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace nupa::ccl {

#if defined(__SSE2__)
using FloatControl = uint32_t;                              // MXCSR
inline constexpr FloatControl kUsualFloatControl = 0x1f80;  ///< all exceptions masked
inline constexpr FloatControl kPastExceptions = 0x3f;       ///< flags of past exceptions, which change nothing
inline FloatControl float_control() { return _mm_getcsr(); }
inline void set_float_control(FloatControl word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
using FloatControl = uint64_t;  // FPCR; the flags of past exceptions are in FPSR
inline constexpr FloatControl kUsualFloatControl = 0;
inline constexpr FloatControl kPastExceptions = 0;
inline FloatControl float_control() {
  FloatControl word;
  asm volatile("mrs %0, fpcr" : "=r"(word));
  return word;
}
inline void set_float_control(FloatControl word) { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#else
#error "no control word of floating-point arithmetic for this processor"
#endif

}  // namespace nupa::ccl
