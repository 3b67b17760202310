// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Collectives among ranks that map each other's arenas. All reductions are in the order of the ranks, so every
/// algorithm gives the same bits. In place, `in` is where `out` is, or is this rank's block of it. Each returns 0 or
/// the errno value that has ended the communicator.
#include "ccl/call/call.h"
#include "ccl/channel/shm_group.h"

namespace nupa::ccl::mapped {

Steps barrier(MappedGroup& group);
/// The last operation, after a barrier. After it no rank accesses this rank's arena, and this rank accesses no other
/// arena.
Steps depart(MappedGroup& group);

/// Up to FlagLine::kPayload bytes, which the other ranks read in the root's flag line.
Steps broadcast_line(MappedGroup& group, const Call& call);
/// Any size, one slot at a time. The root fills a slot while the others read the previous one.
Steps broadcast_slots(MappedGroup& group, const Call& call);

/// Each rank copies its data into slots, and the others read them, one slot at a time.
Steps gather(MappedGroup& group, const Call& call);
Steps all_gather_lines(MappedGroup& group, const Call& call);
Steps all_gather(MappedGroup& group, const Call& call);
/// A slot has a part of each rank's block.
Steps scatter(MappedGroup& group, const Call& call);
Steps all_to_all(MappedGroup& group, const Call& call);

/// Up to FlagLine::kPayload bytes. Each rank reads all flag lines, in the time of one cache-line transfer.
Steps all_reduce_lines(MappedGroup& group, const Call& call);
/// Each rank reduces all slots, one slot at a time.
Steps all_reduce_slots(MappedGroup& group, const Call& call);
/// If the arrays of all ranks can be mapped, each rank reduces its chunk of them and writes the result into all arrays.
/// Otherwise, one slot at a time, each rank reduces its chunk of all slots and copies the chunks of the others.
Steps all_reduce_slices(MappedGroup& group, const Call& call);
/// The root reduces all slots.
Steps reduce_slots(MappedGroup& group, const Call& call);
/// Each rank reduces its chunk of all slots, and the root copies the chunks.
Steps reduce_slices(MappedGroup& group, const Call& call);
Steps reduce_scatter(MappedGroup& group, const Call& call);
/// Each rank reduces the slots of the ranks before it.
Steps scan(MappedGroup& group, const Call& call);

}  // namespace nupa::ccl::mapped
