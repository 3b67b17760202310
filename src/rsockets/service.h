// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "progress/loop.h"

namespace nupa::rsockets {

/// Returns the loop for the background work of rsockets: listeners answer requests, streams send keepalives. Its thread
/// starts at the first call and runs until the process exits. A forked child gets a separate loop, since the parent's
/// thread does not exist there. Errors are those of descriptors and threads. Any thread.
Result<progress::Loop*> service_loop();

/// The keepalive timer of one stream. Any thread.
class KeepAlive {
 public:
  /// Calls `send` on the service loop every `seconds`, and replaces an earlier timer. Returns 0, or a negative errno if
  /// no timer was started.
  int start(int seconds, std::function<void()> send);
  /// After stop() returns, `send` is not running. Must not be called in `send`, nor with a lock held that `send` takes.
  void stop();

 private:
  struct Beat {
    Beat(progress::Loop& loop, int seconds, std::function<void()> send);
    const int64_t period_ns;
    progress::Loop::Timer timer;
  };
  std::mutex mutex_;
  std::unique_ptr<Beat> beat_;
};

}  // namespace nupa::rsockets
