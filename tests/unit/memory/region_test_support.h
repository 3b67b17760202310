// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "memory/remapper.h"

namespace nupa::memory::testing {

/// Private anonymous memory, unmapped at the end. A page that can only be read lies on each side: the kernel would join
/// it to a neighbour otherwise, such as one that holds a thread's own data.
class Memory {
 public:
  explicit Memory(size_t pages, int protection = PROT_READ | PROT_WRITE, int flags = MAP_PRIVATE | MAP_ANONYMOUS)
      : length_(pages * kPageSize) {
    void* room = mmap(nullptr, length_ + 2 * kPageSize, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(room, MAP_FAILED);
    data_ = static_cast<uint8_t*>(room) + kPageSize;
    EXPECT_EQ(mmap(data_, length_, protection, flags | MAP_FIXED, -1, 0), data_);
  }
  ~Memory() {
    // Other code may have memory of its own by now where the test has unmapped some.
    uint8_t* from = data_ - kPageSize;
    std::sort(holes_.begin(), holes_.end());
    for (const auto& [hole, length] : holes_) {
      if (hole > from) munmap(from, static_cast<size_t>(hole - from));
      from = hole + length;
    }
    munmap(from, static_cast<size_t>(data_ + length_ + kPageSize - from));
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Unmaps a part, as a program does.
  int unmap(size_t offset, size_t length) {
    holes_.emplace_back(data_ + offset, length);
    return munmap(data_ + offset, length);
  }
  uint8_t* data() { return data_; }
  size_t size() const { return length_; }
  uintptr_t address() const { return reinterpret_cast<uintptr_t>(data_); }
  /// A different byte for each place, so that a page in the wrong place shows.
  static uint8_t pattern(size_t i) { return static_cast<uint8_t>(i * 31 + i / kPageSize * 7 + 1); }
  void fill() {
    for (size_t i = 0; i < length_; ++i) data_[i] = pattern(i);
  }
  bool filled() const {
    for (size_t i = 0; i < length_; ++i)
      if (data_[i] != pattern(i)) return false;
    return true;
  }

 private:
  size_t length_;
  uint8_t* data_ = nullptr;
  std::vector<std::pair<uint8_t*, size_t>> holes_;
};

/// What a peer has: a mapping of its own of a piece.
class View {
 public:
  View(int fd, const Piece& piece) : length_(piece.length()) {
    data_ = static_cast<uint8_t*>(
        mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(piece.file_offset)));
    EXPECT_NE(data_, MAP_FAILED);
  }
  ~View() { munmap(data_, length_); }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  uint8_t* data() { return data_; }

 private:
  size_t length_;
  uint8_t* data_ = nullptr;
};

inline std::unique_ptr<Remapper> make_remapper(Policy policy = Policy::kAuto, const RemapOptions& options = {}) {
  auto made = Remapper::create(policy, options);
  EXPECT_TRUE(made.has_value());
  return made ? std::move(*made) : nullptr;
}

inline uint64_t bytes_of(const std::vector<Piece>& pieces) {
  uint64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.length();
  return bytes;
}

/// True if the kernel maps `address` shared.
inline bool is_shared(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto vmas = list_vmas(at, at + 1);
  return vmas && vmas->size() == 1 && vmas->front().shared;
}

/// Runs `body` in a child of fork and returns its result; 1000 + the signal that ended it.
inline int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    const int result = body();
    _exit(::testing::Test::HasFailure() ? 99 : result);  // the parent does not see an EXPECT that fails in the child
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/// The ways in which memory moves; each must keep every promise.
struct Way {
  const char* name;
  bool may_move;
};
constexpr Way kWays[] = {{"Moved", true}, {"Protected", false}};

}  // namespace nupa::memory::testing
