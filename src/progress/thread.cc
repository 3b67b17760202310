// SPDX-License-Identifier: Apache-2.0
#include "progress/thread.h"

#include <semaphore.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "base/memory_fault.h"
#include "base/system_error.h"
#include "progress/deadline.h"

namespace nupa::progress {

namespace {

/// How start() waits for the new thread. Shared by both, because the wait has a limit.
class Readiness {
 public:
  Readiness() { sem_init(&semaphore_, 0, 0); }
  void report() { sem_post(&semaphore_); }
  void wait(Deadline deadline) {
    const timespec end{deadline.at_ns() / kNsPerSecond, deadline.at_ns() % kNsPerSecond};
    while (sem_clockwait(&semaphore_, CLOCK_MONOTONIC, &end) != 0 && errno == EINTR) {
    }
  }

 private:
  sem_t semaphore_;
};

struct Start {
  const char* name;
  std::function<void()> body;
  std::shared_ptr<Readiness> readiness;  ///< null: no thread waits
};

/// How long start() waits for the new thread. A malloc() of the program may need a lock that the caller holds.
constexpr int64_t kReadyNs = 100 * kNsPerMs;

/// Has malloc() map the thread's arena. Programs load libraries that watch mappings (libfabric, UCX) and overwrite the
/// first instructions of mmap() and munmap() while the program runs; a thread that is inside then crashes.
void map_arena() {
  void* volatile const memory = std::malloc(1);
  std::free(memory);
}

void* run(void* start) {
  const std::unique_ptr<Start> mine(static_cast<Start*>(start));
  pthread_setname_np(pthread_self(), mine->name);
  constexpr unsigned long kLeastSlackNs = 1;  // 0 means the default
  prctl(PR_SET_TIMERSLACK, kLeastSlackNs);
  if (mine->readiness != nullptr) {
    map_arena();
    mine->readiness->report();
  }
  mine->body();
  return nullptr;
}

/// Returns 0 or an errno value.
int create(pthread_t* made, std::unique_ptr<Start> start) {
  sigset_t blocked;
  sigset_t before;
  sigfillset(&blocked);
  for (const int signal : base::kFaultSignals) sigdelset(&blocked, signal);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  const int error = pthread_create(made, nullptr, run, start.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error == 0) start.release();
  return error;
}

}  // namespace

Thread::~Thread() {
  if (process_ == getpid()) std::terminate();
}

Result<void> Thread::start(ThreadName name, std::function<void()> body) try {
  const auto readiness = std::make_shared<Readiness>();
  const int error = create(&thread_, std::make_unique<Start>(name.text(), std::move(body), readiness));
  if (error != 0) return base::fail_call(error, "cannot start the thread ", name.text());
  process_ = getpid();
  readiness->wait(Deadline::in_ns(kReadyNs));
  return {};
} catch (const std::bad_alloc&) {
  return base::fail_call(ENOMEM, "cannot start the thread ", name.text());
}

void Thread::join() {
  if (process_ == getpid()) pthread_join(thread_, nullptr);
  process_ = 0;
}

Result<void> start_detached(ThreadName name, std::function<void()> body) try {
  pthread_t made{};
  const int error = create(&made, std::make_unique<Start>(name.text(), std::move(body), nullptr));
  if (error != 0) return base::fail_call(error, "cannot start the thread ", name.text());
  pthread_detach(made);
  return {};
} catch (const std::bad_alloc&) {
  return base::fail_call(ENOMEM, "cannot start the thread ", name.text());
}

}  // namespace nupa::progress
