#include "ccl/lane/algorithms.h"
#include "ccl/plan/algorithms.h"

namespace nupa::ccl {
namespace {

/// Up to here a second round trip costs more than sending everything to all.
constexpr size_t kOneShotUpTo = 16384;
/// With more ranks, not all of them exchange messages with all: each link costs memory and the time to make it.
constexpr uint32_t kDirectRanks = 16;
/// Up to here sending everything log2(N) times costs less than more messages.
constexpr size_t kDoublingUpTo = 16384;
/// From here on a ring, which sends each byte twice only, is worth its N messages.
constexpr size_t kHalvingUpTo = size_t{1} << 20;
constexpr size_t kBruckUpTo = 4096;
/// One rank's data comes to a second one by one more message; large ones are better in more pieces under way.
constexpr size_t kBinomialUpTo = 16384;

bool fits_always(const Call&, const LaneGroup&) { return true; }
bool fits_two(const Call&, const LaneGroup& group) { return group.ranks() <= 2; }
bool fits_few(const Call&, const LaneGroup& group) { return group.ranks() <= kDirectRanks; }
bool fits_sources(const Call&, const LaneGroup& group) { return group.ranks() <= kMaxSources; }
bool fits_equal(const Call& call, const LaneGroup&) { return call.equal; }
bool fits_commuting(const Call& call, const LaneGroup&) { return call.reducer.function == nullptr; }

using enum Operation;
using lanes::Tree;

constexpr Algorithm<LaneGroup> kAlgorithms[] = {
    {kBarrier, "dissemination", kAnySize, "each rank tells log2(N) others", fits_always,
     [](LaneGroup& group, const Call&) { return lanes::barrier(group); }},
    {kBroadcast, "direct", kAnySize, "the root sends to all", fits_few,
     [](LaneGroup& group, const Call& call) { return lanes::broadcast_direct(group, broadcast_task(call)); }},
    {kBroadcast, "binomial", kBinomialUpTo, "log2(N) messages after each other", fits_always,
     [](LaneGroup& group, const Call& call) {
       return lanes::broadcast_tree(group, broadcast_task(call), Tree::kBinomial);
     }},
    {kBroadcast, "four-ary", kAnySize, "pieces go down a tree of four children each", fits_always,
     [](LaneGroup& group, const Call& call) {
       return lanes::broadcast_tree(group, broadcast_task(call), Tree::kFourAry);
     }},
    {kGather, "direct", kAnySize, "all send to the root", fits_few,
     [](LaneGroup& group, const Call& call) { return lanes::gather_direct(group, gather_task(call)); }},
    {kGather, "binomial", kAnySize, "blocks are put together on their way to the root", fits_equal,
     [](LaneGroup& group, const Call& call) { return lanes::gather_tree(group, gather_task(call)); }},
    {kGather, "direct", kAnySize, "all send to the root", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::gather_direct(group, gather_task(call)); }},
    {kScatter, "direct", kAnySize, "the root sends to each", fits_few,
     [](LaneGroup& group, const Call& call) { return lanes::scatter_direct(group, scatter_task(call)); }},
    {kScatter, "binomial", kAnySize, "blocks are taken apart on their way from the root", fits_equal,
     [](LaneGroup& group, const Call& call) { return lanes::scatter_tree(group, scatter_task(call)); }},
    {kScatter, "direct", kAnySize, "the root sends to each", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::scatter_direct(group, scatter_task(call)); }},
    {kAllGather, "direct", kAnySize, "all send to all", fits_few,
     [](LaneGroup& group, const Call& call) { return lanes::all_gather_direct(group, gather_task(call)); }},
    {kAllGather, "bruck", kBruckUpTo, "log2(N) messages of more blocks each time", fits_equal,
     [](LaneGroup& group, const Call& call) { return lanes::all_gather_bruck(group, gather_task(call)); }},
    {kAllGather, "ring", kAnySize, "each block goes around once", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::all_gather_ring(group, gather_task(call)); }},
    {kAllToAll, "direct", kAnySize, "all send to all", fits_few,
     [](LaneGroup& group, const Call& call) { return lanes::all_to_all_direct(group, exchange_task(call)); }},
    {kAllToAll, "bruck", kBruckUpTo, "log2(N) messages of half of the blocks", fits_equal,
     [](LaneGroup& group, const Call& call) { return lanes::all_to_all_bruck(group, exchange_task(call)); }},
    {kAllToAll, "pairwise", kAnySize, "one partner after the other", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::all_to_all_pairwise(group, exchange_task(call)); }},
    {kReduce, "direct", kAnySize, "all send to the root", fits_few,
     [](LaneGroup& group, const Call& call) { return lanes::reduce_direct(group, reduce_task(call)); }},
    {kReduce, "binomial", kBinomialUpTo, "log2(N) messages after each other", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::reduce_tree(group, reduce_task(call), Tree::kBinomial); }},
    {kReduce, "four-ary", kAnySize, "pieces go up a tree of four children each", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::reduce_tree(group, reduce_task(call), Tree::kFourAry); }},
    {kAllReduce, "one-shot", kAnySize, "two ranks send as much either way", fits_two,
     [](LaneGroup& group, const Call& call) { return lanes::all_reduce_one_shot(group, reduce_task(call)); }},
    {kAllReduce, "one-shot", kOneShotUpTo, "all send to all: one message's time", fits_few,
     [](LaneGroup& group, const Call& call) { return lanes::all_reduce_one_shot(group, reduce_task(call)); }},
    {kAllReduce, "slices", kAnySize, "each rank reduces a slice and sends it to all", fits_few,
     [](LaneGroup& group, const Call& call) { return lanes::all_reduce_slices(group, reduce_task(call)); }},
    {kAllReduce, "doubling", kDoublingUpTo, "log2(N) exchanges of everything", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::all_reduce_doubling(group, reduce_task(call)); }},
    {kAllReduce, "halving", kHalvingUpTo, "halves are exchanged, reduced and put together again", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::all_reduce_halving(group, reduce_task(call)); }},
    {kAllReduce, "ring", kAnySize, "each slice goes around twice", fits_commuting,
     [](LaneGroup& group, const Call& call) { return lanes::all_reduce_ring(group, reduce_task(call)); }},
    {kAllReduce, "halving", kAnySize, "halves are exchanged, reduced and put together again", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::all_reduce_halving(group, reduce_task(call)); }},
    {kReduceScatter, "direct", kAnySize, "each rank sends each other one its block", fits_few,
     [](LaneGroup& group, const Call& call) { return lanes::reduce_scatter_direct(group, reduce_task(call)); }},
    {kReduceScatter, "ring", kAnySize, "each block goes around once", fits_commuting,
     [](LaneGroup& group, const Call& call) { return lanes::reduce_scatter_ring(group, reduce_task(call)); }},
    {kReduceScatter, "direct", kAnySize, "each rank sends each other one its block", fits_sources,
     [](LaneGroup& group, const Call& call) { return lanes::reduce_scatter_direct(group, reduce_task(call)); }},
    {kScan, "direct", kAnySize, "each rank sends to those after it", fits_few,
     [](LaneGroup& group, const Call& call) { return lanes::scan_direct(group, reduce_task(call)); }},
    {kScan, "doubling", kAnySize, "log2(N) exchanges", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::scan_doubling(group, reduce_task(call)); }},
    {kExscan, "direct", kAnySize, "each rank sends to those after it", fits_few,
     [](LaneGroup& group, const Call& call) { return lanes::scan_direct(group, reduce_task(call)); }},
    {kExscan, "doubling", kAnySize, "log2(N) exchanges", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::scan_doubling(group, reduce_task(call)); }},
};

}  // namespace

template <>
std::span<const Algorithm<LaneGroup>> algorithms() {
  return kAlgorithms;
}

}  // namespace nupa::ccl
