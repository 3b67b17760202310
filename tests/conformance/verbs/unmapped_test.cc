// SPDX-License-Identifier: Apache-2.0
/// Memory that is unmapped while it is registered. A request that reaches it fails, as with an adapter's on-demand
/// paging, and the process goes on.
#include <sys/mman.h>

#include "fixture.h"

namespace nupa::test {
namespace {

class VerbsUnmapped : public VerbsPair {
 protected:
  static constexpr size_t kLength = 3 * 4096;

  void SetUp() override {
    if (!sends_packets()) GTEST_SKIP() << "peers write to the region file, which stays; within a process nobody does";
    VerbsPair::SetUp();
    gone = static_cast<char*>(mmap(nullptr, kLength, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(gone, MAP_FAILED);
    std::memset(gone, 1, kLength);
    gone_mr = reg(gone, kLength);
    ASSERT_NE(gone_mr, nullptr);
  }
  void TearDown() override {
    if (!sends_packets()) return;
    VerbsPair::TearDown();
    munmap(gone, kLength);
  }

  /// As munmap(), but nobody else gets the place.
  void unmap(size_t from = 0) {
    ASSERT_NE(mmap(gone + from, kLength - from, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), MAP_FAILED);
  }
  ibv_sge gone_span(uint32_t length = kLength) { return {reinterpret_cast<uint64_t>(gone), length, gone_mr->lkey}; }
  ibv_send_wr to_gone(ibv_wr_opcode opcode, ibv_sge* sge) {
    ibv_send_wr wr = request(opcode, 1, sge);
    wr.wr.rdma = {reinterpret_cast<uint64_t>(gone), gone_mr->rkey};
    return wr;
  }

  /// The process goes on: a new pair of queue pairs does what the old one did.
  void expect_all_well() {
    make_pair();
    std::strcpy(memory, "still here");
    ibv_sge sge = span(0, 16);
    ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 9, &sge, 4096)), 0);
    EXPECT_EQ(next().status, IBV_WC_SUCCESS);
    EXPECT_STREQ(memory + 4096, "still here");
  }

  char* gone = nullptr;
  ibv_mr* gone_mr = nullptr;
};

TEST_F(VerbsUnmapped, Receive_IntoUnmappedMemory_Fails) {
  make_pair();
  ASSERT_EQ(post_recv(b, 2, gone, kLength, gone_mr->lkey), 0);
  unmap();
  ibv_sge sge = span(0, kLength);
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);
  EXPECT_EQ(next(other_cq).status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(next().status, IBV_WC_REM_OP_ERR);
  expect_all_well();
}

TEST_F(VerbsUnmapped, ReceiveOfADatagram_IntoUnmappedMemory_Fails) {
  make_pair(IBV_QPT_UD);
  ASSERT_EQ(post_recv(b, 2, gone, kLength, gone_mr->lkey), 0);
  unmap();
  ibv_ah_attr way = path();
  ibv_ah* ah = ibv_create_ah(pd, &way);
  ASSERT_NE(ah, nullptr);
  ibv_sge sge = span(0, 64);
  ibv_send_wr wr = request(IBV_WR_SEND, 1, &sge);
  wr.wr.ud = {ah, b->qp_num, kQkey};
  ASSERT_EQ(post(a, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(next(other_cq).status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
  expect_all_well();
}

TEST_F(VerbsUnmapped, Datagram_FromUnmappedMemory_Fails) {
  make_pair(IBV_QPT_UD);
  unmap();
  ibv_ah_attr way = path();
  ibv_ah* ah = ibv_create_ah(pd, &way);
  ASSERT_NE(ah, nullptr);
  ibv_sge sge = gone_span(1024);
  ibv_send_wr wr = request(IBV_WR_SEND, 1, &sge);
  wr.wr.ud = {ah, b->qp_num, kQkey};
  ASSERT_EQ(post(a, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
  expect_all_well();
}

TEST_F(VerbsUnmapped, Write_ToUnmappedMemory_IsRefused) {
  make_pair();
  unmap();
  ibv_sge sge = span(0, kLength);
  ASSERT_EQ(post(a, to_gone(IBV_WR_RDMA_WRITE, &sge)), 0);
  EXPECT_EQ(next().status, IBV_WC_REM_OP_ERR);
  expect_all_well();
}

TEST_F(VerbsUnmapped, Read_OfUnmappedMemory_IsRefused) {
  make_pair();
  unmap();
  ibv_sge sge = span(0, kLength);
  ASSERT_EQ(post(a, to_gone(IBV_WR_RDMA_READ, &sge)), 0);
  EXPECT_EQ(next().status, IBV_WC_REM_OP_ERR);
  expect_all_well();
}

TEST_F(VerbsUnmapped, Atomic_OnUnmappedMemory_IsRefused) {
  make_pair();
  unmap();
  ibv_sge sge = span(0, 8);
  ibv_send_wr wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, &sge);
  wr.wr.atomic = {reinterpret_cast<uint64_t>(gone), 1, 0, gone_mr->rkey};
  ASSERT_EQ(post(a, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_REM_OP_ERR);
  expect_all_well();
}

TEST_F(VerbsUnmapped, Send_FromUnmappedMemory_Fails) {
  for (const uint32_t length : {uint32_t{200}, uint32_t{kLength}}) {
    make_pair();
    ASSERT_EQ(receive(b, 2, 0, kLength), 0);
    if (length == 200) unmap();
    ibv_sge sge = gone_span(length);
    ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);
    EXPECT_EQ(next().status, IBV_WC_LOC_PROT_ERR);
  }
  expect_all_well();
}

TEST_F(VerbsUnmapped, Read_IntoUnmappedMemory_Fails) {
  make_pair();
  unmap();
  ibv_sge sge = gone_span();
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_READ, 1, &sge, 0)), 0);
  EXPECT_EQ(next().status, IBV_WC_LOC_PROT_ERR);
  expect_all_well();
}

TEST_F(VerbsUnmapped, Write_ToThePartThatIsMapped_Succeeds) {
  make_pair();
  unmap(4096);
  ibv_sge sge = span(0, 4096);
  std::strcpy(memory, "the first page");
  ASSERT_EQ(post(a, to_gone(IBV_WR_RDMA_WRITE, &sge)), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_STREQ(gone, "the first page");
}

}  // namespace
}  // namespace nupa::test
