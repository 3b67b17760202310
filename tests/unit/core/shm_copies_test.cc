// SPDX-License-Identifier: Apache-2.0
/// Tests of shm with a copy engine that the test controls: which requests use it, and the rules of RDMA while it copies
/// (docs/design/copy-engines.md).
#include <atomic>
#include <thread>

#include "base/clock.h"
#include "base/ordered_copy.h"
#include "base/private_send_flag.h"
#include "shm_fixture.h"
#include "shm_processes.h"

namespace nupa::core {
namespace {

using copy::CopyJob;
using copy::JobState;

/// Copies when the test says so, in the thread of the test.
class HeldEngine final : public copy::CopyEngine {
 public:
  std::string_view name() const override { return "held"; }
  std::unique_ptr<CopyJob> make_job() override { return std::make_unique<Job>(); }
  bool submit(CopyJob& job) override {
    if (refuses) return false;
    job_ = &static_cast<Job&>(job);
    EXPECT_EQ(*job_->busy & 1, 1u);
    job_->begin();
    ++submitted;
    return true;
  }
  JobState poll(CopyJob& job) override { return state_of(job); }
  void cancel(CopyJob& job) override {
    static_cast<Job&>(job).end(JobState::kIdle);
    ++cancelled;
  }
  bool reports_end() const override { return true; }
  int64_t next_look(const CopyJob&, int64_t now_ns) const override { return now_ns + 1'000'000; }

  /// Ends the job with `state`; the bytes are copied with kDone only.
  void finish(JobState state = JobState::kDone) {
    if (state == JobState::kDone) {
      for (const copy::Copy& each : job_->copies) std::memcpy(each.to, each.from, each.length);
      if (job_->last.length != 0) base::store_tail(job_->last.to, job_->last.from, job_->last.length);
    }
    job_->end(state);
  }
  const CopyJob& job() const { return *job_; }

  bool refuses = false;
  std::atomic<int> submitted{0};
  std::atomic<int> cancelled{0};

 private:
  class Job final : public CopyJob {
   public:
    void begin() { state_ = JobState::kRunning; }
    using CopyJob::end;
  };
  Job* job_ = nullptr;
};

constexpr uint32_t kLarge = 1000;  ///< at least the threshold of these tests
constexpr uint64_t kThreshold = 512;

class ShmCopies : public ShmTest {
 protected:
  void SetUp() override {
    ShmTest::SetUp();
    auto made = std::make_unique<HeldEngine>();
    engine = made.get();
    shm().use_engine(std::move(made), kThreshold);
    for (size_t i = 0; i < kBytes; ++i) memory[i] = static_cast<char>(i / 7);
    std::memset(memory + 4096, 0, 4096);
  }
  SendWr request(uint64_t wr_id, Opcode opcode, const Sge& sge) {
    SendWr wr{.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = opcode};
    wr.flags = send_flag::kSignaled;
    wr.rkey = region->rkey();
    wr.remote_addr = reinterpret_cast<uint64_t>(memory + 4096);
    return wr;
  }
  int post_large(uint64_t wr_id, Opcode opcode = Opcode::kRdmaWrite, uint32_t length = kLarge) {
    const Sge sge = span(0, length);
    return a->post_send(request(wr_id, opcode, sge));
  }
  bool is_copied(uint32_t length = kLarge) { return std::memcmp(memory, memory + 4096, length) == 0; }
  void expect(uint64_t wr_id, WcStatus status = WcStatus::kSuccess) {
    const WorkCompletion wc = next();
    EXPECT_EQ(wc.wr_id, wr_id);
    EXPECT_EQ(wc.status, status);
  }
  /// Another thread runs `call`, which waits for the engine, until finish().
  void expect_wait(const std::function<bool()>& began, const std::function<void()>& call) {
    std::atomic<bool> over{false};
    std::thread other([&] {
      call();
      over = true;
    });
    EXPECT_TRUE(soon(began));
    // sleep: a call that does not wait would return within that time
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_FALSE(over.load());
    engine->finish();
    other.join();
  }

