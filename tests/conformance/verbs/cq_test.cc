// SPDX-License-Identifier: Apache-2.0
/// Completion queues and events (manuals ibv_create_cq_ex, ibv_get_cq_event, ibv_get_async_event).
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "../../support/soon.h"
#include "fixture.h"
#include "../../support/sanitizers.h"

namespace {
thread_local uint64_t t_yields = 0;
}
/// Those of the library come here, too.
extern "C" [[gnu::visibility("default")]] int sched_yield() noexcept {
  ++t_yields;
  return static_cast<int>(syscall(SYS_sched_yield));
}

namespace nupa::test {
namespace {

/// A call in a thread of its own. A call that never returns is left behind with its thread, so that the test fails.
class Call {
 public:
  explicit Call(std::function<int()> call) {
    std::packaged_task<int()> task(std::move(call));
    result_ = task.get_future();
    thread_ = std::thread(std::move(task));
  }
  ~Call() {
    if (returns_within(std::chrono::seconds(0)))
      thread_.join();
    else
      thread_.detach();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool returns_within(std::chrono::milliseconds limit) { return result_.wait_for(limit) == std::future_status::ready; }
  /// What the call returned; -1: it has not returned.
  int result() { return returns_within(std::chrono::seconds(20)) ? result_.get() : -1; }

 private:
  std::shared_future<int> result_;
  std::thread thread_;
};

constexpr std::chrono::milliseconds kWhileItMustBlock{50};
constexpr int kEventMs = 20'000;

class VerbsCq : public Verbs {
 protected:
  void SetUp() override {
    Verbs::SetUp();
    mr = reg(memory, sizeof memory);
    ASSERT_NE(mr, nullptr);
  }

  /// Connected to itself, completing in `target`.
  ibv_qp* loop(ibv_cq* target) {
    ibv_qp_init_attr attr = init();
    attr.send_cq = attr.recv_cq = target;
    ibv_qp* qp = ibv_create_qp(pd, &attr);
    connect(qp, qp);
    return qp;
  }

  int write(ibv_qp* qp, uint64_t wr_id) {
    ibv_sge sge{reinterpret_cast<uint64_t>(memory), 8, mr->lkey};
    ibv_send_wr wr{}, *bad;
    wr.wr_id = wr_id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(memory + 4096);
    wr.wr.rdma.rkey = mr->rkey;
    return ibv_post_send(qp, &wr, &bad);
  }

  ibv_cq_ex* make_ex(uint64_t fields, uint32_t flags = 0) {
    ibv_cq_init_attr_ex attr{};
    attr.cqe = kQueueLength;
    attr.wc_flags = fields;
    attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    attr.flags = flags;
    return ibv_create_cq_ex(context, &attr);
  }

  /// The next completion becomes the current one, when it comes; `first`: the queue is not this thread's yet.
  int advance(ibv_cq_ex* ex, bool first) {
    ibv_poll_cq_attr poll{};
    const auto end = std::chrono::steady_clock::now() + kTimeout;
    int error;
    do {
      error = first ? ibv_start_poll(ex, &poll) : ibv_next_poll(ex);
    } while (error == ENOENT && std::chrono::steady_clock::now() < end);
    return error;
  }

