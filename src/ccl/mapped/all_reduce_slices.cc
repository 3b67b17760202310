#include <algorithm>

#include "ccl/mapped/all_reduce.h"

namespace nupa::ccl {
namespace {

/// Elements [begin, end) of a slot.
struct Slice {
  size_t begin;
  size_t end;
  size_t length() const { return end - begin; }
};

/// Of `elements`, in as equal parts as whole cache lines allow.
Slice slice_of(uint32_t rank, uint32_t ranks, size_t elements, size_t element_bytes) {
  const size_t in_line = std::max<size_t>(kCacheLine / element_bytes, 1);
  const size_t lines = (elements + in_line - 1) / in_line;
  const auto at = [&](uint32_t part) { return std::min(lines * part / ranks * in_line, elements); };
  return {at(rank), at(rank + 1)};
}

}  // namespace

Steps all_reduce_slices(MappedGroup& group, ReduceTask task) {
  const size_t size = size_of(task.reduction.type);
  const size_t at_once = group.slot_bytes() / size;
  const size_t parts = std::max<size_t>((task.elements + at_once - 1) / at_once, 1);
  uint32_t step = group.begin(static_cast<uint32_t>(2 * parts));
  for (size_t part = 0; part < parts; ++part) {
    const size_t begin = part * at_once;
    const size_t elements = std::min(task.elements - begin, at_once);
    const auto* const in = static_cast<const std::byte*>(task.in) + begin * size;
    auto* const out = static_cast<std::byte*>(task.out) + begin * size;
    const uint32_t turn = group.next_turn();
    copy_array(group.slot_in(group.rank(), turn), in, elements * size);
    group.tell(++step);
    const Slice mine = slice_of(group.rank(), group.ranks(), elements, size);
    for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
      if (rank == group.rank()) continue;
      if (const int error = co_await group.reached(rank, step); error != 0) co_return error;
    }
    std::byte* const reduced = group.slot_out(group.rank(), turn) + mine.begin * size;
    reduce_ranks(task.reduction, reduced, group.ranks(), mine.length(),
                 [&](uint32_t rank) -> const void* { return group.slot_in(rank, turn) + mine.begin * size; });
    group.tell(++step);
    for (uint32_t i = 0; i < group.ranks(); ++i) {
      // Each begins with its own, so that not all read from the same one.
      const uint32_t rank = (group.rank() + i) % group.ranks();
      if (rank != group.rank())
        if (const int error = co_await group.reached(rank, step); error != 0) co_return error;
      const Slice slice = slice_of(rank, group.ranks(), elements, size);
      copy_array(out + slice.begin * size, group.slot_out(rank, turn) + slice.begin * size, slice.length() * size);
    }
  }
  co_return 0;
}

}  // namespace nupa::ccl
