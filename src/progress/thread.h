// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <pthread.h>
#include <sys/types.h>

#include <functional>
#include <string_view>

#include <nupa/export.h>
#include <nupa/result.h>

namespace nupa::progress {

/// A thread's name as the kernel shows it: "nupa-" and up to 10 more characters.
class ThreadName {
 public:
  // an invalid name does not compile
  consteval ThreadName(const char* text) : text_(text) {
    const std::string_view name(text);
    if (!name.starts_with("nupa-") || name.size() > 15) throw "a thread's name is nupa- and up to 10 characters";
  }
  const char* text() const { return text_; }

 private:
  const char* text_;
};

/// A thread of the library. All signals are blocked in it, because they are for the program's threads. Signals of
/// faults are not, because no other thread can take them. Its timers are exact (a timer slack of 1 ns), and its name
/// begins with "nupa-", so that a user can identify it.
///
/// It has one owner, who does not move the object between start() and join().
class NUPA_EXPORT Thread {
 public:
  Thread() = default;
  /// Only after join(), or in another process.
  ~Thread();
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  /// Runs `body` in a new thread, which has mapped its malloc() arena when this returns (or after 100 ms).
  /// EAGAIN, ENOMEM: no thread can be started.
  Result<void> start(ThreadName name, std::function<void()> body);
  /// True between start() and join(). For the owner.
  bool has_started() const { return process_ != 0; }
  /// Waits for the end of `body`. In a child of fork() it returns at once: the thread does not exist there.
  void join();

 private:
  pthread_t thread_{};
  pid_t process_ = 0;
};

/// The same without an owner: no thread waits for its end. EAGAIN, ENOMEM.
NUPA_EXPORT Result<void> start_detached(ThreadName name, std::function<void()> body);

}  // namespace nupa::progress
