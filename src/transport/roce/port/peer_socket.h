// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "net/udp_socket.h"

namespace nupa::roce {

struct Peer;

/// A UDP socket for the traffic between this process and one other, by one address of this host: the fastest way for
/// small messages. It receives all of that traffic. It sends for one thread at a time, since the invariant CRC covers
/// the IPv4 identifications and that thread has to predict them. It sends to NUPA peers only, which accept a packet
/// even if the prediction was wrong. Other threads send by the port's main socket, which has the same source address.
class PeerSocket : public std::enable_shared_from_this<PeerSocket> {
 public:
  /// `address`: an address of this host. `least_buffer`: the least receive buffer as the kernel counts it. Returns null
  /// if it is not available.
  static std::shared_ptr<PeerSocket> open(const Gid& address, uint16_t port, uint32_t least_buffer);
  PeerSocket(net::UdpSocket socket, const Gid& address) : socket_(std::move(socket)), address_(address) {}

  net::UdpSocket& socket() { return socket_; }
  const Gid& address() const { return address_; }

  /// Connects it to another process. Returns false if that fails; the socket is then for no process. Under the poller's
  /// lock.
  bool lead_to(const net::UdpAddress& where, std::shared_ptr<Peer> peer);
  /// True if packets from that address to that process may leave by it. Any thread.
  bool leads(const Gid& from, const Peer* to) const {
    return peer_.load(std::memory_order_acquire) == to && from == address_;
  }

  /// Claims it for the sender. Returns false if another sender has it, or the identifications are unknown. Called each
  /// time before packets are made for it.
  bool claim(const void* sender);
  void release(const void* sender);
  /// The identification of the next message. Called by the sender.
  uint16_t identification() const { return identification_; }
  /// `messages` have left; `lost` of them have not. Called by the sender.
  void sent(uint32_t messages, uint32_t lost);

  /// As UdpSocket's, except while a thread reads the copies of sent packets. Any thread.
  bool next_refusal(net::UdpSocket::Refusal* refusal);

 private:
  bool learn();

  net::UdpSocket socket_;
  const Gid address_;
  std::mutex copies_mutex_;  ///< for reading the copies of sent packets that the kernel returns
  std::atomic<const Peer*> peer_{nullptr};
  std::shared_ptr<Peer> kept_;      ///< keeps the peer's address in memory unique
  std::atomic<uint32_t> turns_{0};  ///< number of calls of lead_to()
  std::atomic<const void*> sender_{nullptr};
  // The following belong to the sender.
  std::optional<uint32_t> known_turn_;  ///< the value of turns_ that `identification_` belongs to
  bool usable_ = false;
  uint32_t refusals_ = 0;
  uint16_t identification_ = 0;
};

}  // namespace nupa::roce
