// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstddef>

#include "base/fence.h"
#include "base/prefetch.h"
#include "progress/waiter.h"
#include "shm/layout.h"

namespace nupa::shm {

/// A receive queue for senders (claim) and for its owner (post). A slot goes from free to ready (posted) to claimed (by
/// a process) to free in the next turn. Senders of several processes claim in posting order.
///
/// Memory order, on any processor:
/// - post() releases the receive by the stamp kReady, and the compare-exchange of claim() acquires it.
/// - finish() releases the slot by the stamp kFree after the claimer has read it, and post() acquires that stamp before
///   it fills the slot again. put_back() releases it in the same way to the next claimer.
/// - Of two claimers the compare-exchange of the stamp lets one have the receive, and of a claimer and an owner that
///   drains the queue, too.
/// - `consumed` is a hint. A claimer that finds it late goes on from the stamps.
/// - Store and load: put_back() stores the stamp and then looks at the hint, and a claimer that passes the slot
/// advances
///   the hint and then looks at the stamp. Both sides have a full barrier between the two, so one of them sees the
///   other, and the receive is not lost behind the hint.
class ReceiveRing {
 public:
  ReceiveRing() = default;
  ReceiveRing(RecvRing* shared, void* slots, uint32_t log2_slots, uint32_t stride)
      : shared_(shared),
        slots_(static_cast<std::byte*>(slots)),
        log2_(log2_slots),
        mask_((uint64_t{1} << log2_slots) - 1),
        stride_(stride) {}

  RecvRing* shared() const { return shared_; }
  bool valid() const { return slots_ != nullptr; }
  uint64_t capacity() const { return mask_ + 1; }
  RecvSlot& slot(uint64_t position) const {
    return *reinterpret_cast<RecvSlot*>(slots_ + (position & mask_) * stride_);
  }
  uint64_t turn(uint64_t position) const { return position >> log2_; }

  static constexpr uint32_t stride_for(uint32_t max_sge) {
    const uint32_t bytes = 32 + 16 * (max_sge < 2 ? 2 : max_sge);
    return (bytes + 63) / 64 * 64;
  }

  /// Number of scatter-list entries that a slot of this stride holds.
  static constexpr uint32_t entries_for(uint32_t stride) {
    return static_cast<uint32_t>((stride - offsetof(RecvSlot, sge)) / sizeof(Sge));
  }
  /// True if `stride` is a valid distance between two slots, in bytes.
  static constexpr bool is_stride(uint32_t stride) {
    return stride >= sizeof(RecvSlot) && stride % alignof(RecvSlot) == 0;
  }

  /// A claimed receive: the slot belongs to the claimer until finish() or put_back(). The owner may still write there,
  /// or may have written invalid values: a claimer reads each value once and checks what it has read.
  struct Claim {
    RecvSlot* slot = nullptr;
    uint64_t position = 0;
    uint64_t turn = 0;
    uint32_t entries = 0;  ///< of its scatter list, no more than the slot holds
    explicit operator bool() const { return slot != nullptr; }

    /// Entry `i` of the scatter list, below `entries`, as it is now.
    Sge entry(uint32_t i) const {
      const Sge* const from = static_cast<const Sge*>(slot->sge) + i;
      return {__atomic_load_n(&from->addr, __ATOMIC_RELAXED), __atomic_load_n(&from->length, __ATOMIC_RELAXED),
              __atomic_load_n(&from->lkey, __ATOMIC_RELAXED)};
    }
    /// Total bytes of its entries.
    uint64_t room() const {
      if (__builtin_expect(entries == 1, 1)) return entry(0).length;
      uint64_t bytes = 0;
      for (uint32_t i = 0; i < entries; ++i) bytes += entry(i).length;
      return bytes;
    }
  };

  /// Claims the oldest posted receive for process `owner`. Empty: none is posted, or the stamps are invalid. `alone`:
  /// no other thread or process claims from this ring.
  Claim claim(uint32_t owner, bool alone = false) {
    const uint64_t position = shared_->consumed.load(std::memory_order_acquire);
    RecvSlot& candidate = slot(position);
    const uint64_t now_turn = turn(position);
    uint64_t seen = stamp(now_turn, SlotState::kReady);
    if (__builtin_expect(!claim_slot(candidate, now_turn, owner, &seen), 0))
      return search(position, seen, owner, alone);
    return claimed(candidate, position, now_turn, alone);
  }

  /// True if a claim of process `owner` is still valid.
  static bool is_claimed(const Claim& claim, uint32_t owner) {
    return claim.slot->stamp.load(std::memory_order_acquire) == claim_stamp(claim.turn, owner);
  }

  /// The claimer has completed the receive: the slot may be posted again.
  static void finish(const Claim& claim) {
    claim.slot->claim_qp.store(0, std::memory_order_relaxed);
    claim.slot->completion.store(0, std::memory_order_relaxed);
    claim.slot->stamp.store(stamp(claim.turn + 1, SlotState::kFree), std::memory_order_release);
  }

