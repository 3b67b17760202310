// SPDX-License-Identifier: Apache-2.0
#include "progress/thread.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "base/memory_fault.h"
#include "base/system_error.h"

namespace nupa::progress {

namespace {

struct Start {
  const char* name;
  std::function<void()> body;
};

void* run(void* start) {
  const std::unique_ptr<Start> mine(static_cast<Start*>(start));
  pthread_setname_np(pthread_self(), mine->name);
  constexpr unsigned long kLeastSlackNs = 1;  // 0 means the default
  prctl(PR_SET_TIMERSLACK, kLeastSlackNs);
  mine->body();
  return nullptr;
}

/// Returns 0 or an errno value.
int create(pthread_t* made, const char* name, std::function<void()> body) {
  std::unique_ptr<Start> start(new (std::nothrow) Start{name, std::move(body)});
  if (start == nullptr) return ENOMEM;
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

Result<void> Thread::start(ThreadName name, std::function<void()> body) {
  if (const int error = create(&thread_, name.text(), std::move(body)); error != 0)
    return base::fail_call(error, "cannot start the thread ", name.text());
  process_ = getpid();
  return {};
}

void Thread::join() {
  if (process_ == getpid()) pthread_join(thread_, nullptr);
  process_ = 0;
}

Result<void> start_detached(ThreadName name, std::function<void()> body) {
  pthread_t made{};
  if (const int error = create(&made, name.text(), std::move(body)); error != 0)
    return base::fail_call(error, "cannot start the thread ", name.text());
  pthread_detach(made);
  return {};
}

}  // namespace nupa::progress
