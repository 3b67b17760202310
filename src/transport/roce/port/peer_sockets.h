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

/// The peer with a socket for itself: the one that sends many small messages in a row to a program that polls, until
/// another peer does. A poll looks first at the socket where something arrived last. Under the poller's lock, except
/// shown().
class PeerSockets {
 public:
  /// Returns null if no peer has a socket. The socket stays once it exists. Any thread.
  PeerSocket* shown() const { return shown_.load(std::memory_order_acquire); }

  /// Calls `receive_from(socket)` for the port's main socket and the peer's socket.
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

  /// A program that polls got a small message by the port's main socket. Returns true if its sender has sent enough in
  /// a row to get the socket.
  bool has_run(const net::UdpSocket::Received& received, uint16_t port) {
    const Route route{received.from.address, received.to, received.from.port, port};
    if (route == last_route_) return ++last_route_run_ == kPeerRun;
    last_route_ = route;
    last_route_run_ = 0;
    return false;
  }
  /// The program got a message by another socket.
  void interrupt_run() { last_route_run_ = 0; }
  /// Connects the socket to the sender of `received`. Changes nothing if there can be no socket. `all`: the port's main
  /// socket. `right`: packets at the new socket wake the same threads as other packets.
  [[gnu::cold]] void lead_to(const net::UdpSocket::Received& received, const net::UdpSocket& all,
                             progress::ReceiveRight& right, FlowWindows& windows, bool reports_more);

  /// As PeerSocket's. Returns false if there is none.
  bool next_refusal(net::UdpSocket::Refusal* refusal) { return own_ != nullptr && own_->next_refusal(refusal); }
  /// Makes receives report hop limit and flow label, too.
  void report_more() {
    if (own_ != nullptr) own_->socket().report_more();
  }
  /// Closes the socket. Threads that have sent by it keep the object.
  void close() {
    if (own_ != nullptr) own_->socket().close();
  }

 private:
  /// A process gets the socket after this many small messages in a row to a polling program, until another process
  /// does. The program looks at the socket first if something arrived by it last, except in one of kLooksElsewhere
  /// looks.
  static constexpr uint32_t kPeerRun = 512;
  static constexpr uint32_t kLooksElsewhere = 4;

  std::shared_ptr<PeerSocket> own_;
  std::atomic<PeerSocket*> shown_{nullptr};  ///< `own_`, once it is connected to a peer
  bool own_was_last_ = false;                ///< the last packet came by own_, not by the main socket
  uint32_t looks_ = 0;
  Route last_route_;
  uint32_t last_route_run_ = 0;
};

}  // namespace nupa::roce
