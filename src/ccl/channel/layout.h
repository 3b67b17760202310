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
enum class LaneKind : uint32_t {
  kCollective = 0,
  kMessage = 1,  ///< send and recv of the program
};
constexpr uint32_t kLanes = 2;

/// Fragments of a channel that may be outstanding. This number fills a 10 Gbit/s link for 5 ms, while a lost one is
/// retransmitted.
constexpr uint32_t kMostPieces = 128;
/// Limit where more than kFewRanks ranks would need too much memory.
constexpr uint32_t kFewPieces = 32;
constexpr uint32_t kFewRanks = 32;

/// The head of a channel buffer: one rank's side of one channel, in its arena. If memory is shared, the peer counts up
/// the words.
struct ChannelHead {
  /// Fragments that the peer has written into the slots here.
  alignas(kCacheLine) std::atomic<uint32_t> arrived;
  uint32_t lengths[kMostPieces];  ///< of those fragments, by slot
  /// Fragments of this rank that the peer has taken.
  alignas(kCacheLine) std::atomic<uint32_t> taken;
  /// Threads that sleep until one of these changes.
  alignas(kCacheLine) std::atomic<uint32_t> sleepers;
};

/// The channel buffers of an arena: one for each rank and each kind of channel. A buffer has the head, pieces() slots
/// that the peer fills, and pieces() slots that RDMA sends from. Buffers that are never touched take no physical
/// memory.
class ChannelLayout {
 public:
  /// `ranks`: size of the communicator. More ranks mean fewer and smaller fragments.
  explicit ChannelLayout(uint32_t ranks)
      : ranks_(ranks),
        pieces_(ranks <= kFewRanks ? kMostPieces : kFewPieces),
        piece_bytes_(
            std::clamp(std::bit_floor(kMostBytes / (size_t{ranks} * kLanes * 2 * pieces_)), kSmallest, kLargest)) {}

  /// Fragments of a channel that may be outstanding.
  uint32_t pieces() const { return pieces_; }
  /// With RDMA, a rank reports taken fragments to the peer after this number of them.
  uint32_t told_after() const { return pieces_ / 4; }
  /// A rank that sends and receives alternately sends this many fragments before it takes the first one. Twice this
  /// number fits before the peer reports the first one as taken.
  uint32_t ahead() const { return (pieces_ - told_after()) / 2 - 1; }
  /// Work requests of a queue pair at most: in both directions each fragment, and each report of taken fragments.
  uint32_t wire_requests() const { return kLanes * 2 * pieces_; }
  size_t piece_bytes() const { return piece_bytes_; }
  size_t bytes() const { return size_t{ranks_} * kLanes * channel_bytes(); }
  /// Offset of the buffer for `rank`, from the first buffer.
  size_t offset(uint32_t rank, LaneKind kind) const {
    return (size_t{rank} * kLanes + static_cast<uint32_t>(kind)) * channel_bytes();
  }
  /// Offset within a channel buffer.
  size_t in_slot(uint32_t piece) const { return kHeadBytes + piece % pieces_ * piece_bytes_; }
  size_t out_slot(uint32_t piece) const { return in_slot(piece) + pieces_ * piece_bytes_; }

 private:
  static constexpr size_t kHeadBytes = 4096;
  static constexpr size_t kSmallest = 4096;
  static constexpr size_t kLargest = 64 << 10;
  static constexpr size_t kMostBytes = size_t{1} << 30;
  static_assert(sizeof(ChannelHead) <= kHeadBytes);

  size_t channel_bytes() const { return kHeadBytes + size_t{2} * pieces_ * piece_bytes_; }

  uint32_t ranks_;
  uint32_t pieces_;
  size_t piece_bytes_;
};

}  // namespace nupa::ccl
