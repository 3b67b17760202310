// SPDX-License-Identifier: Apache-2.0
/// Tests of requests that a responder executes or refuses: opcodes, sequence, lengths, and SEND.
#include <gtest/gtest.h>

#include "engine_fixture.h"
#include "responder_fixture.h"
#include "transport/roce/protocol/responder.h"

namespace nupa::roce::test {
namespace {

// ---- 9.7.4.1: opcodes, sequence and length.

constexpr Operation kRequests[] = {
    Operation::kSendFirst,   Operation::kSendMiddle,   Operation::kSendLast,   Operation::kSendLastImm,
    Operation::kSendOnly,    Operation::kSendOnlyImm,  Operation::kWriteFirst, Operation::kWriteMiddle,
    Operation::kWriteLast,   Operation::kWriteLastImm, Operation::kWriteOnly,  Operation::kWriteOnlyImm,
    Operation::kReadRequest, Operation::kCompareSwap,  Operation::kFetchAdd,   Operation::kSendLastInv,
    Operation::kSendOnlyInv, Operation::kAtomicWrite,  Operation::kFlush};

bool is_middle_or_last(Operation operation, uint32_t kind) {
  const uint32_t traits = traits_of(opcode_of(Service::kRc, operation));
  return (traits & kind) != 0 && (traits & trait::kStarts) == 0;
}

TEST_F(RoceResponder, Ibta9741_OpcodeOutOfSequence_IsAnInvalidRequest) {
  enum class Before { kNothing, kSend, kWrite };
  for (const Before before : {Before::kNothing, Before::kSend, Before::kWrite})
    for (const Operation operation : kRequests) {
      begin(options);
      host->receives = {4096, 4096};
      uint32_t psn = kFirstPsn;
      if (before == Before::kSend) receive(request(Operation::kSendFirst, psn++, kMtu));
      Packet first = request(Operation::kWriteFirst, psn, kMtu);
      first.length = 2 * kMtu + 8;
      if (before == Before::kWrite) receive(first), ++psn;
      answers();
      const uint32_t traits = traits_of(opcode_of(Service::kRc, operation));
      const bool allowed = before == Before::kNothing ? (traits & trait::kStarts) != 0
                           : before == Before::kSend  ? is_middle_or_last(operation, trait::kSend)
                                                      : is_middle_or_last(operation, trait::kWrite);
      uint32_t bytes = (traits & trait::kPayload) == 0 ? 0 : (traits & trait::kEnds) == 0 ? kMtu : 8;
      if (before == Before::kWrite && (traits & trait::kEnds) != 0 && allowed) {
        receive(request(Operation::kWriteMiddle, psn++, kMtu));
        answers();
      }
      Packet packet = request(operation, psn, bytes);
      if (operation == Operation::kWriteFirst) packet.length = 2 * kMtu;
      const Texts answered = answers_to(packet);
      const std::string why = std::string(name_of(operation)) + " after " + std::to_string(static_cast<int>(before));
      if (allowed) {
        EXPECT_TRUE(host->refusals.empty()) << why;
        EXPECT_EQ(answered.size(), 1u) << why;
        EXPECT_EQ(answered[0].find("NAK"), std::string::npos) << why;
        continue;
      }
      expect_invalid(answered, psn, 0, why);
      EXPECT_EQ(host->returned, before == Before::kSend ? 1 : 0) << why << ": the receive of a cut message is unused";
      EXPECT_TRUE(host->received.empty()) << why;
    }
}

TEST_F(RoceResponder, Ibta9741_PayloadOfAWrongLength_IsAnInvalidRequest) {
  struct Case {
    std::vector<Operation> before;
    Operation operation;
    uint32_t bytes;
    bool allowed;
  };
  const Case cases[] = {
      {{}, Operation::kSendFirst, kMtu, true},
      {{}, Operation::kSendFirst, kMtu - 1, false},
      {{}, Operation::kSendFirst, kMtu + 1, false},
      {{}, Operation::kSendFirst, 0, false},
      {{Operation::kSendFirst}, Operation::kSendMiddle, kMtu, true},
      {{Operation::kSendFirst}, Operation::kSendMiddle, kMtu - 1, false},
      {{Operation::kSendFirst}, Operation::kSendMiddle, kMtu + 1, false},
      {{Operation::kSendFirst}, Operation::kSendLast, 0, false},
      {{Operation::kSendFirst}, Operation::kSendLast, 1, true},
      {{Operation::kSendFirst}, Operation::kSendLast, kMtu, true},
      {{Operation::kSendFirst}, Operation::kSendLast, kMtu + 1, false},
      {{Operation::kSendFirst}, Operation::kSendLastImm, 0, false},
      {{Operation::kSendFirst}, Operation::kSendLastInv, 0, false},
      {{}, Operation::kSendOnly, 0, true},
      {{}, Operation::kSendOnly, kMtu, true},
      {{}, Operation::kSendOnly, kMtu + 1, false},
      {{}, Operation::kWriteFirst, kMtu, true},
      {{}, Operation::kWriteFirst, kMtu - 1, false},
      {{}, Operation::kWriteFirst, kMtu + 1, false},
      {{}, Operation::kWriteOnly, 0, true},
      {{}, Operation::kWriteOnly, kMtu, true},
      {{}, Operation::kWriteOnly, kMtu + 1, false},
  };
  for (const Case& each : cases) {
    begin(options);
    host->receives = {4096};
    uint32_t psn = kFirstPsn;
    for (const Operation operation : each.before) receive(request(operation, psn++, kMtu));
    answers();
    Packet packet = request(each.operation, psn, each.bytes);
    if (each.operation == Operation::kWriteFirst) packet.length = 2 * kMtu + 2;
    const Texts answered = answers_to(packet);
    const std::string why = std::string(name_of(each.operation)) + " of " + std::to_string(each.bytes) + " bytes";
    if (each.allowed)
      EXPECT_TRUE(host->refusals.empty()) << why;
    else
      expect_invalid(answered, psn, 0, why);
    if (!each.allowed) {
      EXPECT_TRUE(host->received.empty() && memory_is_untouched()) << why;
    }
  }
}

TEST_F(RoceResponder, Ibta9746_WriteLengthDiffersFromThePayload_IsAnInvalidRequest) {
  constexpr int kNone = -1;
  struct Case {
    uint32_t stated;                 ///< by the RETH
    std::vector<uint32_t> payloads;  ///< one packet: ONLY; else FIRST, MIDDLE, LAST
    int refused;                     ///< the first packet that is wrong
  };
  const Case cases[] = {
      {8, {8}, kNone},
      {9, {8}, 0},
      {7, {8}, 0},
      {0, {0}, kNone},
      {1, {0}, 0},
      {kMtu, {kMtu, 8}, 0},
      {kMtu - 1, {kMtu, 8}, 0},
      {kMtu + 8, {kMtu, 8}, kNone},
      {kMtu + 9, {kMtu, 8}, 1},
      {kMtu + 7, {kMtu, 8}, 1},
      {2 * kMtu, {kMtu, kMtu, 8}, 1},
      {2 * kMtu + 8, {kMtu, kMtu, 8}, kNone},
      {3 * kMtu, {kMtu, kMtu, kMtu}, kNone},
  };
  for (const Case& each : cases) {
    begin(options);
    const std::string why = std::to_string(each.stated) + " bytes in the RETH";
    for (int i = 0; i < static_cast<int>(each.payloads.size()); ++i) {
      const bool last = i + 1 == static_cast<int>(each.payloads.size());
      const Operation operation = i == 0 ? last ? Operation::kWriteOnly : Operation::kWriteFirst
                                  : last ? Operation::kWriteLast
                                         : Operation::kWriteMiddle;
      const uint32_t psn = kFirstPsn + static_cast<uint32_t>(i);
      Packet packet = request(operation, psn, each.payloads[static_cast<size_t>(i)]);
      packet.length = each.stated;
      const Texts answered = answers_to(packet);
      if (i == each.refused) {
        expect_invalid(answered, psn, 0, why);
        break;
      }
      EXPECT_EQ(answered, (Texts{"ACK " + std::to_string(psn) + " msn " + std::to_string(last)})) << why;
    }
  }
}

TEST_F(RoceResponder, WriteOfAWrongLengthWithAWrongKey_IsAnInvalidRequest) {
  for (const Operation operation : {Operation::kWriteOnly, Operation::kWriteFirst}) {
    begin(options);
    Packet packet = request(operation, kFirstPsn, kMtu);
    packet.length = operation == Operation::kWriteOnly ? kMtu - 1 : kMtu;
    packet.rkey = 1;
    expect_invalid(answers_to(packet), kFirstPsn, 0, "its length is looked at first");
  }
}

TEST_F(RoceResponder, Ibta9741_PacketOfAnotherService_IsDroppedAndCounted) {
  host->receives = {100};
  for (const Service service : {Service::kUc, Service::kXrc}) {
    Packet packet = request(Operation::kSendOnly, kFirstPsn, 8);
    packet.opcode = opcode_of(service, Operation::kSendOnly);
    EXPECT_EQ(answers_to(packet), Texts{});
  }
  EXPECT_EQ(responder->counters().dropped, 2u);
  EXPECT_EQ(responder->counters().packets, 0u);
  EXPECT_TRUE(host->received.empty());
  // It has not taken the place of the right one.
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), (Texts{"ACK 100 msn 1"}));
  EXPECT_EQ(responder->counters().packets, 1u);
}

