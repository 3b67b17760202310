// SPDX-License-Identifier: Apache-2.0
// Replays the inputs that the fuzzers kept, with every compiler and sanitizer of the tests.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "targets.h"

namespace nupa::fuzz {
namespace {

class FuzzCorpus : public ::testing::TestWithParam<Target> {};

TEST_P(FuzzCorpus, EachInput_BreaksNoRule) {
  int inputs = 0;
  const std::filesystem::path folder = std::filesystem::path(NUPA_FUZZ_CORPUS) / GetParam().name;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    // A broken rule ends the program: this line names the input.
    std::printf("%s\n", entry.path().filename().c_str());
    std::fflush(stdout);
    GetParam().run(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    ++inputs;
  }
  EXPECT_GT(inputs, 0) << folder;
}

INSTANTIATE_TEST_SUITE_P(All, FuzzCorpus, ::testing::ValuesIn(kTargets),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace nupa::fuzz
