// SPDX-License-Identifier: Apache-2.0
/// Settings of the environment: each kind, and the table of the variables. What libnupa_sockets.so remembers:
/// base_process_test.cc. That a name without an entry does not compile: tests/checks/environment_test.py.
#include "base/settings.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace nupa::base {
namespace {

constexpr const char* kName = "NUPA_TEST_SETTING";

constexpr Setting kSwitch{.name = kName, .kind = Kind::kBoolean, .usual = "on"};
constexpr Setting kSwitchOff{.name = kName, .kind = Kind::kBoolean, .usual = "off"};
constexpr Setting kNumber{.name = kName, .kind = Kind::kNumber, .usual = "4", .least = 3, .most = 5};
constexpr Setting kAnyNumber{.name = kName, .kind = Kind::kNumber, .usual = "0", .least = 0, .most = UINT64_MAX};
constexpr Setting kWord{.name = kName, .kind = Kind::kWord, .usual = "always", .choices = "auto always never"};
constexpr Setting kRead{.name = kName, .kind = Kind::kReadFile, .form = "file"};
constexpr Setting kWritten{.name = kName, .kind = Kind::kWrittenFile, .form = "file"};
constexpr Setting kAnyText{.name = kName, .kind = Kind::kText, .form = "text"};

Result<bool> boolean(const Setting& one) { return boolean_setting(VariableOf<Kind::kBoolean>(one)); }
Result<uint64_t> number(const Setting& one) { return number_setting(VariableOf<Kind::kNumber>(one)); }
Result<size_t> word(const Setting& one) { return word_setting(VariableOf<Kind::kWord>(one)); }

class SettingsOfEachKind : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv(kName); }
  /// kName is `value` from now on.
  static const Setting& with(const std::string& value, const Setting& one) {
    setenv(kName, value.c_str(), 1);
    return one;
  }
};

/// The sentence for a value that is not accepted.
std::string refused(const std::string& value, const std::string& accepted) {
  return std::string(kName) + "=" + value + ": expected " + accepted;
}

TEST_F(SettingsOfEachKind, NotSetOrEmpty_UsesTheDefault) {
  for (const bool is_empty : {false, true}) {
    if (is_empty) setenv(kName, "", 1);
    EXPECT_EQ(boolean(kSwitch), true);
    EXPECT_EQ(boolean(kSwitchOff), false);
    EXPECT_EQ(number(kNumber), 4u);
    EXPECT_EQ(word(kWord), 1u);
    EXPECT_EQ(text_setting(Variable(kAnyText)), nullptr);
    for (const Setting& each : {kSwitch, kNumber, kWord, kRead, kWritten, kAnyText}) EXPECT_TRUE(check_setting(each));
  }
}

TEST_F(SettingsOfEachKind, Text_AnyText_IsAcceptedUnchanged) {
  EXPECT_STREQ(text_setting(Variable(with(" any text", kAnyText))), " any text");
  EXPECT_TRUE(check_setting(kAnyText));
}

TEST_F(SettingsOfEachKind, Boolean_FourSpellingsOfEachValue_AreAccepted) {
  for (const char* const value : {"on", "yes", "true", "1"}) EXPECT_EQ(boolean(with(value, kSwitchOff)), true) << value;
  for (const char* const value : {"off", "no", "false", "0"}) EXPECT_EQ(boolean(with(value, kSwitch)), false) << value;
}

TEST_F(SettingsOfEachKind, Boolean_OtherText_IsRefusedWithNameValueAndSpellings) {
  for (const char* const value : {"On", "YES", "2", "maybe", " 1", "on ", "y", "00"}) {
    const auto read = boolean(with(value, kSwitch));
    ASSERT_FALSE(read) << value;
    EXPECT_EQ(EINVAL, read.error().code());
    EXPECT_EQ(read.error().what(), refused(value, "on or off (also yes or no, true or false, 1 or 0)"));
    const auto checked = check_setting(kSwitch);
    ASSERT_FALSE(checked) << value;
    EXPECT_STREQ(checked.error().what(), read.error().what());
  }
}

