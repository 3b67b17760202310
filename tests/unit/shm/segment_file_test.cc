// SPDX-License-Identifier: Apache-2.0
/// Checks of another process's shared file: its end, the counts in its tables, and its version.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

#include "base/shared_file.h"
#include "core/index_pool.h"
#include "shm/qp_banks.h"
#include "shm/segment.h"

namespace nupa::shm {
namespace {

constexpr uint64_t kWindow = MappedFile::kWindow;

class SegmentFile : public ::testing::Test {
 protected:
  /// A file of `bytes`, as a peer's that could be of any size.
  std::unique_ptr<MappedFile> make(uint64_t bytes) {
    auto fd = base::make_shared_file("nupa-segment-file-test");
    EXPECT_TRUE(fd);
    EXPECT_EQ(ftruncate(fd->get(), static_cast<off_t>(bytes)), 0);
    return std::make_unique<MappedFile>(std::move(*fd));
  }
  static int error_of(MappedFile& file, uint64_t offset, uint64_t length) {
    const auto found = file.at(offset, length);
    return found ? 0 : found.error().code();
  }
};

TEST_F(SegmentFile, At_BeyondTheEnd_FailsWithErange) {
  auto file = make(kWindow + 8192);
  EXPECT_EQ(error_of(*file, kWindow + 8192, 4096), ERANGE);
  EXPECT_EQ(error_of(*file, kWindow + 4096, 8192), ERANGE);
  EXPECT_EQ(error_of(*file, kWindow + 8192 - 64, 65), ERANGE);
  EXPECT_EQ(error_of(*file, uint64_t{1} << 40, 4096), ERANGE);
  EXPECT_EQ(error_of(*file, 0, kWindow + 8193), ERANGE);
  EXPECT_EQ(error_of(*file, kWindow + 8192 - 64, 64), 0);
}

TEST_F(SegmentFile, At_WindowIsMapped_FailsBeyondTheEnd) {
  auto file = make(4096);
  ASSERT_EQ(error_of(*file, 0, 4096), 0);  // the whole window is mapped now, of which the file has a page
  EXPECT_EQ(error_of(*file, 4096, 4096), ERANGE);
  ASSERT_EQ(ftruncate(file->fd(), 8192), 0);
  EXPECT_EQ(error_of(*file, 4096, 4096), 0);
}

TEST_F(SegmentFile, At_ObjectAcrossWindows_FailsWithErange) {
  auto file = make(4 * kWindow);
  EXPECT_EQ(error_of(*file, kWindow - 4096, 8192), ERANGE);
  EXPECT_EQ(error_of(*file, kWindow - 4096, 4096), 0);
  EXPECT_EQ(error_of(*file, 0, kWindow), 0);
  EXPECT_EQ(error_of(*file, 0, 2 * kWindow), 0);
}

TEST_F(SegmentFile, At_LargeObjectAndItsWindow_ShowTheSameBytes) {
  auto file = make(4 * kWindow);
  auto* const window = static_cast<char*>(*file->at(2 * kWindow + 64, 64));
  auto* const large = static_cast<char*>(*file->at(2 * kWindow, 2 * kWindow));
  std::strcpy(window, "here");
  EXPECT_STREQ(large + 64, "here");
  std::strcpy(large + 2 * kWindow - 8, "end");
  EXPECT_STREQ(static_cast<char*>(*file->at(4 * kWindow - 8, 8)), "end");
}

TEST_F(SegmentFile,
       At_ObjectHasGrown_KeepsTheEarlierMapping) {  // somebody may look at it while its owner says it is larger
  auto file = make(8 * kWindow);
  auto* const small = static_cast<char*>(*file->at(2 * kWindow, 2 * kWindow));
  std::strcpy(small, "small");
  auto* const large = static_cast<char*>(*file->at(2 * kWindow, 3 * kWindow));
  std::strcpy(large + 3 * kWindow - 8, "end");
  ASSERT_EQ(msync(small, 2 * kWindow, MS_ASYNC), 0) << "it is not mapped any more";
  EXPECT_STREQ(small, "small");
  EXPECT_STREQ(large, "small");
  EXPECT_EQ(*file->at(2 * kWindow, 3 * kWindow), large) << "mapped once";
  const void* const within = *file->at(2 * kWindow, kWindow + 1);
  EXPECT_TRUE(within == small || within == large) << "what is mapped is enough";
}

TEST_F(SegmentFile, CloseFile_MappedPart_StaysReadable) {
  auto file = make(4 * kWindow);
  auto* const seen = static_cast<char*>(*file->at(0, 64));
  std::strcpy(seen, "still there");
  file->close_file();
  EXPECT_EQ(*file->at(0, 64), seen);
  EXPECT_STREQ(seen, "still there");
  EXPECT_EQ(error_of(*file, kWindow, 64), ESRCH);
  file->let_go();
  EXPECT_EQ(seen[0], 0);
  seen[0] = 'x';  // and may be written
}

/// Whether each page of it is mapped.
bool is_mapped(void* address, uint64_t length) { return msync(address, length, MS_ASYNC) == 0; }

/// The flags of the mapping that begins there, as proc(5) lists them.
std::string flags_of_mapping(const void* address) {
  char start[32];
  std::snprintf(start, sizeof start, "%lx-", reinterpret_cast<unsigned long>(address));
  std::ifstream maps("/proc/self/smaps");
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.starts_with(start)) found = true;
    if (found && line.starts_with("VmFlags:")) return line + ' ';
  }
  return "";
}

