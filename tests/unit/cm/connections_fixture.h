// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Connection managers that record their events.
#include <gtest/gtest.h>
#include <nupa/connection_manager.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "../host/fixture.h"
#include "cm/connections.h"
#include "core/process.h"

namespace nupa::core {

constexpr int kSoonMs = 20'000;  // a sanitizer on a busy machine
constexpr uint64_t kIpTcp = 0x0000000001060000;
constexpr uint64_t kPlain = 0x1000000000abcd;

inline Gid loopback(uint8_t last = 1) {
  Gid gid;
  gid.raw[10] = gid.raw[11] = 0xff;
  gid.raw[12] = 127;
  gid.raw[15] = last;
  return gid;
}

/// NUPA_TRANSPORT for as long as it lives.
class ChosenTransport {
 public:
  explicit ChosenTransport(const char* wanted) {
    if (const char* found = getenv("NUPA_TRANSPORT"); found != nullptr) before_ = found;
    setenv("NUPA_TRANSPORT", wanted, 1);
  }
  ~ChosenTransport() { before_.empty() ? unsetenv("NUPA_TRANSPORT") : setenv("NUPA_TRANSPORT", before_.c_str(), 1); }
  ChosenTransport(const ChosenTransport&) = delete;
  ChosenTransport& operator=(const ChosenTransport&) = delete;

 private:
  std::string before_;
};

enum class EventKind { kRequest, kReply, kEstablished, kRejected, kUnreachable, kDisconnected, kDatagramReply };

struct Event {
  EventKind what;
  uint64_t owner;       ///< of a request: the listener
  uint64_t detail = 0;  ///< a reason, a status, or whether it was silent
  ConnectionId id = 0;
};

/// Records the events. Requests get owners from 100 on.
class Sink final : public ConnectionSink {
 public:
  /// Called with the manager's lock held.
  std::function<void()> at_request;
  /// Called without the manager's lock.
  std::function<void()> after;
  void after_notifications() override {
    if (after) after();
  }
  uint64_t on_request(uint64_t owner, ConnectionId id, const ConnectionRequest&) override {
    if (at_request) at_request();
    record({EventKind::kRequest, owner, 0, id});
    return ++last_owner_;
  }
  uint64_t on_datagram_request(uint64_t, ConnectionId, const DatagramRequest&) override { return 0; }
  void on_reply(uint64_t owner, const ConnectionReply&) override { record({EventKind::kReply, owner}); }
  void on_established(uint64_t owner, const PrivateData<224>&) override { record({EventKind::kEstablished, owner}); }
  void on_rejected(uint64_t owner, uint16_t reason, const PrivateData<148>&) override {
    record({EventKind::kRejected, owner, reason});
  }
  void on_unreachable(uint64_t owner) override { record({EventKind::kUnreachable, owner}); }
  void on_disconnected(uint64_t owner, bool silent) override {
    record({EventKind::kDisconnected, owner, silent ? 1u : 0u});
  }
  void on_time_wait_exit(uint64_t) override {}
  void on_datagram_reply(uint64_t owner, const DatagramReply& reply) override {
    record({EventKind::kDatagramReply, owner, static_cast<uint64_t>(reply.status)});
  }

  /// The next event; of owner 0: none came.
  Event next() {
    std::unique_lock lock(mutex_);
    if (!came_.wait_for(lock, std::chrono::milliseconds(kSoonMs), [this] { return taken_ < events_.size(); }))
      return {EventKind::kUnreachable, 0};
    return events_[taken_++];
  }
  bool is_empty() {
    std::lock_guard lock(mutex_);
    return taken_ == events_.size();
  }

 private:
  void record(const Event& event) {
    std::lock_guard lock(mutex_);
    events_.push_back(event);
    came_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<Event> events_;
  size_t taken_ = 0;
  uint64_t last_owner_ = 100;
};

/// Another process, forked before this one has opened anything; both can send each other integers.
class Other {
 public:
  explicit Other(const std::function<void(Other&)>& body) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(0, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
    pid_ = fork();
    link_ = ends[pid_ == 0 ? 1 : 0];
    ::close(ends[pid_ == 0 ? 0 : 1]);
    if (pid_ != 0) return;
    alarm(3 * kSoonMs / 1000);
    body(*this);
    _exit(0);
  }
  ~Other() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      wait();
    }
    ::close(link_);
  }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;
  void send_word(int word) { ASSERT_EQ(4, send(link_, &word, sizeof word, MSG_NOSIGNAL)); }
  int receive_word() {
    pollfd one{link_, POLLIN, 0};
    int word = -1;
    if (::poll(&one, 1, kSoonMs) != 1 || recv(link_, &word, sizeof word, 0) != 4) return -1;
    return word;
  }
  int wait() {
    int status = -1;
    EXPECT_EQ(pid_, waitpid(pid_, &status, 0));
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  void kill_it() { kill(pid_, SIGKILL); }

 private:
  pid_t pid_ = 0;
  int link_ = -1;
};

/// A process with connections.
struct Party {
  Sink sink;
  std::shared_ptr<ConnectionManager> manager;
  Party() {
    if (auto opened = ConnectionManager::open(sink)) manager = std::move(*opened);
  }
  int take(uint64_t owner, uint64_t service, const Gid* address = nullptr,
           const std::function<void(ListenerAddress&)>& change = {}) {
    ListenerAddress at;
    at.service_id = service;
    if (address != nullptr) {
      at.any_address = false;
      at.address = *address;
    }
    if (change) change(at);
    return manager->bind(owner, at);
  }
  /// A request for `service`, at the loopback address if it is one of IP.
  int connect(uint64_t owner, uint64_t service, ConnectionId* id, uint8_t address = 1) {
    auto route = manager->find_route(loopback(address), 0, nullptr);
    if (!route) return route.error().code();
    ConnectionRequest request;
    request.service_id = service;
    request.path = route->path;
    request.ca_guid = static_cast<uint64_t>(getpid());
    request.qp_num = static_cast<uint32_t>(owner);
    if (is_ip_service(service)) {
      request.private_data.bytes[1] = std::byte{0x40};
      const Gid to = loopback(address);
      for (size_t i = 0; i < 4; ++i) request.private_data.bytes[32 + i] = static_cast<std::byte>(to.raw[12 + i]);
    }
    request.private_data.length = request.private_data.room();
    return manager->connect(request, *route, owner, id);
  }
};

/// The service thread does `what`, and nothing else meanwhile.
inline void on_service_thread(Process& own, const std::function<void()>& what) {
  ASSERT_TRUE(own.node().loop().call(what, progress::Deadline::in_ms(kSoonMs)));
}

}  // namespace nupa::core
