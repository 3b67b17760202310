// SPDX-License-Identifier: Apache-2.0
#pragma once
/// An engine of the connection manager whose messages and events are recorded.
#include <gtest/gtest.h>

#include "cm/engine/engine.h"

namespace nupa::cm::engine_test {

using State = ConnectionState;

constexpr uint64_t kService = 0x1234;

constexpr uint64_t kListener = 1000;  ///< the owners of connections count from 1
constexpr uint64_t kTheirGuid = 0xabcdef;
constexpr uint32_t kTheirId = 0x5500;
constexpr uint32_t kTheirQpn = 0x77;
constexpr int64_t kNow = 1'000'000'000;
constexpr uint16_t kTimeout = 4, kInvalidId = 6, kInvalidService = 8, kInvalidTransport = 9, kStale = 10,
                   kConsumer = 28;

struct Sent {
  Way way;
  Mad mad;
  Envelope envelope;
};

enum class EventKind {
  kRequest,
  kDatagramRequest,
  kReply,
  kEstablished,
  kRejected,
  kUnreachable,
  kDisconnected,
  kTimeWaitExit,
  kDatagramReply
};

struct Event {
  EventKind what;
  uint64_t owner;
  uint64_t detail = 0;  ///< the reason, the status, the listener or whether it was silent
  bool operator==(const Event&) const = default;
};

inline std::ostream& operator<<(std::ostream& out, const Event& event) {
  return out << "event " << static_cast<int>(event.what) << " of " << event.owner << ": " << event.detail;
}

inline Gid gid_of(uint8_t host) {
  Gid gid;
  gid.raw[10] = gid.raw[11] = 0xff;
  gid.raw[12] = 10;
  gid.raw[15] = host;
  return gid;
}

inline Way way_to(uint8_t host, uint16_t port = 4791) {
  Way way;
  way.local = gid_of(1);
  way.remote = gid_of(host);
  way.port = port;
  way.of_nupa = true;
  return way;
}

inline Way way_to_slot(uint32_t slot, uint64_t instance) {
  Way way = way_to(2);
  way.slot = slot;
  way.instance = instance;
  return way;
}

class Engine : public ::testing::Test, private MadOutput, private ConnectionSink {
 protected:
  Engine() {
    ListenerAddress address;
    address.service_id = kService;
    engine.listen(kListener, address);
  }

  // What the engine says.
  void send(const Way& way, const Mad& mad) override { sent.push_back({way, mad, *read_envelope(mad)}); }
  uint64_t on_request(uint64_t owner, ConnectionId id, const ConnectionRequest&) override {
    ids[++last_owner] = id;
    events.push_back({EventKind::kRequest, last_owner, owner});
    return last_owner;
  }
  uint64_t on_datagram_request(uint64_t owner, ConnectionId id, const DatagramRequest&) override {
    ids[++last_owner] = id;
    events.push_back({EventKind::kDatagramRequest, last_owner, owner});
    return last_owner;
  }
  void on_reply(uint64_t owner, const ConnectionReply&) override { events.push_back({EventKind::kReply, owner}); }
  void on_established(uint64_t owner, const PrivateData<224>&) override {
    events.push_back({EventKind::kEstablished, owner});
  }
  void on_rejected(uint64_t owner, uint16_t reason, const PrivateData<148>&) override {
    events.push_back({EventKind::kRejected, owner, reason});
  }
  void on_unreachable(uint64_t owner) override { events.push_back({EventKind::kUnreachable, owner}); }
  void on_disconnected(uint64_t owner, bool silent) override {
    events.push_back({EventKind::kDisconnected, owner, silent ? 1u : 0u});
  }
  void on_time_wait_exit(uint64_t owner) override { events.push_back({EventKind::kTimeWaitExit, owner}); }
  void on_datagram_reply(uint64_t owner, const DatagramReply& reply) override {
    events.push_back({EventKind::kDatagramReply, owner, static_cast<uint64_t>(reply.status)});
  }

  // What the peer says.
  void receive(const Mad& mad, const Way& from) {
    sent.clear();
    events.clear();
    EXPECT_TRUE(engine.receive(mad, from, kNow));
  }
  static Mad req_of(uint32_t id, uint64_t transaction = 1, uint32_t qpn = kTheirQpn, uint64_t service = kService) {
    ConnectionRequest request;
    request.service_id = service;
    request.ca_guid = kTheirGuid;
    request.qp_num = qpn;
    return write({Attribute::kReq, transaction, id, 0}, request);
  }
  static Mad rep_of(uint32_t their_id, uint32_t our_id, uint32_t qpn = kTheirQpn) {
    ConnectionReply reply;
    reply.ca_guid = kTheirGuid;
    reply.qp_num = qpn;
    return write({Attribute::kRep, 1, their_id, our_id}, reply);
  }
  static Mad rej_of(uint32_t their_id, uint32_t our_id, uint16_t reason, Answered answered, uint64_t guid = 0) {
    Rejection rejection;
    rejection.answered = answered;
    rejection.reason = reason;
    rejection.ca_guid = guid;
    return write({Attribute::kRej, 1, their_id, our_id}, rejection);
  }
  static Mad plain_message(Attribute attribute, uint32_t their_id, uint32_t our_id) {
    if (attribute == Attribute::kDreq) return write({attribute, 9, their_id, our_id}, Disconnection{});
    return write({attribute, 9, their_id, our_id}, Readiness{});
  }

