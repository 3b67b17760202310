// SPDX-License-Identifier: Apache-2.0
/// The send side of a queue pair: checks and executes requests, and keeps those that have to wait.
#include <cerrno>
#include <cstring>
#include <new>

#include "base/reason.h"
#include "base/probe.h"
#include "base/clock.h"
#include "base/private_send_flag.h"
#include "capture/tap.h"
#include "core/device_attr.h"
#include "core/mr.h"
#include "core/qp.h"

namespace nupa::core {

namespace {

constexpr uint64_t kMaxDatagram = 4096;
/// The pause before the next try while another thread is posting.
constexpr int64_t kPostingPauseNs = 20 * base::kNsPerUs;

constexpr uint32_t bit(Opcode opcode) { return 1u << static_cast<uint32_t>(opcode); }
constexpr uint32_t kSends = bit(Opcode::kSend) | bit(Opcode::kSendWithImm);
constexpr uint32_t kWrites = bit(Opcode::kRdmaWrite) | bit(Opcode::kRdmaWriteWithImm);
constexpr uint32_t kAtomics = bit(Opcode::kCompareSwap) | bit(Opcode::kFetchAdd);
constexpr uint32_t kBinds = bit(Opcode::kBindMw) | bit(Opcode::kLocalInv) | bit(Opcode::kSendWithInv);
/// Operations that post() executes without a look at the fields of rarer ones.
constexpr uint32_t kUsual = kSends | kWrites | kAtomics | bit(Opcode::kRdmaRead);
constexpr uint32_t kAnswered = kAtomics | bit(Opcode::kRdmaRead);
static_assert(is_answered(Opcode::kRdmaRead) && is_answered(Opcode::kFetchAdd) && is_answered(Opcode::kCompareSwap));

/// IBTA table 89: operations by transport service.
constexpr uint32_t operations_of(QpType type) {
  switch (type) {
    case QpType::kRc:
    case QpType::kXrcSend:
      return kSends | kWrites | kAtomics | kBinds | bit(Opcode::kRdmaRead) | bit(Opcode::kAtomicWrite) |
             bit(Opcode::kFlush);
    case QpType::kUc:
      return kSends | kWrites | kBinds;
    case QpType::kUd:
      return kSends;
    default:
      return 0;
  }
}

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
    case Opcode::kFlush:
      return WcOpcode::kFlush;
    case Opcode::kAtomicWrite:
      return WcOpcode::kAtomicWrite;
    default:
      return WcOpcode::kSend;
  }
}

}  // namespace

uint32_t Qp::operations(QpType type) { return operations_of(type); }

uint32_t Qp::usual_operations(QpType type, uint32_t max_send_sge) {
  return type == QpType::kUd || max_send_sge == 0 ? 0 : operations_of(type) & kUsual;
}

int Qp::check(const SendWr& wr) const {
  if (__builtin_expect(static_cast<uint32_t>(wr.opcode) > 31 || (operations_ & bit(wr.opcode)) == 0, 0))
    return base::reject(EINVAL, "opcode ", static_cast<uint32_t>(wr.opcode), " (not one of this queue pair type)");
  if (__builtin_expect(wr.num_sge > max_send_sge_, 0))
    return base::reject(EINVAL, "num_sge ", wr.num_sge, " (max_send_sge is ", max_send_sge_, ")");
  if (__builtin_expect(send_head_ - send_tail_.load(std::memory_order_acquire) >= max_send_wr_, 0))
    return base::reject(ENOMEM, "the send queue is full: ", max_send_wr_,
                        " requests whose completions were not polled (max_send_wr)");
  if ((wr.flags & send_flag::kInline) != 0) {
    if (writes_own_list(wr.opcode)) return base::reject(EINVAL, "IBV_SEND_INLINE with an operation that returns data");
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < wr.num_sge; ++i) bytes += wr.sg_list[i].length;
    const bool any_length = (wr.flags & send_flag::kAnyLength) != 0 && copies_in_post_;
    if (bytes > max_inline_data_ && !any_length)
      return base::reject(EINVAL, "IBV_SEND_INLINE with ", bytes, " bytes (max_inline_data is ", max_inline_data_, ")");
  }
  if (datagram_ && wr.ah == nullptr) return base::reject(EINVAL, "no address handle");
  if (__builtin_expect((bit(wr.opcode) & (bit(Opcode::kBindMw) | bit(Opcode::kFlush))) != 0, 0))
    return check_fields(wr);
  return 0;
}

