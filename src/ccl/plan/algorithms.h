#pragma once
#include <limits>
#include <span>
#include <string>

#include "ccl/call.h"
#include "ccl/lane/lane_group.h"
#include "ccl/mapped/group.h"
#include "ccl/two_level/group.h"

namespace nupa::ccl {

/// Whether what an algorithm reduces is reduced in the order of the ranks, and rounded once.
enum class Order : uint8_t { kOfRanks, kOther };

/// An algorithm among the ranks of a MappedGroup, LaneGroup or TwoLevelGroup.
template <class Group>
struct Algorithm {
  Operation operation;
  const char* name;
  const char* why;
  Order order;
  bool (*fits)(const Call& call, const Group& group);
  /// What it takes, to be compared with others; of lanes: ns. The same on all ranks.
  double (*cost)(const Call& call, const Group& group);
  Steps (*start)(Group& group, const Call& call);
};

/// All there are. Each operation has one that fits always, but for groups of two levels; also among those in the order
/// of the ranks, up to kMaxSources of them.
template <class Group>
std::span<const Algorithm<Group>> algorithms();
template <>
std::span<const Algorithm<MappedGroup>> algorithms();
template <>
std::span<const Algorithm<LaneGroup>> algorithms();
template <>
std::span<const Algorithm<TwoLevelGroup>> algorithms();

/// What is said of the choice by whoever uses the program.
struct Wishes {
  bool deterministic = false;  ///< elements are reduced in the order of the ranks
  std::string name;            ///< of the algorithm, wherever it fits; empty: none
};

/// The one that is to be used, by name or by cost, of which the first that is least; null: none fits.
template <class Group>
const Algorithm<Group>* choose(const Call& call, const Group& group, const Wishes& wishes = {}) {
  const Algorithm<Group>* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const Algorithm<Group>& one : algorithms<Group>()) {
    if (one.operation != call.operation || !one.fits(call, group)) continue;
    if (wishes.deterministic && one.order != Order::kOfRanks && reduces(call.operation)) continue;
    if (!wishes.name.empty() && wishes.name == one.name) return &one;
    const double cost = one.cost(call, group);
    if (cost >= least) continue;
    best = &one;
    least = cost;
  }
  return best;
}

/// For people: "slots: each rank reduces all slots".
template <class Group>
std::string explain(const Algorithm<Group>& chosen, const Group& /*group*/) {
  return std::string(chosen.name) + ": " + chosen.why;
}
/// With the speed by which it was chosen: "ring: each slice goes around twice (a message takes 21.5 us, 1 MiB 930 us)".
std::string explain(const Algorithm<LaneGroup>& chosen, const LaneGroup& group);

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
