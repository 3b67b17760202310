// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Memory and jobs for tests of copy engines.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>

#include "base/memory_fault.h"
#include "copy/copy_engine.h"

namespace nupa::copy {

constexpr uint64_t kMiB = uint64_t{1} << 20;

/// Anonymous pages that no thread has touched.
class Pages {
 public:
  explicit Pages(size_t bytes)
      : bytes_(bytes), at_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    EXPECT_NE(at_, MAP_FAILED);
  }
  ~Pages() { munmap(at_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* at(size_t offset = 0) const { return static_cast<std::byte*>(at_) + offset; }
  void fill(uint32_t seed) const {
    std::mt19937 random(seed);
    for (size_t i = 0; i + 4 <= bytes_; i += 4) {
      const auto word = static_cast<uint32_t>(random());
      std::memcpy(at(i), &word, 4);
    }
  }
  /// The memory from `offset` on is not mapped any more.
  /// As munmap(), but nothing else is mapped there: threads that start map memory.
  void unmap(size_t offset, size_t bytes) const {
    ASSERT_NE(mmap(at(offset), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), MAP_FAILED);
  }

 private:
  const size_t bytes_;
  void* const at_;
};

/// A job with its busy word, as the shm transport uses it.
class Work {
 public:
  explicit Work(CopyEngine& engine) : engine_(engine), job(engine.make_job()) {
    EXPECT_EQ(base::watch_memory_faults(), 0);
    job->busy = &busy;
  }
  ~Work() { engine_.cancel(*job); }
  /// All but the last 8 bytes are a copy, and those are the last copy.
  void whole(const Pages& to, const Pages& from, uint64_t bytes) {
    job->copies = {{to.at(), from.at(), bytes - 8}};
    job->last = {to.at(bytes - 8), from.at(bytes - 8), 8};
  }
  bool submit() {
    ++busy;
    if (engine_.submit(*job)) return true;
    ++busy;
    return false;
  }
  bool is_busy() const { return (busy.load() & 1) != 0; }
  JobState poll() { return engine_.poll(*job); }

 private:
  CopyEngine& engine_;

 public:
  std::unique_ptr<CopyJob> job;
  std::atomic<uint32_t> busy{6};
};

inline bool same(const Pages& a, const Pages& b, uint64_t bytes, uint64_t offset = 0) {
  return std::memcmp(a.at(offset), b.at(offset), bytes) == 0;
}

}  // namespace nupa::copy
