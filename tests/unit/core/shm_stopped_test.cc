// SPDX-License-Identifier: Apache-2.0
/// Tests of requests to a stopped process: no other call waits for it.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/time.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "../roce/engine_fixture.h"
#include "base/clock.h"
#include "core/qp.h"
#include "core/seam/shared_target.h"
#include "shm_fixture.h"
#include "shm_processes.h"
#include "transport/shm/datagram.h"

namespace nupa::core {
namespace {

class ShmStopped : public ShmShared {
 protected:
  /// A child that has a queue pair `number` and is stopped before the two have met.
  void start_and_stop(uint32_t* number) {
    start(send_number_and_wait);
    ASSERT_TRUE(line.get(number));
    int status = 0;
    ASSERT_EQ(kill(child, SIGSTOP), 0);
    ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
    ASSERT_TRUE(WIFSTOPPED(status));
  }
};

TEST_F(ShmStopped, Reaches_StoppedProcess_IsTrue) {
  uint32_t number = 0;
  ASSERT_NO_FATAL_FAILURE(start_and_stop(&number));
  ASSERT_EQ(end.process().node().find(shm::slot_of(number)), nullptr) << "they have met before";
  EXPECT_TRUE(end.shm().reaches({}, number));
  AddressVector vector;
  vector.is_global = true;
  vector.dgid = end.process().devices().front().gids.back().gid;
  EXPECT_TRUE(end.shm().reaches(vector, number));
  vector.dgid.raw.back() ^= 0x55;
  EXPECT_FALSE(end.shm().reaches(vector, number)) << "a process of another host may have the same slot";
  ASSERT_EQ(kill(child, SIGCONT), 0);
  EXPECT_NE(peer_of(end, number), nullptr);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

/// Counts how often a timer of 10 ms fires within one call: often in one that sleeps, while a thread that gets no
/// processor sees the next tick only.
class CallTicks {
 public:
  CallTicks() {
    struct sigaction action {};
    action.sa_handler = [](int) { ++ticks_; };
    sigaction(SIGALRM, &action, &before_);
    const itimerval every{{0, 10'000}, {0, 10'000}};
    setitimer(ITIMER_REAL, &every, nullptr);
  }
  ~CallTicks() {
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before_, nullptr);
  }
  template <class Call>
  auto run(const Call& call) {
    ticks_ = 0;
    const auto result = call();
    most_ = std::max(most_, ticks_.load());
    return result;
  }
  int most() const { return most_; }

 private:
  static inline std::atomic<int> ticks_{0};
  int most_ = 0;
  struct sigaction before_ {};
};

TEST_F(ShmStopped, Request_ToAStoppedProcess_DelaysNeitherPostNorPoll) {
  uint32_t number = 0;
  ASSERT_NO_FATAL_FAILURE(start_and_stop(&number));
  Qp* qp = end.make_qp();
  constexpr Way kHalfSecondTimeout{.timeout = 17, .retry_cnt = 0};  // 0.54 s (IBTA 9.7.6.1.3)
  ASSERT_EQ(end.connect(*qp, number, kHalfSecondTimeout), 0);
  WorkCompletion wc;
  {
    CallTicks ticks;
    ASSERT_EQ(ticks.run([&] { return end.send(*qp, 1); }), 0);
    while (ticks.run([&] { return end.cq->poll(&wc, 1); }) == 0) {
    }
    EXPECT_LT(ticks.most(), 5) << "a call waited for the process";
  }
  EXPECT_EQ(wc.status, WcStatus::kRetryExcErr);
  ASSERT_EQ(kill(child, SIGCONT), 0);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(ShmStopped, Datagrams_ToAStoppedProcess_DelayNoCallAndAreLostAfterATime) {
  uint32_t number = 0;
  ASSERT_NO_FATAL_FAILURE(start_and_stop(&number));
  shm::QpShared shared{};
  roce::test::RecordingHost context;
  context.identity().shared = &shared;
  const auto block = std::make_unique<shm::StatisticsShared>();
  context.identity().statistics = block.get();
  host::DueEvent due;
  AddressVector group;
  group.is_global = true;
  group.dgid.raw[0] = 0xff;
  SendWr wr;
  wr.remote_qpn = number;
  for (const AddressVector& vector : {AddressVector{}, group}) {
    shm_transport::Datagram sender(end.peers(), context, due);
    const auto send = [&] { return sender.send({wr, &vector, nullptr, 0, 0, 0, WcStatus::kSuccess}); };
    CallTicks ticks;
    EXPECT_FALSE(ticks.run(send)) << "the process may answer";
    EXPECT_TRUE(soon([&] { return ticks.run(send).has_value(); }));
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(ticks.run(send)) << "it delays what is sent once";
    EXPECT_LT(ticks.most(), 5) << "a call waited for the process";
  }
  shm_transport::Datagram sender(end.peers(), context, due);
  EXPECT_EQ(sender.leads_to({}, number), DatagramSender::Reach::kNotYet);
  EXPECT_TRUE(soon([&] { return sender.leads_to({}, number) == DatagramSender::Reach::kNo; }));
  ASSERT_EQ(kill(child, SIGCONT), 0);
  EXPECT_TRUE(soon([&] { return sender.leads_to({}, number) == DatagramSender::Reach::kYes; }));
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(ShmStopped, Connect_ToAStoppedProcessOnTheServiceThread_DoesNotWait) {
  uint32_t number = 0;
  ASSERT_NO_FATAL_FAILURE(start_and_stop(&number));
  host::Node& node = end.process().node();
  int error = 0;
  {
    CallTicks ticks;
    EXPECT_TRUE(ticks.run([&] {
      return node.loop().call(
          [&] { error = node.connect(shm::slot_of(number), std::chrono::milliseconds(2000)).error().code(); },
          progress::Deadline::never());
    }));
    EXPECT_LT(ticks.most(), 5);
  }
  EXPECT_EQ(error, ETIMEDOUT);
  ASSERT_EQ(kill(child, SIGCONT), 0);
  EXPECT_TRUE(soon([&] { return node.find(shm::slot_of(number)) != nullptr; })) << "it was asked";
  ASSERT_TRUE(line.go());
  expect_good_end();
}

/// An XRC target and an initiator of this process, connected to each other.
class ShmXrcStopped : public ShmStopped {
 protected:
  void connect_both() {
    domain = std::move(*end.handle->open_xrcd(-1, O_CREAT));
    target = std::move(*end.handle->create_qp(nullptr, {.type = QpType::kXrcRecv, .xrcd = domain.get()}));
    sender = std::move(
        *end.handle->create_qp(end.pd.get(), {.type = QpType::kXrcSend, .send_cq = end.cq, .cap = {8, 0, 4, 0, 64}}));
    using namespace qp_attr;
    QpAttr attr;
    attr.state = QpState::kInit;
    attr.access_flags = kEveryRight;
    for (QueuePair* qp : {target.get(), sender.get()})
      ASSERT_EQ(qp->modify(attr, kState | kPkeyIndex | kPort | kAccessFlags), 0);
    attr.state = QpState::kRtr;
    attr.av.is_global = true;
    attr.av.dgid = end.handle->query_gid(1, 1)->gid;
    attr.av.sgid_index = 1;
    attr.path_mtu = Mtu::k4096;
    attr.max_dest_rd_atomic = 4;
    for (QueuePair* qp : {target.get(), sender.get()}) {
      attr.dest_qp_num = qp == target.get() ? sender->number() : target->number();
      ASSERT_EQ(qp->modify(attr, kState | kAv | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer), 0);
    }
    attr.state = QpState::kRts;
    attr.timeout = 17;  // 0.54 s
    attr.retry_cnt = 0;
    attr.max_rd_atomic = 4;
    ASSERT_EQ(sender->modify(attr, kState | kSqPsn | kTimeout | kRetryCnt | kRnrRetry | kMaxQpRdAtomic), 0);
  }
  void TearDown() override {
    sender.reset();
    target.reset();
    domain.reset();
    ShmStopped::TearDown();
  }

  std::unique_ptr<XrcDomain> domain;
  std::unique_ptr<QueuePair> target;
  std::unique_ptr<QueuePair> sender;
};

TEST_F(ShmXrcStopped, Request_ForAnXrcQueueOfAStoppedProcess_IsRetriedWithoutWaiting) {
  uint32_t number = 0;
  ASSERT_NO_FATAL_FAILURE(start_and_stop(&number));
  ASSERT_NO_FATAL_FAILURE(connect_both());
  for (const Opcode opcode : {Opcode::kSend, Opcode::kRdmaWrite, Opcode::kRdmaRead, Opcode::kFetchAdd}) {
    QpContextImpl context(static_cast<Qp&>(*target));
    CallTicks ticks;
    EXPECT_EQ(ticks.run([&] { return context.select(number); }), Selection::kLater);
    const Sge sge = end.span(0, 8);
    SendWr wr{.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .flags = send_flag::kSignaled};
    wr.remote_srqn = number;
    wr.remote_addr = reinterpret_cast<uint64_t>(end.memory);
    wr.rkey = end.region->rkey();
    EXPECT_EQ(ticks.run([&] { return sender->post_send(wr); }), 0);
    EXPECT_LT(ticks.most(), 5) << "a call waited for the process";
    const WorkCompletion wc = end.next();
    EXPECT_EQ(wc.status, WcStatus::kRetryExcErr) << static_cast<int>(opcode);
    EXPECT_EQ(end.state_of(static_cast<Qp&>(*target)), QpState::kRtr) << "nothing was wrong with the request";
    sender.reset();
    target.reset();
    ASSERT_NO_FATAL_FAILURE(connect_both());
  }
  ASSERT_EQ(kill(child, SIGCONT), 0);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(ShmStopped, Request_ToAProcessStoppedForLong_StillWaits) {
  uint32_t number = 0;
  ASSERT_NO_FATAL_FAILURE(start_and_stop(&number));
  Qp* qp = end.make_qp();
  roce::test::RecordingHost context;
  context.identity().shared = &end.shared(*qp);
  QpAttr attr;
  attr.dest_qp_num = number;
  const auto endpoint = std::move(*end.shm().connect(end.process().devices()[0], context, attr, false));
  const SendWr nothing{.opcode = Opcode::kSend};
  ASSERT_TRUE(endpoint->post({nothing, nullptr, nullptr, 0, 0, 1, WcStatus::kSuccess}).is_taken());
  constexpr int64_t kLong = 1'000'000'000;  // a process that died would count as gone
  endpoint->progress(base::now_ns() + kLong);
  endpoint->progress(base::now_ns() + kLong);
  EXPECT_TRUE(context.done.empty()) << "the request waits for it";
  ASSERT_EQ(kill(child, SIGCONT), 0);
  EXPECT_TRUE(soon([&] {
    endpoint->progress(base::now_ns());
    return end.process().node().find(shm::slot_of(number)) != nullptr;
  }));
  ASSERT_TRUE(line.go());
  expect_good_end();
}

}  // namespace
}  // namespace nupa::core
