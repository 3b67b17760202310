#pragma once
#include "segment/layout.h"

namespace nupa::segment {

/// The writer's view of a completion queue: any thread of any process that has it mapped may push.
///
/// A slot goes free -> claimed(by whom) -> ready -> free of the next turn. Claiming is a compare-and-swap on the
/// slot itself, so the claimer is known at every instant; `tail` is only a hint that everybody helps along. A writer
/// that dies between claim and ready is found by its slot number (void_claims_of) and its entry voided.
class CompletionRing {
 public:
  enum class Push {
    kOk,
    kOverrun,  ///< no free slot
    kMoved,    ///< the queue was resized: look up the new place and push again
  };

  CompletionRing() = default;
  CompletionRing(CqShared* shared, CqSlot* slots, uint32_t log2_slots)
      : shared_(shared), slots_(slots), log2_(log2_slots), mask_((uint64_t{1} << log2_slots) - 1) {}

  CqShared* shared() const { return shared_; }
  bool valid() const { return slots_ != nullptr; }
  uint64_t capacity() const { return mask_ + 1; }
  CqSlot& slot(uint64_t position) const { return slots_[position & mask_]; }
  uint64_t turn(uint64_t position) const { return position >> log2_; }
  CqSlot* slots() const { return slots_; }

  /// Claims a slot for process `owner`, lets `fill` write the entry, makes it ready. `intent`, if given, is told the
  /// position plus 1 between claim and ready: whoever finds the writer dead can tell from the slot whether the entry
  /// was completed. After kOk the caller calls needs_event().
  template <class Fill>
  Push push(uint32_t owner, std::atomic<uint64_t>* intent, Fill&& fill) {
    uint64_t position = shared_->tail.load(std::memory_order_acquire);
    for (;;) {
      CqSlot& candidate = slot(position);
      const uint64_t now_turn = turn(position);
      uint64_t seen = stamp(now_turn, SlotState::kFree);
      if (candidate.stamp.compare_exchange_strong(seen, claim_stamp(now_turn, owner), std::memory_order_acq_rel,
                                                  std::memory_order_acquire)) {
        if (intent != nullptr) intent->store(position + 1, std::memory_order_release);
        fill(candidate);
        candidate.stamp.store(stamp(now_turn, SlotState::kReady), std::memory_order_release);
        // Also the full barrier between the entry and the look at `armed` (see needs_event).
        uint64_t hint = position;
        shared_->tail.compare_exchange_strong(hint, position + 1, std::memory_order_seq_cst);
        return Push::kOk;
      }
      if (seen == kStampClosed) return Push::kMoved;
      if ((seen & kStampBody) >> 2 < now_turn) return Push::kOverrun;
      // Somebody took this position: help the hint along and try the next.
      uint64_t hint = position;
      shared_->tail.compare_exchange_strong(hint, position + 1, std::memory_order_acq_rel);
      const uint64_t tail = shared_->tail.load(std::memory_order_acquire);
      position = tail > position ? tail : position + 1;
    }
  }

  /// True if the entry just pushed must raise an event, which is then the caller's to raise.
  /// Pairs with the owner's arm(): one of the two sees the other, since both are ordered by a full barrier.
  bool needs_event(bool solicited) {
    uint32_t armed = shared_->armed.load(std::memory_order_seq_cst);
    while (__builtin_expect(armed != static_cast<uint32_t>(Armed::kNo), 0)) {
      if (armed == static_cast<uint32_t>(Armed::kSolicited) && !solicited) return false;
      if (shared_->armed.compare_exchange_weak(armed, static_cast<uint32_t>(Armed::kNo), std::memory_order_acq_rel))
        return true;
    }
    return false;
  }

 private:
  CqShared* shared_ = nullptr;
  CqSlot* slots_ = nullptr;
  uint32_t log2_ = 0;
  uint64_t mask_ = 0;
};

}  // namespace nupa::segment
