// SPDX-License-Identifier: Apache-2.0
// The edges of what a TCP program calls behind the preload library: descriptors, what a child has, waiting for sockets
// of both kinds, connections that are still being made.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <utility>

#include "../../support/held_allocation.h"
#include "api_peer.h"
#include "preload_support.h"

using nupa::preload_test::as_out;
using nupa::preload_test::connected_by_tcp;
using nupa::preload_test::end_of;
using nupa::preload_test::error_of;
using nupa::preload_test::kPortOfParent;
using nupa::preload_test::Preload;
using nupa::preload_test::start_case;
using nupa::rsockets_test::as_sockaddr;
using nupa::rsockets_test::await;
using nupa::rsockets_test::await_sleep;
using nupa::rsockets_test::kSoonMs;
using nupa::rsockets_test::loopback;
using nupa::rsockets_test::Peer;
using nupa::test::HeldAllocation;

// What programs call that are built with _FORTIFY_SOURCE.
extern "C" {
ssize_t __read_chk(int fd, void* buffer, size_t length, size_t room);
ssize_t __recv_chk(int fd, void* buffer, size_t length, size_t room, int flags);
ssize_t __recvfrom_chk(int fd, void* buffer, size_t length, size_t room, int flags, sockaddr* from, socklen_t* size);
int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t room);
int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask, size_t room);
}

namespace {

constexpr const char* kConnectMs = "NUPA_SOCKETS_CONNECT_MS";
constexpr const char* kConfig = "NUPA_SOCKETS_CONFIG";

std::set<int> descriptors() {
  std::set<int> numbers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    numbers.insert(std::stoi(entry.path().filename()));
  }
  return numbers;
}
size_t open_descriptors() { return descriptors().size(); }

/// Of a wait that ends because something happens: one that nothing ends is over after kSoonMs, and looks once more.
class Woken {
 public:
  ~Woken() {
    EXPECT_LT(std::chrono::steady_clock::now() - begin_, std::chrono::milliseconds(kSoonMs)) << "nothing woke it";
  }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// Looks at an rsocket last longer than the time that a wait spins, so that it sleeps after few of them.
class SlowLooks {
 public:
  SlowLooks() : devices_(rdma_get_devices(nullptr)) {
    for (ibv_context** device = devices_; *device != nullptr; ++device) {
      real_ = std::exchange((*device)->ops.poll_cq, poll);
    }
  }
  ~SlowLooks() {
    for (ibv_context** device = devices_; *device != nullptr; ++device) (*device)->ops.poll_cq = real_;
    rdma_free_devices(devices_);
  }
  SlowLooks(const SlowLooks&) = delete;
  SlowLooks& operator=(const SlowLooks&) = delete;

 private:
  static int poll(ibv_cq* cq, int count, ibv_wc* completions) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(20);
    while (std::chrono::steady_clock::now() < until) {
    }
    return real_(cq, count, completions);
  }

  static inline int (*real_)(ibv_cq*, int, ibv_wc*) = nullptr;
  ibv_context** devices_;
};

/// The calling thread runs on one processor, and before any other of it if that is allowed.
void run_on(int processor, bool first) {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(processor, &only);
  sched_setaffinity(0, sizeof only, &only);
  const sched_param priority{1};
  if (first) sched_setscheduler(0, SCHED_FIFO, &priority);
}

/// Has something happen once, just before an rsocket asks its completion queue for an event.
class BeforeArming {
 public:
  explicit BeforeArming(std::function<void()> act) : devices_(rdma_get_devices(nullptr)) {
    act_ = std::move(act);
    for (ibv_context** device = devices_; *device != nullptr; ++device) {
      real_ = std::exchange((*device)->ops.req_notify_cq, arm);
    }
  }
  ~BeforeArming() {
    for (ibv_context** device = devices_; *device != nullptr; ++device) (*device)->ops.req_notify_cq = real_;
    rdma_free_devices(devices_);
    act_ = nullptr;
  }
  BeforeArming(const BeforeArming&) = delete;
  BeforeArming& operator=(const BeforeArming&) = delete;

  bool has_happened() const { return act_ == nullptr; }

 private:
  static int arm(ibv_cq* cq, int solicited_only) {
    if (act_) std::exchange(act_, nullptr)();
    return real_(cq, solicited_only);
  }

  static inline std::function<void()> act_;
  static inline int (*real_)(ibv_cq*, int) = nullptr;
  ibv_context** devices_;
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

}  // namespace

// Descriptors.

TEST_F(PreloadEdges, ACopyOntoItselfIsNoSecondDescriptor) {
  make_pair();
  EXPECT_EQ(dup2(client, client), client);
  EXPECT_EQ(error_of(dup3(client, client, 0)), EINVAL);
  EXPECT_EQ(error_of(dup2(client, -1)), EBADF);
  EXPECT_EQ(write(client, "x", 1), 1);
  EXPECT_EQ(read_some(server), "x");
  close(client);
  client = -1;
  ASSERT_NE(poll_one(server, POLLIN, kSoonMs), 0) << "that was the only one";
  EXPECT_EQ(read_some(server), "");
}

TEST_F(PreloadEdges, ACopyThatClosesAtExecIsACopy) {
  make_pair();
  constexpr int kLowest = 200;
  const int copy = fcntl(client, F_DUPFD_CLOEXEC, kLowest);
  ASSERT_GE(copy, kLowest);
  EXPECT_EQ(fcntl(copy, F_GETFD), FD_CLOEXEC);
  close(client);
  client = copy;
  EXPECT_EQ(read_error(server), EAGAIN);
  EXPECT_EQ(write(client, "x", 1), 1);
  EXPECT_EQ(read_some(server), "x");
}

TEST_F(PreloadEdges, ChildOfVfork_ThatClosesAndReplacesDescriptors_LeavesItsParentsConnections) {
  make_pair();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN, 5), 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  // As Python's subprocess and inetd: standard input is replaced, all else is closed.
  const pid_t child = vfork();
  if (child == 0) {
    dup2(client, ends[0]);
    for (const int fd : {client, server, listener, epoll, ends[1]}) close(fd);
    _exit(0);
  }
  ASSERT_GT(child, 0);
  EXPECT_EQ(end_of(child), 0);
  ASSERT_EQ(write(client, "x", 1), 1) << std::strerror(errno);
  EXPECT_EQ(wait_epoll(kSoonMs), "5:1");
  EXPECT_EQ(read_some(server), "x");
  EXPECT_EQ(write(ends[1], "y", 1), 1);
  EXPECT_EQ(poll_one(ends[0], POLLIN, kSoonMs), POLLIN);
  EXPECT_EQ(read_some(ends[0]), "y") << "the pipe is a pipe";
  for (const int fd : ends) close(fd);
  for (const int fd : {client, server}) close(fd);
  make_pair();
}

TEST_F(PreloadEdges, ANumberThatIsUsedAgainIsAnotherSocket) {
  make_pair();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, client, EPOLLOUT, 5), 0);
  const int number = client;
  close(client);
  client = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(client, number);
  EXPECT_EQ(error_of(send(client, "x", 1, MSG_NOSIGNAL)), EPIPE);
  ASSERT_EQ(connect(client, as_sockaddr(address), sizeof address), 0) << std::strerror(errno);
  ASSERT_FALSE(connected_by_tcp(client));
  EXPECT_EQ(wait_epoll(0), "") << "it is no member";
  EXPECT_EQ(control(EPOLL_CTL_ADD, client, EPOLLOUT, 6), 0);
  EXPECT_EQ(wait_epoll(kSoonMs), "6:4");
}

TEST_F(PreloadEdges, WhatTheLibraryOpensClosesAtExec) {
  const std::set<int> before = descriptors();
  make_pair();
  for (const int fd : descriptors()) {
    if (before.contains(fd) || fd == client || fd == server) continue;
    EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0)
        << fd << ": " << std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd));
  }
}

TEST_F(PreloadEdges, ACopyWithWrongFlagsReplacesNothing) {
  make_pair();
  const int other = eventfd(0, 0);
  EXPECT_EQ(error_of(dup3(other, client, O_APPEND)), EINVAL);
  EXPECT_EQ(write(client, "x", 1), 1) << std::strerror(errno);
  EXPECT_EQ(read_some(server), "x");
  close(other);
}

TEST_F(PreloadEdges, AConnectionWaitsOnUntilThereIsADescriptorForIt) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  client = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(connect(client, as_sockaddr(address), sizeof address), 0) << std::strerror(errno);
  ASSERT_FALSE(connected_by_tcp(client));
  ASSERT_EQ(poll_one(listener, POLLIN, kSoonMs), POLLIN);
  const int lowest = eventfd(0, 0);
  ASSERT_GE(lowest, 0);
  close(lowest);
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit none{static_cast<rlim_t>(lowest), files.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const int error = error_of(accept(listener, nullptr, nullptr));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_EQ(error, EMFILE);
  ASSERT_EQ(poll_one(listener, POLLIN, kSoonMs), POLLIN);
  server = accept(listener, nullptr, nullptr);
  ASSERT_GE(server, 0) << std::strerror(errno);
  EXPECT_EQ(write(client, "x", 1), 1) << std::strerror(errno);
  EXPECT_EQ(read_some(server), "x");
}

