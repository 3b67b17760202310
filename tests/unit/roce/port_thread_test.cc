// SPDX-License-Identifier: Apache-2.0
/// Tests of the serving thread of a port: timers, busy queue pairs, packets while no thread polls.
#include <gtest/gtest.h>
#include <linux/net_tstamp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "core/seam/group_address.h"
#include "port_threads.h"
#include "progress/late_events.h"
#include "transport/roce/port/port.h"

namespace nupa::roce {
namespace {

constexpr uint32_t kPortBuffers = 1024;  // of its pool

TEST_F(RocePortThread, ServingThread_NoThreadPolls_DeliversAndAnswers) {
  start();
  send();
  EXPECT_TRUE(eventually([&] { return queue_pair.delivered == 1 && queue_pair.transmitted >= 1; }));
  EXPECT_EQ(queue_pair.put_off, 0) << "no further poll follows";
  ASSERT_TRUE(is_asleep());
  send();
  EXPECT_TRUE(eventually([&] { return queue_pair.delivered == 2; }));
}

TEST_F(RocePortThread, Timers_OfSeveralSlots_RunAtTheirTime) {
  start();
  // The last one of the first group, the first one of the next, and one of another slot.
  std::vector<std::unique_ptr<CountingReceiver>> others;
  for (const uint32_t number : {0x113fu, 0x1140u, 0x5fffu}) {
    others.push_back(std::make_unique<CountingReceiver>(number));
    port->add(*others.back());
  }
  const int64_t now = base::now_ns();
  others[0]->wanted_at = now + 3'600'000'000'000;
  port->expect(*others[0], others[0]->wanted_at);
  int64_t later = 0;
  for (size_t i = 1; i < others.size(); ++i) {
    others[i]->wanted_at = now + (later += 10'000'000);
    port->expect(*others[i], others[i]->wanted_at);
  }
  for (size_t i = 1; i < others.size(); ++i) EXPECT_TRUE(eventually([&] { return others[i]->timers == 1; })) << i;
  EXPECT_EQ(others[0]->timers, 0);
  EXPECT_EQ(queue_pair.timers, 0);
  EXPECT_TRUE(eventually([&] { return port->wanted_at() <= others[0]->wanted_at; })) << "what is left is not forgotten";
  for (const auto& other : others) port->remove(*other);
}

TEST_F(RocePortThread, Timer_DeadlineWasPostponed_RunsLater) {
  start();
  queue_pair.wanted_at = base::now_ns() + 20'000'000;
  port->expect(queue_pair, queue_pair.wanted_at);
  queue_pair.wanted_at = queue_pair.wanted_at + 20'000'000;  // as each packet does
  port->expect(queue_pair, queue_pair.wanted_at);
  EXPECT_TRUE(eventually([&] { return queue_pair.timers == 1; }));
}

class RocePortFurther : public RocePortThread {
 protected:
  void SetUp() override {
    RocePortThread::SetUp();
    auto further = net::UdpSocket::open(0, 1 << 18);
    ASSERT_TRUE(further);
    way.to.port = further->port();
    ++way.place;
    ASSERT_TRUE(port->add_socket(std::move(*further)));
    batch->aim(&way);
  }
};

TEST_F(RocePortFurther, FurtherPort_ProgramPolls_PacketArrives) {
  send();
  EXPECT_TRUE(eventually([&] { return port->poller().poll(), queue_pair.delivered == 1; }));
  port->drop_last_socket();
  auto free = net::UdpSocket::open(way.to.port, 1 << 18);
  EXPECT_TRUE(free) << "the port is given up";
}

TEST_F(RocePortFurther, FurtherPort_ServingThreadOnly_PacketArrives) {
  start();  // without a poll before, or it would look now and then by itself
  send();
  EXPECT_TRUE(eventually([&] { return queue_pair.delivered == 1; })) << "its thread sleeps at all ports";
}

TEST_F(RocePortThread, Start_Twice_StartsOneThread) {
  start();
  const auto threads = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}); };
  const auto before = threads();
  ASSERT_TRUE(port->start());
  EXPECT_EQ(threads(), before);
  EXPECT_EQ(port_threads("comm").size(), 1u);
  port->remove(queue_pair);
  port.reset();
  EXPECT_EQ(port_threads("comm").size(), 0u);
  SetUp();
}

TEST_F(RocePortThread, Expect_EarlierDeadline_WakesTheThread) {
  start();
  queue_pair.wanted_at = base::now_ns();
  port->expect(queue_pair, queue_pair.wanted_at);
  EXPECT_TRUE(eventually([&] { return queue_pair.timers == 1 && queue_pair.transmitted >= 1; }));
}

