// SPDX-License-Identifier: Apache-2.0
#include "rsockets/event_set.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <new>

#include "progress/lifecycle.h"
#include "rsockets/descriptor_table.h"
#include "rsockets/poll.h"

namespace nupa::rsockets {
namespace {

/// The sets of a process. A forked child has a new one: a thread of the parent may have held the lock.
struct Sets {
  const progress::OfThisProcess made{};
  std::mutex mutex;  ///< held over EventSet::mutex_
  std::map<int, std::shared_ptr<EventSet>> by_fd;
};
std::atomic<Sets*> current{nullptr};  // never freed: threads use it while static objects are destroyed

Sets* sets_of_this_process() {
  Sets* const sets = current.load(std::memory_order_acquire);
  return sets != nullptr && sets->made.holds() ? sets : nullptr;
}

Sets& make_sets() {
  Sets* known = current.load(std::memory_order_acquire);
  while (known == nullptr || !known->made.holds()) {
    auto* const made = new Sets;
    if (current.compare_exchange_strong(known, made)) return *made;
    delete made;
  }
  return *known;
}

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

/// The events that epoll and poll have in common, which have the same numbers.
constexpr uint32_t kCommon = EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP | EPOLLRDNORM |
                             EPOLLRDBAND | EPOLLWRNORM | EPOLLWRBAND;
static_assert(EPOLLIN == POLLIN && EPOLLPRI == POLLPRI && EPOLLOUT == POLLOUT && EPOLLERR == POLLERR &&
              EPOLLHUP == POLLHUP && EPOLLRDHUP == POLLRDHUP);

}  // namespace

/// A thread that sleeps in wait(): a change of the members wakes it.
class EventSet::Waiter {
 public:
  explicit Waiter(EventSet& set) : set_(set) {}
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;
  ~Waiter() {
    if (changes_ == nullptr) return;
    std::lock_guard lock(set_.mutex_);
    std::erase(set_.waiters_, changes_.get());
    set_.spare_.push_back(std::move(changes_));
  }

  int fd() const { return changes_->fd(); }
  /// Changes from now on make fd() readable. Called with the set's mutex held. Returns 0 or a negative errno.
  int begin() {
    if (changes_ == nullptr) {
      WakeUp made;
      if (!set_.spare_.empty()) {
        made = std::move(set_.spare_.back());
        set_.spare_.pop_back();
      } else {
        made.reset(new progress::WakeUp);
        if (const auto opened = made->open(); !opened) return -opened.error().code();
      }
      set_.waiters_.push_back(made.get());
      changes_ = std::move(made);
    }
    changes_->take();
    return 0;
  }

