// SPDX-License-Identifier: Apache-2.0
/// Calls that wait for several descriptors.
#include <sys/epoll.h>
#include <sys/select.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "rsockets/poll.h"
#include "base/clock.h"
#include "rsockets/preload/epoll_calls.h"
#include "rsockets/preload/epoll_set.h"
#include "rsockets/preload/next.h"
#include "rsockets/preload/overlay.h"
#include "rsockets/preload/take_over.h"
#include "progress/clock.h"

using namespace nupa::sockets;
using nupa::rsockets::Deadline;
using Mode = Overlay::Mode;

namespace {

using nupa::progress::kNsPerMs;
using nupa::progress::kNsPerSecond;

int64_t to_ns(const timespec* time) { return time == nullptr ? -1 : time->tv_sec * kNsPerSecond + time->tv_nsec; }

bool any_overlay(const pollfd* fds, nfds_t count) {
  if (PlainPoll::on()) return false;
  return std::any_of(fds, fds + count, [](const pollfd& entry) { return overlay_of(entry.fd) != nullptr; });
}

/// The program's descriptors, with rsockets in place of those that have one. A listener stays and adds its rsocket.
class Translated {
 public:
  Translated(pollfd* fds, nfds_t count) : fds_(fds), count_(count) {}

  /// Called before each wait, because a connection attempt may have fallen back to TCP. Returns the earliest deadline
  /// of the attempts in progress.
  int64_t translate() {
    int64_t next_ns = INT64_MAX;
    list_.assign(fds_, fds_ + count_);
    owners_.clear();
    for (nfds_t i = 0; i < count_; ++i) {
      Overlay* overlay = overlay_of(fds_[i].fd);
      if (overlay == nullptr || overlay->mode.load() == Mode::kLost) continue;
      if (overlay->mode.load() == Mode::kListening) {
        const int rsocket_fd = listening_rsocket(fds_[i].fd, overlay);
        if (rsocket_fd < 0) continue;
        list_.push_back({rsocket_fd, fds_[i].events, 0});
        owners_.push_back(i);
        continue;
      }
      if (!settle(fds_[i].fd, overlay)) next_ns = std::min(next_ns, connect_deadline(*overlay));
      if (overlay_of(fds_[i].fd) != nullptr) list_[i].fd = overlay->rsocket.load();
    }
    return next_ns;
  }
  pollfd* list() { return list_.data(); }
  nfds_t size() const { return list_.size(); }

  /// Stores the events and returns the number of descriptors that have some.
  int give() {
    int found = 0;
    for (nfds_t i = 0; i < count_; ++i) fds_[i].revents = list_[i].revents;
    for (size_t k = 0; k < owners_.size(); ++k) fds_[owners_[k]].revents |= list_[count_ + k].revents;
    for (nfds_t i = 0; i < count_; ++i) found += fds_[i].revents != 0;
    return found;
  }

