// SPDX-License-Identifier: Apache-2.0
/// States of a queue pair (IBTA 10.3.1): draining, flushing, queried attributes, events.
#include <algorithm>
#include <string>

#include "fixture.h"

namespace nupa::test {
namespace {

class VerbsStates : public VerbsPair {};

/// Without congestion control, what is posted together leaves together.
class VerbsStatesUnpaced : public VerbsPair {
 protected:
  void SetUp() override {
    const char* found = std::getenv("NUPA_CONGESTION");
    const std::string before = found == nullptr ? "" : found;
    setenv("NUPA_CONGESTION", "none", 1);
    VerbsPair::SetUp();
    before.empty() ? unsetenv("NUPA_CONGESTION") : setenv("NUPA_CONGESTION", before.c_str(), 1);
  }
};

TEST_F(VerbsStates, QueryQp_ReturnsTheAttributesThatWereSet) {  // 11.2.5.3
  qp_access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  a = make_qp();
  ASSERT_EQ(to_init(a), 0);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = a->qp_num;
  attr.rq_psn = 0xabcdef;
  attr.max_dest_rd_atomic = 5;
  attr.min_rnr_timer = 9;
  attr.ah_attr = path();
  attr.ah_attr.sl = 3;
  attr.ah_attr.grh.flow_label = 0x12345;
  attr.ah_attr.grh.traffic_class = 0x67;
  attr.ah_attr.grh.hop_limit = 9;
  ASSERT_EQ(ibv_modify_qp(a, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
            0);
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = 0x123456;
  attr.timeout = 13;
  attr.retry_cnt = 5;
  attr.rnr_retry = 6;
  attr.max_rd_atomic = 4;
  ASSERT_EQ(ibv_modify_qp(a, &attr,
                          IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_MAX_QP_RD_ATOMIC),
            0);
  ibv_qp_attr now{};
  ibv_qp_init_attr made{};
  ASSERT_EQ(ibv_query_qp(a, &now, IBV_QP_STATE, &made), 0);
  EXPECT_EQ(now.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(now.cur_qp_state, IBV_QPS_RTS);
  EXPECT_EQ(now.path_mtu, IBV_MTU_1024);
  EXPECT_EQ(now.path_mig_state, IBV_MIG_MIGRATED);
  EXPECT_EQ(now.rq_psn, 0xabcdefu);
  EXPECT_EQ(now.sq_psn, 0x123456u);
  EXPECT_EQ(now.dest_qp_num, a->qp_num);
  EXPECT_EQ(now.qp_access_flags, qp_access);
  EXPECT_EQ(now.port_num, 1);
  EXPECT_EQ(now.pkey_index, 0);
  EXPECT_EQ(now.max_dest_rd_atomic, 5);
  EXPECT_EQ(now.max_rd_atomic, 4);
  EXPECT_EQ(now.min_rnr_timer, 9);
  EXPECT_EQ(now.timeout, 13);
  EXPECT_EQ(now.retry_cnt, 5);
  EXPECT_EQ(now.rnr_retry, 6);
  EXPECT_EQ(now.sq_draining, 0);
  EXPECT_EQ(now.ah_attr.is_global, 1);
  EXPECT_EQ(now.ah_attr.sl, 3);
  EXPECT_EQ(now.ah_attr.port_num, 1);
  EXPECT_EQ(now.ah_attr.grh.flow_label, 0x12345u);
  EXPECT_EQ(now.ah_attr.grh.traffic_class, 0x67);
  EXPECT_EQ(now.ah_attr.grh.hop_limit, 9);
  EXPECT_EQ(std::memcmp(&now.ah_attr.grh.dgid, &attr.ah_attr.grh.dgid, 16), 0);
  EXPECT_EQ(now.cap.max_send_wr, made.cap.max_send_wr);
  EXPECT_EQ(now.alt_timeout, 0);  // there is no second path
}

TEST_F(VerbsStates, ModifyQp_BitsAboveTheFieldsOfTheWire_AreIgnored) {
  a = make_qp();
  ASSERT_EQ(to_init(a), 0);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = a->qp_num;
  attr.rq_psn = 0x12345678;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = 0x21;
  attr.ah_attr = path();
  ASSERT_EQ(ibv_modify_qp(a, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
            0);
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = 0x9a345678;
  attr.timeout = 14;
  attr.retry_cnt = 0x1f;
  attr.rnr_retry = 0x0f;
  attr.max_rd_atomic = 1;
  ASSERT_EQ(ibv_modify_qp(a, &attr,
                          IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_MAX_QP_RD_ATOMIC),
            0);
  ibv_qp_attr now{};
  ibv_qp_init_attr made{};
  ASSERT_EQ(ibv_query_qp(a, &now, IBV_QP_STATE, &made), 0);
  EXPECT_EQ(now.rq_psn, 0x345678u);
  EXPECT_EQ(now.sq_psn, 0x345678u);
  EXPECT_EQ(now.min_rnr_timer, 1);
  EXPECT_EQ(now.retry_cnt, 7);
  EXPECT_EQ(now.rnr_retry, 7);
  // The numbers of both directions are the same ones, so the queue pair reaches itself.
  ASSERT_EQ(receive(a, 1, 64, 8), 0);
  ibv_sge local = span(0, 8);
  std::strcpy(memory, "numbers");
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 2, &local)), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_STREQ(memory + 64, "numbers");
}

TEST_F(VerbsStates, ModifyQp_AlternatePath_IsRefused) {  // automatic path migration is not offered
  make_pair();
  ibv_qp_attr attr{};
  attr.alt_ah_attr = path();
  attr.alt_port_num = 1;
  EXPECT_EQ(ibv_modify_qp(a, &attr, IBV_QP_ALT_PATH), EINVAL);
  attr.path_mig_state = IBV_MIG_REARM;
  EXPECT_EQ(ibv_modify_qp(a, &attr, IBV_QP_PATH_MIG_STATE), EINVAL);
  attr.path_mig_state = IBV_MIG_ARMED;
  EXPECT_EQ(ibv_modify_qp(a, &attr, IBV_QP_PATH_MIG_STATE), EINVAL);
  attr.path_mig_state = IBV_MIG_MIGRATED;
  EXPECT_EQ(ibv_modify_qp(a, &attr, IBV_QP_PATH_MIG_STATE), 0);
  attr.rate_limit = 5;
  EXPECT_EQ(ibv_modify_qp(a, &attr, IBV_QP_RATE_LIMIT), EINVAL);
  EXPECT_EQ(ibv_modify_qp(a, &attr, IBV_QP_CAP), EINVAL);  // RESIZE_MAX_WR is not advertised
  EXPECT_EQ(state_of(a), IBV_QPS_RTS);
}

TEST_F(VerbsStates, Draining_DefersRequestsAndIsReported) {  // 10.3.1.5, 11.6.3.1
  make_pair();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_SQD;
  attr.en_sqd_async_notify = 1;
  ASSERT_EQ(ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  const ibv_async_event event = next_event();
  EXPECT_EQ(event.event_type, IBV_EVENT_SQ_DRAINED);
  EXPECT_EQ(event.element.qp, a);
  std::strcpy(memory, "held");
  ibv_sge sge = span(0, 8);
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, i, &sge, 4096)), 0);
  EXPECT_TRUE(stays_empty(cq));
  EXPECT_EQ(memory[4096], 0);
  // Receiving goes on.
  ASSERT_EQ(receive(a, 7, 8192, 64), 0);
  ASSERT_EQ(post(b, request(IBV_WR_SEND, 8, &sge)), 0);
  EXPECT_EQ(next().wr_id, 7u);
  ASSERT_EQ(move(a, IBV_QPS_RTS), 0);
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_EQ(next().wr_id, i);
  EXPECT_STREQ(memory + 4096, "held");
  // Without the request for it no event comes.
  ASSERT_EQ(move(a, IBV_QPS_SQD), 0);
  EXPECT_EQ(next_event(20).event_type, kNoEvent);
}

TEST_F(VerbsStates, Draining_RequestWaitsForAReceive_IsReportedAfterIt) {  // 10.3.1.5
  make_pair();
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);  // no receive yet
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 2, &sge)), 0);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_SQD;
  attr.en_sqd_async_notify = 1;
  ASSERT_EQ(ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  EXPECT_EQ(next_event(20).event_type, kNoEvent);
  ibv_qp_init_attr made{};
  ASSERT_EQ(ibv_query_qp(a, &attr, IBV_QP_STATE, &made), 0);
  EXPECT_EQ(attr.sq_draining, 1);
  ASSERT_EQ(receive(b, 11, 8192, 64), 0);
  ASSERT_EQ(receive(b, 12, 8256, 64), 0);
  EXPECT_EQ(next().wr_id, 1u);
  EXPECT_EQ(next_event().event_type, IBV_EVENT_SQ_DRAINED);
  // What has begun ends too; on the wire the second one's packet may have left with the first one's.
  ibv_wc wc{};
  const bool both = sends_packets() && ibv_poll_cq(cq, 1, &wc) == 1;
  EXPECT_TRUE(stays_empty(cq)) << "the second has not begun";
  ASSERT_EQ(ibv_query_qp(a, &attr, IBV_QP_STATE, &made), 0);
  EXPECT_EQ(attr.sq_draining, 0);
  ASSERT_EQ(move(a, IBV_QPS_RTS), 0);
  if (!both) wc = next();
  EXPECT_EQ(wc.wr_id, 2u);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
}

