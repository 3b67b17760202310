// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The layout of messages between two ranks in their arenas.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "ccl/channel/arena.h"

namespace nupa::ccl {

/// Two ranks have several channels, so that one kind of message does not wait for another.
enum class ChannelKind : uint32_t {
  kCollective = 0,
  kMessage = 1,  ///< send and recv of the program
};
constexpr uint32_t kChannelKinds = 2;

/// Fragments of a channel that may be outstanding. This number fills a 10 Gbit/s link for 5 ms, while a lost one is
/// retransmitted.
constexpr uint32_t kMostFragments = 128;
/// Limit where more than kFewRanks ranks would need too much memory.
constexpr uint32_t kFewFragments = 32;
constexpr uint32_t kFewRanks = 32;

/// The head of a channel buffer: one rank's side of one channel, in its arena. If memory is shared, the peer counts up
/// the words.
struct ChannelHead {
  /// Fragments that the peer has written into the slots here.
  alignas(kCacheLine) std::atomic<uint32_t> arrived;
  uint32_t lengths[kMostFragments];  ///< of those fragments, by slot
  /// Fragments of this rank that the peer has taken.
  alignas(kCacheLine) std::atomic<uint32_t> taken;
  /// Threads that sleep until one of these changes.
  alignas(kCacheLine) std::atomic<uint32_t> sleepers;
};

/// The channel buffers of an arena: one for each rank and each kind of channel. A buffer has the head, fragments()
/// slots that the peer fills, and fragments() slots that RDMA sends from. Buffers that are never touched take no
/// physical memory.
class ChannelLayout {
 public:
  /// `ranks`: size of the communicator. More ranks mean fewer and smaller fragments.
  explicit ChannelLayout(uint32_t ranks)
      : ranks_(ranks),
        fragments_(ranks <= kFewRanks ? kMostFragments : kFewFragments),
        fragment_bytes_(std::clamp(std::bit_floor(kMostBytes / (size_t{ranks} * kChannelKinds * 2 * fragments_)),
                                   kSmallest, kLargest)) {}

  /// Fragments of a channel that may be outstanding.
  uint32_t fragments() const { return fragments_; }
  /// With RDMA, a rank reports taken fragments to the peer after this number of them.
  uint32_t reported_after() const { return fragments_ / 4; }
  /// A rank that sends and receives alternately sends this many fragments before it takes the first one. Twice this
  /// number fits before the peer reports the first one as taken.
  uint32_t ahead() const { return (fragments_ - reported_after()) / 2 - 1; }
  /// Work requests of a queue pair at most: in both directions each fragment, and each report of taken fragments.
  uint32_t rdma_requests() const { return kChannelKinds * 2 * fragments_; }
  size_t fragment_bytes() const { return fragment_bytes_; }
  size_t bytes() const { return size_t{ranks_} * kChannelKinds * channel_bytes(); }
  /// Offset of the buffer for `rank`, from the first buffer.
  size_t offset(uint32_t rank, ChannelKind kind) const {
    return (size_t{rank} * kChannelKinds + static_cast<uint32_t>(kind)) * channel_bytes();
  }
  /// Offset within a channel buffer.
  size_t in_slot(uint32_t fragment) const { return kHeadBytes + fragment % fragments_ * fragment_bytes_; }
  size_t out_slot(uint32_t fragment) const { return in_slot(fragment) + fragments_ * fragment_bytes_; }

 private:
  static constexpr size_t kHeadBytes = 4096;
  static constexpr size_t kSmallest = 4096;
  static constexpr size_t kLargest = 64 << 10;
  static constexpr size_t kMostBytes = size_t{1} << 30;
  static_assert(sizeof(ChannelHead) <= kHeadBytes);

  size_t channel_bytes() const { return kHeadBytes + size_t{2} * fragments_ * fragment_bytes_; }

  uint32_t ranks_;
  uint32_t fragments_;
  size_t fragment_bytes_;
};

}  // namespace nupa::ccl
