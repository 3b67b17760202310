// SPDX-License-Identifier: Apache-2.0
/// The requester, one packet at a time: what it sends for its requests, which answers it believes, how often it
/// repeats.
#ifndef NUPA_TEST_DROPIN
#include <gtest/gtest.h>

#include "engine_fixture.h"
#include "transport/roce/protocol/requester.h"
#include "core/seam/timers.h"

namespace nupa::roce::test {
namespace {

constexpr int64_t kStart = 1'000'000'000;
constexpr uint8_t kTimeoutCode = 8;
constexpr int64_t kTimeout = core::ack_timeout_ns(kTimeoutCode);

using Done = std::vector<RecordingHost::Done>;

class RoceRequester : public ::testing::Test {
 protected:
  RoceRequester() { begin(options); }

  static RequesterOptions requester_options() {
    RequesterOptions made;
    made.dest_qpn = kPeerQpn;
    made.first_psn = kFirstPsn;
    made.mtu = kMtu;
    made.max_wr = 2048;
    made.max_sge = 4;
    made.max_inline = 64;
    made.congestion = "none";
    return made;
  }
  void begin(const RequesterOptions& wanted) {
    options = wanted;
    host = std::make_unique<RecordingHost>();
    for (size_t i = 0; i < host->memory.size(); ++i) host->memory[i] = pattern(i);
    requester = std::make_unique<Requester>(*host, options);
    patience = {.timeout = kTimeoutCode, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
    requester->set_patience(patience);
    output.take();
    posted = 0;
    now = kStart;
  }
  void set_patience(const Patience& wanted) { requester->set_patience(patience = wanted); }

  /// Requests have wr_id 0, 1, 2 ...
  SendWr post(Opcode opcode, uint32_t length, uint32_t flags = 0, uint64_t address = kBase) {
    const Sge sge{address, length, kKey};
    SendWr wr;
    wr.wr_id = posted++;
    wr.opcode = opcode;
    wr.flags = flags;
    wr.sg_list = &sge;
    wr.num_sge = length > 0 ? 1 : 0;
    wr.remote_addr = kBase;
    wr.rkey = 0x99;
    wr.imm_or_rkey = 0x1234;
    requester->post(wr, static_cast<uint32_t>(wr.wr_id));
    return wr;
  }
  /// The first `count` of `all` SENDs of one packet each.
  void send_first(uint32_t count, uint32_t all) {
    for (uint32_t i = 0; i < all; ++i) post(Opcode::kSend, 8);
    ASSERT_EQ(sends(2 * count - 1).size(), count) << "a request's end takes a step of the budget";
  }
  Texts sends(uint32_t budget = 10'000) {
    requester->transmit(now, output, budget);
    return output.take();
  }

  void receive(Packet packet) {
    packet.dest_qpn = 0x1105;
    requester->receive(packet, now);
  }
  static Packet answer(uint8_t syndrome_value, uint32_t psn) {
    Packet packet;
    packet.opcode = opcode_of(Service::kRc, Operation::kAcknowledge);
    packet.syndrome = syndrome_value;
    packet.psn = psn & kPsnMask;
    return packet;
  }
  void ack(uint32_t psn) { receive(answer(syndrome(AckKind::kAck, kAckUnlimited), psn)); }
  void rnr(uint32_t psn, uint8_t timer) { receive(answer(syndrome(AckKind::kRnrNak, timer), psn)); }
  void nak(uint32_t psn, uint8_t code) { receive(answer(syndrome(AckKind::kNak, code), psn)); }
  void nak(uint32_t psn, NakCode code) { nak(psn, static_cast<uint8_t>(code)); }
  void response(Operation operation, uint32_t psn, uint32_t bytes) {
    payload = pattern_bytes(bytes);
    Packet packet = answer(syndrome(AckKind::kAck, kAckUnlimited), psn);
    packet.opcode = opcode_of(Service::kRc, operation);
    packet.payload = payload.data();
    packet.payload_length = bytes;
    receive(packet);
  }
  void atomic_answer(uint32_t psn, uint64_t found) {
    Packet packet = answer(syndrome(AckKind::kAck, kAckUnlimited), psn);
    packet.opcode = opcode_of(Service::kRc, Operation::kAtomicAcknowledge);
    packet.found = found;
    receive(packet);
  }
  /// A selective acknowledgement: all up to `psn` is executed, and what `bits` say has arrived.
  Packet selective(uint32_t psn, const std::vector<uint32_t>& bits = {},
                   uint8_t syndrome_value = syndrome(AckKind::kAck, kAckUnlimited)) {
    Packet packet = answer(syndrome_value, psn);
    packet.opcode = kSelectiveAck;
    packet.mark = kNupaMark;
    bitmap.assign(kBitmapWords, 0);
    uint32_t words = 0;
    for (const uint32_t bit : bits) {  // counted from 1, as the responder's texts are
      bitmap[(bit - 1) / 32] |= uint32_t{1} << ((bit - 1) % 32);
      words = std::max(words, (bit - 1) / 32 + 1);
    }
    for (uint32_t& word : bitmap) word = bitmap_word(word);
    packet.payload = reinterpret_cast<const std::byte*>(bitmap.data());
    packet.payload_length = words * 4;
    return packet;
  }
  /// The time goes on to the next deadline. False: there is none.
  bool wait() {
    if (requester->deadline() == INT64_MAX) return false;
    now = std::max(now, requester->deadline());
    requester->on_timer(now);
    return true;
  }
  const RequesterCounters& counters() const { return requester->counters(); }
  Done done() const { return host->done; }

  RequesterOptions options = requester_options();
  Patience patience;
  std::unique_ptr<RecordingHost> host;
  std::unique_ptr<Requester> requester;
  RecordingOutput output;
  std::vector<std::byte> payload;
  std::vector<uint32_t> bitmap;
  uint64_t posted = 0;
  int64_t now = kStart;
};

// ---- Packets (9.7.2).

TEST_F(RoceRequester, Ibta972_EachRequest_IsItsPackets) {
  struct Case {
    Opcode opcode;
    uint32_t length;
    Texts packets;
  };
  const Case cases[] = {
      {Opcode::kSend, 0, {"SEND_ONLY 100 0 bytes asks"}},
      {Opcode::kSend, 256, {"SEND_ONLY 100 256 bytes asks"}},
      {Opcode::kSend, 257, {"SEND_FIRST 100 256 bytes asks", "SEND_LAST 101 1 bytes asks"}},
      {Opcode::kSendWithImm, 8, {"SEND_ONLY_IMM 100 8 bytes asks"}},
      {Opcode::kSendWithImm, 300, {"SEND_FIRST 100 256 bytes asks", "SEND_LAST_IMM 101 44 bytes asks"}},
      {Opcode::kSendWithInv, 8, {"SEND_ONLY_INV 100 8 bytes asks"}},
      {Opcode::kSendWithInv, 300, {"SEND_FIRST 100 256 bytes asks", "SEND_LAST_INV 101 44 bytes asks"}},
      {Opcode::kRdmaWrite, 0, {"WRITE_ONLY 100 0 bytes asks"}},
      {Opcode::kRdmaWrite, 8, {"WRITE_ONLY 100 8 bytes asks"}},
      {Opcode::kRdmaWrite,
       600,
       {"WRITE_FIRST 100 256 bytes asks", "WRITE_MIDDLE 101 256 bytes asks", "WRITE_LAST 102 88 bytes asks"}},
      {Opcode::kRdmaWriteWithImm, 8, {"WRITE_ONLY_IMM 100 8 bytes asks"}},
      {Opcode::kRdmaWriteWithImm, 300, {"WRITE_FIRST 100 256 bytes asks", "WRITE_LAST_IMM 101 44 bytes asks"}},
      {Opcode::kRdmaRead, 600, {"READ 100 600 bytes asks"}},
      {Opcode::kCompareSwap, 8, {"COMPARE_SWAP 100 asks"}},
      {Opcode::kFetchAdd, 8, {"FETCH_ADD 100 asks"}},
      {Opcode::kAtomicWrite, 0, {"ATOMIC_WRITE 100 8 bytes asks"}},
  };
  for (const Case& each : cases) {
    begin(options);
    post(each.opcode, each.length);
    EXPECT_EQ(sends(), each.packets);
    EXPECT_EQ(output.last.packet.dest_qpn, kPeerQpn);
    EXPECT_EQ(output.last.packet.pkey, 0xffff);
    EXPECT_EQ(output.last.packet.mark, kNupaMark);
    EXPECT_EQ(output.last.packet.rkey, traits_of(output.last.packet.opcode) == 0 ? 0u : 0x99u);
    EXPECT_EQ(counters().packets, each.packets.size());
  }
}

TEST_F(RoceRequester, PayloadsOfAMessage_FollowEachOtherInItsList) {
  const Sge list[] = {{kBase + 1, 100, kKey}, {kBase + 1000, 0, kKey}, {kBase + 500, 300, kKey}};
  SendWr wr;
  wr.sg_list = list;
  wr.num_sge = 3;
  requester->post(wr, 0);
  requester->transmit(now, output, 10);
  ASSERT_EQ(output.packets.size(), 2u);
  std::vector<std::byte> whole;
  for (const auto& sent : output.packets) whole.insert(whole.end(), sent.payload.begin(), sent.payload.end());
  ASSERT_EQ(whole.size(), 400u);
  for (size_t i = 0; i < 400; ++i) ASSERT_EQ(whole[i], pattern(i < 100 ? 1 + i : 500 + i - 100)) << i;
}

TEST_F(RoceRequester, OnlyTheLastPacket_IsSolicited) {
  post(Opcode::kSend, 300, send_flag::kSolicited);
  requester->transmit(now, output, 10);
  ASSERT_EQ(output.packets.size(), 2u);
  EXPECT_FALSE(output.packets[0].packet.solicited);
  EXPECT_TRUE(output.packets[1].packet.solicited);
  output.take();
  post(Opcode::kSend, 8);
  sends();
  EXPECT_FALSE(output.last.packet.solicited);
}

TEST_F(RoceRequester, InlineData_MayChangeAfterThePost) {
  std::byte mine[8] = {std::byte{1}, std::byte{2}};
  const Sge sge{reinterpret_cast<uint64_t>(mine), 8, 0};
  SendWr wr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.flags = send_flag::kInline;
  requester->post(wr, 0);
  mine[0] = std::byte{9};
  EXPECT_EQ(sends().size(), 1u);
  EXPECT_EQ(output.last.payload[0], std::byte{1});
}

TEST_F(RoceRequester, Atomics_CarryTheirOperands) {
  SendWr wr = post(Opcode::kCompareSwap, 8);
  const Sge sge{kBase, 8, kKey};
  wr.sg_list = &sge;
  wr.compare_add = 5;
  wr.swap = 6;
  requester->post(wr, 1);
  wr.opcode = Opcode::kFetchAdd;
  requester->post(wr, 2);
  requester->transmit(now, output, 10);
  ASSERT_EQ(output.packets.size(), 3u);
  EXPECT_EQ(output.packets[1].packet.compare, 5u);
  EXPECT_EQ(output.packets[1].packet.swap_or_add, 6u);
  EXPECT_EQ(output.packets[2].packet.swap_or_add, 5u);
  EXPECT_EQ(output.packets[2].packet.compare, 0u);
}

TEST_F(RoceRequester, NumbersWrapAfter24Bits) {
  RequesterOptions wrapping = options;
  wrapping.first_psn = kPsnMask;
  begin(wrapping);
  post(Opcode::kSend, 300);
  EXPECT_EQ(sends(), (Texts{"SEND_FIRST 16777215 256 bytes asks", "SEND_LAST 0 44 bytes asks"}));
  EXPECT_EQ(requester->next_psn(), 1u);
  ack(0);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 300}}));
}

