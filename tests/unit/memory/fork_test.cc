// SPDX-License-Identifier: Apache-2.0
// Tests of fork(): a child gets the memory as it was at fork(), and no later change.
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "region_test_support.h"

namespace nupa::memory::testing {
namespace {

class RemapperFork : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    remapper_ = make_remapper();
    for (int i = 0; i < GetParam(); ++i)
      others_.emplace_back([this] {
        while (!stop_) usleep(500);
      });
  }
  void TearDown() override {
    stop_ = true;
    for (std::thread& thread : others_) thread.join();
  }
  std::unique_ptr<Remapper> remapper_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> others_;
};
INSTANTIATE_TEST_SUITE_P(Threads, RemapperFork, ::testing::Values(0, 3));

TEST_P(RemapperFork, Fork_WritesAfterwards_StayInTheirProcess) {
  if (GetParam() > 0 && WriteGuard::open().kind() != WriteGuard::Kind::kFull)
    GTEST_SKIP() << "needs the full userfaultfd";
  Memory memory(300);
  for (int round = 0; round < 20; ++round) {
    memory.fill();
    auto pieces = remapper_->share(memory.data(), memory.size(), true);
    ASSERT_TRUE(pieces && !pieces->empty());
    int to_child[2];
    int to_parent[2];
    ASSERT_EQ(pipe(to_child), 0);
    ASSERT_EQ(pipe(to_parent), 0);
    const pid_t child = fork();
    // The parent overwrites at once: what the child sees was there before.
    if (child != 0) std::memset(memory.data(), 0xee, memory.size());
    char go = 0;
    if (child == 0) {
      if (!memory.filled()) _exit(1);
      if (read(to_child[0], &go, 1) != 1) _exit(2);
      if (!memory.filled()) _exit(3);
      std::memset(memory.data(), 0x11, memory.size());
      if (write(to_parent[1], &go, 1) != 1 || read(to_child[0], &go, 1) != 1) _exit(4);
      _exit(memory.data()[7] == 0x11 ? 0 : 5);
    }
    ASSERT_EQ(write(to_child[1], &go, 1), 1);
    close(to_parent[1]);
    ASSERT_EQ(read(to_parent[0], &go, 1), 1) << "the child saw what is not its own";
    EXPECT_EQ(memory.data()[7], 0xee);
    {
      View view(remapper_->fd(), pieces->front());
      EXPECT_EQ(view.data()[7], 0xee);
    }
    ASSERT_EQ(write(to_child[1], &go, 1), 1);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    remapper_->unshare(memory.data(), memory.size());
    EXPECT_EQ(memory.data()[7], 0xee);
    for (const int fd : {to_child[0], to_child[1], to_parent[0]}) close(fd);
  }
}

