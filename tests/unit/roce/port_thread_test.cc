// SPDX-License-Identifier: Apache-2.0
/// The thread of a port, which does everything while no thread of the program polls.
#ifndef NUPA_TEST_DROPIN
#include <dirent.h>
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
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "core/seam/group_address.h"
#include "base/unique_fd.h"
#include "progress/event_catch.h"
#include "progress/late_events.h"
#include "transport/roce/port/port.h"

namespace nupa::roce {
namespace {

constexpr Gid kThreadHost{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}};
constexpr uint32_t kThreadQpn = 0x1105;
constexpr uint32_t kPortBuffers = 1024;  // of its pool

/// Counts what the port does with a queue pair.
class CountingChannel : public Channel {
 public:
  explicit CountingChannel(uint32_t number = kThreadQpn) : number_(number) {}
  uint32_t number() const override { return number_; }
  bool enter() override {
    ++tries;
    if (leaves != nullptr) std::exchange(leaves, nullptr)->forget(*this);
    return !held;
  }
  void leave() override { raises_late = progress::LateEvents::begun() && !held; }
  void deliver(Packet& packet, const net::UdpSocket::Received&, int64_t) override {
    came.push_back(std::string(reinterpret_cast<const char*>(packet.payload), packet.payload_length) +
                   (packet.opcode == kSelectiveAck ? "ack " : "") + std::to_string(packet.psn));
    by = static_cast<pid_t>(syscall(SYS_gettid));
    ++delivered;
    add_event(event);
  }
  void transmit(int64_t, Burst&, bool answers) override {
    ++(answers ? transmitted : put_off);
    if (answers) add_event(event_of_answers);
  }
  /// As a completion queue raises one.
  static void add_event(int event) {
    const uint64_t one = 1;
    if (event < 0 || progress::EventCatch::keep(event)) return;
    EXPECT_EQ(write(event, &one, sizeof one), ssize_t{sizeof one});
  }
  bool owes_answers() const override { return owes; }
  void on_timer(int64_t) override {
    ++timers;
    wanted_at = INT64_MAX;
  }
  void count_stranger() override {}
  void take_turn(SharedWindow& window, int64_t, Burst&) override {
    ++turns;
    if (takes != 0) window.take(takes, takes);
    if (stays > 0) --stays, window.wait(*this);
  }
  void leave_lines() override { ++left; }
  Peer* peer() override { return nullptr; }
  int64_t deadline() const override { return wanted_at; }
  bool may_lead_to(const net::UdpAddress&) const override { return ++refusals, false; }

  mutable std::atomic<int> refusals{0};  ///< of which the port asked whether they are of a packet of this one
  std::atomic<bool> held{false};         ///< by another thread
  std::atomic<int> tries{0}, delivered{0}, transmitted{0}, put_off{0}, timers{0}, turns{0}, left{0};
  std::atomic<uint64_t> takes{0};
  std::atomic<int> stays{0};   ///< turns after which it waits for another one
  std::atomic<pid_t> by{0};    ///< the thread that delivered last
  std::atomic<int> event{-1};  ///< an eventfd that counts what was delivered
  std::atomic<int> event_of_answers{-1};
  SharedWindow* leaves = nullptr;  ///< whose line it leaves while the port asks for it
  std::atomic<bool> owes{false};
  std::atomic<bool> raises_late{false};  ///< events of this thread waited until the channel was left
  std::vector<std::string> came;         ///< payload and number of each packet; read while nothing comes
  std::atomic<int64_t> wanted_at{INT64_MAX};

