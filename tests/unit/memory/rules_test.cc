// SPDX-License-Identifier: Apache-2.0
/// Tests of registered memory: protections, the file that peers map, and the mappings that the kernel lists.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "../../support/soon.h"
#include "memory/write_guard.h"
#include "region_test_support.h"
#include "rules.h"

namespace nupa::memory::testing {
namespace {

struct Expected {
  uintptr_t first, last, offset;  ///< pages
};

/// All in pages.
void expect_pieces(const std::vector<Piece>& found, const std::vector<Expected>& expected) {
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(page(expected[i].first), found[i].begin) << i;
    EXPECT_EQ(page(expected[i].last), found[i].end) << i;
    EXPECT_EQ(page(expected[i].offset), found[i].file_offset) << i;
  }
}

// Memory of other protections.

TEST(RegionProtection, WriteOnlyMemory_MovesAndKeepsItsProtection) {
  for (const Way& way : kWays) {
    auto remapper = make_remapper(Policy::kAuto, {.may_move = way.may_move});
    Memory plain(2), memory(600, PROT_WRITE);
    for (Memory* each : {&plain, &memory, &plain}) {
      each->fill();
      auto pieces = remapper->share(each->data(), each->size(), true);
      ASSERT_TRUE(pieces) << way.name;
      ASSERT_EQ(1u, pieces->size()) << way.name;
      EXPECT_EQ(each->size(), bytes_of(*pieces)) << way.name;
      View view(remapper->fd(), pieces->front());
      EXPECT_EQ(0, std::memcmp(view.data(), each->data(), each->size())) << way.name;
      auto shown = list_vmas(each->address(), each->address() + 1);
      ASSERT_TRUE(shown);
      EXPECT_EQ(each == &plain, shown->front().readable) << way.name;
      EXPECT_TRUE(shown->front().writable) << way.name;
      remapper->unshare(each->data(), each->size());
      EXPECT_TRUE(each->filled()) << way.name;
      shown = list_vmas(each->address(), each->address() + 1);
      ASSERT_TRUE(shown);
      EXPECT_EQ(each == &plain, shown->front().readable) << way.name;
    }
    EXPECT_FALSE(remapper->share(memory.data(), memory.size(), false)) << "to read it is not allowed";
  }
}

// Memory that other threads read at any time.

/// Reads each page. Memory of an address sanitizer may look like that, too, and it reports what reads its own.
[[gnu::noinline, gnu::no_sanitize_address]] void read_pages(uintptr_t begin, uintptr_t end) {
  for (uintptr_t at = begin; at < end; at += kPageSize)
    [[maybe_unused]] const char byte = *reinterpret_cast<const volatile char*>(at);
}

TEST(RegionScratch, Share_ScratchMemoryReadBetweenTwoMoves_MovesEverything) {
  constexpr uintptr_t kScratch = uintptr_t{2} << 20;
  if (!WriteGuard::open().can_move()) GTEST_SKIP() << "no UFFDIO_MOVE";
  auto remapper = make_remapper();
  Memory memory(1100);
  memory.fill();
  for (int round = 0; round < 2; ++round) {
    auto pieces = remapper->share(memory.data(), memory.size(), true);
    ASSERT_TRUE(pieces);
    EXPECT_EQ(memory.size(), bytes_of(*pieces)) << round;
    int found = 0;
    auto vmas = list_vmas(0, UINTPTR_MAX);
    ASSERT_TRUE(vmas);
    for (const Vma& vma : *vmas) {
      if (!vma.readable || !vma.plain || vma.end - vma.begin != kScratch || vma.begin % kScratch != 0) continue;
      ++found;
      read_pages(vma.begin, vma.end);
    }
    EXPECT_GE(found, 1) << "the scratch memory is not one mapping";
    remapper->unshare(memory.data(), memory.size());
    EXPECT_TRUE(memory.filled());
  }
}

// Which pages are in the file.

TEST(RegionIntervalRules, Erase_MiddleOfAPiece_LeavesBothEnds) {
  IntervalMap map;
  map.insert({page(10), page(20), page(100)});
  map.erase(page(13), page(15));
  expect_pieces(map.pieces(0, UINTPTR_MAX), {{10, 13, 100}, {15, 20, 105}});
  map.erase(page(0), page(11));
  map.erase(page(19), page(90));
  expect_pieces(map.pieces(0, UINTPTR_MAX), {{11, 13, 101}, {15, 19, 105}});
  EXPECT_EQ(2u, map.size());
  map.erase(0, UINTPTR_MAX);
  EXPECT_TRUE(map.empty());
}

TEST(RegionIntervalRules, Insert_EmptyRange_AddsNoPiece) {
  IntervalMap map;
  map.insert({page(3), page(3), 0});
  map.insert({page(3), page(2), 0});
  EXPECT_TRUE(map.empty());
}

TEST(RegionIntervalRules, Pieces_PartOfARange_HasItsPlaceInTheFile) {
  IntervalMap map;
  map.insert({page(10), page(20), page(100)});
  map.insert({page(20), page(22), page(300)});
  expect_pieces(map.pieces(page(12), page(14)), {{12, 14, 102}});
  expect_pieces(map.pieces(page(18), page(21)), {{18, 20, 108}, {20, 21, 300}});
  EXPECT_TRUE(map.pieces(page(22), page(30)).empty()) << "it ends there";
  EXPECT_TRUE(map.pieces(page(0), page(10)).empty()) << "it begins there";
  expect_pieces(map.pieces(page(9), page(11)), {{10, 11, 100}});
}

TEST(RegionIntervalRules, HoldAndDrop_SeveralUsers_AreCountedPerPage) {
  IntervalMap map;
  map.insert({page(10), page(20), 0});
  map.hold(page(10), page(20));
  map.hold(page(12), page(16));
  map.drop({page(10), page(20), 0});
  expect_pieces(map.pieces(0, UINTPTR_MAX, true), {{10, 12, 0}, {16, 20, 6}});
  map.drop({page(12), page(16), page(2)});
  EXPECT_EQ(10 * kPageSize, bytes_of(map.pieces(0, UINTPTR_MAX, true)));
  map.drop({page(12), page(16), page(2)});
  map.hold(page(12), page(13));
  EXPECT_EQ(9 * kPageSize, bytes_of(map.pieces(0, UINTPTR_MAX, true))) << "dropped once too often is not owed";
}

TEST(RegionIntervalRules, Hold_PartOfAPiece_LeavesTheRest) {
  IntervalMap map;
  map.insert({page(10), page(20), page(50)});
  expect_pieces(map.hold(page(13), page(15)), {{13, 15, 53}});
  expect_pieces(map.pieces(0, UINTPTR_MAX, true), {{10, 13, 50}, {15, 20, 55}});
}

TEST(RegionIntervalRules, Drop_PartOfAPiece_ChangesItsPagesOnly) {
  IntervalMap map;
  map.insert({page(10), page(20), page(50)});
  map.hold(page(10), page(20));
  map.drop({page(13), page(15), page(53)});
  expect_pieces(map.pieces(0, UINTPTR_MAX, true), {{13, 15, 53}});
}

/// Mappings as the kernel would tell them.
Vma vma_of(const RegionFile& file, uintptr_t first, uintptr_t last, uintptr_t offset) {
  struct stat status;
  EXPECT_EQ(0, fstat(file.fd(), &status));
  Vma vma;
  vma.begin = page(first);
  vma.end = page(last);
  vma.readable = vma.writable = vma.shared = true;
  vma.file_offset = page(offset);
  vma.device = status.st_dev;
  vma.inode = status.st_ino;
  return vma;
}

TEST(RegionFileRules, Shows_MappingOfThatPlace_IsTrue) {
  const auto file = RegionFile::create();
  ASSERT_TRUE(file);
  const Vma vma = vma_of(*file, 10, 20, 100);
  EXPECT_TRUE(file->shows(vma, page(10), page(100)));
  EXPECT_TRUE(file->shows(vma, page(19), page(109)));
  EXPECT_FALSE(file->shows(vma, page(20), page(110))) << "its end";
  EXPECT_FALSE(file->shows(vma, page(9), page(99)));
  EXPECT_FALSE(file->shows(vma, page(12), page(103))) << "another part of the file";
  Vma other = vma;
  other.shared = false;
  EXPECT_FALSE(file->shows(other, page(10), page(100))) << "a copy of it";
  other = vma;
  ++other.inode;
  EXPECT_FALSE(file->shows(other, page(10), page(100)));
  other = vma;
  ++other.device;
  EXPECT_FALSE(file->shows(other, page(10), page(100)));
}

TEST(RegionFileRules, ForgetStale_ReplacedMappings_AreRemoved) {
  const auto file = RegionFile::create();
  ASSERT_TRUE(file);
  IntervalMap map;
  map.insert({page(10), page(20), page(100)});
  map.insert({page(30), page(32), page(200)});
  Vma replaced = vma_of(*file, 16, 18, 0);
  replaced.shared = false;
  replaced.inode = 0;
  // [12, 14) is unmapped, [16, 18) replaced, [18, 20) shows another part of the file.
  const std::vector<Vma> vmas = {vma_of(*file, 10, 12, 100), vma_of(*file, 14, 16, 104), replaced,
                                 vma_of(*file, 18, 20, 500)};
  expect_pieces(map.forget_stale(page(10), page(20), vmas, *file), {{12, 14, 102}, {16, 18, 106}, {18, 20, 108}});
  expect_pieces(map.pieces(0, UINTPTR_MAX), {{10, 12, 100}, {14, 16, 104}, {30, 32, 200}});
  expect_pieces(map.forget_stale(page(31), page(40), {}, *file), {{31, 32, 201}});
  expect_pieces(map.forget_stale(page(0), page(13), {vma_of(*file, 8, 11, 98)}, *file), {{11, 12, 101}});
}

TEST(RegionFileRules, Reserve_UntilTheLimit_FailsWithEfbig) {
  auto file = RegionFile::create();
  ASSERT_TRUE(file);
  EXPECT_EQ(0u, *file->reserve(page(1)));
  EXPECT_EQ(page(2), *file->reserve(page(4))) << "as much is left empty behind each part";
  EXPECT_EQ(page(10), *file->reserve(page(1)));
  struct stat status;
  ASSERT_EQ(0, fstat(file->fd(), &status));
  EXPECT_EQ(file->size(), static_cast<uint64_t>(status.st_size));
  EXPECT_GE(file->size(), UINT64_C(1) << 40) << "the program may lengthen a mapping";
  EXPECT_EQ(EFBIG, file->reserve((UINT64_C(1) << 60) + 1).error().code());
  EXPECT_EQ(page(12), *file->reserve(page(1))) << "a refusal takes nothing";
}

TEST(RegionFileRules, Reserve_FileSizeIsLimited_GrowsToWhatIsNeeded) {
  EXPECT_EQ(0, in_child([] {
              const rlimit limit{page(8), RLIM_INFINITY};
              auto file = RegionFile::create();
              if (!file || setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
              if (!file->reserve(page(2)) || file->size() != page(2)) return 2;
              if (!file->reserve(page(4)) || file->size() != page(8)) return 3;
              const auto beyond = file->reserve(page(1));
              return !beyond && beyond.error().code() == EFBIG ? 0 : 4;
            }));
}

TEST(RegionFileRules, NextData_BehindHoles_IsFound) {
  auto file = RegionFile::create();
  ASSERT_TRUE(file && file->reserve(page(100)));
  const FileHandle handle = file->handle();
  uint64_t data = 0, end = 0;
  EXPECT_FALSE(handle.next_data(0, page(100), &data, &end));
  ASSERT_EQ(1, pwrite(file->fd(), "x", 1, static_cast<off_t>(page(50))));
  ASSERT_TRUE(handle.next_data(0, page(100), &data, &end));
  EXPECT_EQ(page(50), data);
  EXPECT_GT(end, page(50));
  EXPECT_LE(end, page(100));
  EXPECT_FALSE(handle.next_data(0, page(50), &data, &end)) << "it lies behind";
  EXPECT_FALSE(handle.next_data(page(50), page(50), &data, &end));
  file->punch(page(50), page(1));
  EXPECT_FALSE(handle.next_data(0, page(100), &data, &end));
  file->punch(0, 0);
}

// What the kernel tells.

TEST(RegionVmaRules, ListVmas_Range_ListsOnlyWhatOverlaps) {
  Memory memory(6);
  ASSERT_EQ(0, mprotect(memory.data() + page(2), page(2), PROT_READ));
  for (const bool by_text : {false, true}) {
    const auto list = by_text ? list_vmas_by_text : list_vmas;
    const auto middle = list(memory.address() + page(2), memory.address() + page(4));
    ASSERT_TRUE(middle);
    ASSERT_EQ(1u, middle->size()) << by_text;
    EXPECT_EQ(memory.address() + page(2), middle->front().begin);
    EXPECT_EQ(memory.address() + page(4), middle->front().end);
    EXPECT_FALSE(middle->front().writable);
    EXPECT_EQ(2u, list(memory.address() + page(2) - 1, memory.address() + page(4))->size()) << by_text;
    EXPECT_EQ(2u, list(memory.address() + page(2), memory.address() + page(4) + 1)->size()) << by_text;
  }
}

TEST(RegionVmaRules, ListVmas_MappingThatBeginsAtTheEnd_IsNotListed) {
  Memory memory(6);
  ASSERT_EQ(0, memory.unmap(page(2), page(2)));
  for (const bool by_text : {false, true}) {
    const auto list = by_text ? list_vmas_by_text : list_vmas;
    const auto hole = list(memory.address() + page(2), memory.address() + page(4));
    ASSERT_TRUE(hole);
    EXPECT_EQ(0u, hole->size()) << by_text;
    const auto before = list(memory.address() + page(1), memory.address() + page(4));
    ASSERT_TRUE(before);
    ASSERT_EQ(1u, before->size()) << by_text;
    EXPECT_EQ(memory.address() + page(2), before->front().end) << by_text;
  }
}

TEST(RegionVmaRules, TouchedPages_WrittenPages_AreListed) {
  Memory memory(1100);
  for (const size_t at : {0, 511, 512, 1099}) memory.data()[page(at)] = 1;
  const std::vector<bool> touched = touched_pages(memory.address(), memory.address() + memory.size());
  ASSERT_EQ(1100u, touched.size());
  for (size_t i = 0; i < touched.size(); ++i) EXPECT_EQ(i == 0 || i == 511 || i == 512 || i == 1099, touched[i]) << i;
}

TEST(RegionVmaRules, ThreadCount_OneMoreThread_IsCounted) {
  std::thread([] {}).join();  // with the first one a sanitizer may start a thread that stays
  const auto counts_one_more = [] {
    const int before = thread_count();
    const bool is_listed = entries_of("/proc/self/task") == static_cast<size_t>(before);
    std::atomic<bool> stop{false};
    std::thread other([&] {
      while (!stop) usleep(100);
    });
    const int beside = thread_count();
    stop = true;
    other.join();
    return is_listed && beside == before + 1;
  };
  EXPECT_TRUE(test::soon(counts_one_more)) << "the kernel lists a thread for a moment after it was joined";
}

TEST(RegionMapped, Mapped_RangeWithoutHolesAndWithTheAccess_IsTrue) {
  Memory memory(6);
  EXPECT_TRUE(Remapper::mapped(memory.data(), memory.size(), true));
  EXPECT_TRUE(Remapper::mapped(memory.data() + 1, 1, true));
  ASSERT_EQ(0, mprotect(memory.data() + page(2), page(1), PROT_READ));
  EXPECT_TRUE(Remapper::mapped(memory.data(), memory.size(), false));
  EXPECT_FALSE(Remapper::mapped(memory.data(), memory.size(), true));
  EXPECT_TRUE(Remapper::mapped(memory.data(), page(2), true));
  ASSERT_EQ(0, mprotect(memory.data() + page(2), page(1), PROT_NONE));
  EXPECT_FALSE(Remapper::mapped(memory.data(), memory.size(), false));
  ASSERT_EQ(0, memory.unmap(page(4), page(1)));
  EXPECT_FALSE(Remapper::mapped(memory.data() + page(3), page(3), false)) << "a hole";
  EXPECT_FALSE(Remapper::mapped(memory.data() + page(3), page(1) + 1, false)) << "one byte of it";
  EXPECT_TRUE(Remapper::mapped(memory.data() + page(3), page(1), false));
  EXPECT_FALSE(Remapper::mapped(memory.data(), SIZE_MAX, false));
}

TEST(RegionPolicy, Policy_FromTheEnvironment_IsRead) {
  const char* const found = getenv("NUPA_REMAP");
  const std::string before = found == nullptr ? "" : found;
  const auto policy = [](const char* text) {
    setenv("NUPA_REMAP", text, 1);
    return policy_from_environment();
  };
  EXPECT_EQ(Policy::kAlways, policy("always"));
  EXPECT_EQ(Policy::kNever, policy("never"));
  EXPECT_EQ(Policy::kAuto, policy("auto"));
  const auto wrong = policy("perhaps");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(EINVAL, wrong.error().code());
  EXPECT_STREQ("NUPA_REMAP=perhaps: expected auto, always or never", wrong.error().what());
  unsetenv("NUPA_REMAP");
  EXPECT_EQ(Policy::kAuto, policy_from_environment());
  if (found != nullptr) setenv("NUPA_REMAP", before.c_str(), 1);
}

// Registrations.

class RegionRules : public ::testing::TestWithParam<Way> {
 protected:
  std::unique_ptr<Remapper> make() {
    RemapOptions options;
    options.may_move = GetParam().may_move;
    return make_remapper(Policy::kAuto, options);
  }
};

INSTANTIATE_TEST_SUITE_P(All, RegionRules, ::testing::ValuesIn(kWays),
                         [](const auto& way) { return std::string(way.param.name); });

TEST_P(RegionRules, Unshare_RangeSharedTwice_StaysSharedUntilTheSecond) {
  auto remapper = make();
  Memory memory(4);
  memory.fill();
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(remapper->share(memory.data(), memory.size(), true));
  remapper->unshare(memory.data(), memory.size());
  EXPECT_TRUE(is_shared(memory.data()));
  remapper->unshare(memory.data(), memory.size());
  EXPECT_FALSE(is_shared(memory.data()));
  remapper->unshare(memory.data(), memory.size());  // once too often: nothing happens
  EXPECT_TRUE(memory.filled());
}

TEST_P(RegionRules, Unshare_RangeThatWasNotShared_ChangesNothing) {
  auto remapper = make();
  Memory memory(4);
  ASSERT_TRUE(remapper->share(memory.data(), memory.size(), true));
  remapper->unshare(memory.data(), page(3));
  remapper->unshare(memory.data() + page(1), page(3));
  EXPECT_TRUE(is_shared(memory.data()));
  EXPECT_TRUE(is_shared(memory.data() + page(3)));
  remapper->unshare(memory.data(), memory.size());
}

TEST_P(RegionRules, Unshare_OneRegistrationOfReplacedMemory_EndsThatOne) {
  auto remapper = make();
  Memory memory(4);
  ASSERT_TRUE(remapper->share(memory.data(), memory.size(), true));
  ASSERT_NE(MAP_FAILED,
            mmap(memory.data(), memory.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
  memory.fill();
  ASSERT_TRUE(remapper->share(memory.data(), memory.size(), true));
  ASSERT_TRUE(is_shared(memory.data()));
  remapper->unshare(memory.data(), memory.size());
  EXPECT_TRUE(is_shared(memory.data())) << "the later one still needs its pages";
  remapper->unshare(memory.data(), memory.size());
  EXPECT_FALSE(is_shared(memory.data()));
  EXPECT_TRUE(memory.filled());
}

TEST_P(RegionRules, Unshare_Everything_LeavesTheFileEmpty) {
  auto remapper = make();
  const auto blocks = [&] {
    struct stat status;
    EXPECT_EQ(0, fstat(remapper->fd(), &status));
    return status.st_blocks;
  };
  Memory memory(300);
  memory.fill();
  ASSERT_TRUE(remapper->share(memory.data(), memory.size(), true));
  EXPECT_GE(blocks() * 512, static_cast<blkcnt_t>(memory.size()));
  remapper->unshare(memory.data(), memory.size());
  EXPECT_EQ(0, blocks());
  auto piece = remapper->allocate(page(3));
  ASSERT_TRUE(piece);
  std::memset(reinterpret_cast<void*>(piece->begin), 1, piece->length());
  EXPECT_GT(blocks(), 0);
  remapper->release(*piece);
  EXPECT_EQ(0, blocks());
  // Memory that the program unmaps by itself is given back when that is noticed.
  {
    Memory gone(20);
    gone.fill();
    ASSERT_TRUE(remapper->share(gone.data(), gone.size(), true));
    ASSERT_EQ(0, gone.unmap(0, gone.size()));
    remapper->unshare(gone.data(), gone.size());
  }
  EXPECT_EQ(0, blocks());
}

TEST_P(RegionRules, Unshare_MemoryThatTheProgramUnmapped_LeavesOtherPieces) {
  auto remapper = make();
  const auto before = remapper->allocate(page(1));
  ASSERT_TRUE(before);
  Memory gone(4);
  gone.fill();
  ASSERT_TRUE(remapper->share(gone.data(), gone.size(), true));
  const auto behind = remapper->allocate(page(1));
  ASSERT_TRUE(behind);
  ASSERT_EQ(0, gone.unmap(0, gone.size()));
  remapper->unshare(gone.data(), gone.size());
  for (const Piece& piece : {*before, *behind}) {
    auto* const memory = reinterpret_cast<uint8_t*>(piece.begin);
    EXPECT_TRUE(is_shared(memory));
    View view(remapper->fd(), piece);
    view.data()[5] = 77;
    EXPECT_EQ(77, memory[5]) << "peers reach it";
    remapper->release(piece);
  }
  struct stat status;
  ASSERT_EQ(0, fstat(remapper->fd(), &status));
  EXPECT_EQ(0, status.st_blocks) << "what was unmapped is given back";
}

}  // namespace
}  // namespace nupa::memory::testing
