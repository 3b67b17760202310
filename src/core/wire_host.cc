#include "core/wire_host.h"

#include <algorithm>

#include "base/ordered_copy.h"
#include "core/mr.h"
#include "core/qp.h"

namespace nupa::core {

using segment::MrKind;
using segment::MrShared;

bool WireHost::locate(const Sge& sge, uint32_t rights, std::byte** data) {
  transport::Piece piece;
  if (sge.length == 0) {
    *data = nullptr;
    return true;
  }
  if (qp_.locate(sge, rights, &piece) != WcStatus::kSuccess) return false;
  *data = piece.data;
  return true;
}

WcStatus WireHost::run_local(const SendWr& wr) { return qp_.run_local(wr); }

void WireHost::complete_send(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length) {
  qp_.finish_wire(wr, position, status, length);
}

Srq* WireHost::xrc_srq(uint32_t srqn) const {
  Runtime& runtime = qp_.runtime_;
  if (segment::slot_of(srqn) != runtime.slot()) return nullptr;
  // Entered when it is complete, and not taken away before this queue pair's lock was free.
  Srq* srq = runtime.srq_at(segment::index_of(srqn));
  if (srq == nullptr) return nullptr;
  const segment::SrqShared& shared = runtime.tables().srq[segment::index_of(srqn)];
  const bool in_domain = shared.type == static_cast<uint32_t>(SrqType::kXrc) && shared.xrcd == qp_.shared_->xrcd;
  return in_domain ? srq : nullptr;
}

std::byte* WireHost::reach(uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights) {
  const segment::QpShared& qp = *qp_.shared_;
  if ((qp.access.load(std::memory_order_relaxed) & rights) != rights) return nullptr;
  uint32_t pd = qp.pd;
  if (qp_.type() == QpType::kXrcRecv) {
    // The request names a shared receive queue, and its domain answers (IBTA A14.5).
    Srq* srq = xrc_srq(srqn);
    if (srq == nullptr) return nullptr;
    pd = srq->pd().handle();
  }
  const uint32_t index = segment::key_index(rkey);
  if (rkey == 0 || index >= segment::kMaxMr) return nullptr;
  const MrShared& mr = qp_.keys_[index];
  if (mr.key.load(std::memory_order_acquire) != rkey || mr.pd != pd || (mr.access & rights) != rights ||
      mr.kind == static_cast<uint32_t>(MrKind::kNull))
    return nullptr;
  if (mr.kind == static_cast<uint32_t>(MrKind::kWindow)) {
    if (mr.qp_num != 0 && mr.qp_num != qp.qp_num) return nullptr;
    if (mr.parent >= segment::kMaxMr || qp_.keys_[mr.parent].key.load(std::memory_order_acquire) == 0) return nullptr;
  }
  const uint64_t offset = address - mr.start;
  if (offset > mr.length || length > mr.length - offset) return nullptr;
  return reinterpret_cast<std::byte*>(address + mr.delta);
}

roce::Host::Take WireHost::take_receive(uint32_t srqn) {
  srq_ = qp_.srq_;
  if (qp_.type() == QpType::kXrcRecv) {
    srq_ = xrc_srq(srqn);
    if (srq_ == nullptr) return Take::kNoQueue;
  }
  queue_ = srq_ != nullptr ? &srq_->queue() : qp_.queue_.get();
  if (queue_ == nullptr) return Take::kNoQueue;
  claim_ = queue_->ring().claim(qp_.runtime_.tag());
  if (!claim_) return Take::kNone;
  claim_.slot->claim_qp.store(qp_.index_ + 1, std::memory_order_relaxed);
  if (srq_ != nullptr) cm::tell_limit(qp_.runtime_.node().self(), queue_->shared(), srq_->index());
  return Take::kTaken;
}

uint64_t WireHost::receive_room() const {
  uint64_t room = 0;
  for (uint32_t i = 0; i < claim_.slot->num_sge; ++i) room += (&claim_.slot->sge[0])[i].length;
  return room;
}

bool WireHost::place(uint64_t offset, const std::byte* data, uint32_t length, const std::byte** behind) {
  const uint32_t pd = queue_->shared().pd;
  const segment::RecvSlot& slot = *claim_.slot;
  for (uint32_t i = 0; i < slot.num_sge && length > 0; ++i) {
    const Sge& sge = (&slot.sge[0])[i];
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    transport::Piece piece;
    if (find_local(qp_.keys_, pd, sge, access::kLocalWrite, &piece) != WcStatus::kSuccess) return false;
    const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(sge.length - offset, length));
    if (piece.data != nullptr) base::copy_in_order(piece.data + offset, data, bytes);
    *behind = piece.data == nullptr ? nullptr : piece.data + offset + bytes;
    data += bytes;
    length -= bytes;
    offset = 0;
  }
  return true;
}

void WireHost::complete_receive(const roce::Inbound& message, WcStatus status) {
  segment::CqEntry entry;
  entry.wr_id = claim_.slot->wr_id;
  entry.byte_len = message.byte_len;
  entry.imm_data = message.imm_data;
  entry.qp_num = qp_.qp_num_;
  entry.src_qp = message.src_qp;
  entry.srq_number = srq_ != nullptr ? srq_->number() : 0;
  entry.status = static_cast<uint8_t>(status);
  entry.opcode = static_cast<uint8_t>(message.opcode);
  entry.wc_flags = static_cast<uint8_t>(message.wc_flags);
  entry.solicited = message.solicited;
  Runtime& runtime = qp_.runtime_;
  const bool solicited = message.solicited || status != WcStatus::kSuccess;
  using Pushed = cm::CompletionPort::Pushed;
  Pushed pushed;
  if (qp_.type() == QpType::kXrcRecv) {
    cm::CompletionPort port(runtime.node().self(), srq_->cq()->index());
    pushed = port.push(runtime.tag(), &claim_.slot->completion, solicited, entry);
  } else {
    pushed = qp_.recv_port_.push(runtime.tag(), &claim_.slot->completion, solicited, entry);
  }
  segment::ReceiveRing::finish(claim_);
  claim_ = {};
  if (pushed == Pushed::kOverrun) qp_.fail_for_overrun();
}

void WireHost::return_receive() {
  queue_->ring().put_back(claim_);
  claim_ = {};
}

bool WireHost::invalidate(uint32_t rkey) { return invalidate_window(qp_.runtime_, rkey, qp_.qp_num_); }

void WireHost::refuse(std::optional<EventType> event) {
  if (event) qp_.shared_->error.store(static_cast<uint32_t>(*event) + 1, std::memory_order_release);
  qp_.set_state(QpState::kErr);
  cm::call_attention(qp_.runtime_.node().self(), segment::attention::kQp, qp_.index_);
}

uint8_t WireHost::rnr_timer() const {
  return static_cast<uint8_t>(qp_.shared_->rnr_timer.load(std::memory_order_relaxed));
}

void WireHost::established() {
  // The first request that comes before the owner thinks it connected is told (IBTA 11.6.3.1).
  if (qp_.state() == QpState::kRtr && qp_.shared_->established.exchange(1) == 0)
    cm::call_attention(qp_.runtime_.node().self(), segment::attention::kQp, qp_.index_);
}

}  // namespace nupa::core
