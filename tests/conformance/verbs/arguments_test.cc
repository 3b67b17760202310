// SPDX-License-Identifier: Apache-2.0
/// Every public function with null, zero, huge and out-of-range arguments: an error as specified, never a crash.
#include <climits>
#include <cstdint>

#include "fixture.h"

namespace nupa::test {
namespace {

/// A null pointer result, and errno as expected.
#define EXPECT_REFUSED(call, expected) \
  do {                                 \
    errno = 0;                         \
    EXPECT_EQ((call), nullptr);        \
    EXPECT_EQ(errno, expected);        \
  } while (false)
/// The calls that answer -1 and set errno.
#define EXPECT_MINUS_ONE(call, expected) \
  do {                                   \
    errno = 0;                           \
    EXPECT_LT((call), 0);                \
    EXPECT_EQ(errno, expected);          \
  } while (false)

constexpr uint64_t kHuge = UINT64_MAX;

TEST(VerbsArguments, NullObjects_AreRefused) {
  EXPECT_EQ(ibv_get_device_name(nullptr), nullptr);
  EXPECT_EQ(ibv_get_device_index(nullptr), -1);
  EXPECT_EQ(ibv_get_device_guid(nullptr), 0u);
  ibv_free_device_list(nullptr);
  EXPECT_REFUSED(ibv_open_device(nullptr), EINVAL);
  EXPECT_EQ(ibv_close_device(nullptr), EINVAL);
  EXPECT_EQ(ibv_query_device(nullptr, nullptr), EINVAL);
  EXPECT_EQ((ibv_query_port)(nullptr, 1, nullptr), EINVAL);
  EXPECT_MINUS_ONE(ibv_query_gid(nullptr, 1, 0, nullptr), EINVAL);
  EXPECT_EQ(_ibv_query_gid_ex(nullptr, 1, 0, nullptr, 0, 0), EINVAL);
  EXPECT_EQ(_ibv_query_gid_table(nullptr, nullptr, 0, 0, 0), -EINVAL);
  EXPECT_MINUS_ONE(ibv_query_pkey(nullptr, 1, 0, nullptr), EINVAL);
  EXPECT_LT(ibv_get_pkey_index(nullptr, 1, 0), 0);
  EXPECT_MINUS_ONE(ibv_get_async_event(nullptr, nullptr), EINVAL);
  ibv_ack_async_event(nullptr);
  EXPECT_REFUSED(ibv_alloc_pd(nullptr), EINVAL);
  EXPECT_EQ(ibv_dealloc_pd(nullptr), EINVAL);
  EXPECT_REFUSED(ibv_import_pd(nullptr, 1), EINVAL);
  ibv_unimport_pd(nullptr);
  EXPECT_REFUSED((ibv_reg_mr)(nullptr, nullptr, 1, 0), EINVAL);
  EXPECT_REFUSED((ibv_reg_mr_iova)(nullptr, nullptr, 1, 0, 0), EINVAL);
  EXPECT_REFUSED(ibv_reg_mr_iova2(nullptr, nullptr, 1, 0, 0), EINVAL);
  EXPECT_REFUSED(ibv_reg_dmabuf_mr(nullptr, 0, 1, 0, -1, 0), EINVAL);
  EXPECT_EQ(ibv_rereg_mr(nullptr, 1, nullptr, nullptr, 0, 0), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(ibv_dereg_mr(nullptr), EINVAL);
  EXPECT_REFUSED(ibv_import_mr(nullptr, 1), EINVAL);
  ibv_unimport_mr(nullptr);
  EXPECT_REFUSED(ibv_import_dm(nullptr, 1), EINVAL);
  ibv_unimport_dm(nullptr);
  EXPECT_REFUSED(ibv_create_comp_channel(nullptr), EINVAL);
  EXPECT_EQ(ibv_destroy_comp_channel(nullptr), EINVAL);
  EXPECT_REFUSED(ibv_create_cq(nullptr, 1, nullptr, nullptr, 0), EINVAL);
  EXPECT_EQ(ibv_resize_cq(nullptr, 1), EINVAL);
  EXPECT_EQ(ibv_destroy_cq(nullptr), EINVAL);
  EXPECT_MINUS_ONE(ibv_get_cq_event(nullptr, nullptr, nullptr), EINVAL);
  ibv_ack_cq_events(nullptr, 1);
  EXPECT_REFUSED(ibv_create_srq(nullptr, nullptr), EINVAL);
  EXPECT_EQ(ibv_modify_srq(nullptr, nullptr, 0), EINVAL);
  EXPECT_EQ(ibv_query_srq(nullptr, nullptr), EINVAL);
  EXPECT_EQ(ibv_destroy_srq(nullptr), EINVAL);
  EXPECT_REFUSED(ibv_create_qp(nullptr, nullptr), EINVAL);
  EXPECT_EQ(ibv_qp_to_qp_ex(nullptr), nullptr);
  EXPECT_EQ(ibv_modify_qp(nullptr, nullptr, 0), EINVAL);
  EXPECT_EQ(ibv_query_qp(nullptr, nullptr, 0, nullptr), EINVAL);
  EXPECT_EQ(ibv_query_qp_data_in_order(nullptr, IBV_WR_SEND, 0), 0);
  EXPECT_EQ(ibv_query_ece(nullptr, nullptr), EINVAL);
  EXPECT_EQ(ibv_set_ece(nullptr, nullptr), EINVAL);
  EXPECT_EQ(ibv_destroy_qp(nullptr), EINVAL);
  EXPECT_EQ(ibv_attach_mcast(nullptr, nullptr, 0), EINVAL);
  EXPECT_EQ(ibv_detach_mcast(nullptr, nullptr, 0), EINVAL);
  EXPECT_REFUSED(ibv_create_ah(nullptr, nullptr), EINVAL);
  EXPECT_EQ(ibv_destroy_ah(nullptr), EINVAL);
  EXPECT_MINUS_ONE(ibv_init_ah_from_wc(nullptr, 1, nullptr, nullptr, nullptr), EINVAL);
  EXPECT_REFUSED(ibv_create_ah_from_wc(nullptr, nullptr, nullptr, 1), EINVAL);
  EXPECT_MINUS_ONE(ibv_resolve_eth_l2_from_gid(nullptr, nullptr, nullptr, nullptr), EINVAL);
  EXPECT_EQ(ibv_fork_init(), 0);
  EXPECT_EQ(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
}

TEST_F(Verbs, MemoryCalls_WrongArguments_AreRefused) {
  alignas(4096) static char memory[8192];
  const auto refused = [&](void* addr, size_t length, int access, int expected) {
    errno = 0;
    EXPECT_EQ((ibv_reg_mr)(pd, addr, length, access), nullptr) << addr << " " << length << " " << access;
    EXPECT_EQ(errno, expected) << addr << " " << length << " " << access;
  };
  refused(memory, 0, IBV_ACCESS_LOCAL_WRITE, EINVAL);
  refused(memory, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE, EINVAL);
  refused(memory, sizeof memory, IBV_ACCESS_REMOTE_WRITE, EINVAL);
  refused(memory, sizeof memory, IBV_ACCESS_REMOTE_ATOMIC, EINVAL);
  refused(memory, sizeof memory, 1 << 15, EINVAL);
  refused(memory, sizeof memory, INT_MIN, EINVAL);
  refused(nullptr, 4096, IBV_ACCESS_LOCAL_WRITE, EFAULT);
  refused(const_cast<char*>("read only"), 8, IBV_ACCESS_LOCAL_WRITE, EFAULT);
  EXPECT_REFUSED(ibv_reg_mr_iova2(pd, memory, 4096, kHuge, IBV_ACCESS_LOCAL_WRITE), EINVAL);
  // Optional rights that this device does not know are ignored (manual ibv_reg_mr).
  EXPECT_NE(reg(memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING | 1 << 28), nullptr);
  EXPECT_REFUSED(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE), EOPNOTSUPP);
  EXPECT_REFUSED(ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0), EOPNOTSUPP);  // how programs ask for memory of GPUs
  EXPECT_EQ(ibv_reg_dmabuf_mr(pd, kHuge, 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE), nullptr);
  ibv_mr* mr = reg(memory, 4096);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(ibv_rereg_mr(mr, 0, nullptr, nullptr, 0, 0), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(ibv_rereg_mr(mr, 1 << 12, nullptr, nullptr, 0, 0), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, nullptr, nullptr, 0, 0), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, nullptr, 0, 0), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 1 << 15), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(ibv_advise_mr(pd, static_cast<ibv_advise_mr_advice>(99), 0, nullptr, 0), EINVAL);
  EXPECT_NE(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, nullptr, 1), 0);
  EXPECT_REFUSED(ibv_alloc_mw(pd, static_cast<ibv_mw_type>(9)), EINVAL);
  ibv_alloc_dm_attr dm_attr{};
  EXPECT_REFUSED(ibv_alloc_dm(context, &dm_attr), EINVAL);
  dm_attr.length = SIZE_MAX;
  EXPECT_EQ(ibv_alloc_dm(context, &dm_attr), nullptr);
  EXPECT_NE(errno, 0);
  dm_attr = {64, UINT32_MAX, 0};
  EXPECT_EQ(ibv_alloc_dm(context, &dm_attr), nullptr);
  dm_attr = {64, 0, 1};
  EXPECT_REFUSED(ibv_alloc_dm(context, &dm_attr), EINVAL);
  dm_attr = {64, 0, 0};
  ibv_dm* dm = ibv_alloc_dm(context, &dm_attr);
  ASSERT_NE(dm, nullptr);
  EXPECT_REFUSED(ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_LOCAL_WRITE), EINVAL);  // zero based only
  EXPECT_REFUSED(ibv_reg_dm_mr(pd, dm, kHuge, 64, IBV_ACCESS_ZERO_BASED), EINVAL);
  EXPECT_REFUSED(ibv_reg_dm_mr(pd, dm, 32, SIZE_MAX, IBV_ACCESS_ZERO_BASED), EINVAL);
  char buffer[64];
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 64, buffer, 4), EFAULT);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, kHuge - 3, buffer, 8), EFAULT);
  EXPECT_EQ(ibv_memcpy_from_dm(buffer, dm, 0, SIZE_MAX - 3), EFAULT);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

