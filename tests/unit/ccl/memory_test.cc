// SPDX-License-Identifier: Apache-2.0
/// Tests of allocations of this process, and of reads from the memory of other processes.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "ccl/connect/endpoint.h"
#include "ccl/connect/cma_reads.h"
#include "ccl/connect/allocations.h"
#include "mail_fixture.h"

namespace nupa::ccl {
namespace {

using namespace mail_test;

TEST(CclAllocations, Find_Array_SucceedsOnlyInsideOneAllocation) {
  const auto endpoint = endpoint_here();
  ASSERT_NE(endpoint, nullptr);
  Allocations allocations(endpoint->device(), endpoint->pd());
  constexpr size_t kBytes = 8192;
  std::byte local{};
  EXPECT_FALSE(allocations.find(&local, 1)) << "there is none";
  const auto made = allocations.allocate(kBytes);
  const auto second = allocations.allocate(kBytes);
  ASSERT_TRUE(made && second);
  auto* const memory = static_cast<std::byte*>(*made);
  for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(memory[i], std::byte{}) << "it is zeroed";
  const auto whole = allocations.find(memory, kBytes);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->base, reinterpret_cast<uint64_t>(memory));
  EXPECT_EQ(whole->bytes, kBytes);
  EXPECT_NE(whole->serial, 0u);
  EXPECT_TRUE(allocations.find(memory + 100, kBytes - 100));
  EXPECT_FALSE(allocations.find(memory + 100, kBytes - 99)) << "it ends behind";
  // One may lie right behind the other.
  EXPECT_FALSE(allocations.find(std::min(memory, static_cast<std::byte*>(*second)) - 1, 1)) << "it begins before";
  EXPECT_FALSE(allocations.find(std::max(memory, static_cast<std::byte*>(*second)) + kBytes, 1));
  EXPECT_FALSE(allocations.find(memory, kBytes + 1));
  EXPECT_FALSE(allocations.find(&local, 1));
  EXPECT_NE(allocations.find(*second, 1)->serial, whole->serial);
  EXPECT_FALSE(allocations.release(memory + 1)) << "nothing begins there";
  EXPECT_TRUE(allocations.release(memory));
  EXPECT_FALSE(allocations.release(memory));
  EXPECT_FALSE(allocations.find(memory, 1));
  const auto again = allocations.allocate(kBytes);
  ASSERT_TRUE(again);
  EXPECT_NE(allocations.find(*again, 1)->serial, whole->serial) << "of no other one, ever";
  EXPECT_TRUE(allocations.release(*second));
  EXPECT_TRUE(allocations.release(*again));
}

TEST(CclCmaReads, Read_MissingMemoryOrDeadProcess_ReturnsTheErrno) {
  constexpr size_t kPage = 4096;
  auto* const pages =
      static_cast<std::byte*>(mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  std::memset(pages, 0x3c, kPage);
  ASSERT_EQ(munmap(pages + kPage, kPage), 0);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  std::vector<uint32_t> gone;
  CmaReads reads({getpid(), child}, [&](uint32_t rank) { gone.push_back(rank); });
  std::vector<std::byte> to(2 * kPage);
  EXPECT_EQ(reads.read(0, to.data(), reinterpret_cast<uint64_t>(pages), kPage), 0);
  EXPECT_EQ(to, [&] {
    std::vector<std::byte> expected(2 * kPage);
    std::memset(expected.data(), 0x3c, kPage);
    return expected;
  }());
  EXPECT_EQ(reads.read(0, to.data(), reinterpret_cast<uint64_t>(pages), 0), 0);
  EXPECT_EQ(reads.read(0, to.data(), reinterpret_cast<uint64_t>(pages), 2 * kPage), EFAULT) << "half of it is there";
  EXPECT_EQ(reads.read(0, to.data(), 0, 1), EFAULT);
  EXPECT_TRUE(gone.empty());
  EXPECT_EQ(reads.read(1, to.data(), reinterpret_cast<uint64_t>(pages), 1), ECONNRESET);
  EXPECT_EQ(gone, (std::vector<uint32_t>{1}));
  munmap(pages, kPage);
}

}  // namespace
}  // namespace nupa::ccl
