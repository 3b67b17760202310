// SPDX-License-Identifier: Apache-2.0
/// Tests of what a thread of the program does for a port while it polls or sleeps, and of the turns of queue pairs.
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
      // A thread that has missed its event is woken by the next packet.
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
    return eventually([&] {
      std::string text;
      if (number != 0) std::getline(std::ifstream("/proc/self/task/" + std::to_string(number) + "/stat"), text);
      seen = text.find(") S ") != std::string::npos ? seen + 1 : 0;
      return seen == 3;
    });
  }
  bool woke(progress::Poller::Slept how) {
    return eventually([&] { return slept != 0; }) && slept == 1 + static_cast<int>(how);
  }
  std::unique_ptr<progress::EventDescriptor> event = progress::EventDescriptor::open().value();
  std::thread sleeper;
  std::atomic<int> slept{0};
  std::atomic<pid_t> number{0};
};

TEST_F(RocePortSleeper, Sleep_PacketWithItsEvent_WakesWithoutAnotherThread) {
  start();
  ASSERT_NO_FATAL_FAILURE(fall_asleep());
  send();
  ASSERT_TRUE(woke(progress::Poller::Slept::kReady));
  EXPECT_EQ(queue_pair.delivered, 1);
  EXPECT_EQ(queue_pair.by, number);
  // It computes from now on, and the port's thread does the rest.
  EXPECT_TRUE(eventually([&] { return queue_pair.transmitted == 1; }));
  sleeper.join();
  send();
  EXPECT_TRUE(eventually([&] { return queue_pair.delivered == 2; })) << "the right was not given back";
  EXPECT_NE(queue_pair.by, number);
}

TEST_F(RocePortSleeper, Sleep_PacketWithoutAnEvent_IsAnsweredAndSleepsOn) {
  queue_pair.event = -1;
  start();
  ASSERT_NO_FATAL_FAILURE(fall_asleep());
  queue_pair.owes = true;
  send();
  EXPECT_TRUE(eventually([&] { return queue_pair.delivered == 1 && queue_pair.transmitted >= 1; }));
  EXPECT_EQ(slept, 0);
  event->count();
  EXPECT_TRUE(woke(progress::Poller::Slept::kReady)) << "an event that another thread raises";
}

TEST_F(RocePortSleeper, Sleep_AnswersOfTheLastPoll_AreSentFirst) {
  queue_pair.event = -1;
  start();
  send();
  ASSERT_TRUE(eventually([&] { return port->poller().poll(), queue_pair.delivered == 1; }));
  port->poller().program_sleeps();
  ASSERT_TRUE(is_asleep());
  ASSERT_NO_FATAL_FAILURE(fall_asleep());
  EXPECT_GE(queue_pair.transmitted, 1);
  event->count();
  EXPECT_TRUE(woke(progress::Poller::Slept::kReady));
}

