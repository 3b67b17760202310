// SPDX-License-Identifier: Apache-2.0
/// Sets of epoll that hold sockets of both kinds.
#include <fcntl.h>
#include <sys/resource.h>

#include <functional>
#include <utility>

#include "api_peer.h"
#include "preload_edges.h"
#include "preload_support.h"

using nupa::preload_test::connected_by_tcp;
using nupa::preload_test::error_of;
using nupa::preload_test::open_descriptors;
using nupa::preload_test::PreloadEdges;
using nupa::preload_test::Woken;
using nupa::rsockets_test::as_sockaddr;
using nupa::rsockets_test::await;
using nupa::rsockets_test::await_sleep;
using nupa::rsockets_test::kSoonMs;
using nupa::rsockets_test::Peer;

namespace {

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

}  // namespace

TEST_F(PreloadEdges, Epoll_ListenerWithBothKinds_IsReportedOnce) {
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

TEST_F(PreloadEdges, Epoll_MembersWithEqualData_AreEachReported) {
  make_pair();
  make_epoll();
  const int plain = eventfd(1, 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLOUT, 7), 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, plain, EPOLLIN | EPOLLET, 7), 0);
  EXPECT_EQ(wait_epoll(kSoonMs), "7:4 7:1");
  close(plain);
}

TEST_F(PreloadEdges, Epoll_MemberWithAListenersData_IsReported) {
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

TEST_F(PreloadEdges, Epoll_EdgeTriggeredListener_ReportsEachConnection) {
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

TEST_F(PreloadEdges, Epoll_EdgeJustBeforeItSleeps_IsReported) {
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

TEST_F(PreloadEdges, Epoll_FullConnectionHasRoomAgain_ReportsAnEdge) {
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

TEST_F(PreloadEdges, Epoll_OneEventACall_ReportsMembersInTurn) {
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

TEST_F(PreloadEdges, Epoll_CallsOfAnotherThread_WakeSleepers) {
  make_pair();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN, 7), 0);
  EXPECT_EQ(wake_epoll([&] { EXPECT_EQ(control(EPOLL_CTL_MOD, server, EPOLLOUT, 8), 0); }), "8:4");
  ASSERT_EQ(control(EPOLL_CTL_MOD, server, EPOLLRDHUP, 9), 0);
  EXPECT_EQ(wake_epoll([&] { EXPECT_EQ(control(EPOLL_CTL_ADD, client, EPOLLOUT, 10), 0); }), "10:4");
  ASSERT_EQ(control(EPOLL_CTL_DEL, client, 0, 0), 0);
  EXPECT_EQ(wake_epoll([&] { EXPECT_EQ(shutdown(server, SHUT_RD), 0); }), "9:2000");
}

TEST_F(PreloadEdges, Epoll_FirstMemberIsAdded_WakesSleepers) {
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

TEST_F(PreloadEdges, Epoll_FirstMemberConnects_WakesSleepers) {
  make_epoll();
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  client = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, client, EPOLLOUT | EPOLLET, 5), 0);
  EXPECT_NE(wait_epoll(0), "") << "that it is not connected";
  EXPECT_EQ(wake_epoll([&] { EXPECT_EQ(connect(client, as_sockaddr(address), sizeof address), 0); }), "5:4");
  EXPECT_FALSE(connected_by_tcp(client));
}

TEST_F(PreloadEdges, Epoll_AnotherThreadIsBusy_SleepersStillWake) {
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

TEST_F(PreloadEdges, Epoll_ChangeJustBeforeItSleeps_IsApplied) {
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

TEST_F(PreloadEdges, Epoll_NoTimeout_WaitsUntilAnEvent) {
  make_pair();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN, 7), 0);
  EXPECT_EQ(wake_epoll([&] { EXPECT_EQ(write(client, "x", 1), 1); }, -1), "7:1");
}

TEST_F(PreloadEdges, Epoll_ManyMembers_NeedNoFurtherDescriptors) {
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

TEST_F(PreloadEdges, Epoll_NoDescriptorForAMember_AddFails) {
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

TEST_F(PreloadEdges, Epoll_ChangedBeforeTheConnect_IsAppliedAfterIt) {
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

TEST_F(PreloadEdges, Epoll_MemberRemovedBeforeItConnects_OpensNothing) {
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

TEST_F(PreloadEdges, Epoll_SocketFallsBackToTcp_IsReported) {
  make_epoll();
  client = socket(AF_INET, SOCK_STREAM, 0);  // the listener has no rsocket
  ASSERT_EQ(control(EPOLL_CTL_ADD, client, EPOLLOUT, 5), 0);
  ASSERT_EQ(connect(client, as_sockaddr(address), sizeof address), 0);
  ASSERT_TRUE(connected_by_tcp(client));
  EXPECT_EQ(wait_epoll(kSoonMs), "5:4");
}

TEST_F(PreloadEdges, Epoll_DescriptorClosedByASystemCall_IsRemoved) {
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

TEST_F(PreloadEdges, Epoll_ClosedSet_LeavesNoDescriptor) {
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

TEST_F(PreloadEdges, Epoll_InvalidSet_IsRefused) {
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
