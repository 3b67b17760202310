// SPDX-License-Identifier: Apache-2.0
/// When and how often a completion queue raises an event (IBTA 11.4.2.2, manual ibv_req_notify_cq), and what a queue
/// keeps when other objects are destroyed.
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "../../support/soon.h"
#include "fixture.h"

namespace nupa::test {
namespace {

class VerbsNotification : public VerbsPair {
 protected:
  void SetUp() override {
    VerbsPair::SetUp();
    channel = ibv_create_comp_channel(context);
    ASSERT_NE(channel, nullptr);
    ASSERT_EQ(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK), 0);
    watched = make_cq();
    loop = make_loop(watched);
  }
  void TearDown() override {
    for (ibv_qp* qp : qps) EXPECT_EQ(ibv_destroy_qp(qp), 0);
    qps.clear();
    for (ibv_cq* each : cqs) EXPECT_EQ(ibv_destroy_cq(each), 0);
    EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
    VerbsPair::TearDown();
  }

  ibv_cq* make_cq(int entries = 32) {
    ibv_cq* made = ibv_create_cq(context, entries, nullptr, channel, 0);
    EXPECT_NE(made, nullptr);
    cqs.push_back(made);
    return made;
  }
  void destroy(ibv_cq* gone) {
    cqs.erase(std::find(cqs.begin(), cqs.end(), gone));
    EXPECT_EQ(ibv_destroy_cq(gone), 0);
  }
  void destroy(ibv_qp* gone) {
    qps.erase(std::find(qps.begin(), qps.end(), gone));
    EXPECT_EQ(ibv_destroy_qp(gone), 0);
  }
  /// A queue pair that is connected to itself and completes to `target`.
  ibv_qp* make_loop(ibv_cq* target) {
    ibv_qp_init_attr attr = init();
    attr.send_cq = attr.recv_cq = target;
    ibv_qp* qp = keep(ibv_create_qp(pd, &attr));
    connect(qp, qp);
    return qp;
  }
  /// One completion more, which nobody takes yet. `target` is where `qp` completes.
  void complete(ibv_qp* qp, uint64_t wr_id) {
    ibv_sge sge = span(0, 8);
    ASSERT_EQ(post(qp, remote(IBV_WR_RDMA_WRITE, wr_id, &sge, 4096)), 0);
    // Over packets: requests of one port are executed in order, and what was posted later is done.
    catch_up();
    // With a copy engine: the completion is there when the send queue has drained (10.3.1.5).
    ibv_qp_attr attr{};
    ibv_qp_init_attr made{};
    attr.qp_state = IBV_QPS_SQD;
    ASSERT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
    EXPECT_TRUE(soon([&] { return ibv_query_qp(qp, &attr, IBV_QP_STATE, &made) == 0 && !attr.sq_draining; }));
    attr.qp_state = IBV_QPS_RTS;
    ASSERT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
  }
  void arm(ibv_cq* armed, bool solicited = false) { ASSERT_EQ(ibv_req_notify_cq(armed, solicited), 0); }
  /// The queue whose event is taken; null: there is none.
  ibv_cq* take_event() {
    ibv_cq* from = nullptr;
    void* tag = nullptr;
    if (ibv_get_cq_event(channel, &from, &tag) != 0) return nullptr;
    ibv_ack_cq_events(from, 1);
    return from;
  }
  /// Waits for it.
  ibv_cq* await_event() { return becomes_readable(channel) ? take_event() : nullptr; }

