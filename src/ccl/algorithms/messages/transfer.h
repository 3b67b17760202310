// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Common parts of the algorithms that use channels.
#include "ccl/channel/channel_group.h"
#include "ccl/call/arrays.h"
#include "ccl/reduce/combine.h"

namespace nupa::ccl::messages {

/// Waits until there is a channel to that rank. Await it only if group.has() is false.
CollectiveTask reach(ChannelGroup& group, uint32_t rank);
/// Waits until there are channels to all ranks.
CollectiveTask reach_all(ChannelGroup& group);

/// Sends one fragment; there must be room for it.
inline void send_fragment(MessageChannel& channel, const void* data, size_t bytes) {
  copy_array(channel.room(), data, bytes);
  channel.send(bytes);
}
/// Zero-copy sends: fragments that a channel sends from the caller's memory, if it supports that. Await settle() before
/// that memory changes and before the program continues, except after an error that ended everything.
class ZeroCopySends {
 public:
  /// `stays`: the memory is not written before settle(). `bytes`: sent to one rank; small amounts are copied, because
  /// that is faster than waiting for the end of the send.
  ZeroCopySends(ChannelGroup& group, bool stays, size_t bytes) : group_(group), lends_(stays && bytes >= kLeastBytes) {}

  FramePool& frames() { return group_.frames(); }
  /// Sends one fragment like send_fragment().
  void send(MessageChannel& channel, const void* data, size_t bytes) {
    if (lends_ && bytes >= kLeastPiece && channel.send_zero_copy(data, bytes))
      are_out_ = true;
    else
      send_fragment(channel, data, bytes);
  }
  CollectiveTask settle();

 private:
  static constexpr size_t kLeastBytes = 4 << 20;
  static constexpr size_t kLeastPiece = 4 << 10;

  ChannelGroup& group_;
  const bool lends_;
  bool are_out_ = false;
};

/// Transfer an array in fragments; an empty array is one empty fragment.
CollectiveTask send_array(ChannelGroup& group, uint32_t to, const void* data, size_t bytes,
                          ZeroCopySends* zero_copy_sends = nullptr);
CollectiveTask receive_array(ChannelGroup& group, uint32_t from, void* data, size_t bytes);

/// Takes one received fragment. Returns EPROTO if it has another length.
inline int take_fragment(MessageChannel& channel, void* to, size_t bytes) {
  if (channel.front_bytes() != bytes) return EPROTO;
  copy_array(to, channel.front(), bytes);
  channel.pop();
  return 0;
}

/// One array is sent to a rank while another one is received from a rank, which may be the same one.
struct Flow {
  uint32_t to;
  const void* send;
  size_t send_bytes;
  uint32_t from;
  void* receive;
  size_t receive_bytes;
  /// Null: received elements are stored; otherwise they are combined with the elements that are there.
  const Reducer* reducer = nullptr;
  bool comes_first = false;                  ///< received elements are of ranks before those that are there
  ZeroCopySends* zero_copy_sends = nullptr;  ///< for the sends; may be null
};
/// Transfers fragment by fragment, so that no rank waits for room while both have something to send. Both arrays may be
/// the same, because a fragment is sent before a received one takes its place.
CollectiveTask flow(ChannelGroup& group, Flow flow);

/// Stores the initial value of a reduction in groups: this rank's elements, multiplied by its factor.
void begin_with(const Reducer& reducer, void* to, const void* from, size_t elements);
/// Returns the reducer for the steps between begin_with() and end_with().
inline Reducer partial(Reducer reducer) {
  reducer.reduction.divisor = 0;
  if (has_factors(reducer)) reducer.reduction.op = Operator::kSum;
  return reducer;
}
/// Applies the last step, the division, to elements that were combined by partial().
void end_with(const Reducer& reducer, void* elements, size_t count);

/// Exchanges the factors of all ranks. Await it only if has_factors().
CollectiveTask exchange_factors(ChannelGroup& group, const Reducer& reducer, Factors* factors);

}  // namespace nupa::ccl::messages
