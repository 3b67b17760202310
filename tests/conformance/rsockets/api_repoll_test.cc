// SPDX-License-Identifier: Apache-2.0
/// repoll_create(), repoll_ctl() and repoll_wait(), as a program of a later release than Debian 12's calls them.
#include <sys/epoll.h>
#include <sys/wait.h>

#include <atomic>
#include <set>

#include "../../support/later_symbol.h"
#include "api_support.h"

namespace nupa::rsockets_test {
namespace {

class RsocketsRepoll : public RsocketsApi {
 protected:
  void SetUp() override {
    RsocketsApi::SetUp();
    ASSERT_NE(create_, nullptr);
    ASSERT_NE(control_, nullptr);
    ASSERT_NE(wait_, nullptr);
    set = create_(0);
    ASSERT_GE(set, 0) << std::strerror(errno);
    ASSERT_EQ(pipe(ends), 0);
    ASSERT_EQ(pipe(others), 0);
  }
  void TearDown() override {
    for (const int fd : {ends[0], ends[1], others[0], others[1]})
      if (fd >= 0) close(fd);
    RsocketsApi::TearDown();
    // Its members are closed, so that it has none.
    if (set >= 0) {
      EXPECT_EQ(rclose(set), 0) << std::strerror(errno);
    }
  }

  int control(int operation, int fd, uint32_t events, uint64_t data) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = data;
    return error_of(control_(set, operation, fd, &event));
  }
  int add(int fd, uint32_t events, uint64_t data) { return control(EPOLL_CTL_ADD, fd, events, data); }
  int remove(int fd) { return error_of(control_(set, EPOLL_CTL_DEL, fd, nullptr)); }
  /// The data of the members with events, and these in `seen`.
  std::multiset<uint64_t> wait(int timeout, int most = 8) {
    epoll_event events[8];
    const int count = wait_(set, events, most, timeout);
    EXPECT_GE(count, 0) << std::strerror(errno);
    std::multiset<uint64_t> found;
    seen = 0;
    for (int i = 0; i < count; ++i) {
      found.insert(events[i].data.u64);
      seen |= events[i].events;
    }
    return found;
  }
  /// The result of wait() in a thread that sleeps there before `change` is called.
  template <class Change>
  std::multiset<uint64_t> wait_while(Change change) {
    std::atomic<pid_t> thread{0};
    std::multiset<uint64_t> found;
    std::thread waiter([&] {
      thread.store(gettid());
      found = wait(kSoonMs);
    });
    EXPECT_TRUE(await([&] { return thread.load() != 0; }) && await_sleep(thread.load()));
    change();
    waiter.join();
    return found;
  }
  static void make_readable(int to) { EXPECT_EQ(write(to, "x", 1), 1); }

  using Create = int(int);
  using Control = int(int, int, int, epoll_event*);
  using Wait = int(int, epoll_event*, int, int);
  Create* const create_ = test::later_symbol<Create>(&rpoll, "repoll_create", "RDMACM_1.5");
  Control* const control_ = test::later_symbol<Control>(&rpoll, "repoll_ctl", "RDMACM_1.5");
  Wait* const wait_ = test::later_symbol<Wait>(&rpoll, "repoll_wait", "RDMACM_1.5");
  int set = -1;
  int ends[2] = {-1, -1};
  int others[2] = {-1, -1};
  uint32_t seen = 0;
};

using Found = std::multiset<uint64_t>;

TEST_F(RsocketsRepoll, Wait_RsocketsAndOrdinaryDescriptors_ReportsThoseWithEvents) {
  make_pair();
  ASSERT_EQ(add(server, EPOLLIN, 1), 0);
  ASSERT_EQ(add(ends[0], EPOLLIN, 2), 0);
  EXPECT_EQ(wait(0), Found{});
  ASSERT_EQ(rsend(client, "abc", 3, 0), 3);
  EXPECT_EQ(wait(kSoonMs), Found{1});
  EXPECT_EQ(seen, EPOLLIN);
  EXPECT_EQ(wait(0), Found{1}) << "a level is reported until it is read";
  make_readable(ends[1]);
  EXPECT_EQ(wait(0), (Found{1, 2}));
  char buffer[8];
  ASSERT_EQ(rrecv(server, buffer, sizeof buffer, 0), 3);
  EXPECT_EQ(wait(0), Found{2});
  ASSERT_EQ(control(EPOLL_CTL_MOD, server, EPOLLIN | EPOLLOUT, 7), 0);
  EXPECT_EQ(wait(0), (Found{2, 7}));
  ASSERT_EQ(rclose(client), 0);
  client = -1;
  ASSERT_EQ(remove(ends[0]), 0);
  ASSERT_EQ(control(EPOLL_CTL_MOD, server, EPOLLIN, 8), 0);
  EXPECT_EQ(wait(kSoonMs), Found{8}) << "the end of the stream";
}

TEST_F(RsocketsRepoll, Wait_NothingHappens_EndsAfterItsTime) {
  make_pair();
  ASSERT_EQ(add(server, EPOLLIN, 1), 0);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(wait(30), Found{});
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(30));
}

