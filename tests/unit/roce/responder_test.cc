// SPDX-License-Identifier: Apache-2.0
/// The responder, one packet at a time: which requests it executes, what it answers, what it ignores.
#ifndef NUPA_TEST_DROPIN
#include <gtest/gtest.h>

#include "engine_fixture.h"
#include "transport/roce/port/packet_pool.h"
#include "transport/roce/protocol/responder.h"

namespace nupa::roce::test {
namespace {

constexpr uint8_t kMaxRdAtomic = 4;
constexpr int64_t kStart = 1'000'000'000;

class RoceResponder : public ::testing::Test {
 protected:
  RoceResponder() { begin(options); }

  void begin(const ResponderOptions& wanted) {
    options = wanted;
    host = std::make_unique<RecordingHost>();
    responder = std::make_unique<Responder>(*host, options, pool);
    responder->set_max_rd_atomic(kMaxRdAtomic);
    output.take();
  }
  static ResponderOptions standard_options() {
    ResponderOptions made;
    made.peer_qpn = kPeerQpn;
    made.first_psn = kFirstPsn;
    made.mtu = kMtu;
    return made;
  }

  /// A request as a standard peer sends it, with `bytes` of payload.
  Packet request(Operation operation, uint32_t psn, uint32_t bytes = 0) {
    payload = pattern_bytes(bytes);
    Packet packet;
    packet.opcode = opcode_of(options.service, operation);
    packet.psn = psn & kPsnMask;
    packet.ack_request = true;
    packet.rkey = kKey;
    packet.address = kBase;
    packet.length = bytes;
    packet.payload = payload.data();
    packet.payload_length = bytes;
    return packet;
  }
  Packet read(uint32_t psn, uint32_t length, uint64_t address = kBase) {
    Packet packet = request(Operation::kReadRequest, psn);
    packet.length = length;
    packet.address = address;
    return packet;
  }
  Packet atomic(Operation operation, uint32_t psn, uint64_t swap_or_add, uint64_t compare = 0) {
    Packet packet = request(operation, psn);
    packet.swap_or_add = swap_or_add;
    packet.compare = compare;
    return packet;
  }
  /// The same from a NUPA peer.
  static Packet nupa(Packet packet) {
    packet.mark = kNupaMark;
    return packet;
  }

  void receive(const Packet& packet, bool congested = false) { responder->receive(packet, congested, now); }
  Texts answers() {
    while (responder->transmit(now, output, 1000)) {
    }
    return output.take();
  }
  Texts answers_to(const Packet& packet) {
    receive(packet);
    return answers();
  }
  uint64_t word() const {
    uint64_t value;
    std::memcpy(&value, host->memory.data(), sizeof value);
    return value;
  }
  void set_word(uint64_t value) { std::memcpy(host->memory.data(), &value, sizeof value); }
  bool memory_is_untouched() const {
    return std::all_of(host->memory.begin(), host->memory.end(), [](std::byte each) { return each == std::byte{0}; });
  }
  /// A fatal answer: this NAK, this event, and the responder takes nothing more.
  void expect_refused(const Texts& answered, uint32_t psn, uint32_t msn, NakCode code, std::optional<EventType> event,
                      const std::string& why) {
    EXPECT_EQ(answered, (Texts{"NAK " + std::to_string(psn) + " msn " + std::to_string(msn) + " code " +
                               std::to_string(static_cast<int>(code))}))
        << why;
    ASSERT_EQ(host->refusals.size(), 1u) << why;
    EXPECT_EQ(host->refusals[0], event) << why;
    EXPECT_FALSE(host->holds) << why;
  }
  void expect_invalid(const Texts& answered, uint32_t psn, uint32_t msn, const std::string& why) {
    expect_refused(answered, psn, msn, NakCode::kInvalidRequest, EventType::kQpReqErr, why);
  }

  ResponderOptions options = standard_options();
  PacketPool pool{8};
  std::unique_ptr<RecordingHost> host;
  std::unique_ptr<Responder> responder;
  RecordingOutput output;
  std::vector<std::byte> payload;
  int64_t now = kStart;
};

// ---- 9.7.4.1: opcodes, sequence and length.

constexpr Operation kRequests[] = {Operation::kSendFirst,    Operation::kSendMiddle,  Operation::kSendLast,
                                   Operation::kSendLastImm,  Operation::kSendOnly,    Operation::kSendOnlyImm,
                                   Operation::kWriteFirst,   Operation::kWriteMiddle, Operation::kWriteLast,
                                   Operation::kWriteLastImm, Operation::kWriteOnly,   Operation::kWriteOnlyImm,
                                   Operation::kReadRequest,  Operation::kCompareSwap, Operation::kFetchAdd,
                                   Operation::kSendLastInv,  Operation::kSendOnlyInv, Operation::kAtomicWrite};

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

TEST_F(RoceResponder, Ibta9741_PayloadThatDoesNotFitItsPlace_IsAnInvalidRequest) {
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

TEST_F(RoceResponder, Ibta9746_WriteWhoseLengthIsNotThatOfItsPayload_IsAnInvalidRequest) {
  constexpr int kNone = -1;
  struct Case {
    uint32_t told;                   ///< by the RETH
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
    const std::string why = std::to_string(each.told) + " bytes told";
    for (int i = 0; i < static_cast<int>(each.payloads.size()); ++i) {
      const bool last = i + 1 == static_cast<int>(each.payloads.size());
      const Operation operation = i == 0 ? last ? Operation::kWriteOnly : Operation::kWriteFirst
                                  : last ? Operation::kWriteLast
                                         : Operation::kWriteMiddle;
      const uint32_t psn = kFirstPsn + static_cast<uint32_t>(i);
      Packet packet = request(operation, psn, each.payloads[static_cast<size_t>(i)]);
      packet.length = each.told;
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

TEST_F(RoceResponder, AnswerThatComesAsARequest_IsDroppedAndCounted) {
  for (const Operation operation :
       {Operation::kAcknowledge, Operation::kReadResponseOnly, Operation::kAtomicAcknowledge}) {
    EXPECT_EQ(answers_to(request(operation, kFirstPsn)), Texts{});
  }
  EXPECT_EQ(responder->counters().dropped, 3u);
  EXPECT_EQ(responder->counters().packets, 0u);
}

// ---- SEND.

TEST_F(RoceResponder, Ibta973_MessageOfSeveralPackets_IsReceivedWhole) {
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

TEST_F(RoceResponder, PlainSend_TellsNeitherImmediateNorSolicited) {
  host->receives = {100};
  Packet packet = request(Operation::kSendOnly, kFirstPsn, 8);
  packet.imm = 7;
  receive(packet);
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].message.wc_flags, 0u);
  EXPECT_EQ(host->received[0].message.imm_data, 0u);
  EXPECT_FALSE(host->received[0].message.solicited);
}

TEST_F(RoceResponder, Ibta9751_RequestThatDoesNotAsk_IsNotAcknowledged) {
  host->receives = {100, 100};
  Packet packet = request(Operation::kSendOnly, kFirstPsn, 8);
  packet.ack_request = false;
  EXPECT_EQ(answers_to(packet), Texts{});
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 1, 8)), (Texts{"ACK 101 msn 2"}))
      << "one for all before it";
}

TEST_F(RoceResponder, SendThatDoesNotFitItsReceive_IsAnInvalidRequest) {
  host->receives = {8};
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), (Texts{"ACK 100 msn 1"})) << "just fits";
  host->receives = {8};
  const Texts answered = answers_to(request(Operation::kSendOnly, kFirstPsn + 1, 9));
  expect_refused(answered, kFirstPsn + 1, 1, NakCode::kInvalidRequest, std::nullopt, "9 bytes for 8");
  ASSERT_EQ(host->received.size(), 2u);
  EXPECT_EQ(host->received[1].status, WcStatus::kLocLenErr);
}

TEST_F(RoceResponder, MessageThatOutgrowsItsReceive_IsAnInvalidRequest) {
  host->receives = {kMtu + 7};
  receive(request(Operation::kSendFirst, kFirstPsn, kMtu));
  answers();
  const Texts answered = answers_to(request(Operation::kSendLast, kFirstPsn + 1, 8));
  expect_refused(answered, kFirstPsn + 1, 0, NakCode::kInvalidRequest, std::nullopt, "one byte too many");
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].status, WcStatus::kLocLenErr);
  EXPECT_EQ(host->received[0].message.byte_len, 0u);
}

TEST_F(RoceResponder, ReceiveWhoseKeyIsGone_IsARemoteOperationError) {
  host->receives = {100};
  host->places = false;
  const Texts answered = answers_to(request(Operation::kSendOnly, kFirstPsn, 8));
  expect_refused(answered, kFirstPsn, 0, NakCode::kRemoteOperation, EventType::kQpFatal, "no such memory");
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].status, WcStatus::kLocProtErr);
}

