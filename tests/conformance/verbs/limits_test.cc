// SPDX-License-Identifier: Apache-2.0
/// Limits that are exact: lengths, lists, domains, and datagrams that are dropped.
#include <fcntl.h>

#include "fixture.h"
#include "lives.h"

namespace nupa::test {
namespace {

TEST_F(VerbsLives, Qkey_ChangedWhileReadyToSend_IsApplied) {  // 11.2.5.2, RTS to RTS
  a = make_qp(IBV_QPT_UD);
  ibv_qp_init_attr attr = init(IBV_QPT_UD);
  attr.send_cq = attr.recv_cq = other_cq;
  b = keep(ibv_create_qp(pd, &attr));
  connect(a, b);
  ibv_ah_attr way = path();
  ibv_ah* ah = ibv_create_ah(pd, &way);
  ASSERT_NE(ah, nullptr);
  ibv_qp_attr changed{};
  changed.qkey = 0x22;
  ASSERT_EQ(ibv_modify_qp(b, &changed, IBV_QP_QKEY), 0);
  ASSERT_EQ(receive(b, 7, 4096, 128), 0);
  ibv_sge sge = span(0, 8);
  for (const uint32_t qkey : {kQkey, 0x22u}) {
    ibv_send_wr wr = request(IBV_WR_SEND, qkey, &sge);
    wr.wr.ud = {ah, b->qp_num, qkey};
    ASSERT_EQ(post(a, wr), 0);
    EXPECT_EQ(next().status, IBV_WC_SUCCESS);
    catch_up();
    if (qkey == kQkey) {
      EXPECT_TRUE(stays_empty(other_cq));
    }
  }
  EXPECT_EQ(next(other_cq).wr_id, 7u);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST_F(VerbsLives, DatagramOfAList_LargerThanThePathMtu_IsALocalError) {  // 9.8.3
  a = make_qp(IBV_QPT_UD);
  ASSERT_EQ(to_init(a), 0);
  ASSERT_EQ(to_rts(a, 0), 0);
  ibv_ah_attr way = path();
  ibv_ah* ah = ibv_create_ah(pd, &way);
  ASSERT_NE(ah, nullptr);
  ibv_port_attr port;
  ASSERT_EQ(ibv_query_port(context, 1, &port), 0);
  const uint32_t largest = 128u << port.active_mtu;
  for (const uint32_t bytes : {largest, largest + 1}) {
    ibv_sge list[] = {span(0, 96), span(4096, bytes - 96)};
    ibv_send_wr wr = request(IBV_WR_SEND, 1, list);
    wr.num_sge = 2;
    wr.wr.ud = {ah, a->qp_num, kQkey};
    ASSERT_EQ(post(a, wr), 0);
    EXPECT_EQ(next().status, bytes == largest ? IBV_WC_SUCCESS : IBV_WC_LOC_LEN_ERR);
  }
  EXPECT_EQ(state_of(a), IBV_QPS_SQE);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST_F(VerbsLives, DatagramToAConnectedQueuePairIsDropped) {  // 9.8.3: it is for another service
  ibv_qp_init_attr attr = init();
  attr.send_cq = attr.recv_cq = other_cq;
  b = keep(ibv_create_qp(pd, &attr));
  connect(b, b);
  ASSERT_EQ(receive(b, 7, 4096, 128), 0);
  a = make_qp(IBV_QPT_UD);
  ASSERT_EQ(to_init(a), 0);
  ASSERT_EQ(to_rts(a, 0), 0);
  ibv_ah_attr way = path();
  ibv_ah* ah = ibv_create_ah(pd, &way);
  ASSERT_NE(ah, nullptr);
  ibv_sge sge = span(0, 8);
  ibv_send_wr wr = request(IBV_WR_SEND, 1, &sge);
  wr.wr.ud = {ah, b->qp_num, 0};  // a connected queue pair has no Q_Key: zero
  ASSERT_EQ(post(a, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  catch_up();
  EXPECT_TRUE(stays_empty(other_cq));
  EXPECT_EQ(state_of(b), IBV_QPS_RTS);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST_F(VerbsLives, ListLongerThanTheQueuesLimit_IsRefused) {
  make_pair();
  ibv_qp_init_attr made{};
  ibv_qp_attr attr{};
  ASSERT_EQ(ibv_query_qp(a, &attr, 0, &made), 0);
  std::vector<ibv_sge> list(attr.cap.max_send_sge + 1, span(0, 8));
  ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, 1, list.data(), 4096);
  wr.num_sge = static_cast<int>(attr.cap.max_send_sge) + 1;
  EXPECT_EQ(post(a, wr), EINVAL);
  --wr.num_sge;
  EXPECT_EQ(post(a, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  ibv_qp_init_attr no_lists = init();
  no_lists.cap.max_send_sge = 0;
  ibv_qp* const empty = keep(ibv_create_qp(pd, &no_lists));
  connect(empty, empty);
  wr.num_sge = static_cast<int>(no_lists.cap.max_send_sge) + 1;
  EXPECT_EQ(post(empty, wr), EINVAL);
  --wr.num_sge;
  EXPECT_EQ(post(empty, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  wr.num_sge = static_cast<int>(attr.cap.max_send_sge);
  std::vector<ibv_sge> targets(attr.cap.max_recv_sge + 1, span(4096, 8));
  ibv_recv_wr recv{}, *bad = nullptr;
  recv.sg_list = targets.data();
  recv.num_sge = static_cast<int>(attr.cap.max_recv_sge) + 1;
  EXPECT_EQ(ibv_post_recv(b, &recv, &bad), EINVAL);
  EXPECT_EQ(bad, &recv);
  --recv.num_sge;
  EXPECT_EQ(ibv_post_recv(b, &recv, &bad), 0);
}

TEST_F(VerbsLives, InlineDataLongerThanTheQueuesLimit_IsRefused) {
  make_pair();
  const uint32_t room = attributes_of(a).cap.max_inline_data;
  std::memset(memory, 'x', room + 1);
  ibv_sge sge = span(0, room + 1);
  ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, 1, &sge, 8192);
  wr.send_flags |= IBV_SEND_INLINE;
  EXPECT_EQ(post(a, wr), EINVAL);
  sge.length = room;
  EXPECT_EQ(post(a, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(memory[8192 + room - 1], 'x');
  EXPECT_EQ(memory[8192 + room], 0);
  // It is for what is sent alone.
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP}) {
    sge.length = 8;
    wr = request(opcode, 1, &sge);
    wr.send_flags |= IBV_SEND_INLINE;
    EXPECT_EQ(post(a, wr), EINVAL) << opcode;
  }
  // Where a list has room, so have bytes, though the program asked for none.
  ibv_qp_init_attr none = init();
  none.cap.max_inline_data = 0;
  ASSERT_NE(keep(ibv_create_qp(pd, &none)), nullptr);
  EXPECT_GE(none.cap.max_inline_data, none.cap.max_send_sge * sizeof(ibv_sge));
}

TEST_F(VerbsLives, Receive_MessageFillsAllEntries_OneByteMoreFails) {
  for (const uint32_t bytes : {16u, 17u}) {
    make_pair();
    ibv_sge targets[] = {span(4096, 8), span(8192, 8)};
    ibv_recv_wr recv{}, *bad = nullptr;
    recv.sg_list = targets;
    recv.num_sge = 2;
    ASSERT_EQ(ibv_post_recv(b, &recv, &bad), 0);
    ibv_sge sge = span(0, bytes);
    ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);
    EXPECT_EQ(next().status, bytes == 16 ? IBV_WC_SUCCESS : IBV_WC_REM_INV_REQ_ERR);
    EXPECT_EQ(next(other_cq).status, bytes == 16 ? IBV_WC_SUCCESS : IBV_WC_LOC_LEN_ERR);
  }
}

TEST_F(VerbsLives, ListOfAWaitingRequest_Overwritten_DoesNotChangeTheRequest) {  // manual ibv_post_send
  make_pair();
  std::strcpy(memory, "one");
  std::strcpy(memory + 64, "two");
  {
    ibv_sge list[] = {span(0, 3), span(64, 4)};
    ibv_send_wr wr = request(IBV_WR_SEND, 1, list);
    wr.num_sge = 2;
    ASSERT_EQ(post(a, wr), 0);  // no receive is posted: it waits
    list[0] = list[1] = {0, 0, 0};
  }
  ASSERT_EQ(receive(b, 7, 4096, 64), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_STREQ(memory + 4096, "onetwo");
}

TEST_F(VerbsLives, CompletionOfARead_HasItsLength) {  // 11.4.2.1
  make_pair();
  ibv_sge sge = span(0, 100);
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_READ, 1, &sge, 4096)), 0);
  ibv_wc wc = next();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, 100u);
  EXPECT_EQ(wc.opcode, IBV_WC_RDMA_READ);
  ibv_sge list[] = {span(0, 10), span(64, 20)};
  ibv_send_wr wr = remote(IBV_WR_RDMA_READ, 2, list, 4096);
  wr.num_sge = 2;
  ASSERT_EQ(post(a, wr), 0);
  EXPECT_EQ(next().byte_len, 30u);
}

TEST_F(VerbsLives, ImmediateDataComesWithItsMessage) {
  make_pair();
  ibv_sge sge = span(0, 8);
  for (const uint32_t value : {0u, 0x12345678u}) {
    ASSERT_EQ(receive(b, 7, 4096, 64), 0);
    ibv_send_wr wr = request(IBV_WR_SEND_WITH_IMM, 1, &sge);
    wr.imm_data = htobe32(value);
    ASSERT_EQ(post(a, wr), 0);
    const ibv_wc wc = next(other_cq);
    EXPECT_NE(wc.wc_flags & IBV_WC_WITH_IMM, 0u);
    EXPECT_EQ(wc.imm_data, htobe32(value));
    EXPECT_EQ(wc.opcode, IBV_WC_RECV);
    EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  }
  ASSERT_EQ(receive(b, 8, 4096, 64), 0);
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);
  EXPECT_EQ(next(other_cq).wc_flags & IBV_WC_WITH_IMM, 0u);
}

TEST_F(VerbsLives, FailedRequest_FlushesTheReceives) {  // 10.3.1.7
  make_pair();
  for (uint64_t i = 10; i < 13; ++i) ASSERT_EQ(receive(a, i, 4096, 64), 0);
  ibv_sge wrong{address(0), 8, mr->lkey + 1};
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 1, &wrong, 4096)), 0);
  EXPECT_EQ(next().status, IBV_WC_LOC_PROT_ERR);
  for (uint64_t i = 10; i < 13; ++i) {
    const ibv_wc wc = next();
    EXPECT_EQ(wc.wr_id, i);
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  }
}

TEST_F(VerbsLives, XrcQueuePairIsOpenedInItsDomainOnly) {  // manual ibv_open_qp
  ibv_xrcd_init_attr attr{};
  attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  attr.fd = -1;
  attr.oflags = O_CREAT;
  ibv_xrcd* domain = ibv_open_xrcd(context, &attr);
  ibv_xrcd* other = ibv_open_xrcd(context, &attr);
  ASSERT_NE(other, nullptr);
  ibv_qp_init_attr_ex wanted{};
  wanted.qp_type = IBV_QPT_XRC_RECV;
  wanted.comp_mask = IBV_QP_INIT_ATTR_XRCD;
  wanted.xrcd = domain;
  ibv_qp* target = ibv_create_qp_ex(context, &wanted);
  ASSERT_NE(target, nullptr);
  ibv_qp* connected = make_qp();
  ibv_qp_open_attr open{};
  open.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  open.qp_type = IBV_QPT_XRC_RECV;
  open.qp_num = target->qp_num;
  open.xrcd = other;
  EXPECT_EQ(ibv_open_qp(context, &open), nullptr);
  EXPECT_EQ(errno, EINVAL);
  open.xrcd = domain;
  open.qp_num = connected->qp_num;
  EXPECT_EQ(ibv_open_qp(context, &open), nullptr);
  EXPECT_EQ(errno, EINVAL);
  open.qp_num = target->qp_num ^ 1u << 23;  // the number that the same queue pair would have in another process
  EXPECT_EQ(ibv_open_qp(context, &open), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  open.qp_num = target->qp_num;
  ibv_qp* handle = ibv_open_qp(context, &open);
  ASSERT_NE(handle, nullptr);
  EXPECT_EQ(handle->qp_num, target->qp_num);
  EXPECT_EQ(ibv_destroy_qp(target), EBUSY) << "another handle is open";
  EXPECT_EQ(ibv_close_xrcd(domain), EBUSY);
  EXPECT_EQ(ibv_destroy_qp(handle), 0);
  EXPECT_EQ(ibv_destroy_qp(target), 0);
  EXPECT_EQ(ibv_close_xrcd(domain), 0);
  EXPECT_EQ(ibv_close_xrcd(other), 0);
}

TEST_F(VerbsLives, DeviceMemory_AccessBeyondItsLength_IsRefused) {  // manual ibv_alloc_dm
  ibv_alloc_dm_attr attr{};
  attr.length = 64;
  ibv_dm* dm = ibv_alloc_dm(context, &attr);
  ASSERT_NE(dm, nullptr);
  char bytes[80] = {};
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 60, bytes, 4), 0);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 60, bytes, 8), EFAULT);
  EXPECT_EQ(ibv_memcpy_from_dm(bytes, dm, 0, 64), 0);
  EXPECT_EQ(ibv_memcpy_from_dm(bytes, dm, 0, 68), EFAULT);
  EXPECT_EQ(ibv_memcpy_from_dm(bytes, dm, 64, 4), EFAULT);
  const int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED;
  EXPECT_EQ(ibv_reg_dm_mr(pd, dm, 32, 33, rights), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_mr* region = ibv_reg_dm_mr(pd, dm, 32, 32, rights);
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(ibv_free_dm(dm), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(region), 0);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

TEST_F(VerbsLives, AdviseMr_RegionOfAnotherDomain_IsRefused) {  // manual ibv_advise_mr
  ibv_pd* foreign = ibv_alloc_pd(context);
  ASSERT_NE(foreign, nullptr);
  ibv_sge sge = span(0, 4096);
  EXPECT_EQ(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), 0);
  EXPECT_EQ(ibv_advise_mr(foreign, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EINVAL);
  sge.length = sizeof memory + 1;
  EXPECT_EQ(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EFAULT);
  sge.length = 8;
  sge.lkey ^= 1;
  EXPECT_EQ(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), ENOENT);
  ibv_mr* constant = reg(memory, 4096, IBV_ACCESS_REMOTE_READ);
  sge = {address(0), 8, constant->lkey};
  EXPECT_EQ(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &sge, 1), EPERM);
  EXPECT_EQ(ibv_dealloc_pd(foreign), 0);
}

