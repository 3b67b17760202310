// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <pthread.h>
#include <sys/types.h>

#include <functional>
#include <string_view>

#include <nupa/export.h>
#include <nupa/result.h>

namespace nupa::progress {

/// "nupa-" and up to 10 characters more: what the kernel shows of a thread.
class ThreadName {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a name that is none does not compile
  consteval ThreadName(const char* text) : text_(text) {
    const std::string_view name(text);
    if (!name.starts_with("nupa-") || name.size() > 15) throw "a thread's name is nupa- and up to 10 characters";
  }
  const char* text() const { return text_; }

 private:
  const char* text_;
};

/// A thread of the library. The program's signals are for the program's threads: all are blocked in it but those of
/// faults, which no other thread can take. Its timers are exact (a timer slack of 1 ns), and its name begins with
/// "nupa-", so that a user sees whose it is.
///
/// One owner, who keeps the object where it is from start() to join().
class NUPA_EXPORT Thread {
 public:
  Thread() = default;
  /// It was joined, or is another process's.
  ~Thread();
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  /// Runs `body` in a new thread. EAGAIN, ENOMEM: there is none.
  Result<void> start(ThreadName name, std::function<void()> body);
  /// Between start() and join(). For the owner.
  bool has_started() const { return process_ != 0; }
  /// Waits for the end of `body`. In a fork's child it returns at once: the thread does not exist there.
  void join();

 private:
  pthread_t thread_{};
  pid_t process_ = 0;
};

/// The same without an owner: nobody waits for its end. EAGAIN, ENOMEM.
NUPA_EXPORT Result<void> start_detached(ThreadName name, std::function<void()> body);

}  // namespace nupa::progress
