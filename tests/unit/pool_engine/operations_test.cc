// SPDX-License-Identifier: Apache-2.0
/// Operations of connected queue pairs over a pool.
#include "requests.h"

namespace nupa::pool::test {
namespace {

using shm::PortCount;

class PoolOperations : public PoolRequests {};

TEST_F(PoolOperations, Send_AnyLength_FillsTheReceive) {
  for (const uint32_t length : {0u, 1u, 45u, 46u, 8192u, 8193u, 100'000u}) {
    fill(a, 0, length);
    b.core().receives.push_back(length + 10);
    a.core().done.clear();
    b.core().received.clear();
    a.send(7, length);
    ASSERT_TRUE(done(a, 1)) << length;
    EXPECT_EQ(WcStatus::kSuccess, a.core().done[0].status);
    EXPECT_EQ(length, a.core().done[0].length);
    ASSERT_EQ(1u, b.core().received.size());
    const auto bytes = pattern_bytes(length);
    EXPECT_TRUE(length == 0 || std::memcmp(bytes.data(), b.core().received[0].bytes.data(), length) == 0) << length;
    EXPECT_EQ(length, b.core().received[0].message.byte_len);
    EXPECT_EQ(a.context.host.number(), b.core().received[0].message.src_qp);
  }
  EXPECT_EQ(1, b.core().established_count);
}

TEST_F(PoolOperations, Payload_ThatGoesOnAtTheBeginningOfTheRing_ArrivesWhole) {
  // Records of 126 lines in a ring of 1,024.
  constexpr uint32_t kLength = 125 * kLineBytes - 3;
  for (uint64_t i = 0; i < 40; ++i) {
    fill(a, 0, kLength);
    fill(b, 20'000, kLength);
    std::fill_n(b.core().memory.begin(), kLength, std::byte{0});
    std::fill_n(a.core().memory.begin() + 20'000, kLength, std::byte{0});
    a.core().done.clear();
    b.core().received.clear();
    b.core().receives = {kLength};
    a.post(write(0), 0, kLength);
    a.send(2, kLength);
    a.post(read(3, 20'000), 20'000, kLength);
    ASSERT_TRUE(done(a, 3));
    EXPECT_TRUE(holds_pattern(b, 0, kLength)) << i;
    EXPECT_TRUE(holds_pattern(a, 20'000, kLength)) << i;
    const auto bytes = pattern_bytes(kLength);
    EXPECT_EQ(0, std::memcmp(bytes.data(), b.core().received.at(0).bytes.data(), kLength)) << i;
  }
}

TEST_F(PoolOperations, PortCounts_ArePayloadAndRecordsOfBothDirections) {
  shm::PortCountsShared& mine = a.context.statistics.port;
  shm::PortCountsShared& theirs = b.context.statistics.port;
  constexpr uint32_t kLength = 20'000;  // three parts
  a.post(write(0), 0, kLength);
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(kLength, mine[PortCount::kXmitBytes]);
  EXPECT_EQ(3u, mine[PortCount::kXmitPackets]);
  EXPECT_EQ(kLength, theirs[PortCount::kRcvBytes]);
  EXPECT_EQ(3u, theirs[PortCount::kRcvPackets]);
  EXPECT_EQ(0u, mine[PortCount::kRcvBytes]);
  a.post(read(1, 20'000), 20'000, kLength);
  ASSERT_TRUE(done(a, 2));
  EXPECT_EQ(kLength, mine[PortCount::kXmitBytes]) << "the request of a READ has no payload";
  EXPECT_EQ(4u, mine[PortCount::kXmitPackets]);
  EXPECT_EQ(kLength, mine[PortCount::kRcvBytes]);
  EXPECT_EQ(kLength, theirs[PortCount::kXmitBytes]);
  EXPECT_EQ(kLength, theirs[PortCount::kRcvBytes]);
}

TEST_F(PoolOperations, Send_WithImmediateAndInvalidation_ReachTheReceive) {
  b.core().receives = {64, 64};
  SendWr wr;
  wr.opcode = Opcode::kSendWithImm;
  wr.imm_or_rkey = 77;
  wr.flags = send_flag::kSolicited;
  a.post(wr, 0, 8);
  wr.opcode = Opcode::kSendWithInv;
  wr.imm_or_rkey = 88;
  a.post(wr, 0, 8);
  ASSERT_TRUE(done(a, 2));
  EXPECT_EQ(wc_flag::kWithImm, b.core().received[0].message.wc_flags);
  EXPECT_EQ(77u, b.core().received[0].message.imm_data);
  EXPECT_TRUE(b.core().received[0].message.solicited);
  EXPECT_EQ(wc_flag::kWithInv, b.core().received[1].message.wc_flags);
  EXPECT_EQ(std::vector<uint32_t>{88}, b.core().invalidated);
}

TEST_F(PoolOperations, Write_AnyLength_ArrivesWithoutReceive) {
  for (const uint32_t length : {0u, 33u, 34u, 200'000u}) {
    fill(a, 0, length);
    std::fill(b.core().memory.begin(), b.core().memory.end(), std::byte{0});
    a.core().done.clear();
    a.post(write(5), 0, length);
    ASSERT_TRUE(done(a, 1)) << length;
    EXPECT_EQ(WcStatus::kSuccess, a.core().done[0].status);
    EXPECT_TRUE(holds_pattern(b, 5, length)) << length;
  }
  EXPECT_TRUE(b.core().received.empty());
}

TEST_F(PoolOperations, WriteWithImmediate_OfSeveralParts_TakesOneReceive) {
  fill(a, 0, 50'000);
  b.core().receives = {64};
  SendWr wr = write(0);
  wr.opcode = Opcode::kRdmaWriteWithImm;
  wr.imm_or_rkey = 5;
  a.post(wr, 0, 50'000);
  ASSERT_TRUE(done(a, 1));
  ASSERT_EQ(1u, b.core().received.size());
  EXPECT_EQ(WcOpcode::kRecvRdmaWithImm, b.core().received[0].message.opcode);
  EXPECT_EQ(50'000u, b.core().received[0].message.byte_len);
  EXPECT_TRUE(holds_pattern(b, 0, 50'000));
}

TEST_F(PoolOperations, Read_AnyLength_FillsTheList) {
  for (const uint32_t length : {0u, 8u, 45u, 46u, 8192u, 150'000u}) {
    fill(b, 3, length);
    std::fill(a.core().memory.begin(), a.core().memory.end(), std::byte{0});
    a.core().done.clear();
    a.post(read(1, 3), 0, length);
    ASSERT_TRUE(done(a, 1)) << length;
    EXPECT_EQ(WcStatus::kSuccess, a.core().done[0].status);
    EXPECT_TRUE(holds_pattern(a, 0, length)) << length;
  }
}

TEST_F(PoolOperations, Atomics_ReturnWhatTheyFound) {
  uint64_t word = 40;
  std::memcpy(b.core().memory.data() + 8, &word, 8);
  SendWr wr = write(8);
  wr.opcode = Opcode::kFetchAdd;
  wr.compare_add = 2;
  a.post(wr, 0, 8);
  wr.opcode = Opcode::kCompareSwap;
  wr.compare_add = 42;
  wr.swap = 7;
  a.post(wr, 8, 8);
  wr.opcode = Opcode::kAtomicWrite;
  wr.compare_add = 99;
  a.post(wr);
  ASSERT_TRUE(done(a, 3));
  for (const auto& one : a.core().done) EXPECT_EQ(WcStatus::kSuccess, one.status);
  uint64_t found[2];
  std::memcpy(found, a.core().memory.data(), 16);
  EXPECT_EQ(40u, found[0]);
  EXPECT_EQ(42u, found[1]);
  std::memcpy(&word, b.core().memory.data() + 8, 8);
  EXPECT_EQ(99u, word);
}

TEST_F(PoolOperations, AtomicWrite_OfAnotherLength_IsRefused) {
  SendWr wr = write(8);
  wr.opcode = Opcode::kAtomicWrite;
  a.post(wr, 0, 7);
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kRemInvReqErr, a.core().done[0].status);
}

TEST_F(PoolOperations, Inline_DataIsCopiedAtPost) {
  b.core().receives = {64};
  std::string text = "hello";
  Sge sge{reinterpret_cast<uint64_t>(text.data()), 5, 0};
  SendWr wr;
  wr.flags = send_flag::kInline;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  a.post(wr);
  text = "-----";
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ("hello", b.core().received[0].bytes);
}

TEST_F(PoolOperations, OwnProcess_QueuePairsReachEachOther) {
  Pair c(*hosts[0], 0, 5, 6);
  Pair d(*hosts[0], 0, 6, 5);
  d.core().receives = {100'000};
  c.send(1, 50'000);
  ASSERT_TRUE(done(c, 1));
  EXPECT_EQ(50'000u, d.core().received[0].message.byte_len);
}

TEST_F(PoolOperations, UnreliableService_WithoutReceive_LosesTheMessage) {
  Pair c(*hosts[0], 1, 5, 6, QpType::kUc);
  Pair d(*hosts[1], 0, 6, 5, QpType::kUc);
  c.send(1, 20'000);
  ASSERT_TRUE(done(c, 1));
  for (int i = 0; i < 20; ++i) turns();
  d.core().receives = {30'000};
  c.send(2, 20'000);
  ASSERT_TRUE(until([&] { return d.core().received.size() == 1; }));
  EXPECT_EQ(20'000u, d.core().received[0].message.byte_len);
  EXPECT_EQ(WcStatus::kSuccess, c.core().done[1].status);
}

}  // namespace
}  // namespace nupa::pool::test
