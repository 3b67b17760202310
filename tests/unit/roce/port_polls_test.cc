// SPDX-License-Identifier: Apache-2.0
/// What a thread of the program does for a port while it polls or sleeps, and how queue pairs take turns.
#ifndef NUPA_TEST_DROPIN
#include <gtest/gtest.h>
#include <linux/net_tstamp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "port_threads.h"
#include "progress/event_catch.h"
#include "transport/roce/port/port.h"

namespace nupa::roce {
namespace {

// ---- A thread of the program that sleeps until an event comes.

class RocePortSleeper : public RocePortThread {
 protected:
  void SetUp() override {
    RocePortThread::SetUp();
    queue_pair.event = event->signal_fd();
  }
  void TearDown() override {
    if (sleeper.joinable()) {
      // One that has missed its event hears of it with the next packet.
      if (slept == 0) queue_pair.event = event->signal_fd(), send();
      sleeper.join();
    }
    RocePortThread::TearDown();
  }
  /// Starts a thread that sleeps, and waits until it does.
  void fall_asleep() {
    slept = 0;
    number = 0;
    sleeper = std::thread([this] {
      number = static_cast<pid_t>(syscall(SYS_gettid));
      progress::EventCatch events(*event);
      slept = 1 + static_cast<int>(port->poller().sleep(events));
    });
    ASSERT_TRUE(is_sleeper_asleep());
  }
  bool is_sleeper_asleep() {
    int seen = 0;
    return comes_true([&] {
      std::string text;
      if (number != 0) std::getline(std::ifstream("/proc/self/task/" + std::to_string(number) + "/stat"), text);
      seen = text.find(") S ") != std::string::npos ? seen + 1 : 0;
      return seen == 3;
    });
  }
  bool woke(progress::Poller::Slept how) {
    return comes_true([&] { return slept != 0; }) && slept == 1 + static_cast<int>(how);
  }
  std::unique_ptr<progress::EventDescriptor> event = progress::EventDescriptor::open().value();
  std::thread sleeper;
  std::atomic<int> slept{0};
  std::atomic<pid_t> number{0};
};

TEST_F(RocePortSleeper, PacketThatBringsItsEvent_NeedsNoOtherThread) {
  start();
  ASSERT_NO_FATAL_FAILURE(fall_asleep());
  send();
  ASSERT_TRUE(woke(progress::Poller::Slept::kReady));
  EXPECT_EQ(queue_pair.delivered, 1);
  EXPECT_EQ(queue_pair.by, number);
  // It computes from now on, and the port's thread does the rest.
  EXPECT_TRUE(comes_true([&] { return queue_pair.transmitted == 1; }));
  sleeper.join();
  send();
  EXPECT_TRUE(comes_true([&] { return queue_pair.delivered == 2; })) << "the right was not given back";
  EXPECT_NE(queue_pair.by, number);
}

TEST_F(RocePortSleeper, PacketWithoutAnEvent_IsAnsweredBeforeItSleepsOn) {
  queue_pair.event = -1;
  start();
  ASSERT_NO_FATAL_FAILURE(fall_asleep());
  queue_pair.owes = true;
  send();
  EXPECT_TRUE(comes_true([&] { return queue_pair.delivered == 1 && queue_pair.transmitted >= 1; }));
  EXPECT_EQ(slept, 0);
  event->count();
  EXPECT_TRUE(woke(progress::Poller::Slept::kReady)) << "an event that another thread raises";
}

TEST_F(RocePortSleeper, WhatTheLastPollLeft_IsAnsweredBeforeItSleeps) {
  queue_pair.event = -1;
  start();
  send();
  ASSERT_TRUE(comes_true([&] { return port->poller().poll(), queue_pair.delivered == 1; }));
  port->poller().program_sleeps();
  ASSERT_TRUE(is_asleep());
  ASSERT_NO_FATAL_FAILURE(fall_asleep());
  EXPECT_GE(queue_pair.transmitted, 1);
  event->count();
  EXPECT_TRUE(woke(progress::Poller::Slept::kReady));
}

TEST_F(RocePortSleeper, EventOfItsAnswer_EndsItsSleep) {
  queue_pair.event = -1;
  queue_pair.event_of_answers = event->signal_fd();
  start();
  for (int turn = 0; turn < 10; ++turn) {
    ASSERT_NO_FATAL_FAILURE(fall_asleep());
    queue_pair.owes = true;
    send();
    EXPECT_TRUE(woke(progress::Poller::Slept::kReady));
    event->count();  // for one that sleeps on
    sleeper.join();
    while (event->take_back()) {
    }
  }
}

TEST_F(RocePortSleeper, RefusedPacket_LetsItSleepOn) {
  start();
  ASSERT_NO_FATAL_FAILURE(fall_asleep());
  for (int times = 1; times <= 2; ++times) {
    ASSERT_NO_FATAL_FAILURE(be_refused());
    EXPECT_TRUE(comes_true([&] { return queue_pair.refusals >= times; }));
    EXPECT_TRUE(is_sleeper_asleep());
    EXPECT_TRUE(is_asleep());
    EXPECT_FALSE(wakes_threads());
  }
  EXPECT_EQ(slept, 0);
  send();
  EXPECT_TRUE(woke(progress::Poller::Slept::kReady));
}

TEST_F(RocePortSleeper, SecondThread_SleepsWithoutThePort) {
  start();
  ASSERT_NO_FATAL_FAILURE(fall_asleep());
  progress::EventCatch events(*event);
  EXPECT_EQ(port->poller().sleep(events), progress::Poller::Slept::kCannot);
  send();
  EXPECT_TRUE(woke(progress::Poller::Slept::kReady));
}

TEST_F(RocePortSleeper, PortWithoutAThread_DoesNotSleep) {
  progress::EventCatch events(*event);
  EXPECT_EQ(port->poller().sleep(events), progress::Poller::Slept::kCannot);
}

// ---- Without its thread: what a poll does.

TEST_F(RocePortThread, SmallPacketOfAPoll_IsAnsweredByTheNextOne) {
  send();
  queue_pair.owes = true;
  ASSERT_TRUE(comes_true([&] { return port->poller().poll(), queue_pair.delivered == 1; }));
  EXPECT_EQ(queue_pair.transmitted, 0) << "the program goes first";
  port->poller().poll();
  EXPECT_EQ(queue_pair.transmitted, 1);
  EXPECT_EQ(queue_pair.put_off, 0);
}

TEST_F(RocePortThread, FinishPoll_SendsWhatThePollLeft) {
  send();
  ASSERT_TRUE(comes_true([&] { return port->poller().poll(), queue_pair.delivered == 1; }));
  port->poller().finish_poll();
  EXPECT_EQ(queue_pair.transmitted, 1);
  port->poller().finish_poll();
  EXPECT_EQ(queue_pair.transmitted, 1) << "nothing is left";
}

TEST_F(RocePortThread, PacketOfAProgramsLastPoll_IsAnsweredByTheThread) {
  send();
  ASSERT_TRUE(comes_true([&] { return port->poller().poll(), queue_pair.delivered == 1; }));
  EXPECT_EQ(queue_pair.transmitted, 0);
  // From here on the program computes. The thread finds no packet that would wake it.
  ASSERT_TRUE(port->start());
  EXPECT_TRUE(comes_true([&] { return queue_pair.transmitted == 1; }));
}

TEST_F(RocePortThread, EndOfTheProcess_SendsWhatThePollLeft) {
  send();
  ASSERT_TRUE(comes_true([&] { return port->poller().poll(), queue_pair.delivered == 1; }));
  port->process_ends();
  EXPECT_EQ(queue_pair.transmitted, 1);
}

TEST(RocePortEnd, OfAProcessWhosePortIsGone_IsCalm) {
  const pid_t child = fork();
  if (child == 0) {
    auto socket = net::UdpSocket::open(0, 1 << 16);
    if (!socket || !Port::open(std::move(*socket))) _exit(1);
    std::exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(RocePortEnd, OfAProcessThatExitsInASignalHandlerWhileItTakesPackets_Comes) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    /// The port calls it with its lock held.
    class Raising final : public CountingReceiver {
     public:
      void deliver(Packet&, const net::UdpSocket::Received&, int64_t) override { raise(SIGTERM); }
    } raising;
    signal(SIGTERM, [](int) { std::exit(3); });
    auto socket = net::UdpSocket::open(0, 1 << 16);
    auto port = socket ? Port::open(std::move(*socket)) : tl::unexpected(socket.error());
    auto outside = net::UdpSocket::open(0, 1 << 16);
    if (!port || !outside) _exit(1);
    (*port)->add(raising);
    std::vector<net::UdpSocket> sockets;
    sockets.push_back(std::move(*outside));
    TransmitBatch batch(sockets, false);
    Destination to;
    to.to = {kThreadHost, (*port)->socket().port(), 0};
    to.from = kThreadHost;
    batch.aim(&to);
    Packet packet;
    packet.opcode = opcode_of(Service::kRc, Operation::kSendOnly);
    packet.dest_qpn = kThreadQpn;
    batch.send(0, packet, nullptr, 0);
    batch.flush();
    for (;;) (*port)->poller().poll();
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), 3) << "its alarm ended it";
}

TEST_F(RocePortThread, StreamsPacketsAreAnsweredTogether) {
  send(12, 1000);
  int before = 0;
  ASSERT_TRUE(
      comes_true([&] { return before = queue_pair.delivered, port->poller().poll(), queue_pair.delivered == 12; }));
  // Where the kernel brings them one by one they are no stream.
  if (before == 0) {
    EXPECT_EQ(queue_pair.transmitted, 0);
  }
  EXPECT_TRUE(comes_true([&] { return port->poller().poll(), queue_pair.transmitted == 1; }))
      << "when nothing came after them";
  for (int i = 0; i < 20; ++i) port->poller().poll();
  EXPECT_EQ(queue_pair.transmitted, 1);
}

TEST_F(RocePortThread, WaitersTakeTurnsInOrderWhileThereIsRoom) {
  FlowWindow& window = *port->response_window();
  CountingReceiver second(kThreadQpn + 1), third(kThreadQpn + 2);
  queue_pair.takes = second.takes = window.size() / 2;
  third.takes = 1;
  for (CountingReceiver* each : {&queue_pair, &second, &third}) window.wait(*each);
  port->note_waiter();
  for (int i = 0; i < 20; ++i) port->poller().poll();
  EXPECT_EQ(queue_pair.turns, 1);
  EXPECT_EQ(second.turns, 1);
  EXPECT_EQ(third.turns, 0) << "there is no room left";
  EXPECT_EQ(window.waiters(), 1u);
  window.give_back(window.used());
  EXPECT_TRUE(comes_true([&] { return port->poller().poll(), third.turns == 1; })) << "it need not ask again";
  window.give_back(window.used());
  for (int i = 0; i < 20; ++i) port->poller().poll();
  EXPECT_EQ(third.turns, 1);
}

TEST_F(RocePortThread, WaiterThatIsHeld_StaysInLine) {
  const std::shared_ptr<Peer> process = port->peer_at(kThreadHost, 1);
  EXPECT_EQ(process, port->peer_at(kThreadHost, 1)) << "one window a process";
  EXPECT_NE(process, port->peer_at(kThreadHost, 2));
  queue_pair.held = true;
  queue_pair.takes = 1;
  process->window.wait(queue_pair);
  port->note_waiter();
  for (int i = 0; i < 20; ++i) port->poller().poll();
  EXPECT_EQ(queue_pair.turns, 0);
  queue_pair.held = false;
  EXPECT_TRUE(comes_true([&] { return port->poller().poll(), queue_pair.turns == 1; }));
  EXPECT_FALSE(process->window.has_waiters());
}

TEST_F(RocePortThread, WaiterThatLeavesTheLineWhileItIsCalled_StandsThereNoMore) {
  FlowWindow& window = *port->response_window();
  CountingReceiver second(kThreadQpn + 1);
  for (const bool held : {false, true}) {
    const int before = second.turns;
    queue_pair.held = held;
    queue_pair.leaves = &window;
    window.wait(queue_pair);
    window.wait(second);
    port->note_waiter();
    EXPECT_TRUE(comes_true([&] { return port->poller().poll(), second.turns > before; }));
    EXPECT_FALSE(window.has_waiters()) << "its queue pair may be gone by the next turn";
    EXPECT_EQ(queue_pair.turns, 0) << held;
  }
  queue_pair.held = false;
}

TEST_F(RocePortThread, WaiterThatSendsNothing_HasOneTurnAPoll) {
  FlowWindow& window = *port->response_window();
  queue_pair.stays = 1000;
  window.wait(queue_pair);
  port->note_waiter();
  ASSERT_TRUE(comes_true([&] { return port->poller().poll(), queue_pair.turns > 0; }));
  EXPECT_EQ(queue_pair.turns, 1);
  queue_pair.stays = 0;
}

TEST_F(RocePortThread, QueuePairThatIsGone_OwesNoAnswer) {
  send();
  ASSERT_TRUE(comes_true([&] { return port->poller().poll(), queue_pair.delivered == 1; }));
  port->remove(queue_pair);
  port->poller().poll();
  port->poller().finish_poll();
  EXPECT_EQ(queue_pair.transmitted + queue_pair.put_off, 0);
}

}  // namespace
}  // namespace nupa::roce
#endif
