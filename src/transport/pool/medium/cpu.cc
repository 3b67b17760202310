// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/medium/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace nupa::pool {

LineInstructions line_instructions() {
#if defined(__x86_64__)
  // Leaf 7, subleaf 0, EBX (Intel SDM volume 2, CPUID).
  constexpr unsigned kLeaf = 7;
  constexpr unsigned kClflushoptBit = 1u << 23;
  constexpr unsigned kClwbBit = 1u << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(kLeaf, 0, &a, &b, &c, &d) || (b & kClflushoptBit) == 0) return LineInstructions::kClflush;
  return (b & kClwbBit) != 0 ? LineInstructions::kClwb : LineInstructions::kClflushopt;
#else
  return LineInstructions::kDc;
#endif
}

const LineInstructions HardwareCpu::chosen = line_instructions();

const char* name_of(LineInstructions instructions) {
  switch (instructions) {
    case LineInstructions::kClflush:
      return "clflush";
    case LineInstructions::kClflushopt:
      return "clflushopt";
    case LineInstructions::kClwb:
      return "clwb and clflushopt";
    case LineInstructions::kDc:
      break;
  }
  return "dc cvac and dc civac";
}

}  // namespace nupa::pool
