// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/tree.h"

namespace nupa::ccl::messages {

std::vector<TreePart> children_of(TreePart part, Tree tree) {
  std::vector<TreePart> children;
  if (tree == Tree::kBinomial) {
    // Each child gets half of the remaining ranks, the last ranks first.
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
    const TreePart child{part.begin + 1 + rest * i / kArity, part.begin + 1 + rest * (i + 1) / kArity};
    if (child.size() > 0) children.push_back(child);
  }
  return children;
}

TreePlace place_in(const ChannelGroup& group, uint32_t root, Tree tree) {
  const uint32_t ranks = group.ranks();
  const auto called = [&](uint32_t from_root) { return (from_root + root) % ranks; };
  const uint32_t own = (group.rank() + ranks - root) % ranks;
  TreePlace place{{0, ranks}, kNoRank, {}, {}};
  while (place.part.begin != own) {
    for (const TreePart& child : children_of(place.part, tree))
      if (own >= child.begin && own < child.end) {
        place.parent = called(place.part.begin);
        place.part = child;
        break;
      }
  }
  place.child_parts = children_of(place.part, tree);
  for (const TreePart& child : place.child_parts) place.children.push_back(called(child.begin));
  return place;
}

CollectiveTask reach_place(ChannelGroup& group, const TreePlace& place) {
  for (const uint32_t child : place.children)
    if (!group.has(child))
      if (const int error = co_await reach(group, child); error != 0) co_return error;
  if (place.parent != kNoRank && !group.has(place.parent)) co_return co_await reach(group, place.parent);
  co_return 0;
}

}  // namespace nupa::ccl::messages
