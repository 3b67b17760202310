// SPDX-License-Identifier: Apache-2.0
#include "progress/event_catch.h"

#include <atomic>
#include <utility>

#include "progress/descriptors.h"

namespace nupa::progress {
namespace {

/// Not a member of the object. A signal handler that jumps out of a wait would leave the object behind on a stack that
/// is reused.
struct Caught {
  int fd;
  uint32_t events;
};
[[gnu::tls_model("initial-exec")]] constinit thread_local Caught t_caught{-1, 0};

}  // namespace

EventCatch::EventCatch(const EventDescriptor& events) : events_(events) { t_caught = {events.signal_fd(), 0}; }

EventCatch::~EventCatch() {
  t_caught.fd = -1;
  if (const uint32_t left = std::exchange(t_caught.events, 0); left != 0) events_.count(left);
}

bool EventCatch::is_there() const { return t_caught.events != 0 || is_readable(fd()); }

bool EventCatch::begin_sleep() {
  t_caught.fd = -1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return t_caught.events == 0;
}

void EventCatch::end_sleep() { t_caught.fd = fd(); }

bool EventCatch::take() {
  if (t_caught.events == 0) return false;
  --t_caught.events;
  return true;
}

bool EventCatch::keep(int signal_fd) {
  if (t_caught.fd != signal_fd) return false;
  ++t_caught.events;
  return true;
}

}  // namespace nupa::progress