TEST_F(RoceResponder, Ibta9411_SendWithInvalidate_InvalidatesItsKeyOnceAndTellsIt) {
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

TEST_F(RoceResponder, InvalidateOfAKeyThatIsNone_IsARemoteAccessError) {
  host->receives = {100};
  host->invalidates = false;
  const Texts answered = answers_to(request(Operation::kSendOnlyInv, kFirstPsn, 8));
  expect_refused(answered, kFirstPsn, 0, NakCode::kRemoteAccess, EventType::kQpAccessErr, "not a window's key");
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].status, WcStatus::kMwBindErr);
}

TEST_F(RoceResponder, AfterARefusal_NothingIsTakenAndTheNakIsSentOnce) {
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

TEST_F(RoceResponder, StopAmidAMessage_GivesItsReceiveBackAndTakesNothingMore) {
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

// ---- RNR (9.7.5.2.8).

TEST_F(RoceResponder, Ibta97528_NoReceive_IsAnRnrNakWithTheQueuePairsTimer) {
  host->rnr_code = 19;
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), (Texts{"RNR 100 msn 0 timer 19"}));
  EXPECT_EQ(responder->counters().rnr_naks, 1u);
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 1, 8)), Texts{}) << "it is known to be out of turn";
  EXPECT_TRUE(host->received.empty());
  host->receives = {100, 100};
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), (Texts{"ACK 100 msn 1"}));
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 2, 8)), (Texts{"NAK 101 msn 1 code 0"}))
      << "the gap after it is a new one";
}

TEST_F(RoceResponder, RepeatedSendThatFindsAReceive_IsAcknowledgedThoughItDoesNotAsk) {
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  host->receives = {100};
  Packet again = request(Operation::kSendOnly, kFirstPsn, 8);
  again.ack_request = false;
  // The RNR NAK has not left yet, and would be wrong by now.
  EXPECT_EQ(answers_to(again), (Texts{"ACK 100 msn 1"}));
}

TEST_F(RoceResponder, WriteWithImmediateWithoutReceive_WritesNothing) {
  EXPECT_EQ(answers_to(request(Operation::kWriteOnlyImm, kFirstPsn, 8)), (Texts{"RNR 100 msn 0 timer 5"}));
  EXPECT_TRUE(memory_is_untouched());
  host->receives = {0};
  Packet packet = request(Operation::kWriteOnlyImm, kFirstPsn, 8);
  packet.imm = 99;
  EXPECT_EQ(answers_to(packet), (Texts{"ACK 100 msn 1"}));
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].message.opcode, WcOpcode::kRecvRdmaWithImm);
  EXPECT_EQ(host->received[0].message.imm_data, 99u);
  EXPECT_EQ(host->received[0].message.byte_len, 8u);
}

TEST_F(RoceResponder, LastPacketOfAWriteWithImmediateWithoutReceive_MayComeAgain) {
  Packet first = request(Operation::kWriteFirst, kFirstPsn, kMtu);
  first.length = kMtu + 8;
  receive(first);
  answers();
  EXPECT_EQ(answers_to(request(Operation::kWriteLastImm, kFirstPsn + 1, 8)), (Texts{"RNR 101 msn 0 timer 5"}));
  host->receives = {0};
  EXPECT_EQ(answers_to(request(Operation::kWriteLastImm, kFirstPsn + 1, 8)), (Texts{"ACK 101 msn 1"}));
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].message.byte_len, kMtu + 8);
}

TEST_F(RoceResponder, XrcRequestForAQueueThatIsNone_IsAnInvalidRequest) {
  ResponderOptions xrc = options;
  xrc.service = Service::kXrc;
  begin(xrc);
  host->receives = {100};
  Packet packet = request(Operation::kSendOnly, kFirstPsn, 8);
  packet.srqn = 77;
  receive(packet);
  EXPECT_EQ(host->taken_srqn, 77u);
  host->no_queue = true;
  answers();
  const Texts answered = answers_to(request(Operation::kSendOnly, kFirstPsn + 1, 8));
  expect_invalid(answered, kFirstPsn + 1, 1, "no such queue");
}

/// The process that may own the queue has not answered yet: the requester asks again.
TEST_F(RoceResponder, XrcRequestForAQueueThatComesLater_IsNotReadyAndChangesNothing) {
  ResponderOptions xrc = options;
  xrc.service = Service::kXrc;
  const Operation operations[] = {Operation::kSendOnly, Operation::kWriteOnly, Operation::kReadRequest,
                                  Operation::kFetchAdd};
  for (const Operation operation : operations) {
    begin(xrc);
    host->receives = {100};
    host->queue_comes_later = true;
    const bool is_atomic = operation == Operation::kFetchAdd;
    const auto packet = [&] { return is_atomic ? atomic(operation, kFirstPsn, 7) : request(operation, kFirstPsn, 8); };
    EXPECT_EQ(answers_to(packet()), (Texts{"RNR 100 msn 0 timer 5"})) << name_of(operation);
    EXPECT_TRUE(host->refusals.empty());
    host->queue_comes_later = false;
    const Texts answered = answers_to(packet());
    ASSERT_FALSE(answered.empty()) << name_of(operation);
    EXPECT_EQ(answered[0].find("RNR"), std::string::npos);
    EXPECT_TRUE(host->refusals.empty());
  }
}

// ---- Sequence numbers (9.7.1, 9.7.5.2.5).

TEST_F(RoceResponder, Ibta97525_OneGap_IsOneNak) {
  host->receives = {100, 100, 100, 100};
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 1, 8)), (Texts{"NAK 100 msn 0 code 0"}));
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 2, 8)), Texts{});
  EXPECT_TRUE(host->received.empty()) << "what is early is not executed";
  EXPECT_TRUE(host->refusals.empty());
  EXPECT_EQ(responder->counters().early, 2u);
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), (Texts{"ACK 100 msn 1"}));
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 2, 8)), (Texts{"NAK 101 msn 1 code 0"}));
  EXPECT_EQ(host->received.size(), 1u);
}

TEST_F(RoceResponder, MissingPacketThatComesBeforeTheNakLeft_IsAcknowledged) {
  host->receives = {100};
  receive(request(Operation::kSendOnly, kFirstPsn + 1, 8));
  Packet missing = request(Operation::kSendOnly, kFirstPsn, 8);
  missing.ack_request = false;
  EXPECT_EQ(answers_to(missing), (Texts{"ACK 100 msn 1"}));
}

TEST_F(RoceResponder, Ibta971_HalfOfAllNumbersIsPast_TheOtherHalfToCome) {
  host->receives = {100};
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  answers();
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 1 + 0x7fffff, 8)), (Texts{"NAK 101 msn 1 code 0"}));
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 1 + 0x800000, 8)), (Texts{"ACK 100 msn 1"}));
  EXPECT_EQ(responder->counters().early, 1u);
  EXPECT_EQ(responder->counters().duplicates, 1u);
}

TEST_F(RoceResponder, NumbersWrapAfter24Bits) {
  ResponderOptions wrapping = options;
  wrapping.first_psn = kPsnMask;
  begin(wrapping);
  host->receives = {100, 100};
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kPsnMask, 8)), (Texts{"ACK 16777215 msn 1"}));
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, 0, 8)), (Texts{"ACK 0 msn 2"}));
}

// ---- Repetitions (9.7.5.1.1 ff.).

TEST_F(RoceResponder, Ibta97511_RepeatedSend_IsAcknowledgedAndNotExecuted) {
  host->receives = {100, 100, 100};
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  receive(request(Operation::kSendOnly, kFirstPsn + 1, 8));
  answers();
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), (Texts{"ACK 101 msn 2"}))
      << "with the number of the newest";
  EXPECT_EQ(host->received.size(), 2u);
  EXPECT_EQ(responder->counters().duplicates, 1u);
  EXPECT_EQ(responder->counters().dropped, 0u);
}

TEST_F(RoceResponder, RepeatedWrite_IsAcknowledgedAndNotExecuted) {
  receive(request(Operation::kWriteOnly, kFirstPsn, 8));
  set_word(42);
  answers();
  EXPECT_EQ(answers_to(request(Operation::kWriteOnly, kFirstPsn, 8)), (Texts{"ACK 100 msn 1"}));
  EXPECT_EQ(word(), 42u);
}

TEST_F(RoceResponder, RepeatedRead_IsAnsweredAgainFromMemory) {
  set_word(1);
  EXPECT_EQ(answers_to(read(kFirstPsn, 8)), (Texts{"RESPONSE_ONLY 100 8 bytes msn 1"}));
  set_word(2);
  EXPECT_EQ(answers_to(read(kFirstPsn, 8)), (Texts{"RESPONSE_ONLY 100 8 bytes msn 1"}));
  EXPECT_EQ(output.last.payload[0], std::byte{2});
  EXPECT_EQ(responder->counters().duplicates, 1u);
  EXPECT_EQ(responder->counters().dropped, 0u);
  EXPECT_EQ(answers_to(read(kFirstPsn + 1, 8)), (Texts{"RESPONSE_ONLY 101 8 bytes msn 2"}))
      << "a repetition is no new message";
}