  /// A connection in `state`, whose other end is at `way`, has the id `their_id` and the queue pair `qpn`.
  uint64_t make(State state, const Way& way, uint32_t their_id = kTheirId, uint32_t qpn = kTheirQpn) {
    const bool asks = state <= State::kMraRepSent;
    const bool sidr = state >= State::kSidrReqSent;
    const uint64_t owner = asks || state == State::kSidrReqSent ? ++last_owner : last_owner + 1;
    ConnectionId& id = ids[owner];
    if (state == State::kSidrReqSent) {
      DatagramRequest request;
      request.service_id = kService;
      EXPECT_EQ(0, engine.ask_datagram(request, way, owner, kNow, &id));
    } else if (sidr) {
      DatagramRequest request;
      request.service_id = kService;
      receive(write({Attribute::kSidrReq, 1, their_id, 0}, request), way);
      EXPECT_TRUE(state != State::kSidrAnswered || engine.answer_datagram(id, {}, kNow) == 0);
    } else if (asks) {
      ConnectionRequest request;
      request.service_id = kService;
      EXPECT_EQ(0, engine.connect(request, way, owner, kNow, &id));
      const Mad mra = write({Attribute::kMra, 1, their_id, id}, Delay{Answered::kReq, 10});
      if (state == State::kMraReqReceived) receive(mra, way);
      if (state >= State::kRepReceived) receive(rep_of(their_id, id, qpn), way);
      if (state == State::kMraRepSent) receive(rep_of(their_id, id, qpn), way);
    } else {
      receive(req_of(their_id, 1, qpn), way);
      if (state == State::kMraReqSent) receive(req_of(their_id, 1, qpn), way);
      if (state == State::kRejected) {
        EXPECT_EQ(0, engine.reject(id, kConsumer, {}, kNow));
      } else if (state >= State::kRepSent) {
        EXPECT_EQ(0, engine.accept(id, {}, kNow));
        const Mad mra = write({Attribute::kMra, 1, their_id, id}, Delay{Answered::kRep, 10});
        if (state == State::kMraRepReceived) receive(mra, way);
        if (state >= State::kEstablished) receive(plain_message(Attribute::kRtu, their_id, id), way);
        EXPECT_TRUE(state < State::kDreqSent || engine.disconnect(id, kNow) == 0);
        if (state == State::kTimeWait) receive(plain_message(Attribute::kDrep, their_id, id), way);
      }
    }
    EXPECT_EQ(state, engine.state(id)) << "made for a test";
    sent.clear();
    events.clear();
    return owner;
  }
  State state_of(uint64_t owner) { return engine.state(ids.at(owner)); }
  static Rejection rejection_in(const Sent& message) { return read_rejection(message.mad); }
  /// The one message that was sent is a REJ, addressed as an answer to one from `their_id` to `our_id`.
  void expect_refused(uint16_t reason, Answered answered, uint32_t their_id, uint32_t our_id) {
    ASSERT_EQ(1u, sent.size());
    ASSERT_EQ(Attribute::kRej, sent[0].envelope.attribute);
    EXPECT_EQ(reason, rejection_in(sent[0]).reason);
    EXPECT_EQ(answered, rejection_in(sent[0]).answered);
    EXPECT_EQ(their_id, sent[0].envelope.remote_id);
    EXPECT_EQ(our_id, sent[0].envelope.local_id);
  }
  /// It had no effect on the connection, and was not answered.
  void expect_ignored(uint64_t owner, State state, const Mad& mad, const Way& from = way_to(2)) {
    receive(mad, from);
    EXPECT_EQ(state, state_of(owner));
    EXPECT_TRUE(events.empty());
    EXPECT_TRUE(sent.empty());
  }

  std::vector<Sent> sent;
  std::vector<Event> events;
  std::map<uint64_t, ConnectionId> ids;  ///< by owner
  uint64_t last_owner = 0;
  ConnectionEngine engine{0x300000, 0, *this, *this};
};

constexpr State kActiveStates[] = {State::kReqSent, State::kMraReqReceived, State::kRepReceived, State::kMraRepSent};
constexpr State kPassiveStates[] = {State::kReqReceived, State::kMraReqSent, State::kRepSent, State::kMraRepReceived};

}  // namespace nupa::cm::engine_test
