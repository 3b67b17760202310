// SPDX-License-Identifier: Apache-2.0
#include "ccl/algorithms/shm.h"
#include "ccl/planner/planner.h"

namespace nupa::ccl {
namespace {

/// In bytes. Up to this size, one barrier less is worth more than reducing each element only once.
constexpr size_t kSlotsUpTo = 8192;
/// The same limit for a reduce. It is larger, because only the root reduces.
constexpr size_t kReduceSlotsUpTo = 32768;

bool fits_always(const Call&, const ShmGroup&) { return true; }
bool fits_line(const Call& call, const ShmGroup&) { return call.bytes() <= FlagLine::kPayload && call.equal; }

// These costs only order the algorithms; they have no unit.
double any_size(const Call&, const ShmGroup&) { return 1; }
template <size_t kLargest>
double up_to(const Call& call, const ShmGroup&) {
  return call.bytes() <= kLargest ? 0 : 2;
}
constexpr auto kLine = up_to<FlagLine::kPayload>;

using enum Operation;
namespace m = shm;

constexpr Algorithm<ShmGroup> kAlgorithms[] = {
    {kBarrier, "marks", "each rank sets its flag and reads all others' flags", Order::kOfRanks, fits_always, any_size,
     [](ShmGroup& group, const Call&) { return m::barrier(group); }},
    {kBroadcast, "line", "the bytes fit into the root's flag line", Order::kOfRanks, fits_line, kLine,
     m::broadcast_line},
    {kBroadcast, "slots", "the root fills a slot while the others read the previous one", Order::kOfRanks, fits_always,
     any_size, m::broadcast_slots},
    {kGather, "slots", "the root reads each rank's slot", Order::kOfRanks, fits_always, any_size, m::gather},
    {kScatter, "slots", "each rank reads its part of the root's slot", Order::kOfRanks, fits_always, any_size,
     m::scatter},
    {kAllGather, "lines", "the bytes fit into each rank's flag line", Order::kOfRanks, fits_line, kLine,
     m::all_gather_lines},
    {kAllGather, "slots", "all read each rank's slot", Order::kOfRanks, fits_always, any_size, m::all_gather},
    {kAllToAll, "slots", "each rank reads its part of all slots", Order::kOfRanks, fits_always, any_size,
     m::all_to_all},
    {kReduce, "slots", "the root reduces all slots: one barrier", Order::kOfRanks, fits_always, up_to<kReduceSlotsUpTo>,
     m::reduce_slots},
    {kReduce, "slices", "each rank reduces a chunk of all slots, the root copies the chunks", Order::kOfRanks,
     fits_always, any_size, m::reduce_slices},
    {kAllReduce, "lines", "the bytes fit into each rank's flag line", Order::kOfRanks, fits_line, kLine,
     m::all_reduce_lines},
    {kAllReduce, "slots", "each rank reduces all slots: one barrier", Order::kOfRanks, fits_always, up_to<kSlotsUpTo>,
     m::all_reduce_slots},
    {kAllReduce, "slices", "each rank reduces a chunk of all slots: each element is reduced once", Order::kOfRanks,
     fits_always, any_size, m::all_reduce_slices},
    {kReduceScatter, "slots", "each rank reduces its block of all slots", Order::kOfRanks, fits_always, any_size,
     m::reduce_scatter},
    {kScan, "slots", "each rank reduces the slots of the ranks before it", Order::kOfRanks, fits_always, any_size,
     m::scan},
    {kExscan, "slots", "each rank reduces the slots of the ranks before it", Order::kOfRanks, fits_always, any_size,
     m::scan},
};

}  // namespace

template <>
std::span<const Algorithm<ShmGroup>> algorithms() {
  return kAlgorithms;
}

}  // namespace nupa::ccl
