// SPDX-License-Identifier: Apache-2.0
/// Queue pairs, completion queues and shared receive queues that ids of the drop-in make and destroy.
#include <rdma/rdma_verbs.h>

#include "fixture.h"

namespace nupa::test {
namespace {

ibv_qp_init_attr queues_of(uint32_t sends, uint32_t receives, ibv_qp_type type = IBV_QPT_RC) {
  ibv_qp_init_attr attr{};
  attr.cap.max_send_wr = sends;
  attr.cap.max_recv_wr = receives;
  attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
  attr.qp_type = type;
  return attr;
}
ibv_srq_init_attr shared_of(uint32_t receives) {
  ibv_srq_init_attr attr{};
  attr.attr.max_wr = receives;
  attr.attr.max_sge = 1;
  return attr;
}

class RdmaCmQueues : public RdmaCm {
 protected:
  void SetUp() override {
    id_ = addressed();
    ASSERT_NE(id_->verbs, nullptr);
  }
  OwnId addressed() {
    OwnId id = make_id(active_.get());
    EXPECT_EQ(rdma_resolve_addr(id.get(), nullptr, Address("127.0.0.1", 7).get(), 100), 0) << errno;
    EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
    return id;
  }
  /// The device, opened once more: what belongs to it is not the id's.
  ibv_context* other_context() {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    if (list == nullptr) return nullptr;
    ibv_context* context = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    return context;
  }
  void expect_no_queues() {
    EXPECT_EQ(id_->qp, nullptr);
    EXPECT_EQ(id_->send_cq, nullptr);
    EXPECT_EQ(id_->recv_cq, nullptr);
    EXPECT_EQ(id_->send_cq_channel, nullptr);
    EXPECT_EQ(id_->recv_cq_channel, nullptr);
  }