TEST_F(VerbsStatesUnpaced, Draining_TwoRequestsUnderWay_IsReportedAfterTheSecond) {  // 10.3.1.5, 11.6.3.1
  // Timeout 0: the requests wait without limit.
  timeout = 0;
  make_pair();
  ibv_sge sge = span(0, 8);
  // Once the two ends know each other, a refused packet does not take back those behind it.
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 9, &sge, 4096)), 0);
  EXPECT_EQ(next().wr_id, 9u);
  ibv_send_wr first = request(IBV_WR_SEND, 1, &sge), second = request(IBV_WR_SEND, 2, &sge), *bad = nullptr;
  first.next = &second;
  ASSERT_EQ(ibv_post_send(a, &first, &bad), 0);  // no receive yet
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_SQD;
  attr.en_sqd_async_notify = 1;
  ASSERT_EQ(ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  ASSERT_EQ(receive(b, 11, 8192, 64), 0);
  EXPECT_EQ(next().wr_id, 1u);
  ASSERT_EQ(move(a, IBV_QPS_SQD), 0);  // after the thread that completed it has let go of the queue pair
  // Without packets the second request has not begun.
  EXPECT_EQ(next_event(0).event_type, sends_packets() ? kNoEvent : IBV_EVENT_SQ_DRAINED);
  if (!sends_packets()) return;
  ASSERT_EQ(receive(b, 12, 8256, 64), 0);
  EXPECT_EQ(next().wr_id, 2u);
  EXPECT_EQ(next_event().event_type, IBV_EVENT_SQ_DRAINED);
}

