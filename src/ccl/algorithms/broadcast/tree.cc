// SPDX-License-Identifier: Apache-2.0
/// broadcast along a binomial or four-ary tree, fragment by fragment. Thakur, Rabenseifner and Gropp, "Optimization of
/// collective communication operations in MPICH" (2005), 4.2, for the binomial tree.
#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/tree.h"

namespace nupa::ccl::messages {

CollectiveTask broadcast_tree(ChannelGroup& group, const Call& call, Tree tree) {
  const TreePlace place = place_in(group, call.root, tree);
  if (const int error = co_await reach_place(group, place); error != 0) co_return error;
  if (group.ranks() == 1) co_return 0;
  const uint32_t any = place.parent != kNoRank ? place.parent : place.children.front();
  const size_t at_once = group.channel(any).fragment_bytes();
  ZeroCopySends zero_copy_sends(group, true, call.bytes());
  size_t begin = 0;
  do {
    const size_t length = part_length(call.bytes(), begin, at_once);
    std::byte* const data = bytes_at(call.out, begin);
    if (place.parent != kNoRank) {
      MessageChannel& channel = group.channel(place.parent);
      if (const int error = co_await channel.can_receive(); error != 0) co_return error;
      if (const int error = take_fragment(channel, data, length); error != 0) co_return error;
    }
    for (const uint32_t child : place.children) {
      MessageChannel& channel = group.channel(child);
      if (const int error = co_await channel.can_send(); error != 0) co_return error;
      zero_copy_sends.send(channel, data, length);
    }
    begin += length;
  } while (begin < call.bytes());
  co_return co_await zero_copy_sends.settle();
}

}  // namespace nupa::ccl::messages