TEST_F(RoceRequester, RequestWithAFault_SendsNothingAndEndsInItsTurn) {
  post(Opcode::kSend, 8);
  const Sge list[] = {{kBase, 8, kKey}};
  SendWr wr;
  wr.wr_id = 7;
  wr.sg_list = list;
  wr.num_sge = 1;
  requester->post(wr, 1, WcStatus::kLocLenErr);
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends(), Texts{"SEND_ONLY 100 8 bytes asks"});
  EXPECT_EQ(done(), Done{});
  ack(100);
  ASSERT_EQ(done().size(), 3u);
  EXPECT_EQ(done()[0].status, WcStatus::kSuccess);
  EXPECT_EQ(done()[1].wr_id, 7u);
  EXPECT_EQ(done()[1].status, WcStatus::kLocLenErr);
  EXPECT_EQ(done()[2].status, WcStatus::kWrFlushErr);
}

TEST_F(RoceRequester, FirstRequestWithAFault_EndsWithoutAPacket) {
  SendWr wr;
  requester->post(wr, 0, WcStatus::kLocProtErr);
  EXPECT_EQ(sends(), Texts{});
  ASSERT_EQ(done().size(), 1u);
  EXPECT_EQ(done()[0].status, WcStatus::kLocProtErr);
}

// ---- Acknowledgements (9.7.5.1, 9.7.5.2).

TEST_F(RoceRequester, Ibta9751_AcknowledgementOfTheLastPacket_CompletesItsRequestAndAllBefore) {
  post(Opcode::kSend, 300);
  post(Opcode::kRdmaWrite, 8);
  EXPECT_EQ(sends().size(), 3u);
  ack(kFirstPsn);
  EXPECT_EQ(done(), Done{}) << "half of the first";
  ack(kFirstPsn + 2);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 300}, {1, WcStatus::kSuccess, 8}}));
  EXPECT_TRUE(requester->idle());
  EXPECT_EQ(requester->deadline(), INT64_MAX);
  EXPECT_EQ(requester->sent_bytes(), 0u);
  EXPECT_EQ(counters().stray, 0u);
}

TEST_F(RoceRequester, Ibta9751_AcknowledgementOfWhatWasNotSent_IsStray) {
  send_first(1, 4);
  ack(kFirstPsn + 1);
  ack(kFirstPsn + 2);
  ack(kFirstPsn + 0x7fffff);
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(counters().stray, 3u);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 101 8 bytes asks", "SEND_ONLY 102 8 bytes asks", "SEND_ONLY 103 8 bytes asks"}))
      << "and nothing is repeated for it";
  ack(kFirstPsn);
  EXPECT_EQ(done().size(), 1u);
}

TEST_F(RoceRequester, AnswerBeforeAnythingWasSent_IsStray) {
  post(Opcode::kRdmaRead, 8);
  post(Opcode::kFetchAdd, 8);
  post(Opcode::kSend, 8);
  response(Operation::kReadResponseOnly, kFirstPsn, 8);
  atomic_answer(kFirstPsn + 1, 1);
  ack(kFirstPsn);
  nak(kFirstPsn, NakCode::kRemoteAccess);
  rnr(kFirstPsn, 1);
  EXPECT_EQ(counters().stray, 5u);
  EXPECT_EQ(counters().rnr_naks, 0u);
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(sends().size(), 3u);
}

TEST_F(RoceRequester, RequestThatWasPostedButNotSent_IsNotAcknowledged) {
  post(Opcode::kSend, 8);
  ack(kFirstPsn);
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(counters().stray, 1u);
}

TEST_F(RoceRequester, RepeatedAcknowledgement_IsNoNews) {
  for (int i = 0; i < 3; ++i) post(Opcode::kSend, 8);
  sends();
  ack(kFirstPsn + 1);
  ack(kFirstPsn + 1);
  EXPECT_EQ(counters().stray, 0u) << "the newest may come twice";
  ack(kFirstPsn);
  EXPECT_EQ(counters().stray, 1u) << "an older one is of long ago";
  EXPECT_EQ(done().size(), 2u);
}

TEST_F(RoceRequester, Ibta97524_ReservedKindOfAcknowledgement_IsIgnored) {
  post(Opcode::kSend, 8);
  sends();
  receive(answer(syndrome(AckKind::kReserved, 0), kFirstPsn));
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(sends(), Texts{});
  // The highest bit is reserved.
  receive(answer(static_cast<uint8_t>(0x80 | syndrome(AckKind::kAck, kAckUnlimited)), kFirstPsn));
  EXPECT_EQ(done().size(), 1u);
}

TEST_F(RoceRequester, AnswerOfAnotherService_IsStray) {
  post(Opcode::kSend, 8);
  sends();
  Packet packet = answer(syndrome(AckKind::kAck, kAckUnlimited), kFirstPsn);
  packet.opcode = opcode_of(Service::kXrc, Operation::kAcknowledge);
  receive(packet);
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(counters().stray, 1u);
}

TEST_F(RoceRequester, AfterAnError_AnswersAreIgnored) {
  post(Opcode::kSend, 8);
  post(Opcode::kSend, 8);
  sends();
  nak(kFirstPsn, NakCode::kRemoteAccess);
  EXPECT_EQ(done().size(), 2u);
  ack(kFirstPsn + 1);
  ack(kFirstPsn + 7);
  EXPECT_EQ(done().size(), 2u);
  EXPECT_EQ(counters().stray, 0u);
  EXPECT_EQ(sends(), Texts{});
  EXPECT_EQ(requester->deadline(), INT64_MAX);
}

// ---- NAKs (9.7.5.2.3 ff., table 46).

TEST_F(RoceRequester, Ibta97523_FatalNak_EndsItsRequestWithItsErrorAndFlushesTheRest) {
  const std::pair<NakCode, WcStatus> cases[] = {{NakCode::kInvalidRequest, WcStatus::kRemInvReqErr},
                                                {NakCode::kRemoteAccess, WcStatus::kRemAccessErr},
                                                {NakCode::kRemoteOperation, WcStatus::kRemOpErr},
                                                {NakCode::kInvalidRdRequest, WcStatus::kRemOpErr}};
  for (const auto& [code, status] : cases) {
    begin(options);
    for (int i = 0; i < 4; ++i) post(Opcode::kSend, 8);
    sends();
    nak(kFirstPsn + 2, code);
    EXPECT_EQ(
        done(),
        (Done{{0, WcStatus::kSuccess, 8}, {1, WcStatus::kSuccess, 8}, {2, status, 0}, {3, WcStatus::kWrFlushErr, 0}}))
        << "what came before was executed";
  }
}

TEST_F(RoceRequester, NakWithAReservedCode_IsIgnored) {
  post(Opcode::kSend, 8);
  sends();
  for (uint8_t code = 5; code < 32; ++code) nak(kFirstPsn, code);
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(sends(), Texts{});
}

TEST_F(RoceRequester, FatalNakOfWhatWasNotSentOrIsDone_EndsNothing) {
  send_first(2, 3);
  nak(kFirstPsn + 2, NakCode::kRemoteAccess);
  EXPECT_EQ(counters().stray, 1u);
  ack(kFirstPsn);
  nak(kFirstPsn, NakCode::kRemoteAccess);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 8}}));
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 102 8 bytes asks"})) << "it goes on";
}

TEST_F(RoceRequester, Ibta97525_SequenceNak_RepeatsFromThereOnce) {
  for (int i = 0; i < 3; ++i) post(Opcode::kSend, 8);
  EXPECT_EQ(sends().size(), 3u);
  nak(kFirstPsn + 1, NakCode::kSequence);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 8}}));
  EXPECT_EQ(counters().resent_sequence, 2u);
  nak(kFirstPsn + 1, NakCode::kSequence);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 101 8 bytes asks", "SEND_ONLY 102 8 bytes asks"}));
  nak(kFirstPsn + 1, NakCode::kSequence);
  EXPECT_EQ(sends(), Texts{}) << "the answers to what was under way say the same again";
  EXPECT_EQ(counters().resent_sequence, 2u);
  nak(kFirstPsn + 2, NakCode::kSequence);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 102 8 bytes asks"}));
  EXPECT_EQ(counters().resent_sequence, 3u);
}

TEST_F(RoceRequester, SequenceNakOfWhatIsToComeNext_IsStray) {
  send_first(1, 2);
  nak(kFirstPsn + 1, NakCode::kSequence);
  EXPECT_EQ(counters().stray, 1u);
  EXPECT_EQ(done(), Done{}) << "nor does it acknowledge";
}

// ---- RNR (9.7.5.2.8).

TEST_F(RoceRequester, Ibta97528_RnrNaksOneMoreThanRnrRetry_EndTheRequest) {
  for (uint8_t retries = 0; retries < 7; ++retries) {
    begin(options);
    set_patience({.timeout = kTimeoutCode, .retry_cnt = 7, .rnr_retry = retries, .max_rd_atomic = 4});
    post(Opcode::kSend, 8);
    for (int nak = 0; nak <= retries; ++nak) {
      EXPECT_EQ(done(), Done{}) << "after " << nak << " of " << retries + 1;
      EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"}));
      rnr(kFirstPsn, 5);
      if (nak < retries) {
        EXPECT_EQ(sends(), Texts{}) << "the responder's timer runs";
        EXPECT_EQ(requester->deadline(), now + core::rnr_timer_ns(5));
        ASSERT_TRUE(wait());
      }
    }
    EXPECT_EQ(done(), (Done{{0, WcStatus::kRnrRetryExcErr, 0}}));
    EXPECT_EQ(counters().rnr_naks, retries + 1u);
    EXPECT_EQ(counters().resent_timeout, 0u);
  }
}

TEST_F(RoceRequester, RnrRetry7_NeverGivesUp) {
  post(Opcode::kSend, 8);
  for (int nak = 0; nak < 1000; ++nak) {
    ASSERT_EQ(sends().size(), 1u);
    rnr(kFirstPsn, 1);
    ASSERT_TRUE(wait());
  }
  EXPECT_EQ(done(), Done{});
}

