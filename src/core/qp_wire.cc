/// Queue pairs whose requests leave as packets.
#include <cerrno>

#include "base/log.h"
#include "core/qp.h"

namespace nupa::core {

int Qp::post_wire(const SendWr& wr, QpState now) {
  const uint32_t position = ++send_head_;
  if (now == QpState::kErr || now == QpState::kSqe) {
    flush_sends();
    complete_send(wr, position, WcStatus::kWrFlushErr, 0);
    return 0;
  }
  wire_->post(wr, position);
  return 0;
}

void Qp::finish_wire(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length) {
  if (status == WcStatus::kSuccess) {
    finish(wr, position, transport::Outcome::done(status), length);
  } else if (status == WcStatus::kWrFlushErr) {
    complete_send(wr, position, status, 0);
  } else {
    shared_->counters.errors.fetch_add(1, std::memory_order_relaxed);
    const bool connected = options_.type == QpType::kRc || options_.type == QpType::kXrcSend;
    set_state(connected ? QpState::kErr : QpState::kSqe);
    complete_send(wr, position, status, 0);
    if (connected) cm::call_attention(runtime_.node().self(), segment::attention::kQp, index_);
  }
  if (__builtin_expect(finishes_first_, 0) && wire_->drained()) tell_drained();
}

int Qp::connect_by_packets(const QpAttr& attr) {
  shared_->remote_qpn.store(attr_.dest_qp_num);
  shared_->remote_slot.store(0);  // it is not a process of this host's runtime directory
  segment::WireShared& wire = runtime_.tables().wire[index_];
  const roce::LocalEnd end{&host_, shared_, &wire, qp_num_, options_.type, options_.cap, {}, 0, options_.hears_itself};
  if (datagram_) {
    auto endpoint = runtime_.connect_datagrams(device_.entry(), end);
    if (!endpoint) return endpoint.error().code;
    std::lock_guard lock(send_lock_);
    endpoint_ = std::move(*endpoint);
    set_state(attr.state);
    return 0;
  }
  auto endpoint = runtime_.connect_wire(device_.entry(), end, attr_);
  if (!endpoint) return endpoint.error().code;
  (*endpoint)->set_attributes(attr_);
  std::lock_guard lock(send_lock_);
  wire_owner_ = std::move(*endpoint);
  wire_ = wire_owner_.get();
  set_state(attr.state);
  return 0;
}

Qp::Links Qp::take_links() {
  if (wire_ != nullptr) wire_->stop();
  wire_ = nullptr;
  return {std::move(wire_owner_), std::move(endpoint_)};
}

void Qp::Links::withdraw() {
  if (wire != nullptr) wire->withdraw();
  if (endpoint != nullptr) endpoint->withdraw();
}

}  // namespace nupa::core
