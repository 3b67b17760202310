#pragma once
/// Collectives among ranks that map each other's arenas. Whatever is reduced is reduced in the order of the ranks: the
/// same bits by every algorithm. In place: `in` is where `out` is, or this rank's block of it. Each returns 0 or why
/// all has ended.
#include "ccl/call/call.h"
#include "ccl/channel/shm_group.h"

namespace nupa::ccl::mapped {

Steps barrier(MappedGroup& group);
/// The last one, after a barrier: after it nobody looks at this rank's arena any more, nor this rank at others'.
Steps depart(MappedGroup& group);

/// Up to FlagLine::kPayload bytes: readers find them in the root's line.
Steps broadcast_line(MappedGroup& group, const Call& call);
/// Any size, a slot at a time: the root fills one while the others read the one before.
Steps broadcast_slots(MappedGroup& group, const Call& call);

/// Each rank copies in, the others read: a slot at a time.
Steps gather(MappedGroup& group, const Call& call);
Steps all_gather_lines(MappedGroup& group, const Call& call);
Steps all_gather(MappedGroup& group, const Call& call);
/// A slot has a part of each rank's block.
Steps scatter(MappedGroup& group, const Call& call);
Steps all_to_all(MappedGroup& group, const Call& call);

/// Up to FlagLine::kPayload bytes: each rank reads all lines. One transfer of a cache line.
Steps all_reduce_lines(MappedGroup& group, const Call& call);
/// A slot at a time: each rank reduces all slots.
Steps all_reduce_slots(MappedGroup& group, const Call& call);
/// Where all ranks' arrays can be mapped, each rank reduces its slice of them and writes it into all. Else a slot at a
/// time: each rank reduces its slice of all slots, and copies the others' slices.
Steps all_reduce_slices(MappedGroup& group, const Call& call);
/// The root reduces all slots.
Steps reduce_slots(MappedGroup& group, const Call& call);
/// Each rank reduces its slice of all slots, the root copies them.
Steps reduce_slices(MappedGroup& group, const Call& call);
Steps reduce_scatter(MappedGroup& group, const Call& call);
/// Each rank reduces the slots of those before it.
Steps scan(MappedGroup& group, const Call& call);

}  // namespace nupa::ccl::mapped