TEST_F(RoceRequester, ProgressBeginsTheCountOfRnrNaksAnew) {
  set_patience({.timeout = kTimeoutCode, .retry_cnt = 7, .rnr_retry = 1, .max_rd_atomic = 4});
  for (int i = 0; i < 5; ++i) post(Opcode::kSend, 8);
  for (uint32_t i = 0; i < 5; ++i) {
    sends();
    rnr(kFirstPsn + i, 5);  // which acknowledges those before
    ASSERT_TRUE(wait());
  }
  EXPECT_EQ(done().size(), 4u);
  EXPECT_EQ(done().back().status, WcStatus::kSuccess);
}

TEST_F(RoceRequester, RnrNakWhileItsTimerRuns_IsNoTry) {
  set_patience({.timeout = kTimeoutCode, .retry_cnt = 7, .rnr_retry = 1, .max_rd_atomic = 4});
  post(Opcode::kSend, 8);
  sends();
  rnr(kFirstPsn, 5);
  const int64_t until = requester->deadline();
  for (int i = 0; i < 5; ++i) rnr(kFirstPsn, 5);
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(requester->deadline(), until);
  now = until - 1;
  requester->on_timer(now);
  EXPECT_EQ(sends(), Texts{});
  now = until;
  requester->on_timer(now);
  EXPECT_EQ(sends().size(), 1u);
}

TEST_F(RoceRequester, RnrNakOfTheSecond_RepeatsFromThere) {
  for (int i = 0; i < 3; ++i) post(Opcode::kSend, 8);
  sends();
  rnr(kFirstPsn + 1, 5);
  EXPECT_EQ(done().size(), 1u);
  wait();
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 101 8 bytes asks", "SEND_ONLY 102 8 bytes asks"}));
}

// ---- Silence (9.7.6.1.3).

TEST_F(RoceRequester, Ibta97613_RetryCntRepetitionsThenTheRequestEnds) {
  for (const uint8_t retries : {0, 1, 2, 7}) {
    begin(options);
    set_patience({.timeout = kTimeoutCode, .retry_cnt = retries, .rnr_retry = 7, .max_rd_atomic = 4});
    post(Opcode::kSend, 300);
    post(Opcode::kSend, 8);
    for (int round = 0; round <= retries; ++round) {
      EXPECT_EQ(sends(),
                (Texts{"SEND_FIRST 100 256 bytes asks", "SEND_LAST 101 44 bytes asks", "SEND_ONLY 102 8 bytes asks"}))
          << "round " << round << " of " << retries + 1;
      EXPECT_EQ(done(), Done{});
      EXPECT_EQ(counters().resent_timeout, 3u * static_cast<uint32_t>(round));
      const int64_t pace = kTimeout * (round == 0 ? 1 : round == 1 ? 2 : 4);
      EXPECT_EQ(requester->deadline(), now + pace);
      now += pace - 1;
      requester->on_timer(now);
      EXPECT_EQ(sends(), Texts{}) << "one nanosecond early";
      ++now;
      requester->on_timer(now);
    }
    EXPECT_EQ(done(), (Done{{0, WcStatus::kRetryExcErr, 0}, {1, WcStatus::kWrFlushErr, 0}}));
  }
}

// ---- A host that says that the process is gone, or somebody who forges that.

TEST_F(RoceRequester, PeerInDoubt_OneMoreRepetitionUnansweredEndsTheRequest) {
  post(Opcode::kSend, 8);
  post(Opcode::kSend, 8);
  sends();
  requester->doubt_peer();
  requester->doubt_peer();  // what is said again and again says no more
  EXPECT_EQ(requester->deadline(), now + kTimeout);
  ASSERT_TRUE(wait());
  EXPECT_EQ(done(), Done{}) << "a forged message alone ends nothing";
  EXPECT_EQ(sends().size(), 2u);
  requester->doubt_peer();
  EXPECT_EQ(requester->deadline(), now + kTimeout) << "an answer has its time";
  ASSERT_TRUE(wait());
  EXPECT_EQ(done(), (Done{{0, WcStatus::kRetryExcErr, 0}, {1, WcStatus::kWrFlushErr, 0}}));
}

TEST_F(RoceRequester, PeerInDoubt_AnAnswerEndsTheDoubt) {
  for (const bool asked : {false, true}) {
    begin(options);
    post(Opcode::kSend, 8);
    post(Opcode::kSend, 8);
    sends();
    requester->doubt_peer();
    if (asked) {
      ASSERT_TRUE(wait());
      sends();
    }
    ack(kFirstPsn);
    for (int round = 0; round < 7; ++round) {
      ASSERT_TRUE(wait());
      sends();
      EXPECT_EQ(done().size(), 1u) << "it has all its repetitions";
    }
    ASSERT_TRUE(wait());
    EXPECT_EQ(done().back().status, WcStatus::kRetryExcErr);
  }
}

TEST_F(RoceRequester, DoubtWhileNothingIsUnderWay_IsNone) {
  requester->doubt_peer();
  post(Opcode::kSend, 8);
  sends();
  for (int round = 0; round < 7; ++round) {
    ASSERT_TRUE(wait());
    sends();
    EXPECT_EQ(done(), Done{});
  }
}

TEST_F(RoceRequester, PeerInDoubt_WithoutATimeoutItIsAskedAllTheSame) {
  set_patience({.timeout = 0, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4});
  post(Opcode::kSend, 8);
  sends();
  EXPECT_EQ(requester->deadline(), INT64_MAX);
  requester->doubt_peer();
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends().size(), 1u);
  ASSERT_TRUE(wait());
  EXPECT_EQ(done(), (Done{{0, WcStatus::kRetryExcErr, 0}}));
}

TEST_F(RoceRequester, UnderWay_IsWhatWaitsForAnAnswer) {
  EXPECT_FALSE(requester->is_under_way(kFirstPsn));
  send_first(2, 3);
  EXPECT_FALSE(requester->is_under_way(kFirstPsn - 1));
  EXPECT_TRUE(requester->is_under_way(kFirstPsn));
  EXPECT_TRUE(requester->is_under_way(kFirstPsn + 1));
  EXPECT_FALSE(requester->is_under_way(kFirstPsn + 2)) << "it was not sent";
  ack(kFirstPsn);
  EXPECT_FALSE(requester->is_under_way(kFirstPsn)) << "it was answered";
}

TEST_F(RoceRequester, ProgressBeginsTheCountOfRetriesAnew) {
  set_patience({.timeout = kTimeoutCode, .retry_cnt = 1, .rnr_retry = 7, .max_rd_atomic = 4});
  for (int i = 0; i < 4; ++i) post(Opcode::kSend, 8);
  for (uint32_t i = 0; i < 4; ++i) {
    sends();
    wait();
    sends();
    ack(kFirstPsn + i);
    EXPECT_EQ(requester->deadline(), i == 3 ? INT64_MAX : now + kTimeout);
  }
  EXPECT_EQ(done().size(), 4u);
  EXPECT_EQ(done().back().status, WcStatus::kSuccess);
}

TEST_F(RoceRequester, WhatHadArrivedAfterAll_IsNotSentOnceMore) {
  for (int i = 0; i < 4; ++i) post(Opcode::kSend, 8);
  ASSERT_EQ(sends().size(), 4u);
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends(1), (Texts{"SEND_ONLY 100 8 bytes asks"}));
  ack(kFirstPsn + 2);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 103 8 bytes asks"}));
  ack(kFirstPsn + 3);
  EXPECT_EQ(done().size(), 4u);
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 104 8 bytes asks"}));
}

TEST_F(RoceRequester, RepeatedAcknowledgement_IsNoProgress) {
  post(Opcode::kSend, 8);
  post(Opcode::kSend, 8);
  sends();
  ack(kFirstPsn);
  const int64_t deadline = requester->deadline();
  now += kTimeout / 2;
  ack(kFirstPsn);
  EXPECT_EQ(requester->deadline(), deadline);
}

TEST_F(RoceRequester, TimeoutZero_WaitsForEver) {
  set_patience({.timeout = 0, .retry_cnt = 0, .rnr_retry = 7, .max_rd_atomic = 4});
  post(Opcode::kSend, 8);
  sends();
  EXPECT_EQ(requester->deadline(), INT64_MAX);
  now += int64_t{1} << 50;
  requester->on_timer(now);
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(sends(), Texts{});
}

// ---- READ (9.7.5.1.9).

TEST_F(RoceRequester, Ibta97519_Responses_FillTheReadsMemoryInOrder) {
  post(Opcode::kSend, 8);
  post(Opcode::kRdmaRead, 600, 0, kBase + 4096);
  std::fill_n(host->memory.begin() + 4096, 700, std::byte{0});
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks", "READ 101 600 bytes asks"}));
  EXPECT_EQ(output.last.packet.address, kBase);
  EXPECT_EQ(requester->next_psn(), 104u) << "its responses have numbers of their own";
  response(Operation::kReadResponseFirst, 101, 256);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 8}})) << "it acknowledges what came before";
  response(Operation::kReadResponseMiddle, 102, 256);
  EXPECT_EQ(done().size(), 1u);
  response(Operation::kReadResponseLast, 103, 88);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 8}, {1, WcStatus::kSuccess, 600}}));
  const auto bytes = pattern_bytes(256);
  for (size_t i = 0; i < 600; ++i) ASSERT_EQ(host->memory[4096 + i], bytes[i % 256]) << i;
  EXPECT_EQ(host->memory[4096 + 600], std::byte{0});
}

TEST_F(RoceRequester, ResponseOfAWrongLength_IsStray) {
  post(Opcode::kRdmaRead, 300);
  sends();
  for (const uint32_t bytes : {0u, 255u, 257u}) response(Operation::kReadResponseFirst, kFirstPsn, bytes);
  EXPECT_EQ(counters().stray, 3u);
  response(Operation::kReadResponseFirst, kFirstPsn, 256);
  for (const uint32_t bytes : {0u, 43u, 45u, 256u}) response(Operation::kReadResponseLast, kFirstPsn + 1, bytes);
  EXPECT_EQ(counters().stray, 7u);
  EXPECT_EQ(done(), Done{});
  response(Operation::kReadResponseLast, kFirstPsn + 1, 44);
  EXPECT_EQ(done().size(), 1u);
}

