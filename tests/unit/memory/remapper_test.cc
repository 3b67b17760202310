// SPDX-License-Identifier: Apache-2.0
// Tests of the remapper: which memory is shared, and what it is after unshare().
#include <fcntl.h>
#include <malloc.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>

#include "region_test_support.h"

namespace nupa::memory::testing {
namespace {

class RemapperWays : public ::testing::TestWithParam<Way> {
 protected:
  std::unique_ptr<Remapper> make(Policy policy = Policy::kAuto) {
    RemapOptions options;
    options.may_move = GetParam().may_move;
    return make_remapper(policy, options);
  }
};
INSTANTIATE_TEST_SUITE_P(All, RemapperWays, ::testing::ValuesIn(kWays),
                         [](const auto& way) { return std::string(way.param.name); });

TEST_P(RemapperWays, Share_PeerMapsThePiece_ReadsAndWritesTheMemory) {
  auto remapper = make();
  Memory memory(700);
  memory.fill();
  auto pieces = remapper->share(memory.data(), memory.size(), true);
  ASSERT_TRUE(pieces.has_value());
  ASSERT_EQ(pieces->size(), 1u);
  EXPECT_EQ(bytes_of(*pieces), memory.size());
  EXPECT_TRUE(memory.filled());
  {
    View view(remapper->fd(), pieces->front());
    EXPECT_EQ(std::memcmp(view.data(), memory.data(), memory.size()), 0);
    view.data()[12345] = 77;
    EXPECT_EQ(memory.data()[12345], 77);
    memory.data()[12345] = Memory::pattern(12345);
    EXPECT_EQ(view.data()[12345], Memory::pattern(12345));
  }
  remapper->unshare(memory.data(), memory.size());
  EXPECT_FALSE(is_shared(memory.data()));
  EXPECT_TRUE(memory.filled());
}

TEST_P(RemapperWays, Share_PartsOfPages_AreSharedIfEveryThreadCanBeStopped) {
  auto remapper = make();
  const bool ends = WriteGuard::available() == WriteGuard::Kind::kFull;
  Memory memory(6);
  memory.fill();
  uint8_t* odd = memory.data() + kPageSize - 3;
  auto pieces = remapper->share(odd, 2 * kPageSize + 3 + 17, true);
  ASSERT_TRUE(pieces.has_value());
  ASSERT_EQ(pieces->size(), 1u);
  EXPECT_EQ(pieces->front().begin, memory.address() + (ends ? 0 : kPageSize));
  EXPECT_EQ(pieces->front().end, memory.address() + (ends ? 4 : 3) * kPageSize);
  EXPECT_EQ(is_shared(memory.data()), ends);
  EXPECT_TRUE(is_shared(memory.data() + kPageSize));
  EXPECT_EQ(is_shared(memory.data() + 3 * kPageSize), ends);
  EXPECT_FALSE(is_shared(memory.data() + 4 * kPageSize));
  remapper->unshare(odd, 2 * kPageSize + 3 + 17);
  EXPECT_TRUE(memory.filled());
  for (size_t page = 0; page < 4; ++page) EXPECT_FALSE(is_shared(memory.data() + page * kPageSize)) << page;
  for (const size_t length : {size_t{0}, size_t{1}, size_t{kPageSize}, size_t{2 * kPageSize - 2}}) {
    auto some = remapper->share(memory.data() + 1, length, true);
    ASSERT_TRUE(some.has_value());
    EXPECT_EQ(bytes_of(*some), ends && length != 0 ? (length + kPageSize) / kPageSize * kPageSize : 0u) << length;
    remapper->unshare(memory.data() + 1, length);
  }
}

TEST_P(RemapperWays, Share_TheRemappersOwnPage_Succeeds) {
  if (WriteGuard::available() != WriteGuard::Kind::kFull) GTEST_SKIP() << "needs the full userfaultfd";
  auto remapper = make();
  // Whatever the mover reads or writes while the page is away makes it wait for itself: then this test does not end.
  auto pieces = remapper->share(remapper.get(), sizeof(Remapper), true);
  ASSERT_TRUE(pieces.has_value());
  EXPECT_GE(bytes_of(*pieces), sizeof(Remapper));
  EXPECT_TRUE(is_shared(remapper.get()));
  remapper->unshare(remapper.get(), sizeof(Remapper));
  EXPECT_FALSE(is_shared(remapper.get()));
}

TEST_P(RemapperWays, Share_NeighboursOnTheSamePage_LoseNoWrite) {
  if (WriteGuard::available() != WriteGuard::Kind::kFull) GTEST_SKIP() << "needs the full userfaultfd";
  auto remapper = make();
  constexpr int kBlocks = 64;
  std::vector<std::unique_ptr<std::atomic<uint64_t>>> counters;
  std::vector<std::unique_ptr<uint64_t>> buffers;
  for (int i = 0; i < kBlocks; ++i) {
    counters.push_back(std::make_unique<std::atomic<uint64_t>>(0));
    buffers.push_back(std::make_unique<uint64_t>(i));
  }
  std::atomic<bool> stop{false};
  uint64_t rounds = 0;
  std::thread writer([&] {
    while (!stop.load()) {
      for (auto& counter : counters) counter->fetch_add(1, std::memory_order_relaxed);
      ++rounds;
    }
  });
  for (int turn = 0; turn < 300; ++turn) {
    uint64_t* buffer = buffers[static_cast<size_t>(turn % kBlocks)].get();
    auto pieces = remapper->share(buffer, sizeof *buffer, true);
    ASSERT_TRUE(pieces.has_value());
    EXPECT_EQ(bytes_of(*pieces), kPageSize);
    const std::vector<int> others(static_cast<size_t>(turn), turn);  // the heap goes on
    EXPECT_EQ(*buffer, static_cast<uint64_t>(turn % kBlocks));
    remapper->unshare(buffer, sizeof *buffer);
    EXPECT_EQ(*buffer, static_cast<uint64_t>(turn % kBlocks));
  }
  stop = true;
  writer.join();
  for (auto& counter : counters) EXPECT_EQ(counter->load(), rounds);
}

TEST_P(RemapperWays, Share_MemoryOnAStack_IsNotMoved) {
  auto remapper = make();
  std::thread([&] {
    std::array<uint8_t, 3 * kPageSize> local{};
    auto pieces = remapper->share(local.data() + 5, 64, true);
    ASSERT_TRUE(pieces.has_value());
    EXPECT_EQ(bytes_of(*pieces), 0u);
    remapper->unshare(local.data() + 5, 64);
    // Nor when another thread shares it.
    std::thread([&] {
      auto seen = remapper->share(local.data() + 5, 64, true);
      ASSERT_TRUE(seen.has_value());
      EXPECT_EQ(bytes_of(*seen), 0u);
      remapper->unshare(local.data() + 5, 64);
    }).join();
  }).join();
}

TEST_P(RemapperWays, Share_OtherKindsOfMemory_AreNotMoved) {
  auto remapper = make();
  const auto shares_nothing = [&](void* address, size_t length, bool writable) {
    auto pieces = remapper->share(address, length, writable);
    ASSERT_TRUE(pieces.has_value());
    EXPECT_TRUE(pieces->empty());
    remapper->unshare(address, length);
  };
  uint8_t stack[8 * kPageSize];
  std::memset(stack, 1, sizeof stack);
  shares_nothing(stack, sizeof stack, true);
  Memory read_only(4, PROT_READ);
  shares_nothing(read_only.data(), read_only.size(), false);
  Memory common(4, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  shares_nothing(common.data(), common.size(), true);
  Memory code(4, PROT_READ | PROT_WRITE | PROT_EXEC);
  shares_nothing(code.data(), code.size(), true);
  const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  void* mapped = mmap(nullptr, 4 * kPageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  shares_nothing(mapped, 4 * kPageSize, true);
  munmap(mapped, 4 * kPageSize);
  close(file);
}

TEST_P(RemapperWays, ShareAndAllocate_InvalidRange_FailsWithItsErrno) {
  auto remapper = make();
  Memory memory(4);
  memory.unmap(2 * kPageSize, kPageSize);
  EXPECT_EQ(remapper->share(memory.data(), memory.size(), true).error().code(), EFAULT);
  Memory read_only(4, PROT_READ);
  EXPECT_EQ(remapper->share(read_only.data(), read_only.size(), true).error().code(), EFAULT);
  EXPECT_EQ(remapper->share(memory.data(), SIZE_MAX, true).error().code(), EFAULT);
  EXPECT_EQ(remapper->share(nullptr, SIZE_MAX, false).error().code(), EFAULT);
  EXPECT_EQ(remapper->share(reinterpret_cast<void*>(UINTPTR_MAX), 1, false).error().code(), EFAULT);
  EXPECT_EQ(remapper->allocate(0).error().code(), EINVAL);
  EXPECT_EQ(remapper->allocate(SIZE_MAX).error().code(), EINVAL);
  remapper->unshare(memory.data(), 12345);  // never shared: nothing happens
}

TEST_P(RemapperWays, Share_BufferOverSeveralMappings_SharesThePlainOnes) {
  auto remapper = make();
  Memory memory(9);
  memory.fill();
  ASSERT_EQ(mprotect(memory.data() + 3 * kPageSize, kPageSize, PROT_READ), 0);
  ASSERT_NE(mmap(memory.data() + 6 * kPageSize, kPageSize, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            MAP_FAILED);
  auto pieces = remapper->share(memory.data(), memory.size(), false);
  ASSERT_TRUE(pieces.has_value());
  ASSERT_EQ(pieces->size(), 3u);
  EXPECT_EQ(bytes_of(*pieces), 7 * kPageSize);
  EXPECT_TRUE(
      std::is_sorted(pieces->begin(), pieces->end(), [](const Piece& a, const Piece& b) { return a.end <= b.begin; }));
  remapper->unshare(memory.data(), memory.size());
  EXPECT_EQ(memory.data()[8 * kPageSize + 1], Memory::pattern(8 * kPageSize + 1));
}

TEST_P(RemapperWays, Share_BufferOverTwoAdjacentMappings_ShowsBoth) {
  auto remapper = make();
  Memory memory(8);
  memory.fill();
  // The kernel keeps the second half apart from now on. Each mapping has a part of the file of its own.
  ASSERT_EQ(madvise(memory.data() + 4 * kPageSize, 4 * kPageSize, MADV_DONTDUMP), 0);
  auto pieces = remapper->share(memory.data(), memory.size(), true);
  ASSERT_TRUE(pieces.has_value());
  EXPECT_EQ(bytes_of(*pieces), memory.size());
  for (const Piece& piece : *pieces) {
    View view(remapper->fd(), piece);
    EXPECT_EQ(std::memcmp(view.data(), reinterpret_cast<const void*>(piece.begin), piece.length()), 0);
  }
  remapper->unshare(memory.data(), memory.size());
  EXPECT_FALSE(is_shared(memory.data() + 4 * kPageSize));
  EXPECT_TRUE(memory.filled());
}

TEST_P(RemapperWays, Unshare_OverlappingRegistrations_KeepTheirPages) {
  auto remapper = make();
  Memory memory(10);
  memory.fill();
  auto whole = remapper->share(memory.data(), memory.size(), true);
  auto inner = remapper->share(memory.data() + 2 * kPageSize, 3 * kPageSize, true);
  auto again = remapper->share(memory.data(), memory.size(), true);
  ASSERT_TRUE(whole && inner && again);
  ASSERT_EQ(whole->size(), 1u);
  ASSERT_EQ(inner->size(), 1u);
  EXPECT_EQ(inner->front().file_offset, whole->front().file_offset + 2 * kPageSize);
  EXPECT_EQ(again->front().file_offset, whole->front().file_offset);
  remapper->unshare(memory.data(), memory.size());
  EXPECT_TRUE(is_shared(memory.data()));
  remapper->unshare(memory.data(), memory.size());
  EXPECT_FALSE(is_shared(memory.data()));
  EXPECT_TRUE(is_shared(memory.data() + 2 * kPageSize));
  View view(remapper->fd(), inner->front());
  view.data()[0] = 99;
  EXPECT_EQ(memory.data()[2 * kPageSize], 99);
  memory.data()[2 * kPageSize] = Memory::pattern(2 * kPageSize);
  remapper->unshare(memory.data() + 2 * kPageSize, 3 * kPageSize);
  EXPECT_FALSE(is_shared(memory.data() + 2 * kPageSize));
  EXPECT_TRUE(memory.filled());
}

TEST_P(RemapperWays, Share_MemoryMappedAgain_IsSharedAgainAndKept) {
  auto remapper = make();
  Memory memory(4);
  memory.fill();
  auto before = remapper->share(memory.data(), memory.size(), true);
  ASSERT_TRUE(before.has_value());
  // The program replaces the two middle pages without a word.
  ASSERT_NE(mmap(memory.data() + kPageSize, 2 * kPageSize, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            MAP_FAILED);
  memory.fill();
  auto after = remapper->share(memory.data(), memory.size(), true);
  ASSERT_TRUE(after.has_value());
  ASSERT_EQ(after->size(), 3u);
  EXPECT_NE((*after)[1].file_offset, before->front().file_offset + kPageSize);
  View view(remapper->fd(), (*after)[1]);
  EXPECT_EQ(view.data()[0], Memory::pattern(kPageSize));
  // The first registration goes; what the second one holds must stay.
  remapper->unshare(memory.data(), memory.size());
  for (const Piece& piece : *after) EXPECT_TRUE(is_shared(reinterpret_cast<void*>(piece.begin)));
  remapper->unshare(memory.data(), memory.size());
  EXPECT_FALSE(is_shared(memory.data()));
  EXPECT_FALSE(is_shared(memory.data() + kPageSize));
  EXPECT_TRUE(memory.filled());
}

TEST_P(RemapperWays, Unshare_ReplacedMemory_LeavesIt) {
  auto remapper = make();
  Memory memory(4);
  memory.fill();
  auto pieces = remapper->share(memory.data(), memory.size(), true);
  ASSERT_TRUE(pieces.has_value());
  ASSERT_EQ(mmap(memory.data(), memory.size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            memory.data());
  memory.data()[5] = 123;
  remapper->unshare(memory.data(), memory.size());
  EXPECT_TRUE(is_shared(memory.data()));
  EXPECT_EQ(memory.data()[5], 123);
  View view(remapper->fd(), pieces->front());
  EXPECT_EQ(view.data()[5], 0) << "the file's memory was not given back";
}

TEST_P(RemapperWays, Unshare_MemoryMovedByMremap_IsUnsharedAtItsNewPlace) {
  auto remapper = make();
  Memory memory(8);
  Memory room(64);
  memory.fill();
  ASSERT_TRUE(remapper->share(memory.data(), memory.size(), true).has_value());
  // What realloc does with a big block.
  void* moved = mremap(memory.data(), memory.size(), 2 * memory.size(), MREMAP_MAYMOVE | MREMAP_FIXED, room.data());
  ASSERT_EQ(moved, room.data());
  remapper->unshare(memory.data(), memory.size());
  EXPECT_FALSE(is_shared(room.data()));
  for (size_t i = 0; i < memory.size(); ++i) ASSERT_EQ(room.data()[i], Memory::pattern(i)) << i;
}

TEST_P(RemapperWays, Unshare_ProtectionChangedMeanwhile_IsKept) {
  auto remapper = make();
  Memory memory(4);
  memory.fill();
  ASSERT_TRUE(remapper->share(memory.data(), memory.size(), true).has_value());
  ASSERT_EQ(mprotect(memory.data() + kPageSize, kPageSize, PROT_READ), 0);
  remapper->unshare(memory.data(), memory.size());
  auto vmas = list_vmas(memory.address() + kPageSize, memory.address() + 2 * kPageSize);
  ASSERT_TRUE(vmas && vmas->size() == 1);
  EXPECT_FALSE(vmas->front().writable);
  EXPECT_FALSE(vmas->front().shared);
  EXPECT_TRUE(memory.filled());
}

TEST_P(RemapperWays, Unshare_Memory_IsPrivateAgain) {
  auto remapper = make();
  Memory memory(600);
  memory.fill();
  ASSERT_TRUE(remapper->share(memory.data(), memory.size(), true).has_value());
  remapper->unshare(memory.data(), memory.size());
  ASSERT_EQ(madvise(memory.data(), memory.size(), MADV_DONTNEED), 0);
  EXPECT_TRUE(std::all_of(memory.data(), memory.data() + memory.size(), [](uint8_t b) { return b == 0; }));
  auto vmas = list_vmas(memory.address(), memory.address() + memory.size());
  ASSERT_TRUE(vmas.has_value());
  EXPECT_TRUE(vmas->front().plain);
}

TEST_P(RemapperWays, Unshare_HeapBlocks_CanBeFreedAndReused) {
  auto remapper = make();
  for (const size_t size : {size_t{100000}, size_t{5} << 20}) {  // from brk, from mmap
    for (int round = 0; round < 10; ++round) {
      auto* block = static_cast<uint8_t*>(malloc(size));
      std::memset(block, 0xa5, size);
      auto pieces = remapper->share(block, size, true);
      ASSERT_TRUE(pieces.has_value());
      EXPECT_GT(bytes_of(*pieces), size - 2 * kPageSize);
      remapper->unshare(block, size);
      EXPECT_TRUE(std::all_of(block, block + size, [](uint8_t b) { return b == 0xa5; }));
      free(block);
      malloc_trim(0);
      auto* zeros = static_cast<uint8_t*>(calloc(1, size));
      EXPECT_TRUE(std::all_of(zeros, zeros + size, [](uint8_t b) { return b == 0; }));
      free(zeros);
    }
  }
}

TEST_P(RemapperWays, Share_UntouchedMemory_StaysUntouched) {
  auto remapper = make();
  Memory memory(UINT64_C(1) << 18, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  memory.data()[memory.size() / 2] = 5;
  auto pieces = remapper->share(memory.data(), memory.size(), true);
  ASSERT_TRUE(pieces.has_value());
  EXPECT_EQ(bytes_of(*pieces), memory.size());
  EXPECT_EQ(memory.data()[memory.size() / 2], 5);
  const auto touched = touched_pages(memory.address(), memory.address() + memory.size());
  EXPECT_LE(std::count(touched.begin(), touched.end(), true), 16);
  remapper->unshare(memory.data(), memory.size());
  EXPECT_EQ(memory.data()[memory.size() / 2], 5);
}

TEST_P(RemapperWays, Destroy_MemoryIsShared_UnsharesIt) {
  Memory memory(4);
  memory.fill();
  {
    auto remapper = make();
    ASSERT_TRUE(remapper->share(memory.data(), memory.size(), true).has_value());
    ASSERT_TRUE(is_shared(memory.data()));
  }
  EXPECT_FALSE(is_shared(memory.data()));
  EXPECT_TRUE(memory.filled());
}

TEST(Remapper, Share_PolicyNever_SharesNothing) {
  auto remapper = make_remapper(Policy::kNever);
  Memory memory(4);
  auto pieces = remapper->share(memory.data(), memory.size(), true);
  ASSERT_TRUE(pieces.has_value());
  EXPECT_TRUE(pieces->empty());
  EXPECT_FALSE(is_shared(memory.data()));
  remapper->unshare(memory.data(), memory.size());
}

TEST(Remapper, Allocate_Memory_IsSharedAtOnce) {
  auto remapper = make_remapper();
  auto piece = remapper->allocate(kPageSize + 1);
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(piece->length(), 2 * kPageSize);
  {
    View view(remapper->fd(), *piece);
    auto* mine = reinterpret_cast<uint8_t*>(piece->begin);
    EXPECT_EQ(mine[kPageSize], 0);
    mine[kPageSize] = 4;
    EXPECT_EQ(view.data()[kPageSize], 4);
  }
  const uint64_t offset = piece->file_offset;
  remapper->release(*piece);
  auto next = remapper->allocate(kPageSize);
  ASSERT_TRUE(next.has_value());
  EXPECT_GT(next->file_offset, offset) << "a late writer would hit newer memory";
  remapper->release(*next);
}

TEST(Remapper, Share_AnotherProcessMapsThePiece_SeesTheData) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const pid_t peer = fork();
  if (peer == 0) {
    Piece piece;
    iovec part{&piece, sizeof piece};
    char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (recvmsg(ends[1], &message, 0) != sizeof piece) _exit(1);
    int fd;
    std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    auto* view = static_cast<uint8_t*>(
        mmap(nullptr, piece.length(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(piece.file_offset)));
    if (view == MAP_FAILED) _exit(2);
    for (size_t i = 0; i < piece.length(); ++i)
      if (view[i] != Memory::pattern(i)) _exit(3);
    view[4097] = 200;
    char go = 0;
    if (write(ends[1], &go, 1) != 1 || read(ends[1], &go, 1) != 1) _exit(4);
    _exit(view[4098] == 201 ? 0 : 5);
  }
  auto remapper = make_remapper();
  Memory memory(5);
  memory.fill();
  auto pieces = remapper->share(memory.data(), memory.size(), true);
  ASSERT_TRUE(pieces.has_value());
  ASSERT_EQ(pieces->size(), 1u);
  Piece piece = pieces->front();
  iovec part{&piece, sizeof piece};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = remapper->fd();
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  ASSERT_EQ(sendmsg(ends[0], &message, 0), static_cast<ssize_t>(sizeof piece));
  char go = 0;
  ASSERT_EQ(read(ends[0], &go, 1), 1);
  EXPECT_EQ(memory.data()[4097], 200);
  memory.data()[4098] = 201;
  ASSERT_EQ(write(ends[0], &go, 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(peer, &status, 0), peer);
  EXPECT_EQ(status, 0);
  remapper->unshare(memory.data(), memory.size());
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace nupa::memory::testing
