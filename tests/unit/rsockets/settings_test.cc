// SPDX-License-Identifier: Apache-2.0
// The files that hold the system's defaults.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "rsockets/settings.h"

namespace nupa::rsockets {
namespace {

struct File {
  const char* name;
  uint32_t Settings::*field;
};

constexpr File kFiles[] = {
    {"polling_time", &Settings::polling_us},
    {"mem_default", &Settings::receive_bytes},
    {"wmem_default", &Settings::send_bytes},
    {"sqsize_default", &Settings::send_requests},
    {"rqsize_default", &Settings::receive_requests},
    {"inline_default", &Settings::inline_bytes},
    {"iomap_size", &Settings::mappings},
};

class RsocketsSettings : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_.data()), nullptr) << std::strerror(errno); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_ = "/tmp/nupa_settings_XXXXXX";
};

TEST_F(RsocketsSettings, File_SetsOnlyItsOwnDefault) {
  constexpr uint32_t kNumber = 100;  // no default
  for (const File& file : kFiles) {
    const std::filesystem::path path = std::filesystem::path(folder_) / file.name;
    std::ofstream(path) << kNumber << '\n';
    Settings expected;
    expected.*file.field = kNumber;
    const Settings read = read_settings(folder_);
    for (const File& other : kFiles) EXPECT_EQ(read.*other.field, expected.*other.field) << file.name << other.name;
    std::filesystem::remove(path);
  }
}

}  // namespace
}  // namespace nupa::rsockets
