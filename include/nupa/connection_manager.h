// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Connections by service: the communication manager of the InfiniBand specification (volume 1, chapter 12, annex A11).
/// Its messages travel over UNIX sockets between processes of one host, and otherwise as management datagrams to queue
/// pair 1. The peer can therefore also be rdma_cm of an adapter.
///
/// The manager exchanges queue pair numbers and parameters; the program moves its queue pairs through their states.
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

// ---- messages -------------------------------------------------------------------------------------------------------

/// Data that a program sends along with a message of the communication manager.
/// @tparam kRoom bytes that the message has for it
template <size_t kRoom>
struct PrivateData {
  std::array<std::byte, kRoom> bytes{};  ///< the data
  uint32_t length = 0;  ///< bytes of data; in a received message always the whole room, since messages have no length

  /// @return The most bytes that fit.
  static constexpr size_t room() { return kRoom; }
  /// Copies data into the message.
  /// @param data `size` bytes; may be null if that is 0
  /// @param size bytes
  /// @return False, and nothing has changed: the data does not fit.
  bool set(const void* data, size_t size) {
    if (size > kRoom) return false;
    if (size > 0) __builtin_memcpy(bytes.data(), data, size);
    length = static_cast<uint32_t>(size);
    return true;
  }
};

/// The reasons of a REJ (IBTA table 109) that NUPA itself sends. Programs see them as the status of
/// RDMA_CM_EVENT_REJECTED.
enum class RejectReason : uint16_t {
  kNoQueuePair = 1,             ///< no queue pair is available
  kNoResources = 3,             ///< no resources, such as communication ids
  kTimeout = 4,                 ///< the sender of the REJ has waited too long for an answer
  kUnsupported = 5,             ///< unsupported request
  kInvalidCommunicationId = 6,  ///< there is no such connection
  kInvalidServiceId = 8,        ///< no process listens for the service
  kInvalidTransportType = 9,    ///< transport service that the listener does not have
  kStaleConnection = 10,        ///< the sender of the REJ has forgotten the connection
  kUnsupportedVersion = 31,     ///< unsupported version of the message class
  kConsumer = 28,               ///< the program rejected it, or its process has ended
};

/// The path of a connection's packets, as a REQ describes it for both sides.
struct ConnectionPath {
  Gid local;                  ///< address of the side that has this structure
  Gid remote;                 ///< address of the peer
  uint16_t pkey = 0xffff;     ///< P_Key, a number
  Mtu mtu = Mtu::k1024;       ///< largest payload; in a received REQ it may be no enumerator
  uint8_t ack_timeout = 16;   ///< of the REQ's receiver, for its packets: 4.096 us times 2 to this power (IBTA 12.7.34)
  uint8_t traffic_class = 0;  ///< traffic class of the packets
  uint8_t hop_limit = 64;     ///< hop limit of the packets
  uint8_t service_level = 0;  ///< service level, 0 to 15
  uint8_t rate = 0;           ///< IBTA's code of bits a second; 0: the ports' rate, so an adapter does not hold back
  uint32_t flow_label = 0;    ///< IPv6 flow label, 20 bits
};

/// A connection request, REQ (IBTA table 106).
struct ConnectionRequest {
  uint64_t service_id = 0;               ///< service that is asked for
  uint64_t ca_guid = 0;                  ///< node GUID of the sender, a number in host byte order
  ConnectionPath path;                   ///< path of the packets
  uint32_t qp_num = 0;                   ///< the sender's queue pair, 24 bits
  QpType type = QpType::kRc;             ///< kRc, kUc; XRC: kXrcSend to send, kXrcRecv as received
  uint32_t starting_psn = 0;             ///< first packet that the receiver of this REQ sends, 24 bits (IBTA 12.7.31)
  uint8_t responder_resources = 0;       ///< READs and atomics that the sender serves at once
  uint8_t initiator_depth = 0;           ///< READs and atomics that the sender issues at once
  uint8_t retry_count = 7;               ///< retries without an answer, 0 to 7
  uint8_t rnr_retry_count = 7;           ///< retries after RNR, 0 to 6; 7: no limit
  bool flow_control = false;             ///< the sender has end-to-end flow control
  bool srq = false;                      ///< the sender's queue pair uses a shared receive queue
  uint8_t max_cm_retries = 15;           ///< how often a message is repeated without an answer, 0 to 15
  uint8_t remote_response_timeout = 16;  ///< the receiver's time to answer: 4.096 us times 2 to this power, 0 to 31
  uint8_t local_response_timeout = 16;   ///< the sender's time to answer, the same code
  PrivateData<92> private_data;          ///< data of the program; IP services begin it with annex A11's header
};

