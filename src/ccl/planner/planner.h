// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Chooses the algorithm of a call by the operation, its size, the ranks of the group and, between hosts, the measured
/// speed of the links. It lists every algorithm with its condition, its cost and its reason in words. Communicators use
/// it in the thread that has their turn. All ranks must make the same choice, so the choice depends on nothing that
/// only one rank has; in link_speed.h, the ranks measure the links together.
#include <limits>
#include <span>
#include <string>

#include "ccl/call/call.h"
#include "ccl/channel/channel_group.h"
#include "ccl/channel/shm_group.h"
#include "ccl/channel/hierarchical_group.h"

namespace nupa::ccl {

/// The order of a reduction: the order of the ranks, with one rounding, or another one.
enum class Order : uint8_t { kOfRanks, kOther };

/// An algorithm for the ranks of a ShmGroup, ChannelGroup or HierarchicalGroup.
template <class Group>
struct Algorithm {
  Operation operation;
  const char* name;
  const char* why;
  Order order;
  bool (*fits)(const Call& call, const Group& group);
  /// The cost, which is compared with that of other algorithms; for a ChannelGroup in ns. The same on all ranks.
  double (*cost)(const Call& call, const Group& group);
  /// The call must stay until the steps are done.
  CollectiveTask (*start)(Group& group, const Call& call);
};

/// Returns all algorithms. Except in hierarchical groups, each operation has one that always fits. For up to
/// kMaxSources ranks, one of those that reduce in the order of the ranks fits too.
template <class Group>
std::span<const Algorithm<Group>> algorithms();
template <>
std::span<const Algorithm<ShmGroup>> algorithms();
template <>
std::span<const Algorithm<ChannelGroup>> algorithms();
template <>
std::span<const Algorithm<HierarchicalGroup>> algorithms();

/// The options that the user of the program has set.
struct Wishes {
  bool deterministic = false;  ///< elements are reduced in the order of the ranks
  std::string name;            ///< the algorithm that is used wherever it fits; empty: none
};

/// Returns the algorithm with the wanted name, or else the first one with the least cost. Returns null if none fits.
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

/// Starts a call with the algorithm that choose() returns. The groups used here always have one.
template <class Group>
CollectiveTask start_best(Group& group, const Call& call) {
  return choose(call, group)->start(group, call);
}
/// The planner's part of a HierarchicalGroup.
constexpr HierarchicalGroup::Parts kBestParts{start_best<ShmGroup>, start_best<ChannelGroup>};

/// Returns a text for people: "slots: each rank reduces all slots".
template <class Group>
std::string explain(const Algorithm<Group>& chosen, const Group& /*group*/) {
  return std::string(chosen.name) + ": " + chosen.why;
}
/// The same with the speed that the choice is based on: "ring: each chunk goes around twice (a message takes 21.5 us, 1
/// MiB 930 us)".
std::string explain(const Algorithm<ChannelGroup>& chosen, const ChannelGroup& group);

}  // namespace nupa::ccl
