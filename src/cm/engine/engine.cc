// SPDX-License-Identifier: Apache-2.0
#include "cm/engine/engine.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/gid.h"
#include "cm/engine/times.h"

namespace nupa::cm {
namespace {

constexpr uint32_t kIdMask = (1u << ConnectionEngine::kIdBits) - 1;

using State = ConnectionState;

/// Returns which message of the peer a REJ in that state answers.
Answered answered_in(State state) {
  switch (state) {
    case State::kReqReceived:
    case State::kMraReqSent:
      return Answered::kReq;
    case State::kRepReceived:
    case State::kMraRepSent:
      return Answered::kRep;
    default:
      return Answered::kOther;
  }
}

}  // namespace

std::optional<Gid> destination_of(uint64_t service_id, std::span<const std::byte> private_data) {
  constexpr size_t kHeaderBytes = 36;
  constexpr size_t kVersion = 1;
  constexpr size_t kDestination = 20;
  if (!is_ip_service(service_id) || private_data.size() < kHeaderBytes) return std::nullopt;
  Gid address;
  switch (static_cast<uint8_t>(private_data[kVersion]) >> 4) {
    case 4:
      return base::ipv4_gid(&private_data[kDestination + base::kIpv4InGid]);
    case 6:
      std::memcpy(address.raw.data(), &private_data[kDestination], 16);
      return address;
    default:
      return std::nullopt;
  }
}

ConnectionEngine::ConnectionEngine(uint32_t prefix, uint64_t seed, MadOutput& output, ConnectionSink& sink)
    : prefix_(prefix & ~kIdMask),
      next_(static_cast<uint32_t>(seed) & kIdMask),
      next_transaction_(seed << 16 | 1),
      output_(output),
      sink_(sink) {}

ConnectionEngine::~ConnectionEngine() = default;

// Bookkeeping.

ConnectionEngine::Connection* ConnectionEngine::find(ConnectionId id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second.get();
}

ConnectionState ConnectionEngine::state(ConnectionId id) const {
  const auto found = connections_.find(id);
  return found == connections_.end() ? State::kIdle : found->second->state;
}

ConnectionEngine::Connection* ConnectionEngine::make(const Way& way) {
  for (uint32_t tries = 0; tries <= kIdMask; ++tries) {
    const ConnectionId id = prefix_ | next_;
    next_ = (next_ + 1) & kIdMask;
    if (id == 0 || connections_.count(id) != 0) continue;
    auto made = std::make_unique<Connection>();
    made->id = id;
    made->way = way;
    return (connections_[id] = std::move(made)).get();
  }
  return nullptr;
}

void ConnectionEngine::index_remote(Connection& connection) {
  by_remote_id_[{connection.remote_guid, connection.remote_id}] = connection.id;
  if (connection.remote_qpn != 0) by_remote_qpn_[{connection.remote_guid, connection.remote_qpn}] = connection.id;
}

void ConnectionEngine::unindex_remote(Connection& connection) {
  const auto drop = [&](auto& index, const auto& key) {
    const auto found = index.find(key);
    if (found != index.end() && found->second == connection.id) index.erase(found);
  };
  drop(by_remote_id_, Remote{connection.remote_guid, connection.remote_id});
  drop(by_remote_qpn_, Remote{connection.remote_guid, connection.remote_qpn});
  drop(by_request_, key_of(connection));
}

void ConnectionEngine::forget(Connection& connection) {
  stop_timer(connection);
  unindex_remote(connection);
  connections_.erase(connection.id);
}

void ConnectionEngine::set_timer(Connection& connection, int64_t deadline) {
  if (connection.deadline != INT64_MAX) timers_.erase({connection.deadline, connection.id});
  connection.deadline = deadline;
  if (deadline != INT64_MAX) timers_.insert({deadline, connection.id});
}

void ConnectionEngine::send(Connection& connection, const Mad& mad) {
  connection.sent = mad;
  output_.send(connection.way, mad);
}

void ConnectionEngine::ask(Connection& connection, const Mad& mad, int64_t now) {
  connection.tries = 0;
  connection.pause_ns = connection.first_pause_ns;
  set_timer(connection, now + connection.pause_ns);
  send(connection, mad);
}

void ConnectionEngine::set_response_timeout(Connection& connection, uint8_t response_timeout, uint8_t max_retries) {
  connection.first_pause_ns = std::clamp(from_code(response_timeout), kShortestPauseNs, kLongestPauseNs);
  connection.max_tries = max_retries;
}

void ConnectionEngine::refuse(const Way& way, const Envelope& to, Answered answered, RejectReason reason) {
  Rejection rejection;
  rejection.answered = answered;
  rejection.reason = static_cast<uint16_t>(reason);
  output_.send(way, write({Attribute::kRej, to.transaction, to.remote_id, to.local_id}, rejection));
}

void ConnectionEngine::send_timeout(const Connection& connection) {
  // The GUID in the REJ lets the peer find the connection even if one side does not have the other's id yet.
  Rejection rejection;
  rejection.answered = Answered::kOther;
  rejection.reason = static_cast<uint16_t>(RejectReason::kTimeout);
  rejection.ca_guid = connection.local_guid;
  output_.send(connection.way, write(envelope(connection, Attribute::kRej), rejection));
}

void ConnectionEngine::send_dreq(Connection& connection, int64_t now) {
  // The DREQ has a new transaction number, because repeats of the REQ are recognized by the connection's number.
  Envelope envelope = this->envelope(connection, Attribute::kDreq);
  envelope.transaction = next_transaction_++;
  connection.state = State::kDreqSent;
  ask(connection, write(envelope, Disconnection{connection.remote_qpn}), now);
}

void ConnectionEngine::end(Connection& connection, State state, int64_t now) {
  connection.state = state;
  const Remote remote{connection.remote_guid, connection.remote_qpn};
  const auto found = by_remote_qpn_.find(remote);
  if (found != by_remote_qpn_.end() && found->second == connection.id) by_remote_qpn_.erase(found);
  if (state != State::kIdle) {
    set_timer(connection, now + (state == State::kTimeWait ? connection.time_wait_ns : kMemoryNs));
    return;
  }
  stop_timer(connection);
  unindex_remote(connection);
  if (connection.owner == 0) forget(connection);
}

void ConnectionEngine::disconnected(Connection& connection, bool silent, int64_t now) {
  const uint64_t owner = connection.listening_owner();
  enter_time_wait(connection, now);
  if (owner != 0) sink_.on_disconnected(owner, silent);
}

void ConnectionEngine::forgotten_there(Connection& connection, int64_t now) {
  // If the peer still has the connection, it is notified of the end.
  if (connection.state == State::kEstablished || connection.state == State::kDreqSent) {
    send_dreq(connection, now);
    return disconnected(connection, true, now);
  }
  Rejection rejection;
  rejection.answered = answered_in(connection.state);
  rejection.reason = static_cast<uint16_t>(RejectReason::kStaleConnection);
  send(connection, write(envelope(connection, Attribute::kRej), rejection));
  const uint64_t owner = connection.owner;
  end(connection, State::kIdle, now);
  if (owner != 0) sink_.on_rejected(owner, rejection.reason, {});
}

// Listeners.

void ConnectionEngine::listen(uint64_t owner, const ListenerAddress& address) {
  if (address.mask == ~uint64_t{0})
    listeners_.emplace(address.service_id, Listener{address, owner});
  else
    wide_listeners_.push_back({address, owner});
}

void ConnectionEngine::unlisten(uint64_t owner) {
  std::erase_if(listeners_, [owner](const auto& entry) { return entry.second.owner == owner; });
  std::erase_if(wide_listeners_, [owner](const Listener& listener) { return listener.owner == owner; });
}

const uint64_t* ConnectionEngine::listener_of(uint64_t service_id, const Gid* address) const {
  // A listener for exactly this address precedes one for any address.
  const Listener* best = nullptr;
  const auto consider = [&](const Listener& listener) {
    const ListenerAddress& at = listener.address;
    if ((service_id & at.mask) != (at.service_id & at.mask)) return;
    if (!at.any_address && (address == nullptr || *address != at.address)) return;
    if (address != nullptr && (base::is_ipv4(*address) ? at.only_v6 : at.only_v4)) return;
    if (best == nullptr || (best->address.any_address && !at.any_address)) best = &listener;
  };
  const auto [first, last] = listeners_.equal_range(service_id);
  for (auto it = first; it != last; ++it) consider(it->second);
  for (const Listener& listener : wide_listeners_) consider(listener);
  return best == nullptr ? nullptr : &best->owner;
}

bool ConnectionEngine::listens(uint64_t service_id, const Gid* address) const {
  return listener_of(service_id, address) != nullptr;
}

// Calls.

int ConnectionEngine::connect(const ConnectionRequest& request, const Way& way, uint64_t owner, int64_t now,
                              ConnectionId* id) {
  Connection* made = make(way);
  if (made == nullptr) return ENOMEM;
  made->owner = owner;
  made->state = State::kReqSent;
  made->local_guid = request.ca_guid;
  made->service_id = request.service_id;
  made->transaction = next_transaction_++;
  made->time_wait_ns = time_wait_of(request.path.ack_timeout);
  *id = made->id;
  set_response_timeout(*made, request.remote_response_timeout, request.max_cm_retries);
  ask(*made, write(envelope(*made, Attribute::kReq), request), now);
  return 0;
}

int ConnectionEngine::ask_again(ConnectionId id, const Way& way, int64_t now) {
  Connection* connection = find(id);
  if (connection == nullptr || connection->state != State::kIdle || connection->passive || connection->remote_id != 0)
    return EINVAL;
  const std::optional<Envelope> question = read_envelope(connection->sent);
  if (!question || (question->attribute != Attribute::kReq && question->attribute != Attribute::kSidrReq))
    return EINVAL;
  connection->way = way;
  connection->state = question->attribute == Attribute::kReq ? State::kReqSent : State::kSidrReqSent;
  ask(*connection, Mad(connection->sent), now);
  return 0;
}

int ConnectionEngine::accept(ConnectionId id, const ConnectionReply& reply, int64_t now) {
  Connection* connection = find(id);
  if (connection == nullptr || (connection->state != State::kReqReceived && connection->state != State::kMraReqSent))
    return EINVAL;
  connection->state = State::kRepSent;
  connection->local_guid = reply.ca_guid;
  ask(*connection, write(envelope(*connection, Attribute::kRep), reply), now);
  return 0;
}

int ConnectionEngine::reject(ConnectionId id, uint16_t reason, const PrivateData<148>& data, int64_t now) {
  Connection* connection = find(id);
  if (connection == nullptr) return EINVAL;
  Rejection rejection;
  rejection.reason = reason;
  rejection.private_data = data;
  rejection.answered = answered_in(connection->state);
  switch (connection->state) {
    case State::kReqReceived:
    case State::kMraReqSent:
    case State::kRepReceived:
    case State::kMraRepSent:
      break;
    case State::kRepSent:
    case State::kMraRepReceived:
      // The peer may already be connected. A REJ is not repeated, but a DREQ is, so both are sent.
      connection->taken_back = true;
      connection->max_tries = std::min(connection->max_tries, kOrphanRetries);
      send(*connection, write(envelope(*connection, Attribute::kRej), rejection));
      send_dreq(*connection, now);
      return 0;
    case State::kSidrReqReceived: {
      DatagramReply reply;
      reply.status = DatagramStatus::kRejected;
      reply.private_data.set(data.bytes.data(), std::min<size_t>(data.length, reply.private_data.room()));
      return answer_datagram(id, reply, now);
    }
    default:
      return EINVAL;
  }
  send(*connection, write(envelope(*connection, Attribute::kRej), rejection));
  end(*connection, rejection.answered == Answered::kReq ? State::kRejected : State::kIdle, now);
  return 0;
}

int ConnectionEngine::establish(ConnectionId id, const PrivateData<224>& data, int64_t) {
  Connection* connection = find(id);
  if (connection == nullptr || (connection->state != State::kRepReceived && connection->state != State::kMraRepSent))
    return EINVAL;
  connection->state = State::kEstablished;
  stop_timer(*connection);
  send(*connection, write(envelope(*connection, Attribute::kRtu), Readiness{data}));
  return 0;
}

int ConnectionEngine::note_established(ConnectionId id) {
  Connection* connection = find(id);
  if (connection == nullptr) return EINVAL;
  if (connection->state == State::kEstablished) return EISCONN;
  if (connection->state != State::kRepSent && connection->state != State::kMraRepReceived) return EINVAL;
  connection->state = State::kEstablished;
  stop_timer(*connection);
  if (connection->owner != 0) sink_.on_established(connection->owner, {});
  return 0;
}

int ConnectionEngine::disconnect(ConnectionId id, int64_t now) {
  Connection* connection = find(id);
  if (connection == nullptr) return EINVAL;
  switch (connection->state) {
    case State::kTimeWait:
    case State::kDreqSent:
      return 0;  // the peer was first, or a disconnect is in progress
    case State::kEstablished:
    case State::kRepSent:
    case State::kMraRepReceived:
      break;
    default:
      return EINVAL;
  }
  send_dreq(*connection, now);
  return 0;
}

int ConnectionEngine::ask_datagram(const DatagramRequest& request, const Way& way, uint64_t owner, int64_t now,
                                   ConnectionId* id) {
  Connection* made = make(way);
  if (made == nullptr) return ENOMEM;
  made->owner = owner;
  made->state = State::kSidrReqSent;
  made->service_id = request.service_id;
  made->transaction = next_transaction_++;
  *id = made->id;
  set_response_timeout(*made, request.response_timeout, request.max_cm_retries);
  ask(*made, write(envelope(*made, Attribute::kSidrReq), request), now);
  return 0;
}

int ConnectionEngine::answer_datagram(ConnectionId id, const DatagramReply& reply, int64_t now) {
  Connection* connection = find(id);
  if (connection == nullptr || connection->state != State::kSidrReqReceived) return EINVAL;
  send(*connection, write(envelope(*connection, Attribute::kSidrRep), reply, connection->service_id));
  end(*connection, State::kSidrAnswered, now);
  return 0;
}

void ConnectionEngine::release(ConnectionId id, int64_t now) {
  Connection* connection = find(id);
  if (connection == nullptr) return;
  connection->owner = 0;
  switch (connection->state) {
    case State::kReqSent:
    case State::kMraReqReceived:
      send_timeout(*connection);
      end(*connection, State::kIdle, now);
      return;
    case State::kReqReceived:
    case State::kMraReqSent:
    case State::kRepReceived:
    case State::kMraRepSent:
    case State::kRepSent:
    case State::kMraRepReceived:
      reject(id, static_cast<uint16_t>(RejectReason::kConsumer), {}, now);
      return;
    case State::kEstablished:
      disconnect(id, now);
      connection->max_tries = std::min(connection->max_tries, kOrphanRetries);
      return;
    case State::kDreqSent:
      connection->max_tries = std::min(connection->max_tries, kOrphanRetries);
      return;
    case State::kSidrReqReceived: {
      DatagramReply reply;
      reply.status = DatagramStatus::kRejected;
      answer_datagram(id, reply, now);
      return;
    }
    case State::kSidrReqSent:
    case State::kIdle:
      forget(*connection);
      return;
    case State::kTimeWait:
    case State::kRejected:
    case State::kSidrAnswered:
      return;  // until their time is over
  }
}

void ConnectionEngine::release_all(int64_t now) {
  std::vector<ConnectionId> all;
  all.reserve(connections_.size());
  for (const auto& [id, connection] : connections_) all.push_back(id);
  for (const ConnectionId id : all) release(id, now);
}

void ConnectionEngine::release_all_at_exit(int64_t now) {
  release_all(now);
  for (const auto& [id, connection] : connections_) {
    if (!is_farewell(*connection)) continue;
    connection->tries = 0;
    connection->pause_ns = kFarewellPauseNs;
    set_timer(*connection, now + kFarewellPauseNs);
  }
}

bool ConnectionEngine::is_farewell(const Connection& connection) {
  return connection.state == State::kDreqSent && !connection.way.is_local();
}

bool ConnectionEngine::awaits_farewells() const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& entry) { return is_farewell(*entry.second); });
}

