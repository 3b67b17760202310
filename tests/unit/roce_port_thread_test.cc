// SPDX-License-Identifier: Apache-2.0
/// The thread of a port, which does everything while no thread of the program polls.
#ifndef NUPA_TEST_DROPIN
#include <dirent.h>
#include <gtest/gtest.h>
#include <linux/net_tstamp.h>
#include <poll.h>
#include <sys/socket.h>
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
#include "transport/roce/port.h"

namespace nupa::roce {
namespace {

constexpr Gid kThreadHost{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}};
constexpr uint32_t kThreadQpn = 0x1105;

/// Counts what the port does with a queue pair.
class CountingChannel : public Channel {
 public:
  explicit CountingChannel(uint32_t number = kThreadQpn) : number_(number) {}
  uint32_t number() const override { return number_; }
  bool enter() override {
    if (leaves != nullptr) std::exchange(leaves, nullptr)->forget(*this);
    if (busy > 0) return --busy, false;
    return true;
  }
  void leave() override {}
  void deliver(Packet&, const io::UdpSocket::Received&, int64_t) override { ++delivered; }
  void transmit(int64_t, Burst&, bool answers) override { ++(answers ? transmitted : put_off); }
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

  std::atomic<int> busy{0}, delivered{0}, transmitted{0}, put_off{0}, timers{0}, turns{0}, left{0};
  std::atomic<uint64_t> takes{0};
  std::atomic<int> stays{0};       ///< turns after which it waits for another one
  SharedWindow* leaves = nullptr;  ///< whose line it leaves while the port asks for it
  std::atomic<bool> owes{false};
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
    auto socket = io::UdpSocket::open(0, 1 << 18);
    ASSERT_TRUE(socket);
    auto opened = Port::open(std::move(*socket));
    ASSERT_TRUE(opened);
    port = std::move(*opened);
    port->add(channel);
    way.place = 1;
    way.to = {kThreadHost, port->socket().port(), 0};
    way.from = kThreadHost;
    auto outside = io::UdpSocket::open(0, 1 << 16);
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
    const std::string payload(bytes, 'x');
    const Fragment fragment{reinterpret_cast<const std::byte*>(payload.data()), bytes};
    for (uint32_t i = 0; i < packets; ++i) {
      Packet packet;
      packet.opcode = opcode_of(Service::kRc, Operation::kSendOnly);
      packet.mark = kNupaMark;
      packet.dest_qpn = kThreadQpn;
      packet.payload_length = bytes;
      burst->send(0, packet, &fragment, 1);
    }
    burst->flush();
  }

  CountingChannel channel;
  std::unique_ptr<Port> port;
  Destination way;
  std::vector<io::UdpSocket> sockets;
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
  port->expect(channel.wanted_at);
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
  port->expect(channel.wanted_at);
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
  port->expect(next.wanted_at);
  EXPECT_TRUE(comes_true([&] { return next.timers == 1; }));
  port->remove(next);
}

TEST_F(RocePortThread, TimerOfAQueuePairThatIsHeld_RunsLater) {
  start();
  channel.busy = 3;
  channel.wanted_at = base::now_ns();
  port->expect(channel.wanted_at);
  EXPECT_TRUE(comes_true([&] { return channel.timers == 1; }));
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
  port->expect(other.wanted_at);
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
    auto socket = io::UdpSocket::open(0, 1 << 16);
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
      void deliver(Packet&, const io::UdpSocket::Received&, int64_t) override { raise(SIGTERM); }
    } raising;
    signal(SIGTERM, [](int) { std::exit(3); });
    auto socket = io::UdpSocket::open(0, 1 << 16);
    auto port = socket ? Port::open(std::move(*socket)) : tl::unexpected(socket.error());
    auto outside = io::UdpSocket::open(0, 1 << 16);
    if (!port || !outside) _exit(1);
    (*port)->add(raising);
    std::vector<io::UdpSocket> sockets;
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
  channel.busy = 1;
  channel.takes = 1;
  process->window.wait(channel);
  port->note_waiter();
  EXPECT_TRUE(comes_true([&] { return port->poll(), channel.turns == 1; }));
  EXPECT_FALSE(process->window.has_waiters());
}

TEST_F(RocePortThread, WaiterThatLeavesTheLineWhileItIsCalled_StandsThereNoMore) {
  SharedWindow& window = *port->response_window();
  CountingChannel second(kThreadQpn + 1);
  for (const int busy : {0, 1}) {
    const int before = second.turns;
    channel.busy = busy;
    channel.leaves = &window;
    window.wait(channel);
    window.wait(second);
    port->note_waiter();
    EXPECT_TRUE(comes_true([&] { return port->poll(), second.turns > before; }));
    EXPECT_FALSE(window.has_waiters()) << "its queue pair may be gone by the next turn";
    EXPECT_EQ(channel.turns, 0) << busy;
  }
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
