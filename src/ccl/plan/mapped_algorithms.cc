#include "ccl/mapped/algorithms.h"
#include "ccl/plan/algorithms.h"

namespace nupa::ccl {
namespace {

/// Up to here one barrier fewer is worth more than reducing each element once only.
constexpr size_t kSlotsUpTo = 8192;
/// The same for the root of a reduce, while it has few sources.
constexpr size_t kReduceSlotsUpTo = 32768;

bool fits_always(const Call&, const MappedGroup&) { return true; }
bool fits_line(const Call& call, const MappedGroup&) { return call.bytes() <= FlagLine::kPayload && call.equal; }

using enum Operation;
namespace m = mapped;

constexpr Algorithm<MappedGroup> kAlgorithms[] = {
    {kBarrier, "marks", kAnySize, "each rank tells its mark and looks at all others'", fits_always,
     [](MappedGroup& group, const Call&) { return m::barrier(group); }},
    {kBroadcast, "line", FlagLine::kPayload, "the bytes fit beside the root's mark", fits_line,
     [](MappedGroup& group, const Call& call) { return m::broadcast_line(group, broadcast_task(call)); }},
    {kBroadcast, "slots", kAnySize, "the root fills a slot while the others read the one before", fits_always,
     [](MappedGroup& group, const Call& call) { return m::broadcast_slots(group, broadcast_task(call)); }},
    {kGather, "slots", kAnySize, "the root reads each rank's slot", fits_always,
     [](MappedGroup& group, const Call& call) { return m::gather(group, gather_task(call)); }},
    {kScatter, "slots", kAnySize, "each rank reads its part of the root's slot", fits_always,
     [](MappedGroup& group, const Call& call) { return m::scatter(group, scatter_task(call)); }},
    {kAllGather, "lines", FlagLine::kPayload, "the bytes fit beside each rank's mark", fits_line,
     [](MappedGroup& group, const Call& call) { return m::all_gather_lines(group, gather_task(call)); }},
    {kAllGather, "slots", kAnySize, "all read each rank's slot", fits_always,
     [](MappedGroup& group, const Call& call) { return m::all_gather(group, gather_task(call)); }},
    {kAllToAll, "slots", kAnySize, "each rank reads its part of all slots", fits_always,
     [](MappedGroup& group, const Call& call) { return m::all_to_all(group, exchange_task(call)); }},
    {kReduce, "slots", kReduceSlotsUpTo, "the root reduces all slots: one barrier", fits_always,
     [](MappedGroup& group, const Call& call) { return m::reduce_slots(group, reduce_task(call)); }},
    {kReduce, "slices", kAnySize, "each rank reduces a slice of all slots, the root copies them", fits_always,
     [](MappedGroup& group, const Call& call) { return m::reduce_slices(group, reduce_task(call)); }},
    {kAllReduce, "lines", FlagLine::kPayload, "the bytes fit beside each rank's mark", fits_line,
     [](MappedGroup& group, const Call& call) { return m::all_reduce_lines(group, reduce_task(call)); }},
    {kAllReduce, "slots", kSlotsUpTo, "each rank reduces all slots: one barrier", fits_always,
     [](MappedGroup& group, const Call& call) { return m::all_reduce_slots(group, reduce_task(call)); }},
    {kAllReduce, "slices", kAnySize, "each rank reduces a slice of all slots: each element is reduced once",
     fits_always, [](MappedGroup& group, const Call& call) { return m::all_reduce_slices(group, reduce_task(call)); }},
    {kReduceScatter, "slots", kAnySize, "each rank reduces its block of all slots", fits_always,
     [](MappedGroup& group, const Call& call) { return m::reduce_scatter(group, reduce_task(call)); }},
    {kScan, "slots", kAnySize, "each rank reduces the slots of those before it", fits_always,
     [](MappedGroup& group, const Call& call) { return m::scan(group, reduce_task(call)); }},
    {kExscan, "slots", kAnySize, "each rank reduces the slots of those before it", fits_always,
     [](MappedGroup& group, const Call& call) { return m::scan(group, reduce_task(call)); }},
};

}  // namespace

template <>
std::span<const Algorithm<MappedGroup>> algorithms() {
  return kAlgorithms;
}

}  // namespace nupa::ccl
