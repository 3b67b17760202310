// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a node's connections are tested with: the events of the communication manager, what a node has without its
// interface, and what the first messages of a connection carry.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "netdev/session.h"

namespace nupa::netdev::session_test {

constexpr std::chrono::seconds kSessionLimit{10};
constexpr uint64_t kListener = 1, kAsks = 100, kAnswers = 200;

/// What a REQ and a REP carry (session.cc).
struct HandshakeData {
  uint32_t magic = 0x54454e55;
  uint16_t version = 1;
  uint16_t queues = 1;
  uint32_t qp_num = 0;
  Nonce nonce{};
  Mac mac{};
  std::span<const std::byte> covered() const { return {reinterpret_cast<const std::byte*>(this), 12}; }
};
static_assert(sizeof(HandshakeData) == 60);

struct Happened {
  enum Kind { kRequest, kReply, kRejected, kOther } kind;
  uint64_t owner;
  ConnectionId id = 0;
  ConnectionRequest request{};
  ConnectionReply reply{};
  uint16_t reason = 0;
  PrivateData<148> data{};
};

/// Keeps what the manager tells, in order.
class SessionEvents final : public ConnectionSink {
 public:
  uint64_t on_request(uint64_t, ConnectionId id, const ConnectionRequest& request) override {
    Happened event{Happened::kRequest, kAnswers};
    event.id = id;
    event.request = request;
    return put(std::move(event));
  }
  uint64_t on_datagram_request(uint64_t, ConnectionId, const DatagramRequest&) override { return 0; }
  void on_reply(uint64_t owner, const ConnectionReply& reply) override {
    Happened event{Happened::kReply, owner};
    event.reply = reply;
    put(std::move(event));
  }
  void on_established(uint64_t, const PrivateData<224>&) override {}
  void on_rejected(uint64_t owner, uint16_t reason, const PrivateData<148>& data) override {
    Happened event{Happened::kRejected, owner};
    event.reason = reason;
    event.data = data;
    put(std::move(event));
  }
  void on_unreachable(uint64_t owner) override { put({Happened::kOther, owner}); }
  void on_disconnected(uint64_t owner, bool) override { put({Happened::kOther, owner}); }
  void on_time_wait_exit(uint64_t) override {}
  void on_datagram_reply(uint64_t, const DatagramReply&) override {}

  /// The next one of this kind; others before it are dropped. Its owner is 0 if none comes within the limit.
  Happened next(Happened::Kind kind, std::chrono::nanoseconds limit = kSessionLimit) {
    const auto until = std::chrono::steady_clock::now() + limit;
    std::unique_lock lock(mutex_);
    for (;;) {
      if (!changed_.wait_until(lock, until, [&] { return !events_.empty(); })) return {kind, 0};
      Happened event = std::move(events_.front());
      events_.pop_front();
      if (event.kind == kind) return event;
    }
  }

 private:
  uint64_t put(Happened event) {
    const uint64_t owner = event.owner;
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
    return owner;
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Happened> events_;
};

/// What a node has, without its interface.
struct Household {
  std::unique_ptr<CompletionQueue> cq;
  std::vector<int> sockets;
  std::unique_ptr<NodeContext> world;
  std::unique_ptr<Session> session;

  ~Household() {
    session.reset();
    world.reset();
    for (const int socket : sockets) close(socket);
  }
  /// Gives the session what has come to its queue pair.
  bool turn() {
    WorkCompletion done;
    if (cq->poll(&done, 1) != 1) return false;
    if (session && done.wr_id >> 1 == session->owner()) session->on_completion(done);
    return true;
  }
};

/// Of a node of network "lab" with that many queues.
inline std::unique_ptr<Household> make_household(Device& device, ProtectionDomain& pd, ConnectionManager& manager,
                                                 const Key& key, const std::string& name, const char* address,
                                                 size_t packet_loops = 1) {
  auto made = std::make_unique<Household>();
  made->cq = std::move(*device.create_cq({.entries = 64}));
  PeerInfo self;
  self.node = name;
  self.instance = static_cast<uint64_t>(name[1]);
  self.addresses = {*Prefix::parse(address)};
  self.mtu = 9000;
  self.takes_datagrams = true;
  made->world = std::make_unique<NodeContext>(NodeContext{device, pd, *made->cq, manager, key, "lab", self, {}, 1});
  for (size_t i = 0; i < packet_loops; ++i) {
    int pair[2];
    EXPECT_EQ(0, socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair));
    made->sockets.insert(made->sockets.end(), pair, pair + 2);
    made->world->packet_loops.push_back(std::move(*PacketLoop::start(device, pair[0], {self.addresses, self.mtu})));
  }
  return made;
}

}  // namespace nupa::netdev::session_test
