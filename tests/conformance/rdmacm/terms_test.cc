/// What the two ends of a connection agree on, and how it ends, through the drop-in.
#ifdef NUPA_TEST_DROPIN
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/ib.h>
#include <nupa/connection_manager.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "fixture.h"
#include "../../support/sanitizers.h"

namespace nupa::test {
namespace {

/// Called in this thread before it changes the state of a queue pair.
thread_local std::function<void()> before_modify;

}  // namespace
}  // namespace nupa::test

extern "C" __attribute__((visibility("default"))) int modify_with_a_step(ibv_qp* qp, ibv_qp_attr* attr,
                                                                         int mask) __asm__("ibv_modify_qp");
int modify_with_a_step(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  static auto* const real = reinterpret_cast<int (*)(ibv_qp*, ibv_qp_attr*, int)>(dlsym(RTLD_NEXT, "ibv_modify_qp"));
  if (nupa::test::before_modify) std::exchange(nupa::test::before_modify, nullptr)();
  return real(qp, attr, mask);
}

namespace nupa::test {
namespace {

constexpr int kConsumerReject = 28;
constexpr int kVendorOptionReject = 35;
constexpr int kReads = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

ibv_qp_attr attributes_of(ibv_qp* qp) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  constexpr int kAll = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT |
                       IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_DEST_QPN | IBV_QP_QKEY;
  EXPECT_EQ(ibv_query_qp(qp, &attr, kAll, &init), 0);
  return attr;
}

class RdmaCmTerms : public RdmaCm {
 protected:
  OwnId connecting_with(rdma_conn_param* param) {
    OwnId id = resolved();
    make_qp(id.get());
    EXPECT_EQ(rdma_connect(id.get(), param), 0) << errno;
    return id;
  }
  /// The next request, its id with a queue pair.
  Seen request() {
    Seen seen = passive_.next();
    EXPECT_EQ(seen.type, RDMA_CM_EVENT_CONNECT_REQUEST);
    if (seen.type != RDMA_CM_EVENT_CONNECT_REQUEST) return seen;
    make_qp(seen.id);
    passive_id_.reset(seen.id);
    return seen;
  }
  ibv_device_attr device() {
    ibv_device_attr attr{};
    const OwnId id = resolved();
    EXPECT_EQ(ibv_query_device(id->verbs, &attr), 0);
    return attr;
  }

