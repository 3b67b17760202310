// SPDX-License-Identifier: Apache-2.0
/// A queue pair after RESET: nothing of its earlier use is left (IBTA 10.3.1.1).
#include "fixture.h"
#include "lives.h"

namespace nupa::test {
namespace {

TEST_F(VerbsLives, Reset_SendQueue_IsEmpty) {
  ibv_qp_init_attr attr = init();
  attr.cap.max_send_wr = 4;
  a = keep(ibv_create_qp(pd, &attr));
  b = make_qp();
  connect(a, b);
  for (int life = 0; life < 3; ++life) {
    // Half of it completes without being told, half of it waits for a receive.
    ibv_sge sge = span(0, 8);
    ibv_send_wr quiet = remote(IBV_WR_RDMA_WRITE, 1, &sge, 4096);
    quiet.send_flags = 0;
    for (uint32_t i = 0; i < attr.cap.max_send_wr; ++i)
      ASSERT_EQ(post(a, i < 2 ? quiet : request(IBV_WR_SEND, 2, &sge)), 0) << life << " " << i;
    EXPECT_EQ(post(a, request(IBV_WR_SEND, 2, &sge)), ENOMEM);
    connect_again(a, b);
  }
  EXPECT_TRUE(stays_empty(cq));
}

TEST_F(VerbsLives, NumberThatIsUsedAgain_CountsForItsNewQueuePair) {
  ibv_qp_init_attr attr = init();
  attr.cap.max_send_wr = 4;
  ibv_qp* first = ibv_create_qp(pd, &attr);
  ASSERT_NE(first, nullptr);
  ibv_qp* const peer = make_qp();
  connect(first, peer);
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(first, remote(IBV_WR_RDMA_WRITE, 1, &sge, 4096)), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  const uint32_t number = first->qp_num;
  ASSERT_EQ(ibv_destroy_qp(first), 0);
  // Numbers come back when all others of the process's first place on the host have been used.
  constexpr int kNumbers = 4096;
  ibv_qp* again = nullptr;
  for (int tries = 0; tries < kNumbers && again == nullptr; ++tries) {
    again = ibv_create_qp(pd, &attr);
    ASSERT_NE(again, nullptr);
    if (again->qp_num != number) {
      ASSERT_EQ(ibv_destroy_qp(std::exchange(again, nullptr)), 0);
    }
  }
  ASSERT_NE(again, nullptr) << "no number was used again";
  keep(again);
  connect(again, make_qp());
  for (uint32_t i = 0; i < 3 * attr.cap.max_send_wr; ++i) {
    ASSERT_EQ(post(again, remote(IBV_WR_RDMA_WRITE, 2, &sge, 4096)), 0) << i;
    EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  }
}

TEST_F(VerbsLives, Reset_ReceiveQueue_IsEmpty) {
  ibv_qp_init_attr attr = init();
  attr.cap.max_recv_wr = 4;
  attr.send_cq = attr.recv_cq = other_cq;
  b = keep(ibv_create_qp(pd, &attr));
  a = make_qp();
  connect(a, b);
  for (int life = 0; life < 3; ++life) {
    for (uint32_t i = 0; i < attr.cap.max_recv_wr; ++i) ASSERT_EQ(receive(b, 10 + i, 4096, 64), 0) << life;
    EXPECT_EQ(receive(b, 99, 4096, 64), ENOMEM);
    // One is filled, and its completion never polled.
    ibv_sge sge = span(0, 8);
    ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);
    EXPECT_EQ(next().status, IBV_WC_SUCCESS);
    connect_again(a, b);
    EXPECT_TRUE(stays_empty(other_cq));
  }
}

TEST_F(VerbsLives, Reset_WaitingRequests_AreDropped) {
  make_pair();
  ibv_sge sge = span(0, 8);
  for (uint64_t life = 1; life <= 3; ++life) {
    ASSERT_EQ(post(a, request(IBV_WR_SEND, life, &sge)), 0);  // no receive is posted: it waits
    EXPECT_TRUE(stays_empty(cq));
    if (life < 3) connect_again(a, b);
  }
  ASSERT_EQ(receive(b, 7, 4096, 64), 0);
  ASSERT_EQ(receive(b, 8, 4096, 64), 0);
  EXPECT_EQ(next().wr_id, 3u);
  EXPECT_EQ(next(other_cq).wr_id, 7u);
  EXPECT_TRUE(stays_empty(other_cq));
  EXPECT_TRUE(stays_empty(cq));
}

TEST_F(VerbsLives, Reset_CompletionsOfReceives_AreRemoved) {
  ibv_qp_init_attr attr = init();
  attr.send_cq = cq;
  attr.recv_cq = other_cq;
  b = keep(ibv_create_qp(pd, &attr));
  a = make_qp();
  connect(a, b);
  ASSERT_EQ(receive(b, 7, 4096, 64), 0);
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);
  EXPECT_EQ(next().wr_id, 1u);
  ASSERT_EQ(move(b, IBV_QPS_RESET), 0);
  EXPECT_TRUE(stays_empty(other_cq));
}

