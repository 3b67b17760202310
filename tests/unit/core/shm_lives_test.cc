// SPDX-License-Identifier: Apache-2.0
/// Tests of the lives of a queue pair over shared memory (from RESET to RESET), and of the wake-ups of its peers.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstddef>
#include <utility>

#include "core/seam/shared_target.h"
#include "host/peer_table.h"
#include "shm_fixture.h"
#include "shm_targets.h"

namespace nupa::core {
namespace {

/// A peer's request fails a queue pair in the very middle of a change of its state: when the change has been allowed
/// and reads what it sets. That lies on a page which is not there until then.
class ShmStateChange : public ShmTarget {
 protected:
  static constexpr size_t kPage = 4096;

  void SetUp() override {
    ShmTarget::SetUp();
    void* mapped = mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    pages = static_cast<char*>(mapped);
    struct sigaction wanted {};
    wanted.sa_sigaction = on_fault;
    wanted.sa_flags = SA_SIGINFO;
    ASSERT_EQ(sigaction(SIGSEGV, &wanted, &before), 0);
  }
  void TearDown() override {
    sigaction(SIGSEGV, &before, nullptr);
    munmap(pages, 2 * kPage);
    ShmTarget::TearDown();
  }
  /// As they are read: en_sqd_async_notify is on the second page, what stands before it on the first.
  QpAttr* attributes() {
    constexpr size_t kBefore = offsetof(QpAttr, en_sqd_async_notify) / alignof(QpAttr) * alignof(QpAttr);
    return new (pages + kPage - kBefore) QpAttr();
  }
  static void on_fault(int, siginfo_t* info, void*) {
    const auto* at = static_cast<const char*>(info->si_addr);
    if (at < pages + kPage || at >= pages + 2 * kPage || target == nullptr) _exit(77);
    mprotect(pages + kPage, kPage, PROT_READ | PROT_WRITE);
    target->fail(EventType::kQpAccessErr);
    target = nullptr;
  }