TEST_F(RoceResponder, AnswerSentAsARequest_IsDroppedAndCounted) {
  for (const Operation operation :
       {Operation::kAcknowledge, Operation::kReadResponseOnly, Operation::kAtomicAcknowledge}) {
    EXPECT_EQ(answers_to(request(operation, kFirstPsn)), Texts{});
  }
  EXPECT_EQ(responder->counters().dropped, 3u);
  EXPECT_EQ(responder->counters().packets, 0u);
}

// ---- SEND.

TEST_F(RoceResponder, Ibta973_MessageOfSeveralPackets_IsReceivedComplete) {
  host->receives = {3 * kMtu};
  const std::string whole(reinterpret_cast<const char*>(pattern_bytes(kMtu).data()), kMtu);
  Packet first = request(Operation::kSendFirst, kFirstPsn, kMtu);
  first.ack_request = false;
  EXPECT_EQ(answers_to(first), Texts{});
  EXPECT_EQ(answers_to(request(Operation::kSendMiddle, kFirstPsn + 1, kMtu)), (Texts{"ACK 101 msn 0"}))
      << "a packet in the middle of a message may ask too";
  EXPECT_TRUE(host->received.empty());
  Packet last = request(Operation::kSendLastImm, kFirstPsn + 2, 10);
  last.imm = 0xdeadbeef;
  last.solicited = true;
  EXPECT_EQ(answers_to(last), (Texts{"ACK 102 msn 1"}));
  ASSERT_EQ(host->received.size(), 1u);
  const RecordingHost::Received& received = host->received[0];
  EXPECT_EQ(received.status, WcStatus::kSuccess);
  EXPECT_EQ(received.message.opcode, WcOpcode::kRecv);
  EXPECT_EQ(received.message.byte_len, 2 * kMtu + 10);
  EXPECT_EQ(received.message.wc_flags, wc_flag::kWithImm);
  EXPECT_EQ(received.message.imm_data, 0xdeadbeef);
  EXPECT_EQ(received.message.src_qp, kPeerQpn);
  EXPECT_TRUE(received.message.solicited);
  EXPECT_EQ(received.bytes, whole + whole + whole.substr(0, 10));
}