TEST_F(RoceRequester, AnswerOfAnotherKindThanItsRequest_IsStray) {
  post(Opcode::kSend, 8);
  post(Opcode::kRdmaRead, 8);
  post(Opcode::kFetchAdd, 8);
  sends();
  response(Operation::kReadResponseOnly, kFirstPsn, 8);
  response(Operation::kReadResponseOnly, kFirstPsn + 2, 8);
  atomic_answer(kFirstPsn, 1);
  atomic_answer(kFirstPsn + 1, 1);
  EXPECT_EQ(counters().stray, 4u);
  EXPECT_EQ(done(), Done{});
  post(Opcode::kRdmaRead, 8);
  response(Operation::kReadResponseOnly, kFirstPsn + 3, 8);
  atomic_answer(kFirstPsn + 3, 8);
  EXPECT_EQ(counters().stray, 6u) << "not asked for yet";
  response(Operation::kReadResponseOnly, kFirstPsn + 1, 8);
  response(Operation::kReadResponseOnly, kFirstPsn + 1, 8);
  EXPECT_EQ(counters().stray, 7u) << "a second time";
  atomic_answer(kFirstPsn + 2, 77);
  atomic_answer(kFirstPsn + 2, 78);
  EXPECT_EQ(counters().stray, 8u);
  ASSERT_EQ(done().size(), 3u);
  uint64_t found;
  std::memcpy(&found, host->memory.data(), 8);
  EXPECT_EQ(found, 77u);
}

TEST_F(RoceRequester, AcknowledgementOfARead_DoesNotCompleteIt) {
  post(Opcode::kRdmaRead, 8);
  post(Opcode::kFetchAdd, 8);
  sends();
  ack(kFirstPsn);
  ack(kFirstPsn + 1);
  EXPECT_EQ(done(), Done{});
}

TEST_F(RoceRequester, ResponseThatSkipsOne_AsksForItAgainOnce) {
  post(Opcode::kRdmaRead, 600);
  sends();
  response(Operation::kReadResponseMiddle, kFirstPsn + 1, 256);
  EXPECT_EQ(sends(), (Texts{"READ 100 600 bytes asks"}));
  EXPECT_EQ(counters().resent_sequence, 3u);
  response(Operation::kReadResponseLast, kFirstPsn + 2, 88);
  EXPECT_EQ(sends(), Texts{});
  EXPECT_EQ(done(), Done{});
}

TEST_F(RoceRequester, LateResponseToWhatWillBeAskedForAgain_IsIgnored) {
  post(Opcode::kRdmaRead, 8);
  sends();
  now += kTimeout;
  requester->on_timer(now);
  response(Operation::kReadResponseOnly, kFirstPsn, 8);
  EXPECT_EQ(done(), Done{}) << "two answers to one request would be one too many later";
  EXPECT_EQ(sends(), (Texts{"READ 100 8 bytes asks"}));
}

TEST_F(RoceRequester, ReadThatIsRepeated_AsksForWhatIsMissing) {
  post(Opcode::kRdmaRead, 600);
  sends();
  response(Operation::kReadResponseFirst, kFirstPsn, 256);
  wait();
  EXPECT_EQ(sends(), (Texts{"READ 101 344 bytes asks"}));
  EXPECT_EQ(output.last.packet.address, kBase + 256);
}

TEST_F(RoceRequester, AcknowledgementBehindARead_SaysThatItsResponseIsLost) {
  post(Opcode::kRdmaRead, 8);
  post(Opcode::kSend, 8);
  sends();
  ack(kFirstPsn + 1);
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(sends(), (Texts{"READ 100 8 bytes asks", "SEND_ONLY 101 8 bytes asks"}));
  EXPECT_EQ(counters().resent_sequence, 2u);
}

TEST_F(RoceRequester, Ibta9733_MaxRdAtomicReadsAndAtomics_AreOutstanding) {
  set_patience({.timeout = kTimeoutCode, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 2});
  post(Opcode::kRdmaRead, 8);
  post(Opcode::kFetchAdd, 8);
  post(Opcode::kRdmaRead, 8);
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends(), (Texts{"READ 100 8 bytes asks", "FETCH_ADD 101 asks"}));
  response(Operation::kReadResponseOnly, kFirstPsn, 8);
  EXPECT_EQ(sends(), (Texts{"READ 102 8 bytes asks", "SEND_ONLY 103 8 bytes asks"}));
}

TEST_F(RoceRequester, MaxRdAtomicZero_IsALocalOperationError) {
  set_patience({.timeout = kTimeoutCode, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 0});
  post(Opcode::kSend, 8);
  post(Opcode::kRdmaRead, 8);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"}));
  EXPECT_EQ(done(), Done{});
  ack(kFirstPsn);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 8}, {1, WcStatus::kLocQpOpErr, 0}}));
}

TEST_F(RoceRequester, LongRead_IsAskedForInParts) {
  constexpr uint32_t kPart = 256;  // packets
  set_patience({.timeout = kTimeoutCode, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1});
  post(Opcode::kRdmaRead, (kPart + 44) * kMtu);
  EXPECT_EQ(sends(), (Texts{"READ 100 65536 bytes asks"}));
  for (uint32_t i = 0; i + 1 < kPart; ++i) response(Operation::kReadResponseMiddle, kFirstPsn + i, kMtu);
  EXPECT_EQ(sends(), Texts{}) << "a part is a request of its own";
  response(Operation::kReadResponseLast, kFirstPsn + kPart - 1, kMtu);
  EXPECT_EQ(sends(), (Texts{"READ 356 11264 bytes asks"}));
  EXPECT_EQ(output.last.packet.address, kBase + kPart * kMtu);
  EXPECT_TRUE(requester->asks());
}

TEST_F(RoceRequester, Ibta10833_FencedRequest_WaitsForReadsAndAtomics) {
  post(Opcode::kRdmaRead, 8);
  post(Opcode::kSend, 8);
  post(Opcode::kSend, 8, send_flag::kFence);
  EXPECT_EQ(sends(), (Texts{"READ 100 8 bytes asks", "SEND_ONLY 101 8 bytes asks"}));
  response(Operation::kReadResponseOnly, kFirstPsn, 8);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 102 8 bytes asks"}));
}

TEST_F(RoceRequester, Ibta10833_FencedRequestThatRunsHere_WaitsForReadsAndAtomics) {
  for (const Opcode opcode : {Opcode::kLocalInv, Opcode::kBindMw}) {
    begin(options);
    post(Opcode::kRdmaRead, 8);
    post(Opcode::kFetchAdd, 8);
    post(opcode, 0);
    post(opcode, 0, send_flag::kFence);
    post(Opcode::kSend, 8);
    EXPECT_EQ(sends(), (Texts{"READ 100 8 bytes asks", "FETCH_ADD 101 asks"}));
    EXPECT_EQ(host->locals, (std::vector<uint64_t>{2})) << "the one without fence waits for nothing";
    response(Operation::kReadResponseOnly, kFirstPsn, 8);
    EXPECT_EQ(sends(), Texts{});
    EXPECT_EQ(host->locals, (std::vector<uint64_t>{2})) << "the atomic is not complete";
    atomic_answer(kFirstPsn + 1, 1);
    EXPECT_EQ(sends(), (Texts{"SEND_ONLY 102 8 bytes asks"}));
    EXPECT_EQ(host->locals, (std::vector<uint64_t>{2, 3}));
  }
}

TEST_F(RoceRequester, FencedRequestThatHasRun_HoldsUpNoRepetition) {
  post(Opcode::kSend, 8);
  post(Opcode::kLocalInv, 0, send_flag::kFence);
  post(Opcode::kRdmaRead, 8);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks", "READ 101 8 bytes asks"}));
  nak(kFirstPsn, NakCode::kSequence);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks", "READ 101 8 bytes asks"}));
  EXPECT_EQ(host->locals, (std::vector<uint64_t>{1}));
}

TEST_F(RoceRequester, ReadWhoseMemoryMayNotBeWritten_IsALocalProtectionError) {
  post(Opcode::kRdmaRead, 8);
  post(Opcode::kSend, 8);
  sends();
  host->local_rights = 0;
  response(Operation::kReadResponseOnly, kFirstPsn, 8);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kLocProtErr, 0}, {1, WcStatus::kWrFlushErr, 0}}));
}

TEST_F(RoceRequester, ResponseRoom_IsNotOverrun) {
  constexpr uint32_t kPacket = kMtu + kBthBytes + kIcrcBytes;
  requester->set_room(UINT64_MAX, 4 * kPacket);
  post(Opcode::kRdmaRead, 10 * kMtu);
  EXPECT_EQ(sends(), (Texts{"READ 100 1024 bytes asks"}));
  EXPECT_EQ(requester->awaited_bytes(), 4 * kPacket);
  EXPECT_EQ(requester->starved(), Requester::Starved::kResponses);
  for (uint32_t i = 0; i < 4; ++i) response(Operation::kReadResponseMiddle, kFirstPsn + i, kMtu);
  EXPECT_EQ(requester->awaited_bytes(), 0u);
  EXPECT_EQ(sends(), (Texts{"READ 104 1024 bytes asks"}));
}

TEST_F(RoceRequester, SendRoom_IsNotOverrun) {
  constexpr uint32_t kPacket = kMtu + kBthBytes + kIcrcBytes;
  requester->set_room(2 * kPacket, UINT64_MAX);
  post(Opcode::kSend, 3 * kMtu);
  EXPECT_EQ(sends().size(), 2u);
  EXPECT_EQ(requester->starved(), Requester::Starved::kSends);
  EXPECT_EQ(requester->sent_bytes(), 2 * kPacket);
  ack(kFirstPsn);
  EXPECT_EQ(sends().size(), 1u);
  EXPECT_EQ(requester->starved(), Requester::Starved::kNo);
}

// ---- Windows and asking (docs/roce.md).

TEST_F(RoceRequester, UnknownPeer_GetsFourPacketsAtFirst) {
  post(Opcode::kSend, 400 * kMtu);
  EXPECT_EQ(sends().size(), 3u) << "1,024 bytes with their headers";
  ack(kFirstPsn);
  EXPECT_EQ(requester->peer_window(), 256u * kMtu);
  EXPECT_EQ(sends().size() + 2, 256u * kMtu / (kMtu + kBthBytes + kIcrcBytes));
}

TEST_F(RoceRequester, AnswerOfANupaPeer_SaysNothingOfAStandardPeersWindow) {
  post(Opcode::kSend, 400 * kMtu);
  sends();
  Packet packet = answer(syndrome(AckKind::kAck, kAckUnlimited), kFirstPsn);
  packet.mark = kNupaMark;
  receive(packet);
  EXPECT_EQ(requester->peer_window(), 4u * kMtu);
}

TEST_F(RoceRequester, Each32ndPacketAndTheLast_AskForAnAcknowledgement) {
  receive(selective(kFirstPsn - 1));  // without a window: no limit
  ASSERT_EQ(requester->peer_window(), UINT64_MAX);
  post(Opcode::kSend, 70 * kMtu);
  const Texts packets = sends();
  ASSERT_EQ(packets.size(), 70u);
  for (uint32_t i = 0; i < 70; ++i) {
    const bool asks = packets[i].find("asks") != std::string::npos;
    EXPECT_EQ(asks, (kFirstPsn + i) % 32 == 31 || i == 69) << packets[i];
  }
}

