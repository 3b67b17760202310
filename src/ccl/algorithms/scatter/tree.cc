// SPDX-License-Identifier: Apache-2.0
/// scatter along a binomial tree: blocks are divided on their way. Thakur, Rabenseifner and Gropp, "Optimization of
/// collective communication operations in MPICH" (2005).
#include <vector>

#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/tree.h"

namespace nupa::ccl::messages {

CollectiveTask scatter_tree(ChannelGroup& group, const Call& call) {
  const TreePlace place = place_in(group, call.root, Tree::kBinomial);
  const size_t block = call.bytes();
  std::vector<std::byte> all(place.part.size() * block);
  if (place.parent == kNoRank) {
    for (uint32_t i = 0; i < group.ranks(); ++i)
      copy_array(all.data() + i * block, bytes_at(call.in, call.in_blocks().offset((i + call.root) % group.ranks())),
                 block);
  } else if (const int error = co_await receive_array(group, place.parent, all.data(), all.size()); error != 0) {
    co_return error;
  }
  // The child with the largest subtree is first.
  for (size_t i = place.children.size(); i-- > 0;) {
    const TreePart& part = place.child_parts[i];
    const int error = co_await send_array(group, place.children[i],
                                          all.data() + (part.begin - place.part.begin) * block, part.size() * block);
    if (error != 0) co_return error;
  }
  copy_array(call.out, all.data(), block);
  co_return 0;
}

}  // namespace nupa::ccl::messages
