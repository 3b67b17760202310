// SPDX-License-Identifier: Apache-2.0
/// nupa::Error: constant text, built text, and the text used when memory is short.
#include <gtest/gtest.h>
#include <nupa/result.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "../../support/sanitizers.h"

namespace nupa {
namespace {

static_assert(std::is_nothrow_copy_constructible_v<Error> && std::is_nothrow_copy_assignable_v<Error>);

TEST(ErrorText, ConstantSentence_IsPointedAt) {
  static constexpr const char* kSentence = "the queue is full";
  const Result<void> failed = fail(ENOSPC, kSentence);
  EXPECT_EQ(ENOSPC, failed.error().code());
  EXPECT_EQ(kSentence, failed.error().what()) << "no copy of it";
}

TEST(ErrorText, Parts_AreJoinedWithNamesAndNumbers) {
  const std::string name = "eth9";
  const Result<void> failed = fail(ENODEV, "interface ", name, ": port ", uint16_t{4791}, ", error ", -3);
  EXPECT_EQ(ENODEV, failed.error().code());
  EXPECT_STREQ("interface eth9: port 4791, error -3", failed.error().what());
}

TEST(ErrorText, CopyOfADestroyedError_HasTheText) {
  std::optional<Error> first(fail(EIO, std::string("file ") + "/tmp/a").value());
  const Error copy = *first;
  const Error other = first->with_code(EHOSTUNREACH);
  first.reset();
  EXPECT_STREQ("file /tmp/a", copy.what());
  EXPECT_EQ(EIO, copy.code());
  EXPECT_STREQ("file /tmp/a", other.what());
  EXPECT_EQ(EHOSTUNREACH, other.code());
}

TEST(ErrorText, NoMemoryForTheText_KeepsErrnoAndUsesAConstantText) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers end the program for an allocation of this size";
  volatile size_t larger_than_memory = size_t{1} << 47;
  const Result<void> failed = fail(EACCES, "file ", std::string_view("a", larger_than_memory));
  EXPECT_EQ(EACCES, failed.error().code());
  EXPECT_STREQ("no memory for the reason", failed.error().what());
}

}  // namespace
}  // namespace nupa
