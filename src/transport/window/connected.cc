#include "transport/window/connected.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"

namespace nupa::window {

using transport::Outcome;
using transport::Piece;
using transport::Request;
using transport::Verdict;

namespace {

constexpr Outcome kSucceeded{Verdict::kDone, WcStatus::kSuccess, 0};
constexpr Outcome kUnanswered{Verdict::kNoAnswer, WcStatus::kSuccess, 0};

Outcome failed(WcStatus status) { return {Verdict::kDone, status, 0}; }

/// How long a search for a peer may hold up the poster, and the pause before the next one.
constexpr std::chrono::milliseconds kSearchWait{500};
constexpr int64_t kSearchPauseNs = 1'000'000;

}  // namespace

Connected::Connected(Window& window, const transport::LocalQp& qp, const AddressVector& vector, uint32_t remote_qpn)
    : window_(window), qp_(qp), own_slot_(window.node().slot()), vector_(vector), remote_qpn_(remote_qpn) {
  // The other process is usually there already: meet it now, so that its death is noticed even if nothing is ever
  // sent. Its absence is no error yet (IBTA 11.2.4.2: the transition does not talk to the peer).
  find_target();
}

bool Connected::find_target() {
  const int64_t now = base::now_ns();
  if (now < next_search_ns_) return false;
  next_search_ns_ = now + kSearchPauseNs;
  auto peer = window_.find_peer(remote_qpn_, vector_, kSearchWait);
  search_error_ = peer ? 0 : peer.error().code;
  if (!peer) return false;
  target_.emplace(window_.node(), window_.memory_of(**peer), segment::index_of(remote_qpn_));
  return true;
}

transport::Endpoint::Reach Connected::reach() {
  if (target_ || find_target()) return Reach::kMet;
  const bool here = vector_.is_global ? window_.has_gid(vector_.dgid) : true;
  const uint32_t slot = segment::slot_of(remote_qpn_);
  const bool possible = slot >= segment::kMinSlot && slot <= segment::kMaxSlot;
  return search_error_ == EHOSTUNREACH && here && possible ? Reach::kGone : Reach::kUnknown;
}

Outcome Connected::execute(const Request& request) {
  if (__builtin_expect(!target_ && !find_target(), 0)) return kUnanswered;
  if (__builtin_expect(!target_->ready(own_slot_, qp_.qp_num), 0)) {
    if (!target_->peer().alive()) return failed(WcStatus::kRetryExcErr);
    return kUnanswered;
  }
  if (qp_.type == QpType::kXrcSend && !target_->select_srq(request.remote_srqn, target_->remote().xrcd))
    return refuse(EventType::kQpReqErr, WcStatus::kRemInvReqErr);
  switch (request.opcode) {
    case Opcode::kRdmaWrite:
    case Opcode::kRdmaWriteWithImm:
      return rdma_write(request);
    case Opcode::kSend:
    case Opcode::kSendWithImm:
    case Opcode::kSendWithInv:
      return send(request);
    case Opcode::kRdmaRead:
      return rdma_read(request);
    case Opcode::kCompareSwap:
    case Opcode::kFetchAdd:
      return atomic(request);
    case Opcode::kAtomicWrite:
      return atomic_write(request);
    default:
      return failed(WcStatus::kLocQpOpErr);
  }
}

Outcome Connected::refuse(EventType event, WcStatus status) {
  if (!reliable()) return kSucceeded;
  target_->fail(event);
  return failed(status);
}

Outcome Connected::not_ready() {
  if (!target_->ready(own_slot_, qp_.qp_num)) return kUnanswered;
  if (!reliable()) return kSucceeded;  // UC: a message that finds no receive is lost (IBTA 9.8.2.2)
  target_->note_waiting();
  return {Verdict::kNotReady, WcStatus::kSuccess, target_->remote().rnr_timer.load(std::memory_order_relaxed)};
}

Message Connected::message_for(const Request& request) const {
  Message message;
  message.byte_len = static_cast<uint32_t>(request.length);
  message.src_qp = qp_.qp_num;
  message.solicited = request.solicited;
  message.sl = vector_.sl;
  if (request.opcode == Opcode::kSendWithImm || request.opcode == Opcode::kRdmaWriteWithImm) {
    message.wc_flags = wc_flag::kWithImm;
    message.imm_data = request.imm_or_rkey;
  } else if (request.opcode == Opcode::kSendWithInv) {
    message.wc_flags = wc_flag::kWithInv;
    message.imm_data = request.imm_or_rkey;
  }
  if (request.opcode == Opcode::kRdmaWriteWithImm) message.opcode = WcOpcode::kRecvRdmaWithImm;
  return message;
}

Outcome Connected::send(const Request& request) {
  auto claim = target_->claim();
  if (__builtin_expect(!claim, 0)) return not_ready();
  Message message = message_for(request);
  if (__builtin_expect(Target::room(claim) < request.length, 0)) {
    if (!reliable()) {
      target_->put_back(claim);
      return kSucceeded;
    }
    message.byte_len = 0;
    target_->complete(claim, message, WcStatus::kLocLenErr);
    target_->fail(EventType::kQpReqErr);
    return failed(WcStatus::kRemInvReqErr);
  }
  if (request.opcode == Opcode::kSendWithInv && !target_->invalidate(request.imm_or_rkey)) {
    message.byte_len = 0;
    target_->complete(claim, message, WcStatus::kMwBindErr);
    target_->fail(EventType::kQpAccessErr);
    return failed(WcStatus::kRemAccessErr);
  }
  const WcStatus status = target_->deliver(claim, request.pieces, request.piece_count, request.length, message);
  return status == WcStatus::kSuccess || !reliable() ? kSucceeded : failed(status);
}

Outcome Connected::rdma_write(const Request& request) {
  RemoteRange range;
  if (request.length > 0 &&
      !target_->resolve(request.rkey, request.remote_addr, request.length, access::kRemoteWrite, &range))
    return refuse(EventType::kQpAccessErr, WcStatus::kRemAccessErr);
  if (request.opcode == Opcode::kRdmaWrite) {
    if (request.length == 0) return kSucceeded;
    const WcStatus status = write_remote(target_->memory(), range, request.pieces, request.piece_count);
    return status == WcStatus::kSuccess || !reliable() ? kSucceeded : failed(status);
  }
  auto claim = target_->claim();
  if (!claim) return not_ready();
  if (request.length > 0) {
    const WcStatus status = write_remote(target_->memory(), range, request.pieces, request.piece_count);
    if (status != WcStatus::kSuccess) {
      target_->put_back(claim);
      return reliable() ? failed(status) : kSucceeded;
    }
  }
  target_->complete(claim, message_for(request), WcStatus::kSuccess);
  return kSucceeded;
}

Outcome Connected::rdma_read(const Request& request) {
  if (request.length == 0) return kSucceeded;
  RemoteRange range;
  if (!target_->resolve(request.rkey, request.remote_addr, request.length, access::kRemoteRead, &range))
    return refuse(EventType::kQpAccessErr, WcStatus::kRemAccessErr);
  return failed(read_remote(target_->memory(), range, request.pieces, request.piece_count));
}

Outcome Connected::atomic(const Request& request) {
  if (request.remote_addr % 8 != 0) return refuse(EventType::kQpReqErr, WcStatus::kRemInvReqErr);
  RemoteRange range;
  if (!target_->resolve(request.rkey, request.remote_addr, 8, access::kRemoteAtomic, &range))
    return refuse(EventType::kQpAccessErr, WcStatus::kRemAccessErr);
  const bool swap = request.opcode == Opcode::kCompareSwap;
  uint64_t found = request.compare_add;
  auto* word = reinterpret_cast<uint64_t*>(direct_pointer(range));
  if (__builtin_expect(word != nullptr && reinterpret_cast<uintptr_t>(word) % 8 == 0, 1)) {
    if (swap)
      __atomic_compare_exchange_n(word, &found, request.swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    else
      found = __atomic_fetch_add(word, request.compare_add, __ATOMIC_SEQ_CST);
  } else if (target_->memory().peer().is_self()) {
    // A key may name memory at an odd place although the key's own address is even: the specification's answer.
    return refuse(EventType::kQpReqErr, WcStatus::kRemInvReqErr);
  } else {
    const WcStatus status = window_.agent().atomic(target_->memory().peer(),
                                                   swap ? segment::AgentOp::kCompareSwap : segment::AgentOp::kFetchAdd,
                                                   range.address, &found, request.swap);
    if (status != WcStatus::kSuccess) return failed(status);
  }
  const auto* from = reinterpret_cast<const std::byte*>(&found);
  uint64_t left = 8;
  for (uint32_t i = 0; i < request.piece_count && left > 0; ++i) {
    const uint64_t step = std::min(left, request.pieces[i].length);
    if (request.pieces[i].data != nullptr) std::memcpy(request.pieces[i].data, from, step);
    from += step;
    left -= step;
  }
  return kSucceeded;
}

Outcome Connected::atomic_write(const Request& request) {
  if (request.remote_addr % 8 != 0) return refuse(EventType::kQpReqErr, WcStatus::kRemInvReqErr);
  RemoteRange range;
  if (!target_->resolve(request.rkey, request.remote_addr, 8, access::kRemoteWrite, &range))
    return refuse(EventType::kQpAccessErr, WcStatus::kRemAccessErr);
  uint64_t value = request.compare_add;
  auto* word = reinterpret_cast<uint64_t*>(direct_pointer(range));
  if (word != nullptr && reinterpret_cast<uintptr_t>(word) % 8 == 0) {
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
    return kSucceeded;
  }
  if (target_->memory().peer().is_self()) return refuse(EventType::kQpReqErr, WcStatus::kRemInvReqErr);
  return failed(
      window_.agent().atomic(target_->memory().peer(), segment::AgentOp::kAtomicWrite, range.address, &value, 0));
}

}  // namespace nupa::window
