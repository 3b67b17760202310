// SPDX-License-Identifier: Apache-2.0
// The service's loop across fork(), and keepalives. A client here is an eventfd that the loop watches.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <memory>
#include <thread>
#include <utility>

#include "rsockets/service.h"
#include "../../support/sanitizers.h"

namespace nupa::rsockets {
namespace {

constexpr unsigned int kSeconds = 20;  ///< for what is awaited

template <class Condition>
bool await(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(kSeconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

/// Its handler runs after ask(), which writes to its descriptor. Stays in its handler for as long as `held`.
class Client {
 public:
  Client() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~Client() {
    remove();
    close(fd_);
  }
  void ask() const { ASSERT_EQ(eventfd_write(fd_, 1), 0); }
  /// An errno value.
  int add() {
    const auto loop = service_loop();
    if (!loop) return loop.error().code();
    auto watch = (*loop)->watch(fd_, [this](uint32_t) { serve(); });
    if (!watch) return watch.error().code();
    watch_ = std::move(*watch);
    return 0;
  }
  void remove() { watch_ = nullptr; }

  std::atomic<bool> held{false}, serving{false};
  std::atomic<int> served{0};

 private:
  void serve() {
    eventfd_t value;
    eventfd_read(fd_, &value);
    serving = true;
    await([&] { return !held; });
    ++served;
  }

  const int fd_;
  std::unique_ptr<progress::Loop::Watch> watch_;
};

/// Counts the service's calls.
class CountingTimer {
 public:
  int start(int seconds) {
    return keep_alive_.start(seconds, [this] { ++calls; });
  }
  void stop() { keep_alive_.stop(); }

  std::atomic<int> calls{0};

 private:
  KeepAlive keep_alive_;
};

/// The exit status of a child that does this, or -1 if it did not exit normally.
template <class Work>
int in_forked_child(Work work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(2 * kSeconds);
    _exit(work() && !testing::Test::HasFailure() ? 0 : 1);
  }
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

TEST(RsocketsService, Fork_WhileAClientIsServed_TheChildServesItsOwn) {
  if (test::kThreadSanitizer) GTEST_SKIP() << test::kNoThreadInChild;
  Client client;
  client.held = true;
  ASSERT_EQ(client.add(), 0);
  client.ask();
  ASSERT_TRUE(await([&] { return client.serving.load(); }));
  EXPECT_EQ(in_forked_child([] {
              Client own;
              if (own.add() != 0) return false;
              own.ask();
              return await([&] { return own.served == 1; });
            }),
            0);
  client.held = false;
  EXPECT_TRUE(await([&] { return client.served == 1; }));
}

TEST(RsocketsService, Fork_TheChildRemovesAnInheritedClient_TheParentServesIt) {
  Client client;
  ASSERT_EQ(client.add(), 0);
  EXPECT_EQ(in_forked_child([&] {
              client.remove();
              return true;
            }),
            0);
  client.ask();
  EXPECT_TRUE(await([&] { return client.served == 1; }));
}

TEST(RsocketsService, KeepAlive_SetAgain_TheOldPeriodEnds) {
  constexpr int kShort = 1, kLong = 3600;  // seconds
  CountingTimer timer, later;
  ASSERT_EQ(timer.start(kShort), 0);
  ASSERT_EQ(timer.start(kLong), 0);
  const int before = timer.calls;
  // The old period would end before this one, which begins after it.
  ASSERT_EQ(later.start(kShort), 0);
  ASSERT_TRUE(await([&] { return later.calls != 0; }));
  EXPECT_EQ(timer.calls, before);
}

TEST(RsocketsService, KeepAlive_Stopped_IsNotCalledAgain) {
  CountingTimer stopped, later;
  ASSERT_EQ(stopped.start(1), 0);
  ASSERT_EQ(later.start(1), 0);
  stopped.stop();
  const int before = stopped.calls;
  ASSERT_TRUE(await([&] { return later.calls >= 2; })) << "each period is a call";
  EXPECT_EQ(stopped.calls, before);
}

TEST(RsocketsService, KeepAlive_OfAParent_IsNotCalledInTheChild) {
  if (test::kThreadSanitizer) GTEST_SKIP() << test::kNoThreadInChild;
  CountingTimer timer;
  ASSERT_EQ(timer.start(1), 0);
  EXPECT_EQ(in_forked_child([&] {
              const int before = timer.calls;
              CountingTimer own;
              if (own.start(1) != 0 || !await([&] { return own.calls >= 2; }) || timer.calls != before) return false;
              return timer.start(1) == 0 && await([&] { return timer.calls > before; });
            }),
            0);
  const int before = timer.calls;
  EXPECT_TRUE(await([&] { return timer.calls > before; }));
}

/// From now on this process starts no thread: EAGAIN.
bool forbid_threads() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog all{static_cast<unsigned short>(std::size(program)), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0;
}

TEST(RsocketsService, ThreadCannotBeStarted_StartAndAddFailWithEagain) {
  if (test::kThreadSanitizer) GTEST_SKIP() << "the sanitizer gives up where no thread can be started";
  EXPECT_EQ(in_forked_child([] {
              if (!forbid_threads()) return false;
              CountingTimer timer;
              Client client;
              EXPECT_EQ(timer.start(1), -EAGAIN);
              EXPECT_EQ(client.add(), EAGAIN);
              return true;
            }),
            0);
}

}  // namespace
}  // namespace nupa::rsockets