  ibv_comp_channel* channel = nullptr;  ///< never blocks
  ibv_cq* watched = nullptr;
  ibv_qp* loop = nullptr;
  std::vector<ibv_cq*> cqs;
};

TEST_F(VerbsNotification, ArmingForTheSolicitedDoesNotWeakenArmingForTheNext) {  // 11.4.2.2
  arm(watched);
  arm(watched, true);
  complete(loop, 1);
  EXPECT_EQ(await_event(), watched);
}

TEST_F(VerbsNotification, ArmingForTheNextStrengthensArmingForTheSolicited) {  // 11.4.2.2
  arm(watched, true);
  complete(loop, 1);
  EXPECT_EQ(take_event(), nullptr);
  arm(watched);
  complete(loop, 2);
  EXPECT_EQ(await_event(), watched);
}

TEST_F(VerbsNotification, EachArmingRaisesOneEvent) {
  complete(loop, 1);
  EXPECT_EQ(take_event(), nullptr) << "nobody armed it";
  EXPECT_EQ(next(watched).wr_id, 1u);
  arm(watched);
  arm(watched);
  for (uint64_t i = 2; i < 6; ++i) complete(loop, i);
  EXPECT_EQ(await_event(), watched);
  EXPECT_EQ(take_event(), nullptr) << "it was armed once";
  arm(watched);
  complete(loop, 6);
  EXPECT_EQ(await_event(), watched);
  EXPECT_EQ(take_event(), nullptr);
}

TEST_F(VerbsNotification, TwoEventsWhileAThreadSleeps_BothAreReported) {
  ibv_cq* const sends = make_cq();
  ibv_cq* const receives = make_cq();
  ibv_qp_init_attr attr = init();
  attr.send_cq = sends;
  attr.recv_cq = receives;
  ibv_qp* const both = keep(ibv_create_qp(pd, &attr));
  connect(both, both);
  const int flags = fcntl(channel->fd, F_GETFL);
  for (uint64_t turn = 0; turn < 50; ++turn) {
    arm(sends);
    arm(receives);
    ASSERT_EQ(post_recv(both, turn, memory + 64, 8, mr->lkey), 0);
    ASSERT_EQ(fcntl(channel->fd, F_SETFL, flags & ~O_NONBLOCK), 0);
    ibv_cq* first = nullptr;
    std::thread sleeps([&] { first = take_event(); });
    if (turn % 2 == 0) std::this_thread::yield();
    ibv_sge from = span(0, 8);
    ASSERT_EQ(post(both, request(IBV_WR_SEND, turn, &from)), 0);
    sleeps.join();
    ASSERT_EQ(fcntl(channel->fd, F_SETFL, flags), 0);
    ASSERT_EQ(await_event(), first == sends ? receives : sends);
    EXPECT_EQ(take_event(), nullptr);
    EXPECT_EQ(next(sends).wr_id, turn);
    EXPECT_EQ(next(receives).wr_id, turn);
  }
}

// The descriptors of events behave as the kernel's.

/// What poll() reports to a program that asks for everything.
int polled(int fd) {
  pollfd entry{fd, POLLIN | POLLOUT | POLLPRI, 0};
  EXPECT_GE(poll(&entry, 1, 0), 0);
  return entry.revents;
}

TEST_F(VerbsNotification, EventDescriptor_PolledForBoth_IsNeverWritable) {
  EXPECT_EQ(polled(channel->fd), 0);
  EXPECT_EQ(polled(context->async_fd), 0);
  ASSERT_EQ(ibv_req_notify_cq(watched, 0), 0);
  complete(loop, 1);
  EXPECT_TRUE(becomes_readable(channel));
  EXPECT_EQ(polled(channel->fd), POLLIN);
  fd_set read, write;
  FD_ZERO(&read);
  FD_ZERO(&write);
  FD_SET(channel->fd, &read);
  FD_SET(channel->fd, &write);
  FD_SET(context->async_fd, &read);
  FD_SET(context->async_fd, &write);
  timeval none{};
  EXPECT_EQ(select(std::max(channel->fd, context->async_fd) + 1, &read, &write, nullptr, &none), 1);
  EXPECT_TRUE(FD_ISSET(channel->fd, &read));
  EXPECT_EQ(take_event(), watched);
  EXPECT_EQ(polled(channel->fd), 0);
  const int fds[] = {channel->fd, context->async_fd};
  for (const int fd : fds) EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(VerbsNotification, EventDescriptor_InAnEdgeTriggeredSet_EachEventIsAnEdge) {
  const int set = epoll_create1(EPOLL_CLOEXEC);
  ASSERT_GE(set, 0);
  epoll_event wanted{};
  wanted.events = EPOLLIN | EPOLLOUT | EPOLLET;
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, channel->fd, &wanted), 0);
  const auto edge = [&](int wait_ms) {
    epoll_event seen{};
    const int count = epoll_wait(set, &seen, 1, wait_ms);
    return count == 1 ? static_cast<int>(seen.events) : -count;
  };
  EXPECT_EQ(edge(0), 0);
  constexpr int kSoonMs = 10'000;
  // Nobody takes the first event before the second one comes.
  ibv_cq* const other = make_cq();
  ibv_qp* const other_loop = make_loop(other);
  for (const auto& [cq_of, qp] : {std::pair(watched, loop), std::pair(other, other_loop)}) {
    ASSERT_EQ(ibv_req_notify_cq(cq_of, 0), 0);
    complete(qp, 1);
    EXPECT_EQ(edge(kSoonMs), EPOLLIN);
    EXPECT_EQ(edge(0), 0);
  }
  EXPECT_NE(take_event(), nullptr);
  EXPECT_NE(take_event(), nullptr);
  EXPECT_EQ(take_event(), nullptr);
  EXPECT_EQ(edge(0), 0);
  close(set);
}