TEST_F(RoceRequester, WithAWindow_APacketOfEachQuarterAsks) {
  constexpr uint32_t kPacket = kMtu + kBthBytes + kIcrcBytes;
  post(Opcode::kSend, 8);
  sends();
  Packet ack = selective(kFirstPsn);
  ack.window = 16 * kPacket;
  receive(ack);
  post(Opcode::kSend, 30 * kMtu);
  const Texts packets = sends();
  ASSERT_EQ(packets.size(), 16u) << "as much as there is room for";
  for (uint32_t i = 0; i < 16; ++i) EXPECT_EQ(packets[i].find("asks") != std::string::npos, i % 4 == 3) << packets[i];
}

TEST_F(RoceRequester, NoMoreThan1024Packets_AreUnderWay) {
  receive(selective(kFirstPsn - 1));
  for (int i = 0; i < 1100; ++i) post(Opcode::kSend, 1);
  EXPECT_EQ(sends().size(), 1024u);
  ack(kFirstPsn + 1);
  EXPECT_EQ(sends().size(), 2u);
}

TEST_F(RoceRequester, NoMoreThan1024Packets_AreUnderWay_ResponsesToo) {
  receive(selective(kFirstPsn - 1));
  for (int i = 0; i < 1000; ++i) post(Opcode::kSend, 1);
  post(Opcode::kRdmaRead, 100 * kMtu);
  const Texts sent = sends();
  ASSERT_EQ(sent.size(), 1001u);
  EXPECT_EQ(sent.back(), "READ 1100 " + std::to_string(24 * kMtu) + " bytes asks");
}

TEST_F(RoceRequester, BudgetOfATurn_IsKept) {
  receive(selective(kFirstPsn - 1));
  post(Opcode::kSend, 20 * kMtu);
  EXPECT_TRUE(requester->transmit(now, output, 7));
  EXPECT_EQ(output.take().size(), 7u);
  EXPECT_FALSE(requester->transmit(now, output, 70));
  EXPECT_EQ(output.take().size(), 13u);
}

TEST_F(RoceRequester, PacketThatCannotLeaveNow_LeavesLaterOnce) {
  post(Opcode::kSend, 8);
  output.answer = Sent::kNotNow;
  EXPECT_FALSE(requester->transmit(now, output, 7));
  EXPECT_EQ(counters().packets, 0u);
  EXPECT_EQ(requester->deadline(), INT64_MAX) << "nothing is under way";
  output.answer = Sent::kYes;
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"}));
  EXPECT_EQ(counters().packets, 1u);
}

// ---- Faults of this end, SQD, flushing (10.8.5, 10.3.1).

TEST_F(RoceRequester, Ibta1085_FaultOfThisEnd_IsToldInItsTurn) {
  post(Opcode::kSend, 8);
  post(Opcode::kSend, 8, 0, kBase + kMemoryBytes);
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"})) << "and nothing behind it is sent";
  EXPECT_EQ(done(), Done{}) << "the first is not over";
  EXPECT_EQ(sends(), Texts{});
  ack(kFirstPsn);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 8}, {1, WcStatus::kLocProtErr, 0}, {2, WcStatus::kWrFlushErr, 0}}));
}

TEST_F(RoceRequester, MemoryThatCannotBeRead_IsALocalProtectionError) {
  post(Opcode::kSend, 8);
  output.answer = Sent::kUnreadable;
  EXPECT_EQ(sends(), Texts{});
  EXPECT_EQ(done(), (Done{{0, WcStatus::kLocProtErr, 0}}));
}

TEST_F(RoceRequester, LocalRequests_RunInTheirTurnAndCompleteInOrder) {
  post(Opcode::kSend, 8);
  post(Opcode::kLocalInv, 0);
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends().size(), 2u);
  EXPECT_EQ(host->locals, (std::vector<uint64_t>{1}));
  EXPECT_EQ(done(), Done{});
  ack(kFirstPsn + 1);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 8}, {1, WcStatus::kSuccess, 0}, {2, WcStatus::kSuccess, 8}}));
  host->local_status = WcStatus::kMwBindErr;
  post(Opcode::kBindMw, 0);
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends(), Texts{});
  EXPECT_EQ(done()[3], (RecordingHost::Done{3, WcStatus::kMwBindErr, 0}));
  EXPECT_EQ(done()[4], (RecordingHost::Done{4, WcStatus::kWrFlushErr, 0}));
}

TEST_F(RoceRequester, LocalRequestInThePlaceOfAnEarlierOne_RunsToo) {
  RequesterOptions one_place = options;
  one_place.max_wr = 1;
  begin(one_place);
  for (const Opcode opcode : {Opcode::kLocalInv, Opcode::kBindMw, Opcode::kLocalInv}) {
    post(opcode, 0);
    EXPECT_EQ(sends(), Texts{});
  }
  EXPECT_EQ(host->locals, (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 0}, {1, WcStatus::kSuccess, 0}, {2, WcStatus::kSuccess, 0}}));
}

TEST_F(RoceRequester, Ibta10314_Paused_FinishesWhatWasStartedAndStartsNothing) {
  post(Opcode::kSend, 2 * kMtu);
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends(1).size(), 1u);
  requester->pause(true);
  EXPECT_FALSE(requester->drained());
  EXPECT_EQ(sends(), (Texts{"SEND_LAST 101 256 bytes asks"}));
  ack(kFirstPsn + 1);
  EXPECT_TRUE(requester->drained());
  EXPECT_EQ(sends(), Texts{});
  requester->pause(false);
  EXPECT_FALSE(requester->drained());
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 102 8 bytes asks"}));
}

TEST_F(RoceRequester, Ibta10314_PausedAfterAGoBack_WhatTheOtherEndMayHaveIsStillStarted) {
  for (const bool late_answer : {false, true}) {
    begin(options);
    send_first(3, 4);
    nak(kFirstPsn, NakCode::kSequence);
    requester->pause(true);
    EXPECT_FALSE(requester->drained());
    if (!late_answer) {
      EXPECT_EQ(sends(),
                (Texts{"SEND_ONLY 100 8 bytes asks", "SEND_ONLY 101 8 bytes asks", "SEND_ONLY 102 8 bytes asks"}));
    }
    ack(kFirstPsn);
    EXPECT_FALSE(requester->drained()) << "two that were started are left";
    ack(kFirstPsn + 2);
    EXPECT_EQ(sends(), Texts{}) << "the fourth was never started";
    EXPECT_EQ(done().size(), 3u);
    EXPECT_TRUE(requester->drained());
    requester->pause(false);
    EXPECT_EQ(sends(), (Texts{"SEND_ONLY 103 8 bytes asks"}));
  }
}

TEST_F(RoceRequester, Ibta10314_PausedAfterAGoBack_ALocalRequestThatHasRunIsDrained) {
  post(Opcode::kSend, 8);
  post(Opcode::kLocalInv, 0);
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends(3).size(), 1u) << "the budget ends behind the local request";
  EXPECT_EQ(host->locals.size(), 1u);
  nak(kFirstPsn, NakCode::kSequence);
  requester->pause(true);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"}));
  EXPECT_FALSE(requester->drained());
  ack(kFirstPsn);
  EXPECT_TRUE(requester->drained());
  EXPECT_EQ(sends(), Texts{});
}

TEST_F(RoceRequester, PausedBeforeItsFirstPacket_ARequestIsNotStarted) {
  post(Opcode::kSend, 8);
  requester->pause(true);
  EXPECT_TRUE(requester->drained());
  EXPECT_EQ(sends(), Texts{});
}

TEST_F(RoceRequester, Flush_CompletesEachRequestOnceInOrder) {
  for (int i = 0; i < 3; ++i) post(Opcode::kSend, 8);
  sends(1);
  requester->flush();
  EXPECT_EQ(done(),
            (Done{{0, WcStatus::kWrFlushErr, 0}, {1, WcStatus::kWrFlushErr, 0}, {2, WcStatus::kWrFlushErr, 0}}));
  EXPECT_EQ(sends(), Texts{});
  EXPECT_EQ(requester->sent_bytes(), 0u);
  EXPECT_TRUE(requester->drained());
  ack(kFirstPsn);
  EXPECT_EQ(done().size(), 3u);
}

// ---- UC.

TEST_F(RoceRequester, Ibta982_UnreliableRequests_AreDoneWhenTheyHaveLeft) {
  RequesterOptions unreliable = options;
  unreliable.service = Service::kUc;
  begin(unreliable);
  post(Opcode::kSend, 300);
  post(Opcode::kRdmaWrite, 8);
  EXPECT_EQ(sends(1), (Texts{"SEND_FIRST 100 256 bytes"})) << "nothing is asked";
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(sends(), (Texts{"SEND_LAST 101 44 bytes", "WRITE_ONLY 102 8 bytes"}));
  EXPECT_EQ(done().size(), 2u);
  EXPECT_EQ(requester->deadline(), INT64_MAX);
  ack(kFirstPsn);
  EXPECT_EQ(counters().stray, 0u);
}

// ---- Congestion notifications (annex A17.9).

TEST_F(RoceRequester, IbtaA179_Notification_CutsTheRateAndCountsOnce) {
  RequesterOptions controlled = options;
  controlled.congestion = "dcqcn";
  begin(controlled);
  const uint64_t before = requester->paths()[0].congestion->rate(now);
  Packet packet;
  packet.opcode = kCnpOpcode;
  packet.path = 3;  // a path that is not there counts as the last
  receive(packet);
  EXPECT_EQ(counters().notifications, 1u);
  EXPECT_LT(requester->paths()[0].congestion->rate(now), before);
  EXPECT_EQ(counters().stray, 0u);
}

// ---- Selective acknowledgements (docs/roce.md).

class RoceSelectiveRequester : public RoceRequester {
 protected:
  RoceSelectiveRequester() { receive(selective(kFirstPsn - 1)); }
  /// `count` SENDs of one packet each, all at once.
  void send_messages(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) post(Opcode::kSend, 8);
    ASSERT_EQ(sends().size(), count);
  }
  const RoundTrip& round_trip() const { return requester->paths()[0].round_trip; }
};

TEST_F(RoceSelectiveRequester, OneIsBelievedFromAPeerThatMaySendIt) {
  EXPECT_TRUE(requester->selective());
  RequesterOptions standard = options;
  standard.mark = 0;
  begin(standard);
  post(Opcode::kSend, 8);
  sends();
  receive(selective(kFirstPsn));
  EXPECT_FALSE(requester->selective());
  EXPECT_EQ(done(), Done{}) << "an end that speaks the standard only";
}

TEST_F(RoceSelectiveRequester, OneOfWhatWasNotSent_IsStray) {
  send_first(2, 4);
  receive(selective(kFirstPsn + 2));
  receive(selective(kFirstPsn + 500));
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(counters().stray, 2u);
  receive(selective(kFirstPsn + 1));
  EXPECT_EQ(done().size(), 2u);
  receive(selective(kFirstPsn + 1));
  EXPECT_EQ(counters().stray, 2u) << "the newest again";
  receive(selective(kFirstPsn));
  EXPECT_EQ(counters().stray, 3u);
}

