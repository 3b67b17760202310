// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Collectives among ranks that map each other's arenas. All reductions are in the order of the ranks, so every
/// algorithm gives the same bits. In place, `in` is where `out` is, or is this rank's block of it. Each returns 0 or
/// the errno value that has ended the communicator.
#include "ccl/call/call.h"
#include "ccl/channel/shm_group.h"

namespace nupa::ccl::shm {

CollectiveTask barrier(ShmGroup& group);
/// The last operation, after a barrier. After it no rank accesses this rank's arena, and this rank accesses no other
/// arena.
CollectiveTask depart(ShmGroup& group);

/// Up to FlagLine::kPayload bytes, which the other ranks read in the root's flag line.
CollectiveTask broadcast_line(ShmGroup& group, const Call& call);
/// Any size, one slot at a time. The root fills a slot while the others read the previous one.
CollectiveTask broadcast_slots(ShmGroup& group, const Call& call);

/// Each rank copies its data into slots, and the others read them, one slot at a time.
CollectiveTask gather(ShmGroup& group, const Call& call);
CollectiveTask all_gather_lines(ShmGroup& group, const Call& call);
CollectiveTask all_gather(ShmGroup& group, const Call& call);
/// A slot has a part of each rank's block.
CollectiveTask scatter(ShmGroup& group, const Call& call);
CollectiveTask all_to_all(ShmGroup& group, const Call& call);

/// Up to FlagLine::kPayload bytes. Each rank reads all flag lines, in the time of one cache-line transfer.
CollectiveTask all_reduce_lines(ShmGroup& group, const Call& call);
/// Each rank reduces all slots, one slot at a time.
CollectiveTask all_reduce_slots(ShmGroup& group, const Call& call);
/// If the arrays of all ranks can be mapped, each rank reduces its chunk of them and writes the result into all arrays.
/// Otherwise, one slot at a time, each rank reduces its chunk of all slots and copies the chunks of the others.
CollectiveTask all_reduce_slices(ShmGroup& group, const Call& call);
/// The root reduces all slots.
CollectiveTask reduce_slots(ShmGroup& group, const Call& call);
/// Each rank reduces its chunk of all slots, and the root copies the chunks.
CollectiveTask reduce_slices(ShmGroup& group, const Call& call);
CollectiveTask reduce_scatter(ShmGroup& group, const Call& call);
/// Each rank reduces the slots of the ranks before it.
CollectiveTask scan(ShmGroup& group, const Call& call);

}  // namespace nupa::ccl::shm
