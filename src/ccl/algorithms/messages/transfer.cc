// SPDX-License-Identifier: Apache-2.0
#include "ccl/algorithms/messages/transfer.h"

#include <cerrno>

#include "ccl/algorithms/messages.h"

namespace nupa::ccl::messages {
namespace {

/// here = here op there, or there op here. It is not part of a coroutine because the list would be in the coroutine's
/// frame.
[[gnu::noinline]] void combine_two(const Reducer& reducer, void* here, const void* there, bool there_first,
                                   size_t elements) {
  const Source sources[] = {{there_first ? there : here, nullptr}, {there_first ? here : there, nullptr}};
  combine(reducer, here, sources, 2, elements);
}

}  // namespace

CollectiveTask reach(ChannelGroup& group, uint32_t rank) {
  while (!group.has(rank))
    if (const int error = co_await group.ready(rank); error != 0) co_return error;
  co_return 0;
}

CollectiveTask reach_all(ChannelGroup& group) {
  // All channels are begun before the first wait.
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (rank != group.rank()) group.has(rank);
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (rank != group.rank() && !group.has(rank))
      if (const int error = co_await reach(group, rank); error != 0) co_return error;
  co_return 0;
}

CollectiveTask ZeroCopySends::settle() {
  if (!are_out_) co_return 0;
  for (uint32_t rank = 0; rank < group_.ranks(); ++rank)
    if (rank != group_.rank() && group_.has(rank))
      if (const int error = co_await group_.channel(rank).all_arrived(); error != 0) co_return error;
  are_out_ = false;
  co_return 0;
}

CollectiveTask send_array(ChannelGroup& group, uint32_t to, const void* data, size_t bytes,
                          ZeroCopySends* zero_copy_sends) {
  if (!group.has(to))
    if (const int error = co_await reach(group, to); error != 0) co_return error;
  MessageChannel& channel = group.channel(to);
  size_t begin = 0;
  do {
    if (const int error = co_await channel.can_send(); error != 0) co_return error;
    const size_t length = part_length(bytes, begin, channel.fragment_bytes());
    if (zero_copy_sends != nullptr)
      zero_copy_sends->send(channel, bytes_at(data, begin), length);
    else
      send_fragment(channel, bytes_at(data, begin), length);
    begin += length;
  } while (begin < bytes);
  co_return 0;
}

CollectiveTask receive_array(ChannelGroup& group, uint32_t from, void* data, size_t bytes) {
  if (!group.has(from))
    if (const int error = co_await reach(group, from); error != 0) co_return error;
  MessageChannel& channel = group.channel(from);
  size_t begin = 0;
  do {
    if (const int error = co_await channel.can_receive(); error != 0) co_return error;
    const size_t length = part_length(bytes, begin, channel.fragment_bytes());
    if (const int error = take_fragment(channel, bytes_at(data, begin), length); error != 0) co_return error;
    begin += length;
  } while (begin < bytes);
  co_return 0;
}

CollectiveTask flow(ChannelGroup& group, Flow flow) {
  for (const uint32_t rank : {flow.to, flow.from})
    if (!group.has(rank))
      if (const int error = co_await reach(group, rank); error != 0) co_return error;
  MessageChannel& out = group.channel(flow.to);
  MessageChannel& in = group.channel(flow.from);
  size_t sent = 0;
  size_t got = 0;
  const size_t size = flow.reducer == nullptr ? 1 : flow.reducer->element_bytes();
  int64_t ahead = 0;  // fragments sent minus fragments received
  while (sent < flow.send_bytes || got < flow.receive_bytes) {
    // A rank sends one fragment more than it has received before it waits, so that the ranks never all wait for each
    // other.
    const bool must_send = ahead <= 0 || got == flow.receive_bytes;
    if (sent < flow.send_bytes && (must_send || (ahead < group.ahead() && out.can_send().is_over()))) {
      if (const int error = co_await out.can_send(); error != 0) co_return error;
      const size_t length = part_length(flow.send_bytes, sent, out.fragment_bytes());
      if (flow.zero_copy_sends != nullptr)
        flow.zero_copy_sends->send(out, bytes_at(flow.send, sent), length);
      else
        send_fragment(out, bytes_at(flow.send, sent), length);
      sent += length;
      ++ahead;
      continue;
    }
    if (const int error = co_await in.can_receive(); error != 0) co_return error;
    const size_t length = part_length(flow.receive_bytes, got, in.fragment_bytes());
    std::byte* const to = bytes_at(flow.receive, got);
    if (in.front_bytes() != length) co_return EPROTO;
    if (flow.reducer == nullptr)
      copy_array(to, in.front(), length);
    else
      combine_two(*flow.reducer, to, in.front(), flow.comes_first, length / size);
    in.pop();
    got += length;
    --ahead;
  }
  co_return 0;
}

void begin_with(const Reducer& reducer, void* to, const void* from, size_t elements) {
  if (!has_factors(reducer)) return copy_unless_same(to, from, elements * reducer.element_bytes());
  const Source own{from, &reducer.factor};
  Reduction multiplied = reducer.reduction;
  multiplied.divisor = 0;
  reduce(multiplied, to, &own, 1, elements);
}

void end_with(const Reducer& reducer, void* elements, size_t count) {
  if (reducer.function != nullptr || reducer.reduction.divisor == 0) return;
  const Source whole{elements, nullptr};
  reduce(reducer.reduction, elements, &whole, 1, count);
}

CollectiveTask exchange_factors(ChannelGroup& group, const Reducer& reducer, Factors* factors) {
  factors->of_rank.resize(group.ranks());
  Call call;
  call.operation = Operation::kAllGather;
  call.in = &reducer.factor;
  call.out = factors->of_rank.data();
  call.elements = sizeof reducer.factor;
  co_return co_await all_gather_direct(group, call);
}

}  // namespace nupa::ccl::messages
