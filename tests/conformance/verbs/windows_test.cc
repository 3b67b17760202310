// SPDX-License-Identifier: Apache-2.0
/// Memory windows (IBTA 10.6.7): binding, invalidation by both sides, and the queue pairs that may use one.
#include "fixture.h"

namespace nupa::test {
namespace {

class VerbsWindows : public VerbsPair {
 protected:
  void SetUp() override {
    VerbsPair::SetUp();
    mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    ASSERT_NE(mw, nullptr);
    make_pair();
  }
  void TearDown() override {
    if (mw != nullptr) {
      EXPECT_EQ(ibv_dealloc_mw(mw), 0);
    }
    VerbsPair::TearDown();
  }

  ibv_send_wr binding(uint64_t wr_id, uint32_t rkey, size_t offset, uint64_t length, unsigned int access) {
    ibv_send_wr wr = request(IBV_WR_BIND_MW, wr_id, nullptr);
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = rkey;
    wr.bind_mw.bind_info = {mr, address(offset), length, access};
    return wr;
  }

  /// Binds to bytes 4096 to 4159 on `b`, for the queue pair at its other end; returns the key.
  uint32_t bind(unsigned int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ) {
    const uint32_t rkey = ibv_inc_rkey(mw->rkey);
    EXPECT_EQ(post(b, binding(90, rkey, 4096, 64, access)), 0);
    const ibv_wc wc = next(other_cq);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
    EXPECT_EQ(wc.opcode, IBV_WC_BIND_MW);
    mw->rkey = rkey;
    return rkey;
  }

  ibv_wc_status write(uint32_t rkey, uint64_t to, ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE) {
    ibv_sge sge = span(0, 8);
    ibv_send_wr wr = request(opcode, 1, &sge);
    wr.wr.rdma = {to, rkey};
    EXPECT_EQ(post(a, wr), 0);
    return next().status;
  }

