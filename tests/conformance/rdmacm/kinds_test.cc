// SPDX-License-Identifier: Apache-2.0
/// Connections of each type of queue pair, and attributes for programs that modify their queue pairs themselves.
#include <fcntl.h>
#include <nupa/connection_manager.h>
#include <rdma/rdma_verbs.h>

#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "fixture.h"
#include "terms.h"

namespace nupa::test {
namespace {

TEST_F(RdmaCmTerms, InitQpAttr_BeforeTheStateIsReached_IsRefused) {
  listen();
  rdma_conn_param param = param_of();
  param.qp_num = 0x123;
  const OwnId early = make_id(active_.get());
  ibv_qp_attr attr{};
  int mask = 0;
  attr.qp_state = IBV_QPS_INIT;
  EXPECT_EQ(error_of(rdma_init_qp_attr(early.get(), &attr, &mask)), EINVAL) << "no device";
  const OwnId active = resolved();
  EXPECT_EQ(error_of(rdma_init_qp_attr(active.get(), nullptr, &mask)), EINVAL);
  EXPECT_EQ(error_of(rdma_init_qp_attr(active.get(), &attr, nullptr)), EINVAL);
  ASSERT_EQ(rdma_init_qp_attr(active.get(), &attr, &mask), 0) << errno;
  EXPECT_EQ(attr.qp_access_flags, 0u);
  EXPECT_EQ(attr.port_num, 1);
  for (const ibv_qp_state state : {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_RESET, IBV_QPS_SQD, IBV_QPS_ERR}) {
    attr.qp_state = state;
    EXPECT_EQ(error_of(rdma_init_qp_attr(active.get(), &attr, &mask)), EINVAL) << state;
  }
  param.responder_resources = 5;
  param.initiator_depth = 3;
  ASSERT_EQ(rdma_connect(active.get(), &param), 0) << errno;
  const Seen asked = passive_.next();
  ASSERT_EQ(asked.type, RDMA_CM_EVENT_CONNECT_REQUEST);
  passive_id_.reset(asked.id);
  attr = {};
  attr.qp_state = IBV_QPS_RTR;
  ASSERT_EQ(rdma_init_qp_attr(asked.id, &attr, &mask), 0) << errno;
  EXPECT_EQ(attr.dest_qp_num, 0x123u);
  EXPECT_EQ(attr.max_dest_rd_atomic, 3);
  EXPECT_EQ(attr.ah_attr.is_global, 1);
  EXPECT_EQ(attr.ah_attr.port_num, 1);
  EXPECT_EQ(attr.ah_attr.grh.hop_limit, 64);
  EXPECT_EQ(std::memcmp(&attr.ah_attr.grh.dgid, &asked.id->route.addr.addr.ibaddr.dgid, 16), 0);
  attr.qp_state = IBV_QPS_RTS;
  ASSERT_EQ(rdma_init_qp_attr(asked.id, &attr, &mask), 0) << errno;
  EXPECT_EQ(attr.max_rd_atomic, 5);
  EXPECT_EQ(attr.retry_cnt, 7);
}

TEST_F(RdmaCmTerms, InitQpAttr_OfDatagrams_HasTheQkey) {
  const OwnId id = make_id(active_.get(), RDMA_PS_UDP);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, Address("127.0.0.1", 7).get(), 100), 0);
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  ibv_qp_attr attr{};
  int mask = 0;
  attr.qp_state = IBV_QPS_INIT;
  ASSERT_EQ(rdma_init_qp_attr(id.get(), &attr, &mask), 0) << errno;
  EXPECT_EQ(mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  EXPECT_EQ(attr.qkey, 0x01234567u);
  attr.qp_state = IBV_QPS_RTR;
  ASSERT_EQ(rdma_init_qp_attr(id.get(), &attr, &mask), 0) << errno;
  EXPECT_EQ(mask, IBV_QP_STATE);
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = 5;
  ASSERT_EQ(rdma_init_qp_attr(id.get(), &attr, &mask), 0) << errno;
  EXPECT_EQ(mask, IBV_QP_STATE | IBV_QP_SQ_PSN);
  EXPECT_EQ(attr.sq_psn, 0u);
}

/// Ids of port space IB, which has every kind of queue pair.
class RdmaCmKinds : public RdmaCmTerms {
 protected:
  void listen_as(ibv_qp_type type) {
    // A request that the library refuses leaves nothing to take.
    const int fd = passive_.get()->fd;
    ASSERT_EQ(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
    Address at("127.0.0.1");
    rdma_addrinfo info{};
    info.ai_flags = RAI_PASSIVE;
    info.ai_port_space = RDMA_PS_IB;
    info.ai_qp_type = type;
    info.ai_src_addr = at.get();
    rdma_cm_id* raw = nullptr;
    ASSERT_EQ(rdma_create_ep(&raw, &info, nullptr, nullptr), 0) << errno;
    listener_.reset(raw);
    ASSERT_EQ(rdma_migrate_id(raw, passive_.get()), 0);
    ASSERT_EQ(rdma_listen(raw, 4), 0) << errno;
    port_ = port_of(raw);
  }
  OwnId connecting_as(ibv_qp_type type) {
    Address to("127.0.0.1", port_);
    rdma_addrinfo info{};
    info.ai_port_space = RDMA_PS_IB;
    info.ai_qp_type = type;
    info.ai_dst_addr = to.get();
    rdma_cm_id* raw = nullptr;
    EXPECT_EQ(rdma_create_ep(&raw, &info, nullptr, nullptr), 0) << errno;
    OwnId id(raw);
    if (!id) return id;
    EXPECT_EQ(rdma_migrate_id(raw, active_.get()), 0);
    make_qp(raw);
    EXPECT_EQ(rdma_connect(raw, nullptr), 0) << errno;
    return id;
  }
  /// What who asks for another kind hears. The listener's program hears nothing.
  Seen refused() {
    EXPECT_TRUE(passive_.ready(kSoonMs));
    rdma_cm_event* event = nullptr;
    EXPECT_EQ(error_of(rdma_get_cm_event(passive_.get(), &event)), EAGAIN);
    if (event != nullptr) {
      passive_id_.reset(event->id);
      rdma_ack_cm_event(event);
      passive_id_.reset();
    }
    return active_.next();
  }
};

TEST_F(RdmaCmKinds, UnreliableConnections_AreEstablished) {
  listen_as(IBV_QPT_UC);
  const OwnId active = connecting_as(IBV_QPT_UC);
  request();
  ASSERT_TRUE(passive_id_);
  EXPECT_EQ(passive_id_->qp_type, IBV_QPT_UC);
  ibv_qp_attr attr{};
  int mask = 0;
  attr.qp_state = IBV_QPS_RTR;
  ASSERT_EQ(rdma_init_qp_attr(passive_id_.get(), &attr, &mask), 0) << errno;
  EXPECT_EQ(mask, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
  attr.qp_state = IBV_QPS_RTS;
  ASSERT_EQ(rdma_init_qp_attr(passive_id_.get(), &attr, &mask), 0) << errno;
  EXPECT_EQ(mask, IBV_QP_STATE | IBV_QP_SQ_PSN);
  ASSERT_EQ(rdma_accept(passive_id_.get(), nullptr), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(passive_.next().type, RDMA_CM_EVENT_ESTABLISHED);
}

TEST_F(RdmaCmKinds, ExtendedConnections_AreEstablished) {
  listen_as(IBV_QPT_XRC_RECV);
  const OwnId active = connecting_as(IBV_QPT_XRC_SEND);
  request();
  ASSERT_TRUE(passive_id_);
  EXPECT_EQ(passive_id_->qp_type, IBV_QPT_XRC_RECV);
  ibv_qp_attr attr{};
  int mask = 0;
  attr.qp_state = IBV_QPS_RTS;
  ASSERT_EQ(rdma_init_qp_attr(passive_id_.get(), &attr, &mask), 0) << errno;
  EXPECT_EQ(mask, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT) << "it sends nothing";
  ASSERT_EQ(rdma_accept(passive_id_.get(), nullptr), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(passive_.next().type, RDMA_CM_EVENT_ESTABLISHED);
}

TEST_F(RdmaCmKinds, ExtendedConnections_ReachTheSharedReceiveQueueOfAnotherId) {
  listen_as(IBV_QPT_XRC_RECV);
  const OwnId active = connecting_as(IBV_QPT_XRC_SEND);
  request();
  ASSERT_TRUE(passive_id_);
  ASSERT_EQ(rdma_accept(passive_id_.get(), nullptr), 0) << errno;
  ASSERT_EQ(active_.next().type, RDMA_CM_EVENT_ESTABLISHED);
  ASSERT_EQ(passive_.next().type, RDMA_CM_EVENT_ESTABLISHED);
  Address to("127.0.0.1", 7);
  rdma_addrinfo info{};
  info.ai_port_space = RDMA_PS_IB;
  info.ai_qp_type = IBV_QPT_XRC_RECV;
  info.ai_dst_addr = to.get();
  rdma_cm_id* raw = nullptr;
  ASSERT_EQ(rdma_create_ep(&raw, &info, nullptr, nullptr), 0) << errno;
  const OwnId other(raw);
  ibv_srq_init_attr shared{};
  shared.attr.max_wr = 4;
  shared.attr.max_sge = 1;
  ASSERT_EQ(rdma_create_srq(raw, nullptr, &shared), 0) << errno;
  uint32_t number = 0;
  ASSERT_EQ(ibv_get_srq_num(raw->srq, &number), 0);
  std::array<char, 16> memory{"message"};
  ibv_mr* region = ibv_reg_mr(raw->pd, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE);
  ASSERT_NE(region, nullptr);
  ibv_sge room{reinterpret_cast<uintptr_t>(&memory[8]), 8, region->lkey};
  ibv_recv_wr receive{};
  receive.sg_list = &room;
  receive.num_sge = 1;
  ibv_recv_wr* bad_receive;
  ASSERT_EQ(ibv_post_srq_recv(raw->srq, &receive, &bad_receive), 0);
  ibv_sge text{reinterpret_cast<uintptr_t>(memory.data()), 8, region->lkey};
  ibv_send_wr send{};
  send.opcode = IBV_WR_SEND;
  send.sg_list = &text;
  send.num_sge = 1;
  send.qp_type.xrc.remote_srqn = number;
  ibv_send_wr* bad_send;
  ASSERT_EQ(ibv_post_send(active->qp, &send, &bad_send), 0);
  const auto next_of = [](ibv_cq* cq) {
    ibv_wc completion{};
    completion.status = IBV_WC_GENERAL_ERR;  // none came
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kSoonMs);
    while (ibv_poll_cq(cq, 1, &completion) == 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return completion.status;
  };
  ASSERT_EQ(next_of(active->send_cq), IBV_WC_SUCCESS);
  EXPECT_EQ(next_of(raw->recv_cq), IBV_WC_SUCCESS);
  EXPECT_STREQ(&memory[8], "message");
  EXPECT_EQ(ibv_dereg_mr(region), 0);
}

TEST_F(RdmaCmKinds, Connect_ListenerOfAnotherType_IsRejected) {
  for (const auto& [listens, connects] : {std::pair(IBV_QPT_UC, IBV_QPT_RC),
                                          {IBV_QPT_RC, IBV_QPT_UC},
                                          {IBV_QPT_UD, IBV_QPT_RC},
                                          {IBV_QPT_XRC_RECV, IBV_QPT_RC}}) {
    listen_as(listens);
    const OwnId active = connecting_as(connects);
    const Seen seen = refused();
    EXPECT_EQ(seen.type, RDMA_CM_EVENT_REJECTED) << listens << " " << connects;
    EXPECT_EQ(seen.status, kConsumerReject);
  }
}

TEST_F(RdmaCmKinds, DatagramRequest_ListenerOfConnections_IsRejected) {
  for (const ibv_qp_type listens : {IBV_QPT_RC, IBV_QPT_UC}) {
    listen_as(listens);
    const OwnId active = connecting_as(IBV_QPT_UD);
    const Seen seen = refused();
    EXPECT_EQ(seen.type, RDMA_CM_EVENT_UNREACHABLE) << listens;
    EXPECT_EQ(seen.status, 2) << "IBTA table 121: rejected";
  }
}

}  // namespace
}  // namespace nupa::test
