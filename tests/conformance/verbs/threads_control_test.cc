// SPDX-License-Identifier: Apache-2.0
/// Threads that make, change and destroy objects while others use theirs.
#include <fcntl.h>
#include <poll.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "fixture.h"
#include "../../support/sanitizers.h"
#include "../../support/soon.h"

namespace nupa::test {
namespace {

const int kRounds = test::kSanitized ? 10 : 200;

class VerbsControl : public Verbs {
 protected:
  void SetUp() override {
    Verbs::SetUp();
    mr = reg(memory, sizeof memory);
    ASSERT_NE(mr, nullptr);
  }

  /// A signalled request of eight bytes at 64, from the first word; what a READ brings lies elsewhere, since other
  /// threads may be sending the first word.
  int post(ibv_qp* qp, uint64_t wr_id, ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE) {
    const size_t at = opcode == IBV_WR_RDMA_READ ? 192 : 0;
    ibv_sge sge{reinterpret_cast<uint64_t>(memory + at), 8, mr->lkey};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = wr_id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {reinterpret_cast<uint64_t>(memory + 64), mr->rkey};
    return ibv_post_send(qp, &wr, &bad);
  }

  int post_shared(ibv_srq* srq, uint64_t wr_id) {
    ibv_sge sge{reinterpret_cast<uint64_t>(memory + 128), 64, mr->lkey};
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = wr_id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    return ibv_post_srq_recv(srq, &wr, &bad);
  }

  /// Without gtest's checks: for threads. A queue pair connected to itself, or null.
  ibv_qp* loop(ibv_cq* target) {
    ibv_qp_init_attr attr = init();
    attr.send_cq = attr.recv_cq = target;
    ibv_qp* qp = ibv_create_qp(pd, &attr);
    if (qp != nullptr && to_init(qp) == 0 && to_rts(qp, qp->qp_num) == 0) return qp;
    fail("cannot connect");
    return qp;
  }

  void check(bool good, const char* what) {
    if (!good) fail(what);
  }
  void fail(const char* what) {
    std::lock_guard lock(mutex);
    if (faults.size() < 8) faults.emplace_back(what);
  }
  void expect_no_fault() {
    for (const std::string& fault : faults) ADD_FAILURE() << fault;
  }