  /// As a transport sees the process.
  ProcessContext& context() { return process(); }

  HeldEngine* engine = nullptr;
};

TEST_F(ShmCopies, LargeWrite_PostReturnsBeforeItIsCopied) {
  make_pair();
  ASSERT_EQ(post_large(1), 0);
  EXPECT_EQ(engine->submitted, 1);
  EXPECT_TRUE(is_empty());
  EXPECT_EQ(memory[4096 + 100], 0);
  engine->finish();
  expect(1);
  EXPECT_TRUE(is_copied());
  EXPECT_EQ(shared(*a).copying.load() & 1, 0u);
  EXPECT_EQ(memory[4096 + kLarge], 0);
}

TEST_F(ShmCopies, LargeWrite_LastWordIsTheLastCopy) {
  make_pair();
  ASSERT_EQ(post_large(1), 0);
  const CopyJob& job = engine->job();
  ASSERT_EQ(job.copies.size(), 1u);
  EXPECT_EQ(job.copies[0].length, kLarge - 8);
  EXPECT_EQ(job.last.length, 8u);
  EXPECT_EQ(job.last.from, reinterpret_cast<std::byte*>(memory + kLarge - 8));
  EXPECT_TRUE(job.writes_program_memory) << "the peer is this process";
  engine->finish();
  expect(1);
}

TEST_F(ShmCopies, LargeRead_WritesItsListWhenItIsCopied) {
  make_pair();
  std::memset(memory + 4096, 5, kLarge);
  ASSERT_EQ(post_large(1, Opcode::kRdmaRead), 0);
  EXPECT_TRUE(is_empty());
  EXPECT_TRUE(engine->job().writes_program_memory);
  EXPECT_NE(memory[500], 5);
  engine->finish();
  const WorkCompletion wc = next();
  EXPECT_EQ(wc.opcode, WcOpcode::kRdmaRead);
  EXPECT_EQ(wc.byte_len, kLarge);
  EXPECT_TRUE(is_copied());
}

TEST_F(ShmCopies, SmallRequests_AndOtherOperations_DoNotUseTheEngine) {
  make_pair();
  ASSERT_EQ(post_large(1, Opcode::kRdmaWrite, kThreshold - 1), 0);
  expect(1);
  ASSERT_EQ(receive(*b, 7, 4096), 0);
  ASSERT_EQ(post_large(2, Opcode::kSend, 64), 0);
  EXPECT_EQ(next().status, WcStatus::kSuccess);
  EXPECT_EQ(next().status, WcStatus::kSuccess);
  EXPECT_EQ(engine->submitted, 0);
  ASSERT_EQ(post_large(3, Opcode::kRdmaWrite, kThreshold), 0);
  EXPECT_EQ(engine->submitted, 1);
  engine->finish();
  expect(3);
}

TEST_F(ShmCopies, InlineData_IsCopiedByPost) {
  make_pair();
  const Sge sge = span(0, kLarge);
  SendWr wr = request(1, Opcode::kRdmaWrite, sge);
  wr.flags |= send_flag::kInline | send_flag::kAnyLength;
  ASSERT_EQ(a->post_send(wr), 0);
  expect(1);
  EXPECT_EQ(engine->submitted, 0);
  EXPECT_TRUE(is_copied());
}

TEST_F(ShmCopies, OverlappingRanges_AreCopiedByPost) {
  make_pair();
  const std::string expected(memory + 100, kLarge);
  const Sge sge = span(0, kLarge);
  SendWr wr = request(1, Opcode::kRdmaRead, sge);
  wr.remote_addr = reinterpret_cast<uint64_t>(memory + 100);
  ASSERT_EQ(a->post_send(wr), 0);
  expect(1);
  EXPECT_EQ(engine->submitted, 0);
  EXPECT_EQ(std::string(memory, kLarge), expected);
  wr.remote_addr = reinterpret_cast<uint64_t>(memory + kLarge);  // the next byte
  ASSERT_EQ(a->post_send(wr), 0);
  EXPECT_EQ(engine->submitted, 1);
  engine->finish();
  expect(1);
}

TEST_F(ShmCopies, LaterRequests_DoNotOvertakeTheCopy) {
  make_pair();
  ASSERT_EQ(receive(*b, 9, 4096 + 2048), 0);
  ASSERT_EQ(post_large(1), 0);
  const Sge eight = span(8, 8);
  SendWr small = request(2, Opcode::kRdmaWrite, eight);
  small.remote_addr = reinterpret_cast<uint64_t>(memory + 4096 + 16);
  ASSERT_EQ(a->post_send(small), 0);
  ASSERT_EQ(send(*a, 3), 0);
  ASSERT_EQ(post_large(4), 0);
  EXPECT_TRUE(is_empty());
  EXPECT_EQ(engine->submitted, 1);
  EXPECT_EQ(memory[4096 + 2048], 0);
  engine->finish();
  expect(1);
  expect(2);
  bool sent = false, received = false;
  for (int i = 0; i < 2; ++i) {
    const WorkCompletion wc = next();
    sent = sent || wc.wr_id == 3;
    received = received || wc.wr_id == 9;
  }
  EXPECT_TRUE(sent && received);
  EXPECT_EQ(std::memcmp(memory + 4096 + 16, memory + 8, 8), 0) << "the later WRITE overwrites a part of the first one";
  EXPECT_TRUE(soon([&] {
    is_empty();
    return engine->submitted == 2;
  }));
  engine->finish();
  expect(4);
}

TEST_F(ShmCopies, LargeRequests_BehindARequestThatWaits_UseTheEngineInTheirTurn) {
  make_pair();
  ASSERT_EQ(send(*a, 1), 0);  // no receive is posted
  ASSERT_EQ(post_large(2), 0);
  EXPECT_EQ(engine->submitted, 0);
  ASSERT_EQ(receive(*b, 9, 4096 + 2048), 0);
  EXPECT_TRUE(soon([&] { return engine->submitted == 1; })) << "by the service thread";
  engine->finish();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(next().status, WcStatus::kSuccess);
}

TEST_F(ShmCopies, WriteWithImmediate_CompletesItsReceiveAfterItsData) {
  make_pair();
  ASSERT_EQ(receive(*b, 9, 4096 + 2048), 0);
  ASSERT_EQ(post_large(1, Opcode::kRdmaWriteWithImm), 0);
  EXPECT_TRUE(is_empty());
  engine->finish();
  const WorkCompletion first = next(), second = next();
  const WorkCompletion& received = first.wr_id == 9 ? first : second;
  EXPECT_EQ(received.opcode, WcOpcode::kRecvRdmaWithImm);
  EXPECT_EQ(received.byte_len, kLarge);
  EXPECT_TRUE(is_copied());
}

TEST_F(ShmCopies, WriteWithImmediate_WithoutAReceive_WaitsAndIsNotCopiedAgain) {
  make_pair();
  ASSERT_EQ(post_large(1, Opcode::kRdmaWriteWithImm), 0);
  engine->finish();
  EXPECT_TRUE(is_empty());
  EXPECT_TRUE(soon([&] { return shared(*a).counters.rnr.load() == 1; }));
  EXPECT_TRUE(is_copied()) << "the data need no receive";
  ASSERT_EQ(receive(*b, 9, 4096 + 2048), 0);
  EXPECT_EQ(next().status, WcStatus::kSuccess);
  EXPECT_EQ(next().status, WcStatus::kSuccess);
  EXPECT_EQ(engine->submitted, 1);
  // The state is of that request alone.
  ASSERT_EQ(post_large(2), 0);
  EXPECT_EQ(engine->submitted, 2);
  EXPECT_TRUE(is_empty());
  engine->finish();
  expect(2);
}

TEST_F(ShmCopies, WriteWithImmediate_ReceiveThatNeverComes_EndsByTheRetryLimit) {
  make_pair(QpType::kRc, {.rnr_retry = 0});
  ASSERT_EQ(post_large(1, Opcode::kRdmaWriteWithImm), 0);
  engine->finish();
  expect(1, WcStatus::kRnrRetryExcErr);
}

TEST_F(ShmCopies, WrongRemoteKey_IsRefusedBeforeACopyBegins) {
  make_pair();
  const Sge sge = span(0, kLarge);
  SendWr wr = request(1, Opcode::kRdmaWrite, sge);
  wr.rkey += 1;
  ASSERT_EQ(a->post_send(wr), 0);
  expect(1, WcStatus::kRemAccessErr);
  EXPECT_EQ(engine->submitted, 0);
  EXPECT_EQ(shared(*a).copying.load() & 1, 0u);
}

TEST_F(ShmCopies, RemoteRights_AreCheckedWhenTheCopyBegins) {
  make_pair(QpType::kRc, {.rights = access::kRemoteRead});
  ASSERT_EQ(post_large(1), 0);
  expect(1, WcStatus::kRemAccessErr);
  EXPECT_EQ(engine->submitted, 0);
}

TEST_F(ShmCopies, LocalKey_RevokedBeforeTheCopyBegins_IsAnErrorOfTheRequest) {
  make_pair();
  auto other = std::move(*handle->alloc_mr(*pd, 4096, kEveryRight));
  ASSERT_EQ(send(*a, 1), 0);  // no receive is posted
  const Sge sge{reinterpret_cast<uint64_t>(other->addr()), kLarge, other->lkey()};
  ASSERT_EQ(a->post_send(request(2, Opcode::kRdmaWrite, sge)), 0);
  other.reset();
  ASSERT_EQ(receive(*b, 9, 4096 + 2048), 0);
  WcStatus status = WcStatus::kSuccess;
  for (int i = 0; i < 3; ++i) {
    const WorkCompletion wc = next();
    if (wc.wr_id == 2) status = wc.status;
  }
  EXPECT_EQ(status, WcStatus::kLocProtErr);
  EXPECT_EQ(engine->submitted, 0);
}

TEST_F(ShmCopies, RefusedByTheEngine_IsCopiedByPost) {
  make_pair();
  engine->refuses = true;
  ASSERT_EQ(post_large(1), 0);
  EXPECT_TRUE(is_copied());
  expect(1);
  EXPECT_EQ(shared(*a).copying.load() & 1, 0u);
}

TEST_F(ShmCopies, BrokenEngine_HasTheProcessorCopy) {
  make_pair();
  ASSERT_EQ(post_large(1), 0);
  engine->finish(JobState::kBroken);
  expect(1);
  EXPECT_TRUE(is_copied());
}

TEST_F(ShmCopies, UnmappedMemory_IsALocalProtectionError) {
  make_pair();
  ASSERT_EQ(post_large(1), 0);
  ASSERT_EQ(send(*a, 2), 0);
  engine->finish(JobState::kFault);
  expect(1, WcStatus::kLocProtErr);
  expect(2, WcStatus::kWrFlushErr);
  EXPECT_EQ(state_of(*a), QpState::kErr);
}

TEST_F(ShmCopies, RetryLimits_DoNotRunWhileAnEngineCopies) {
  make_pair(QpType::kRc, {.timeout = 1, .retry_cnt = 0});
  ASSERT_EQ(post_large(1), 0);
  constexpr int64_t kHour = 3'600'000'000'000;
  EXPECT_LT(a->progress(base::now_ns() + kHour), INT64_MAX);
  EXPECT_LT(a->progress(base::now_ns() + 2 * kHour), INT64_MAX);
  EXPECT_TRUE(is_empty());
  engine->finish();
  expect(1);
}

TEST_F(ShmCopies, Deregistration_OfTheTarget_WaitsForTheCopy) {
  make_pair();
  auto target = std::move(*handle->alloc_mr(*pd, 4096, kEveryRight));
  const Sge sge = span(0, kLarge);
  SendWr wr = request(1, Opcode::kRdmaWrite, sge);
  wr.rkey = target->rkey();
  wr.remote_addr = reinterpret_cast<uint64_t>(target->addr());
  ASSERT_EQ(a->post_send(wr), 0);
  const uint32_t index = shm::key_index(target->rkey());
  expect_wait([&] { return tables().mr[index].key.load() == 0; }, [&] { target.reset(); });
  expect(1);
}

TEST_F(ShmCopies, Deregistration_OfTheSource_WaitsForTheCopy) {
  make_pair();
  auto source = std::move(*handle->alloc_mr(*pd, 4096, kEveryRight));
  const Sge sge{reinterpret_cast<uint64_t>(source->addr()), kLarge, source->lkey()};
  ASSERT_EQ(a->post_send(request(1, Opcode::kRdmaWrite, sge)), 0);
  const uint32_t index = shm::key_index(source->lkey());
  expect_wait([&] { return tables().mr[index].key.load() == 0; }, [&] { source.reset(); });
  expect(1);
}

TEST_F(ShmCopies, StateOfTheTarget_ChangesWhenTheCopyIsOver) {
  for (const QpState state : {QpState::kErr, QpState::kReset}) {
    make_pair();
    std::memset(memory + 4096, 0, 4096);
    ASSERT_EQ(post_large(1), 0);
    expect_wait([&] { return state_of_shared(*b) == state; }, [&] { EXPECT_EQ(move(*b, state), 0); });
    expect(1);  // it was executed before the change
    EXPECT_TRUE(is_copied());
  }
}

TEST_F(ShmCopies, LocalInvalidate_WaitsForACopyThroughTheWindow) {
  make_pair(QpType::kRc, {.timeout = 1, .retry_cnt = 0});
  auto opened = std::move(*handle->alloc_mr(*pd, 4096, kEveryRight | access::kMwBind));
  auto window = std::move(*handle->alloc_mw(*pd, MwType::kType2));
  SendWr bind{.wr_id = 1, .opcode = Opcode::kBindMw};
  bind.flags = send_flag::kSignaled;
  bind.mw = window.get();
  bind.rkey = window->rkey();
  bind.bind = {opened.get(), reinterpret_cast<uint64_t>(opened->addr()), 4096, access::kRemoteWrite};
  ASSERT_EQ(b->post_send(bind), 0);
  expect(1);
  const Sge sge = span(0, kLarge);
  SendWr wr = request(2, Opcode::kRdmaWrite, sge);
  wr.rkey = bind.rkey;
  wr.remote_addr = reinterpret_cast<uint64_t>(opened->addr());
  ASSERT_EQ(a->post_send(wr), 0);
  ASSERT_EQ(engine->submitted, 1);
  SendWr invalidate{.wr_id = 3, .opcode = Opcode::kLocalInv};
  invalidate.flags = send_flag::kSignaled;
  invalidate.imm_or_rkey = bind.rkey;
  ASSERT_EQ(b->post_send(invalidate), 0);
  EXPECT_EQ(tables().mr[shm::key_index(bind.rkey)].key.load(), 0u);
  EXPECT_LT(b->progress(base::now_ns()), INT64_MAX) << "it is tried again";
  EXPECT_TRUE(is_empty());
  engine->finish();
  bool wrote = false, invalidated = false;
  for (int i = 0; i < 2; ++i) {
    const WorkCompletion wc = next();
    EXPECT_EQ(wc.status, WcStatus::kSuccess);
    wrote = wrote || wc.wr_id == 2;
    invalidated = invalidated || wc.wr_id == 3;
  }
  EXPECT_TRUE(wrote && invalidated);
}

TEST_F(ShmCopies, LocalInvalidate_PostThatGivesItsDataToAnEngine_IsWaitedForTwice) {
  make_pair();
  auto opened = std::move(*handle->alloc_mr(*pd, 4096, kEveryRight | access::kMwBind));
  auto window = std::move(*handle->alloc_mw(*pd, MwType::kType2));
  SendWr bind{.wr_id = 1, .opcode = Opcode::kBindMw};
  bind.flags = send_flag::kSignaled;
  bind.mw = window.get();
  bind.rkey = window->rkey();
  bind.bind = {opened.get(), reinterpret_cast<uint64_t>(opened->addr()), 4096, access::kRemoteWrite};
  ASSERT_EQ(b->post_send(bind), 0);
  expect(1);
  const Sge sge = span(0, kLarge);
  SendWr wr = request(2, Opcode::kRdmaWrite, sge);
  wr.rkey = bind.rkey;
  wr.remote_addr = reinterpret_cast<uint64_t>(opened->addr());
  a->post_begin();  // its send lock is held when the window is invalidated
  SendWr invalidate{.wr_id = 3, .opcode = Opcode::kLocalInv};
  invalidate.flags = send_flag::kSignaled;
  invalidate.imm_or_rkey = bind.rkey;
  ASSERT_EQ(a->post(wr), 0);
  ASSERT_EQ(b->post_send(invalidate), 0);
  a->post_end();
  EXPECT_LT(b->progress(base::now_ns()), INT64_MAX);
  EXPECT_TRUE(is_empty()) << "the engine copies";
  engine->finish();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(next().status, WcStatus::kSuccess);
}

TEST_F(ShmCopies, ErrorState_CancelsTheCopyAndFlushes) {
  make_pair();
  ASSERT_EQ(post_large(1), 0);
  ASSERT_EQ(post_large(2), 0);
  ASSERT_EQ(move(*a, QpState::kErr), 0);
  EXPECT_EQ(engine->cancelled, 1);
  expect(1, WcStatus::kWrFlushErr);
  expect(2, WcStatus::kWrFlushErr);
  EXPECT_EQ(shared(*a).copying.load() & 1, 0u);
}

TEST_F(ShmCopies, DestroyedQueuePair_CancelsTheCopy) {
  make_pair();
  ASSERT_EQ(post_large(1), 0);
  qps.erase(qps.begin());
  EXPECT_EQ(engine->cancelled, 1);
  EXPECT_TRUE(is_empty());
}

TEST_F(ShmCopies, Reset_AndANewLife_CopiesAgain) {
  make_pair();
  ASSERT_EQ(post_large(1), 0);
  ASSERT_EQ(move(*a, QpState::kReset), 0);
  EXPECT_EQ(engine->cancelled, 1);
  ASSERT_EQ(move(*b, QpState::kReset), 0);
  ASSERT_EQ(connect(*a, b->number()), 0);
  ASSERT_EQ(connect(*b, a->number()), 0);
  ASSERT_EQ(post_large(2), 0);
  engine->finish();
  expect(2);
  EXPECT_TRUE(is_copied());
}

TEST_F(ShmCopies, SendQueueDrained_WaitsForTheCopy) {  // IBTA 10.3.1.5
  make_pair();
  ASSERT_EQ(post_large(1), 0);
  ASSERT_EQ(post_large(2), 0);
  ASSERT_EQ(move(*a, QpState::kSqd), 0);
  QpAttr attr;
  ASSERT_EQ(a->query(&attr, nullptr), 0);
  EXPECT_TRUE(attr.sq_draining);
  engine->finish();
  expect(1);
  ASSERT_EQ(a->query(&attr, nullptr), 0);
  EXPECT_FALSE(attr.sq_draining);
  EXPECT_EQ(engine->submitted, 1) << "the second one has not begun";
  ASSERT_EQ(move(*a, QpState::kRts), 0);
  EXPECT_TRUE(soon([&] { return engine->submitted == 2; }));
  engine->finish();
  expect(2);
}

TEST_F(ShmCopies, UnreliableConnection_UsesTheEngineAsWell) {
  make_pair(QpType::kUc);
  ASSERT_EQ(post_large(1), 0);
  EXPECT_TRUE(is_empty());
  engine->finish();
  expect(1);
  EXPECT_TRUE(is_copied());
}

TEST_F(ShmCopies, CompletionChannel_GetsTheEventOfACopy) {
  auto channel = std::move(*handle->create_channel());
  Cq* queue = make_cq(16, channel.get());
  a = make_qp(QpType::kRc, nullptr, queue);
  b = make_qp();
  ASSERT_EQ(connect(*a, b->number()), 0);
  ASSERT_EQ(connect(*b, a->number()), 0);
  ASSERT_EQ(queue->arm(false), 0);
  ASSERT_EQ(post_large(1), 0);
  engine->finish();
  context().try_waiting_requests();  // as an engine's thread does
  EXPECT_EQ(next(queue).wr_id, 1u);
  qps.clear();  // the queue pairs and the queue before the channel
  cqs.pop_back();
}

class ShmCopiesDeath : public ShmProcesses {};

TEST_F(ShmCopiesDeath, Kill_PeerDuringACopy_EndsTheRequest) {
  start(connect_and_wait);
  auto made = std::make_unique<HeldEngine>();
  HeldEngine& engine = *made;
  end.shm().use_engine(std::move(made), kThreshold);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
  const Sge sge = end.span(0, kLarge);
  SendWr wr{.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kRdmaWrite};
  wr.flags = send_flag::kSignaled;
  wr.rkey = peer.rkey;
  wr.remote_addr = peer.addr;
  ASSERT_EQ(qp->post_send(wr), 0);
  ASSERT_EQ(engine.submitted, 1);
  EXPECT_FALSE(engine.job().writes_program_memory);
  kill_child();
  EXPECT_EQ(end.next().status, WcStatus::kRetryExcErr);
  EXPECT_EQ(engine.cancelled, 1);
  EXPECT_EQ(end.state_of(*qp), QpState::kErr);
}

bool deregister_when_asked(ShmEnd& end, const ShmLine& line) {
  Qp* qp = end.make_qp();
  ShmAddress peer;
  if (!exchange_and_connect(end, line, *qp, &peer) || !line.wait()) return false;
  end.region.reset();
  return line.go() && line.wait();
}

TEST_F(ShmCopiesDeath, Deregistration_ByThePeerProcess_WaitsForTheCopy) {
  start(deregister_when_asked);
  auto made = std::make_unique<HeldEngine>();
  HeldEngine& engine = *made;
  end.shm().use_engine(std::move(made), kThreshold);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
  const Sge sge = end.span(0, kLarge);
  SendWr wr{.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kRdmaWrite};
  wr.flags = send_flag::kSignaled;
  wr.rkey = peer.rkey;
  wr.remote_addr = peer.addr;
  ASSERT_EQ(qp->post_send(wr), 0);
  ASSERT_TRUE(line.go());
  const host::PeerRef other = peer_of(end, peer.qp_num);
  ASSERT_TRUE(soon([&] { return other->tables().mr[shm::key_index(peer.rkey)].key.load() == 0; }));
  std::atomic<bool> deregistered{false};
  std::thread listener([&] { deregistered = line.wait(); });
  // sleep: a process that does not wait would answer within that time
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(deregistered.load());
  engine.finish();
  listener.join();
  EXPECT_TRUE(deregistered.load());
  EXPECT_EQ(end.next().status, WcStatus::kSuccess);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

}  // namespace
}  // namespace nupa::core
