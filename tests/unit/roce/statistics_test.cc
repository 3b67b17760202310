// SPDX-License-Identifier: Apache-2.0
// Tests of the statistics of a queue pair in the block that other processes read.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "base/gid.h"
#include "transport/roce/statistics.h"

namespace nupa::roce {
namespace {

class RoceStatistics : public ::testing::Test {
 protected:
  const core::StatValue* find(const core::StatFields& fields, const std::string& name) {
    for (const auto& [field, value] : fields)
      if (field == name) return &value;
    return nullptr;
  }
  const core::StatFields& fields_of(const core::StatFields& fields, const std::string& name) {
    return std::get<core::StatFields>(find(fields, name)->value);
  }
  uint64_t number(const core::StatFields& fields, const std::string& name) {
    return std::get<uint64_t>(find(fields, name)->value);
  }

  std::unique_ptr<shm::StatisticsShared> block = std::make_unique<shm::StatisticsShared>();
};

TEST_F(RoceStatistics, Take_Block_NamesRoceAndClearsTheCounters) {
  std::memset(block->bytes, 0x5a, sizeof block->bytes);
  Statistics& taken = Statistics::take(*block);
  EXPECT_EQ(shm::unpack_name(block->transport), "roce");
  for (const auto* counter : {&taken.resent_sequence, &taken.resent_selective, &taken.resent_timeout,
                              &taken.unexpected_packets, &taken.duplicates, &taken.stray, &taken.dropped})
    EXPECT_EQ(0u, counter->load());
  EXPECT_EQ(0u, taken.paths);
  EXPECT_EQ(0u, taken.standard);
}

TEST_F(RoceStatistics, Explain_Connection_ShowsItsPaths) {
  Statistics& taken = Statistics::take(*block);
  taken.paths.store(1);
  taken.standard.store(1);
  taken.unexpected_packets.store(2);
  taken.resent_timeout.store(3);
  PathStatistics& path = taken.path[0];
  path.to = base::ipv4_gid(10, 1, 2, 3);
  path.from.raw = {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  path.ports.store(50'000u << 16 | 4791);
  path.health.store(static_cast<uint32_t>(PathHealth::kAlive));
  path.round_trip_ns.store(2500);
  path.window.store(~uint64_t{0});
  const core::Explanation explained = explain(QpType::kRc, *block);
  EXPECT_EQ(explained.peer, "10.1.2.3");
  EXPECT_TRUE(std::get<bool>(find(explained.fields, "standard_peer")->value));
  EXPECT_EQ(2u, number(fields_of(explained.fields, "ignored"), "unexpected_packets"));
  EXPECT_EQ(3u, number(fields_of(explained.fields, "resent"), "timeout"));
  const auto& paths = std::get<core::StatList>(find(explained.fields, "paths")->value);
  ASSERT_EQ(1u, paths.size());
  const auto& first = std::get<core::StatFields>(paths[0].value);
  EXPECT_EQ("10.1.2.3", std::get<std::string>(find(first, "address")->value));
  EXPECT_EQ("fd00::1", std::get<std::string>(find(first, "from_address")->value));
  EXPECT_EQ(4791u, number(first, "port"));
  EXPECT_EQ(50'000u, number(first, "from_port"));
  EXPECT_EQ("alive", std::get<std::string>(find(first, "health")->value));
  EXPECT_EQ(2.5, std::get<double>(find(first, "round_trip_us")->value));
  EXPECT_TRUE(std::holds_alternative<std::monostate>(find(first, "window")->value)) << "no limit";
}

TEST_F(RoceStatistics, Explain_DatagramQueuePair_HasNoPeerAndNoPaths) {
  Statistics::take(*block).paths.store(1);
  const core::Explanation explained = explain(QpType::kUd, *block);
  EXPECT_EQ(explained.peer, "");
  EXPECT_EQ(nullptr, find(explained.fields, "paths"));
  EXPECT_EQ(0u, number(fields_of(explained.fields, "ignored"), "unexpected_packets"));
}

TEST_F(RoceStatistics, Explain_ForgedBlock_IsReadWithinItsBounds) {
  std::memset(block->bytes, 0xff, sizeof block->bytes);
  const core::Explanation explained = explain(QpType::kRc, *block);
  const auto& paths = std::get<core::StatList>(find(explained.fields, "paths")->value);
  ASSERT_EQ(kMaxPaths, paths.size());
  EXPECT_EQ("?", std::get<std::string>(find(std::get<core::StatFields>(paths[0].value), "health")->value));
}

TEST(SegmentNames, PackAndUnpackName_IsEqual) {
  for (const std::string_view name : {"", "shm", "loopback"}) EXPECT_EQ(name, shm::unpack_name(shm::pack_name(name)));
  EXPECT_EQ("morethan", shm::unpack_name(shm::pack_name("morethaneight")));
}

TEST(SegmentNames, UnpackName_ForgedWord_IsPrintable) {
  EXPECT_EQ("a??b????", shm::unpack_name(shm::pack_name("a\n\xff"
                                                        "b\x1b \x7f\x80")));
}

}  // namespace
}  // namespace nupa::roce
