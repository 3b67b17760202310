// SPDX-License-Identifier: Apache-2.0
#include "progress/wake_up.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "progress/descriptors.h"

namespace nupa::progress {
namespace {

TEST(ProgressWakeUp, Signal_MakesItReadableUntilItIsTaken) {
  WakeUp& own = WakeUp::of_thread();
  own.take();
  EXPECT_FALSE(is_readable(own.fd()));
  own.signal();
  own.signal();
  EXPECT_TRUE(is_readable(own.fd()));
  own.take();
  EXPECT_FALSE(is_readable(own.fd()));
  own.signal();
  EXPECT_TRUE(is_readable(own.fd())) << "a signal after it was taken";
  own.take();
}

TEST(ProgressWakeUp, AddTo_DescriptorOfAnother_AddsThatManyEvents) {
  WakeUp other;
  ASSERT_TRUE(other.open());
  EXPECT_TRUE(WakeUp::add_to(other.fd()));
  EXPECT_TRUE(WakeUp::add_to(other.fd(), 3));
  uint64_t count = 0;
  EXPECT_EQ(ssize_t{sizeof count}, read(other.fd(), &count, sizeof count));
  EXPECT_EQ(4u, count);
  EXPECT_TRUE(WakeUp::add_to(other.fd(), UINT64_MAX - 1));
  EXPECT_FALSE(WakeUp::add_to(other.fd())) << "it is full";
  other.close();
  EXPECT_FALSE(WakeUp::add_to(-1));
}

TEST(ProgressWakeUp, Signal_AfterOneThatCouldNotBeWritten_MakesItReadable) {
  WakeUp wake_up;
  ASSERT_TRUE(wake_up.open());
  const int kept = dup(wake_up.fd());
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(kept, 0);
  ASSERT_GE(nothing, 0);
  ASSERT_EQ(wake_up.fd(), dup2(nothing, wake_up.fd()));
  wake_up.signal();
  ASSERT_EQ(wake_up.fd(), dup2(kept, wake_up.fd()));
  EXPECT_FALSE(is_readable(wake_up.fd())) << "nobody could write to it";
  wake_up.signal();
  EXPECT_TRUE(is_readable(wake_up.fd()));
  close(nothing);
  close(kept);
  wake_up.close();
}

TEST(ProgressWakeUp, OfThread_IsEachThreadsOwn) {
  WakeUp& own = WakeUp::of_thread();
  EXPECT_EQ(&own, &WakeUp::of_thread());
  std::thread([&own] { EXPECT_NE(&own, &WakeUp::of_thread()); }).join();
}

TEST(ProgressWakeUp, Child_DoesNotTakeItsParentsSignals) {
  WakeUp& own = WakeUp::of_thread();
  own.take();
  own.signal();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    WakeUp::of_thread().take();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
  EXPECT_TRUE(is_readable(own.fd()));
  own.take();
}

/// Outlives the thread's other thread_local objects when it was made before them.
struct AtTheVeryEnd {
  ~AtTheVeryEnd() {
    if (was_readable != nullptr) *was_readable = is_readable(WakeUp::of_thread().fd());
  }
  bool* was_readable = nullptr;
};

TEST(ProgressWakeUp, OfThread_AfterTheThreadsDestructorsHaveRun_CanBeSleptOn) {
  bool was_readable = true;  // as a closed descriptor is
  std::thread([&] {
    thread_local AtTheVeryEnd at_the_very_end;
    at_the_very_end.was_readable = &was_readable;
    ASSERT_GE(WakeUp::of_thread().fd(), 0);
  }).join();
  EXPECT_FALSE(was_readable);
}

TEST(ProgressWakeUp, ThreadThatEnds_ClosesItsDescriptor) {
  int fd = -1;
  std::thread([&] { fd = WakeUp::of_thread().fd(); }).join();
  ASSERT_GE(fd, 0);
  EXPECT_EQ(-1, fcntl(fd, F_GETFD)) << "it is still open";
}

}  // namespace
}  // namespace nupa::progress