TEST_F(Verbs, QueueCalls_WrongArguments_AreRefused) {
  EXPECT_REFUSED(ibv_create_cq(context, 0, nullptr, nullptr, 0), EINVAL);
  EXPECT_REFUSED(ibv_create_cq(context, -1, nullptr, nullptr, 0), EINVAL);
  EXPECT_REFUSED(ibv_create_cq(context, INT_MAX, nullptr, nullptr, 0), EINVAL);
  EXPECT_REFUSED(ibv_create_cq(context, 16, nullptr, nullptr, -1), EINVAL);
  EXPECT_REFUSED(ibv_create_cq(context, 16, nullptr, nullptr, context->num_comp_vectors), EINVAL);
  ibv_srq_init_attr srq{};
  EXPECT_REFUSED(ibv_create_srq(pd, &srq), EINVAL);
  srq.attr = {UINT32_MAX, 1, 0};
  EXPECT_REFUSED(ibv_create_srq(pd, &srq), EINVAL);
  srq.attr = {16, UINT32_MAX, 0};
  EXPECT_REFUSED(ibv_create_srq(pd, &srq), EINVAL);
  srq.attr = {16, 1, 0};
  ibv_srq* made = ibv_create_srq(pd, &srq);
  ASSERT_NE(made, nullptr);
  ibv_srq_attr attr{};
  attr.srq_limit = UINT32_MAX;
  EXPECT_EQ(ibv_modify_srq(made, &attr, IBV_SRQ_LIMIT), EINVAL);
  EXPECT_EQ(ibv_modify_srq(made, &attr, -1), EINVAL);
  ibv_recv_wr wr{}, *bad = nullptr;
  wr.num_sge = 1;
  EXPECT_EQ(ibv_post_srq_recv(made, &wr, &bad), EINVAL);
  EXPECT_EQ(bad, &wr);
  EXPECT_EQ(ibv_post_srq_recv(made, &wr, nullptr), EINVAL);
  EXPECT_EQ(ibv_destroy_srq(made), 0);
  const auto refused = [&](auto change, int expected) {
    ibv_qp_init_attr qp = init();
    change(qp);
    errno = 0;
    EXPECT_EQ(ibv_create_qp(pd, &qp), nullptr);
    EXPECT_EQ(errno, expected);
  };
  refused([](auto& qp) { qp.send_cq = nullptr; }, EINVAL);
  refused([](auto& qp) { qp.recv_cq = nullptr; }, EINVAL);
  refused([](auto& qp) { qp.cap.max_send_wr = UINT32_MAX; }, EINVAL);
  refused([](auto& qp) { qp.cap.max_recv_wr = UINT32_MAX; }, EINVAL);
  refused([](auto& qp) { qp.cap.max_send_sge = UINT32_MAX; }, EINVAL);
  refused([](auto& qp) { qp.cap.max_recv_sge = UINT32_MAX; }, EINVAL);
  refused([](auto& qp) { qp.cap.max_inline_data = UINT32_MAX; }, EINVAL);
  refused([](auto& qp) { qp.qp_type = static_cast<ibv_qp_type>(0); }, EOPNOTSUPP);
  refused([](auto& qp) { qp.qp_type = static_cast<ibv_qp_type>(-1); }, EOPNOTSUPP);
}

