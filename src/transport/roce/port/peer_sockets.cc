// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/peer_sockets.h"

namespace nupa::roce {

void PeerSockets::lead_to(const net::UdpSocket::Received& received, const net::UdpSocket& all,
                          progress::ReceiveRight& right, FlowWindows& windows, bool reports_more) {
  if (own_ == nullptr) {
    own_ = PeerSocket::open(received.to, all.port(), all.buffer_bytes());
    if (own_ != nullptr && !right.add(own_->socket().fd())) own_.reset();
  }
  if (own_ == nullptr || own_->address() != received.to) return;
  if (reports_more) own_->socket().report_more();
  own_->lead_to(received.from, windows.peer_at(received.from.address, received.from.port));
  shown_.store(own_.get(), std::memory_order_release);
}

}  // namespace nupa::roce