TEST_P(RemapperFork, Fork_WithSharedMemory_ChildSharesNothing) {
  if (GetParam() > 0 && WriteGuard::open().kind() != WriteGuard::Kind::kFull)
    GTEST_SKIP() << "needs the full userfaultfd";
  Memory memory(8);
  memory.fill();
  auto from_parent = remapper_->allocate(1);
  ASSERT_TRUE(from_parent.has_value());
  *reinterpret_cast<uint8_t*>(from_parent->begin) = 4;
  const int file = remapper_->fd();
  struct stat file_status;
  ASSERT_EQ(fstat(file, &file_status), 0);
  ASSERT_TRUE(remapper_->share(memory.data(), memory.size(), true).has_value());
  EXPECT_EQ(
      in_child([&] {
        if (remapper_->fd() != -1) return 1;
        if (fcntl(file, F_GETFD) != -1) return 2;
        auto vmas = list_vmas(0, UINTPTR_MAX);
        for (const Vma& vma : *vmas)
          if (vma.inode == file_status.st_ino && vma.device == file_status.st_dev && vma.begin != from_parent->begin)
            return 3;
        // Calls on what came over from the parent do nothing, and do not hang.
        auto pieces = remapper_->share(memory.data(), memory.size(), true);
        if (!pieces || !pieces->empty()) return 4;
        remapper_->unshare(memory.data(), memory.size());
        auto allocated = remapper_->allocate(1);
        if (!allocated) return 5;
        *reinterpret_cast<uint8_t*>(allocated->begin) = 3;
        remapper_->release(*from_parent);
        if (*reinterpret_cast<uint8_t*>(allocated->begin) != 3) return 9;
        remapper_->release(*allocated);
        std::unique_lock copying(remapper_->copy_mutex());
        copying.unlock();
        // A remapper of its own works.
        auto own = make_remapper();
        auto mine = own->share(memory.data(), memory.size(), true);
        if (!mine || mine->empty()) return 6;
        // And so does a grandchild.
        if (in_child([&] { return memory.filled() && !is_shared(memory.data()) ? 0 : 1; }) != 0) return 7;
        own->unshare(memory.data(), memory.size());
        remapper_.reset();
        return memory.filled() ? 0 : 8;
      }),
      0);
  EXPECT_EQ(*reinterpret_cast<uint8_t*>(from_parent->begin), 4);
  EXPECT_TRUE(is_shared(memory.data()));
  remapper_->unshare(memory.data(), memory.size());
  EXPECT_TRUE(memory.filled());
}

TEST_P(RemapperFork, Fork_ProgramUnmappedAPart_ChildGetsTheRest) {
  Memory memory(8);
  memory.fill();
  ASSERT_TRUE(remapper_->share(memory.data(), memory.size(), true).has_value());
  memory.unmap(2 * kPageSize, 2 * kPageSize);
  EXPECT_EQ(in_child([&] {
              auto vmas = list_vmas(memory.address(), memory.address() + memory.size());
              if (!vmas || vmas->size() != 2) return 1;
              return memory.data()[5 * kPageSize] == Memory::pattern(5 * kPageSize) ? 0 : 2;
            }),
            0);
  remapper_->unshare(memory.data(), memory.size());
}

TEST_P(RemapperFork, Share_AfterAFork_SharesAgain) {
  if (GetParam() > 0 && WriteGuard::open().kind() != WriteGuard::Kind::kFull)
    GTEST_SKIP() << "needs the full userfaultfd";
  Memory memory(700);
  memory.fill();
  // The child holds every page in common with its parent while the parent registers.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[1]);
    char end;
    if (read(ends[0], &end, 1) != 0) _exit(2);
    _exit(memory.filled() ? 0 : 1);
  }
  auto pieces = remapper_->share(memory.data(), memory.size(), true);
  ASSERT_TRUE(pieces.has_value());
  EXPECT_EQ(bytes_of(*pieces), memory.size());
  EXPECT_TRUE(memory.filled());
  std::memset(memory.data(), 0, memory.size());
  close(ends[1]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(ends[0]);
  remapper_->unshare(memory.data(), memory.size());
}

TEST(RemapperForkRace, Fork_WhileAnotherThreadShares_ChildGetsItsCopies) {
  if (WriteGuard::open().kind() != WriteGuard::Kind::kFull) GTEST_SKIP() << "needs the full userfaultfd";
  auto remapper = make_remapper();
  Memory memory(600);
  memory.fill();
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
      EXPECT_TRUE(remapper->share(memory.data(), memory.size(), true).has_value());
      remapper->unshare(memory.data(), memory.size());
      usleep(100);  // sleep: a thread that only locks would leave fork() no turn
    }
  });
  for (int round = 0; round < 60; ++round)
    EXPECT_EQ(in_child([&] { return memory.filled() && !is_shared(memory.data()) ? 0 : 1; }), 0) << round;
  stop = true;
  other.join();
  EXPECT_TRUE(memory.filled());
}

}  // namespace
}  // namespace nupa::memory::testing