  alignas(4096) char memory[4096] = {};
  ibv_mr* mr = nullptr;
  std::mutex mutex;
  std::vector<std::string> faults;
};

TEST_F(VerbsControl, Objects_MadeAndDestroyedDuringTraffic_TrafficGoesOn) {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> written{0};
  ibv_cq* busy = ibv_create_cq(context, 256, nullptr, nullptr, 0);
  ASSERT_NE(busy, nullptr);
  ibv_qp* qp = loop(busy);
  const auto traffic = [&] {
    for (uint64_t i = 0; !stop.load(); ++i) {
      const int error = post(qp, i, i % 2 == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ);
      check(error == 0 || error == ENOMEM, "post beside");
      ibv_wc wc[4];
      const int count = ibv_poll_cq(busy, 4, wc);
      check(count >= 0, "poll beside");
      for (int k = 0; k < count; ++k) check(wc[k].status == IBV_WC_SUCCESS, "status beside");
      written += static_cast<uint64_t>(count > 0 ? count : 0);
    }
  };
  const auto queue_pairs = [&] {
    for (int i = 0; i < kRounds; ++i) {
      ibv_cq* own = ibv_create_cq(context, 16, nullptr, nullptr, 0);
      ibv_qp* made = loop(own);
      check(post(made, 5) == 0, "post on a new queue pair");
      check(next(own).wr_id == 5, "completion of a new queue pair");
      check(ibv_destroy_qp(made) == 0 && ibv_destroy_cq(own) == 0, "destroy queue pair");
    }
  };
  const auto regions = [&] {
    std::vector<char> mine(3 * 4096);
    for (int i = 0; i < kRounds; ++i) {
      ibv_mr* made = ibv_reg_mr(pd, mine.data(), mine.size(), kWholeAccess);
      check(made != nullptr && ibv_dereg_mr(made) == 0, "region");
      made = ibv_reg_mr(pd, memory, sizeof memory, kWholeAccess);  // what the traffic uses
      check(made != nullptr && ibv_dereg_mr(made) == 0, "second region of the same memory");
    }
  };
  const auto others = [&] {
    for (int i = 0; i < kRounds; ++i) {
      ibv_ah_attr attr = path();
      ibv_ah* ah = ibv_create_ah(pd, &attr);
      check(ah != nullptr && ibv_destroy_ah(ah) == 0, "address handle");
      ibv_mw* mw = ibv_alloc_mw(pd, i % 2 == 0 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
      check(mw != nullptr && ibv_dealloc_mw(mw) == 0, "window");
      ibv_srq_init_attr srq_attr{};
      srq_attr.attr = {16, 1, 0};
      ibv_srq* srq = ibv_create_srq(pd, &srq_attr);
      check(srq != nullptr && post_shared(srq, 1) == 0 && ibv_destroy_srq(srq) == 0, "shared receive queue");
      ibv_pd* domain = ibv_alloc_pd(context);
      check(domain != nullptr && ibv_dealloc_pd(domain) == 0, "protection domain");
    }
  };
  std::thread users[] = {std::thread(traffic), std::thread(traffic)};
  std::thread makers[] = {std::thread(queue_pairs), std::thread(queue_pairs), std::thread(regions),
                          std::thread(others)};
  for (std::thread& thread : makers) thread.join();
  stop = true;
  for (std::thread& thread : users) thread.join();
  expect_no_fault();
  EXPECT_GT(written.load(), 0u);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(busy), 0);
}

/// IBTA 10.3.1.7 and 10.8.2: each request that was accepted completes once, done or flushed, and none is done after
/// one was flushed.
TEST_F(VerbsControl, ErrorState_DuringTraffic_CompletesEachRequestOnce) {
  constexpr uint64_t kThreads = 4, kPosts = 200, kReceive = uint64_t{1} << 32;
  for (int round = 0; round < kRounds; ++round) {
    ibv_cq* own = ibv_create_cq(context, 4096, nullptr, nullptr, 0);
    ASSERT_NE(own, nullptr);
    ibv_qp* qp = loop(own);
    std::vector<std::atomic<int>> sends(kThreads * kPosts), receives(2 * kPosts);
    std::atomic<uint64_t> accepted{0}, finished{0};
    std::atomic<int> posting{static_cast<int>(kThreads) + 2};
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        for (uint64_t i = 0; i < kPosts; ++i) {
          const uint64_t id = t * kPosts + i;
          // A send that finds no receive waits in the queue; behind it the others do.
          const int error = post(qp, id, i % 8 == 0 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE);
          check(error == 0 || error == ENOMEM, "post");
          if (error == 0) {
            sends[id] -= 1;
            ++accepted;
          } else {
            std::this_thread::yield();
          }
        }
        --posting;
      });
    for (uint64_t t = 0; t < 2; ++t)
      threads.emplace_back([&, t] {
        for (uint64_t i = 0; i < kPosts; ++i) {
          const uint64_t id = t * kPosts + i;
          const int error = post_recv(qp, kReceive | id, memory + 128, 64, mr->lkey);
          check(error == 0 || error == ENOMEM, "post receive");
          if (error == 0) {
            receives[id] -= 1;
            ++accepted;
          } else {
            std::this_thread::yield();
          }
        }
        --posting;
      });
    threads.emplace_back([&] {
      bool flushed = false;
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while ((posting.load() != 0 || finished.load() < accepted.load()) && std::chrono::steady_clock::now() < end) {
        ibv_wc wc;
        if (ibv_poll_cq(own, 1, &wc) != 1) continue;
        check(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_WR_FLUSH_ERR, ibv_wc_status_str(wc.status));
        const bool receive = (wc.wr_id & kReceive) != 0;
        if (!receive) {
          check(!flushed || wc.status != IBV_WC_SUCCESS, "done after one was flushed");
          flushed = flushed || wc.status != IBV_WC_SUCCESS;
        }
        (receive ? receives[wc.wr_id & ~kReceive] : sends[wc.wr_id]) += 1;
        ++finished;
      }
    });
    // sleep: each round ends at another moment
    std::this_thread::sleep_for(std::chrono::microseconds(100 * (round % 7)));
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(finished.load(), accepted.load()) << round;
    // What was counted at the post and what was counted at the completion cancel out.
    for (size_t id = 0; id < sends.size(); ++id) EXPECT_EQ(sends[id].load(), 0) << "send " << id;
    for (size_t id = 0; id < receives.size(); ++id) EXPECT_EQ(receives[id].load(), 0) << "receive " << id;
    ibv_wc wc;
    EXPECT_EQ(ibv_poll_cq(own, 1, &wc), 0);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_destroy_cq(own), 0);
    if (HasFailure()) break;
  }
  expect_no_fault();
}

