#pragma once
/// The states of connections (IBTA volume 1, 12.9) as a machine without surroundings: messages, the time and calls go
/// in; messages, events and the next deadline come out. No socket, clock, thread or random source inside. probe.h
/// asks peers in the same way whether they live. One thread at a time.

#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cm/engine/mad.h"

namespace nupa::cm {

/// Where the messages of a conversation go and come from.
struct Way {
  // A process of this host, by the sockets that the two have; 0: packets.
  uint32_t slot = 0;
  uint64_t instance = 0;
  // Packets.
  Gid local;
  Gid remote;
  uint16_t port = 0;       ///< the other end's
  uint32_t interface = 0;  ///< index of the one that `local` is of
  bool of_nupa = false;    ///< the port is that of the process at the other end

  bool is_local() const { return slot != 0; }
  bool operator==(const Way&) const = default;
};

/// Takes messages on their way. What cannot be sent is lost, as any datagram may be.
class MadOutput {
 public:
  virtual ~MadOutput() = default;
  virtual void send(const Way& way, const Mad& mad) = 0;
};

/// IBTA 12.9.5 and 12.9.6, but for those that are no wait: a DREQ is answered at once, since its receiver has nothing
/// left to say, so there is no state for one that was received.
enum class ConnectionState : uint8_t {
  kIdle,  ///< ended, or answered (SIDR); only the owner still knows it
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
  kRejected,  ///< a REQ that was refused: repeats of it get the same answer
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

  // Listeners. `owner` names one, is not 0 and not in use by another.
  void listen(uint64_t owner, const ListenerAddress& address);
  void unlisten(uint64_t owner);
  /// Whether some listener takes requests for the service at that address (null: at no IP address).
  bool listens(uint64_t service_id, const Gid* address) const;

  // Calls of programs. 0; EINVAL: the connection is not in a state for that (or is not there); ENOMEM: no id is free.
  /// Sends a REQ. `id`: of the new connection.
  int connect(const ConnectionRequest& request, const Way& way, uint64_t owner, int64_t now, ConnectionId* id);
  /// Asks once more, perhaps elsewhere, after nobody had the service: the question is as it was.
  int ask_again(ConnectionId id, const Way& way, int64_t now);
  int accept(ConnectionId id, const ConnectionReply& reply, int64_t now);
  /// Answers a REQ, a REP or a SIDR_REQ.
  int reject(ConnectionId id, uint16_t reason, const PrivateData<148>& data, int64_t now);
  /// Sends a RTU.
  int establish(ConnectionId id, const PrivateData<224>& data, int64_t now);
  /// Data came before the RTU did (IBTA 12.9.7.2, communication established).
  int note_established(ConnectionId id);
  int disconnect(ConnectionId id, int64_t now);
  int ask_datagram(const DatagramRequest& request, const Way& way, uint64_t owner, int64_t now, ConnectionId* id);
  int answer_datagram(ConnectionId id, const DatagramReply& reply, int64_t now);
  /// The owner is gone: no more events. The other end is told, as often as it takes.
  void release(ConnectionId id, int64_t now);
  /// Tells every other end once, as the process ends.
  void release_all(int64_t now);

  /// A message came. `from` leads back to its sender. False: it was none of this class.
  bool receive(const Mad& mad, const Way& from, int64_t now);
  /// The process of `way`, and all its connections, are gone.
  void peer_gone(uint32_t slot, uint64_t instance, int64_t now);
  /// The same of one that packets go to.
  void peer_gone(const Gid& remote, uint16_t port, int64_t now);
  /// Another process may be there by now: connections that it does not know it rejects, when it hears of them.
  void confirm(const Gid& remote, uint16_t port);
  /// Where packets of connections that stand or come to stand go to whose other end is NUPA,
  /// each once.
  std::vector<Way> standing_ways() const;
  void on_timer(int64_t now);
  /// When on_timer() is wanted; INT64_MAX: not.
  int64_t deadline() const { return timers_.empty() ? INT64_MAX : timers_.begin()->first; }

  ConnectionState state(ConnectionId id) const;
  size_t connections() const { return connections_.size(); }
  /// What is remembered beside them: none without connections.
  size_t entries() const { return by_remote_id_.size() + by_remote_qpn_.size() + by_request_.size() + timers_.size(); }

 private:
  struct Connection {
    ConnectionId id = 0;
    ConnectionState state = ConnectionState::kIdle;
    uint64_t owner = 0;  ///< 0: none any more
    uint32_t remote_id = 0;
    uint64_t remote_guid = 0;
    uint64_t local_guid = 0;
    uint32_t remote_qpn = 0;
    uint64_t service_id = 0;
    uint64_t transaction = 0;
    int64_t time_wait_ns = 0;
    Way way;
    Mad sent;  ///< repeated until it is answered, or when the other end repeats itself
    uint32_t tries = 0;
    uint8_t max_tries = 0;
    int64_t first_pause_ns = 0;
    int64_t pause_ns = 0;
    int64_t deadline = INT64_MAX;
    bool passive = false;     ///< the other end asked
    bool taken_back = false;  ///< rejected after it was accepted: its owner has heard of the end

    uint64_t listening_owner() const { return taken_back ? 0 : owner; }
  };
  using Remote = std::pair<uint64_t, uint32_t>;  ///< CA GUID with communication id or queue pair
  struct RequestKey {                            ///< of a SIDR_REQ
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
  /// Sends and repeats it.
  void ask(Connection& connection, const Mad& mad, int64_t now);
  void set_patience(Connection& connection, uint8_t response_timeout, uint8_t max_retries);
  void repeat(Connection& connection, int64_t now);
  void gave_up(Connection& connection, int64_t now);
  void send_timeout(const Connection& connection);
  void send_dreq(Connection& connection, int64_t now);
  void refuse(const Way& way, const Envelope& to, Answered answered, RejectReason reason);
  Envelope envelope(const Connection& connection, Attribute attribute) const {
    return {attribute, connection.transaction, connection.id, connection.remote_id};
  }
  RequestKey key_of(const Connection& connection) const {
    return {connection.way.remote, connection.way.slot, connection.remote_id};
  }
  void index_remote(Connection& connection);
  void unindex_remote(Connection& connection);
  /// No more messages but answers to repeats of the other end's.
  void end(Connection& connection, ConnectionState state, int64_t now);
  void enter_time_wait(Connection& connection, int64_t now) { end(connection, ConnectionState::kTimeWait, now); }
  void disconnected(Connection& connection, bool silent, int64_t now);
  /// The other end uses its queue pair for something else.
  void forgotten_there(Connection& connection, int64_t now);
  /// No listener: null.
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
  /// The connection that a message names, if it comes from its other end.
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

/// The IP address that a REQ or SIDR_REQ of an IP service (annex A11) is for; nothing: not of such a service.
std::optional<Gid> destination_of(uint64_t service_id, std::span<const std::byte> private_data);

}  // namespace nupa::cm
