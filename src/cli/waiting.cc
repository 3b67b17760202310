// SPDX-License-Identifier: Apache-2.0
#include "cli/waiting.h"

#include <cstdio>
#include <mutex>
#include <utility>

#include "progress/clock.h"
#include "progress/condition.h"
#include "progress/thread.h"

namespace nupa::cli {

/// The thread that prints the notice, and the end of the wait.
struct Waiting::Notice {
  explicit Notice(std::string text) : what(std::move(text)) {}

  void run() {
    std::unique_lock lock(mutex);
    if (changed.wait(
            lock, [this] { return has_ended; }, progress::Deadline::in_ns(progress::kNsPerSecond)))
      return;
    std::fprintf(stderr, "nupa: waiting for %s\n", what.c_str());
  }
  void end() {
    std::lock_guard lock(mutex);
    has_ended = true;
    changed.notify_all();
  }

  const std::string what;
  std::mutex mutex;
  progress::Condition changed;
  bool has_ended = false;
  progress::Thread thread;
};

Waiting::Waiting(std::string what) : notice_(std::make_unique<Notice>(std::move(what))) {
  [[maybe_unused]] const auto started =
      notice_->thread.start("nupa-waiting", [notice = notice_.get()] { notice->run(); });
}

Waiting::~Waiting() {
  notice_->end();
  if (notice_->thread.has_started()) notice_->thread.join();
}

}  // namespace nupa::cli
