// SPDX-License-Identifier: Apache-2.0
/// The parameters that the two ends of a connection agree on, through the drop-in.
#include <fcntl.h>
#include <infiniband/ib.h>
#include <nupa/connection_manager.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <future>
#include <utility>

#include "../../support/sanitizers.h"
#include "fixture.h"
#include "terms.h"

namespace nupa::test {
namespace {

constexpr int kReads = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

TEST_F(RdmaCmTerms, Parameters_OfEachEnd_ReachThePeer) {
  listen();
  rdma_conn_param offered{};
  offered.responder_resources = 5;
  offered.initiator_depth = 3;
  offered.retry_count = 4;
  offered.rnr_retry_count = 2;
  offered.flow_control = 1;
  offered.srq = 1;        // the queue pair has none, and is believed
  offered.qp_num = 0x77;  // the same
  const OwnId active = connecting_with(&offered);
  const Seen asked = request();
  ASSERT_TRUE(passive_id_);
  EXPECT_EQ(asked.connection.responder_resources, 3);
  EXPECT_EQ(asked.connection.initiator_depth, 5);
  EXPECT_EQ(asked.connection.retry_count, 4);
  EXPECT_EQ(asked.connection.rnr_retry_count, 2);
  EXPECT_EQ(asked.connection.flow_control, 1);
  EXPECT_EQ(asked.connection.srq, 0);
  EXPECT_EQ(asked.connection.qp_num, active->qp->qp_num);

  rdma_conn_param answer{};
  answer.responder_resources = 2;
  answer.initiator_depth = 4;
  answer.retry_count = 1;
  answer.rnr_retry_count = 6;
  answer.flow_control = 1;
  answer.srq = 1;
  answer.qp_num = 0x78;
  ASSERT_EQ(rdma_accept(passive_id_.get(), &answer), 0) << errno;
  const Seen answered = active_.next();
  ASSERT_EQ(answered.type, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(answered.status, 0);
  EXPECT_EQ(answered.connection.responder_resources, 4);
  EXPECT_EQ(answered.connection.initiator_depth, 2);
  EXPECT_EQ(answered.connection.rnr_retry_count, 6);
  EXPECT_EQ(answered.connection.flow_control, 1);
  EXPECT_EQ(answered.connection.srq, 0);
  EXPECT_EQ(answered.connection.qp_num, passive_id_->qp->qp_num);
  EXPECT_EQ(passive_.next().type, RDMA_CM_EVENT_ESTABLISHED);

  const ibv_qp_attr one = attributes_of(active->qp), other = attributes_of(passive_id_->qp);
  EXPECT_EQ(one.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(one.max_dest_rd_atomic, 4);
  EXPECT_EQ(one.max_rd_atomic, 2);
  EXPECT_EQ(one.retry_cnt, 4);
  EXPECT_EQ(one.rnr_retry, 6) << "as the receiver of what is sent wants it";
  EXPECT_EQ(one.dest_qp_num, passive_id_->qp->qp_num);
  EXPECT_EQ(one.rq_psn, other.sq_psn);
  EXPECT_EQ(one.qp_access_flags, static_cast<unsigned>(IBV_ACCESS_REMOTE_WRITE | kReads));
  EXPECT_EQ(other.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(other.max_dest_rd_atomic, 2);
  EXPECT_EQ(other.max_rd_atomic, 4);
  EXPECT_EQ(other.retry_cnt, 4) << "of who connects; who accepts says none";
  EXPECT_EQ(other.rnr_retry, 2);
  EXPECT_EQ(other.dest_qp_num, active->qp->qp_num);
  EXPECT_EQ(other.rq_psn, one.sq_psn);
  EXPECT_EQ(other.path_mtu, one.path_mtu);
  EXPECT_NE(one.rq_psn, one.sq_psn) << "each end's is its own";
}

TEST_F(RdmaCmTerms, Connect_WithoutParameters_OffersTheDevicesLimits) {
  listen();
  const ibv_device_attr can = device();
  const OwnId active = connecting_with(nullptr);
  const Seen asked = request();
  ASSERT_TRUE(passive_id_);
  EXPECT_EQ(asked.connection.responder_resources, can.max_qp_init_rd_atom);
  EXPECT_EQ(asked.connection.initiator_depth, can.max_qp_rd_atom);
  EXPECT_EQ(asked.connection.retry_count, 7);
  EXPECT_EQ(asked.connection.rnr_retry_count, 7);
  EXPECT_EQ(asked.connection.flow_control, 0);
}

TEST_F(RdmaCmTerms, Connect_MaximumConstants_OfferTheDevicesLimits) {
  listen();
  const ibv_device_attr can = device();
  rdma_conn_param most = param_of();
  most.responder_resources = RDMA_MAX_RESP_RES;
  most.initiator_depth = RDMA_MAX_INIT_DEPTH;
  const OwnId active = connecting_with(&most);
  const Seen asked = request();
  ASSERT_TRUE(passive_id_);
  EXPECT_EQ(asked.connection.responder_resources, can.max_qp_init_rd_atom);
  EXPECT_EQ(asked.connection.initiator_depth, can.max_qp_rd_atom);
}

TEST_F(RdmaCmTerms, Accept_WithoutParameters_GrantsTheRequested) {
  listen();
  for (const bool by_name : {false, true}) {
    rdma_conn_param offered = param_of();
    offered.responder_resources = 5;
    offered.initiator_depth = 3;
    offered.rnr_retry_count = 2;
    const OwnId active = connecting_with(&offered);
    request();
    ASSERT_TRUE(passive_id_);
    rdma_conn_param most{};
    most.responder_resources = RDMA_MAX_RESP_RES;
    most.initiator_depth = RDMA_MAX_INIT_DEPTH;
    most.rnr_retry_count = 2;
    ASSERT_EQ(rdma_accept(passive_id_.get(), by_name ? &most : nullptr), 0) << errno;
    const Seen answered = active_.next();
    ASSERT_EQ(answered.type, RDMA_CM_EVENT_ESTABLISHED);
    EXPECT_EQ(answered.connection.responder_resources, 5) << by_name;
    EXPECT_EQ(answered.connection.initiator_depth, 3) << by_name;
    EXPECT_EQ(answered.connection.rnr_retry_count, 2) << by_name;
    const ibv_qp_attr other = attributes_of(passive_id_->qp);
    EXPECT_EQ(other.max_dest_rd_atomic, 3);
    EXPECT_EQ(other.max_rd_atomic, 5);
    passive_id_.reset();
    while (passive_.ready(0)) passive_.next();
    while (active_.ready(kWhileMs)) active_.next();
  }
}

constexpr uint8_t kTooMuch = 255;

/// What a child process hears of its connections.
class SinkOfChild : public ConnectionSink {
 public:
  void on_reply(uint64_t, const ConnectionReply&) override {}
  uint64_t on_request(uint64_t, ConnectionId, const ConnectionRequest&) override { return 0; }
  uint64_t on_datagram_request(uint64_t, ConnectionId, const DatagramRequest&) override { return 0; }
  void on_established(uint64_t, const PrivateData<224>&) override {}
  void on_rejected(uint64_t, uint16_t, const PrivateData<148>&) override { _exit(3); }
  void on_unreachable(uint64_t) override { _exit(4); }
  void on_disconnected(uint64_t, bool) override {}
  void on_time_wait_exit(uint64_t) override {}
  void on_datagram_reply(uint64_t, const DatagramReply&) override {}
};

/// Writes to a pipe what the other end grants in its reply.
class Granted final : public SinkOfChild {
 public:
  explicit Granted(int fd) : fd_(fd) {}
  void on_reply(uint64_t, const ConnectionReply& reply) override {
    const uint8_t granted[] = {reply.responder_resources, reply.initiator_depth};
    if (write(fd_, granted, sizeof granted) != sizeof granted) _exit(2);
  }

 private:
  const int fd_;
};

/// A child process asks a listener of 127.0.0.1 for more than any device can do. rdma_connect() would refuse that.
[[noreturn]] void ask_too_much(uint16_t port, int answer_fd) {
  alarm(kSoonMs / 1000);
  Granted granted(answer_fd);
  const auto manager = ConnectionManager::open(granted);
  if (!manager) _exit(5);
  const Gid here{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}};
  const auto route = (*manager)->find_route(here, 0, nullptr);
  if (!route) _exit(6);
  ConnectionRequest request;
  request.service_id = RDMA_IB_IP_PS_TCP | port;
  request.path = route->path;
  request.ca_guid = static_cast<uint64_t>(getpid());
  request.qp_num = 5;
  request.responder_resources = request.initiator_depth = kTooMuch;
  request.private_data.bytes[1] = std::byte{0x40};  // IPv4 (IBTA annex A11)
  std::memcpy(&request.private_data.bytes[32], &here.raw[12], 4);
  request.private_data.length = request.private_data.room();
  ConnectionId id = 0;
  if ((*manager)->connect(request, *route, 1, &id) != 0) _exit(7);
  for (;;) pause();
}

TEST_F(RdmaCmTerms, Accept_WithoutParameters_GrantsNoMoreThanTheDevicesLimits) {
  if (test::kThreadSanitizer) GTEST_SKIP() << test::kNoThreadInChild;
  listen();
  const ibv_device_attr can = device();
  std::array<int, 2> answer{};
  ASSERT_EQ(pipe(answer.data()), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) ask_too_much(port_, answer[1]);
  close(answer[1]);
  const Seen asked = request();
  EXPECT_EQ(asked.connection.responder_resources, kTooMuch);
  EXPECT_EQ(asked.connection.initiator_depth, kTooMuch);
  const int error = passive_id_ ? error_of(rdma_accept(passive_id_.get(), nullptr)) : -1;
  EXPECT_EQ(error, 0);
  std::array<uint8_t, 2> granted{};
  if (error == 0) {
    EXPECT_EQ(read(answer[0], granted.data(), granted.size()), static_cast<ssize_t>(granted.size()));
  }
  EXPECT_EQ(granted[0], can.max_qp_rd_atom);
  EXPECT_EQ(granted[1], can.max_qp_init_rd_atom);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(answer[0]);
}

/// What an end that asks says of itself.
struct AskingEnd {
  ConnectionId id;
  uint32_t qp_num;
  uint8_t ack_timeout;
};

class RequestOfChild final : public SinkOfChild {
 public:
  uint64_t on_request(uint64_t, ConnectionId id, const ConnectionRequest& request) override {
    came.set_value({id, request.qp_num, request.path.ack_timeout});
    return 2;
  }
  std::promise<AskingEnd> came;
};

/// A child process accepts one request, and says that its acknowledgements take as long as the other end has said. It
/// names the other end's own queue pair, which is there in any case. rdma_accept() names no delay.
[[noreturn]] void accept_slowly(int port_fd) {
  alarm(kSoonMs / 1000);
  RequestOfChild request;
  const auto manager = ConnectionManager::open(request);
  if (!manager) _exit(5);
  ListenerAddress at;
  uint16_t port = 1024;
  for (int error = EADDRINUSE; error == EADDRINUSE && port != 0; ++port) {
    at.service_id = RDMA_IB_IP_PS_TCP | port;
    error = (*manager)->bind(1, at);
  }
  if ((*manager)->listen(1) != 0) _exit(6);
  --port;
  if (write(port_fd, &port, sizeof port) != sizeof port) _exit(7);
  const AskingEnd asked = request.came.get_future().get();
  ConnectionReply reply;
  reply.ca_guid = static_cast<uint64_t>(getpid());
  reply.qp_num = asked.qp_num;
  reply.target_ack_delay = asked.ack_timeout;
  if ((*manager)->accept(asked.id, reply) != 0) _exit(8);
  for (;;) pause();
}

TEST_F(RdmaCmTerms, Accept_WithAnAckDelay_IsAddedToTheTimeout) {
  if (test::kThreadSanitizer) GTEST_SKIP() << test::kNoThreadInChild;
  std::array<int, 2> port_pipe{};
  ASSERT_EQ(pipe(port_pipe.data()), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) accept_slowly(port_pipe[1]);
  close(port_pipe[1]);
  EXPECT_EQ(read(port_pipe[0], &port_, sizeof port_), static_cast<ssize_t>(sizeof port_));
  const OwnId active = connecting();
  const int alone = active->route.path_rec->packet_life_time + 1;  // codes: one more is twice as long
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(attributes_of(active->qp).timeout, alone + 1) << "as long again";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(port_pipe[0]);
}

TEST_F(RdmaCmTerms, Connection_WithoutResponderResources_AllowsNoReads) {
  listen();
  rdma_conn_param none = param_of();
  none.responder_resources = none.initiator_depth = 0;
  const OwnId active = resolved();
  make_qp(active.get());
  EXPECT_EQ(attributes_of(active->qp).qp_access_flags, 0u) << "nothing is agreed on yet";
  ASSERT_EQ(rdma_connect(active.get(), &none), 0) << errno;
  request();
  ASSERT_TRUE(passive_id_);
  ASSERT_EQ(rdma_accept(passive_id_.get(), &none), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ESTABLISHED);
  for (ibv_qp* qp : {active->qp, passive_id_->qp}) {
    const ibv_qp_attr attr = attributes_of(qp);
    EXPECT_EQ(attr.qp_access_flags, static_cast<unsigned>(IBV_ACCESS_REMOTE_WRITE));
    EXPECT_EQ(attr.max_rd_atomic, 0);
    EXPECT_EQ(attr.max_dest_rd_atomic, 0);
  }
}

TEST_F(RdmaCmTerms, Parameters_AboveTheDevicesLimits_AreRefusedByBothEnds) {
  listen();
  const ibv_device_attr can = device();
  const auto with = [](int responder_resources, int initiator_depth) {
    rdma_conn_param param = param_of();
    param.responder_resources = static_cast<uint8_t>(responder_resources);
    param.initiator_depth = static_cast<uint8_t>(initiator_depth);
    return param;
  };
  rdma_conn_param much_to_serve = with(can.max_qp_rd_atom + 1, 1), much_to_ask = with(1, can.max_qp_init_rd_atom + 1);
  rdma_conn_param most = with(can.max_qp_rd_atom, can.max_qp_init_rd_atom);
  const OwnId active = resolved();
  make_qp(active.get());
  EXPECT_EQ(error_of(rdma_connect(active.get(), &much_to_serve)), EINVAL);
  EXPECT_EQ(error_of(rdma_connect(active.get(), &much_to_ask)), EINVAL);
  ASSERT_EQ(rdma_connect(active.get(), &most), 0) << errno;
  request();
  ASSERT_TRUE(passive_id_);
  EXPECT_EQ(error_of(rdma_accept(passive_id_.get(), &much_to_serve)), EINVAL);
  EXPECT_EQ(error_of(rdma_accept(passive_id_.get(), &much_to_ask)), EINVAL);
  rdma_conn_param no_data = param_of();
  no_data.private_data_len = 1;
  EXPECT_EQ(error_of(rdma_accept(passive_id_.get(), &no_data)), EINVAL);
  ASSERT_EQ(rdma_accept(passive_id_.get(), &most), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ESTABLISHED);
}

TEST_F(RdmaCmTerms, Parameters_OfDatagrams_DepthsAreIgnored) {
  listen(RDMA_PS_UDP);
  rdma_conn_param param = param_of();
  param.responder_resources = param.initiator_depth = 200;
  const OwnId active = resolved("127.0.0.1", RDMA_PS_UDP);
  make_qp(active.get());
  ASSERT_EQ(rdma_connect(active.get(), &param), 0) << errno;
  request();
  ASSERT_TRUE(passive_id_);
  EXPECT_EQ(rdma_accept(passive_id_.get(), &param), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ESTABLISHED);
}

TEST_F(RdmaCmTerms, DatagramResponse_AddressHandle_HasThePathsFields) {
  listen(RDMA_PS_UDP);
  const OwnId active = make_id(active_.get(), RDMA_PS_UDP);
  uint8_t tos = 0x28;
  ASSERT_EQ(rdma_set_option(active.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos), 0) << errno;
  ASSERT_EQ(rdma_resolve_addr(active.get(), nullptr, Address("127.0.0.1", port_).get(), 100), 0);
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  ASSERT_EQ(rdma_resolve_route(active.get(), 100), 0);
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
  make_qp(active.get());
  ASSERT_EQ(rdma_connect(active.get(), nullptr), 0) << errno;
  request();
  ASSERT_TRUE(passive_id_);
  ASSERT_EQ(rdma_accept(passive_id_.get(), nullptr), 0) << errno;
  const Seen seen = active_.next();
  ASSERT_EQ(seen.type, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(seen.datagram.qp_num, passive_id_->qp->qp_num);
  EXPECT_EQ(seen.datagram.ah_attr.grh.hop_limit, 64);
  EXPECT_EQ(seen.datagram.ah_attr.grh.traffic_class, tos);
  EXPECT_EQ(seen.datagram.ah_attr.port_num, 1);
  EXPECT_EQ(std::memcmp(&seen.datagram.ah_attr.grh.dgid, &active->route.addr.addr.ibaddr.dgid, 16), 0);
}

TEST_F(RdmaCmTerms, ConnectRequest_HasItsListenersContext) {
  listen();
  listener_->context = this;
  const OwnId active = connecting();
  const OwnId passive = requested();
  ASSERT_TRUE(passive);
  EXPECT_EQ(passive->context, this);
}

TEST_F(RdmaCmTerms, RetryCounts_MoreThanThreeBits_AreCutToSeven) {
  listen();
  rdma_conn_param many = param_of();
  many.retry_count = 200;
  many.rnr_retry_count = 9;
  const OwnId active = connecting_with(&many);
  const Seen asked = request();
  ASSERT_TRUE(passive_id_);
  EXPECT_EQ(asked.connection.retry_count, 7);
  EXPECT_EQ(asked.connection.rnr_retry_count, 7);
  ASSERT_EQ(rdma_accept(passive_id_.get(), &many), 0) << errno;
  const Seen answered = active_.next();
  ASSERT_EQ(answered.type, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(answered.connection.rnr_retry_count, 7);
  EXPECT_EQ(attributes_of(active->qp).retry_cnt, 7);
}

TEST_F(RdmaCmTerms, ConnectWithoutAQueuePair_NumberAndSrq_AreTheParameters) {
  listen();
  rdma_conn_param param = param_of();
  param.qp_num = 0x123;
  param.srq = 1;
  const OwnId active = make_id(active_.get());
  ASSERT_EQ(rdma_resolve_addr(active.get(), nullptr, Address("127.0.0.1", port_).get(), 100), 0);
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(error_of(rdma_connect(active.get(), &param)), EINVAL) << "there is no route";
  ASSERT_EQ(rdma_resolve_route(active.get(), 100), 0);
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_EQ(error_of(rdma_accept(active.get(), &param)), EINVAL) << "of nobody";
  EXPECT_EQ(error_of(rdma_connect(active.get(), nullptr)), EINVAL) << "there is no number";
  ASSERT_EQ(rdma_connect(active.get(), &param), 0) << errno;
  const Seen asked = passive_.next();
  ASSERT_EQ(asked.type, RDMA_CM_EVENT_CONNECT_REQUEST);
  passive_id_.reset(asked.id);
  EXPECT_EQ(asked.connection.qp_num, 0x123u);
  EXPECT_EQ(asked.connection.srq, 1);
  EXPECT_EQ(error_of(rdma_accept(asked.id, nullptr)), EINVAL) << "there is no number";
  param.qp_num = 0x456;
  ASSERT_EQ(rdma_accept(asked.id, &param), 0) << errno;
  EXPECT_EQ(error_of(rdma_accept(asked.id, &param)), EINVAL) << "once";
  EXPECT_EQ(error_of(rdma_reject(asked.id, nullptr, 0)), EINVAL) << "it is accepted";
  const Seen answered = active_.next();
  ASSERT_EQ(answered.type, RDMA_CM_EVENT_CONNECT_RESPONSE);
  EXPECT_EQ(answered.connection.qp_num, 0x456u);
  EXPECT_EQ(answered.connection.srq, 1);
  EXPECT_TRUE(passive_.silent()) << "nobody has answered yet";
  ASSERT_EQ(rdma_accept(active.get(), nullptr), 0) << "as good as rdma_establish(): " << errno;
  EXPECT_EQ(passive_.next().type, RDMA_CM_EVENT_ESTABLISHED);
}

TEST_F(RdmaCmTerms, SharedReceiveQueue_IsReported) {
  listen();
  const OwnId active = resolved();
  ibv_srq_init_attr shared{};
  shared.attr.max_wr = 8;
  shared.attr.max_sge = 1;
  ASSERT_EQ(rdma_create_srq(active.get(), nullptr, &shared), 0) << errno;
  make_qp(active.get());
  ASSERT_EQ(active->qp->srq, active->srq);
  rdma_conn_param param = param_of();
  ASSERT_EQ(rdma_connect(active.get(), &param), 0) << errno;
  const Seen asked = passive_.next();
  ASSERT_EQ(asked.type, RDMA_CM_EVENT_CONNECT_REQUEST);
  passive_id_.reset(asked.id);
  EXPECT_EQ(asked.connection.srq, 1);
  ASSERT_EQ(rdma_create_srq(asked.id, nullptr, &shared), 0) << errno;
  make_qp(asked.id);
  ASSERT_EQ(rdma_accept(asked.id, &param), 0) << errno;
  EXPECT_EQ(active_.next().connection.srq, 1);
}

TEST_F(RdmaCmTerms, Connection_Addresses_AreTheSameAtBothEnds) {
  for (const auto& [address, from] : {std::pair("127.0.0.2", "127.0.0.3"), {"::1", "::1"}}) {
    listen(RDMA_PS_TCP, address);
    const OwnId active = make_id(active_.get());
    ASSERT_EQ(rdma_resolve_addr(active.get(), Address(from).get(), Address(address, port_).get(), 100), 0) << errno;
    EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
    ASSERT_EQ(rdma_resolve_route(active.get(), 100), 0);
    EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
    make_qp(active.get());
    ASSERT_EQ(rdma_connect(active.get(), nullptr), 0) << errno;
    const OwnId passive = requested();
    ASSERT_TRUE(passive);
    const size_t length = std::string_view(address) == "::1" ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    EXPECT_EQ(std::memcmp(rdma_get_local_addr(passive.get()), rdma_get_peer_addr(active.get()), length), 0) << address;
    EXPECT_EQ(std::memcmp(rdma_get_peer_addr(passive.get()), rdma_get_local_addr(active.get()), length), 0) << address;
    const rdma_ib_addr &here = active->route.addr.addr.ibaddr, &there = passive->route.addr.addr.ibaddr;
    EXPECT_EQ(std::memcmp(&here.sgid, &there.dgid, sizeof here.sgid), 0);
    EXPECT_EQ(std::memcmp(&here.dgid, &there.sgid, sizeof here.sgid), 0);
    EXPECT_EQ(passive->route.num_paths, 1);
    EXPECT_EQ(passive->port_num, 1);
    listener_.reset();
  }
}

TEST_F(RdmaCmTerms, PrivateData_ShorterThanTheMessage_IsPaddedWithZeros) {
  listen();
  const OwnId active = connecting("some");
  const Seen asked = passive_.next();
  ASSERT_EQ(asked.type, RDMA_CM_EVENT_CONNECT_REQUEST);
  const OwnId passive(asked.id);
  EXPECT_EQ(asked.data, "some" + std::string(52, '\0')) << "56 bytes are left of a REQ's";
  ASSERT_EQ(rdma_reject(passive.get(), "because", 7), 0) << errno;
  const Seen refused = active_.next();
  EXPECT_EQ(refused.data, "because" + std::string(141, '\0')) << "148 of a REJ's";
}

}  // namespace
}  // namespace nupa::test