  /// The claimer must not use the receive: it is posted again in its place.
  void put_back(const Claim& claim) {
    claim.slot->claim_qp.store(0, std::memory_order_relaxed);
    claim.slot->completion.store(0, std::memory_order_relaxed);
    claim.slot->stamp.store(stamp(claim.turn, SlotState::kReady), std::memory_order_release);
    // A process that advances the hint past it after lower_hint() has looked sees that it is ready.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    lower_hint(claim.position);
  }

  /// Owner only, one thread at a time: posts at `position`, which the owner counts. False: the ring is full.
  template <class Fill>
  bool post(uint64_t position, Fill&& fill) {
    RecvSlot& target = slot(position);
    const uint64_t now_turn = turn(position);
    uint64_t seen = target.stamp.load(std::memory_order_acquire);
    if (__builtin_expect(slot_state_of(seen) == SlotState::kClaimed, 0)) seen = await_claimer(target);
    if (__builtin_expect(seen != stamp(now_turn, SlotState::kFree), 0)) {
      // A receive that was put back while another claimer advanced the hint past it would stay unseen: lower the hint
      // again.
      if (now_turn > 0 && seen == stamp(now_turn - 1, SlotState::kReady)) lower_hint(position - capacity());
      return false;
    }
    fill(target);
    target.stamp.store(stamp(now_turn, SlotState::kReady), std::memory_order_release);
    // A sender wrote the next slot's line last: fetch it before the next post needs it.
    base::prefetch_for_write(&slot(position + 1));
    return true;
  }

 private:
  static constexpr int kClaimTurns = 20000;

  /// A claimer completes the receive first and then frees the slot. An owner that polls and posts again quickly finds
  /// the slot between the two and waits those few instructions. A claimer that was stopped just there makes the ring
  /// "full". Returns the slot's stamp.
  [[gnu::noinline]] static uint64_t await_claimer(const RecvSlot& target) {
    progress::Waiter waiter(progress::kLockPolicy);
    uint64_t seen = target.stamp.load(std::memory_order_acquire);
    for (int turns = 0; slot_state_of(seen) == SlotState::kClaimed && turns < kClaimTurns; ++turns) {
      waiter.turn();
      seen = target.stamp.load(std::memory_order_acquire);
    }
    return seen;
  }

  /// *seen: the stamp of a posted receive; afterwards, the stamp that was found.
  static bool claim_slot(RecvSlot& candidate, uint64_t now_turn, uint32_t owner, uint64_t* seen) {
    return candidate.stamp.compare_exchange_strong(*seen, claim_stamp(now_turn, owner), std::memory_order_seq_cst,
                                                   std::memory_order_acquire);
  }

  Claim claimed(RecvSlot& slot, uint64_t position, uint64_t now_turn, bool alone) {
    uint64_t hint = position;
    if (alone)
      shared_->consumed.store(position + 1, std::memory_order_release);
    else
      shared_->consumed.compare_exchange_strong(hint, position + 1, std::memory_order_acq_rel);
    return {&slot, position, now_turn, std::min(slot.num_sge, entries_for(stride_))};
  }

  /// claim() from a position with the stamp `seen`, which is not that of a posted receive.
  [[gnu::noinline]] Claim search(uint64_t position, uint64_t seen, uint32_t owner, bool alone) {
    uint64_t passed = 0;
    for (;;) {
      const uint64_t now_turn = turn(position);
      const uint64_t seen_turn = (seen & kStampBody) >> 2;
      if (seen_turn < now_turn || seen == stamp(now_turn, SlotState::kFree)) return {};
      if (++passed > capacity() + kMostLostPositions) return {};
      // Claimed by another process in this turn, or already free for a later turn: advance the hint and go on.
      uint64_t hint = position;
      bool was_put_back = false;
      if (shared_->consumed.compare_exchange_strong(hint, position + 1, std::memory_order_seq_cst)) {
        base::fence_after_update();
        // The receive was put back meanwhile, at a position that no sender would look at any more.
        was_put_back = slot(position).stamp.load(std::memory_order_acquire) == stamp(now_turn, SlotState::kReady);
      }
      if (!was_put_back) {
        const uint64_t consumed = shared_->consumed.load(std::memory_order_acquire);
        position = consumed > position ? consumed : position + 1;
      }
      RecvSlot& candidate = slot(position);
      seen = stamp(turn(position), SlotState::kReady);
      if (claim_slot(candidate, turn(position), owner, &seen))
        return claimed(candidate, position, turn(position), alone);
    }
  }

  /// Lowers the hint if it has passed a posted receive, which no sender would find otherwise.
  void lower_hint(uint64_t position) {
    uint64_t hint = shared_->consumed.load(std::memory_order_acquire);
    while (hint > position && !shared_->consumed.compare_exchange_weak(hint, position, std::memory_order_acq_rel)) {
    }
  }

  RecvRing* shared_ = nullptr;
  std::byte* slots_ = nullptr;
  uint32_t log2_ = 0;
  uint64_t mask_ = 0;
  uint32_t stride_ = 64;
};

}  // namespace nupa::shm