TEST_F(RoceResponder, PlainSend_CompletesWithoutImmediateAndSolicited) {
  host->receives = {100};
  Packet packet = request(Operation::kSendOnly, kFirstPsn, 8);
  packet.imm = 7;
  receive(packet);
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].message.wc_flags, 0u);
  EXPECT_EQ(host->received[0].message.imm_data, 0u);
  EXPECT_FALSE(host->received[0].message.solicited);
}

TEST_F(RoceResponder, Ibta9751_RequestWithoutAckRequest_IsNotAcknowledged) {
  host->receives = {100, 100};
  Packet packet = request(Operation::kSendOnly, kFirstPsn, 8);
  packet.ack_request = false;
  EXPECT_EQ(answers_to(packet), Texts{});
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 1, 8)), (Texts{"ACK 101 msn 2"}))
      << "one for all before it";
}

TEST_F(RoceResponder, SendLongerThanItsReceive_IsAnInvalidRequest) {
  host->receives = {8};
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), (Texts{"ACK 100 msn 1"})) << "just fits";
  host->receives = {8};
  const Texts answered = answers_to(request(Operation::kSendOnly, kFirstPsn + 1, 9));
  expect_refused(answered, kFirstPsn + 1, 1, NakCode::kInvalidRequest, std::nullopt, "9 bytes for 8");
  ASSERT_EQ(host->received.size(), 2u);
  EXPECT_EQ(host->received[1].status, WcStatus::kLocLenErr);
}