TEST_F(PreloadEdges, NonBlockingIsEndedByIoctl) {
  make_pair();
  int on = 1;
  ASSERT_EQ(ioctl(server, FIONBIO, &on), 0);
  on = 0;
  ASSERT_EQ(ioctl(server, FIONBIO, &on), 0);
  std::atomic<pid_t> reader{0};
  ssize_t count = -1;
  std::thread reading([&] {
    char c;
    reader = gettid();
    count = read(server, &c, 1);
  });
  EXPECT_TRUE(await([&] { return reader != 0; }));
  EXPECT_EQ(write(client, "x", 1), 1);
  reading.join();
  EXPECT_EQ(count, 1);
}

// Calls.

TEST_F(PreloadEdges, ChecksOfFortifiedProgramsKeepWhatIsAsked) {
  make_pair();
  ASSERT_EQ(write(client, "abc", 3), 3);
  char room[4] = {};
  pollfd entry{server, POLLIN, 0};
  EXPECT_EQ(__poll_chk(&entry, 1, kSoonMs, sizeof entry), 1);
  const timespec none{};
  EXPECT_EQ(__ppoll_chk(&entry, 1, &none, nullptr, sizeof entry), 1);
  EXPECT_EQ(__recv_chk(server, room, 2, sizeof room, MSG_PEEK), 2);
  EXPECT_EQ(__recvfrom_chk(server, room, 1, sizeof room, MSG_PEEK, nullptr, nullptr), 1);
  EXPECT_EQ(__read_chk(server, room, 3, sizeof room), 3);
  EXPECT_STREQ(room, "abc");
  EXPECT_EQ(__poll_chk(&entry, 1, 0, sizeof entry), 0);
}

TEST_F(PreloadEdges, AnAddressBesideTheDataIsIgnoredAsByTcp) {
  make_pair();
  ASSERT_EQ(sendto(client, "x", 1, 0, as_sockaddr(address), sizeof address), 1) << std::strerror(errno);
  EXPECT_EQ(read_some(server), "x");
  iovec piece{const_cast<char*>("y"), 1};
  msghdr message{};
  message.msg_name = &address;
  message.msg_namelen = sizeof address;
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  ASSERT_EQ(sendmsg(client, &message, 0), 1) << std::strerror(errno);
  EXPECT_EQ(read_some(server), "y");
}

TEST_F(PreloadEdges, ListsOfWrongLengthsAreRefused) {
  make_pair();
  char c = 0;
  const iovec piece{&c, 1};
  volatile int negative = -1;  // the compiler would refuse the number
  EXPECT_EQ(error_of(readv(server, &piece, negative)), EINVAL);
  EXPECT_EQ(error_of(writev(client, &piece, negative)), EINVAL);
  EXPECT_EQ(writev(client, &piece, 0), 0);
  EXPECT_EQ(readv(server, &piece, 0), 0);
  EXPECT_EQ(read(server, &c, 0), 0);
}

TEST_F(PreloadEdges, AFileThatDoesNotFitIsSentInPartAndItsPlaceSaysSo) {
  make_pair();
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  const int fd = fileno(file);
  std::string content(3'000'000, ' ');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 11 >> 4);
  ASSERT_EQ(write(fd, content.data(), content.size()), static_cast<ssize_t>(content.size()));
  ASSERT_EQ(lseek(fd, 0, SEEK_SET), 0);
  ASSERT_EQ(fcntl(client, F_SETFL, O_NONBLOCK), 0);
  ASSERT_EQ(fcntl(server, F_SETFL, O_NONBLOCK), 0);
  ASSERT_EQ(error_of_read(client, server), EAGAIN);
  ASSERT_EQ(error_of_read(server, client), EAGAIN);
  // So that the rsocket's buffers do not end where a piece of the file does.
  const std::string first(1000, 'a');
  ASSERT_EQ(write(client, first.data(), first.size()), static_cast<ssize_t>(first.size()));
  content.insert(0, first);
  std::string got;
  std::string room(100'000, ' ');
  bool waited = false;
  while (got.size() < content.size()) {
    const off_t before = lseek(fd, 0, SEEK_CUR);
    const ssize_t sent = sendfile(client, fd, nullptr, content.size());
    if (sent < 0) {
      ASSERT_EQ(errno, EAGAIN);
    }
    waited |= sent < static_cast<ssize_t>(content.size());
    ASSERT_EQ(lseek(fd, 0, SEEK_CUR), before + std::max<ssize_t>(sent, 0));
    for (ssize_t count; (count = read(server, room.data(), room.size())) > 0;) {
      got.append(room.data(), static_cast<size_t>(count));
    }
  }
  EXPECT_TRUE(waited);
  EXPECT_EQ(got, content);
  EXPECT_EQ(error_of(sendfile(client, -1, nullptr, 1)), EBADF);
  std::fclose(file);
}

// Connecting.

TEST_F(PreloadEdges, AnAddressThatWasBoundIsTheConnections) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  client = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in mine = loopback(0), seen{};
  socklen_t length = sizeof mine;
  ASSERT_EQ(bind(client, as_sockaddr(mine), sizeof mine), 0);
  ASSERT_EQ(getsockname(client, as_out(&mine), &length), 0);
  ASSERT_EQ(connect(client, as_sockaddr(address), sizeof address), 0);
  ASSERT_FALSE(connected_by_tcp(client));
  server = accept(listener, as_out(&seen), &length);
  ASSERT_GE(server, 0);
  EXPECT_EQ(seen.sin_port, mine.sin_port);
}

TEST_F(PreloadEdges, AConnectionOfTcpIsNotMadeAgain) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  client = connect_plain();
  EXPECT_EQ(error_of(connect(client, as_sockaddr(address), sizeof address)), EISCONN);
}

TEST_F(PreloadEdges, AddressesOfWrongLengthsAreTheKernelsToRefuse) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  client = socket(AF_INET, SOCK_STREAM, 0);
  struct {
    sockaddr_in address;
    char more[sizeof(sockaddr_storage)];
  } longer{address, {}};
  EXPECT_EQ(error_of(connect(client, as_sockaddr(longer.address), sizeof longer)), EINVAL);
  EXPECT_EQ(error_of(connect(client, as_sockaddr(address), sizeof address - 1)), EINVAL);
  EXPECT_EQ(error_of(connect(client, nullptr, sizeof address)), EFAULT);
  EXPECT_EQ(connect(client, as_sockaddr(address), sizeof address), 0);
  EXPECT_FALSE(connected_by_tcp(client));
}

TEST_F(PreloadEdges, ARefusedPortSaysNothingOfTheHostsOthers) {
  const int nobody = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in closed = loopback(0);
  socklen_t length = sizeof closed;
  ASSERT_EQ(bind(nobody, as_sockaddr(closed), sizeof closed), 0);
  ASSERT_EQ(getsockname(nobody, as_out(&closed), &length), 0);
  client = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(error_of(connect(client, as_sockaddr(closed), sizeof closed)), ECONNREFUSED);
  close(client);
  close(nobody);
  make_pair();
}

TEST_F(PreloadEdges, Connect_FallsBackToTcp_LeavesNoDescriptorOfTheRsocket) {
  const auto fall_back = [&] {
    client = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(connect(client, as_sockaddr(address), sizeof address), 0) << std::strerror(errno);
    ASSERT_TRUE(connected_by_tcp(client)) << "a listener that has not waited yet has no rsocket";
    close(client);
    close(listener);
    client = -1;
    Preload::SetUp();  // a new port, for which the rsocket is tried again
  };
  ASSERT_NO_FATAL_FAILURE(fall_back());  // the library has what a process needs once
  const size_t before = open_descriptors();
  for (int i = 0; i < 4; ++i) ASSERT_NO_FATAL_FAILURE(fall_back());
  EXPECT_TRUE(await([&] { return open_descriptors() <= before; })) << open_descriptors() << " after " << before;
}

