#pragma once
/// Tests of the drop-in as a program sees it: through verbs.h and the shared library. They are built into verbs_tests,
/// which links the drop-in; unit_tests holds the core itself and leaves these files out by NUPA_TEST_DROPIN.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <chrono>
#include <cstring>
#include <vector>

namespace nupa::test {

/// The device, opened, with a protection domain and a completion queue.
class Verbs : public ::testing::Test {
 protected:
  static constexpr int kQueueLength = 64;
  static constexpr int kWholeAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                      IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

  void SetUp() override {
    ibv_device** list = ibv_get_device_list(nullptr);
    ASSERT_NE(list, nullptr);
    ASSERT_NE(list[0], nullptr);
    context = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    ASSERT_NE(context, nullptr) << std::strerror(errno);
    pd = ibv_alloc_pd(context);
    ASSERT_NE(pd, nullptr);
    cq = ibv_create_cq(context, 4 * kQueueLength, this, nullptr, 0);
    ASSERT_NE(cq, nullptr);
  }

  void TearDown() override {
    for (ibv_qp* qp : qps) EXPECT_EQ(ibv_destroy_qp(qp), 0);
    for (ibv_mr* mr : mrs) EXPECT_EQ(ibv_dereg_mr(mr), 0);
    if (cq != nullptr) {
      EXPECT_EQ(ibv_destroy_cq(cq), 0);
    }
    if (pd != nullptr) {
      EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    }
    if (context != nullptr) {
      EXPECT_EQ(ibv_close_device(context), 0);
    }
  }

  ibv_mr* reg(void* addr, size_t length, int access = kWholeAccess) {
    ibv_mr* mr = ibv_reg_mr(pd, addr, length, access);
    if (mr != nullptr) mrs.push_back(mr);
    return mr;
  }

  ibv_qp_init_attr init(ibv_qp_type type = IBV_QPT_RC) {
    ibv_qp_init_attr attr{};
    attr.qp_context = this;
    attr.send_cq = attr.recv_cq = cq;
    attr.cap = {kQueueLength, kQueueLength, 4, 4, 256};
    attr.qp_type = type;
    return attr;
  }

  ibv_qp* make_qp(ibv_qp_type type = IBV_QPT_RC) {
    ibv_qp_init_attr attr = init(type);
    return keep(ibv_create_qp(pd, &attr));
  }

  /// A queue pair with the ibv_wr_* calls for `operations`.
  ibv_qp* make_builder_qp(uint64_t operations, ibv_qp_type type = IBV_QPT_RC) {
    const ibv_qp_init_attr plain = init(type);
    ibv_qp_init_attr_ex attr{};
    std::memcpy(&attr, &plain, offsetof(ibv_qp_init_attr, sq_sig_all));
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.pd = pd;
    attr.send_ops_flags = operations;
    return keep(ibv_create_qp_ex(context, &attr));
  }

  ibv_qp* keep(ibv_qp* qp) {
    if (qp != nullptr) qps.push_back(qp);
    return qp;
  }

  ibv_ah_attr path() {
    ibv_ah_attr attr{};
    attr.is_global = 1;
    attr.port_num = 1;
    attr.grh.hop_limit = 1;
    EXPECT_EQ(ibv_query_gid(context, 1, 0, &attr.grh.dgid), 0);
    return attr;
  }

  int to_init(ibv_qp* qp) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qkey = kQkey;
    attr.qp_access_flags = kWholeAccess & ~IBV_ACCESS_MW_BIND;
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                             (qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
  }

  int to_rts(ibv_qp* qp, uint32_t peer) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_4096;
    attr.dest_qp_num = peer;
    attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = 1;
    attr.ah_attr = path();
    const bool datagram = qp->qp_type == IBV_QPT_UD;
    const int connected = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                          IBV_QP_MIN_RNR_TIMER;
    if (const int error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | (datagram ? 0 : connected)); error != 0) return error;
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 4;
    return ibv_modify_qp(
        qp, &attr,
        IBV_QP_STATE | IBV_QP_SQ_PSN |
            (datagram ? 0 : IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
  }

  void connect(ibv_qp* a, ibv_qp* b) {
    ASSERT_NE(a, nullptr);
    ASSERT_NE(b, nullptr);
    ASSERT_EQ(to_init(a), 0);
    if (a != b) {
      ASSERT_EQ(to_init(b), 0);
    }
    ASSERT_EQ(to_rts(a, b->qp_num), 0);
    if (a != b) {
      ASSERT_EQ(to_rts(b, a->qp_num), 0);
    }
  }

  int post_recv(ibv_qp* qp, uint64_t wr_id, void* addr, uint32_t length, uint32_t lkey) {
    ibv_sge sge{reinterpret_cast<uint64_t>(addr), length, lkey};
    ibv_recv_wr wr{};
    wr.wr_id = wr_id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp, &wr, &bad);
  }

  /// Waits for one completion, at most a second; status -1: none came.
  ibv_wc next(ibv_cq* from) {
    ibv_wc wc{};
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (std::chrono::steady_clock::now() < end)
      if (ibv_poll_cq(from, 1, &wc) == 1) return wc;
    wc.status = static_cast<ibv_wc_status>(-1);
    return wc;
  }
  ibv_wc next() { return next(cq); }

  static constexpr uint32_t kQkey = 0x11;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  std::vector<ibv_qp*> qps;
  std::vector<ibv_mr*> mrs;
};

}  // namespace nupa::test