  OwnId id_;
};

TEST_F(RdmaCmQueues, CreateQp_SecondQueuePair_IsRefused) {
  ibv_qp_init_attr attr = queues_of(4, 4);
  EXPECT_EQ(error_of(rdma_create_qp(id_.get(), nullptr, nullptr)), EINVAL);
  ASSERT_EQ(rdma_create_qp(id_.get(), nullptr, &attr), 0) << errno;
  ibv_qp* first = id_->qp;
  attr = queues_of(4, 4);
  EXPECT_EQ(error_of(rdma_create_qp(id_.get(), nullptr, &attr)), EINVAL);
  EXPECT_EQ(id_->qp, first);
  rdma_destroy_qp(id_.get());
  expect_no_queues();
  rdma_destroy_qp(id_.get());  // there is none
  attr = queues_of(4, 4);
  EXPECT_EQ(rdma_create_qp(id_.get(), nullptr, &attr), 0) << errno;
}

TEST_F(RdmaCmQueues, CreateQp_WithoutDomainOrQueues_MakesThem) {
  ibv_qp_init_attr attr = queues_of(20, 40);
  ASSERT_EQ(rdma_create_qp(id_.get(), nullptr, &attr), 0) << errno;
  ASSERT_TRUE(id_->send_cq != nullptr && id_->recv_cq != nullptr);
  EXPECT_NE(id_->send_cq, id_->recv_cq);
  EXPECT_EQ(id_->qp->send_cq, id_->send_cq);
  EXPECT_EQ(id_->qp->recv_cq, id_->recv_cq);
  EXPECT_EQ(attr.send_cq, id_->send_cq) << "what it became";
  EXPECT_EQ(attr.recv_cq, id_->recv_cq);
  EXPECT_GE(id_->send_cq->cqe, 20);
  EXPECT_GE(id_->recv_cq->cqe, 40);
  EXPECT_EQ(id_->send_cq->cq_context, id_.get());
  EXPECT_EQ(id_->recv_cq->cq_context, id_.get());
  ASSERT_TRUE(id_->send_cq_channel != nullptr && id_->recv_cq_channel != nullptr);
  EXPECT_NE(id_->send_cq_channel, id_->recv_cq_channel);
  EXPECT_EQ(id_->send_cq->channel, id_->send_cq_channel);
  EXPECT_EQ(id_->recv_cq->channel, id_->recv_cq_channel);
  EXPECT_EQ(id_->qp->pd, id_->pd);
  ibv_qp_attr now{};
  ibv_qp_init_attr init{};
  ASSERT_EQ(ibv_query_qp(id_->qp, &now, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(now.qp_state, IBV_QPS_INIT);
  EXPECT_GE(attr.cap.max_send_wr, 20u);
}

TEST_F(RdmaCmQueues, CreateQp_SendOnlyOrReceiveOnly_MakesBothCompletionQueues) {
  for (const auto& [sends, receives] : {std::pair(4u, 0u), {0u, 4u}}) {
    ibv_qp_init_attr attr = queues_of(sends, receives);
    ASSERT_EQ(rdma_create_qp(id_.get(), nullptr, &attr), 0) << sends << " " << receives << ": " << errno;
    EXPECT_NE(id_->send_cq, nullptr);
    EXPECT_NE(id_->recv_cq, nullptr);
    rdma_destroy_qp(id_.get());
  }
}

TEST_F(RdmaCmQueues, CreateQp_WithDomainAndQueues_UsesThemAndDoesNotDestroyThem) {
  ibv_pd* pd = ibv_alloc_pd(id_->verbs);
  ibv_cq* sends = ibv_create_cq(id_->verbs, 8, nullptr, nullptr, 0);
  ibv_cq* receives = ibv_create_cq(id_->verbs, 8, nullptr, nullptr, 0);
  ASSERT_TRUE(pd != nullptr && sends != nullptr && receives != nullptr);
  ibv_qp_init_attr attr = queues_of(4, 4);
  attr.send_cq = sends;
  attr.recv_cq = receives;
  ASSERT_EQ(rdma_create_qp(id_.get(), pd, &attr), 0) << errno;
  EXPECT_EQ(id_->qp->pd, pd);
  EXPECT_EQ(id_->pd, pd);
  EXPECT_EQ(id_->qp->send_cq, sends);
  EXPECT_EQ(id_->qp->recv_cq, receives);
  EXPECT_TRUE(id_->send_cq == nullptr && id_->recv_cq == nullptr);
  EXPECT_TRUE(id_->send_cq_channel == nullptr && id_->recv_cq_channel == nullptr);
  rdma_destroy_qp(id_.get());
  EXPECT_EQ(ibv_destroy_cq(sends), 0);
  EXPECT_EQ(ibv_destroy_cq(receives), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

TEST_F(RdmaCmQueues, CreateQp_IdHasQueues_UsesThem) {
  id_->send_cq = ibv_create_cq(id_->verbs, 8, nullptr, nullptr, 0);
  id_->recv_cq = ibv_create_cq(id_->verbs, 8, nullptr, nullptr, 0);
  ibv_cq* other = ibv_create_cq(id_->verbs, 8, nullptr, nullptr, 0);
  ibv_cq *sends = id_->send_cq, *receives = id_->recv_cq;
  ASSERT_TRUE(sends != nullptr && receives != nullptr && other != nullptr);
  ibv_qp_init_attr attr = queues_of(4, 4);
  attr.send_cq = other;
  EXPECT_EQ(error_of(rdma_create_qp(id_.get(), nullptr, &attr)), EINVAL);
  attr = queues_of(4, 4);
  attr.recv_cq = other;
  EXPECT_EQ(error_of(rdma_create_qp(id_.get(), nullptr, &attr)), EINVAL);
  attr = queues_of(4, 4);
  ASSERT_EQ(rdma_create_qp(id_.get(), nullptr, &attr), 0) << errno;
  EXPECT_TRUE(id_->send_cq == sends && id_->recv_cq == receives);
  EXPECT_TRUE(id_->qp->send_cq == sends && id_->qp->recv_cq == receives);
  EXPECT_TRUE(id_->send_cq_channel == nullptr && id_->recv_cq_channel == nullptr);
  rdma_destroy_qp(id_.get());
  EXPECT_EQ(ibv_destroy_cq(other), 0);
}

TEST_F(RdmaCmQueues, CreateQp_ObjectsOfAnotherDevice_AreRefused) {
  ibv_context* context = other_context();
  ASSERT_NE(context, nullptr);
  ibv_pd* pd = ibv_alloc_pd(context);
  ASSERT_NE(pd, nullptr);
  ibv_srq_init_attr shared = shared_of(4);
  ibv_srq* srq = ibv_create_srq(pd, &shared);
  ASSERT_NE(srq, nullptr);
  ibv_qp_init_attr attr = queues_of(4, 4);
  EXPECT_EQ(error_of(rdma_create_qp(id_.get(), pd, &attr)), EINVAL);
  attr = queues_of(4, 4);
  attr.srq = srq;
  EXPECT_EQ(error_of(rdma_create_qp(id_.get(), nullptr, &attr)), EINVAL);
  expect_no_queues();
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST_F(RdmaCmQueues, CreateQp_Fails_LeavesNoQueues) {
  ibv_device_attr device;
  ASSERT_EQ(ibv_query_device(id_->verbs, &device), 0);
  ibv_qp_init_attr attr = queues_of(4, 4);
  attr.cap.max_send_sge = static_cast<uint32_t>(device.max_sge) + 1;
  EXPECT_EQ(error_of(rdma_create_qp(id_.get(), nullptr, &attr)), EINVAL);
  expect_no_queues();
  attr = queues_of(~0u, 4);
  EXPECT_NE(error_of(rdma_create_qp(id_.get(), nullptr, &attr)), 0) << "no completion queue is as long";
  expect_no_queues();
  attr = queues_of(4, 4);
  EXPECT_EQ(rdma_create_qp(id_.get(), nullptr, &attr), 0) << errno;
}

TEST_F(RdmaCmQueues, CreateQp_CompletionQueueCannotBeMade_LeavesNoDescriptor) {
  constexpr int kTimes = 64;
  const auto before = open_descriptors();
  for (int i = 0; i < kTimes; ++i) {
    ibv_qp_init_attr attr = queues_of(~0u, 4);
    ASSERT_NE(error_of(rdma_create_qp(id_.get(), nullptr, &attr)), 0);
  }
  EXPECT_LT(open_descriptors() - before, kTimes / 2) << "the library's threads may have opened a few of their own";
}

TEST_F(RdmaCmQueues, CreateQp_OfDatagrams_IsReadyToSend) {
  const OwnId id = make_id(active_.get(), RDMA_PS_UDP);
  ASSERT_EQ(bind_to(id.get(), "127.0.0.2"), 0) << errno;
  EXPECT_EQ(id->verbs, nullptr) << "no port has that address";
  ibv_qp_init_attr attr = queues_of(4, 4, IBV_QPT_UD);
  ASSERT_EQ(rdma_create_qp(id.get(), nullptr, &attr), 0) << "but a device stands in: " << errno;
  EXPECT_NE(id->verbs, nullptr);
  ibv_qp_attr now{};
  ibv_qp_init_attr init{};
  ASSERT_EQ(ibv_query_qp(id->qp, &now, IBV_QP_STATE | IBV_QP_QKEY, &init), 0);
  EXPECT_EQ(now.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(now.qkey, 0x01234567u);
}

TEST_F(RdmaCmQueues, CreateSrq_SecondQueue_IsRefused) {
  const OwnId unbound = make_id(active_.get());
  ibv_srq_init_attr attr = shared_of(5);
  EXPECT_EQ(error_of(rdma_create_srq(unbound.get(), nullptr, &attr)), EINVAL) << "no device";
  EXPECT_EQ(error_of(rdma_create_srq(id_.get(), nullptr, nullptr)), EINVAL);
  EXPECT_EQ(error_of(rdma_create_srq_ex(id_.get(), nullptr)), EINVAL);
  ibv_srq_init_attr_ex untyped{};
  untyped.attr = attr.attr;
  EXPECT_EQ(error_of(rdma_create_srq_ex(id_.get(), &untyped)), EINVAL) << "of which type";
  ASSERT_EQ(rdma_create_srq(id_.get(), nullptr, &attr), 0) << errno;
  ibv_srq* srq = id_->srq;
  ASSERT_NE(srq, nullptr);
  EXPECT_EQ(srq->pd, id_->pd);
  ibv_srq_attr room{};
  ASSERT_EQ(ibv_query_srq(srq, &room), 0);
  EXPECT_EQ(attr.attr.max_wr, room.max_wr) << "what it became";
  attr = shared_of(8);
  EXPECT_EQ(error_of(rdma_create_srq(id_.get(), nullptr, &attr)), EINVAL);
  EXPECT_EQ(id_->srq, srq);
  rdma_destroy_srq(id_.get());
  EXPECT_EQ(id_->srq, nullptr);
  rdma_destroy_srq(id_.get());  // there is none
  attr = shared_of(8);
  EXPECT_EQ(rdma_create_srq(id_.get(), nullptr, &attr), 0) << errno;
}

TEST_F(RdmaCmQueues, CreateQp_IdHasASharedReceiveQueue_UsesIt) {
  ibv_srq_init_attr shared = shared_of(30);
  ASSERT_EQ(rdma_create_srq(id_.get(), nullptr, &shared), 0) << errno;
  ibv_qp_init_attr attr = queues_of(4, 0);
  ASSERT_EQ(rdma_create_qp(id_.get(), nullptr, &attr), 0) << errno;
  EXPECT_EQ(id_->qp->srq, id_->srq);
  ASSERT_NE(id_->recv_cq, nullptr) << "rdma_create_qp(3): what is not specified is made";
  EXPECT_NE(id_->recv_cq, id_->send_cq);
  EXPECT_EQ(id_->qp->recv_cq, id_->recv_cq);
  EXPECT_GE(id_->recv_cq->cqe, 30) << "as many as can be completed at once";
  ASSERT_NE(id_->recv_cq_channel, nullptr);
  rdma_destroy_qp(id_.get());
  expect_no_queues();
  EXPECT_NE(id_->srq, nullptr);
}

TEST_F(RdmaCmQueues, CreateSrq_OfExtendedConnectionsThatFails_LeavesNoQueue) {
  ibv_srq_init_attr_ex attr{};
  attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
  attr.srq_type = IBV_SRQT_XRC;
  attr.attr = shared_of(4).attr;
  attr.attr.max_sge = ~0u;
  EXPECT_EQ(error_of(rdma_create_srq_ex(id_.get(), &attr)), EINVAL);
  EXPECT_EQ(id_->srq, nullptr);
  expect_no_queues();
}

TEST_F(RdmaCmQueues, CreateQp_XrcReceiver_UsesTheSharedReceiveQueuesCompletionQueue) {
  rdma_addrinfo info{};
  info.ai_port_space = RDMA_PS_TCP;
  info.ai_qp_type = IBV_QPT_XRC_RECV;
  Address to("127.0.0.1", 7);
  info.ai_dst_addr = to.get();
  rdma_cm_id* raw = nullptr;
  ASSERT_EQ(rdma_create_ep(&raw, &info, nullptr, nullptr), 0) << errno;
  id_.reset(raw);
  ibv_srq_init_attr shared = shared_of(8);
  ASSERT_EQ(rdma_create_srq(raw, nullptr, &shared), 0) << errno;
  ibv_cq* cq = raw->recv_cq;
  ASSERT_NE(cq, nullptr);
  EXPECT_GE(cq->cqe, 8);
  uint32_t number = 0;
  EXPECT_EQ(ibv_get_srq_num(raw->srq, &number), 0) << "one of extended connections";
  ibv_qp_init_attr attr = queues_of(0, 0, IBV_QPT_XRC_RECV);
  ASSERT_EQ(rdma_create_qp(raw, nullptr, &attr), 0) << errno;
  EXPECT_EQ(raw->send_cq, nullptr);
  rdma_destroy_qp(raw);
  EXPECT_EQ(raw->recv_cq, cq);
  EXPECT_NE(raw->recv_cq_channel, nullptr);
  rdma_destroy_srq(raw);
  EXPECT_EQ(raw->recv_cq, nullptr);
  EXPECT_EQ(raw->recv_cq_channel, nullptr);
}

}  // namespace
}  // namespace nupa::test
