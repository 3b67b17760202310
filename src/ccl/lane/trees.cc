#include <cerrno>
#include <vector>

#include "ccl/lane/algorithms.h"
#include "ccl/lane/transfer.h"

namespace nupa::ccl::lanes {
namespace {

/// Of a rank: the range of ranks [begin, end) that hang on it, itself the first. Counted from the root on.
struct Part {
  uint32_t begin;
  uint32_t end;
  uint32_t size() const { return end - begin; }
};

/// The parts of the children, in their order.
std::vector<Part> children_of(Part part, Tree tree) {
  std::vector<Part> children;
  if (tree == Tree::kBinomial) {
    // Each child has half of what is left, the last ranks first.
    for (uint32_t end = part.end; end - part.begin > 1;) {
      const uint32_t middle = part.begin + (end - part.begin + 1) / 2;
      children.insert(children.begin(), {middle, end});
      end = middle;
    }
    return children;
  }
  constexpr uint32_t kArity = 4;
  const uint32_t rest = part.size() - 1;
  for (uint32_t i = 0; i < kArity; ++i) {
    const Part child{part.begin + 1 + rest * i / kArity, part.begin + 1 + rest * (i + 1) / kArity};
    if (child.size() > 0) children.push_back(child);
  }
  return children;
}

/// A rank's place, with ranks as they are called in the group.
struct Place {
  Part part;
  uint32_t parent = kNoRank;
  std::vector<uint32_t> children;
  std::vector<Part> child_parts;
};

Place place_in(const LaneGroup& group, uint32_t root, Tree tree) {
  const uint32_t ranks = group.ranks();
  const auto called = [&](uint32_t from_root) { return (from_root + root) % ranks; };
  const uint32_t own = (group.rank() + ranks - root) % ranks;
  Place place{{0, ranks}, kNoRank, {}, {}};
  while (place.part.begin != own) {
    for (const Part& child : children_of(place.part, tree))
      if (own >= child.begin && own < child.end) {
        place.parent = called(place.part.begin);
        place.part = child;
        break;
      }
  }
  place.child_parts = children_of(place.part, tree);
  for (const Part& child : place.child_parts) place.children.push_back(called(child.begin));
  return place;
}

Steps reach_place(LaneGroup& group, const Place& place) {
  for (const uint32_t child : place.children)
    if (!group.has(child))
      if (const int error = co_await reach(group, child); error != 0) co_return error;
  if (place.parent != kNoRank && !group.has(place.parent)) co_return co_await reach(group, place.parent);
  co_return 0;
}

}  // namespace

Steps broadcast_tree(LaneGroup& group, BroadcastTask task, Tree tree) {
  const Place place = place_in(group, task.root, tree);
  if (const int error = co_await reach_place(group, place); error != 0) co_return error;
  if (group.ranks() == 1) co_return 0;
  const uint32_t any = place.parent != kNoRank ? place.parent : place.children.front();
  const size_t at_once = group.lane(any).piece_bytes();
  Loans loans(group, true, task.bytes);
  size_t begin = 0;
  do {
    const size_t length = part_length(task.bytes, begin, at_once);
    std::byte* const data = bytes_at(task.data, begin);
    if (place.parent != kNoRank) {
      Lane& lane = group.lane(place.parent);
      if (const int error = co_await lane.can_receive(); error != 0) co_return error;
      if (const int error = take_piece(lane, data, length); error != 0) co_return error;
    }
    for (const uint32_t child : place.children) {
      Lane& lane = group.lane(child);
      if (const int error = co_await lane.can_send(); error != 0) co_return error;
      loans.send(lane, data, length);
    }
    begin += length;
  } while (begin < task.bytes);
  co_return co_await loans.settle();
}

/// Parts are of ranks one after the other, and so children are combined in the order of the ranks, if the root is the
/// first one; an operator that does not commute goes by way of rank 0.
Steps reduce_tree(LaneGroup& group, ReduceTask task, Tree tree) {
  const bool by_first = task.reducer.function != nullptr && task.root != 0;
  const Place place = place_in(group, by_first ? 0 : task.root, tree);
  if (const int error = co_await reach_place(group, place); error != 0) co_return error;
  const Reducer reducer = partial(task.reducer);
  const bool is_top = place.parent == kNoRank;
  std::vector<std::byte> own(group.rank() == task.root ? 0 : task.bytes());
  std::byte* const sum = group.rank() == task.root ? static_cast<std::byte*>(task.out) : own.data();
  begin_with(task.reducer, sum, task.in, task.elements);
  const size_t at_once =
      group.ranks() == 1 ? SIZE_MAX : group.lane(is_top ? place.children.front() : place.parent).piece_bytes();
  for (size_t begin = 0; begin < task.bytes();) {
    const size_t length = part_length(task.bytes(), begin, at_once);
    for (const uint32_t child : place.children) {
      const Flow from_child{child, nullptr, 0, child, sum + begin, length, &reducer};
      if (const int error = co_await flow(group, from_child); error != 0) co_return error;
    }
    if (!is_top) {
      Lane& lane = group.lane(place.parent);
      if (const int error = co_await lane.can_send(); error != 0) co_return error;
      send_piece(lane, sum + begin, length);
    }
    begin += length;
  }
  if (is_top) end_with(task.reducer, sum, task.elements);
  if (!by_first || task.bytes() == 0) co_return 0;
  if (group.rank() == 0) co_return co_await send_array(group, task.root, sum, task.bytes());
  if (group.rank() == task.root) co_return co_await receive_array(group, 0, task.out, task.bytes());
  co_return 0;
}

Steps gather_tree(LaneGroup& group, GatherTask task) {
  const Place place = place_in(group, task.root, Tree::kBinomial);
  const size_t block = task.bytes;
  std::vector<std::byte> all(place.part.size() * block);
  copy_array(all.data(), task.in, block);
  for (size_t i = 0; i < place.children.size(); ++i) {
    const Part& part = place.child_parts[i];
    const int error = co_await receive_array(group, place.children[i],
                                             all.data() + (part.begin - place.part.begin) * block, part.size() * block);
    if (error != 0) co_return error;
  }
  if (place.parent != kNoRank) co_return co_await send_array(group, place.parent, all.data(), all.size());
  for (uint32_t i = 0; i < group.ranks(); ++i)
    copy_array(bytes_at(task.out, task.blocks.offset((i + task.root) % group.ranks())), all.data() + i * block, block);
  co_return 0;
}

Steps scatter_tree(LaneGroup& group, ScatterTask task) {
  const Place place = place_in(group, task.root, Tree::kBinomial);
  const size_t block = task.bytes;
  std::vector<std::byte> all(place.part.size() * block);
  if (place.parent == kNoRank) {
    for (uint32_t i = 0; i < group.ranks(); ++i)
      copy_array(all.data() + i * block, bytes_at(task.in, task.blocks.offset((i + task.root) % group.ranks())), block);
  } else if (const int error = co_await receive_array(group, place.parent, all.data(), all.size()); error != 0) {
    co_return error;
  }
  // Whoever has most to hand on is first.
  for (size_t i = place.children.size(); i-- > 0;) {
    const Part& part = place.child_parts[i];
    const int error = co_await send_array(group, place.children[i],
                                          all.data() + (part.begin - place.part.begin) * block, part.size() * block);
    if (error != 0) co_return error;
  }
  copy_array(task.out, all.data(), block);
  co_return 0;
}

}  // namespace nupa::ccl::lanes
