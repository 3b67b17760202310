// SPDX-License-Identifier: Apache-2.0
#include "ccl/communicator/derived_id.h"

namespace nupa::ccl {
namespace {

/// The finalizer of splitmix64: each bit of the result depends on all bits of `value`.
uint64_t mix(uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

}  // namespace

CommunicatorId derive(const CommunicatorId& id, uint64_t first, uint64_t second) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  const uint64_t low = mix(id[0] + mix(first + kGolden) + 2 * mix(second + 2 * kGolden));
  return {low, mix(id[1] + mix(low) + mix(second + 3 * kGolden))};
}

}  // namespace nupa::ccl
