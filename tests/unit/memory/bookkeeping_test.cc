// SPDX-License-Identifier: Apache-2.0
// Tests of the interval map, the region file and the list of mappings.
#include <fcntl.h>
#include <sys/stat.h>

#include "base/unique_fd.h"
#include "region_test_support.h"

namespace nupa::memory::testing {
namespace {

constexpr uintptr_t page(uintptr_t n) { return n * kPageSize; }

TEST(RegionIntervalMap, Hold_OverlappingRanges_CountUsersPerPage) {
  IntervalMap map;
  map.insert({page(10), page(20), 0});
  ASSERT_EQ(map.hold(page(10), page(20)).size(), 1u);
  const auto inner = map.hold(page(12), page(14));
  ASSERT_EQ(inner.size(), 1u);
  EXPECT_EQ(inner[0].file_offset, page(2));
  map.drop({page(10), page(20), 0});
  const auto unused = map.pieces(0, UINTPTR_MAX, true);
  ASSERT_EQ(unused.size(), 2u);
  EXPECT_EQ(unused[0].end, page(12));
  EXPECT_EQ(unused[1].begin, page(14));
  EXPECT_EQ(unused[1].file_offset, page(4));
}

TEST(RegionIntervalMap, Drop_PieceOfAnEarlierInsert_LeavesTheNewOne) {
  IntervalMap map;
  map.insert({page(1), page(3), page(100)});
  const Piece former = map.hold(page(1), page(3))[0];
  map.erase(page(1), page(3));
  map.insert({page(1), page(3), page(200)});
  map.hold(page(1), page(3));
  map.drop(former);
  EXPECT_TRUE(map.pieces(0, UINTPTR_MAX, true).empty());
}

TEST(RegionIntervalMap, Hold_NeighboursInMemoryAndFile_JoinsThem) {
  IntervalMap map;
  map.insert({page(1), page(2), page(50)});
  map.insert({page(2), page(3), page(51)});
  map.insert({page(3), page(4), page(99)});
  const auto held = map.hold(page(1), page(4));
  ASSERT_EQ(held.size(), 2u);
  EXPECT_EQ(held[0].end, page(3));
  EXPECT_EQ(held[1].file_offset, page(99));
}

TEST(RegionFile, Reserve_SeveralTimes_GivesOffsetsThatNeverRepeatWithGaps) {
  auto file = RegionFile::create();
  ASSERT_TRUE(file.has_value());
  uint64_t last_end = 0;
  for (int i = 0; i < 100; ++i) {
    auto offset = file->reserve(page(3));
    ASSERT_TRUE(offset.has_value());
    EXPECT_GE(*offset, last_end + (i == 0 ? 0 : page(3)));
    last_end = *offset + page(3);
    EXPECT_GE(file->size(), last_end);
  }
  EXPECT_EQ(file->reserve(UINT64_C(1) << 61).error().code(), EFBIG);
}

TEST(RegionFile, Ftruncate_ToShrinkTheFile_Fails) {
  auto file = RegionFile::create();
  ASSERT_TRUE(file.has_value());
  ASSERT_TRUE(file->reserve(page(8)).has_value());
  EXPECT_NE(ftruncate(file->fd(), 0), 0);
  EXPECT_EQ(errno, EPERM);
  EXPECT_NE(fcntl(file->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(RegionFile, Write_UntouchedPages_StayHoles) {
  auto file = RegionFile::create();
  ASSERT_TRUE(file.has_value());
  Memory memory(1024);
  memory.data()[page(7) + 5] = 9;
  memory.data()[page(800)] = 8;
  const uint64_t offset = *file->reserve(memory.size());
  ASSERT_EQ(file->handle().write(memory.address(), memory.size(), offset, true), 0);
  struct stat status;
  ASSERT_EQ(fstat(file->fd(), &status), 0);
  EXPECT_LE(static_cast<uint64_t>(status.st_blocks) * 512, page(8));
  Memory copy(1024);
  ASSERT_TRUE(file->handle().read(reinterpret_cast<std::byte*>(copy.data()), copy.size(), offset));
  EXPECT_EQ(std::memcmp(memory.data(), copy.data(), copy.size()), 0);
}

TEST(RegionVma, ListVmas_ByIoctlAndByText_AreEqual) {
  // Only this range: elsewhere either listing may itself map memory while it works.
  Memory memory(12);
  ASSERT_EQ(mprotect(memory.data() + page(1), page(1), PROT_READ), 0);
  ASSERT_EQ(memory.unmap(page(3), page(1)), 0);
  ASSERT_EQ(mprotect(memory.data() + page(5), page(1), PROT_NONE), 0);
  ASSERT_NE(
      mmap(memory.data() + page(7), page(2), PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED | MAP_ANONYMOUS, -1, 0),
      MAP_FAILED);
  const base::UniqueFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  ASSERT_NE(mmap(memory.data() + page(10), page(1), PROT_READ, MAP_FIXED | MAP_PRIVATE, file.get(), page(1)),
            MAP_FAILED);
  // All but the ends, which may grow together with what lies beside them; and a part that begins in a hole.
  for (const auto& [first, last] : {std::pair<size_t, size_t>{1, 11}, std::pair<size_t, size_t>{3, 8}}) {
    auto asked = list_vmas(memory.address() + page(first), memory.address() + page(last));
    auto read = list_vmas_by_text(memory.address() + page(first), memory.address() + page(last));
    ASSERT_TRUE(asked && read);
    ASSERT_EQ(read->size(), first == 1 ? 8u : 4u);
    ASSERT_EQ(asked->size(), read->size());
    for (size_t i = 0; i < read->size(); ++i) {
      const Vma& a = (*asked)[i];
      const Vma& b = (*read)[i];
      EXPECT_EQ(a.begin, b.begin);
      EXPECT_EQ(a.end, b.end);
      EXPECT_EQ(a.writable, b.writable);
      EXPECT_EQ(a.shared, b.shared);
      EXPECT_EQ(a.plain, b.plain) << std::hex << a.begin;
      EXPECT_EQ(a.inode, b.inode);
      EXPECT_EQ(a.device, b.device);
    }
  }
}

TEST(RegionVma, ListVmas_StackAndFiles_AreNotPlain) {
  int on_stack = 0;
  const auto plain = [](const void* address) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    auto vmas = list_vmas(at, at + 1);
    return vmas && !vmas->empty() && vmas->front().plain;
  };
  Memory memory(1);
  EXPECT_TRUE(plain(memory.data()));
  EXPECT_FALSE(plain(&on_stack));
  EXPECT_FALSE(plain(reinterpret_cast<const void*>(&memcpy)));
}

}  // namespace
}  // namespace nupa::memory::testing
