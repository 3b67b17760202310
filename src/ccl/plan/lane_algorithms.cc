#include <algorithm>
#include <bit>
#include <cstdio>

#include "ccl/lane/algorithms.h"
#include "ccl/plan/algorithms.h"

namespace nupa::ccl {
namespace {

/// With more ranks, not all of them exchange messages with all unless they must: each link costs memory and the time to
/// make it.
constexpr uint32_t kDirectRanks = 16;

bool fits_always(const Call&, const LaneGroup&) { return true; }
bool fits_few(const Call&, const LaneGroup& group) { return group.ranks() <= kDirectRanks; }
bool fits_sources(const Call&, const LaneGroup& group) { return group.ranks() <= kMaxSources; }
bool fits_equal(const Call& call, const LaneGroup&) { return call.equal; }
bool fits_commuting(const Call& call, const LaneGroup&) { return call.reducer.function == nullptr; }

/// A call's cost by the links' speed. Lengths that not all ranks know are left out.
struct Cost {
  double ranks;
  double bytes;
  LinkSpeed link;
  Cost(const Call& call, const LaneGroup& group)
      : ranks(group.ranks()), bytes(call.equal ? static_cast<double>(call.bytes()) : 0), link(group.speed()) {}

  /// Rounds of an algorithm that doubles.
  double rounds() const { return std::bit_width(static_cast<uint32_t>(ranks) - 1); }
  bool is_power_of_two() const { return std::has_single_bit(static_cast<uint32_t>(ranks)); }
  /// Messages of so many bytes one after the other.
  double messages(double count, double bytes_each) const {
    return count * (link.message_ns + bytes_each * link.byte_ns);
  }
  /// One to or from each other rank, all under way at once.
  double all_others(double bytes_each) const {
    return link.message_ns + std::max(ranks - 2, 0.0) * link.more_ns +
           std::max(ranks - 1, 0.0) * bytes_each * link.byte_ns;
  }
  /// Where the number of ranks is no power of two, some hand all they have to others before and after.
  double folded(double cost) const { return is_power_of_two() ? cost : cost + messages(2, bytes); }
  /// Each byte is sent by each rank, and once more.
  double twice() const { return 2 * bytes * (ranks - 1) / ranks * link.byte_ns; }
  /// A tree whose root has so many children, with pieces under way at each level.
  double tree(double levels, double children) const {
    const double piece = std::min(bytes, kPiece);
    return messages(levels, piece) + levels * (children - 1) * link.more_ns + children * bytes * link.byte_ns;
  }
  static constexpr double kPiece = 65536;
};

double direct(const Call& call, const LaneGroup& group) {
  const Cost cost(call, group);
  return cost.all_others(cost.bytes);
}
/// Where there is nothing better, but for more ranks than are to be linked with each other.
double last(const Call& call, const LaneGroup& group) { return 1000 * direct(call, group); }
double binomial(const Call& call, const LaneGroup& group) {
  const Cost cost(call, group);
  return cost.tree(cost.rounds(), cost.rounds());
}
double four_ary(const Call& call, const LaneGroup& group) {
  const Cost cost(call, group);
  double levels = 0;
  for (double reached = 1, width = 1; reached < cost.ranks; ++levels) reached += width *= 4;
  return cost.tree(levels, std::min(cost.ranks - 1, 4.0));
}
/// Blocks that are put together, or taken apart, on their way.
double block_tree(const Call& call, const LaneGroup& group) {
  const Cost cost(call, group);
  return cost.messages(cost.rounds(), 0) + (cost.ranks - 1) * cost.bytes * cost.link.byte_ns;
}
double all_gather_ring(const Call& call, const LaneGroup& group) {
  const Cost cost(call, group);
  return cost.messages(cost.ranks - 1, cost.bytes);
}
double all_to_all_bruck(const Call& call, const LaneGroup& group) {
  const Cost cost(call, group);
  return cost.messages(cost.rounds(), cost.ranks / 2 * cost.bytes);
}
double slices(const Call& call, const LaneGroup& group) {
  const Cost cost(call, group);
  return 2 * cost.all_others(0) + cost.twice();
}
double doubling(const Call& call, const LaneGroup& group) {
  const Cost cost(call, group);
  return cost.folded(cost.messages(cost.rounds(), cost.bytes));
}
double halving(const Call& call, const LaneGroup& group) {
  const Cost cost(call, group);
  return cost.folded(cost.messages(2 * cost.rounds(), 0) + cost.twice());
}
double all_reduce_ring(const Call& call, const LaneGroup& group) {
  const Cost cost(call, group);
  return cost.messages(2 * (cost.ranks - 1), 0) + cost.twice();
}

using enum Operation;
using enum Order;
using lanes::Tree;

/// Reductions of few ranks are in the order of the ranks; other ones are for more than those, or by name.
double of_many(double cost, const LaneGroup& group) { return group.ranks() <= kDirectRanks ? 1000 * cost : cost; }
template <auto kCost>
double if_many(const Call& call, const LaneGroup& group) {
  return of_many(kCost(call, group), group);
}

constexpr Algorithm<LaneGroup> kAlgorithms[] = {
    {kBarrier, "dissemination", "each rank tells log2(N) others", kOfRanks, fits_always, direct,
     [](LaneGroup& group, const Call&) { return lanes::barrier(group); }},
    {kBroadcast, "direct", "the root sends to all", kOfRanks, fits_few, direct,
     [](LaneGroup& group, const Call& call) { return lanes::broadcast_direct(group, broadcast_task(call)); }},
    {kBroadcast, "binomial", "log2(N) messages after each other", kOfRanks, fits_always, binomial,
     [](LaneGroup& group, const Call& call) {
       return lanes::broadcast_tree(group, broadcast_task(call), Tree::kBinomial);
     }},
    {kBroadcast, "four-ary", "pieces go down a tree of four children each", kOfRanks, fits_always, four_ary,
     [](LaneGroup& group, const Call& call) {
       return lanes::broadcast_tree(group, broadcast_task(call), Tree::kFourAry);
     }},
    {kGather, "direct", "all send to the root", kOfRanks, fits_few, direct,
     [](LaneGroup& group, const Call& call) { return lanes::gather_direct(group, gather_task(call)); }},
    {kGather, "binomial", "blocks are put together on their way to the root", kOfRanks, fits_equal, block_tree,
     [](LaneGroup& group, const Call& call) { return lanes::gather_tree(group, gather_task(call)); }},
    {kGather, "direct", "all send to the root", kOfRanks, fits_always, last,
     [](LaneGroup& group, const Call& call) { return lanes::gather_direct(group, gather_task(call)); }},
    {kScatter, "direct", "the root sends to each", kOfRanks, fits_few, direct,
     [](LaneGroup& group, const Call& call) { return lanes::scatter_direct(group, scatter_task(call)); }},
    {kScatter, "binomial", "blocks are taken apart on their way from the root", kOfRanks, fits_equal, block_tree,
     [](LaneGroup& group, const Call& call) { return lanes::scatter_tree(group, scatter_task(call)); }},
    {kScatter, "direct", "the root sends to each", kOfRanks, fits_always, last,
     [](LaneGroup& group, const Call& call) { return lanes::scatter_direct(group, scatter_task(call)); }},
    {kAllGather, "direct", "all send to all", kOfRanks, fits_few, direct,
     [](LaneGroup& group, const Call& call) { return lanes::all_gather_direct(group, gather_task(call)); }},
    {kAllGather, "bruck", "log2(N) messages of more blocks each time", kOfRanks, fits_equal, block_tree,
     [](LaneGroup& group, const Call& call) { return lanes::all_gather_bruck(group, gather_task(call)); }},
    {kAllGather, "ring", "each block goes around once", kOfRanks, fits_always, all_gather_ring,
     [](LaneGroup& group, const Call& call) { return lanes::all_gather_ring(group, gather_task(call)); }},
    {kAllToAll, "direct", "all send to all", kOfRanks, fits_few, direct,
     [](LaneGroup& group, const Call& call) { return lanes::all_to_all_direct(group, exchange_task(call)); }},
    {kAllToAll, "bruck", "log2(N) messages of half of the blocks", kOfRanks, fits_equal, all_to_all_bruck,
     [](LaneGroup& group, const Call& call) { return lanes::all_to_all_bruck(group, exchange_task(call)); }},
    {kAllToAll, "pairwise", "one partner after the other", kOfRanks, fits_always, all_gather_ring,
     [](LaneGroup& group, const Call& call) { return lanes::all_to_all_pairwise(group, exchange_task(call)); }},
    {kReduce, "direct", "all send to the root", kOfRanks, fits_few, direct,
     [](LaneGroup& group, const Call& call) { return lanes::reduce_direct(group, reduce_task(call)); }},
    {kReduce, "binomial", "log2(N) messages after each other", kOther, fits_always, if_many<binomial>,
     [](LaneGroup& group, const Call& call) { return lanes::reduce_tree(group, reduce_task(call), Tree::kBinomial); }},
    {kReduce, "four-ary", "pieces go up a tree of four children each", kOther, fits_always, if_many<four_ary>,
     [](LaneGroup& group, const Call& call) { return lanes::reduce_tree(group, reduce_task(call), Tree::kFourAry); }},
    {kReduce, "direct", "all send to the root", kOfRanks, fits_sources, last,
     [](LaneGroup& group, const Call& call) { return lanes::reduce_direct(group, reduce_task(call)); }},
    {kAllReduce, "one-shot", "all send to all: one message's time", kOfRanks, fits_few, direct,
     [](LaneGroup& group, const Call& call) { return lanes::all_reduce_one_shot(group, reduce_task(call)); }},
    {kAllReduce, "slices", "each rank reduces a slice and sends it to all", kOfRanks, fits_few, slices,
     [](LaneGroup& group, const Call& call) { return lanes::all_reduce_slices(group, reduce_task(call)); }},
    {kAllReduce, "doubling", "log2(N) exchanges of everything", kOther, fits_always, if_many<doubling>,
     [](LaneGroup& group, const Call& call) { return lanes::all_reduce_doubling(group, reduce_task(call)); }},
    {kAllReduce, "halving", "halves are exchanged, reduced and put together again", kOther, fits_always,
     if_many<halving>,
     [](LaneGroup& group, const Call& call) { return lanes::all_reduce_halving(group, reduce_task(call)); }},
    {kAllReduce, "ring", "each slice goes around twice", kOther, fits_commuting, if_many<all_reduce_ring>,
     [](LaneGroup& group, const Call& call) { return lanes::all_reduce_ring(group, reduce_task(call)); }},
    {kAllReduce, "slices", "each rank reduces a slice and sends it to all", kOfRanks, fits_sources, last,
     [](LaneGroup& group, const Call& call) { return lanes::all_reduce_slices(group, reduce_task(call)); }},
    {kReduceScatter, "direct", "each rank sends each other one its block", kOfRanks, fits_few, direct,
     [](LaneGroup& group, const Call& call) { return lanes::reduce_scatter_direct(group, reduce_task(call)); }},
    {kReduceScatter, "ring", "each block goes around once", kOther, fits_commuting, if_many<all_gather_ring>,
     [](LaneGroup& group, const Call& call) { return lanes::reduce_scatter_ring(group, reduce_task(call)); }},
    {kReduceScatter, "direct", "each rank sends each other one its block", kOfRanks, fits_sources, last,
     [](LaneGroup& group, const Call& call) { return lanes::reduce_scatter_direct(group, reduce_task(call)); }},
    {kScan, "direct", "each rank sends to those after it", kOfRanks, fits_few, direct,
     [](LaneGroup& group, const Call& call) { return lanes::scan_direct(group, reduce_task(call)); }},
    {kScan, "doubling", "log2(N) exchanges", kOther, fits_always, if_many<doubling>,
     [](LaneGroup& group, const Call& call) { return lanes::scan_doubling(group, reduce_task(call)); }},
    {kScan, "direct", "each rank sends to those after it", kOfRanks, fits_sources, last,
     [](LaneGroup& group, const Call& call) { return lanes::scan_direct(group, reduce_task(call)); }},
    {kExscan, "direct", "each rank sends to those after it", kOfRanks, fits_few, direct,
     [](LaneGroup& group, const Call& call) { return lanes::scan_direct(group, reduce_task(call)); }},
    {kExscan, "doubling", "log2(N) exchanges", kOther, fits_always, if_many<doubling>,
     [](LaneGroup& group, const Call& call) { return lanes::scan_doubling(group, reduce_task(call)); }},
    {kExscan, "direct", "each rank sends to those after it", kOfRanks, fits_sources, last,
     [](LaneGroup& group, const Call& call) { return lanes::scan_direct(group, reduce_task(call)); }},
};

}  // namespace

template <>
std::span<const Algorithm<LaneGroup>> algorithms() {
  return kAlgorithms;
}

std::string explain(const Algorithm<LaneGroup>& chosen, const LaneGroup& group) {
  constexpr double kNsPerUs = 1000;
  constexpr double kMebibyte = 1 << 20;
  char speed[96];
  std::snprintf(speed, sizeof speed, " (a message takes %.1f us, 1 MiB %.0f us)", group.speed().message_ns / kNsPerUs,
                group.speed().byte_ns * kMebibyte / kNsPerUs);
  return std::string(chosen.name) + ": " + chosen.why + speed;
}

}  // namespace nupa::ccl
