// SPDX-License-Identifier: Apache-2.0
// How often messages of the communication manager are repeated, and when: IBTA volume 1, 12.7 and 12.9. Time is
// simulated, so every count and every moment is exact.
#include "connection_fixture.h"

namespace nupa::cm::testing {
namespace {

constexpr uint32_t kAll = 1000;  ///< messages that get lost

constexpr int64_t time_of(uint8_t code) { return int64_t{4096} << code; }
constexpr uint8_t kLongestCode = 20, kShortestCode = 12;

/// When a message leaves that nobody answers, and when its sender gives up: each pause is twice the one before, and
/// none is longer than 4.3 s.
struct Schedule {
  std::vector<int64_t> sent;
  int64_t given_up = 0;
};
Schedule schedule_of(int64_t first, uint8_t code, uint32_t retries) {
  Schedule schedule;
  int64_t pause = time_of(code);
  schedule.given_up = first;
  for (uint32_t i = 0; i <= retries; ++i) {
    schedule.sent.push_back(schedule.given_up);
    schedule.given_up += pause;
    pause = std::min(2 * pause, time_of(kLongestCode));
  }
  return schedule;
}

class ConnectionCounts : public Connections {
 protected:
  /// Until `event` has come at `host`.
  int64_t when(size_t host, Event event) {
    world.run();
    const std::vector<int64_t>& times = told_at[{host, event}];
    EXPECT_EQ(1u, times.size());
    return times.empty() ? 0 : times.front();
  }
};

// 12.7.24 and 12.7.27: Max CM Retries and the response timeouts.

TEST_F(ConnectionCounts, AReqWithoutAnswer_IsSentOnceAndRetriesTimes) {
  to_drop[Attribute::kReq] = kAll;
  for (const uint8_t retries : {0, 1, 2, 5, 15}) {
    sent_at.clear();
    told_at.clear();
    const Schedule schedule = schedule_of(world.now, kResponseTimeout, retries);
    connect(retries);
    EXPECT_EQ(schedule.given_up, when(0, Event::kUnreachable)) << int{retries};
    EXPECT_EQ(schedule.sent, sent_at[Attribute::kReq]) << int{retries};
    EXPECT_EQ(1u, sent_at[Attribute::kRej].size()) << "the peer is notified";
  }
}

TEST_F(ConnectionCounts, AReqsRetryInterval_IsThePeersResponseTimeout_WithinBounds) {
  to_drop[Attribute::kReq] = kAll;
  for (const auto& [code, effective] : {std::pair<uint8_t, uint8_t>{0, kShortestCode},
                                        {kShortestCode - 1, kShortestCode},
                                        {kShortestCode + 1, kShortestCode + 1},
                                        {kLongestCode - 1, kLongestCode - 1},
                                        {kLongestCode + 1, kLongestCode},
                                        {31, kLongestCode}}) {
    sent_at.clear();
    told_at.clear();
    const Schedule schedule = schedule_of(world.now, effective, 2);
    ConnectionRequest request = request_of(2);
    request.remote_response_timeout = code;
    connect(request);
    EXPECT_EQ(schedule.given_up, when(0, Event::kUnreachable)) << int{code};
    EXPECT_EQ(schedule.sent, sent_at[Attribute::kReq]) << int{code};
  }
}

TEST_F(ConnectionCounts, ARepWithoutAnswer_IsSentAsOftenAndWhenTheReqAsks) {
  to_drop[Attribute::kRtu] = kAll;
  for (const uint8_t retries : {0, 1, 3}) {
    sent_at.clear();
    told_at.clear();
    ConnectionRequest request = request_of(retries);
    request.local_response_timeout = kResponseTimeout + 2;
    connect(request);
    const int64_t unreachable = when(1, Event::kUnreachable);
    ASSERT_FALSE(sent_at[Attribute::kRep].empty());
    const Schedule schedule = schedule_of(sent_at[Attribute::kRep].front(), kResponseTimeout + 2, retries);
    EXPECT_EQ(schedule.given_up, unreachable) << int{retries};
    EXPECT_EQ(schedule.sent, sent_at[Attribute::kRep]) << int{retries};
    EXPECT_EQ(1u, sent_at[Attribute::kReq].size());
    EXPECT_EQ(1u, record_of(0).count(Event::kDisconnected)) << "the timeout reaches it";
  }
}

TEST_F(ConnectionCounts, ADreqWithoutAnswer_IsSentOnceAndRetriesTimes) {
  to_drop[Attribute::kDreq] = kAll;
  for (const uint8_t retries : {0, 2, 15}) {
    connect(retries);
    world.run(3 * kTrip);
    ASSERT_EQ(State::kEstablished, state(0));
    sent_at.clear();
    told_at.clear();
    const Schedule schedule = schedule_of(world.now, kResponseTimeout, retries);
    client().disconnect(active, world.now);
    EXPECT_EQ(schedule.given_up, when(0, Event::kDisconnected)) << int{retries};
    EXPECT_EQ(schedule.sent, sent_at[Attribute::kDreq]) << int{retries};
    EXPECT_EQ(State::kEstablished, state(1)) << "it was told nothing";
    EXPECT_TRUE(record_of(0).silent);
    server().release(passive, world.now);
    world.run();
  }
}

TEST_F(ConnectionCounts, AfterRepeatsOfTheReq_ADreqHasAllOfItsOwn) {
  to_drop[Attribute::kReq] = 2;
  connect(3);
  world.run(1'000'000'000);
  ASSERT_EQ(State::kEstablished, state(0));
  ASSERT_EQ(3u, sent[Attribute::kReq]);
  to_drop[Attribute::kDreq] = kAll;
  const Schedule schedule = schedule_of(world.now, kResponseTimeout, 3);
  client().disconnect(active, world.now);
  EXPECT_EQ(schedule.given_up, when(0, Event::kDisconnected));
  EXPECT_EQ(schedule.sent, sent_at[Attribute::kDreq]);
}

TEST_F(ConnectionCounts, ADreqThatIsAnswered_IsReportedAsAnswered) {
  connected();
  client().disconnect(active, world.now);
  world.run(kTrip);
  EXPECT_EQ(1u, record_of(0).count(Event::kDisconnected));
  EXPECT_FALSE(record_of(0).silent);
  EXPECT_FALSE(record_of(1).silent);
}

TEST_F(ConnectionCounts, ASidrReqWithoutAnswer_IsSentOnceAndRetriesTimes) {
  to_drop[Attribute::kSidrReq] = kAll;
  for (const uint8_t retries : {0, 3}) {
    sent_at.clear();
    told_at.clear();
    const Schedule schedule = schedule_of(world.now, kResponseTimeout, retries);
    DatagramRequest request;
    request.service_id = kService;
    request.response_timeout = kResponseTimeout;
    request.max_cm_retries = retries;
    active = client().ask_datagram(request, world.way(0, 1), world.now);
    EXPECT_EQ(schedule.given_up, when(0, Event::kUnreachable)) << int{retries};
    EXPECT_EQ(schedule.sent, sent_at[Attribute::kSidrReq]) << int{retries};
    EXPECT_EQ(0u, sent_at[Attribute::kRej].size()) << "SIDR knows no REJ";
  }
}

// What has no owner any more is disconnected, but not for as long as an owner would wait.

TEST_F(ConnectionCounts, AReleasedConnection_SendsFiveDreqAtMost) {
  to_drop[Attribute::kDreq] = kAll;
  for (const auto& [retries, repeats] : {std::pair<uint8_t, uint32_t>{2, 2}, {4, 4}, {5, 4}, {15, 4}}) {
    connect(retries);
    world.run(3 * kTrip);
    sent_at.clear();
    const Schedule schedule = schedule_of(world.now, kResponseTimeout, repeats);
    client().release(active, world.now);
    world.run();
    EXPECT_EQ(schedule.sent, sent_at[Attribute::kDreq]) << int{retries};
    server().release(passive, world.now);
    world.run();
  }
}

TEST_F(ConnectionCounts, AConnectionReleasedWhileItDisconnects_SendsFiveDreqAtMost) {
  to_drop[Attribute::kDreq] = kAll;
  connect(15);
  world.run(3 * kTrip);
  sent_at.clear();
  const Schedule schedule = schedule_of(world.now, kResponseTimeout, kOrphanRetries);
  client().disconnect(active, world.now);
  world.run(kTrip);
  client().release(active, world.now);
  world.run();
  EXPECT_EQ(schedule.sent, sent_at[Attribute::kDreq]);
}

TEST_F(ConnectionCounts, AnAcceptedConnectionTakenBack_SendsOneRejAndFiveDreqAtMost) {
  to_drop[Attribute::kRtu] = to_drop[Attribute::kRej] = to_drop[Attribute::kDreq] = kAll;
  connect(15);
  world.run(3 * kTrip);
  ASSERT_EQ(State::kRepSent, state(1));
  sent_at.clear();
  const Schedule schedule = schedule_of(world.now, kResponseTimeout, kOrphanRetries);
  server().reject(passive, world.now);
  world.run();
  EXPECT_EQ(1u, sent_at[Attribute::kRej].size());
  EXPECT_EQ(schedule.sent, sent_at[Attribute::kDreq]);
}

// 12.6.6: a MRA.

TEST_F(ConnectionCounts, AMra_DelaysTheNextReqByItsServiceTimeoutAndTheInterval) {
  accepts = false;
  to_drop[Attribute::kMra] = kAll;  // what the server sends by itself
  connect(2);
  world.run(kTrip);
  constexpr uint8_t kTimeoutCode = 17;
  const int64_t told_to_wait = world.now;
  forge(1, write(envelope(1, Attribute::kMra), Delay{Answered::kReq, kTimeoutCode}));
  ASSERT_EQ(State::kMraReqReceived, state(0));
  world.run();
  const int64_t second = told_to_wait + time_of(kTimeoutCode) + time_of(kResponseTimeout);
  const int64_t third = second + 2 * time_of(kResponseTimeout);
  ASSERT_EQ(3u, sent_at[Attribute::kReq].size()) << "it is no repeat itself";
  EXPECT_EQ(second, sent_at[Attribute::kReq][1]);
  EXPECT_EQ(third, sent_at[Attribute::kReq][2]);
  EXPECT_EQ((std::vector<int64_t>{third + 4 * time_of(kResponseTimeout)}), (told_at[{0, Event::kUnreachable}]));
}

TEST_F(ConnectionCounts, AMra_DelaysTheNextRepByItsServiceTimeoutAndTheInterval) {
  establishes = false;
  to_drop[Attribute::kMra] = kAll;
  connect(1);
  world.run(3 * kTrip);
  ASSERT_EQ(State::kRepSent, state(1));
  constexpr uint8_t kTimeoutCode = 17;
  const int64_t told_to_wait = world.now;
  forge(0, write(envelope(0, Attribute::kMra), Delay{Answered::kRep, kTimeoutCode}));
  ASSERT_EQ(State::kMraRepReceived, state(1));
  world.run();
  ASSERT_EQ(2u, sent_at[Attribute::kRep].size());
  EXPECT_EQ(told_to_wait + time_of(kTimeoutCode) + time_of(kResponseTimeout), sent_at[Attribute::kRep][1]);
}

TEST_F(ConnectionCounts, AMra_HasAServiceTimeoutOf17Seconds) {
  std::optional<Delay> delay;
  world.watch = [&](const Message& message) {
    if (read_envelope(message.mad)->attribute == Attribute::kMra) delay = read_delay(message.mad);
  };
  accepts = false;
  connect();
  world.run(100'000'000);
  ASSERT_TRUE(delay);
  EXPECT_EQ(22, delay->service_timeout);
  EXPECT_EQ(Answered::kReq, delay->answered);
  accepts = true;
  establishes = false;
  delay.reset();
  connect();
  world.run(100'000'000);
  ASSERT_TRUE(delay);
  EXPECT_EQ(22, delay->service_timeout);
  EXPECT_EQ(Answered::kRep, delay->answered);
  world.watch = nullptr;
}

// What ends a wait.

TEST_F(ConnectionCounts, AfterTheRep_NoReqIsRepeated) {
  establishes = false;
  to_drop[Attribute::kMra] = kAll;
  connect(5);
  world.run();
  EXPECT_EQ(1u, sent[Attribute::kReq]);
  EXPECT_EQ(6u, sent[Attribute::kRep]);
}

TEST_F(ConnectionCounts, AfterTheRtu_NoRepIsRepeated) {
  connected();
  world.run(100'000'000'000);
  EXPECT_EQ(3u, world.sent);
  for (const size_t host : {0, 1}) EXPECT_EQ(INT64_MAX, world.at(host).engine.deadline());
}

TEST_F(ConnectionCounts, AfterDataCame_NoRepIsRepeated) {
  to_drop[Attribute::kRtu] = kAll;
  connect();
  world.run(3 * kTrip);
  server().note_established(passive);
  EXPECT_EQ(INT64_MAX, server().engine.deadline());
  world.run(100'000'000'000);
  EXPECT_EQ(1u, sent[Attribute::kRep]);
  EXPECT_EQ(0u, record_of(1).count(Event::kUnreachable));
  EXPECT_EQ(State::kEstablished, state(1));
}

// 12.9.8.4: time wait.

TEST_F(ConnectionCounts, TimeWaitLastsTwoAckTimeouts_TwoSecondsAtMost) {
  for (const auto& [code, wait] : {std::pair<uint8_t, int64_t>{8, 2 * time_of(8)},
                                   {17, 2 * time_of(17)},
                                   {18, 2'000'000'000},
                                   {31, 2'000'000'000}}) {
    told_at.clear();
    ConnectionRequest request = request_of(5);
    request.path.ack_timeout = code;
    connect(request);
    world.run(3 * kTrip);
    client().disconnect(active, world.now);
    for (const size_t host : {0, 1})
      EXPECT_EQ(wait, when(host, Event::kTimeWaitExit) - when(host, Event::kDisconnected)) << int{code} << " " << host;
  }
}

TEST_F(ConnectionCounts, ARejection_IsKeptForAMraAndThreeLongestIntervals) {
  accepts = false;
  connect(15);
  world.run(kTrip);
  server().reject(passive, world.now);
  server().release(passive, world.now);
  const int64_t memory = time_of(22) + 3 * time_of(kLongestCode);
  EXPECT_EQ(world.now + memory, server().engine.deadline());
  world.run(memory - 1);
  EXPECT_EQ(1u, server().engine.connections());
  world.run(1);
  EXPECT_EQ(0u, server().engine.connections());
}

TEST_F(ConnectionCounts, AnAnswerToASidrReq_IsKeptAsLong) {
  server().after = [this](uint64_t owner, Event) { passive = owner; };
  DatagramRequest request;
  request.service_id = kService;
  active = client().ask_datagram(request, world.way(0, 1), world.now);
  world.run(kTrip);
  server().answer_datagram(passive, world.now);
  EXPECT_EQ(world.now + time_of(22) + 3 * time_of(kLongestCode), server().engine.deadline());
}

TEST_F(ConnectionCounts, Requests_HaveTransactionIdsOfTheirOwn) {
  std::map<Attribute, std::vector<uint64_t>> transactions;
  world.watch = [&](const Message& message) {
    const Envelope envelope = *read_envelope(message.mad);
    transactions[envelope.attribute].push_back(envelope.transaction);
  };
  to_drop[Attribute::kReq] = 1;
  connect();
  world.run(1'000'000'000);
  ASSERT_EQ(State::kEstablished, state(0));
  client().disconnect(active, world.now);
  world.run(kTrip);
  const auto only = [&](Attribute attribute) { return transactions[attribute].at(0); };
  EXPECT_EQ(only(Attribute::kReq), only(Attribute::kRep));
  EXPECT_EQ(only(Attribute::kReq), only(Attribute::kRtu));
  EXPECT_NE(only(Attribute::kReq), only(Attribute::kDreq));
  EXPECT_EQ(only(Attribute::kDreq), only(Attribute::kDrep));
  connect();
  world.run(kTrip);
  EXPECT_NE(transactions[Attribute::kReq].at(0), transactions[Attribute::kReq].back());
  world.watch = nullptr;
}

}  // namespace
}  // namespace nupa::cm::testing