/// IBTA 10.2.9.4: arming the limit gives one event, whoever of several senders crosses it.
TEST_F(VerbsControl, SharedQueueLimit_SeveralSenders_IsReportedOncePerArming) {
  constexpr uint32_t kReceives = 32, kLimit = 8, kSenders = 4;
  ASSERT_EQ(fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK), 0);
  ibv_srq_init_attr srq_attr{};
  srq_attr.attr = {kReceives, 1, 0};
  ibv_srq* srq = ibv_create_srq(pd, &srq_attr);
  ASSERT_NE(srq, nullptr);
  std::vector<ibv_qp*> from, to;
  for (uint32_t i = 0; i < kSenders; ++i) {
    ibv_qp_init_attr attr = init();
    attr.srq = srq;
    from.push_back(make_qp());
    to.push_back(ibv_create_qp(pd, &attr));
    connect(from.back(), to.back());
  }
  for (int round = 0; round < kRounds; ++round) {
    for (uint32_t i = 0; i < kReceives; ++i) ASSERT_EQ(post_shared(srq, i), 0);
    ibv_srq_attr limit{};
    limit.srq_limit = kLimit;
    ASSERT_EQ(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kSenders; ++t)
      threads.emplace_back([&, t] {
        for (uint32_t i = 0; i < kReceives / kSenders; ++i) check(post(from[t], 1, IBV_WR_SEND) == 0, "post");
      });
    for (std::thread& thread : threads) thread.join();
    for (uint32_t i = 0; i < 2 * kReceives; ++i) ASSERT_EQ(next().status, IBV_WC_SUCCESS);
    pollfd ready{context->async_fd, POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 20'000), 1) << "no event in round " << round;
    ibv_async_event event{};
    ASSERT_EQ(ibv_get_async_event(context, &event), 0);
    EXPECT_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    EXPECT_EQ(event.element.srq, srq);
    ibv_ack_async_event(&event);
    EXPECT_EQ(::poll(&ready, 1, round < 3 ? 30 : 0), 0) << "a second event in round " << round;
    ASSERT_EQ(ibv_query_srq(srq, &limit), 0);
    EXPECT_EQ(limit.srq_limit, 0u);  // disarmed
    if (HasFailure()) break;
  }
  expect_no_fault();
  for (ibv_qp* qp : to) EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

TEST_F(VerbsControl, Channel_SeveralThreadsWait_EachEventIsReturnedOnce) {
  constexpr int kWaiters = 3;
  const uint64_t kMessages = 40 * static_cast<uint64_t>(kRounds);
  ibv_comp_channel* channel = ibv_create_comp_channel(context);
  ASSERT_NE(channel, nullptr);
  ASSERT_EQ(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK), 0);
  ibv_cq* watched[2];
  ibv_qp* qp[2];
  for (int i = 0; i < 2; ++i) {
    watched[i] = ibv_create_cq(context, 256, &watched[i], channel, 0);
    ASSERT_NE(watched[i], nullptr);
    ASSERT_EQ(ibv_req_notify_cq(watched[i], 0), 0);
    qp[i] = loop(watched[i]);
  }
  std::atomic<uint64_t> seen{0}, events{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kWaiters; ++t)
    threads.emplace_back([&] {
      while (!stop.load()) {
        pollfd ready{channel->fd, POLLIN, 0};
        ::poll(&ready, 1, 20);
        ibv_cq* from = nullptr;
        void* tag = nullptr;
        if (ibv_get_cq_event(channel, &from, &tag) != 0) {
          check(errno == EAGAIN, "get event");
          continue;
        }
        check(tag == (from == watched[0] ? &watched[0] : &watched[1]), "context of the queue");
        ++events;
        ibv_ack_cq_events(from, 1);
        check(ibv_req_notify_cq(from, 0) == 0, "arm");
        // Armed first, polled then: what came in between is found here, what comes later raises an event.
        ibv_wc wc[8];
        for (int count; (count = ibv_poll_cq(from, 8, wc)) != 0;) {
          check(count > 0, "poll");
          for (int i = 0; i < count; ++i) check(wc[i].status == IBV_WC_SUCCESS, "status");
          seen += static_cast<uint64_t>(count);
        }
      }
    });
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < kMessages; ++i) {
        while (post(qp[t], i) == ENOMEM) std::this_thread::yield();
        if (i % 16 == 0) std::this_thread::yield();
      }
    });
  soon([&] { return seen.load() >= 2 * kMessages; });
  EXPECT_EQ(seen.load(), 2 * kMessages);  // fewer: a wake-up was lost
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(events.load(), 0u);
  expect_no_fault();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(ibv_destroy_qp(qp[i]), 0);
    EXPECT_EQ(ibv_destroy_cq(watched[i]), 0);
  }
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

