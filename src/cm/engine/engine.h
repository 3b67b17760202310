// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The connection states (IBTA volume 1, 12.9) as a pure state machine. Its inputs are messages, the time and calls.
/// Its outputs are messages, events and the next deadline. It uses no socket, clock, thread or random source. probe.h
/// checks in the same way whether peers are alive. One thread at a time.

#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cm/engine/mad.h"

namespace nupa::cm {

/// The way to the other side of a conversation.
struct Way {
  // For a process of this host, reached by sockets. slot 0: reached by packets.
  uint32_t slot = 0;
  uint64_t instance = 0;
  // For packets.
  Gid local;
  Gid remote;
  uint16_t port = 0;       ///< the peer's port
  uint32_t interface = 0;  ///< index of the interface that has `local`
  bool of_nupa = false;    ///< the port belongs to the peer process, which uses NUPA

  bool is_local() const { return slot != 0; }
  bool operator==(const Way&) const = default;
};

/// Sends messages. A message that cannot be sent is lost, as any datagram may be.
class MadOutput {
 public:
  virtual ~MadOutput() = default;
  virtual void send(const Way& way, const Mad& mad) = 0;
};

/// The states of IBTA 12.9.5 and 12.9.6 that wait for something. There is no state for a received DREQ: it is answered
/// at once, because its receiver has nothing else to send.
enum class ConnectionState : uint8_t {
  kIdle,  ///< ended, or answered (SIDR); kept only for the owner
  kReqSent,
  kMraReqReceived,
  kRepReceived,
  kMraRepSent,
  kReqReceived,
  kMraReqSent,
  kRepSent,
  kMraRepReceived,
  kEstablished,
  kDreqSent,
  kTimeWait,
  kRejected,  ///< a rejected REQ; repeats of it get the same answer
  kSidrReqSent,
  kSidrReqReceived,
  kSidrAnswered,  ///< repeats get the same answer
};

class ConnectionEngine {
 public:
  /// Local communication ids have `prefix` in the bits above the low `kIdBits`; the first one follows `seed`.
  static constexpr uint32_t kIdBits = 20;
  ConnectionEngine(uint32_t prefix, uint64_t seed, MadOutput& output, ConnectionSink& sink);
  ~ConnectionEngine();
  ConnectionEngine(const ConnectionEngine&) = delete;
  ConnectionEngine& operator=(const ConnectionEngine&) = delete;

  // Listeners. `owner` identifies a listener. It is not 0 and not in use by another one.
  void listen(uint64_t owner, const ListenerAddress& address);
  void unlisten(uint64_t owner);
  /// True if a listener takes requests for the service at that address. Null stands for no IP address.
  bool listens(uint64_t service_id, const Gid* address) const;

  // Calls of programs. They return 0, EINVAL if the connection does not exist or its state does not permit the call, or
  // ENOMEM if no id is free.
  /// Sends a REQ. `id` receives the id of the new connection.
  int connect(const ConnectionRequest& request, const Way& way, uint64_t owner, int64_t now, ConnectionId* id);
  /// Repeats an unchanged request after no process had the service, possibly to another process.
  int ask_again(ConnectionId id, const Way& way, int64_t now);
  int accept(ConnectionId id, const ConnectionReply& reply, int64_t now);
  /// Answers a REQ, a REP or a SIDR_REQ.
  int reject(ConnectionId id, uint16_t reason, const PrivateData<148>& data, int64_t now);
  /// Sends an RTU.
  int establish(ConnectionId id, const PrivateData<224>& data, int64_t now);
  /// Data has arrived before the RTU (IBTA 12.9.7.2, communication established).
  int note_established(ConnectionId id);
  int disconnect(ConnectionId id, int64_t now);
  int ask_datagram(const DatagramRequest& request, const Way& way, uint64_t owner, int64_t now, ConnectionId* id);
  int answer_datagram(ConnectionId id, const DatagramReply& reply, int64_t now);
  /// The owner releases the connection and gets no more events. The peer is notified, with repeats if needed.
  void release(ConnectionId id, int64_t now);
  /// Releases all connections.
  void release_all(int64_t now);
  /// The same at the exit of the process: DREQs to other hosts are repeated at short intervals.
  void release_all_at_exit(int64_t now);
  /// True while a DREQ to another host has no answer and will be repeated.
  bool awaits_farewells() const;

  /// Handles a message. `from` is the way back to its sender. Returns false if the message has another class.
  bool receive(const Mad& mad, const Way& from, int64_t now);
  /// The process of `way` and all its connections have ended.
  void peer_exited(uint32_t slot, uint64_t instance, int64_t now);
  /// The same for a process that is reached by packets.
  void peer_exited(const Gid& remote, uint16_t port, int64_t now);
  /// Another process may have the port now. Repeats the last messages of the connections, so that it rejects those that
  /// it does not have.
  void confirm(const Gid& remote, uint16_t port);
  /// Returns the ways of connections that are established or being established, if packets lead to a NUPA peer. Each
  /// way appears once.
  std::vector<Way> standing_ways() const;
  void on_timer(int64_t now);
  /// Returns when on_timer() must be called. INT64_MAX: never.
  int64_t deadline() const { return timers_.empty() ? INT64_MAX : timers_.begin()->first; }

