// SPDX-License-Identifier: Apache-2.0
/// Another thread or process acts between two calls of the preload library.
#include <dlfcn.h>
#include <fcntl.h>

#include <functional>
#include <utility>

#include "api_peer.h"
#include "preload_edges.h"
#include "preload_support.h"

using nupa::preload_test::connected_by_tcp;
using nupa::preload_test::end_of;
using nupa::preload_test::error_of;
using nupa::preload_test::kConnectMs;
using nupa::preload_test::open_descriptors;
using nupa::preload_test::PreloadAlone;
using nupa::preload_test::PreloadEdges;
using nupa::preload_test::start_case;
using nupa::rsockets_test::as_sockaddr;
using nupa::rsockets_test::await;
using nupa::rsockets_test::await_sleep;
using nupa::rsockets_test::kSoonMs;
using nupa::rsockets_test::Peer;

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

TEST_F(PreloadEdges, Accept_AnotherThreadTookTheConnection_LeavesNoDescriptor) {
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

TEST_F(PreloadEdges, Accept_AnotherProcessTookAConnection_WaitsForBothKinds) {
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

TEST(PreloadOwnProcess, Exit_SeveralSilentPeers_WaitsOnceForAll) {
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_EndOfSilentPeers", kConnectMs, std::to_string(kSoonMs), false)),
            0);
}
