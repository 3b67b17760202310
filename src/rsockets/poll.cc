// SPDX-License-Identifier: Apache-2.0
#include "rsockets/poll.h"

#include <cerrno>
#include <vector>

#include "rsockets/descriptor_table.h"
#include "progress/descriptors.h"

namespace nupa::rsockets {
namespace {

using Lease = DescriptorTable::Lease;

/// The descriptors of one call. The rsockets among them are looked up once.
class PollSet {
 public:
  PollSet(pollfd* fds, nfds_t count) : fds_(fds), count_(count) {
    leases_.reserve(count);
    for (nfds_t i = 0; i < count; ++i) {
      leases_.push_back(fds[i].fd < 0 ? Lease() : DescriptorTable::instance().lease(fds[i].fd, Use::kOther));
      fds[i].revents = 0;
      if (leases_.back()) {
        ++rsockets_;
      } else {
        others_.push_back(fds[i]);
        places_.push_back(i);
      }
    }
  }

  bool has_rsockets() const { return rsockets_ != 0; }
  bool has_others() const { return !others_.empty(); }

  /// Checks all rsockets. Returns how many have events.
  int look() {
    int found = 0;
    for (nfds_t i = 0; i < count_; ++i) {
      if (!leases_[i]) continue;
      fds_[i].revents = leases_[i]->ready(fds_[i].events);
      found += fds_[i].revents != 0;
    }
    return found;
  }
  /// Checks the ordinary descriptors without waiting. Returns -errno if poll() fails.
  int look_at_others() {
    if (others_.empty()) return 0;
    const auto found = progress::wait_descriptors(others_, progress::Deadline::at(0), progress::Signals::kReturn);
    if (!found) return -found.error().code();
    give_others(others_.data());
    return *found;
  }
  /// Waits once for any of the descriptors; the caller then calls look() again. Returns a negative errno, 0 after the
  /// deadline, or 1 if something happened.
  int sleep(const Deadline& deadline, const sigset_t* mask) {
    SleepingThread waiter;
    waiter.take();
    std::vector<pollfd> all;
    all.push_back({waiter.fd(), POLLIN, 0});
    all.insert(all.end(), others_.begin(), others_.end());
    const size_t first = all.size();
    std::vector<size_t> ends(count_, 0);
    for (nfds_t i = 0; i < count_; ++i) {
      if (!leases_[i]) continue;
      leases_[i]->observers().add(&waiter);
      leases_[i]->arm(&all);
      ends[i] = all.size();
    }
    int result = look() != 0 ? 1 : 0;
    if (result == 0) {
      const auto ready = progress::wait_descriptors(all, deadline, progress::Signals::kReturn, mask);
      result = !ready ? -ready.error().code() : *ready == 0 ? 0 : 1;
    }
    size_t at = first;
    for (nfds_t i = 0; i < count_; ++i) {
      if (!leases_[i]) continue;
      leases_[i]->observers().remove(&waiter);
      for (; at < ends[i]; ++at)
        if (all[at].revents != 0) leases_[i]->wake(all[at].fd);
    }
    give_others(all.data() + 1);
    return result;
  }
  int found() const {
    int sum = 0;
    for (nfds_t i = 0; i < count_; ++i) sum += fds_[i].revents != 0;
    return sum;
  }

 private:
  void give_others(const pollfd* from) {
    for (size_t i = 0; i < places_.size(); ++i) fds_[places_[i]].revents = from[i].revents;
  }

  pollfd* const fds_;
  const nfds_t count_;
  size_t rsockets_ = 0;
  std::vector<Lease> leases_;
  std::vector<pollfd> others_;
  std::vector<nfds_t> places_;
};

}  // namespace

int poll_mixed(pollfd* fds, nfds_t count, const Deadline& deadline, bool nonblocking, const sigset_t* mask) {
  PollSet set(fds, count);
  Spin spin;
  do {
    int found = set.look();
    if (found != 0 || nonblocking) {
      const int others = set.look_at_others();
      return others < 0 ? others : found + others;
    }
  } while (set.has_rsockets() && spin.again());
  for (;;) {
    const int rc = set.sleep(deadline, mask);
    if (rc < 0) return rc;
    set.look();
    const int found = set.found();
    if (found != 0 || deadline.passed()) return found;
  }
}

SelectSets::SelectSets(int count, fd_set* read, fd_set* write, fd_set* except)
    : read_(read), write_(write), except_(except) {
  for (int fd = 0; fd < count; ++fd) {
    int events = 0;
    if (read != nullptr && FD_ISSET(fd, read)) events |= POLLIN;
    if (write != nullptr && FD_ISSET(fd, write)) events |= POLLOUT;
    if (except != nullptr && FD_ISSET(fd, except)) events |= POLLPRI;
    if (events != 0) list_.push_back({fd, static_cast<short>(events), 0});
  }
}

int SelectSets::keep_ready() {
  for (const pollfd& entry : list_) {
    if ((entry.revents & POLLNVAL) != 0) return -EBADF;
  }
  int bits = 0;
  const auto keep = [&](fd_set* set, const pollfd& entry, int asked, int meaning) {
    if (set == nullptr || (entry.events & asked) == 0) return;
    if ((entry.revents & meaning) != 0) {
      ++bits;
    } else {
      FD_CLR(entry.fd, set);
    }
  };
  for (const pollfd& entry : list_) {
    keep(read_, entry, POLLIN, POLLIN | POLLHUP | POLLERR);
    keep(write_, entry, POLLOUT, POLLOUT | POLLERR);
    keep(except_, entry, POLLPRI, POLLPRI);
  }
  return bits;
}

int select_mixed(int count, fd_set* read, fd_set* write, fd_set* except, const Deadline& deadline, bool nonblocking,
                 const sigset_t* mask) {
  if (count < 0 || count > FD_SETSIZE) return -EINVAL;
  SelectSets sets(count, read, write, except);
  const int rc = poll_mixed(sets.list(), sets.size(), deadline, nonblocking, mask);
  return rc < 0 ? rc : sets.keep_ready();
}

}  // namespace nupa::rsockets
