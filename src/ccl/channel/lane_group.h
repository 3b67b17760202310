#pragma once
#include <functional>
#include <vector>

#include "ccl/channel/lane.h"
#include "ccl/coroutine/steps.h"

namespace nupa::ccl {

/// What messages between ranks take.
struct LinkSpeed {
  double message_ns;  ///< from a sender's call to the end of the receiver's, of an empty one
  double more_ns;     ///< each further one that is sent at the same time
  double byte_ns;
};

/// Ranks that send each other messages, as one of them has it: a communicator's, or one of each host. Ranks are
/// numbered within the group. One thread at a time.
class LaneGroup {
 public:
  /// What leads to a rank; each is made when it is first wanted.
  class Ways {
   public:
    virtual ~Ways() = default;
    /// Begins to make the way to a rank of the communicator.
    virtual void want(uint32_t rank) = 0;
    /// Until it is there.
    virtual Wait ready(uint32_t rank) = 0;
    /// Then.
    virtual Lane& lane(uint32_t rank) = 0;
    /// How many pieces one sends before it takes the first one, where it does both in turns.
    virtual uint32_t ahead() const = 0;
    /// Whether anything went either way between this rank and that one, by a lane of any kind.
    virtual bool is_used(uint32_t rank) const = 0;
  };

  /// `members`: what each rank is called in the communicator.
  LaneGroup(uint32_t rank, std::vector<uint32_t> members, Ways& ways)
      : rank_(rank), members_(std::move(members)), ways_(ways), lanes_(members_.size()) {}

  uint32_t rank() const { return rank_; }
  uint32_t ranks() const { return static_cast<uint32_t>(members_.size()); }
  FramePool& frames() { return frames_; }
  uint32_t ahead() const { return ways_.ahead(); }
  /// By which algorithms are chosen; the same on all ranks. Until somebody has measured it: packets on some network.
  const LinkSpeed& speed() const { return speed_; }
  void set_speed(const LinkSpeed& speed) { speed_ = speed; }

  /// Whether there is a lane to that rank; else it is begun to be made.
  bool has(uint32_t rank) {
    if (lanes_[rank] != nullptr) return true;
    ways_.want(members_[rank]);
    if (!ready(rank).is_over()) return false;
    lanes_[rank] = &ways_.lane(members_[rank]);
    return true;
  }
  bool is_used(uint32_t rank) const { return ways_.is_used(members_[rank]); }
  Wait ready(uint32_t rank) { return ways_.ready(members_[rank]); }
  /// Once there is one.
  Lane& lane(uint32_t rank) { return *lanes_[rank]; }

 private:
  const uint32_t rank_;
  const std::vector<uint32_t> members_;
  Ways& ways_;
  std::vector<Lane*> lanes_;
  FramePool frames_;
  LinkSpeed speed_{20'000, 2'000, 1};
};

}  // namespace nupa::ccl
