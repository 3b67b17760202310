#pragma once
#include <pthread.h>
#include <signal.h>

#include "base/memory_fault.h"

namespace nupa::base {

/// pthread_create() for a thread of the library's own: the program's signals are for the program's threads. Those of a
/// fault are let in, since no other thread can have them. An errno value.
inline int start_own_thread(pthread_t* thread, void* (*run)(void*), void* argument) {
  sigset_t held;
  sigset_t before;
  sigfillset(&held);
  for (const int signal : kFaultSignals) sigdelset(&held, signal);
  pthread_sigmask(SIG_SETMASK, &held, &before);
  const int error = pthread_create(thread, nullptr, run, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

}  // namespace nupa::base