  ConnectionState state(ConnectionId id) const;
  size_t connections() const { return connections_.size(); }
  /// Returns the number of index entries and timers. It is 0 without connections.
  size_t entries() const { return by_remote_id_.size() + by_remote_qpn_.size() + by_request_.size() + timers_.size(); }

 private:
  struct Connection {
    ConnectionId id = 0;
    ConnectionState state = ConnectionState::kIdle;
    uint64_t owner = 0;  ///< 0: released
    uint32_t remote_id = 0;
    uint64_t remote_guid = 0;
    uint64_t local_guid = 0;
    uint32_t remote_qpn = 0;
    uint64_t service_id = 0;
    uint64_t transaction = 0;
    int64_t time_wait_ns = 0;
    Way way;
    Mad sent;  ///< repeated until it is answered, or when the peer repeats its message
    uint32_t tries = 0;
    uint8_t max_tries = 0;
    int64_t first_pause_ns = 0;
    int64_t pause_ns = 0;
    int64_t deadline = INT64_MAX;
    bool passive = false;     ///< the peer has sent the request
    bool taken_back = false;  ///< rejected after it was accepted; the owner was notified of the end

    uint64_t listening_owner() const { return taken_back ? 0 : owner; }
  };
  using Remote = std::pair<uint64_t, uint32_t>;  ///< CA GUID with communication id or queue pair number
  struct RequestKey {                            ///< key of a SIDR_REQ
    Gid remote;
    uint32_t slot;
    uint32_t request;
    auto operator<=>(const RequestKey& other) const {
      return std::tie(remote.raw, slot, request) <=> std::tie(other.remote.raw, other.slot, other.request);
    }
    bool operator==(const RequestKey&) const = default;
  };

  Connection* find(ConnectionId id);
  void lose(const std::vector<ConnectionId>& lost, int64_t now);
  Connection* make(const Way& way);
  void forget(Connection& connection);
  void set_timer(Connection& connection, int64_t deadline);
  void stop_timer(Connection& connection) { set_timer(connection, INT64_MAX); }
  void send(Connection& connection, const Mad& mad);
  /// Sends the message and repeats it until it is answered.
  void ask(Connection& connection, const Mad& mad, int64_t now);
  void set_response_timeout(Connection& connection, uint8_t response_timeout, uint8_t max_retries);
  void repeat(Connection& connection, int64_t now);
  void gave_up(Connection& connection, int64_t now);
  void send_timeout(const Connection& connection);
  void send_dreq(Connection& connection, int64_t now);
  static bool is_farewell(const Connection& connection);
  void refuse(const Way& way, const Envelope& to, Answered answered, RejectReason reason);
  Envelope envelope(const Connection& connection, Attribute attribute) const {
    return {attribute, connection.transaction, connection.id, connection.remote_id};
  }
  RequestKey key_of(const Connection& connection) const {
    return {connection.way.remote, connection.way.slot, connection.remote_id};
  }
  void index_remote(Connection& connection);
  void unindex_remote(Connection& connection);
  /// Ends the connection. It then only answers repeats of the peer's messages.
  void end(Connection& connection, ConnectionState state, int64_t now);
  void enter_time_wait(Connection& connection, int64_t now) { end(connection, ConnectionState::kTimeWait, now); }
  void disconnected(Connection& connection, bool silent, int64_t now);
  /// The peer uses its queue pair for another connection now.
  void forgotten_there(Connection& connection, int64_t now);
  /// Returns null if there is no listener.
  const uint64_t* listener_of(uint64_t service_id, const Gid* address) const;

  void on_req(const Mad& mad, const Envelope& envelope, const Way& from, int64_t now);
  void on_repeated_req(Connection& connection);
  void on_rep(const Mad& mad, const Envelope& envelope, const Way& from, int64_t now);
  void on_rtu(const Mad& mad, const Envelope& envelope, const Way& from);
  void on_mra(const Mad& mad, const Envelope& envelope, int64_t now);
  void on_rej(const Mad& mad, const Envelope& envelope, int64_t now);
  void on_dreq(const Envelope& envelope, const Way& from, int64_t now);
  void on_drep(const Envelope& envelope, int64_t now);
  void on_lap(const Envelope& envelope, const Way& from);
  void on_sidr_req(const Mad& mad, const Envelope& envelope, const Way& from);
  void on_sidr_rep(const Mad& mad, const Envelope& envelope, int64_t now);
  /// Returns the connection that a message names, if the message comes from its peer.
  Connection* named(const Envelope& envelope);

  const uint32_t prefix_;
  uint32_t next_;
  uint64_t next_transaction_;
  MadOutput& output_;
  ConnectionSink& sink_;
  std::unordered_map<ConnectionId, std::unique_ptr<Connection>> connections_;
  std::map<Remote, ConnectionId> by_remote_id_;
  std::map<Remote, ConnectionId> by_remote_qpn_;
  std::map<RequestKey, ConnectionId> by_request_;
  std::set<std::pair<int64_t, ConnectionId>> timers_;
  struct Listener {
    ListenerAddress address;
    uint64_t owner;
  };
  std::multimap<uint64_t, Listener> listeners_;  ///< by service
  std::vector<Listener> wide_listeners_;         ///< for ranges of services
};

/// Returns the IP address that a REQ or SIDR_REQ of an IP service (annex A11) is for. Returns nothing for other
/// services.
std::optional<Gid> destination_of(uint64_t service_id, std::span<const std::byte> private_data);

}  // namespace nupa::cm