TEST_F(RoceResponder, RepeatedEndOfARead_IsAnsweredFromThereOn) {
  receive(read(kFirstPsn, 3 * kMtu));
  answers();
  EXPECT_EQ(answers_to(read(kFirstPsn + 1, 2 * kMtu, kBase + kMtu)),
            (Texts{"RESPONSE_FIRST 101 256 bytes msn 1", "RESPONSE_LAST 102 256 bytes msn 1"}));
}

TEST_F(RoceResponder, RepeatedReadThatReachesWhatWasNeverAskedFor_IsDroppedAndCounted) {
  receive(read(kFirstPsn, 2 * kMtu));
  answers();
  EXPECT_EQ(answers_to(read(kFirstPsn, 2 * kMtu + 1)), Texts{}) << "one packet more than there were";
  EXPECT_EQ(responder->counters().dropped, 1u);
  EXPECT_EQ(answers_to(read(kFirstPsn, 2 * kMtu)).size(), 2u);
  EXPECT_EQ(responder->counters().dropped, 1u);
}

TEST_F(RoceResponder, ReadRepeatedWhileItIsAnswered_GoesBackToItsStartOnce) {
  receive(read(kFirstPsn, 3 * kMtu));
  EXPECT_TRUE(responder->transmit(now, output, 2));
  EXPECT_EQ(output.take(), (Texts{"RESPONSE_FIRST 100 256 bytes msn 1", "RESPONSE_MIDDLE 101 256 bytes"}));
  EXPECT_EQ(answers_to(read(kFirstPsn, 3 * kMtu)),
            (Texts{"RESPONSE_FIRST 100 256 bytes msn 1", "RESPONSE_MIDDLE 101 256 bytes",
                   "RESPONSE_LAST 102 256 bytes msn 1"}));
  receive(read(kFirstPsn + 3, 3 * kMtu));
  responder->transmit(now, output, 1);
  EXPECT_EQ(output.take().size(), 1u);
  EXPECT_EQ(answers_to(read(kFirstPsn + 5, kMtu, kBase + 2 * kMtu)),
            (Texts{"RESPONSE_MIDDLE 104 256 bytes", "RESPONSE_LAST 105 256 bytes msn 2"}))
      << "what is to come anyway comes once, and nothing is skipped";
}

TEST_F(RoceResponder, RestOfAReadRepeatedWhileItIsAnswered_BeginsWithAFirst) {
  for (const uint32_t sent : {1u, 2u, 3u}) {
    const std::string why = std::to_string(sent) + " responses have left";
    begin(options);
    for (uint32_t i = 0; i < 4; ++i) host->memory[i * kMtu] = static_cast<std::byte>(i);
    receive(read(kFirstPsn, 4 * kMtu));
    responder->transmit(now, output, sent);
    EXPECT_EQ(output.take().size(), sent) << why;
    receive(read(kFirstPsn + 1, 3 * kMtu, kBase + kMtu));
    responder->transmit(now, output, 1);
    EXPECT_EQ(output.take(), (Texts{"RESPONSE_FIRST 101 256 bytes msn 1"})) << why;
    EXPECT_EQ(output.last.payload[0], std::byte{1}) << why;
    EXPECT_EQ(answers_to(read(kFirstPsn + 3, kMtu, kBase + 3 * kMtu)),
              (Texts{"RESPONSE_MIDDLE 102 256 bytes", "RESPONSE_LAST 103 256 bytes msn 1"}))
        << why << ": what is to come anyway comes once";
    EXPECT_EQ(output.last.payload[0], std::byte{3}) << why;
  }
  receive(read(kFirstPsn + 4, 2 * kMtu));
  responder->transmit(now, output, 1);
  output.take();
  EXPECT_EQ(answers_to(read(kFirstPsn + 5, kMtu, kBase + kMtu)), (Texts{"RESPONSE_ONLY 105 256 bytes msn 2"}));
}

TEST_F(RoceResponder, RepeatedReadWithAKeyThatIsGone_IsDroppedWithoutNak) {
  receive(read(kFirstPsn, 8));
  answers();
  host->key = 1;
  EXPECT_EQ(answers_to(read(kFirstPsn, 8)), Texts{});
  EXPECT_TRUE(host->refusals.empty());
  host->key = kKey;
  EXPECT_EQ(answers_to(read(kFirstPsn + 1, 8)), (Texts{"RESPONSE_ONLY 101 8 bytes msn 2"}));
}

TEST_F(RoceResponder, Ibta97513_RepeatedAtomic_IsAnsweredWithItsFirstResultAndNotExecuted) {
  set_word(10);
  EXPECT_EQ(answers_to(atomic(Operation::kFetchAdd, kFirstPsn, 5)), (Texts{"ATOMIC_ACK 100 found 10 msn 1"}));
  EXPECT_EQ(answers_to(atomic(Operation::kFetchAdd, kFirstPsn + 1, 7)), (Texts{"ATOMIC_ACK 101 found 15 msn 2"}));
  EXPECT_EQ(word(), 22u);
  EXPECT_EQ(answers_to(atomic(Operation::kFetchAdd, kFirstPsn, 5)), (Texts{"ATOMIC_ACK 100 found 10 msn 1"}));
  EXPECT_EQ(answers_to(atomic(Operation::kFetchAdd, kFirstPsn + 1, 7)), (Texts{"ATOMIC_ACK 101 found 15 msn 2"}));
  EXPECT_EQ(word(), 22u);
  EXPECT_EQ(responder->counters().duplicates, 2u);
  EXPECT_EQ(responder->counters().dropped, 0u);
}

TEST_F(RoceResponder, ResultsOf32Atomics_AreRemembered) {
  constexpr uint32_t kRemembered = 32;
  for (uint32_t i = 0; i <= kRemembered; ++i)
    ASSERT_EQ(answers_to(atomic(Operation::kFetchAdd, kFirstPsn + i, 1)).size(), 1u);
  EXPECT_EQ(answers_to(atomic(Operation::kFetchAdd, kFirstPsn + 1, 1)), (Texts{"ATOMIC_ACK 101 found 1 msn 2"}));
  EXPECT_EQ(answers_to(atomic(Operation::kFetchAdd, kFirstPsn, 1)), Texts{}) << "older than what is remembered";
  EXPECT_EQ(responder->counters().dropped, 1u);
  EXPECT_EQ(word(), kRemembered + 1);
}

TEST_F(RoceResponder, RepeatedAtomicThatNeverWas_IsDropped) {
  host->receives = {100};
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  answers();
  EXPECT_EQ(answers_to(atomic(Operation::kFetchAdd, kFirstPsn, 5)), Texts{}) << "a SEND had that number";
  EXPECT_EQ(responder->counters().dropped, 1u);
  EXPECT_EQ(word(), 0u);
}

TEST_F(RoceResponder, RepeatedAtomicWrite_IsAcknowledgedAndNotExecuted) {
  receive(request(Operation::kAtomicWrite, kFirstPsn, 8));
  answers();
  set_word(3);
  EXPECT_EQ(answers_to(request(Operation::kAtomicWrite, kFirstPsn, 8)), (Texts{"ACK 100 msn 1"}));
  EXPECT_EQ(word(), 3u);
}

// ---- WRITE and its rights (9.4.1.1.3, 9.7.4.1.5).

TEST_F(RoceResponder, WriteWithoutRight_IsARemoteAccessErrorAndWritesNothing) {
  struct Case {
    const char* what;
    uint32_t key;
    uint64_t address;
    uint32_t rights;
  };
  const Case cases[] = {
      {"wrong key", kKey + 1, kBase, access::kRemoteWrite},
      {"before the region", kKey, kBase - 1, access::kRemoteWrite},
      {"one byte beyond it", kKey, kBase + kMemoryBytes - 7, access::kRemoteWrite},
      {"no right to write", kKey, kBase, access::kRemoteRead | access::kRemoteAtomic},
  };
  for (const Case& each : cases) {
    begin(options);
    host->rights = each.rights;
    Packet packet = request(Operation::kWriteOnly, kFirstPsn, 8);
    packet.rkey = each.key;
    packet.address = each.address;
    expect_refused(answers_to(packet), kFirstPsn, 0, NakCode::kRemoteAccess, EventType::kQpAccessErr, each.what);
    EXPECT_TRUE(memory_is_untouched()) << each.what;
  }
}

TEST_F(RoceResponder, WriteWhoseEndLiesBeyondItsRegion_IsRefusedWithItsFirstPacket) {
  Packet first = request(Operation::kWriteFirst, kFirstPsn, kMtu);
  first.address = kBase + kMemoryBytes - kMtu - 7;
  first.length = kMtu + 8;
  expect_refused(answers_to(first), kFirstPsn, 0, NakCode::kRemoteAccess, EventType::kQpAccessErr,
                 "8 bytes, room for 7");
  EXPECT_TRUE(memory_is_untouched());
}

