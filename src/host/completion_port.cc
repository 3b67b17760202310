// SPDX-License-Identifier: Apache-2.0
#include "host/completion_port.h"

#include "base/clock.h"
#include "base/fence.h"
#include "progress/late_events.h"
#include "progress/waiter.h"

namespace nupa::host {

void call_attention(Peer& owner, uint32_t kind, uint32_t index) {
  shm::SegmentHeader& header = *owner.tables().header;
  const uint64_t bit = uint64_t{1} << (index % 64);
  if (kind == shm::attention::kQp) {
    const uint32_t bank = shm::bank_of(index);
    const shm::QpBank queue_pairs = owner.queue_pairs().at(bank);
    if (!queue_pairs) return;
    queue_pairs.attention[shm::index_of(index) / 64].fetch_or(bit);
    header.bank_attention.fetch_or(1u << bank);
  }
  if (kind == shm::attention::kSrq) header.srq_attention[index / 64].fetch_or(bit);
  if (kind == shm::attention::kCq) header.cq_attention[index / 64].fetch_or(bit);
  header.attention.fetch_or(kind);
  owner.signal_wakeup_fd();
}

void raise_cq_event(Peer& owner, uint32_t cq_index) {
  const auto later = [](void* whose, uint32_t index) { raise_cq_event(*static_cast<Peer*>(whose), index); };
  if (progress::LateEvents::keep(later, &owner, cq_index)) return;
  shm::CqShared& cq = owner.tables().cq[cq_index];
  if (!shm::CompletionRing::count_event(cq)) return;
  const uint32_t channel = cq.channel;
  if (channel == 0) return;
  if (owner.signal_channel(channel - 1)) return;
  // This process does not have the channel's descriptor: the owner wakes the sleepers itself, once for each event.
  cq.unsignalled.fetch_add(1);
  call_attention(owner, shm::attention::kCq, cq_index);
}

void signal_limit(Peer& owner, shm::RecvRing& ring, uint32_t srq_index) {
  // The claim was counted by an update of `consumed`. The owner stores the limit and then reads `consumed`, both
  // sequentially consistent (Srq::modify): either this process sees the limit, or the owner sees the claim.
  base::fence_after_update();
  uint32_t limit = ring.limit.load(std::memory_order_acquire);
  if (limit == 0) return;
  const uint64_t posted = ring.posted.load(std::memory_order_acquire);
  const uint64_t consumed = ring.consumed.load(std::memory_order_acquire);
  if (posted > consumed && posted - consumed >= limit) return;
  if (ring.limit.compare_exchange_strong(limit, 0)) call_attention(owner, shm::attention::kSrq, srq_index);
}

bool CompletionPort::open() {
  shm::CqShared& shared = owner_->tables().cq[index_];
  const uint64_t where = shared.where.load(std::memory_order_acquire);
  ring_ = {};
  const uint32_t log2 = shm::ring_log2(where);
  where_ = 0;
  if (where == 0 || log2 > shm::kMaxRingLog2) return false;
  auto slots = owner_->heap(shm::ring_offset(where), shm::CompletionRing::bytes_for(log2));
  if (!slots) {
    if (slots.error().code() == ENOMEM) where_ = where;
    return false;
  }
  timestamps_ = (shared.flags & shm::kCqTimestamps) != 0;
  ring_ = shm::CompletionRing(&shared, *slots, log2, shm::ring_generation(where));
  where_ = where;
  return true;
}

CompletionPort::Pushed CompletionPort::push_slowly(uint32_t tag, std::atomic<uint64_t>* intent, bool solicited,
                                                   shm::CqEntry entry, DueEvent* due) {
  progress::Waiter waiter(progress::kLockPolicy);
  int64_t until_ns = 0;  // limit of the wait for a ring that moves
  for (;;) {
    if (!is_open() && !open()) return Pushed::kNo;
    if (timestamps_) entry.timestamp = base::ticks();
    switch (ring_.push(tag, intent, entry)) {
      case shm::CompletionRing::Push::kOk:
        if (ring_.needs_event(solicited)) raise_event(due);
        return Pushed::kYes;
      case shm::CompletionRing::Push::kMoved:
        // The owner closes the ring before it publishes the new place.
        ring_ = {};
        if (!owner_->alive()) return Pushed::kNo;
        if (until_ns == 0)
          until_ns = base::now_ns() + kMoveLimitNs;
        else if (base::now_ns() >= until_ns)
          return Pushed::kLost;
        waiter.turn();
        break;
      case shm::CompletionRing::Push::kOverrun:
        return overrun() ? Pushed::kLost : Pushed::kNo;
    }
  }
}

void CompletionPort::raise_event(DueEvent* due) {
  if (due != nullptr)
    due->hold(*owner_, index_);
  else
    raise_cq_event(*owner_, index_);
}

bool CompletionPort::overrun() {
  shm::CqShared& shared = owner_->tables().cq[index_];
  if ((shared.flags & shm::kCqIgnoreOverrun) != 0) return false;
  uint32_t none = 0;
  if (shared.overrun.compare_exchange_strong(none, 1)) call_attention(*owner_, shm::attention::kCq, index_);
  return true;
}

}  // namespace nupa::host