TEST_F(PreloadEdges, AListenerThatIsShutDownRefusesBothKinds) {
  make_pair();
  ASSERT_EQ(shutdown(listener, SHUT_RD), 0);
  const int late = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(syscall(SYS_connect, late, &address, sizeof address), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  EXPECT_EQ(error_of(connect(late, as_sockaddr(address), sizeof address)), ECONNREFUSED);
  close(late);
}

TEST_F(PreloadEdges, Close_OfAListenerWhereAnotherThreadAccepts_WaitsForNobody) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  std::atomic<pid_t> thread{0};
  int error = 0;
  std::thread waiting([&] {
    thread = gettid();
    error = error_of(accept(listener, nullptr, nullptr));
  });
  EXPECT_TRUE(await([&] { return thread != 0; }) && await_sleep(thread));
  EXPECT_EQ(close(listener), 0);
  waiting.join();
  EXPECT_EQ(error, EBADF);
  listener = -1;
}

TEST_F(PreloadEdges, AnAcceptWaitsAsLongAsItsTimeLimit) {
  const timeval limit{0, 10'000};
  ASSERT_EQ(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  std::atomic<bool> back{false};
  int error = 0;
  std::thread waiting([&] {
    error = error_of(accept(listener, nullptr, nullptr));
    back = true;
  });
  const bool in_time = await([&] { return back.load(); });
  EXPECT_TRUE(in_time);
  if (!in_time) close(connect_plain());
  waiting.join();
  EXPECT_EQ(error, EAGAIN);
}

TEST_F(PreloadEdges, ConnectionsHaveTheKeepaliveThatTheListenerHadFromTheBeginning) {
  const int on = 1;  // and a second
  ASSERT_EQ(setsockopt(listener, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on), 0);
  ASSERT_EQ(setsockopt(listener, IPPROTO_TCP, TCP_KEEPIDLE, &on, sizeof on), 0);
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  Peer peer;
  peer.retries = 0;
  ASSERT_TRUE(peer.connect(address));
  server = accept(listener, nullptr, nullptr);
  ASSERT_GE(server, 0);
  EXPECT_TRUE(finds_silence(&peer, server));
}

TEST_F(PreloadEdges, AListenerAfterOneThatWasClosedHasAnRsocket) {
  ASSERT_NO_FATAL_FAILURE(make_pair());
  for (const int fd : {client, server, listener}) close(fd);
  client = server = listener = -1;
  ASSERT_NO_FATAL_FAILURE(Preload::SetUp());
  make_pair();
}

TEST_F(PreloadEdges, ASocketOfAnotherProtocolIsLeftAlone) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  const int multipath = socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP);
  if (multipath < 0) GTEST_SKIP() << "the kernel has no MPTCP";
  EXPECT_EQ(connect(multipath, as_sockaddr(address), sizeof address), 0) << std::strerror(errno);
  EXPECT_TRUE(connected_by_tcp(multipath));
  close(multipath);
}

TEST_F(PreloadEdges, ListenersForEachFamilyShareAPort) {
  const int six = socket(AF_INET6, SOCK_STREAM, 0);
  if (six < 0) GTEST_SKIP() << "the machine has no IPv6";
  const int only = 1;
  ASSERT_EQ(setsockopt(six, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only), 0);
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_port = address.sin_port;
  ASSERT_EQ(bind(six, reinterpret_cast<sockaddr*>(&any), sizeof any), 0) << std::strerror(errno);
  ASSERT_EQ(listen(six, 4), 0);
  EXPECT_EQ(poll_one(six, POLLIN, 0), 0);  // now it has its rsocket
  make_pair();
  close(six);
}

namespace {

/// An end as TCP names it in a socket of that family: "::ffff:127.0.0.1", or "127.0.0.1".
std::string name_of(const sockaddr_storage& name, socklen_t length) {
  char text[INET6_ADDRSTRLEN] = "?";
  const bool six = name.ss_family == AF_INET6;
  EXPECT_EQ(length, six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  const void* address = six ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(name).sin6_addr)
                            : &reinterpret_cast<const sockaddr_in&>(name).sin_addr;
  inet_ntop(name.ss_family, address, text, sizeof text);
  return text;
}
template <class Call>
std::string name_by(Call call, int fd) {
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  const int result = call(fd, reinterpret_cast<sockaddr*>(&name), &length);
  EXPECT_GE(result, 0) << std::strerror(errno);
  return name_of(name, length);
}

}  // namespace

TEST_F(PreloadEdges, NamesOfIpv4Ends_InSocketsOfIpv6_AreMappedAddresses) {
  const int six = socket(AF_INET6, SOCK_STREAM, 0);
  if (six < 0) GTEST_SKIP() << "the machine has no IPv6";
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  socklen_t length = sizeof any;
  ASSERT_EQ(bind(six, reinterpret_cast<sockaddr*>(&any), sizeof any), 0) << std::strerror(errno);
  ASSERT_EQ(getsockname(six, reinterpret_cast<sockaddr*>(&any), &length), 0);
  ASSERT_EQ(listen(six, 4), 0);
  EXPECT_EQ(poll_one(six, POLLIN, 0), 0);       // now it has its rsocket
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);  // and the one for IPv4, too
  const std::string four_name = "127.0.0.1", mapped_name = "::ffff:127.0.0.1";
  sockaddr_in6 mapped = any;
  ASSERT_EQ(inet_pton(AF_INET6, mapped_name.c_str(), &mapped.sin6_addr), 1);
  for (const bool client_has_six : {false, true}) {
    for (const bool server_has_six : {false, true}) {
      const in_port_t port = server_has_six ? any.sin6_port : address.sin_port;
      const sockaddr_in to_four = loopback(ntohs(port));
      mapped.sin6_port = port;
      client = socket(client_has_six ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
      ASSERT_EQ(client_has_six ? connect(client, reinterpret_cast<sockaddr*>(&mapped), sizeof mapped)
                               : connect(client, as_sockaddr(to_four), sizeof to_four),
                0)
          << std::strerror(errno);
      ASSERT_FALSE(connected_by_tcp(client)) << client_has_six << server_has_six;
      const auto take = [&](int fd, sockaddr* name, socklen_t* size) { return server = accept(fd, name, size); };
      const std::string& of_server = server_has_six ? mapped_name : four_name;
      const std::string& of_client = client_has_six ? mapped_name : four_name;
      EXPECT_EQ(name_by(take, server_has_six ? six : listener), of_server);
      EXPECT_EQ(name_by(getpeername, server), of_server);
      EXPECT_EQ(name_by(getsockname, server), of_server);
      EXPECT_EQ(name_by(getpeername, client), of_client);
      EXPECT_EQ(name_by(getsockname, client), of_client);
      close(client);
      close(server);
      client = server = -1;
    }
  }
  close(six);
}

TEST_F(PreloadEdges, AResetIsReportedOnceBySoError) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  Peer peer;
  ASSERT_TRUE(peer.connect(address));
  server = accept(listener, nullptr, nullptr);
  ASSERT_GE(server, 0);
  peer.disconnect();
  ASSERT_NE(poll_one(server, 0, kSoonMs) & POLLERR, 0);
  int error = -1;
  socklen_t length = sizeof error;
  ASSERT_EQ(getsockopt(server, SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, ECONNRESET);
  ASSERT_EQ(getsockopt(server, SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, 0);
}

// Waiting.

TEST_F(PreloadEdges, SelectHasEndsOfOtherDescriptorsAsReadable) {
  make_pair();
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  close(pipe_ends[1]);
  fd_set read_set;
  FD_ZERO(&read_set);
  FD_SET(server, &read_set);
  FD_SET(pipe_ends[0], &read_set);
  timeval now{};
  const int most = std::max(server, pipe_ends[0]) + 1;
  EXPECT_EQ(select(most, &read_set, nullptr, nullptr, &now), 1);
  EXPECT_TRUE(FD_ISSET(pipe_ends[0], &read_set));
  EXPECT_FALSE(FD_ISSET(server, &read_set));
  close(pipe_ends[0]);
  FD_SET(server, &read_set);
  EXPECT_EQ(error_of(select(most, &read_set, nullptr, nullptr, &now)), EBADF);
  EXPECT_TRUE(FD_ISSET(server, &read_set)) << "a select() that fails leaves its sets";
}

TEST_F(PreloadEdges, WaitsAreNoShorterThanTheirTime) {
  make_pair();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN, 7), 0);
  constexpr long kUs = 6000;
  const timespec time{0, kUs * 1000};
  const auto check = [&](const char* name, const std::function<int()>& wait) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(wait(), 0) << name;
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::microseconds(kUs)) << name;
  };
  pollfd entry{server, POLLIN, 0};
  fd_set read_set;
  const auto set = [&] {
    FD_ZERO(&read_set);
    FD_SET(server, &read_set);
    return &read_set;
  };
  epoll_event event;
  check("poll", [&] { return poll(&entry, 1, kUs / 1000); });
  check("ppoll", [&] { return ppoll(&entry, 1, &time, nullptr); });
  check("select", [&] {
    timeval limit{0, kUs};
    return select(server + 1, set(), nullptr, nullptr, &limit);
  });
  check("pselect", [&] { return pselect(server + 1, set(), nullptr, nullptr, &time, nullptr); });
  check("epoll_wait", [&] { return epoll_wait(epoll, &event, 1, kUs / 1000); });
  check("epoll_pwait2", [&] { return epoll_pwait2(epoll, &event, 1, &time, nullptr); });
  EXPECT_FALSE(FD_ISSET(server, &read_set));
}

