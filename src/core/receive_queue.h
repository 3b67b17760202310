// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/queue_pair.h>

#include <functional>
#include <mutex>

#include "core/ring_memory.h"
#include "progress/spin_lock.h"
#include "shm/receive_ring.h"

namespace nupa::core {

/// The owner's side of a receive queue of a queue pair, or of a shared receive queue.
class ReceiveQueue {
 public:
  /// Allocates the ring for `max_wr` receives of up to `max_sge` entries and publishes it to peers. ENOMEM, EFBIG.
  /// `tag`: marks this process's claims.
  static Result<std::unique_ptr<ReceiveQueue>> create(RingMemory& memory, uint32_t tag, shm::RecvRing& shared,
                                                      uint32_t max_wr, uint32_t max_sge, uint32_t pd);
  ~ReceiveQueue();
  ReceiveQueue(const ReceiveQueue&) = delete;
  ReceiveQueue& operator=(const ReceiveQueue&) = delete;

  uint32_t max_sge() const { return shared_.max_sge; }
  shm::ReceiveRing& ring() { return ring_; }
  shm::RecvRing& shared() { return shared_; }

  /// Returns 0; EINVAL: too many entries, or the queue is being drained; ENOMEM: full.
  int post(const RecvWr& wr);

  /// Called when the completion of one of its receives was polled. `alone`: no other thread calls this at the same
  /// time.
  void retire(bool alone) {
    if (alone)
      retired_.store(retired_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    else
      retired_.fetch_add(1, std::memory_order_release);
  }

  /// Takes back every posted receive and hands each to `flush` (null: drops it), oldest first. Waits up to `wait_ns`
  /// for a receive that a peer is filling, without the lock that posts take. Takes a receive that a dead peer left.
  /// Returns false if some are still being filled.
  bool drain(const std::function<void(const shm::RecvSlot&)>& flush, int64_t wait_ns,
             const std::function<bool(uint32_t tag)>& is_dead,
             const std::function<bool(const shm::RecvSlot&)>& completed);

  /// Recovers the claims of process `dead_tag`: frees the completed receives and posts the others again. `completed`
  /// returns whether the completion that a slot's claimer announced was written.
  void recover(uint32_t dead_tag, const std::function<bool(const shm::RecvSlot&)>& completed);

  /// The approximate number of receives that are posted and not yet claimed.
  uint64_t waiting() const;

 private:
  ReceiveQueue(RingMemory& memory, uint32_t tag, shm::RecvRing& shared, const shm::Segment::Block& block, uint32_t log2,
               uint32_t max_wr);
  bool drain_one(uint64_t position, const std::function<void(const shm::RecvSlot&)>& flush,
                 const std::function<bool(uint32_t)>& is_dead,
                 const std::function<bool(const shm::RecvSlot&)>& completed);

  RingMemory& memory_;
  const uint32_t tag_;
  shm::RecvRing& shared_;
  shm::Segment::Block block_;
  shm::ReceiveRing ring_;
  progress::SpinLock lock_;
  const uint32_t max_wr_;
  uint64_t posted_ = 0;
  bool waits_for_claimers_ = false;  ///< drain() waits, and has released the lock meanwhile
  /// Receives whose completion was polled, which frees their place (IBTA 10.8.3.2). retire() releases it, and post()
  /// acquires it.
  std::atomic<uint64_t> retired_{0};
};

}  // namespace nupa::core
