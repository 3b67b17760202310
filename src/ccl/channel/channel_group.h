// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <vector>

#include "ccl/channel/message_channel.h"
#include "ccl/coroutine/collective_task.h"

namespace nupa::ccl {

/// Time that messages between ranks take.
struct LinkSpeed {
  double message_ns;  ///< from the sender's call to the end of the receiver's, for an empty message
  double more_ns;     ///< for each further message that is sent at the same time
  double byte_ns;
};

/// Ranks that exchange messages, from the view of one of them: all ranks of a communicator, or one of each node. Ranks
/// are numbered within the group. One thread at a time.
class ChannelGroup {
 public:
  /// The channels to the ranks. Each is created at its first use. Ranks are those of the communicator.
  class Provider {
   public:
    virtual ~Provider() = default;
    /// Begins to create the channel to a rank.
    virtual void want(uint32_t rank) = 0;
    /// Returns a Wait until the channel exists.
    virtual Wait ready(uint32_t rank) = 0;
    /// Requires that ready() is over.
    virtual MessageChannel& channel(uint32_t rank) = 0;
    /// Fragments that a rank sends before it takes the first one if it sends and receives alternately.
    virtual uint32_t ahead() const = 0;
    /// True if any message went between this rank and that one in either direction, on a channel of any kind.
    virtual bool is_used(uint32_t rank) const = 0;
  };

  /// `members`: each member's rank in the communicator.
  ChannelGroup(uint32_t rank, std::vector<uint32_t> members, Provider& provider)
      : rank_(rank), members_(std::move(members)), provider_(provider), channels_(members_.size()) {}

  uint32_t rank() const { return rank_; }
  uint32_t ranks() const { return static_cast<uint32_t>(members_.size()); }
  FramePool& frames() { return frames_; }
  uint32_t ahead() const { return provider_.ahead(); }
  /// The speed that the choice of algorithms is based on; the same on all ranks. Before the first measurement it holds
  /// assumed values for packets on a network.
  const LinkSpeed& speed() const { return speed_; }
  void set_speed(const LinkSpeed& speed) { speed_ = speed; }

  /// Returns whether there is a channel to that rank. If there is none, begins to create it.
  bool has(uint32_t rank) {
    if (channels_[rank] != nullptr) return true;
    provider_.want(members_[rank]);
    if (!ready(rank).is_over()) return false;
    channels_[rank] = &provider_.channel(members_[rank]);
    return true;
  }
  bool is_used(uint32_t rank) const { return provider_.is_used(members_[rank]); }
  Wait ready(uint32_t rank) { return provider_.ready(members_[rank]); }
  /// Requires that has() was true.
  MessageChannel& channel(uint32_t rank) { return *channels_[rank]; }

 private:
  const uint32_t rank_;
  const std::vector<uint32_t> members_;
  Provider& provider_;
  std::vector<MessageChannel*> channels_;
  FramePool frames_;
  LinkSpeed speed_{20'000, 2'000, 1};
};

}  // namespace nupa::ccl
