// SPDX-License-Identifier: Apache-2.0
#include "cli/ccl/progress.h"

#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>

namespace nupa::cli::collectives {
namespace {

constexpr size_t kBarWidth = 30;  ///< in characters

}  // namespace

Progress::Progress(size_t steps, bool wanted) : steps_(steps), is_shown_(wanted && isatty(STDERR_FILENO) == 1) {
  // Ranks are background processes of the terminal, and some terminals stop those when they write.
  if (is_shown_) signal(SIGTTOU, SIG_IGN);
}

void Progress::show(size_t done, const std::string& now) const {
  if (!is_shown_) return;
  const size_t filled = kBarWidth * done / steps_;
  fmt::print(stderr, "\r[{}{}] {}/{} {}\x1b[K", std::string(filled, '#'), std::string(kBarWidth - filled, '.'), done,
             steps_, now);
  std::fflush(stderr);
}

void Progress::clear() const {
  if (!is_shown_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

}  // namespace nupa::cli::collectives