TEST_F(PreloadEdges, ASignalThatTheMaskLetsThroughEndsAWait) {
  make_pair();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN, 7), 0);
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  sigset_t blocked, open;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &blocked, &open), 0);
  sigdelset(&open, SIGUSR1);
  const timespec time{1, 0};
  pollfd entry{server, POLLIN, 0};
  fd_set read_set;
  FD_ZERO(&read_set);
  FD_SET(server, &read_set);
  epoll_event event;
  raise(SIGUSR1);
  EXPECT_EQ(error_of(ppoll(&entry, 1, &time, &open)), EINTR);
  raise(SIGUSR1);
  EXPECT_EQ(error_of(pselect(server + 1, &read_set, nullptr, nullptr, &time, &open)), EINTR);
  raise(SIGUSR1);
  EXPECT_EQ(error_of(epoll_pwait(epoll, &event, 1, 1000, &open)), EINTR);
  raise(SIGUSR1);
  EXPECT_EQ(error_of(epoll_pwait2(epoll, &event, 1, &time, &open)), EINTR);
  raise(SIGUSR1);
  EXPECT_EQ(epoll_wait(epoll, &event, 1, 1), 0) << "it stays blocked";
  ASSERT_EQ(pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr), 0);
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(PreloadEdges, EpollTellsAListenerOnceForBothKinds) {
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, listener, EPOLLIN, 1), 0);
  client = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(connect(client, as_sockaddr(address), sizeof address), 0);
  ASSERT_FALSE(connected_by_tcp(client));
  EXPECT_EQ(wait_epoll(kSoonMs), "1:1");
  const int plain = connect_plain();  // the other one has come
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(wait_epoll(kSoonMs), "1:1");
    close(accept(listener, nullptr, nullptr));
  }
  EXPECT_EQ(wait_epoll(0), "");
  close(plain);
}

TEST_F(PreloadEdges, EpollTellsEachMemberOfEqualData) {
  make_pair();
  make_epoll();
  const int plain = eventfd(1, 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLOUT, 7), 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, plain, EPOLLIN | EPOLLET, 7), 0);
  EXPECT_EQ(wait_epoll(kSoonMs), "7:4 7:1");
  close(plain);
}

TEST_F(PreloadEdges, EpollTellsWhatAnotherMemberOfAListenersDataHas) {
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, listener, EPOLLIN, 7), 0);
  client = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(connect(client, as_sockaddr(address), sizeof address), 0);
  ASSERT_FALSE(connected_by_tcp(client));
  ASSERT_EQ(wait_epoll(kSoonMs), "7:1");
  const int plain = eventfd(0, 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, plain, EPOLLOUT | EPOLLET, 7), 0);
  EXPECT_EQ(wait_epoll(kSoonMs), "7:5");
  close(accept(listener, nullptr, nullptr));
  close(plain);
}

TEST_F(PreloadEdges, EpollTellsAnEdgeOfAListenerForEachConnection) {
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, listener, EPOLLIN | EPOLLET, 1), 0);
  for (int* fd : {&client, &server}) {
    *fd = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(connect(*fd, as_sockaddr(address), sizeof address), 0);
    ASSERT_FALSE(connected_by_tcp(*fd));
    EXPECT_EQ(wait_epoll(kSoonMs), "1:1") << "nobody has accepted the one before";
  }
  for (int i = 0; i < 2; ++i) close(accept(listener, nullptr, nullptr));
}

TEST_F(PreloadEdges, EpollTellsAnEdgeThatComesJustBeforeItSleeps) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  Peer peer;
  ASSERT_TRUE(peer.connect(address));
  server = accept(listener, nullptr, nullptr);
  ASSERT_GE(server, 0);
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN | EPOLLOUT | EPOLLET, 7), 0);
  ASSERT_EQ(wait_epoll(kSoonMs), "7:4");
  // When it asks, the wait has looked at all members and found nothing.
  const BeforeArming data([&] { EXPECT_EQ(peer.send_data("x"), IBV_WC_SUCCESS); });
  EXPECT_EQ(wait_epoll(kSoonMs), "7:5");
  EXPECT_TRUE(data.has_happened());
  close(server);  // before the peer goes, who answers
  server = -1;
}

TEST_F(PreloadEdges, EpollTellsAnEdgeWhenAFullConnectionHasRoomAgain) {
  make_pair();
  make_epoll();
  ASSERT_EQ(fcntl(client, F_SETFL, O_NONBLOCK), 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, client, EPOLLOUT | EPOLLET, 7), 0);
  EXPECT_EQ(wait_epoll(kSoonMs), "7:4");
  std::vector<char> block(1 << 16);
  for (int round = 0; round < 2; ++round) {
    size_t written = 0;
    ssize_t count;
    do {  // over packets a send that completes may leave room once more
      while ((count = write(client, block.data(), block.size())) > 0) written += static_cast<size_t>(count);
      ASSERT_EQ(errno, EAGAIN);
    } while (!wait_epoll(0).empty());
    while (written != 0) {
      ASSERT_GT(count = read(server, block.data(), block.size()), 0);
      written -= static_cast<size_t>(count);
    }
    ASSERT_EQ(wait_epoll(kSoonMs), "7:4") << round;
  }
}

TEST_F(PreloadEdges, EpollWithOnePlaceTellsEachInTurn) {
  make_pair();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLOUT, 1), 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, client, EPOLLOUT, 2), 0);
  int told[3] = {};
  for (int i = 0; i < 8; ++i) {
    epoll_event event;
    ASSERT_EQ(epoll_wait(epoll, &event, 1, kSoonMs), 1);
    ++told[event.data.u64];
  }
  EXPECT_EQ(told[1], 4);
  EXPECT_EQ(told[2], 4);
}

TEST_F(PreloadEdges, EpollSleepersLearnOfWhatThisProcessDoes) {
  make_pair();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN, 7), 0);
  EXPECT_EQ(wake_epoll([&] { EXPECT_EQ(control(EPOLL_CTL_MOD, server, EPOLLOUT, 8), 0); }), "8:4");
  ASSERT_EQ(control(EPOLL_CTL_MOD, server, EPOLLRDHUP, 9), 0);
  EXPECT_EQ(wake_epoll([&] { EXPECT_EQ(control(EPOLL_CTL_ADD, client, EPOLLOUT, 10), 0); }), "10:4");
  ASSERT_EQ(control(EPOLL_CTL_DEL, client, 0, 0), 0);
  EXPECT_EQ(wake_epoll([&] { EXPECT_EQ(shutdown(server, SHUT_RD), 0); }), "9:2000");
}

TEST_F(PreloadEdges, EpollSleepersLearnOfTheFirstMember) {
  make_pair();
  for (const int wait_ms : {kSoonMs, -1}) {
    make_epoll();
    EXPECT_EQ(wake_epoll([&] { EXPECT_EQ(control(EPOLL_CTL_ADD, server, EPOLLOUT, 8), 0); }, wait_ms), "8:4");
    close(epoll);
  }
  make_epoll();
  EXPECT_EQ(wake_epoll([&] {
              EXPECT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN, 9), 0);
              EXPECT_EQ(write(client, "x", 1), 1);
            }),
            "9:1");
}

TEST_F(PreloadEdges, EpollSleepersLearnOfAFirstMemberThatConnects) {
  make_epoll();
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  client = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, client, EPOLLOUT | EPOLLET, 5), 0);
  EXPECT_NE(wait_epoll(0), "") << "that it is not connected";
  EXPECT_EQ(wake_epoll([&] { EXPECT_EQ(connect(client, as_sockaddr(address), sizeof address), 0); }), "5:4");
  EXPECT_FALSE(connected_by_tcp(client));
}

TEST_F(PreloadEdges, EpollSleepersTakeOverFromAThreadThatIsBusy) {
  make_pair();
  make_epoll();
  EXPECT_EQ(write(client, "x", 1), 1);
  std::atomic<pid_t> sleepers[2] = {0, 0};
  std::atomic<int> told{0};
  std::vector<std::thread> waiting;
  for (std::atomic<pid_t>& sleeper : sleepers) {
    waiting.emplace_back([&] {
      sleeper = gettid();
      const Woken woken;
      EXPECT_EQ(wait_epoll(kSoonMs), "7:1");
      ++told;
    });
  }
  for (const std::atomic<pid_t>& sleeper : sleepers) {
    EXPECT_TRUE(await([&] { return sleeper != 0; }));
    EXPECT_TRUE(await_sleep(sleeper));
  }
  EXPECT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN | EPOLLET, 7), 0);
  EXPECT_TRUE(await([&] { return told != 0; }));
  EXPECT_EQ(write(client, "y", 1), 1) << "for the other one";
  for (std::thread& thread : waiting) thread.join();
}

