// SPDX-License-Identifier: Apache-2.0
#include "core/receive_queue.h"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "base/reason.h"
#include "base/clock.h"

namespace nupa::core {

using shm::ReceiveRing;
using shm::RecvSlot;
using shm::SlotState;

Result<std::unique_ptr<ReceiveQueue>> ReceiveQueue::create(RingMemory& memory, uint32_t tag, shm::RecvRing& shared,
                                                           uint32_t max_wr, uint32_t max_sge, uint32_t pd) {
  // There are more slots than receives. A slot that its claimer has completed and not yet freed, because it was
  // preempted there, then does not block the next post.
  const auto log2 = static_cast<uint32_t>(std::bit_width(std::max(max_wr, 1u)));
  const uint32_t stride = ReceiveRing::stride_for(max_sge);
  auto block = memory.allocate(uint64_t{stride} << log2);
  if (!block) return tl::unexpected(block.error());
  shared.stride = stride;
  shared.max_sge = max_sge;
  shared.pd = pd;
  shared.posted.store(0);
  shared.limit.store(0);
  shared.consumed.store(0);
  // The generation differs because a peer may have cached an earlier queue of this number, whose ring often had the
  // same place.
  const auto generation = static_cast<uint16_t>(++shared.rings);
  shared.where.store(shm::pack_ring(block->offset, log2, generation), std::memory_order_release);
  return std::unique_ptr<ReceiveQueue>(new ReceiveQueue(memory, tag, shared, *block, log2, max_wr));
}

ReceiveQueue::ReceiveQueue(RingMemory& memory, uint32_t tag, shm::RecvRing& shared, const shm::Segment::Block& block,
                           uint32_t log2, uint32_t max_wr)
    : memory_(memory),
      tag_(tag),
      shared_(shared),
      block_(block),
      ring_(&shared, block.address, log2, shared.stride),
      max_wr_(max_wr) {}

ReceiveQueue::~ReceiveQueue() {
  shared_.where.store(0);
  memory_.give_back(block_);
}

int ReceiveQueue::post(const RecvWr& wr) {
  if (wr.num_sge > shared_.max_sge)
    return base::reject(EINVAL, "num_sge ", wr.num_sge, " (max_recv_sge is ", shared_.max_sge, ")");
  std::lock_guard lock(lock_);
  if (__builtin_expect(waits_for_claimers_, 0)) return EINVAL;
  // A signed difference: a completion of an earlier queue with this number may be polled late.
  if (static_cast<int64_t>(posted_ - retired_.load(std::memory_order_acquire)) >= max_wr_)
    return base::reject(ENOMEM, "the receive queue is full: ", max_wr_, " receives whose completions were not polled");
  const bool posted = ring_.post(posted_, [&](RecvSlot& slot) {
    slot.wr_id = wr.wr_id;
    slot.num_sge = wr.num_sge;
    for (uint32_t i = 0; i < wr.num_sge; ++i) (&slot.sge[0])[i] = wr.sg_list[i];
  });
  if (!posted) return ENOMEM;
  ++posted_;
  shared_.posted.store(posted_, std::memory_order_release);
  return 0;
}

bool ReceiveQueue::drain_one(uint64_t position, const std::function<void(const RecvSlot&)>& flush,
                             const std::function<bool(uint32_t)>& is_dead,
                             const std::function<bool(const RecvSlot&)>& completed) {
  RecvSlot& slot = ring_.slot(position);
  const uint64_t turn = ring_.turn(position);
  uint64_t seen = slot.stamp.load(std::memory_order_acquire);
  if ((seen & shm::kStampBody) >> 2 != turn) return true;  // freed meanwhile
  const ReceiveRing::Claim claim{&slot, position, turn};
  if (shm::slot_state_of(seen) == SlotState::kClaimed) {
    if (!is_dead(shm::claimer_of(seen))) return false;
    if (flush && !completed(slot)) flush(slot);
    ReceiveRing::finish(claim);
    return true;
  }
  if (shm::slot_state_of(seen) != SlotState::kReady) return true;
  if (!slot.stamp.compare_exchange_strong(seen, shm::claim_stamp(turn, tag_))) return false;
  if (flush) flush(slot);
  ReceiveRing::finish(claim);
  return true;
}

bool ReceiveQueue::drain(const std::function<void(const RecvSlot&)>& flush, int64_t wait_ns,
                         const std::function<bool(uint32_t)>& is_dead,
                         const std::function<bool(const RecvSlot&)>& completed) {
  std::unique_lock lock(lock_);
  const uint64_t capacity = ring_.capacity();
  const int64_t deadline = wait_ns == 0 ? 0 : base::now_ns() + wait_ns;
  for (uint64_t position = posted_ > capacity ? posted_ - capacity : 0; position < posted_; ++position) {
    progress::Waiter waiter(progress::kLockPolicy);
    while (!drain_one(position, flush, is_dead, completed)) {
      if (deadline == 0 || base::now_ns() > deadline) return false;
      // The lock is released: threads that post, and the service thread that recovers the claims of a dead process, do
      // not wait.
      waits_for_claimers_ = true;
      lock.unlock();
      waiter.turn();
      lock.lock();
      waits_for_claimers_ = false;
    }
  }
  shared_.consumed.store(posted_, std::memory_order_release);
  if (!flush) retired_.store(posted_, std::memory_order_release);
  return true;
}

void ReceiveQueue::recover(uint32_t dead_tag, const std::function<bool(const RecvSlot&)>& completed) {
  std::lock_guard lock(lock_);
  const uint64_t capacity = ring_.capacity();
  for (uint64_t position = posted_ > capacity ? posted_ - capacity : 0; position < posted_; ++position) {
    RecvSlot& slot = ring_.slot(position);
    const uint64_t seen = slot.stamp.load(std::memory_order_acquire);
    if ((seen & shm::kStampBody) >> 2 != ring_.turn(position) || shm::slot_state_of(seen) != SlotState::kClaimed ||
        shm::claimer_of(seen) != dead_tag)
      continue;
    const ReceiveRing::Claim claim{&slot, position, ring_.turn(position)};
    if (completed(slot))
      ReceiveRing::finish(claim);
    else
      ring_.put_back(claim);
  }
}

uint64_t ReceiveQueue::waiting() const {
  const uint64_t posted = shared_.posted.load();
  const uint64_t consumed = shared_.consumed.load();
  return posted > consumed ? posted - consumed : 0;
}

}  // namespace nupa::core
