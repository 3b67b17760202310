#include "ccl/lane/algorithms.h"
#include "ccl/plan/algorithms.h"

namespace nupa::ccl {
namespace {

/// Up to here a second round trip costs more than sending everything to all.
constexpr size_t kOneShotUpTo = 16384;

bool fits_always(const Call&, const LaneGroup&) { return true; }
bool fits_two(const Call&, const LaneGroup& group) { return group.ranks() <= 2; }

using enum Operation;

constexpr Algorithm<LaneGroup> kAlgorithms[] = {
    {kBarrier, "dissemination", kAnySize, "each rank tells log2(N) others", fits_always,
     [](LaneGroup& group, const Call&) { return lanes::barrier(group); }},
    {kBroadcast, "direct", kAnySize, "the root sends to all", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::broadcast_direct(group, broadcast_task(call)); }},
    {kGather, "direct", kAnySize, "all send to the root", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::gather_direct(group, gather_task(call)); }},
    {kScatter, "direct", kAnySize, "the root sends to each", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::scatter_direct(group, scatter_task(call)); }},
    {kAllGather, "direct", kAnySize, "all send to all", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::all_gather_direct(group, gather_task(call)); }},
    {kAllToAll, "direct", kAnySize, "all send to all", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::all_to_all_direct(group, exchange_task(call)); }},
    {kReduce, "direct", kAnySize, "all send to the root", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::reduce_direct(group, reduce_task(call)); }},
    {kAllReduce, "one-shot", kAnySize, "two ranks send as much either way", fits_two,
     [](LaneGroup& group, const Call& call) { return lanes::all_reduce_one_shot(group, reduce_task(call)); }},
    {kAllReduce, "one-shot", kOneShotUpTo, "all send to all: one message's time", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::all_reduce_one_shot(group, reduce_task(call)); }},
    {kAllReduce, "slices", kAnySize, "each rank reduces a slice and sends it to all", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::all_reduce_slices(group, reduce_task(call)); }},
    {kReduceScatter, "direct", kAnySize, "each rank sends each other one its block", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::reduce_scatter_direct(group, reduce_task(call)); }},
    {kScan, "direct", kAnySize, "each rank sends to those after it", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::scan_direct(group, reduce_task(call)); }},
    {kExscan, "direct", kAnySize, "each rank sends to those after it", fits_always,
     [](LaneGroup& group, const Call& call) { return lanes::scan_direct(group, reduce_task(call)); }},
};

}  // namespace

template <>
std::span<const Algorithm<LaneGroup>> algorithms() {
  return kAlgorithms;
}

}  // namespace nupa::ccl