 private:
  pollfd* const fds_;
  const nfds_t count_;
  std::vector<pollfd> list_;
  std::vector<nfds_t> owners_;
};

int poll_translated(pollfd* fds, nfds_t count, int64_t limit_ns, const sigset_t* mask) {
  const int64_t until = limit_ns < 0 ? INT64_MAX : nupa::base::now_ns() + limit_ns;
  Translated translated(fds, count);
  for (;;) {
    const int64_t wake_at = std::min(until, translated.translate());
    const auto deadline = wake_at == INT64_MAX ? Deadline::never() : Deadline::in_ns(wake_at - nupa::base::now_ns());
    const PlainPoll plain;
    const int rc = nupa::rsockets::poll_mixed(translated.list(), translated.size(), deadline, limit_ns == 0, mask);
    if (rc < 0) {
      errno = -rc;
      return -1;
    }
    // A failed attempt is reported as an error, but TCP takes over, so the wait continues with TCP.
    bool fell_back = false;
    for (nfds_t i = 0; i < count; ++i) {
      Overlay* overlay = translated.list()[i].revents == 0 ? nullptr : overlay_of(fds[i].fd);
      if (overlay == nullptr || overlay->mode.load() != Mode::kConnecting) continue;
      fell_back |= settle(fds[i].fd, overlay) && overlay_of(fds[i].fd) == nullptr;
    }
    if (fell_back) continue;
    const int found = translated.give();
    if (found != 0 || limit_ns == 0 || nupa::base::now_ns() >= until) return found;
  }
}

int select_translated(int count, fd_set* read, fd_set* write, fd_set* except, int64_t limit_ns, const sigset_t* mask) {
  nupa::rsockets::SelectSets sets(std::min<int>(count, FD_SETSIZE), read, write, except);
  if (const int rc = poll_translated(sets.list(), sets.size(), limit_ns, mask); rc < 0) return rc;
  const int bits = sets.keep_ready();
  if (bits >= 0) return bits;
  errno = -bits;
  return -1;
}

bool any_overlay(int count, const fd_set* set) {
  if (set == nullptr) return false;
  for (int fd = 0; fd < std::min<int>(count, FD_SETSIZE); ++fd) {
    if (FD_ISSET(fd, set) && overlay_of(fd) != nullptr) return true;
  }
  return false;
}

bool any_overlay(int count, const fd_set* read, const fd_set* write, const fd_set* except) {
  return any_overlay(count, read) || any_overlay(count, write) || any_overlay(count, except);
}

/// epoll_wait() with a limit in nanoseconds; negative means no limit. `libc` is the program's own call, for a set
/// without rsocket members.
template <class Call>
int wait_for_members(int epoll, epoll_event* events, int most, int64_t limit_ns, const sigset_t* mask, Call libc) {
  if (!has_members(epoll) && begin_plain_wait(epoll)) {
    const int64_t begin_ns = limit_ns > 0 ? nupa::base::now_ns() : 0;
    int count = libc();
    if (end_plain_wait(epoll, events, &count)) return count;
    if (limit_ns > 0) limit_ns = std::max<int64_t>(limit_ns - (nupa::base::now_ns() - begin_ns), 0);
  }
  return wait(epoll, events, most, limit_ns, mask);
}

}  // namespace

// The C library declares that these two only write to `fds`, so the compiler takes a read for one of uninitialized
// memory.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

NUPA_SHOWN int poll(pollfd* fds, nfds_t count, int timeout) {
  if (!any_overlay(fds, count)) return next::poll(fds, count, timeout);
  return poll_translated(fds, count, timeout < 0 ? -1 : timeout * kNsPerMs, nullptr);
}

NUPA_SHOWN int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  if (!any_overlay(fds, count)) return next::ppoll(fds, count, timeout, mask);
  return poll_translated(fds, count, to_ns(timeout), mask);
}

NUPA_SHOWN int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t) { return poll(fds, count, timeout); }
NUPA_SHOWN int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask, size_t) {
  return ppoll(fds, count, timeout, mask);
}

NUPA_SHOWN int select(int count, fd_set* read, fd_set* write, fd_set* except, timeval* timeout) {
  if (!any_overlay(count, read, write, except)) return next::select(count, read, write, except, timeout);
  const int64_t limit =
      timeout == nullptr ? -1 : timeout->tv_sec * kNsPerSecond + timeout->tv_usec * nupa::progress::kNsPerUs;
  return select_translated(count, read, write, except, limit, nullptr);
}

NUPA_SHOWN int pselect(int count, fd_set* read, fd_set* write, fd_set* except, const timespec* timeout,
                       const sigset_t* mask) {
  if (!any_overlay(count, read, write, except)) return next::pselect(count, read, write, except, timeout, mask);
  return select_translated(count, read, write, except, to_ns(timeout), mask);
}

NUPA_SHOWN int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) noexcept {
  return control(epoll, operation, fd, event);
}

NUPA_SHOWN int epoll_pwait(int epoll, epoll_event* events, int most, int timeout, const sigset_t* mask) {
  return wait_for_members(epoll, events, most, timeout < 0 ? -1 : timeout * kNsPerMs, mask,
                          [&] { return next::epoll_pwait(epoll, events, most, timeout, mask); });
}

NUPA_SHOWN int epoll_wait(int epoll, epoll_event* events, int most, int timeout) {
  return epoll_pwait(epoll, events, most, timeout, nullptr);
}

NUPA_SHOWN int epoll_pwait2(int epoll, epoll_event* events, int most, const timespec* timeout, const sigset_t* mask) {
  return wait_for_members(epoll, events, most, to_ns(timeout), mask,
                          [&] { return next::epoll_pwait2(epoll, events, most, timeout, mask); });
}
