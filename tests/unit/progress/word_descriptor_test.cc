// SPDX-License-Identifier: Apache-2.0
#include "progress/word_descriptor.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <new>

#include "progress/descriptors.h"
#include "progress/words.h"

namespace nupa::progress {
namespace {

constexpr int64_t kRingLimitNs = 10'000'000'000;  // only a test that fails waits so long

bool becomes_readable(const WordDescriptor& descriptor) {
  return wait_readable(descriptor.fd(), Deadline::in_ns(kRingLimitNs)).has_value();
}

TEST(ProgressWordDescriptor, EachRing_MakesItReadableUntilItIsTaken) {
  std::atomic<uint32_t> word{UINT32_MAX - 2};  // wraps
  WordDescriptor descriptor;
  ASSERT_TRUE(descriptor.start("nupa-test", word));
  EXPECT_FALSE(is_readable(descriptor.fd()));
  for (int ring = 0; ring < 100; ++ring) {
    ring_word(word);
    ASSERT_TRUE(becomes_readable(descriptor)) << "ring " << ring;
    descriptor.take();
    EXPECT_FALSE(is_readable(descriptor.fd()));
  }
  descriptor.stop();
}

TEST(ProgressWordDescriptor, RingsOfAnotherProcess_Arrive) {
  void* const shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(MAP_FAILED, shared);
  auto& word = *new (shared) std::atomic<uint32_t>(0);
  WordDescriptor descriptor;
  ASSERT_TRUE(descriptor.start("nupa-test", word));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ring_word(word);
    _exit(0);
  }
  EXPECT_TRUE(becomes_readable(descriptor));
  EXPECT_EQ(child, waitpid(child, nullptr, 0));
  descriptor.stop();
  munmap(shared, 4096);
}

TEST(ProgressWordDescriptor, Stop_WithoutARing_Ends) {
  std::atomic<uint32_t> word{0};
  WordDescriptor descriptor;
  descriptor.stop();
  ASSERT_TRUE(descriptor.start("nupa-test", word));
  descriptor.stop();
  descriptor.stop();
}

TEST(ProgressWords, SleepWhile_WordThatHasChangedMeanwhile_ReturnsAtOnce) {
  std::atomic<uint32_t> word{5};
  sleep_while(word, 4);
  EXPECT_EQ(5u, word);
}

}  // namespace
}  // namespace nupa::progress