  alignas(4096) char memory[8192] = {};
  ibv_mr* mr = nullptr;
};

TEST_F(VerbsCq, ExtendedPoll_ReadsEveryField) {
  ibv_cq_ex* ex = make_ex(uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                          IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
  ASSERT_NE(ex, nullptr) << std::strerror(errno);
  ibv_qp* qp = loop(ibv_cq_ex_to_cq(ex));
  ibv_poll_cq_attr poll{};
  EXPECT_EQ(ibv_start_poll(ex, &poll), ENOENT);
  poll.comp_mask = 1;
  EXPECT_EQ(ibv_start_poll(ex, &poll), EINVAL);
  poll.comp_mask = 0;
  timespec before;
  clock_gettime(CLOCK_REALTIME, &before);
  ibv_values_ex clock{};
  clock.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  ASSERT_EQ(ibv_query_rt_values_ex(context, &clock), 0);
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_EQ(write(qp, i), 0);
  uint64_t last = static_cast<uint64_t>(clock.raw_clock.tv_nsec);
  for (uint64_t i = 1; i <= 3; ++i) {
    ASSERT_EQ(advance(ex, i == 1), 0);
    EXPECT_EQ(ex->wr_id, i);
    EXPECT_EQ(ex->status, IBV_WC_SUCCESS);
    EXPECT_EQ(ibv_wc_read_opcode(ex), IBV_WC_RDMA_WRITE);
    EXPECT_EQ(ibv_wc_read_qp_num(ex), qp->qp_num);
    EXPECT_EQ(ibv_wc_read_vendor_err(ex), 0u);
    EXPECT_GE(ibv_wc_read_completion_ts(ex), last);
    last = ibv_wc_read_completion_ts(ex);
    const int64_t wall = static_cast<int64_t>(ibv_wc_read_completion_wallclock_ns(ex));
    const int64_t start = int64_t{before.tv_sec} * 1'000'000'000 + before.tv_nsec;
    // The two clocks are read one after the other and the ticks' length is a measurement: ten milliseconds of grace.
    EXPECT_GT(wall, start - 10'000'000);
    EXPECT_LT(wall, start + std::chrono::nanoseconds(kTimeout).count());
  }
  // What is told of a completion that is older by then is when it came.
  constexpr int64_t kOlder = 100'000'000;
  const auto real_time = [] {
    timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  const int64_t came = real_time();
  while (real_time() < came + kOlder) {
  }
  EXPECT_LT(static_cast<int64_t>(ibv_wc_read_completion_wallclock_ns(ex)), came + kOlder);
  EXPECT_EQ(ibv_next_poll(ex), ENOENT);
  ibv_end_poll(ex);
  EXPECT_EQ(ibv_start_poll(ex, &poll), ENOENT);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), 0);
}

TEST_F(VerbsCq, EmptyPolls_YieldTheCore) {
  ibv_qp* qp = loop(cq);
  ASSERT_EQ(write(qp, 1), 0);
  ibv_wc wc;
  while (ibv_poll_cq(cq, 1, &wc) == 0) {
  }
  // Over packets, where an empty poll is a system call, sooner and oftener.
  constexpr uint64_t kPolls = 2048;
  t_yields = 0;
  for (uint64_t i = 0; i < kPolls; ++i) ASSERT_EQ(ibv_poll_cq(cq, 1, &wc), 0);
  EXPECT_GE(t_yields, uses_network() ? kPolls / 64 - 1 : kPolls / 512);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(VerbsCq, CreateCqEx_UnsupportedFields_AreRefused) {
  for (uint64_t field : {uint64_t{IBV_WC_EX_WITH_CVLAN}, uint64_t{IBV_WC_EX_WITH_FLOW_TAG},
                         uint64_t{IBV_WC_EX_WITH_TM_INFO}, uint64_t{1} << 40}) {
    EXPECT_EQ(make_ex(field), nullptr) << field;
    EXPECT_EQ(errno, EOPNOTSUPP) << field;
  }
  EXPECT_EQ(make_ex(0, 1u << 20), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_cq_init_attr_ex attr{};
  attr.cqe = 16;
  attr.comp_vector = 1;
  EXPECT_EQ(ibv_create_cq_ex(context, &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(VerbsCq, ExtendedPoll_OfSeveralThreads_ReturnsEachCompletionOnce) {
  constexpr int kThreads = 4;
  constexpr uint64_t kWrites = 2000;
  ibv_cq_ex* ex = make_ex(IBV_WC_STANDARD_FLAGS);
  ASSERT_NE(ex, nullptr);
  ibv_qp* qp = loop(ibv_cq_ex_to_cq(ex));
  std::atomic<uint64_t> taken{0};
  std::atomic<bool> stop{false};
  std::vector<std::set<uint64_t>> seen(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      ibv_poll_cq_attr poll{};
      while (!stop.load()) {
        if (ibv_start_poll(ex, &poll) != 0) {
          std::this_thread::yield();
          continue;
        }
        do {
          const uint64_t first = ex->wr_id;
          std::this_thread::yield();  // another thread that got in here would change the current completion
          if (ex->wr_id == first && seen[static_cast<size_t>(t)].insert(first).second) ++taken;
        } while (ibv_next_poll(ex) == 0);
        ibv_end_poll(ex);
      }
    });
  for (uint64_t i = 0; i < kWrites; ++i)
    while (write(qp, i) == ENOMEM) std::this_thread::yield();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (taken.load() < kWrites && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  std::set<uint64_t> all;
  for (const auto& part : seen) all.insert(part.begin(), part.end());
  EXPECT_EQ(all.size(), kWrites);
  EXPECT_EQ(taken.load(), kWrites);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), 0);
}

TEST_F(VerbsCq, ExtendedPoll_StartToEnd_ExcludesOtherThreads) {  // manual ibv_create_cq_ex
  for (const bool alone : {false, true}) {
    ibv_cq_ex* ex = make_ex(IBV_WC_STANDARD_FLAGS, alone ? IBV_CREATE_CQ_ATTR_SINGLE_THREADED : 0);
    ASSERT_NE(ex, nullptr);
    ibv_qp* qp = loop(ibv_cq_ex_to_cq(ex));
    for (uint64_t i = 1; i <= 3; ++i) ASSERT_EQ(write(qp, i), 0);
    ibv_poll_cq_attr poll{};
    ASSERT_EQ(advance(ex, true), 0);
    ASSERT_EQ(advance(ex, false), 0);
    std::atomic<bool> inside{false};
    std::thread other([&] {
      EXPECT_EQ(advance(ex, true), 0);
      inside = true;
      EXPECT_EQ(ex->wr_id, 3u);
      ibv_end_poll(ex);
    });
    if (alone) {
      other.join();  // who promises one thread is not made to wait
      EXPECT_TRUE(inside.load());
    } else {
      // sleep: a call that does not wait would return within that time
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT_FALSE(inside.load());
      EXPECT_EQ(ex->wr_id, 2u);
    }
    ibv_end_poll(ex);
    if (!alone) other.join();
    // An answer other than 0 does not keep it.
    EXPECT_EQ(ibv_start_poll(ex, &poll), ENOENT);
    EXPECT_EQ(ibv_start_poll(ex, &poll), ENOENT);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), 0);
  }
}

TEST_F(VerbsCq, DestroyCq_UnacknowledgedEvent_WaitsForIt) {
  ibv_comp_channel* channel = ibv_create_comp_channel(context);
  ASSERT_NE(channel, nullptr);
  int tag = 0;
  ibv_cq* watched = ibv_create_cq(context, 16, &tag, channel, 0);
  ASSERT_NE(watched, nullptr);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), EBUSY);
  ASSERT_EQ(ibv_req_notify_cq(watched, 0), 0);
  ibv_qp* qp = loop(watched);
  ASSERT_EQ(write(qp, 1), 0);
  ibv_cq* from = nullptr;
  void* cq_context = nullptr;
  ASSERT_TRUE(becomes_readable(channel));
  ASSERT_EQ(ibv_get_cq_event(channel, &from, &cq_context), 0);
  EXPECT_EQ(from, watched);
  EXPECT_EQ(cq_context, &tag);
  EXPECT_EQ(ibv_destroy_cq(watched), EBUSY);  // the queue pair uses it
  ASSERT_EQ(ibv_destroy_qp(qp), 0);
  Call destroy([watched] { return ibv_destroy_cq(watched); });
  EXPECT_FALSE(destroy.returns_within(kWhileItMustBlock));
  ibv_ack_cq_events(from, 1);
  ASSERT_EQ(destroy.result(), 0);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

/// A thread in ibv_get_cq_event(), which may wait there for ever.
struct EventThread {
  struct State {
    std::atomic<pid_t> thread{0};
    std::atomic<bool> returned{false};
  };
  const std::shared_ptr<State> state = std::make_shared<State>();
  std::thread thread;