TEST_F(VerbsStates, CommunicationEstablished_IsReportedOnce) {  // 11.6.3.1
  a = make_qp();
  b = make_qp();
  ASSERT_EQ(to_init(a), 0);
  ASSERT_EQ(to_init(b), 0);
  ASSERT_EQ(to_rts(a, b->qp_num, true), 0);  // ready to receive only
  ASSERT_EQ(to_rts(b, a->qp_num), 0);
  ibv_sge sge = span(0, 8);
  // The request has come, although no receive is there for it.
  ASSERT_EQ(post(b, request(IBV_WR_SEND, 11, &sge)), 0);
  const ibv_async_event event = next_event();
  EXPECT_EQ(event.event_type, IBV_EVENT_COMM_EST);
  EXPECT_EQ(event.element.qp, a);
  ASSERT_EQ(post(b, request(IBV_WR_SEND, 12, &sge)), 0);
  for (uint64_t i = 1; i <= 2; ++i) ASSERT_EQ(receive(a, i, 8192, 64), 0);
  EXPECT_EQ(next_event(20).event_type, kNoEvent);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(next().status, IBV_WC_SUCCESS);
}

TEST_F(VerbsStates, ErrorState_FlushesInPostingOrder) {  // 10.3.1.7
  make_pair();
  ibv_sge sge = span(0, 8);
  // The first waits for a receive, the others behind it.
  for (uint64_t i = 1; i <= 5; ++i) ASSERT_EQ(post(a, request(IBV_WR_SEND, i, &sge)), 0);
  for (uint64_t i = 11; i <= 15; ++i) ASSERT_EQ(receive(a, i, 4096, 64), 0);
  ASSERT_EQ(move(a, IBV_QPS_ERR), 0);
  uint64_t last_send = 0, last_receive = 10;
  for (int i = 0; i < 10; ++i) {
    const ibv_wc wc = next();
    ASSERT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    uint64_t& last = wc.wr_id > 10 ? last_receive : last_send;
    EXPECT_EQ(wc.wr_id, last + 1);
    last = wc.wr_id;
  }
  // What is posted from now on is flushed at once.
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 6, &sge)), 0);
  EXPECT_EQ(next().status, IBV_WC_WR_FLUSH_ERR);
  ASSERT_EQ(receive(a, 16, 4096, 64), 0);
  EXPECT_EQ(next().wr_id, 16u);
}