TEST_F(VerbsControl, DestroyCq_EventsOfOtherThreads_WaitsForTheirAcknowledgement) {
  ibv_comp_channel* channel = ibv_create_comp_channel(context);
  ASSERT_NE(channel, nullptr);
  ASSERT_EQ(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK), 0);
  std::atomic<bool> stop{false};
  std::atomic<int> holding{0};  ///< events taken and not acknowledged
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      while (!stop.load()) {
        ibv_cq* from = nullptr;
        void* tag = nullptr;
        if (ibv_get_cq_event(channel, &from, &tag) != 0) {
          std::this_thread::yield();
          continue;
        }
        ++holding;
        std::this_thread::sleep_for(std::chrono::microseconds(200));  // sleep: the thread holds the event for so long
        check(from->channel == channel, "the queue was destroyed under its event");
        --holding;
        ibv_ack_cq_events(from, 1);
      }
    });
  for (int i = 0; i < kRounds; ++i) {
    ibv_cq* watched = ibv_create_cq(context, 16, nullptr, channel, 0);
    ASSERT_NE(watched, nullptr);
    ASSERT_EQ(ibv_req_notify_cq(watched, 0), 0);
    ibv_qp* qp = loop(watched);
    ASSERT_EQ(post(qp, 1), 0);
    ASSERT_EQ(ibv_destroy_qp(qp), 0);
    ASSERT_EQ(ibv_destroy_cq(watched), 0);
    EXPECT_EQ(holding.load(), 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  expect_no_fault();
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

/// Requests that find no receive are tried again by a thread of the library: it must not be at it any more once the
/// queue pair is reset, nor may anything of them come afterwards.
TEST_F(VerbsControl, Reset_WhileRequestsAreRetried_NoneIsReportedAfterwards) {
  ibv_qp* sender = make_qp();
  ibv_qp* receiver = make_qp();
  for (int i = 0; i < kRounds; ++i) {
    connect(sender, receiver);
    for (uint64_t request = 1; request <= 8; ++request) ASSERT_EQ(post(sender, request, IBV_WR_SEND), 0);
    std::this_thread::sleep_for(std::chrono::microseconds(37 * (i % 20)));  // sleep: each round ends at another moment
    ASSERT_EQ(move(sender, IBV_QPS_RESET), 0);
    ASSERT_EQ(move(receiver, IBV_QPS_RESET), 0);
    ibv_wc wc;
    EXPECT_EQ(ibv_poll_cq(cq, 1, &wc), 0) << "of request " << wc.wr_id;
  }
  connect(sender, receiver);
  ASSERT_EQ(post_recv(receiver, 100, memory + 128, 64, mr->lkey), 0);
  ASSERT_EQ(post(sender, 200, IBV_WR_SEND), 0);
  for (int i = 0; i < 2; ++i) {
    const ibv_wc wc = next();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_TRUE(wc.wr_id == 100 || wc.wr_id == 200) << wc.wr_id;
  }
}

}  // namespace
}  // namespace nupa::test
