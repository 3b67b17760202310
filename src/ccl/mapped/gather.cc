#include "ccl/mapped/algorithms.h"
#include "ccl/mapped/parts.h"
#include "ccl/mapped/shared_arrays.h"

namespace nupa::ccl::mapped {
namespace {

/// Whoever reads takes the others' blocks as they come.
Steps gather_blocks(MappedGroup& group, GatherTask task, size_t longest, bool reads, bool all_read) {
  const uint32_t self = group.rank();
  if (reads) copy_unless_same(bytes_at(task.out, task.blocks.offset(self)), task.in, task.bytes);
  if (may_share(group, longest)) {
    SharedArrays arrays;
    const Shown shown{task.in, task.bytes, task.bytes > 0 && (all_read || !reads)};
    if (const int error = co_await show_arrays(group, shown, {}, &arrays); error != 0) co_return error;
    if (arrays.can_be_read(longest)) {
      for (uint32_t i = 1; reads && i < group.ranks(); ++i) {
        const uint32_t rank = (self + i) % group.ranks();
        std::byte* const to = bytes_at(task.out, task.blocks.offset(rank));
        if (const int error = arrays.read(group, rank, to, 0, task.blocks.length(rank)); error != 0) co_return error;
      }
      co_return co_await barrier(group);
    }
  }
  const MappedGroup::Slots slots = group.slots(longest);
  const size_t at_once = slots.bytes;
  for (size_t begin = 0; begin < longest; begin += at_once) {
    const uint32_t step = group.begin(1) + 1;
    const uint32_t turn = group.next_turn(step);
    if (const size_t length = part_length(task.bytes, begin, at_once); length > 0) {
      if (!group.may_write(slots.turns))
        if (const int error = co_await until_all_left(group, slots.turns); error != 0) co_return error;
      copy_array(group.slot_in(self, turn, slots), bytes_at(task.in, begin), length);
    }
    group.tell(step);
    for (uint32_t i = 1; reads && i < group.ranks(); ++i) {
      // Each begins with another one, so that not all read from the same.
      const uint32_t rank = (self + i) % group.ranks();
      if (const int error = co_await group.reached(rank, step); error != 0) co_return error;
      copy_array(bytes_at(task.out, task.blocks.offset(rank) + begin), group.slot_in(rank, turn, slots),
                 part_length(task.blocks.length(rank), begin, at_once));
    }
    if (all_read) group.all_met();
  }
  co_return 0;
}

}  // namespace

Steps gather(MappedGroup& group, GatherTask task) {
  size_t longest = task.bytes;
  if (!task.equal)
    if (const int error = co_await agree_on_largest(group, task.bytes, &longest); error != 0) co_return error;
  co_return co_await gather_blocks(group, task, longest, group.rank() == task.root, false);
}

Steps all_gather(MappedGroup& group, GatherTask task) {
  co_return co_await gather_blocks(group, task, task.blocks.longest(group.ranks()), true, true);
}

Steps all_gather_lines(MappedGroup& group, GatherTask task) {
  const uint32_t step = group.begin(1) + 1;
  const uint32_t turn = group.next_turn(step);
  if (!group.may_write(kSmallTurns))
    if (const int error = co_await until_all_left(group, kSmallTurns); error != 0) co_return error;
  group.write_line(turn, task.in, task.bytes, step);
  copy_unless_same(bytes_at(task.out, task.blocks.offset(group.rank())), task.in, task.bytes);
  for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
    if (rank == group.rank()) continue;
    if (const int error = co_await group.wrote_line(rank, turn, step); error != 0) co_return error;
    copy_array(bytes_at(task.out, task.blocks.offset(rank)), group.line_of(rank, turn).payload,
               task.blocks.length(rank));
  }
  group.all_met();
  co_return 0;
}

}  // namespace nupa::ccl::mapped
