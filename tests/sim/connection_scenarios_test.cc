// The communication manager's rules one by one: IBTA volume 1, 12.9. Two hosts; 0 connects to 1.
#include <gtest/gtest.h>

#include "connection_world.h"

namespace nupa::cm::testing {
namespace {

using State = ConnectionState;

constexpr uint64_t kService = 0x1234;
constexpr uint8_t kResponseTimeout = 14;  // 67 ms
constexpr int64_t kTrip = 1'000'000;      // more than a message takes

class Connections : public ::testing::Test {
 protected:
  Connections() {
    ListenerAddress address;
    address.service_id = kService;
    listener = server().listen(address);
    for (const size_t host : {0, 1})
      world.at(host).after = [this, host](uint64_t owner, Event event) { happened(host, owner, event); };
    world.drops = [this](const Message& message, const Envelope& envelope) {
      ++sent[envelope.attribute];
      if (envelope.attribute == Attribute::kRej) reason = read_rejection(message.mad).reason;
      if (envelope.attribute == Attribute::kApr) path_status = static_cast<uint8_t>(message.mad[24 + 9]);
      const auto found = to_drop.find(envelope.attribute);
      if (found == to_drop.end() || found->second == 0) return false;
      --found->second;
      return true;
    };
  }
  void happened(size_t host, uint64_t owner, Event event) {
    if (host == 1 && event == Event::kRequest) passive = owner;
    if (host == 1 && event == Event::kRequest && accepts)
      world.plan(0, [this] { server().accept(passive, world.now); });
    if (host == 0 && event == Event::kReply && establishes)
      world.plan(0, [this, owner] { client().establish(owner, world.now); });
  }
  Program& client() { return world.at(0); }
  Program& server() { return world.at(1); }
  uint64_t connect(uint8_t retries = 5, uint64_t service = kService, uint32_t qp_num = 0) {
    ConnectionRequest request;
    request.service_id = service;
    request.qp_num = qp_num;
    request.remote_response_timeout = request.local_response_timeout = kResponseTimeout;
    request.max_cm_retries = retries;
    return active = client().connect(request, world.way(0, 1), world.now);
  }
  void connected() {
    connect();
    world.run(3 * kTrip);
    ASSERT_EQ(State::kEstablished, state(0));
    ASSERT_EQ(State::kEstablished, state(1));
  }
  const Record& told(size_t host) { return *world.record(host == 0 ? active : passive); }
  State state(size_t host) { return world.at(host).engine.state(told(host).id); }
  /// Both programs let go: nothing is left.
  void TearDown() override {
    for (const size_t host : {0, 1})
      for (const auto& [owner, record] : std::map(world.at(host).records))
        if (!record.released && record.role != Role::kListener) world.at(host).release(owner, world.now);
    world.run();
    for (const size_t host : {0, 1}) {
      EXPECT_EQ(0u, world.at(host).engine.connections());
      EXPECT_EQ(INT64_MAX, world.at(host).engine.deadline());
    }
  }
  /// A message of the server's to the client, or the other way, as an end would send it.
  void forge(size_t from, const Mad& mad) { world.deliver({from, world.life(from), 1 - from, mad}); }
  Envelope envelope(size_t from, Attribute attribute) { return {attribute, 99, told(from).id, told(1 - from).id}; }

