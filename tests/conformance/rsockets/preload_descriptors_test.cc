// SPDX-License-Identifier: Apache-2.0
/// Descriptors of sockets behind the preload library, and calls with unusual arguments.
#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "api_peer.h"
#include "preload_edges.h"
#include "preload_support.h"

using nupa::preload_test::connected_by_tcp;
using nupa::preload_test::descriptors;
using nupa::preload_test::end_of;
using nupa::preload_test::error_of;
using nupa::preload_test::PreloadEdges;
using nupa::rsockets_test::as_sockaddr;
using nupa::rsockets_test::await;
using nupa::rsockets_test::kSoonMs;

// What programs call that are built with _FORTIFY_SOURCE.
extern "C" {
ssize_t __read_chk(int fd, void* buffer, size_t length, size_t room);
ssize_t __recv_chk(int fd, void* buffer, size_t length, size_t room, int flags);
ssize_t __recvfrom_chk(int fd, void* buffer, size_t length, size_t room, int flags, sockaddr* from, socklen_t* size);
int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t room);
int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask, size_t room);
}

// Descriptors.

TEST_F(PreloadEdges, Dup2_OntoItself_MakesNoSecondDescriptor) {
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

TEST_F(PreloadEdges, Dup_WithCloseAtExec_IsACopy) {
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

TEST_F(PreloadEdges, DescriptorNumber_UsedAgain_IsAnotherSocket) {
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

TEST_F(PreloadEdges, Descriptors_OfTheLibrary_CloseAtExec) {
  const std::set<int> before = descriptors();
  make_pair();
  for (const int fd : descriptors()) {
    if (before.contains(fd) || fd == client || fd == server) continue;
    EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0)
        << fd << ": " << std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd));
  }
}

TEST_F(PreloadEdges, Dup3_WrongFlags_ReplacesNothing) {
  make_pair();
  const int other = eventfd(0, 0);
  EXPECT_EQ(error_of(dup3(other, client, O_APPEND)), EINVAL);
  EXPECT_EQ(write(client, "x", 1), 1) << std::strerror(errno);
  EXPECT_EQ(read_some(server), "x");
  close(other);
}

TEST_F(PreloadEdges, Accept_NoDescriptorIsFree_KeepsTheConnectionWaiting) {
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

TEST_F(PreloadEdges, Ioctl_FionbioZero_MakesItBlocking) {
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

TEST_F(PreloadEdges, FortifiedCalls_GiveTheSameResult) {
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

TEST_F(PreloadEdges, SendTo_WithAnAddress_IgnoresItAsTcpDoes) {
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

TEST_F(PreloadEdges, Lists_OfWrongLengths_AreRefused) {
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

TEST_F(PreloadEdges, Sendfile_FileDoesNotFit_SendsAPartAndMovesTheOffset) {
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
