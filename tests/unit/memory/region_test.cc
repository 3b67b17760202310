// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "memory/remapper.h"
#include "memory/write_guard.h"

namespace nupa::memory {
namespace {

constexpr size_t kPage = 4096;

struct Buffer {
  explicit Buffer(size_t bytes) : size(bytes) {
    data = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~Buffer() { munmap(data, size); }
  char* data;
  size_t size;
};

/// What a peer sees of a piece.
std::string peer_view(const Remapper& remapper, const Piece& piece) {
  std::string content(piece.end - piece.begin, '\0');
  EXPECT_EQ(static_cast<ssize_t>(content.size()),
            pread(remapper.fd(), content.data(), content.size(), static_cast<off_t>(piece.file_offset)));
  return content;
}

TEST(Remapper, Share_OverlappingRegistrations_UseTheSamePages) {
  auto remapper = Remapper::create(Policy::kAlways);
  Buffer buffer(16 * kPage);
  auto a = (*remapper)->share(buffer.data, 8 * kPage, true);
  auto b = (*remapper)->share(buffer.data, 16 * kPage, true);
  ASSERT_TRUE(a && b);
  ASSERT_FALSE(b->empty());
  EXPECT_EQ((*a)[0].file_offset, (*b)[0].file_offset);
  buffer.data[0] = 'x';
  (*remapper)->unshare(buffer.data, 8 * kPage);
  EXPECT_EQ('x', peer_view(**remapper, (*b)[0])[0]) << "the second holder keeps the pages";
  buffer.data[1] = 'y';
  EXPECT_EQ('y', peer_view(**remapper, (*b)[0])[1]);
  (*remapper)->unshare(buffer.data, 16 * kPage);
}

TEST(Remapper, Share_MemoryMappedAgain_IsSharedAgain) {
  auto remapper = Remapper::create(Policy::kAlways);
  Buffer buffer(4 * kPage);
  auto first = (*remapper)->share(buffer.data, buffer.size, true);
  ASSERT_TRUE(first && !first->empty());
  mmap(buffer.data, buffer.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  buffer.data[0] = 'n';
  auto second = (*remapper)->share(buffer.data, buffer.size, true);
  ASSERT_TRUE(second && !second->empty());
  EXPECT_NE((*first)[0].file_offset, (*second)[0].file_offset);
  EXPECT_EQ('n', peer_view(**remapper, (*second)[0])[0]);
}

TEST(Remapper, Share_MemoryNotOwnedByTheProgram_IsRefusedOrLeft) {
  auto remapper = Remapper::create(Policy::kAlways);
  void* shared = mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto pieces = (*remapper)->share(shared, 2 * kPage, true);
  ASSERT_TRUE(pieces);
  EXPECT_TRUE(pieces->empty()) << "shared already";
  void* readonly = mmap(nullptr, 2 * kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_EQ(EFAULT, (*remapper)->share(readonly, 2 * kPage, true).error().code());
  munmap(readonly, 2 * kPage);
  EXPECT_EQ(EFAULT, (*remapper)->share(readonly, 2 * kPage, false).error().code()) << "not mapped";
  char on_stack[4 * kPage];
  auto stack = (*remapper)->share(on_stack, sizeof on_stack, true);
  ASSERT_TRUE(stack);
  EXPECT_TRUE(stack->empty());
  munmap(shared, 2 * kPage);
}

TEST(Remapper, Fork_WithSharedMemory_GivesEachProcessItsCopy) {
  auto remapper = Remapper::create(Policy::kAlways);
  Buffer buffer(64 * kPage);
  std::memset(buffer.data, 'p', buffer.size);
  auto pieces = (*remapper)->share(buffer.data, buffer.size, true);
  ASSERT_TRUE(pieces && !pieces->empty());
  int to_child[2], to_parent[2];
  ASSERT_EQ(0, pipe(to_child));
  ASSERT_EQ(0, pipe(to_parent));
  const pid_t child = fork();
  if (child == 0) {
    char word;
    if (read(to_child[0], &word, 1) != 1) _exit(1);  // the parent has written by now
    if (buffer.data[0] != 'p' || buffer.data[buffer.size - 1] != 'p') _exit(2);
    buffer.data[1] = 'c';
    if (write(to_parent[1], "x", 1) != 1) _exit(3);
    _exit(0);
  }
  buffer.data[0] = 'P';
  ASSERT_EQ(1, write(to_child[1], "x", 1));
  char word;
  ASSERT_EQ(1, read(to_parent[0], &word, 1));
  EXPECT_EQ('p', buffer.data[1]) << "the child's write stays the child's";
  EXPECT_EQ('P', peer_view(**remapper, (*pieces)[0])[0]) << "the parent's stays shared";
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(0, WEXITSTATUS(status));
  for (int fd : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) close(fd);
}

TEST(Remapper, Share_ConcurrentWriters_LoseNoWrite) {
  if (WriteGuard::available() == WriteGuard::Kind::kNone) GTEST_SKIP() << "no userfaultfd for this user";
  auto remapper = Remapper::create(Policy::kAlways);
  constexpr size_t kPages = 600;
  Buffer buffer(kPages * kPage);
  auto* counters = reinterpret_cast<std::atomic<uint64_t>*>(buffer.data);
  std::atomic<bool> stop{false};
  uint64_t written = 0;
  std::thread writer([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      for (size_t page = 0; page < kPages; ++page) counters[page * kPage / 8].fetch_add(1, std::memory_order_relaxed);
      ++written;
    }
  });
  size_t shared_rounds = 0;
  for (int round = 0; round < 60; ++round) {
    auto pieces = (*remapper)->share(buffer.data, buffer.size, true);
    ASSERT_TRUE(pieces);
    shared_rounds += !pieces->empty();
    (*remapper)->unshare(buffer.data, buffer.size);
  }
  stop = true;
  writer.join();
  EXPECT_GT(shared_rounds, 0u);
  for (size_t page = 0; page < kPages; ++page) ASSERT_EQ(written, counters[page * kPage / 8].load()) << page;
}

TEST(Remapper, Share_SystemCallsOfOtherThreadsIntoTheBuffer_Succeed) {
  if (WriteGuard::available() != WriteGuard::Kind::kFull) GTEST_SKIP() << "needs the full userfaultfd";
  auto remapper = Remapper::create(Policy::kAuto);
  Buffer buffer(512 * kPage);
  int channel[2];
  ASSERT_EQ(0, pipe(channel));
  std::atomic<bool> stop{false};
  std::atomic<int> failures{0};
  std::thread feeder([&] {
    char text[512];
    std::memset(text, 'z', sizeof text);
    while (!stop)
      if (write(channel[1], text, sizeof text) < 0) break;
    close(channel[1]);
  });
  std::thread reader([&] {
    size_t at = 0;
    for (;;) {
      const ssize_t got = read(channel[0], buffer.data + at, 512);
      if (got == 0) break;
      if (got < 0)
        ++failures;
      else if (buffer.data[at] != 'z' || buffer.data[at + static_cast<size_t>(got) - 1] != 'z')
        ++failures;
      at = (at + 3 * kPage) % (buffer.size - 512);
    }
  });
  for (int round = 0; round < 40; ++round) {
    auto pieces = (*remapper)->share(buffer.data, buffer.size, true);
    ASSERT_TRUE(pieces);
    (*remapper)->unshare(buffer.data, buffer.size);
  }
  stop = true;
  feeder.join();
  reader.join();
  close(channel[0]);
  EXPECT_EQ(0, failures.load());
}

TEST(Remapper, Share_BeyondTheFileSizeLimit_IsAnErrorWithoutASignal) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    auto remapper = Remapper::create(Policy::kAlways);
    if (!remapper) _exit(1);
    Buffer buffer(4 << 20);
    auto pieces = (*remapper)->share(buffer.data, buffer.size, true);
    _exit(!pieces && pieces.error().code() == EFBIG ? 0 : 2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(0, WEXITSTATUS(status));
}

TEST(Vma, ListVmas_ReadOnlyPart_IsListedAsSuch) {
  Buffer buffer(3 * kPage);
  mprotect(buffer.data + kPage, kPage, PROT_READ);
  const auto begin = reinterpret_cast<uintptr_t>(buffer.data);
  auto vmas = list_vmas(begin, begin + 3 * kPage);
  ASSERT_TRUE(vmas);
  ASSERT_GE(vmas->size(), 3u);
  bool saw_readonly = false;
  for (const Vma& vma : *vmas)
    if (vma.begin == begin + kPage) saw_readonly = !vma.writable && vma.readable && vma.plain;
  EXPECT_TRUE(saw_readonly);
}

}  // namespace
}  // namespace nupa::memory
