// SPDX-License-Identifier: Apache-2.0
// Cases that hang and cases that end the process, for tests/e2e/run_test_limits.py. Nothing else runs them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>

namespace {

TEST(CaseLimit, First) { SUCCEED(); }

TEST(CaseLimit, HangsInALock) {
  std::mutex mutex;
  mutex.lock();
  std::thread([&] { std::lock_guard lock(mutex); }).join();
}

TEST(CaseLimit, HangsForAChild) {
  const pid_t child = fork();
  if (child == 0) {
    sleep(1000);  // sleep: the child does not end by itself
    _exit(0);
  }
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

/// Ends once the watching process has said of it that it hangs: standard output is a file.
TEST(CaseLimit, HangsUntilItIsSeen) {
  // sleep: the pause between two looks
  for (std::string text; text.find("HangsUntilItIsSeen hangs") == std::string::npos; usleep(100)) {
    std::ifstream said("/proc/self/fd/1");
    text.assign(std::istreambuf_iterator<char>(said), {});
  }
}

TEST(CaseLimit, Second) { SUCCEED(); }

TEST(CaseLimit, Aborts) { std::abort(); }

TEST(CaseLimit, EndsTheProcessWithStatusZero) { std::_Exit(0); }

TEST(CaseLimit, Fails) { ADD_FAILURE() << "as it should"; }

TEST(CaseLimit, Third) { SUCCEED(); }

class CaseLimitSuite : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { std::abort(); }
};
TEST_F(CaseLimitSuite, IsNeverReached) { SUCCEED(); }

class CaseLimitEach : public ::testing::TestWithParam<int> {};
TEST_P(CaseLimitEach, OfTwo) {
  if (GetParam() == 1) std::abort();
}
INSTANTIATE_TEST_SUITE_P(Numbers, CaseLimitEach, ::testing::Values(1, 2));

struct HangsAtExit {
  ~HangsAtExit() {
    while (asked) pause();
  }
  bool asked = false;
} hangs_at_exit;
TEST(CaseLimitExit, Hangs) { hangs_at_exit.asked = true; }

class CaseLimitMany : public ::testing::TestWithParam<int> {};
TEST_P(CaseLimitMany, Aborts) { std::abort(); }
INSTANTIATE_TEST_SUITE_P(Of20, CaseLimitMany, ::testing::Range(0, 20));

}  // namespace