// Time.

void ConnectionEngine::on_timer(int64_t now) {
  while (!timers_.empty() && timers_.begin()->first <= now) {
    Connection& connection = *find(timers_.begin()->second);
    switch (connection.state) {
      case State::kTimeWait: {
        const uint64_t owner = connection.listening_owner();
        end(connection, State::kIdle, now);
        if (owner != 0) sink_.on_time_wait_exit(owner);
        break;
      }
      case State::kRejected:
      case State::kSidrAnswered:
        end(connection, State::kIdle, now);
        break;
      default:
        repeat(connection, now);
        break;
    }
  }
}

void ConnectionEngine::repeat(Connection& connection, int64_t now) {
  if (connection.tries >= connection.max_tries) return gave_up(connection, now);
  ++connection.tries;
  connection.pause_ns = std::min(2 * connection.pause_ns, kLongestPauseNs);
  set_timer(connection, now + connection.pause_ns);
  output_.send(connection.way, connection.sent);
}

void ConnectionEngine::gave_up(Connection& connection, int64_t now) {
  const uint64_t owner = connection.owner;
  if (connection.state == State::kDreqSent) return disconnected(connection, true, now);
  if (connection.state != State::kSidrReqSent) send_timeout(connection);
  end(connection, State::kIdle, now);
  if (owner != 0) sink_.on_unreachable(owner);
}

