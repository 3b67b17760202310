// SPDX-License-Identifier: Apache-2.0
/// FLUSH (IBTA annex A19): order, the rights that it needs, ranges and whole regions, and what is rejected at once.
#include <fcntl.h>

#include "../../support/later_flush.h"
#include "fixture.h"

namespace nupa::test {
namespace {

constexpr uint64_t kOperations = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | kQpExWithFlush;

class VerbsFlush : public VerbsPair {
 protected:
  void SetUp() override {
    VerbsPair::SetUp();
    qp_access |= kAccessFlushGlobal | kAccessFlushPersistent;
    region = reg(memory + 4096, 4096, kWholeAccess | kAccessFlushGlobal);
    ASSERT_NE(region, nullptr);
  }
  /// `a` has the builder, and makes requests to `b`.
  void make_pair() {
    a = make_builder_qp(kOperations);
    ASSERT_NE(a, nullptr);
    ibv_qp_init_attr attr = init();
    attr.send_cq = attr.recv_cq = other_cq;
    b = keep(ibv_create_qp(pd, &attr));
    connect(a, b);
    ex = ibv_qp_to_qp_ex(a);
    ex->wr_flags = IBV_SEND_SIGNALED;
  }
  void write(uint64_t wr_id, size_t from, size_t to, uint32_t length) {
    ex->wr_id = wr_id;
    ibv_wr_rdma_write(ex, region->rkey, address(to));
    ibv_wr_set_sge(ex, mr->lkey, address(from), length);
  }
  void flush(uint64_t wr_id, uint32_t rkey, uint64_t at, size_t length, uint8_t type = kFlushGlobal,
             uint8_t level = kFlushRange) {
    ex->wr_id = wr_id;
    wr_flush(ex, rkey, at, length, type, level);
  }
  ibv_wc run(uint32_t rkey, uint64_t at, size_t length, uint8_t type = kFlushGlobal, uint8_t level = kFlushRange) {
    ibv_wr_start(ex);
    flush(1, rkey, at, length, type, level);
    EXPECT_EQ(ibv_wr_complete(ex), 0);
    return next();
  }

