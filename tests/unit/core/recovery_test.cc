// SPDX-License-Identifier: Apache-2.0
/// What a process leaves half done in another one's queues when it dies, step by step: the dead one is a signature that
/// no process has.
#include <fcntl.h>
#include <poll.h>

#include "shm_fixture.h"

namespace nupa::core {
namespace {

using shm::CompletionRing;
using shm::ReceiveRing;

class ShmRecovery : public ShmTest {
 protected:
  static constexpr uint32_t kDead = 0x7000 | 4001;  ///< no process has this slot

  /// A completion queue as another process writes to it.
  CompletionRing ring_of(Cq& queue) {
    shm::CqShared& shared = tables().cq[queue.index()];
    const uint64_t where = shared.where.load();
    const uint32_t log2 = shm::ring_log2(where);
    auto bytes = process().node().self().heap(shm::ring_offset(where), CompletionRing::bytes_for(log2));
    return bytes ? CompletionRing(&shared, *bytes, log2, shm::ring_generation(where)) : CompletionRing();
  }
  static shm::CqEntry entry_with(uint64_t wr_id) {
    shm::CqEntry entry;
    entry.wr_id = wr_id;
    return entry;
  }
  /// A queue pair that is connected to itself.
  Qp* make_loop(Srq* srq = nullptr) {
    Qp* qp = make_qp(QpType::kRc, srq);
    EXPECT_EQ(connect(*qp, qp->number()), 0);
    return qp;
  }
  ReceiveRing ring_of(Qp& qp) {
    shm::RecvRing& shared_ring = shared(qp).recv;
    const uint64_t where = shared_ring.where.load();
    const uint32_t log2 = shm::ring_log2(where);
    auto bytes = process().node().self().heap(shm::ring_offset(where), uint64_t{shared_ring.stride} << log2);
    return bytes ? ReceiveRing(&shared_ring, *bytes, log2, shared_ring.stride) : ReceiveRing();
  }
};

TEST_F(ShmRecovery, Recover_WriterDiedOwingAnEvent_RaisesItOnce) {
  auto channel = std::move(*handle->create_channel());
  ASSERT_EQ(fcntl(channel->fd(), F_SETFL, O_NONBLOCK), 0);
  Cq* queue = make_cq(8, channel.get());
  shm::CqShared& theirs = tables().cq[queue->index()];
  ASSERT_EQ(queue->arm(false), 0);
  queue->recover(kDead);
  EXPECT_FALSE(channel->wait()) << "the queue is armed still: nothing is lost";
  EXPECT_EQ(shm::armed_of(theirs.armed.load()), shm::Armed::kNext);
  ASSERT_TRUE(ring_of(*queue).needs_event(false));  // and it died before it raised the event
  queue->recover(kDead);
  const auto event = channel->wait();
  ASSERT_TRUE(event);
  EXPECT_EQ(*event, queue);
  queue->recover(kDead);
  EXPECT_FALSE(channel->wait()) << "it is raised once";
  // Each arming counts once, however often it is repeated.
  ASSERT_EQ(queue->arm(true), 0);
  ASSERT_EQ(queue->arm(false), 0);
  CompletionRing ring = ring_of(*queue);
  ASSERT_EQ(ring.push(process().tag(), nullptr, entry_with(1)), CompletionRing::Push::kOk);
  ASSERT_TRUE(ring.needs_event(false));
  host::raise_cq_event(process().node().self(), queue->index());
  EXPECT_TRUE(channel->wait());
  queue->recover(kDead);
  EXPECT_FALSE(channel->wait());
  cqs.pop_back();
  EXPECT_EQ(channel->close(), 0);
}

/// A queue whose program sleeps in ibv_get_cq_event(), and those that owe it events.
class ShmRecoveryEvents : public ShmRecovery {
 protected:
  void SetUp() override {
    ShmRecovery::SetUp();
    channel = std::move(*handle->create_channel());
    ASSERT_EQ(fcntl(channel->fd(), F_SETFL, O_NONBLOCK), 0);
    queue = make_cq(8, channel.get());
  }
  void TearDown() override {
    cqs.pop_back();
    EXPECT_EQ(channel->close(), 0);
    ShmRecovery::TearDown();
  }
  /// A writer takes the arming, and owes the event from then on.
  void arm_and_disarm() {
    ASSERT_EQ(queue->arm(false), 0);
    ASSERT_TRUE(ring_of(*queue).needs_event(false));
  }
  void raise() { host::raise_cq_event(process().node().self(), queue->index()); }
  /// How many events there are, each with its wake-up.
  int take_events() {
    int taken = 0;
    while (taken < 10 && channel->wait()) ++taken;
    return taken;
  }
  void recover_all() {
    queue->recover(kDead);
    queue->event_channel()->recover();
  }
  bool is_readable() const {
    pollfd event{channel->fd(), POLLIN, 0};
    return poll(&event, 1, 0) == 1;
  }

