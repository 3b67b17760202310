// SPDX-License-Identifier: Apache-2.0
#include "core/datagram_router.h"

#include <algorithm>

#include "base/clock.h"
#include "core/request_recorder.h"
#include "core/seam/group_address.h"
#include "core/seam/whole_message.h"

namespace nupa::core {

namespace {

/// How long a route is cached. A process that the first transport does not reach now may open its device later.
constexpr int64_t kRouteNs = 100'000'000;
/// The number of cached destinations. When it is reached, all are looked up again.
constexpr size_t kMaxRoutes = 1024;

}  // namespace

Posted DatagramRouter::post(const Request& request) {
  if (__builtin_expect(paused_ || !sends_.empty(), 0))
    return sends_.keep(request) != nullptr ? Posted::taken() : Posted::no_memory();
  if (__builtin_expect(request.fault != WcStatus::kSuccess, 0)) return Posted::done(request.fault);
  const std::optional<WcStatus> sent = send_datagram(request);
  return __builtin_expect(sent.has_value(), 1) ? Posted::done(*sent) : put_off(request);
}

Posted DatagramRouter::put_off(const Request& request) {
  if (sends_.keep(request) == nullptr) {
    forget_group();
    return Posted::no_memory();
  }
  // Not wake(): threads that poll would try again at each poll.
  context_.wake_at(base::now_ns());
  return Posted::taken();
}

void DatagramRouter::forget_group() {
  next_sender_ = 0;
  group_status_ = WcStatus::kSuccess;
}

std::optional<WcStatus> DatagramRouter::send_datagram(const Request& request) {
  if (senders_.size() == 1) return send_by(*senders_.front(), request);
  if (request.vector->is_global && names_group(request.vector->dgid)) return send_to_group(request);
  DatagramSender* const sender = sender_to(request.wr.remote_qpn, *request.vector);
  return sender == nullptr ? std::nullopt : send_by(*sender, request);
}

void DatagramRouter::record(const DatagramSender& sender, const Request& request) {
  const auto found = std::find_if(recorded_.begin(), recorded_.end(),
                                  [&](const Recorded& recorded) { return recorded.sender == &sender; });
  if (found == recorded_.end()) return;
  const AddressVector& vector = *request.vector;
  const bool is_group = vector.is_global && names_group(vector.dgid);
  capture::Flow flow = flow_of(*found->device, vector, QpType::kUd, context_.number(), found->transport);
  flow.dest_qpn = is_group ? kGroupQpn : request.wr.remote_qpn;
  flow.psn = recorded_psn_;
  capture::Message message = message_of(request.wr, request.pieces, request.piece_count, request.length);
  message.qkey = qkey_of(request.wr, context_);
  capture::record_request(flow, message);
  recorded_psn_ = flow.psn;
}

std::optional<WcStatus> DatagramRouter::send_to_group(const Request& request) {
  for (; next_sender_ < senders_.size(); ++next_sender_) {
    const std::optional<WcStatus> sent = send_by(*senders_[next_sender_], request);
    if (!sent) return std::nullopt;
    if (group_status_ == WcStatus::kSuccess) group_status_ = *sent;
  }
  const WcStatus status = group_status_;
  forget_group();
  return status;
}

DatagramSender* DatagramRouter::sender_to(uint32_t qp_num, const AddressVector& vector) {
  const auto known = routes_.find(qp_num);
  const bool asked =
      known != routes_.end() && known->second.is_global == vector.is_global && known->second.gid == vector.dgid;
  if (asked && base::now_ns() < known->second.valid_until_ns) return known->second.sender;
  DatagramSender* chosen = senders_.back().get();
  for (const auto& sender : senders_) {
    const DatagramSender::Reach reach = sender->leads_to(vector, qp_num);
    if (reach == DatagramSender::Reach::kNotYet) return nullptr;
    if (reach != DatagramSender::Reach::kYes) continue;
    chosen = sender.get();
    break;
  }
  if (chosen == senders_.front().get()) {
    if (asked) routes_.erase(known);
    return chosen;
  }
  if (routes_.size() >= kMaxRoutes) routes_.clear();
  routes_.insert_or_assign(qp_num, Route{vector.dgid, vector.is_global, chosen, base::now_ns() + kRouteNs});
  return chosen;
}

void DatagramRouter::pause(bool paused) {
  paused_ = paused;
  if (!paused && !sends_.empty()) context_.wake();
}

void DatagramRouter::flush() {
  forget_group();
  pauses_.reset();
  sends_.flush(context_);
}

int64_t DatagramRouter::progress(int64_t now_ns) {
  while (!paused_ && !sends_.empty()) {
    const QpState state = context_.state();
    if (state == QpState::kErr || state == QpState::kSqe) {
      flush();
      break;
    }
    uint64_t length = 0;
    const std::optional<WcStatus> status = sends_.run_front(
        context_,
        [&](const Request& request) {
          length = request.length;
          return send_datagram(request);
        },
        [](WcStatus fault) { return std::optional(fault); });
    if (!status) {
      return now_ns + pauses_.next_ns();
    }
    pauses_.reset();
    sends_.end_front(context_, *status, length);
    due.raise();
    if (*status != WcStatus::kSuccess) flush();
  }
  return INT64_MAX;
}

void DatagramRouter::on_process_exit(host::Peer& process) {
  for (const auto& sender : senders_) sender->on_process_exit(process);
}

void DatagramRouter::withdraw() {
  for (const auto& sender : senders_) sender->withdraw();
}

}  // namespace nupa::core