TEST_F(VerbsLives, Reset_Attributes_AreCleared) {
  make_pair();
  EXPECT_EQ(attributes_of(a).dest_qp_num, b->qp_num);
  EXPECT_EQ(attributes_of(a).retry_cnt, 7);
  ASSERT_EQ(move(a, IBV_QPS_RESET), 0);
  const ibv_qp_attr fresh = attributes_of(a);
  EXPECT_EQ(fresh.dest_qp_num, 0u);
  EXPECT_EQ(fresh.retry_cnt, 0);
  EXPECT_EQ(fresh.timeout, 0);
  EXPECT_EQ(fresh.qp_access_flags, 0u);
  EXPECT_EQ(fresh.max_rd_atomic, 0);
}

TEST_F(VerbsLives, LastWqeReached_AfterEachReset_IsReportedAgain) {  // 11.6.3.1, LAST_WQE_REACHED
  ibv_srq_init_attr srq_attr{};
  srq_attr.attr = {8, 1, 0};
  srq = ibv_create_srq(pd, &srq_attr);
  ASSERT_NE(srq, nullptr);
  make_pair();
  EXPECT_EQ(ibv_destroy_srq(srq), EBUSY);
  for (int life = 0; life < 2; ++life) {
    ASSERT_EQ(move(b, IBV_QPS_ERR), 0);
    EXPECT_EQ(next_event().event_type, IBV_EVENT_QP_LAST_WQE_REACHED) << life;
    ASSERT_EQ(move(b, IBV_QPS_ERR), 0);
    EXPECT_EQ(next_event(5).event_type, kNoEvent) << "once in a life";
    connect_again(b, a);
  }
}

TEST_F(VerbsLives, Reset_RemovedCompletions_FreeTheirSharedReceives) {
  ibv_srq_init_attr srq_attr{};
  srq_attr.attr = {4, 1, 0};
  srq = ibv_create_srq(pd, &srq_attr);
  ASSERT_NE(srq, nullptr);
  make_pair();
  ibv_sge to = span(4096, 64);
  ibv_recv_wr recv{}, *bad = nullptr;
  recv.sg_list = &to;
  recv.num_sge = 1;
  for (int life = 0; life < 3; ++life) {
    for (uint32_t i = 0; i < srq_attr.attr.max_wr; ++i) ASSERT_EQ(ibv_post_srq_recv(srq, &recv, &bad), 0) << life;
    EXPECT_EQ(ibv_post_srq_recv(srq, &recv, &bad), ENOMEM);
    ibv_sge sge = span(0, 8);
    for (uint32_t i = 0; i < srq_attr.attr.max_wr; ++i) {
      ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);
      EXPECT_EQ(next().status, IBV_WC_SUCCESS);
    }
    connect_again(a, b);  // nobody polled the four completions
    EXPECT_TRUE(stays_empty(other_cq));
  }
}