int Qp::check_fields(const SendWr& wr) const {
  if (wr.opcode == Opcode::kFlush) {
    if (!is_flush(wr.imm_or_rkey))
      return base::reject(EINVAL, "FLUSH with the bits ", wr.imm_or_rkey, " (unknown ones, or no placement type)");
    return wr.num_sge == 0 ? 0 : base::reject(EINVAL, "FLUSH with a list of ", wr.num_sge, " entries");
  }
  if (wr.mw == nullptr || (wr.bind.length != 0 && wr.bind.region == nullptr))
    return base::reject(EINVAL, "no memory window, or no memory region to bind it to");
  return 0;
}

Result<std::shared_ptr<std::byte>> Qp::map_remote(uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights) {
  std::lock_guard lock(send_lock_);
  if (state() != QpState::kRts) return fail(ENOTCONN, "the queue pair is not connected");
  return endpoint_->map_remote(rkey, address, length, rights);
}

WcStatus Qp::run_local(const SendWr& wr) {
  if (wr.opcode == Opcode::kLocalInv)
    return invalidate_window(process_.tables(), wr.imm_or_rkey, qp_num_) ? WcStatus::kSuccess : WcStatus::kMwBindErr;
  return static_cast<Mw*>(wr.mw)->bind(qp_num_, *pd_, wr.bind, wr.rkey);
}

inline WcStatus Qp::check_length(Opcode opcode, uint64_t length) const {
  if (__builtin_expect(length > (datagram_ ? kMaxDatagram : kMaxMessage), 0)) return WcStatus::kLocLenErr;
  if (__builtin_expect(!is_answered(opcode), 1)) return WcStatus::kSuccess;
  return check_read(opcode, length);
}

WcStatus Qp::check_read(Opcode opcode, uint64_t length) const {
  // The list of an atomic must have room for the word (IBTA 11.6.2).
  if (is_atomic(opcode) && length < kAtomicBytes) return WcStatus::kLocLenErr;
  return max_rd_atomic_ == 0 ? WcStatus::kLocQpOpErr : WcStatus::kSuccess;
}

int Qp::post_list(const SendWr& wr, uint32_t position) {
  const bool inlined = (wr.flags & send_flag::kInline) != 0;
  const uint32_t rights = writes_own_list(wr.opcode) ? access::kLocalWrite : 0;
  Piece pieces[kMaxSge];
  uint32_t count = 0;
  uint64_t length = 0;
  WcStatus fault = WcStatus::kSuccess;
  if (!is_local(wr.opcode)) {
    for (uint32_t i = 0; i < wr.num_sge && fault == WcStatus::kSuccess; ++i) {
      const Sge& sge = wr.sg_list[i];
      if (sge.length == 0) continue;
      pieces[count] = {reinterpret_cast<std::byte*>(sge.addr), sge.length};
      if (!inlined) fault = locate(sge, rights, &pieces[count]);
      length += sge.length;
      ++count;
    }
    const bool names_range = wr.opcode == Opcode::kFlush && (wr.imm_or_rkey & flush_flag::kRegion) == 0;
    if (fault == WcStatus::kSuccess) fault = check_length(wr.opcode, names_range ? wr.compare_add : length);
  }
  const AddressVector* vector = wr.ah == nullptr ? nullptr : &wr.ah->vector();
  return submit({wr, vector, pieces, count, length, position, fault});
}

[[gnu::always_inline]] inline void Qp::write_completion(const SendWr& wr, uint32_t position, WcStatus status,
                                                        uint64_t length) {
  const bool all_polled = send_tail_.load(std::memory_order_acquire) == last_completed_;
  last_completed_ = position;
  if (side_slot_ != nullptr && all_polled && status == WcStatus::kSuccess) {
    const std::optional<uint64_t> place = send_port_.next_position();
    if (__builtin_expect(place.has_value(), 1) &&
        side_slot_->put(
            {wr.wr_id, completion_opcode(wr.opcode), static_cast<uint32_t>(length), qp_num_, position, *place}))
      return;
  }
  write_entry(wr, position, status, length);
}

