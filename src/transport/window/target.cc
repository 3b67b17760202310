#include "transport/window/target.h"

#include <algorithm>

#include "base/log.h"
#include "base/ordered_copy.h"

namespace nupa::window {

using core::Piece;
using segment::QpShared;
using segment::ReceiveRing;
using segment::RecvSlot;

namespace {

bool takes_requests(QpState state) { return state >= QpState::kRtr && state != QpState::kErr; }

}  // namespace

Target::Target(cm::Node& node, const std::shared_ptr<PeerMemory>& memory, uint32_t qp_index, cm::DueEvent& due)
    : remote_(&memory->peer().tables().qp[qp_index]),
      peer_(memory->peer()),
      memory_(memory),
      qp_index_(qp_index),
      tag_(segment::owner_tag(node.slot(), node.self().instance())),
      remote_keys_(memory),
      buffer_keys_(memory),
      node_(node),
      due_(due) {}

bool Target::revalidate(uint32_t from_slot, uint32_t from_qpn) {
  accepted_ = ~uint64_t{0};
  if (!peer().alive()) return false;
  const uint64_t word = remote_->state.load(std::memory_order_acquire);
  const QpState state = segment::state_of(word);
  // One queue pair sends to a connected one, and its thread holds the send lock. The queues of an XRC domain are
  // shared.
  const auto type = static_cast<QpType>(remote_->type.load());
  alone_ = remote_->srq.load() == 0 && (type == QpType::kRc || type == QpType::kUc);
  if (remote_->in_use.load() == 0 || !takes_requests(state)) return false;
  if (from_qpn != 0 && (remote_->remote_qpn.load() != from_qpn || remote_->remote_slot.load() != from_slot))
    return false;
  recv_ = {};
  srq_index_ = remote_->srq.load();
  srq_number_ = 0;
  xrc_ = type == QpType::kXrcRecv;
  if (!xrc_) {
    if (srq_index_ != 0) {
      if (srq_index_ > segment::kMaxSrq) return false;
      segment::SrqShared& srq = peer().tables().srq[srq_index_ - 1];
      srq_number_ = srq.number;
      recv_ = open_ring(peer(), srq.recv);
    } else {
      recv_ = open_ring(peer(), remote_->recv);
    }
    const uint32_t completions = remote_->recv_cq.load();
    if (completions >= segment::kMaxCq) return false;
    completions_ = cm::CompletionPort(peer(), completions);
  }
  accepted_ = word;
  // The first request that reaches a queue pair before its owner thinks it connected is told (IBTA 11.6.3.1).
  if (state == QpState::kRtr && from_qpn != 0 && remote_->established.exchange(1) == 0)
    cm::call_attention(peer(), segment::attention::kQp, qp_index_);
  return true;
}

bool Target::select_srq(uint32_t number, uint64_t xrcd) {
  if (number == srq_number_ && recv_.valid() && domain_queue_ && domain_queue_->stands()) return true;
  srq_number_ = 0;
  domain_queue_ = find_domain_queue(node_, number, xrcd);
  if (!domain_queue_) return false;
  // The receive buffers may belong to another process of the same domain: its keys, its memory.
  cm::Peer& owner = *domain_queue_->owner;
  buffer_keys_ = KeyCache(&owner == &peer() ? memory_ : std::make_shared<PeerMemory>(owner, memory_->agent()));
  recv_ = open_ring(owner, domain_queue_->shared->recv);
  if (!recv_.valid()) return false;
  completions_ = cm::CompletionPort(owner, domain_queue_->shared->cq);
  srq_index_ = domain_queue_->index + 1;
  srq_number_ = number;
  return true;
}

ReceiveRing::Claim Target::claim() {
  if (!recv_.valid()) return {};
  ReceiveRing::Claim claim = recv_.claim(tag_, alone_);
  if (!claim) return {};
  claim.slot->claim_qp.store(qp_index_ + 1, std::memory_order_relaxed);
  // The owner may have left this state between ready() and the claim; it looks for claims after it changed the state,
  // and both sides are ordered by a full barrier, so one of the two sees the other.
  const uint64_t word = remote_->state.load(std::memory_order_seq_cst);
  if (__builtin_expect(word != accepted_, 0)) {
    // From RTR to RTS, say: it still takes requests.
    if (segment::epoch_of(word) != segment::epoch_of(accepted_) || !takes_requests(segment::state_of(word))) {
      recv_.put_back(claim);
      return {};
    }
    accepted_ = word;
  }
  if (__builtin_expect(srq_index_ != 0, 0))
    cm::tell_limit(buffer_keys_.memory().peer(), *recv_.shared(), srq_index_ - 1);
  return claim;
}

WcStatus Target::scatter(const ReceiveRing::Claim& claim, const Piece* pieces, uint32_t count, uint64_t length) {
  const uint32_t pd = recv_.shared()->pd;
  const Sge first = claim.entry(0);
  RemoteRange range;
  if (__builtin_expect(claim.entries > 0 && first.length >= length, 1)) {
    if (length == 0) return WcStatus::kSuccess;
    if (!buffer_keys_.resolve(first.lkey, first.addr, first.length, access::kLocalWrite, pd, 0, &range))
      return WcStatus::kRemOpErr;
    return write_remote(buffer_keys_.memory(), range, pieces, count);
  }
  return window::scatter(buffer_keys_, claim, pd, 0, pieces, length);
}

WcStatus Target::deliver(const ReceiveRing::Claim& claim, const Piece* pieces, uint32_t count, uint64_t length,
                         const Message& message) {
  const WcStatus status = scatter(claim, pieces, count, length);
  if (__builtin_expect(status == WcStatus::kSuccess, 1)) {
    complete(claim, message, WcStatus::kSuccess);
    return WcStatus::kSuccess;
  }
  if (status == WcStatus::kRetryExcErr) {  // the receiver died meanwhile: nobody will read this
    ReceiveRing::finish(claim);
    return status;
  }
  // The receiver's own buffer is at fault: local protection error there, remote operational error here.
  complete(claim, message, WcStatus::kLocProtErr);
  fail(EventType::kQpFatal);
  return WcStatus::kRemOpErr;
}

void Target::complete(const ReceiveRing::Claim& claim, const Message& message, WcStatus status) {
  const RecvSlot& slot = *claim.slot;
  segment::CqEntry entry;
  entry.wr_id = slot.wr_id;
  entry.byte_len = message.byte_len;
  entry.imm_data = message.imm_data;
  entry.qp_num = remote_->qp_num;
  entry.src_qp = message.src_qp;
  entry.srq_number = srq_number_;
  entry.status = static_cast<uint8_t>(status);
  entry.opcode = static_cast<uint8_t>(message.opcode);
  entry.wc_flags = static_cast<uint8_t>(message.wc_flags);
  entry.solicited = message.solicited;
  entry.sl = message.sl;
  entry.slid = message.slid;
  const auto pushed =
      completions_.push(tag_, &claim.slot->completion, message.solicited || status != WcStatus::kSuccess, entry, &due_);
  ReceiveRing::finish(claim);
  if (__builtin_expect(pushed == cm::CompletionPort::Pushed::kOverrun, 0)) fail(EventType::kQpFatal);
  // The next receive is needed with the next message: fetch it while nobody waits.
  base::prefetch_for_write(&recv_.slot(claim.position + 1));
}

bool Target::invalidate(uint32_t rkey) {
  const uint32_t index = segment::key_index(rkey);
  if (rkey == 0 || index >= segment::kMaxMr) return false;
  segment::MrShared& entry = peer().tables().mr[index];
  if (entry.kind != static_cast<uint32_t>(segment::MrKind::kWindow) || entry.qp_num != remote_->qp_num) return false;
  uint32_t expected = rkey;
  return entry.key.compare_exchange_strong(expected, 0);
}

void Target::fail(std::optional<EventType> event) {
  uint64_t word = remote_->state.load();
  if (segment::epoch_of(word) != segment::epoch_of(accepted_)) return;
  if (event) remote_->error.store(static_cast<uint32_t>(*event) + 1, std::memory_order_release);
  while (segment::epoch_of(word) == segment::epoch_of(accepted_) && segment::state_of(word) != QpState::kErr &&
         !remote_->state.compare_exchange_weak(word, segment::pack_state(segment::epoch_of(word), QpState::kErr))) {
  }
  cm::call_attention(peer(), segment::attention::kQp, qp_index_);
}

}  // namespace nupa::window