TEST_F(VerbsStates, Reset_DropsRequestsWithoutCompletions) {  // 10.3.1.1
  make_pair();
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);
  ASSERT_EQ(receive(a, 11, 4096, 64), 0);
  ASSERT_EQ(post(b, request(IBV_WR_SEND, 3, &sge)), 0);
  EXPECT_EQ(next(other_cq).status, IBV_WC_SUCCESS);  // so the receive's completion waits in the queue
  ASSERT_EQ(receive(a, 12, 4096, 64), 0);
  ASSERT_EQ(move(a, IBV_QPS_RESET), 0);
  EXPECT_TRUE(stays_empty(cq));
  connect(a, a);  // and begins anew
  ASSERT_EQ(receive(a, 13, 4096, 64), 0);
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 2, &sge)), 0);
  uint64_t both = next().wr_id;
  both += next().wr_id;
  EXPECT_EQ(both, 15u);
  // What is destroyed leaves nothing behind either.
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 4, &sge, 4096)), 0);
  qps.erase(std::find(qps.begin(), qps.end(), a));
  ASSERT_EQ(ibv_destroy_qp(a), 0);
  EXPECT_TRUE(stays_empty(cq));
}

TEST_F(VerbsStates, LastWqeReached_OfASharedQueue_IsReported) {  // 11.6.3.1, LAST_WQE_REACHED
  ibv_srq_init_attr srq_attr{};
  srq_attr.attr = {8, 1, 0};
  srq = ibv_create_srq(pd, &srq_attr);
  ASSERT_NE(srq, nullptr);
  make_pair();
  EXPECT_EQ(receive(b, 1, 4096, 64), EINVAL);  // its receives come from the shared queue
  ASSERT_EQ(move(b, IBV_QPS_ERR), 0);
  const ibv_async_event event = next_event();
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
  EXPECT_EQ(event.element.qp, b);
  EXPECT_EQ(next_event(20).event_type, kNoEvent);
  EXPECT_TRUE(stays_empty(other_cq));
}

TEST_F(VerbsStates, SharedQueue_ReceivesAreConsumedInOrder) {
  ibv_srq_init_attr srq_attr{};
  srq_attr.attr = {8, 1, 0};
  srq = ibv_create_srq(pd, &srq_attr);
  ASSERT_NE(srq, nullptr);
  make_pair();
  ibv_sge to = span(4096, 64);
  ibv_recv_wr recv{}, *bad = nullptr;
  recv.sg_list = &to;
  recv.num_sge = 1;
  for (recv.wr_id = 1; recv.wr_id <= 8; ++recv.wr_id) ASSERT_EQ(ibv_post_srq_recv(srq, &recv, &bad), 0);
  ibv_srq_attr attr{};
  attr.srq_limit = 8;
  ASSERT_EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
  EXPECT_EQ(next_event(20).event_type, kNoEvent);  // as many as the limit are not below it
  attr.srq_limit = 4;
  ASSERT_EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
  ibv_sge sge = span(0, 8);
  for (uint64_t i = 1; i <= 4; ++i) {
    ASSERT_EQ(post(a, request(IBV_WR_SEND, i, &sge)), 0);
    EXPECT_EQ(next(other_cq).wr_id, i);
  }
  EXPECT_EQ(next_event(20).event_type, kNoEvent);  // 4 are left: not below the limit
  for (uint64_t i = 5; i <= 7; ++i) ASSERT_EQ(post(a, request(IBV_WR_SEND, i, &sge)), 0);
  EXPECT_EQ(next_event().event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
  EXPECT_EQ(next_event(20).event_type, kNoEvent);  // once
}

TEST_F(VerbsStates, ReadyToReceive_Message_IsReceived) {  // 10.3.1.3: receives are served from RTR on
  a = make_qp();
  ibv_qp_init_attr attr = init();
  attr.send_cq = attr.recv_cq = other_cq;
  b = keep(ibv_create_qp(pd, &attr));
  ASSERT_EQ(to_init(a), 0);
  ASSERT_EQ(to_init(b), 0);
  ASSERT_EQ(receive(b, 7, 4096, 64), 0);  // 10.8.2: may be posted from INIT on
  ASSERT_EQ(to_rts(b, a->qp_num, true), 0);
  ASSERT_EQ(to_rts(a, b->qp_num), 0);
  ibv_sge sge = span(0, 8);
  EXPECT_EQ(post(b, request(IBV_WR_SEND, 1, &sge)), EINVAL);
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);
  EXPECT_EQ(next(other_cq).wr_id, 7u);
  EXPECT_EQ(state_of(b), IBV_QPS_RTR);
}