  World world{2, 1};
  uint64_t listener = 0;
  uint64_t active = 0;
  uint64_t passive = 0;
  bool accepts = true;
  bool establishes = true;
  std::map<Attribute, uint32_t> to_drop;
  std::map<Attribute, uint32_t> sent;
  uint16_t reason = 0;
  uint8_t path_status = 0xff;
};

// 12.9.7: establishing.

TEST_F(Connections, ThreeMessagesConnect) {
  connected();
  EXPECT_EQ(3u, world.sent);
  EXPECT_EQ(1u, told(1).count(Event::kEstablished));
}

TEST_F(Connections, ALostReqIsRepeated) {
  to_drop[Attribute::kReq] = 3;
  connect();
  world.run(5'000'000'000);
  EXPECT_EQ(State::kEstablished, state(0));
  EXPECT_EQ(4u, sent[Attribute::kReq]);
}

TEST_F(Connections, ALostRepIsAskedForAgain) {
  to_drop[Attribute::kRep] = 2;
  connect();
  world.run(5'000'000'000);
  EXPECT_EQ(State::kEstablished, state(0));
  EXPECT_EQ(State::kEstablished, state(1));
  EXPECT_EQ(1u, told(0).count(Event::kReply));
}

TEST_F(Connections, ALostRtuIsAnsweredAgain) {
  to_drop[Attribute::kRtu] = 2;
  connect();
  world.run(5'000'000'000);
  EXPECT_EQ(State::kEstablished, state(1));
  EXPECT_EQ(3u, sent[Attribute::kRep]);
  EXPECT_EQ(3u, sent[Attribute::kRtu]);
}

TEST_F(Connections, NoAnswerIsUnreachableAndTheOtherEndIsTold) {
  to_drop[Attribute::kReq] = 100;
  connect(2);
  world.run(60'000'000'000);
  EXPECT_EQ(1u, told(0).count(Event::kUnreachable));
  EXPECT_EQ(3u, sent[Attribute::kReq]);
  EXPECT_EQ(4, reason);
}

TEST_F(Connections, ATimeoutRejectsNoMessage) {
  // IBTA table 108: of a timeout, "no message" was rejected.
  std::optional<Answered> answered;
  world.watch = [&](const Message& message) {
    if (read_envelope(message.mad)->attribute == Attribute::kRej) answered = read_rejection(message.mad).answered;
  };
  accepts = false;
  connect();
  world.run(kTrip);
  client().release(active, world.now);
  world.run(kTrip);
  EXPECT_EQ(Answered::kOther, answered);
  EXPECT_EQ(1u, told(1).count(Event::kRejected)) << "found by its sender's CA GUID and id";
}

TEST_F(Connections, AnUnknownServiceIsReason8) {
  connect(5, kService + 1);
  world.run(3 * kTrip);
  EXPECT_EQ(1u, told(0).count(Event::kRejected));
  EXPECT_EQ(8, told(0).reason);
}

TEST_F(Connections, AFullBacklogIsAskedAgain) {
  uint32_t asked = 0;
  server().admits = [&] { return ++asked > 3; };
  connect();
  world.run(10'000'000'000);
  EXPECT_EQ(4u, asked);
  EXPECT_EQ(State::kEstablished, state(0));
}

TEST_F(Connections, ARejectionIsRepeatedToRepeats) {
  accepts = false;
  to_drop[Attribute::kRej] = 1;
  connect();
  world.run(kTrip);
  server().reject(passive, world.now);
  world.run(1'000'000'000);
  EXPECT_EQ(1u, told(0).count(Event::kRejected));
  EXPECT_EQ(28, told(0).reason);
  EXPECT_EQ(2u, sent[Attribute::kRej]);
}

TEST_F(Connections, ARejectionIsKnownForAsLongAsAMraHeldTheOtherEnd) {
  accepts = false;
  connect();
  world.run(100'000'000);
  ASSERT_EQ(1u, sent[Attribute::kMra]);
  to_drop[Attribute::kRej] = 1;
  server().reject(passive, world.now);
  world.run(60'000'000'000);
  EXPECT_EQ(28, told(0).reason);
  EXPECT_EQ(1u, world.at(1).records.at(listener).count(Event::kRequest)) << "the repeat is none";
}

// 12.9.8.2 and 12.6.6: MRA.

TEST_F(Connections, AMraExtendsTheWaitForARep) {
  accepts = false;
  connect(2);
  world.run(100'000'000);
  EXPECT_EQ(State::kMraReqReceived, state(0));
  EXPECT_EQ(State::kMraReqSent, state(1));
  EXPECT_EQ(2u, sent[Attribute::kReq]);
  world.run(15'000'000'000);
  EXPECT_EQ(2u, sent[Attribute::kReq]) << "the service timeout is 17 s";
  server().accept(passive, world.now);
  world.run(3 * kTrip);
  EXPECT_EQ(State::kEstablished, state(0));
}

TEST_F(Connections, AMraExtendsTheWaitForARtu) {
  establishes = false;
  connect(2);
  world.run(100'000'000);
  EXPECT_EQ(State::kMraRepSent, state(0));
  EXPECT_EQ(State::kMraRepReceived, state(1));
  world.run(15'000'000'000);
  EXPECT_EQ(2u, sent[Attribute::kRep]);
  client().establish(active, world.now);
  world.run(kTrip);
  EXPECT_EQ(State::kEstablished, state(1));
}

// 12.9.7.2: a repeated REQ in each state of its receiver.

TEST_F(Connections, ARepeatedReqNeverConnectsTwice) {
  Mad req{};
  world.watch = [&](const Message& message) {
    if (read_envelope(message.mad)->attribute == Attribute::kReq) req = message.mad;
  };
  accepts = establishes = false;
  const auto repeat = [&](Attribute answer, uint32_t answers) {
    const uint32_t before = sent[answer];
    const uint64_t all = world.sent;
    forge(0, req);
    EXPECT_EQ(answers, sent[answer] - before);
    EXPECT_EQ(answers, world.sent - all);
    EXPECT_EQ(1u, server().records.at(listener).count(Event::kRequest));
  };
  connect();
  world.run(kTrip);
  repeat(Attribute::kMra, 1);
  repeat(Attribute::kMra, 1);
  server().accept(passive, world.now);
  repeat(Attribute::kRep, 1);
  world.run(kTrip);
  client().establish(active, world.now);
  world.run(kTrip);
  ASSERT_EQ(State::kEstablished, state(1));
  repeat(Attribute::kRep, 0);
  to_drop[Attribute::kDrep] = 1;
  server().disconnect(passive, world.now);
  repeat(Attribute::kRej, 0);
  EXPECT_EQ(State::kDreqSent, state(1));
  world.run(100'000'000);
  EXPECT_EQ(State::kTimeWait, state(1));
  repeat(Attribute::kRej, 0);
  EXPECT_EQ(State::kTimeWait, state(1));
}

TEST_F(Connections, ARepeatedRepIsAnsweredByItsReceiverOnly) {
  connected();
  ConnectionReply reply;
  reply.ca_guid = server().guid;
  forge(1, write(envelope(1, Attribute::kRep), reply));
  EXPECT_EQ(2u, sent[Attribute::kRtu]);
  // Its sender expects none: were it answered by a REP, two such ends would never fall silent.
  const uint64_t before = world.sent;
  forge(0, write(envelope(0, Attribute::kRep), reply));
  EXPECT_EQ(0u, sent[Attribute::kRep] - 1);
  EXPECT_LE(world.sent, before + 1);
  EXPECT_EQ(State::kEstablished, state(1));
}

TEST_F(Connections, DataBeforeTheRtuEstablishes) {
  to_drop[Attribute::kRtu] = 1;
  connect();
  world.run(3 * kTrip);
  ASSERT_EQ(State::kRepSent, state(1));
  server().note_established(passive);
  EXPECT_EQ(State::kEstablished, state(1));
  EXPECT_EQ(1u, told(1).count(Event::kEstablished));
  forge(0, write(envelope(0, Attribute::kRtu), Readiness{}));
  EXPECT_EQ(1u, told(1).count(Event::kEstablished));
}

TEST_F(Connections, ARepToAReleasedReqIsRejected) {
  to_drop[Attribute::kRej] = 1;
  accepts = false;
  connect();
  world.run(kTrip);
  client().release(active, world.now);
  server().accept(passive, world.now);
  world.run(3 * kTrip);
  EXPECT_EQ(1u, told(1).count(Event::kRejected));
  EXPECT_EQ(6, told(1).reason);
}

// 12.9.6: what was accepted and is taken back, while the other end may take itself for connected.

TEST_F(Connections, AnAcceptedConnectionThatIsReleasedEndsAtBothEnds) {
  to_drop[Attribute::kRtu] = 1;
  to_drop[Attribute::kRej] = 1;
  connect();
  world.run(3 * kTrip);
  ASSERT_EQ(State::kEstablished, state(0));
  server().release(passive, world.now);
  world.run(10'000'000'000);
  EXPECT_EQ(1u, told(0).count(Event::kDisconnected));
}

TEST_F(Connections, AnAcceptedConnectionThatIsRejectedEndsAtBothEnds) {
  to_drop[Attribute::kRtu] = 1;
  to_drop[Attribute::kRej] = 1;
  connect();
  world.run(3 * kTrip);
  server().reject(passive, world.now);
  world.run(10'000'000'000);
  EXPECT_EQ(1u, told(0).count(Event::kDisconnected));
  EXPECT_EQ(0u, told(1).count(Event::kDisconnected)) << "its own program is told nothing more";
}

TEST_F(Connections, ADreqEndsAConnectionThatIsNotEstablishedYet) {
  establishes = false;
  connect();
  world.run(3 * kTrip);
  ASSERT_EQ(State::kRepReceived, state(0));
  server().disconnect(passive, world.now);
  world.run(3 * kTrip);
  EXPECT_EQ(1u, told(0).count(Event::kRejected));
  EXPECT_EQ(1u, told(1).count(Event::kDisconnected));
}

TEST_F(Connections, ADreqThatOvertakesTheRepEndsTheConnection) {
  to_drop[Attribute::kRep] = 1;
  connect();
  world.run(3 * kTrip);
  ASSERT_EQ(State::kReqSent, state(0));
  server().disconnect(passive, world.now);
  world.run(3 * kTrip);
  EXPECT_EQ(1u, told(0).count(Event::kRejected));
  world.run(60'000'000'000);
  EXPECT_EQ(1u, server().records.at(listener).count(Event::kRequest));
}

TEST_F(Connections, ARtuForNobodyIsRejected) {
  // All RTUs are lost and the REJ too, but for a RTU that comes late.
  to_drop[Attribute::kRtu] = 100;
  to_drop[Attribute::kRej] = 1;
  connect(1);
  world.run(60'000'000'000);
  ASSERT_EQ(State::kEstablished, state(0));
  EXPECT_EQ(1u, told(1).count(Event::kUnreachable));
  forge(0, write(envelope(0, Attribute::kRtu), Readiness{}));
  world.run(kTrip);
  EXPECT_EQ(1u, told(0).count(Event::kDisconnected));
}

// 12.9.8.3.1: stale connections.

TEST_F(Connections, AReqFromAQueuePairThatIsConnectedEndsTheOldConnection) {
  connect(5, kService, 77);
  world.run(3 * kTrip);
  const uint64_t old_active = active;
  const uint64_t old_passive = passive;
  connect(5, kService, 77);
  world.run(10 * kTrip);
  EXPECT_EQ(1u, world.record(old_passive)->count(Event::kDisconnected));
  EXPECT_EQ(1u, world.record(old_active)->count(Event::kDisconnected)) << "it is told by a DREQ";
  EXPECT_EQ(State::kEstablished, state(0));
  EXPECT_EQ(State::kEstablished, state(1));
}

TEST_F(Connections, AnotherLifeOfAProcessEndsTheConnectionsOfTheFirst) {
  connect(5, kService, 77);
  world.run(3 * kTrip);
  const uint64_t old_passive = passive;
  world.kill(0);
  world.start(0);
  client().after = [this](uint64_t owner, Event event) { happened(0, owner, event); };
  connect(5, kService, 77);
  world.run(10 * kTrip);
  EXPECT_EQ(1u, world.record(old_passive)->count(Event::kDisconnected));
  EXPECT_EQ(State::kEstablished, state(1));
}

TEST_F(Connections, AReqWithAnIdThatIsConnectedIsOfAnotherConnection) {
  Mad req{};
  world.watch = [&](const Message& message) {
    if (read_envelope(message.mad)->attribute == Attribute::kReq) req = message.mad;
  };
  connected();
  const uint64_t old_passive = passive;
  req[15] ^= std::byte{0xff};  // the transaction
  forge(0, req);
  EXPECT_EQ(1u, world.record(old_passive)->count(Event::kDisconnected));
  EXPECT_EQ(2u, server().records.at(listener).count(Event::kRequest));
  world.run(10 * kTrip);
  EXPECT_EQ(1u, told(1).count(Event::kRejected)) << "its sender wants no second one";
}

// 12.9.8: who is not the other end says nothing about a connection.

TEST_F(Connections, MessagesOfStrangersEndNothing) {
  connected();
  const auto strange = [&](Attribute attribute, uint32_t id) { return Envelope{attribute, 7, id, told(1).id}; };
  for (const uint32_t id : {0u, 0x123456u}) {
    forge(0, write(strange(Attribute::kDreq, id), Disconnection{}));
    Rejection rejection;
    rejection.reason = static_cast<uint16_t>(RejectReason::kConsumer);
    forge(0, write(strange(Attribute::kRej, id), rejection));
    forge(0, write(strange(Attribute::kRep, id), ConnectionReply{}));
    forge(0, write(strange(Attribute::kDrep, id), Readiness{}));
    forge(0, write(strange(Attribute::kMra, id), Delay{}));
  }
  EXPECT_EQ(State::kEstablished, state(1));
}

// 12.9.9: disconnecting.

TEST_F(Connections, ALostDreqIsRepeated) {
  connected();
  to_drop[Attribute::kDreq] = 2;
  client().disconnect(active, world.now);
  world.run(1'000'000'000);
  EXPECT_EQ(1u, told(0).count(Event::kDisconnected));
  EXPECT_EQ(1u, told(1).count(Event::kDisconnected));
}

TEST_F(Connections, ALostDrepIsAskedForAgain) {
  connected();
  to_drop[Attribute::kDrep] = 2;
  client().disconnect(active, world.now);
  world.run(1'000'000'000);
  EXPECT_EQ(1u, told(0).count(Event::kDisconnected));
  EXPECT_EQ(1u, told(1).count(Event::kDisconnected));
  EXPECT_EQ(3u, sent[Attribute::kDreq]);
}

TEST_F(Connections, BothEndsDisconnectAtOnce) {
  connected();
  client().disconnect(active, world.now);
  server().disconnect(passive, world.now);
  world.run(10'000'000'000);
  for (const size_t host : {0, 1}) {
    EXPECT_EQ(1u, told(host).count(Event::kDisconnected));
    EXPECT_EQ(1u, told(host).count(Event::kTimeWaitExit));
  }
  EXPECT_EQ(7u, world.sent) << "two DREQ, two DREP";
}

TEST_F(Connections, ADreqOfAnUnknownConnectionIsAnswered) {
  connected();
  const Mad dreq = write({Attribute::kDreq, 5, 0x1234, 0x5678}, Disconnection{});
  forge(0, dreq);
  EXPECT_EQ(1u, sent[Attribute::kDrep]);
  EXPECT_EQ(State::kEstablished, state(1));
}

TEST_F(Connections, AReleasedConnectionIsDisconnectedAsOftenAsItTakes) {
  connected();
  to_drop[Attribute::kDreq] = 3;
  client().release(active, world.now);
  world.run(10'000'000'000);
  EXPECT_EQ(1u, told(1).count(Event::kDisconnected));
}

TEST_F(Connections, OfAProcessThatIsGoneItsLocalConnectionsEnd) {
  connected();
  server().engine.peer_gone(1, world.life(0), world.now);
  EXPECT_EQ(State::kEstablished, state(1)) << "packets come from no process of this host";
}

// 12.8: alternate paths.

TEST_F(Connections, ALapIsAnsweredByApr) {
  connected();
  Mad lap = write(envelope(0, Attribute::kLap), Readiness{});
  forge(0, lap);
  EXPECT_EQ(2, path_status) << "not supported";
  lap = write({Attribute::kLap, 5, 0x1234, 0x5678}, Readiness{});
  forge(0, lap);
  EXPECT_EQ(1, path_status) << "no such connection";
}

// 12.11: service id resolution.

TEST_F(Connections, ALostSidrRepIsAskedForAgain) {
  to_drop[Attribute::kSidrRep] = 2;
  server().after = [this](uint64_t owner, Event) {
    world.plan(0, [this, owner] { server().answer_datagram(owner, world.now); });
  };
  DatagramRequest request;
  request.service_id = kService;
  active = client().ask_datagram(request, world.way(0, 1), world.now);
  world.run(10'000'000'000);
  EXPECT_EQ(1u, told(0).count(Event::kDatagramReply));
  EXPECT_EQ(3u, sent[Attribute::kSidrReq]);
  EXPECT_EQ(1u, server().records.at(listener).count(Event::kDatagramRequest));
}

// Local communication ids.

TEST_F(Connections, NoIdIsUsedAgainWhileItsConnectionWaits) {
  struct Silent final : MadOutput {
    void send(const Way&, const Mad&) override {}
  } silent;
  ConnectionEngine engine(0x100000, 0, silent, client());
  ConnectionId kept = 0;
  ASSERT_EQ(0, engine.connect({}, world.way(0, 1), 1, 0, &kept));
  for (uint32_t i = 0; i < (1u << ConnectionEngine::kIdBits) + 2; ++i) {
    ConnectionId id = 0;
    ASSERT_EQ(0, engine.connect({}, world.way(0, 1), 2, 0, &id));
    ASSERT_NE(kept, id);
    ASSERT_EQ(0x100000u, id & ~0xfffffu);
    engine.release(id, 0);
  }
}

}  // namespace
}  // namespace nupa::cm::testing