TEST_F(RoceResponder, WriteWhoseKeyGoesAwayMidway_IsARemoteAccessError) {
  Packet first = request(Operation::kWriteFirst, kFirstPsn, kMtu);
  first.length = 2 * kMtu;
  receive(first);
  answers();
  host->key = 1;
  expect_refused(answers_to(request(Operation::kWriteLast, kFirstPsn + 1, kMtu)), kFirstPsn + 1, 0,
                 NakCode::kRemoteAccess, EventType::kQpAccessErr, "deregistered");
}

TEST_F(RoceResponder, WriteToMemoryThatIsGone_IsARemoteOperationError) {
  host->written = false;
  expect_refused(answers_to(request(Operation::kWriteOnly, kFirstPsn, 8)), kFirstPsn, 0, NakCode::kRemoteOperation,
                 EventType::kQpFatal, "out of reach");
}

TEST_F(RoceResponder, Ibta9411_WriteOfNothing_NeedsNoKey) {
  Packet packet = request(Operation::kWriteOnly, kFirstPsn, 0);
  packet.rkey = 1;
  packet.address = 0;
  EXPECT_EQ(answers_to(packet), (Texts{"ACK 100 msn 1"}));
}

TEST_F(RoceResponder, PacketsOfAWrite_LieBehindEachOther) {
  Packet first = request(Operation::kWriteFirst, kFirstPsn, kMtu);
  first.address = kBase + 3;
  first.length = 2 * kMtu + 5;
  receive(first);
  receive(request(Operation::kWriteMiddle, kFirstPsn + 1, kMtu));
  receive(request(Operation::kWriteLast, kFirstPsn + 2, 5));
  std::vector<std::byte> expected(kMemoryBytes);
  const auto bytes = pattern_bytes(kMtu);
  std::copy(bytes.begin(), bytes.end(), expected.begin() + 3);
  std::copy(bytes.begin(), bytes.end(), expected.begin() + 3 + kMtu);
  std::copy_n(bytes.begin(), 5, expected.begin() + 3 + 2 * kMtu);
  EXPECT_EQ(host->memory, expected);
  EXPECT_TRUE(host->received.empty()) << "a WRITE takes no receive";
}

// ---- READ and atomics (9.7.4.1.5, 9.7.5.1.9).

TEST_F(RoceResponder, Ibta97519_ReadOfSeveralPackets_TakesTheirNumbers) {
  std::copy_n(pattern_bytes(3 * kMtu).begin(), 3 * kMtu, host->memory.begin());
  EXPECT_EQ(
      answers_to(read(kFirstPsn, 2 * kMtu + 1, kBase + 5)),
      (Texts{"RESPONSE_FIRST 100 256 bytes msn 1", "RESPONSE_MIDDLE 101 256 bytes", "RESPONSE_LAST 102 1 bytes msn 1"}))
      << "and no acknowledgement beside them";
  EXPECT_EQ(output.last.payload[0], pattern(5 + 2 * kMtu));
  EXPECT_EQ(answers_to(read(kFirstPsn + 3, 2 * kMtu)),
            (Texts{"RESPONSE_FIRST 103 256 bytes msn 2", "RESPONSE_LAST 104 256 bytes msn 2"}));
  EXPECT_EQ(answers_to(read(kFirstPsn + 5, kMtu)), (Texts{"RESPONSE_ONLY 105 256 bytes msn 3"}));
  EXPECT_EQ(answers_to(read(kFirstPsn + 6, 0)), (Texts{"RESPONSE_ONLY 106 0 bytes msn 4"}));
}

TEST_F(RoceResponder, ReadWithoutRight_IsARemoteAccessError) {
  struct Case {
    const char* what;
    uint32_t key;
    uint64_t address;
    uint32_t rights;
  };
  const Case cases[] = {
      {"wrong key", kKey + 1, kBase, access::kRemoteRead},
      {"one byte beyond the region", kKey, kBase + kMemoryBytes - 2 * kMtu + 1, access::kRemoteRead},
      {"no right to read", kKey, kBase, access::kRemoteWrite | access::kRemoteAtomic},
  };
  for (const Case& each : cases) {
    begin(options);
    host->rights = each.rights;
    Packet packet = read(kFirstPsn, 2 * kMtu, each.address);
    packet.rkey = each.key;
    expect_refused(answers_to(packet), kFirstPsn, 0, NakCode::kRemoteAccess, EventType::kQpAccessErr, each.what);
  }
  begin(options);
  Packet nothing = read(kFirstPsn, 0, 0);
  nothing.rkey = 1;
  EXPECT_EQ(answers_to(nothing), (Texts{"RESPONSE_ONLY 100 0 bytes msn 1"})) << "nothing needs no key";
}

TEST_F(RoceResponder, ReadWhoseKeyGoesAwayMidway_EndsWithARemoteAccessErrorAndEvent) {
  receive(read(kFirstPsn, 3 * kMtu));
  responder->transmit(now, output, 1);
  output.take();
  host->key = 1;
  expect_refused(answers(), kFirstPsn + 1, 1, NakCode::kRemoteAccess, EventType::kQpAccessErr, "at the second packet");
}

TEST_F(RoceResponder, ReadOfMemoryThatIsGone_EndsWithARemoteOperationError) {
  receive(read(kFirstPsn, 8));
  receive(read(kFirstPsn + 1, 8));
  output.answer = Sent::kUnreadable;
  responder->transmit(now, output, 1);
  output.answer = Sent::kYes;
  expect_refused(answers(), kFirstPsn, 2, NakCode::kRemoteOperation, EventType::kQpFatal,
                 "and what follows is not sent");
}

TEST_F(RoceResponder, Ibta9741_OneReadMoreThanMaxDestRdAtomic_IsAnInvalidRequest) {
  for (uint32_t i = 0; i < kMaxRdAtomic; ++i) receive(read(kFirstPsn + i, 8));
  EXPECT_TRUE(host->refusals.empty());
  receive(read(kFirstPsn + kMaxRdAtomic, 8));
  ASSERT_EQ(host->refusals.size(), 1u);
  EXPECT_EQ(host->refusals[0], EventType::kQpReqErr);
  const Texts answered = answers();
  ASSERT_EQ(answered.size(), kMaxRdAtomic + 1u) << "those before are answered";
  EXPECT_EQ(answered.back(), "NAK 104 msn 4 code 1");
}

TEST_F(RoceResponder, OneAtomicMoreThanMaxDestRdAtomic_IsAnInvalidRequestAndNotExecuted) {
  for (uint32_t i = 0; i < kMaxRdAtomic; ++i) receive(atomic(Operation::kFetchAdd, kFirstPsn + i, 1));
  EXPECT_EQ(word(), kMaxRdAtomic);
  receive(atomic(Operation::kFetchAdd, kFirstPsn + kMaxRdAtomic, 1));
  EXPECT_EQ(word(), kMaxRdAtomic);
  ASSERT_EQ(host->refusals.size(), 1u);
  EXPECT_EQ(host->refusals[0], EventType::kQpReqErr);
}

TEST_F(RoceResponder, AnsweredReads_CountNoMore) {
  for (uint32_t i = 0; i < 3 * kMaxRdAtomic; ++i) EXPECT_EQ(answers_to(read(kFirstPsn + i, 8)).size(), 1u);
  // Nor do repetitions.
  for (uint32_t i = 0; i < kMaxRdAtomic; ++i) receive(read(kFirstPsn + i, 8));
  for (uint32_t i = 0; i < kMaxRdAtomic; ++i) receive(read(kFirstPsn + 3 * kMaxRdAtomic + i, 8));
  EXPECT_TRUE(host->refusals.empty());
  EXPECT_EQ(answers().size(), 2 * kMaxRdAtomic);
}

TEST_F(RoceResponder, ReadBehindMoreRepetitionsThanThereIsRoomFor_IsDroppedAndTakenLater) {
  constexpr uint32_t kPackets = 100;  // more than responses that can wait
  EXPECT_EQ(answers_to(read(kFirstPsn, kPackets * kMtu)).size(), kPackets);
  for (const bool nupa_peer : {false, true}) {
    // Each packet of an old READ was lost alone, and is asked for alone.
    const uint64_t before = responder->counters().dropped;
    for (uint32_t i = 0; i < kPackets; ++i) receive(read(kFirstPsn + i, kMtu, kBase + i * kMtu));
    const uint64_t repetitions = responder->counters().dropped - before;
    EXPECT_GT(repetitions, 0u) << "no room";
    const uint32_t psn = kFirstPsn + kPackets + nupa_peer;
    const Packet fresh = read(psn, 8);
    receive(nupa_peer ? nupa(fresh) : fresh);
    EXPECT_TRUE(host->refusals.empty()) << "the peer has done nothing wrong";
    EXPECT_EQ(responder->counters().dropped - before, repetitions + 1);
    EXPECT_EQ(answers().size(), kPackets - repetitions);
    const Texts answered = answers_to(nupa_peer ? nupa(fresh) : fresh);
    ASSERT_FALSE(answered.empty());
    EXPECT_EQ(answered[0], "RESPONSE_ONLY " + std::to_string(psn) + " 8 bytes msn " + std::to_string(2 + nupa_peer));
  }
}

