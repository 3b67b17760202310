// SPDX-License-Identifier: Apache-2.0
/// reduce along a binomial or four-ary tree, fragment by fragment. Thakur, Rabenseifner and Gropp, "Optimization of
/// collective communication operations in MPICH" (2005), 4.5, for the binomial tree.
#include <vector>

#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/tree.h"

namespace nupa::ccl::messages {

/// Each subtree has consecutive ranks, so children are combined in the order of the ranks if rank 0 is the root. An
/// operator that may not commute therefore reduces to rank 0, which sends the result to the root.
CollectiveTask reduce_tree(ChannelGroup& group, const Call& call, Tree tree) {
  const bool by_first = call.reducer.function != nullptr && call.root != 0;
  const TreePlace place = place_in(group, by_first ? 0 : call.root, tree);
  if (const int error = co_await reach_place(group, place); error != 0) co_return error;
  const Reducer reducer = partial(call.reducer);
  const bool is_top = place.parent == kNoRank;
  std::vector<std::byte> own(group.rank() == call.root ? 0 : call.bytes());
  std::byte* const sum = group.rank() == call.root ? static_cast<std::byte*>(call.out) : own.data();
  begin_with(call.reducer, sum, call.in, call.elements);
  const size_t at_once =
      group.ranks() == 1 ? SIZE_MAX : group.channel(is_top ? place.children.front() : place.parent).fragment_bytes();
  for (size_t begin = 0; begin < call.bytes();) {
    const size_t length = part_length(call.bytes(), begin, at_once);
    for (const uint32_t child : place.children) {
      const Flow from_child{child, nullptr, 0, child, sum + begin, length, &reducer};
      if (const int error = co_await flow(group, from_child); error != 0) co_return error;
    }
    if (!is_top) {
      MessageChannel& channel = group.channel(place.parent);
      if (const int error = co_await channel.can_send(); error != 0) co_return error;
      send_fragment(channel, sum + begin, length);
    }
    begin += length;
  }
  if (is_top) end_with(call.reducer, sum, call.elements);
  if (!by_first || call.bytes() == 0) co_return 0;
  if (group.rank() == 0) co_return co_await send_array(group, call.root, sum, call.bytes());
  if (group.rank() == call.root) co_return co_await receive_array(group, 0, call.out, call.bytes());
  co_return 0;
}

}  // namespace nupa::ccl::messages
