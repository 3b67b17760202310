// SPDX-License-Identifier: Apache-2.0
#include "core/seam/xrc_domain.h"

#include <cerrno>

namespace nupa::core {

using shm::ReceiveRing;

ReceiveRing open_ring(host::Peer& owner, shm::RecvRing& ring, bool* no_memory) {
  const uint64_t where = ring.where.load(std::memory_order_acquire);
  const uint32_t log2 = shm::ring_log2(where);
  const uint32_t stride = __atomic_load_n(&ring.stride, __ATOMIC_RELAXED);
  if (where == 0 || log2 > shm::kMaxRingLog2 || !ReceiveRing::is_stride(stride)) return {};
  auto slots = owner.heap(shm::ring_offset(where), uint64_t{stride} << log2);
  if (no_memory != nullptr) *no_memory = !slots && slots.error().code() == ENOMEM;
  return slots ? ReceiveRing(&ring, *slots, log2, stride) : ReceiveRing();
}

std::optional<DomainQueue> find_domain_queue(host::Node& node, uint32_t number, uint64_t xrcd, bool* may_come) {
  const uint32_t slot = shm::slot_of(number);
  auto owner = node.connect(slot, std::chrono::milliseconds(0));
  if (may_come != nullptr) *may_come = !owner && owner.error().code() == ETIMEDOUT;
  if (!owner) return {};
  const uint32_t index = shm::index_of(number);
  shm::SrqShared& srq = (*owner)->tables().srq[index];
  if (srq.in_use.load() == 0 || srq.number != number || srq.type != static_cast<uint32_t>(SrqType::kXrc) ||
      srq.xrcd != xrcd || srq.cq >= shm::kMaxCq)
    return {};
  return DomainQueue{std::move(*owner), &srq, index, number, srq.recv.where.load(std::memory_order_acquire)};
}

bool DomainQueue::stands() const {
  return owner->alive() && shared->in_use.load() != 0 && shared->number == number &&
         shared->recv.where.load(std::memory_order_acquire) == where;
}

}  // namespace nupa::core