  ibv_mr* region = nullptr;  ///< of `b`, which may be flushed
  ibv_qp_ex* ex = nullptr;
};

TEST_F(VerbsFlush, Device_HasGlobalVisibilityAlone) {
  ibv_device_attr_ex attr{};
  ASSERT_EQ(ibv_query_device_ex(context, nullptr, &attr), 0);
  EXPECT_NE(attr.device_cap_flags_ex & kDeviceFlushGlobal, 0u);
  EXPECT_EQ(attr.device_cap_flags_ex & kDeviceFlushGlobal << 1, 0u);
}

TEST_F(VerbsFlush, Flush_BetweenOtherRequests_CompletesInOrder) {
  make_pair();
  std::memset(memory, 'x', 4096);
  ibv_wr_start(ex);
  write(1, 0, 4096, 4096);
  flush(2, region->rkey, address(4096), 4096);
  write(3, 0, 4096, 8);
  flush(4, region->rkey, 0, 0, kFlushGlobal, kFlushMr);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  for (uint64_t wr_id = 1; wr_id <= 4; ++wr_id) {
    const ibv_wc wc = next();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << wr_id;
    EXPECT_EQ(wc.wr_id, wr_id);
    EXPECT_EQ(wc.opcode, wr_id % 2 == 0 ? kWcFlush : IBV_WC_RDMA_WRITE);
    if (wr_id % 2 == 0) {
      EXPECT_EQ(memory[8191], 'x');
      EXPECT_EQ(wc.byte_len, 0u);
    }
  }
}

TEST_F(VerbsFlush, MoreFlushesThanMayBeOutstanding_AllComplete) {
  make_pair();
  ibv_wr_start(ex);
  for (uint64_t i = 0; i < kQueueLength; ++i) flush(i, region->rkey, address(4096 + i), 1);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  for (uint64_t i = 0; i < kQueueLength; ++i) {
    const ibv_wc wc = next();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << i;
    EXPECT_EQ(wc.wr_id, i);
  }
}

TEST_F(VerbsFlush, Fence_WaitsForTheFlushBefore) {
  make_pair();
  ibv_wr_start(ex);
  flush(1, region->rkey, address(4096), 8);
  ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
  flush(2, region->rkey, address(4096), 8);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  for (uint64_t wr_id = 1; wr_id <= 2; ++wr_id) EXPECT_EQ(next().status, IBV_WC_SUCCESS);
}

TEST_F(VerbsFlush, PlacementWithoutItsRight_IsRefused) {
  struct Right {
    bool of_the_region;
    bool of_the_queue_pair;
    uint8_t type;
  };
  for (const uint8_t level : {kFlushRange, kFlushMr})
    for (const Right& right :
         {Right{true, true, kFlushGlobal}, Right{false, true, kFlushGlobal}, Right{true, false, kFlushGlobal},
          Right{true, true, kFlushPersistent}, Right{true, true, kFlushGlobal | kFlushPersistent}}) {
      qp_access = right.of_the_queue_pair ? qp_access | kAccessFlushGlobal : qp_access & ~kAccessFlushGlobal;
      make_pair();
      const bool allowed = right.of_the_region && right.of_the_queue_pair && right.type == kFlushGlobal;
      const uint32_t rkey = right.of_the_region ? region->rkey : mr->rkey;
      EXPECT_EQ(run(rkey, address(4096), 64, right.type, level).status,
                allowed ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR)
          << right.of_the_region << right.of_the_queue_pair << int{right.type} << " level " << int{level};
      if (allowed) continue;
      EXPECT_TRUE(reaches(b, IBV_QPS_ERR));
      EXPECT_EQ(next_event().event_type, IBV_EVENT_QP_ACCESS_ERR);
    }
}

TEST_F(VerbsFlush, Range_IsCheckedExceptOfAWholeRegion) {
  struct Range {
    size_t offset;
    size_t length;
    bool within;
  };
  for (const Range& range : {Range{4096, 4096, true}, Range{4097, 4096, false}, Range{4095, 1, false},
                             Range{4096, 4097, false}, Range{8192, 0, true}, Range{8193, 0, false}})
    for (const uint8_t level : {kFlushRange, kFlushMr}) {
      make_pair();
      const bool allowed = range.within || level == kFlushMr;
      EXPECT_EQ(run(region->rkey, address(range.offset), range.length, kFlushGlobal, level).status,
                allowed ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR)
          << range.offset << "+" << range.length << " level " << int{level};
    }
}

TEST_F(VerbsFlush, UnknownKey_IsRefusedAlsoWithoutARange) {  // unlike a READ of no bytes
  for (const uint8_t level : {kFlushRange, kFlushMr})
    for (const uint32_t rkey : {0u, region->rkey ^ 1, ~0u}) {
      make_pair();
      EXPECT_EQ(run(rkey, 0, 0, kFlushGlobal, level).status, IBV_WC_REM_ACCESS_ERR) << rkey;
    }
}

TEST_F(VerbsFlush, KeyOfADeregisteredRegion_IsRefused) {
  make_pair();
  EXPECT_EQ(run(region->rkey, 0, 0, kFlushGlobal, kFlushMr).status, IBV_WC_SUCCESS);
  const uint32_t rkey = region->rkey;
  std::erase(mrs, region);
  ASSERT_EQ(ibv_dereg_mr(region), 0);
  EXPECT_EQ(run(rkey, 0, 0, kFlushGlobal, kFlushMr).status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(VerbsFlush, LongRange_IsALocalLengthError) {
  constexpr size_t kLongest = size_t{1} << 31;
  make_pair();
  EXPECT_EQ(run(region->rkey, 0, ~size_t{0}, kFlushGlobal, kFlushMr).status, IBV_WC_SUCCESS);
  EXPECT_EQ(run(region->rkey, address(4096), kLongest + 1).status, IBV_WC_LOC_LEN_ERR);
  make_pair();
  EXPECT_EQ(run(region->rkey, address(4096), kLongest).status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(VerbsFlush, WithoutOutstandingReads_IsNotPossible) {
  initiator_depth = 0;
  make_pair();
  EXPECT_EQ(run(region->rkey, address(4096), 8).status, IBV_WC_LOC_QP_OP_ERR);
  initiator_depth = 4;
  responder_depth = 0;
  make_pair();
  EXPECT_EQ(run(region->rkey, address(4096), 8).status, IBV_WC_REM_INV_REQ_ERR);
}

TEST_F(VerbsFlush, WrongArguments_AreRejectedAtOnce) {
  make_pair();
  const auto fails = [&](auto build) {
    ibv_wr_start(ex);
    build();
    EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
    EXPECT_TRUE(stays_empty(cq));
  };
  const auto flushes = [&](uint8_t type, uint8_t level) { flush(1, region->rkey, address(4096), 8, type, level); };
  fails([&] { flushes(0, kFlushRange); });
  fails([&] { flushes(4, kFlushRange); });
  fails([&] { flushes(kFlushGlobal | 16, kFlushRange); });
  fails([&] { flushes(kFlushGlobal, 2); });
  fails([&] {
    flushes(kFlushGlobal, kFlushRange);
    ibv_wr_set_sge(ex, mr->lkey, address(0), 8);
  });
  fails([&] {
    flushes(kFlushGlobal, kFlushRange);
    ibv_wr_set_inline_data(ex, memory, 8);
  });
  // ibv_send_wr has no fields for it.
  EXPECT_EQ(post(a, request(kWrFlush, 1, nullptr)), EINVAL);
  ibv_send_wr immediate = request(kWrFlush, 1, nullptr);
  immediate.imm_data = kFlushGlobal;
  EXPECT_EQ(post(a, immediate), EINVAL);
  EXPECT_EQ(run(region->rkey, address(4096), 8).status, IBV_WC_SUCCESS);
}

TEST_F(VerbsFlush, OtherTypesThanRcAndXrc_HaveNone) {
  for (const ibv_qp_type type : {IBV_QPT_UC, IBV_QPT_UD}) {
    EXPECT_EQ(make_builder_qp(kQpExWithFlush, type), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
  }
}

TEST_F(VerbsFlush, PersistentRegion_IsNotSupported) {
  constexpr int kAccess = kWholeAccess | kAccessFlushPersistent;
  EXPECT_EQ(reg(memory, 4096, kAccess), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(reg(memory, 4096, kAccessFlushPersistent | IBV_ACCESS_REMOTE_WRITE), nullptr);
  EXPECT_EQ(errno, EINVAL) << "contradictory flags come first";
  EXPECT_EQ(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kAccess), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_alloc_dm_attr attr{};
  attr.length = 4096;
  ibv_dm* const dm = ibv_alloc_dm(context, &attr);
  ASSERT_NE(dm, nullptr);
  EXPECT_EQ(ibv_reg_dm_mr(pd, dm, 0, 4096, kAccess | IBV_ACCESS_ZERO_BASED), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(ibv_free_dm(dm), 0);
  make_pair();
  EXPECT_EQ(run(region->rkey, 0, 0, kFlushGlobal, kFlushMr).status, IBV_WC_SUCCESS) << "the region is as before";
}

TEST_F(VerbsFlush, Window_HasTheRightItWasBoundWith) {
  for (const bool has_right : {true, false}) {
    make_pair();
    ibv_mw* const mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    ASSERT_NE(mw, nullptr);
    ibv_send_wr wr = request(IBV_WR_BIND_MW, 1, nullptr);
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
    wr.bind_mw.bind_info = {mr, address(4096), 64,
                            static_cast<unsigned int>(IBV_ACCESS_REMOTE_WRITE | (has_right ? kAccessFlushGlobal : 0))};
    ASSERT_EQ(post(b, wr), 0);
    ASSERT_EQ(next(other_cq).status, IBV_WC_SUCCESS);
    EXPECT_EQ(run(wr.bind_mw.rkey, 0, 0, kFlushGlobal, kFlushMr).status,
              has_right ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  }
}

TEST_F(VerbsFlush, Xrc_FlushesARegionOfTheDomain) {
  ibv_xrcd_init_attr domain_attr{};
  domain_attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  domain_attr.fd = -1;
  domain_attr.oflags = O_CREAT;
  ibv_xrcd* const domain = ibv_open_xrcd(context, &domain_attr);
  ASSERT_NE(domain, nullptr);
  ibv_srq_init_attr_ex srq_attr{};
  srq_attr.attr = {16, 1, 0};
  srq_attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  srq_attr.srq_type = IBV_SRQT_XRC;
  srq_attr.pd = pd;
  srq_attr.xrcd = domain;
  srq_attr.cq = other_cq;
  ibv_srq* const queue = ibv_create_srq_ex(context, &srq_attr);
  ASSERT_NE(queue, nullptr);
  uint32_t number = 0;
  ASSERT_EQ(ibv_get_srq_num(queue, &number), 0);
  ibv_qp_init_attr_ex target_attr{};
  target_attr.qp_type = IBV_QPT_XRC_RECV;
  target_attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
  target_attr.xrcd = domain;
  for (const bool has_right : {true, false}) {
    ibv_qp* const target = keep(ibv_create_qp_ex(context, &target_attr));
    a = make_builder_qp(kOperations, IBV_QPT_XRC_SEND);
    connect(a, target);
    ex = ibv_qp_to_qp_ex(a);
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_start(ex);
    write(1, 0, 4096, 64);
    ibv_wr_set_xrc_srqn(ex, number);
    flush(2, has_right ? region->rkey : mr->rkey, address(4096), 64);
    ibv_wr_set_xrc_srqn(ex, number);
    ASSERT_EQ(ibv_wr_complete(ex), 0);
    EXPECT_EQ(next().status, IBV_WC_SUCCESS);
    const ibv_wc wc = next();
    EXPECT_EQ(wc.status, has_right ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR);
    if (has_right) {
      EXPECT_EQ(wc.opcode, kWcFlush);
    }
  }
  for (ibv_qp* qp : qps) EXPECT_EQ(ibv_destroy_qp(qp), 0);
  qps.clear();
  EXPECT_EQ(ibv_destroy_srq(queue), 0);
  EXPECT_EQ(ibv_close_xrcd(domain), 0);
}

}  // namespace
}  // namespace nupa::test
