// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The two instructions that write a descriptor of 64 bytes to a device. Only processors that have them run them.
#include <linux/idxd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace nupa::copy {

#if defined(__x86_64__)

struct PortalInstructions {
  bool movdir64b = false;
  bool enqcmd = false;
};
inline PortalInstructions portal_instructions() {
  constexpr unsigned kFeatures = 7, kMovdir64b = 1u << 28, kEnqcmd = 1u << 29;  // Intel SDM, CPUID leaf 7, ECX
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(kFeatures, 0, &a, &b, &c, &d) == 0) return {};
  return {(c & kMovdir64b) != 0, (c & kEnqcmd) != 0};
}

/// All earlier stores are visible before the next descriptor is: the instructions below are weakly ordered stores.
inline void fence_before_descriptor() { _mm_sfence(); }

/// To a dedicated work queue, which has to have room.
__attribute__((target("movdir64b"))) inline void move_descriptor(void* portal, const dsa_hw_desc& descriptor) {
  _movdir64b(portal, &descriptor);
}
/// To a shared work queue. Returns false if it has no room.
__attribute__((target("enqcmd"))) inline bool enqueue_descriptor(void* portal, const dsa_hw_desc& descriptor) {
  return _enqcmd(portal, &descriptor) == 0;
}

#else

struct PortalInstructions {
  bool movdir64b = false;
  bool enqcmd = false;
};
inline PortalInstructions portal_instructions() { return {}; }
inline void fence_before_descriptor() {}
inline void move_descriptor(void*, const dsa_hw_desc&) {}
inline bool enqueue_descriptor(void*, const dsa_hw_desc&) { return false; }

#endif

}  // namespace nupa::copy
