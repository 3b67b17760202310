#include "ccl/mapped/algorithms.h"
#include "ccl/mapped/parts.h"
#include "ccl/mapped/shared_arrays.h"

namespace nupa::ccl::mapped {
namespace {

/// Copies a part of every other rank's block into this turn's slot, one after the other.
void put_parts(const MappedGroup& group, std::byte* slot, const void* in, const Blocks& blocks, size_t begin,
               size_t at_once) {
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (rank != group.rank())
      copy_array(slot + rank * at_once, bytes_at(in, blocks.offset(rank) + begin),
                 part_length(blocks.length(rank), begin, at_once));
}

}  // namespace

Steps scatter(MappedGroup& group, ScatterTask task) {
  const bool is_root = group.rank() == task.root;
  size_t longest = task.bytes;
  if (!task.equal)
    if (const int error = co_await agree_on_largest(group, task.bytes, &longest); error != 0) co_return error;
  if (is_root) copy_unless_same(task.out, bytes_at(task.in, task.blocks.offset(task.root)), task.bytes);
  // Where blocks differ only the root knows where they lie.
  if (task.equal && may_share(group, longest)) {
    SharedArrays arrays;
    const Shown shown{task.in, longest * group.ranks(), is_root};
    if (const int error = co_await show_arrays(group, shown, {}, &arrays); error != 0) co_return error;
    if (arrays.can_be_read(longest)) {
      if (!is_root)
        if (const int error = arrays.read(group, task.root, task.out, group.rank() * longest, task.bytes); error != 0)
          co_return error;
      co_return co_await barrier(group);
    }
  }
  const MappedGroup::Slots slots = slots_of_parts(group, longest);
  const size_t at_once = part_of_each(group, slots.bytes);
  for (size_t begin = 0; begin < longest; begin += at_once) {
    const uint32_t step = group.begin(1) + 1;
    const uint32_t turn = group.next_turn(step);
    if (is_root) {
      if (!group.may_write(slots.turns))
        if (const int error = co_await until_all_left(group, slots.turns); error != 0) co_return error;
      put_parts(group, group.slot_in(task.root, turn, slots), task.in, task.blocks, begin, at_once);
      group.tell(step);
    } else {
      group.tell(step);
      if (const int error = co_await group.reached(task.root, step); error != 0) co_return error;
      copy_array(bytes_at(task.out, begin), group.slot_in(task.root, turn, slots) + group.rank() * at_once,
                 part_length(task.bytes, begin, at_once));
    }
  }
  co_return 0;
}

Steps all_to_all(MappedGroup& group, ExchangeTask task) {
  const uint32_t self = group.rank();
  size_t longest = std::max(task.in_blocks.longest(group.ranks()), task.out_blocks.longest(group.ranks()));
  if (!task.equal)
    if (const int error = co_await agree_on_largest(group, longest, &longest); error != 0) co_return error;
  const bool in_place = task.in == task.out;
  if (!in_place)
    copy_array(bytes_at(task.out, task.out_blocks.offset(self)), bytes_at(task.in, task.in_blocks.offset(self)),
               task.in_blocks.length(self));
  // Where blocks differ only their owner knows where they lie. In place they are gone before others have come to them.
  if (task.equal && may_share(group, longest)) {
    SharedArrays arrays;
    const Shown shown{in_place ? nullptr : task.in, longest * group.ranks(), true};
    if (const int error = co_await show_arrays(group, shown, {}, &arrays); error != 0) co_return error;
    if (arrays.can_be_read(longest)) {
      for (uint32_t i = 1; i < group.ranks(); ++i) {
        const uint32_t rank = (self + i) % group.ranks();
        std::byte* const to = bytes_at(task.out, rank * longest);
        if (const int error = arrays.read(group, rank, to, self * longest, longest); error != 0) co_return error;
      }
      co_return co_await barrier(group);
    }
  }
  const size_t at_once = part_of_each(group);
  for (size_t begin = 0; begin < longest; begin += at_once) {
    const uint32_t step = group.begin(1) + 1;
    const uint32_t turn = group.next_turn(step);
    if (!group.may_write(kTurns))
      if (const int error = co_await until_all_left(group, kTurns); error != 0) co_return error;
    put_parts(group, group.slot_in(self, turn), task.in, task.in_blocks, begin, at_once);
    group.tell(step);
    for (uint32_t i = 1; i < group.ranks(); ++i) {
      const uint32_t rank = (self + i) % group.ranks();
      if (const int error = co_await group.reached(rank, step); error != 0) co_return error;
      copy_array(bytes_at(task.out, task.out_blocks.offset(rank) + begin), group.slot_in(rank, turn) + self * at_once,
                 part_length(task.out_blocks.length(rank), begin, at_once));
    }
    group.all_met();
  }
  co_return 0;
}

}  // namespace nupa::ccl::mapped