/// The answer that accepts a REQ, REP (IBTA table 110).
struct ConnectionReply {
  uint64_t ca_guid = 0;             ///< node GUID of the sender, a number in host byte order
  uint32_t qp_num = 0;              ///< the sender's queue pair, 24 bits
  uint32_t starting_psn = 0;        ///< first packet that the receiver of this REP sends, 24 bits
  uint8_t responder_resources = 0;  ///< READs and atomics that the sender serves at once
  uint8_t initiator_depth = 0;      ///< READs and atomics that the sender issues at once
  uint8_t target_ack_delay = 0;     ///< longest time until the sender acknowledges: a code as ack_timeout, 0 to 31
  uint8_t rnr_retry_count = 7;      ///< retries after RNR, 0 to 6; 7: no limit
  bool flow_control = false;        ///< the sender has end-to-end flow control
  bool srq = false;                 ///< the sender's queue pair uses a shared receive queue
  PrivateData<196> private_data;    ///< data of the program
};

/// A service id resolution request, SIDR_REQ (IBTA table 119): it asks which queue pair serves datagrams of a service.
struct DatagramRequest {
  uint64_t service_id = 0;        ///< service that is asked for
  uint16_t pkey = 0xffff;         ///< P_Key, a number
  uint8_t max_cm_retries = 15;    ///< how often the request is repeated without an answer, 0 to 15
  uint8_t response_timeout = 16;  ///< the receiver's time to answer: 4.096 us times 2 to this power, 0 to 31
  ConnectionPath path;            ///< in a received request only the addresses that it came with
  PrivateData<216> private_data;  ///< data of the program; IP services begin it with annex A11's header
};

/// The status of a SIDR_REP (IBTA table 121).
enum class DatagramStatus : uint8_t {
  kValid = 0,               ///< the reply names a queue pair
  kUnsupported = 1,         ///< no process listens for the service
  kRejected = 2,            ///< the program rejected the request
  kNoQueuePair = 3,         ///< no queue pair is available
  kRedirected = 4,          ///< another port has the service
  kUnsupportedVersion = 5,  ///< unsupported version of the message class
};

/// The answer to a SIDR_REQ, SIDR_REP.
struct DatagramReply {
  DatagramStatus status = DatagramStatus::kValid;  ///< the other fields count only with kValid
  uint32_t qp_num = 0;                             ///< queue pair that serves the datagrams, 24 bits
  uint32_t qkey = 0;                               ///< its Q_Key
  PrivateData<136> private_data;                   ///< data of the program
};

// ---- services and routes --------------------------------------------------------------------------------------------

/// Tests whether a service is a port of TCP, UDP and the like (annex A11).
/// @param service_id service
/// @return True if it is.
constexpr bool is_ip_service(uint64_t service_id) {
  constexpr uint64_t kMask = 0xffffffffff000000;
  constexpr uint64_t kPrefix = 0x0000000001000000;
  return (service_id & kMask) == kPrefix;
}

/// The services and addresses that a listener takes requests for (annex A11). A listener for a range of services leaves
/// bits out of `mask`.
struct ListenerAddress {
  uint64_t service_id = 0;       ///< service
  uint64_t mask = ~uint64_t{0};  ///< bits of the service id that must be equal
  bool any_address = true;       ///< false: only requests to `address`
  Gid address;                   ///< an address of this host; IPv4 is mapped (RFC 4291)
  bool only_v4 = false;          ///< with any_address: only requests to IPv4 addresses
  bool only_v6 = false;          ///< with any_address: only requests to IPv6 addresses
};

/// The local communication id, which names a connection in its process. 0: none.
using ConnectionId = uint32_t;

// ---- events ---------------------------------------------------------------------------------------------------------

