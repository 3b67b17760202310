// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include <nupa/result.h>
#include <nupa/types.h>
#include "base/unique_fd.h"

namespace nupa::net {

/// The address that a datagram comes from or goes to. IPv4 addresses are ::ffff:a.b.c.d.
struct UdpAddress {
  Gid address;
  uint16_t port = 0;
  uint32_t scope = 0;  ///< interface of a link-local address, or the one to send through
};

/// True if an IPv6 group is a different group on each interface (RFC 4007): interface-local or link-local scope.
inline bool is_of_one_link(const Gid& group) {
  constexpr uint8_t kIpv6Group = 0xff;
  constexpr uint8_t kScopeMask = 0xf, kLinkLocal = 2;  // RFC 4291 2.7
  return group.raw[0] == kIpv6Group && (group.raw[1] & kScopeMask) <= kLinkLocal;
}

/// Fields of the IP header that a sender may set. 0: the system's default.
struct IpFields {
  uint8_t traffic_class = 0;  ///< without its congestion bits
  uint8_t hop_limit = 0;
  uint32_t flow_label = 0;  ///< IPv6 only
};

/// One UDP port of this host on all its addresses, IPv4 and IPv6 (where the kernel has it). Non-blocking. Packets are
/// never fragmented. Congested queues may mark them (ECT(0), RFC 3168). The kernel segments and reassembles runs of
/// equal length (UDP_SEGMENT, UDP_GRO: Linux 4.18, 5.0). Any thread may send; one at a time receives.
class UdpSocket {
 public:
  /// `port` 0: any free port. EADDRINUSE: the port is taken. EMFILE and the like. `buffer_bytes`: the wanted size of
  /// the receive buffer and of the send buffer.
  static Result<UdpSocket> open(uint16_t port, uint32_t buffer_bytes);

  /// Receives a group's datagrams to `port` on the interfaces of the addresses in `at`. Each socket of the host that
  /// joins the group gets its own copy. If the group is_of_one_link(), all addresses must be of one interface. The same
  /// process may have `port` open by open(). EADDRINUSE: another user has the port. EADDRNOTAVAIL, ENODEV and the like:
  /// no interface has an address of the group's family.
  static Result<UdpSocket> open_group(const Gid& group, uint16_t port, const std::vector<GidEntry>& at,
                                      uint32_t buffer_bytes);

  /// Opens a second socket beside that of open() in this process, for one address of this host at `port`. Datagrams to
  /// that address arrive here from now on; after lead_to(), only those of that peer do. The kernel then neither reports
  /// nor reads addresses with each datagram, handles one address family only and looks up the route once. That saves a
  /// third of a small packet's time. Errors: those of sockets.
  static Result<UdpSocket> open_address(const Gid& address, uint16_t port, uint32_t buffer_bytes);
  /// For a socket of open_address(): sends everything to `peer`, whatever address a batch has. May be called again.
  /// Datagrams that arrived from other addresses before remain readable.
  Result<void> lead_to(const UdpAddress& peer);
  /// Returns the IPv4 identification of the next message after this call. It grows by one with each message; segments
  /// of a message do not count. Connected sockets count it from a random number. Sends an empty datagram, whose headers
  /// the kernel returns. No other thread may send meanwhile. ENOTSUP: the kernel does not return headers.
  Result<uint16_t> learn_identification() const;

  /// Enables the fields that only receivers of datagrams need: hop limit and flow label. Each makes every receive
  /// slower.
  void report_more() const;
  /// Enables next_refusal().
  void report_refusals();
  /// A datagram whose destination host reported that no socket has the port. Such a report may be forged by anybody who
  /// knows the addresses and ports.
  struct Refusal {
    UdpAddress to;
    std::array<std::byte, 16> quoted;  ///< the first bytes of the datagram
    uint32_t quoted_length = 0;
  };
  /// Takes the next refusal. False: there is none. Drops a copy that came too late for learn_identification() because
  /// the message had waited for the peer's hardware address; otherwise poll() would report it for ever.
  bool next_refusal(Refusal* refusal) const;
  /// Sets whether datagrams to a multicast group reach sockets of this host as well; they do by default.
  void set_group_loop(bool loop) const;

  int fd() const { return fd_.get(); }
  uint16_t port() const { return port_; }
  /// The size of the receive buffer: payload and the kernel's overhead together.
  uint32_t buffer_bytes() const { return buffer_bytes_; }
  bool is_dual() const { return dual_; }
  bool has_address() const { return has_address_; }
  bool leads_somewhere() const { return leads_somewhere_; }
  /// True if a send may fail with the error of an earlier message.
  bool reports_of_others() const { return leads_somewhere_ || reports_refusals_; }
  void close() { fd_.reset(); }

  /// The result of one recvmsg: `length` bytes in datagrams of `segment` bytes, of which the last may be shorter.
  struct Received {
    uint32_t length = 0;
    uint32_t segment = 0;
    UdpAddress from;
    Gid to;
    uint8_t traffic_class = 0;  ///< with its congestion bits
    uint8_t hop_limit = 0;      ///< after report_more()
    uint32_t flow_label = 0;    ///< the same; IPv6 only
    bool congested = false;
  };
  /// False: nothing to receive, or an error of an earlier send was reported.
  bool receive(std::byte* buffer, uint32_t capacity, Received* received) const;