TEST_F(Verbs, Post_WrongArguments_AreRefused) {
  alignas(4096) static char memory[4096];
  ibv_mr* mr = reg(memory, sizeof memory);
  ibv_qp* qp = make_qp();
  ibv_sge sge{reinterpret_cast<uint64_t>(memory), 8, mr->lkey};
  ibv_send_wr wr{}, *bad = nullptr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  EXPECT_EQ(ibv_post_send(qp, &wr, &bad), EINVAL);  // IBTA 10.8.2: not before RTS
  EXPECT_EQ(bad, &wr);
  EXPECT_EQ(post_recv(qp, 1, memory, 8, mr->lkey), EINVAL);  // not in RESET
  connect(qp, qp);
  const auto refused = [&](auto change) {
    ibv_send_wr good = wr, changed = wr;
    good.opcode = IBV_WR_RDMA_WRITE;
    good.wr.rdma = {reinterpret_cast<uint64_t>(memory) + 64, mr->rkey};
    good.send_flags = IBV_SEND_SIGNALED;
    good.next = &changed;
    change(changed);
    bad = nullptr;
    EXPECT_EQ(ibv_post_send(qp, &good, &bad), EINVAL);
    EXPECT_EQ(bad, &changed);
    EXPECT_EQ(next().status, IBV_WC_SUCCESS);  // the one in front of it was posted
  };
  refused([](auto& w) { w.num_sge = -1; });
  refused([](auto& w) { w.num_sge = INT_MAX; });
  refused([](auto& w) { w.sg_list = nullptr; });
  for (const int opcode : {int{IBV_WR_TSO}, int{IBV_WR_DRIVER1}, 14, 31, 32, 33, 99, -1})
    refused([&](auto& w) { w.opcode = static_cast<ibv_wr_opcode>(opcode); });
  refused([](auto& w) { w.opcode = IBV_WR_BIND_MW; });
  refused([](auto& w) { w.send_flags = IBV_SEND_IP_CSUM; });
  refused([](auto& w) { w.send_flags = 1u << 16; });  // of nupa::send_flag, for nupa_verbs_post_inline()
  refused([](auto& w) { w.send_flags = 1u << 31; });
  ibv_sge large{reinterpret_cast<uint64_t>(memory), 4096, mr->lkey};
  refused([&](auto& w) {
    w.sg_list = &large;
    w.send_flags = IBV_SEND_INLINE;
  });
  EXPECT_EQ(ibv_post_send(qp, nullptr, &bad), 0);
  wr.num_sge = -1;
  EXPECT_EQ(ibv_post_send(qp, &wr, nullptr), EINVAL);
  ibv_send_wr behind = wr;
  wr.next = &behind;
  EXPECT_EQ(ibv_post_send(qp, &wr, nullptr), EINVAL);
  ibv_recv_wr recv{}, *bad_recv = nullptr;
  recv.num_sge = 5;
  EXPECT_EQ(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
  EXPECT_EQ(bad_recv, &recv);
  ibv_wc wc;
  EXPECT_EQ(ibv_poll_cq(cq, 0, &wc), 0);
  EXPECT_LE(ibv_poll_cq(cq, -1, &wc), 0);
  ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  ASSERT_NE(mw, nullptr);
  ibv_mw_bind bind{};
  EXPECT_EQ(ibv_bind_mw(qp, mw, &bind), EINVAL);  // type 2 is bound by a work request
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
}

TEST_F(Verbs, ModifyQp_WrongArguments_AreRefused) {
  ibv_qp* qp = make_qp();
  ibv_qp_attr attr{};
  EXPECT_EQ(ibv_modify_qp(qp, &attr, -1), EINVAL);
  EXPECT_EQ(ibv_modify_qp(qp, &attr, 1 << 30), EINVAL);
  attr.qp_state = static_cast<ibv_qp_state>(77);
  EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
  EXPECT_EQ(ibv_query_qp(qp, nullptr, 0, nullptr), EINVAL);
  ibv_gid gid{};
  EXPECT_EQ(ibv_attach_mcast(qp, &gid, 0), EINVAL);
  EXPECT_EQ(ibv_detach_mcast(qp, &gid, 0), EINVAL);
}

TEST_F(Verbs, AddressCalls_WrongArguments_AreRefused) {
  ibv_ah_attr attr = path();
  attr.port_num = 0;
  EXPECT_REFUSED(ibv_create_ah(pd, &attr), EINVAL);
  attr.port_num = 2;
  EXPECT_REFUSED(ibv_create_ah(pd, &attr), EINVAL);
  attr = path();
  attr.grh.sgid_index = 255;
  EXPECT_REFUSED(ibv_create_ah(pd, &attr), EINVAL);
  ibv_gid_entry used{};
  for (attr.grh.sgid_index = 0; ibv_query_gid_ex(context, 1, attr.grh.sgid_index, &used, 0) == 0;)
    ++attr.grh.sgid_index;
  EXPECT_REFUSED(ibv_create_ah(pd, &attr), EINVAL);  // the first entry of the GID table that is empty
  attr = path();
  attr.is_global = 0;
  EXPECT_REFUSED(ibv_create_ah(pd, &attr), EINVAL);  // RoCE: every address is global
  ibv_wc wc{};
  wc.wc_flags = IBV_WC_GRH;
  EXPECT_MINUS_ONE(ibv_init_ah_from_wc(context, 1, &wc, nullptr, &attr), EINVAL);
  ibv_gid gid;
  EXPECT_MINUS_ONE(ibv_query_gid(context, 1, -1, &gid), EINVAL);
  EXPECT_MINUS_ONE(ibv_query_gid(context, 1, INT_MAX, &gid), EINVAL);
  EXPECT_MINUS_ONE(ibv_query_gid(context, 0, 0, &gid), EINVAL);
  __be16 pkey;
  EXPECT_MINUS_ONE(ibv_query_pkey(context, 1, -1, &pkey), EINVAL);
  EXPECT_MINUS_ONE(ibv_query_pkey(context, 1, INT_MAX, &pkey), EINVAL);
  ibv_gid_entry entry;
  EXPECT_EQ(ibv_query_gid_ex(context, UINT32_MAX, 0, &entry, 0), EINVAL);
  EXPECT_EQ(ibv_query_gid_ex(context, 1, UINT32_MAX, &entry, 0), EINVAL);
  EXPECT_EQ(_ibv_query_gid_ex(context, 1, 0, &entry, 0, 4), EINVAL);
}

}  // namespace
}  // namespace nupa::test