TEST_F(SettingsOfEachKind, Number_WithinItsBounds_IsAccepted) {
  EXPECT_EQ(number(with("3", kNumber)), 3u);
  EXPECT_EQ(number(with("5", kNumber)), 5u);
  EXPECT_EQ(number(with("0004", kNumber)), 4u);
  EXPECT_EQ(number(with("18446744073709551615", kAnyNumber)), UINT64_MAX);
}

TEST_F(SettingsOfEachKind, Number_OutOfBoundsOrWithARest_IsRefusedWithNameValueAndBounds) {
  for (const char* const value : {"2", "6", "-3", "+3", " 3", "3 ", "3k", "0x3", "three", "18446744073709551619"}) {
    const auto read = number(with(value, kNumber));
    ASSERT_FALSE(read) << value;
    EXPECT_EQ(EINVAL, read.error().code());
    EXPECT_EQ(read.error().what(), refused(value, "a whole number from 3 to 5"));
    EXPECT_FALSE(check_setting(kNumber)) << value;
  }
  EXPECT_FALSE(number(with("18446744073709551616", kAnyNumber))) << "does not fit";
}

TEST_F(SettingsOfEachKind, Word_OnlyTheWholeWord_IsAccepted) {
  EXPECT_EQ(word(with("auto", kWord)), 0u);
  EXPECT_EQ(word(with("never", kWord)), 2u);
  for (const char* const value : {"nev", "nevermore", "Never", "auto,never", "auto always", " "}) {
    const auto read = word(with(value, kWord));
    ASSERT_FALSE(read) << value;
    EXPECT_EQ(EINVAL, read.error().code());
    EXPECT_EQ(read.error().what(), refused(value, "auto, always or never"));
    EXPECT_FALSE(check_setting(kWord)) << value;
  }
}

TEST_F(SettingsOfEachKind, ReadFile_NotReadable_IsRefused) {
  EXPECT_TRUE(check_setting(with("/proc/self/status", kRead)));
  for (const auto& [path, why] :
       {std::pair{"/nonexistent/file", "No such file or directory"}, {"/", "Is a directory"}}) {
    const auto checked = check_setting(with(path, kRead));
    ASSERT_FALSE(checked) << path;
    EXPECT_EQ(EINVAL, checked.error().code());
    EXPECT_EQ(checked.error().what(), std::string(kName) + "=" + path + ": " + why);
  }
}

TEST_F(SettingsOfEachKind, WrittenFile_FolderNotWritable_IsRefused) {
  char folder[] = "/tmp/nupa-settings-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string inside = std::string(folder) + "/file";
  for (const std::string& path : {std::string(folder), inside, "/nonexistent-%h/" + std::string("file")})
    EXPECT_TRUE(check_setting(with(path, kWritten))) << path;
  const std::string missing = inside + "/other";
  const auto checked = check_setting(with(missing, kWritten));
  ASSERT_FALSE(checked);
  EXPECT_EQ(EINVAL, checked.error().code());
  EXPECT_EQ(checked.error().what(), std::string(kName) + "=" + missing + ": No such file or directory");
  rmdir(folder);
}

TEST(SettingsTable, EachDefault_IsAccepted) {
  for (const Setting& each : kSettings) {
    EXPECT_EQ(find_setting(each.name), &each);
    if (each.usual.empty()) continue;
    const char* const found = std::getenv(each.name);
    const std::string before = found == nullptr ? "" : found;
    setenv(each.name, std::string(each.usual).c_str(), 1);
    EXPECT_TRUE(check_setting(each)) << each.name;
    found == nullptr ? unsetenv(each.name) : setenv(each.name, before.c_str(), 1);
  }
}

TEST(SettingsTable, Names_AreFoundAsAWhole) {
  EXPECT_EQ(find_setting("NUPA_LO"), nullptr);
  EXPECT_EQ(find_setting("NUPA_LOGS"), nullptr);
  EXPECT_EQ(find_setting(""), nullptr);
}

TEST(SettingsTable, Choices_AreTheWordsBetweenSpaces) {
  EXPECT_EQ(choice_of(kWord, 0), "auto");
  EXPECT_EQ(choice_of(kWord, 2), "never");
  EXPECT_EQ(choice_of(kWord, 3), "");
  EXPECT_EQ(choice_of(kSwitch, 0), "");
}

}  // namespace
}  // namespace nupa::base