 private:
  EventSet& set_;
  WakeUp changes_;
};

int EventSet::create(int flags) try {
  // The set has a number, and poll() finds no event there.
  int ends[2];
  if (pipe2(ends, flags & (O_CLOEXEC | O_NONBLOCK)) != 0) return -errno;
  base::UniqueFd fd(ends[0]), other(ends[1]);
  const int number = fd.get();
  auto set = std::make_shared<EventSet>(std::move(fd), std::move(other));
  Sets& sets = make_sets();
  std::lock_guard lock(sets.mutex);
  std::shared_ptr<EventSet>& place = sets.by_fd[number];
  // The program has closed the descriptor of an older set by close(), and its number is this one's now.
  if (place != nullptr) place->fd_.release();
  place = std::move(set);
  return number;
} catch (const std::bad_alloc&) {
  return -ENOMEM;
}

std::shared_ptr<EventSet> EventSet::of(int fd) {
  Sets* const sets = sets_of_this_process();
  if (sets == nullptr) return nullptr;
  std::lock_guard lock(sets->mutex);
  const auto found = sets->by_fd.find(fd);
  return found == sets->by_fd.end() ? nullptr : found->second;
}

int EventSet::close(int fd) {
  Sets* const sets = sets_of_this_process();
  if (sets == nullptr) return -EBADF;
  std::shared_ptr<EventSet> set;
  {
    std::lock_guard lock(sets->mutex);
    const auto found = sets->by_fd.find(fd);
    if (found == sets->by_fd.end()) return -EBADF;
    std::lock_guard inner(found->second->mutex_);
    std::erase_if(found->second->members_, [](const Member& member) { return !is_open(member.fd); });
    if (!found->second->members_.empty()) return -EBUSY;
    set = std::move(found->second);
    sets->by_fd.erase(found);
    set->is_closed_ = true;
    set->wake_waiters();
    set->fd_.reset();
  }
  return 0;
}

void EventSet::forget(int fd) {
  Sets* const sets = sets_of_this_process();
  if (sets == nullptr) return;
  std::lock_guard lock(sets->mutex);
  for (const auto& [number, set] : sets->by_fd) {
    std::lock_guard inner(set->mutex_);
    if (const auto member = set->find(fd); member != set->members_.end()) set->remove(member);
  }
}

std::vector<EventSet::Member>::iterator EventSet::find(int fd) {
  return std::find_if(members_.begin(), members_.end(), [fd](const Member& member) { return member.fd == fd; });
}

void EventSet::wake_waiters() {
  for (progress::WakeUp* const waiter : waiters_) waiter->signal();
}

void EventSet::remove(std::vector<Member>::iterator member) {
  members_.erase(member);
  wake_waiters();
}

int EventSet::control(int operation, int fd, const epoll_event* event) try {
  if (fd < 0) return -EBADF;
  if (of(fd) != nullptr) return -EINVAL;
  if (operation != EPOLL_CTL_ADD && operation != EPOLL_CTL_MOD && operation != EPOLL_CTL_DEL) return -EINVAL;
  if (operation != EPOLL_CTL_DEL && event == nullptr) return -EFAULT;
  if (!is_open(fd)) return -EBADF;
  std::lock_guard lock(mutex_);
  if (is_closed_) return -EBADF;
  const auto member = find(fd);
  if (operation == EPOLL_CTL_ADD) {
    if (member != members_.end()) return -EEXIST;
    members_.push_back({fd, *event, ++serial_, false});
    wake_waiters();
    return 0;
  }
  if (member == members_.end()) return -ENOENT;
  if (operation == EPOLL_CTL_DEL) {
    remove(member);
    return 0;
  }
  *member = {fd, *event, ++serial_, false};
  wake_waiters();
  return 0;
} catch (const std::bad_alloc&) {
  return -ENOMEM;
}

int EventSet::report(const std::vector<pollfd>& looked, const std::vector<uint64_t>& serials, epoll_event* events,
                     int most) {
  int count = 0;
  const size_t size = serials.size();
  std::vector<int> closed;
  for (size_t i = 0; i < size && count < most; ++i) {
    const size_t at = (first_ + i) % size;
    const pollfd& entry = looked[at];
    if (entry.revents == 0) continue;
    const auto member = find(entry.fd);
    // Another thread has changed or reported it meanwhile.
    if (member == members_.end() || member->serial != serials[at] || member->is_silent) continue;
    if ((entry.revents & POLLNVAL) != 0) {
      // The program has closed it: as in an epoll set, it is no member any more.
      closed.push_back(entry.fd);
      continue;
    }
    events[count].events = static_cast<uint32_t>(static_cast<uint16_t>(entry.revents)) & kCommon;
    events[count].data = member->wanted.data;
    ++count;
    if ((member->wanted.events & EPOLLONESHOT) != 0) member->is_silent = true;
    if (count == most) first_ = at + 1;
  }
  for (const int fd : closed) members_.erase(find(fd));
  return count;
}

int EventSet::wait(epoll_event* events, int most, const progress::Deadline& deadline, bool nonblocking) try {
  if (most <= 0) return -EINVAL;
  if (events == nullptr) return -EFAULT;
  Waiter waiter(*this);
  std::vector<pollfd> list;
  std::vector<uint64_t> serials;
  for (bool sleeps = false;; sleeps = true) {
    list.clear();
    serials.clear();
    {
      std::lock_guard lock(mutex_);
      if (is_closed_) return -EBADF;
      if (sleeps)
        if (const int error = waiter.begin(); error != 0) return error;
      for (const Member& member : members_) {
        // poll() leaves out a negative one.
        list.push_back(
            {member.is_silent ? ~member.fd : member.fd, static_cast<short>(member.wanted.events & kCommon), 0});
        serials.push_back(member.serial);
      }
    }
    if (sleeps) list.push_back({waiter.fd(), POLLIN, 0});
    // The first look waits for nothing: mostly there is something already.
    const int found =
        poll_mixed(list.data(), list.size(), sleeps ? deadline : progress::Deadline::at(0), !sleeps, nullptr);
    if (found < 0) return found;
    std::lock_guard lock(mutex_);
    if (const int count = report(list, serials, events, most); count != 0) return count;
    if (nonblocking || (sleeps && deadline.passed())) return 0;
  }
} catch (const std::bad_alloc&) {
  return -ENOMEM;
}

}  // namespace nupa::rsockets
