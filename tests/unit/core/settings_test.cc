// SPDX-License-Identifier: Apache-2.0
/// Tests of the settings that opening a device reads. An invalid value is refused.
#include <gtest/gtest.h>
#include <nupa/device.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/settings_table.h"
#include "core/process.h"
#include "transport/roce/congestion/congestion.h"
#include "transport/roce/wire/wire.h"

namespace nupa::core {
namespace {

class CoreSettings : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"NUPA_TRANSPORT", "NUPA_CONGESTION", "NUPA_ROCE_SOURCE_PORTS", "NUPA_ROCE_ICRC",
                             "NUPA_ROCE_PEERS", "NUPA_DEVICES", "NUPA_REMAP", "NUPA_LOG"})
      unsetenv(name);
  }
  /// 0, or why no device opens with this setting.
  static int open_with(const char* name, const std::string& value, std::string* why = nullptr) {
    setenv(name, value.c_str(), 1);
    const auto opened = open_device("nupa0");
    unsetenv(name);
    if (!opened && why != nullptr) *why = opened.error().what();
    return opened ? 0 : opened.error().code();
  }
};

TEST_F(CoreSettings, Open_ValidSetting_Succeeds) {
  const std::vector<std::pair<const char*, std::vector<std::string>>> known = {
      {"NUPA_TRANSPORT", {"", "auto", "shm", "roce", "shm,roce", "roce,shm", "window", "window,roce"}},
      {"NUPA_CONGESTION", {"", "tolerant", "none", "dcqcn", "swift", "cubic"}},
      {"NUPA_ROCE_SOURCE_PORTS", {"", "1", std::to_string(roce::kMaxPaths)}},
      {"NUPA_ROCE_ICRC", {"", "on", "off", "yes", "no", "true", "false", "1", "0"}},
      {"NUPA_ROCE_PEERS", {"", "any"}},
      {"NUPA_REMAP", {"", "auto", "always", "never"}},
      {"NUPA_LOG", {"", "error", "warn", "info", "debug"}},
      {"NUPA_DEVICES", {"", "lo"}}};
  for (const auto& [name, values] : known)
    for (const std::string& value : values) EXPECT_EQ(open_with(name, value), 0) << name << "=" << value;
}

TEST_F(CoreSettings, Open_InvalidSetting_FailsAndNamesIt) {
  const std::vector<std::pair<const char*, std::vector<std::string>>> unknown = {
      {"NUPA_TRANSPORT",
       {"Window", "SHM", "rdma", "roce ", "shm,", ",shm", "shm,,roce", "shm,shm", "shm,window", "auto,shm"}},
      {"NUPA_CONGESTION", {"reno", "NONE", "none,"}},
      {"NUPA_ROCE_SOURCE_PORTS",
       {"0", std::to_string(roce::kMaxPaths + 1), "-1", "2x", "many", " 2", "+2", "2 ", "4294967297",
        "-18446744073709551614", "18446744073709551618"}},
      {"NUPA_ROCE_ICRC", {"maybe", "2", "ON"}},
      {"NUPA_ROCE_PEERS", {"all", "Standard", "none"}},
      {"NUPA_REMAP", {"perhaps", "Auto", "never "}},
      {"NUPA_LOG", {"loud", "INFO", "3"}},
      {"NUPA_DEVICES", {"lo,", "+lo", "lo,lo", "lo+lo"}}};
  for (const auto& [name, values] : unknown)
    for (const std::string& value : values) {
      std::string why;
      EXPECT_EQ(open_with(name, value, &why), EINVAL) << name << "=" << value;
      EXPECT_EQ(why.find(std::string(name) + "=" + value + ": "), 0u) << why;
    }
  std::string why;
  EXPECT_EQ(open_with("NUPA_DEVICES", "nupa-no-such-if", &why), ENODEV);
  EXPECT_NE(why.find("nupa-no-such-if"), why.npos) << why;
}

TEST_F(CoreSettings, CongestionChoices_OfTheSetting_EqualTheTable) {
  const base::Setting& one = *base::find_setting("NUPA_CONGESTION");
  std::string names;
  for (const std::string_view name : roce::congestion_names()) names.append(names.empty() ? "" : " ").append(name);
  EXPECT_EQ(one.choices, names);
  EXPECT_EQ(one.usual, names.substr(0, names.find(' ')));
}

TEST_F(CoreSettings, Open_UnknownDevice_FailsWithEnodev) {
  const auto missing = open_device("nupa1");
  EXPECT_EQ(missing.error().code(), ENODEV);
  EXPECT_STREQ(missing.error().what(), "no NUPA device has the name 'nupa1' (nupa devices lists them)");
  EXPECT_EQ(open_device("").error().code(), ENODEV);
  EXPECT_EQ(open_device("nupa00").error().code(), ENODEV);
}

TEST_F(CoreSettings, MemoryDomain_WithoutShm_IsEmpty) {
  setenv("NUPA_TRANSPORT", "shm", 1);
  {
    const auto shares = open_device("nupa0");
    ASSERT_TRUE(shares);
    EXPECT_NE((*shares)->memory_domain(), MemoryDomain{});
  }
  setenv("NUPA_TRANSPORT", "roce", 1);
  const auto sends = open_device("nupa0");
  ASSERT_TRUE(sends);
  EXPECT_EQ((*sends)->memory_domain(), MemoryDomain{});
}

TEST_F(CoreSettings, SharesMemory_ShmAmongTheTransports_IsShownToPeers) {
  for (const auto& [names, shared] :
       std::vector<std::pair<const char*, uint32_t>>{{"shm", 1}, {"roce", 0}, {"roce,shm", 1}}) {
    setenv("NUPA_TRANSPORT", names, 1);
    const auto own = Process::acquire();
    ASSERT_TRUE(own) << names;
    EXPECT_EQ((*own)->tables().header->shares_memory, shared) << names;
  }
}

}  // namespace
}  // namespace nupa::core
