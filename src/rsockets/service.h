#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "progress/loop.h"

namespace nupa::rsockets {

/// What this process does for rsockets beside the program's threads runs here: listeners answer requests, streams send
/// keepalives. The thread is started when it is first needed, and lives as long as the process. A forked child has a
/// loop of its own: its parent's does nothing there. Errors: those of descriptors and threads. Any thread.
Result<progress::Loop*> service_loop();

/// The keepalives of one stream. Any thread.
class KeepAlive {
 public:
  /// Has `send` called on the service's loop every so many seconds, instead of what was started before. 0 or a negative
  /// errno: then nothing is called.
  int start(int seconds, std::function<void()> send);
  /// After this returns `send` is not running. Not in `send`, and not with anything locked that it locks.
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