TEST_F(VerbsLives, BadRequestIsNamedAndNothingBehindItIsPosted) {  // manual ibv_post_send
  make_pair();
  ibv_sge sge = span(0, 8);
  ibv_send_wr wrs[4];
  for (uint64_t i = 0; i < 4; ++i) wrs[i] = remote(IBV_WR_RDMA_WRITE, i, &sge, 4096 + 64 * i);
  for (int i = 0; i < 3; ++i) wrs[i].next = &wrs[i + 1];
  wrs[2].opcode = static_cast<ibv_wr_opcode>(99);
  std::memset(memory, 'x', 8);
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(a, wrs, &bad), EINVAL);
  EXPECT_EQ(bad, &wrs[2]);
  EXPECT_EQ(next().wr_id, 0u);
  EXPECT_EQ(next().wr_id, 1u);
  EXPECT_TRUE(stays_empty(cq));
  EXPECT_EQ(memory[4096 + 64 * 3], 0);
  for (const bool alone : {true, false}) {
    ibv_send_wr one = wrs[0], first = wrs[1];
    one.next = nullptr;
    one.send_flags |= IBV_SEND_IP_CSUM;
    first.next = &one;
    bad = nullptr;
    EXPECT_EQ(ibv_post_send(a, alone ? &one : &first, &bad), EINVAL);
    EXPECT_EQ(bad, &one);
    if (!alone) {
      EXPECT_EQ(next().wr_id, 1u);
    }
  }
}

