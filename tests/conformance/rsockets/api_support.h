// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Pairs of connected rsockets in one process, through the drop-in as a program has them.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace nupa::rsockets_test {

inline sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

inline const sockaddr* as_sockaddr(const sockaddr_in& address) { return reinterpret_cast<const sockaddr*>(&address); }

constexpr int kSoonMs = 20'000;  ///< for what has to come: a sanitizer on a busy machine

/// Waits until a condition holds. False: it did not hold in time.
template <class Condition>
bool await(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kSoonMs);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // sleep: the pause between two looks
  }
  return true;
}

/// Waits until a thread of this process sleeps.
inline bool await_sleep(pid_t thread) {
  const std::string file = "/proc/self/task/" + std::to_string(thread) + "/stat";
  return await([&] {
    std::FILE* stat = std::fopen(file.c_str(), "re");
    char state = 0;
    const bool read = stat != nullptr && std::fscanf(stat, "%*d (%*[^)]) %c", &state) == 1;
    if (stat != nullptr) std::fclose(stat);
    return read && state == 'S';
  });
}

/// An errno, or 0, of a call that returns -1 when it fails.
template <class Number>
int error_of(Number result) {
  return result == static_cast<Number>(-1) ? errno : 0;
}

inline int set_number(int fd, int level, int name, int value) {
  return error_of(rsetsockopt(fd, level, name, &value, sizeof value));
}
/// The value of an option that is an int.
inline int number_of(int fd, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  EXPECT_EQ(rgetsockopt(fd, level, name, &value, &length), 0) << name << ": " << std::strerror(errno);
  EXPECT_EQ(length, sizeof value);
  return value;
}

class RsocketsApi : public testing::Test {
 protected:
  void SetUp() override {
    listener = rsocket(AF_INET, SOCK_STREAM, 0);
    ASSERT_GE(listener, 0) << std::strerror(errno);
    address = loopback(0);
    ASSERT_EQ(rbind(listener, as_sockaddr(address), sizeof address), 0) << std::strerror(errno);
    socklen_t length = sizeof address;
    ASSERT_EQ(rgetsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
    ASSERT_NE(address.sin_port, 0);
  }
  void TearDown() override {
    for (const int fd : {client, server, listener}) {
      if (fd >= 0) rclose(fd);
    }
  }

  int connect_one() const {
    const int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    if (rconnect(fd, as_sockaddr(address), sizeof address) == 0) return fd;
    const int error = errno;
    rclose(fd);
    errno = error;
    return -1;
  }
  void listen_now(int backlog = 10) { ASSERT_EQ(rlisten(listener, backlog), 0) << std::strerror(errno); }
  /// client and server are the two ends.
  void make_pair() {
    listen_now();
    client = connect_one();
    ASSERT_GE(client, 0) << std::strerror(errno);
    server = raccept(listener, nullptr, nullptr);
    ASSERT_GE(server, 0) << std::strerror(errno);
  }
  static std::string read_all(int fd) {
    std::string all;
    char buffer[4096];
    ssize_t count;
    while ((count = rrecv(fd, buffer, sizeof buffer, 0)) > 0) all.append(buffer, static_cast<size_t>(count));
    EXPECT_EQ(count, 0) << std::strerror(errno);
    return all;
  }
  static int poll_one(int fd, short events, int timeout) {
    pollfd entry{fd, events, 0};
    const int count = rpoll(&entry, 1, timeout);
    EXPECT_EQ(count, entry.revents != 0 ? 1 : 0);
    return entry.revents;
  }

  int listener = -1;
  int client = -1;
  int server = -1;
  sockaddr_in address{};
};

}  // namespace nupa::rsockets_test
