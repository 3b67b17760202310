#pragma once
#include <span>
#include <string>

#include "ccl/comm/call.h"
#include "ccl/lane/lane_group.h"
#include "ccl/mapped/group.h"

namespace nupa::ccl {

/// An algorithm among the ranks of a MappedGroup or LaneGroup.
template <class Group>
struct Algorithm {
  Operation operation;
  const char* name;
  size_t largest;  ///< of the arrays that it is good for, in bytes; each has its reason
  const char* why;
  bool (*fits)(const Call& call, const Group& group);
  Steps (*start)(Group& group, const Call& call);
};

constexpr size_t kAnySize = SIZE_MAX;

/// All there are, in the order in which they are tried. Each operation has one that fits always, of any size.
template <class Group>
std::span<const Algorithm<Group>> algorithms();
template <>
std::span<const Algorithm<MappedGroup>> algorithms();
template <>
std::span<const Algorithm<LaneGroup>> algorithms();

/// The one that is to be used. `wanted`: the name of one, to be used wherever it fits; empty: none.
template <class Group>
const Algorithm<Group>& choose(const Call& call, const Group& group, const std::string& wanted) {
  const Algorithm<Group>* best = nullptr;
  for (const Algorithm<Group>& one : algorithms<Group>()) {
    if (one.operation != call.operation || !one.fits(call, group)) continue;
    if (wanted == one.name) return one;
    if (best == nullptr && call.bytes() <= one.largest) best = &one;
  }
  return *best;
}

// What a call is to an algorithm.
inline BroadcastTask broadcast_task(const Call& call) { return {call.root, call.out, call.bytes()}; }
inline GatherTask gather_task(const Call& call) {
  return {call.root, call.in, call.bytes(), call.out, call.out_counts.in_bytes(), call.equal};
}
inline ScatterTask scatter_task(const Call& call) {
  return {call.root, call.in, call.in_counts.in_bytes(), call.out, call.bytes(), call.equal};
}
inline ExchangeTask exchange_task(const Call& call) {
  return {call.in, call.in_counts.in_bytes(), call.out, call.out_counts.in_bytes(), call.equal};
}
inline ReduceTask reduce_task(const Call& call) {
  return {call.reducer,
          call.in,
          call.out,
          call.elements,
          call.root,
          call.in_counts.in_bytes(),
          call.operation == Operation::kExscan};
}

}  // namespace nupa::ccl