TEST_F(RsocketsRepoll, OneShot_IsReportedOnceUntilItIsChanged) {
  make_readable(ends[1]);
  ASSERT_EQ(add(ends[0], EPOLLIN | EPOLLONESHOT, 1), 0);
  EXPECT_EQ(wait(0), Found{1});
  EXPECT_EQ(wait(0), Found{});
  ASSERT_EQ(control(EPOLL_CTL_MOD, ends[0], EPOLLIN | EPOLLONESHOT, 2), 0);
  EXPECT_EQ(wait(0), Found{2});
  EXPECT_EQ(wait(0), Found{});
}

TEST_F(RsocketsRepoll, Wait_RoomForOneEvent_EachMemberHasItsTurn) {
  make_readable(ends[1]);
  make_readable(others[1]);
  ASSERT_EQ(add(ends[0], EPOLLIN, 1), 0);
  ASSERT_EQ(add(others[0], EPOLLIN, 2), 0);
  const Found first = wait(0, 1);
  const Found second = wait(0, 1);
  EXPECT_EQ(first.size(), 1u);
  EXPECT_EQ(second.size(), 1u);
  EXPECT_NE(first, second);
}

TEST_F(RsocketsRepoll, Control_WhileAThreadWaits_TheThreadSeesIt) {
  make_readable(ends[1]);
  make_pair();
  ASSERT_EQ(add(server, EPOLLIN, 1), 0);
  EXPECT_EQ(wait_while([&] { EXPECT_EQ(add(ends[0], EPOLLIN, 2), 0); }), Found{2});
}

TEST_F(RsocketsRepoll, Remove_WhileAThreadWaits_IsNotReportedAnyMore) {
  ASSERT_EQ(add(ends[0], EPOLLIN, 1), 0);
  ASSERT_EQ(add(others[0], EPOLLIN, 2), 0);
  const Found found = wait_while([&] {
    EXPECT_EQ(remove(ends[0]), 0);
    make_readable(ends[1]);
    make_readable(others[1]);
  });
  EXPECT_EQ(found, Found{2});
}

TEST_F(RsocketsRepoll, Control_WrongArguments_AreRefused) {
  EXPECT_EQ(add(-1, EPOLLIN, 0), EBADF);
  const int closed = dup(ends[0]);
  close(closed);
  EXPECT_EQ(add(closed, EPOLLIN, 0), EBADF);
  EXPECT_EQ(add(set, EPOLLIN, 0), EINVAL);
  EXPECT_EQ(control(77, ends[0], EPOLLIN, 0), EINVAL);
  EXPECT_EQ(error_of(control_(set, EPOLL_CTL_ADD, ends[0], nullptr)), EFAULT);
  EXPECT_EQ(control(EPOLL_CTL_MOD, ends[0], EPOLLIN, 0), ENOENT);
  EXPECT_EQ(remove(ends[0]), ENOENT);
  EXPECT_EQ(add(ends[0], EPOLLIN, 0), 0);
  EXPECT_EQ(add(ends[0], EPOLLIN, 0), EEXIST);
  epoll_event event{};
  EXPECT_EQ(error_of(control_(ends[0], EPOLL_CTL_ADD, ends[1], &event)), EINVAL) << "no set";
  EXPECT_EQ(error_of(wait_(ends[0], &event, 1, 0)), EINVAL);
  EXPECT_EQ(error_of(wait_(set, &event, 0, 0)), EINVAL);
  EXPECT_EQ(error_of(wait_(set, nullptr, 1, 0)), EFAULT);
}