/// The program's side of the manager: it is called for events of connections. Calls come from any thread, also from
/// within calls of the manager, and hold the manager's lock: a function must return soon and must not call the manager.
/// `owner` is the value that the program gave with the connection or listener.
class ConnectionSink {
 public:
  virtual ~ConnectionSink() = default;
  /// A REQ came for a listener. accept() or reject() answers it.
  /// @param owner owner of the listener
  /// @param id the new connection
  /// @param request the REQ
  /// @return The owner of the new connection, not 0. With 0 the manager forgets the request, and the peer repeats it.
  virtual uint64_t on_request(uint64_t owner, ConnectionId id, const ConnectionRequest& request) = 0;
  /// A SIDR_REQ came for a listener. answer_datagram() or reject() answers it.
  /// @param owner owner of the listener
  /// @param id the new exchange
  /// @param request the SIDR_REQ
  /// @return As on_request().
  virtual uint64_t on_datagram_request(uint64_t owner, ConnectionId id, const DatagramRequest& request) = 0;
  /// A REP came. establish() or reject() answers it.
  /// @param owner owner of the connection
  /// @param reply the REP
  virtual void on_reply(uint64_t owner, const ConnectionReply& reply) = 0;
  /// The connection is established, after accept(): a RTU came, or note_established() was called.
  /// @param owner owner of the connection
  /// @param data the peer's data, empty after note_established()
  virtual void on_established(uint64_t owner, const PrivateData<224>& data) = 0;
  /// The connection has ended before it was established: the peer sent a REJ, or its process ended.
  /// @param owner owner of the connection
  /// @param reason a reason of IBTA table 109; RejectReason has those of NUPA
  /// @param data the peer's data
  virtual void on_rejected(uint64_t owner, uint16_t reason, const PrivateData<148>& data) = 0;
  /// The connection or exchange has ended: a REQ, REP or SIDR_REQ was repeated as often as it may be, without an
  /// answer.
  /// @param owner owner of the connection
  virtual void on_unreachable(uint64_t owner) = 0;
  /// The connection has ended: the peer disconnected, answered disconnect(), or its process ended.
  /// @param owner owner of the connection
  /// @param silent true: without an answer of the peer
  virtual void on_disconnected(uint64_t owner, bool silent) = 0;
  /// The queue pair numbers of a connection that has ended may be used again (time wait).
  /// @param owner owner of the connection
  virtual void on_time_wait_exit(uint64_t owner) = 0;
  /// A SIDR_REP came.
  /// @param owner owner of the exchange
  /// @param reply the SIDR_REP
  virtual void on_datagram_reply(uint64_t owner, const DatagramReply& reply) = 0;
  /// One or more notifications were made by this thread. The sink wakes the threads that wait for them here and not in
  /// the notifications: a thread that calls the manager as soon as it is woken would find it locked.
  virtual void after_notifications() {}
};

// ---- the manager ----------------------------------------------------------------------------------------------------

/// The device and the address that a connection leaves this host by.
struct ConnectionRoute {
  uint32_t device = 0;     ///< position in list_devices()
  uint32_t gid_index = 0;  ///< position of path.local in the GID table of the device's port
  Gid source;              ///< this side's address: path.local, or a loopback address, which no port has
  ConnectionPath path;     ///< addresses and payload; the other fields have their default values
};

/// The communication manager of this process. Any thread may call any function. After the open() of a parent process, a
/// child of fork() has no connections: functions that return an errno value return ENODEV there.
class ConnectionManager {
 public:
  /// Releases all connections and services. Peers are notified.
  virtual ~ConnectionManager() = default;
  /// Opens the manager. A process has one at a time.
  /// @param sink receives the events; it must outlive the manager
  /// @return The manager, or an Error:
  ///   - EBUSY: this process has a manager.
  ///   - EOPNOTSUPP: the library was built without one.
  ///   - Others: those of open_device(), and errors of sockets and threads.
  static NUPA_EXPORT Result<std::shared_ptr<ConnectionManager>> open(ConnectionSink& sink);

  /// @name Routes
  /// @{

  /// Finds the way to an address, as the kernel's routing tables have it. It may wait for other processes of the host.
  /// @param to address of the peer; IPv4 is mapped (RFC 4291)
  /// @param scope index of the interface of a link-local address; otherwise 0
  /// @param from leave with this address; null: the kernel chooses
  /// @return The route with `path.local`, `path.remote` and `path.mtu`, or an Error:
  ///   - ENETUNREACH, EHOSTUNREACH: there is no route, or no transport leads there.
  ///   - EACCES: a route prohibits it, or it is a broadcast address.
  ///   - EADDRNOTAVAIL: `from` is not an address of this host, or this host has none to leave with.
  ///   - ENODEV: the route leads by an interface that no device has, or there is no device.
  ///   - EINVAL: `from` is of another family, a link-local address has no `scope`, or the route is a blackhole.
  ///   - Others: errors of netlink sockets.
  virtual Result<ConnectionRoute> find_route(const Gid& to, uint32_t scope, const Gid* from) const = 0;
  /// Finds the device of an address of this host. A loopback address stands for the first device.
  /// @param address the address; IPv4 is mapped (RFC 4291)
  /// @return The route with `path.local` and `path.mtu`, or an Error:
  ///   - ENODEV: no device has the address, or there is no device.
  ///   - EADDRNOTAVAIL: the address is not this host's.
  virtual Result<ConnectionRoute> find_address(const Gid& address) const = 0;
  /// @}

  /// @name Services
  /// @{