TEST_F(VerbsStates, Request_PeerNotReadyToReceive_WaitsForIt) {
  a = make_qp();
  ibv_qp_init_attr attr = init();
  attr.send_cq = attr.recv_cq = other_cq;
  b = keep(ibv_create_qp(pd, &attr));
  ASSERT_EQ(to_init(a), 0);
  ASSERT_EQ(to_init(b), 0);
  ASSERT_EQ(to_rts(a, b->qp_num), 0);
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 1, &sge, 4096)), 0);
  EXPECT_TRUE(stays_empty(cq));
  ASSERT_EQ(to_rts(b, a->qp_num), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
}

TEST_F(VerbsStates, Draining_ErrorState_EndsTheDraining) {  // 11.2.5.3: a queue pair drains in SQD
  make_pair();
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), 0);  // no receive
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_SQD;
  attr.en_sqd_async_notify = 1;
  ASSERT_EQ(ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  ibv_qp_init_attr made{};
  ASSERT_EQ(ibv_query_qp(a, &attr, IBV_QP_STATE, &made), 0);
  EXPECT_EQ(attr.sq_draining, 1);
  ASSERT_EQ(move(a, IBV_QPS_ERR), 0);
  ASSERT_EQ(ibv_query_qp(a, &attr, IBV_QP_STATE, &made), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_ERR);
  EXPECT_EQ(attr.sq_draining, 0);
  EXPECT_EQ(next().status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(next_event(0).event_type, kNoEvent) << "it has failed, not drained";
}

TEST_F(VerbsStates, ModifyQp_NoRoute_ChangesNothing) {  // 11.2.5.2
  a = make_qp();
  ASSERT_EQ(to_init(a), 0);
  ibv_qp_attr before{};
  ibv_qp_init_attr made{};
  ASSERT_EQ(ibv_query_qp(a, &before, IBV_QP_STATE, &made), 0);
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(context, 1, &port), 0);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = a->qp_num;
  attr.rq_psn = 7;
  attr.max_dest_rd_atomic = 5;
  attr.min_rnr_timer = 9;
  attr.ah_attr = path();
  attr.ah_attr.grh.dgid.raw[15] ^= 0x55;                                     // of another host
  attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(port.gid_tbl_len - 1);  // an entry that is empty
  EXPECT_NE(ibv_modify_qp(a, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | IBV_QP_ACCESS_FLAGS),
            0);
  ibv_qp_attr now{};
  ASSERT_EQ(ibv_query_qp(a, &now, IBV_QP_STATE, &made), 0);
  EXPECT_EQ(now.qp_state, IBV_QPS_INIT);
  EXPECT_EQ(std::memcmp(&now, &before, sizeof now), 0);
  // The rights that were refused do not hold for the next connection.
  ASSERT_EQ(to_rts(a, a->qp_num), 0);
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 1, &sge, 4096)), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
}

}  // namespace
}  // namespace nupa::test
