// SPDX-License-Identifier: Apache-2.0
/// Tests of READs and atomics of a requester, and of the responses to them.
#include <gtest/gtest.h>

#include "engine_fixture.h"
#include "requester_fixture.h"
#include "transport/roce/protocol/requester.h"

namespace nupa::roce::test {
namespace {

TEST_F(RoceRequester, Ibta97519_Responses_FillTheReadsBuffersInOrder) {
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

TEST_F(RoceRequester, AnswerOfAnotherKind_IsStray) {
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

TEST_F(RoceRequester, ResponseThatSkipsOne_ResendsTheReadOnce) {
  post(Opcode::kRdmaRead, 600);
  sends();
  response(Operation::kReadResponseMiddle, kFirstPsn + 1, 256);
  EXPECT_EQ(sends(), (Texts{"READ 100 600 bytes asks"}));
  EXPECT_EQ(counters().resent_sequence, 3u);
  response(Operation::kReadResponseLast, kFirstPsn + 2, 88);
  EXPECT_EQ(sends(), Texts{});
  EXPECT_EQ(done(), Done{});
}

TEST_F(RoceRequester, LateResponse_ReadWillBeResent_IsIgnored) {
  post(Opcode::kRdmaRead, 8);
  sends();
  now += kTimeout;
  requester->on_timer(now);
  response(Operation::kReadResponseOnly, kFirstPsn, 8);
  EXPECT_EQ(done(), Done{}) << "two answers to one request would be one too many later";
  EXPECT_EQ(sends(), (Texts{"READ 100 8 bytes asks"}));
}

TEST_F(RoceRequester, ResentRead_AsksForTheMissingPartOnly) {
  post(Opcode::kRdmaRead, 600);
  sends();
  response(Operation::kReadResponseFirst, kFirstPsn, 256);
  wait();
  EXPECT_EQ(sends(), (Texts{"READ 101 344 bytes asks"}));
  EXPECT_EQ(output.last.packet.address, kBase + 256);
}

TEST_F(RoceRequester, AcknowledgementBehindARead_ResendsTheRead) {
  post(Opcode::kRdmaRead, 8);
  post(Opcode::kSend, 8);
  sends();
  ack(kFirstPsn + 1);
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(sends(), (Texts{"READ 100 8 bytes asks", "SEND_ONLY 101 8 bytes asks"}));
  EXPECT_EQ(counters().resent_sequence, 2u);
}

TEST_F(RoceRequester, Ibta9733_MaxRdAtomic_LimitsReadsAndAtomics) {
  set_limits({.timeout = kTimeoutCode, .retry_cnt = 7, .rnr_retry = 7}, 2);
  post(Opcode::kRdmaRead, 8);
  post(Opcode::kFetchAdd, 8);
  post(Opcode::kRdmaRead, 8);
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends(), (Texts{"READ 100 8 bytes asks", "FETCH_ADD 101 asks"}));
  response(Operation::kReadResponseOnly, kFirstPsn, 8);
  EXPECT_EQ(sends(), (Texts{"READ 102 8 bytes asks", "SEND_ONLY 103 8 bytes asks"}));
}

TEST_F(RoceRequester, MaxRdAtomicZero_IsALocalOperationError) {
  set_limits({.timeout = kTimeoutCode, .retry_cnt = 7, .rnr_retry = 7}, 0);
  post(Opcode::kSend, 8);
  post(Opcode::kRdmaRead, 8);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"}));
  EXPECT_EQ(done(), Done{});
  ack(kFirstPsn);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 8}, {1, WcStatus::kLocQpOpErr, 0}}));
}

TEST_F(RoceRequester, LongRead_IsSentInParts) {
  constexpr uint32_t kPart = 256;  // packets
  set_limits({.timeout = kTimeoutCode, .retry_cnt = 7, .rnr_retry = 7}, 1);
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

TEST_F(RoceRequester, Ibta10833_FencedLocalRequest_WaitsForReadsAndAtomics) {
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

TEST_F(RoceRequester, FencedRequestThatHasRun_DelaysNoRetransmission) {
  post(Opcode::kSend, 8);
  post(Opcode::kLocalInv, 0, send_flag::kFence);
  post(Opcode::kRdmaRead, 8);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks", "READ 101 8 bytes asks"}));
  nak(kFirstPsn, NakCode::kSequence);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks", "READ 101 8 bytes asks"}));
  EXPECT_EQ(host->locals, (std::vector<uint64_t>{1}));
}

TEST_F(RoceRequester, ReadIntoReadOnlyMemory_IsALocalProtectionError) {
  post(Opcode::kRdmaRead, 8);
  post(Opcode::kSend, 8);
  sends();
  host->local_rights = 0;
  response(Operation::kReadResponseOnly, kFirstPsn, 8);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kLocProtErr, 0}, {1, WcStatus::kWrFlushErr, 0}}));
}

TEST_F(RoceRequester, ResponseRoom_IsNotExceeded) {
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

TEST_F(RoceRequester, SendRoom_IsNotExceeded) {
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

TEST_F(RoceSelectiveRequester, ResponseBehindALocalFault_IsNotPlaced) {
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

TEST_F(RoceSelectiveRequester, BitmapBitOfARead_IsNoResponse) {
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

TEST_F(RoceSelectiveRequester, OvertakenResponse_IsRequestedAlone) {
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