TEST_F(VerbsNotification, EventDescriptor_BlockingMode_DecidesWhetherACallWaits) {
  ibv_cq* seen = nullptr;
  void* of_cq = nullptr;
  EXPECT_EQ(ibv_get_cq_event(channel, &seen, &of_cq), -1);
  EXPECT_EQ(errno, EAGAIN);
  ibv_async_event event{};
  ASSERT_EQ(fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK), 0);
  EXPECT_EQ(ibv_get_async_event(context, &event), -1);
  EXPECT_EQ(errno, EAGAIN);
  // A duplicate has the same mode. The thread waits once the mode is changed back.
  const int same = dup(channel->fd);
  ASSERT_EQ(fcntl(same, F_SETFL, fcntl(same, F_GETFL) & ~O_NONBLOCK), 0);
  close(same);
  ASSERT_EQ(ibv_req_notify_cq(watched, 0), 0);
  std::thread waits([&] {
    ibv_cq* woken = nullptr;
    void* its_context = nullptr;
    EXPECT_EQ(ibv_get_cq_event(channel, &woken, &its_context), 0);
    EXPECT_EQ(woken, watched);
    ibv_ack_cq_events(woken, 1);
  });
  complete(loop, 1);
  waits.join();
}

TEST_F(VerbsNotification, GetCqEvent_Signal_RestartsOrFailsWithEintr) {
  ASSERT_EQ(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) & ~O_NONBLOCK), 0);
  ASSERT_EQ(ibv_req_notify_cq(watched, 0), 0);
  struct sigaction handles {
  }, before{};
  for (const bool restarts : {true, false}) {
    handles.sa_handler = [](int) {};
    handles.sa_flags = restarts ? SA_RESTART : 0;
    ASSERT_EQ(sigaction(SIGUSR1, &handles, &before), 0);
    std::atomic<int> result{1};
    std::atomic<int> error{0};
    std::atomic<pid_t> number{0};
    std::thread waits([&] {
      number = static_cast<pid_t>(syscall(SYS_gettid));
      ibv_cq* woken = nullptr;
      void* its_context = nullptr;
      const int got = ibv_get_cq_event(channel, &woken, &its_context);
      error = errno;
      result = got;
      if (got == 0) ibv_ack_cq_events(woken, 1);
    });
    const auto until = std::chrono::steady_clock::now() + kTimeout;
    for (int signals = 0; signals < 3 && result == 1;) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      if (number == 0 || !stands_still(number)) continue;
      pthread_kill(waits.native_handle(), SIGUSR1);
      ++signals;
      std::this_thread::yield();
    }
    if (restarts) {
      EXPECT_EQ(result, 1) << std::strerror(error);
      complete(loop, 1);
    } else {
      while (result == 1 && std::chrono::steady_clock::now() < until) pthread_kill(waits.native_handle(), SIGUSR1);
    }
    waits.join();
    EXPECT_EQ(result, restarts ? 0 : -1);
    if (!restarts) {
      EXPECT_EQ(error, EINTR);
    }
    ASSERT_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
  }
}

