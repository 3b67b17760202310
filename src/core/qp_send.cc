/// The send side of a queue pair: checking and running requests, keeping the ones that have to wait.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/clock.h"
#include "core/device_attr.h"
#include "core/mr.h"
#include "core/qp.h"
#include "transport/timers.h"

namespace nupa::core {

using transport::Outcome;
using transport::Piece;
using transport::Verdict;

namespace {

constexpr uint64_t kMaxMessage = uint64_t{1} << 31;
constexpr uint64_t kMaxDatagram = 4096;
/// Looking again for a peer that does not answer, or whose receive is awaited without a wake-up.
constexpr int64_t kNoAnswerPauseNs = 500'000;
constexpr int64_t kShortestRnrPauseNs = 50'000;
/// How long a peer that is inside a post is waited for: as Runtime::grace() does.
constexpr int64_t kCopierLimitNs = 2'000'000'000;

constexpr uint32_t bit(Opcode opcode) { return 1u << static_cast<uint32_t>(opcode); }
constexpr uint32_t kSends = bit(Opcode::kSend) | bit(Opcode::kSendWithImm);
constexpr uint32_t kWrites = bit(Opcode::kRdmaWrite) | bit(Opcode::kRdmaWriteWithImm);
constexpr uint32_t kAtomics = bit(Opcode::kCompareSwap) | bit(Opcode::kFetchAdd);
constexpr uint32_t kBinds = bit(Opcode::kBindMw) | bit(Opcode::kLocalInv) | bit(Opcode::kSendWithInv);

/// IBTA table 89: operations by transport service.
constexpr uint32_t operations_of(QpType type) {
  switch (type) {
    case QpType::kRc:
    case QpType::kXrcSend:
      return kSends | kWrites | kAtomics | kBinds | bit(Opcode::kRdmaRead) | bit(Opcode::kAtomicWrite);
    case QpType::kUc:
      return kSends | kWrites | kBinds;
    case QpType::kUd:
      return kSends;
    default:
      return 0;
  }
}

bool is_atomic(Opcode opcode) { return opcode == Opcode::kCompareSwap || opcode == Opcode::kFetchAdd; }

bool reads_memory_in(Opcode opcode) { return opcode == Opcode::kRdmaRead || is_atomic(opcode); }

bool is_local(Opcode opcode) { return opcode == Opcode::kBindMw || opcode == Opcode::kLocalInv; }

WcOpcode completion_opcode(Opcode opcode) {
  switch (opcode) {
    case Opcode::kRdmaWrite:
    case Opcode::kRdmaWriteWithImm:
      return WcOpcode::kRdmaWrite;
    case Opcode::kRdmaRead:
      return WcOpcode::kRdmaRead;
    case Opcode::kCompareSwap:
      return WcOpcode::kCompareSwap;
    case Opcode::kFetchAdd:
      return WcOpcode::kFetchAdd;
    case Opcode::kLocalInv:
      return WcOpcode::kLocalInv;
    case Opcode::kBindMw:
      return WcOpcode::kBindMw;
    case Opcode::kAtomicWrite:
      return WcOpcode::kAtomicWrite;
    default:
      return WcOpcode::kSend;
  }
}

}  // namespace

uint32_t Qp::operations(QpType type) { return operations_of(type); }

int Qp::check(const SendWr& wr) const {
  if (__builtin_expect(static_cast<uint32_t>(wr.opcode) > 31 || (operations_ & bit(wr.opcode)) == 0, 0)) return EINVAL;
  if (__builtin_expect(wr.num_sge > max_send_sge_, 0)) return EINVAL;
  if (__builtin_expect(send_head_ - send_tail_.load(std::memory_order_acquire) >= max_send_wr_, 0)) return ENOMEM;
  if ((wr.flags & send_flag::kInline) != 0) {
    if (reads_memory_in(wr.opcode)) return EINVAL;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < wr.num_sge; ++i) bytes += wr.sg_list[i].length;
    const bool any_length = (wr.flags & send_flag::kAnyLength) != 0 && wire_ == nullptr;
    if (bytes > max_inline_data_ && !any_length) return EINVAL;
  }
  if (datagram_ && wr.ah == nullptr) return EINVAL;
  if (wr.opcode == Opcode::kBindMw && (wr.mw == nullptr || (wr.bind.length != 0 && wr.bind.region == nullptr)))
    return EINVAL;
  return 0;
}

