// SPDX-License-Identifier: Apache-2.0
/// all_reduce: each rank reduces a chunk and sends it to all others, a direct reduce_scatter and all_gather in rounds.
/// After Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (2005), 4.5.
#include <algorithm>

#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/direct.h"

namespace nupa::ccl::messages {
namespace {

/// The rounds of an all_reduce in chunks. Each round has a part of each chunk. Parts are sent to their owners some
/// rounds before the results of this round arrive, so that messages of both kinds are in flight at any time.
class SlicedRounds {
 public:
  SlicedRounds(ChannelGroup& group, const Call& call, const Factors& factors)
      : group_(group),
        call_(call),
        factors_(factors),
        size_(call.reducer.element_bytes()),
        at_once_(elements_at_once(group, call.reducer, call.elements)),
        zero_copy_sends_(group, true, call.bytes() / group.ranks()) {
    for (uint32_t rank = 0; rank < group.ranks(); ++rank) longest_ = std::max(longest_, slice(rank).length());
  }

  FramePool& frames() { return group_.frames(); }
  size_t count() const { return (longest_ + at_once_ - 1) / at_once_; }

  CollectiveTask send_parts(size_t round) {
    for (uint32_t i = 1; i < group_.ranks(); ++i) {
      const uint32_t rank = (group_.rank() + i) % group_.ranks();
      const Slice part = part_of(rank, round);
      if (part.length() == 0) continue;
      MessageChannel& channel = group_.channel(rank);
      if (const int error = co_await channel.can_send(); error != 0) co_return error;
      zero_copy_sends_.send(channel, bytes_at(call_.in, part.begin * size_), part.length() * size_);
    }
    co_return 0;
  }
  CollectiveTask reduce_own(size_t round) {
    const Slice part = part_of(group_.rank(), round);
    if (part.length() == 0) co_return 0;
    if (const int error = co_await fragments_of(group_, 0, group_.ranks(), part.length() * size_); error != 0)
      co_return error;
    std::byte* const to = bytes_at(call_.out, part.begin * size_);
    combine_fragments(group_, call_.reducer, factors_, to, bytes_at(call_.in, part.begin * size_), group_.ranks(),
                      part.length());
    co_return co_await send_to_all(group_, zero_copy_sends_, to, part.length() * size_);
  }
  CollectiveTask settle() { return zero_copy_sends_.settle(); }
  CollectiveTask take_results(size_t round) {
    for (uint32_t i = 1; i < group_.ranks(); ++i) {
      const uint32_t rank = (group_.rank() + group_.ranks() - i) % group_.ranks();
      const Slice part = part_of(rank, round);
      if (part.length() == 0) continue;
      MessageChannel& channel = group_.channel(rank);
      if (const int error = co_await channel.can_receive(); error != 0) co_return error;
      const int error = take_fragment(channel, bytes_at(call_.out, part.begin * size_), part.length() * size_);
      if (error != 0) co_return error;
    }
    co_return 0;
  }

 private:
  Slice slice(uint32_t rank) const { return slice_of(rank, group_.ranks(), call_.elements, size_); }
  Slice part_of(uint32_t rank, size_t round) const {
    const Slice whole = slice(rank);
    const size_t begin = std::min(whole.begin + round * at_once_, whole.end);
    return {begin, std::min(begin + at_once_, whole.end)};
  }

  ChannelGroup& group_;
  const Call& call_;
  const Factors& factors_;
  const size_t size_;
  const size_t at_once_;
  /// Zero-copy is safe in place too: a part is overwritten only by its result from the peer, which has received all of
  /// it then.
  ZeroCopySends zero_copy_sends_;
  size_t longest_ = 0;
};

}  // namespace

CollectiveTask all_reduce_slices(ChannelGroup& group, const Call& call) {
  if (const int error = co_await reach_all(group); error != 0) co_return error;
  Factors factors;
  if (has_factors(call.reducer))
    if (const int error = co_await exchange_factors(group, call.reducer, &factors); error != 0) co_return error;
  SlicedRounds rounds(group, call, factors);
  const size_t ahead = group.ahead();
  for (size_t round = 0; round < std::min(ahead, rounds.count()); ++round)
    if (const int error = co_await rounds.send_parts(round); error != 0) co_return error;
  // A rank's messages arrive in this order: `ahead` parts, then a result and a part alternately.
  size_t taken = 0;
  for (size_t round = 0; round < rounds.count(); ++round) {
    if (const int error = co_await rounds.reduce_own(round); error != 0) co_return error;
    if (round + ahead < rounds.count())
      if (const int error = co_await rounds.send_parts(round + ahead); error != 0) co_return error;
    if (round + 1 >= ahead)
      if (const int error = co_await rounds.take_results(taken++); error != 0) co_return error;
  }
  while (taken < rounds.count())
    if (const int error = co_await rounds.take_results(taken++); error != 0) co_return error;
  co_return co_await rounds.settle();
}

}  // namespace nupa::ccl::messages
