// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Ports with a thread, and queue pairs that count.
#include <dirent.h>
#include <gtest/gtest.h>
#include <linux/net_tstamp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "progress/event_catch.h"
#include "progress/late_events.h"
#include "transport/roce/port/port.h"

namespace nupa::roce {

constexpr Gid kThreadHost{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}};
constexpr uint32_t kThreadQpn = 0x1105;

/// Counts what the port does with a queue pair.
class CountingReceiver : public QpReceiver {
 public:
  explicit CountingReceiver(uint32_t number = kThreadQpn) : number_(number) {}
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
  void transmit(int64_t, TransmitBatch&, bool answers) override {
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
  void count_unexpected() override {}
  void take_turn(FlowWindow& window, int64_t, TransmitBatch&) override {
    ++turns;
    if (takes != 0) window.take(takes, takes);
    if (stays > 0) --stays, window.wait(*this);
  }
  void leave_wait_queues() override { ++left; }
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
  FlowWindow* leaves = nullptr;  ///< whose line it leaves while the port asks for it
  std::atomic<bool> owes{false};
  std::atomic<bool> raises_late{false};  ///< events of this thread waited until the channel was left
  std::vector<std::string> came;         ///< payload and number of each packet; read while nothing comes
  std::atomic<int64_t> wanted_at{INT64_MAX};

 private:
  const uint32_t number_;
};

/// Whether `holds` does before a long time has passed; only a test that fails waits so long.
inline bool eventually(const std::function<bool()>& holds) {
  const int64_t end = base::now_ns() + 10'000'000'000;
  while (!holds()) {
    if (base::now_ns() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

/// What each thread of this process says of itself in /proc, for those of a port.
inline std::vector<std::string> port_threads(const char* file) {
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
    port->add(queue_pair);
    way.place = 1;
    way.to = {kThreadHost, port->socket().port(), 0};
    way.from = kThreadHost;
    auto outside = net::UdpSocket::open(0, 1 << 16);
    ASSERT_TRUE(outside);
    sockets.push_back(std::move(*outside));
    batch = std::make_unique<TransmitBatch>(sockets, false);
    batch->aim(&way);
  }
  void TearDown() override { port->remove(queue_pair); }
  void start() {
    ASSERT_TRUE(port->start());
    ASSERT_TRUE(is_asleep());
  }
  /// Waits until the port's thread sleeps, for whatever comes: its state in /proc is S, twice.
  bool is_asleep() {
    int seen = 0;
    return eventually([&] {
      const auto stats = port_threads("stat");
      const bool sleeps = stats.size() == 1 && stats[0].find(") S ") != std::string::npos;
      seen = sleeps ? seen + 1 : 0;
      return seen == 3;
    });
  }
  void send(uint32_t packets = 1, uint32_t bytes = 8) {
    for (uint32_t i = 0; i < packets; ++i) put(kThreadQpn, 0, std::string(bytes, 'x'));
    batch->flush();
  }
  /// The port sends a packet to a port that no process has; the host refuses it.
  void send_refused_packet() {
    auto gone = net::UdpSocket::open(0, 1 << 16);
    ASSERT_TRUE(gone);
    Destination nowhere = way;
    nowhere.place = 3;
    nowhere.to.port = gone->port();
    gone->close();
    TransmitBatch own(port->sockets(), false);
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
    batch->send(0, packet, &fragment, 1);
  }

  CountingReceiver queue_pair;
  std::unique_ptr<Port> port;
  Destination way;
  std::vector<net::UdpSocket> sockets;
  std::unique_ptr<TransmitBatch> batch;
};

}  // namespace nupa::roce
