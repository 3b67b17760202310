// SPDX-License-Identifier: Apache-2.0
#include "progress/receive_right.h"

#include <sys/epoll.h>

#include <cerrno>

#include "base/system_error.h"
#include "progress/clock.h"
#include "progress/descriptors.h"

namespace nupa::progress {
namespace {

bool control(int set, int operation, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  return epoll_ctl(set, operation, fd, &event) == 0;
}

}  // namespace

Result<void> ReceiveRight::open() {
  packets_.reset(epoll_create1(EPOLL_CLOEXEC));
  thread_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!packets_ || !thread_) return base::fail_call(errno, "cannot create an epoll descriptor for packets");
  if (auto opened = grant_.open(); !opened) return opened;
  if (!control(thread_.get(), EPOLL_CTL_ADD, packets_.get(), EPOLLIN) ||
      !control(thread_.get(), EPOLL_CTL_ADD, grant_.fd(), EPOLLIN))
    return base::fail_call(errno, "cannot add a descriptor to the epoll set for packets");
  return {};
}

Result<void> ReceiveRight::add(int fd) {
  if (!control(packets_.get(), EPOLL_CTL_ADD, fd, EPOLLIN) && errno != EEXIST)
    return base::fail_call(errno, "cannot add a socket to the epoll set for packets");
  return {};
}

void ReceiveRight::close() {
  packets_.reset();
  thread_.reset();
  grant_.close();
}

bool ReceiveRight::wakes_thread(bool wakes) const {
  return control(thread_.get(), EPOLL_CTL_MOD, packets_.get(), wakes ? uint32_t{EPOLLIN} : 0);
}

bool ReceiveRight::claim() {
  State state = State::kLent;
  if (state_.compare_exchange_strong(state, State::kClaimed)) return true;
  if (state != State::kThreads || !state_.compare_exchange_strong(state, State::kClaimed)) return false;
  if (wakes_thread(false)) return true;
  state_.store(State::kThreads);
  return false;
}

void ReceiveRight::lend() {
  for (;;) {
    const bool timer_taken = state_.load() == State::kTimerTaken;
    if (timer_taken) state_.store(State::kClaimed);
    const int64_t now = now_ns();
    // Not each time: a fast program claims and lends several times in a grant.
    if (timer_taken || grant_ends_ns_ - now < kGrantNs / 2) {
      grant_ends_ns_ = now + kGrantNs;
      grant_.set(grant_ends_ns_);
    }
    // This thread may have lost its processor until the timer ended.
    State claimed = State::kClaimed;
    if (state_.compare_exchange_strong(claimed, State::kLent)) return;
  }
}

bool ReceiveRight::end_grant() {
  if (!is_readable(grant_.fd())) return false;
  grant_.take();
  State state = State::kLent;
  while (!state_.compare_exchange_strong(state, State::kThreads)) {
    if (state == State::kThreads || state == State::kTimerTaken) return true;
    if (state == State::kClaimed && state_.compare_exchange_strong(state, State::kTimerTaken)) return true;
    state = State::kLent;
  }
  wakes_thread(true);
  // A claim that came before the line above may have disabled the set's events before it.
  if (state_.load() != State::kThreads) wakes_thread(false);
  return true;
}

}  // namespace nupa::progress
