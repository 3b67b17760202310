// SPDX-License-Identifier: Apache-2.0
/// The policies of devices, with this processor's instructions, on a file. This machine is coherent, so a forgotten
/// instruction is not noticed here: tests/model notices it.
#include <cstring>
#include <string>
#include <vector>

#include "fixture.h"
#include "transport/pool/medium/cpu.h"
#include "transport/pool/medium/open_pool.h"
#include "transport/pool/medium/medium_policy.h"

namespace nupa::pool {
namespace {

template <class Policy>
class PoolHardware : public ::testing::Test {
 protected:
  std::unique_ptr<Pool> open(uint16_t host) {
    auto memory = PoolMemory::open(file_.spec(host));
    EXPECT_TRUE(memory);
    const auto geometry = read_geometry(**memory);
    EXPECT_TRUE(geometry);
    return std::make_unique<OpenPool<MediumPolicy>>(std::move(*memory), *geometry, Policy(), clock_.clock());
  }
  PoolFile file_;
  TestClock clock_;
};
using Policies = ::testing::Types<Coherent, Flushed<HardwareCpu>, Uncached<HardwareCpu>>;
TYPED_TEST_SUITE(PoolHardware, Policies);

TYPED_TEST(PoolHardware, RecordsAndMemory_ArriveAtTheOtherHost) {
  const auto one = this->open(0);
  const auto other = this->open(1);
  Description description;
  const auto here = one->join(description);
  const auto there = other->join(description);
  ASSERT_TRUE(here && there);
  auto channel = std::move(*one->open_channel(*there));
  auto back = std::move(*other->open_channel(*here));
  ASSERT_TRUE(channel->is_open());
  for (int i = 0; i < 100; ++i) {
    const std::vector<std::byte> payload(static_cast<size_t>(i % 4) * 50, std::byte{static_cast<uint8_t>(i)});
    Header header;
    header.payload_lines = static_cast<uint16_t>(lines_of(payload.size()));
    header.tag = static_cast<uint16_t>(i);
    ASSERT_TRUE(channel->fits(header.payload_lines));
    channel->store(0, payload.data(), payload.size());
    channel->publish(header);
    Header read;
    ASSERT_EQ(back->look(&read), Channel::Look::kRecord);
    EXPECT_EQ(read.tag, i);
    std::vector<std::byte> loaded(payload.size());
    back->load(0, loaded.data(), loaded.size());
    EXPECT_EQ(loaded, payload);
    back->pop();
  }
  const auto block = one->allocate(10'000);
  ASSERT_TRUE(block);
  std::memset(block->at, 3, block->bytes);
  one->write_back(block->at, block->bytes);
  std::vector<std::byte> loaded(block->bytes);
  ASSERT_TRUE(other->load(*one->place_of(block->at, block->bytes), loaded.data()));
  EXPECT_EQ(loaded, std::vector<std::byte>(block->bytes, std::byte{3}));
  one->close_channel(std::move(channel));
  other->close_channel(std::move(back));
}

TEST(PoolHardwareCpu, Instructions_AreThoseThatTheKernelReports) {
#if defined(__x86_64__)
  std::string flags;
  FILE* const file = std::fopen("/proc/cpuinfo", "r");
  ASSERT_NE(file, nullptr);
  char line[8192];
  while (std::fgets(line, sizeof line, file) != nullptr && flags.empty())
    if (std::strncmp(line, "flags", 5) == 0) flags = line;
  std::fclose(file);
  const auto has = [&](const char* flag) { return flags.find(std::string(" ") + flag) != std::string::npos; };
  const LineInstructions expected = !has("clflushopt") ? LineInstructions::kClflush
                                    : has("clwb")      ? LineInstructions::kClwb
                                                       : LineInstructions::kClflushopt;
  EXPECT_EQ(line_instructions(), expected);
#else
  EXPECT_EQ(line_instructions(), LineInstructions::kDc);
#endif
}

}  // namespace
}  // namespace nupa::pool