TEST_F(SegmentFile, At_LargerObjectAtTheSamePlace_IsMappedToItsEnd) {
  auto file = make(8 * kWindow);
  void* const large = *file->at(0, 2 * kWindow);
  EXPECT_TRUE(is_mapped(large, 2 * kWindow));
  void* const larger = *file->at(0, 4 * kWindow);
  EXPECT_TRUE(is_mapped(larger, 4 * kWindow));
  EXPECT_TRUE(is_mapped(large, 2 * kWindow)) << "somebody may still look at it";
  EXPECT_EQ(large, *file->at(0, 2 * kWindow));
  EXPECT_EQ(larger, *file->at(0, 3 * kWindow)) << "which is part of it";
}

TEST_F(SegmentFile, Mapping_IsNotInCoreDumpsAndEndsWithTheFile) {
  auto file = make(4 * kWindow);
  void* const window = *file->at(0, 64);
  const std::string flags = flags_of_mapping(window);
  EXPECT_TRUE(flags.empty() || flags.find(" dd ") != std::string::npos) << flags;
  file.reset();
  EXPECT_FALSE(is_mapped(window, kWindow));
}

// Blocks that a process gives out of its own segment.

TEST(SegmentBlocks, Allocate_Size_IsRoundedUpAndAligned) {
  auto own = Segment::create();
  ASSERT_TRUE(own);
  for (const uint64_t bytes : {uint64_t{1}, kPage, kPage + 1, 3 * kPage, kWindow, kWindow + 1}) {
    const auto block = (*own)->allocate(bytes);
    ASSERT_TRUE(block) << bytes;
    EXPECT_GE(block->size, bytes);
    EXPECT_LT(block->size, 2 * std::max(bytes, kPage));
    EXPECT_EQ(0u, block->size & (block->size - 1)) << "a power of two";
    EXPECT_EQ(0u, block->offset % block->size) << bytes;
    EXPECT_GE(block->offset, kHeapOffset) << "behind the tables";
    EXPECT_TRUE(is_mapped(block->address, block->size));
    struct stat status;
    ASSERT_EQ(0, fstat((*own)->fd(), &status));
    const uint64_t end = block->offset + block->size;
    EXPECT_EQ(static_cast<uint64_t>(status.st_size), (end + kWindow - 1) / kWindow * kWindow)
        << "no more than it takes";
    static_cast<char*>(block->address)[block->size - 1] = 1;
  }
  const auto too_large = (*own)->allocate(uint64_t{1} << 40);
  ASSERT_FALSE(too_large);
  EXPECT_EQ(ENOMEM, too_large.error().code());
}

