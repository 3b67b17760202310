// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstdio>

#include "base/clock.h"
#include "ccl/algorithms/messages.h"
#include "ccl/planner/planner.h"

namespace nupa::ccl {
namespace {

/// In larger groups, not all ranks exchange messages with all others unless they must: each connection costs memory and
/// the time to create it.
constexpr uint32_t kDirectRanks = 16;

bool fits_always(const Call&, const ChannelGroup&) { return true; }
bool fits_few(const Call&, const ChannelGroup& group) { return group.ranks() <= kDirectRanks; }
bool fits_sources(const Call&, const ChannelGroup& group) { return group.ranks() <= kMaxSources; }
bool fits_equal(const Call& call, const ChannelGroup&) { return call.equal; }
bool fits_commuting(const Call& call, const ChannelGroup&) { return call.reducer.function == nullptr; }

/// The cost of a call in ns, by the speed of the links. Lengths that only some ranks have count as 0.
struct Cost {
  double ranks;
  double bytes;
  LinkSpeed link;
  Cost(const Call& call, const ChannelGroup& group)
      : ranks(group.ranks()), bytes(call.equal ? static_cast<double>(call.bytes()) : 0), link(group.speed()) {}

  /// Rounds of an algorithm that doubles a distance or a size.
  double rounds() const { return std::bit_width(static_cast<uint32_t>(ranks) - 1); }
  bool is_power_of_two() const { return std::has_single_bit(static_cast<uint32_t>(ranks)); }
  /// The cost of `count` messages of `bytes_each`, one after the other.
  double messages(double count, double bytes_each) const {
    return count * (link.message_ns + bytes_each * link.byte_ns);
  }
  /// The cost of one message to or from each other rank, all outstanding at the same time.
  double all_others(double bytes_each) const {
    return link.message_ns + std::max(ranks - 2, 0.0) * link.more_ns +
           std::max(ranks - 1, 0.0) * bytes_each * link.byte_ns;
  }
  /// If the number of ranks is not a power of two, some ranks pass all of their data to others before, and get it back
  /// after.
  double folded(double cost) const { return is_power_of_two() ? cost : cost + messages(2, bytes); }
  /// The cost if each rank sends each byte, and sends it once more.
  double twice() const { return 2 * bytes * (ranks - 1) / ranks * link.byte_ns; }
  /// A tree whose root has `children` children, with fragments in flight at each level.
  double tree(double levels, double children) const {
    const double fragment = std::min(bytes, kPiece);
    return messages(levels, fragment) + levels * (children - 1) * link.more_ns + children * bytes * link.byte_ns;
  }
  static constexpr double kPiece = 65536;
};

double direct(const Call& call, const ChannelGroup& group) {
  const Cost cost(call, group);
  return cost.all_others(cost.bytes);
}
/// Groups with more than kDirectRanks ranks use a direct algorithm only if there is nothing better.
double of_few(double cost, const Call& call, const ChannelGroup& group) {
  return group.ranks() <= kDirectRanks ? cost : 1000 * direct(call, group);
}
double direct_of_any(const Call& call, const ChannelGroup& group) { return of_few(direct(call, group), call, group); }
double binomial(const Call& call, const ChannelGroup& group) {
  const Cost cost(call, group);
  return cost.tree(cost.rounds(), cost.rounds());
}
double four_ary(const Call& call, const ChannelGroup& group) {
  const Cost cost(call, group);
  double levels = 0;
  for (double reached = 1, width = 1; reached < cost.ranks; ++levels) reached += width *= 4;
  return cost.tree(levels, std::min(cost.ranks - 1, 4.0));
}
/// Blocks that are joined, or divided, on their way.
double block_tree(const Call& call, const ChannelGroup& group) {
  const Cost cost(call, group);
  return cost.messages(cost.rounds(), 0) + (cost.ranks - 1) * cost.bytes * cost.link.byte_ns;
}
double all_gather_ring(const Call& call, const ChannelGroup& group) {
  const Cost cost(call, group);
  return cost.messages(cost.ranks - 1, cost.bytes);
}
double all_to_all_bruck(const Call& call, const ChannelGroup& group) {
  const Cost cost(call, group);
  return cost.messages(cost.rounds(), cost.ranks / 2 * cost.bytes);
}
double slices(const Call& call, const ChannelGroup& group) {
  const Cost cost(call, group);
  return 2 * cost.all_others(0) + cost.twice();
}
double slices_of_any(const Call& call, const ChannelGroup& group) { return of_few(slices(call, group), call, group); }
double doubling(const Call& call, const ChannelGroup& group) {
  const Cost cost(call, group);
  return cost.folded(cost.messages(cost.rounds(), cost.bytes));
}
double halving(const Call& call, const ChannelGroup& group) {
  const Cost cost(call, group);
  return cost.folded(cost.messages(2 * cost.rounds(), 0) + cost.twice());
}
double all_reduce_ring(const Call& call, const ChannelGroup& group) {
  const Cost cost(call, group);
  return cost.messages(2 * (cost.ranks - 1), 0) + cost.twice();
}

using enum Operation;
using enum Order;
using messages::Tree;

/// Small groups reduce in the order of the ranks. The other algorithms are for larger groups, or are chosen by name.
double of_many(double cost, const ChannelGroup& group) { return group.ranks() <= kDirectRanks ? 1000 * cost : cost; }
template <auto kCost>
double if_many(const Call& call, const ChannelGroup& group) {
  return of_many(kCost(call, group), group);
}

constexpr Algorithm<ChannelGroup> kAlgorithms[] = {
    {kBarrier, "dissemination", "each rank notifies log2(N) others", kOfRanks, fits_always, direct,
     [](ChannelGroup& group, const Call&) { return messages::barrier(group); }},
    {kBroadcast, "direct", "the root sends to all", kOfRanks, fits_few, direct, messages::broadcast_direct},
    {kBroadcast, "binomial", "log2(N) messages, one after the other", kOfRanks, fits_always, binomial,
     [](ChannelGroup& group, const Call& call) { return messages::broadcast_tree(group, call, Tree::kBinomial); }},
    {kBroadcast, "four-ary", "fragments go down a tree of four children each", kOfRanks, fits_always, four_ary,
     [](ChannelGroup& group, const Call& call) { return messages::broadcast_tree(group, call, Tree::kFourAry); }},
    {kGather, "direct", "all send to the root", kOfRanks, fits_always, direct_of_any, messages::gather_direct},
    {kGather, "binomial", "blocks are joined on their way to the root", kOfRanks, fits_equal, block_tree,
     messages::gather_tree},
    {kScatter, "direct", "the root sends to each", kOfRanks, fits_always, direct_of_any, messages::scatter_direct},
    {kScatter, "binomial", "blocks are divided on their way from the root", kOfRanks, fits_equal, block_tree,
     messages::scatter_tree},
    {kAllGather, "direct", "all send to all", kOfRanks, fits_few, direct, messages::all_gather_direct},
    {kAllGather, "bruck", "log2(N) messages, each with more blocks", kOfRanks, fits_equal, block_tree,
     messages::all_gather_bruck},
    {kAllGather, "ring", "each block goes around once", kOfRanks, fits_always, all_gather_ring,
     messages::all_gather_ring},
    {kAllToAll, "direct", "all send to all", kOfRanks, fits_few, direct, messages::all_to_all_direct},
    {kAllToAll, "bruck", "log2(N) messages, each with half of the blocks", kOfRanks, fits_equal, all_to_all_bruck,
     messages::all_to_all_bruck},
    {kAllToAll, "pairwise", "one partner after the other", kOfRanks, fits_always, all_gather_ring,
     messages::all_to_all_pairwise},
    {kReduce, "direct", "all send to the root", kOfRanks, fits_sources, direct_of_any, messages::reduce_direct},
    {kReduce, "binomial", "log2(N) messages, one after the other", kOther, fits_always, if_many<binomial>,
     [](ChannelGroup& group, const Call& call) { return messages::reduce_tree(group, call, Tree::kBinomial); }},
    {kReduce, "four-ary", "fragments go up a tree of four children each", kOther, fits_always, if_many<four_ary>,
     [](ChannelGroup& group, const Call& call) { return messages::reduce_tree(group, call, Tree::kFourAry); }},
    {kAllReduce, "one-shot", "all send to all: takes the time of one message", kOfRanks, fits_few, direct,
     messages::all_reduce_one_shot},
    {kAllReduce, "slices", "each rank reduces a chunk and sends it to all", kOfRanks, fits_sources, slices_of_any,
     messages::all_reduce_slices},
    {kAllReduce, "doubling", "log2(N) exchanges of the whole array", kOther, fits_always, if_many<doubling>,
     messages::all_reduce_doubling},
    {kAllReduce, "halving", "halves are exchanged and reduced, then gathered", kOther, fits_always, if_many<halving>,
     messages::all_reduce_halving},
    {kAllReduce, "ring", "each chunk goes around twice", kOther, fits_commuting, if_many<all_reduce_ring>,
     messages::all_reduce_ring},
    {kReduceScatter, "direct", "each rank sends each other rank its block", kOfRanks, fits_sources, direct_of_any,
     messages::reduce_scatter_direct},
    {kReduceScatter, "ring", "each block goes around once", kOther, fits_commuting, if_many<all_gather_ring>,
     messages::reduce_scatter_ring},
    {kScan, "direct", "each rank sends to the ranks after it", kOfRanks, fits_sources, direct_of_any,
     messages::scan_direct},
    {kScan, "doubling", "log2(N) exchanges", kOther, fits_always, if_many<doubling>, messages::scan_doubling},
    {kExscan, "direct", "each rank sends to the ranks after it", kOfRanks, fits_sources, direct_of_any,
     messages::scan_direct},
    {kExscan, "doubling", "log2(N) exchanges", kOther, fits_always, if_many<doubling>, messages::scan_doubling},
};

}  // namespace

template <>
std::span<const Algorithm<ChannelGroup>> algorithms() {
  return kAlgorithms;
}

std::string explain(const Algorithm<ChannelGroup>& chosen, const ChannelGroup& group) {
  constexpr auto kNsPerUs = static_cast<double>(base::kNsPerUs);
  constexpr double kMebibyte = 1 << 20;
  char speed[96];
  std::snprintf(speed, sizeof speed, " (a message takes %.1f us, 1 MiB %.0f us)", group.speed().message_ns / kNsPerUs,
                group.speed().byte_ns * kMebibyte / kNsPerUs);
  return std::string(chosen.name) + ": " + chosen.why + speed;
}

}  // namespace nupa::ccl
