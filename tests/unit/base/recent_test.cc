// SPDX-License-Identifier: Apache-2.0
/// base::Recent: answers that are kept for a limited time.
#include "base/recent.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

namespace nupa::base {
namespace {

struct BaseRecent : testing::Test {
  using Answers = Recent<int, std::string>;

  /// The answer to `question` is its text; "error": there is none.
  std::string ask(int question, int64_t now) {
    const auto answer = answers.get(
        question,
        [&]() -> Result<std::string> {
          ++asked;
          if (fails) return fail(EIO, "no answer");
          return std::to_string(question) + suffix;
        },
        now);
    return answer ? *answer : "error";
  }

  Answers answers;
  int asked = 0;
  bool fails = false;
  std::string suffix;
};

TEST_F(BaseRecent, Answer_IsKeptForItsTimeAndAskedAgainAfterwards) {
  EXPECT_EQ(ask(1, 0), "1");
  suffix = " changed";
  EXPECT_EQ(ask(1, Answers::kLastsNs - 1), "1");
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(ask(1, Answers::kLastsNs), "1 changed");
  EXPECT_EQ(ask(1, 2 * Answers::kLastsNs - 1), "1 changed");
  EXPECT_EQ(asked, 2);
}

TEST_F(BaseRecent, Error_IsNotKept) {
  fails = true;
  EXPECT_EQ(ask(1, 0), "error");
  fails = false;
  EXPECT_EQ(ask(1, 0), "1");
  EXPECT_EQ(ask(1, 0), "1");
  EXPECT_EQ(asked, 2);
}

TEST_F(BaseRecent, NewQuestion_FullTable_ReplacesTheOldest) {
  for (int question = 0; question < 4; ++question) ask(question, question);
  for (int question = 0; question < 4; ++question) EXPECT_EQ(ask(question, 4), std::to_string(question));
  EXPECT_EQ(asked, 4);
  ask(4, 4);
  EXPECT_EQ(ask(3, 5), "3");
  EXPECT_EQ(asked, 5);
  EXPECT_EQ(ask(0, 5), "0");
  EXPECT_EQ(asked, 6) << "the oldest";
}

TEST_F(BaseRecent, QuestionWithinAnAnswer_IsAsked) {
  const auto outer = answers.get(
      1, [&]() -> Result<std::string> { return ask(2, 0) + ask(2, 0); }, 0);
  EXPECT_EQ(*outer, "22");
  EXPECT_EQ(asked, 1);
}

}  // namespace
}  // namespace nupa::base