TEST_F(RoceSelectiveRequester, ArrivedPackets_CompleteInTheirTurn) {
  send_messages(4);
  receive(selective(kFirstPsn - 1, {2, 3}));
  EXPECT_EQ(done(), Done{}) << "nothing has been executed";
  receive(selective(kFirstPsn, {2}));
  EXPECT_EQ(done().size(), 1u);
  receive(selective(kFirstPsn + 3));
  EXPECT_EQ(done().size(), 4u);
}

TEST_F(RoceSelectiveRequester, BitsOfWhatWasNotSent_AreIgnored) {
  send_messages(2);
  receive(selective(kFirstPsn - 1, {3, 4, 100, 1024}));
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 102 8 bytes asks"})) << "it has not arrived before it was sent";
  receive(selective(kFirstPsn + 1));
  EXPECT_EQ(done().size(), 2u);
}

TEST_F(RoceSelectiveRequester, PacketThatALaterOneOvertookByTheReorderTime_IsSentAgain) {
  constexpr int64_t kReorderNs = 10'000;  // the least
  for (const bool late_enough : {false, true}) {
    begin(options);
    receive(selective(kFirstPsn - 1));
    send_messages(1);
    now += kReorderNs + late_enough;
    send_messages(1);
    receive(selective(kFirstPsn - 1, {2}));
    EXPECT_EQ(requester->lost(), late_enough ? 1u : 0u);
    EXPECT_EQ(sends(), late_enough ? Texts{"SEND_ONLY 100 8 bytes asks"} : Texts{});
    EXPECT_EQ(counters().resent_selective, late_enough ? 1u : 0u);
    EXPECT_EQ(requester->lost(), 0u);
    receive(selective(kFirstPsn + 1));
    EXPECT_EQ(done().size(), 2u);
    EXPECT_EQ(requester->sent_bytes(), 0u);
  }
}

TEST_F(RoceSelectiveRequester, PacketThatWasOvertaken_IsALossForTheCongestionControl) {
  RequesterOptions controlled = options;
  controlled.congestion = "cubic";
  begin(controlled);
  receive(selective(kFirstPsn - 1));
  send_messages(1);
  now += 20'000;
  send_messages(1);
  const uint64_t before = requester->paths()[0].congestion->window();
  receive(selective(kFirstPsn - 1, {2}));
  ASSERT_EQ(requester->lost(), 1u);
  EXPECT_LT(requester->paths()[0].congestion->window(), before);
}

TEST_F(RoceSelectiveRequester, AnswerThatBringsNothingNew_EndsTheSilence) {
  send_messages(1);
  now += 10'000;
  receive(selective(kFirstPsn));
  send_messages(2);
  const int64_t timeout = requester->deadline() - now;
  ASSERT_GT(timeout, 2);
  now += timeout / 2;
  receive(selective(kFirstPsn));
  EXPECT_EQ(requester->deadline(), now + timeout);
}

TEST_F(RoceSelectiveRequester, PacketThatWaitsForItsPace_LeavesWhenItsTimeHasCome) {
  RequesterOptions controlled = options;
  controlled.congestion = "dcqcn";
  begin(controlled);
  receive(selective(kFirstPsn - 1));
  Packet notification;
  notification.opcode = kCnpOpcode;
  for (int i = 0; i < 12; ++i) receive(notification);  // each halves the rate
  post(Opcode::kSend, 64 * kMtu);
  const size_t first = sends().size();
  ASSERT_LT(first, 64u);
  EXPECT_LT(requester->deadline(), now + 1'000'000) << "not when silence is over";
  now = requester->deadline();
  EXPECT_GT(sends().size(), 0u);
}

/// Two paths, of which the second is proven: packets leave by both.
class RoceTwoPaths : public RoceSelectiveRequester {
 protected:
  RoceTwoPaths() {
    requester->set_paths(2);
    post(Opcode::kSend, 8);
    requester->transmit(now, output, 100);
    Packet echo;
    for (const auto& sent : output.packets)
      if (sent.packet.opcode == kPathProbe) echo = sent.packet;
    output.take();
    echo.opcode = kPathEcho;
    echo.mark = kNupaMark;
    now += 1'000;  // the second path is quick, and thus used too
    receive(echo);
    now += 100'000;
    Packet ack = selective(kFirstPsn);
    ack.trigger_valid = true;
    ack.trigger = kFirstPsn;
    receive(ack);
  }
};

TEST_F(RoceTwoPaths, OneThatIsSilentWhileNothingElseIsUnderWay_IsLeftBeforeTheTimeout) {
  ASSERT_EQ(requester->paths()[1].health, Path::Health::kAlive);
  for (int i = 0; i < 16; ++i) post(Opcode::kSend, 8);
  requester->transmit(now, output, 100);
  std::vector<uint32_t> came;  // by the second path
  for (uint32_t i = 0; i < output.packets.size(); ++i)
    if (output.packets[i].path == 1) came.push_back(i + 1);
  ASSERT_EQ(output.packets.size(), 16u);
  ASSERT_GT(came.size(), 0u);
  ASSERT_LT(came.size(), 16u);
  output.take();
  now += 20'000;
  receive(selective(kFirstPsn, came));
  for (int i = 0; i < 8 && requester->lost() == 0; ++i) {
    ASSERT_LT(requester->deadline(), now + 2'000'000) << "before the timeout";
    ASSERT_TRUE(wait());
  }
  EXPECT_EQ(requester->lost(), 16u - came.size());
  EXPECT_EQ(counters().resent_timeout, 0u);
}

TEST_F(RoceSelectiveRequester, SentAgain_OnlyWhatIsMissing) {
  send_messages(3);
  now += 20'000;
  send_messages(2);
  receive(selective(kFirstPsn - 1, {2, 4}));
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks", "SEND_ONLY 102 8 bytes asks"}));
  EXPECT_EQ(counters().resent_selective, 2u);
  EXPECT_EQ(counters().resent_sequence, 0u);
  EXPECT_EQ(counters().resent_timeout, 0u);
}

TEST_F(RoceSelectiveRequester, EachPacketThatIsSentAgain_Asks) {
  post(Opcode::kSend, 3 * kMtu);
  EXPECT_EQ(sends(), (Texts{"SEND_FIRST 100 256 bytes", "SEND_MIDDLE 101 256 bytes", "SEND_LAST 102 256 bytes asks"}));
  now += 20'000;
  send_messages(1);
  receive(selective(kFirstPsn - 1, {4}));
  EXPECT_EQ(sends(),
            (Texts{"SEND_FIRST 100 256 bytes asks", "SEND_MIDDLE 101 256 bytes asks", "SEND_LAST 102 256 bytes asks"}));
}

TEST_F(RoceSelectiveRequester, LastPacketThatHasRoom_Asks) {  // else the room comes back with a timeout
  constexpr uint32_t kPacket = kMtu + kBthBytes + kIcrcBytes;
  requester->set_room(2 * kPacket, UINT64_MAX);
  post(Opcode::kSend, 3 * kMtu);
  EXPECT_EQ(sends(), (Texts{"SEND_FIRST 100 256 bytes", "SEND_MIDDLE 101 256 bytes asks"}));
}

TEST_F(RoceSelectiveRequester, RoundTrip_IsWithoutTheTimeAtTheOtherEnd) {
  send_messages(2);
  now += 50'000;
  Packet ack = selective(kFirstPsn);
  ack.trigger_valid = true;
  ack.trigger = kFirstPsn;
  ack.delay_ns = 20'000;
  receive(ack);
  EXPECT_EQ(round_trip().latest(), 30'000);
  now += 50'000;
  ack = selective(kFirstPsn);
  ack.trigger = kFirstPsn + 1;
  receive(ack);
  EXPECT_EQ(round_trip().latest(), 30'000) << "it does not say what caused it";
  ack.trigger_valid = true;
  ack.trigger = kFirstPsn + 2;
  receive(ack);
  EXPECT_EQ(round_trip().latest(), 30'000) << "nor can it be what was not sent";
  ack.trigger = kFirstPsn;
  receive(ack);
  EXPECT_EQ(round_trip().latest(), 30'000) << "or is done";
}

TEST_F(RoceSelectiveRequester, RepeatedPacket_TellsNoRoundTrip) {
  send_messages(1);
  now += 20'000;
  send_messages(1);
  receive(selective(kFirstPsn - 1, {2}));
  EXPECT_EQ(sends().size(), 1u);
  now += 5'000;
  Packet ack = selective(kFirstPsn + 1);
  ack.trigger_valid = true;
  ack.trigger = kFirstPsn;
  receive(ack);
  EXPECT_FALSE(round_trip().known()) << "Karn: of which of the two is it?";
}

TEST_F(RoceSelectiveRequester, Marks_CountByDifferenceAndNeverBackwards) {
  send_messages(3);
  Packet ack = selective(kFirstPsn);
  ack.marked = 5;
  receive(ack);
  EXPECT_EQ(counters().marked, 5u);
  ack.marked = 3;
  receive(ack);
  EXPECT_EQ(counters().marked, 5u) << "an older one that was overtaken";
  ack.marked = 6;
  receive(ack);
  EXPECT_EQ(counters().marked, 6u);
}

TEST_F(RoceSelectiveRequester, MarksOfAPathThatIsNotThere_AreOfTheLastPath) {
  send_messages(1);
  Packet ack = selective(kFirstPsn - 1);
  ack.marked = 5;
  receive(ack);
  // The same count again is news only if it is another path's. The numbers beyond kMaxPaths come last.
  for (const uint8_t path : {1, 3, 4, 255}) {
    ack.trigger_path = path;
    receive(ack);
    ASSERT_EQ(counters().marked, 5u) << "path " << int{path};
  }
  EXPECT_EQ(requester->paths()[0].marked_seen, 5u);
}

TEST_F(RoceSelectiveRequester, PeersWindow_IsWhatMayBeUnderWay) {
  constexpr uint32_t kPacket = 8 + kBthBytes + kIcrcBytes;
  Packet ack = selective(kFirstPsn - 1);
  ack.window = 3 * kPacket;
  receive(ack);
  EXPECT_EQ(requester->peer_window(), 3 * kPacket);
  for (int i = 0; i < 8; ++i) post(Opcode::kSend, 8);
  EXPECT_EQ(sends().size(), 3u);
  ack.psn = kFirstPsn;
  receive(ack);
  EXPECT_EQ(sends().size(), 1u);
  ack.window = 0;
  receive(ack);
  EXPECT_EQ(requester->peer_window(), UINT64_MAX);
  EXPECT_EQ(sends().size(), 4u);
}

TEST_F(RoceSelectiveRequester, RnrNak_SendsOnePacketAgainAfterItsTimer) {
  set_patience({.timeout = kTimeoutCode, .retry_cnt = 7, .rnr_retry = 1, .max_rd_atomic = 4});
  send_messages(3);
  const uint8_t not_ready = syndrome(AckKind::kRnrNak, 5);
  receive(selective(kFirstPsn - 1, {2, 3}, not_ready));
  EXPECT_EQ(requester->deadline(), now + core::rnr_timer_ns(5));
  EXPECT_EQ(sends(), Texts{});
  now += core::rnr_timer_ns(5);
  requester->on_timer(now);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"}));
  EXPECT_EQ(done(), Done{});
  receive(selective(kFirstPsn - 1, {2, 3}, not_ready));
  EXPECT_EQ(done()[0], (RecordingHost::Done{0, WcStatus::kRnrRetryExcErr, 0}));
  EXPECT_EQ(counters().rnr_naks, 2u);
}

TEST_F(RoceSelectiveRequester, FatalNak_EndsTheRequestAfterTheLastInOrder) {
  send_messages(3);
  receive(selective(kFirstPsn, {}, syndrome(AckKind::kNak, static_cast<uint8_t>(NakCode::kRemoteAccess))));
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 8}, {1, WcStatus::kRemAccessErr, 0}, {2, WcStatus::kWrFlushErr, 0}}));
}