TEST_F(RoceResponder, Ibta9451_CompareSwap_SwapsOnlyWhatIsEqual) {
  set_word(10);
  EXPECT_EQ(answers_to(atomic(Operation::kCompareSwap, kFirstPsn, 99, 11)), (Texts{"ATOMIC_ACK 100 found 10 msn 1"}));
  EXPECT_EQ(word(), 10u);
  EXPECT_EQ(answers_to(atomic(Operation::kCompareSwap, kFirstPsn + 1, 99, 10)),
            (Texts{"ATOMIC_ACK 101 found 10 msn 2"}));
  EXPECT_EQ(word(), 99u);
}

TEST_F(RoceResponder, AtomicThatMayNotBe_IsRefusedAndNotExecuted) {
  struct Case {
    const char* what;
    Operation operation;
    uint32_t key;
    uint64_t address;
    uint32_t rights;
    NakCode code;
    EventType event;
  };
  constexpr uint32_t kAll = access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
  const Case cases[] = {
      {"odd address", Operation::kFetchAdd, kKey, kBase + 4, kAll, NakCode::kInvalidRequest, EventType::kQpReqErr},
      {"odd address", Operation::kCompareSwap, kKey, kBase + 1, kAll, NakCode::kInvalidRequest, EventType::kQpReqErr},
      {"odd address", Operation::kAtomicWrite, kKey, kBase + 4, kAll, NakCode::kInvalidRequest, EventType::kQpReqErr},
      {"wrong key", Operation::kFetchAdd, 1, kBase, kAll, NakCode::kRemoteAccess, EventType::kQpAccessErr},
      {"beyond", Operation::kFetchAdd, kKey, kBase + kMemoryBytes, kAll, NakCode::kRemoteAccess,
       EventType::kQpAccessErr},
      {"no right", Operation::kFetchAdd, kKey, kBase, kAll & ~access::kRemoteAtomic, NakCode::kRemoteAccess,
       EventType::kQpAccessErr},
      {"no right", Operation::kAtomicWrite, kKey, kBase, kAll & ~access::kRemoteWrite, NakCode::kRemoteAccess,
       EventType::kQpAccessErr},
  };
  for (const Case& each : cases) {
    begin(options);
    host->rights = each.rights;
    Packet packet = request(each.operation, kFirstPsn, each.operation == Operation::kAtomicWrite ? 8 : 0);
    packet.swap_or_add = 1;
    packet.rkey = each.key;
    packet.address = each.address;
    const std::string why = std::string(name_of(each.operation)) + ": " + each.what;
    expect_refused(answers_to(packet), kFirstPsn, 0, each.code, each.event, why);
    EXPECT_TRUE(memory_is_untouched()) << why;
  }
}

TEST_F(RoceResponder, AtomicOnAWordThatIsOddInTheProcess_IsAnInvalidRequest) {
  host->shift = 1;
  expect_invalid(answers_to(atomic(Operation::kFetchAdd, kFirstPsn, 1)), kFirstPsn, 0, "no atomics there");
  EXPECT_TRUE(memory_is_untouched());
}

TEST_F(RoceResponder, AtomicAtAnOddAddressOfTheKey_IsAnInvalidRequestWhereverItLies) {
  for (const Operation operation : {Operation::kFetchAdd, Operation::kCompareSwap, Operation::kAtomicWrite}) {
    begin(options);
    host->shift = 4;
    Packet packet = request(operation, kFirstPsn, operation == Operation::kAtomicWrite ? 8 : 0);
    packet.address = kBase + 4;
    packet.swap_or_add = 1;
    expect_invalid(answers_to(packet), kFirstPsn, 0, name_of(operation));
    EXPECT_TRUE(memory_is_untouched());
  }
}

TEST_F(RoceResponder, Ibta94113_EachRequestNeedsItsOwnRightAndNoOther) {
  struct Case {
    Operation operation;
    uint32_t right;
  };
  for (const Case& each : {Case{Operation::kWriteOnly, access::kRemoteWrite},
                           {Operation::kReadRequest, access::kRemoteRead},
                           {Operation::kFetchAdd, access::kRemoteAtomic},
                           {Operation::kCompareSwap, access::kRemoteAtomic},
                           {Operation::kAtomicWrite, access::kRemoteWrite}})
    for (const uint32_t right : {access::kRemoteWrite, access::kRemoteRead, access::kRemoteAtomic}) {
      begin(options);
      host->rights = right;
      const bool writes = each.right == access::kRemoteWrite;
      Packet packet = request(each.operation, kFirstPsn, writes ? 8 : 0);
      packet.length = 8;
      answers_to(packet);
      EXPECT_EQ(host->refusals.empty(), right == each.right) << name_of(each.operation) << " with right " << right;
    }
}

TEST_F(RoceResponder, AtomicWrite_Writes8BytesAndNoOtherLength) {
  EXPECT_EQ(answers_to(request(Operation::kAtomicWrite, kFirstPsn, 8)), (Texts{"ACK 100 msn 1"}));
  EXPECT_EQ(0, std::memcmp(host->memory.data(), pattern_bytes(8).data(), 8));
  for (const auto& [told, bytes] : {std::pair{8u, 7u}, {8u, 9u}, {7u, 8u}, {9u, 8u}, {16u, 16u}, {0u, 0u}}) {
    begin(options);
    Packet packet = request(Operation::kAtomicWrite, kFirstPsn, bytes);
    packet.length = told;
    expect_invalid(answers_to(packet), kFirstPsn, 0, std::to_string(told) + " told, " + std::to_string(bytes));
    EXPECT_TRUE(memory_is_untouched());
  }
}

// ---- What leaves, and when.

TEST_F(RoceResponder, Ibta97511_AcknowledgementNeverOvertakesResponses) {
  host->receives = {100};
  receive(read(kFirstPsn, 2 * kMtu));
  receive(request(Operation::kSendOnly, kFirstPsn + 2, 8));
  responder->transmit(now, output, 1);
  EXPECT_EQ(output.take(), (Texts{"RESPONSE_FIRST 100 256 bytes msn 1"}));
  EXPECT_EQ(answers(), (Texts{"RESPONSE_LAST 101 256 bytes msn 1", "ACK 102 msn 2"}));
}

TEST_F(RoceResponder, RefusalNeverOvertakesResponses) {
  for (const bool nupa_peer : {false, true}) {
    begin(options);
    const auto of_peer = [&](const Packet& packet) { return nupa_peer ? nupa(packet) : packet; };
    receive(of_peer(read(kFirstPsn, 2 * kMtu)));
    receive(of_peer(request(Operation::kSendMiddle, kFirstPsn + 2, kMtu)));
    responder->transmit(now, output, 1);
    EXPECT_EQ(output.take(), (Texts{"RESPONSE_FIRST 100 256 bytes msn 1"}));
    const Texts rest = answers();
    ASSERT_EQ(rest.size(), 2u);
    EXPECT_EQ(rest[0], "RESPONSE_LAST 101 256 bytes msn 1");
    EXPECT_NE(rest[1].find("NAK"), std::string::npos);
  }
}

TEST_F(RoceResponder, AnswerThatCannotLeaveNow_LeavesLaterOnce) {
  host->receives = {100};
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  output.answer = Sent::kNotNow;
  responder->transmit(now, output, 8);
  EXPECT_TRUE(responder->has_output());
  output.answer = Sent::kYes;
  EXPECT_EQ(answers(), (Texts{"ACK 100 msn 1"}));
  EXPECT_FALSE(responder->has_output());
  EXPECT_EQ(answers(), Texts{});
  receive(read(kFirstPsn + 1, 8));
  output.answer = Sent::kNotNow;
  responder->transmit(now, output, 8);
  output.answer = Sent::kYes;
  EXPECT_EQ(answers(), (Texts{"RESPONSE_ONLY 101 8 bytes msn 2"}));
}

TEST_F(RoceResponder, BudgetOfATurn_IsKept) {
  receive(read(kFirstPsn, 10 * kMtu));
  EXPECT_TRUE(responder->transmit(now, output, 4));
  EXPECT_EQ(output.take().size(), 4u);
  EXPECT_TRUE(responder->transmit(now, output, 5));
  EXPECT_EQ(output.take().size(), 5u);
  EXPECT_FALSE(responder->transmit(now, output, 5));
  EXPECT_EQ(output.take().size(), 1u);
}

TEST_F(RoceResponder, EveryAnswer_IsForThePeerAndOfTheConnectionsService) {
  ResponderOptions xrc = options;
  xrc.service = Service::kXrc;
  xrc.pkey = 0x7fff;
  begin(xrc);
  host->receives = {100};
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  receive(read(kFirstPsn + 1, 8));
  receive(atomic(Operation::kFetchAdd, kFirstPsn + 2, 1));
  while (responder->transmit(now, output, 8)) {
  }
  ASSERT_EQ(output.packets.size(), 2u);
  for (const RecordingOutput::Sent& sent : output.packets) {
    EXPECT_EQ(sent.packet.dest_qpn, kPeerQpn);
    EXPECT_EQ(sent.packet.pkey, 0x7fff);
    EXPECT_EQ(sent.packet.mark, kNupaMark);
    EXPECT_EQ(service_of(sent.packet.opcode), Service::kXrc);
    EXPECT_FALSE(sent.packet.ack_request);
  }
}