TEST_F(RsocketsRepoll, Close_OfASet) {
  ASSERT_EQ(add(ends[0], EPOLLIN, 0), 0);
  EXPECT_EQ(error_of(rclose(set)), EBUSY);
  ASSERT_EQ(remove(ends[0]), 0);
  std::atomic<pid_t> thread{0};
  int error = 0;
  std::thread waiter([&] {
    thread.store(gettid());
    epoll_event event{};
    error = error_of(wait_(set, &event, 1, kSoonMs));
  });
  EXPECT_TRUE(await([&] { return thread.load() != 0; }) && await_sleep(thread.load()));
  EXPECT_EQ(rclose(set), 0);
  waiter.join();
  EXPECT_EQ(error, EBADF);
  EXPECT_EQ(error_of(rclose(set)), EBADF);
  EXPECT_EQ(fcntl(set, F_GETFD), -1);
  set = -1;
}

TEST_F(RsocketsRepoll, ClosedMembers_AreNone) {
  make_pair();
  ASSERT_EQ(add(server, EPOLLIN, 1), 0);
  ASSERT_EQ(add(ends[0], EPOLLIN, 2), 0);
  make_readable(ends[1]);
  make_readable(others[1]);
  ASSERT_EQ(rclose(server), 0);
  // Another file has its number.
  ASSERT_EQ(dup2(others[0], server), server);
  EXPECT_EQ(wait(0), Found{2});
  close(server);
  server = -1;
  close(ends[0]);
  EXPECT_EQ(wait(0), Found{});
  ASSERT_EQ(dup2(others[0], ends[0]), ends[0]);
  EXPECT_EQ(wait(0), Found{});
  EXPECT_EQ(rclose(set), 0);
  set = -1;
}

TEST_F(RsocketsRepoll, Create_FlagsBelongToTheDescriptor) {
  EXPECT_EQ(fcntl(set, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(fcntl(set, F_GETFL) & O_NONBLOCK, 0);
  const int other = create_(O_CLOEXEC | O_NONBLOCK);
  ASSERT_GE(other, 0);
  EXPECT_NE(fcntl(other, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(fcntl(other, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(rclose(other), 0);
}

TEST_F(RsocketsRepoll, Create_NumberThatTheProgramHasClosed_IsANewSet) {
  ASSERT_EQ(add(ends[0], EPOLLIN, 1), 0);
  close(set);
  const int again = create_(0);
  ASSERT_EQ(again, set) << "the lowest number that is free";
  make_readable(ends[1]);
  EXPECT_EQ(wait(0), Found{});
  EXPECT_NE(fcntl(set, F_GETFD), -1);
  ASSERT_EQ(add(ends[0], EPOLLIN, 2), 0);
  EXPECT_EQ(wait(0), Found{2});
  ASSERT_EQ(remove(ends[0]), 0);
}

TEST_F(RsocketsRepoll, ForkedChild_HasItsOwnSets) {
  ASSERT_EQ(add(ends[0], EPOLLIN, 1), 0);
  make_readable(ends[1]);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    epoll_event event{};
    bool fine = error_of(wait_(set, &event, 1, 0)) == EINVAL;
    const int own = create_(0);
    event.events = EPOLLIN;
    fine = fine && own >= 0 && control_(own, EPOLL_CTL_ADD, ends[0], &event) == 0 && wait_(own, &event, 1, 0) == 1;
    _exit(fine ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(wait(0), Found{1});
}

}  // namespace
}  // namespace nupa::rsockets_test
