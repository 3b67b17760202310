// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Fixture for rare cases of the preload library.
#include <filesystem>
#include <functional>
#include <set>

#include "api_peer.h"
#include "preload_support.h"

namespace nupa::preload_test {

using nupa::rsockets_test::await;
using nupa::rsockets_test::await_sleep;
using nupa::rsockets_test::Peer;

constexpr const char* kConnectMs = "NUPA_SOCKETS_CONNECT_MS";

inline std::set<int> descriptors() {
  std::set<int> numbers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    numbers.insert(std::stoi(entry.path().filename()));
  }
  return numbers;
}

inline size_t open_descriptors() { return descriptors().size(); }

/// Of a wait that ends because something happens: one that nothing ends is over after kSoonMs, and looks once more.
class Woken {
 public:
  ~Woken() {
    EXPECT_LT(std::chrono::steady_clock::now() - begin_, std::chrono::milliseconds(kSoonMs)) << "nothing woke it";
  }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

class PreloadEdges : public Preload {
 protected:
  /// Only a keepalive finds out that the peer answers no more.
  static bool finds_silence(Peer* peer, int fd) {
    peer->fall_silent();
    return (poll_one(fd, POLLIN, kSoonMs) & (POLLERR | POLLHUP)) != 0;
  }
  /// A connection of the kernel's TCP, whatever the listener has.
  int connect_plain() const {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(syscall(SYS_connect, fd, &address, sizeof address), 0);
    return fd;
  }
  /// What one wait of a set with two places tells, in a thread that sleeps when `act` is called.
  std::string wake_epoll(const std::function<void()>& act, int wait_ms = kSoonMs) {
    std::string told;
    std::atomic<pid_t> sleeper{0};
    std::thread waiting([&] {
      sleeper = gettid();
      const Woken woken;
      told = wait_epoll(wait_ms);
    });
    EXPECT_TRUE(await([&] { return sleeper != 0; }));
    EXPECT_TRUE(await_sleep(sleeper));
    act();
    waiting.join();
    return told;
  }
};

class PreloadAlone : public PreloadEdges {
 protected:
  /// A client that does not wait, asking a peer who has not answered.
  void begin_connecting(Peer* peer, const sockaddr_in& to) {
    client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    ASSERT_EQ(error_of(connect(client, as_sockaddr(to), sizeof to)), EINPROGRESS);
    ASSERT_TRUE(await([&] {
      poll_one(client, POLLOUT, 0);
      return peer->has_event();
    }));
    ASSERT_TRUE(peer->requested());
  }
};

}  // namespace nupa::preload_test
