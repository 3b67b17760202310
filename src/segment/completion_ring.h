#pragma once
#include "segment/layout.h"

namespace nupa::segment {

/// The writer's view of a completion queue: any thread of any process that has it mapped may push.
///
/// A slot is free, is claimed (by whom, in the claims beside the slots), is made ready, and is free again for the next
/// turn. The claim stands apart from the slot because the owner polls the slot's cache line: a writer that touched it
/// twice would lose it in between and pay for two more transfers. `tail` is only a hint that everybody helps along.
/// A writer that dies between claim and ready is known by its claim, and its entry is voided.
class CompletionRing {
 public:
  enum class Push {
    kOk,
    kOverrun,  ///< no free slot
    kMoved,    ///< the queue was resized: look up the new place and push again
  };
  using Claim = std::atomic<uint64_t>;

  CompletionRing() = default;
  /// `memory`: slots, and behind them as many claims (bytes_for).
  CompletionRing(CqShared* shared, void* memory, uint32_t log2_slots)
      : shared_(shared),
        slots_(static_cast<CqSlot*>(memory)),
        claims_(reinterpret_cast<Claim*>(slots_ + (uint64_t{1} << log2_slots))),
        log2_(log2_slots),
        mask_((uint64_t{1} << log2_slots) - 1) {}

  static constexpr uint64_t bytes_for(uint32_t log2_slots) { return (sizeof(CqSlot) + sizeof(Claim)) << log2_slots; }

  CqShared* shared() const { return shared_; }
  bool valid() const { return slots_ != nullptr; }
  uint64_t capacity() const { return mask_ + 1; }
  CqSlot& slot(uint64_t position) const { return slots_[position & mask_]; }
  Claim& claim(uint64_t position) const { return claims_[position & mask_]; }
  /// Turns count from 1, so that a claim of zeros is nobody's.
  uint64_t turn(uint64_t position) const { return (position >> log2_) + 1; }
  /// What a slot's stamp says while the slot waits for its entry of `turn`.
  static constexpr uint64_t free_stamp(uint64_t turn) { return stamp(turn - 1, SlotState::kFree); }
  static constexpr uint64_t ready_stamp(uint64_t turn) { return stamp(turn - 1, SlotState::kReady); }

  /// Claims a slot for process `owner`, lets `fill` write the entry, makes it ready. `intent`, if given, is told the
  /// position plus 1 between claim and ready: whoever finds the writer dead can tell from the slot whether the entry
  /// was completed. After kOk the caller calls needs_event().
  template <class Fill>
  Push push(uint32_t owner, std::atomic<uint64_t>* intent, Fill&& fill) {
    uint64_t position = shared_->tail.load(std::memory_order_acquire);
    for (;;) {
      CqSlot& candidate = slot(position);
      const uint64_t now_turn = turn(position);
      uint64_t claimed = claim(position).load(std::memory_order_acquire);
      if (turn_of(claimed) < now_turn) {
        // Stamps only grow: an older one is the entry of the turn before, still unread. A newer one means that another
        // writer has been here between the two looks, and the claim is lost below.
        if (candidate.stamp.load(std::memory_order_acquire) < free_stamp(now_turn)) return Push::kOverrun;
        if (claim(position).compare_exchange_strong(claimed, claim_of(now_turn, owner), std::memory_order_acq_rel,
                                                    std::memory_order_acquire)) {
          if (intent != nullptr) intent->store(position + 1, std::memory_order_release);
          fill(candidate);
          candidate.stamp.store(ready_stamp(now_turn), std::memory_order_release);
          // Also the full barrier between the entry and the look at `armed` (see needs_event).
          uint64_t hint = position;
          shared_->tail.compare_exchange_strong(hint, position + 1, std::memory_order_seq_cst);
          return Push::kOk;
        }
      }
      if (claimed == kClosed) return Push::kMoved;
      // Somebody took this position: help the hint along and try the next.
      uint64_t hint = position;
      shared_->tail.compare_exchange_strong(hint, position + 1, std::memory_order_acq_rel);
      const uint64_t tail = shared_->tail.load(std::memory_order_acquire);
      position = tail > position ? tail : position + 1;
    }
  }

  /// Owner: closes the slot at `position` to writers for good. False: one has claimed it and will make it ready.
  bool close(uint64_t position) {
    uint64_t claimed = claim(position).load(std::memory_order_acquire);
    if (turn_of(claimed) >= turn(position)) return claimed == kClosed;
    return claim(position).compare_exchange_strong(claimed, kClosed, std::memory_order_acq_rel);
  }
  /// Owner: takes close() back.
  void reopen(uint64_t position) { claim(position).store(claim_of(turn(position) - 1, 0), std::memory_order_release); }

  /// Owner: voids what process `dead` claimed and did not complete.
  void void_claims_of(uint32_t dead) {
    for (uint64_t i = 0; i <= mask_; ++i) {
      const uint64_t claimed = claims_[i].load(std::memory_order_acquire);
      if (claimed == 0 || claimed == kClosed || claimer_of(claimed) != dead) continue;
      const uint64_t its_turn = turn_of(claimed);
      if (slots_[i].stamp.load(std::memory_order_acquire) != free_stamp(its_turn)) continue;
      slots_[i].status = kVoidStatus;
      slots_[i].stamp.store(ready_stamp(its_turn), std::memory_order_release);
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
  static constexpr uint64_t kClosed = ~uint64_t{0};
  static constexpr uint64_t turn_of(uint64_t claim_value) {
    return claim_value == kClosed ? kClosed : claim_value & kStampBody;
  }
  static constexpr uint64_t claim_of(uint64_t now_turn, uint32_t owner) { return uint64_t{owner} << 48 | now_turn; }

  CqShared* shared_ = nullptr;
  CqSlot* slots_ = nullptr;
  Claim* claims_ = nullptr;
  uint32_t log2_ = 0;
  uint64_t mask_ = 0;
};

}  // namespace nupa::segment