  ibv_mw* mw = nullptr;
};

TEST_F(VerbsWindows, BoundWindow_BytesOutside_AreRefused) {
  const uint32_t rkey = bind();
  std::strcpy(memory, "inside");
  EXPECT_EQ(write(rkey, address(4096)), IBV_WC_SUCCESS);
  EXPECT_STREQ(memory + 4096, "inside");
  EXPECT_EQ(write(rkey, address(4096 + 56)), IBV_WC_SUCCESS);
  EXPECT_EQ(write(rkey, address(4096 + 57)), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(VerbsWindows, BoundWindow_RightsAreItsOwn) {
  const uint32_t rkey = bind(IBV_ACCESS_REMOTE_READ);
  EXPECT_EQ(write(rkey, address(4096), IBV_WR_RDMA_READ), IBV_WC_SUCCESS);
  EXPECT_EQ(write(rkey, address(4096)), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(VerbsWindows, ZeroBasedWindow_AddressesBeginAtItsStart) {
  const uint32_t rkey = bind(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED);
  std::strcpy(memory, "zero");
  EXPECT_EQ(write(rkey, 8), IBV_WC_SUCCESS);
  EXPECT_STREQ(memory + 4096 + 8, "zero");
}

TEST_F(VerbsWindows, WindowOfTypeTwo_AnotherQueuePair_IsRefused) {  // 10.6.7.2.4, type 2B
  ibv_qp* c = make_qp();
  ibv_qp* d = make_qp();  // another connection of the same domain
  connect(c, d);
  const uint32_t rkey = bind();
  ibv_sge sge = span(0, 8);
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, 5, &sge);
  wr.wr.rdma = {address(4096), rkey};
  ASSERT_EQ(post(c, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(write(rkey, address(4096)), IBV_WC_SUCCESS);
}

TEST_F(VerbsWindows, WindowOfTypeTwo_BoundAgain_IsRefused) {  // 10.6.7.2.2: it has to be invalidated first
  const uint32_t rkey = bind();
  ASSERT_EQ(post(b, binding(91, ibv_inc_rkey(rkey), 4096, 64, IBV_ACCESS_REMOTE_WRITE)), 0);
  EXPECT_EQ(next(other_cq).status, IBV_WC_MW_BIND_ERR);
  EXPECT_EQ(state_of(b), IBV_QPS_ERR);
}

TEST_F(VerbsWindows, LocalInvalidate_UnbindsTheWindow) {  // 10.6.7.2.3
  const uint32_t rkey = bind();
  EXPECT_EQ(ibv_dereg_mr(mr), EBUSY);
  ibv_send_wr wr = request(IBV_WR_LOCAL_INV, 92, nullptr);
  wr.invalidate_rkey = rkey;
  ASSERT_EQ(post(b, wr), 0);
  const ibv_wc wc = next(other_cq);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_LOCAL_INV);
  const uint32_t again = bind();  // free for the next
  EXPECT_NE(again, rkey);
  EXPECT_EQ(write(again, address(4096)), IBV_WC_SUCCESS);
  EXPECT_EQ(write(rkey, address(4096)), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(VerbsWindows, LocalRequestsBehindAWaitingSend_TheirListsAreIgnored) {
  const uint32_t rkey = bind();
  const uint32_t next_rkey = ibv_inc_rkey(rkey);
  ibv_sge sge = span(0, 8), nobodys{8, 64, 0};            // no key opens it
  ASSERT_EQ(post(b, request(IBV_WR_SEND, 93, &sge)), 0);  // no receive is posted
  ibv_send_wr invalidation = request(IBV_WR_LOCAL_INV, 94, &nobodys);
  invalidation.invalidate_rkey = rkey;
  ASSERT_EQ(post(b, invalidation), 0);
  ibv_send_wr again = binding(95, next_rkey, 4096, 64, IBV_ACCESS_REMOTE_WRITE);
  again.sg_list = &nobodys;
  again.num_sge = 1;
  ASSERT_EQ(post(b, again), 0);
  ASSERT_EQ(receive(a, 7, 8192, 64), 0);
  for (const uint64_t id : {93, 94, 95}) {
    const ibv_wc wc = next(other_cq);
    EXPECT_EQ(wc.wr_id, id);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
  }
  EXPECT_EQ(next().wr_id, 7u);
  EXPECT_EQ(write(next_rkey, address(4096)), IBV_WC_SUCCESS);
}

TEST_F(VerbsWindows, SendWithInvalidate_UnbindsTheWindowAndReportsItsKey) {  // 9.4.1.1.3
  const uint32_t rkey = bind();
  ASSERT_EQ(receive(b, 7, 8192, 64), 0);
  ibv_sge sge = span(0, 8);
  ibv_send_wr wr = request(IBV_WR_SEND_WITH_INV, 1, &sge);
  wr.invalidate_rkey = rkey;
  ASSERT_EQ(post(a, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  const ibv_wc wc = next(other_cq);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_NE(wc.wc_flags & IBV_WC_WITH_INV, 0u);
  EXPECT_EQ(wc.wc_flags & IBV_WC_WITH_IMM, 0u);
  EXPECT_EQ(wc.invalidated_rkey, rkey);
  EXPECT_EQ(write(rkey, address(4096)), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(VerbsWindows, Invalidate_KeyOfNoWindow_Fails) {
  bind();
  ASSERT_EQ(receive(b, 7, 8192, 64), 0);
  ibv_sge sge = span(0, 8);
  ibv_send_wr wr = request(IBV_WR_SEND_WITH_INV, 1, &sge);
  wr.invalidate_rkey = mr->rkey;
  ASSERT_EQ(post(a, wr), 0);
  EXPECT_NE(next().status, IBV_WC_SUCCESS);
  EXPECT_NE(next(other_cq).status, IBV_WC_SUCCESS);
  EXPECT_EQ(state_of(a), IBV_QPS_ERR);
  EXPECT_TRUE(reaches(b, IBV_QPS_ERR));
}

TEST_F(VerbsWindows, BindMw_RegionWithoutMwBind_Fails) {  // 10.6.7.2.2
  ibv_mr* closed = reg(memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  ASSERT_NE(closed, nullptr);
  ibv_send_wr wr = binding(91, ibv_inc_rkey(mw->rkey), 0, 64, IBV_ACCESS_REMOTE_WRITE);
  wr.bind_mw.bind_info.mr = closed;
  ASSERT_EQ(post(b, wr), 0);
  EXPECT_EQ(next(other_cq).status, IBV_WC_MW_BIND_ERR);
}

TEST_F(VerbsWindows, BindMw_OutsideTheRegion_Fails) {
  ASSERT_EQ(post(b, binding(91, ibv_inc_rkey(mw->rkey), sizeof memory - 32, 64, IBV_ACCESS_REMOTE_WRITE)), 0);
  EXPECT_EQ(next(other_cq).status, IBV_WC_MW_BIND_ERR);
}

TEST_F(VerbsWindows, WindowOfTypeOne_AnyQueuePair_IsServedAndMayBeBoundAgain) {  // 10.6.7.1
  ibv_mw* one = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
  ASSERT_NE(one, nullptr);
  ibv_mw_bind to{};
  to.wr_id = 90;
  to.send_flags = IBV_SEND_SIGNALED;
  to.bind_info = {mr, address(4096), 64, IBV_ACCESS_REMOTE_WRITE};
  ASSERT_EQ(ibv_bind_mw(b, one, &to), 0);
  EXPECT_EQ(next(other_cq).status, IBV_WC_SUCCESS);
  const uint32_t first = one->rkey;
  EXPECT_EQ(write(first, address(4096)), IBV_WC_SUCCESS);
  ibv_qp* c = make_qp();
  ibv_qp* d = make_qp();
  connect(c, d);
  ibv_sge sge = span(0, 8);
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, 5, &sge);
  wr.wr.rdma = {address(4096), first};
  ASSERT_EQ(post(c, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  to.bind_info.addr = address(8192);  // no invalidation in between: the old binding ends
  ASSERT_EQ(ibv_bind_mw(b, one, &to), 0);
  EXPECT_EQ(next(other_cq).status, IBV_WC_SUCCESS);
  EXPECT_NE(one->rkey, first);
  EXPECT_EQ(write(one->rkey, address(8192)), IBV_WC_SUCCESS);
  to.bind_info = {nullptr, 0, 0, 0};  // of no length: unbound
  ASSERT_EQ(ibv_bind_mw(b, one, &to), 0);
  EXPECT_EQ(next(other_cq).status, IBV_WC_SUCCESS);
  EXPECT_EQ(write(one->rkey, address(8192)), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dealloc_mw(one), 0);
}

TEST_F(VerbsWindows, BindOfTypeOne_HasToWait_ReturnsItsKeyAtOnce) {  // manual ibv_bind_mw
  ibv_mw* one = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
  ASSERT_NE(one, nullptr);
  ibv_mw_bind to{};
  to.send_flags = IBV_SEND_SIGNALED;
  const auto bind_to = [&](size_t offset) {
    to.bind_info = {mr, address(offset), 64, IBV_ACCESS_REMOTE_WRITE};
    EXPECT_EQ(ibv_bind_mw(b, one, &to), 0);
    return one->rkey;
  };
  const uint32_t first = bind_to(4096);
  EXPECT_EQ(next(other_cq).status, IBV_WC_SUCCESS);
  ASSERT_EQ(move(b, IBV_QPS_SQD), 0);
  const uint32_t second = bind_to(8192);
  const uint32_t third = bind_to(12288);
  EXPECT_NE(second, first);
  EXPECT_NE(third, second);
  EXPECT_EQ(write(first, address(4096)), IBV_WC_SUCCESS) << "nothing is executed yet";
  ASSERT_EQ(move(b, IBV_QPS_RTS), 0);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(next(other_cq).status, IBV_WC_SUCCESS);
  EXPECT_EQ(one->rkey, third);
  EXPECT_EQ(write(third, address(12288)), IBV_WC_SUCCESS);
  EXPECT_EQ(write(second, address(8192)), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dealloc_mw(one), 0);
}

TEST_F(VerbsWindows, BindOfTypeOne_KeyOfAnotherWindow_IsRefused) {
  ibv_mw* one = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
  ASSERT_NE(one, nullptr);
  ibv_send_wr wr = binding(91, ibv_inc_rkey(mw->rkey), 4096, 64, IBV_ACCESS_REMOTE_WRITE);
  wr.bind_mw.mw = one;
  ASSERT_EQ(post(b, wr), 0);
  EXPECT_EQ(next(other_cq).status, IBV_WC_MW_BIND_ERR);
  EXPECT_EQ(ibv_dealloc_mw(one), 0);
}

}  // namespace
}  // namespace nupa::test
