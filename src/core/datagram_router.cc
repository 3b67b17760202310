// SPDX-License-Identifier: Apache-2.0
#include "core/datagram_router.h"

#include "base/clock.h"
#include "core/seam/group_address.h"

namespace nupa::core {

namespace {

/// How long the answer "not by this transport" is remembered: a process may open its device later.
constexpr int64_t kRouteNs = 100'000'000;
/// Destinations remembered; beyond this many all are looked up again.
constexpr size_t kMaxRoutes = 1024;

}  // namespace

Posted DatagramRouter::post(const Request& request) {
  if (__builtin_expect(paused_ || !sends_.empty(), 0))
    return sends_.keep(request) != nullptr ? Posted::taken() : Posted::no_memory();
  if (__builtin_expect(request.fault != WcStatus::kSuccess, 0)) return Posted::done(request.fault);
  return Posted::done(send(request));
}

WcStatus DatagramRouter::send(const Request& request) {
  if (senders_.size() == 1) return senders_.front()->send(request);
  if (!request.vector->is_global || !names_group(request.vector->dgid))
    return sender_to(request.wr.remote_qpn, *request.vector).send(request);
  WcStatus status = WcStatus::kSuccess;
  for (const auto& sender : senders_)
    if (const WcStatus sent = sender->send(request); status == WcStatus::kSuccess) status = sent;
  return status;
}

DatagramSender& DatagramRouter::sender_to(uint32_t qp_num, const AddressVector& vector) {
  const auto known = routes_.find(qp_num);
  const bool asked =
      known != routes_.end() && known->second.is_global == vector.is_global && known->second.gid == vector.dgid;
  if (asked && base::now_ns() < known->second.valid_until_ns) return *known->second.sender;
  DatagramSender* chosen = senders_.back().get();
  for (const auto& sender : senders_) {
    if (sender->leads_to(vector, qp_num) != DatagramSender::Reach::kYes) continue;
    chosen = sender.get();
    break;
  }
  if (chosen == senders_.front().get()) {
    if (asked) routes_.erase(known);
    return *chosen;
  }
  if (routes_.size() >= kMaxRoutes) routes_.clear();
  routes_.insert_or_assign(qp_num, Route{vector.dgid, vector.is_global, chosen, base::now_ns() + kRouteNs});
  return *chosen;
}

void DatagramRouter::pause(bool paused) {
  paused_ = paused;
  if (!paused && !sends_.empty()) context_.wake();
}

int64_t DatagramRouter::progress(int64_t) {
  while (!paused_ && !sends_.empty()) {
    const QpState state = context_.state();
    if (state == QpState::kErr || state == QpState::kSqe) {
      flush();
      break;
    }
    uint64_t length = 0;
    const WcStatus status = sends_.run_front(
        context_,
        [&](const Request& request) {
          length = request.length;
          return send(request);
        },
        [](WcStatus fault) { return fault; });
    const std::unique_ptr<DeferredSend> ended = sends_.take();
    context_.complete_send(ended->wr, ended->position, status, length);
    due.raise();
    if (status != WcStatus::kSuccess) flush();
  }
  return INT64_MAX;
}

void DatagramRouter::on_process_gone(host::Peer& process) {
  for (const auto& sender : senders_) sender->on_process_gone(process);
}

void DatagramRouter::withdraw() {
  for (const auto& sender : senders_) sender->withdraw();
}

}  // namespace nupa::core
