// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/connected.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "core/seam/whole_message.h"

namespace nupa::shm_transport {

using core::Piece;
using core::Posted;
using core::Request;
using host::RemoteRange;
using Reason = core::DeferredSend::Reason;

namespace {

constexpr Outcome kSucceeded = Outcome::done(WcStatus::kSuccess);
constexpr Outcome kUnanswered = Outcome::no_answer();

/// The pause between two searches for a peer that was not found.
constexpr int64_t kSearchPauseNs = 1'000'000;
/// The same pause while no request waits for the peer.
constexpr int64_t kIdleSearchPauseNs = 50'000'000;
/// A peer that exchanged its queue pair number is found at once; one that is missing for this time has died.
constexpr int64_t kUnmetLimitNs = 400'000'000;
/// The time that a message of an unreliable service waits for the owner of the memory to copy it (268 ms), before it is
/// lost.
constexpr core::RetryLimits kUnreliableLimits{14, 0, 0};
/// The longest wait for a peer that is inside a post, as in quiesce().
constexpr int64_t kCopierLimitNs = 2'000'000'000;

}  // namespace

Connected::Connected(Peers& peers, core::QpContext& context, const AddressVector& vector, uint32_t remote_qpn,
                     std::chrono::milliseconds limit)
    : Endpoint({.copies_in_post = true, .loops_back = true}),
      type_(context.type()),
      qp_num_(context.number()),
      own_slot_(shm::slot_of(context.number())),
      context_(context),
      remote_qpn_(remote_qpn),
      peers_(peers),
      vector_(vector),
      made_ns_(base::now_ns()) {
  context_.shared().remote_slot.store(shm::slot_of(remote_qpn_));
  // The other process usually exists already: connect to it now, so that its death is noticed even if nothing is ever
  // sent. Its absence is no error yet (IBTA 11.2.4.2: the transition does not communicate with the peer). The first
  // request looks for it again.
  find_target(limit);
}

Posted Connected::post(const Request& request) {
  if (__builtin_expect(!sends_.empty() || paused_, 0)) return keep(request);
  if (__builtin_expect(request.fault != WcStatus::kSuccess, 0)) return Posted::done(request.fault);
  const Outcome outcome = execute(request);
  if (__builtin_expect(!outcome.is_done(), 0)) return keep_tried(request, outcome);
  return Posted::done(outcome.status());
}

Posted Connected::keep(const Request& request) {
  const bool first = sends_.empty();
  if (sends_.keep(request) == nullptr) return Posted::no_memory();
  if (first) {
    leave_to_pollers();
    context_.wake();
  }
  return Posted::taken();
}

void Connected::leave_to_pollers() {
  if (target_ != nullptr) target_->set_wait(0);
}

Posted Connected::keep_tried(const Request& request, Outcome outcome) {
  const Posted kept = keep(request);
  if (kept.is_taken()) {
    WcStatus status = WcStatus::kSuccess;
    if (postpone(outcome, base::now_ns(), &status) != 0) return kept;
    sends_.drop_last();
    return Posted::done(status);
  }
  if (!copier_) {
    stop_waiting();
    return kept;
  }
  copier_.reset();  // the invalidation was done
  return Posted::done(WcStatus::kSuccess);
}

int64_t Connected::postpone(const Outcome& outcome, int64_t now_ns, WcStatus* status) {
  if (outcome.verdict() == Verdict::kCopying) {
    sends_.note_copying(now_ns);
    return next_look(now_ns);
  }
  const bool not_ready = outcome.verdict() == Verdict::kNotReady;
  const bool counts = not_ready && sends_.front().reason != Reason::kNotReady;
  context_.shared().counters.rnr.fetch_add(counts, std::memory_order_relaxed);
  // The request of a copier was executed; Copier::until_ns limits its wait.
  const core::RetryLimits none{0, 0, 0};
  core::RetryLimits limits = copier_ ? none : limits_;
  if (target_ != nullptr && target_->awaits_owner()) {
    // Long messages are copied in steps: the limit applies to the time without progress.
    if (target_->owner_got_on()) sends_.front().reason = Reason::kOrder;
    if (!is_reliable()) limits = kUnreliableLimits;
  }
  const int64_t next =
      sends_.postpone(not_ready ? Reason::kNotReady : Reason::kNoAnswer, outcome.rnr_timer(), limits, now_ns, status);
  if (next == 0 && !is_reliable()) *status = WcStatus::kSuccess;  // the message is lost, and UC does not report that
  return next;
}

void Connected::end_oldest(WcStatus status, uint64_t length) {
  stop_copy();
  sends_.end_front(context_, status, length);
  if (sends_.empty() && target_ != nullptr) target_->set_wait(host::AgentCall::kWaitNs);
  due.raise();
  if (status != WcStatus::kSuccess) flush();
}

Outcome Connected::run_oldest(uint64_t* length) {
  return sends_.run_front(
      context_,
      [&](const Request& request) {
        *length = request.length;
        return execute_any(request);
      },
      [](WcStatus fault) { return Outcome::done(fault); });
}

int64_t Connected::try_oldest(int64_t now_ns) {
  uint64_t length = 0;
  const Outcome outcome = run_oldest(&length);
  WcStatus status = WcStatus::kSuccess;
  if (outcome.is_done())
    status = outcome.status();
  else if (const int64_t next = postpone(outcome, now_ns, &status); next != 0)
    return next;
  else
    stop_waiting();
  end_oldest(status, length);
  return 0;
}

int64_t Connected::progress(int64_t now_ns) {
  const int64_t wanted = try_waiting(now_ns);
  return std::min(wanted, look_for_peer(now_ns));
}

int64_t Connected::try_waiting(int64_t now_ns) {
  while (!sends_.empty()) {
    const QpState state = context_.state();
    if (state == QpState::kErr || state == QpState::kSqe) {
      flush();
      break;
    }
    if (paused_ && !sends_.front().begun()) return INT64_MAX;
    if (const int64_t next = try_oldest(now_ns); next != 0) return next;
  }
  return INT64_MAX;
}

int64_t Connected::look_for_peer(int64_t now_ns) {
  if (target_ != nullptr || context_.state() == QpState::kErr || find_target({})) return INT64_MAX;
  if (now_ns - made_ns_ < kUnmetLimitNs) return now_ns + kIdleSearchPauseNs;
  // A peer on another host or of another user may appear later, and a request finds it then. A peer that must be on
  // this host and is missing has died.
  const bool here = vector_.is_global ? peers_.has_gid(vector_.dgid) : true;
  const uint32_t slot = shm::slot_of(remote_qpn_);
  const bool possible = slot >= shm::kMinSlot && slot <= shm::kMaxSlot;
  missing_ = (search_error_ == EHOSTUNREACH || search_error_ == EMFILE) && here && possible;
  if (missing_) try_waiting(now_ns);
  return INT64_MAX;
}

void Connected::on_process_exit(host::Peer& process) {
  // A request detects the exit, as on an adapter. Without a request nothing happens.
  if (target_ != nullptr && &target_->peer() == &process) try_waiting(base::now_ns());
}

void Connected::entered_rtr() {
  if (target_ != nullptr && !target_->peer().alive()) on_process_exit(target_->peer());
}

void Connected::start(uint32_t) { paused_ = false; }

void Connected::set_attributes(const QpAttr& attr) { limits_ = {attr.timeout, attr.retry_cnt, attr.rnr_retry}; }

void Connected::pause(bool paused) {
  paused_ = paused;
  if (!paused && !sends_.empty()) context_.wake();
}

void Connected::hold(const Responder::Message& message) {
  held_ = {message, target_->ring(), target_->selected(), target_->epoch()};
  holds_ = true;
}

Connected::Responder::Message Connected::take_held(uint32_t srqn) {
  const Held held = *held_;
  // The queue may have been removed meanwhile: between two tries this process holds no lock that its owner waits for.
  if (target_->select(srqn) == core::Selection::kYes && target_->selected() == held.queue &&
      target_->epoch() == held.epoch && target_->holds(held.message.receive)) {
    held_.reset();
    holds_ = false;
    return held.message;
  }
  stop_waiting();
  return {};
}

void Connected::stop_waiting() {
  if (target_ != nullptr) target_->forget_calls();
  if (!holds_) return;
  // Put back only a receive that this process still holds: the owner of the queue may have recovered it, or another
  // sender may have claimed it. An owner that has drained the queue waits for this. The memory of a queue that was
  // removed is not accessed.
  if (target_->stands(held_->queue) && target_->holds(held_->message.receive))
    held_->ring.put_back(held_->message.receive);
  held_.reset();
  holds_ = false;
}

void Connected::flush() {
  stop_copy();
  copier_.reset();
  stop_waiting();
  sends_.flush(context_);
  if (target_ != nullptr) target_->set_wait(host::AgentCall::kWaitNs);
}

bool Connected::find_target(std::chrono::milliseconds limit) {
  const int64_t now = base::now_ns();
  if (now < next_search_ns_) return false;
  next_search_ns_ = now + kSearchPauseNs;
  auto peer = peers_.find(remote_qpn_, vector_, limit);
  search_error_ = peer ? 0 : peer.error().code();
  if (!peer) return false;
  target_ = &met_.emplace(peers_.node(), peers_.memories(), *peer->peer, peer->qp_index, &due);
  if (!sends_.empty()) target_->set_wait(0);
  return true;
}

void Connected::look_for_copier() {
  if (target_ == nullptr) return;
  const shm::QpShared& queue_pair = target_->remote();
  if (&queue_pair == &context_.shared()) return;  // the queue pair is connected to itself
  shm::SendLock::fence_after_revoking();
  const uint32_t seen = queue_pair.send_lock.load(std::memory_order_seq_cst);
  Copier copier{&target_->peer(), &queue_pair, seen, base::now_ns() + kCopierLimitNs};
  if (copier.copies()) copier_ = copier;
}

bool Connected::Copier::copies() {
  if (!is_released) {
    // The lock first: its holder may give a copy to an engine before it releases the lock.
    if ((lock_seen & 1) != 0 && queue_pair->send_lock.load(std::memory_order_acquire) == lock_seen) return true;
    is_released = true;
    copying_seen = queue_pair->copying.load(std::memory_order_acquire);
  }
  return (copying_seen & 1) != 0 && queue_pair->copying.load(std::memory_order_acquire) == copying_seen;
}

Outcome Connected::run_local(const Request& request) {
  if (!copier_) {
    const WcStatus status = context_.run_local(request.wr);
    if (status != WcStatus::kSuccess || request.wr.opcode != Opcode::kLocalInv) return Outcome::done(status);
    look_for_copier();
  }
  // No wait here: the peer may be waiting for this thread's send lock, or for the service thread.
  if (copier_ && copier_->peer->alive() && base::now_ns() < copier_->until_ns && copier_->copies()) return kUnanswered;
  copier_.reset();
  peers_.node().refuse_earlier_requests();
  return kSucceeded;
}

Result<std::shared_ptr<std::byte>> Connected::map_remote(uint32_t rkey, uint64_t address, uint64_t length,
                                                         uint32_t rights) {
  if ((!target_ && !find_target({})) || !target_->ready(own_slot_, qp_num_)) {
    if (target_ && target_->lacks_memory()) return fail(ENOMEM, "no address space for the queues of the peer");
    return fail(ENOTCONN, "the peer queue pair is not connected yet");
  }
  RemoteRange range;
  if (length == 0 || !target_->resolve(rkey, address, length, rights, &range))
    return fail(EACCES, "the remote key does not permit this access");
  if (range.direct == nullptr || range.null_region)
    return fail(ENOTSUP, "the memory of the peer can only be copied, not mapped");
  return std::shared_ptr<std::byte>(target_->region_of(rkey), range.direct);
}

Outcome Connected::execute_here(const Request& request) { return execute_any(request); }

Outcome Connected::outcome_after(core::Verdict verdict) { return outcome_of(verdict); }

std::optional<Outcome> Connected::not_taken() {
  if (target_ != nullptr && target_->ready(own_slot_, qp_num_)) return std::nullopt;
  return not_answering();
}

[[gnu::always_inline]] inline Outcome Connected::execute(const Request& request) {
  const Opcode opcode = request.wr.opcode;
  const bool usual = opcode == Opcode::kRdmaWrite || opcode == Opcode::kRdmaRead || opcode == Opcode::kSend;
  if (__builtin_expect(!usual || !target_ || !target_->ready(own_slot_, qp_num_), 0)) return execute_any(request);
  if (opcode == Opcode::kSend) return send_message(request);
  return opcode == Opcode::kRdmaWrite ? rdma_write(request) : rdma_read(request);
}

Outcome Connected::execute_any(const Request& request) {
  if (__builtin_expect(core::is_local(request.wr.opcode), 0)) return run_local(request);
  if (__builtin_expect(!target_ || !target_->ready(own_slot_, qp_num_), 0)) {
    if (const std::optional<Outcome> outcome = not_answering()) return *outcome;
  }
  switch (request.wr.opcode) {
    case Opcode::kRdmaWrite:
      return rdma_write(request);
    case Opcode::kRdmaWriteWithImm:
      return write_with_immediate(request);
    case Opcode::kSend:
    case Opcode::kSendWithImm:
    case Opcode::kSendWithInv:
      return send_message(request);
    case Opcode::kRdmaRead:
      return rdma_read(request);
    case Opcode::kCompareSwap:
    case Opcode::kFetchAdd:
      return atomic(request);
    case Opcode::kAtomicWrite:
      return atomic_write(request);
    case Opcode::kFlush:
      return outcome_of(Responder(*target_, is_reliable()).flush(core::flush_of(request.wr), target_->read_depth()));
    default:
      return Outcome::done(WcStatus::kLocQpOpErr);
  }
}

std::optional<Outcome> Connected::not_answering() {
  if (holds_) stop_waiting();
  if (!target_ && !find_target({})) return missing_ ? lost() : kUnanswered;
  if (target_->ready(own_slot_, qp_num_)) return std::nullopt;
  if (target_->lacks_memory()) return Outcome::done(WcStatus::kLocQpOpErr);
  return target_->peer().alive() ? kUnanswered : lost();
}

Outcome Connected::lost() const {
  // UC has no answers in any case (IBTA 9.8.2).
  return Outcome::done(is_reliable() ? WcStatus::kRetryExcErr : WcStatus::kSuccess);
}

inline Outcome Connected::outcome_of(core::Verdict verdict) {
  if (__builtin_expect(verdict.is_accepted(), 1)) return kSucceeded;
  return refused(verdict);
}

Outcome Connected::refused(core::Verdict verdict) {
  if (verdict.is_not_ready()) return not_ready();
  if (verdict.is_later() || verdict.is_not_served()) return kUnanswered;
  if (verdict.is_lost()) return lost();
  if (verdict.is_dropped() || !is_reliable()) return kSucceeded;
  return Outcome::done(core::rule_of(verdict.refusal()).requester);
}

Outcome Connected::not_ready() {
  if (!target_->ready(own_slot_, qp_num_)) return kUnanswered;
  if (!is_reliable()) return kSucceeded;  // UC: a message without a posted receive is lost (IBTA 9.8.2.2)
  target_->note_waiting();
  return Outcome::not_ready(target_->remote().rnr_timer.load(std::memory_order_relaxed));
}

core::Inbound Connected::inbound_of(const SendWr& wr) const {
  core::Inbound inbound = core::inbound_of(wr, qp_num_);
  inbound.sl = vector_.sl;
  return inbound;
}

// Flat, since a message passes through each rule once, and most of them are constants here.
[[gnu::flatten, gnu::noinline]] Outcome Connected::send_message(const Request& request) {
  Responder responder(*target_, is_reliable());
  Responder::Message message;
  if (__builtin_expect(holds_, 0)) message = take_held(request.wr.remote_srqn);
  core::Inbound inbound = inbound_of(request.wr);
  const core::SendPart whole = core::whole_send(request.wr, request.pieces, request.piece_count, request.length);
  const core::Verdict verdict = responder.send(whole, &inbound, &message);
  if (__builtin_expect(verdict.is_not_served(), 0)) hold(message);
  return outcome_of(verdict);
}

[[gnu::always_inline]] inline Outcome Connected::rdma_write(const Request& request) {
  const SendWr& wr = request.wr;
  return outcome_of(
      Responder(*target_, is_reliable())
          .write(wr.remote_srqn, wr.rkey, wr.remote_addr, request.pieces, request.piece_count, request.length));
}

Outcome Connected::write_with_immediate(const Request& request) {
  Responder::Message message;
  core::Inbound inbound = inbound_of(request.wr);
  const core::WritePart whole = core::whole_write(request.wr, request.pieces, request.piece_count, request.length);
  return outcome_of(Responder(*target_, is_reliable()).write(whole, &inbound, &message));
}

[[gnu::always_inline]] inline Outcome Connected::rdma_read(const Request& request) {
  const SendWr& wr = request.wr;
  Responder responder(*target_, is_reliable());
  RemoteRange range;
  const core::Verdict verdict =
      responder.read(wr.remote_srqn, wr.rkey, wr.remote_addr, request.length, 0, target_->read_depth(), &range);
  if (__builtin_expect(!verdict.is_accepted(), 0)) return refused(verdict);
  if (request.length == 0) return kSucceeded;
  const WcStatus status = target_->read(range, request.pieces, request.piece_count);
  if (__builtin_expect(status == host::kNotServedYet, 0)) return kUnanswered;
  if (__builtin_expect(status != WcStatus::kRemOpErr, 1)) return Outcome::done(status);
  return refused(responder.refuse(core::Refusal::kRemoteOperation));
}

namespace {

void scatter_word(uint64_t value, const Request& request) {
  if (__builtin_expect(request.piece_count == 1 && request.pieces->length == 8 && request.pieces->data != nullptr, 1)) {
    std::memcpy(request.pieces->data, &value, 8);
    return;
  }
  core::scatter(request, reinterpret_cast<const std::byte*>(&value), sizeof value);
}

}  // namespace

Outcome Connected::atomic(const Request& request) {
  const SendWr& wr = request.wr;
  uint64_t found = wr.compare_add;
  const core::Verdict verdict = Responder(*target_, is_reliable())
                                    .atomic(core::atomic_op_of(wr.opcode), wr.remote_srqn, wr.rkey, wr.remote_addr,
                                            &found, wr.swap, 0, target_->read_depth());
  if (__builtin_expect(!verdict.is_accepted(), 0)) return refused(verdict);
  scatter_word(found, request);
  return kSucceeded;
}

Outcome Connected::atomic_write(const Request& request) {
  const SendWr& wr = request.wr;
  Responder responder(*target_, is_reliable());
  // The word is in the list, or in the request itself if the builder made the request.
  const bool listed = request.piece_count != 0;
  if (listed && request.length != core::kAtomicBytes) return refused(responder.refuse(core::Refusal::kInvalidRequest));
  uint64_t value = listed ? 0 : wr.compare_add;
  if (listed) core::gather(request, reinterpret_cast<std::byte*>(&value));
  return outcome_of(responder.atomic(core::AtomicOp::kWrite, wr.remote_srqn, wr.rkey, wr.remote_addr, &value, 0, 0, 1));
}

}  // namespace nupa::shm_transport
