// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>

#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/direct.h"

namespace nupa::ccl::messages {
namespace {

/// Waits until there is room for a fragment to `rank`, and sends that part of a block. Does nothing if the part is
/// empty.
CollectiveTask send_part(ChannelGroup& group, ZeroCopySends& zero_copy_sends, uint32_t rank, const void* block,
                         size_t length, size_t begin) {
  MessageChannel& channel = group.channel(rank);
  const size_t part = part_length(length, begin, channel.fragment_bytes());
  if (part == 0) co_return 0;
  if (const int error = co_await channel.can_send(); error != 0) co_return error;
  zero_copy_sends.send(channel, bytes_at(block, begin), part);
  co_return 0;
}

CollectiveTask receive_part(ChannelGroup& group, uint32_t rank, void* block, size_t length, size_t begin) {
  MessageChannel& channel = group.channel(rank);
  const size_t part = part_length(length, begin, channel.fragment_bytes());
  if (part == 0) co_return 0;
  if (const int error = co_await channel.can_receive(); error != 0) co_return error;
  co_return take_fragment(channel, bytes_at(block, begin), part);
}

}  // namespace

CollectiveTask fragments_of(ChannelGroup& group, uint32_t begin, uint32_t end, size_t bytes) {
  for (uint32_t rank = begin; rank < end; ++rank) {
    if (rank == group.rank()) continue;
    MessageChannel& channel = group.channel(rank);
    if (const int error = co_await channel.can_receive(); error != 0) co_return error;
    if (channel.front_bytes() != bytes) co_return EPROTO;
  }
  co_return 0;
}

void combine_fragments(ChannelGroup& group, const Reducer& reducer, const Factors& factors, void* out, const void* own,
                       uint32_t count, size_t elements) {
  combine_ranks(reducer, factors, out, count, elements,
                [&](uint32_t rank) -> const void* { return rank == group.rank() ? own : group.channel(rank).front(); });
  for (uint32_t rank = 0; rank < count; ++rank)
    if (rank != group.rank()) group.channel(rank).pop();
}

size_t elements_at_once(ChannelGroup& group, const Reducer& reducer, size_t all) {
  if (group.ranks() == 1) return std::max<size_t>(all, 1);
  return group.channel(group.rank() == 0 ? 1 : 0).fragment_bytes() / reducer.element_bytes();
}

CollectiveTask send_to_all(ChannelGroup& group, ZeroCopySends& zero_copy_sends, const void* data, size_t bytes) {
  for (uint32_t i = 1; i < group.ranks(); ++i) {
    MessageChannel& channel = group.channel((group.rank() + i) % group.ranks());
    if (const int error = co_await channel.can_send(); error != 0) co_return error;
    zero_copy_sends.send(channel, data, bytes);
  }
  co_return 0;
}

CollectiveTask exchange_blocks(ChannelGroup& group, const void* in, const Blocks& in_blocks, void* out,
                               const Blocks& out_blocks, bool stays) {
  if (const int error = co_await reach_all(group); error != 0) co_return error;
  const uint32_t ranks = group.ranks();
  const size_t longest = std::max(in_blocks.longest(ranks), out_blocks.longest(ranks));
  const size_t at_once = ranks == 1 ? longest : group.channel(group.rank() == 0 ? 1 : 0).fragment_bytes();
  ZeroCopySends zero_copy_sends(group, stays, in_blocks.longest(ranks));
  size_t sent = 0;
  for (size_t begin = 0; ranks > 1 && begin < longest; begin += at_once) {
    for (; sent < longest && sent < begin + group.ahead() * at_once; sent += at_once)
      for (uint32_t i = 1; i < ranks; ++i) {
        const uint32_t to = (group.rank() + i) % ranks;
        const int error = co_await send_part(group, zero_copy_sends, to, bytes_at(in, in_blocks.offset(to)),
                                             in_blocks.length(to), sent);
        if (error != 0) co_return error;
      }
    for (uint32_t i = 1; i < ranks; ++i) {
      const uint32_t from = (group.rank() + ranks - i) % ranks;
      const int error =
          co_await receive_part(group, from, bytes_at(out, out_blocks.offset(from)), out_blocks.length(from), begin);
      if (error != 0) co_return error;
    }
  }
  co_return co_await zero_copy_sends.settle();
}

}  // namespace nupa::ccl::messages
