// SPDX-License-Identifier: Apache-2.0
// The communication manager's rules one by one (IBTA volume 1, 12.9): the end of connections.
#include "connection_fixture.h"

namespace nupa::cm::testing {
namespace {

// 12.9.6: what was accepted and is taken back, while the other end may take itself for connected.

TEST_F(Connections, Release_OfAnAcceptedConnection_EndsItAtBothEnds) {
  to_drop[Attribute::kRtu] = 1;
  to_drop[Attribute::kRej] = 1;
  connect();
  world.run(3 * kTrip);
  ASSERT_EQ(State::kEstablished, state(0));
  server().release(passive, world.now);
  world.run(10'000'000'000);
  EXPECT_EQ(1u, record_of(0).count(Event::kDisconnected));
}

TEST_F(Connections, Reject_OfAnAcceptedConnection_EndsItAtBothEnds) {
  to_drop[Attribute::kRtu] = 1;
  to_drop[Attribute::kRej] = 1;
  connect();
  world.run(3 * kTrip);
  server().reject(passive, world.now);
  world.run(10'000'000'000);
  EXPECT_EQ(1u, record_of(0).count(Event::kDisconnected));
  EXPECT_EQ(0u, record_of(1).count(Event::kDisconnected)) << "its own program gets no further event";
}

TEST_F(Connections, Dreq_BeforeTheRtu_EndsTheConnection) {
  establishes = false;
  connect();
  world.run(3 * kTrip);
  ASSERT_EQ(State::kRepReceived, state(0));
  server().disconnect(passive, world.now);
  world.run(3 * kTrip);
  EXPECT_EQ(1u, record_of(0).count(Event::kRejected));
  EXPECT_EQ(1u, record_of(1).count(Event::kDisconnected));
}

TEST_F(Connections, Dreq_BeforeTheRep_EndsTheConnection) {
  to_drop[Attribute::kRep] = 1;
  connect();
  world.run(3 * kTrip);
  ASSERT_EQ(State::kReqSent, state(0));
  server().disconnect(passive, world.now);
  world.run(3 * kTrip);
  EXPECT_EQ(1u, record_of(0).count(Event::kRejected));
  world.run(60'000'000'000);
  EXPECT_EQ(1u, server().records.at(listener).count(Event::kRequest));
}

TEST_F(Connections, Rtu_ForNoConnection_IsRejected) {
  // All RTUs are lost and the REJ too, but for a RTU that comes late.
  to_drop[Attribute::kRtu] = 100;
  to_drop[Attribute::kRej] = 1;
  connect(1);
  world.run(60'000'000'000);
  ASSERT_EQ(State::kEstablished, state(0));
  EXPECT_EQ(1u, record_of(1).count(Event::kUnreachable));
  forge(0, write(envelope(0, Attribute::kRtu), Readiness{}));
  world.run(kTrip);
  EXPECT_EQ(1u, record_of(0).count(Event::kDisconnected));
}

// 12.9.8.3.1: stale connections.

TEST_F(Connections, Req_FromAConnectedQueuePair_EndsTheOldConnection) {
  connect(5, kService, 77);
  world.run(3 * kTrip);
  const uint64_t old_active = active;
  const uint64_t old_passive = passive;
  connect(5, kService, 77);
  world.run(10 * kTrip);
  EXPECT_EQ(1u, world.record(old_passive)->count(Event::kDisconnected));
  EXPECT_EQ(1u, world.record(old_active)->count(Event::kDisconnected)) << "a DREQ ends it";
  EXPECT_EQ(State::kEstablished, state(0));
  EXPECT_EQ(State::kEstablished, state(1));
}

TEST_F(Connections, Req_FromANewProcessAtTheSameAddress_EndsTheOldConnections) {
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

// The program at `dead` dies, and another one has its address and port before the other end has missed it.
TEST_F(Connections, Confirmation_ToANewProcessAtTheSameAddress_EndsTheOldConnection) {
  for (const size_t dead : {0, 1}) {
    connected();
    const uint64_t old = dead == 0 ? passive : active;
    world.kill(dead);
    world.start(dead);
    world.at(dead).after = [this, dead](uint64_t owner, Event event) { happened(dead, owner, event); };
    world.run(10 * kTrip);
    EXPECT_EQ(0u, world.record(old)->count(Event::kDisconnected)) << "nothing tells it";
    world.at(1 - dead).engine.confirm(World::gid_of(dead), World::kPort);
    world.run(10 * kTrip);
    EXPECT_EQ(1u, world.record(old)->count(Event::kDisconnected));
  }
}

TEST_F(Connections, Confirmation_OfAKnownConnection_ChangesNothing) {
  connected();
  const Record before[] = {record_of(0), record_of(1)};
  for (const size_t host : {0, 1}) world.at(host).engine.confirm(World::gid_of(1 - host), World::kPort);
  world.run(10 * kTrip);
  for (const size_t host : {0, 1}) {
    EXPECT_EQ(State::kEstablished, state(host));
    EXPECT_EQ(before[host].count(Event::kEstablished), record_of(host).count(Event::kEstablished));
    EXPECT_EQ(0u, record_of(host).count(Event::kDisconnected));
  }
  EXPECT_EQ(0u, sent[Attribute::kRej]);
}

TEST_F(Connections, Req_WithAConnectedId_IsANewConnection) {
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
  EXPECT_EQ(1u, record_of(1).count(Event::kRejected)) << "its sender wants no second one";
}

// 12.9.8: who is not the other end says nothing about a connection.

TEST_F(Connections, MessagesOfUnknownPeers_EndNoConnection) {
  connected();
  const auto strange = [&](Attribute attribute, uint32_t id) { return Envelope{attribute, 7, id, record_of(1).id}; };
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

TEST_F(Connections, LostDreq_IsRepeated) {
  connected();
  to_drop[Attribute::kDreq] = 2;
  client().disconnect(active, world.now);
  world.run(1'000'000'000);
  EXPECT_EQ(1u, record_of(0).count(Event::kDisconnected));
  EXPECT_EQ(1u, record_of(1).count(Event::kDisconnected));
}

TEST_F(Connections, LostDrep_DreqIsRepeated) {
  connected();
  to_drop[Attribute::kDrep] = 2;
  client().disconnect(active, world.now);
  world.run(1'000'000'000);
  EXPECT_EQ(1u, record_of(0).count(Event::kDisconnected));
  EXPECT_EQ(1u, record_of(1).count(Event::kDisconnected));
  EXPECT_EQ(3u, sent[Attribute::kDreq]);
}

TEST_F(Connections, Disconnect_BothEndsAtOnce_EndsTheConnection) {
  connected();
  client().disconnect(active, world.now);
  server().disconnect(passive, world.now);
  world.run(10'000'000'000);
  for (const size_t host : {0, 1}) {
    EXPECT_EQ(1u, record_of(host).count(Event::kDisconnected));
    EXPECT_EQ(1u, record_of(host).count(Event::kTimeWaitExit));
  }
  EXPECT_EQ(7u, world.sent) << "two DREQ, two DREP";
}

TEST_F(Connections, Dreq_OfAnUnknownConnection_IsAnswered) {
  connected();
  const Mad dreq = write({Attribute::kDreq, 5, 0x1234, 0x5678}, Disconnection{});
  forge(0, dreq);
  EXPECT_EQ(1u, sent[Attribute::kDrep]);
  EXPECT_EQ(State::kEstablished, state(1));
}

TEST_F(Connections, Release_LostDreqs_AreRepeated) {
  connected();
  to_drop[Attribute::kDreq] = 3;
  client().release(active, world.now);
  world.run(10'000'000'000);
  EXPECT_EQ(1u, record_of(1).count(Event::kDisconnected));
}

TEST_F(Connections, ProcessExits_ItsLocalConnections_End) {
  connected();
  server().engine.peer_exited(1, world.life(0), world.now);
  EXPECT_EQ(State::kEstablished, state(1)) << "packets come from no process of this host";
}

TEST_F(Connections, ProcessExits_ItsPeersAreDisconnectedWithoutMessages) {
  world.near_hosts = true;
  connected();
  const uint64_t life = world.life(0);
  server().engine.peer_exited(1, life + 1, world.now);
  EXPECT_EQ(State::kEstablished, state(1)) << "it was another life";
  server().engine.peer_exited(1, life, world.now);
  EXPECT_EQ(1u, record_of(1).count(Event::kDisconnected));
  EXPECT_EQ(State::kTimeWait, state(1));
}

}  // namespace
}  // namespace nupa::cm::testing
