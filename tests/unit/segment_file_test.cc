// SPDX-License-Identifier: Apache-2.0
/// What this process believes of another one's shared file: nothing beyond its end, no count, no other version.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/shared_file.h"
#include "core/index_pool.h"
#include "segment/segment.h"

namespace nupa::segment {
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
    return found ? 0 : found.error().code;
  }
};

TEST_F(SegmentFile, NothingBeyondTheEndIsMapped) {
  auto file = make(kWindow + 8192);
  EXPECT_EQ(error_of(*file, kWindow + 8192, 4096), ERANGE);
  EXPECT_EQ(error_of(*file, kWindow + 4096, 8192), ERANGE);
  EXPECT_EQ(error_of(*file, kWindow + 8192 - 64, 65), ERANGE);
  EXPECT_EQ(error_of(*file, uint64_t{1} << 40, 4096), ERANGE);
  EXPECT_EQ(error_of(*file, 0, kWindow + 8193), ERANGE);
  EXPECT_EQ(error_of(*file, kWindow + 8192 - 64, 64), 0);
}

TEST_F(SegmentFile, WhatIsMappedAlreadyDoesNotReachBeyondTheEnd) {
  auto file = make(4096);
  ASSERT_EQ(error_of(*file, 0, 4096), 0);  // the whole window is mapped now, of which the file has a page
  EXPECT_EQ(error_of(*file, 4096, 4096), ERANGE);
  ASSERT_EQ(ftruncate(file->fd(), 8192), 0);
  EXPECT_EQ(error_of(*file, 4096, 4096), 0);
}

TEST_F(SegmentFile, ObjectsDoNotStraddleWhatIsMapped) {
  auto file = make(4 * kWindow);
  EXPECT_EQ(error_of(*file, kWindow - 4096, 8192), ERANGE);
  EXPECT_EQ(error_of(*file, kWindow - 4096, 4096), 0);
  EXPECT_EQ(error_of(*file, 0, kWindow), 0);
  EXPECT_EQ(error_of(*file, 0, 2 * kWindow), 0);
}

TEST_F(SegmentFile, LargeObjectAndTheWindowThatBeginsThereAreTheSameBytes) {
  auto file = make(4 * kWindow);
  auto* const window = static_cast<char*>(*file->at(2 * kWindow + 64, 64));
  auto* const large = static_cast<char*>(*file->at(2 * kWindow, 2 * kWindow));
  std::strcpy(window, "here");
  EXPECT_STREQ(large + 64, "here");
  std::strcpy(large + 2 * kWindow - 8, "end");
  EXPECT_STREQ(static_cast<char*>(*file->at(4 * kWindow - 8, 8)), "end");
}

TEST_F(SegmentFile, ClosedFileShowsWhatItHasAndNoMore) {
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

TEST_F(SegmentFile, OnlyTablesOfThisVersionAreBelieved) {
  auto own = Segment::create();
  ASSERT_TRUE(own);
  MappedFile file(base::UniqueFd(dup((*own)->fd())));
  SegmentHeader& header = *(*own)->tables().header;
  EXPECT_TRUE(map_tables(file));
  header.version = kLayoutVersion + 1;
  EXPECT_EQ(map_tables(file).error().code, EPROTO);
  header.version = kLayoutVersion;
  header.magic = kMagic + 1;
  EXPECT_EQ(map_tables(file).error().code, EPROTO);
  header.magic = kMagic;
  EXPECT_TRUE(map_tables(file));
  auto small = make(kHeapOffset - 1);
  EXPECT_FALSE(map_tables(*small));
}

TEST_F(SegmentFile, CountsOfAnotherProcessAreNotBelieved) {
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

TEST(IndexPool, GivesTheNumberThatHasBeenFreeLongest) {
  core::IndexPool pool(2, 6);
  for (const int64_t number : {2, 3, 4, 5, -1}) EXPECT_EQ(pool.take(), number);
  pool.give_back(4);
  pool.give_back(3);
  EXPECT_EQ(pool.take(), 3) << "the next in turn";
  EXPECT_EQ(pool.take(), 4);
  EXPECT_EQ(pool.take(), -1);
  pool.give_back(2);
  EXPECT_EQ(pool.take(), 2);
}

TEST(IndexPool, DoesNotUseANumberAgainAtOnce) {
  core::IndexPool pool(1, 4);
  std::vector<int64_t> taken;
  for (int i = 0; i < 6; ++i) {
    taken.push_back(pool.take());
    pool.give_back(static_cast<uint32_t>(taken.back()));
  }
  EXPECT_EQ(taken, (std::vector<int64_t>{1, 2, 3, 1, 2, 3}));
}

}  // namespace
}  // namespace nupa::segment