  /// Takes a service. Requests for it are rejected until listen().
  /// @param owner names the listener in events: not 0, and not in use
  /// @param address service and addresses
  /// @return 0 or an errno value:
  ///   - EADDRINUSE: a process of this host has the service.
  ///   - ENODEV: a parent process opened the manager.
  ///   - Others: errors of sockets, such as EMFILE.
  virtual int bind(uint64_t owner, const ListenerAddress& address) = 0;
  /// Takes requests for the owner's service from now on (ConnectionSink::on_request()).
  /// @param owner an owner of bind()
  /// @return 0 or an errno value:
  ///   - EINVAL: the owner has no service, or listens already.
  ///   - ENOSPC: the process has 4096 listeners.
  ///   - ENODEV: a parent process opened the manager.
  virtual int listen(uint64_t owner) = 0;
  /// Gives the service back. Requests that the sink has got before stay. It has no effect without a service.
  /// @param owner an owner of bind()
  virtual void unbind(uint64_t owner) = 0;
  /// @}

  /// @name Connecting
  /// @{

  /// Sends a REQ to `route.path.remote`. It finds a listener by its service and, for IP services, by the address in its
  /// private data. If no process listens yet, the manager tries again for 150 ms. on_reply(), on_rejected() or
  /// on_unreachable() follows, perhaps before the call returns.
  /// @param request the REQ
  /// @param route a route of find_route()
  /// @param owner names the connection in events: not 0, and not in use
  /// @param id receives the connection; not null
  /// @return 0 or an errno value:
  ///   - EHOSTUNREACH: no transport leads there.
  ///   - ENOMEM: no communication id is free.
  ///   - ENODEV: a parent process opened the manager.
  virtual int connect(const ConnectionRequest& request, const ConnectionRoute& route, uint64_t owner,
                      ConnectionId* id) = 0;
  /// Sends a SIDR_REQ to `route.path.remote`. on_datagram_reply() or on_unreachable() follows.
  /// @param request the SIDR_REQ
  /// @param route a route of find_route()
  /// @param owner names the exchange in events: not 0, and not in use
  /// @param id receives the exchange; not null
  /// @return As connect().
  virtual int ask_datagram(const DatagramRequest& request, const ConnectionRoute& route, uint64_t owner,
                           ConnectionId* id) = 0;
  /// Accepts a REQ: sends a REP. on_established(), on_rejected(), on_disconnected() or on_unreachable() follows.
  /// @param id a connection of on_request()
  /// @param reply the REP
  /// @return 0 or an errno value:
  ///   - EINVAL: there is no such connection, or it does not wait for an answer to a REQ.
  ///   - ENODEV: a parent process opened the manager.
  virtual int accept(ConnectionId id, const ConnectionReply& reply) = 0;
  /// Answers a SIDR_REQ: sends a SIDR_REP.
  /// @param id an exchange of on_datagram_request()
  /// @param reply the SIDR_REP
  /// @return 0 or an errno value:
  ///   - EINVAL: there is no such exchange, or it was answered.
  ///   - ENODEV: a parent process opened the manager.
  virtual int answer_datagram(ConnectionId id, const DatagramReply& reply) = 0;
  /// Rejects a REQ, REP or SIDR_REQ. After accept() it takes the REP back.
  /// @param id the connection
  /// @param reason reason for the peer; not sent with a SIDR_REP
  /// @param data data for the peer; a SIDR_REP has room for its first 136 bytes
  /// @return 0 or an errno value:
  ///   - EINVAL: there is no such connection, or it has nothing to reject.
  ///   - ENODEV: a parent process opened the manager.
  virtual int reject(ConnectionId id, RejectReason reason, const PrivateData<148>& data) = 0;
  /// Answers a REP: sends a RTU. The connection is established.
  /// @param id a connection of on_reply()
  /// @return 0 or an errno value:
  ///   - EINVAL: there is no such connection, or it does not wait for an answer to a REP.
  ///   - ENODEV: a parent process opened the manager.
  virtual int establish(ConnectionId id) = 0;
  /// Reports that data arrived before the RTU, which establishes the connection (IBTA 12.9.7.2). on_established() is
  /// called before it returns.
  /// @param id a connection after accept()
  /// @return 0 or an errno value:
  ///   - EISCONN: the connection was established before.
  ///   - EINVAL: there is no such connection, or accept() was not called.
  ///   - ENODEV: a parent process opened the manager.
  virtual int note_established(ConnectionId id) = 0;
  /// Disconnects: sends a DREQ. on_disconnected() follows. It has no effect if the connection is disconnecting already.
  /// @param id a connection after accept() or establish()
  /// @return 0 or an errno value:
  ///   - EINVAL: there is no such connection, or it was not accepted or established.
  ///   - ENODEV: a parent process opened the manager.
  virtual int disconnect(ConnectionId id) = 0;
  /// Forgets a connection or exchange in any state. When it returns, the owner gets no more events of it. The peer is
  /// notified if it needs to be.
  /// @param id the connection; it has no effect if there is none
  virtual void release(ConnectionId id) = 0;
  /// @}
};

}  // namespace nupa
