#pragma once
/// What algorithms along a tree have in common.
#include <vector>

#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/transfer.h"

namespace nupa::ccl::lanes {

/// Of a rank: the range of ranks [begin, end) that hang on it, itself the first. Counted from the root on.
struct TreePart {
  uint32_t begin;
  uint32_t end;
  uint32_t size() const { return end - begin; }
};

/// A rank's place, with ranks as they are called in the group.
struct TreePlace {
  TreePart part;
  uint32_t parent = kNoRank;
  std::vector<uint32_t> children;
  std::vector<TreePart> child_parts;
};

/// The parts of the children, in their order.
std::vector<TreePart> children_of(TreePart part, Tree tree);
TreePlace place_in(const LaneGroup& group, uint32_t root, Tree tree);
/// Until there are lanes to the parent and the children.
Steps reach_place(LaneGroup& group, const TreePlace& place);

}  // namespace nupa::ccl::lanes