TEST_F(VerbsNotification, ArmedQueue_PollLeavesCompletions_TheNextRaisesAnEvent) {
  for (uint64_t i = 1; i <= 3; ++i) complete(loop, i);
  arm(watched);
  EXPECT_EQ(take_event(), nullptr) << "what is there already raises none";
  EXPECT_EQ(next(watched).wr_id, 1u);
  EXPECT_EQ(take_event(), watched);
  EXPECT_EQ(next(watched).wr_id, 2u);
  EXPECT_EQ(take_event(), nullptr) << "it is not armed any more";
  arm(watched);
  EXPECT_EQ(next(watched).wr_id, 3u);
  EXPECT_EQ(take_event(), nullptr) << "nothing is left";
  arm(watched, true);
  for (uint64_t i = 4; i <= 5; ++i) complete(loop, i);
  EXPECT_EQ(await_event(), watched) << "armed for the next before";
}

TEST_F(VerbsNotification, ArmedForSolicited_OnlyASolicitedReceiveRaisesAnEvent) {
  ASSERT_EQ(receive(loop, 11, 4096, 64), 0);
  ASSERT_EQ(receive(loop, 12, 4096, 64), 0);
  arm(watched, true);
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(loop, request(IBV_WR_SEND, 1, &sge)), 0);
  EXPECT_EQ(next(watched).status, IBV_WC_SUCCESS);
  EXPECT_EQ(next(watched).status, IBV_WC_SUCCESS);
  EXPECT_EQ(take_event(), nullptr);
  ibv_send_wr wr = request(IBV_WR_SEND, 2, &sge);
  wr.send_flags |= IBV_SEND_SOLICITED;
  ASSERT_EQ(post(loop, wr), 0);
  EXPECT_EQ(await_event(), watched);
}