WcStatus find_local(const segment::MrShared* keys, uint32_t pd, const Sge& sge, uint32_t rights, Piece* piece) {
  const uint32_t index = segment::key_index(sge.lkey);
  if (__builtin_expect(sge.lkey == 0 || index >= segment::kMaxMr, 0)) return WcStatus::kLocProtErr;
  const segment::MrShared& mr = keys[index];
  const uint64_t offset = sge.addr - mr.start;
  if (__builtin_expect(mr.key.load(std::memory_order_acquire) != sge.lkey || mr.pd != pd || offset > mr.length ||
                           sge.length > mr.length - offset || (mr.access & rights) != rights ||
                           mr.kind == static_cast<uint32_t>(segment::MrKind::kWindow),
                       0))
    return WcStatus::kLocProtErr;
  const bool null = mr.kind == static_cast<uint32_t>(segment::MrKind::kNull);
  *piece = {null ? nullptr : reinterpret_cast<std::byte*>(sge.addr + mr.delta), sge.length};
  return WcStatus::kSuccess;
}

WcStatus Qp::locate(const Sge& sge, uint32_t rights, Piece* piece) const {
  return find_local(keys_, shared_->pd, sge, rights, piece);
}

Result<std::shared_ptr<std::byte>> Qp::map_remote(uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights) {
  std::lock_guard lock(send_lock_);
  if (state() != QpState::kRts) return fail(ENOTCONN, "the queue pair is not connected");
  if (endpoint_ == nullptr || datagram_) return fail(ENOTSUP, "what leads to the other end maps nothing");
  return endpoint_->map_remote(rkey, address, length, rights);
}

Outcome Qp::execute_list(const SendWr& wr, const AddressVector* vector, uint64_t* length) {
  const bool inlined = (wr.flags & send_flag::kInline) != 0;
  const uint32_t rights = reads_memory_in(wr.opcode) ? access::kLocalWrite : 0;
  Piece pieces[kMaxSge];
  uint32_t count = 0;
  for (uint32_t i = 0; i < wr.num_sge; ++i) {
    const Sge& sge = wr.sg_list[i];
    if (sge.length == 0) continue;
    pieces[count] = {reinterpret_cast<std::byte*>(sge.addr), sge.length};
    if (!inlined) {
      const WcStatus status = locate(sge, rights, &pieces[count]);
      if (status != WcStatus::kSuccess) return Outcome::done(status);
    }
    *length += sge.length;
    ++count;
  }
  if (*length > (datagram_ ? kMaxDatagram : kMaxMessage)) return Outcome::done(WcStatus::kLocLenErr);
  return endpoint_->execute({wr, vector, pieces, count, *length});
}

WcStatus Qp::run_local(const SendWr& wr) {
  if (wr.opcode == Opcode::kLocalInv)
    return invalidate_window(runtime_, wr.imm_or_rkey, qp_num_) ? WcStatus::kSuccess : WcStatus::kMwBindErr;
  return static_cast<Mw*>(wr.mw)->bind(qp_num_, *pd_, wr.bind, wr.rkey);
}

void Qp::look_for_copier() {
  const cm::Peer* peer = endpoint_->peer();
  if (peer == nullptr) return;
  const auto& lock = peer->tables().qp[segment::index_of(shared_->remote_qpn.load())].send_lock;
  if (&lock == &shared_->send_lock) return;  // it is connected to itself
  segment::SendLock::fence_after_revoking();
  const uint32_t seen = lock.load(std::memory_order_seq_cst);
  if ((seen & 1) != 0) copier_ = Copier{peer, &lock, seen, base::now_ns() + kCopierLimitNs};
}

Outcome Qp::execute_local(const SendWr& wr) {
  if (!copier_) {
    const WcStatus status = run_local(wr);
    if (status != WcStatus::kSuccess || wr.opcode != Opcode::kLocalInv) return Outcome::done(status);
    look_for_copier();
  }
  // Not waited for here: the peer may be waiting for this thread's send lock, or for the service thread.
  if (copier_ && copier_->lock->load(std::memory_order_acquire) == copier_->seen && copier_->peer->alive() &&
      base::now_ns() < copier_->until_ns)
    return Outcome::no_answer();
  copier_.reset();
  return Outcome::done(WcStatus::kSuccess);
}

Outcome Qp::execute(const SendWr& wr, const AddressVector* vector, uint64_t* length) {
  if (__builtin_expect(is_local(wr.opcode), 0)) return execute_local(wr);
  if (__builtin_expect(wr.num_sge != 1 || wr.sg_list->length == 0, 0)) return execute_list(wr, vector, length);
  const Sge& sge = *wr.sg_list;
  Piece piece{reinterpret_cast<std::byte*>(sge.addr), sge.length};
  if ((wr.flags & send_flag::kInline) == 0) {
    const WcStatus status = locate(sge, reads_memory_in(wr.opcode) ? access::kLocalWrite : 0, &piece);
    if (__builtin_expect(status != WcStatus::kSuccess, 0)) return Outcome::done(status);
  }
  if (__builtin_expect(sge.length > (datagram_ ? kMaxDatagram : kMaxMessage), 0))
    return Outcome::done(WcStatus::kLocLenErr);
  *length = sge.length;
  return endpoint_->execute({wr, vector, &piece, 1, sge.length});
}