TEST_F(RoceSelectiveRequester, FatalNakOfWhatWasNotSent_EndsNothing) {
  send_first(2, 3);
  receive(selective(kFirstPsn + 1, {}, syndrome(AckKind::kNak, static_cast<uint8_t>(NakCode::kRemoteAccess))));
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 8}, {1, WcStatus::kSuccess, 8}}));
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 102 8 bytes asks"})) << "it goes on";
}

TEST_F(RoceSelectiveRequester, SequenceNak_RepeatsNothing) {
  send_messages(2);
  nak(kFirstPsn, NakCode::kSequence);
  EXPECT_EQ(sends(), Texts{});
  EXPECT_EQ(counters().resent_sequence, 0u);
}

TEST_F(RoceSelectiveRequester, PacketThatWasLetGoInItsTurn_IsSentAgain) {
  send_messages(3);
  receive(selective(kFirstPsn - 1, {2}));  // the second was kept
  receive(selective(kFirstPsn));           // and is not any more: it had no receive in its turn
  EXPECT_EQ(requester->sent_bytes(), 8 + kBthBytes + kIcrcBytes) << "of the third";
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 101 8 bytes asks"}));
  receive(selective(kFirstPsn + 2));
  EXPECT_EQ(done().size(), 3u);
  EXPECT_EQ(requester->sent_bytes(), 0u);
}

TEST_F(RoceSelectiveRequester, FirstSilence_SendsOnePacketTheNextAll) {
  send_messages(3);
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"}));
  EXPECT_EQ(counters().resent_timeout, 1u);
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends().size(), 3u);
  EXPECT_EQ(counters().resent_timeout, 4u);
  EXPECT_EQ(counters().resent_selective, 0u);
}

TEST_F(RoceSelectiveRequester, PacketsSentAgain_CountByTheirCause) {
  send_messages(1);
  now += 20'000;
  send_messages(2);
  receive(selective(kFirstPsn - 1, {2}));
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"}));
  EXPECT_EQ(counters().resent_selective, 1u) << "one that a later packet overtook";
  EXPECT_EQ(counters().resent_timeout, 0u);
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends().size(), 1u);
  EXPECT_EQ(counters().resent_timeout, 1u) << "the packet that asks after a silence";
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks", "SEND_ONLY 102 8 bytes asks"}));
  EXPECT_EQ(counters().resent_timeout, 3u);
  EXPECT_EQ(counters().resent_selective, 1u);
}

TEST_F(RoceSelectiveRequester, PacketThatIsAnsweredBeforeItsRepetition_DoesNotCount) {
  send_messages(1);
  ASSERT_TRUE(wait());
  receive(selective(kFirstPsn));
  EXPECT_EQ(sends(), Texts{});
  EXPECT_EQ(counters().resent_timeout, 0u);
}

TEST_F(RoceSelectiveRequester, ArrivedPackets_AreNotRepeatedForSilence) {
  send_messages(4);
  receive(selective(kFirstPsn - 1, {2, 4}));
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks", "SEND_ONLY 102 8 bytes asks"})) << "overtaken";
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"}));
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks", "SEND_ONLY 102 8 bytes asks"}));
}

// ---- Loss and lateness (RFC 8985, docs/roce.md).

