// SPDX-License-Identifier: Apache-2.0
// The communication manager's rules one by one (IBTA volume 1, chapter 12): how connections are established.
#include "connection_fixture.h"

namespace nupa::cm::testing {
namespace {

// 12.9.7: establishing.

TEST_F(Connections, Connect_SendsThreeMessages) {
  connected();
  EXPECT_EQ(3u, world.sent);
  EXPECT_EQ(1u, record_of(1).count(Event::kEstablished));
}

TEST_F(Connections, LostReq_IsRepeated) {
  to_drop[Attribute::kReq] = 3;
  connect();
  world.run(5'000'000'000);
  EXPECT_EQ(State::kEstablished, state(0));
  EXPECT_EQ(4u, sent[Attribute::kReq]);
}

TEST_F(Connections, LostRep_ReqIsRepeated) {
  to_drop[Attribute::kRep] = 2;
  connect();
  world.run(5'000'000'000);
  EXPECT_EQ(State::kEstablished, state(0));
  EXPECT_EQ(State::kEstablished, state(1));
  EXPECT_EQ(1u, record_of(0).count(Event::kReply));
}

TEST_F(Connections, LostRtu_RepIsAnsweredAgain) {
  to_drop[Attribute::kRtu] = 2;
  connect();
  world.run(5'000'000'000);
  EXPECT_EQ(State::kEstablished, state(1));
  EXPECT_EQ(3u, sent[Attribute::kRep]);
  EXPECT_EQ(3u, sent[Attribute::kRtu]);
}

TEST_F(Connections, NoAnswer_IsUnreachableAndThePeerIsNotified) {
  to_drop[Attribute::kReq] = 100;
  connect(2);
  world.run(60'000'000'000);
  EXPECT_EQ(1u, record_of(0).count(Event::kUnreachable));
  EXPECT_EQ(3u, sent[Attribute::kReq]);
  EXPECT_EQ(4, reason);
}

TEST_F(Connections, Timeout_RejHasNoMessageAsItsAnswer) {
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
  EXPECT_EQ(1u, record_of(1).count(Event::kRejected)) << "found by its sender's CA GUID and id";
}

TEST_F(Connections, UnknownService_IsRejectedWithReason8) {
  connect(5, kService + 1);
  world.run(3 * kTrip);
  EXPECT_EQ(1u, record_of(0).count(Event::kRejected));
  EXPECT_EQ(8, record_of(0).reason);
}

TEST_F(Connections, FullBacklog_ReqIsRepeated) {
  uint32_t asked = 0;
  server().admits = [&] { return ++asked > 3; };
  connect();
  world.run(10'000'000'000);
  EXPECT_EQ(4u, asked);
  EXPECT_EQ(State::kEstablished, state(0));
}

TEST_F(Connections, RepeatedReq_AfterARejection_IsRejectedAgain) {
  accepts = false;
  to_drop[Attribute::kRej] = 1;
  connect();
  world.run(kTrip);
  server().reject(passive, world.now);
  world.run(1'000'000'000);
  EXPECT_EQ(1u, record_of(0).count(Event::kRejected));
  EXPECT_EQ(28, record_of(0).reason);
  EXPECT_EQ(2u, sent[Attribute::kRej]);
}

TEST_F(Connections, RejectionAfterAMra_IsKeptForTheMrasTime) {
  accepts = false;
  connect();
  world.run(100'000'000);
  ASSERT_EQ(1u, sent[Attribute::kMra]);
  to_drop[Attribute::kRej] = 1;
  server().reject(passive, world.now);
  world.run(60'000'000'000);
  EXPECT_EQ(28, record_of(0).reason);
  EXPECT_EQ(1u, world.at(1).records.at(listener).count(Event::kRequest)) << "the repeat is none";
}

// 12.9.8.2 and 12.6.6: MRA.

TEST_F(Connections, Mra_ExtendsTheWaitForARep) {
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

TEST_F(Connections, Mra_ExtendsTheWaitForARtu) {
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

TEST_F(Connections, RepeatedReq_ConnectsOnce) {
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

TEST_F(Connections, RepeatedRep_IsAnsweredByItsReceiverOnly) {
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

TEST_F(Connections, DataBeforeTheRtu_EstablishesTheConnection) {
  to_drop[Attribute::kRtu] = 1;
  connect();
  world.run(3 * kTrip);
  ASSERT_EQ(State::kRepSent, state(1));
  server().note_established(passive);
  EXPECT_EQ(State::kEstablished, state(1));
  EXPECT_EQ(1u, record_of(1).count(Event::kEstablished));
  forge(0, write(envelope(0, Attribute::kRtu), Readiness{}));
  EXPECT_EQ(1u, record_of(1).count(Event::kEstablished));
}

TEST_F(Connections, Rep_ToAReleasedReq_IsRejected) {
  to_drop[Attribute::kRej] = 1;
  accepts = false;
  connect();
  world.run(kTrip);
  client().release(active, world.now);
  server().accept(passive, world.now);
  world.run(3 * kTrip);
  EXPECT_EQ(1u, record_of(1).count(Event::kRejected));
  EXPECT_EQ(6, record_of(1).reason);
}

// 12.8: alternate paths.

TEST_F(Connections, Lap_IsAnsweredByApr) {
  connected();
  Mad lap = write(envelope(0, Attribute::kLap), Readiness{});
  forge(0, lap);
  EXPECT_EQ(2, path_status) << "not supported";
  lap = write({Attribute::kLap, 5, 0x1234, 0x5678}, Readiness{});
  forge(0, lap);
  EXPECT_EQ(1, path_status) << "no such connection";
}

// 12.11: service id resolution.

TEST_F(Connections, LostSidrRep_SidrReqIsRepeated) {
  to_drop[Attribute::kSidrRep] = 2;
  server().after = [this](uint64_t owner, Event) {
    world.plan(0, [this, owner] { server().answer_datagram(owner, world.now); });
  };
  DatagramRequest request;
  request.service_id = kService;
  active = client().ask_datagram(request, world.way(0, 1), world.now);
  world.run(10'000'000'000);
  EXPECT_EQ(1u, record_of(0).count(Event::kDatagramReply));
  EXPECT_EQ(3u, sent[Attribute::kSidrReq]);
  EXPECT_EQ(1u, server().records.at(listener).count(Event::kDatagramRequest));
}

// Local communication ids.

TEST_F(Connections, IdsOfWaitingConnections_AreNotUsedAgain) {
  struct Silent final : MadOutput {
    void send(const Way&, const Mad&) override {}
  } silent;
  constexpr uint32_t kPrefix = 0x200000;  // with the bit above the number clear
  ConnectionEngine engine(kPrefix, 0, silent, client());
  ConnectionId kept = 0;
  ASSERT_EQ(0, engine.connect({}, world.way(0, 1), 1, 0, &kept));
  for (uint32_t i = 0; i < (1u << ConnectionEngine::kIdBits) + 2; ++i) {
    ConnectionId id = 0;
    ASSERT_EQ(0, engine.connect({}, world.way(0, 1), 2, 0, &id));
    ASSERT_NE(kept, id);
    ASSERT_EQ(kPrefix, id & ~0xfffffu);
    engine.release(id, 0);
  }
}

// Annex A11: which listener a request is for.

TEST(Listeners, Listen_SeveralMatch_TheMostSpecificAnswers) {
  struct Silent final : MadOutput {
    void send(const Way&, const Mad&) override {}
  } silent;
  Common common;
  common.broken = [](const std::string& rule) { FAIL() << rule; };
  common.intact = false;  // nobody signs
  Program program(common, 0x100000, 1, silent);
  const auto listen = [&](auto change) {
    ListenerAddress address;
    address.service_id = kIpService + 7;
    change(address);
    return program.listen(address);
  };
  const uint64_t wide = listen([](ListenerAddress& address) { address.mask = ~uint64_t{0xff}; });
  const uint64_t six = listen([](ListenerAddress& address) { address.only_v6 = true; });
  const uint64_t exact = listen([](ListenerAddress& address) {
    address.any_address = false;
    address.address = World::gid_of(4);
  });
  uint32_t id = 0;
  const auto listener_for = [&](uint64_t service, uint8_t version, const Gid& to) {
    ConnectionRequest request;
    request.service_id = service;
    request.ca_guid = 7;
    request.private_data.length = request.private_data.room();
    request.private_data.bytes[1] = static_cast<std::byte>(version << 4);
    std::memcpy(&request.private_data.bytes[20], to.raw.data(), 16);
    const std::map<uint64_t, Record> before = program.records;
    program.engine.receive(write({Attribute::kReq, 1, ++id, 0}, request), {}, 1);
    for (const auto& [owner, record] : before)
      if (program.records.at(owner).count(Event::kRequest) > record.count(Event::kRequest)) return owner;
    return uint64_t{0};
  };
  Gid ipv6;
  ipv6.raw = {0x20, 1};
  EXPECT_EQ(exact, listener_for(kIpService + 7, 4, World::gid_of(4)));
  EXPECT_EQ(wide, listener_for(kIpService + 7, 4, World::gid_of(5))) << "an IPv4 address";
  EXPECT_EQ(six, listener_for(kIpService + 7, 6, ipv6));
  EXPECT_EQ(wide, listener_for(kIpService + 8, 6, ipv6));
  EXPECT_EQ(0u, listener_for(kIpService + 0x107, 6, ipv6));
  program.unlisten(wide);
  EXPECT_EQ(0u, listener_for(kIpService + 7, 4, World::gid_of(5)));
}

}  // namespace
}  // namespace nupa::cm::testing
