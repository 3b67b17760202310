// SPDX-License-Identifier: Apache-2.0
/// Datagram services (SIDR) and multicast groups through the drop-in.
#include <infiniband/ib.h>

#include <algorithm>

#include "fixture.h"

namespace nupa::test {
namespace {

constexpr uint32_t kQkey = 0x01234567;  // of port space UDP, as rdma_cm has it

class RdmaCmDatagrams : public RdmaCm {
 protected:
  OwnId asking(const std::string& data = "") {
    OwnId id = resolved("127.0.0.1", RDMA_PS_UDP);
    make_qp(id.get());
    rdma_conn_param param = param_of(data);
    EXPECT_EQ(rdma_connect(id.get(), &param), 0) << errno;
    return id;
  }
};

TEST_F(RdmaCmDatagrams, Request_Accepted_DeliversTheServicesQueuePair) {
  listen(RDMA_PS_UDP);
  OwnId active = asking("who is there");
  Seen seen = passive_.next();
  ASSERT_EQ(seen.type, RDMA_CM_EVENT_CONNECT_REQUEST);
  EXPECT_EQ(seen.listener, listener_.get());
  EXPECT_EQ(seen.data.substr(0, 12), "who is there");
  OwnId passive(seen.id);
  make_qp(passive.get());
  rdma_conn_param param = param_of("I am");
  param.qp_num = passive->qp->qp_num;
  ASSERT_EQ(rdma_accept(passive.get(), &param), 0) << errno;
  seen = active_.next();
  ASSERT_EQ(seen.type, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(seen.status, 0);
  EXPECT_EQ(seen.data.substr(0, 4), "I am");
  EXPECT_EQ(seen.datagram.qp_num, passive->qp->qp_num);
  EXPECT_EQ(seen.datagram.qkey, kQkey);
  EXPECT_EQ(seen.datagram.ah_attr.is_global, 1);
  EXPECT_EQ(error_of(rdma_disconnect(active.get())), EINVAL) << "there is no connection";

  char out[] = "datagram", in[40 + sizeof out] = {};
  ibv_mr* from = ibv_reg_mr(active->pd, out, sizeof out, IBV_ACCESS_LOCAL_WRITE);
  ibv_mr* to = ibv_reg_mr(passive->pd, in, sizeof in, IBV_ACCESS_LOCAL_WRITE);
  ibv_sge room{reinterpret_cast<uint64_t>(in), sizeof in, to->lkey};
  ibv_recv_wr receive{0, nullptr, &room, 1};
  ibv_recv_wr* bad_receive;
  ASSERT_EQ(ibv_post_recv(passive->qp, &receive, &bad_receive), 0);
  ibv_ah* way = ibv_create_ah(active->pd, &seen.datagram.ah_attr);
  ASSERT_NE(way, nullptr);
  ibv_sge data{reinterpret_cast<uint64_t>(out), sizeof out, from->lkey};
  ibv_send_wr send{};
  send.sg_list = &data;
  send.num_sge = 1;
  send.opcode = IBV_WR_SEND;
  send.wr.ud.ah = way;
  send.wr.ud.remote_qpn = seen.datagram.qp_num;
  send.wr.ud.remote_qkey = seen.datagram.qkey;
  ibv_send_wr* bad_send;
  ASSERT_EQ(ibv_post_send(active->qp, &send, &bad_send), 0);
  ibv_wc wc{};
  EXPECT_TRUE(soon([&] { return ibv_poll_cq(passive->recv_cq, 1, &wc) != 0; }));
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, sizeof in);
  EXPECT_STREQ(in + 40, out);
  ibv_destroy_ah(way);
  ibv_dereg_mr(from);
  ibv_dereg_mr(to);
}

TEST_F(RdmaCmDatagrams, Request_Rejected_IsUnreachableWithItsData) {
  listen(RDMA_PS_UDP);
  OwnId active = asking();
  OwnId passive = requested();
  ASSERT_EQ(rdma_reject(passive.get(), "not you", 7), 0) << errno;
  const Seen seen = active_.next();
  EXPECT_EQ(seen.type, RDMA_CM_EVENT_UNREACHABLE);
  EXPECT_EQ(seen.status, 2) << "IBTA table 121: rejected";
  EXPECT_EQ(seen.data.substr(0, 7), "not you");
}

TEST_F(RdmaCmDatagrams, Request_WithoutAListener_IsUnreachable) {
  listen(RDMA_PS_UDP);
  listener_.reset();
  OwnId active = asking();
  const Seen seen = active_.next();
  EXPECT_EQ(seen.type, RDMA_CM_EVENT_UNREACHABLE);
  EXPECT_EQ(seen.status, 1) << "IBTA table 121: not supported";
}

TEST_F(RdmaCmDatagrams, PrivateData_LongerThanTheMessage_IsRefused) {
  constexpr size_t kRequestBytes = 180, kReplyBytes = 136;  // IBTA tables 119 and 121, annex A11
  listen(RDMA_PS_UDP);
  OwnId active = resolved("127.0.0.1", RDMA_PS_UDP);
  make_qp(active.get());
  const std::string too_long(kRequestBytes + 1, 'x'), request(kRequestBytes, 'q'), reply(kReplyBytes, 'r');
  rdma_conn_param param = param_of(too_long);
  EXPECT_EQ(error_of(rdma_connect(active.get(), &param)), EINVAL);
  param = param_of(request);
  ASSERT_EQ(rdma_connect(active.get(), &param), 0) << errno;
  const Seen seen = passive_.next();
  ASSERT_EQ(seen.type, RDMA_CM_EVENT_CONNECT_REQUEST);
  EXPECT_EQ(seen.data, request);
  OwnId passive(seen.id);
  make_qp(passive.get());
  param = param_of(too_long);
  EXPECT_EQ(error_of(rdma_accept(passive.get(), &param)), EINVAL);
  param = param_of(reply);
  ASSERT_EQ(rdma_accept(passive.get(), &param), 0) << errno;
  EXPECT_EQ(active_.next().data, reply);
}

TEST_F(RdmaCmDatagrams, Connect_ToAPortOfDatagrams_IsRejected) {
  listen(RDMA_PS_UDP);
  OwnId active = connecting();  // TCP's port space
  const Seen seen = active_.next();
  EXPECT_EQ(seen.type, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(seen.status, 8);
}

TEST_F(RdmaCmDatagrams, Multicast_JoinAndLeave_ReportTheGroup) {
  OwnId id = make_id(active_.get(), RDMA_PS_UDP);
  ASSERT_EQ(bind_to(id.get(), "127.0.0.1"), 0) << errno;
  make_qp(id.get());
  int context = 0;
  Address group("239.1.2.3"), other("239.1.2.4"), none("10.1.2.3");
  EXPECT_EQ(error_of(rdma_join_multicast(id.get(), none.get(), nullptr)), EINVAL) << "no group";
  ASSERT_EQ(rdma_join_multicast(id.get(), group.get(), &context), 0) << errno;
  rdma_cm_event* event = active_.take();
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(event->event, RDMA_CM_EVENT_MULTICAST_JOIN);
  EXPECT_EQ(event->param.ud.private_data, &context);
  EXPECT_EQ(event->param.ud.qp_num, 0xffffffu);
  EXPECT_EQ(event->param.ud.qkey, kQkey);
  EXPECT_EQ(event->param.ud.ah_attr.grh.dgid.raw[12], 239);
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
  EXPECT_EQ(error_of(rdma_leave_multicast(id.get(), other.get())), EADDRNOTAVAIL);
  EXPECT_EQ(rdma_leave_multicast(id.get(), group.get()), 0) << errno;
  EXPECT_EQ(error_of(rdma_leave_multicast(id.get(), group.get())), EADDRNOTAVAIL);
  ASSERT_EQ(rdma_join_multicast(id.get(), other.get(), nullptr), 0) << "left to the id's end: " << errno;
}

TEST_F(RdmaCmDatagrams, Multicast_LeaveBeforeTheEventIsTaken_RemovesTheEvent) {
  OwnId id = make_id(active_.get(), RDMA_PS_UDP);
  ASSERT_EQ(bind_to(id.get(), "127.0.0.1"), 0);
  make_qp(id.get());
  Address group("239.1.2.3");
  ASSERT_EQ(rdma_join_multicast(id.get(), group.get(), nullptr), 0);
  ASSERT_TRUE(active_.ready(kSoonMs));
  ASSERT_EQ(rdma_leave_multicast(id.get(), group.get()), 0);
  EXPECT_TRUE(active_.silent());
}

TEST_F(RdmaCmDatagrams, Multicast_JoinOfAConnectedId_IsRefused) {
  OwnId id = make_id(active_.get());
  ASSERT_EQ(bind_to(id.get(), "127.0.0.1"), 0);
  EXPECT_EQ(error_of(rdma_join_multicast(id.get(), Address("239.1.2.3").get(), nullptr)), EINVAL);
}

}  // namespace
}  // namespace nupa::test