// ---- Congestion (annex A17.9) and paths.

TEST_F(RoceResponder, IbtaA179_CongestedPackets_CauseANotificationEach50Microseconds) {
  host->receives.assign(10, 100);
  Packet packet = request(Operation::kSendOnly, kFirstPsn, 8);
  packet.ack_request = false;
  receive(packet, true);
  EXPECT_EQ(answers(), (Texts{"CNP"}));
  EXPECT_EQ(output.last.packet.psn, 0u);
  EXPECT_EQ(output.last.packet.dest_qpn, kPeerQpn);
  now += 49'999;
  ++packet.psn;
  receive(packet, true);
  EXPECT_EQ(answers(), Texts{});
  now += 1;
  ++packet.psn;
  receive(packet, true);
  EXPECT_EQ(answers(), (Texts{"CNP"}));
  EXPECT_EQ(responder->counters().marked, 3u);
  ++packet.psn;
  now += 60'000;
  receive(packet, false);
  EXPECT_EQ(answers(), Texts{});
  EXPECT_EQ(responder->counters().marked, 3u);
}

TEST_F(RoceResponder, AnswersGoTheWayTheirRequestCame) {
  host->receives = {100};
  Packet send = request(Operation::kSendOnly, kFirstPsn, 8);
  send.path = 2;
  receive(send, true);
  Packet plain = read(kFirstPsn + 1, 8);
  plain.path = 1;
  receive(plain);
  answers();
  receive(send);  // again
  while (responder->transmit(now, output, 8)) {
  }
  ASSERT_EQ(output.packets.size(), 1u);
  EXPECT_EQ(output.packets[0].path, 2);
  output.take();
  receive(plain);
  while (responder->transmit(now, output, 8)) {
  }
  ASSERT_EQ(output.packets.size(), 1u);
  EXPECT_EQ(output.packets[0].path, 1) << "the response, too";
}

TEST_F(RoceResponder, RepeatedReadThatIsBeingAnswered_IsAnsweredByItsNewPath) {
  Packet request = read(kFirstPsn, 3 * kMtu);
  request.path = 1;
  receive(request);
  responder->transmit(now, output, 1);
  ASSERT_EQ(output.packets.size(), 1u);
  EXPECT_EQ(output.packets[0].path, 1);
  output.take();
  request.path = 2;
  receive(request);
  while (responder->transmit(now, output, 8)) {
  }
  ASSERT_EQ(output.packets.size(), 3u);
  for (const auto& sent : output.packets) EXPECT_EQ(sent.path, 2);
}

TEST_F(RoceResponder, NotificationGoesTheWayOfTheMarkedPacket) {
  host->receives = {100, 100};
  Packet packet = request(Operation::kSendOnly, kFirstPsn, 8);
  packet.ack_request = false;
  packet.path = 3;
  receive(packet, true);
  packet.path = 1;
  ++packet.psn;
  receive(packet, false);
  responder->transmit(now, output, 8);
  ASSERT_EQ(output.packets.size(), 1u);
  EXPECT_EQ(output.packets[0].path, 3);
}

TEST_F(RoceResponder, ProbeOfAPath_ComesBackByItOnce) {
  Packet probe;
  probe.opcode = kPathProbe;
  probe.mark = kNupaMark;
  for (const uint8_t path : {uint8_t{3}, uint8_t{1}}) {
    probe.path = path;
    probe.psn = 70 + path;
    receive(probe);
  }
  while (responder->transmit(now, output, 8)) {
  }
  ASSERT_EQ(output.packets.size(), 2u);
  EXPECT_EQ(output.packets[0].path, 1);
  EXPECT_EQ(output.packets[1].path, 3);
  EXPECT_EQ(output.take(), (Texts{"ECHO 71", "ECHO 73"}));
  EXPECT_EQ(answers(), Texts{});
  ResponderOptions standard = options;
  standard.mark = 0;
  begin(standard);
  EXPECT_EQ(answers_to(probe), Texts{}) << "an end that speaks the standard only";
}

// ---- Between NUPA ends: selective acknowledgements (docs/roce.md).

TEST_F(RoceResponder, EarlyPacketsOfANupaPeer_AreKeptAndTold) {
  host->receives = {100, 100, 100, 100};
  EXPECT_EQ(answers_to(nupa(request(Operation::kSendOnly, kFirstPsn + 1, 8))),
            (Texts{"selective ACK 99 msn 0 has +2"}));
  EXPECT_EQ(answers_to(nupa(request(Operation::kSendOnly, kFirstPsn + 3, 8))),
            (Texts{"selective ACK 99 msn 0 has +2 +4"}));
  EXPECT_TRUE(host->received.empty());
  EXPECT_EQ(pool.free(), 6u);
  Packet missing = nupa(request(Operation::kSendOnly, kFirstPsn, 8));
  missing.ack_request = false;
  EXPECT_EQ(answers_to(missing), (Texts{"selective ACK 101 msn 2 has +2"})) << "who waited is told without asking";
  EXPECT_EQ(host->received.size(), 2u);
  EXPECT_EQ(pool.free(), 7u);
  EXPECT_EQ(answers_to(nupa(request(Operation::kSendOnly, kFirstPsn + 2, 8))), (Texts{"selective ACK 103 msn 4 has"}));
  EXPECT_EQ(responder->counters().early, 2u);
  EXPECT_EQ(responder->counters().dropped, 0u);
}

TEST_F(RoceResponder, EarlyPacketsInAnyOrder_AreAllTold) {
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + 4, 8)));
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + 2, 8)));
  EXPECT_EQ(answers(), (Texts{"selective ACK 99 msn 0 has +3 +5"}));
}

TEST_F(RoceResponder, EarlyPacketThatComesTwice_IsKeptOnce) {
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + 1, 8)));
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + 1, 8)));
  EXPECT_EQ(responder->counters().duplicates, 1u);
  EXPECT_EQ(responder->counters().early, 2u);
  EXPECT_EQ(pool.free(), 7u);
}

TEST_F(RoceResponder, PacketBeyondTheReorderWindow_IsDroppedAndCounted) {
  host->receives.assign(2000, 8);
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + kBitmapBits - 1, 8)));
  EXPECT_EQ(responder->counters().dropped, 0u);
  EXPECT_EQ(answers(), (Texts{"selective ACK 99 msn 0 has +1024"}));
  Packet beyond = nupa(request(Operation::kSendOnly, kFirstPsn + kBitmapBits, 8));
  EXPECT_EQ(answers_to(beyond), Texts{});
  EXPECT_EQ(responder->counters().dropped, 1u);
  // It did not take the place of the one that is expected.
  Packet expected = nupa(request(Operation::kSendOnly, kFirstPsn, 3));
  receive(expected);
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].message.byte_len, 3u);
}

TEST_F(RoceResponder, EarlyPacketWithoutABuffer_IsDroppedAndCounted) {
  for (uint32_t i = 1; i <= 8; ++i) receive(nupa(request(Operation::kSendOnly, kFirstPsn + i, 8)));
  EXPECT_EQ(pool.free(), 0u);
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + 9, 8)));
  EXPECT_EQ(responder->counters().dropped, 1u);
  EXPECT_EQ(answers(), (Texts{"selective ACK 99 msn 0 has +2 +3 +4 +5 +6 +7 +8 +9"}));
  responder->stop();
  EXPECT_EQ(pool.free(), 8u) << "each buffer comes back";
}

TEST_F(RoceResponder, EarlyPacketsAreExecutedInTheirTurn) {
  host->receives = {kMtu * 2};
  receive(nupa(request(Operation::kSendLast, kFirstPsn + 1, 4)));
  receive(nupa(request(Operation::kSendFirst, kFirstPsn, kMtu)));
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].message.byte_len, kMtu + 4);
  EXPECT_EQ(answers(), (Texts{"selective ACK 101 msn 1 has"}));
}

TEST_F(RoceResponder, EarlyPacketThatBreaksTheSequence_IsRefusedInItsTurn) {
  host->receives = {100};
  receive(nupa(request(Operation::kSendMiddle, kFirstPsn + 1, kMtu)));
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + 2, 8)));
  receive(nupa(request(Operation::kSendOnly, kFirstPsn, 8)));
  EXPECT_EQ(host->received.size(), 1u);
  ASSERT_EQ(host->refusals.size(), 1u);
  EXPECT_EQ(answers(), (Texts{"selective NAK 100 msn 1 code 1 has"}));
  EXPECT_EQ(pool.free(), 8u);
}

