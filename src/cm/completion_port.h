#pragma once
#include "base/clock.h"
#include "base/spin.h"
#include "cm/peer.h"
#include "segment/completion_ring.h"

namespace nupa::cm {

/// Delivers an armed completion queue's event: counts it and wakes whoever sleeps on the channel. The caller owns the
/// raising (CompletionRing::needs_event said true).
void raise_cq_event(Peer& owner, uint32_t cq_index);

/// Tells the owner that something of object `index` needs it: sets the bit and rings.
void call_attention(Peer& owner, uint32_t kind, uint32_t index);

/// One completion queue of a process (this one or a peer), ready to be pushed to. Follows resizes. One thread at a
/// time, and with a send lock held: that is what an owner who frees a ring waits for.
class CompletionPort {
 public:
  CompletionPort() = default;
  CompletionPort(Peer& owner, uint32_t cq_index) : owner_(&owner), index_(cq_index) {}
  bool valid() const { return owner_ != nullptr; }

  /// Pushes an entry signed by process `tag` and raises the event it may cause. False: the queue overran or is gone;
  /// its owner has been told.
  bool push(uint32_t tag, std::atomic<uint64_t>* intent, bool solicited, segment::CqEntry& entry) {
    base::Backoff backoff;
    for (;;) {
      if (__builtin_expect(!ring_.valid() || ring_.shared()->where.load(std::memory_order_acquire) != where_, 0) &&
          !open())
        return false;
      if (__builtin_expect(timestamps_, 0)) entry.timestamp = base::ticks();
      switch (ring_.push(tag, intent, entry)) {
        case segment::CompletionRing::Push::kOk:
          if (__builtin_expect(ring_.needs_event(solicited), 0)) raise_cq_event(*owner_, index_);
          return true;
        case segment::CompletionRing::Push::kMoved:
          // Closed first, and then the new place is told.
          ring_ = {};
          if (!owner_->alive()) return false;
          backoff.pause();
          break;
        case segment::CompletionRing::Push::kOverrun:
          overrun();
          return false;
      }
    }
  }

 private:
  bool open();
  void overrun();

  Peer* owner_ = nullptr;
  uint64_t where_ = 0;  ///< the ring's place when it was opened
  segment::CompletionRing ring_;
  uint32_t index_ = 0;
  bool timestamps_ = false;
};
static_assert(sizeof(CompletionPort) <= 64);

}  // namespace nupa::cm