TEST(SegmentBlocks, Allocate_PartSkippedForAlignment_IsUsedLater) {
  auto own = Segment::create();
  ASSERT_TRUE(own);
  constexpr uint64_t kLargePages = 64;
  const auto first = (*own)->allocate(kPage);
  const auto large = (*own)->allocate(kLargePages * kPage);
  ASSERT_TRUE(first && large);
  const uint64_t skipped = (large->offset - first->offset) / kPage - 1;
  ASSERT_EQ(kLargePages - 1, skipped);
  // Its parts are blocks of 32, 16, ... pages and one.
  for (uint64_t pages = kLargePages / 2; pages > 0; pages /= 2) {
    const auto block = (*own)->allocate(pages * kPage);
    ASSERT_TRUE(block);
    EXPECT_LT(block->offset, large->offset) << pages;
    EXPECT_GT(block->offset, first->offset) << pages;
  }
  const auto next = (*own)->allocate(kPage);
  ASSERT_TRUE(next);
  EXPECT_GE(next->offset, large->offset + large->size) << "all of it is given out";
}

TEST(SegmentBlocks, Release_Block_IsZeroedAndReusedOnlyIfAllowed) {
  auto own = Segment::create();
  ASSERT_TRUE(own);
  const auto first = (*own)->allocate(2 * kPage);
  ASSERT_TRUE(first);
  std::memset(first->address, 7, first->size);
  (*own)->release(*first, true);
  const auto other_size = (*own)->allocate(kPage);
  ASSERT_TRUE(other_size);
  EXPECT_NE(first->offset, other_size->offset);
  const auto again = (*own)->allocate(2 * kPage);
  ASSERT_TRUE(again);
  EXPECT_EQ(first->offset, again->offset);
  for (uint64_t i = 0; i < again->size; ++i) ASSERT_EQ(0, static_cast<const char*>(again->address)[i]) << i;
  (*own)->release(*again, false);
  const auto later = (*own)->allocate(2 * kPage);
  ASSERT_TRUE(later);
  EXPECT_NE(first->offset, later->offset);
  (*own)->release({}, true);  // nothing is no block
}

TEST_F(SegmentFile, MapTables_OtherVersion_FailsWithEproto) {
  auto own = Segment::create();
  ASSERT_TRUE(own);
  MappedFile file(base::UniqueFd(dup((*own)->fd())));
  SegmentHeader& header = *(*own)->tables().header;
  EXPECT_TRUE(map_tables(file));
  header.version = kLayoutVersion + 1;
  EXPECT_EQ(map_tables(file).error().code(), EPROTO);
  header.version = kLayoutVersion;
  header.magic = kMagic + 1;
  EXPECT_EQ(map_tables(file).error().code(), EPROTO);
  header.magic = kMagic;
  EXPECT_TRUE(map_tables(file));
  auto small = make(kHeapOffset - 1);
  EXPECT_FALSE(map_tables(*small));
}

TEST_F(SegmentFile, HasGid_CountsBeyondTheTable_AreLimited) {
  auto own = Segment::create();
  ASSERT_TRUE(own);
  SegmentHeader& header = *(*own)->tables().header;
  Gid beyond;
  beyond.raw[15] = 1;
  header.device_count = 1;
  GidTableShared& table = header.devices[0];
  table.count = kMaxGids + 1;
  std::memcpy(reinterpret_cast<std::byte*>(table.gids) + sizeof table.gids, &beyond, sizeof beyond);
  EXPECT_FALSE(has_gid(header, beyond)) << "behind the last GID of a device";
  table.gids[kMaxGids - 1] = beyond;
  EXPECT_TRUE(has_gid(header, beyond));
  GidTableShared behind{};
  behind.count = 1;
  behind.gids[0] = beyond;
  for (GidTableShared& device : header.devices) device = {};
  header.device_count = kMaxDevices + 1;
  std::memcpy(reinterpret_cast<std::byte*>(header.devices) + sizeof header.devices, &behind, sizeof behind);
  EXPECT_FALSE(has_gid(header, beyond)) << "behind the last device";
  header.devices[kMaxDevices - 1] = behind;
  EXPECT_TRUE(has_gid(header, beyond));
}