TEST_F(RocePortSleeper, Sleep_EventOfAnAnswer_WakesIt) {
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

TEST_F(RocePortSleeper, Sleep_RefusedPacket_SleepsOn) {
  start();
  ASSERT_NO_FATAL_FAILURE(fall_asleep());
  for (int times = 1; times <= 2; ++times) {
    ASSERT_NO_FATAL_FAILURE(send_refused_packet());
    EXPECT_TRUE(eventually([&] { return queue_pair.refusals >= times; }));
    EXPECT_TRUE(is_sleeper_asleep());
    EXPECT_TRUE(is_asleep());
    EXPECT_FALSE(wakes_threads());
  }
  EXPECT_EQ(slept, 0);
  send();
  EXPECT_TRUE(woke(progress::Poller::Slept::kReady));
}

TEST_F(RocePortSleeper, Sleep_SecondThread_CannotSleepOnThePort) {
  start();
  ASSERT_NO_FATAL_FAILURE(fall_asleep());
  progress::EventCatch events(*event);
  EXPECT_EQ(port->poller().sleep(events), progress::Poller::Slept::kCannot);
  send();
  EXPECT_TRUE(woke(progress::Poller::Slept::kReady));
}

TEST_F(RocePortSleeper, Sleep_PortWithoutAThread_CannotSleep) {
  progress::EventCatch events(*event);
  EXPECT_EQ(port->poller().sleep(events), progress::Poller::Slept::kCannot);
}

// ---- Without its thread: what a poll does.

TEST_F(RocePortThread, Poll_SmallPacket_IsAnsweredByTheNextPoll) {
  send();
  queue_pair.owes = true;
  ASSERT_TRUE(eventually([&] { return port->poller().poll(), queue_pair.delivered == 1; }));
  EXPECT_EQ(queue_pair.transmitted, 0) << "the program goes first";
  port->poller().poll();
  EXPECT_EQ(queue_pair.transmitted, 1);
  EXPECT_EQ(queue_pair.put_off, 0);
}

TEST_F(RocePortThread, FinishPoll_SendsWhatThePollLeft) {
  send();
  ASSERT_TRUE(eventually([&] { return port->poller().poll(), queue_pair.delivered == 1; }));
  port->poller().finish_poll();
  EXPECT_EQ(queue_pair.transmitted, 1);
  port->poller().finish_poll();
  EXPECT_EQ(queue_pair.transmitted, 1) << "nothing is left";
}

TEST_F(RocePortThread, LastPoll_PacketNotAnswered_IsAnsweredByTheServingThread) {
  send();
  ASSERT_TRUE(eventually([&] { return port->poller().poll(), queue_pair.delivered == 1; }));
  EXPECT_EQ(queue_pair.transmitted, 0);
  // From here on the program computes. The thread finds no packet that would wake it.
  ASSERT_TRUE(port->start());
  EXPECT_TRUE(eventually([&] { return queue_pair.transmitted == 1; }));
}

TEST_F(RocePortThread, ProcessEnds_AnswersOfTheLastPoll_AreSent) {
  send();
  ASSERT_TRUE(eventually([&] { return port->poller().poll(), queue_pair.delivered == 1; }));
  port->process_ends();
  EXPECT_EQ(queue_pair.transmitted, 1);
}

TEST(RocePortEnd, Exit_PortIsClosed_Succeeds) {
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

TEST(RocePortEnd, Exit_InASignalHandlerDuringAPoll_Succeeds) {
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

TEST_F(RocePortThread, Poll_StreamOfPackets_IsAnsweredOnce) {
  send(12, 1000);
  int before = 0;
  ASSERT_TRUE(
      eventually([&] { return before = queue_pair.delivered, port->poller().poll(), queue_pair.delivered == 12; }));
  // Where the kernel brings them one by one they are no stream.
  if (before == 0) {
    EXPECT_EQ(queue_pair.transmitted, 0);
  }
  EXPECT_TRUE(eventually([&] { return port->poller().poll(), queue_pair.transmitted == 1; }))
      << "when nothing came after them";
  for (int i = 0; i < 20; ++i) port->poller().poll();
  EXPECT_EQ(queue_pair.transmitted, 1);
}

TEST_F(RocePortThread, Poll_SeveralWaiters_HaveTurnsInOrderWhileThereIsRoom) {
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
  EXPECT_TRUE(eventually([&] { return port->poller().poll(), third.turns == 1; })) << "it need not ask again";
  window.give_back(window.used());
  for (int i = 0; i < 20; ++i) port->poller().poll();
  EXPECT_EQ(third.turns, 1);
}

TEST_F(RocePortThread, Poll_BusyWaiter_StaysInTheQueue) {
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
  EXPECT_TRUE(eventually([&] { return port->poller().poll(), queue_pair.turns == 1; }));
  EXPECT_FALSE(process->window.has_waiters());
}

TEST_F(RocePortThread, Poll_WaiterLeavesDuringItsTurn_IsRemoved) {
  FlowWindow& window = *port->response_window();
  CountingReceiver second(kThreadQpn + 1);
  for (const bool held : {false, true}) {
    const int before = second.turns;
    queue_pair.held = held;
    queue_pair.leaves = &window;
    window.wait(queue_pair);
    window.wait(second);
    port->note_waiter();
    EXPECT_TRUE(eventually([&] { return port->poller().poll(), second.turns > before; }));
    EXPECT_FALSE(window.has_waiters()) << "its queue pair may be gone by the next turn";
    EXPECT_EQ(queue_pair.turns, 0) << held;
  }
  queue_pair.held = false;
}

TEST_F(RocePortThread, Poll_WaiterThatSendsNothing_HasOneTurn) {
  FlowWindow& window = *port->response_window();
  queue_pair.stays = 1000;
  window.wait(queue_pair);
  port->note_waiter();
  ASSERT_TRUE(eventually([&] { return port->poller().poll(), queue_pair.turns > 0; }));
  EXPECT_EQ(queue_pair.turns, 1);
  queue_pair.stays = 0;
}

TEST_F(RocePortThread, Remove_QueuePairThatOwesAnAnswer_SendsNone) {
  send();
  ASSERT_TRUE(eventually([&] { return port->poller().poll(), queue_pair.delivered == 1; }));
  port->remove(queue_pair);
  port->poller().poll();
  port->poller().finish_poll();
  EXPECT_EQ(queue_pair.transmitted + queue_pair.put_off, 0);
}

}  // namespace
}  // namespace nupa::roce
