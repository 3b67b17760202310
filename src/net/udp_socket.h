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

/// Where a datagram comes from or goes to: IPv4 addresses as ::ffff:a.b.c.d.
struct UdpAddress {
  Gid address;
  uint16_t port = 0;
  uint32_t scope = 0;  ///< interface of a link-local address, or the one to go through
};

/// Whether an IPv6 group is another one on each interface (RFC 4007): those of interface-local and link-local scope.
inline bool is_of_one_link(const Gid& group) {
  constexpr uint8_t kIpv6Group = 0xff;
  constexpr uint8_t kScopeMask = 0xf, kLinkLocal = 2;  // RFC 4291 2.7
  return group.raw[0] == kIpv6Group && (group.raw[1] & kScopeMask) <= kLinkLocal;
}

/// What a sender may say in the IP header; 0: the system's own.
struct IpFields {
  uint8_t traffic_class = 0;  ///< but for its congestion bits
  uint8_t hop_limit = 0;
  uint32_t flow_label = 0;  ///< IPv6 only
};

/// One UDP port of this host on all its addresses, IPv4 and IPv6 (where the kernel has it). Non-blocking. Packets are
/// never fragmented, may be marked by congested queues (ECT(0), RFC 3168), and runs of equal length are segmented and
/// put together by the kernel (UDP_SEGMENT, UDP_GRO: Linux 4.18, 5.0). Any thread may send; one at a time receives.
class UdpSocket {
 public:
  /// `port` 0: any free one. EADDRINUSE: the port is taken; EMFILE and the like. `buffer_bytes`: wanted for what waits
  /// to be read.
  static Result<UdpSocket> open(uint16_t port, uint32_t buffer_bytes);

  /// A group's datagrams to `port`, by the interfaces of the addresses in `at`; each socket of the host that asks for
  /// them gets its own copy. The addresses are of one interface if the group is_of_one_link(). `port` may be open() in
  /// one process: EADDRINUSE if that is another user's. EADDRNOTAVAIL, ENODEV and the like: no interface has the
  /// group's kind of address.
  static Result<UdpSocket> open_group(const Gid& group, uint16_t port, const std::vector<GidEntry>& at,
                                      uint32_t buffer_bytes);

  /// A socket of its own beside that of open() in this process, for one address of this host at `port`: what comes to
  /// it comes here from now on, and after lead_to() only what comes from there. The kernel need not tell addresses then
  /// nor be told them, has to do with one family only and looks up the way once: a third of a small packet's way.
  /// Errors: those of sockets.
  static Result<UdpSocket> open_address(const Gid& address, uint16_t port, uint32_t buffer_bytes);
  /// Of open_address(): all that is sent by it goes there, whatever the batch says. Again and again; what had come from
  /// elsewhere stays to be read.
  Result<void> lead_to(const UdpAddress& peer);
  /// The IPv4 identification that the next message after this call has, and each one later has one more, segments
  /// of a message not counted: sockets that lead somewhere count them from a random number. Sends an empty datagram,
  /// whose headers the kernel tells. One thread, and nobody sends meanwhile. ENOTSUP: the kernel does not tell.
  Result<uint16_t> learn_identification() const;

  /// From now on also what only datagrams' receivers ask for: hop limit and flow label. Each costs with every receive.
  void tell_more() const;
  /// From now on next_refusal() knows which ports nobody has.
  void tell_refusals();
  /// A datagram that was sent in vain: the host there says that nobody has the port. Anybody may say so who knows the
  /// addresses and ports.
  struct Refusal {
    UdpAddress to;
    std::array<std::byte, 16> quoted;  ///< how the datagram begins
    uint32_t quoted_length = 0;
  };
  /// False: no more are known. A copy that came too late for learn_identification() (the message had waited for the
  /// peer's hardware address) is thrown away: else poll() would tell of it for ever.
  bool next_refusal(Refusal* refusal) const;
  /// Whether what is sent to a multicast group reaches sockets of this host as well, as at first.
  void set_group_loop(bool loop) const;

  int fd() const { return fd_.get(); }
  uint16_t port() const { return port_; }
  /// What the kernel lets wait, payload and its own overhead together.
  uint32_t buffer_bytes() const { return buffer_bytes_; }
  bool is_dual() const { return dual_; }
  bool has_address() const { return has_address_; }
  bool leads_somewhere() const { return leads_somewhere_; }
  /// Whether a send may fail for what has become of an earlier message.
  bool tells_of_others() const { return leads_somewhere_ || tells_refusals_; }
  void close() { fd_.reset(); }