TEST(IndexPool, Take_FreeNumbers_GivesTheLongestFree) {
  core::IndexPool pool(2, 6);
  for (const int64_t number : {2, 3, 4, 5, -1}) EXPECT_EQ(pool.take(), number);
  pool.give_back(4);
  pool.give_back(3);
  EXPECT_EQ(pool.take(), 4);
  EXPECT_EQ(pool.take(), 3);
  EXPECT_EQ(pool.take(), -1);
  pool.give_back(2);
  EXPECT_EQ(pool.take(), 2);
}

TEST(IndexPool, Extend_NewNumbers_AreGivenFirst) {
  core::IndexPool pool(0, 2);
  for (const int64_t number : {0, 1, -1}) EXPECT_EQ(pool.take(), number);
  pool.give_back(1);
  pool.extend(4);
  for (const int64_t number : {2, 3, 1, -1}) EXPECT_EQ(pool.take(), number);
}

/// A process's queue pairs as a peer sees them.
class SegmentQpBanks : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = Segment::create();
    ASSERT_TRUE(made);
    owner = std::move(*made);
    header().slot = 3;
    file = std::make_unique<MappedFile>(base::UniqueFd(fcntl(owner->fd(), F_DUPFD_CLOEXEC, 0)));
    auto tables = map_tables(*file);
    ASSERT_TRUE(tables);
    banks.open(file.get(), *tables, 3);
  }
  SegmentHeader& header() { return *owner->tables().header; }
  QpBankShared* show(uint32_t bank, uint32_t slot) {
    auto block = owner->allocate(sizeof(QpBankShared));
    if (!block) return nullptr;
    header().further_banks[bank - 1].offset = block->offset;
    header().further_banks[bank - 1].slot = slot;
    return static_cast<QpBankShared*>(block->address);
  }
  uint32_t count() {
    uint32_t seen = 0;
    all = banks.each([&seen](const QpBank& bank, uint32_t number) { seen += bank && number == seen ? 1 : 100; });
    return seen;
  }

  std::unique_ptr<Segment> owner;
  std::unique_ptr<MappedFile> file;
  QpBanks banks;
  bool all = false;
};

TEST_F(SegmentQpBanks, FurtherBank_OnceItExists_IsFound) {
  EXPECT_EQ(banks.index_of(number_of(3, 7)), 7u);
  EXPECT_EQ(banks.index_of(number_of(9, 7)), std::nullopt);
  EXPECT_FALSE(banks.has_slot(9));
  EXPECT_FALSE(banks.has_slot(0));
  EXPECT_EQ(banks.qp(kSlotQp + 7), nullptr);
  EXPECT_EQ(count(), 1u);
  QpBankShared* const shared = show(1, 9);
  ASSERT_NE(shared, nullptr);
  shared->qp[7].qp_num = 77;
  EXPECT_TRUE(claims_slot(header(), 9));
  EXPECT_FALSE(claims_slot(header(), 0));
  EXPECT_TRUE(banks.has_slot(9));
  ASSERT_EQ(banks.index_of(number_of(9, 7)), kSlotQp + 7);
  EXPECT_EQ(banks.qp(kSlotQp + 7)->qp_num, 77u);
  EXPECT_EQ(banks.statistics(kSlotQp + 7), banks.at(1).statistics + 7);
  EXPECT_NE(banks.at(1).statistics, banks.at(0).statistics);
  shared->high_water = ~0u;
  EXPECT_EQ(banks.at(1).count(), kSlotQp) << "no count is believed";
  EXPECT_EQ(count(), 2u);
  EXPECT_TRUE(all);
  ASSERT_NE(show(2, 5), nullptr);
  EXPECT_EQ(banks.index_of(number_of(5, 1)), 2 * kSlotQp + 1);
  EXPECT_EQ(banks.at(kMaxBanks).qp, nullptr);
}

