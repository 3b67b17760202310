#include "core/qp_context_impl.h"

#include <algorithm>

#include "base/log.h"
#include "base/memory_fault.h"
#include "base/ordered_copy.h"
#include "core/mr.h"
#include "core/qp.h"

namespace nupa::core {

namespace {

constexpr uint32_t kMaxMtu = 4096;  // IBTA 9.3.2: the largest path MTU

}  // namespace

using segment::MrKind;
using segment::MrShared;

QpContextImpl::QpContextImpl(Qp& qp)
    : QpContext({qp.qp_num_, qp.options_.type, qp.options_.cap, qp.options_.hears_itself, qp.shared_,
                 &qp.runtime_.tables().wire[qp.index_]}),
      qp_(qp) {}

bool QpContextImpl::locate(const Sge& sge, uint32_t rights, std::byte** data) {
  Piece piece;
  if (sge.length == 0) {
    *data = nullptr;
    return true;
  }
  if (qp_.locate(sge, rights, &piece) != WcStatus::kSuccess) return false;
  *data = piece.data;
  return true;
}

WcStatus QpContextImpl::run_local(const SendWr& wr) { return qp_.run_local(wr); }

void QpContextImpl::complete_send(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length) {
  qp_.complete_taken(wr, position, status, length);
}

void QpContextImpl::wake() { qp_.runtime_.add_pending(&qp_, true); }

void QpContextImpl::wake_at(int64_t) { qp_.runtime_.add_pending(&qp_, false); }

void QpContextImpl::peer_gone() {
  qp_.set_state(QpState::kErr);
  cm::call_attention(qp_.runtime_.node().self(), segment::attention::kQp, qp_.index_);
}

bool QpContextImpl::is_xrc() const { return qp_.type() == QpType::kXrcRecv; }

window::DomainReceiver* QpContextImpl::receiver_of(uint32_t srqn) try {
  const auto known = receivers_.find(srqn);
  if (known != receivers_.end() && known->second->stands()) return known->second.get();
  Runtime& runtime = qp_.runtime_;
  const auto queue = window::find_domain_queue(runtime.node(), srqn, qp_.shared_->xrcd);
  // A message that was on its way into the old one is refused.
  if (known != receivers_.end() && known->second.get() == receiver_) receiver_ = nullptr;
  if (!queue) {
    receivers_.erase(srqn);
    return nullptr;
  }
  auto& receiver = receivers_[srqn];
  receiver = std::make_unique<window::DomainReceiver>(*queue, runtime.window().memory_of(*queue->owner), runtime.tag());
  return receiver->stands() ? receiver.get() : nullptr;
} catch (const std::bad_alloc&) {
  NUPA_WARN("no memory to look up shared receive queue 0x%x: the request is refused", srqn);
  return nullptr;
}

std::byte* QpContextImpl::reach_in_domain(uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t length,
                                          uint32_t rights) {
  // The request names a shared receive queue, and its domain and process answer (IBTA A14.5).
  written_ = nullptr;
  window::DomainReceiver* receiver = receiver_of(srqn);
  window::RemoteRange range;
  if (receiver == nullptr || !receiver->resolve(rkey, address, length, rights, qp_.qp_num_, &range)) return nullptr;
  if (range.null_region) return nullptr;
  if (range.direct != nullptr) return range.direct;
  // Memory of another process that is not shared: by a copy.
  if (copy_ == nullptr) copy_.reset(new (std::nothrow) std::byte[kMaxMtu]);
  if (copy_ == nullptr || length > kMaxMtu) return copy_.get();
  if ((rights & access::kRemoteRead) != 0) {
    const Piece piece{copy_.get(), length};
    if (window::read_remote(receiver->memory(), range, &piece, 1) != WcStatus::kSuccess) return nullptr;
  }
  written_ = receiver;
  written_range_ = range;
  return copy_.get();
}

bool QpContextImpl::wrote(uint32_t length) {
  if (written_ == nullptr) return true;
  const Piece piece{copy_.get(), length};
  return window::write_remote(written_->memory(), written_range_, &piece, 1) == WcStatus::kSuccess;
}

WcStatus QpContextImpl::run_atomic(Atomic operation, uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t* operand,
                                   uint64_t swap) {
  if (is_xrc()) {
    const uint32_t rights = operation == Atomic::kWrite ? access::kRemoteWrite : access::kRemoteAtomic;
    window::DomainReceiver* receiver = receiver_of(srqn);
    window::RemoteRange range;
    const bool allowed = (qp_.shared_->access.load(std::memory_order_relaxed) & rights) == rights &&
                         receiver != nullptr &&
                         receiver->resolve(rkey, address, sizeof *operand, rights, qp_.qp_num_, &range);
    if (!allowed || range.null_region) return WcStatus::kRemAccessErr;
    if (range.direct == nullptr && !receiver->memory().peer().is_self()) {
      constexpr segment::AgentOp kOps[] = {segment::AgentOp::kCompareSwap, segment::AgentOp::kFetchAdd,
                                           segment::AgentOp::kAtomicWrite};
      const segment::AgentOp op = kOps[static_cast<size_t>(operation)];
      const WcStatus status =
          receiver->memory().agent().atomic(receiver->memory().peer(), op, range.address, operand, swap);
      return status == WcStatus::kSuccess ? status : WcStatus::kRemOpErr;
    }
  }
  return QpContext::run_atomic(operation, srqn, rkey, address, operand, swap);
}

std::byte* QpContextImpl::reach(uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights) {
  const segment::QpShared& qp = *qp_.shared_;
  if ((qp.access.load(std::memory_order_relaxed) & rights) != rights) return nullptr;
  if (is_xrc()) return reach_in_domain(srqn, rkey, address, length, rights);
  const uint32_t index = segment::key_index(rkey);
  if (rkey == 0 || index >= segment::kMaxMr) return nullptr;
  const MrShared& mr = qp_.keys_[index];
  if (mr.key.load(std::memory_order_acquire) != rkey || mr.pd != qp.pd || (mr.access & rights) != rights ||
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

QpContext::Take QpContextImpl::take_receive(uint32_t srqn) {
  if (is_xrc()) {
    receiver_ = receiver_of(srqn);
    if (receiver_ == nullptr) return Take::kNoQueue;
    claim_ = receiver_->claim(qp_.index_);
    return claim_ ? Take::kTaken : Take::kNone;
  }
  srq_ = qp_.srq_;
  queue_ = srq_ != nullptr ? &srq_->queue() : qp_.queue_.get();
  if (queue_ == nullptr) return Take::kNoQueue;
  claim_ = queue_->ring().claim(qp_.runtime_.tag());
  if (!claim_) return Take::kNone;
  claim_.slot->claim_qp.store(qp_.index_ + 1, std::memory_order_relaxed);
  if (srq_ != nullptr) cm::tell_limit(qp_.runtime_.node().self(), queue_->shared(), srq_->index());
  return Take::kTaken;
}

bool QpContextImpl::holds_receive() const { return !is_xrc() || (receiver_ != nullptr && receiver_->holds(claim_)); }

uint64_t QpContextImpl::receive_room() const { return holds_receive() ? claim_.room() : 0; }

bool QpContextImpl::place(uint64_t offset, const std::byte* data, uint32_t length, const std::byte** behind) {
  if (is_xrc()) return holds_receive() && receiver_->place(claim_, offset, data, length);
  const uint32_t pd = queue_->shared().pd;
  for (uint32_t i = 0; i < claim_.entries && length > 0; ++i) {
    const Sge sge = claim_.entry(i);
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    Piece piece;
    if (find_local(qp_.keys_, pd, sge, access::kLocalWrite, &piece) != WcStatus::kSuccess) return false;
    const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(sge.length - offset, length));
    std::byte* const to = piece.data == nullptr ? nullptr : piece.data + offset;
    if (to != nullptr && !base::try_access(to, bytes, [&] { base::copy_in_order(to, data, bytes); })) return false;
    *behind = to == nullptr ? nullptr : to + bytes;
    data += bytes;
    length -= bytes;
    offset = 0;
  }
  return true;
}

void QpContextImpl::complete_receive(const Inbound& message, WcStatus status) {
  if (!holds_receive()) return;
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
  const bool solicited = message.solicited || status != WcStatus::kSuccess;
  using Pushed = cm::CompletionPort::Pushed;
  Pushed pushed;
  if (is_xrc()) {
    pushed = receiver_->complete(claim_, solicited, entry);
  } else {
    pushed = qp_.recv_port_.push(qp_.runtime_.tag(), &claim_.slot->completion, solicited, entry);
    segment::ReceiveRing::finish(claim_);
  }
  claim_ = {};
  if (pushed == Pushed::kOverrun) qp_.fail_for_overrun();
}

void QpContextImpl::return_receive() {
  if (!is_xrc())
    queue_->ring().put_back(claim_);
  else if (holds_receive())
    receiver_->put_back(claim_);
  claim_ = {};
}

bool QpContextImpl::invalidate(uint32_t rkey) { return invalidate_window(qp_.runtime_, rkey, qp_.qp_num_); }

void QpContextImpl::refuse(std::optional<EventType> event) {
  if (event) qp_.shared_->error.store(static_cast<uint32_t>(*event) + 1, std::memory_order_release);
  qp_.set_state(QpState::kErr);
  cm::call_attention(qp_.runtime_.node().self(), segment::attention::kQp, qp_.index_);
}

uint8_t QpContextImpl::rnr_timer() const {
  return static_cast<uint8_t>(qp_.shared_->rnr_timer.load(std::memory_order_relaxed));
}

void QpContextImpl::established() {
  // The first request that comes before the owner thinks it connected is told (IBTA 11.6.3.1).
  if (qp_.state() == QpState::kRtr && qp_.shared_->established.exchange(1) == 0)
    cm::call_attention(qp_.runtime_.node().self(), segment::attention::kQp, qp_.index_);
}

}  // namespace nupa::core