  static constexpr uint32_t kMaxReceive = 65536;

 private:
  /// Makes receives return the address that a datagram was sent to.
  void report_addresses() const;
  static Result<UdpSocket> configure(base::UniqueFd fd, uint16_t port, bool dual, uint32_t buffer_bytes);
  UdpSocket(base::UniqueFd fd, uint16_t port, bool dual, uint32_t buffer_bytes)
      : fd_(std::move(fd)), port_(port), dual_(dual), buffer_bytes_(buffer_bytes) {}
  base::UniqueFd fd_;
  uint16_t port_;
  bool dual_;
  uint32_t buffer_bytes_;
  bool leads_somewhere_ = false;
  bool reports_refusals_ = false;
  bool has_address_ = false;  ///< all datagrams are for `address_`
  Gid address_;
};

class UdpBacklog;

/// Datagrams that leave together. The parts stay where they are in memory until the kernel copies them in flush(). One
/// thread.
class UdpBatch {
 public:
  static constexpr uint32_t kMaxMessages = 32;
  static constexpr uint32_t kMaxParts = 1024;
  static constexpr uint32_t kMaxSegments = 64;  ///< datagrams of one message: UDP_MAX_SEGMENTS of Linux before 6.9
  static constexpr uint32_t kMaxBytes = 65000;  ///< bytes of one message: an IP packet, with room for headers

  /// The position of the next datagram within its message: 0, or behind datagrams of the same length to the same place.
  /// `place`: any number that identifies destination, source and class of service for the caller.
  uint32_t next_position(uint64_t place, uint32_t length) const;
  /// The number of the message that it would be a part of, from 0.
  uint32_t next_message(uint64_t place, uint32_t length) const { return messages_ - (joins(place, length) ? 1 : 0); }
  uint32_t messages() const { return messages_; }
  /// True if there is room for one more datagram of `parts` parts.
  bool has_room(uint32_t parts) const;
  /// Opens a datagram of `length` bytes; then `parts` calls of add().
  void begin(uint64_t place, const UdpAddress& to, const Gid& from, uint32_t from_interface, const IpFields& fields,
             uint32_t length);
  void add(const void* data, uint32_t length);  ///< merges with the part before if it lies right behind it in memory
  bool empty() const { return messages_ == 0; }
  /// Sends all messages without waiting. If the socket's buffer is full, the remaining messages are copied to
  /// `backlog`. So are all messages while the backlog is not empty, which keeps the order. Returns how many messages
  /// are lost: those that cannot be sent, and those that find neither room in the socket's buffer nor in a backlog.
  /// *error: the reason of the last loss.
  uint32_t flush(const UdpSocket& socket, int* error, UdpBacklog* backlog = nullptr);

 private:
  friend class UdpBacklog;
  struct Message {
    uint64_t place;
    uint32_t segment;
    uint32_t last;  ///< length of the last datagram
    uint32_t count;
    uint32_t bytes;
    uint32_t first_part;
    uint32_t parts;
    IpFields fields;
    Gid from;
    uint32_t from_interface;
    sockaddr_in6 to;
  };
  bool joins(uint64_t place, uint32_t length) const;
  /// Sends from message `first` on. Returns the first message that the socket's buffer has no room for, or messages()
  /// if all were sent. Adds those that cannot be sent to *lost.
  uint32_t send_from(uint32_t first, const UdpSocket& socket, uint32_t* lost, int* error);
  void put_back(const Message& message, std::byte* bytes);
  void clear() { messages_ = part_count_ = 0; }

  Message list_[kMaxMessages];
  iovec parts_[kMaxParts];
  uint32_t messages_ = 0;
  uint32_t part_count_ = 0;
};

/// Messages that a socket's buffer had no room for, in order. Any thread; no call waits.
class UdpBacklog {
 public:
  /// Limit of the payload bytes kept here. Messages above it are lost.
  static constexpr uint32_t kMostBytes = 1 << 20;

  /// Sequentially consistent, as is the store in keep(): see roce::SendBacklog::note().
  bool empty() const { return waiting_.load(std::memory_order_seq_cst) == 0; }
  /// Sends as much as the socket's buffer takes. True: some messages were sent or lost. Adds the lost ones to *lost;
  /// *error: the reason of the last loss.
  bool flush(const UdpSocket& socket, uint32_t* lost, int* error);

 private:
  friend class UdpBatch;
  struct Kept {
    UdpBatch::Message message;
    std::unique_ptr<std::byte[]> bytes;
  };
  /// False: the backlog is full, or there is no memory.
  bool keep(const UdpBatch::Message& message, const iovec* parts);

  std::mutex mutex_;  ///< a leaf lock; held while the kernel takes messages, which never blocks
  std::deque<Kept> kept_;
  uint32_t bytes_ = 0;
  std::unique_ptr<UdpBatch> batch_;   ///< for flush(); made with the first message that is kept
  std::atomic<uint32_t> waiting_{0};  ///< the size of kept_
};

}  // namespace nupa::net
