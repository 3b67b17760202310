// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A TCP program behind the preload library. A socket whose data go over an rsocket is an unconnected one for the
/// kernel.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace nupa::preload_test {

constexpr int kSoonMs = 20'000;
/// A connect() that a busy machine delays is not to take TCP. Before the library reads it, at the first one.
inline const bool kPatient = setenv("NUPA_SOCKETS_CONNECT_MS", "20000", 0) == 0;
constexpr const char* kPortOfParent = "NUPA_TEST_PORT";
constexpr const char* kEndOfChild = "NUPA_TEST_END";

inline sockaddr_in loopback(in_port_t port = 0) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = port;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}
inline const sockaddr* as_sockaddr(const sockaddr_in& address) { return reinterpret_cast<const sockaddr*>(&address); }
inline sockaddr* as_out(sockaddr_in* address) { return reinterpret_cast<sockaddr*>(address); }

template <class Number>
int error_of(Number result) {
  return result == static_cast<Number>(-1) ? errno : 0;
}

/// What the kernel knows of the socket.
inline bool connected_by_tcp(int fd) {
  sockaddr_in peer;
  socklen_t length = sizeof peer;
  return syscall(SYS_getpeername, fd, &peer, &length) == 0;
}

class Preload : public testing::Test {
 protected:
  void SetUp() override {
    listener = socket(AF_INET, SOCK_STREAM, 0);
    address = loopback();
    ASSERT_EQ(bind(listener, as_sockaddr(address), sizeof address), 0);
    socklen_t length = sizeof address;
    ASSERT_EQ(getsockname(listener, as_out(&address), &length), 0);
    ASSERT_EQ(listen(listener, 16), 0);
  }
  void TearDown() override {
    for (const int fd : {client, server, listener, epoll}) {
      if (fd >= 0) close(fd);
    }
  }
  static int poll_one(int fd, short events, int timeout) {
    pollfd entry{fd, events, 0};
    const int count = poll(&entry, 1, timeout);
    EXPECT_EQ(count, entry.revents != 0 ? 1 : 0);
    return entry.revents;
  }
  /// Two ends of a connection over rsockets.
  void make_pair() {
    EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);  // from here on the listener has an rsocket, too
    client = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(connect(client, as_sockaddr(address), sizeof address), 0) << std::strerror(errno);
    ASSERT_EQ(poll_one(listener, POLLIN, kSoonMs), POLLIN);
    server = accept(listener, nullptr, nullptr);
    ASSERT_GE(server, 0) << std::strerror(errno);
    ASSERT_FALSE(connected_by_tcp(client));
    ASSERT_FALSE(connected_by_tcp(server));
  }
  void make_epoll() {
    epoll = epoll_create1(0);
    ASSERT_GE(epoll, 0);
  }
  int control(int operation, int fd, uint32_t events, uint64_t data) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = data;
    return error_of(epoll_ctl(epoll, operation, fd, &event));
  }
  /// The events of one wait, as "data:events".
  std::string wait_epoll(int timeout) {
    epoll_event events[8];
    const int count = epoll_wait(epoll, events, 8, timeout);
    if (count < 0) return std::strerror(errno);
    std::string text;
    for (int i = 0; i < count; ++i) {
      char one[64];
      std::snprintf(one, sizeof one, "%s%lu:%x", i == 0 ? "" : " ", static_cast<unsigned long>(events[i].data.u64),
                    events[i].events);
      text += one;
    }
    return text;
  }
  static int read_error(int fd) {
    char c;
    return error_of(recv(fd, &c, 1, MSG_DONTWAIT));
  }
  /// Of a read of nothing that must come back: one that waits gets a byte of the other end after a while.
  static int error_of_read(int fd, int other) {
    std::atomic<bool> back{false};
    int error = 0;
    std::thread reading([&] {
      char c;
      error = error_of(read(fd, &c, 1));
      back = true;
    });
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kSoonMs);
    while (!back && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    if (!back) {
      EXPECT_EQ(write(other, "x", 1), 1);
    }
    reading.join();
    return error;
  }
  static std::string read_some(int fd) {
    char room[256];
    const ssize_t count = read(fd, room, sizeof room);
    return count < 0 ? std::strerror(errno) : std::string(room, static_cast<size_t>(count));
  }

  int listener = -1;
  int client = -1;
  int server = -1;
  int epoll = -1;
  sockaddr_in address{};
};

/// Starts a case of this program that is disabled in a process of its own, with a variable in its environment.
inline pid_t start_case(const char* name, const char* variable, const std::string& value, bool quiet) {
  setenv(variable, value.c_str(), 1);
  std::string self = "/proc/self/exe", filter = name, disabled = "--gtest_also_run_disabled_tests";
  filter.insert(0, "--gtest_filter=");
  char* words[] = {self.data(), filter.data(), disabled.data(), nullptr};
  posix_spawn_file_actions_t output;
  posix_spawn_file_actions_init(&output);
  if (quiet) {
    posix_spawn_file_actions_addopen(&output, 1, "/dev/null", O_WRONLY, 0);
  } else {
    posix_spawn_file_actions_adddup2(&output, 2, 1);
  }
  pid_t child = -1;
  EXPECT_EQ(posix_spawn(&child, "/proc/self/exe", &output, nullptr, words, environ), 0);
  posix_spawn_file_actions_destroy(&output);
  unsetenv(variable);
  return child;
}

/// What the process returned.
inline int end_of(pid_t child) {
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

}  // namespace nupa::preload_test
