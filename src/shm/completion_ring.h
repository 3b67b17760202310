// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstring>

#include "base/fence.h"
#include "base/wide_word.h"
#include "shm/layout.h"

namespace nupa::shm {

/// The writer's view of a completion queue: any thread of any process that has it mapped may push, each through its own
/// object.
///
/// A push claims a position in the claims beside the slots, fills the slot and marks it as ready by the slot's stamp.
/// The owner only reads slots: `head` holds how far it has read, in a separate cache line that writers read once a
/// turn. The claims are apart from the slots because the owner polls the slot's cache line. A writer that accessed it
/// twice would lose it in between and pay for two more transfers. So a completion costs two transfers: the line moves
/// to the writer and back to the owner. `tail` is only a hint that all writers advance. If a writer dies between claim
/// and ready, its claim identifies it, and its entry is voided.
///
/// Memory order, on any processor:
/// - write() releases the entry by its stamp, and ready() acquires the stamp before the owner reads the entry.
/// - publish_head() releases `head` after the owner has read the entries below it. claim_next() acquires it before a
///   writer takes such a slot, so no writer changes an entry that is being read.
/// - Of two writers the compare-exchange of the claim lets one have a position. It acquires, so the writer's stores
///   come after it. close() and reopen() are updates of the same word.
/// - `tail` orders nothing: a claim that fails shows that the hint was late.
/// - Store and load: a writer stores the stamp and then looks at `armed`, the owner stores `armed` and then looks at
/// the
///   stamp. A release and an acquire do not keep a store before a later load of another word, so both sides have a full
///   barrier between the two (base::fence_after_update() in help_tail() and arm()): one of them sees the other.
class CompletionRing {
 public:
  enum class Push {
    kOk,
    kOverrun,  ///< no free slot, or invalid claims
    kMoved,    ///< the queue was resized: look up the new place and push again
  };
  using Claim = std::atomic<uint64_t>;

  CompletionRing() = default;
  /// `memory`: bytes_for() bytes, zeros if the ring is new. `generation`: as in the ring's place (pack_ring).
  CompletionRing(CqShared* shared, void* memory, uint32_t log2_slots, uint16_t generation = 0)
      : shared_(shared),
        control_(static_cast<Control*>(memory)),
        log2_(static_cast<uint8_t>(log2_slots)),
        has_events_(shared->channel != 0),
        generation_(generation) {}

  static constexpr uint64_t bytes_for(uint32_t log2_slots) {
    return sizeof(Control) + ((sizeof(CqSlot) + sizeof(Claim)) << log2_slots);
  }

  CqShared* shared() const { return shared_; }
  bool valid() const { return control_ != nullptr; }
  uint64_t capacity() const { return uint64_t{1} << log2_; }
  CqSlot& slot(uint64_t position) const { return slots()[position & (capacity() - 1)]; }
  /// The stamp of a slot whose entry for `position` is ready. Turns count from 1, because zero means that none is.
  uint64_t turn(uint64_t position) const { return (position >> log2_) + 1; }
  bool ready(uint64_t position) const { return slot(position).stamp.load(std::memory_order_acquire) == turn(position); }

  /// Claims a slot for process `owner`, writes the entry and makes it ready. Between claim and ready, `intent` (if
  /// given) stores the generation and the position plus 1. If the writer dies, another process finds by it the slot,
  /// which shows whether the entry was completed. After kOk the caller calls needs_event().
  Push push(uint32_t owner, std::atomic<uint64_t>* intent, const CqEntry& entry) {
    if (__builtin_expect(try_push(owner, intent, entry), 1)) return Push::kOk;
    uint64_t position;
    const Push result = claim_next(owner, &position);
    if (__builtin_expect(result == Push::kOk, 1)) put(position, intent, entry);
    return result;
  }

  /// push() without a search: false if the position that the hint names is not known to be free. Changes no member.
  bool try_push(uint32_t owner, std::atomic<uint64_t>* intent, const CqEntry& entry) {
    const uint64_t position = control_->tail.load(std::memory_order_acquire);
    if (__builtin_expect(!claim_at(position, owner), 0)) return false;
    put(position, intent, entry);
    return true;
  }

  /// The position that the next writer claims, or an earlier one, with the ring's generation.
  uint64_t next_position() const {
    return uint64_t{generation_} << 48 | control_->tail.load(std::memory_order_acquire);
  }

