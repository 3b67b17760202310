#include "transport/window/connected.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"

namespace nupa::window {

using transport::Outcome;
using transport::Piece;
using transport::Request;

namespace {

constexpr Outcome kSucceeded = Outcome::done(WcStatus::kSuccess);
constexpr Outcome kUnanswered = Outcome::no_answer();

/// How long a search for a peer may hold up the poster, and the pause before the next one.
constexpr std::chrono::milliseconds kSearchWait{500};
constexpr int64_t kSearchPauseNs = 1'000'000;

}  // namespace

Connected::Connected(Window& window, const transport::LocalQp& qp, const AddressVector& vector, uint32_t remote_qpn)
    : qp_(qp), own_slot_(window.node().slot()), remote_qpn_(remote_qpn), window_(window), vector_(vector) {
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
  target_ = &met_.emplace(window_.node(), window_.memory_of(**peer), segment::index_of(remote_qpn_), due);
  return true;
}

transport::Endpoint::Reach Connected::reach() {
  if (target_ || find_target()) return Reach::kMet;
  const bool here = vector_.is_global ? window_.has_gid(vector_.dgid) : true;
  const uint32_t slot = segment::slot_of(remote_qpn_);
  const bool possible = slot >= segment::kMinSlot && slot <= segment::kMaxSlot;
  return search_error_ == EHOSTUNREACH && here && possible ? Reach::kGone : Reach::kUnknown;
}

Result<std::shared_ptr<std::byte>> Connected::map_remote(uint32_t rkey, uint64_t address, uint64_t length,
                                                         uint32_t rights) {
  if ((!target_ && !find_target()) || !target_->ready(own_slot_, qp_.qp_num))
    return fail(ENOTCONN, "the other end is not there yet");
  RemoteRange range;
  if (length == 0 || !target_->resolve(rkey, address, length, rights, &range))
    return fail(EACCES, "the key does not open this memory");
  if (range.direct == nullptr || range.null_region) return fail(ENOTSUP, "the memory is reached by copies");
  return std::shared_ptr<std::byte>(target_->region_of(rkey), range.direct);
}

Outcome Connected::execute(const Request& request) {
  if (__builtin_expect(!target_ || !target_->ready(own_slot_, qp_.qp_num), 0)) {
    if (const Outcome outcome = not_answering(); !outcome.succeeded()) return outcome;
  }
  if (__builtin_expect(qp_.type == QpType::kXrcSend, 0) &&
      !target_->select_srq(request.wr.remote_srqn, target_->remote().xrcd))
    return refuse(EventType::kQpReqErr, WcStatus::kRemInvReqErr);
  switch (request.wr.opcode) {
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
      return Outcome::done(WcStatus::kLocQpOpErr);
  }
}

Outcome Connected::not_answering() {
  if (!target_ && !find_target()) return kUnanswered;
  if (target_->ready(own_slot_, qp_.qp_num)) return kSucceeded;
  return target_->peer().alive() ? kUnanswered : Outcome::done(WcStatus::kRetryExcErr);
}

Outcome Connected::refuse(EventType event, WcStatus status) {
  if (!reliable()) return kSucceeded;
  target_->fail(event);
  return Outcome::done(status);
}

Outcome Connected::not_ready() {
  if (!target_->ready(own_slot_, qp_.qp_num)) return kUnanswered;
  if (!reliable()) return kSucceeded;  // UC: a message that finds no receive is lost (IBTA 9.8.2.2)
  target_->note_waiting();
  return Outcome::not_ready(target_->remote().rnr_timer.load(std::memory_order_relaxed));
}

Message Connected::message_for(const Request& request) const {
  Message message;
  message.byte_len = static_cast<uint32_t>(request.length);
  message.src_qp = qp_.qp_num;
  message.solicited = (request.wr.flags & send_flag::kSolicited) != 0;
  message.sl = vector_.sl;
  if (request.wr.opcode == Opcode::kSendWithImm || request.wr.opcode == Opcode::kRdmaWriteWithImm) {
    message.wc_flags = wc_flag::kWithImm;
    message.imm_data = request.wr.imm_or_rkey;
  } else if (request.wr.opcode == Opcode::kSendWithInv) {
    message.wc_flags = wc_flag::kWithInv;
    message.imm_data = request.wr.imm_or_rkey;
  }
  if (request.wr.opcode == Opcode::kRdmaWriteWithImm) message.opcode = WcOpcode::kRecvRdmaWithImm;
  return message;
}

Outcome Connected::send(const Request& request) {
  auto claim = target_->claim();
  if (__builtin_expect(!claim, 0)) return not_ready();
  Message message = message_for(request);
  if (__builtin_expect(claim.room() < request.length, 0)) {
    if (!reliable()) {
      target_->put_back(claim);
      return kSucceeded;
    }
    message.byte_len = 0;
    target_->complete(claim, message, WcStatus::kLocLenErr);
    target_->fail(std::nullopt);
    return Outcome::done(WcStatus::kRemInvReqErr);
  }
  if (request.wr.opcode == Opcode::kSendWithInv && !target_->invalidate(request.wr.imm_or_rkey)) {
    message.byte_len = 0;
    target_->complete(claim, message, WcStatus::kMwBindErr);
    target_->fail(EventType::kQpAccessErr);
    return reliable() ? Outcome::done(WcStatus::kRemAccessErr) : kSucceeded;
  }
  const WcStatus status = target_->deliver(claim, request.pieces, request.piece_count, request.length, message);
  return status == WcStatus::kSuccess || !reliable() ? kSucceeded : Outcome::done(status);
}

Outcome Connected::rdma_write(const Request& request) {
  RemoteRange range;
  if (request.length > 0 &&
      !target_->resolve(request.wr.rkey, request.wr.remote_addr, request.length, access::kRemoteWrite, &range))
    return refuse(EventType::kQpAccessErr, WcStatus::kRemAccessErr);
  if (request.wr.opcode == Opcode::kRdmaWrite) {
    if (request.length == 0) return kSucceeded;
    const WcStatus status = write_remote(target_->memory(), range, request.pieces, request.piece_count);
    return status == WcStatus::kSuccess || !reliable() ? kSucceeded : Outcome::done(status);
  }
  auto claim = target_->claim();
  if (!claim) return not_ready();
  if (request.length > 0) {
    const WcStatus status = write_remote(target_->memory(), range, request.pieces, request.piece_count);
    if (status != WcStatus::kSuccess) {
      target_->put_back(claim);
      return reliable() ? Outcome::done(status) : kSucceeded;
    }
  }
  target_->complete(claim, message_for(request), WcStatus::kSuccess);
  return kSucceeded;
}

Outcome Connected::rdma_read(const Request& request) {
  if (request.length == 0) return kSucceeded;
  RemoteRange range;
  if (!target_->resolve(request.wr.rkey, request.wr.remote_addr, request.length, access::kRemoteRead, &range))
    return refuse(EventType::kQpAccessErr, WcStatus::kRemAccessErr);
  return Outcome::done(read_remote(target_->memory(), range, request.pieces, request.piece_count));
}

namespace {

/// The word of an atomic operation if the processor can reach it as one.
uint64_t* word_at(const RemoteRange& range) {
  return reinterpret_cast<uintptr_t>(range.direct) % 8 == 0 ? reinterpret_cast<uint64_t*>(range.direct) : nullptr;
}

void scatter_word(uint64_t value, const Request& request) {
  if (__builtin_expect(request.piece_count == 1 && request.pieces->length == 8 && request.pieces->data != nullptr, 1)) {
    std::memcpy(request.pieces->data, &value, 8);
    return;
  }
  const auto* from = reinterpret_cast<const std::byte*>(&value);
  uint64_t left = 8;
  for (uint32_t i = 0; i < request.piece_count && left > 0; ++i) {
    const uint64_t step = std::min(left, request.pieces[i].length);
    if (request.pieces[i].data != nullptr) std::memcpy(request.pieces[i].data, from, step);
    from += step;
    left -= step;
  }
}

uint64_t gather_word(const Request& request) {
  uint64_t value = 0;
  auto* to = reinterpret_cast<std::byte*>(&value);
  for (uint32_t i = 0; i < request.piece_count; ++i) {
    if (request.pieces[i].data != nullptr) std::memcpy(to, request.pieces[i].data, request.pieces[i].length);
    to += request.pieces[i].length;
  }
  return value;
}

}  // namespace

Outcome Connected::atomic_by_agent(segment::AgentOp op, const RemoteRange& range, uint64_t swap, uint64_t* operand) {
  cm::Peer& peer = target_->memory().peer();
  // Within one process the word is always in reach: it lies at an odd place although the key's own address is even.
  if (peer.is_self()) return refuse(EventType::kQpReqErr, WcStatus::kRemInvReqErr);
  return Outcome::done(window_.agent().atomic(peer, op, range.address, operand, swap));
}

Outcome Connected::atomic(const Request& request) {
  const SendWr& wr = request.wr;
  if (__builtin_expect(request.length < transport::kAtomicBytes, 0)) return Outcome::done(WcStatus::kLocLenErr);
  if (__builtin_expect(wr.remote_addr % 8 != 0, 0)) return refuse(EventType::kQpReqErr, WcStatus::kRemInvReqErr);
  RemoteRange range;
  if (__builtin_expect(!target_->resolve(wr.rkey, wr.remote_addr, 8, access::kRemoteAtomic, &range), 0))
    return refuse(EventType::kQpAccessErr, WcStatus::kRemAccessErr);
  const bool swap = wr.opcode == Opcode::kCompareSwap;
  uint64_t found = wr.compare_add;
  uint64_t* word = word_at(range);
  if (__builtin_expect(word == nullptr, 0)) {
    const auto op = swap ? segment::AgentOp::kCompareSwap : segment::AgentOp::kFetchAdd;
    const Outcome outcome = atomic_by_agent(op, range, wr.swap, &found);
    if (!outcome.succeeded()) return outcome;
  } else if (swap) {
    __atomic_compare_exchange_n(word, &found, wr.swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  } else {
    found = __atomic_fetch_add(word, wr.compare_add, __ATOMIC_SEQ_CST);
  }
  scatter_word(found, request);
  return kSucceeded;
}

Outcome Connected::atomic_write(const Request& request) {
  const SendWr& wr = request.wr;
  // In a list, or, as the builder has it, in the request itself.
  const bool listed = request.piece_count != 0;
  if (wr.remote_addr % 8 != 0 || (listed && request.length != 8))
    return refuse(EventType::kQpReqErr, WcStatus::kRemInvReqErr);
  RemoteRange range;
  if (!target_->resolve(wr.rkey, wr.remote_addr, 8, access::kRemoteWrite, &range))
    return refuse(EventType::kQpAccessErr, WcStatus::kRemAccessErr);
  uint64_t value = listed ? gather_word(request) : wr.compare_add;
  uint64_t* word = word_at(range);
  if (word == nullptr) return atomic_by_agent(segment::AgentOp::kAtomicWrite, range, 0, &value);
  __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
  return kSucceeded;
}

}  // namespace nupa::window