void Qp::finish(const SendWr& wr, uint32_t position, const Outcome& outcome, uint64_t length) {
  if (__builtin_expect(!outcome.succeeded(), 0)) return fail_send(wr, position, outcome.status());
  if (__builtin_expect(is_atomic(wr.opcode), 0)) length = transport::kAtomicBytes;  // however long the list is
  segment::QpCounters& counters = shared_->counters;
  counters.messages.store(counters.messages.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  counters.bytes.store(counters.bytes.load(std::memory_order_relaxed) + length, std::memory_order_relaxed);
  if (signal_all_ || (wr.flags & send_flag::kSignaled) != 0) complete_send(wr, position, WcStatus::kSuccess, length);
}

int Qp::post(const SendWr& wr) {
  const QpState now = state();
  if (__builtin_expect(now < QpState::kRts, 0)) return EINVAL;
  const int error = check(wr);
  if (__builtin_expect(error != 0, 0)) return error;
  if (__builtin_expect(wire_ != nullptr, 0)) return post_wire(wr, now);
  const uint32_t position = ++send_head_;
  if (__builtin_expect(now == QpState::kRts && !waits_, 1)) {
    uint64_t length = 0;
    const AddressVector* vector = wr.ah == nullptr ? nullptr : &wr.ah->vector();
    const Outcome outcome = execute(wr, vector, &length);
    if (__builtin_expect(outcome.verdict() == Verdict::kDone, 1))
      finish(wr, position, outcome, length);
    else
      return keep(wr, position, outcome);
    endpoint_->due.raise();
    return 0;
  }
  if (now == QpState::kErr || now == QpState::kSqe) {
    flush_sends();
    complete_send(wr, position, WcStatus::kWrFlushErr, 0);
    return 0;
  }
  return keep(wr, position, Outcome::done(WcStatus::kSuccess));
}

int Qp::keep(const SendWr& wr, uint32_t position, const Outcome& outcome) try {
  auto kept = std::make_unique<WaitingWr>();
  kept->wr = wr;
  kept->position = position;
  kept->list.assign(wr.sg_list, wr.sg_list + wr.num_sge);
  if ((wr.flags & send_flag::kInline) != 0) {
    uint64_t bytes = 0;
    for (const Sge& sge : kept->list) bytes += sge.length;
    kept->inline_data.resize(bytes);
    std::byte* to = kept->inline_data.data();
    for (Sge& sge : kept->list) {
      if (sge.length != 0) std::memcpy(to, reinterpret_cast<const void*>(sge.addr), sge.length);
      sge.addr = reinterpret_cast<uint64_t>(to);
      to += sge.length;
    }
  }
  kept->wr.sg_list = kept->list.data();
  if (wr.ah != nullptr) kept->vector = wr.ah->vector();
  WcStatus status = WcStatus::kSuccess;
  if (outcome.verdict() != Verdict::kDone) {
    const int64_t now = base::now_ns();
    kept->why = outcome.verdict();
    kept->rnr_timer = outcome.rnr_timer();
    kept->first_try_ns = now;
    kept->next_try_ns = next_try(*kept, now);
    shared_->counters.rnr.fetch_add(outcome.verdict() == Verdict::kNotReady, std::memory_order_relaxed);
    if (expired(*kept, now, &status)) {
      fail_send(wr, position, status);
      return 0;
    }
  }
  waiting_.push_back(std::move(kept));
  waits_ = true;
  if (waiting_.size() == 1) runtime_.add_pending(this);
  return 0;
} catch (const std::bad_alloc&) {
  // Nothing was sent and nothing is kept: the request was not taken.
  if (!waiting_.empty() && waiting_.back()->position == position) waiting_.pop_back();
  waits_ = !waiting_.empty();
  if (!waits_ && copier_) {  // but an invalidation, which is done
    copier_.reset();
    finish(wr, position, Outcome::done(WcStatus::kSuccess), 0);
    return 0;
  }
  --send_head_;
  return ENOMEM;
}

std::unique_ptr<WaitingWr> Qp::take_waiting() {
  std::unique_ptr<WaitingWr> oldest = std::move(waiting_.front());
  waiting_.pop_front();
  waits_ = !waiting_.empty();
  return oldest;
}

int64_t Qp::next_try(const WaitingWr& waiting, int64_t now) const {
  if (waiting.why == Verdict::kNoAnswer) return now + kNoAnswerPauseNs;
  return now + std::max(transport::rnr_timer_ns(waiting.rnr_timer), kShortestRnrPauseNs);
}

bool Qp::expired(const WaitingWr& waiting, int64_t now, WcStatus* status) const {
  if (copier_) return false;  // the request was executed, and has a limit of its own
  if (waiting.why == Verdict::kNotReady) {
    constexpr uint8_t kForever = 7;  // IBTA 9.7.5.2.8
    if (patience_.rnr_retry == kForever) return false;
    const int64_t patience = patience_.rnr_retry * transport::rnr_timer_ns(waiting.rnr_timer);
    *status = WcStatus::kRnrRetryExcErr;
    return now - waiting.first_try_ns >= patience;
  }
  if (waiting.why == Verdict::kNoAnswer) {
    if (patience_.timeout == 0) return false;
    *status = WcStatus::kRetryExcErr;
    return now - waiting.first_try_ns >= (patience_.retry_cnt + 1) * transport::ack_timeout_ns(patience_.timeout);
  }
  return false;
}

int64_t Qp::progress(int64_t now_ns) {
  if (!send_lock_.try_lock()) return now_ns + 20'000;
  int64_t wanted = INT64_MAX;
  while (!waiting_.empty() && (state() == QpState::kRts || finishes_first_)) {
    WaitingWr& waiting = *waiting_.front();
    uint64_t length = 0;
    const Outcome outcome = execute(waiting.wr, &waiting.vector, &length);
    if (outcome.verdict() != Verdict::kDone) {
      if (waiting.why != outcome.verdict()) {
        waiting.first_try_ns = now_ns;
        shared_->counters.rnr.fetch_add(outcome.verdict() == Verdict::kNotReady, std::memory_order_relaxed);
      }
      waiting.why = outcome.verdict();
      waiting.rnr_timer = outcome.rnr_timer();
      WcStatus status = WcStatus::kSuccess;
      if (!expired(waiting, now_ns, &status)) {
        wanted = next_try(waiting, now_ns);
        break;
      }
      const std::unique_ptr<WaitingWr> lost = take_waiting();
      finishes_first_ = false;
      fail_send(lost->wr, lost->position, status);
      break;
    }
    const std::unique_ptr<WaitingWr> done = take_waiting();
    finish(done->wr, done->position, outcome, length);
    endpoint_->due.raise();
    if (__builtin_expect(finishes_first_, 0)) tell_drained();
  }
  if (waiting_.empty()) {
    runtime_.remove_pending(this);
  } else if (state() == QpState::kErr || state() == QpState::kSqe) {
    flush_sends();
  }
  send_lock_.unlock();
  return wanted;
}

void Qp::complete_send(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length) {
  segment::CqEntry entry;
  entry.wr_id = wr.wr_id;
  entry.byte_len = static_cast<uint32_t>(length);
  entry.qp_num = qp_num_;
  entry.sq_position = position;
  entry.status = static_cast<uint8_t>(status);
  entry.opcode = static_cast<uint8_t>(completion_opcode(wr.opcode));
  const auto pushed = send_port_.push(runtime_.tag(), nullptr, status != WcStatus::kSuccess, entry);
  if (__builtin_expect(pushed == cm::CompletionPort::Pushed::kOverrun, 0)) fail_for_overrun();
}

void Qp::fail_for_overrun() {
  if (state() == QpState::kErr) return;
  shared_->error.store(static_cast<uint32_t>(EventType::kQpFatal) + 1, std::memory_order_release);
  set_state(QpState::kErr);
  cm::call_attention(runtime_.node().self(), segment::attention::kQp, index_);
}

void Qp::fail_send(const SendWr& wr, uint32_t position, WcStatus status) {
  shared_->counters.errors.fetch_add(1, std::memory_order_relaxed);
  const bool connected = options_.type == QpType::kRc || options_.type == QpType::kXrcSend;
  // IBTA 10.3.1: an error stops RC in the error state; UC and UD stop their send queue only.
  set_state(connected ? QpState::kErr : QpState::kSqe);
  complete_send(wr, position, status, 0);
  flush_sends();
  // Receives are flushed by the service thread: this thread holds the send lock, and a peer may be filling one.
  if (connected) cm::call_attention(runtime_.node().self(), segment::attention::kQp, index_);
}

void Qp::flush_sends() {
  if (wire_ != nullptr) wire_->flush();
  copier_.reset();
  while (!waiting_.empty()) {
    const std::unique_ptr<WaitingWr> lost = take_waiting();
    complete_send(lost->wr, lost->position, WcStatus::kWrFlushErr, 0);
  }
  runtime_.remove_pending(this);
}

}  // namespace nupa::core