TEST_F(PreloadEdges, EpollLearnsOfAChangeJustBeforeItSleeps) {
  make_pair();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN, 7), 0);
  EXPECT_EQ(wait_epoll(1), "") << "and it has taken what the connection has told";
  ASSERT_EQ(write(client, "x", 1), 1);
  ASSERT_EQ(wait_epoll(kSoonMs), "7:1");
  ASSERT_EQ(read_some(server), "x");
  const int processor = sched_getcpu();
  std::thread other;
  const SlowLooks slow;
  std::thread waiting([&] {
    run_on(processor, false);
    const BeforeArming change([&] {
      std::atomic<pid_t> changer{0};
      other = std::thread([&] {
        run_on(processor, true);
        changer = gettid();
        EXPECT_EQ(control(EPOLL_CTL_MOD, server, EPOLLOUT, 8), 0);
      });
      // The wait holds the set: the change goes on as soon as it is let go.
      EXPECT_TRUE(await([&] { return changer != 0; }));
      EXPECT_TRUE(await_sleep(changer));
    });
    const Woken woken;
    EXPECT_EQ(wait_epoll(kSoonMs), "8:4");
    EXPECT_TRUE(change.has_happened());
  });
  waiting.join();
  if (other.joinable()) other.join();
}

TEST_F(PreloadEdges, EpollWaitsForEverIfAsked) {
  make_pair();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN, 7), 0);
  EXPECT_EQ(wake_epoll([&] { EXPECT_EQ(write(client, "x", 1), 1); }, -1), "7:1");
}

TEST_F(PreloadEdges, EpollNeedsTheSameDescriptorsForManyMembers) {
  make_pair();
  make_epoll();
  EXPECT_EQ(poll_one(server, POLLIN, 1), 0);  // this thread has what it sleeps on
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN, 1), 0);
  const size_t with_one = open_descriptors();
  ASSERT_EQ(control(EPOLL_CTL_ADD, client, EPOLLIN, 2), 0);
  EXPECT_EQ(open_descriptors(), with_one);
  ASSERT_EQ(control(EPOLL_CTL_DEL, client, 0, 0), 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, client, EPOLLIN, 3), 0);
  EXPECT_EQ(open_descriptors(), with_one);
}

TEST_F(PreloadEdges, EpollSaysThatThereIsNoDescriptorForAMember) {
  make_pair();
  make_epoll();
  EXPECT_EQ(poll_one(server, POLLIN, 1), 0);  // this thread has what it sleeps on
  const size_t before = open_descriptors();
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  for (const int free : {0, 1}) {  // a set needs two
    const int lowest = eventfd(0, 0);
    ASSERT_GE(lowest, 0);
    close(lowest);
    const rlimit few{static_cast<rlim_t>(lowest + free), files.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    const int error = control(EPOLL_CTL_ADD, server, EPOLLIN, 1);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
    EXPECT_EQ(error, EMFILE) << free;
    EXPECT_EQ(open_descriptors(), before) << free;
  }
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN, 2), 0);
  EXPECT_EQ(wake_epoll([&] { EXPECT_EQ(write(client, "x", 1), 1); }, kSoonMs), "2:1");
}

TEST_F(PreloadEdges, EpollHasWhatWasChangedBeforeTheConnect) {
  make_epoll();
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  client = socket(AF_INET, SOCK_STREAM, 0);
  const int other = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, client, EPOLLIN, 5), 0);
  ASSERT_EQ(control(EPOLL_CTL_MOD, client, EPOLLOUT, 6), 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, other, EPOLLOUT, 7), 0);
  ASSERT_EQ(control(EPOLL_CTL_DEL, other, 0, 0), 0);
  ASSERT_EQ(connect(client, as_sockaddr(address), sizeof address), 0);
  ASSERT_EQ(connect(other, as_sockaddr(address), sizeof address), 0);
  ASSERT_FALSE(connected_by_tcp(client));
  EXPECT_EQ(wait_epoll(kSoonMs), "6:4");
  EXPECT_EQ(control(EPOLL_CTL_ADD, client, EPOLLIN, 5), EEXIST);
  close(other);
}

TEST_F(PreloadEdges, EpollOpensNothingForAMemberThatWasTakenOutBeforeItConnected) {
  make_pair();
  EXPECT_EQ(poll_one(server, POLLIN, 1), 0);  // this thread has what it sleeps on
  make_epoll();
  const auto opened_by_connect = [&](bool was_member) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (was_member) {
      EXPECT_EQ(control(EPOLL_CTL_ADD, fd, EPOLLOUT, 5), 0);
      EXPECT_EQ(control(EPOLL_CTL_DEL, fd, 0, 0), 0);
    }
    const size_t before = open_descriptors();
    EXPECT_EQ(connect(fd, as_sockaddr(address), sizeof address), 0) << std::strerror(errno);
    EXPECT_FALSE(connected_by_tcp(fd));
    EXPECT_EQ(poll_one(listener, POLLIN, kSoonMs), POLLIN);
    const size_t opened = open_descriptors() - before;
    EXPECT_EQ(wait_epoll(0), "") << was_member;
    close(accept(listener, nullptr, nullptr));
    close(fd);
    return opened;
  };
  const size_t opened = opened_by_connect(false);
  EXPECT_EQ(opened_by_connect(true), opened);
}

TEST_F(PreloadEdges, EpollHasASocketThatWentBackToTcp) {
  make_epoll();
  client = socket(AF_INET, SOCK_STREAM, 0);  // the listener has no rsocket
  ASSERT_EQ(control(EPOLL_CTL_ADD, client, EPOLLOUT, 5), 0);
  ASSERT_EQ(connect(client, as_sockaddr(address), sizeof address), 0);
  ASSERT_TRUE(connected_by_tcp(client));
  EXPECT_EQ(wait_epoll(kSoonMs), "5:4");
}

TEST_F(PreloadEdges, EpollForgetsADescriptorThatWasClosedBehindTheLibrary) {
  const int sets[] = {epoll_create1(0), epoll_create1(0)};
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);  // from here on the listener has an rsocket, too
  const int number = socket(AF_INET, SOCK_STREAM, 0);
  epoll_event wanted{};
  wanted.events = EPOLLOUT;
  for (const int set : sets) ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, number, &wanted), 0);
  ASSERT_EQ(syscall(SYS_close, number), 0);
  client = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(client, number);
  ASSERT_EQ(connect(client, as_sockaddr(address), sizeof address), 0);
  ASSERT_FALSE(connected_by_tcp(client));
  for (const int set : sets) {
    epoll_event event;
    EXPECT_EQ(epoll_wait(set, &event, 1, 20), 0) << "the one that was added is closed";
    close(set);
  }
}

TEST_F(PreloadEdges, AClosedSetLeavesNothing) {
  make_pair();
  EXPECT_EQ(poll_one(server, POLLIN, 1), 0);  // this thread has what it sleeps on
  const size_t before = open_descriptors();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLOUT, 7), 0);
  EXPECT_EQ(wait_epoll(kSoonMs), "7:4");
  const int number = epoll;
  close(epoll);
  EXPECT_TRUE(await([&] { return open_descriptors() <= before; }));
  make_epoll();
  ASSERT_EQ(epoll, number);
  EXPECT_EQ(wait_epoll(0), "") << "the new set of that number has no members";
  EXPECT_EQ(control(EPOLL_CTL_DEL, server, 0, 0), ENOENT);
}

TEST_F(PreloadEdges, ASetThatIsNoneIsRefused) {
  make_pair();
  make_epoll();
  const auto control_of = [&](int set, int operation) {
    epoll_event event{};
    event.events = EPOLLIN;
    return error_of(epoll_ctl(set, operation, server, &event));
  };
  const int plain = eventfd(0, 0);
  constexpr int kNone = 1234;
  for (const int operation : {EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL}) {
    EXPECT_EQ(control_of(-1, operation), EBADF) << operation;
    EXPECT_EQ(control_of(kNone, operation), EBADF) << operation;
    EXPECT_EQ(control_of(plain, operation), EINVAL) << operation;
  }
  EXPECT_EQ(control_of(epoll, EPOLL_CTL_ADD), 0);
  close(plain);
}

// Processes.