TEST_F(VerbsNotification, ArmedForSolicited_OnlyASolicitedDatagramRaisesAnEvent) {
  ibv_qp_init_attr attr = init(IBV_QPT_UD);
  attr.recv_cq = watched;
  ibv_qp* receiver = keep(ibv_create_qp(pd, &attr));
  connect(receiver, receiver);
  ibv_ah_attr way = path();
  ibv_ah* ah = ibv_create_ah(pd, &way);
  ASSERT_NE(ah, nullptr);
  ASSERT_EQ(receive(receiver, 11, 4096, 128), 0);
  ASSERT_EQ(receive(receiver, 12, 8192, 128), 0);
  arm(watched, true);
  ibv_sge sge = span(0, 8);
  ibv_send_wr wr = request(IBV_WR_SEND, 1, &sge);
  wr.wr.ud = {ah, receiver->qp_num, kQkey};
  ASSERT_EQ(post(receiver, wr), 0);
  EXPECT_EQ(next(watched).wr_id, 11u);
  EXPECT_EQ(take_event(), nullptr);
  wr.send_flags |= IBV_SEND_SOLICITED;
  ASSERT_EQ(post(receiver, wr), 0);
  EXPECT_EQ(await_event(), watched);
  EXPECT_EQ(next(watched).wr_id, 12u);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST_F(VerbsNotification, NoReceive_NoThreadPolls_FailsAfterItsRetries) {  // 9.7.5.2.8
  rnr_retry = 2;
  min_rnr_timer = 20;  // 10.24 ms
  ibv_qp_init_attr attr = init();
  attr.send_cq = watched;
  ibv_qp* sender = keep(ibv_create_qp(pd, &attr));
  connect(sender, make_qp());
  arm(watched);
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(sender, request(IBV_WR_SEND, 1, &sge)), 0);
  EXPECT_EQ(await_event(), watched) << "a program that sleeps is not woken";
  EXPECT_EQ(next(watched).status, IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST_F(VerbsNotification, FailedReceiveCountsAsSolicited) {  // 11.4.2.2
  arm(watched, true);
  ibv_sge sge = span(0, 8);
  ibv_qp_init_attr attr = init();
  ibv_qp* sender = keep(ibv_create_qp(pd, &attr));
  attr.recv_cq = attr.send_cq = watched;
  ibv_qp* receiver = keep(ibv_create_qp(pd, &attr));
  connect(sender, receiver);
  ASSERT_EQ(receive(receiver, 12, 4096, 4), 0);  // too small
  ASSERT_EQ(post(sender, request(IBV_WR_SEND, 1, &sge)), 0);
  EXPECT_EQ(await_event(), watched);
  EXPECT_EQ(next(watched).status, IBV_WC_LOC_LEN_ERR);
}

TEST_F(VerbsNotification, FlushedReceiveCountsAsSolicited) {  // 11.4.2.2
  ASSERT_EQ(receive(loop, 11, 4096, 64), 0);
  arm(watched, true);
  ASSERT_EQ(move(loop, IBV_QPS_ERR), 0);
  EXPECT_EQ(await_event(), watched);
  EXPECT_EQ(next(watched).status, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(VerbsNotification, Channel_EventsOfTwoQueues_AreReturnedInTurn) {
  ibv_cq* second = make_cq();
  ibv_qp* other = make_loop(second);
  for (uint64_t i = 0; i < 3; ++i)
    for (const auto& [queue, qp] : {std::pair{watched, loop}, std::pair{second, other}}) {
      arm(queue);
      complete(qp, i);
    }
  std::vector<ibv_cq*> told;
  for (int i = 0; i < 6; ++i) told.push_back(await_event());
  for (size_t i = 1; i < told.size(); ++i) EXPECT_NE(told[i], told[i - 1]) << i;
  EXPECT_EQ(take_event(), nullptr);
}

TEST_F(VerbsNotification, DestroyCq_WaitingEvents_AreRemoved) {
  ibv_cq* gone = make_cq();
  ibv_qp* other = make_loop(gone);
  arm(gone);
  complete(other, 1);
  arm(watched);
  complete(loop, 2);
  destroy(other);
  destroy(gone);
  EXPECT_EQ(await_event(), watched);
  pollfd ready{channel->fd, POLLIN, 0};
  EXPECT_EQ(poll(&ready, 1, 0), 0) << "a wake-up for nobody";
  EXPECT_EQ(take_event(), nullptr);
}

TEST_F(VerbsNotification, DestroyQp_CompletionsOfOthers_Stay) {
  ibv_qp* other = make_loop(watched);
  complete(loop, 1);
  complete(other, 2);
  complete(loop, 3);
  complete(other, 4);
  destroy(other);
  EXPECT_EQ(next(watched).wr_id, 1u);
  EXPECT_EQ(next(watched).wr_id, 3u);
  EXPECT_TRUE(stays_empty(watched));
}

TEST_F(VerbsNotification, ResizeCq_WaitingCompletions_KeepTheirOrder) {  // 11.2.6.3
  for (uint64_t i = 1; i <= 10; ++i) complete(loop, i);
  EXPECT_EQ(next(watched).wr_id, 1u);
  EXPECT_EQ(ibv_resize_cq(watched, 3), EINVAL);  // nine are there
  EXPECT_GE(watched->cqe, 32) << "a refused resize changes nothing";
  complete(loop, 11);
  ASSERT_EQ(ibv_resize_cq(watched, 12), 0);
  EXPECT_GE(watched->cqe, 12);
  complete(loop, 12);
  for (uint64_t i = 2; i <= 12; ++i) {
    const ibv_wc wc = next(watched);
    EXPECT_EQ(wc.wr_id, i);
    EXPECT_EQ(wc.opcode, IBV_WC_RDMA_WRITE);
    EXPECT_EQ(wc.qp_num, loop->qp_num);
  }
  ASSERT_EQ(ibv_resize_cq(watched, 1), 0);
  complete(loop, 13);
  EXPECT_EQ(next(watched).wr_id, 13u);
  EXPECT_TRUE(stays_empty(watched));
}

TEST_F(VerbsNotification, ResizeCq_FewerThanTheWaitingCompletions_IsRefused) {  // 11.2.6.3
  for (uint64_t i = 1; i <= 8; ++i) complete(loop, i);
  EXPECT_EQ(ibv_resize_cq(watched, 7), EINVAL);
  ASSERT_EQ(ibv_resize_cq(watched, 8), 0);
  EXPECT_GE(watched->cqe, 8);
  for (uint64_t i = 1; i <= 8; ++i) EXPECT_EQ(next(watched).wr_id, i);
}

TEST_F(VerbsNotification, CompletionQueue_HoldsCqeCompletions) {
  for (const int wanted : {1, 2, 3, 4, 7, 8, 16}) {
    ibv_cq* exact = ibv_create_cq(context, wanted, nullptr, nullptr, 0);
    ASSERT_NE(exact, nullptr);
    EXPECT_GE(exact->cqe, wanted);
    EXPECT_EQ(ibv_destroy_cq(exact), 0);
  }
  ibv_device_attr limits{};
  ASSERT_EQ(ibv_query_device(context, &limits), 0);
  EXPECT_EQ(ibv_create_cq(context, limits.max_cqe + 1, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_resize_cq(watched, limits.max_cqe + 1), EINVAL);
  ibv_cq* largest = ibv_create_cq(context, limits.max_cqe, nullptr, nullptr, 0);
  ASSERT_NE(largest, nullptr);
  EXPECT_EQ(largest->cqe, limits.max_cqe);
  EXPECT_EQ(ibv_destroy_cq(largest), 0);
}

TEST_F(VerbsNotification, PollCq_ReturnsAtMostTheRequestedNumber) {
  for (uint64_t i = 1; i <= 5; ++i) complete(loop, i);
  ibv_wc wc[8] = {};
  EXPECT_EQ(ibv_poll_cq(watched, 2, wc), 2);
  EXPECT_EQ(wc[0].wr_id, 1u);
  EXPECT_EQ(wc[1].wr_id, 2u);
  EXPECT_EQ(ibv_poll_cq(watched, 8, wc), 3);
  EXPECT_EQ(wc[2].wr_id, 5u);
}

TEST_F(VerbsNotification, DestroyQp_WaitingEvent_IsRemoved) {
  make_pair();
  ibv_sge sge = span(0, 8);
  ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, 1, &sge, 4096);
  wr.wr.rdma.rkey ^= 1;
  ASSERT_EQ(post(a, wr), 0);
  pollfd ready{context->async_fd, POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, std::chrono::milliseconds(kTimeout).count()), 1);
  destroy(b);
  ASSERT_EQ(fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK), 0);
  ibv_async_event event{};
  EXPECT_EQ(ibv_get_async_event(context, &event), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(VerbsNotification, DestroyQp_UnacknowledgedEvent_WaitsForIt) {  // manual ibv_get_async_event
  make_pair();
  ibv_sge sge = span(0, 8);
  ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, 1, &sge, 4096);
  wr.wr.rdma.rkey ^= 1;
  ASSERT_EQ(post(a, wr), 0);
  pollfd ready{context->async_fd, POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, std::chrono::milliseconds(kTimeout).count()), 1);
  ibv_async_event event{};
  ASSERT_EQ(ibv_get_async_event(context, &event), 0);
  ASSERT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
  ASSERT_EQ(event.element.qp, b);
  std::atomic<bool> destroyed{false};
  std::thread destroyer([&] {
    destroy(b);
    destroyed = true;
  });
  // sleep: a call that does not wait would return within that time
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(destroyed.load());
  ibv_ack_async_event(&event);
  destroyer.join();
}

}  // namespace
}  // namespace nupa::test
