// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/result.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <utility>

#include "base/clock.h"

namespace nupa::base {

/// A cache of the kernel's last answers about things that seldom change, such as routes. A program that makes many
/// connections in a row asks for each of them, and each answer costs several system calls. Any thread. It never waits
/// for another thread, so a forked child may use it.
template <class Question, class Answer>
class Recent {
 public:
  /// A change of the machine becomes visible after this time at the latest.
  static constexpr int64_t kLastsNs = 5'000'000;

  /// Returns the cached answer, or calls `ask()`. Errors are those of `ask()`; they are not cached.
  template <class Ask>
  Result<Answer> get(const Question& question, Ask&& ask) {
    return get(question, std::forward<Ask>(ask), now_ns());
  }
  template <class Ask>
  Result<Answer> get(const Question& question, Ask&& ask, int64_t now) {
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock())
      for (const Known& known : known_)
        if (known.until_ns > now && known.question == question) return known.answer;
    Result<Answer> answer = ask();
    if (!answer) return answer;
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock())
      *std::min_element(known_.begin(), known_.end(), ends_first) = {now + kLastsNs, question, *answer};
    return answer;
  }

 private:
  struct Known {
    int64_t until_ns = INT64_MIN;
    Question question{};
    Answer answer{};
  };
  static bool ends_first(const Known& a, const Known& b) { return a.until_ns < b.until_ns; }

  std::mutex mutex_;
  std::array<Known, 4> known_;
};

}  // namespace nupa::base
