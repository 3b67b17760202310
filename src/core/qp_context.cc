// SPDX-License-Identifier: Apache-2.0
#include <new>

#include "core/qp.h"
#include "core/seam/responder.h"

namespace nupa::core {

namespace {

constexpr uint32_t kMaxMtu = 4096;  // IBTA 9.3.2: the largest path MTU

}  // namespace

QpContextImpl::QpContextImpl(Qp& qp)
    : QpContext({qp.qp_num_, qp.options_.type, qp.options_.cap, qp.options_.hears_itself, qp.shared_,
                 qp.process_.queue_pairs().statistics(qp.index_)}),
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
  qp_.complete(wr, position, status, length);
}

void QpContextImpl::wake() { qp_.process_.pending().add(qp_, true); }

void QpContextImpl::wake_pollers(int64_t when_ns) { qp_.process_.pending().add(qp_, true, when_ns); }

void QpContextImpl::wake_at(int64_t) { qp_.process_.pending().add(qp_, false); }

SharedTarget& QpContextImpl::target() {
  if (!target_) [[unlikely]]
    target_.emplace(qp_.process_.node(), qp_.process_.memories(), qp_.process_.node().self(), qp_.index_, nullptr,
                    SharedTarget::Guard::kOwnMemory);
  return *target_;
}

SharedTarget& QpContextImpl::checked_target() {
  SharedTarget& target = this->target();
  target.ready(0, 0);
  return target;
}

Selection QpContextImpl::select(uint32_t srqn) {
  selected_ = srqn;
  // A request to another queue pair has no other queue than that one's.
  return is_xrc() ? checked_target().select(srqn) : Selection::kYes;
}

std::byte* QpContextImpl::copy_of(const host::RemoteRange& range, uint64_t length, uint32_t rights) {
  if (copy_ == nullptr) copy_.reset(new (std::nothrow) std::byte[kMaxMtu]);
  if (copy_ == nullptr || length > kMaxMtu) return copy_.get();
  if ((rights & access::kRemoteRead) != 0) {
    const Piece piece{copy_.get(), length};
    if (!succeeded(target_->read(range, &piece, 1))) return nullptr;
  }
  written_ = true;
  written_range_ = range;
  return copy_.get();
}

std::byte* QpContextImpl::reach(uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights) {
  written_ = false;
  awaits_memory_ = false;
  host::RemoteRange range;
  SharedTarget& target = checked_target();
  if (select(srqn) != Selection::kYes || !target.resolve(rkey, address, length, rights, &range) || range.null_region)
    return nullptr;
  return range.direct != nullptr ? range.direct : copy_of(range, length, rights);
}

bool QpContextImpl::may_flush(uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t length, uint32_t flags) {
  SharedTarget& target = checked_target();
  return select(srqn) == Selection::kYes && target.may_flush({flags, length, address, rkey, srqn});
}

std::optional<QpContext::Region> QpContextImpl::region_of(uint32_t rkey, uint32_t rights) {
  const uint32_t index = shm::key_index(rkey);
  if (is_xrc() || relay() != nullptr || index >= shm::kMaxMr) return std::nullopt;
  const shm::MrShared& mr = qp_.process_.tables().mr[index];
  if (rkey == 0 || mr.key.load() != rkey || mr.kind != static_cast<uint32_t>(shm::MrKind::kMemory)) return std::nullopt;
  Region region{mr.start, mr.length, nullptr};
  region.at = reach(0, rkey, region.address, region.length, rights);
  if (region.at == nullptr) return std::nullopt;
  return region;
}

bool QpContextImpl::wrote(uint32_t length) {
  if (!written_) return true;
  const Piece piece{copy_.get(), length};
  return succeeded(target_->write(written_range_, &piece, 1));
}

WcStatus QpContextImpl::run_atomic(Atomic operation, uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t* operand,
                                   uint64_t swap) {
  // The base class guards an atomic on this process's memory against faults; on the memory of another process there is
  // no fault.
  if (is_xrc() && select(srqn) == Selection::kYes && !target_->memory().peer().is_self())
    return target_->atomic(operation, rkey, address, operand, swap);
  return QpContext::run_atomic(operation, srqn, rkey, address, operand, swap);
}

bool QpContextImpl::take_receive() {
  SharedTarget& target = this->target();
  if (!target.ready(0, 0)) return false;
  target.take(&receive_);
  receive_queue_ = selected_;
  receive_life_ = target.selected();
  return static_cast<bool>(receive_);
}

std::optional<uint64_t> QpContextImpl::waiting_receives() const {
  if (qp_.queue_ == nullptr || relay_ != nullptr) return std::nullopt;
  return qp_.queue_->waiting();
}

bool QpContextImpl::holds_receive() {
  if (!receive_) return false;
  if (!is_xrc()) return true;
  // A message that was on its way into a queue that was removed is refused, even if a queue has that number again.
  return checked_target().select(receive_queue_) == Selection::kYes && target_->selected() == receive_life_ &&
         target_->holds(receive_);
}

bool QpContextImpl::place(uint64_t offset, const std::byte* data, uint32_t length, const std::byte** behind) {
  const Piece piece{const_cast<std::byte*>(data), length};
  awaits_memory_ = false;
  return holds_receive() && succeeded(target_->place(receive_, offset, &piece, 1, length, behind));
}

void QpContextImpl::complete_receive(const Inbound& message, WcStatus status) {
  if (holds_receive()) target_->complete(receive_, message, status);
  receive_ = {};
}

void QpContextImpl::return_receive() {
  if (holds_receive()) target_->put_back(receive_);
  receive_ = {};
}

bool QpContextImpl::invalidate(uint32_t rkey) { return checked_target().invalidate(rkey); }

void QpContextImpl::refuse(std::optional<EventType> event) { qp_.enter_error(event); }

uint8_t QpContextImpl::rnr_timer() const {
  return static_cast<uint8_t>(qp_.shared_->rnr_timer.load(std::memory_order_relaxed));
}

void QpContextImpl::established() {
  // Notify the owner of the first request that comes in RTR (IBTA 11.6.3.1).
  if (qp_.state() == QpState::kRtr && qp_.shared_->established.exchange(1) == 0)
    host::call_attention(qp_.process_.node().self(), shm::attention::kQp, qp_.index_);
}

}  // namespace nupa::core
