// SPDX-License-Identifier: Apache-2.0
#include "cm/engine/engine.h"
#include "cm/engine/times.h"

namespace nupa::cm {
namespace {

using State = ConnectionState;

}  // namespace

bool ConnectionEngine::receive(const Mad& mad, const Way& from, int64_t now) {
  const std::optional<Envelope> envelope = read_envelope(mad);
  if (!envelope) return false;
  switch (envelope->attribute) {
    case Attribute::kReq:
      on_req(mad, *envelope, from, now);
      break;
    case Attribute::kRep:
      on_rep(mad, *envelope, from, now);
      break;
    case Attribute::kRtu:
      on_rtu(mad, *envelope, from);
      break;
    case Attribute::kMra:
      on_mra(mad, *envelope, now);
      break;
    case Attribute::kRej:
      on_rej(mad, *envelope, now);
      break;
    case Attribute::kDreq:
      on_dreq(*envelope, from, now);
      break;
    case Attribute::kDrep:
      on_drep(*envelope, now);
      break;
    case Attribute::kLap:
      on_lap(*envelope, from);
      break;
    case Attribute::kApr:
      break;  // no LAP is ever sent
    case Attribute::kSidrReq:
      on_sidr_req(mad, *envelope, from);
      break;
    case Attribute::kSidrRep:
      on_sidr_rep(mad, *envelope, now);
      break;
  }
  return true;
}

ConnectionEngine::Connection* ConnectionEngine::named(const Envelope& envelope) {
  Connection* connection = find(envelope.remote_id);
  return connection != nullptr && connection->remote_id == envelope.local_id ? connection : nullptr;
}

void ConnectionEngine::on_req(const Mad& mad, const Envelope& envelope, const Way& from, int64_t now) {
  const std::optional<ConnectionRequest> request = read_request(mad);
  if (!request) return refuse(from, envelope, Answered::kReq, RejectReason::kInvalidTransportType);
  const auto known = by_remote_id_.find({request->ca_guid, envelope.local_id});
  if (known != by_remote_id_.end()) {
    Connection& connection = *find(known->second);
    if (connection.transaction == envelope.transaction) return on_repeated_req(connection);
    // The peer has used the number for another connection since.
    if (connection.state == State::kTimeWait || connection.state == State::kRejected)
      unindex_remote(connection);
    else
      forgotten_there(connection, now);
  }
  // The peer has another connection with that queue pair here, and has forgotten it (IBTA 12.9.8.3.1). This side ends
  // the old connection, too. The new connection gets another queue pair here, so it need not wait for that.
  const auto stale = by_remote_qpn_.find({request->ca_guid, request->qp_num});
  if (stale != by_remote_qpn_.end()) forgotten_there(*find(stale->second), now);
  const std::optional<Gid> address = destination_of(request->service_id, request->private_data.bytes);
  const uint64_t* listener = listener_of(request->service_id, address ? &*address : nullptr);
  if (listener == nullptr) return refuse(from, envelope, Answered::kReq, RejectReason::kInvalidServiceId);
  Connection* made = make(from);
  if (made == nullptr) return refuse(from, envelope, Answered::kReq, RejectReason::kNoResources);
  made->state = State::kReqReceived;
  made->passive = true;
  made->remote_id = envelope.local_id;
  made->remote_guid = request->ca_guid;
  made->remote_qpn = request->qp_num;
  made->service_id = request->service_id;
  made->transaction = envelope.transaction;
  made->time_wait_ns = time_wait_of(request->path.ack_timeout);
  set_response_timeout(*made, request->local_response_timeout, request->max_cm_retries);
  const uint64_t owner = sink_.on_request(*listener, made->id, *request);
  if (owner == 0) return forget(*made);
  made->owner = owner;
  index_remote(*made);
}

void ConnectionEngine::on_repeated_req(Connection& connection) {
  switch (connection.state) {
    case State::kReqReceived:
    case State::kMraReqSent:
      connection.state = State::kMraReqSent;
      output_.send(connection.way,
                   write(envelope(connection, Attribute::kMra), Delay{Answered::kReq, kServiceTimeout}));
      break;
    case State::kRepSent:
    case State::kMraRepReceived:
    case State::kRejected:
      output_.send(connection.way, connection.sent);
      break;
    default:
      break;
  }
}

void ConnectionEngine::on_rep(const Mad& mad, const Envelope& envelope, const Way& from, int64_t now) {
  Connection* connection = find(envelope.remote_id);
  if (connection == nullptr || (connection->remote_id != 0 && connection->remote_id != envelope.local_id))
    return refuse(from, envelope, Answered::kRep, RejectReason::kInvalidCommunicationId);
  if (connection->passive) return;  // this side has sent a REP itself
  switch (connection->state) {
    case State::kReqSent:
    case State::kMraReqReceived: {
      const ConnectionReply reply = read_reply(mad);
      const auto stale = by_remote_qpn_.find({reply.ca_guid, reply.qp_num});
      if (stale != by_remote_qpn_.end()) forgotten_there(*find(stale->second), now);
      connection->state = State::kRepReceived;
      connection->remote_id = envelope.local_id;
      connection->remote_guid = reply.ca_guid;
      connection->remote_qpn = reply.qp_num;
      connection->way = from;  // the peer process itself; the REQ went to its host
      stop_timer(*connection);
      index_remote(*connection);
      if (connection->owner != 0) sink_.on_reply(connection->owner, reply);
      break;
    }
    case State::kRepReceived:
    case State::kMraRepSent:
      connection->state = State::kMraRepSent;
      output_.send(connection->way,
                   write(this->envelope(*connection, Attribute::kMra), Delay{Answered::kRep, kServiceTimeout}));
      break;
    case State::kEstablished:
      output_.send(connection->way, connection->sent);  // the RTU
      break;
    case State::kIdle:
      refuse(from, envelope, Answered::kRep, RejectReason::kInvalidCommunicationId);
      break;
    default:
      break;
  }
}

void ConnectionEngine::on_rtu(const Mad& mad, const Envelope& envelope, const Way& from) {
  Connection* connection = named(envelope);
  // The peer is still connected: the message that rejected or ended the connection was lost.
  if (connection == nullptr || connection->state == State::kIdle || connection->state == State::kTimeWait)
    return refuse(from, envelope, Answered::kOther, RejectReason::kInvalidCommunicationId);
  if (connection->state != State::kRepSent && connection->state != State::kMraRepReceived) return;
  connection->state = State::kEstablished;
  stop_timer(*connection);
  if (connection->owner != 0) sink_.on_established(connection->owner, read_readiness(mad).private_data);
}

void ConnectionEngine::on_mra(const Mad& mad, const Envelope& envelope, int64_t now) {
  Connection* connection = find(envelope.remote_id);
  if (connection == nullptr) return;
  const Delay delay = read_delay(mad);
  if (delay.answered == Answered::kReq &&
      (connection->state == State::kReqSent || connection->state == State::kMraReqReceived)) {
    connection->state = State::kMraReqReceived;
  } else if (delay.answered == Answered::kRep && connection->remote_id == envelope.local_id &&
             (connection->state == State::kRepSent || connection->state == State::kMraRepReceived)) {
    connection->state = State::kMraRepReceived;
  } else {
    return;
  }
  set_timer(*connection, now + from_code(delay.service_timeout) + connection->pause_ns);
}

void ConnectionEngine::on_rej(const Mad& mad, const Envelope& envelope, int64_t now) {
  const Rejection rejection = read_rejection(mad);
  Connection* connection = find(envelope.remote_id);
  if (connection == nullptr && rejection.reason == static_cast<uint16_t>(RejectReason::kTimeout)) {
    // The peer gave up before it received this side's id.
    const auto known = by_remote_id_.find({rejection.ca_guid, envelope.local_id});
    if (known != by_remote_id_.end()) connection = find(known->second);
  }
  if (connection == nullptr) return;
  const bool first = connection->remote_id == 0;  // the peer's id is unknown, and it may not have one
  if (!first && connection->remote_id != envelope.local_id &&
      !(envelope.local_id == 0 && rejection.answered != Answered::kReq))
    return;
  const uint64_t owner = connection->owner;
  switch (connection->state) {
    case State::kReqSent:
    case State::kMraReqReceived:
    case State::kRepReceived:
    case State::kMraRepSent:
    case State::kReqReceived:
    case State::kMraReqSent:
    case State::kRepSent:
    case State::kMraRepReceived:
      end(*connection, State::kIdle, now);
      if (owner != 0) sink_.on_rejected(owner, rejection.reason, rejection.private_data);
      break;
    case State::kEstablished:
    case State::kDreqSent:
      disconnected(*connection, false, now);
      break;
    default:
      break;
  }
}

void ConnectionEngine::on_dreq(const Envelope& envelope, const Way& from, int64_t now) {
  // The connection is over, whatever its state (IBTA 12.9.6).
  output_.send(from,
               write({Attribute::kDrep, envelope.transaction, envelope.remote_id, envelope.local_id}, Readiness{}));
  Connection* connection = find(envelope.remote_id);
  if (connection == nullptr) return;
  const uint64_t owner = connection->owner;
  const bool is_named = connection->remote_id == envelope.local_id;
  switch (connection->state) {
    case State::kRepSent:
    case State::kMraRepReceived:
    case State::kEstablished:
    case State::kDreqSent:
      if (is_named) disconnected(*connection, false, now);
      break;
    case State::kReqSent:  // the REP was lost, so the peer's id is unknown
    case State::kMraReqReceived:
    case State::kRepReceived:
    case State::kMraRepSent:
      if (!is_named && connection->remote_id != 0) break;
      end(*connection, State::kIdle, now);
      if (owner != 0) sink_.on_rejected(owner, static_cast<uint16_t>(RejectReason::kConsumer), {});
      break;
    default:
      break;
  }
}

void ConnectionEngine::on_drep(const Envelope& envelope, int64_t now) {
  Connection* connection = named(envelope);
  if (connection != nullptr && connection->state == State::kDreqSent) disconnected(*connection, false, now);
}

void ConnectionEngine::on_lap(const Envelope& envelope, const Way& from) {
  const Connection* connection = named(envelope);
  const uint8_t status = connection == nullptr ? kPathUnknownConnection : kPathUnsupported;
  output_.send(
      from, write({Attribute::kApr, envelope.transaction, envelope.remote_id, envelope.local_id}, PathAnswer{status}));
}

void ConnectionEngine::on_sidr_req(const Mad& mad, const Envelope& envelope, const Way& from) {
  const auto known = by_request_.find({from.remote, from.slot, envelope.local_id});
  if (known != by_request_.end()) {
    const Connection& connection = *find(known->second);
    if (connection.transaction == envelope.transaction) {
      if (connection.state == State::kSidrAnswered) output_.send(connection.way, connection.sent);
      return;
    }
    by_request_.erase(known);
  }
  DatagramRequest request = read_datagram_request(mad);
  request.path.local = from.local;
  request.path.remote = from.remote;
  const std::optional<Gid> address = destination_of(request.service_id, request.private_data.bytes);
  const uint64_t* listener = listener_of(request.service_id, address ? &*address : nullptr);
  Connection* made = listener == nullptr ? nullptr : make(from);
  if (made == nullptr) {
    DatagramReply reply;
    reply.status = listener == nullptr ? DatagramStatus::kUnsupported : DatagramStatus::kNoQueuePair;
    output_.send(from,
                 write({Attribute::kSidrRep, envelope.transaction, 0, envelope.local_id}, reply, request.service_id));
    return;
  }
  made->state = State::kSidrReqReceived;
  made->remote_id = envelope.local_id;
  made->service_id = request.service_id;
  made->transaction = envelope.transaction;
  const uint64_t owner = sink_.on_datagram_request(*listener, made->id, request);
  if (owner == 0) return forget(*made);
  made->owner = owner;
  by_request_[key_of(*made)] = made->id;
}

void ConnectionEngine::on_sidr_rep(const Mad& mad, const Envelope& envelope, int64_t now) {
  Connection* connection = find(envelope.remote_id);
  if (connection == nullptr || connection->state != State::kSidrReqSent || connection->service_id != read_service(mad))
    return;
  const uint64_t owner = connection->owner;
  end(*connection, State::kIdle, now);
  if (owner != 0) sink_.on_datagram_reply(owner, read_datagram_reply(mad));
}

}  // namespace nupa::cm
