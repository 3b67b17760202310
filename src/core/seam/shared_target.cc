// SPDX-License-Identifier: Apache-2.0
#include "core/seam/shared_target.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/memory_fault.h"
#include "base/ordered_copy.h"
#include "core/seam/responder.h"

namespace nupa::core {

using shm::QpShared;
using shm::ReceiveRing;
using shm::RecvSlot;

namespace {

bool takes_requests(QpState state) { return state >= QpState::kRtr && state != QpState::kErr; }

}  // namespace

SharedTarget::SharedTarget(host::Node& node, host::PeerMemories& memories, host::Peer& peer, uint32_t qp_index,
                           host::DueEvent* due, Guard guard)
    : remote_(peer.queue_pairs().qp(qp_index)),
      peer_(peer),
      qp_index_(qp_index),
      tag_(shm::owner_tag(node.slot(), node.self().instance())),
      guard_(guard),
      due_(due),
      remote_keys_(memories.of(peer)),
      own_side_(remote_keys_.share()),
      node_(node),
      memories_(memories),
      call_(memories.agent()),
      read_call_(memories.agent()) {
  // With kOwnMemory the calling thread serves other queue pairs as well, so it does not wait.
  if (guard == Guard::kOwnMemory) set_wait(0);
}

bool SharedTarget::revalidate(uint32_t from_slot, uint32_t from_qpn) {
  accepted_ = ~uint64_t{0};
  const bool lacked_memory = std::exchange(lacks_memory_, false);
  if (!peer().alive()) return false;
  const uint64_t word = remote_->state.load(std::memory_order_acquire);
  const QpState state = shm::state_of(word);
  // The queue pair was reset: the request that waits has ended. In the same life the request may be one that is tried
  // again.
  if (shm::epoch_of(word) != epoch_) forget_calls();
  epoch_ = shm::epoch_of(word);
  // A connected queue pair has one sender, whose thread holds the send lock. The queues of an XRC domain are shared.
  const auto type = static_cast<QpType>(remote_->type.load());
  alone_ = remote_->srq.load() == 0 && (type == QpType::kRc || type == QpType::kUc);
  if (remote_->in_use.load() == 0 || !takes_requests(state)) return false;
  if (from_qpn != 0 && (remote_->remote_qpn.load() != from_qpn || remote_->remote_slot.load() != from_slot))
    return false;
  xrc_ = type == QpType::kXrcRecv;
  own_side_.ring = {};
  own_side_.srq_index = remote_->srq.load();
  own_side_.srq_number = 0;
  if (!xrc_) {
    if (own_side_.srq_index != 0) {
      if (own_side_.srq_index > shm::kMaxSrq) return false;
      shm::SrqShared& srq = peer().tables().srq[own_side_.srq_index - 1];
      own_side_.srq_number = srq.number;
      own_side_.ring = open_ring(peer(), srq.recv, &lacks_memory_);
    } else {
      own_side_.ring = open_ring(peer(), remote_->recv, &lacks_memory_);
    }
    const uint32_t completions = remote_->recv_cq.load();
    if (completions >= shm::kMaxCq) return false;
    own_side_.completions = host::CompletionPort(peer(), completions);
    // Without the mapping, requests would never find a receive, or their completions would be lost.
    if (own_side_.completions.reach() != 0) lacks_memory_ = true;
    if (lacks_memory_) {
      if (!lacked_memory) NUPA_WARN("no address space for the queues of process %d (raise ulimit -v)", peer().pid());
      return false;
    }
  }
  accepted_ = word;
  // Notify the owner of the first request that reaches a queue pair in RTR (IBTA 11.6.3.1).
  if (state == QpState::kRtr && from_qpn != 0 && remote_->established.exchange(1) == 0)
    host::call_attention(peer(), shm::attention::kQp, qp_index_);
  return true;
}

bool SharedTarget::resolve_in_domain(uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights,
                                     host::RemoteRange* range) {
  return side_->ring.valid() &&
         side_->keys.resolve(rkey, address, length, rights, side_->ring.shared()->pd, remote_->qp_num, range);
}

Selection SharedTarget::select_domain_queue(uint32_t srqn) try {
  if (srqn == side_->srq_number && side_->queue && side_->queue->stands()) return Selection::kYes;
  side_ = &own_side_;
  const auto known = domain_sides_.find(srqn);
  if (known != domain_sides_.end() && known->second->queue->stands()) {
    side_ = known->second.get();
    return Selection::kYes;
  }
  if (known != domain_sides_.end()) domain_sides_.erase(known);
  bool may_come = false;
  const auto queue = find_domain_queue(node_, srqn, remote_->xrcd, &may_come);
  if (!queue) return may_come ? Selection::kLater : Selection::kNone;
  // The receive buffers may belong to another process of the same domain: its keys and its memory are used.
  auto side = std::make_unique<Side>(memories_.of(*queue->owner));
  side->ring = open_ring(*queue->owner, queue->shared->recv);
  if (!side->ring.valid()) return Selection::kNone;
  side->completions = host::CompletionPort(*queue->owner, queue->shared->cq);
  side->srq_index = queue->index + 1;
  side->srq_number = srqn;
  side->queue = queue;
  side->life = ++lives_;
  side_ = side.get();
  domain_sides_.emplace(srqn, std::move(side));
  return Selection::kYes;
} catch (const std::bad_alloc&) {
  side_ = &own_side_;
  NUPA_WARN("no memory to look up shared receive queue 0x%x: the request is rejected", srqn);
  return Selection::kNone;
}

bool SharedTarget::stands(uint64_t queue) const {
  if (queue == own_side_.life) return true;
  for (const auto& [number, side] : domain_sides_)
    if (side->life == queue) return side->queue->stands();
  return false;
}

void SharedTarget::check_state_of(Receive* receive, uint64_t word) {
  // The queue pair still takes requests, for example after RTR to RTS.
  if (shm::epoch_of(word) == shm::epoch_of(accepted_) && takes_requests(shm::state_of(word))) {
    accepted_ = word;
    return;
  }
  side_->ring.put_back(*receive);
  *receive = {};
}

void SharedTarget::signal_limit() {
  host::signal_limit(side_->keys.memory().peer(), *side_->ring.shared(), side_->srq_index - 1);
}

bool SharedTarget::may_flush(const FlushPart& part) {
  if (xrc_ && !side_->ring.valid()) return false;
  const bool whole = (part.flags & flush_flag::kRegion) != 0;
  host::KeyCache& keys = xrc_ ? side_->keys : remote_keys_;
  uint64_t address = part.address;
  if (whole) {
    const auto first = keys.first_address(part.rkey);
    if (!first) return false;
    address = *first;
  }
  host::RemoteRange range;
  return resolve(part.rkey, address, whole ? 0 : part.length, flush_rights(part.flags), &range);
}

WcStatus SharedTarget::copy(const host::RemoteRange& range, const Piece& piece) {
  const bool guarded = guard_ == Guard::kOwnMemory && range.region == nullptr && range.direct != nullptr;
  WcStatus status = WcStatus::kRemOpErr;
  const auto write = [&] { status = host::write_remote(call_, side_->keys.memory(), range, &piece, 1); };
  if (!guarded)
    write();
  else if (!base::try_access(range.direct, piece.length, write))
    return WcStatus::kRemOpErr;
  return status;
}

WcStatus SharedTarget::scatter(const Receive& receive, uint64_t offset, const Piece* pieces, uint64_t length,
                               const std::byte** behind) {
  host::RemoteRange range;
  uint32_t piece = 0;
  uint64_t used = 0;  // bytes of pieces[piece]
  for (uint32_t i = 0; i < receive.entries && length > 0; ++i) {
    const Sge sge = receive.entry(i);
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    uint64_t left = std::min<uint64_t>(sge.length - offset, length);
    if (!side_->keys.resolve(sge.lkey, sge.addr + offset, left, access::kLocalWrite, side_->ring.shared()->pd, 0,
                             &range))
      return WcStatus::kRemOpErr;
    offset = 0;
    length -= left;
    while (left > 0) {
      const Piece& source = pieces[piece];
      const uint64_t step = std::min(left, source.length - used);
      if (step > 0) {
        const Piece part{source.data == nullptr ? nullptr : source.data + used, step};
        const WcStatus status = copy(range, part);
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
    if (behind != nullptr) *behind = range.null_region ? nullptr : range.direct;
  }
  return WcStatus::kSuccess;
}

WcStatus SharedTarget::place_slowly(const Receive& receive, uint64_t offset, const Piece* pieces, uint32_t count,
                                    uint64_t length, const std::byte** behind) {
  if (length == 0 && behind == nullptr) return WcStatus::kSuccess;
  const Sge first = receive.entry(0);
  if (offset != 0 || receive.entries == 0 || first.length < length || count != 1 || behind != nullptr)
    return call_.attempt([&] { return scatter(receive, offset, pieces, length, behind); });
  host::RemoteRange range;
  if (!side_->keys.resolve(first.lkey, first.addr, length, access::kLocalWrite, side_->ring.shared()->pd, 0, &range))
    return WcStatus::kRemOpErr;
  return copy(range, *pieces);
}

WcStatus SharedTarget::atomic_by_owner(AtomicOp op, const host::RemoteRange& range, uint64_t* operand, uint64_t swap) {
  if (range.null_region) return WcStatus::kRemAccessErr;
  constexpr shm::AgentOp kOps[] = {shm::AgentOp::kCompareSwap, shm::AgentOp::kFetchAdd, shm::AgentOp::kAtomicWrite};
  host::Peer& owner = memory().peer();
  // In this process the word is always reachable, so it is at an odd address although the key's own address is even.
  if (owner.is_self()) return WcStatus::kRemInvReqErr;
  return call_.attempt(
      [&] { return call_.atomic(owner, kOps[static_cast<size_t>(op)], range.address, operand, swap); });
}

bool SharedTarget::invalidate(uint32_t rkey) {
  return invalidate_window(peer().tables(), rkey, remote_->qp_num.load(std::memory_order_relaxed));
}

void SharedTarget::fail(std::optional<EventType> event) {
  const uint64_t epoch = shm::epoch_of(accepted_);
  uint64_t word = remote_->state.load();
  if (shm::epoch_of(word) != epoch) return;
  if (event) remote_->error.store(shm::pack_error(epoch, *event), std::memory_order_release);
  while (shm::epoch_of(word) == epoch && shm::state_of(word) != QpState::kErr &&
         !remote_->state.compare_exchange_weak(word, shm::pack_state(epoch, QpState::kErr))) {
  }
  host::call_attention(peer(), shm::attention::kQp, qp_index_);
}

bool invalidate_window(const shm::Tables& tables, uint32_t rkey, uint32_t qp_num) {
  const uint32_t index = shm::key_index(rkey);
  if (rkey == 0 || index >= shm::kMaxMr) return false;
  shm::MrShared& entry = tables.mr[index];
  if (entry.kind != static_cast<uint32_t>(shm::MrKind::kWindow) || entry.qp_num != qp_num) return false;
  uint32_t expected = rkey;
  return entry.key.compare_exchange_strong(expected, 0);
}

}  // namespace nupa::core