  OwnId passive_id_;
};

TEST_F(RdmaCmTerms, WhatEachEndOffersReachesTheOther) {
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

TEST_F(RdmaCmTerms, WithoutParametersTheMostThatTheDeviceCan) {
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

TEST_F(RdmaCmTerms, TheMostByNameIsTheMostThatTheDeviceCan) {
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

TEST_F(RdmaCmTerms, AcceptedWithoutParameters_WhatWasAskedFor) {
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

TEST_F(RdmaCmTerms, AcceptedWithoutParameters_NoMoreThanTheDeviceCan) {
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

TEST_F(RdmaCmTerms, TheTimeThatTheOtherEndTakesToAcknowledge_IsAddedToTheTimeout) {
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

TEST_F(RdmaCmTerms, AnEndThatServesNoReadsAllowsNone) {
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

TEST_F(RdmaCmTerms, MoreThanTheDeviceCanIsRefusedByBothEnds) {
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

TEST_F(RdmaCmTerms, DatagramsHaveNoDepths) {
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

TEST_F(RdmaCmTerms, TheAddressHandleOfAServiceHasThePathsFields) {
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

TEST_F(RdmaCmTerms, ARequestHasItsListenersContext) {
  listen();
  listener_->context = this;
  const OwnId active = connecting();
  const OwnId passive = requested();
  ASSERT_TRUE(passive);
  EXPECT_EQ(passive->context, this);
}

TEST_F(RdmaCmTerms, RetryCountsHaveThreeBits) {
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

TEST_F(RdmaCmTerms, WithoutAQueuePairItsNumberAndItsSharedQueueAreTheProgramsToTell) {
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

TEST_F(RdmaCmTerms, ASharedReceiveQueueIsTold) {
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

TEST_F(RdmaCmTerms, BothEndsShowTheSameAddresses) {
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

TEST_F(RdmaCmTerms, DataHasTheLengthOfItsRoom) {
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

// Attributes for programs that move their queue pairs themselves.

TEST_F(RdmaCmTerms, InitQpAttr_NeedsWhatTheEndsAgreeOn) {
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

TEST_F(RdmaCmTerms, InitQpAttr_OfDatagrams) {
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

TEST_F(RdmaCmKinds, UnreliableConnections) {
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

TEST_F(RdmaCmKinds, ExtendedConnections) {
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

TEST_F(RdmaCmKinds, ARequestForAnotherKindIsRejected) {
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

TEST_F(RdmaCmKinds, AQuestionForDatagramsOfConnectionsIsRefused) {
  for (const ibv_qp_type listens : {IBV_QPT_RC, IBV_QPT_UC}) {
    listen_as(listens);
    const OwnId active = connecting_as(IBV_QPT_UD);
    const Seen seen = refused();
    EXPECT_EQ(seen.type, RDMA_CM_EVENT_UNREACHABLE) << listens;
    EXPECT_EQ(seen.status, 2) << "IBTA table 121: rejected";
  }
}

// Refusals.

TEST_F(RdmaCmTerms, ARejectedQueuePairIsInErrorAndConnectsNoMore) {
  listen();
  const OwnId active = connecting();
  request();
  ASSERT_TRUE(passive_id_);
  EXPECT_EQ(error_of(rdma_reject(passive_id_.get(), nullptr, 1)), EINVAL) << "no data";
  ASSERT_EQ(rdma_reject(passive_id_.get(), nullptr, 0), 0) << errno;
  EXPECT_EQ(attributes_of(active->qp).qp_state, IBV_QPS_INIT) << "until the program hears of it";
  const Seen seen = active_.next();
  EXPECT_EQ(seen.type, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(seen.status, kConsumerReject);
  EXPECT_EQ(attributes_of(active->qp).qp_state, IBV_QPS_ERR);
  EXPECT_EQ(error_of(rdma_connect(active.get(), nullptr)), EINVAL);
  EXPECT_EQ(error_of(rdma_establish(active.get())), EINVAL);
  EXPECT_TRUE(active_.silent() && passive_.silent());
}

TEST_F(RdmaCmTerms, OtherVendorsOptionsAreAReason) {
  listen();
  const OwnId active = connecting();
  request();
  ASSERT_TRUE(passive_id_);
  ASSERT_EQ(rdma_reject_ece(passive_id_.get(), "ece", 3), 0) << errno;
  const Seen seen = active_.next();
  EXPECT_EQ(seen.type, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(seen.status, kVendorOptionReject);
  EXPECT_EQ(seen.data.substr(0, 4), std::string("ece\0", 4));
  EXPECT_EQ(error_of(rdma_reject_ece(passive_id_.get(), nullptr, 0)), EINVAL) << "once";
}

TEST_F(RdmaCmTerms, VendorOptionsAreOfProgramsThatMakeTheirQueuePairsThemselves) {
  const OwnId id = resolved("127.0.0.1", RDMA_PS_TCP, 7);
  ibv_ece ece{};
  EXPECT_EQ(error_of(rdma_set_local_ece(nullptr, &ece)), EINVAL);
  EXPECT_EQ(error_of(rdma_set_local_ece(id.get(), nullptr)), EINVAL);
  EXPECT_EQ(error_of(rdma_set_local_ece(id.get(), &ece)), EINVAL) << "no vendor";
  ece.vendor_id = 1;
  ece.comp_mask = 1;
  EXPECT_EQ(error_of(rdma_set_local_ece(id.get(), &ece)), EINVAL) << "an extension that there is not";
  ece.comp_mask = 0;
  EXPECT_EQ(rdma_set_local_ece(id.get(), &ece), 0) << errno;
  ece = {2, 3, 4};
  EXPECT_EQ(error_of(rdma_get_remote_ece(nullptr, &ece)), EINVAL);
  EXPECT_EQ(error_of(rdma_get_remote_ece(id.get(), nullptr)), EINVAL);
  ASSERT_EQ(rdma_get_remote_ece(id.get(), &ece), 0) << errno;
  EXPECT_TRUE(ece.vendor_id == 0 && ece.options == 0 && ece.comp_mask == 0);
  make_qp(id.get());
  ece.vendor_id = 1;
  EXPECT_EQ(error_of(rdma_set_local_ece(id.get(), &ece)), EINVAL);
  EXPECT_EQ(error_of(rdma_get_remote_ece(id.get(), &ece)), EINVAL);
}

TEST_F(RdmaCmTerms, AQueuePairThatCannotBeConnectedIsAnErrorAtBothEnds) {
  listen();
  const OwnId active = connecting();
  request();
  ASSERT_TRUE(passive_id_);
  ASSERT_EQ(rdma_accept(passive_id_.get(), nullptr), 0) << errno;
  ASSERT_TRUE(active_.ready(kSoonMs));
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(active->qp, &attr, IBV_QP_STATE), 0);
  const Seen seen = active_.next();
  EXPECT_EQ(seen.type, RDMA_CM_EVENT_CONNECT_ERROR);
  EXPECT_EQ(seen.status, -EINVAL);
  const Seen other = passive_.next();
  EXPECT_EQ(other.type, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(other.status, kConsumerReject);
  EXPECT_EQ(attributes_of(passive_id_->qp).qp_state, IBV_QPS_ERR);
  EXPECT_TRUE(active_.silent() && passive_.silent()) << "told once";
}

TEST_F(RdmaCmTerms, AcceptThatIsTakenBackBeforeItsReplyIsRead_IsOneError) {
  listen();
  const OwnId active = connecting();
  request();
  ASSERT_TRUE(passive_id_);
  ASSERT_EQ(rdma_accept(passive_id_.get(), nullptr), 0) << errno;
  ASSERT_TRUE(active_.ready(kSoonMs));
  ASSERT_EQ(rdma_disconnect(passive_id_.get()), 0) << errno;
  ASSERT_EQ(passive_.next().type, RDMA_CM_EVENT_DISCONNECTED) << "the other end has got it";
  const Seen seen = active_.next();
  EXPECT_EQ(seen.type, RDMA_CM_EVENT_CONNECT_ERROR);
  EXPECT_EQ(seen.id, active.get());
  ASSERT_EQ(fcntl(active_.get()->fd, F_SETFL, O_NONBLOCK), 0);
  rdma_cm_event* event = nullptr;
  EXPECT_EQ(error_of(rdma_get_cm_event(active_.get(), &event)), EAGAIN) << "told once";
  if (event != nullptr) rdma_ack_cm_event(event);
}

TEST_F(RdmaCmTerms, AQueuePairThatCannotAcceptLeavesTheRequest) {
  listen();
  const OwnId active = connecting();
  request();
  ASSERT_TRUE(passive_id_);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(passive_id_->qp, &attr, IBV_QP_STATE), 0);
  EXPECT_EQ(error_of(rdma_accept(passive_id_.get(), nullptr)), EINVAL);
  EXPECT_TRUE(active_.silent()) << "no answer was sent";
  rdma_destroy_qp(passive_id_.get());
  make_qp(passive_id_.get());
  ASSERT_EQ(rdma_accept(passive_id_.get(), nullptr), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ESTABLISHED);
}

// The end.

TEST_F(RdmaCmTerms, BothEndsDisconnectAtOnce_EachHearsOfItOnce) {
  listen();
  auto [active, passive] = connected();
  ASSERT_EQ(rdma_disconnect(active.get()), 0) << errno;
  ASSERT_EQ(rdma_disconnect(passive.get()), 0) << errno;
  for (const auto& [events, id] : {std::pair(&active_, active.get()), {&passive_, passive.get()}}) {
    EXPECT_EQ(attributes_of(id->qp).qp_state, IBV_QPS_ERR);
    Seen seen = events->next();
    EXPECT_EQ(seen.type, RDMA_CM_EVENT_DISCONNECTED);
    EXPECT_EQ(seen.id, id);
    EXPECT_EQ(seen.status, 0);
    seen = events->next();
    EXPECT_EQ(seen.type, RDMA_CM_EVENT_TIMEWAIT_EXIT);
    EXPECT_EQ(seen.id, id);
  }
  EXPECT_TRUE(active_.silent() && passive_.silent());
}

TEST_F(RdmaCmTerms, DisconnectingAgainTellsNothingNew) {
  listen();
  auto [active, passive] = connected();
  ASSERT_EQ(rdma_disconnect(active.get()), 0) << errno;
  ASSERT_EQ(rdma_disconnect(active.get()), 0) << "it is under way: " << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_DISCONNECTED);
  EXPECT_EQ(passive_.next().type, RDMA_CM_EVENT_DISCONNECTED);
  EXPECT_EQ(error_of(rdma_connect(active.get(), nullptr)), EINVAL);
  EXPECT_EQ(error_of(rdma_establish(active.get())), EINVAL);
  EXPECT_EQ(error_of(rdma_accept(passive.get(), nullptr)), EINVAL);
  EXPECT_EQ(error_of(rdma_reject(passive.get(), nullptr, 0)), EINVAL);
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_TIMEWAIT_EXIT);
  EXPECT_EQ(passive_.next().type, RDMA_CM_EVENT_TIMEWAIT_EXIT);
}

TEST_F(RdmaCmTerms, TheOtherEndsDisconnectionLeavesTheQueuePairToTheProgram) {
  listen();
  auto [active, passive] = connected();
  ASSERT_EQ(rdma_disconnect(active.get()), 0) << errno;
  EXPECT_EQ(passive_.next().type, RDMA_CM_EVENT_DISCONNECTED);
  EXPECT_EQ(attributes_of(passive->qp).qp_state, IBV_QPS_RTS);
  ASSERT_EQ(rdma_disconnect(passive.get()), 0) << errno;
  EXPECT_EQ(attributes_of(passive->qp).qp_state, IBV_QPS_ERR);
}

TEST_F(RdmaCmTerms, Disconnect_InAChild_LeavesTheParentsConnection) {
  listen();
  auto [active, passive] = connected();
  rdma_cm_id* const inherited = active.get();
  EXPECT_TRUE(holds_in_child([&] {
    EXPECT_EQ(error_of(rdma_disconnect(inherited)), EINVAL);
    EXPECT_EQ(rdma_destroy_id(inherited), 0) << errno;
  }));
  EXPECT_EQ(attributes_of(active->qp).qp_state, IBV_QPS_RTS);
  ASSERT_EQ(rdma_disconnect(active.get()), 0) << errno;
  EXPECT_EQ(passive_.next().type, RDMA_CM_EVENT_DISCONNECTED);
}

TEST_F(RdmaCmTerms, Fork_WhileAThreadDisconnects_TheChildWaitsForNoLock) {
  listen();
  auto [active, passive] = connected();
  rdma_cm_id* const inherited = active.get();
  std::promise<void> inside, forked;
  std::thread other([&] {
    before_modify = [&] {
      inside.set_value();
      forked.get_future().wait();
    };
    EXPECT_EQ(rdma_disconnect(inherited), 0) << errno;
  });
  inside.get_future().wait();
  EXPECT_TRUE(holds_in_child([&] {
    EXPECT_EQ(error_of(rdma_disconnect(inherited)), EINVAL);
    EXPECT_EQ(rdma_destroy_id(inherited), 0) << errno;
  }));
  forked.set_value();
  other.join();
  EXPECT_EQ(passive_.next().type, RDMA_CM_EVENT_DISCONNECTED);
}

/// A service of another process, which ends while it has a question.
TEST(RdmaCmPeers, AServiceThatDiesIsUnreachable) {
  if (test::kThreadSanitizer) GTEST_SKIP() << test::kNoThreadInChild;
  std::array<int, 2> port_pipe{}, asked_pipe{};
  ASSERT_EQ(pipe(port_pipe.data()), 0);
  ASSERT_EQ(pipe(asked_pipe.data()), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Events events;
    OwnId listener = make_id(events.get(), RDMA_PS_UDP);
    uint16_t port = 0;
    if (bind_to(listener.get(), "127.0.0.1") == 0 && rdma_listen(listener.get(), 4) == 0)
      port = port_of(listener.get());
    bool good = write(port_pipe[1], &port, sizeof port) == sizeof port;
    const char told = events.take() != nullptr ? 1 : 0;
    good = write(asked_pipe[1], &told, 1) == 1 && good;
    while (good) pause();
    _exit(1);
  }
  uint16_t port = 0;
  EXPECT_EQ(read(port_pipe[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  EXPECT_NE(port, 0);
  {
    const Events events;
    const OwnId id = make_id(events.get(), RDMA_PS_UDP);
    EXPECT_EQ(rdma_resolve_addr(id.get(), nullptr, Address("127.0.0.1", port).get(), 2000), 0) << errno;
    EXPECT_EQ(events.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(rdma_resolve_route(id.get(), 2000), 0) << errno;
    EXPECT_EQ(events.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
    make_qp(id.get());
    EXPECT_EQ(rdma_connect(id.get(), nullptr), 0) << errno;
    char asked = 0;
    EXPECT_EQ(read(asked_pipe[0], &asked, 1), 1);
    EXPECT_EQ(asked, 1);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const Seen seen = events.next();
    EXPECT_EQ(seen.type, RDMA_CM_EVENT_UNREACHABLE);
    // Over packets the question is repeated, and another process says that nobody has the service (IBTA table 121).
    const char* transport = std::getenv("NUPA_TRANSPORT");
    const bool may_be_answered = transport != nullptr && std::string_view(transport) == "roce";
    EXPECT_TRUE(seen.status == -ETIMEDOUT || (may_be_answered && seen.status == 1)) << seen.status;
    EXPECT_TRUE(events.silent());
  }
  for (const int fd : {port_pipe[0], port_pipe[1], asked_pipe[0], asked_pipe[1]}) close(fd);
}

TEST(RdmaCmPeers, AChildHasDevicesAndAManagerOfItsOwn) {
  if (test::kThreadSanitizer) GTEST_SKIP() << test::kNoThreadInChild;
  const Events events;
  const OwnId id = make_id(events.get());
  ASSERT_EQ(bind_to(id.get(), "127.0.0.1"), 0) << "the parent has its manager: " << errno;
  ibv_context** const devices = rdma_get_devices(nullptr);
  ASSERT_NE(devices, nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(kSoonMs / 1000);
    const Events of_child;
    const OwnId listener = make_id(of_child.get());
    EXPECT_EQ(bind_to(listener.get(), "127.0.0.1"), 0) << errno;
    EXPECT_EQ(rdma_listen(listener.get(), 1), 0) << errno;
    ibv_context** const own = rdma_get_devices(nullptr);
    EXPECT_TRUE(own != nullptr && own[0] != nullptr && own[0] != devices[0]);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  rdma_free_devices(devices);
}

}  // namespace
}  // namespace nupa::test
#endif  // NUPA_TEST_DROPIN