TEST_F(RocePortThread, Timer_RunsAtItsTimeAndNotBefore) {
  CountingReceiver later(kThreadQpn + 1);
  CountingReceiver never(kThreadQpn + 2);
  never.wanted_at = base::now_ns() + 3'600'000'000'000;
  port->add(later);
  port->add(never);
  start();
  queue_pair.wanted_at = base::now_ns();
  later.wanted_at = base::now_ns() + 50'000'000;
  port->expect(queue_pair, queue_pair.wanted_at);
  ASSERT_TRUE(eventually([&] { return queue_pair.timers == 1; }));
  // Nobody asks for the later one again.
  EXPECT_TRUE(eventually([&] { return later.timers == 1; }));
  port->barrier();
  EXPECT_EQ(never.timers, 0);
  EXPECT_EQ(never.transmitted, 0);
  port->remove(later);
  port->remove(never);
}

TEST_F(RocePortThread, Timer_HighestQueuePairNumber_Runs) {
  CountingReceiver next(kThreadQpn + 1);
  port->add(next);
  start();
  next.wanted_at = base::now_ns();
  port->expect(next, next.wanted_at);
  EXPECT_TRUE(eventually([&] { return next.timers == 1; }));
  port->remove(next);
}

TEST_F(RocePortThread, Timer_BusyQueuePair_RunsLater) {
  start();
  queue_pair.held = true;
  queue_pair.wanted_at = base::now_ns();
  port->expect(queue_pair, queue_pair.wanted_at);
  // It is tried again, also when another turn finds it still held.
  for (int before = queue_pair.tries, times = 0; times < 3; ++times, before = queue_pair.tries)
    ASSERT_TRUE(eventually([&] { return queue_pair.tries > before; }));
  EXPECT_EQ(queue_pair.timers, 0);
  queue_pair.held = false;
  EXPECT_TRUE(eventually([&] { return queue_pair.timers == 1; }));
}

TEST_F(RocePortThread, BusyQueuePair_DelaysNoOther) {
  CountingReceiver other(kThreadQpn + 1);
  port->add(other);
  start();
  queue_pair.held = true;
  for (uint32_t psn = 1; psn <= 20; ++psn) put(kThreadQpn, psn, "held");
  put(kThreadQpn + 1, 1, "other");
  batch->flush();
  EXPECT_TRUE(eventually([&] { return other.delivered == 1 && other.transmitted >= 1; }));
  // It is tried again, though nothing comes any more that would wake the thread.
  for (int before = queue_pair.tries, times = 0; times < 3; ++times, before = queue_pair.tries)
    ASSERT_TRUE(eventually([&] { return queue_pair.tries > before; }));
  EXPECT_EQ(queue_pair.delivered, 0);
  queue_pair.held = false;
  EXPECT_TRUE(eventually([&] { return queue_pair.delivered == 20 && queue_pair.transmitted >= 1; }));
  port->barrier();
  for (uint32_t psn = 1; psn <= 20; ++psn) EXPECT_EQ(queue_pair.came[psn - 1], "held" + std::to_string(psn));
  EXPECT_EQ(port->counters().busy, 0u);
  port->remove(other);
}

TEST_F(RocePortThread, Packets_BehindThoseInTheInbox_WaitToo) {
  queue_pair.held = true;
  put(kThreadQpn, 1, "a");
  batch->flush();
  ASSERT_TRUE(eventually([&] { return port->poller().poll(), port->counters().packets == 1; }));
  Packet ack;
  ack.opcode = kSelectiveAck;
  ack.mark = kNupaMark;
  ack.dest_qpn = kThreadQpn;
  ack.psn = 7;
  batch->send(0, ack, nullptr, 0);
  put(kThreadQpn, 2, "b");
  batch->flush();
  ASSERT_TRUE(eventually([&] { return port->poller().poll(), port->counters().packets == 2; }));
  EXPECT_EQ(queue_pair.delivered, 0);
  queue_pair.held = false;
  put(kThreadQpn, 3, "c");
  batch->flush();
  EXPECT_FALSE(progress::LateEvents::begun());
  ASSERT_TRUE(eventually([&] { return port->poller().poll(), queue_pair.delivered == 4; }));
  EXPECT_EQ(queue_pair.came, (std::vector<std::string>{"a1", "ack 7", "b2", "c3"}));
  EXPECT_TRUE(queue_pair.raises_late) << "the program that an event wakes wants the queue pair";
  EXPECT_FALSE(progress::LateEvents::begun());
}

TEST_F(RocePortThread, InboxIsFull_DropsAndCounts) {
  queue_pair.held = true;
  constexpr uint32_t kSent = HeldPackets::kMostOfOne + 3;
  for (uint32_t sent = 0; sent < kSent;) {
    put(kThreadQpn, ++sent, "x");
    batch->flush();
    ASSERT_TRUE(eventually([&] { return port->poller().poll(), port->counters().packets == sent; }));
  }
  EXPECT_EQ(port->counters().busy, 3u);
  EXPECT_EQ(port->pool().free(), kPortBuffers - HeldPackets::kMostOfOne);
  queue_pair.held = false;
  EXPECT_TRUE(eventually([&] { return port->poller().poll(), queue_pair.delivered == int{HeldPackets::kMostOfOne}; }));
  EXPECT_EQ(queue_pair.came.back(), "x" + std::to_string(HeldPackets::kMostOfOne)) << "the first ones stay";
  EXPECT_EQ(port->pool().free(), kPortBuffers);
}

