#include "ccl/plan/mapped_algorithms.h"

#include "ccl/mapped/algorithms.h"

namespace nupa::ccl {
namespace {

/// Up to here one barrier fewer is worth more than reducing each element once only.
constexpr size_t kSlotsUpTo = 8192;
/// The same for the root of a reduce, while it has few sources.
constexpr size_t kReduceSlotsUpTo = 32768;
constexpr size_t kAny = SIZE_MAX;

bool fits_always(const Call&, const MappedGroup&) { return true; }
bool fits_line(const Call& call, const MappedGroup&) { return call.bytes() <= FlagLine::kPayload && call.equal; }

BroadcastTask broadcast_task(const Call& call) { return {call.root, call.out, call.bytes()}; }
GatherTask gather_task(const Call& call) {
  return {call.root, call.in, call.bytes(), call.out, call.out_counts.in_bytes(), call.equal};
}
ScatterTask scatter_task(const Call& call) {
  return {call.root, call.in, call.in_counts.in_bytes(), call.out, call.bytes(), call.equal};
}
ExchangeTask exchange_task(const Call& call) {
  return {call.in, call.in_counts.in_bytes(), call.out, call.out_counts.in_bytes(), call.equal};
}
ReduceTask reduce_task(const Call& call) {
  return {call.reducer,
          call.in,
          call.out,
          call.elements,
          call.root,
          call.in_counts.in_bytes(),
          call.operation == Operation::kExscan};
}

using enum Operation;
namespace m = mapped;

constexpr MappedAlgorithm kAlgorithms[] = {
    {kBarrier, "marks", 0, kAny, "each rank tells its mark and looks at all others'", fits_always,
     [](MappedGroup& group, const Call&) { return m::barrier(group); }},
    {kBroadcast, "line", 0, FlagLine::kPayload, "the bytes fit beside the root's mark", fits_line,
     [](MappedGroup& group, const Call& call) { return m::broadcast_line(group, broadcast_task(call)); }},
    {kBroadcast, "slots", 0, kAny, "the root fills a slot while the others read the one before", fits_always,
     [](MappedGroup& group, const Call& call) { return m::broadcast_slots(group, broadcast_task(call)); }},
    {kGather, "slots", 0, kAny, "the root reads each rank's slot", fits_always,
     [](MappedGroup& group, const Call& call) { return m::gather(group, gather_task(call)); }},
    {kScatter, "slots", 0, kAny, "each rank reads its part of the root's slot", fits_always,
     [](MappedGroup& group, const Call& call) { return m::scatter(group, scatter_task(call)); }},
    {kAllGather, "lines", 0, FlagLine::kPayload, "the bytes fit beside each rank's mark", fits_line,
     [](MappedGroup& group, const Call& call) { return m::all_gather_lines(group, gather_task(call)); }},
    {kAllGather, "slots", 0, kAny, "all read each rank's slot", fits_always,
     [](MappedGroup& group, const Call& call) { return m::all_gather(group, gather_task(call)); }},
    {kAllToAll, "slots", 0, kAny, "each rank reads its part of all slots", fits_always,
     [](MappedGroup& group, const Call& call) { return m::all_to_all(group, exchange_task(call)); }},
    {kReduce, "slots", 0, kReduceSlotsUpTo, "the root reduces all slots: one barrier", fits_always,
     [](MappedGroup& group, const Call& call) { return m::reduce_slots(group, reduce_task(call)); }},
    {kReduce, "slices", 0, kAny, "each rank reduces a slice of all slots, the root copies them", fits_always,
     [](MappedGroup& group, const Call& call) { return m::reduce_slices(group, reduce_task(call)); }},
    {kAllReduce, "lines", 0, FlagLine::kPayload, "the bytes fit beside each rank's mark", fits_line,
     [](MappedGroup& group, const Call& call) { return m::all_reduce_lines(group, reduce_task(call)); }},
    {kAllReduce, "slots", 0, kSlotsUpTo, "each rank reduces all slots: one barrier", fits_always,
     [](MappedGroup& group, const Call& call) { return m::all_reduce_slots(group, reduce_task(call)); }},
    {kAllReduce, "slices", 0, kAny, "each rank reduces a slice of all slots: each element is reduced once", fits_always,
     [](MappedGroup& group, const Call& call) { return m::all_reduce_slices(group, reduce_task(call)); }},
    {kReduceScatter, "slots", 0, kAny, "each rank reduces its block of all slots", fits_always,
     [](MappedGroup& group, const Call& call) { return m::reduce_scatter(group, reduce_task(call)); }},
    {kScan, "slots", 0, kAny, "each rank reduces the slots of those before it", fits_always,
     [](MappedGroup& group, const Call& call) { return m::scan(group, reduce_task(call)); }},
    {kExscan, "slots", 0, kAny, "each rank reduces the slots of those before it", fits_always,
     [](MappedGroup& group, const Call& call) { return m::scan(group, reduce_task(call)); }},
};

}  // namespace

std::span<const MappedAlgorithm> mapped_algorithms() { return kAlgorithms; }

const MappedAlgorithm& choose_mapped(const Call& call, const MappedGroup& group, const std::string& wanted) {
  const MappedAlgorithm* best = nullptr;
  for (const MappedAlgorithm& one : kAlgorithms) {
    if (one.operation != call.operation || !one.fits(call, group)) continue;
    if (wanted == one.name) return one;
    if (best == nullptr && call.bytes() >= one.smallest && call.bytes() <= one.largest) best = &one;
  }
  return *best;  // each operation has one that fits always, of any size
}

}  // namespace nupa::ccl
