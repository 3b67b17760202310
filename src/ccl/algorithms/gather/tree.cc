// SPDX-License-Identifier: Apache-2.0
/// gather along a binomial tree: blocks are joined on their way. Thakur, Rabenseifner and Gropp, "Optimization of
/// collective communication operations in MPICH" (2005).
#include <vector>

#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/tree.h"

namespace nupa::ccl::messages {

CollectiveTask gather_tree(ChannelGroup& group, const Call& call) {
  const TreePlace place = place_in(group, call.root, Tree::kBinomial);
  const size_t block = call.bytes();
  std::vector<std::byte> all(place.part.size() * block);
  copy_array(all.data(), call.in, block);
  for (size_t i = 0; i < place.children.size(); ++i) {
    const TreePart& part = place.child_parts[i];
    const int error = co_await receive_array(group, place.children[i],
                                             all.data() + (part.begin - place.part.begin) * block, part.size() * block);
    if (error != 0) co_return error;
  }
  if (place.parent != kNoRank) co_return co_await send_array(group, place.parent, all.data(), all.size());
  for (uint32_t i = 0; i < group.ranks(); ++i)
    copy_array(bytes_at(call.out, call.out_blocks().offset((i + call.root) % group.ranks())), all.data() + i * block,
               block);
  co_return 0;
}

}  // namespace nupa::ccl::messages