  std::unique_ptr<CompletionChannel> channel;
  Cq* queue = nullptr;
};

TEST_F(ShmRecoveryEvents, Recover_LivingWriterStillOwesTheEvent_IsRaisedOnce) {
  arm_and_disarm();
  queue->recover(kDead);  // it is unknown which writer owes the event
  EXPECT_EQ(take_events(), 1);
  raise();  // the living writer had held it
  EXPECT_EQ(take_events(), 0);
  EXPECT_FALSE(is_readable());
  // Nothing is left over that the next recovery takes for a lost event, or for one raised already.
  queue->recover(kDead);
  EXPECT_EQ(take_events(), 0);
  arm_and_disarm();
  queue->recover(kDead);
  EXPECT_EQ(take_events(), 1);
}

TEST_F(ShmRecoveryEvents, Recover_EventOfAnEarlierArming_IsRaisedThoughTheQueueIsArmed) {
  arm_and_disarm();
  ASSERT_EQ(queue->arm(false), 0);
  queue->recover(kDead);
  EXPECT_EQ(take_events(), 1);
  EXPECT_EQ(shm::armed_of(tables().cq[queue->index()].armed.load()), shm::Armed::kNext);
}

TEST_F(ShmRecoveryEvents, Raise_TwoWritersOweEvents_BothAreRaised) {
  arm_and_disarm();
  arm_and_disarm();
  raise();
  raise();
  EXPECT_EQ(take_events(), 2);
  queue->recover(kDead);
  EXPECT_EQ(take_events(), 0);
}

TEST_F(ShmRecoveryEvents, Recover_DeadWriterCountedButDidNotSignal_WakesTheChannel) {
  for (int turn = 0; turn < 2; ++turn) {
    arm_and_disarm();
    ASSERT_TRUE(CompletionRing::count_event(tables().cq[queue->index()]));
    EXPECT_FALSE(is_readable());
    recover_all();
    EXPECT_TRUE(is_readable());
    recover_all();
    EXPECT_EQ(take_events(), 1);
    EXPECT_FALSE(is_readable());
  }
}

TEST_F(ShmRecoveryEvents, Recover_EventWasSignalled_IsNotSignalledAgain) {
  arm_and_disarm();
  raise();
  recover_all();
  ASSERT_TRUE(channel->wait());
  EXPECT_FALSE(is_readable());
}

TEST_F(ShmRecoveryEvents, Recover_DeadWriterLeftTheSignalToTheService_IsSignalledOnce) {
  arm_and_disarm();
  shm::CqShared& shared = tables().cq[queue->index()];
  ASSERT_TRUE(CompletionRing::count_event(shared));
  shared.unsignalled.fetch_add(1);  // and it died before it called for attention
  recover_all();
  EXPECT_EQ(take_events(), 1);
  EXPECT_FALSE(is_readable());
}

TEST_F(ShmRecoveryEvents, Recover_ServiceSignalsTheEvent_ChannelDoesNot) {
  arm_and_disarm();
  shm::CqShared& shared = tables().cq[queue->index()];
  ASSERT_TRUE(CompletionRing::count_event(shared));
  shared.unsignalled.fetch_add(1);
  queue->event_channel()->recover();
  EXPECT_FALSE(is_readable());
  queue->wake_channel();
  EXPECT_EQ(take_events(), 1);
}

TEST_F(ShmRecovery, Recover_EntriesOfDeadAndLivingWriters_SkipsOnlyThoseOfTheDead) {
  Cq* queue = make_cq(8);
  CompletionRing ring = ring_of(*queue);
  uint64_t dead_claim, live_claim;
  ASSERT_EQ(ring.push(kDead, nullptr, entry_with(1)), CompletionRing::Push::kOk);  // this one it completed
  ASSERT_EQ(ring.claim_next(kDead, &dead_claim), CompletionRing::Push::kOk);
  ASSERT_EQ(ring.claim_next(process().tag(), &live_claim), CompletionRing::Push::kOk);
  ASSERT_EQ(ring.push(process().tag(), nullptr, entry_with(3)), CompletionRing::Push::kOk);
  WorkCompletion wc{};
  queue->recover(kDead);
  ASSERT_EQ(queue->poll(&wc, 1), 1);
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(queue->poll(&wc, 1), 0) << "one that lives is still writing";
  ring.write(live_claim, entry_with(2));
  for (const uint64_t id : {2u, 3u}) {
    ASSERT_EQ(queue->poll(&wc, 1), 1);
    EXPECT_EQ(wc.wr_id, id);
  }
  EXPECT_EQ(queue->poll(&wc, 1), 0);
}

TEST_F(ShmRecovery, Push_WithAnIntent_AnnouncesTheEntry) {
  Cq* queue = make_cq(8);
  CompletionRing ring = ring_of(*queue);
  std::atomic<uint64_t> intent{0};
  ASSERT_EQ(ring.push(kDead, &intent, entry_with(1)), CompletionRing::Push::kOk);
  EXPECT_TRUE(queue->completed(intent.load())) << "it is ready";
  WorkCompletion wc{};
  ASSERT_EQ(queue->poll(&wc, 1), 1);
  EXPECT_TRUE(queue->completed(intent.load())) << "it was polled";
  for (uint64_t id = 2; id <= ring.capacity() + 1; ++id) {  // its slot has another entry since
    ASSERT_EQ(ring.push(kDead, nullptr, entry_with(id)), CompletionRing::Push::kOk);
    ASSERT_EQ(queue->poll(&wc, 1), 1);
  }
  EXPECT_TRUE(queue->completed(intent.load())) << "it was polled long ago";
  uint64_t position;
  ASSERT_EQ(ring.claim_next(kDead, &position), CompletionRing::Push::kOk);
  EXPECT_EQ(position, ring.capacity() + 1);
  EXPECT_EQ(intent.load(), 1u) << "position plus 1, in generation 0";
  EXPECT_FALSE(queue->completed(position + 1)) << "it is claimed and not written";
  queue->recover(kDead);
  ASSERT_EQ(queue->poll(&wc, 1), 0);
  // A resize waits for every claim: what was announced before it was completed.
  ASSERT_EQ(queue->resize(16), 0);
  EXPECT_TRUE(queue->completed(100));
  CompletionRing moved = ring_of(*queue);
  ASSERT_EQ(moved.push(kDead, &intent, entry_with(2)), CompletionRing::Push::kOk);
  EXPECT_EQ(shm::ring_generation(intent.load()), 1u);
  EXPECT_TRUE(queue->completed(intent.load()));
  EXPECT_FALSE(queue->completed(intent.load() + 1));
}

TEST_F(ShmRecovery, Recover_ReceiveNotCompleted_IsPostedAgain) {
  Srq* srq = make_srq(8);
  for (const uint64_t id : {1, 2, 3, 4}) ASSERT_EQ(receive(*srq, id), 0);
  ReceiveRing& ring = srq->queue().ring();
  const auto of_the_dead = ring.claim(kDead);
  const std::pair<ReceiveRing::Claim, uint32_t> of_the_living[] = {{ring.claim(kDead - 1), kDead - 1},
                                                                   {ring.claim(kDead + 1), kDead + 1}};
  ASSERT_EQ(of_the_dead.slot->wr_id, 1u);
  recover(*srq, kDead);
  for (const auto& [claim, tag] : of_the_living) {
    EXPECT_TRUE(ReceiveRing::is_claimed(claim, tag));
    EXPECT_FALSE(ReceiveRing::is_claimed(claim, kDead));
  }
  EXPECT_EQ(ring.claim(process().tag()).slot->wr_id, 1u);
  EXPECT_EQ(ring.claim(process().tag()).slot->wr_id, 4u);
  EXPECT_FALSE(ring.claim(process().tag()));
}

TEST_F(ShmRecovery, Recover_ReceiveCompleted_IsNotPostedAgain) {
  Srq* srq = make_srq(4);
  Qp* qp = make_loop(srq);
  for (const uint64_t id : {1, 2}) ASSERT_EQ(receive(*srq, id), 0);
  ReceiveRing& ring = srq->queue().ring();
  const auto claim = ring.claim(kDead);
  ASSERT_TRUE(claim);
  claim.slot->claim_qp.store(qp->index() + 1);
  CompletionRing completions = ring_of(*cq);
  ASSERT_EQ(completions.push(kDead, &claim.slot->completion, entry_with(1)), CompletionRing::Push::kOk);
  recover(*srq, kDead);  // it died before it freed the receive
  EXPECT_EQ(next().wr_id, 1u);
  const auto second = ring.claim(process().tag());
  ASSERT_TRUE(second);
  EXPECT_EQ(second.slot->wr_id, 2u);
  EXPECT_FALSE(ring.claim(process().tag()));
  // A free slot names no queue pair, or the next process that dies would count as having completed it.
  EXPECT_EQ(claim.slot->completion.load(), 0u);
  EXPECT_EQ(claim.slot->claim_qp.load(), 0u);
}

TEST_F(ShmRecovery, Recover_ReceiveOfAQueuePair_IsPostedAgain) {
  // A connected one stays connected when its peer dies.
  for (const QpType type : {QpType::kUd, QpType::kRc, QpType::kUc}) {
    Qp* qp = make_qp(type);
    ASSERT_EQ(connect(*qp, type == QpType::kUd ? 0 : qp->number()), 0);
    ASSERT_EQ(receive(*qp, 1), 0);
    ReceiveRing ring = ring_of(*qp);
    ASSERT_TRUE(ring.claim(kDead));
    qp->recover(kDead);
    const auto again = ring.claim(process().tag());
    ASSERT_TRUE(again) << static_cast<int>(type);
    EXPECT_EQ(again.slot->wr_id, 1u);
    ring.put_back(again);
  }
}

TEST_F(ShmRecovery, ErrorState_ReceiveClaimedByADeadProcess_IsFlushedOnce) {
  Qp* qp = make_loop();
  for (const uint64_t id : {1, 2, 3}) ASSERT_EQ(receive(*qp, id), 0);
  ReceiveRing ring = ring_of(*qp);
  const auto completed = ring.claim(kDead);
  ASSERT_EQ(completed.slot->wr_id, 1u);
  CompletionRing completions = ring_of(*cq);
  ASSERT_EQ(completions.push(kDead, &completed.slot->completion, entry_with(1)), CompletionRing::Push::kOk);
  ASSERT_TRUE(ring.claim(kDead));  // the second it has not completed
  ASSERT_EQ(move(*qp, QpState::kErr), 0);
  for (const uint64_t id : {1, 2, 3}) {
    const WorkCompletion wc = next();
    EXPECT_EQ(wc.wr_id, id);
    EXPECT_EQ(wc.status, id == 1 ? WcStatus::kSuccess : WcStatus::kWrFlushErr) << id;
  }
  EXPECT_TRUE(is_empty());
}

TEST_F(ShmRecovery, ErrorState_ReceiveClaimedByALivingProcess_IsNotFlushed) {
  Qp* qp = make_loop();
  for (const uint64_t id : {1, 2}) ASSERT_EQ(receive(*qp, id), 0);
  ReceiveRing ring = ring_of(*qp);
  const auto claim = ring.claim(process().tag());
  ASSERT_TRUE(claim);
  std::atomic<bool> moved{false};
  std::thread other([&] {
    EXPECT_EQ(move(*qp, QpState::kErr), 0);
    moved = true;
  });
  ASSERT_TRUE(soon([&] { return state_of_shared(*qp) == QpState::kErr; }));
  // sleep: a call that does not wait would return within that time
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(moved.load());
  EXPECT_TRUE(is_empty());
  CompletionRing completions = ring_of(*cq);
  ASSERT_EQ(completions.push(process().tag(), &claim.slot->completion, entry_with(1)), CompletionRing::Push::kOk);
  ReceiveRing::finish(claim);
  other.join();
  EXPECT_EQ(next().wr_id, 1u);
  const WorkCompletion flushed = next();
  EXPECT_EQ(flushed.wr_id, 2u);
  EXPECT_EQ(flushed.status, WcStatus::kWrFlushErr);
}

TEST_F(ShmRecovery, Reset_WriterDoesNotFinish_WaitsForALimitedTime) {
  Qp* qp = make_loop();
  ASSERT_EQ(receive(*qp, 1), 0);
  ReceiveRing ring = ring_of(*qp);
  const auto claim = ring.claim(process().tag());
  ASSERT_TRUE(claim);
  std::atomic<bool> moved{false};
  std::thread other([&] {
    EXPECT_EQ(move(*qp, QpState::kReset), 0);
    moved = true;
  });
  EXPECT_TRUE(soon([&] { return moved.load(); }));
  ReceiveRing::finish(claim);  // too late
  other.join();
  ASSERT_EQ(connect(*qp, qp->number()), 0);
  ASSERT_EQ(receive(*qp, 2), 0);
  EXPECT_EQ(ring_of(*qp).claim(process().tag()).slot->wr_id, 2u);
}

}  // namespace
}  // namespace nupa::core