  explicit EventThread(ibv_comp_channel* channel)
      : thread([channel, state = state] {
          state->thread = gettid();
          ibv_cq* from = nullptr;
          void* tag = nullptr;
          ibv_get_cq_event(channel, &from, &tag);
          state->returned = true;
        }) {}
  /// What unwinds the stack leaves it marked as in use.
  static inline const bool kCanBeCancelled = !test::kAddressSanitizer;
  /// Cases that fork are to find no thread (ThreadSanitizer).
  void end() {
    if (!kCanBeCancelled) return thread.detach();
    EXPECT_EQ(pthread_cancel(thread.native_handle()), 0);
    thread.join();
  }
  bool waits() const {
    return soon([&] { return state->thread != 0 && stands_still(state->thread); }) && !state->returned;
  }
};

TEST_F(VerbsCq, GetCqEvent_ChannelWasDestroyed_WaitsUntilTheProcessExits) {
  std::vector<std::vector<char>> others;
  others.reserve(32);
  ibv_comp_channel* const destroyed = ibv_create_comp_channel(context);
  ASSERT_NE(destroyed, nullptr);
  ASSERT_EQ(ibv_destroy_comp_channel(destroyed), 0);
  while (others.size() < 32) others.emplace_back(16 * (others.size() + 1));  // one of them where a freed channel was
  EventThread late(destroyed);
  EXPECT_TRUE(late.waits());
  late.end();
}

TEST_F(VerbsCq, GetCqEvent_ChannelIsDestroyedMeanwhile_WaitsUntilTheProcessExits) {
  for (const bool cancelled : {false, true}) {
    if (cancelled && !EventThread::kCanBeCancelled) break;
    ibv_comp_channel* const channel = ibv_create_comp_channel(context);
    ASSERT_NE(channel, nullptr);
    std::vector<EventThread> threads;
    for (int i = 0; i < 2; ++i) threads.emplace_back(channel);
    for (const EventThread& each : threads) EXPECT_TRUE(each.waits());
    if (cancelled) threads[0].end();
    ASSERT_EQ(ibv_destroy_comp_channel(channel), 0);
    // Another channel gets the memory and the descriptors of the first one, which no thread may use any more.
    ibv_comp_channel* const next = ibv_create_comp_channel(context);
    ASSERT_NE(next, nullptr);
    ASSERT_EQ(fcntl(next->fd, F_SETFL, fcntl(next->fd, F_GETFL) | O_NONBLOCK), 0);
    for (EventThread& each : threads) {
      EXPECT_TRUE(each.waits());
      if (each.thread.joinable()) each.end();
    }
    EXPECT_EQ(ibv_destroy_comp_channel(next), 0);
  }
}

TEST_F(VerbsCq, SolicitedNotification_UnsolicitedCompletion_RaisesNoEvent) {
  ibv_comp_channel* channel = ibv_create_comp_channel(context);
  ASSERT_NE(channel, nullptr);
  ASSERT_EQ(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK), 0);
  ibv_cq* watched = ibv_create_cq(context, 16, nullptr, channel, 0);
  ASSERT_NE(watched, nullptr);
  ibv_qp* qp = loop(watched);
  ASSERT_EQ(ibv_req_notify_cq(watched, 1), 0);
  ASSERT_EQ(write(qp, 1), 0);
  EXPECT_EQ(next(watched).wr_id, 1u);
  ibv_cq* from;
  void* cq_context;
  EXPECT_EQ(ibv_get_cq_event(channel, &from, &cq_context), -1);
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_EQ(post_recv(qp, 2, memory + 64, 64, mr->lkey), 0);
  ibv_sge sge{reinterpret_cast<uint64_t>(memory), 8, mr->lkey};
  ibv_send_wr wr{}, *bad;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SOLICITED;
  ASSERT_EQ(ibv_post_send(qp, &wr, &bad), 0);
  EXPECT_TRUE(becomes_readable(channel));
  EXPECT_EQ(ibv_get_cq_event(channel, &from, &cq_context), 0);
  ibv_ack_cq_events(watched, 1);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(watched), 0);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

TEST_F(VerbsCq, DestroySrq_UnacknowledgedEvent_WaitsForIt) {
  ibv_srq_init_attr attr{};
  attr.attr.max_wr = 8;
  attr.attr.max_sge = 1;
  ibv_srq* srq = ibv_create_srq(pd, &attr);
  ASSERT_NE(srq, nullptr);
  ibv_srq_attr limit{};
  limit.srq_limit = 1;
  ASSERT_EQ(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);  // the queue is empty: told at once
  pollfd readable{context->async_fd, POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, kEventMs), 1);
  ibv_async_event event{};
  ASSERT_EQ(ibv_get_async_event(context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
  EXPECT_EQ(event.element.srq, srq);
  Call destroy([srq] { return ibv_destroy_srq(srq); });
  EXPECT_FALSE(destroy.returns_within(kWhileItMustBlock));
  ibv_ack_async_event(&event);
  ASSERT_EQ(destroy.result(), 0);
}

TEST_F(VerbsCq, DestroyCq_UnacknowledgedErrorEvent_WaitsForIt) {  // manual ibv_get_async_event
  ibv_cq* small = ibv_create_cq(context, 1, nullptr, nullptr, 0);
  ASSERT_NE(small, nullptr);
  const auto overrun = static_cast<uint64_t>(small->cqe) + 2;
  ibv_qp* qp = loop(small);
  for (uint64_t i = 0; i < overrun; ++i) ASSERT_EQ(write(qp, i), 0);
  ibv_async_event event{};
  for (;;) {
    pollfd readable{context->async_fd, POLLIN, 0};
    ASSERT_EQ(poll(&readable, 1, kEventMs), 1);
    ASSERT_EQ(ibv_get_async_event(context, &event), 0);
    if (event.event_type == IBV_EVENT_CQ_ERR) break;
    ibv_ack_async_event(&event);  // the queue pair fails too
  }
  ASSERT_EQ(event.element.cq, small);
  ASSERT_EQ(ibv_destroy_qp(qp), 0);
  Call destroy([small] { return ibv_destroy_cq(small); });
  ASSERT_FALSE(destroy.returns_within(kWhileItMustBlock));
  ibv_ack_async_event(&event);
  EXPECT_EQ(destroy.result(), 0);
}

TEST_F(VerbsCq, GetAsyncEvent_ObjectWasDestroyed_ReturnsNoEventOfIt) {
  ASSERT_EQ(fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK), 0);
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop.load()) {
      ibv_async_event event{};
      if (ibv_get_async_event(context, &event) == 0)
        ibv_ack_async_event(&event);
      else
        std::this_thread::yield();
    }
  });
  for (int i = 0; i < 300; ++i) {
    ibv_srq_init_attr attr{};
    attr.attr.max_wr = 8;
    attr.attr.max_sge = 1;
    ibv_srq* srq = ibv_create_srq(pd, &attr);
    ASSERT_NE(srq, nullptr);
    ibv_srq_attr limit{};
    limit.srq_limit = 1;
    ASSERT_EQ(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
    ASSERT_EQ(ibv_destroy_srq(srq), 0);  // while the reader may be taking the event
  }
  stop = true;
  reader.join();
}

TEST_F(VerbsCq, ResizeAndModerate_ValidValues_AreAccepted) {
  EXPECT_EQ(ibv_resize_cq(cq, 1000), 0);
  EXPECT_GE(cq->cqe, 1000);
  EXPECT_EQ(ibv_resize_cq(cq, 0), EINVAL);
  EXPECT_EQ(ibv_resize_cq(cq, INT32_MAX), EINVAL);
  ibv_modify_cq_attr attr{};
  attr.attr_mask = IBV_CQ_ATTR_MODERATE;
  attr.moderate = {4, 10};
  EXPECT_EQ(ibv_modify_cq(cq, &attr), 0);
  attr.attr_mask = 1u << 9;
  EXPECT_EQ(ibv_modify_cq(cq, &attr), EINVAL);
}

}  // namespace
}  // namespace nupa::test
