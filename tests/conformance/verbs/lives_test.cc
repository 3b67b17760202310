// SPDX-License-Identifier: Apache-2.0
/// What a queue pair's next life has of the last one (IBTA 10.3.1.1: nothing), limits that are exact, and who is in use
/// by whom.
#ifdef NUPA_TEST_DROPIN
#include <fcntl.h>
#include <sys/mman.h>

#include "fixture.h"

namespace nupa::test {
namespace {

class VerbsLives : public VerbsPair {
 protected:
  void connect_again(ibv_qp* one, ibv_qp* other) {
    ASSERT_EQ(move(one, IBV_QPS_RESET), 0);
    ASSERT_EQ(move(other, IBV_QPS_RESET), 0);
    connect(one, other);
  }
  ibv_qp_attr attributes_of(ibv_qp* qp) {
    ibv_qp_attr attr{};
    ibv_qp_init_attr made{};
    EXPECT_EQ(ibv_query_qp(qp, &attr, 0, &made), 0);
    return attr;
  }
};

TEST_F(VerbsLives, SendQueueIsEmptyAfterReset) {
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

TEST_F(VerbsLives, ReceiveQueueIsEmptyAfterReset) {
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

TEST_F(VerbsLives, WaitingRequestsGoWithTheirLife) {
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

TEST_F(VerbsLives, CompletionsOfReceivesGoWithTheirLife) {
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

TEST_F(VerbsLives, AttributesGoWithTheirLife) {
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

TEST_F(VerbsLives, LastReceiveOfASharedQueueIsToldInEachLife) {  // 11.6.3.1, LAST_WQE_REACHED
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

TEST_F(VerbsLives, ThrownAwayCompletionMakesRoomInItsSharedQueue) {
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

TEST_F(VerbsLives, RequestsHeldBackRunWithoutAnotherCall) {  // 10.3.1.5
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

TEST_F(VerbsLives, DrainedIsToldOnceForEachTimeItIsAskedFor) {  // 11.6.3.1
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

TEST_F(VerbsLives, EstablishmentIsNotToldWhereBothAreReady) {  // 11.6.3.1: it is for those in RTR
  make_pair();
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 1, &sge, 4096)), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(next_event(5).event_type, kNoEvent);
}

TEST_F(VerbsLives, SharedQueueLimitIsToldAtOnceWhereFewerAreThere) {  // 10.2.9.4
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

TEST_F(VerbsLives, QueuePairKeepsItsDomainAndItsQueues) {
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

TEST_F(VerbsLives, DatagramKeyChangesWhileConnected) {  // 11.2.5.2, RTS to RTS
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

TEST_F(VerbsLives, DatagramOfAListIsOnePacketToo) {  // 9.8.3
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

TEST_F(VerbsLives, ListsHaveAsManyEntriesAsTheQueueWasMadeFor) {
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
  std::vector<ibv_sge> targets(attr.cap.max_recv_sge + 1, span(4096, 8));
  ibv_recv_wr recv{}, *bad = nullptr;
  recv.sg_list = targets.data();
  recv.num_sge = static_cast<int>(attr.cap.max_recv_sge) + 1;
  EXPECT_EQ(ibv_post_recv(b, &recv, &bad), EINVAL);
  EXPECT_EQ(bad, &recv);
  --recv.num_sge;
  EXPECT_EQ(ibv_post_recv(b, &recv, &bad), 0);
}

TEST_F(VerbsLives, InlineDataHasAsManyBytesAsTheQueueWasMadeFor) {
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

TEST_F(VerbsLives, ReceiveHasRoomInAllItsEntries) {
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

TEST_F(VerbsLives, ListOfAWaitingRequestIsTheProgramsAgain) {  // manual ibv_post_send
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

TEST_F(VerbsLives, CompletionSaysHowManyBytesWereRead) {  // 11.4.2.1
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

TEST_F(VerbsLives, FailedRequestTakesTheReceivesAlong) {  // 10.3.1.7
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

TEST_F(VerbsLives, DeviceMemoryHasItsLengthAndNoMore) {  // manual ibv_alloc_dm
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

TEST_F(VerbsLives, AdviceIsForRegionsOfTheDomain) {  // manual ibv_advise_mr
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
#endif
