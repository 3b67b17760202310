// SPDX-License-Identifier: Apache-2.0
/// Which messages the engine of the connection manager takes for a connection (IBTA 12.6.7, 12.9.8).
#include <gtest/gtest.h>

#include "cm/engine/engine.h"
#include "connection_engine.h"

namespace nupa::cm::engine_test {
namespace {

using Events = std::vector<Event>;

constexpr State kConnectedStates[] = {State::kEstablished, State::kDreqSent, State::kTimeWait};

// 12.9.8: messages with the id of another connection.

TEST_F(Engine, ARtuFromAnotherId_EstablishesNothingAndIsRefused) {
  for (const State state : {State::kRepSent, State::kMraRepReceived}) {
    const uint64_t owner = make(state, way_to(2), kTheirId + static_cast<uint32_t>(state), 0);
    receive(plain_message(Attribute::kRtu, kTheirId - 1, ids[owner]), way_to(2));
    EXPECT_EQ(state, state_of(owner));
    EXPECT_TRUE(events.empty());
    expect_refused(kInvalidId, Answered::kOther, kTheirId - 1, ids[owner]);
    receive(plain_message(Attribute::kRtu, kTheirId + static_cast<uint32_t>(state), ids[owner]), way_to(2));
    EXPECT_EQ((Events{{EventKind::kEstablished, owner}}), events);
  }
}

TEST_F(Engine, ARtuForNoConnection_IsRefused) {
  receive(plain_message(Attribute::kRtu, kTheirId, 0x300123), way_to(2));
  expect_refused(kInvalidId, Answered::kOther, kTheirId, 0x300123);
}

TEST_F(Engine, ARtuInAnotherState_ChangesNothing) {
  for (const State state : {State::kReqReceived, State::kMraReqSent, State::kEstablished, State::kDreqSent}) {
    const uint32_t their_id = kTheirId + static_cast<uint32_t>(state);
    const uint64_t owner = make(state, way_to(2), their_id, 0);
    expect_ignored(owner, state, plain_message(Attribute::kRtu, their_id, ids[owner]));
  }
  const uint64_t owner = make(State::kTimeWait, way_to(2), kTheirId, 0);
  receive(plain_message(Attribute::kRtu, kTheirId, ids[owner]), way_to(2));
  expect_refused(kInvalidId, Answered::kOther, kTheirId, ids[owner]);
}

TEST_F(Engine, ADrepFromAnotherId_EndsNothing) {
  const uint64_t owner = make(State::kDreqSent, way_to(2));
  expect_ignored(owner, State::kDreqSent, plain_message(Attribute::kDrep, kTheirId + 1, ids[owner]));
  expect_ignored(owner, State::kDreqSent, plain_message(Attribute::kDrep, 0, ids[owner]));
  receive(plain_message(Attribute::kDrep, kTheirId, ids[owner]), way_to(2));
  EXPECT_EQ((Events{{EventKind::kDisconnected, owner, 0}}), events);
}

TEST_F(Engine, AnUnexpectedDrep_EndsNothing) {
  const uint64_t owner = make(State::kEstablished, way_to(2));
  expect_ignored(owner, State::kEstablished, plain_message(Attribute::kDrep, kTheirId, ids[owner]));
}

TEST_F(Engine, ADreqFromAnotherId_EndsNothing) {
  for (const State state : {State::kRepReceived, State::kMraRepSent, State::kRepSent, State::kMraRepReceived,
                            State::kEstablished, State::kDreqSent}) {
    const uint32_t their_id = kTheirId + static_cast<uint32_t>(state);
    const uint64_t owner = make(state, way_to(2), their_id, 0);
    receive(plain_message(Attribute::kDreq, kTheirId - 1, ids[owner]), way_to(2));
    EXPECT_EQ(state, state_of(owner));
    EXPECT_TRUE(events.empty());
    ASSERT_EQ(1u, sent.size());
    EXPECT_EQ(Attribute::kDrep, sent[0].envelope.attribute) << "an answer costs nothing, and ends the repeats";
    EXPECT_EQ(9u, sent[0].envelope.transaction);
    EXPECT_EQ(ids[owner], sent[0].envelope.local_id);
    EXPECT_EQ(kTheirId - 1, sent[0].envelope.remote_id);
    receive(plain_message(Attribute::kDreq, their_id, ids[owner]), way_to(2));
    const bool was_asked = state == State::kRepReceived || state == State::kMraRepSent;
    EXPECT_EQ(
        (Events{was_asked ? Event{EventKind::kRejected, owner, kConsumer} : Event{EventKind::kDisconnected, owner, 0}}),
        events);
  }
}

TEST_F(Engine, ADreqForARequest_IsAnsweredAndEndsNothing) {
  for (const State state : {State::kReqReceived, State::kMraReqSent}) {
    const uint32_t their_id = kTheirId + static_cast<uint32_t>(state);
    const uint64_t owner = make(state, way_to(2), their_id, 0);
    receive(plain_message(Attribute::kDreq, their_id, ids[owner]), way_to(2));
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

TEST_F(Engine, ARepToThePassiveSide_IsIgnored) {
  for (const State state : {State::kReqReceived, State::kMraReqSent, State::kRepSent, State::kEstablished}) {
    const uint32_t their_id = kTheirId + static_cast<uint32_t>(state);
    const uint64_t owner = make(state, way_to(2), their_id, 0);
    expect_ignored(owner, state, rep_of(their_id, ids[owner]));
  }
}

TEST_F(Engine, TheRtu_IsSentToTheSourceOfTheRep) {
  const uint64_t owner = make(State::kReqSent, way_to(2));
  receive(rep_of(kTheirId, ids[owner]), way_to(3, 999));
  ASSERT_EQ(0, engine.establish(ids[owner], {}, kNow));
  ASSERT_EQ(1u, sent.size());
  EXPECT_EQ(Attribute::kRtu, sent[0].envelope.attribute);
  EXPECT_EQ(way_to(3, 999), sent[0].way);
}

TEST_F(Engine, AMra_OfAnotherMessage_IsIgnored) {
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

TEST_F(Engine, ARej_EndsItsConnection) {
  uint32_t their_id = kTheirId;
  const auto end = [&](State state, uint16_t reason) {
    const uint64_t owner = make(state, way_to(2), ++their_id, 0);
    receive(rej_of(their_id, ids[owner], reason, Answered::kOther), way_to(2));
    return owner;
  };
  for (const auto& states : {kActiveStates, kPassiveStates})
    for (size_t i = 0; i < 4; ++i) {
      const uint64_t owner = end(states[i], 77);
      EXPECT_EQ((Events{{EventKind::kRejected, owner, 77}}), events) << static_cast<int>(states[i]);
      EXPECT_EQ(State::kIdle, state_of(owner));
    }
  for (const State state : {State::kEstablished, State::kDreqSent}) {
    const uint64_t owner = end(state, 77);
    EXPECT_EQ((Events{{EventKind::kDisconnected, owner, 0}}), events);
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

TEST_F(Engine, ARejWithoutAnId_EndsTheConnectionThatItAnswers) {
  // Whoever never heard of the connection has no id for it, and rejects the REP or RTU that reached it.
  for (const Answered answered : {Answered::kRep, Answered::kOther}) {
    const uint64_t owner = make(State::kRepSent, way_to(2), kTheirId + static_cast<uint32_t>(answered), 0);
    receive(rej_of(0, ids[owner], kInvalidId, answered), way_to(2));
    EXPECT_EQ((Events{{EventKind::kRejected, owner, kInvalidId}}), events);
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
  EXPECT_EQ((Events{{EventKind::kRejected, owner, kTimeout}}), events);
  // Nor is a device without a GUID found for another reason, which names none.
  ConnectionRequest request;
  request.service_id = kService;
  receive(write({Attribute::kReq, 1, kTheirId + 9, 0}, request), way_to(2));
  const uint64_t nameless = last_owner;
  expect_ignored(nameless, State::kReqReceived, rej_of(kTheirId + 9, 0, kConsumer, Answered::kOther));
}

TEST_F(Engine, AReject_HasTheMessageThatItAnswers) {
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

TEST_F(Engine, AReqThatCannotBeAccepted_IsRefusedWithItsReason) {
  receive(req_of(kTheirId, 1, kTheirQpn, kService + 1), way_to(2));
  expect_refused(kInvalidService, Answered::kReq, kTheirId, 0);
  Mad other = req_of(kTheirId);
  other[24 + 43] = (other[24 + 43] & std::byte{0xf9}) | std::byte{2 << 1};  // reliable datagram
  receive(other, way_to(2));
  expect_refused(kInvalidTransport, Answered::kReq, kTheirId, 0);
  EXPECT_EQ(0u, engine.connections());
  EXPECT_EQ(0u, engine.entries());
}

TEST_F(Engine, AnApr_IsIgnored) {
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
    EXPECT_EQ((Event{EventKind::kRejected, owner, kStale}), events[0]);
    EXPECT_EQ((Event{EventKind::kRequest, last_owner, kListener}), events[1]);
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
    EXPECT_EQ((Event{EventKind::kDisconnected, owner, 1}), events[0]) << "nothing was said about its end";
    ASSERT_EQ(1u, sent.size());
    EXPECT_EQ(Attribute::kDreq, sent[0].envelope.attribute);
    EXPECT_EQ(old_id, sent[0].envelope.remote_id);
    EXPECT_EQ(State::kTimeWait, state_of(owner));
  }
  const uint64_t over = make(State::kTimeWait, way_to(2), ++their_id, ++qpn);
  receive(req_of(++their_id, 2, qpn), way_to(2));
  EXPECT_EQ((Events{{EventKind::kRequest, last_owner, kListener}}), events) << "it had ended before";
  EXPECT_EQ(State::kTimeWait, state_of(over));
}

TEST_F(Engine, ARepFromAQueuePairThatHasAConnection_EndsTheOldOne) {
  const uint64_t old = make(State::kEstablished, way_to(2));
  const uint64_t owner = make(State::kReqSent, way_to(2));
  receive(rep_of(kTheirId + 1, ids[owner], kTheirQpn), way_to(2));
  EXPECT_EQ((Events{{EventKind::kDisconnected, old, 1}, {EventKind::kReply, owner}}), events);
}

TEST_F(Engine, AQueuePairOfAnotherDevice_IsAnotherOne) {
  const uint64_t owner = make(State::kEstablished, way_to(2));
  ConnectionRequest request;
  request.service_id = kService;
  request.ca_guid = kTheirGuid + 1;
  request.qp_num = kTheirQpn;
  receive(write({Attribute::kReq, 1, kTheirId, 0}, request), way_to(3));
  EXPECT_EQ((Events{{EventKind::kRequest, last_owner, kListener}}), events);
  EXPECT_EQ(State::kEstablished, state_of(owner));
}

TEST_F(Engine, AnIdUsedAgain_IsAnotherConnection) {
  uint32_t their_id = kTheirId;
  for (const State state : {State::kTimeWait, State::kRejected}) {
    const uint64_t owner = make(state, way_to(2), ++their_id, 0);
    receive(req_of(their_id, 2, kTheirQpn + their_id), way_to(2));
    EXPECT_EQ((Events{{EventKind::kRequest, last_owner, kListener}}), events) << "the old one is over, and untouched";
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
  EXPECT_EQ((Events{{EventKind::kRejected, owner, kStale}, {EventKind::kRequest, last_owner, kListener}}), events);
}

}  // namespace
}  // namespace nupa::cm::engine_test
