// SPDX-License-Identifier: Apache-2.0
/// Rejected and disconnected connections, through the drop-in.
#include <dlfcn.h>
#include <fcntl.h>
#include <nupa/connection_manager.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "../../support/sanitizers.h"
#include "fixture.h"
#include "terms.h"

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

constexpr int kVendorOptionReject = 35;

// Refusals.

TEST_F(RdmaCmTerms, Reject_QueuePairOfTheClient_IsInErrorAndCannotConnectAgain) {
  listen();
  const OwnId active = connecting();
  request();
  ASSERT_TRUE(passive_id_);
  EXPECT_EQ(error_of(rdma_reject(passive_id_.get(), nullptr, 1)), EINVAL) << "no data";
  ASSERT_EQ(rdma_reject(passive_id_.get(), nullptr, 0), 0) << errno;
  EXPECT_EQ(attributes_of(active->qp).qp_state, IBV_QPS_INIT) << "until the program takes the event";
  const Seen seen = active_.next();
  EXPECT_EQ(seen.type, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(seen.status, kConsumerReject);
  EXPECT_EQ(attributes_of(active->qp).qp_state, IBV_QPS_ERR);
  EXPECT_EQ(error_of(rdma_connect(active.get(), nullptr)), EINVAL);
  EXPECT_EQ(error_of(rdma_establish(active.get())), EINVAL);
  EXPECT_TRUE(active_.silent() && passive_.silent());
}

TEST_F(RdmaCmTerms, RejectEce_DeliversTheVendorOptionReason) {
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

TEST_F(RdmaCmTerms, EceOptions_WrongArguments_AreRefused) {
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

TEST_F(RdmaCmTerms, Response_ClientsQueuePairIsInError_IsAnErrorAtBothEnds) {
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
  EXPECT_TRUE(active_.silent() && passive_.silent()) << "reported once";
}

TEST_F(RdmaCmTerms, Accept_DisconnectedBeforeItsReplyIsRead_IsOneError) {
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
  EXPECT_EQ(error_of(rdma_get_cm_event(active_.get(), &event)), EAGAIN) << "reported once";
  if (event != nullptr) rdma_ack_cm_event(event);
}

TEST_F(RdmaCmTerms, Accept_ServersQueuePairIsInError_LeavesTheRequest) {
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

TEST_F(RdmaCmTerms, Disconnect_BothEndsAtOnce_IsReportedOnceToEach) {
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

TEST_F(RdmaCmTerms, Disconnect_Again_ReportsNoFurtherEvent) {
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

TEST_F(RdmaCmTerms, Disconnect_OfThePeer_LeavesTheQueuePairReadyToSend) {
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
TEST(RdmaCmPeers, Request_ServersProcessDies_IsUnreachable) {
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
    EXPECT_TRUE(seen.status == -ETIMEDOUT || (sends_packets() && seen.status == 1)) << seen.status;
    EXPECT_TRUE(events.silent());
  }
  for (const int fd : {port_pipe[0], port_pipe[1], asked_pipe[0], asked_pipe[1]}) close(fd);
}

TEST(RdmaCmPeers, Fork_OpenManager_ChildOpensItsOwn) {
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