  /// What one recvmsg brought: `length` bytes, in datagrams of `segment` bytes but for the last.
  struct Received {
    uint32_t length = 0;
    uint32_t segment = 0;
    UdpAddress from;
    Gid to;
    uint8_t traffic_class = 0;  ///< with its congestion bits
    uint8_t hop_limit = 0;      ///< after tell_more()
    uint32_t flow_label = 0;    ///< the same; IPv6 only
    bool congested = false;
  };
  /// False: nothing there (or an error of an earlier send, which is somebody else's).
  bool receive(std::byte* buffer, uint32_t capacity, Received* received) const;

  static constexpr uint32_t kMaxReceive = 65536;

 private:
  /// What all kinds of socket are set to. `dual`: IPv6 too.
  /// Receives bring the address that they came to.
  void tell_addresses() const;
  static Result<UdpSocket> configure(base::UniqueFd fd, uint16_t port, bool dual, uint32_t buffer_bytes);
  UdpSocket(base::UniqueFd fd, uint16_t port, bool dual, uint32_t buffer_bytes)
      : fd_(std::move(fd)), port_(port), dual_(dual), buffer_bytes_(buffer_bytes) {}
  base::UniqueFd fd_;
  uint16_t port_;
  bool dual_;
  uint32_t buffer_bytes_;
  bool leads_somewhere_ = false;
  bool tells_refusals_ = false;
  bool has_address_ = false;  ///< all is for `address_`
  Gid address_;
};

class UdpBacklog;

/// Datagrams that leave together. Parts are collected as they lie in memory and copied by the kernel in flush(); one
/// thread.
class UdpBatch {
 public:
  static constexpr uint32_t kMaxMessages = 32;
  static constexpr uint32_t kMaxParts = 1024;
  static constexpr uint32_t kMaxSegments = 64;  ///< of one message: UDP_MAX_SEGMENTS of Linux before 6.9
  static constexpr uint32_t kMaxBytes = 65000;  ///< of one message: an IP packet, with room for headers

  /// Where the next datagram would stand within its message: 0, or after others of the same length to the same place.
  /// `joins`: says "same place" by any number that the caller keeps (destination, source and class of service).
  uint32_t next_position(uint64_t place, uint32_t length) const;
  /// And of which message it would be part, from 0.
  uint32_t next_message(uint64_t place, uint32_t length) const { return messages_ - (joins(place, length) ? 1 : 0); }
  uint32_t messages() const { return messages_; }
  /// Room for one more datagram of `parts` parts?
  bool has_room(uint32_t parts) const;
  /// Opens a datagram of `length` bytes; then `parts` calls of add().
  void begin(uint64_t place, const UdpAddress& to, const Gid& from, uint32_t from_interface, const IpFields& fields,
             uint32_t length);
  void add(const void* data, uint32_t length);  ///< what lies right behind the part before becomes one with it
  bool empty() const { return messages_ == 0; }
  /// Sends all, without waiting. What the socket has no room for now, and all behind it, is copied to `backlog`; so is
  /// everything while something is there, which keeps the order. Returns how many messages are lost: those that cannot
  /// leave, and without a backlog, or without room there, those for which the socket has no room; *error: why the last
  /// of these.
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
  /// Sends from message `first` on. Returns the first one that the socket has no room for now; messages(): none. Adds
  /// those that cannot leave to *lost.
  uint32_t send_from(uint32_t first, const UdpSocket& socket, uint32_t* lost, int* error);
  void put_back(const Message& message, std::byte* bytes);
  void clear() { messages_ = part_count_ = 0; }

  Message list_[kMaxMessages];
  iovec parts_[kMaxParts];
  uint32_t messages_ = 0;
  uint32_t part_count_ = 0;
};

/// Messages that a socket had no room for, in order. Any thread; nobody waits.
class UdpBacklog {
 public:
  /// Of payload. What finds no room here is lost.
  static constexpr uint32_t kMostBytes = 1 << 20;

  bool empty() const { return waiting_.load(std::memory_order_acquire) == 0; }
  /// Sends what the socket has room for. True: something left, or was lost, of which *lost counts the messages; *error:
  /// why the last of these is lost.
  bool flush(const UdpSocket& socket, uint32_t* lost, int* error);

 private:
  friend class UdpBatch;
  struct Kept {
    UdpBatch::Message message;
    std::unique_ptr<std::byte[]> bytes;
  };
  /// False: no room, or no memory.
  bool keep(const UdpBatch::Message& message, const iovec* parts);

  std::mutex mutex_;  ///< a leaf; held while the kernel takes messages, which never waits
  std::deque<Kept> kept_;
  uint32_t bytes_ = 0;
  std::unique_ptr<UdpBatch> batch_;   ///< for flush(); made with the first message that is kept
  std::atomic<uint32_t> waiting_{0};  ///< as kept_ has
};

}  // namespace nupa::net