TEST_F(RocePortThread, Answer_BusyQueuePair_LeavesLater) {
  send();
  ASSERT_TRUE(eventually([&] { return port->poller().poll(), queue_pair.delivered == 1; }));
  queue_pair.held = true;
  for (int i = 0; i < 20; ++i) port->poller().poll();
  EXPECT_EQ(queue_pair.transmitted, 0);
  queue_pair.held = false;
  for (int i = 0; i < 20; ++i) port->poller().poll();
  EXPECT_EQ(queue_pair.transmitted, 1);
}

TEST_F(RocePortThread, Remove_QueuePairWithAnInbox_FreesItsBuffers) {
  const uint32_t free = port->pool().free();
  queue_pair.held = true;
  send(3);
  ASSERT_TRUE(eventually([&] { return port->poller().poll(), port->counters().packets == 3; }));
  EXPECT_EQ(port->pool().free(), free - 3);
  port->remove(queue_pair);
  EXPECT_EQ(port->pool().free(), free);
  const int tries = queue_pair.tries;
  for (int i = 0; i < 20; ++i) port->poller().poll();
  EXPECT_EQ(queue_pair.tries, tries);
}

TEST_F(RocePortThread, ServingThread_PacketOfAGroup_IsDelivered) {
  start();
  const Gid group{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 5}};
  GidEntry loopback;
  loopback.gid = kThreadHost;
  loopback.interface_index = 1;
  ASSERT_EQ(port->attach(kThreadQpn, group, 0, {loopback}), 0);
  ASSERT_TRUE(is_asleep());
  Packet packet;
  packet.opcode = opcode_of(Service::kUd, Operation::kSendOnly);
  packet.dest_qpn = core::kGroupQpn;
  way.place = 2;
  way.to = {group, kUdpPort, 1};
  way.from_interface = 1;
  batch->send(0, packet, nullptr, 0);
  batch->flush();
  EXPECT_TRUE(eventually([&] { return queue_pair.delivered == 1; }));
  port->detach(kThreadQpn, group);
}

TEST_F(RocePortThread, Remove_QueuePair_IsNotCalledAgain) {
  start();
  port->remove(queue_pair);
  EXPECT_EQ(queue_pair.left, 1);
  queue_pair.wanted_at = base::now_ns();
  CountingReceiver other(kThreadQpn + 1);
  port->add(other);
  other.wanted_at = base::now_ns();
  send();
  port->expect(other, other.wanted_at);
  EXPECT_TRUE(eventually([&] { return other.timers == 1 && port->counters().no_queue_pair == 1; }));
  EXPECT_EQ(queue_pair.timers + queue_pair.delivered + queue_pair.transmitted, 0);
  port->remove(other);
}

TEST_F(RocePortThread, ErrorQueue_LateCopyOfAMessage_IsDiscarded) {
  // One message after the other from one process, to a thread that polls: that process gets a socket.
  constexpr int kMoreThanEnough = 2000;
  for (int sent = 1; port->own() == nullptr && sent <= kMoreThanEnough; ++sent) {
    send();
    ASSERT_TRUE(eventually([&] { return port->poller().poll(), queue_pair.delivered == sent; }));
  }
  ASSERT_NE(port->own(), nullptr);
  const int fd = port->own()->socket().fd();
  const auto has_copy = [&] {
    pollfd ready{fd, 0, 0};
    return poll(&ready, 1, 0) == 1 && (ready.revents & POLLERR) != 0;
  };
  const uint32_t wanted = SOF_TIMESTAMPING_TX_SCHED | SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_OPT_TSONLY;
  ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &wanted, sizeof wanted), 0);
  ASSERT_EQ(::send(fd, nullptr, 0, 0), 0);
  const uint32_t nothing = 0;
  ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &nothing, sizeof nothing), 0);
  ASSERT_TRUE(eventually(has_copy));
  ASSERT_TRUE(port->start());
  EXPECT_TRUE(eventually([&] { return !has_copy(); })) << "the thread would never sleep";
}

TEST_F(RocePortThread, RefusedPacket_ServingThread_SleepsOn) {
  start();
  for (int times = 1; times <= 2; ++times) {
    ASSERT_NO_FATAL_FAILURE(send_refused_packet());
    EXPECT_TRUE(eventually([&] { return queue_pair.refusals >= times; }));
    EXPECT_TRUE(is_asleep());
    EXPECT_FALSE(wakes_threads());
  }
}

}  // namespace
}  // namespace nupa::roce