  /// First half of push(): the position belongs to the caller until it has written it.
  [[gnu::noinline]] Push claim_next(uint32_t owner, uint64_t* claimed_position) {
    uint64_t position = control_->tail.load(std::memory_order_acquire);
    uint64_t passed = 0;
    for (;;) {
      const uint64_t now_turn = turn(position);
      uint64_t claimed = claim(position).load(std::memory_order_acquire);
      if (turn_of(claimed) < now_turn) {
        if (__builtin_expect(position >= free_until_, 0)) {
          free_until_ = control_->head.load(std::memory_order_acquire) + capacity();
          if (position >= free_until_) return Push::kOverrun;
        }
        if (claim(position).compare_exchange_strong(claimed, claim_of(now_turn, owner), std::memory_order_acq_rel,
                                                    std::memory_order_acquire)) {
          *claimed_position = position;
          return Push::kOk;
        }
      }
      if (claimed == kClosed) return Push::kMoved;
      if (++passed > capacity() + kMostLostPositions) return Push::kOverrun;
      // Another writer took this position: advance the hint and try the next.
      help_tail(position);
      const uint64_t tail = control_->tail.load(std::memory_order_acquire);
      position = tail > position ? tail : position + 1;
    }
  }

  /// Writes a claimed entry and makes it ready. The owner polls this cache line. Few stores make it unlikely that the
  /// line moves to the owner before the last of them, which would cost two more transfers. The words are put together
  /// in registers: a wide load of an entry that was just stored in parts would wait for these stores.
  void write(uint64_t position, const CqEntry& entry) {
    const auto two = [](uint32_t low, uint32_t high) { return low | uint64_t{high} << 32; };
    const uint32_t bytes =
        entry.status | uint32_t{entry.opcode} << 8 | uint32_t{entry.wc_flags} << 16 | uint32_t{entry.solicited} << 24;
    const uint32_t route = entry.sl | uint32_t{entry.dlid_path_bits} << 8 | uint32_t{entry.slid} << 16;
    CqSlot& to = slot(position);
    auto* words = reinterpret_cast<base::WideWord*>(&to.entry);
    base::store_wide(words, base::make_wide(entry.wr_id, entry.timestamp));
    base::store_wide(words + 1, base::make_wide(two(entry.byte_len, entry.imm_data), two(entry.qp_num, entry.src_qp)));
    base::store_wide(words + 2,
                     base::make_wide(two(entry.sq_position, entry.srq_number), two(bytes, entry.vendor_err)));
    const uint64_t rest = route;
    std::memcpy(words + 3, &rest, sizeof rest);
    to.stamp.store(turn(position), std::memory_order_release);
  }

  /// Owner: publishes that all entries below `head` were read.
  void publish_head(uint64_t head) const { control_->head.store(head, std::memory_order_release); }
  /// Owner of a new ring, before other processes see it: `count` entries were put there.
  void start_at(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) claim(i).store(claim_of(turn(i), 0), std::memory_order_relaxed);
    control_->tail.store(count, std::memory_order_release);
  }

  /// Owner: closes the slot at `position` to writers for good. False: a writer has claimed it and will make it ready.
  bool close(uint64_t position) {
    uint64_t claimed = claim(position).load(std::memory_order_acquire);
    if (turn_of(claimed) >= turn(position)) return claimed == kClosed;
    return claim(position).compare_exchange_strong(claimed, kClosed, std::memory_order_acq_rel);
  }
  /// Owner: reverts close(), if it closed the slot.
  void reopen(uint64_t position) {
    uint64_t closed = kClosed;
    claim(position).compare_exchange_strong(closed, claim_of(turn(position) - 1, 0), std::memory_order_acq_rel);
  }

  /// Owner: voids the entries that process `dead` claimed and did not complete.
  void void_claims_of(uint32_t dead) {
    for (uint64_t i = 0; i < capacity(); ++i) {
      const uint64_t claimed = claim(i).load(std::memory_order_acquire);
      if (claimed == 0 || claimed == kClosed || claimer_of(claimed) != dead) continue;
      const uint64_t its_turn = turn_of(claimed);
      if (slots()[i].stamp.load(std::memory_order_acquire) >= its_turn) continue;
      slots()[i].entry.status = kVoidStatus;
      slots()[i].stamp.store(its_turn, std::memory_order_release);
    }
  }

