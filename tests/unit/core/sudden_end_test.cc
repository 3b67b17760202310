// SPDX-License-Identifier: Apache-2.0
// _exit() behind the preload library: what is left to do is done before. Each test in a process of its own.
#include "shm_fixture.h"
#include <poll.h>
#include <sys/eventfd.h>

#include <atomic>

#include "core/process.h"
#include "progress/lifecycle.h"

/// These tests stand in for the preload library, which has this and calls it first in _exit().
extern "C" {
__attribute__((visibility("default"))) extern std::atomic<void (*)()> nupa_before_exit;
__attribute__((visibility("default"))) constinit std::atomic<void (*)()> nupa_before_exit{nullptr};
}

namespace nupa::core {
namespace {

constexpr unsigned kLimitSeconds = 20;

class SuddenEndTest : public ::testing::Test {
 protected:
  void SetUp() override { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

/// Words on standard error, which the tests compare.
template <char kLetter>
void say() {
  const char letter = kLetter;
  if (write(STDERR_FILENO, &letter, 1) != 1) std::_Exit(99);
}

/// A process with an open device, and something left to do at its end: it says 'h'.
ShmEnd* begin() {
  alarm(kLimitSeconds);
  auto* end = new ShmEnd;
  const progress::ExitAction action{[](void*) { say<'h'>(); }, end};
  if (!end->open() || progress::at_exit(progress::ExitStage::kTraces, action) != 0) std::_Exit(98);
  return end;
}

void call_hook() {
  if (void (*const before)() = nupa_before_exit.load(); before != nullptr) before();
}

/// An eventfd that the service thread watches.
class Asked {
 public:
  explicit Asked(host::Node& node, std::function<void()> ready) : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    auto watch = node.loop().watch(fd_, [this, ready = std::move(ready)](uint32_t) {
      eventfd_t count;
      if (eventfd_read(fd_, &count) == 0) ready();
    });
    if (!watch) std::_Exit(97);
    watch_ = std::move(*watch);
  }
  void ask() const {
    if (eventfd_write(fd_, 1) != 0) std::_Exit(96);
  }

 private:
  const int fd_;
  std::unique_ptr<progress::Loop::Watch> watch_;
};

TEST_F(SuddenEndTest, Exit_ActionsAreLeft_RunsThemOnceBeforeTheEnd) {
  EXPECT_EXIT(
      {
        begin();
        say<'<'>();
        call_hook();
        say<'>'>();
        call_hook();
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0), "^<h>$");
}

TEST_F(SuddenEndTest, Exit_OfAForkedChild_RunsNoAction) {
  EXPECT_EXIT(
      {
        begin();
        const pid_t child = fork();
        if (child == 0) {
          call_hook();
          say<'c'>();
          std::_Exit(0);
        }
        waitpid(child, nullptr, 0);
        say<'p'>();
        call_hook();
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0), "^cph$");
}

TEST_F(SuddenEndTest, Exit_OnTheServiceThread_RunsTheActions) {
  EXPECT_EXIT(
      {
        ShmEnd* const end = begin();
        const Asked asked(end->process().node(), [&] {
          call_hook();
          say<'>'>();
          std::_Exit(0);
        });
        asked.ask();
        for (;;) pause();
      },
      ::testing::ExitedWithCode(0), "^h>$");
}

TEST_F(SuddenEndTest, Exit_ServiceThreadIsBlocked_DoesNotWait) {
  EXPECT_EXIT(
      {
        ShmEnd* const end = begin();
        std::atomic<bool> held = false;
        const Asked asked(end->process().node(), [&] {
          held = true;
          for (;;) pause();
        });
        asked.ask();
        if (!soon([&] { return held.load(); })) std::_Exit(1);
        call_hook();
        say<'>'>();
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0), "^h>$");
}

TEST_F(SuddenEndTest, Exit_DevicesAreClosed_HookIsNotSet) {
  EXPECT_EXIT(
      {
        ShmEnd* const end = begin();
        if (nupa_before_exit.load() == nullptr) std::_Exit(1);
        progress::forget_at_exit(end);
        end->close();
        if (nupa_before_exit.load() != nullptr) std::_Exit(2);
        if (!end->open() || nupa_before_exit.load() == nullptr) std::_Exit(3);
        call_hook();
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0), "^$");
}

}  // namespace
}  // namespace nupa::core
