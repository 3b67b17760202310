// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Common parts of the tree algorithms.
#include <vector>

#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/transfer.h"

namespace nupa::ccl::messages {

/// The ranks [begin, end) of a subtree, counted from the root. The first one is the subtree's own root.
struct TreePart {
  uint32_t begin;
  uint32_t end;
  uint32_t size() const { return end - begin; }
};

/// A rank's place in the tree. `parent` and `children` are ranks of the group.
struct TreePlace {
  TreePart part;
  uint32_t parent = kNoRank;
  std::vector<uint32_t> children;
  std::vector<TreePart> child_parts;
};

/// Returns the subtrees of the children, in order.
std::vector<TreePart> children_of(TreePart part, Tree tree);
TreePlace place_in(const ChannelGroup& group, uint32_t root, Tree tree);
/// Waits until there are channels to the parent and the children.
CollectiveTask reach_place(ChannelGroup& group, const TreePlace& place);

}  // namespace nupa::ccl::messages