  /// Owner: asks for an event with the next entry, or the next solicited one. An entry that raises no event is visible
  /// to the owner's reads after this call.
  static void arm(CqShared& shared, Armed kind) {
    uint64_t seen = shared.armed.load();
    while (armed_of(seen) < kind) {  // an armed "next" is not weakened to "solicited" (IBTA 11.4.2.2)
      const uint64_t wanted = pack_armed(disarmed_of(seen), kind);
      if (shared.armed.compare_exchange_weak(seen, wanted, std::memory_order_seq_cst)) break;
    }
    base::fence_after_update();
  }

  /// True if the entry just pushed must raise an event, which the caller then raises. Pairs with the owner's arm():
  /// both are ordered by a full barrier (help_tail), so one of the two sees the other.
  bool needs_event(bool solicited) {
    if (!has_events_) return false;
    uint64_t armed = shared_->armed.load(std::memory_order_seq_cst);
    while (__builtin_expect(armed_of(armed) != Armed::kNo, 0)) {
      if (armed_of(armed) == Armed::kSolicited && !solicited) return false;
      const uint64_t taken = pack_armed(disarmed_of(armed) + 1, Armed::kNo);
      if (shared_->armed.compare_exchange_weak(armed, taken, std::memory_order_acq_rel)) return true;
    }
    return false;
  }

  /// Counts one of the events to raise. False: all are raised, because the owner raised those that it attributed to a
  /// dead process.
  static bool count_event(CqShared& shared) {
    uint32_t raised = shared.events.load(std::memory_order_acquire);
    while (static_cast<int32_t>(disarmed_of(shared.armed.load(std::memory_order_acquire)) - raised) > 0)
      if (shared.events.compare_exchange_weak(raised, raised + 1, std::memory_order_acq_rel)) return true;
    return false;
  }

 private:
  struct Control {
    alignas(64) std::atomic<uint64_t> tail;  ///< writers' hint: where to look for the next free slot
    alignas(64) std::atomic<uint64_t> head;  ///< written by the owner: how far it has read
  };
  static constexpr uint64_t kClosed = ~uint64_t{0};
  static constexpr uint64_t turn_of(uint64_t claim_value) {
    return claim_value == kClosed ? kClosed : claim_value & kStampBody;
  }
  static constexpr uint64_t claim_of(uint64_t now_turn, uint32_t owner) { return uint64_t{owner} << 48 | now_turn; }
  CqSlot* slots() const { return reinterpret_cast<CqSlot*>(control_ + 1); }
  Claim& claim(uint64_t position) const {
    return reinterpret_cast<Claim*>(slots() + capacity())[position & (capacity() - 1)];
  }

  /// Second half of push(), for a claimed position.
  void put(uint64_t position, std::atomic<uint64_t>* intent, const CqEntry& entry) {
    if (intent != nullptr) intent->store(uint64_t{generation_} << 48 | (position + 1), std::memory_order_release);
    write(position, entry);
    help_tail(position);
  }

  /// Claims `position` if it is known to be free. False: claim_next() has to look. A closed slot has the last turn of
  /// all.
  bool claim_at(uint64_t position, uint32_t owner) const {
    Claim& place = claim(position);
    const uint64_t now_turn = turn(position);
    uint64_t claimed = place.load(std::memory_order_acquire);
    return (claimed & kStampBody) < now_turn && position < free_until_ &&
           place.compare_exchange_strong(claimed, claim_of(now_turn, owner), std::memory_order_acq_rel,
                                         std::memory_order_acquire);
  }

  /// Everything up to `position` is claimed, so advance the hint. The hint may be late but never early. If no process
  /// can wait for an event, no barrier is needed and a plain store is enough.
  void help_tail(uint64_t position) {
    uint64_t hint = position;
    if (has_events_) {
      control_->tail.compare_exchange_strong(hint, position + 1, std::memory_order_seq_cst);
      base::fence_after_update();
    } else if (control_->tail.load(std::memory_order_relaxed) <= position) {
      control_->tail.store(position + 1, std::memory_order_release);
    }
  }

  // Every queue pair has two of these objects, so they are small.
  CqShared* shared_ = nullptr;
  Control* control_ = nullptr;  ///< the slots follow it, and the claims follow the slots
  uint64_t free_until_ = 0;     ///< positions below this may be claimed: the last `head` read plus the capacity
  uint8_t log2_ = 0;
  bool has_events_ = false;
  uint16_t generation_ = 0;
};

}  // namespace nupa::shm