TEST_F(VerbsLives, Draining_Ended_RunsTheRequestsThatWaited) {  // 10.3.1.5
  ibv_comp_channel* channel = ibv_create_comp_channel(context);
  ASSERT_NE(channel, nullptr);
  ibv_cq* watched = ibv_create_cq(context, 16, nullptr, channel, 0);
  ibv_qp_init_attr attr = init();
  attr.send_cq = attr.recv_cq = watched;
  ibv_qp* qp = ibv_create_qp(pd, &attr);
  connect(qp, qp);
  ASSERT_EQ(move(qp, IBV_QPS_SQD), 0);
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(qp, remote(IBV_WR_RDMA_WRITE, 1, &sge, 4096)), 0);
  ASSERT_EQ(ibv_req_notify_cq(watched, 0), 0);
  ASSERT_EQ(move(qp, IBV_QPS_RTS), 0);
  EXPECT_TRUE(becomes_readable(channel)) << "a program that sleeps is not woken";
  ibv_cq* from = nullptr;
  void* tag = nullptr;
  ASSERT_EQ(ibv_get_cq_event(channel, &from, &tag), 0);
  ibv_ack_cq_events(watched, 1);
  EXPECT_EQ(next(watched).wr_id, 1u);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(watched), 0);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

TEST_F(VerbsLives, Drained_AskedForTwice_IsReportedTwice) {  // 11.6.3.1
  make_pair();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_SQD;
  for (const uint8_t asked : {0, 1, 0, 1}) {
    attr.en_sqd_async_notify = asked;
    ASSERT_EQ(ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
    EXPECT_EQ(next_event(asked != 0 ? 10000 : 5).event_type, asked != 0 ? IBV_EVENT_SQ_DRAINED : kNoEvent);
    EXPECT_EQ(next_event(5).event_type, kNoEvent);
    ASSERT_EQ(move(a, IBV_QPS_RTS), 0);
  }
}

TEST_F(VerbsLives, CommunicationEstablished_BothReadyToSend_IsNotReported) {  // 11.6.3.1: it is for those in RTR
  make_pair();
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 1, &sge, 4096)), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(next_event(5).event_type, kNoEvent);
}

TEST_F(VerbsLives, SharedQueueLimit_FewerReceivesPosted_IsReportedAtOnce) {  // 10.2.9.4
  ibv_srq_init_attr srq_attr{};
  srq_attr.attr = {8, 1, 0};
  srq = ibv_create_srq(pd, &srq_attr);
  ASSERT_NE(srq, nullptr);
  ibv_recv_wr recv{}, *bad = nullptr;
  for (int i = 0; i < 3; ++i) ASSERT_EQ(ibv_post_srq_recv(srq, &recv, &bad), 0);
  ibv_srq_attr attr{};
  for (const uint32_t limit : {3u, 4u}) {
    attr.srq_limit = limit;
    ASSERT_EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
    EXPECT_EQ(next_event(limit == 4 ? 10000 : 5).event_type, limit == 4 ? IBV_EVENT_SRQ_LIMIT_REACHED : kNoEvent);
  }
  ASSERT_EQ(ibv_query_srq(srq, &attr), 0);
  EXPECT_EQ(attr.srq_limit, 0u) << "it is told once";
  attr.srq_limit = srq_attr.attr.max_wr + 1;
  EXPECT_EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), EINVAL);
}

TEST_F(VerbsLives, DomainAndQueues_OfAQueuePair_AreNotDestroyed) {
  make_pair();
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(cq), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(other_cq), EBUSY);
}

TEST_F(VerbsLives, MemberOfAGroupIsNotDestroyed) {  // 10.5
  ibv_qp* qp = make_qp(IBV_QPT_UD);
  ASSERT_EQ(to_init(qp), 0);
  ASSERT_EQ(to_rts(qp, 0), 0);
  ibv_gid group{};
  group.raw[10] = group.raw[11] = 0xff;  // 239.1.1.9
  group.raw[12] = 239;
  group.raw[13] = group.raw[14] = 1;
  group.raw[15] = 9;
  ASSERT_EQ(ibv_attach_mcast(qp, &group, 0), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), EBUSY);
  EXPECT_EQ(ibv_detach_mcast(qp, &group, 0), 0);
  EXPECT_EQ(ibv_detach_mcast(qp, &group, 0), EINVAL) << "it is no member any more";
}

}  // namespace
}  // namespace nupa::test
