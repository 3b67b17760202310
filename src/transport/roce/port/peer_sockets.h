// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "net/udp_socket.h"
#include "progress/packet_source.h"
#include "progress/receive_right.h"
#include "transport/roce/port/flow_windows.h"
#include "transport/roce/port/peer_socket.h"
#include "transport/roce/wire/icrc.h"

namespace nupa::roce {

/// Which peer has a socket of its own: the one from which small messages come to a program that polls, many in a row,
/// until that is another one. A poll looks first where something came last. Under the lock of the port's turns, except
/// shown().
class PeerSockets {
 public:
  /// Null: no peer has one. Stays once it is there. Any thread.
  PeerSocket* shown() const { return shown_.load(std::memory_order_acquire); }

  /// Looks for packets by `receive_from(socket)`, at the port's own socket and at a peer's.
  template <class ReceiveFrom>
  uint32_t receive(const net::UdpSocket& all, progress::Receiver receiver, ReceiveFrom&& receive_from) {
    if (own_ == nullptr) return receive_from(all);
    if (receiver == progress::Receiver::kThread) return receive_from(own_->socket()) + receive_from(all);
    bool by_own = own_was_last_ != (++looks_ % kLooksElsewhere == 0);
    const auto look = [&] { return receive_from(by_own ? own_->socket() : all); };
    uint32_t packets = look();
    if (packets == 0 && receiver == progress::Receiver::kSleeper) {
      by_own = !by_own;
      packets = look();
    }
    if (packets > 0) own_was_last_ = by_own;
    return packets;
  }

  /// A program that polls got a small message by the port's own socket. True: the process that sent it has sent so many
  /// in a row that it gets the socket.
  bool has_run(const net::UdpSocket::Received& received, uint16_t port) {
    const Route route{received.from.address, received.to, received.from.port, port};
    if (route == last_route_) return ++last_route_run_ == kPeerRun;
    last_route_ = route;
    last_route_run_ = 0;
    return false;
  }
  /// It got one by another socket.
  void interrupt_run() { last_route_run_ = 0; }
  /// The process that sent it has the socket from now on. Leaves all as it was if there can be none. `all`: the port's
  /// own. `right`: packets by the new socket wake those that packets wake.
  [[gnu::cold]] void lead_to(const net::UdpSocket::Received& received, const net::UdpSocket& all,
                             progress::ReceiveRight& right, FlowWindows& windows, bool tells_more);

  /// As PeerSocket's. False: there is none.
  bool next_refusal(net::UdpSocket::Refusal* refusal) { return own_ != nullptr && own_->next_refusal(refusal); }
  /// Receives by it bring what datagrams tell of.
  void tell_more() {
    if (own_ != nullptr) own_->socket().tell_more();
  }
  /// Threads that have sent by it keep it.
  void close() {
    if (own_ != nullptr) own_->socket().close();
  }

 private:
  /// A process from which a polling program's small messages come so often in a row has a socket of its own from then
  /// on, until another one does. It is where the program looks next if something came by it last, but for one look of
  /// so many.
  static constexpr uint32_t kPeerRun = 512;
  static constexpr uint32_t kLooksElsewhere = 4;

  std::shared_ptr<PeerSocket> own_;
  std::atomic<PeerSocket*> shown_{nullptr};  ///< `own_`, once it leads to a peer
  bool own_was_last_ = false;                ///< something came by own_, not by the port's own
  uint32_t looks_ = 0;
  Route last_route_;
  uint32_t last_route_run_ = 0;
};

}  // namespace nupa::roce
