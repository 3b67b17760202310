// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "progress/words.h"

namespace nupa::test {

/// Many times what a test of sleepers takes.
inline constexpr int64_t kSleeperLimitNs = 10'000'000'000;
/// A sleeper that nobody wakes looks by itself after 100 ms: so many of them are more than the limit.
inline constexpr uint32_t kSleeperRounds = 150;
static_assert(kSleeperRounds * progress::kLongestWordSleepNs > kSleeperLimitNs);

/// A thread that waits, as another one sees it. May lie in memory that processes share.
class Sleeper {
 public:
  /// By the thread itself.
  void is_this_thread() { id_ = static_cast<pid_t>(syscall(SYS_gettid)); }
  /// Until the kernel says that it sleeps. False: it does not in time.
  bool await_asleep(int64_t end) const {
    while (base::now_ns() < end) {
      if (id_ != 0 && is_asleep()) return true;
      std::this_thread::yield();
    }
    return false;
  }

 private:
  bool is_asleep() const {
    std::ifstream stat("/proc/" + std::to_string(id_) + "/stat");
    std::string id;
    std::string name;
    std::string state;
    stat >> id >> name >> state;
    return state == "S";
  }
  std::atomic<pid_t> id_{0};
};

/// Rounds in which one side sleeps and the other one wakes it. May lie in memory that processes share.
class SleeperRounds {
 public:
  /// Round after round `wait` sleeps until `wake` has been called. Returns when the time is up, or `wait` fails.
  void sleep_through(const std::function<int(uint32_t round)>& wait) {
    sleeper_.is_this_thread();
    for (uint32_t round = 1; round <= kSleeperRounds && base::now_ns() < end_; ++round) {
      begun_ = round;
      if (wait(round) != 0) break;
      done_ = round;
    }
    has_ended_ = true;
  }
  /// `wake` is called only once the kernel says that the other side sleeps.
  void wake_through(const std::function<void(uint32_t round)>& wake) {
    for (uint32_t round = 1; round <= kSleeperRounds; ++round) {
      while (begun_ != round && !has_ended_ && base::now_ns() < end_) std::this_thread::yield();
      if (has_ended_ || !sleeper_.await_asleep(end_)) break;
      wake(round);
    }
  }
  uint32_t done() const { return done_; }

 private:
  Sleeper sleeper_;
  std::atomic<uint32_t> begun_{0};
  std::atomic<uint32_t> done_{0};
  std::atomic<bool> has_ended_{false};
  const int64_t end_ = base::now_ns() + kSleeperLimitNs;
};

/// All rounds have to be over long before the sleeper would have looked by itself that often.
inline void expect_woken(const std::function<int(uint32_t round)>& wait,
                         const std::function<void(uint32_t round)>& wake) {
  progress::use_sleeper_fences();
  SleeperRounds rounds;
  std::thread waiting([&] { rounds.sleep_through(wait); });
  rounds.wake_through(wake);
  waiting.join();
  ASSERT_EQ(rounds.done(), kSleeperRounds) << "the sleeper was not woken";
}

}  // namespace nupa::test
