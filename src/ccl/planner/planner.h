#pragma once
/// Which algorithm does a call: by the operation, its size, the ranks of the group and, between hosts, the speed of the
/// links that they have measured. It lists every algorithm with its condition, its cost and its reason in words.
/// Communicators use it, in the thread that has their turn. All ranks have to come to the same choice, so nothing that
/// only one rank knows goes into it; link_speed.h measures the links together.
#include <limits>
#include <span>
#include <string>

#include "ccl/call/call.h"
#include "ccl/channel/lane_group.h"
#include "ccl/channel/shm_group.h"
#include "ccl/channel/hierarchical_group.h"

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
  /// The call has to stay until the steps are done.
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

/// Begins a call by the algorithm that choose() finds, which there is always one of for these groups.
template <class Group>
Steps start_best(Group& group, const Call& call) {
  return choose(call, group)->start(group, call);
}
/// What a TwoLevelGroup needs of the planner.
constexpr TwoLevelGroup::Parts kBestParts{start_best<MappedGroup>, start_best<LaneGroup>};

/// For people: "slots: each rank reduces all slots".
template <class Group>
std::string explain(const Algorithm<Group>& chosen, const Group& /*group*/) {
  return std::string(chosen.name) + ": " + chosen.why;
}
/// With the speed by which it was chosen: "ring: each slice goes around twice (a message takes 21.5 us, 1 MiB 930 us)".
std::string explain(const Algorithm<LaneGroup>& chosen, const LaneGroup& group);

}  // namespace nupa::ccl