TEST_F(PreloadEdges, AChildHasUnconnectedSocketsAndConnectsByTcp) {
  make_pair();
  const pid_t child = fork();
  if (child == 0) {
    char c = 0;
    const iovec piece{&c, 1};
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(&piece);
    message.msg_iovlen = 1;
    sockaddr_in name{};
    socklen_t length = sizeof name;
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    const int fresh = socket(AF_INET, SOCK_STREAM, 0);
    pollfd entry{client, POLLIN, 0};
    int failed = 0;
    int number = 0;
    const auto check = [&](bool holds) {
      ++number;
      if (!holds && failed == 0) failed = number;
    };
    check(error_of(readv(client, &piece, 1)) == ECONNRESET);
    check(error_of(writev(client, &piece, 1)) == ECONNRESET);
    check(error_of(recvmsg(client, &message, 0)) == ECONNRESET);
    check(error_of(sendmsg(client, &message, 0)) == ECONNRESET);
    check(error_of(recvfrom(client, &c, 1, 0, nullptr, nullptr)) == ECONNRESET);
    check(error_of(sendto(client, &c, 1, 0, nullptr, 0)) == ECONNRESET);
    check(error_of(sendfile(client, file, nullptr, 1)) == ECONNRESET);
    check(error_of(shutdown(client, SHUT_RDWR)) == ENOTCONN);
    check(error_of(getpeername(client, as_out(&name), &length)) == ENOTCONN);
    check(poll(&entry, 1, 0) == 1 && (entry.revents & POLLHUP) != 0);
    check(connect(fresh, as_sockaddr(address), sizeof address) == 0 && connected_by_tcp(fresh));
    _exit(failed);
  }
  EXPECT_EQ(end_of(child), 0) << "the exit status is the first check that failed, times 256";
  close(accept(listener, nullptr, nullptr));
  EXPECT_EQ(write(client, "x", 1), 1);
  EXPECT_EQ(read_some(server), "x");
}

namespace {

/// What a child of fork() does, which must not wait: the status that it ends with.
int in_child(const std::function<bool()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kSoonMs / 1000);
    _exit(work() ? 0 : 1);
  }
  return end_of(child);
}

int make_listener() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  EXPECT_EQ(listen(fd, 1), 0) << std::strerror(errno);  // the kernel finds it a port
  return fd;
}

}  // namespace

TEST_F(PreloadEdges, Fork_WhileAThreadMakesASet_TheChildClosesWhatItHas) {
  make_pair();
  make_epoll();
  const HeldAllocation adding([&] { control(EPOLL_CTL_ADD, client, EPOLLIN, 1); });
  ASSERT_TRUE(adding.stands());
  EXPECT_EQ(in_child([&] {
              const bool closed = close(client) == 0 && close(server) == 0 && close(epoll) == 0;
              // It makes sets of its own.
              make_epoll();
              const int plain = socket(AF_INET, SOCK_STREAM, 0);
              return closed && control(EPOLL_CTL_ADD, plain, EPOLLIN, 2) == 0 && close(plain) == 0 && close(epoll) == 0;
            }),
            0);
}

TEST_F(PreloadEdges, Fork_WhileAThreadAddsAMember_TheChildUsesTheSet) {
  make_pair();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN, 1), 0);
  const HeldAllocation adding([&] { control(EPOLL_CTL_ADD, client, EPOLLIN, 2); });
  ASSERT_TRUE(adding.stands());
  EXPECT_EQ(in_child([&] {
              const int plain = socket(AF_INET, SOCK_STREAM, 0);
              return close(client) == 0 && control(EPOLL_CTL_ADD, plain, EPOLLIN, 3) == 0 && close(plain) == 0;
            }),
            0);
}

TEST_F(PreloadEdges, Fork_WhileAThreadMakesAListenersRsocket_TheChildAccepts) {
  const int other = make_listener();
  {
    const HeldAllocation accepting([&] { accept(other, nullptr, nullptr); });
    ASSERT_TRUE(accepting.stands());
    EXPECT_EQ(in_child([&] { return error_of(accept(other, nullptr, nullptr)) == EAGAIN; }), 0);
  }
  close(other);
}

// In processes of their own: each begins with no rsocket made, and with the time to connect that it needs.

namespace {

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

}  // namespace

TEST_F(PreloadAlone, DISABLED_Connecting) {
  Peer peer;
  const sockaddr_in to = peer.listen();
  make_epoll();
  ASSERT_NO_FATAL_FAILURE(begin_connecting(&peer, to));
  EXPECT_EQ(error_of(connect(client, as_sockaddr(to), sizeof to)), EALREADY);
  EXPECT_EQ(read_error(client), EAGAIN);
  EXPECT_EQ(error_of(send(client, "x", 1, 0)), EAGAIN);
  EXPECT_EQ(poll_one(client, POLLIN | POLLOUT, 0), 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, client, EPOLLOUT, 5), 0);
  EXPECT_EQ(wait_epoll(0), "");
  // Programs set this back as soon as connect() has returned.
  ASSERT_EQ(fcntl(client, F_SETFL, 0), 0);
  EXPECT_EQ(poll_one(client, POLLOUT, 0), 0);
  ASSERT_TRUE(peer.accept());
  EXPECT_EQ(wait_epoll(kSoonMs), "5:4");
  EXPECT_EQ(poll_one(client, POLLOUT, 0), POLLOUT);
  EXPECT_FALSE(connected_by_tcp(client));
  ASSERT_TRUE(peer.next_message().has_value());
  std::atomic<pid_t> reader{0};
  ssize_t count = -1;
  std::thread reading([&] {
    char c;
    reader = gettid();
    count = read(client, &c, 1);
  });
  EXPECT_TRUE(await([&] { return reader != 0; }));
  EXPECT_TRUE(await_sleep(reader));
  EXPECT_EQ(peer.send_data("x"), IBV_WC_SUCCESS);
  reading.join();
  EXPECT_EQ(count, 1) << "the descriptor blocks";
}

TEST(PreloadOwnProcess, ASocketThatConnectsDoesNotBlockBeforeItsDescriptorDoes) {
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_Connecting", kConnectMs, std::to_string(kSoonMs), false)), 0);
}

TEST_F(PreloadAlone, DISABLED_SignalInConnect) {
  static std::atomic<int> signals{0};
  struct sigaction action {};
  action.sa_handler = [](int) { ++signals; };
  ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
  Peer peer;
  const sockaddr_in to = peer.listen();
  client = socket(AF_INET, SOCK_STREAM, 0);
  std::atomic<pid_t> connecting{0};
  int error = -1;
  std::thread connects([&] {
    connecting = gettid();
    error = error_of(connect(client, as_sockaddr(to), sizeof to));
  });
  EXPECT_TRUE(peer.requested());
  EXPECT_TRUE(await_sleep(connecting));
  EXPECT_EQ(pthread_kill(connects.native_handle(), SIGUSR1), 0);
  EXPECT_TRUE(await([] { return signals != 0; }));
  EXPECT_TRUE(peer.accept());
  connects.join();
  EXPECT_EQ(error, 0) << std::strerror(error);
  EXPECT_FALSE(connected_by_tcp(client));
}

TEST(PreloadOwnProcess, AConnectGoesOnAfterASignal) {
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_SignalInConnect", kConnectMs, std::to_string(kSoonMs), false)), 0);
}

TEST_F(PreloadAlone, DISABLED_KeepaliveBeforeConnect) {
  Peer peer;
  peer.retries = 0;
  const sockaddr_in to = peer.listen();
  client = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;  // and a second
  ASSERT_EQ(setsockopt(client, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on), 0);
  ASSERT_EQ(setsockopt(client, IPPROTO_TCP, TCP_KEEPIDLE, &on, sizeof on), 0);
  std::thread connects([&] { EXPECT_EQ(connect(client, as_sockaddr(to), sizeof to), 0); });
  EXPECT_TRUE(peer.requested() && peer.accept());
  connects.join();
  EXPECT_TRUE(finds_silence(&peer, client));
}

TEST(PreloadOwnProcess, AConnectionHasTheKeepaliveThatWasSetBeforeIt) {
  EXPECT_EQ(
      end_of(start_case("PreloadAlone.DISABLED_KeepaliveBeforeConnect", kConnectMs, std::to_string(kSoonMs), false)),
      0);
}

TEST_F(PreloadAlone, DISABLED_Refused) {
  Peer peer;
  const sockaddr_in to = peer.listen(address.sin_port);
  ASSERT_EQ(to.sin_port, address.sin_port);
  make_epoll();
  client = -1;
  ASSERT_NO_FATAL_FAILURE(begin_connecting(&peer, to));
  peer.refuse();
  EXPECT_EQ(poll_one(client, POLLOUT, kSoonMs), POLLOUT) << "no error: TCP takes over";
  EXPECT_TRUE(connected_by_tcp(client));
  // Of the host's other ports nothing is known.
  close(client);
  close(listener);
  Preload::SetUp();
  make_pair();
}

TEST(PreloadOwnProcess, TcpTakesOverFromARefusedRsocket) {
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_Refused", kConnectMs, std::to_string(kSoonMs), false)), 0);
}

