#pragma once
/// Connections by service: the communication manager of the InfiniBand specification (volume 1, chapter 12, annex A11),
/// between processes of one host by their sockets, else by management datagrams to queue pair 1, so that rdma_cm of an
/// adapter can be the other end.
#include <nupa/export.h>
#include <nupa/result.h>
#include <nupa/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace nupa {

/// What a program says along with a message of the communication manager.
template <size_t kRoom>
struct PrivateData {
  std::array<std::byte, kRoom> bytes{};
  uint32_t length = 0;  ///< of a received one: the whole room, for messages do not tell

  static constexpr size_t room() { return kRoom; }
  /// False: there is no room for it.
  bool set(const void* data, size_t size) {
    if (size > kRoom) return false;
    if (size > 0) __builtin_memcpy(bytes.data(), data, size);
    length = static_cast<uint32_t>(size);
    return true;
  }
};

/// The reasons of a REJ (IBTA table 109) that NUPA gives itself. Programs see them as the status of
/// RDMA_CM_EVENT_REJECTED.
enum class RejectReason : uint16_t {
  kNoQueuePair = 1,
  kNoResources = 3,
  kTimeout = 4,
  kUnsupported = 5,
  kInvalidCommunicationId = 6,
  kInvalidServiceId = 8,
  kInvalidTransportType = 9,
  kStaleConnection = 10,
  kUnsupportedVersion = 31,  ///< of the class
  kConsumer = 28,
};

/// Where a connection's packets go, as a REQ tells both ends.
struct ConnectionPath {
  Gid local;   ///< of the end that has this structure
  Gid remote;  ///< of the other end
  uint16_t pkey = 0xffff;
  uint8_t mtu = 3;           ///< code of the payload (IBTA 11.2.1.5)
  uint8_t ack_timeout = 16;  ///< of who sends to the sender of the REQ: 4.096 us times 2 to this power (IBTA 12.7.34)
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 64;
  uint8_t service_level = 0;
  uint8_t rate = 0;  ///< IBTA's code of bits a second; 0: what the ports have, so an adapter does not hold back
  uint32_t flow_label = 0;
};

/// What a REQ says (IBTA table 106).
struct ConnectionRequest {
  uint64_t service_id = 0;
  uint64_t ca_guid = 0;  ///< of its sender, as a number
  ConnectionPath path;
  uint32_t qp_num = 0;
  QpType type = QpType::kRc;  ///< kRc, kUc; kXrcSend for XRC
  uint32_t starting_psn = 0;  ///< of the first packet that the receiver of this message sends (IBTA 12.7.31)
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  uint8_t retry_count = 7;
  uint8_t rnr_retry_count = 7;
  bool flow_control = false;
  bool srq = false;
  uint8_t max_cm_retries = 15;
  uint8_t remote_response_timeout = 16;  ///< 4.096 us times 2 to this power
  uint8_t local_response_timeout = 16;
  PrivateData<92> private_data;
};

/// What a REP says (IBTA table 110).
struct ConnectionReply {
  uint64_t ca_guid = 0;
  uint32_t qp_num = 0;
  uint32_t starting_psn = 0;  ///< of the first packet that the receiver of this message sends
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  uint8_t target_ack_delay = 0;  ///< until its sender acknowledges, at most: a code as ack_timeout
  uint8_t rnr_retry_count = 7;
  bool flow_control = false;
  bool srq = false;
  PrivateData<196> private_data;
};

/// What a SIDR_REQ asks (IBTA table 119): which queue pair serves datagrams of a service.
struct DatagramRequest {
  uint64_t service_id = 0;
  uint16_t pkey = 0xffff;
  uint8_t max_cm_retries = 15;
  uint8_t response_timeout = 16;
  ConnectionPath path;  ///< of a received one: the addresses that it came with
  PrivateData<216> private_data;
};

/// The status of a SIDR_REP (IBTA table 121).
enum class DatagramStatus : uint8_t {
  kValid = 0,
  kUnsupported = 1,
  kRejected = 2,
  kNoQueuePair = 3,
  kRedirected = 4,
  kUnsupportedVersion = 5,
};

struct DatagramReply {
  DatagramStatus status = DatagramStatus::kValid;
  uint32_t qp_num = 0;
  uint32_t qkey = 0;
  PrivateData<136> private_data;
};

/// Whether a service is a port of TCP, UDP and the like (annex A11).
constexpr bool is_ip_service(uint64_t service_id) {
  constexpr uint64_t kMask = 0xffffffffff000000;
  constexpr uint64_t kPrefix = 0x0000000001000000;
  return (service_id & kMask) == kPrefix;
}

/// Who is asked for a service, and at which address of theirs (annex A11). A listener for a whole range of services
/// leaves bits out of `mask`.
struct ListenerAddress {
  uint64_t service_id = 0;
  uint64_t mask = ~uint64_t{0};
  bool any_address = true;
  Gid address;           ///< IPv4 as ::ffff:a.b.c.d
  bool only_v4 = false;  ///< any IPv4 address
  bool only_v6 = false;  ///< any IPv6 address
};