TEST_F(VerbsLives, BuilderPostsAllOfARunWithinItsLimitsOrNothing) {  // manual ibv_wr_post
  a = make_builder_qp(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND);
  ASSERT_NE(a, nullptr);
  connect(a, a);
  ibv_qp_ex* builder = ibv_qp_to_qp_ex(a);
  const ibv_qp_attr attr = attributes_of(a);
  const auto complete = [&](auto set) {
    ibv_wr_start(builder);
    builder->wr_flags = IBV_SEND_SIGNALED;
    builder->wr_id = 4;  // nothing is wrong with this one
    ibv_wr_rdma_write(builder, mr->rkey, address(8192));
    ibv_wr_set_sge(builder, mr->lkey, address(0), 8);
    builder->wr_id = 5;
    ibv_wr_rdma_write(builder, mr->rkey, address(8192));
    set();
    return ibv_wr_complete(builder);
  };
  std::vector<ibv_sge> list(attr.cap.max_send_sge + 1, span(0, 8));
  EXPECT_EQ(complete([&] { ibv_wr_set_sge_list(builder, list.size(), list.data()); }), EINVAL);
  EXPECT_TRUE(stays_empty(cq)) << "all of the run or nothing";
  EXPECT_EQ(complete([&] { ibv_wr_set_sge_list(builder, list.size() - 1, list.data()); }), 0);
  for (const uint64_t id : {4, 5}) EXPECT_EQ(next().wr_id, id);
  EXPECT_EQ(complete([&] { ibv_wr_set_inline_data(builder, memory, attr.cap.max_inline_data + 1); }), EINVAL);
  EXPECT_TRUE(stays_empty(cq)) << "all of the run or nothing";
  EXPECT_EQ(complete([&] { ibv_wr_set_inline_data(builder, memory, attr.cap.max_inline_data); }), 0);
  for (const uint64_t id : {4, 5}) EXPECT_EQ(next().wr_id, id);
  EXPECT_TRUE(stays_empty(cq));
}

}  // namespace
}  // namespace nupa::test