TEST_F(PreloadAlone, DISABLED_RefusedByTcpToo) {
  Peer peer;
  const sockaddr_in to = peer.listen(address.sin_port);
  ASSERT_EQ(to.sin_port, address.sin_port);
  ASSERT_NO_FATAL_FAILURE(begin_connecting(&peer, to));
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, client, EPOLLOUT, 5), 0);
  ASSERT_EQ(fcntl(client, F_SETFL, 0), 0);  // the call that begins TCP's attempt gets its error, too
  close(listener);
  peer.refuse();
  EXPECT_EQ(poll_one(client, POLLOUT, kSoonMs), POLLOUT | POLLERR | POLLHUP);
  EXPECT_EQ(wait_epoll(kSoonMs), "5:1c");
  int error = -1;
  socklen_t length = sizeof error;
  ASSERT_EQ(getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, ECONNREFUSED);
  ASSERT_EQ(getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, 0) << "told once";
  sockaddr_in name;
  length = sizeof name;
  EXPECT_EQ(error_of(getpeername(client, as_out(&name), &length)), ENOTCONN);
  // The socket is as good as before.
  Preload::SetUp();
  EXPECT_EQ(error_of(connect(client, as_sockaddr(address), sizeof address)), 0);
  EXPECT_TRUE(connected_by_tcp(client));
  EXPECT_EQ(poll_one(client, POLLOUT, 0), POLLOUT);
  EXPECT_EQ(wait_epoll(0), "5:4");
}

TEST(PreloadOwnProcess, ARefusalByTcpAfterThatOfTheRsocketIsTold) {
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_RefusedByTcpToo", kConnectMs, std::to_string(kSoonMs), false)), 0);
}

TEST_F(PreloadAlone, DISABLED_ShutdownWhileItConnects) {
  Peer peer;
  const sockaddr_in to = peer.listen(address.sin_port);
  ASSERT_EQ(to.sin_port, address.sin_port);
  ASSERT_NO_FATAL_FAILURE(begin_connecting(&peer, to));
  EXPECT_EQ(error_of(shutdown(client, SHUT_RDWR)), 0);
  EXPECT_EQ(poll_one(client, POLLOUT, 0), POLLOUT | POLLERR | POLLHUP);
  EXPECT_FALSE(connected_by_tcp(client));
  EXPECT_EQ(error_of(connect(client, as_sockaddr(to), sizeof to)), ECONNRESET);
}

TEST(PreloadOwnProcess, AShutdownEndsAConnectThatGoesOn) {
  EXPECT_EQ(
      end_of(start_case("PreloadAlone.DISABLED_ShutdownWhileItConnects", kConnectMs, std::to_string(600'000), false)),
      0);
}

TEST_F(PreloadAlone, DISABLED_NoAnswerInPoll) {
  Peer peer;
  ASSERT_EQ(peer.listen(address.sin_port).sin_port, address.sin_port);
  client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  ASSERT_EQ(error_of(connect(client, as_sockaddr(address), sizeof address)), EINPROGRESS);
  EXPECT_FALSE(connected_by_tcp(client));
  const Woken woken;
  EXPECT_EQ(poll_one(client, POLLOUT, kSoonMs), POLLOUT);
  EXPECT_TRUE(connected_by_tcp(client));
}

TEST_F(PreloadAlone, DISABLED_NoAnswerInEpoll) {
  Peer peer;
  ASSERT_EQ(peer.listen(address.sin_port).sin_port, address.sin_port);
  make_epoll();
  client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, client, EPOLLOUT, 5), 0);
  ASSERT_EQ(error_of(connect(client, as_sockaddr(address), sizeof address)), EINPROGRESS);
  EXPECT_FALSE(connected_by_tcp(client));
  const Woken woken;
  EXPECT_EQ(wait_epoll(kSoonMs), "5:4");
  EXPECT_TRUE(connected_by_tcp(client));
}

TEST_F(PreloadAlone, DISABLED_NoAnswerInConnect) {
  Peer peer;
  ASSERT_EQ(peer.listen(address.sin_port).sin_port, address.sin_port);
  client = socket(AF_INET, SOCK_STREAM, 0);
  const Woken woken;
  EXPECT_EQ(connect(client, as_sockaddr(address), sizeof address), 0);
  EXPECT_TRUE(connected_by_tcp(client));
}

TEST(PreloadOwnProcess, TcpTakesOverWhenTheTimeToConnectIsOver) {
  for (const char* place : {"InPoll", "InEpoll", "InConnect"}) {
    const std::string name = std::string("PreloadAlone.DISABLED_NoAnswer") + place;
    EXPECT_EQ(end_of(start_case(name.c_str(), kConnectMs, "40", false)), 0) << place;
  }
}

TEST_F(PreloadAlone, DISABLED_NoDescriptorsForASet) {
  make_pair();               // all that the process opens once is open
  std::vector<int> fillers;  // of the numbers below the highest
  const int highest = *descriptors().rbegin();
  while (fillers.empty() || fillers.back() < highest) {
    fillers.push_back(eventfd(0, 0));
    ASSERT_GE(fillers.back(), 0);
  }
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  rlim_t free = 16;
  for (bool by_rsocket = true; by_rsocket; --free) {
    make_epoll();
    const int late = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(control(EPOLL_CTL_ADD, late, EPOLLOUT, 5), 0);
    const rlimit few{static_cast<rlim_t>(late) + 1 + free, files.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    const int error = error_of(connect(late, as_sockaddr(address), sizeof address));
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
    EXPECT_EQ(error, 0) << free;
    by_rsocket = !connected_by_tcp(late);
    // The listener, of this process too, may have had no descriptor for it: then it is told of as ended.
    EXPECT_EQ(wait_epoll(kSoonMs).substr(0, 2), "5:") << free << (by_rsocket ? ", by an rsocket" : ", by TCP");
    for (const int fd : {late, epoll}) close(fd);
    epoll = -1;
  }
  EXPECT_LT(free, 15u);  // at first there were enough
  for (const int fd : fillers) close(fd);
}

/// Alone: an attempt that fails makes all of the host's peers ones of TCP for a while.
TEST(PreloadOwnProcess, EpollWatchesAMemberThatConnectsWithoutADescriptorForIt) {
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_NoDescriptorsForASet", kConnectMs, "5000", false)), 0);
}

TEST_F(PreloadAlone, DISABLED_Fork) {
  // The parent listens, and nobody has waited for a connection so far.
  const pid_t child = fork();
  if (child == 0) {
    make_pair();
    const bool moved = !HasFailure() && write(client, "x", 1) == 1 && read_some(server) == "x";
    _exit(moved ? 0 : 1);
  }
  EXPECT_EQ(end_of(child), 0);
}

TEST(PreloadOwnProcess, AChildOfAProcessThatHasMadeNoRsocketMakesItsOwn) {
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_Fork", kConnectMs, std::to_string(kSoonMs), false)), 0);
}

TEST_F(PreloadAlone, DISABLED_CloseOfAListener) {
  const int other = make_listener(), plain = socket(AF_INET, SOCK_STREAM, 0);
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, plain, EPOLLIN, 1), 0);  // so that the list of sets is there
  // The first one that is closed: the library keeps what it had for it, and needs memory for that.
  const HeldAllocation closing([&] { close(other); });
  ASSERT_TRUE(closing.stands());
  EXPECT_EQ(in_child([&] { return close(listener) == 0; }), 0);
}

TEST(PreloadOwnProcess, Fork_WhileAThreadClosesAListener_TheChildClosesItsOwn) {
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_CloseOfAListener", kConnectMs, std::to_string(kSoonMs), false)),
            0);
}

TEST_F(PreloadAlone, DISABLED_FirstConnect) {
  sockaddr_in6 nobody{};
  nobody.sin6_family = AF_INET6;
  nobody.sin6_port = address.sin_port;
  nobody.sin6_addr = in6addr_loopback;
  const auto try_once = [&] {
    const int fd = socket(AF_INET6, SOCK_STREAM, 0);
    EXPECT_GE(fd, 0);
    const int rc = connect(fd, reinterpret_cast<const sockaddr*>(&nobody), sizeof nobody);
    close(fd);
    return rc != 0;
  };
  // Looked for among the peers without rsockets, by a key that needs memory.
  const HeldAllocation connecting(try_once);
  ASSERT_TRUE(connecting.stands());
  EXPECT_EQ(in_child(try_once), 0);
}

TEST(PreloadOwnProcess, Fork_WhileAThreadLooksForAPlainPeer_TheChildConnects) {
  const int six = socket(AF_INET6, SOCK_STREAM, 0);
  if (six < 0) GTEST_SKIP() << "the machine has no IPv6";
  close(six);
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_FirstConnect", kConnectMs, "5000", false)), 0);
}

