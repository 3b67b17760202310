#include "transport/window/domain_queue.h"

#include <algorithm>

namespace nupa::window {

using core::Piece;
using segment::ReceiveRing;

ReceiveRing open_ring(cm::Peer& owner, segment::RecvRing& ring) {
  const uint64_t where = ring.where.load(std::memory_order_acquire);
  const uint32_t log2 = segment::ring_log2(where);
  const uint32_t stride = __atomic_load_n(&ring.stride, __ATOMIC_RELAXED);
  if (where == 0 || log2 > segment::kMaxRingLog2 || !ReceiveRing::is_stride(stride)) return {};
  auto slots = owner.heap(segment::ring_offset(where), uint64_t{stride} << log2);
  return slots ? ReceiveRing(&ring, *slots, log2, stride) : ReceiveRing();
}

WcStatus scatter(KeyCache& keys, const ReceiveRing::Claim& claim, uint32_t pd, uint64_t offset, const Piece* pieces,
                 uint64_t length) {
  RemoteRange range;
  uint32_t piece = 0;
  uint64_t used = 0;  // of pieces[piece]
  for (uint32_t i = 0; i < claim.entries && length > 0; ++i) {
    const Sge sge = claim.entry(i);
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    if (!keys.resolve(sge.lkey, sge.addr, sge.length, access::kLocalWrite, pd, 0, &range)) return WcStatus::kRemOpErr;
    uint64_t left = std::min<uint64_t>(sge.length - offset, length);
    range.address += offset;
    if (range.direct != nullptr) range.direct += offset;
    offset = 0;
    length -= left;
    while (left > 0) {
      const Piece& source = pieces[piece];
      const uint64_t step = std::min(left, source.length - used);
      if (step > 0) {
        const Piece part{source.data == nullptr ? nullptr : source.data + used, step};
        const WcStatus status = write_remote(keys.memory(), range, &part, 1);
        if (status != WcStatus::kSuccess) return status;
      }
      range.address += step;
      if (range.direct != nullptr) range.direct += step;
      left -= step;
      used += step;
      if (used == source.length) {
        ++piece;
        used = 0;
      }
    }
  }
  return WcStatus::kSuccess;
}

std::optional<DomainQueue> find_domain_queue(cm::Node& node, uint32_t number, uint64_t xrcd) {
  constexpr std::chrono::milliseconds kPatience{200};
  const uint32_t slot = segment::slot_of(number);
  cm::Peer* owner = slot == node.slot() ? &node.self() : nullptr;
  if (owner == nullptr) {
    auto met = node.connect(slot, kPatience);
    if (!met) return {};
    owner = *met;
  }
  const uint32_t index = segment::index_of(number);
  segment::SrqShared& srq = owner->tables().srq[index];
  if (srq.in_use.load() == 0 || srq.number != number || srq.type != static_cast<uint32_t>(SrqType::kXrc) ||
      srq.xrcd != xrcd || srq.cq >= segment::kMaxCq)
    return {};
  return DomainQueue{owner, &srq, index, number, srq.recv.where.load(std::memory_order_acquire)};
}

bool DomainQueue::stands() const {
  return owner->alive() && shared->in_use.load() != 0 && shared->number == number &&
         shared->recv.where.load(std::memory_order_acquire) == where;
}

DomainReceiver::DomainReceiver(const DomainQueue& queue, std::shared_ptr<PeerMemory> memory, uint32_t tag)
    : queue_(queue),
      tag_(tag),
      keys_(std::move(memory)),
      ring_(open_ring(*queue.owner, queue.shared->recv)),
      completions_(*queue.owner, queue.shared->cq) {}

bool DomainReceiver::holds(const Claim& claim) const { return stands() && ReceiveRing::is_claimed(claim, tag_); }

DomainReceiver::Claim DomainReceiver::claim(uint32_t qp_index) {
  const Claim claim = ring_.claim(tag_);
  if (!claim) return claim;
  claim.slot->claim_qp.store(qp_index + 1, std::memory_order_relaxed);
  cm::tell_limit(*queue_.owner, queue_.shared->recv, queue_.index);
  return claim;
}

bool DomainReceiver::place(const Claim& claim, uint64_t offset, const std::byte* data, uint32_t length) {
  const Piece piece{const_cast<std::byte*>(data), length};
  return scatter(keys_, claim, ring_.shared()->pd, offset, &piece, length) == WcStatus::kSuccess;
}

cm::CompletionPort::Pushed DomainReceiver::complete(const Claim& claim, bool solicited, segment::CqEntry& entry) {
  entry.srq_number = queue_.number;
  const auto pushed = completions_.push(tag_, &claim.slot->completion, solicited, entry);
  ReceiveRing::finish(claim);
  return pushed;
}

}  // namespace nupa::window