TEST_F(RoceResponder, EarlyMiddleOfAWrite_LiesWhereItBelongsAtOnce) {
  Packet first = nupa(request(Operation::kWriteFirst, kFirstPsn, kMtu));
  first.length = 4 * kMtu;
  receive(first);
  receive(nupa(request(Operation::kWriteMiddle, kFirstPsn + 2, kMtu)));
  EXPECT_EQ(pool.free(), 8u) << "it needs no buffer";
  EXPECT_EQ(0, std::memcmp(host->memory.data() + 2 * kMtu, pattern_bytes(kMtu).data(), kMtu));
  EXPECT_EQ(host->memory[kMtu], std::byte{0});
  // Others are kept: not of full length, not in the middle, or not of this message.
  receive(nupa(request(Operation::kWriteLast, kFirstPsn + 3, kMtu)));
  EXPECT_EQ(pool.free(), 7u);
  EXPECT_EQ(host->memory[3 * kMtu], std::byte{0});
  receive(nupa(request(Operation::kWriteMiddle, kFirstPsn + 4, kMtu)));
  EXPECT_EQ(pool.free(), 6u) << "beyond the end of this message";
  EXPECT_EQ(host->memory[4 * kMtu], std::byte{0});
  // Middle packets that are in turn have nothing to copy any more.
  receive(nupa(request(Operation::kWriteMiddle, kFirstPsn + 1, kMtu)));
  EXPECT_EQ(0, std::memcmp(host->memory.data() + kMtu, pattern_bytes(kMtu).data(), kMtu));
  EXPECT_EQ(0, std::memcmp(host->memory.data() + 3 * kMtu, pattern_bytes(kMtu).data(), kMtu));
  EXPECT_EQ(host->memory[4 * kMtu], std::byte{0});
}

TEST_F(RoceResponder, EarlyLastWithTheNumberOfAMiddle_IsNotPlaced) {
  Packet first = nupa(request(Operation::kWriteFirst, kFirstPsn, kMtu));
  first.length = 4 * kMtu;
  receive(first);
  receive(nupa(request(Operation::kWriteLast, kFirstPsn + 2, kMtu)));
  EXPECT_EQ(host->memory[2 * kMtu], std::byte{0}) << "it will be refused in its turn";
}

TEST_F(RoceResponder, EarlyMiddleWithTheNumberOfTheLast_IsNotPlaced) {
  Packet first = nupa(request(Operation::kWriteFirst, kFirstPsn, kMtu));
  first.length = 2 * kMtu + 8;
  receive(first);
  receive(nupa(request(Operation::kWriteMiddle, kFirstPsn + 2, kMtu)));
  EXPECT_EQ(host->memory[2 * kMtu], std::byte{0}) << "it would write beyond the message";
  EXPECT_EQ(pool.free(), 7u);
}

TEST_F(RoceResponder, SelectiveAcknowledgement_TellsWhatCausedItAndHowLongItWaited) {
  ResponderOptions told = options;
  told.window = 70'000;
  begin(told);
  host->receives = {100, 100, 100};
  Packet packet = nupa(request(Operation::kSendOnly, kFirstPsn, 8));
  packet.path = 2;
  receive(packet, true);
  now += 12'345;
  answers();
  const Packet& ack = output.last.packet;
  EXPECT_EQ(ack.opcode, kSelectiveAck);
  EXPECT_EQ(ack.psn, kFirstPsn);
  EXPECT_TRUE(ack.trigger_valid);
  EXPECT_EQ(ack.trigger, kFirstPsn);
  EXPECT_EQ(ack.delay_ns, 12'345u);
  EXPECT_EQ(ack.window, 70'000u);
  EXPECT_EQ(ack.trigger_path, 2);
  EXPECT_EQ(ack.marked, 1u);
  EXPECT_EQ(ack.payload_length, 0u);
  responder->set_window(5);
  packet.path = 1;
  ++packet.psn;
  receive(packet);
  answers();
  EXPECT_EQ(output.last.packet.window, 5u);
  EXPECT_EQ(output.last.packet.marked, 0u) << "each path counts its own marks";
  EXPECT_EQ(output.last.packet.trigger, kFirstPsn + 1);
}

/// A SEND of one packet that does not ask, from a NUPA peer.
class RoceAnswersOutOfOrder : public RoceResponder {
 protected:
  RoceAnswersOutOfOrder() {
    host->receives.assign(200, 8);
    answers_to(nupa(request(Operation::kSendOnly, kFirstPsn, 8)));
  }
  Packet send(uint32_t number, bool asks = false) {
    Packet packet = nupa(request(Operation::kSendOnly, kFirstPsn + number, 8));
    packet.ack_request = asks;
    return packet;
  }
};

TEST_F(RoceAnswersOutOfOrder, Sixteen_AreAnsweredTogether) {
  PacketPool large(200);
  responder = std::make_unique<Responder>(*host, options, large);
  answers_to(send(0, true));
  size_t answered = 0;
  for (uint32_t i = 0; i < 160; ++i) answered += answers_to(send(2 + i)).size();
  EXPECT_EQ(answered, 10u);
  EXPECT_EQ(answers_to(send(1)), Texts{}) << "who does not ask waits, though all are executed";
  EXPECT_EQ(host->received.size(), 163u);
  EXPECT_EQ(answers_to(send(162, true)).size(), 1u);
}

TEST_F(RoceAnswersOutOfOrder, FirstAfterAPause_IsAnsweredAtOnce) {
  now += 2'499;
  EXPECT_EQ(answers_to(send(2)), Texts{});
  now += 1;
  EXPECT_EQ(answers_to(send(4)), (Texts{"selective ACK 100 msn 1 has +2 +4"}));
  now += 2'499;
  EXPECT_EQ(answers_to(send(6)), Texts{});
  EXPECT_EQ(answers_to(send(1)), Texts{}) << "one that fills a gap is told as late";
  now += 1;
  EXPECT_EQ(answers_to(send(3)), (Texts{"selective ACK 104 msn 5 has +2"}));
}

TEST_F(RoceAnswersOutOfOrder, OneThatAsks_IsAnsweredAtOnce) {
  EXPECT_EQ(answers_to(send(2, true)).size(), 1u);
  EXPECT_EQ(answers_to(send(4, true)).size(), 1u);
  EXPECT_EQ(answers_to(send(1)), (Texts{"selective ACK 102 msn 3 has +2"})) << "what asked has been executed now";
}

TEST_F(RoceAnswersOutOfOrder, OneThatComesTwice_IsAnsweredAtOnceAndCounted) {
  const auto duplicates = [this] { return output.last.packet.duplicates; };
  EXPECT_TRUE(output.last.packet.duplicates_valid);
  EXPECT_EQ(duplicates(), 0u);
  EXPECT_EQ(answers_to(send(2)), Texts{});
  EXPECT_EQ(answers_to(send(2)).size(), 1u);
  EXPECT_EQ(duplicates(), 1u);
  EXPECT_EQ(answers_to(send(0)).size(), 1u);
  EXPECT_EQ(duplicates(), 2u);
  EXPECT_EQ(answers_to(nupa(read(kFirstPsn + 1, 8))).size(), 2u);
  EXPECT_EQ(answers_to(nupa(read(kFirstPsn + 1, 8))).size(), 1u);
  answers_to(send(3, true));
  EXPECT_EQ(duplicates(), 2u) << "a READ comes again because its response is missing";
}

TEST_F(RoceAnswersOutOfOrder, NumbersThatAReadTook_AreNotToldOfAsArrived) {
  answers_to(send(3));
  answers_to(send(5));
  receive(nupa(read(kFirstPsn + 1, 3 * kMtu)));  // takes the number of one that came before it
  now += 3'000;
  EXPECT_EQ(pool.free(), 7u);
  receive(send(6, true));
  answers();
  EXPECT_EQ(text_of(output.last.packet, output.last.payload), "selective ACK 103 msn 2 has +2 +3");
}

TEST_F(RoceResponder, RnrNakToANupaPeer_StandsBesideWhatHasArrived) {
  receive(nupa(request(Operation::kSendOnly, kFirstPsn, 8)));
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + 1, 8)));
  EXPECT_EQ(answers(), (Texts{"selective RNR 99 msn 0 timer 5 has +2"}));
}

TEST_F(RoceResponder, EndThatSpeaksTheStandardOnly_AnswersANupaPeerAsTheStandardSays) {
  ResponderOptions standard = options;
  standard.mark = 0;
  begin(standard);
  host->receives = {100};
  EXPECT_EQ(answers_to(nupa(request(Operation::kSendOnly, kFirstPsn, 8))), (Texts{"ACK 100 msn 1"}));
  EXPECT_EQ(output.last.packet.mark, 0);
  EXPECT_EQ(answers_to(nupa(request(Operation::kSendOnly, kFirstPsn + 2, 8))), (Texts{"NAK 101 msn 1 code 0"}));
}

// ---- UC (9.8).

class RoceUnreliableResponder : public RoceResponder {
 protected:
  RoceUnreliableResponder() {
    ResponderOptions unreliable = standard_options();
    unreliable.service = Service::kUc;
    begin(unreliable);
    host->receives.assign(8, 1024);
  }
};