void ConnectionEngine::peer_exited(uint32_t slot, uint64_t instance, int64_t now) {
  std::vector<ConnectionId> lost;
  for (const auto& [id, connection] : connections_)
    if (connection->way.slot == slot && connection->way.instance == instance) lost.push_back(id);
  lose(lost, now);
}

void ConnectionEngine::peer_exited(const Gid& remote, uint16_t port, int64_t now) {
  std::vector<ConnectionId> lost;
  for (const auto& [id, connection] : connections_) {
    const Way& way = connection->way;
    if (!way.is_local() && way.of_nupa && way.remote == remote && way.port == port) lost.push_back(id);
  }
  lose(lost, now);
}

void ConnectionEngine::confirm(const Gid& remote, uint16_t port) {
  for (const auto& [id, connection] : connections_) {
    const Way& way = connection->way;
    const bool is_there = !way.is_local() && way.of_nupa && way.remote == remote && way.port == port;
    // Repeats the last message, a REP or RTU. A peer with the connection ignores the repeat.
    if (is_there && connection->state == State::kEstablished) output_.send(way, connection->sent);
  }
}

std::vector<Way> ConnectionEngine::standing_ways() const {
  std::vector<Way> ways;
  std::set<std::pair<decltype(Gid::raw), uint16_t>> seen;
  for (const auto& [id, connection] : connections_) {
    const Way& way = connection->way;
    const bool stands = connection->state > State::kMraReqReceived && connection->state <= State::kEstablished;
    if (stands && !way.is_local() && way.of_nupa && seen.insert({way.remote.raw, way.port}).second) ways.push_back(way);
  }
  return ways;
}

void ConnectionEngine::lose(const std::vector<ConnectionId>& lost, int64_t now) {
  for (const ConnectionId id : lost) {
    Connection& connection = *find(id);
    const State state = connection.state;
    const uint64_t owner = connection.owner;
    switch (state) {
      case State::kEstablished:
      case State::kDreqSent:
        disconnected(connection, true, now);
        break;
      case State::kTimeWait:
      case State::kIdle:
        break;  // only a timer is left
      default:
        end(connection, State::kIdle, now);
        if (owner == 0 || state == State::kRejected || state == State::kSidrAnswered) break;
        if (state == State::kSidrReqSent || state == State::kSidrReqReceived)
          sink_.on_unreachable(owner);
        else  // like a communication manager that outlives its programs
          sink_.on_rejected(owner, static_cast<uint16_t>(RejectReason::kConsumer), {});
        break;
    }
  }
}

}  // namespace nupa::cm