TEST_F(RoceSelectiveRequester, PacketsSentAtOnce_AreLostWhenTheReorderTimeIsOver) {
  send_messages(3);
  now += 50'000;
  Packet ack = selective(kFirstPsn - 1, {2});
  ack.trigger_valid = true;
  ack.trigger = kFirstPsn + 1;
  receive(ack);
  EXPECT_EQ(requester->lost(), 0u);
  // A round trip of 50 us, and a quarter of it.
  EXPECT_EQ(requester->deadline(), kStart + 62'501);
  now = kStart + 62'500;
  requester->on_timer(now);
  EXPECT_EQ(requester->lost(), 0u) << "one nanosecond early";
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"})) << "nothing says that a later one than 102 has arrived";
  EXPECT_EQ(counters().resent_selective, 1u);
  EXPECT_GT(requester->deadline(), now + 1'000'000) << "then silence only";
}

TEST_F(RoceSelectiveRequester, RepetitionsLeave_LowestFirst) {
  send_messages(1);
  now += 20'000;
  send_messages(2);
  receive(selective(kFirstPsn - 1, {2}));
  ASSERT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"}));
  now += 20'000;
  send_messages(1);
  // The third was sent before the repetition of the first.
  receive(selective(kFirstPsn - 1, {2, 4}));
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks", "SEND_ONLY 102 8 bytes asks"}));
}

TEST_F(RoceSelectiveRequester, AnswerThatSaysTheSame_IsLookedAtOnce) {
  send_messages(64);
  std::vector<uint32_t> most;
  for (uint32_t bit = 2; bit <= 64; ++bit) most.push_back(bit);
  uint64_t before = counters().examined;
  receive(selective(kFirstPsn - 1, most));
  EXPECT_EQ(counters().examined - before, 63u + 1) << "each that has arrived, and the oldest";
  for (int i = 0; i < 10; ++i) {
    before = counters().examined;
    receive(selective(kFirstPsn - 1, most));
    EXPECT_EQ(counters().examined - before, 1u);
  }
  before = counters().examined;
  receive(selective(kFirstPsn + 63));
  EXPECT_EQ(counters().examined - before, 64u) << "once more, as all are executed";
  EXPECT_EQ(done().size(), 64u);
}

TEST_F(RoceSelectiveRequester, AnswersBehindAReadThatIsMissing_LookAtWhatIsNew) {
  post(Opcode::kRdmaRead, 8);
  sends();
  send_messages(100);
  for (uint32_t i = 1; i <= 100; ++i) {
    const uint64_t before = counters().examined;
    receive(selective(kFirstPsn + i));
    EXPECT_LE(counters().examined - before, i == 1 ? 3u : 2u) << i;
  }
  EXPECT_EQ(done(), Done{});
  response(Operation::kReadResponseOnly, kFirstPsn, 8);
  EXPECT_EQ(done().size(), 101u);
}

TEST_F(RoceSelectiveRequester, OldRnrNakOfWhatWasExecuted_HoldsNothingUp) {
  post(Opcode::kRdmaRead, 8);
  sends();
  send_messages(1);
  receive(selective(kFirstPsn + 1));
  receive(selective(kFirstPsn, {}, syndrome(AckKind::kRnrNak, 5)));  // later ones overtook it
  now += core::rnr_timer_ns(5);
  requester->on_timer(now);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 101 8 bytes asks"}));
  receive(selective(kFirstPsn + 1));
  response(Operation::kReadResponseOnly, kFirstPsn, 8);
  EXPECT_EQ(done().size(), 2u);
}

TEST_F(RoceRequester, WhatAnAnswerSkippedBeforeThePeerWasKnown_IsAcknowledgedLater) {
  post(Opcode::kRdmaRead, 8);
  post(Opcode::kSend, 8);
  post(Opcode::kRdmaRead, 8);
  ASSERT_EQ(sends().size(), 3u);
  response(Operation::kReadResponseOnly, kFirstPsn + 2, 8);  // the first one's has been lost
  ASSERT_EQ(sends().size(), 3u);
  response(Operation::kReadResponseOnly, kFirstPsn + 2, 8);  // and once more
  receive(selective(kFirstPsn + 2));
  response(Operation::kReadResponseOnly, kFirstPsn, 8);
  response(Operation::kReadResponseOnly, kFirstPsn + 2, 8);
  EXPECT_EQ(done().size(), 3u);
}

class RoceLateness : public RoceSelectiveRequester {
 protected:
  static constexpr int64_t kLeast = ReorderWindow::kLeastNs;
  RoceLateness() { start("cubic"); }
  void start(std::string_view congestion) {
    RequesterOptions controlled = options;
    controlled.congestion = congestion;
    begin(controlled);
    receive(selective(kFirstPsn - 1));
    // One round trip of 100 us, so that the window may grow, and one of 30 us, of which a quarter is less than the
    // least.
    for (const int64_t rtt : {100'000, 30'000}) {
      send_messages(1);
      now += rtt;
      receive(timed(selective(next), next));
      ++next;
    }
    ASSERT_EQ(window(), kLeast);
  }
  Packet timed(Packet ack, uint32_t trigger) const {
    ack.trigger_valid = true;
    ack.trigger = trigger;
    return ack;
  }
  /// The first of two counts as lost and goes again.
  void lose_one() {
    send_messages(1);
    now += window() + 1;
    send_messages(1);
    receive(with_duplicates(selective(next - 1, {2})));
    ASSERT_EQ(requester->lost(), 1u);
    ASSERT_EQ(sends().size(), 1u);
    next += 2;
    now += 30'000;
  }
  Packet with_duplicates(Packet ack) const {
    ack.duplicates_valid = valid;
    ack.duplicates = duplicates;
    return ack;
  }
  /// All has arrived, of which `more` packets twice.
  void arrive(uint32_t more) {
    duplicates += more;
    receive(with_duplicates(selective(next - 1)));
  }
  int64_t window() const { return requester->paths()[0].reorder_ns(); }
  uint64_t allowed() const { return requester->paths()[0].congestion->window(); }

  uint32_t next = kFirstPsn;
  uint32_t duplicates = 0;
  bool valid = true;
};

TEST_F(RoceLateness, RepetitionThatWasNeedless_MakesTheWindowLongerAndIsNoCongestion) {
  const uint64_t before = allowed();
  lose_one();
  EXPECT_LT(allowed(), before);
  arrive(0);
  EXPECT_EQ(window(), kLeast);
  EXPECT_EQ(counters().late, 0u);
  arrive(1);  // the repetition, too
  EXPECT_EQ(window(), 2 * kLeast);
  EXPECT_EQ(counters().late, 1u);
  EXPECT_GE(allowed(), before);
}

TEST_F(RoceLateness, LossThatWasOne_ChangesNoWindow) {
  const uint64_t before = allowed();
  lose_one();
  arrive(0);
  EXPECT_EQ(window(), kLeast);
  EXPECT_LT(allowed(), before);
}

TEST_F(RoceLateness, TwoLossesOfWhichOneWasNone_AreCongestion) {
  send_messages(2);
  now += window() + 1;
  send_messages(1);
  receive(with_duplicates(selective(next - 1, {3})));
  ASSERT_EQ(sends().size(), 2u);
  const uint64_t left = allowed();
  next += 3;
  arrive(1);
  EXPECT_EQ(counters().late, 1u);
  EXPECT_EQ(allowed(), left);
}

TEST_F(RoceLateness, LossesOneAfterTheOther_AreUndoneTogether) {
  const uint64_t before = allowed();
  lose_one();
  now += 200'000;
  lose_one();
  EXPECT_LT(allowed(), before * 6 / 10) << "twice seven tenths";
  arrive(2);
  EXPECT_GE(allowed(), before);
}

TEST_F(RoceLateness, LatePacketBeforeItsRepetitionLeft_ShowsItself) {
  const uint64_t before = allowed();
  send_messages(1);
  now += window() + 1;
  send_messages(1);
  receive(selective(next - 1, {2}));
  ASSERT_EQ(requester->lost(), 1u);
  receive(selective(next + 1));
  EXPECT_EQ(sends(), Texts{});
  EXPECT_EQ(counters().late, 1u);
  EXPECT_EQ(window(), 2 * kLeast);
  EXPECT_GE(allowed(), before);
}

TEST_F(RoceLateness, PacketThatTheNetworkDoubled_ChangesNothing) {
  send_messages(1);
  ++next;
  arrive(1);
  EXPECT_EQ(counters().late, 0u);
  EXPECT_EQ(window(), kLeast);
  lose_one();
  arrive(0);
  EXPECT_EQ(counters().late, 0u) << "it came before the loss";
}

TEST_F(RoceLateness, RepetitionAfterSilence_TellsNothing) {
  send_messages(1);
  ++next;
  ASSERT_TRUE(wait());
  ASSERT_EQ(sends().size(), 1u);
  arrive(1);
  EXPECT_EQ(counters().late, 0u);
  EXPECT_EQ(window(), kLeast);
}

TEST_F(RoceLateness, PeerThatCountsNoDuplicates_IsNotBelievedTo) {
  valid = false;
  lose_one();
  arrive(1);
  EXPECT_EQ(counters().late, 0u);
  EXPECT_EQ(window(), kLeast);
}

TEST_F(RoceLateness, CountOfDuplicates_WrapsAndNeverGoesBack) {
  duplicates = 0x7fffff;
  arrive(0);
  duplicates = 0xfffffe;
  arrive(0);
  lose_one();
  duplicates = 1;
  arrive(0);
  EXPECT_EQ(counters().late, 1u);
  lose_one();
  duplicates = 0;  // an answer that another one overtook
  arrive(0);
  EXPECT_EQ(counters().late, 1u);
  duplicates = 2;
  arrive(0);
  EXPECT_EQ(counters().late, 2u);
}

TEST_F(RoceLateness, ResponseThatComesTwice_MakesTheWindowLonger) {
  post(Opcode::kRdmaRead, 4 * kMtu);
  sends();
  now += 30'000;
  response(Operation::kReadResponseFirst, next, 256);
  response(Operation::kReadResponseLast, next + 3, 256);
  ASSERT_TRUE(wait());
  ASSERT_EQ(sends().size(), 1u) << "two are asked for again";
  response(Operation::kReadResponseMiddle, next + 2, 256);
  response(Operation::kReadResponseMiddle, next + 2, 256);
  EXPECT_EQ(counters().late, 1u);
  EXPECT_EQ(window(), 2 * kLeast);
  response(Operation::kReadResponseMiddle, next + 1, 256);
  EXPECT_EQ(done().back().status, WcStatus::kSuccess);
  response(Operation::kReadResponseOnly, next + 1, 256);
  EXPECT_EQ(counters().late, 2u) << "after the end of its request, too";
}

TEST_F(RoceSelectiveRequester, Ibta97613_AfterFourTimeoutsOfSilenceATry_TheRequestEnds) {
  for (const uint8_t retries : {0, 1, 3, 7}) {
    begin(options);
    set_patience({.timeout = kTimeoutCode, .retry_cnt = retries, .rnr_retry = 7, .max_rd_atomic = 4});
    receive(selective(kFirstPsn - 1));
    send_messages(1);
    int rounds = 0;
    for (; done().empty() && rounds < 100; ++rounds) {
      ASSERT_TRUE(wait());
      sends();
    }
    EXPECT_EQ(done(), (Done{{0, WcStatus::kRetryExcErr, 0}}));
    EXPECT_EQ(now, kStart + (retries + 1) * 4 * kTimeout);
    EXPECT_EQ(rounds, (retries + 1) * 4);
    EXPECT_EQ(counters().resent_timeout, static_cast<uint32_t>(rounds - 1));
  }
}

TEST_F(RoceSelectiveRequester, Ibta97613_TimeInWhichTheSenderDidNotRun_IsNoSilence) {
  constexpr uint8_t kRetries = 3;
  set_patience({.timeout = kTimeoutCode, .retry_cnt = kRetries, .rnr_retry = 7, .max_rd_atomic = 4});
  receive(selective(kFirstPsn - 1));
  send_messages(1);
  now += 100 * kTimeout;  // stopped, say
  requester->on_timer(now);
  constexpr int kRounds = (kRetries + 1) * 4 - 1;
  for (int round = 0; round < kRounds; ++round) {
    EXPECT_EQ(sends().size(), 1u) << round;
    EXPECT_EQ(done(), Done{}) << round;
    ASSERT_TRUE(wait());
  }
  EXPECT_EQ(done(), (Done{{0, WcStatus::kRetryExcErr, 0}}));
  EXPECT_EQ(counters().resent_timeout, kRounds);
}

TEST_F(RoceSelectiveRequester, PeerInDoubt_HasATimeForItsAnswerThatDoesNotDependOnTheWay) {
  constexpr uint8_t kLong = 20;  // 4.3 s
  set_patience({.timeout = kLong, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4});
  send_messages(1);
  now += 10'000;
  Packet ack = selective(kFirstPsn);
  ack.trigger_valid = true;
  ack.trigger = kFirstPsn;
  receive(ack);
  ASSERT_EQ(done().size(), 1u);
  ASSERT_TRUE(requester->paths().measured());
  send_messages(1);
  requester->doubt_peer();
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends().size(), 1u);
  const int64_t asked = now;
  while (done().size() == 1) {
    ASSERT_TRUE(wait());
    EXPECT_EQ(sends(), Texts{});
  }
  EXPECT_EQ(now, asked + 200'000'000) << "it may only be without a processor";
  EXPECT_EQ(done().back().status, WcStatus::kRetryExcErr);
}

TEST_F(RoceSelectiveRequester, PatienceZero_RepeatsForEver) {
  set_patience({.timeout = 0, .retry_cnt = 0, .rnr_retry = 7, .max_rd_atomic = 4});
  send_messages(1);
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(wait());
    EXPECT_EQ(sends().size(), 1u);
  }
  EXPECT_EQ(done(), Done{});
}

TEST_F(RoceSelectiveRequester, EachSilenceAfterTheFirst_DoublesTheTimeoutUpTo64Times) {
  set_patience({.timeout = 0, .retry_cnt = 0, .rnr_retry = 7, .max_rd_atomic = 4});
  send_messages(1);
  const int64_t timeout = requester->deadline() - now;
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(wait());
    EXPECT_EQ(sends().size(), 1u);
    EXPECT_EQ(requester->deadline() - now, timeout << std::min(i, 6)) << i;
  }
}

TEST_F(RoceSelectiveRequester, ResponseThatShowsAnEarlierFault_IsNotPlaced) {
  const uint64_t last = host->memory.size() - 8;
  post(Opcode::kSend, 8);
  post(Opcode::kSend, 8, 0, kBase + last);
  post(Opcode::kRdmaRead, 8, 0, kBase + 4096);
  ASSERT_EQ(sends().size(), 3u);
  const std::vector<std::byte> before(8, std::byte{0xee});
  std::copy(before.begin(), before.end(), host->memory.begin() + 4096);
  host->memory.resize(last);
  ASSERT_TRUE(wait());
  sends();
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"})) << "the next one's memory has gone";
  response(Operation::kReadResponseOnly, kFirstPsn + 2, 8);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 8}, {1, WcStatus::kLocProtErr, 0}, {2, WcStatus::kWrFlushErr, 0}}));
  EXPECT_TRUE(std::equal(before.begin(), before.end(), host->memory.begin() + 4096));
}

TEST_F(RoceSelectiveRequester, BitOfARead_IsNoResponse) {
  post(Opcode::kRdmaRead, 8);
  post(Opcode::kSend, 8);
  sends();
  receive(selective(kFirstPsn - 1, {1, 2}));
  receive(selective(kFirstPsn + 1));
  EXPECT_EQ(done(), Done{});
  response(Operation::kReadResponseOnly, kFirstPsn, 8);
  EXPECT_EQ(done().size(), 2u);
}

TEST_F(RoceSelectiveRequester, ResponsesInAnyOrder_CompleteTheReadOnce) {
  post(Opcode::kRdmaRead, 600);
  sends();
  response(Operation::kReadResponseLast, kFirstPsn + 2, 88);
  response(Operation::kReadResponseLast, kFirstPsn + 2, 88);
  response(Operation::kReadResponseFirst, kFirstPsn, 256);
  EXPECT_EQ(done(), Done{});
  response(Operation::kReadResponseMiddle, kFirstPsn + 1, 256);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 600}}));
  EXPECT_EQ(requester->awaited_bytes(), 0u);
  EXPECT_EQ(counters().stray, 0u);
}

TEST_F(RoceSelectiveRequester, ResponseThatOthersOvertook_IsAskedForAlone) {
  post(Opcode::kRdmaRead, 4 * kMtu);
  sends();
  now += 100'000;
  response(Operation::kReadResponseFirst, kFirstPsn, 256);
  response(Operation::kReadResponseLast, kFirstPsn + 3, 256);
  now += 24'999;
  requester->on_timer(now);
  EXPECT_EQ(sends(), Texts{}) << "it may still come";
  EXPECT_EQ(requester->deadline(), now + 1) << "a quarter of the least round trip";
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends(), (Texts{"READ 101 512 bytes asks"}));
  EXPECT_EQ(output.last.packet.address, kBase + kMtu);
  EXPECT_EQ(counters().resent_selective, 1u);
}

}  // namespace
}  // namespace nupa::roce::test
#endif