  static inline char* pages = nullptr;
  static inline SharedTarget* target = nullptr;  ///< of the queue pair that fails
  struct sigaction before {};
};

TEST_F(ShmStateChange, Modify_FailureMeanwhile_StaysInErrorState) {  // IBTA 10.3.1: only RESET leads out of it
  make_pair();
  ASSERT_EQ(receive(*b, 7), 0);
  SharedTarget reached = target_of(*b);
  ASSERT_TRUE(takes_requests(reached, *a));
  target = &reached;
  QpAttr* attr = attributes();
  attr->state = QpState::kSqd;
  ASSERT_EQ(mprotect(pages + kPage, kPage, PROT_NONE), 0);
  EXPECT_EQ(b->modify(*attr, qp_attr::kState | qp_attr::kEnSqdAsyncNotify), 0);
  ASSERT_EQ(target, nullptr) << "nothing happened in the middle";
  EXPECT_EQ(state_of(*b), QpState::kErr);
  const WorkCompletion wc = next();
  EXPECT_EQ(wc.wr_id, 7u);
  EXPECT_EQ(wc.status, WcStatus::kWrFlushErr);
  pollfd event{handle->async_fd(), POLLIN, 0};
  ASSERT_TRUE(soon([&] { return poll(&event, 1, 0) == 1; }));
  const auto reported = handle->next_event();
  ASSERT_TRUE(reported);
  EXPECT_EQ(reported->type, EventType::kQpAccessErr);
  EXPECT_EQ(reported->qp, b);
}

TEST_F(ShmTarget, PeerExit_EarlierProcessOfTheSlot_LeavesTheConnection) {
  make_pair();
  host::Handshake hello{};
  hello.hello.slot = process().slot();
  hello.hello.instance = process().node().self().instance() + 1;
  const auto dead = host::PeerTable::make(std::move(hello), false);
  events().on_peer_exit(*dead);
  EXPECT_EQ(state_of(*a), QpState::kRts);
  EXPECT_EQ(state_of(*b), QpState::kRts);
  expect_served(*a);
}

TEST_F(ShmTarget, FirstRequest_InEachLife_IsReportedOnce) {  // IBTA 11.6.3.1, COMM_EST
  a = make_qp();
  b = make_qp();
  ASSERT_EQ(connect(*a, b->number()), 0);
  for (int life = 0; life < 2; ++life) {
    ASSERT_EQ(to_init(*b), 0);
    ASSERT_EQ(to_rtr(*b, a->number()), 0);
    expect_served(*a);
    expect_served(*a);
    pollfd ready{handle->async_fd(), POLLIN, 0};
    ASSERT_EQ(poll(&ready, 1, 20'000), 1);
    const auto event = handle->next_event();
    ASSERT_TRUE(event);
    EXPECT_EQ(event->type, EventType::kCommEst);
    EXPECT_EQ(event->qp, b);
    host::call_attention(process().node().self(), shm::attention::kQp, b->index());
    events().on_attention();  // or the service thread does, and this waits for it
    pollfd another{handle->async_fd(), POLLIN, 0};
    EXPECT_EQ(poll(&another, 1, 0), 0) << "once in a life";
    ASSERT_EQ(move(*b, QpState::kReset), 0);
    ASSERT_EQ(move(*a, QpState::kReset), 0);
    ASSERT_EQ(connect(*a, b->number()), 0);
  }
}

TEST_F(ShmTarget, DestroySrq_WithAPendingEvent_RemovesTheEvent) {
  Srq* srq = make_srq(4);
  ASSERT_EQ(srq->modify(srq_attr::kLimit, 0, 1), 0);  // none is posted: fewer than the limit
  pollfd ready{handle->async_fd(), POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 0), 1);
  srqs.pop_back();
  ASSERT_EQ(fcntl(handle->async_fd(), F_SETFL, O_NONBLOCK), 0);
  const auto event = handle->next_event();
  ASSERT_FALSE(event);
  EXPECT_EQ(event.error().code(), EAGAIN);
}

TEST_F(ShmTarget, PostReceive_SenderWaits_WakesItOnce) {
  // The peer is a number of this process that no queue pair has: the wake-up stays visible in its entry.
  Qp* gone = make_qp();
  const uint32_t number = gone->number();
  shm::QpShared& other = shared(*gone);
  qps.pop_back();
  a = make_qp();
  ASSERT_EQ(connect(*a, number), 0);
  other.wake.store(0);
  ASSERT_EQ(receive(*a, 1), 0);
  EXPECT_EQ(other.wake.load(), 0u) << "no sender waits";
  shared(*a).sender_waits.store(1);
  ASSERT_EQ(receive(*a, 2), 0);
  EXPECT_EQ(other.wake.load(), 1u);
  EXPECT_EQ(shared(*a).sender_waits.load(), 0u) << "it is woken once";
  other.wake.store(0);
}

TEST_F(ShmTarget, Send_ReceiverNotReady_SetsTheWaitingFlag) {
  make_pair(QpType::kRc, {.min_rnr_timer = 0});
  ASSERT_EQ(send(*a, 1), 0);
  EXPECT_EQ(shared(*b).sender_waits.load(), 1u);
}

TEST_F(ShmTarget, PostReceive_SenderWaits_IsServedBeforeItsTimer) {
  // Two senders wait for the same timer, after which one of them has failed. The other one is woken: so it is served
  // while the first one still waits. Its turn comes last (they are tried in the order of their addresses).
  const Way once{.rnr_retry = 1, .min_rnr_timer = 0};
  make_pair(QpType::kRc, once);
  Qp* waiting = a;
  make_pair(QpType::kRc, once);
  Qp* woken = a;
  Qp* const last = std::max(waiting, woken);
  waiting = std::min(waiting, woken);
  woken = last;
  ASSERT_EQ(send(*waiting, 1), 0);
  ASSERT_EQ(send(*woken, 2), 0);
  ASSERT_EQ(receive(woken == a ? *b : static_cast<Qp&>(*qps[1]), 11), 0);
  // A thread that polls tries what waits, too: this one does not poll.
  ASSERT_TRUE(soon([&] { return shared(*woken).counters.messages.load() == 1; }));
  EXPECT_EQ(state_of(*waiting), QpState::kRts);
}

TEST_F(ShmTarget, Resume_HeldBackRequest_RunsWithoutAPoll) {  // IBTA 10.3.1.5
  make_pair();
  ASSERT_EQ(move(*a, QpState::kSqd), 0);
  ASSERT_EQ(write(*a, 1), 0);
  // After its second turn from here on, the service thread has tried the request, failed, and sleeps.
  for (int turn = 0; turn < 2; ++turn) {
    host::call_attention(process().node().self(), shm::attention::kQp, b->index());
    ASSERT_TRUE(soon([&] { return tables().header->attention.load() == 0; }));
  }
  EXPECT_EQ(shared(*a).counters.messages.load(), 0u);
  ASSERT_EQ(move(*a, QpState::kRts), 0);
  EXPECT_TRUE(soon([&] { return shared(*a).counters.messages.load() == 1; }));
}

TEST_F(ShmTarget, ErrorState_OutstandingRequests_AreFlushedWhenModifyReturns) {  // IBTA 10.3.1.7
  make_pair();
  for (const uint64_t id : {1, 2}) ASSERT_EQ(send(*a, id), 0);  // no receives there: they wait
  for (const uint64_t id : {3, 4}) ASSERT_EQ(receive(*a, id), 0);
  ASSERT_EQ(move(*a, QpState::kErr), 0);
  WorkCompletion wc[8];
  ASSERT_EQ(cq->poll(wc, 8), 4);
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(wc[i].wr_id, i + 1);
    EXPECT_EQ(wc[i].status, WcStatus::kWrFlushErr);
  }
}

TEST_F(ShmTarget, DeregMr_PeerInsideAPost_WaitsForIt) {  // docs/design/shm.md, grace periods
  make_pair();
  auto doomed = std::move(*handle->alloc_mr(*pd, 4096, kEveryRight));
  shm::MrShared& key = tables().mr[shm::key_index(doomed->rkey())];
  a->post_begin();
  std::atomic<bool> closed{false};
  std::thread other([&] {
    EXPECT_EQ(doomed->close(), 0);
    closed = true;
  });
  EXPECT_TRUE(soon([&] { return key.key.load() == 0; }));  // revoked, but perhaps still in use
  // sleep: a call that does not wait would return within that time
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(closed.load());
  a->post_end();
  other.join();
  EXPECT_TRUE(closed.load());
}

TEST_F(ShmTarget, Reset_PeerInsideAPost_WaitsForIt) {  // docs/design/shm.md, grace periods
  for (const QpState state : {QpState::kReset, QpState::kErr}) {
    make_pair();
    a->post_begin();
    std::atomic<bool> moved{false};
    std::thread other([&] {
      EXPECT_EQ(move(*b, state), 0);
      moved = true;
    });
    EXPECT_TRUE(soon([&] { return state_of_shared(*b) == state; }));
    // sleep: a call that does not wait would return within that time
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_FALSE(moved.load());
    a->post_end();
    other.join();
    EXPECT_TRUE(moved.load());
  }
}

TEST_F(ShmTarget, LocalInvalidate_PeerInsideAPost_WaitsForIt) {  // docs/design/shm.md, grace periods
  make_pair(QpType::kRc, {.timeout = 1, .retry_cnt = 0});
  auto opened = std::move(*handle->alloc_mr(*pd, 4096, kEveryRight | access::kMwBind));
  auto window = std::move(*handle->alloc_mw(*pd, MwType::kType2));
  SendWr bind{.wr_id = 1, .opcode = Opcode::kBindMw};
  bind.flags = send_flag::kSignaled;
  bind.mw = window.get();
  bind.rkey = window->rkey();
  bind.bind = {opened.get(), reinterpret_cast<uint64_t>(opened->addr()), 4096, access::kRemoteWrite};
  a->post_begin();  // of whom nobody may be copying: the window was not open yet
  ASSERT_EQ(b->post_send(bind), 0);
  EXPECT_EQ(next().status, WcStatus::kSuccess);
  SendWr invalidate{.wr_id = 2, .opcode = Opcode::kLocalInv};
  invalidate.flags = send_flag::kSignaled;
  invalidate.imm_or_rkey = bind.rkey;
  ASSERT_EQ(b->post_send(invalidate), 0);
  EXPECT_EQ(tables().mr[shm::key_index(bind.rkey)].key.load(), 0u);
  EXPECT_TRUE(is_empty());
  constexpr int64_t kSecond = 1'000'000'000;
  EXPECT_LT(b->progress(base::now_ns() + kSecond), INT64_MAX)
      << "it is tried again, whatever the retries of the connection";
  EXPECT_TRUE(is_empty()) << "the peer may still be copying";
  a->post_end();
  a->post_begin();  // a request that began later finds the window closed
  const WorkCompletion wc = next();
  EXPECT_EQ(wc.wr_id, 2u);
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  a->post_end();
}

TEST_F(ShmTarget, Quiesce_PostThatBeganLater_IsNotWaitedFor) {
  make_pair();
  std::atomic<uint32_t>& lock = shared(*a).send_lock;
  const uint32_t free = lock.load();
  lock.store(free + 1);
  std::atomic<bool> began{false}, all_moved_on{false};
  std::thread other([&] {
    began = true;
    all_moved_on = quiesce(process().node());
  });
  ASSERT_TRUE(soon([&] { return began.load(); }));
  // sleep: the other thread has seen the first post by then; if it has not, it sees the second one only
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  lock.store(free + 3);  // let go and taken again, which nobody saw
  other.join();
  EXPECT_TRUE(all_moved_on.load());
  lock.store(free + 4);
}

}  // namespace
}  // namespace nupa::core
