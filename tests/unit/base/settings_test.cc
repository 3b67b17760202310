// SPDX-License-Identifier: Apache-2.0
/// Settings of the environment, each kind. What libnupa_sockets.so remembers: base_process_test.cc.
#include "base/settings.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace nupa::base {
namespace {

constexpr const char* kName = "NUPA_TEST_SETTING";

class SettingsOfEachKind : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv(kName); }
  /// kName is `value` from now on.
  static const char* with(const std::string& value) {
    setenv(kName, value.c_str(), 1);
    return kName;
  }
};

/// The sentence for a value that is not accepted.
std::string refused(const std::string& value, const std::string& accepted) {
  return std::string(kName) + "=" + value + ": expected " + accepted;
}

TEST_F(SettingsOfEachKind, NotSetOrEmpty_IsTheUsualValue) {
  for (const bool is_empty : {false, true}) {
    if (is_empty) with("");
    EXPECT_EQ(boolean_setting(kName, true), true);
    EXPECT_EQ(boolean_setting(kName, false), false);
    EXPECT_EQ(number_setting(kName, 17, 1, 5), 17u);
    EXPECT_EQ(word_setting(kName, 1, {"auto", "never"}), 1u);
    EXPECT_EQ(text_setting(kName), nullptr);
  }
}

TEST_F(SettingsOfEachKind, Text_IsTakenAsItIs) { EXPECT_STREQ(text_setting(with(" any text")), " any text"); }

TEST_F(SettingsOfEachKind, Boolean_HasFourSpellingsOfEach) {
  for (const char* const value : {"on", "yes", "true", "1"})
    EXPECT_EQ(boolean_setting(with(value), false), true) << value;
  for (const char* const value : {"off", "no", "false", "0"})
    EXPECT_EQ(boolean_setting(with(value), true), false) << value;
}

TEST_F(SettingsOfEachKind, Boolean_AnythingElseIsRefusedWithNameValueAndSpellings) {
  for (const char* const value : {"On", "YES", "2", "maybe", " 1", "on ", "y", "00"}) {
    const auto read = boolean_setting(with(value), true);
    ASSERT_FALSE(read) << value;
    EXPECT_EQ(EINVAL, read.error().code());
    EXPECT_EQ(read.error().what(), refused(value, "on or off (also yes or no, true or false, 1 or 0)"));
  }
}

TEST_F(SettingsOfEachKind, Number_FromTheLeastToTheMost) {
  EXPECT_EQ(number_setting(with("3"), 7, 3, 5), 3u);
  EXPECT_EQ(number_setting(with("5"), 7, 3, 5), 5u);
  EXPECT_EQ(number_setting(with("0004"), 7, 3, 5), 4u);
  EXPECT_EQ(number_setting(with("18446744073709551615"), 7, 0, UINT64_MAX), UINT64_MAX);
}

TEST_F(SettingsOfEachKind, Number_OutOfBoundsOrWithARest_IsRefusedWithNameValueAndBounds) {
  for (const char* const value : {"2", "6", "-3", "+3", " 3", "3 ", "3k", "0x3", "three", "18446744073709551619"}) {
    const auto read = number_setting(with(value), 4, 3, 5);
    ASSERT_FALSE(read) << value;
    EXPECT_EQ(EINVAL, read.error().code());
    EXPECT_EQ(read.error().what(), refused(value, "a whole number from 3 to 5"));
  }
  EXPECT_FALSE(number_setting(with("18446744073709551616"), 4, 0, UINT64_MAX)) << "does not fit";
}

TEST_F(SettingsOfEachKind, Word_IsTheWholeWord) {
  EXPECT_EQ(word_setting(with("auto"), 2, {"auto", "always", "never"}), 0u);
  EXPECT_EQ(word_setting(with("never"), 0, {"auto", "always", "never"}), 2u);
  for (const char* const value : {"nev", "nevermore", "Never", "auto,never"}) {
    const auto read = word_setting(with(value), 0, {"auto", "always", "never"});
    ASSERT_FALSE(read) << value;
    EXPECT_EQ(EINVAL, read.error().code());
    EXPECT_EQ(read.error().what(), refused(value, "auto, always or never"));
  }
}

}  // namespace
}  // namespace nupa::base