 private:
  const uint32_t number_;
};

/// Whether `holds` does before a long time has passed; only a test that fails waits so long.
bool comes_true(const std::function<bool()>& holds) {
  const int64_t end = base::now_ns() + 10'000'000'000;
  while (!holds()) {
    if (base::now_ns() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

/// What each thread of this process says of itself in /proc, for those of a port.
std::vector<std::string> port_threads(const char* file) {
  std::vector<std::string> found;
  DIR* const tasks = opendir("/proc/self/task");
  while (const dirent* task = readdir(tasks)) {
    const std::string path = std::string("/proc/self/task/") + task->d_name + "/";
    std::string name, text;
    std::getline(std::ifstream(path + "comm"), name);
    std::getline(std::ifstream(path + file), text);
    if (name == "nupa-roce") found.push_back(text);
  }
  closedir(tasks);
  return found;
}

class RocePortThread : public ::testing::Test {
 protected:
  void SetUp() override {
    auto socket = net::UdpSocket::open(0, 1 << 18);
    ASSERT_TRUE(socket);
    auto opened = Port::open(std::move(*socket));
    ASSERT_TRUE(opened);
    port = std::move(*opened);
    port->add(channel);
    way.place = 1;
    way.to = {kThreadHost, port->socket().port(), 0};
    way.from = kThreadHost;
    auto outside = net::UdpSocket::open(0, 1 << 16);
    ASSERT_TRUE(outside);
    sockets.push_back(std::move(*outside));
    burst = std::make_unique<Burst>(sockets, false);
    burst->aim(&way);
  }
  void TearDown() override { port->remove(channel); }
  void start() {
    ASSERT_TRUE(port->start());
    ASSERT_TRUE(is_asleep());
  }
  /// Waits until the port's thread sleeps, for whatever comes: its state in /proc is S, twice.
  bool is_asleep() {
    int seen = 0;
    return comes_true([&] {
      const auto stats = port_threads("stat");
      const bool sleeps = stats.size() == 1 && stats[0].find(") S ") != std::string::npos;
      seen = sleeps ? seen + 1 : 0;
      return seen == 3;
    });
  }
  void send(uint32_t packets = 1, uint32_t bytes = 8) {
    for (uint32_t i = 0; i < packets; ++i) put(kThreadQpn, 0, std::string(bytes, 'x'));
    burst->flush();
  }
  /// A packet of the port's goes to a port that nobody has, and the host says so.
  void be_refused() {
    auto gone = net::UdpSocket::open(0, 1 << 16);
    ASSERT_TRUE(gone);
    Destination nowhere = way;
    nowhere.place = 3;
    nowhere.to.port = gone->port();
    gone->close();
    Burst own(port->sockets(), false);
    own.aim(&nowhere);
    Packet packet;
    packet.opcode = opcode_of(Service::kRc, Operation::kSendOnly);
    packet.dest_qpn = kThreadQpn;
    own.send(0, packet, nullptr, 0);
    own.flush();
  }
  /// Whether a socket of the port has something to say, as a thread that sleeps on it sees.
  bool wakes_threads() const {
    pollfd ready{port->socket().fd(), POLLIN, 0};
    return poll(&ready, 1, 0) != 0;
  }
  void put(uint32_t number, uint32_t psn, const std::string& payload) {
    Packet packet;
    packet.opcode = opcode_of(Service::kRc, Operation::kSendOnly);
    packet.mark = kNupaMark;
    packet.dest_qpn = number;
    packet.psn = psn;
    packet.payload_length = static_cast<uint32_t>(payload.size());
    const Fragment fragment{reinterpret_cast<const std::byte*>(payload.data()), packet.payload_length};
    burst->send(0, packet, &fragment, 1);
  }

  CountingChannel channel;
  std::unique_ptr<Port> port;
  Destination way;
  std::vector<net::UdpSocket> sockets;
  std::unique_ptr<Burst> burst;
};

TEST_F(RocePortThread, BringsAndAnswersPacketsWhileNobodyPolls) {
  start();
  send();
  EXPECT_TRUE(comes_true([&] { return channel.delivered == 1 && channel.transmitted >= 1; }));
  EXPECT_EQ(channel.put_off, 0) << "nobody will ask again";
  ASSERT_TRUE(is_asleep());
  send();
  EXPECT_TRUE(comes_true([&] { return channel.delivered == 2; }));
}

TEST_F(RocePortThread, TimersOfQueuePairsOfSeveralSlots_RunEachAtItsTime) {
  start();
  // The last one of the first group, the first one of the next, and one of another slot.
  std::vector<std::unique_ptr<CountingChannel>> others;
  for (const uint32_t number : {0x113fu, 0x1140u, 0x5fffu}) {
    others.push_back(std::make_unique<CountingChannel>(number));
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
  for (size_t i = 1; i < others.size(); ++i) EXPECT_TRUE(comes_true([&] { return others[i]->timers == 1; })) << i;
  EXPECT_EQ(others[0]->timers, 0);
  EXPECT_EQ(channel.timers, 0);
  EXPECT_TRUE(comes_true([&] { return port->wanted_at() <= others[0]->wanted_at; })) << "what is left is not forgotten";
  for (const auto& other : others) port->remove(*other);
}

TEST_F(RocePortThread, DeadlineThatWasPutOff_IsLookedAtAgain) {
  start();
  channel.wanted_at = base::now_ns() + 20'000'000;
  port->expect(channel, channel.wanted_at);
  channel.wanted_at = channel.wanted_at + 20'000'000;  // as each packet does
  port->expect(channel, channel.wanted_at);
  EXPECT_TRUE(comes_true([&] { return channel.timers == 1; }));
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
    burst->aim(&way);
  }
};

TEST_F(RocePortFurther, Packet_ProgramPolls_Arrives) {
  send();
  EXPECT_TRUE(comes_true([&] { return port->poll(), channel.delivered == 1; }));
  port->drop_last_socket();
  auto free = net::UdpSocket::open(way.to.port, 1 << 18);
  EXPECT_TRUE(free) << "the port is given up";
}

TEST_F(RocePortFurther, Packet_OnlyThePortsThread_Arrives) {
  start();  // without a poll before, or it would look now and then by itself
  send();
  EXPECT_TRUE(comes_true([&] { return channel.delivered == 1; })) << "its thread sleeps at all ports";
}

TEST_F(RocePortThread, StartedTwice_IsOne) {
  start();
  const auto threads = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}); };
  const auto before = threads();
  ASSERT_TRUE(port->start());
  EXPECT_EQ(threads(), before);
  EXPECT_EQ(port_threads("comm").size(), 1u);
  port->remove(channel);
  port.reset();
  EXPECT_EQ(port_threads("comm").size(), 0u);
  SetUp();
}

TEST_F(RocePortThread, WakesForADeadlineThatIsEarlierThanItKnew) {
  start();
  channel.wanted_at = base::now_ns();
  port->expect(channel, channel.wanted_at);
  EXPECT_TRUE(comes_true([&] { return channel.timers == 1 && channel.transmitted >= 1; }));
}

TEST_F(RocePortThread, TimerRunsWhenItsTimeHasComeAndNotBefore) {
  CountingChannel later(kThreadQpn + 1);
  CountingChannel never(kThreadQpn + 2);
  never.wanted_at = base::now_ns() + 3'600'000'000'000;
  port->add(later);
  port->add(never);
  start();
  channel.wanted_at = base::now_ns();
  later.wanted_at = base::now_ns() + 50'000'000;
  port->expect(channel, channel.wanted_at);
  ASSERT_TRUE(comes_true([&] { return channel.timers == 1; }));
  // Nobody asks for the later one again.
  EXPECT_TRUE(comes_true([&] { return later.timers == 1; }));
  port->barrier();
  EXPECT_EQ(never.timers, 0);
  EXPECT_EQ(never.transmitted, 0);
  port->remove(later);
  port->remove(never);
}

TEST_F(RocePortThread, TimerOfTheQueuePairWithTheHighestNumber_Runs) {
  CountingChannel next(kThreadQpn + 1);
  port->add(next);
  start();
  next.wanted_at = base::now_ns();
  port->expect(next, next.wanted_at);
  EXPECT_TRUE(comes_true([&] { return next.timers == 1; }));
  port->remove(next);
}

TEST_F(RocePortThread, TimerOfAQueuePairThatIsHeld_RunsLater) {
  start();
  channel.held = true;
  channel.wanted_at = base::now_ns();
  port->expect(channel, channel.wanted_at);
  // It is tried again, also when another turn finds it still held.
  for (int before = channel.tries, times = 0; times < 3; ++times, before = channel.tries)
    ASSERT_TRUE(comes_true([&] { return channel.tries > before; }));
  EXPECT_EQ(channel.timers, 0);
  channel.held = false;
  EXPECT_TRUE(comes_true([&] { return channel.timers == 1; }));
}

// ---- Queue pairs that another thread holds.

TEST_F(RocePortThread, QueuePairThatIsHeld_DelaysNoOther) {
  CountingChannel other(kThreadQpn + 1);
  port->add(other);
  start();
  channel.held = true;
  for (uint32_t psn = 1; psn <= 20; ++psn) put(kThreadQpn, psn, "held");
  put(kThreadQpn + 1, 1, "other");
  burst->flush();
  EXPECT_TRUE(comes_true([&] { return other.delivered == 1 && other.transmitted >= 1; }));
  // It is tried again, though nothing comes any more that would wake the thread.
  for (int before = channel.tries, times = 0; times < 3; ++times, before = channel.tries)
    ASSERT_TRUE(comes_true([&] { return channel.tries > before; }));
  EXPECT_EQ(channel.delivered, 0);
  channel.held = false;
  EXPECT_TRUE(comes_true([&] { return channel.delivered == 20 && channel.transmitted >= 1; }));
  port->barrier();
  for (uint32_t psn = 1; psn <= 20; ++psn) EXPECT_EQ(channel.came[psn - 1], "held" + std::to_string(psn));
  EXPECT_EQ(port->counters().busy, 0u);
  port->remove(other);
}

TEST_F(RocePortThread, PacketsBehindThoseThatWaitForAHeldQueuePair_WaitToo) {
  channel.held = true;
  put(kThreadQpn, 1, "a");
  burst->flush();
  ASSERT_TRUE(comes_true([&] { return port->poll(), port->counters().packets == 1; }));
  Packet ack;
  ack.opcode = kSelectiveAck;
  ack.mark = kNupaMark;
  ack.dest_qpn = kThreadQpn;
  ack.psn = 7;
  burst->send(0, ack, nullptr, 0);
  put(kThreadQpn, 2, "b");
  burst->flush();
  ASSERT_TRUE(comes_true([&] { return port->poll(), port->counters().packets == 2; }));
  EXPECT_EQ(channel.delivered, 0);
  channel.held = false;
  put(kThreadQpn, 3, "c");
  burst->flush();
  EXPECT_FALSE(progress::LateEvents::begun());
  ASSERT_TRUE(comes_true([&] { return port->poll(), channel.delivered == 4; }));
  EXPECT_EQ(channel.came, (std::vector<std::string>{"a1", "ack 7", "b2", "c3"}));
  EXPECT_TRUE(channel.raises_late) << "the program that an event wakes wants the queue pair";
  EXPECT_FALSE(progress::LateEvents::begun());
}

TEST_F(RocePortThread, InboxThatIsFull_DropsAndCounts) {
  channel.held = true;
  constexpr uint32_t kSent = HeldPackets::kMostOfOne + 3;
  for (uint32_t sent = 0; sent < kSent;) {
    put(kThreadQpn, ++sent, "x");
    burst->flush();
    ASSERT_TRUE(comes_true([&] { return port->poll(), port->counters().packets == sent; }));
  }
  EXPECT_EQ(port->counters().busy, 3u);
  EXPECT_EQ(port->pool().free(), kPortBuffers - HeldPackets::kMostOfOne);
  channel.held = false;
  EXPECT_TRUE(comes_true([&] { return port->poll(), channel.delivered == int{HeldPackets::kMostOfOne}; }));
  EXPECT_EQ(channel.came.back(), "x" + std::to_string(HeldPackets::kMostOfOne)) << "the first ones stay";
  EXPECT_EQ(port->pool().free(), kPortBuffers);
}

TEST_F(RocePortThread, AnswerOfAQueuePairThatIsHeld_LeavesLater) {
  send();
  ASSERT_TRUE(comes_true([&] { return port->poll(), channel.delivered == 1; }));
  channel.held = true;
  for (int i = 0; i < 20; ++i) port->poll();
  EXPECT_EQ(channel.transmitted, 0);
  channel.held = false;
  for (int i = 0; i < 20; ++i) port->poll();
  EXPECT_EQ(channel.transmitted, 1);
}

TEST_F(RocePortThread, QueuePairThatIsGone_LeavesNothingInItsInbox) {
  const uint32_t free = port->pool().free();
  channel.held = true;
  send(3);
  ASSERT_TRUE(comes_true([&] { return port->poll(), port->counters().packets == 3; }));
  EXPECT_EQ(port->pool().free(), free - 3);
  port->remove(channel);
  EXPECT_EQ(port->pool().free(), free);
  const int tries = channel.tries;
  for (int i = 0; i < 20; ++i) port->poll();
  EXPECT_EQ(channel.tries, tries);
}

TEST_F(RocePortThread, WaitsForAGroupsPacketsToo) {
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
  burst->send(0, packet, nullptr, 0);
  burst->flush();
  EXPECT_TRUE(comes_true([&] { return channel.delivered == 1; }));
  port->detach(kThreadQpn, group);
}

TEST_F(RocePortThread, QueuePairThatIsGoneIsNotTouched) {
  start();
  port->remove(channel);
  EXPECT_EQ(channel.left, 1);
  channel.wanted_at = base::now_ns();
  CountingChannel other(kThreadQpn + 1);
  port->add(other);
  other.wanted_at = base::now_ns();
  send();
  port->expect(other, other.wanted_at);
  EXPECT_TRUE(comes_true([&] { return other.timers == 1 && port->counters().no_queue_pair == 1; }));
  EXPECT_EQ(channel.timers + channel.delivered + channel.transmitted, 0);
  port->remove(other);
}

TEST_F(RocePortThread, LateCopyOfASentMessage_IsThrownAway) {
  // One message after the other from one process, to a thread that polls: that process gets a socket.
  constexpr int kMoreThanEnough = 2000;
  for (int sent = 1; port->own() == nullptr && sent <= kMoreThanEnough; ++sent) {
    send();
    ASSERT_TRUE(comes_true([&] { return port->poll(), channel.delivered == sent; }));
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
  ASSERT_TRUE(comes_true(has_copy));
  ASSERT_TRUE(port->start());
  EXPECT_TRUE(comes_true([&] { return !has_copy(); })) << "the thread would never sleep";
}

TEST_F(RocePortThread, RefusedPacket_LetsTheThreadSleepOn) {
  start();
  for (int times = 1; times <= 2; ++times) {
    ASSERT_NO_FATAL_FAILURE(be_refused());
    EXPECT_TRUE(comes_true([&] { return channel.refusals >= times; }));
    EXPECT_TRUE(is_asleep());
    EXPECT_FALSE(wakes_threads());
  }
}

// ---- A thread of the program that sleeps until an event comes.

class RocePortSleeper : public RocePortThread {
 protected:
  void SetUp() override {
    RocePortThread::SetUp();
    channel.event = event->signal_fd();
  }
  void TearDown() override {
    if (sleeper.joinable()) {
      // One that has missed its event hears of it with the next packet.
      if (slept == 0) channel.event = event->signal_fd(), send();
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
      slept = 1 + static_cast<int>(port->sleep(events));
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
  bool woke(core::Poller::Slept how) {
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
  ASSERT_TRUE(woke(core::Poller::Slept::kReady));
  EXPECT_EQ(channel.delivered, 1);
  EXPECT_EQ(channel.by, number);
  // It computes from now on, and the port's thread does the rest.
  EXPECT_TRUE(comes_true([&] { return channel.transmitted == 1; }));
  sleeper.join();
  send();
  EXPECT_TRUE(comes_true([&] { return channel.delivered == 2; })) << "the right was not given back";
  EXPECT_NE(channel.by, number);
}

TEST_F(RocePortSleeper, PacketWithoutAnEvent_IsAnsweredBeforeItSleepsOn) {
  channel.event = -1;
  start();
  ASSERT_NO_FATAL_FAILURE(fall_asleep());
  channel.owes = true;
  send();
  EXPECT_TRUE(comes_true([&] { return channel.delivered == 1 && channel.transmitted >= 1; }));
  EXPECT_EQ(slept, 0);
  event->count();
  EXPECT_TRUE(woke(core::Poller::Slept::kReady)) << "an event that another thread raises";
}

TEST_F(RocePortSleeper, WhatTheLastPollLeft_IsAnsweredBeforeItSleeps) {
  channel.event = -1;
  start();
  send();
  ASSERT_TRUE(comes_true([&] { return port->poll(), channel.delivered == 1; }));
  port->program_sleeps();
  ASSERT_TRUE(is_asleep());
  ASSERT_NO_FATAL_FAILURE(fall_asleep());
  EXPECT_GE(channel.transmitted, 1);
  event->count();
  EXPECT_TRUE(woke(core::Poller::Slept::kReady));
}

TEST_F(RocePortSleeper, EventOfItsAnswer_EndsItsSleep) {
  channel.event = -1;
  channel.event_of_answers = event->signal_fd();
  start();
  for (int turn = 0; turn < 10; ++turn) {
    ASSERT_NO_FATAL_FAILURE(fall_asleep());
    channel.owes = true;
    send();
    EXPECT_TRUE(woke(core::Poller::Slept::kReady));
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
    EXPECT_TRUE(comes_true([&] { return channel.refusals >= times; }));
    EXPECT_TRUE(is_sleeper_asleep());
    EXPECT_TRUE(is_asleep());
    EXPECT_FALSE(wakes_threads());
  }
  EXPECT_EQ(slept, 0);
  send();
  EXPECT_TRUE(woke(core::Poller::Slept::kReady));
}

TEST_F(RocePortSleeper, SecondThread_SleepsWithoutThePort) {
  start();
  ASSERT_NO_FATAL_FAILURE(fall_asleep());
  progress::EventCatch events(*event);
  EXPECT_EQ(port->sleep(events), core::Poller::Slept::kCannot);
  send();
  EXPECT_TRUE(woke(core::Poller::Slept::kReady));
}

TEST_F(RocePortSleeper, PortWithoutAThread_DoesNotSleep) {
  progress::EventCatch events(*event);
  EXPECT_EQ(port->sleep(events), core::Poller::Slept::kCannot);
}

// ---- Without its thread: what a poll does.

TEST_F(RocePortThread, SmallPacketOfAPoll_IsAnsweredByTheNextOne) {
  send();
  channel.owes = true;
  ASSERT_TRUE(comes_true([&] { return port->poll(), channel.delivered == 1; }));
  EXPECT_EQ(channel.transmitted, 0) << "the program goes first";
  port->poll();
  EXPECT_EQ(channel.transmitted, 1);
  EXPECT_EQ(channel.put_off, 0);
}

TEST_F(RocePortThread, FinishPoll_SendsWhatThePollLeft) {
  send();
  ASSERT_TRUE(comes_true([&] { return port->poll(), channel.delivered == 1; }));
  port->finish_poll();
  EXPECT_EQ(channel.transmitted, 1);
  port->finish_poll();
  EXPECT_EQ(channel.transmitted, 1) << "nothing is left";
}

TEST_F(RocePortThread, PacketOfAProgramsLastPoll_IsAnsweredByTheThread) {
  send();
  ASSERT_TRUE(comes_true([&] { return port->poll(), channel.delivered == 1; }));
  EXPECT_EQ(channel.transmitted, 0);
  // From here on the program computes. The thread finds no packet that would wake it.
  ASSERT_TRUE(port->start());
  EXPECT_TRUE(comes_true([&] { return channel.transmitted == 1; }));
}

TEST_F(RocePortThread, EndOfTheProcess_SendsWhatThePollLeft) {
  send();
  ASSERT_TRUE(comes_true([&] { return port->poll(), channel.delivered == 1; }));
  port->process_ends();
  EXPECT_EQ(channel.transmitted, 1);
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
    class Raising final : public CountingChannel {
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
    Burst burst(sockets, false);
    Destination to;
    to.to = {kThreadHost, (*port)->socket().port(), 0};
    to.from = kThreadHost;
    burst.aim(&to);
    Packet packet;
    packet.opcode = opcode_of(Service::kRc, Operation::kSendOnly);
    packet.dest_qpn = kThreadQpn;
    burst.send(0, packet, nullptr, 0);
    burst.flush();
    for (;;) (*port)->poll();
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), 3) << "its alarm ended it";
}

TEST_F(RocePortThread, StreamsPacketsAreAnsweredTogether) {
  send(12, 1000);
  int before = 0;
  ASSERT_TRUE(comes_true([&] { return before = channel.delivered, port->poll(), channel.delivered == 12; }));
  // Where the kernel brings them one by one they are no stream.
  if (before == 0) {
    EXPECT_EQ(channel.transmitted, 0);
  }
  EXPECT_TRUE(comes_true([&] { return port->poll(), channel.transmitted == 1; })) << "when nothing came after them";
  for (int i = 0; i < 20; ++i) port->poll();
  EXPECT_EQ(channel.transmitted, 1);
}

TEST_F(RocePortThread, WaitersTakeTurnsInOrderWhileThereIsRoom) {
  SharedWindow& window = *port->response_window();
  CountingChannel second(kThreadQpn + 1), third(kThreadQpn + 2);
  channel.takes = second.takes = window.size() / 2;
  third.takes = 1;
  for (CountingChannel* each : {&channel, &second, &third}) window.wait(*each);
  port->note_waiter();
  for (int i = 0; i < 20; ++i) port->poll();
  EXPECT_EQ(channel.turns, 1);
  EXPECT_EQ(second.turns, 1);
  EXPECT_EQ(third.turns, 0) << "there is no room left";
  EXPECT_EQ(window.waiters(), 1u);
  window.give_back(window.used());
  EXPECT_TRUE(comes_true([&] { return port->poll(), third.turns == 1; })) << "it need not ask again";
  window.give_back(window.used());
  for (int i = 0; i < 20; ++i) port->poll();
  EXPECT_EQ(third.turns, 1);
}

TEST_F(RocePortThread, WaiterThatIsHeld_StaysInLine) {
  const std::shared_ptr<Peer> process = port->peer_at(kThreadHost, 1);
  EXPECT_EQ(process, port->peer_at(kThreadHost, 1)) << "one window a process";
  EXPECT_NE(process, port->peer_at(kThreadHost, 2));
  channel.held = true;
  channel.takes = 1;
  process->window.wait(channel);
  port->note_waiter();
  for (int i = 0; i < 20; ++i) port->poll();
  EXPECT_EQ(channel.turns, 0);
  channel.held = false;
  EXPECT_TRUE(comes_true([&] { return port->poll(), channel.turns == 1; }));
  EXPECT_FALSE(process->window.has_waiters());
}

TEST_F(RocePortThread, WaiterThatLeavesTheLineWhileItIsCalled_StandsThereNoMore) {
  SharedWindow& window = *port->response_window();
  CountingChannel second(kThreadQpn + 1);
  for (const bool held : {false, true}) {
    const int before = second.turns;
    channel.held = held;
    channel.leaves = &window;
    window.wait(channel);
    window.wait(second);
    port->note_waiter();
    EXPECT_TRUE(comes_true([&] { return port->poll(), second.turns > before; }));
    EXPECT_FALSE(window.has_waiters()) << "its queue pair may be gone by the next turn";
    EXPECT_EQ(channel.turns, 0) << held;
  }
  channel.held = false;
}

TEST_F(RocePortThread, WaiterThatSendsNothing_HasOneTurnAPoll) {
  SharedWindow& window = *port->response_window();
  channel.stays = 1000;
  window.wait(channel);
  port->note_waiter();
  ASSERT_TRUE(comes_true([&] { return port->poll(), channel.turns > 0; }));
  EXPECT_EQ(channel.turns, 1);
  channel.stays = 0;
}

TEST_F(RocePortThread, QueuePairThatIsGone_OwesNoAnswer) {
  send();
  ASSERT_TRUE(comes_true([&] { return port->poll(), channel.delivered == 1; }));
  port->remove(channel);
  port->poll();
  port->finish_poll();
  EXPECT_EQ(channel.transmitted + channel.put_off, 0);
}

}  // namespace
}  // namespace nupa::roce
#endif