TEST_F(RoceUnreliableResponder, Ibta982_NothingIsEverAnswered) {
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), Texts{});
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 7, 8)), Texts{}) << "a gap";
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), Texts{}) << "a repetition";
  EXPECT_EQ(answers_to(request(Operation::kSendMiddle, kFirstPsn + 8, kMtu)), Texts{}) << "out of sequence";
  EXPECT_EQ(host->received.size(), 2u);
  EXPECT_TRUE(host->refusals.empty()) << "and the queue pair goes on";
  EXPECT_EQ(responder->counters().duplicates, 1u);
  EXPECT_EQ(responder->counters().early, 1u);
  EXPECT_EQ(host->established_count, 1);
}

TEST_F(RoceUnreliableResponder, Ibta98221_MessageWithAGap_IsDroppedWhole) {
  receive(request(Operation::kSendFirst, kFirstPsn, kMtu));
  EXPECT_TRUE(host->holds);
  receive(request(Operation::kSendMiddle, kFirstPsn + 2, kMtu));
  EXPECT_FALSE(host->holds) << "its receive is given back";
  receive(request(Operation::kSendLast, kFirstPsn + 3, 8));
  EXPECT_TRUE(host->received.empty());
  receive(request(Operation::kSendOnly, kFirstPsn + 4, 8));
  EXPECT_EQ(host->received.size(), 1u) << "the next message begins";
  EXPECT_EQ(host->receives.size(), 7u);
}

TEST_F(RoceUnreliableResponder, MessageWithoutABeginning_IsDropped) {
  receive(request(Operation::kSendLast, kFirstPsn, 8));
  receive(request(Operation::kWriteMiddle, kFirstPsn + 1, kMtu));
  EXPECT_TRUE(host->received.empty());
  EXPECT_TRUE(memory_is_untouched());
  receive(request(Operation::kSendOnly, kFirstPsn + 2, 8));
  EXPECT_EQ(host->received.size(), 1u);
}

TEST_F(RoceUnreliableResponder, NewMessageBeforeTheEndOfTheLast_TakesItsPlace) {
  receive(request(Operation::kSendFirst, kFirstPsn, kMtu));
  receive(request(Operation::kSendOnly, kFirstPsn + 1, 8));
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].message.byte_len, 8u);
  EXPECT_EQ(host->returned, 1);
}

TEST_F(RoceUnreliableResponder, MessageThatDoesNotFit_IsDroppedAndItsReceiveKept) {
  host->receives = {8, 100};
  receive(request(Operation::kSendOnly, kFirstPsn, 9));
  EXPECT_TRUE(host->received.empty());
  EXPECT_EQ(host->receives.size(), 2u);
  receive(request(Operation::kSendOnly, kFirstPsn + 1, 8));
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].status, WcStatus::kSuccess);
}

TEST_F(RoceUnreliableResponder, MessageWithoutReceive_IsDroppedAndTheNextReceived) {
  host->receives.clear();
  receive(request(Operation::kSendFirst, kFirstPsn, kMtu));
  host->receives = {4096};
  receive(request(Operation::kSendLast, kFirstPsn + 1, 8));
  EXPECT_TRUE(host->received.empty()) << "the rest of a message that began without";
  receive(request(Operation::kSendOnly, kFirstPsn + 2, 8));
  EXPECT_EQ(host->received.size(), 1u);
}

TEST_F(RoceUnreliableResponder, WriteWithAWrongKey_IsDroppedWithoutEvent) {
  Packet packet = request(Operation::kWriteOnly, kFirstPsn, 8);
  packet.rkey = 1;
  EXPECT_EQ(answers_to(packet), Texts{});
  EXPECT_TRUE(host->refusals.empty());
  EXPECT_TRUE(memory_is_untouched());
  receive(request(Operation::kWriteOnly, kFirstPsn + 1, 8));
  EXPECT_FALSE(memory_is_untouched());
}

TEST_F(RoceUnreliableResponder, NumberOneReorderWindowBack_IsAGapNotARepetition) {
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  const uint32_t expected = kFirstPsn + 1;
  receive(request(Operation::kSendOnly, expected - (kBitmapBits - 1), 8));
  EXPECT_EQ(host->received.size(), 1u);
  EXPECT_EQ(responder->counters().duplicates, 1u);
  receive(request(Operation::kSendOnly, expected - kBitmapBits, 8));
  EXPECT_EQ(host->received.size(), 2u) << "a sender that began anew";
  EXPECT_EQ(responder->counters().early, 1u);
}

// ---- XRC: the memory is that of another process, which has to copy and is stopped.

class RoceResponderStopped : public RoceResponder {
 protected:
  void SetUp() override {
    ResponderOptions xrc = standard_options();
    xrc.service = Service::kXrc;
    begin(xrc);
    host->receives = {2 * kMtu, 64};
    host->stands = true;
  }
  /// One turn of the port: nothing is answered, and something waits.
  void expect_silence() {
    responder->transmit(now, output, 1000);
    EXPECT_EQ(output.take(), Texts{});
    EXPECT_TRUE(responder->awaits_memory());
    EXPECT_TRUE(responder->has_output()) << "the port comes back";
  }
};

TEST_F(RoceResponderStopped, Send_IsPlacedInItsOneReceiveAndAcknowledgedThen) {
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  expect_silence();
  receive(request(Operation::kSendOnly, kFirstPsn, 8));  // its sender repeats it
  expect_silence();
  host->stands = false;
  EXPECT_EQ(answers(), (Texts{"ACK 100 msn 1"}));
  EXPECT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->receives.size(), 1u);
  EXPECT_EQ(host->established_count, 1);
  EXPECT_FALSE(responder->awaits_memory());
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 1, 8)), (Texts{"ACK 101 msn 2"}));
}

TEST_F(RoceResponderStopped, RepetitionThatIsServed_IsExecutedOnceThoughACopyWasKept) {
  receive(nupa(request(Operation::kSendOnly, kFirstPsn, 8)));
  host->stands = false;
  receive(nupa(request(Operation::kSendOnly, kFirstPsn, 8)));
  EXPECT_EQ(host->received.size(), 1u);
  EXPECT_FALSE(responder->awaits_memory());
  answers();
  EXPECT_EQ(host->received.size(), 1u);
  EXPECT_EQ(pool.free(), 8u) << "the copy is forgotten";
}

TEST_F(RoceResponderStopped, PacketsBehindIt_WaitForItsTurn) {
  receive(nupa(request(Operation::kSendFirst, kFirstPsn, kMtu)));
  receive(nupa(request(Operation::kSendLast, kFirstPsn + 1, 8)));
  responder->transmit(now, output, 1000);
  EXPECT_EQ(output.take(), (Texts{"selective ACK 99 msn 0 has +2"})) << "the first one is not acknowledged";
  EXPECT_TRUE(host->received.empty());
  host->stands = false;
  answers();
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].message.byte_len, kMtu + 8);
  EXPECT_EQ(pool.free(), 8u);
}

TEST_F(RoceResponderStopped, Write_IsWrittenAndAcknowledgedWhenItIsServed) {
  receive(request(Operation::kWriteOnly, kFirstPsn, 8));
  expect_silence();
  EXPECT_TRUE(host->refusals.empty());
  host->stands = false;
  EXPECT_EQ(answers(), (Texts{"ACK 100 msn 1"}));
}

TEST_F(RoceResponderStopped, Atomic_IsExecutedOnce) {
  set_word(10);
  receive(atomic(Operation::kFetchAdd, kFirstPsn, 5));
  receive(atomic(Operation::kFetchAdd, kFirstPsn, 5));
  expect_silence();
  EXPECT_EQ(word(), 10u);
  host->stands = false;
  EXPECT_EQ(answers(), (Texts{"ATOMIC_ACK 100 found 10 msn 1"}));
  EXPECT_EQ(word(), 15u);
  EXPECT_EQ(answers_to(atomic(Operation::kFetchAdd, kFirstPsn, 5)), (Texts{"ATOMIC_ACK 100 found 10 msn 1"}));
  EXPECT_EQ(word(), 15u);
}

TEST_F(RoceResponderStopped, Read_IsAcceptedAndAnsweredWhenItIsServed) {
  receive(read(kFirstPsn, 8));
  expect_silence();
  EXPECT_TRUE(host->refusals.empty());
  host->stands = false;
  EXPECT_EQ(answers(), (Texts{"RESPONSE_ONLY 100 8 bytes msn 1"}));
  EXPECT_FALSE(responder->awaits_memory());
}

TEST_F(RoceResponderStopped, QueuePairThatStops_WaitsForNothing) {
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  responder->stop();
  EXPECT_FALSE(responder->awaits_memory());
  EXPECT_FALSE(responder->has_output());
  EXPECT_EQ(host->returned, 1);
  EXPECT_EQ(pool.free(), 8u);
}

}  // namespace
}  // namespace nupa::roce::test
#endif