TEST_F(RoceResponder, MessageLongerThanItsReceive_IsAnInvalidRequest) {
  host->receives = {kMtu + 7};
  receive(request(Operation::kSendFirst, kFirstPsn, kMtu));
  answers();
  const Texts answered = answers_to(request(Operation::kSendLast, kFirstPsn + 1, 8));
  expect_refused(answered, kFirstPsn + 1, 0, NakCode::kInvalidRequest, std::nullopt, "one byte too many");
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].status, WcStatus::kLocLenErr);
  EXPECT_EQ(host->received[0].message.byte_len, 0u);
}

TEST_F(RoceResponder, ReceiveWithARevokedKey_IsARemoteOperationError) {
  host->receives = {100};
  host->places = false;
  const Texts answered = answers_to(request(Operation::kSendOnly, kFirstPsn, 8));
  expect_refused(answered, kFirstPsn, 0, NakCode::kRemoteOperation, EventType::kQpFatal, "no such memory");
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].status, WcStatus::kLocProtErr);
}

TEST_F(RoceResponder, Ibta9411_SendWithInvalidate_InvalidatesItsKeyOnceAndReportsIt) {
  host->receives = {2 * kMtu};
  receive(request(Operation::kSendFirst, kFirstPsn, kMtu));
  EXPECT_TRUE(host->invalidated.empty());
  Packet packet = request(Operation::kSendLastInv, kFirstPsn + 1, 8);
  packet.invalidate = 0x777;
  EXPECT_EQ(answers_to(packet), (Texts{"ACK 101 msn 1"}));
  EXPECT_EQ(host->invalidated, (std::vector<uint32_t>{0x777}));
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].message.wc_flags, wc_flag::kWithInv);
  EXPECT_EQ(host->received[0].message.imm_data, 0x777u);
}

TEST_F(RoceResponder, SendWithInvalidate_UnknownKey_IsARemoteAccessError) {
  host->receives = {100};
  host->invalidates = false;
  const Texts answered = answers_to(request(Operation::kSendOnlyInv, kFirstPsn, 8));
  expect_refused(answered, kFirstPsn, 0, NakCode::kRemoteAccess, EventType::kQpAccessErr, "not a window's key");
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].status, WcStatus::kMwBindErr);
}

TEST_F(RoceResponder, AfterARefusal_RequestsAreIgnoredAndTheNakIsSentOnce) {
  host->receives = {100, 100};
  receive(request(Operation::kSendMiddle, kFirstPsn, kMtu));
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  EXPECT_EQ(answers().size(), 1u);
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), Texts{});
  EXPECT_TRUE(host->received.empty());
  EXPECT_EQ(host->refusals.size(), 1u);
}

TEST_F(RoceResponder, FirstRequest_EstablishesTheConnectionOnce) {
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), (Texts{"RNR 100 msn 0 timer 5"}));
  EXPECT_EQ(host->established_count, 1) << "as over shared memory, whatever comes of it";
  host->receives = {100, 100};
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  EXPECT_EQ(host->established_count, 1);
  receive(request(Operation::kSendOnly, kFirstPsn + 1, 8));
  EXPECT_EQ(host->established_count, 1);
}

TEST_F(RoceResponder, Stop_DuringAMessage_ReturnsItsReceive) {
  host->receives = {4096, 4096};
  receive(request(Operation::kSendFirst, kFirstPsn, kMtu));
  EXPECT_TRUE(host->holds);
  responder->stop();
  EXPECT_FALSE(host->holds);
  EXPECT_EQ(host->returned, 1);
  receive(request(Operation::kSendLast, kFirstPsn + 1, 8));
  EXPECT_TRUE(host->received.empty());
  EXPECT_EQ(responder->counters().packets, 1u);
}

}  // namespace
}  // namespace nupa::roce::test