TEST_F(SegmentQpBanks, FurtherBank_InvalidPlace_IsNotMapped) {
  const auto refuse = [&](uint32_t slot, uint64_t offset) {
    header().further_banks[0].offset = offset;
    header().further_banks[0].slot = slot;
    EXPECT_EQ(banks.index_of(number_of(slot & 0xfff, 0)), std::nullopt) << slot << " " << offset;
    EXPECT_EQ(count(), 1u);
    EXPECT_FALSE(all) << "and who waits for all of them knows";
  };
  ASSERT_TRUE(owner->allocate(2 * sizeof(QpBankShared)));  // there is memory at these offsets
  refuse(9, kHeapOffset + 64);
  refuse(9, uint64_t{1} << 40);
  refuse(9, MappedFile::kWindow * 4 - kPage);
  refuse(kMaxSlot + 1, kHeapOffset);
  ASSERT_NE(show(1, 9), nullptr);
  EXPECT_EQ(banks.index_of(number_of(9, 0)), kSlotQp);
  header().further_banks[0].slot = 10;
  EXPECT_EQ(banks.index_of(number_of(9, 0)), kSlotQp) << "what it said first holds";
  EXPECT_FALSE(banks.index_of(number_of(10, 0)));
}

TEST_F(SegmentFile, ErrorTexts_NameTheOwnerAndTheRange) {
  auto fd = base::make_shared_file("nupa-segment-file-test");
  ASSERT_TRUE(fd);
  MappedFile file(std::move(*fd), "process 4711");
  EXPECT_STREQ(file.at(8192, 64).error().what(),
               "64 bytes at offset 8192 are beyond the end of the shared file of process 4711");
  EXPECT_STREQ(file.at(kWindow - 64, 128).error().what(),
               "an object crosses the boundary of two mappings of the shared file of process 4711: 128 bytes at offset "
               "16777152");
  file.close_file();
  EXPECT_STREQ(file.at(0, 64).error().what(), "the shared file of process 4711 is closed: the process has exited");
}

TEST_F(SegmentFile, Fork_MappedFile_IsBlankAndRefusedInTheChild) {
  auto file = make(2 * kWindow);
  auto* const word = static_cast<uint32_t*>(*file->at(0, 64));
  *word = 1;
  const int number = file->fd();
  const pid_t child = fork();
  if (child == 0) {
    const bool is_blank = *word == 0;
    *word = 2;
    const bool is_closed = fcntl(number, F_GETFD) == -1;
    const bool is_refused = error_of(*file, 0, 64) == ESRCH && error_of(*file, kWindow, 64) == ESRCH;
    // Its number is another file's by the time it is destroyed.
    const bool has_number = dup2(STDERR_FILENO, number) == number;
    file.reset();
    _exit(is_blank && is_closed && is_refused && has_number && fcntl(number, F_GETFD) != -1 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(*word, 1u);
  EXPECT_EQ(error_of(*file, kWindow, 64), 0);
}

TEST(IndexPool, Take_NumberGivenBack_IsNotReusedAtOnce) {
  core::IndexPool pool(1, 4);
  std::vector<int64_t> taken;
  for (int i = 0; i < 6; ++i) {
    taken.push_back(pool.take());
    pool.give_back(static_cast<uint32_t>(taken.back()));
  }
  EXPECT_EQ(taken, (std::vector<int64_t>{1, 2, 3, 1, 2, 3}));
}

}  // namespace
}  // namespace nupa::shm
