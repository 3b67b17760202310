// SPDX-License-Identifier: Apache-2.0
/// The engine of the connection manager: released connections, repeated requests, and peers that exit.
#include <gtest/gtest.h>

#include "cm/engine/engine.h"
#include "cm/engine/times.h"
#include "connection_engine.h"

namespace nupa::cm::engine_test {
namespace {

using Events = std::vector<Event>;

// Letting go.

TEST_F(Engine, AReleasedRequest_IsCanceled) {
  for (const State state : {State::kReqSent, State::kMraReqReceived}) {
    const uint64_t owner = make(state, way_to(2));
    engine.release(ids[owner], kNow);
    ASSERT_EQ(1u, sent.size());
    EXPECT_EQ(Attribute::kRej, sent[0].envelope.attribute);
    EXPECT_EQ(kTimeout, rejection_in(sent[0]).reason);
    EXPECT_EQ(0u, engine.connections());
  }
}

TEST_F(Engine, AReleasedSidrReq_SendsNothing) {
  const uint64_t owner = make(State::kSidrReqSent, way_to(2));
  engine.release(ids[owner], kNow);
  EXPECT_TRUE(sent.empty());
  EXPECT_EQ(0u, engine.connections());
  EXPECT_EQ(INT64_MAX, engine.deadline());
}

TEST_F(Engine, AReleasedRequestOfThePeer_IsRejected) {
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

TEST_F(Engine, AReleasedSidrReqOfThePeer_IsRejected) {
  const uint64_t owner = make(State::kSidrReqReceived, way_to(2));
  engine.release(ids[owner], kNow);
  ASSERT_EQ(1u, sent.size());
  EXPECT_EQ(Attribute::kSidrRep, sent[0].envelope.attribute);
  EXPECT_EQ(DatagramStatus::kRejected, read_datagram_reply(sent[0].mad).status);
}

TEST_F(Engine, AllAreReleased_EachPeerIsNotifiedOnce) {
  make(State::kReqSent, way_to(2));
  make(State::kEstablished, way_to(3), kTheirId, 1);
  make(State::kReqReceived, way_to(4), kTheirId + 1, 2);
  make(State::kTimeWait, way_to(5), kTheirId + 2, 3);
  engine.release_all(kNow);
  std::map<uint8_t, Attribute> message_to;
  for (const Sent& message : sent) message_to[message.way.remote.raw[15]] = message.envelope.attribute;
  EXPECT_EQ(3u, sent.size());
  EXPECT_EQ((std::map<uint8_t, Attribute>{{2, Attribute::kRej}, {3, Attribute::kDreq}, {4, Attribute::kRej}}),
            message_to);
  EXPECT_TRUE(events.empty()) << "a released id gets no event";
}

TEST_F(Engine, ProcessExits_DreqsToOtherHostsAreRepeatedSoon) {
  make(State::kEstablished, way_to(3), kTheirId, 1);
  engine.release_all_at_exit(kNow);
  EXPECT_TRUE(engine.awaits_farewells());
  int64_t now = kNow;
  for (uint32_t sent_before = 1; sent_before <= kOrphanRetries; ++sent_before) {
    ASSERT_EQ(sent_before, sent.size());
    EXPECT_EQ(now + (kFarewellPauseNs << (sent_before - 1)), engine.deadline());
    now = engine.deadline();
    engine.on_timer(now);
    EXPECT_EQ(Attribute::kDreq, sent.back().envelope.attribute);
  }
  engine.on_timer(engine.deadline());
  EXPECT_FALSE(engine.awaits_farewells());
}

TEST_F(Engine, ProcessExits_OthersAreNotWaitedFor) {
  make(State::kEstablished, way_to_slot(3, 1), kTheirId, 1);
  make(State::kTimeWait, way_to(5), kTheirId + 2, 3);
  engine.release_all_at_exit(kNow);
  EXPECT_FALSE(engine.awaits_farewells()) << "a process of this host sees its socket close";
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

TEST_F(Engine, DataOnAnEstablishedConnection_IsRefusedWithEisconn) {
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

TEST_F(EngineAsksAgain, ARequest_SentAgainToAnotherPath_IsTheSame) {
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

TEST_F(EngineAsksAgain, ASidrReq_SentAgainToAnotherPath_IsTheSame) {
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

TEST_F(EngineAsksAgain, AnAnsweredRequest_SentAgain_IsRefused) {
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

TEST_F(Engine, AProcessThatExited_EndsEachOfItsConnections) {
  uint32_t their_id = kTheirId;
  for (const bool local : {true, false}) {
    const Way way = local ? way_to_slot(9, 3) : way_to(2);
    const auto gone = [&] {
      sent.clear();
      events.clear();
      local ? engine.peer_exited(9, 3, kNow) : engine.peer_exited(gid_of(2), 4791, kNow);
    };
    for (const auto& states : {kActiveStates, kPassiveStates})
      for (size_t i = 0; i < 4; ++i) {
        const uint64_t owner = make(states[i], way, ++their_id, 0);
        gone();
        EXPECT_EQ((Events{{EventKind::kRejected, owner, kConsumer}}), events) << static_cast<int>(states[i]);
        EXPECT_EQ(State::kIdle, state_of(owner));
      }
    for (const State state : {State::kEstablished, State::kDreqSent}) {
      const uint64_t owner = make(state, way, ++their_id, 0);
      gone();
      EXPECT_EQ((Events{{EventKind::kDisconnected, owner, 1}}), events);
      EXPECT_EQ(State::kTimeWait, state_of(owner));
    }
    for (const State state : {State::kSidrReqSent, State::kSidrReqReceived}) {
      const uint64_t owner = make(state, way, ++their_id, 0);
      gone();
      EXPECT_EQ((Events{{EventKind::kUnreachable, owner}}), events);
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
    EXPECT_TRUE(sent.empty()) << "the peer has exited";
  }
}

TEST_F(Engine, AProcessThatExited_LeavesConnectionsOfOthers) {
  Way standard = way_to(2);
  standard.of_nupa = false;
  const Way ways[] = {way_to(2),         way_to(3),         way_to(2, 4792),  standard,
                      way_to_slot(9, 3), way_to_slot(9, 4), way_to_slot(8, 3)};
  std::vector<uint64_t> owners;
  for (const Way& way : ways)
    owners.push_back(make(State::kEstablished, way, kTheirId + static_cast<uint32_t>(owners.size()), 0));
  engine.peer_exited(gid_of(2), 4791, kNow);
  EXPECT_EQ((Events{{EventKind::kDisconnected, owners[0], 1}}), events);
  events.clear();
  engine.peer_exited(9, 3, kNow);
  EXPECT_EQ((Events{{EventKind::kDisconnected, owners[4], 1}}), events);
}

TEST_F(Engine, AConfirmation_IsSentOnEstablishedConnections) {
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

TEST_F(Engine, StandingWays_AreThoseOfAnsweredConnections) {
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

}  // namespace
}  // namespace nupa::cm::engine_test
