// SPDX-License-Identifier: Apache-2.0
/// Places in a pool, and the header that they follow from.
#include "transport/pool/medium/layout.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstddef>
#include <functional>
#include <string>

namespace nupa::pool {
namespace {

constexpr uint64_t kPoolBytes = 8 << 20;

HeaderLine good() {
  HeaderLine header;
  header.hosts = 3;
  header.bytes = kPoolBytes;
  header.block_bytes = 16 << 10;
  header.ring_lines = 256;
  header.records = 4;
  header.checksum = checksum_of(header);
  return header;
}

TEST(PoolLayout, Fields_LieWhereThePageSays) {
  EXPECT_EQ(offsetof(HeaderLine, uuid), 16u);
  EXPECT_EQ(offsetof(HeaderLine, bytes), 32u);
  EXPECT_EQ(offsetof(HeaderLine, checksum), 52u);
  EXPECT_EQ(offsetof(HeaderLine, formatted_s), 56u);
  EXPECT_EQ(offsetof(HostLine, boot_id), 8u);
  EXPECT_EQ(offsetof(HostLine, since_s), 40u);
  EXPECT_EQ(offsetof(ProcessLine, command), 32u);
  EXPECT_EQ(offsetof(DescriptionData, slot), 64u);
  EXPECT_EQ(offsetof(DescriptionData, gid), 128u);
  EXPECT_EQ(offsetof(DescriptionData, group), 1152u);
  EXPECT_EQ(offsetof(OfferLine, lines), 28u);
  EXPECT_EQ(offsetof(AcceptLine, lines), 28u);
  EXPECT_EQ(offsetof(BlockLine, writer_record), 34u);
  EXPECT_EQ(kDescriptionLines + kDescriptionCopyLines, 90u);
}

TEST(PoolLayout, Parts_OfAllHosts_DoNotOverlap) {
  for (const uint32_t hosts : {1u, 2u, 3u, 7u}) {
    for (const uint32_t block_bytes : {4096u, 16384u, 131072u}) {
      HeaderLine header = good();
      header.hosts = hosts;
      header.block_bytes = block_bytes;
      const Geometry geometry(header);
      ASSERT_GT(geometry.blocks(), 0u);
      EXPECT_LE(geometry.host_page(static_cast<uint16_t>(hosts)), kTerritoriesOffset);
      for (uint16_t host = 0; host < hosts; ++host) {
        EXPECT_EQ(geometry.record(host, 0), geometry.territory(host));
        EXPECT_LE(geometry.record(host, 4), geometry.block_line(host, 0));
        EXPECT_LE(geometry.block_line(host, geometry.blocks()), geometry.block(host, 0));
        EXPECT_EQ(geometry.block(host, 0) % kPageBytes, 0u);
        EXPECT_LE(geometry.block(host, geometry.blocks()), geometry.territory(static_cast<uint16_t>(host + 1)));
      }
      EXPECT_LE(geometry.territory(static_cast<uint16_t>(hosts)), geometry.bytes());
    }
  }
}

TEST(PoolLayout, Blocks_PlaceOutside_IsRefused) {
  const Geometry geometry(good());
  const uint64_t first = geometry.block(1, 0);
  const uint64_t all = geometry.blocks() * geometry.block_bytes();
  EXPECT_TRUE(geometry.is_in_blocks(1, first, all));
  EXPECT_FALSE(geometry.is_in_blocks(1, first, all + 1));
  EXPECT_FALSE(geometry.is_in_blocks(1, first - 1, 1));
  EXPECT_TRUE(geometry.is_in_blocks(1, first + all, 0));
  EXPECT_FALSE(geometry.is_in_blocks(1, first + all, 1));
  EXPECT_FALSE(geometry.is_in_blocks(1, first + 1, UINT64_MAX));
  EXPECT_FALSE(geometry.is_in_blocks(1, UINT64_MAX, 1));
  EXPECT_FALSE(geometry.is_in_blocks(0, first, 1)) << "another host's";
  EXPECT_FALSE(geometry.is_in_blocks(3, first, 1)) << "there is no such host";
}

TEST(PoolLayout, Inbox_InsideABlock_IsRefused) {
  const Geometry geometry(good());
  const uint64_t first = geometry.block(0, 0);
  EXPECT_TRUE(geometry.is_inbox(0, first + geometry.block_bytes(), 256));
  EXPECT_FALSE(geometry.is_inbox(0, first + 64, 256)) << "it does not begin with a block";
  EXPECT_FALSE(geometry.is_inbox(0, first, 512)) << "rings have 256 lines";
  EXPECT_FALSE(geometry.is_inbox(0, geometry.block(0, geometry.blocks() - 1), 256)) << "it ends behind the blocks";
}

std::string error_of(HeaderLine header, uint64_t bytes = kPoolBytes) {
  const auto checked = check_header(header, bytes, "m");
  if (checked) return "accepted";
  EXPECT_EQ(checked.error().code(), EINVAL);
  return checked.error().what();
}

TEST(PoolLayout, Header_OfFormat_IsAccepted) {
  const auto checked = check_header(good(), kPoolBytes, "m");
  ASSERT_TRUE(checked) << checked.error().what();
  EXPECT_EQ(checked->records(), 4);
}

TEST(PoolLayout, Header_DamagedAnywhere_IsRefused) {
  const HeaderLine header = good();
  for (size_t bit = 0; bit < 8 * sizeof header; ++bit) {
    HeaderLine damaged = header;
    reinterpret_cast<std::byte*>(&damaged)[bit / 8] ^= std::byte{static_cast<uint8_t>(1 << bit % 8)};
    EXPECT_NE(error_of(damaged), "accepted") << "bit " << bit;
  }
}

TEST(PoolLayout, Header_WithTheRightChecksumAndImpossibleSizes_IsRefused) {
  const std::function<void(HeaderLine&)> kChanges[] = {
      [](HeaderLine& header) { header.hosts = 0; },
      [](HeaderLine& header) { header.hosts = kMaxHosts + 1; },
      [](HeaderLine& header) { header.hosts = UINT32_MAX; },
      [](HeaderLine& header) { header.bytes = 0; },
      [](HeaderLine& header) { header.bytes = kTerritoriesOffset; },
      [](HeaderLine& header) { header.bytes = kTerritoriesOffset + 1; },
      [](HeaderLine& header) { header.block_bytes = 0; },
      [](HeaderLine& header) { header.block_bytes = 24 << 10; },
      [](HeaderLine& header) { header.block_bytes = 2048; },
      [](HeaderLine& header) { header.block_bytes = 1 << 31; },
      [](HeaderLine& header) { header.ring_lines = 0; },
      [](HeaderLine& header) { header.ring_lines = 96; },
      [](HeaderLine& header) { header.ring_lines = 1 << 31; },
      [](HeaderLine& header) { header.ring_lines = kMostRingLines; },
      [](HeaderLine& header) { header.records = 0; },
      [](HeaderLine& header) { header.records = kMaxRecords + 1; },
      [](HeaderLine& header) { header.records = UINT32_MAX; },
      [](HeaderLine& header) { header.records = kMaxRecords; },
  };
  size_t number = 0;
  for (const auto& change : kChanges) {
    HeaderLine header = good();
    change(header);
    header.checksum = checksum_of(header);
    EXPECT_NE(error_of(header), "accepted") << "change " << number;
    ++number;
  }
}

TEST(PoolLayout, Header_OfALargerMedium_IsRefused) {
  EXPECT_EQ(error_of(good(), kPoolBytes - 4096), "m: the pool has 8388608 bytes, and the medium only 8384512");
  HeaderLine header = good();
  header.version = 1;
  EXPECT_EQ(error_of(header),
            "m: the pool has layout version 1, and this NUPA has version 2 (nupa pool format makes a new one)");
  EXPECT_EQ(error_of(HeaderLine{.magic = 0}), "m: holds no pool (nupa pool format makes one)");
}

}  // namespace
}  // namespace nupa::pool
