// SPDX-License-Identifier: Apache-2.0
// Completions and events that one process hands to another.
#include <gtest/gtest.h>

#include "host/completion_port.h"
#include "progress/late_events.h"
#include "host/peer_table.h"
#include "fixture.h"

namespace nupa::host::test {
namespace {

namespace attention = shm::attention;

constexpr uint32_t kQueue = 70;  // not in the first word of bits
constexpr uint32_t kLog2 = 2;
constexpr uint32_t kTag = 9;

class CmCompletionPort : public ::testing::Test {
 protected:
  void SetUp() override {
    auto handshake = check_hello(ends_.one.get(), owner_.received_hello());
    ASSERT_TRUE(handshake);
    peer_ = table_.adopt(std::move(*handshake));
    shared().where.store(new_ring(1));
  }
  shm::CqShared& shared() { return peer_->tables().cq[kQueue]; }
  shm::SegmentHeader& header() { return owner_.header(); }
  /// The place of a new ring of four entries.
  uint64_t new_ring(uint16_t generation) {
    auto block = owner_.allocate(shm::CompletionRing::bytes_for(kLog2));
    EXPECT_TRUE(block);
    ring_ = shm::CompletionRing(&shared(), block->address, kLog2, generation);
    return shm::pack_ring(block->offset, kLog2, generation);
  }
  CompletionPort::Pushed push(uint64_t number, bool solicited = false, DueEvent* due = nullptr) {
    entry_.wr_id = number;
    return port().push(kTag, nullptr, solicited, entry_, due);
  }
  CompletionPort& port() {
    if (!port_.valid()) port_ = CompletionPort(*peer_, kQueue);
    return port_;
  }
  /// How often the doorbell was rung since this was asked last.
  uint64_t rung(int fd) {
    uint64_t count = 0;
    return ::read(fd, &count, sizeof count) == sizeof count ? count : 0;
  }
  uint64_t wakeup_fd() { return rung(owner_.wakeup_fd()); }
  /// The queue has a channel, whose descriptor this process has if `arrived`.
  void add_channel(bool arrived) {
    constexpr uint32_t kChannel = 5;
    shared().channel = kChannel + 1;
    channel_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (arrived) peer_->set_channel(kChannel, dup(channel_.get()));
  }
  void arm(shm::Armed kind) { shm::CompletionRing::arm(shared(), kind); }