/// Names a connection in its process: the local communication id. 0: none.
using ConnectionId = uint32_t;

/// What happens to connections. Called from any thread, also from within calls of the manager, with the manager's lock
/// held: returns soon and calls nothing of the manager. `owner` is what the program gave with the connection.
class ConnectionSink {
 public:
  virtual ~ConnectionSink() = default;
  /// A REQ for listener `owner`. Returns the owner of the new connection; 0: not now, the other end asks again.
  virtual uint64_t on_request(uint64_t owner, ConnectionId id, const ConnectionRequest& request) = 0;
  /// A SIDR_REQ, the same.
  virtual uint64_t on_datagram_request(uint64_t owner, ConnectionId id, const DatagramRequest& request) = 0;
  /// A REP. establish() or reject() comes next.
  virtual void on_reply(uint64_t owner, const ConnectionReply& reply) = 0;
  /// A RTU, after accept().
  virtual void on_established(uint64_t owner, const PrivateData<224>& data) = 0;
  virtual void on_rejected(uint64_t owner, uint16_t reason, const PrivateData<148>& data) = 0;
  /// No answer to a REQ, REP or SIDR_REQ, as often as it was sent.
  virtual void on_unreachable(uint64_t owner) = 0;
  /// The other end disconnects, or has answered disconnect(), or is gone. `silent`: without an answer.
  virtual void on_disconnected(uint64_t owner, bool silent) = 0;
  /// The numbers of a connection that has ended may be used again.
  virtual void on_time_wait_exit(uint64_t owner) = 0;
  virtual void on_datagram_reply(uint64_t owner, const DatagramReply& reply) = 0;
};

/// By which device and address a connection leaves this host.
struct ConnectionRoute {
  uint32_t device = 0;     ///< its place in list_devices()
  uint32_t gid_index = 0;  ///< of path.local, in the table of the device's port
  Gid source;              ///< the address of this end: path.local, or a loopback address, which no port has
  ConnectionPath path;
};

/// The connections of this process. All calls from any thread. Numbers that a call returns are errno values; 0: done.
class ConnectionManager {
 public:
  virtual ~ConnectionManager() = default;
  /// EBUSY: there is one in this process; else as open_device(). `sink` outlives it.
  static NUPA_EXPORT Result<std::shared_ptr<ConnectionManager>> open(ConnectionSink& sink);

  /// The way to an address of another end, IPv4 as ::ffff:a.b.c.d, as the kernel's routing tables have it. `scope`: the
  /// interface of a link-local address. `from`: leave with this address; null: the kernel's choice. ENETUNREACH,
  /// EHOSTUNREACH: there is none; EADDRNOTAVAIL: `from` is not this host's; ENODEV: it leads by no device's interface.
  virtual Result<ConnectionRoute> find_route(const Gid& to, uint32_t scope, const Gid* from) const = 0;
  /// The device of an address of this host. ENODEV: none has it; EADDRNOTAVAIL: it is not this host's.
  virtual Result<ConnectionRoute> find_address(const Gid& address) const = 0;

  /// Takes a service for `owner`, which is not 0. EADDRINUSE: a process of this host has it; ENOSPC: there are
  /// shm::kMaxListeners; errors of sockets.
  virtual int bind(uint64_t owner, const ListenerAddress& address) = 0;
  /// Requests for the owner's service go to the sink from now on. EINVAL: it has none.
  virtual int listen(uint64_t owner) = 0;
  /// No more. Requests that were told stay.
  virtual void unbind(uint64_t owner) = 0;

  /// Sends a REQ to `request.path.remote`; it finds a listener by its service and, for IP services, by the address in
  /// its private data. EHOSTUNREACH: there is no transport that leads there; ENOMEM.
  virtual int connect(const ConnectionRequest& request, const ConnectionRoute& route, uint64_t owner,
                      ConnectionId* id) = 0;
  /// The same for SIDR.
  virtual int ask_datagram(const DatagramRequest& request, const ConnectionRoute& route, uint64_t owner,
                           ConnectionId* id) = 0;
  // EINVAL: the connection is not in a state for that.
  virtual int accept(ConnectionId id, const ConnectionReply& reply) = 0;
  virtual int answer_datagram(ConnectionId id, const DatagramReply& reply) = 0;
  /// Refuses a request or a reply.
  virtual int reject(ConnectionId id, RejectReason reason, const PrivateData<148>& data) = 0;
  /// Answers a reply: the connection stands.
  virtual int establish(ConnectionId id) = 0;
  /// Data arrived before the RTU: the connection is established by it. EISCONN: it was established before.
  virtual int note_established(ConnectionId id) = 0;
  virtual int disconnect(ConnectionId id) = 0;
  /// The owner hears no more of it when this returns. The other end is told.
  virtual void release(ConnectionId id) = 0;
};

}  // namespace nupa