[[gnu::always_inline]] inline void Qp::finish(const SendWr& wr, uint32_t position, uint64_t length) {
  if (__builtin_expect(is_atomic(wr.opcode), 0)) length = kAtomicBytes;  // whatever the length of its list
  shm::QpCounters& counters = shared_->counters;
  counters.messages.store(counters.messages.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  counters.bytes.store(counters.bytes.load(std::memory_order_relaxed) + length, std::memory_order_relaxed);
  if (signal_all_ || (wr.flags & send_flag::kSignaled) != 0) write_completion(wr, position, WcStatus::kSuccess, length);
}

[[gnu::always_inline]] inline int Qp::submit(const Request& request) {
  if (capture::is_on()) [[unlikely]]
    return submit_recorded(request);
  const Posted posted = endpoint_->post(request);
  if (__builtin_expect(!posted.succeeded(), 0)) return end_post(request, posted);
  finish(request.wr, request.position, request.length);
  endpoint_->due.raise();
  return 0;
}

int Qp::submit_recorded(const Request& request) {
  RequestRecorder* const recorder = this->recorder();
  if (recorder != nullptr) recorder->posted(request);
  const Posted posted = endpoint_->post(request);
  if (!posted.succeeded()) return end_post(request, posted);
  record_end(request.wr, request.position, WcStatus::kSuccess);
  finish(request.wr, request.position, request.length);
  endpoint_->due.raise();
  return 0;
}

RequestRecorder* Qp::recorder() {
  if (recorder_ != nullptr || datagram_ || endpoint_ == nullptr) return recorder_.get();
  const Transport* const transport = process_.transports().find(endpoint_->name());
  if (transport == nullptr || transport->records_packets()) return nullptr;
  capture::Flow flow = flow_of(device_.entry(), attr_.av, options_.type, qp_num_, transport->name());
  flow.dest_qpn = attr_.dest_qp_num;
  flow.mtu = bytes_of(attr_.path_mtu);
  recorder_.reset(new (std::nothrow) RequestRecorder(flow, attr_.sq_psn));
  return recorder_.get();
}

void Qp::record_end(const SendWr& wr, uint32_t position, WcStatus status) {
  if (recorder_ == nullptr || is_local(wr.opcode)) return;
  // A response lies in the memory of the list.
  const bool inlined = (wr.flags & send_flag::kInline) != 0;
  Piece pieces[kMaxSge];
  uint32_t count = 0;
  uint64_t length = 0;
  for (uint32_t i = 0; i < wr.num_sge; ++i) {
    const Sge& sge = wr.sg_list[i];
    if (sge.length == 0) continue;
    Piece& piece = pieces[count++];
    piece = {reinterpret_cast<std::byte*>(sge.addr), sge.length};
    if (!inlined && locate(sge, 0, &piece) != WcStatus::kSuccess) piece = {nullptr, sge.length};
    length += sge.length;
  }
  recorder_->ended(message_of(wr, pieces, count, length), position, status);
}

int Qp::end_post(const Request& request, Posted posted) {
  if (posted.is_taken()) return 0;
  if (posted.is_refused()) {
    --send_head_;
    return ENOMEM;
  }
  complete(request.wr, request.position, posted.status(), 0);
  flush_sends();
  endpoint_->due.raise();
  return 0;
}

int Qp::post_any(const SendWr& wr) {
  const QpState now = state();
  if (__builtin_expect(now < QpState::kRts, 0)) return base::reject(EINVAL, "the queue pair is not in RTS");
  const int error = check(wr);
  if (__builtin_expect(error != 0, 0)) return error;
  NUPA_PROBE(post_send, qp_num_, wr.wr_id, static_cast<uint32_t>(wr.opcode), wr.num_sge);
  const uint32_t position = ++send_head_;
  if (__builtin_expect(now > QpState::kSqd, 0)) {
    flush_sends();
    complete(wr, position, WcStatus::kWrFlushErr, 0);
    return 0;
  }
  return post_list(wr, position);
}

[[gnu::always_inline]] inline int Qp::post_now(const SendWr& wr) {
  // Nearly all requests have one piece and an operation with few fields. The rules are those of post_any(), in half the
  // instructions.
  const auto opcode = static_cast<uint32_t>(wr.opcode);
  if (__builtin_expect(state() != QpState::kRts || wr.num_sge != 1 || opcode > 31 ||
                           (usual_operations_ >> opcode & 1) == 0 || wr.sg_list->length == 0 ||
                           send_head_ - send_tail_.load(std::memory_order_acquire) >= max_send_wr_,
                       0))
    return post_any(wr);
  const Sge& sge = *wr.sg_list;
  const bool answered = (kAnswered >> opcode & 1) != 0;
  Piece piece{reinterpret_cast<std::byte*>(sge.addr), sge.length};
  WcStatus fault = WcStatus::kSuccess;
  if ((wr.flags & send_flag::kInline) != 0) {
    if (__builtin_expect(answered || sge.length > max_inline_data_, 0)) return post_any(wr);
  } else {
    // Keys are checked here for each transport, so that a program finds the fault at the same place. A transport that
    // executes the request later checks the keys again.
    fault = locate(sge, answered ? access::kLocalWrite : 0, &piece);
  }
  if (fault == WcStatus::kSuccess && (answered || sge.length > kMaxMessage))
    fault = check_length(wr.opcode, sge.length);
  NUPA_PROBE(post_send, qp_num_, wr.wr_id, opcode, 1);
  return submit({wr, nullptr, &piece, 1, sge.length, ++send_head_, fault});
}

int Qp::post(const SendWr& wr) { return post_now(wr); }

int Qp::post_send(const SendWr& wr) {
  post_begin();
  const int error = post_now(wr);
  post_end();
  return error;
}

void Qp::count_failure(WcStatus status) {
  const auto count = [this](shm::PortCount kind) { process_.port_totals().count(device_.entry().index, kind); };
  switch (status) {
    case WcStatus::kWrFlushErr:
      return count(shm::PortCount::kFlushedRequests);
    case WcStatus::kRemAccessErr:
      return count(shm::PortCount::kRemoteAccessErrors);
    case WcStatus::kRemInvReqErr:
      return count(shm::PortCount::kRemoteInvalid);
    case WcStatus::kRetryExcErr:
      return count(shm::PortCount::kRetriesExceeded);
    case WcStatus::kRnrRetryExcErr:
      return count(shm::PortCount::kRnrExceeded);
    default:
      return;
  }
}

// Not inlined into post(), which rarely calls it. Transports call it as well.
[[gnu::noinline]] void Qp::complete(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length) {
  if (state() == QpState::kReset) return;  // requests from before a RESET have no completion
  if (capture::is_on()) [[unlikely]]
    record_end(wr, position, status);
  if (status == WcStatus::kSuccess) {
    finish(wr, position, length);
  } else {
    count_failure(status);
    if (status != WcStatus::kWrFlushErr) {
      shared_->counters.errors.fetch_add(1, std::memory_order_relaxed);
      // IBTA 10.3.1: an error puts RC into the error state; for UC and UD it stops only the send queue.
      if (options_.type == QpType::kRc || options_.type == QpType::kXrcSend)
        enter_error(std::nullopt);
      else
        set_state(QpState::kSqe);
    }
    write_completion(wr, position, status, 0);
  }
  if (__builtin_expect(finishes_first_, 0) && state() == QpState::kSqd && endpoint_->drained()) report_drained();
}

int64_t Qp::progress(int64_t now_ns) {
  const std::unique_lock lock(send_lock_, std::try_to_lock);
  if (!lock.owns_lock()) return now_ns + kPostingPauseNs;
  const int64_t wanted = endpoint_ == nullptr ? INT64_MAX : endpoint_->progress(now_ns);
  if (wanted == INT64_MAX) process_.pending().remove(*this);
  return wanted;
}

// Not inlined, so that finish() is small enough to be inlined into post().
[[gnu::noinline]] void Qp::write_entry(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length) {
  shm::CqEntry entry;
  entry.wr_id = wr.wr_id;
  entry.byte_len = static_cast<uint32_t>(length);
  entry.qp_num = qp_num_;
  entry.sq_position = position;
  entry.status = static_cast<uint8_t>(status);
  entry.opcode = static_cast<uint8_t>(completion_opcode(wr.opcode));
  const auto pushed = send_port_.push(process_.tag(), nullptr, status != WcStatus::kSuccess, entry);
  if (__builtin_expect(pushed == host::CompletionPort::Pushed::kLost, 0))
    enter_error(EventType::kQpFatal);  // IBTA 11.6.3.2, local work queue catastrophic error
}

void Qp::flush_sends() {
  if (endpoint_ != nullptr) endpoint_->flush();
  process_.pending().remove(*this);
}

}  // namespace nupa::core
