#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "net/udp_socket.h"

namespace nupa::roce {

struct Peer;

/// A UDP socket for what this process and one other send each other by one address of this host: the fastest way for
/// small messages. It receives all of it. It sends for one thread at a time, since that thread has to know which IPv4
/// identifications its packets get, which the invariant CRC covers, and only to NUPA ends: should the thread be wrong
/// about them, those mind no more than they see. Other threads send by the port's own socket, which looks the same.
class PeerSocket : public std::enable_shared_from_this<PeerSocket> {
 public:
  /// `address`: of this host. `least_buffer`: what it has to hold as the kernel counts it. Null: not to be had.
  static std::shared_ptr<PeerSocket> open(const Gid& address, uint16_t port, uint32_t least_buffer);
  PeerSocket(net::UdpSocket socket, const Gid& address) : socket_(std::move(socket)), address_(address) {}

  net::UdpSocket& socket() { return socket_; }
  const Gid& address() const { return address_; }

  /// Leads it to another process from now on. False: no way, it leads nowhere. Under the lock of the port's turns.
  bool lead_to(const net::UdpAddress& where, std::shared_ptr<Peer> peer);
  /// Whether what goes from there to that process may go by it. Any thread.
  bool leads(const Gid& from, const Peer* to) const {
    return peer_.load(std::memory_order_acquire) == to && from == address_;
  }

  /// Takes it for sending, for whoever `sender` stands for. False: somebody else has it, or the identifications are
  /// unknown. Each time before packets are made for it.
  bool claim(const void* sender);
  void release(const void* sender);
  /// The sender's: of the next message.
  uint16_t identification() const { return identification_; }
  /// The sender's: so many messages have left, or `lost` of them have not.
  void sent(uint32_t messages, uint32_t lost);

  /// As UdpSocket's, unless copies are wanted just now. Any thread.
  bool next_refusal(net::UdpSocket::Refusal* refusal);

 private:
  bool learn();

  net::UdpSocket socket_;
  const Gid address_;
  std::mutex copies_mutex_;  ///< who takes the copies that the kernel hands back
  std::atomic<const Peer*> peer_{nullptr};
  std::shared_ptr<Peer> kept_;      ///< so that no other one gets its place in memory
  std::atomic<uint32_t> turns_{0};  ///< of lead_to()
  std::atomic<const void*> sender_{nullptr};
  // The sender's.
  std::optional<uint32_t> known_turn_;  ///< that `identification_` is of
  bool usable_ = false;
  uint32_t refusals_ = 0;
  uint16_t identification_ = 0;
};

}  // namespace nupa::roce
