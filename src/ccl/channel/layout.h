#pragma once
/// Where messages between two ranks lie in their arenas.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "ccl/channel/arena.h"

namespace nupa::ccl {

/// Two ranks have several lanes, so that one kind of messages does not wait for another.
enum class LaneKind : uint32_t {
  kCollective = 0,
  kMessage = 1,  ///< send and recv of the program
};
constexpr uint32_t kLanes = 2;

/// Pieces of a lane that may be under way: so many fill a wire of 10 Gbit/s for 5 ms, while one that was lost goes
/// again.
constexpr uint32_t kMostPieces = 128;
/// Where there are too many ranks for that.
constexpr uint32_t kFewPieces = 32;
constexpr uint32_t kFewRanks = 32;

/// What begins a channel: one rank's end of one lane, in its arena. Where memory is shared the other rank counts it up.
struct ChannelHead {
  /// Pieces that the other rank has put into this end's slots.
  alignas(kCacheLine) std::atomic<uint32_t> arrived;
  uint32_t lengths[kMostPieces];  ///< of those, by slot
  /// Pieces of this rank that the other one has taken.
  alignas(kCacheLine) std::atomic<uint32_t> taken;
  /// How many sleep until one of these changes.
  alignas(kCacheLine) std::atomic<uint32_t> sleepers;
};

/// The channels of an arena: of each rank as many as there are lanes. A channel is the head, pieces() slots that the
/// other rank fills, and as many that wires take what this rank sends from; memory that is never touched is never
/// there.
class ChannelLayout {
 public:
  /// `ranks`: of the communicator; the more, the fewer and the smaller the pieces.
  explicit ChannelLayout(uint32_t ranks)
      : ranks_(ranks),
        pieces_(ranks <= kFewRanks ? kMostPieces : kFewPieces),
        piece_bytes_(
            std::clamp(std::bit_floor(kMostBytes / (size_t{ranks} * kLanes * 2 * pieces_)), kSmallest, kLargest)) {}

  /// Of a lane, that may be under way.
  uint32_t pieces() const { return pieces_; }
  /// By wires the other end is told of so many that were taken at a time.
  uint32_t told_after() const { return pieces_ / 4; }
  /// One that sends and receives in turns sends so many before it takes the first one. Twice as many, of both ends'
  /// turns, find room before the first one was told of.
  uint32_t ahead() const { return (pieces_ - told_after()) / 2 - 1; }
  /// Work requests of a wire at most: in both directions each piece, and each note of pieces taken.
  uint32_t wire_requests() const { return kLanes * 2 * pieces_; }
  size_t piece_bytes() const { return piece_bytes_; }
  size_t bytes() const { return size_t{ranks_} * kLanes * channel_bytes(); }
  /// From where the channels begin to the one with `rank`.
  size_t offset(uint32_t rank, LaneKind kind) const {
    return (size_t{rank} * kLanes + static_cast<uint32_t>(kind)) * channel_bytes();
  }
  /// Within a channel.
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