/// A process of its own, which only connects.
TEST(PreloadClient, DISABLED_Fork) {
  const char* port = std::getenv(kPortOfParent);
  ASSERT_NE(port, nullptr);
  const auto connected = [to = loopback(static_cast<uint16_t>(std::atoi(port)))] {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(connect(fd, as_sockaddr(to), sizeof to), 0) << std::strerror(errno);
    return fd;
  };
  const int fd = connected();
  ASSERT_FALSE(connected_by_tcp(fd));
  char c;
  ASSERT_EQ(read(fd, &c, 1), 1);  // the connection has been accepted
  const pid_t child = fork();
  if (child == 0) {
    const bool lost = error_of(recv(fd, &c, 1, MSG_DONTWAIT)) == ECONNRESET;
    close(fd);
    _exit(!lost ? 1 : connected_by_tcp(connected()) ? 0 : 2);
  }
  EXPECT_EQ(end_of(child), 0);
  EXPECT_EQ(write(fd, "x", 1), 1) << "the child has ended nothing";
  close(fd);
}

TEST_F(PreloadEdges, AChildOfAProcessThatOnlyConnectedHasLostTheConnection) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);  // from here on it has an rsocket, too
  const std::string port = std::to_string(ntohs(address.sin_port));
  const pid_t process = start_case("PreloadClient.DISABLED_Fork", kPortOfParent, port, false);
  EXPECT_EQ(poll_one(listener, POLLIN, kSoonMs), POLLIN);
  server = accept(listener, nullptr, nullptr);
  ASSERT_GE(server, 0) << std::strerror(errno);
  EXPECT_FALSE(connected_by_tcp(server));
  EXPECT_EQ(write(server, "y", 1), 1);
  EXPECT_EQ(read_some(server), "x");
  EXPECT_EQ(end_of(process), 0);
}

namespace {

class PreloadWithoutSettings : public PreloadEdges {
 protected:
  void SetUp() override {
    ASSERT_EQ(unsetenv(kConfig), 0);
    PreloadEdges::SetUp();
  }
};

}  // namespace

TEST_F(PreloadWithoutSettings, DISABLED_Connect) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);  // from here on it would have an rsocket
  client = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(connect(client, as_sockaddr(address), sizeof address), 0) << std::strerror(errno);
  EXPECT_TRUE(connected_by_tcp(client));
}

TEST(PreloadOwnProcess, Settings_DroppedByTheProgramBeforeItsFirstSocket_StillHold) {
  // A file without rules: no socket becomes an rsocket.
  EXPECT_EQ(end_of(start_case("PreloadWithoutSettings.DISABLED_Connect", kConfig, "/dev/null", false)), 0);
}

TEST_F(PreloadAlone, DISABLED_Numbers) {
  constexpr int kPairs = 16;
  // A client's port is held by one more descriptor, and the library has some of its own.
  constexpr int kMost = 3 * kPairs + 20;
  std::vector<int> fds;
  for (int i = 0; i < kPairs; ++i) {
    make_pair();
    fds.insert(fds.end(), {client, server});
  }
  EXPECT_LT(*std::max_element(fds.begin(), fds.end()), listener + kMost);
  for (const int fd : fds) close(fd);
  client = server = -1;
}

TEST(PreloadOwnProcess, ChannelsOfConnectionsDoNotTakeTheLowNumbers) {
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_Numbers", kConnectMs, std::to_string(kSoonMs), false)), 0);
}

namespace {

/// What the threads that see to the end of the process have waited for since it began.
struct Ending {
  std::atomic<bool> begun{false};
  std::atomic<bool> time_is_over{false};  ///< that of a wait
  std::atomic<bool> waits_again{false};   ///< after that
};
Ending ending;
bool sees_to_the_end() {
  char name[16] = "";
  return ending.begun && pthread_getname_np(pthread_self(), name, sizeof name) == 0 &&
         std::strcmp(name, "nupa-exit") == 0;
}
/// What this thread does after each sleep.
thread_local const std::function<void()>* after_sleep = nullptr;
/// What this thread does before its next socket() call.
thread_local std::function<void()> before_socket;

constexpr int kWaitsAgain = 3;
constexpr int kNeverWaits = 4;

}  // namespace

// The calls that rsockets sleep with. By label, since headers may have an inline ppoll().
extern "C" __attribute__((visibility("default"))) int ppoll_of_test(pollfd* fds, nfds_t count, const timespec* limit,
                                                                    const sigset_t* mask) __asm__("ppoll");
int ppoll_of_test(pollfd* fds, nfds_t count, const timespec* limit, const sigset_t* mask) {
  using Function = int(pollfd*, nfds_t, const timespec*, const sigset_t*);
  static auto* const real = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, "ppoll"));
  const bool sleeps = limit == nullptr || limit->tv_sec != 0 || limit->tv_nsec != 0;
  if (ending.time_is_over && sleeps && sees_to_the_end()) ending.waits_again = true;
  const int result = real(fds, count, limit, mask);
  if (sleeps && result == 0 && sees_to_the_end()) ending.time_is_over = true;
  if (after_sleep != nullptr) (*after_sleep)();
  return result;
}

/// With it an accept() makes the descriptor of a connection over an rsocket.
extern "C" __attribute__((visibility("default"))) int socket_of_test(int domain, int type,
                                                                     int protocol) __asm__("socket");
int socket_of_test(int domain, int type, int protocol) {
  static auto* const real = reinterpret_cast<int (*)(int, int, int)>(dlsym(RTLD_NEXT, "socket"));
  if (before_socket) std::exchange(before_socket, nullptr)();
  return real(domain, type, protocol);
}

TEST_F(PreloadEdges, AnAcceptWhoseConnectionAnotherThreadHasTakenLeavesNoDescriptor) {
  make_pair();
  const int late = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(late, as_sockaddr(address), sizeof address), 0) << std::strerror(errno);
  EXPECT_EQ(poll_one(listener, POLLIN, kSoonMs), POLLIN);
  ASSERT_EQ(fcntl(listener, F_SETFL, O_NONBLOCK), 0);
  int taken = -1;
  size_t before = 0;
  before_socket = [&] {
    std::thread([&] { taken = accept(listener, nullptr, nullptr); }).join();
    before = open_descriptors();
  };
  EXPECT_EQ(error_of(accept(listener, nullptr, nullptr)), EAGAIN);
  EXPECT_GE(taken, 0);
  EXPECT_EQ(open_descriptors(), before);
  for (const int fd : {taken, late}) close(fd);
}

TEST_F(PreloadEdges, AnAcceptWaitsForBothKindsAfterAnotherProcessTookAConnection) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  std::atomic<pid_t> waiter{0};
  std::atomic<int> taken{-1};
  std::atomic<bool> back{false};
  std::thread waiting([&] {
    const std::function<void()> take = [&] {
      pollfd entry{listener, POLLIN, 0};
      if (taken < 0 && poll(&entry, 1, 0) == 1) {
        taken = static_cast<int>(syscall(SYS_accept, listener, nullptr, nullptr));
      }
    };
    after_sleep = &take;
    waiter = gettid();
    server = accept(listener, nullptr, nullptr);
    after_sleep = nullptr;
    back = true;
  });
  EXPECT_TRUE(await([&] { return waiter != 0; }));
  EXPECT_TRUE(await_sleep(waiter));
  const int plain = connect_plain();
  EXPECT_TRUE(await([&] { return taken >= 0; }));
  client = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(client, as_sockaddr(address), sizeof address), 0) << std::strerror(errno);
  const bool served = await([&] { return back.load(); });
  EXPECT_TRUE(served) << "it waits for the kernel's connections alone";
  const int release = served ? -1 : connect_plain();
  waiting.join();
  EXPECT_FALSE(connected_by_tcp(server));
  for (const int fd : {plain, taken.load(), release}) {
    if (fd >= 0) close(fd);
  }
}

TEST_F(PreloadAlone, DISABLED_EndOfSilentPeers) {
  // Registered before the library's, so called after them.
  ASSERT_EQ(std::atexit([] {
              if (ending.waits_again) _exit(kWaitsAgain);
              if (!ending.time_is_over) _exit(kNeverWaits);
            }),
            0);
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  for (int i = 0; i < 3; ++i) {
    auto* peer = new Peer;  // outlives the case
    peer->receives = 1;     // takes the credits, not the goodbye
    ASSERT_TRUE(peer->connect(address));
    ASSERT_GE(accept(listener, nullptr, nullptr), 0);
  }
  ending.begun = true;
}

TEST(PreloadOwnProcess, TheEndWaitsOnceForAllPeersThatDoNotAnswer) {
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_EndOfSilentPeers", kConnectMs, std::to_string(kSoonMs), false)),
            0);
}
