// SPDX-License-Identifier: Apache-2.0
/// Tests of completion queues that other processes write to: overruns, events, and completions of their queue pairs.
#include <fcntl.h>
#include <poll.h>

#include "../../support/soon.h"
#include "host/completion_port.h"
#include "host/peer.h"
#include "shm_fixture.h"

namespace nupa::core {
namespace {

class ShmCompletions : public ShmTest {
 protected:
  /// True if an event waits after the service thread has served the queue's attention.
  bool has_event() {
    host::call_attention(process().node().self(), shm::attention::kCq, cq->index());
    events().on_attention();
    // The service thread may have taken the kinds before, and takes the bit with the mutex held.
    const std::atomic<uint64_t>& bits = tables().header->cq_attention[cq->index() / 64];
    EXPECT_TRUE(test::soon([&] { return (bits.load() >> cq->index() % 64 & 1) == 0; }));
    events().on_attention();  // waits for the mutex
    pollfd event{handle->async_fd(), POLLIN, 0};
    return poll(&event, 1, 0) == 1;
  }
};

TEST_F(ShmCompletions, Overrun_OfACompletionQueue_IsReportedOnce) {  // IBTA 11.6.3.2
  EXPECT_FALSE(has_event());
  tables().cq[cq->index()].overrun.store(1);
  ASSERT_TRUE(has_event());
  const auto event = handle->next_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->type, EventType::kCqErr);
  EXPECT_EQ(event->cq, cq);
  EXPECT_FALSE(has_event()) << "after any other attention";
}

TEST_F(ShmCompletions, Forget_PendingEvents_DescriptorIsNotReadable) {
  EventQueue& events = device().events();
  const auto is_readable = [&] {
    pollfd event{events.fd(), POLLIN, 0};
    return poll(&event, 1, 0) == 1;
  };
  Cq* other = make_cq(1);
  events.push({EventType::kCqErr, cq, nullptr, nullptr, 1});
  events.push({EventType::kCqErr, other, nullptr, nullptr, 1});
  events.push({EventType::kCqErr, cq, nullptr, nullptr, 1});
  events.forget(cq);
  ASSERT_TRUE(is_readable());
  const auto event = handle->next_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->cq, other);
  EXPECT_FALSE(is_readable()) << "a program that reads now would sleep";
}

TEST_F(ShmCompletions, CloseChannel_ManyTimes_NumbersAreReused) {
  for (uint32_t i = 0; i <= host::Peer::kMaxChannels; ++i) {
    const auto channel = handle->create_channel();
    ASSERT_TRUE(channel) << i << ": " << std::strerror(channel.error().code());
    ASSERT_EQ((*channel)->close(), 0);
  }
}

TEST_F(ShmCompletions, Completion_QueuePairOfAnotherProcess_IsNotCountedHere) {  // XRC
  a = make_qp();
  host::CompletionPort port(process().node().self(), cq->index());
  const auto receive_of = [&](uint32_t slot) {
    shm::CqEntry entry{.qp_num = shm::number_of(slot, a->index())};
    entry.opcode = static_cast<uint8_t>(WcOpcode::kRecv);
    entry.srq_number = shm::number_of(slot, 1);
    EXPECT_EQ(port.push(process().tag(), nullptr, false, entry), host::CompletionPort::Pushed::kYes);
    EXPECT_EQ(next().qp_num, entry.qp_num);
    return shared(*a).received.load();
  };
  EXPECT_EQ(receive_of(process().slot() + 1), 0u);
  EXPECT_EQ(receive_of(process().slot()), 1u);
}

TEST_F(ShmCompletions, Resize_Refused_EverySlotTakesAnEntryAsBefore) {  // IBTA 11.2.6.3
  using shm::CompletionRing;
  constexpr uint64_t kWaiting = 8;
  Cq* queue = make_cq(kWaiting);
  auto ring = ring_of(*queue);
  ASSERT_TRUE(ring);
  const auto push = [&](uint64_t first, uint64_t end) {
    for (uint64_t i = first; i < end; ++i) {
      shm::CqEntry entry;
      entry.wr_id = i;
      // kMoved: the slot is closed. A writer would wait for the queue's new place, which never comes.
      ASSERT_EQ(ring->push(process().tag(), nullptr, entry), CompletionRing::Push::kOk) << i;
    }
  };
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_NO_FATAL_FAILURE(push(0, kWaiting));
    ASSERT_EQ(queue->resize(kWaiting / 2), EINVAL);
    ASSERT_NO_FATAL_FAILURE(push(kWaiting, ring->capacity()));
    for (uint64_t i = 0; i < ring->capacity(); ++i) EXPECT_EQ(next(queue).wr_id, i);
  }
}

/// An event of a peer that does not have the channel's descriptor, for which nobody was woken yet.
void add_unsignalled(shm::CqShared& shared) {
  shared.events.fetch_add(1);
  shared.unsignalled.fetch_add(1);
}

TEST_F(ShmCompletions, Events_PeersCouldNotSignal_WakeOnceEach) {
  auto channel = std::move(*handle->create_channel());
  Cq* const queue = make_cq(4, channel.get());
  ASSERT_EQ(fcntl(channel->fd(), F_SETFL, O_NONBLOCK), 0);
  for (int i = 0; i < 2; ++i) add_unsignalled(tables().cq[queue->index()]);
  host::call_attention(process().node().self(), shm::attention::kCq, queue->index());
  for (int i = 0; i < 2; ++i) {
    pollfd ready{channel->fd(), POLLIN, 0};
    ASSERT_EQ(poll(&ready, 1, 20000), 1) << i;
    const auto event = channel->wait();
    ASSERT_TRUE(event) << i;
    EXPECT_EQ(*event, queue);
  }
  // An attention of another kind, such as an overrun, wakes nobody.
  host::call_attention(process().node().self(), shm::attention::kCq, queue->index());
  events().on_attention();
  EXPECT_FALSE(channel->wait());
  cqs.pop_back();
}

TEST_F(ShmCompletions, DestroyCq_WithAnUnsignalledEvent_LeavesTheWakeUpsOfOthers) {
  auto channel = std::move(*handle->create_channel());
  Cq* const stays = make_cq(4, channel.get());
  Cq* const goes = make_cq(4, channel.get());
  ASSERT_EQ(fcntl(channel->fd(), F_SETFL, O_NONBLOCK), 0);
  tables().cq[stays->index()].events.fetch_add(1);
  ASSERT_TRUE(process().node().self().signal_channel(tables().cq[stays->index()].channel - 1));
  add_unsignalled(tables().cq[goes->index()]);
  cqs.pop_back();
  const auto event = channel->wait();
  ASSERT_TRUE(event) << "its wake-up went with the other queue";
  EXPECT_EQ(*event, stays);
  EXPECT_FALSE(channel->wait());
  cqs.pop_back();
}

}  // namespace
}  // namespace nupa::core