  Ends ends_ = make_pair();
  PeerTable table_;
  FakeProcess owner_;
  PeerRef peer_;
  shm::CompletionRing ring_;
  CompletionPort port_;
  shm::CqEntry entry_;
  base::UniqueFd channel_;
};
using Pushed = CompletionPort::Pushed;

TEST_F(CmCompletionPort, EntriesAreInTheOwnersRingInTheirOrder) {
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(Pushed::kYes, push(100 + i));
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(ring_.ready(i));
    EXPECT_EQ(100 + i, ring_.slot(i).entry.wr_id);
    EXPECT_EQ(0u, ring_.slot(i).entry.timestamp) << "nobody asked for it";
  }
  EXPECT_EQ(0u, wakeup_fd());
}

TEST_F(CmCompletionPort, AQueueThatIsGoneTakesNothing) {
  shared().where.store(0);
  EXPECT_EQ(Pushed::kNo, push(1));
  shared().where.store(shm::pack_ring(uint64_t{1} << 40, kLog2, 1));
  EXPECT_EQ(Pushed::kNo, push(1)) << "beyond the end of the file";
}

TEST_F(CmCompletionPort, AFullQueueOverrunsOnce) {
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(Pushed::kYes, push(i));
  EXPECT_EQ(Pushed::kLost, push(4));
  EXPECT_EQ(1u, shared().overrun.load());
  EXPECT_EQ(attention::kCq, header().attention.exchange(0));
  EXPECT_EQ(uint64_t{1} << (kQueue % 64), header().cq_attention[kQueue / 64].exchange(0));
  EXPECT_EQ(1u, wakeup_fd());
  EXPECT_EQ(Pushed::kLost, push(5));
  EXPECT_EQ(0u, header().attention.load()) << "it is told once";
  EXPECT_EQ(0u, wakeup_fd());
  shared().overrun.store(2);
  EXPECT_EQ(Pushed::kLost, push(5));
  EXPECT_EQ(2u, shared().overrun.load()) << "its owner has told the program";
  ring_.publish_head(1);
  EXPECT_EQ(Pushed::kYes, push(6)) << "one was read";
}

TEST_F(CmCompletionPort, AnOverrunThatItsOwnerIgnoresIsNotReported) {
  shared().flags = shm::kCqIgnoreOverrun;
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(Pushed::kYes, push(i));
  EXPECT_EQ(Pushed::kNo, push(4));
  EXPECT_EQ(0u, shared().overrun.load());
  EXPECT_EQ(0u, wakeup_fd());
}

TEST_F(CmCompletionPort, TimestampsAreThoseOfThePush) {
  shared().flags = shm::kCqTimestamps;
  for (uint64_t i = 0; i < 3; ++i) {
    const uint64_t before = base::ticks();
    ASSERT_EQ(Pushed::kYes, push(i));
    EXPECT_GE(ring_.slot(i).entry.timestamp, before);
    EXPECT_LE(ring_.slot(i).entry.timestamp, base::ticks());
  }
}

TEST_F(CmCompletionPort, AResizedQueueIsFollowed) {
  ASSERT_EQ(Pushed::kYes, push(1));
  const shm::CompletionRing old = ring_;
  shared().where.store(new_ring(2));
  ASSERT_EQ(Pushed::kYes, push(2));
  EXPECT_EQ(2u, ring_.slot(0).entry.wr_id);
  EXPECT_FALSE(old.ready(1));
}

TEST_F(CmCompletionPort, AQueueThatMovesIsWaitedFor) {
  ASSERT_EQ(Pushed::kYes, push(1));
  ASSERT_TRUE(ring_.close(1));
  std::atomic<bool> done{false};
  std::thread writer([&] {
    EXPECT_EQ(Pushed::kYes, push(2));
    done = true;
  });
  shm::CompletionRing old = ring_;
  const uint64_t place = new_ring(2);
  EXPECT_FALSE(done) << "the new place is not known yet";
  shared().where.store(place);
  writer.join();
  EXPECT_EQ(2u, ring_.slot(0).entry.wr_id);
  EXPECT_FALSE(old.ready(1));
}

TEST_F(CmCompletionPort, Push_OwnerIsStoppedWhileItMovesTheQueue_LosesTheEntryAndEnds) {
  ASSERT_EQ(Pushed::kYes, push(1));
  ASSERT_TRUE(ring_.close(1));
  std::atomic<bool> done{false};
  std::atomic<Pushed> pushed{Pushed::kYes};
  std::thread writer([&] {
    pushed = push(2);
    done = true;
  });
  EXPECT_TRUE(test::soon([&] { return done.load(); })) << "the writer holds a send lock";
  shared().where.store(new_ring(2));
  writer.join();
  EXPECT_EQ(Pushed::kLost, pushed.load()) << "its queue pair fails";
  EXPECT_EQ(0u, shared().overrun.load()) << "the queue has room";
}

TEST_F(CmCompletionPort, AQueueThatMovesWhileItsOwnerDiesTakesNothing) {
  ASSERT_EQ(Pushed::kYes, push(1));
  ASSERT_TRUE(ring_.close(1));
  peer_->mark_exited();
  EXPECT_EQ(Pushed::kNo, push(2)) << "and nobody waits for ever";
}

// Events.

TEST_F(CmCompletionPort, AnArmedQueueRaisesOneEvent) {
  add_channel(true);
  ASSERT_EQ(Pushed::kYes, push(1));
  EXPECT_EQ(0u, shared().events.load()) << "it was not armed";
  arm(shm::Armed::kNext);
  ASSERT_EQ(Pushed::kYes, push(2));
  ASSERT_EQ(Pushed::kYes, push(3));
  EXPECT_EQ(1u, shared().events.load());
  EXPECT_EQ(1u, rung(channel_.get()));
  EXPECT_EQ(0u, wakeup_fd()) << "the sleeper was woken itself";
}

TEST_F(CmCompletionPort, AQueueArmedForSolicitedOnesWaitsForOne) {
  add_channel(true);
  arm(shm::Armed::kSolicited);
  for (uint64_t i = 0; i < 2; ++i) {  // the first one maps the queue
    ASSERT_EQ(Pushed::kYes, push(i));
    EXPECT_EQ(0u, shared().events.load());
  }
  ASSERT_EQ(Pushed::kYes, push(2, true));
  EXPECT_EQ(1u, shared().events.load());
  EXPECT_EQ(1u, rung(channel_.get()));
}

TEST_F(CmCompletionPort, BeforeTheChannelArrivesTheOwnerWakesTheSleeper) {
  add_channel(false);
  arm(shm::Armed::kNext);
  ASSERT_EQ(Pushed::kYes, push(1));
  EXPECT_EQ(1u, shared().events.load());
  EXPECT_EQ(attention::kCq, header().attention.load());
  EXPECT_EQ(uint64_t{1} << (kQueue % 64), header().cq_attention[kQueue / 64].load());
  EXPECT_EQ(1u, wakeup_fd());
  EXPECT_EQ(1u, shared().unsignalled.load());
  arm(shm::Armed::kNext);
  ASSERT_EQ(Pushed::kYes, push(2));
  EXPECT_EQ(2u, shared().unsignalled.load()) << "the owner looks once for both, and wakes twice";
}

TEST_F(CmCompletionPort, AQueueWithoutAChannelCountsAndWakesNobody) {
  shared().armed.store(shm::pack_armed(1, shm::Armed::kNo));  // what the event is for
  raise_cq_event(*peer_, kQueue);
  EXPECT_EQ(1u, shared().events.load());
  EXPECT_EQ(0u, header().attention.load());
  EXPECT_EQ(0u, wakeup_fd());
}

TEST_F(CmCompletionPort, AnEventThatIsDueWaitsUntilItIsRaised) {
  add_channel(true);
  DueEvent due;
  due.raise();
  arm(shm::Armed::kNext);
  ASSERT_EQ(Pushed::kYes, push(1, false, &due));
  EXPECT_EQ(0u, rung(channel_.get()));
  due.raise();
  EXPECT_EQ(1u, rung(channel_.get()));
  due.raise();
  EXPECT_EQ(0u, rung(channel_.get())) << "once";
  arm(shm::Armed::kNext);
  ASSERT_EQ(Pushed::kYes, push(2, false, &due));
  due.hold(*peer_, kQueue + 1);
  EXPECT_EQ(1u, rung(channel_.get())) << "the next one does not displace it";
}

TEST_F(CmCompletionPort, AttentionIsCalledToOneObjectOfOneKind) {
  constexpr uint32_t kIndex = 64 + 3;
  call_attention(*peer_, attention::kQp, kIndex);
  EXPECT_EQ(attention::kQp, header().attention.exchange(0));
  EXPECT_EQ(8u, header().qp_attention[1].exchange(0));
  call_attention(*peer_, attention::kSrq, kIndex);
  EXPECT_EQ(attention::kSrq, header().attention.exchange(0));
  EXPECT_EQ(8u, header().srq_attention[1].exchange(0));
  EXPECT_EQ(0u, header().cq_attention[1].load());
  call_attention(*peer_, attention::kCq, kIndex);
  EXPECT_EQ(attention::kCq, header().attention.exchange(0));
  EXPECT_EQ(8u, header().cq_attention[1].exchange(0));
  EXPECT_EQ(3u, wakeup_fd());
  for (size_t word = 0; word < std::size(header().qp_attention); ++word) {
    EXPECT_EQ(0u, header().qp_attention[word].load());
    EXPECT_EQ(0u, header().srq_attention[word].load());
  }
}

// IBTA 10.2.9.4: the limit of a shared receive queue.

TEST_F(CmCompletionPort, FewerReceivesThanTheLimitAreReportedOncePerArming) {
  shm::RecvRing& ring = peer_->tables().srq[kQueue].recv;
  const auto told = [&] {
    signal_limit(*peer_, ring, kQueue);
    return header().attention.exchange(0) == attention::kSrq && wakeup_fd() == 1;
  };
  ring.posted.store(10);
  ring.consumed.store(10);
  EXPECT_FALSE(told()) << "it is not armed";
  ring.limit.store(3);
  ring.consumed.store(7);
  EXPECT_FALSE(told()) << "as many as the limit are left";
  EXPECT_EQ(3u, ring.limit.load());
  ring.consumed.store(8);
  EXPECT_TRUE(told());
  EXPECT_EQ(0u, ring.limit.load());
  EXPECT_FALSE(told());
  ring.limit.store(3);
  ring.consumed.store(11);
  EXPECT_TRUE(told()) << "the hint may run ahead";
}

TEST_F(CmCompletionPort, EventRaisedWhileAQueuePairIsHeld_WaitsUntilItIsLetGo) {
  add_channel(true);
  for (int turn = 0; turn < 2; ++turn) {
    arm(shm::Armed::kNext);
    progress::LateEvents::begin();
    EXPECT_EQ(push(1), CompletionPort::Pushed::kYes);
    EXPECT_EQ(rung(channel_.get()), 0u);
    progress::LateEvents::end();
    EXPECT_EQ(rung(channel_.get()), 1u);
    progress::LateEvents::end();
    EXPECT_EQ(rung(channel_.get()), 0u) << "once";
    arm(shm::Armed::kNext);
    EXPECT_EQ(push(2), CompletionPort::Pushed::kYes);
    EXPECT_EQ(rung(channel_.get()), 1u) << "nothing is held";
  }
}

TEST_F(CmCompletionPort, MoreEventsThanWait_AreRaisedAtOnce) {
  add_channel(true);
  shared().where.store(new_ring(2));
  progress::LateEvents::begin();
  constexpr uint64_t kEvents = 20;
  for (uint64_t i = 0; i < kEvents; ++i) {
    arm(shm::Armed::kNext);
    ASSERT_TRUE(ring_.needs_event(false));
    raise_cq_event(*peer_, kQueue);
  }
  const uint64_t at_once = rung(channel_.get());
  EXPECT_GT(at_once, 0u);
  progress::LateEvents::end();
  EXPECT_EQ(at_once + rung(channel_.get()), kEvents);
}

}  // namespace
}  // namespace nupa::host::test
