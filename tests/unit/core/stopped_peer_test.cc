// SPDX-License-Identifier: Apache-2.0
/// Tests of waits for a stopped process or thread: each has a limit, and no other call waits meanwhile.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <deque>

#include "core/qp.h"
#include "core/quiesce.h"
#include "shm_fixture.h"
#include "stopped_service.h"

namespace nupa::core {
namespace {

using host::AgentCall;
using host::kNotServedYet;
using shm::AgentOp;
using shm::ReceiveRing;

bool connect_and_wait_twice(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  // A shared mapping of the program stays as it is, and no peer maps it: atomics there are the owner's work.
  void* const page = mmap(nullptr, shm::kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  auto* const word = static_cast<uint64_t*>(page);
  *word = 40;
  auto own = std::move(*end.handle->reg_mr(*end.pd, page, shm::kPage, reinterpret_cast<uint64_t>(page), kEveryRight));
  if (!exchange_and_connect(end, line, *qp, &peer)) return false;
  const bool sent = line.give(ShmAddress{0, own->rkey(), reinterpret_cast<uint64_t>(page), 0});
  line.wait();
  const bool gave = line.give(*word);
  line.wait();
  own.reset();
  return sent && gave;
}

class StoppedProcess : public ShmProcesses {
 protected:
  /// A queue pair to the other process, which has a word in its own memory, and is stopped then.
  void stop_peer(const Way& way) {
    start(connect_and_wait_twice);
    qp = end.make_qp();
    ShmAddress mine{qp->number(), end.region->rkey(), reinterpret_cast<uint64_t>(end.memory), 0};
    ASSERT_TRUE(line.give(mine) && line.get(&peer) && end.connect(*qp, peer.qp_num, way) == 0 && line.go());
    ASSERT_TRUE(line.wait() && line.get(&word));
    ASSERT_EQ(kill(child, SIGSTOP), 0);
    ASSERT_EQ(waitpid(child, nullptr, WUNTRACED), child);
  }
  void go_on() { ASSERT_EQ(kill(child, SIGCONT), 0); }
  int add() {
    const Sge sge = end.span(0, 8);
    SendWr wr{.wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kFetchAdd};
    wr.flags = send_flag::kSignaled;
    wr.rkey = word.rkey;
    wr.remote_addr = word.addr;
    wr.compare_add = 1;
    return qp->post_send(wr);
  }
  /// In another thread, so that a test of one that never returns fails. The other process is killed then.
  void add_in_time() {
    std::atomic<bool> over{false};
    std::thread poster([&] {
      EXPECT_EQ(add(), 0);
      over = true;
    });
    const bool returned = soon([&] { return over.load(); });
    if (!returned) kill_child();
    poster.join();
    ASSERT_TRUE(returned);
  }

  Qp* qp = nullptr;
  ShmAddress peer{}, word{};
};

TEST_F(StoppedProcess, Atomic_ToAStoppedProcess_FailsAfterTheTimeout) {
  ASSERT_NO_FATAL_FAILURE(stop_peer({.timeout = 8, .retry_cnt = 1}));
  ASSERT_NO_FATAL_FAILURE(add_in_time());
  const WorkCompletion wc = end.next();
  EXPECT_EQ(wc.wr_id, 5u);
  EXPECT_EQ(wc.status, WcStatus::kRetryExcErr);
  EXPECT_EQ(ShmEnd::state_of(*qp), QpState::kErr);
  uint64_t value = 0;
  go_on();
  ASSERT_TRUE(line.go() && line.get(&value));
  EXPECT_EQ(value, 40u) << "what was given up is not done when the process goes on";
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(StoppedProcess, Atomic_StoppedProcessContinues_IsDoneOnce) {
  ASSERT_NO_FATAL_FAILURE(stop_peer({.timeout = 20}));
  ASSERT_NO_FATAL_FAILURE(add_in_time());
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(end.is_empty());
  go_on();
  const WorkCompletion wc = end.next();
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(end.memory), 40u) << "the value before";
  uint64_t value = 0;
  ASSERT_TRUE(line.go() && line.get(&value));
  EXPECT_EQ(value, 41u);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(StoppedProcess, Requests_ToAStoppedProcess_LeavePlacesForOthers) {
  ASSERT_NO_FATAL_FAILURE(stop_peer({.timeout = 20}));
  host::Node& node = end.process().node();
  const host::PeerRef stopped = node.find(shm::slot_of(peer.qp_num));
  ASSERT_NE(stopped, nullptr);
  std::deque<AgentCall> calls;
  const auto add_at = [](AgentCall& call, host::Peer& owner, uint64_t address) {
    uint64_t operand = 1;
    return call.attempt([&] { return call.atomic(owner, AgentOp::kFetchAdd, address, &operand, 0); });
  };
  for (uint32_t i = 0; i < shm::kAgents; ++i)
    EXPECT_EQ(add_at(calls.emplace_back(end.process().memories().agent()), *stopped, word.addr), kNotServedYet);
  AgentCall& other = calls.emplace_back(end.process().memories().agent());
  *reinterpret_cast<uint64_t*>(end.memory) = 1;
  EXPECT_TRUE(
      soon([&] { return add_at(other, node.self(), reinterpret_cast<uint64_t>(end.memory)) == WcStatus::kSuccess; }));
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(end.memory), 2u);
  go_on();
  for (uint32_t i = 0; i < shm::kAgents; ++i)
    EXPECT_TRUE(soon([&] { return add_at(calls[i], *stopped, word.addr) == WcStatus::kSuccess; })) << i;
  uint64_t value = 0;
  ASSERT_TRUE(line.go() && line.get(&value));
  EXPECT_EQ(value, 40 + shm::kAgents) << "the one that lost its place asked anew, and was served once";
  ASSERT_TRUE(line.go());
  expect_good_end();
}

// Threads of one process.

class StoppedThread : public ShmTest {
 protected:
  /// A thread empties a shared receive queue, and waits for a claimer that has not ended.
  void begin_emptying() {
    srq_ = make_srq(8);
    ASSERT_EQ(receive(*srq_, 1), 0);
    claim_ = srq_->queue().ring().claim(process().tag());
    ASSERT_TRUE(claim_);
    emptier_ = std::thread([this] {
      constexpr int64_t kLongNs = 10'000'000'000;
      emptied_ = srq_->queue().drain(
          nullptr, kLongNs, [](uint32_t) { return false; }, [](const shm::RecvSlot&) { return false; });
    });
    EXPECT_TRUE(soon([this] { return receive(*srq_, 2) == EINVAL; }));
  }
  void end_claim() {
    ReceiveRing::finish(claim_);
    emptier_.join();
  }

  Srq* srq_ = nullptr;
  ReceiveRing::Claim claim_;
  std::thread emptier_;
  std::atomic<bool> emptied_{false};
};

TEST_F(StoppedThread, PostReceive_WhileADrainWaits_FailsAtOnce) {
  ASSERT_NO_FATAL_FAILURE(begin_emptying());
  end_claim();
  EXPECT_TRUE(emptied_.load()) << "the post came before the claimer's end";
  EXPECT_EQ(receive(*srq_, 3), 0);
}

TEST_F(StoppedThread, Recover_WhileADrainWaits_ReturnsAtOnce) {
  constexpr uint32_t kDead = 0x7000 | 4001;
  ASSERT_NO_FATAL_FAILURE(begin_emptying());
  for (int i = 0; i < 10; ++i) recover(*srq_, kDead);
  end_claim();
  EXPECT_TRUE(emptied_.load());
}

TEST_F(StoppedThread, Resize_WriterIsStopped_FailsAndTheQueueStaysAsItWas) {
  Cq* const queue = make_cq(4);
  const shm::CqShared& its = tables().cq[queue->index()];
  const uint64_t where = its.where.load();
  auto ring = ring_of(*queue);
  ASSERT_TRUE(ring);
  uint64_t claimed = 0;
  ASSERT_EQ(ring->claim_next(process().tag(), &claimed), shm::CompletionRing::Push::kOk);
  std::atomic<bool> over{false};
  int error = 0;
  std::thread resizer([&] {
    error = queue->resize(16);
    over = true;
  });
  // Writers that go on are not held up for as long as the resize.
  shm::CqEntry entry;
  entry.wr_id = 2;
  EXPECT_TRUE(soon([&] { return ring->push(process().tag(), nullptr, entry) == shm::CompletionRing::Push::kOk; }));
  EXPECT_TRUE(soon([&] { return over.load(); }));
  entry.wr_id = 1;
  ring->write(claimed, entry);
  resizer.join();
  EXPECT_EQ(error, EBUSY);
  EXPECT_EQ(its.where.load(), where);
  entry.wr_id = 3;
  EXPECT_EQ(ring->push(process().tag(), nullptr, entry), shm::CompletionRing::Push::kOk);
  for (const uint64_t id : {1u, 2u, 3u}) EXPECT_EQ(next(queue).wr_id, id);
  EXPECT_EQ(queue->resize(16), 0);
}

TEST_F(StoppedThread, PeerExit_QueuePairIsHeld_UnmapsLater) {
  Qp* const held = make_qp(QpType::kUd);
  ASSERT_EQ(connect(*held, 0), 0);
  const auto ah = make_ah(own_gid());
  ASSERT_EQ(send_to(*held, ah.get(), held->number()), 0);
  host::Peer& gone = process().node().self();
  const std::weak_ptr<host::PeerMemory> mapped = process().memories().of(gone);
  ASSERT_FALSE(mapped.expired()) << "the queue pair leads there";
  held->post_begin();
  events().on_peer_exit(gone);
  EXPECT_FALSE(mapped.expired());
  held->post_end();
  EXPECT_TRUE(soon([&] { return mapped.expired(); }));
}

// Two processes that are stopped.

/// Is inside a post until the other process sends a byte.
bool stay_inside(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!exchange_and_connect(end, line, *qp, &peer)) return false;
  qp->post_begin();
  const bool good = line.go() && line.wait();
  qp->post_end();
  return good;
}

class StoppedTwo : public ShmProcesses {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(start_process(stay_inside, "shm", &second, &second_line));
    start(stay_inside);
  }
  void TearDown() override {
    for (const int fd : {second_line.in, second_line.out}) ::close(fd);
    waitpid(second, nullptr, 0);
    ShmProcesses::TearDown();
  }

  ShmLine second_line;
  pid_t second = 0;
};

TEST_F(StoppedTwo, Quiesce_TwoStoppedPeers_HasOneLimit) {
  ShmAddress peers[2];
  for (int i = 0; i < 2; ++i) {
    const ShmLine& to = i == 0 ? line : second_line;
    Qp* qp = end.make_qp();
    ASSERT_TRUE(exchange_and_connect(end, to, *qp, &peers[i]) && to.wait());
  }
  host::Node& node = end.process().node();
  std::atomic<bool> both{false}, in_turn{false};
  std::thread one_by_one([&] {
    for (const ShmAddress& each : peers) EXPECT_FALSE(quiesce_peer(node, shm::slot_of(each.qp_num), each.qp_num));
    in_turn = true;
  });
  std::thread together([&] {
    EXPECT_FALSE(quiesce(node));
    both = true;
  });
  EXPECT_TRUE(soon([&] { return both.load(); }));
  EXPECT_FALSE(in_turn.load()) << "those waits come one after the other";
  one_by_one.join();
  together.join();
  for (const ShmLine* each : {&line, &second_line}) ASSERT_TRUE(each->go());
  expect_good_end();
}

}  // namespace
}  // namespace nupa::core
