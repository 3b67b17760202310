// SPDX-License-Identifier: Apache-2.0
// One engine, whose messages and events are written down, and a peer that says whatever a test likes: who may say
// what in which state, and which connections a death or a doubt concerns.
#include <gtest/gtest.h>

#include "cm/engine/engine.h"
#include "cm/engine/times.h"

namespace nupa::cm::testing {
namespace {

using State = ConnectionState;

constexpr uint64_t kService = 0x1234;
constexpr uint64_t kIpPort = 0x0000000001060007;
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
enum class Told {
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
  Told what;
  uint64_t owner;
  uint64_t detail = 0;  ///< the reason, the status, the listener or whether it was silent
  bool operator==(const Event&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Event& event) {
  return out << "event " << static_cast<int>(event.what) << " of " << event.owner << ": " << event.detail;
}

Gid gid_of(uint8_t host) {
  Gid gid;
  gid.raw[10] = gid.raw[11] = 0xff;
  gid.raw[12] = 10;
  gid.raw[15] = host;
  return gid;
}
Way way_to(uint8_t host, uint16_t port = 4791) {
  Way way;
  way.local = gid_of(1);
  way.remote = gid_of(host);
  way.port = port;
  way.of_nupa = true;
  return way;
}
Way way_to_slot(uint32_t slot, uint64_t instance) {
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
    events.push_back({Told::kRequest, last_owner, owner});
    return last_owner;
  }
  uint64_t on_datagram_request(uint64_t owner, ConnectionId id, const DatagramRequest&) override {
    ids[++last_owner] = id;
    events.push_back({Told::kDatagramRequest, last_owner, owner});
    return last_owner;
  }
  void on_reply(uint64_t owner, const ConnectionReply&) override { events.push_back({Told::kReply, owner}); }
  void on_established(uint64_t owner, const PrivateData<224>&) override {
    events.push_back({Told::kEstablished, owner});
  }
  void on_rejected(uint64_t owner, uint16_t reason, const PrivateData<148>&) override {
    events.push_back({Told::kRejected, owner, reason});
  }
  void on_unreachable(uint64_t owner) override { events.push_back({Told::kUnreachable, owner}); }
  void on_disconnected(uint64_t owner, bool silent) override {
    events.push_back({Told::kDisconnected, owner, silent ? 1u : 0u});
  }
  void on_time_wait_exit(uint64_t owner) override { events.push_back({Told::kTimeWaitExit, owner}); }
  void on_datagram_reply(uint64_t owner, const DatagramReply& reply) override {
    events.push_back({Told::kDatagramReply, owner, static_cast<uint64_t>(reply.status)});
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
  static Mad say(Attribute attribute, uint32_t their_id, uint32_t our_id) {
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
        if (state >= State::kEstablished) receive(say(Attribute::kRtu, their_id, id), way);
        EXPECT_TRUE(state < State::kDreqSent || engine.disconnect(id, kNow) == 0);
        if (state == State::kTimeWait) receive(say(Attribute::kDrep, their_id, id), way);
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
using Events = std::vector<Event>;

constexpr State kActiveStates[] = {State::kReqSent, State::kMraReqReceived, State::kRepReceived, State::kMraRepSent};
constexpr State kPassiveStates[] = {State::kReqReceived, State::kMraReqSent, State::kRepSent, State::kMraRepReceived};
constexpr State kConnectedStates[] = {State::kEstablished, State::kDreqSent, State::kTimeWait};

// 12.9.8: messages with the id of another connection.

TEST_F(Engine, ARtuFromAnotherId_EstablishesNothingAndIsRefused) {
  for (const State state : {State::kRepSent, State::kMraRepReceived}) {
    const uint64_t owner = make(state, way_to(2), kTheirId + static_cast<uint32_t>(state), 0);
    receive(say(Attribute::kRtu, kTheirId - 1, ids[owner]), way_to(2));
    EXPECT_EQ(state, state_of(owner));
    EXPECT_TRUE(events.empty());
    expect_refused(kInvalidId, Answered::kOther, kTheirId - 1, ids[owner]);
    receive(say(Attribute::kRtu, kTheirId + static_cast<uint32_t>(state), ids[owner]), way_to(2));
    EXPECT_EQ((Events{{Told::kEstablished, owner}}), events);
  }
}

TEST_F(Engine, ARtuForNoConnection_IsRefused) {
  receive(say(Attribute::kRtu, kTheirId, 0x300123), way_to(2));
  expect_refused(kInvalidId, Answered::kOther, kTheirId, 0x300123);
}

TEST_F(Engine, ARtuInAnotherState_ChangesNothing) {
  for (const State state : {State::kReqReceived, State::kMraReqSent, State::kEstablished, State::kDreqSent}) {
    const uint32_t their_id = kTheirId + static_cast<uint32_t>(state);
    const uint64_t owner = make(state, way_to(2), their_id, 0);
    expect_ignored(owner, state, say(Attribute::kRtu, their_id, ids[owner]));
  }
  const uint64_t owner = make(State::kTimeWait, way_to(2), kTheirId, 0);
  receive(say(Attribute::kRtu, kTheirId, ids[owner]), way_to(2));
  expect_refused(kInvalidId, Answered::kOther, kTheirId, ids[owner]);
}

TEST_F(Engine, ADrepFromAnotherId_EndsNothing) {
  const uint64_t owner = make(State::kDreqSent, way_to(2));
  expect_ignored(owner, State::kDreqSent, say(Attribute::kDrep, kTheirId + 1, ids[owner]));
  expect_ignored(owner, State::kDreqSent, say(Attribute::kDrep, 0, ids[owner]));
  receive(say(Attribute::kDrep, kTheirId, ids[owner]), way_to(2));
  EXPECT_EQ((Events{{Told::kDisconnected, owner, 0}}), events);
}

TEST_F(Engine, ADrepThatNobodyAskedFor_EndsNothing) {
  const uint64_t owner = make(State::kEstablished, way_to(2));
  expect_ignored(owner, State::kEstablished, say(Attribute::kDrep, kTheirId, ids[owner]));
}

TEST_F(Engine, ADreqFromAnotherId_EndsNothing) {
  for (const State state : {State::kRepReceived, State::kMraRepSent, State::kRepSent, State::kMraRepReceived,
                            State::kEstablished, State::kDreqSent}) {
    const uint32_t their_id = kTheirId + static_cast<uint32_t>(state);
    const uint64_t owner = make(state, way_to(2), their_id, 0);
    receive(say(Attribute::kDreq, kTheirId - 1, ids[owner]), way_to(2));
    EXPECT_EQ(state, state_of(owner));
    EXPECT_TRUE(events.empty());
    ASSERT_EQ(1u, sent.size());
    EXPECT_EQ(Attribute::kDrep, sent[0].envelope.attribute) << "an answer costs nothing, and ends the repeats";
    EXPECT_EQ(9u, sent[0].envelope.transaction);
    EXPECT_EQ(ids[owner], sent[0].envelope.local_id);
    EXPECT_EQ(kTheirId - 1, sent[0].envelope.remote_id);
    receive(say(Attribute::kDreq, their_id, ids[owner]), way_to(2));
    const bool was_asked = state == State::kRepReceived || state == State::kMraRepSent;
    EXPECT_EQ((Events{was_asked ? Event{Told::kRejected, owner, kConsumer} : Event{Told::kDisconnected, owner, 0}}),
              events);
  }
}

TEST_F(Engine, ADreqForARequest_IsAnsweredAndEndsNothing) {
  for (const State state : {State::kReqReceived, State::kMraReqSent}) {
    const uint32_t their_id = kTheirId + static_cast<uint32_t>(state);
    const uint64_t owner = make(state, way_to(2), their_id, 0);
    receive(say(Attribute::kDreq, their_id, ids[owner]), way_to(2));
    EXPECT_EQ(state, state_of(owner));
    EXPECT_EQ(1u, sent.size());
  }
}

TEST_F(Engine, ARepFromAnotherId_IsRefused) {
  for (const State state : {State::kRepReceived, State::kMraRepSent}) {
    const uint64_t owner = make(state, way_to(2), kTheirId + static_cast<uint32_t>(state), 0);
    receive(rep_of(kTheirId - 1, ids[owner]), way_to(3));
    EXPECT_EQ(state, state_of(owner));
    EXPECT_TRUE(events.empty());
    expect_refused(kInvalidId, Answered::kRep, kTheirId - 1, ids[owner]);
    EXPECT_EQ(way_to(3), sent[0].way);
  }
  receive(rep_of(kTheirId, 0x300777), way_to(2));
  expect_refused(kInvalidId, Answered::kRep, kTheirId, 0x300777);
}

TEST_F(Engine, ARepForAConnectionThatHasEnded_IsRefused) {
  const uint64_t owner = make(State::kReqSent, way_to(2));
  receive(rej_of(0, ids[owner], kInvalidService, Answered::kReq), way_to(2));
  ASSERT_EQ(State::kIdle, state_of(owner));
  receive(rep_of(kTheirId, ids[owner]), way_to(2));
  expect_refused(kInvalidId, Answered::kRep, kTheirId, ids[owner]);
  EXPECT_TRUE(events.empty());
}

TEST_F(Engine, ARepToWhoeverWasAsked_IsNoAnswer) {
  for (const State state : {State::kReqReceived, State::kMraReqSent, State::kRepSent, State::kEstablished}) {
    const uint32_t their_id = kTheirId + static_cast<uint32_t>(state);
    const uint64_t owner = make(state, way_to(2), their_id, 0);
    expect_ignored(owner, state, rep_of(their_id, ids[owner]));
  }
}

TEST_F(Engine, TheRtuGoesWhereTheRepCameFrom) {
  const uint64_t owner = make(State::kReqSent, way_to(2));
  receive(rep_of(kTheirId, ids[owner]), way_to(3, 999));
  ASSERT_EQ(0, engine.establish(ids[owner], {}, kNow));
  ASSERT_EQ(1u, sent.size());
  EXPECT_EQ(Attribute::kRtu, sent[0].envelope.attribute);
  EXPECT_EQ(way_to(3, 999), sent[0].way);
}

TEST_F(Engine, AMra_IsForTheMessageThatWaits) {
  const auto mra = [this](uint64_t owner, uint32_t their_id, Answered answered) {
    return write({Attribute::kMra, 1, their_id, ids[owner]}, Delay{answered, 10});
  };
  const uint64_t asking = make(State::kReqSent, way_to(2));
  const int64_t deadline = engine.deadline();
  for (const Answered answered : {Answered::kRep, Answered::kOther})
    expect_ignored(asking, State::kReqSent, mra(asking, kTheirId, answered));
  EXPECT_EQ(deadline, engine.deadline());
  engine.release(ids[asking], kNow);
  const uint64_t answering = make(State::kRepSent, way_to(2));
  const int64_t answer_deadline = engine.deadline();
  expect_ignored(answering, State::kRepSent, mra(answering, kTheirId, Answered::kReq));
  expect_ignored(answering, State::kRepSent, mra(answering, kTheirId, Answered::kOther));
  expect_ignored(answering, State::kRepSent, mra(answering, kTheirId + 1, Answered::kRep));
  EXPECT_EQ(answer_deadline, engine.deadline()) << "nobody else puts it off";
  receive(mra(answering, kTheirId, Answered::kRep), way_to(2));
  EXPECT_EQ(State::kMraRepReceived, state_of(answering));
  const uint64_t connected = make(State::kEstablished, way_to(2), kTheirId + 1, 0);
  for (const Answered answered : {Answered::kReq, Answered::kRep, Answered::kOther})
    expect_ignored(connected, State::kEstablished, mra(connected, kTheirId + 1, answered));
}

// 12.6.7 and 12.9.8: rejections.

TEST_F(Engine, ARej_EndsWhatItIsFor) {
  uint32_t their_id = kTheirId;
  const auto end = [&](State state, uint16_t reason) {
    const uint64_t owner = make(state, way_to(2), ++their_id, 0);
    receive(rej_of(their_id, ids[owner], reason, Answered::kOther), way_to(2));
    return owner;
  };
  for (const auto& states : {kActiveStates, kPassiveStates})
    for (size_t i = 0; i < 4; ++i) {
      const uint64_t owner = end(states[i], 77);
      EXPECT_EQ((Events{{Told::kRejected, owner, 77}}), events) << static_cast<int>(states[i]);
      EXPECT_EQ(State::kIdle, state_of(owner));
    }
  for (const State state : {State::kEstablished, State::kDreqSent}) {
    const uint64_t owner = end(state, 77);
    EXPECT_EQ((Events{{Told::kDisconnected, owner, 0}}), events);
    EXPECT_EQ(State::kTimeWait, state_of(owner));
  }
  for (const State state : {State::kTimeWait, State::kRejected}) {
    const uint64_t owner = end(state, 77);
    EXPECT_TRUE(events.empty());
    EXPECT_EQ(state, state_of(owner));
  }
}

TEST_F(Engine, ARejFromAnotherId_EndsNothing) {
  for (const State state : {State::kRepReceived, State::kReqReceived, State::kRepSent, State::kEstablished}) {
    const uint32_t their_id = kTheirId + static_cast<uint32_t>(state);
    const uint64_t owner = make(state, way_to(2), their_id, 0);
    for (const Answered answered : {Answered::kReq, Answered::kRep, Answered::kOther})
      expect_ignored(owner, state, rej_of(kTheirId - 1, ids[owner], kConsumer, answered));
    expect_ignored(owner, state, rej_of(0, ids[owner], kConsumer, Answered::kReq));
  }
}

TEST_F(Engine, ARejFromAnEndWithoutAnId_EndsWhatItAnswers) {
  // Whoever never heard of the connection has no id for it, and rejects the REP or RTU that reached it.
  for (const Answered answered : {Answered::kRep, Answered::kOther}) {
    const uint64_t owner = make(State::kRepSent, way_to(2), kTheirId + static_cast<uint32_t>(answered), 0);
    receive(rej_of(0, ids[owner], kInvalidId, answered), way_to(2));
    EXPECT_EQ((Events{{Told::kRejected, owner, kInvalidId}}), events);
  }
}

TEST_F(Engine, ATimeoutRej_IsFoundByTheSendersGuidAndId) {
  const uint64_t owner = make(State::kReqReceived, way_to(2));
  expect_ignored(owner, State::kReqReceived, rej_of(kTheirId, 0, kTimeout, Answered::kOther, kTheirGuid + 1));
  expect_ignored(owner, State::kReqReceived, rej_of(kTheirId + 1, 0, kTimeout, Answered::kOther, kTheirGuid));
  Mad consumer = rej_of(kTheirId, 0, kTimeout, Answered::kOther, kTheirGuid);
  consumer[24 + 11] = std::byte{kConsumer};
  expect_ignored(owner, State::kReqReceived, consumer);
  receive(rej_of(kTheirId, 0, kTimeout, Answered::kOther, kTheirGuid), way_to(2));
  EXPECT_EQ((Events{{Told::kRejected, owner, kTimeout}}), events);
  // Nor is a device without a GUID found for another reason, which names none.
  ConnectionRequest request;
  request.service_id = kService;
  receive(write({Attribute::kReq, 1, kTheirId + 9, 0}, request), way_to(2));
  const uint64_t nameless = last_owner;
  expect_ignored(nameless, State::kReqReceived, rej_of(kTheirId + 9, 0, kConsumer, Answered::kOther));
}

TEST_F(Engine, AReject_SaysWhichMessageItAnswers) {
  const auto answered_by = [this](State state, uint32_t their_id) {
    const uint64_t owner = make(state, way_to(2), their_id, 0);
    EXPECT_EQ(0, engine.reject(ids[owner], kConsumer, {}, kNow));
    EXPECT_EQ(kConsumer, rejection_in(sent.at(0)).reason);
    EXPECT_EQ(their_id, sent.at(0).envelope.remote_id);
    return rejection_in(sent.at(0)).answered;
  };
  EXPECT_EQ(Answered::kReq, answered_by(State::kReqReceived, kTheirId));
  EXPECT_EQ(Answered::kReq, answered_by(State::kMraReqSent, kTheirId + 1));
  EXPECT_EQ(Answered::kRep, answered_by(State::kRepReceived, kTheirId + 2));
  EXPECT_EQ(Answered::kRep, answered_by(State::kMraRepSent, kTheirId + 3));
  EXPECT_EQ(Answered::kOther, answered_by(State::kRepSent, kTheirId + 4));
}

TEST_F(Engine, AReqThatCannotBeTaken_IsRefusedWithItsReason) {
  receive(req_of(kTheirId, 1, kTheirQpn, kService + 1), way_to(2));
  expect_refused(kInvalidService, Answered::kReq, kTheirId, 0);
  Mad other = req_of(kTheirId);
  other[24 + 43] = (other[24 + 43] & std::byte{0xf9}) | std::byte{2 << 1};  // reliable datagram
  receive(other, way_to(2));
  expect_refused(kInvalidTransport, Answered::kReq, kTheirId, 0);
  EXPECT_EQ(0u, engine.connections());
  EXPECT_EQ(0u, engine.entries());
}

TEST_F(Engine, AnAprIsNoAnswer) {
  const uint64_t owner = make(State::kEstablished, way_to(2));
  expect_ignored(owner, State::kEstablished, write({Attribute::kApr, 1, kTheirId, ids[owner]}, PathAnswer{1}));
}

// 12.9.8.3.1: a queue pair of the other end in a new connection.

TEST_F(Engine, AReqFromAQueuePairThatHasAConnection_EndsTheOldOne) {
  uint32_t their_id = kTheirId;
  uint32_t qpn = kTheirQpn;
  for (const State state : {State::kReqReceived, State::kMraReqSent, State::kRepSent, State::kMraRepReceived,
                            State::kRepReceived, State::kMraRepSent}) {
    const uint64_t owner = make(state, way_to(2), ++their_id, ++qpn);
    const uint32_t old_id = their_id;
    receive(req_of(++their_id, 2, qpn), way_to(2));
    ASSERT_EQ(2u, events.size());
    EXPECT_EQ((Event{Told::kRejected, owner, kStale}), events[0]);
    EXPECT_EQ((Event{Told::kRequest, last_owner, kListener}), events[1]);
    const bool was_asked = state == State::kReqReceived || state == State::kMraReqSent;
    const bool has_rep = state == State::kRepReceived || state == State::kMraRepSent;
    expect_refused(kStale,
                   was_asked ? Answered::kReq
                   : has_rep ? Answered::kRep
                             : Answered::kOther,
                   old_id, ids[owner]);
    EXPECT_EQ(State::kIdle, state_of(owner));
  }
  for (const State state : {State::kEstablished, State::kDreqSent}) {
    const uint64_t owner = make(state, way_to(2), ++their_id, ++qpn);
    const uint32_t old_id = their_id;
    receive(req_of(++their_id, 2, qpn), way_to(2));
    ASSERT_EQ(2u, events.size());
    EXPECT_EQ((Event{Told::kDisconnected, owner, 1}), events[0]) << "nothing was said about its end";
    ASSERT_EQ(1u, sent.size());
    EXPECT_EQ(Attribute::kDreq, sent[0].envelope.attribute);
    EXPECT_EQ(old_id, sent[0].envelope.remote_id);
    EXPECT_EQ(State::kTimeWait, state_of(owner));
  }
  const uint64_t over = make(State::kTimeWait, way_to(2), ++their_id, ++qpn);
  receive(req_of(++their_id, 2, qpn), way_to(2));
  EXPECT_EQ((Events{{Told::kRequest, last_owner, kListener}}), events) << "it had ended before";
  EXPECT_EQ(State::kTimeWait, state_of(over));
}

TEST_F(Engine, ARepFromAQueuePairThatHasAConnection_EndsTheOldOne) {
  const uint64_t old = make(State::kEstablished, way_to(2));
  const uint64_t owner = make(State::kReqSent, way_to(2));
  receive(rep_of(kTheirId + 1, ids[owner], kTheirQpn), way_to(2));
  EXPECT_EQ((Events{{Told::kDisconnected, old, 1}, {Told::kReply, owner}}), events);
}

TEST_F(Engine, AQueuePairOfAnotherDevice_IsAnotherOne) {
  const uint64_t owner = make(State::kEstablished, way_to(2));
  ConnectionRequest request;
  request.service_id = kService;
  request.ca_guid = kTheirGuid + 1;
  request.qp_num = kTheirQpn;
  receive(write({Attribute::kReq, 1, kTheirId, 0}, request), way_to(3));
  EXPECT_EQ((Events{{Told::kRequest, last_owner, kListener}}), events);
  EXPECT_EQ(State::kEstablished, state_of(owner));
}

TEST_F(Engine, AnIdUsedAgain_IsAnotherConnection) {
  uint32_t their_id = kTheirId;
  for (const State state : {State::kTimeWait, State::kRejected}) {
    const uint64_t owner = make(state, way_to(2), ++their_id, 0);
    receive(req_of(their_id, 2, kTheirQpn + their_id), way_to(2));
    EXPECT_EQ((Events{{Told::kRequest, last_owner, kListener}}), events) << "the old one is over, and untouched";
    EXPECT_EQ(state, state_of(owner));
    receive(req_of(their_id, 2, kTheirQpn + their_id), way_to(2));
    EXPECT_TRUE(events.empty()) << "this is a repeat of the new one";
    constexpr int64_t kLongAfter = kNow + 100'000'000'000;
    engine.on_timer(kLongAfter);
    ASSERT_EQ(State::kIdle, state_of(owner));
    receive(req_of(their_id, 2, kTheirQpn + their_id), way_to(2));
    EXPECT_TRUE(events.empty()) << "also when the old one is forgotten";
  }
  const uint64_t owner = make(State::kReqReceived, way_to(2), ++their_id, 0);
  receive(req_of(their_id, 2, kTheirQpn + their_id), way_to(2));
  EXPECT_EQ((Events{{Told::kRejected, owner, kStale}, {Told::kRequest, last_owner, kListener}}), events);
}

// Letting go.

TEST_F(Engine, AReleasedRequest_IsTakenBack) {
  for (const State state : {State::kReqSent, State::kMraReqReceived}) {
    const uint64_t owner = make(state, way_to(2));
    engine.release(ids[owner], kNow);
    ASSERT_EQ(1u, sent.size());
    EXPECT_EQ(Attribute::kRej, sent[0].envelope.attribute);
    EXPECT_EQ(kTimeout, rejection_in(sent[0]).reason);
    EXPECT_EQ(0u, engine.connections());
  }
}

TEST_F(Engine, AReleasedSidrReq_IsForgotten) {
  const uint64_t owner = make(State::kSidrReqSent, way_to(2));
  engine.release(ids[owner], kNow);
  EXPECT_TRUE(sent.empty());
  EXPECT_EQ(0u, engine.connections());
  EXPECT_EQ(INT64_MAX, engine.deadline());
}

TEST_F(Engine, AReleasedRequestOfTheOtherEnd_IsRejected) {
  for (const State state : {State::kReqReceived, State::kMraReqSent, State::kRepReceived, State::kMraRepSent}) {
    const uint32_t their_id = kTheirId + static_cast<uint32_t>(state);
    const uint64_t owner = make(state, way_to(2), their_id, 0);
    engine.release(ids[owner], kNow);
    ASSERT_EQ(1u, sent.size());
    EXPECT_EQ(Attribute::kRej, sent[0].envelope.attribute);
    EXPECT_EQ(kConsumer, rejection_in(sent[0]).reason);
    EXPECT_EQ(their_id, sent[0].envelope.remote_id);
  }
}

TEST_F(Engine, AReleasedSidrReqOfTheOtherEnd_IsRejected) {
  const uint64_t owner = make(State::kSidrReqReceived, way_to(2));
  engine.release(ids[owner], kNow);
  ASSERT_EQ(1u, sent.size());
  EXPECT_EQ(Attribute::kSidrRep, sent[0].envelope.attribute);
  EXPECT_EQ(DatagramStatus::kRejected, read_datagram_reply(sent[0].mad).status);
}

TEST_F(Engine, AllAreReleased_EachOtherEndIsToldOnce) {
  make(State::kReqSent, way_to(2));
  make(State::kEstablished, way_to(3), kTheirId, 1);
  make(State::kReqReceived, way_to(4), kTheirId + 1, 2);
  make(State::kTimeWait, way_to(5), kTheirId + 2, 3);
  engine.release_all(kNow);
  std::map<uint8_t, Attribute> told;
  for (const Sent& message : sent) told[message.way.remote.raw[15]] = message.envelope.attribute;
  EXPECT_EQ(3u, sent.size());
  EXPECT_EQ((std::map<uint8_t, Attribute>{{2, Attribute::kRej}, {3, Attribute::kDreq}, {4, Attribute::kRej}}), told);
  EXPECT_TRUE(events.empty()) << "nobody is there to be told";
}

TEST_F(Engine, ACallInAnotherState_IsRefused) {
  EXPECT_EQ(EINVAL, engine.accept(0x300999, {}, kNow));
  EXPECT_EQ(EINVAL, engine.reject(0x300999, kConsumer, {}, kNow));
  EXPECT_EQ(EINVAL, engine.establish(0x300999, {}, kNow));
  EXPECT_EQ(EINVAL, engine.note_established(0x300999));
  EXPECT_EQ(EINVAL, engine.disconnect(0x300999, kNow));
  EXPECT_EQ(EINVAL, engine.answer_datagram(0x300999, {}, kNow));
  uint32_t their_id = kTheirId;
  for (const State state :
       {State::kReqSent, State::kMraReqReceived, State::kRepReceived, State::kMraRepSent, State::kReqReceived,
        State::kMraReqSent, State::kRepSent, State::kMraRepReceived, State::kEstablished, State::kDreqSent,
        State::kTimeWait, State::kRejected, State::kSidrReqSent, State::kSidrReqReceived, State::kSidrAnswered}) {
    const uint64_t owner = make(state, way_to(2), ++their_id, 0);
    const ConnectionId id = ids[owner];
    const auto is = [state](std::initializer_list<State> states) {
      return std::find(states.begin(), states.end(), state) != states.end();
    };
    const int name = static_cast<int>(state);
    const auto refuses = [&](std::initializer_list<State> taken_in, auto&& call) {
      if (is(taken_in)) return;
      EXPECT_EQ(EINVAL, call()) << name;
    };
    refuses({State::kReqReceived, State::kMraReqSent}, [&] { return engine.accept(id, {}, kNow); });
    refuses({State::kRepReceived, State::kMraRepSent}, [&] { return engine.establish(id, {}, kNow); });
    refuses({State::kRepSent, State::kMraRepReceived, State::kEstablished},
            [&] { return engine.note_established(id); });
    refuses({State::kSidrReqReceived}, [&] { return engine.answer_datagram(id, {}, kNow); });
    refuses({State::kReqReceived, State::kMraReqSent, State::kRepReceived, State::kMraRepSent, State::kRepSent,
             State::kMraRepReceived, State::kSidrReqReceived},
            [&] { return engine.reject(id, kConsumer, {}, kNow); });
    refuses({State::kEstablished, State::kRepSent, State::kMraRepReceived, State::kDreqSent, State::kTimeWait},
            [&] { return engine.disconnect(id, kNow); });
    EXPECT_EQ(state, engine.state(id)) << name;
    EXPECT_TRUE(sent.empty() && events.empty()) << name;
  }
}

TEST_F(Engine, DataOnAConnectionThatStands_IsNothingNew) {
  const uint64_t owner = make(State::kEstablished, way_to(2));
  EXPECT_EQ(EISCONN, engine.note_established(ids[owner]));
  EXPECT_TRUE(events.empty());
}

TEST_F(Engine, ADisconnectionUnderWay_NeedsNoSecondOne) {
  for (const State state : {State::kDreqSent, State::kTimeWait}) {
    const uint64_t owner = make(state, way_to(2), kTheirId + static_cast<uint32_t>(state), 0);
    EXPECT_EQ(0, engine.disconnect(ids[owner], kNow));
    EXPECT_TRUE(sent.empty());
  }
}

TEST_F(Engine, Disconnect_BeforeTheRtuCame_SendsADreq) {
  uint32_t their_id = kTheirId;
  for (const State state : {State::kRepSent, State::kMraRepReceived}) {
    const uint64_t owner = make(state, way_to(2), ++their_id, 0);
    EXPECT_EQ(0, engine.disconnect(ids[owner], kNow)) << static_cast<int>(state);
    ASSERT_EQ(1u, sent.size()) << static_cast<int>(state);
    EXPECT_EQ(Attribute::kDreq, sent[0].envelope.attribute);
    EXPECT_EQ(their_id, sent[0].envelope.remote_id);
    EXPECT_EQ(State::kDreqSent, state_of(owner));
  }
}

// Asking once more, where nobody had the service.

class EngineAsksAgain : public Engine {
 protected:
  uint64_t refused(State state = State::kReqSent) {
    const uint64_t owner = make(state, way_to(2));
    receive(rej_of(0, ids[owner], kInvalidService, Answered::kReq), way_to(2));
    EXPECT_EQ(State::kIdle, state_of(owner));
    sent.clear();
    return owner;
  }
};

TEST_F(EngineAsksAgain, TheQuestionIsTheSameElsewhere) {
  const uint64_t owner = make(State::kReqSent, way_to(2));
  const uint64_t same = refused();
  engine.release(ids[owner], kNow);
  sent.clear();
  EXPECT_EQ(0, engine.ask_again(ids[same], way_to(3), kNow));
  EXPECT_EQ(State::kReqSent, state_of(same));
  ASSERT_EQ(1u, sent.size());
  EXPECT_EQ(Attribute::kReq, sent[0].envelope.attribute);
  EXPECT_EQ(ids[same], sent[0].envelope.local_id);
  EXPECT_EQ(way_to(3), sent[0].way);
  EXPECT_EQ(kNow + from_code(16), engine.deadline()) << "its repeats begin anew";
  EXPECT_EQ(EINVAL, engine.ask_again(ids[same], way_to(3), kNow)) << "it is under way";
}

TEST_F(EngineAsksAgain, ADatagramQuestionToo) {
  const uint64_t owner = make(State::kSidrReqSent, way_to(2));
  DatagramReply reply;
  reply.status = DatagramStatus::kUnsupported;
  receive(write({Attribute::kSidrRep, 1, 0, ids[owner]}, reply, kService), way_to(2));
  sent.clear();
  EXPECT_EQ(0, engine.ask_again(ids[owner], way_to(3), kNow));
  EXPECT_EQ(State::kSidrReqSent, state_of(owner));
  ASSERT_EQ(1u, sent.size());
  EXPECT_EQ(Attribute::kSidrReq, sent[0].envelope.attribute);
}

TEST_F(EngineAsksAgain, OnlyWhoeverAskedAndHadNoAnswerDoes) {
  EXPECT_EQ(EINVAL, engine.ask_again(0x300999, way_to(3), kNow));
  const uint64_t answered = make(State::kRepReceived, way_to(2));
  receive(rej_of(kTheirId, ids[answered], kConsumer, Answered::kOther), way_to(2));
  ASSERT_EQ(State::kIdle, state_of(answered));
  sent.clear();
  EXPECT_EQ(EINVAL, engine.ask_again(ids[answered], way_to(3), kNow)) << "it had an answer";
  const uint64_t passive = make(State::kReqReceived, way_to(2), kTheirId + 1, 0);
  receive(rej_of(kTheirId + 1, ids[passive], kConsumer, Answered::kOther), way_to(2));
  ASSERT_EQ(State::kIdle, state_of(passive));
  EXPECT_EQ(EINVAL, engine.ask_again(ids[passive], way_to(3), kNow)) << "it was asked";
  EXPECT_TRUE(sent.empty());
}

// Deaths.

TEST_F(Engine, AProcessThatIsGone_EndsEachOfItsConnectionsInItsWay) {
  uint32_t their_id = kTheirId;
  for (const bool local : {true, false}) {
    const Way way = local ? way_to_slot(9, 3) : way_to(2);
    const auto gone = [&] {
      sent.clear();
      events.clear();
      local ? engine.peer_gone(9, 3, kNow) : engine.peer_gone(gid_of(2), 4791, kNow);
    };
    for (const auto& states : {kActiveStates, kPassiveStates})
      for (size_t i = 0; i < 4; ++i) {
        const uint64_t owner = make(states[i], way, ++their_id, 0);
        gone();
        EXPECT_EQ((Events{{Told::kRejected, owner, kConsumer}}), events) << static_cast<int>(states[i]);
        EXPECT_EQ(State::kIdle, state_of(owner));
      }
    for (const State state : {State::kEstablished, State::kDreqSent}) {
      const uint64_t owner = make(state, way, ++their_id, 0);
      gone();
      EXPECT_EQ((Events{{Told::kDisconnected, owner, 1}}), events);
      EXPECT_EQ(State::kTimeWait, state_of(owner));
    }
    for (const State state : {State::kSidrReqSent, State::kSidrReqReceived}) {
      const uint64_t owner = make(state, way, ++their_id, 0);
      gone();
      EXPECT_EQ((Events{{Told::kUnreachable, owner}}), events);
    }
    for (const State state : {State::kRejected, State::kSidrAnswered}) {
      const uint64_t owner = make(state, way, ++their_id, 0);
      gone();
      EXPECT_TRUE(events.empty());
      EXPECT_EQ(State::kIdle, state_of(owner));
    }
    const uint64_t owner = make(State::kTimeWait, way, ++their_id, 0);
    gone();
    EXPECT_TRUE(events.empty());
    EXPECT_EQ(State::kTimeWait, state_of(owner)) << "that is a matter of time";
    EXPECT_TRUE(sent.empty()) << "nobody is there to be told";
  }
}

TEST_F(Engine, ADeath_IsOfOneProcess) {
  Way standard = way_to(2);
  standard.of_nupa = false;
  const Way ways[] = {way_to(2),         way_to(3),         way_to(2, 4792),  standard,
                      way_to_slot(9, 3), way_to_slot(9, 4), way_to_slot(8, 3)};
  std::vector<uint64_t> owners;
  for (const Way& way : ways)
    owners.push_back(make(State::kEstablished, way, kTheirId + static_cast<uint32_t>(owners.size()), 0));
  engine.peer_gone(gid_of(2), 4791, kNow);
  EXPECT_EQ((Events{{Told::kDisconnected, owners[0], 1}}), events);
  events.clear();
  engine.peer_gone(9, 3, kNow);
  EXPECT_EQ((Events{{Told::kDisconnected, owners[4], 1}}), events);
}

TEST_F(Engine, AConfirmation_IsSentOnConnectionsThatStand) {
  Way standard = way_to(2);
  standard.of_nupa = false;
  uint32_t their_id = kTheirId;
  const uint64_t stands = make(State::kEstablished, way_to(2), ++their_id, 0);
  for (const Way& way : {way_to(3), way_to(2, 4792), standard, way_to_slot(9, 3)})
    make(State::kEstablished, way, ++their_id, 0);
  for (const State state : {State::kReqSent, State::kRepReceived, State::kReqReceived, State::kRepSent,
                            State::kDreqSent, State::kTimeWait, State::kRejected})
    make(state, way_to(2), ++their_id, 0);
  engine.confirm(gid_of(2), 4791);
  ASSERT_EQ(1u, sent.size());
  EXPECT_EQ(ids[stands], sent[0].envelope.local_id);
  EXPECT_EQ(Attribute::kRep, sent[0].envelope.attribute);
}

TEST_F(Engine, StandingWays_AreThoseOfConnectionsThatCameToAnAnswer) {
  Way standard = way_to(60);
  standard.of_nupa = false;
  uint32_t their_id = kTheirId;
  uint8_t host = 10;
  std::vector<uint8_t> wanted;
  for (const State state :
       {State::kReqSent, State::kMraReqReceived, State::kRepReceived, State::kMraRepSent, State::kReqReceived,
        State::kMraReqSent, State::kRepSent, State::kMraRepReceived, State::kEstablished, State::kDreqSent,
        State::kTimeWait, State::kRejected, State::kSidrReqSent, State::kSidrReqReceived}) {
    make(state, way_to(++host), ++their_id, 0);
    if (state >= State::kRepReceived && state <= State::kEstablished) wanted.push_back(host);
  }
  make(State::kEstablished, standard, ++their_id, 0);
  make(State::kEstablished, way_to_slot(9, 3), ++their_id, 0);
  make(State::kEstablished, way_to(50), ++their_id, 0);
  make(State::kEstablished, way_to(50), ++their_id, 0);
  make(State::kEstablished, way_to(50, 4792), ++their_id, 0);
  wanted.insert(wanted.end(), {50, 50});
  std::vector<uint8_t> found;
  for (const Way& way : engine.standing_ways()) found.push_back(way.remote.raw[15]);
  std::sort(found.begin(), found.end());
  EXPECT_EQ(wanted, found) << "each once";
}

// 12.11: service id resolution.

class EngineDatagrams : public Engine {
 protected:
  static Mad sidr_req(uint32_t id, uint64_t transaction = 1, uint64_t service = kService) {
    DatagramRequest request;
    request.service_id = service;
    return write({Attribute::kSidrReq, transaction, id, 0}, request);
  }
};

TEST_F(EngineDatagrams, ARepeatedQuestion_IsAskedOnce) {
  const uint64_t owner = make(State::kSidrReqReceived, way_to(2));
  receive(sidr_req(kTheirId), way_to(2));
  EXPECT_TRUE(sent.empty() && events.empty()) << "its answer is on its way";
  ASSERT_EQ(0, engine.answer_datagram(ids[owner], {}, kNow));
  receive(sidr_req(kTheirId), way_to(2));
  EXPECT_TRUE(events.empty());
  ASSERT_EQ(1u, sent.size()) << "the answer was lost";
  EXPECT_EQ(kTheirId, sent[0].envelope.remote_id);
}

TEST_F(EngineDatagrams, AQuestionWithAnotherNumberOrFromElsewhere_IsAnotherOne) {
  make(State::kSidrReqReceived, way_to(2));
  receive(sidr_req(kTheirId, 2), way_to(2));
  EXPECT_EQ((Events{{Told::kDatagramRequest, last_owner, kListener}}), events);
  receive(sidr_req(kTheirId, 2), way_to(3));
  EXPECT_EQ((Events{{Told::kDatagramRequest, last_owner, kListener}}), events);
  receive(sidr_req(kTheirId, 2), way_to_slot(9, 3));
  EXPECT_EQ((Events{{Told::kDatagramRequest, last_owner, kListener}}), events);
  receive(sidr_req(kTheirId, 2), way_to(2));
  EXPECT_TRUE(events.empty()) << "that one is known";
}

TEST_F(EngineDatagrams, AnUnknownService_IsSaidToBeUnsupported) {
  receive(sidr_req(kTheirId, 1, kService + 1), way_to(2));
  ASSERT_EQ(1u, sent.size());
  EXPECT_EQ(Attribute::kSidrRep, sent[0].envelope.attribute);
  EXPECT_EQ(DatagramStatus::kUnsupported, read_datagram_reply(sent[0].mad).status);
  EXPECT_EQ(kService + 1, read_service(sent[0].mad));
  EXPECT_EQ(0u, engine.connections());
}

TEST_F(EngineDatagrams, AnAnswer_IsForTheServiceThatWasAskedFor) {
  const uint64_t owner = make(State::kSidrReqSent, way_to(2));
  const auto rep = [&](uint64_t service) {
    return write({Attribute::kSidrRep, 1, 0, ids[owner]}, DatagramReply{}, service);
  };
  expect_ignored(owner, State::kSidrReqSent, rep(kService + 1));
  receive(rep(kService), way_to(2));
  EXPECT_EQ((Events{{Told::kDatagramReply, owner, 0}}), events);
  expect_ignored(owner, State::kIdle, rep(kService));
  const uint64_t connecting = make(State::kReqSent, way_to(2));
  expect_ignored(connecting, State::kReqSent,
                 write({Attribute::kSidrRep, 1, 0, ids[connecting]}, DatagramReply{}, kService));
}

// Annex A11: for which address.

Mad req_to(const Gid& address, uint8_t version, uint32_t id, uint64_t service = kIpPort) {
  ConnectionRequest request;
  request.service_id = service;
  request.ca_guid = kTheirGuid;
  request.private_data.bytes[1] = static_cast<std::byte>(version << 4);
  std::copy_n(reinterpret_cast<const std::byte*>(address.raw.data()), 16, &request.private_data.bytes[20]);
  request.private_data.length = request.private_data.room();
  return write({Attribute::kReq, 1, id, 0}, request);
}

class EngineListeners : public Engine {
 protected:
  /// The listener that hears of a request.
  uint64_t heard(const Gid& address, uint8_t version = 4, uint64_t service = kIpPort) {
    receive(req_to(address, version, ++id_, service), way_to(2));
    return events.empty() ? 0 : events[0].detail;
  }
  static ListenerAddress any() {
    ListenerAddress address;
    address.service_id = kIpPort;
    return address;
  }
  static ListenerAddress exact(uint8_t host) {
    ListenerAddress address = any();
    address.any_address = false;
    address.address = gid_of(host);
    return address;
  }
  uint32_t id_ = 0;
};

TEST_F(EngineListeners, TheExactAddressComesFirst_InEitherOrderOfListening) {
  engine.listen(1, any());
  engine.listen(2, exact(4));
  EXPECT_EQ(2u, heard(gid_of(4)));
  EXPECT_EQ(1u, heard(gid_of(5)));
  engine.unlisten(1);
  engine.unlisten(2);
  EXPECT_EQ(0u, heard(gid_of(4)));
  engine.listen(3, exact(4));
  engine.listen(4, any());
  EXPECT_EQ(3u, heard(gid_of(4)));
  EXPECT_EQ(4u, heard(gid_of(5)));
}

TEST_F(EngineListeners, TheExactAddressComesFirst_BesideARangeOfServices) {
  for (const bool exact_first : {true, false}) {
    ListenerAddress wide = any();
    wide.mask = ~uint64_t{0xff};
    ListenerAddress near = exact(4);
    near.mask = ~uint64_t{0xff};
    engine.listen(exact_first ? 1 : 2, exact_first ? near : wide);
    engine.listen(exact_first ? 2 : 1, exact_first ? wide : near);
    EXPECT_EQ(1u, heard(gid_of(4), 4, kIpPort + 1)) << exact_first;
    EXPECT_EQ(2u, heard(gid_of(5), 4, kIpPort + 1)) << exact_first;
    EXPECT_EQ(0u, heard(gid_of(4), 4, kIpPort + 0x100));
    engine.unlisten(1);
    EXPECT_EQ(2u, heard(gid_of(4), 4, kIpPort + 1)) << "the other one stays";
    engine.unlisten(2);
  }
}

TEST_F(EngineListeners, AListenerOfOneAddress_HearsOfNoOther) {
  engine.listen(1, exact(4));
  EXPECT_EQ(1u, heard(gid_of(4)));
  EXPECT_EQ(0u, heard(gid_of(5)));
  EXPECT_EQ(kInvalidService, rejection_in(sent.at(0)).reason);
  const Gid here = gid_of(4), elsewhere = gid_of(5);
  EXPECT_TRUE(engine.listens(kIpPort, &here));
  EXPECT_FALSE(engine.listens(kIpPort, &elsewhere));
  EXPECT_FALSE(engine.listens(kIpPort, nullptr)) << "a request that names no address";
  EXPECT_FALSE(engine.listens(kIpPort + 1, &here));
}

TEST_F(EngineListeners, AFamilyOfAddresses_HearsOfNoOther) {
  Gid six;
  six.raw[0] = 0x20;
  ListenerAddress v4 = any(), v6 = any();
  v4.only_v4 = v6.only_v6 = true;
  engine.listen(1, v4);
  EXPECT_EQ(1u, heard(gid_of(4)));
  EXPECT_EQ(0u, heard(six, 6));
  engine.unlisten(1);
  engine.listen(2, v6);
  EXPECT_EQ(0u, heard(gid_of(4)));
  EXPECT_EQ(2u, heard(six, 6));
  EXPECT_TRUE(engine.listens(kIpPort, nullptr));
}

TEST(Destination, IsThatOfTheHeaderOfAnIpService) {
  std::vector<std::byte> header(36);
  header[1] = std::byte{0x40};
  header[32] = std::byte{10};
  header[35] = std::byte{4};
  EXPECT_EQ(gid_of(4), destination_of(kIpPort, header));
  EXPECT_FALSE(destination_of(kService, header)) << "no port of IP";
  EXPECT_FALSE(destination_of(kIpPort, std::span(header).first(35))) << "cut short";
  EXPECT_FALSE(destination_of(kIpPort, {}));
  for (const uint8_t version : {0, 5, 7, 15}) {
    header[1] = static_cast<std::byte>(version << 4);
    EXPECT_FALSE(destination_of(kIpPort, header)) << int{version};
  }
  header[1] = std::byte{0x60};
  for (uint8_t i = 0; i < 16; ++i) header[20 + i] = static_cast<std::byte>(i + 1);
  const std::optional<Gid> six = destination_of(kIpPort, header);
  ASSERT_TRUE(six);
  for (uint8_t i = 0; i < 16; ++i) EXPECT_EQ(i + 1, six->raw[i]);
}

}  // namespace
}  // namespace nupa::cm::testing
