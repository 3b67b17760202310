// SPDX-License-Identifier: Apache-2.0
#include "rsockets/preload/epoll_calls.h"

#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "base/clock.h"
#include "base/fence.h"
#include "rsockets/preload/epoll_members.h"
#include "rsockets/preload/epoll_set.h"
#include "rsockets/preload/next.h"
#include "rsockets/preload/overlay.h"
#include "progress/clock.h"
#include "rsockets/preload/rules.h"
#include "rsockets/preload/take_over.h"

namespace nupa::sockets {
namespace {

using rsockets::Spin;

using progress::kNsPerMs;

/// Removes the inner epoll set from the kernel's events. Returns true if it was there.
bool take_marker(const Set* set, epoll_event* events, int* count) {
  for (int i = 0; i < *count; ++i) {
    if (events[i].data.u64 != set->marker()) continue;
    events[i] = events[--*count];
    return true;
  }
  return false;
}

/// Merges events of a listener that both its sockets reported. The event bits are combined, because another member may
/// have the same data.
int join_doubles(Set* set, epoll_event* told, int count, epoll_event* more, int more_count) {
  std::lock_guard lock(set->mutex);
  for (const Item* listener : set->listeners) {
    const auto has_its_data = [&](const epoll_event& event) { return event.data.u64 == listener->wanted.data.u64; };
    epoll_event* const own = std::find_if(told, told + count, has_its_data);
    epoll_event* const twin = std::find_if(more, more + more_count, has_its_data);
    if (own == told + count || twin == more + more_count) continue;
    own->events |= twin->events;
    *twin = more[--more_count];
  }
  return more_count;
}

/// Called when a thread returns to its program. Wakes a sleeping thread, which takes over the active members. Otherwise
/// nobody would poll them.
void hand_over(Set* set) {
  if (set->sleepers.load() == 0) return;
  std::lock_guard lock(set->mutex);
  const auto& active = set->active;
  if (std::any_of(active.begin(), active.end(), [](const Item* item) { return !item->disabled; })) wake_sleepers(set);
}

/// Checks the connection attempts, some of which may have to fall back to TCP. Lowers *next_ns to their earliest
/// deadline.
void settle_connecting(Set* set, int64_t* next_ns) {
  std::vector<int> connecting;
  {
    std::lock_guard lock(set->mutex);
    for (const auto& [fd, item] : set->items) {
      const Overlay* overlay = overlay_of(fd);
      if (overlay != nullptr && overlay->mode.load() == Overlay::Mode::kConnecting) connecting.push_back(fd);
    }
  }
  for (const int fd : connecting) {
    Overlay* overlay = overlay_of(fd);
    if (overlay != nullptr && !settle(fd, overlay)) *next_ns = std::min(*next_ns, connect_deadline(*overlay));
  }
}

bool may_become(int fd) {
  int domain = 0;
  int type = 0;
  socklen_t length = sizeof domain;
  if (next::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || !allowed(domain)) return false;
  length = sizeof type;
  if (next::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_STREAM) return false;
  sockaddr_storage peer;
  length = sizeof peer;
  return next::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0;
}

int control_item(Set* set, int operation, int fd, int rsocket, const epoll_event* event, bool listens) {
  std::lock_guard lock(set->mutex);
  const auto found = set->items.find(fd);
  const bool there = found != set->items.end();
  switch (operation) {
    case EPOLL_CTL_ADD:
      if (there) return EEXIST;
      return add_item(set, fd, rsocket, *event, listens);
    case EPOLL_CTL_MOD:
      if (!there) return ENOENT;
      found->second->wanted = *event;
      found->second->fresh = true;
      found->second->disabled = false;
      activate(found->second.get());
      wake_sleepers(set);
      return 0;
    case EPOLL_CTL_DEL:
      return remove_item(set, fd) ? 0 : ENOENT;
    default:
      return EINVAL;
  }
}

/// True if `epoll` is an epoll set. Otherwise errno is EBADF or EINVAL.
bool is_set(int epoll, int fd) {
  return next::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, static_cast<epoll_event*>(nullptr)) == 0 || errno == ENOENT;
}

}  // namespace

int control(int epoll, int operation, int fd, epoll_event* event) {
  Overlay* overlay = overlay_of(fd);
  const auto mode = overlay == nullptr ? Overlay::Mode::kLost : overlay->mode.load();
  if (mode == Overlay::Mode::kConnected || mode == Overlay::Mode::kConnecting) {
    Set* set = set_of(epoll, false);
    if (set == nullptr) {
      if (operation != EPOLL_CTL_ADD) return next::epoll_ctl(epoll, operation, fd, event);  // it is no member
      if (!is_set(epoll, fd)) return -1;
      set = set_of(epoll, true);
    }
    if (set == nullptr || (event == nullptr && operation != EPOLL_CTL_DEL)) {
      errno = set == nullptr ? ENOMEM : EFAULT;
      return -1;
    }
    const int error = control_item(set, operation, fd, overlay->rsocket.load(), event, false);
    if (error == 0) return 0;
    errno = error;
    return -1;
  }
  const int rc = next::epoll_ctl(epoll, operation, fd, event);
  if (rc != 0) return rc;
  if (mode == Overlay::Mode::kListening) {
    const int rsocket = listening_rsocket(fd, overlay);
    Set* set = rsocket < 0 ? nullptr : set_of(epoll, true);
    if (set == nullptr) return 0;
    if (control_item(set, operation, fd, rsocket, event, true) == ENOENT && operation == EPOLL_CTL_MOD) {
      control_item(set, EPOLL_CTL_ADD, fd, rsocket, event, true);
    }
    return 0;
  }
  if (operation == EPOLL_CTL_ADD && may_become(fd)) {
    if (Set* set = set_of(epoll, true)) {
      std::lock_guard lock(set->mutex);
      set->plain[fd] = *event;
    }
  } else if (Set* set = set_of(epoll, false)) {
    std::lock_guard lock(set->mutex);
    const auto found = set->plain.find(fd);
    if (found != set->plain.end() && operation == EPOLL_CTL_MOD) found->second = *event;
    if (found != set->plain.end() && operation == EPOLL_CTL_DEL) set->plain.erase(found);
  }
  return 0;
}

bool begin_plain_wait(int epoll) {
  sleepers_of(epoll).fetch_add(1);
  base::fence_after_update();
  if (!has_members(epoll)) return true;
  sleepers_of(epoll).fetch_sub(1);
  return false;
}

bool end_plain_wait(int epoll, epoll_event* events, int* count) {
  sleepers_of(epoll).fetch_sub(1);
  Set* set = *count > 0 ? set_table.get(epoll) : nullptr;
  if (set == nullptr) return true;
  if (take_marker(set, events, count)) {
    std::lock_guard lock(set->mutex);
    drain_inner(set);
  }
  if (*count == 0) return false;
  hand_over(set);
  return true;
}

int wait(int epoll, epoll_event* events, int most, int64_t limit_ns, const sigset_t* mask) {
  const auto in_ms = [](int64_t ns) {
    return ns < 0 ? -1 : static_cast<int>(std::min<int64_t>((ns + kNsPerMs - 1) / kNsPerMs, INT_MAX));
  };
  Set* set = set_table.get(epoll);
  if (most <= 0) {
    errno = EINVAL;
    return -1;
  }
  const int64_t until = limit_ns < 0 ? INT64_MAX : base::now_ns() + limit_ns;
  const sigset_t* none = nullptr;
  Spin spin;
  for (;;) {
    int64_t wake_at = until;
    settle_connecting(set, &wake_at);
    int count;
    bool busy;
    {
      std::lock_guard lock(set->mutex);
      absorb_signals(set);
      count = collect(set, events, most);
      passivate_idle(set, false);
      busy = !set->active.empty();
    }
    if (count < most) {
      int more = next::epoll_pwait(epoll, events + count, most - count, 0, none);
      if (more < 0 && count == 0) return -1;
      more = std::max(more, 0);
      if (take_marker(set, events + count, &more)) {
        std::lock_guard lock(set->mutex);
        drain_inner(set);
        if (count == 0 && more == 0) {
          absorb_signals(set);
          count = collect(set, events, most);
        }
      }
      if (count != 0 && more != 0) more = join_doubles(set, events, count, events + count, more);
      count += more;
    }
    if (count != 0 || base::now_ns() >= until) {
      hand_over(set);
      return count;
    }
    if (busy && spin.again()) continue;
    bool quiet = false;
    bool told = false;
    // The sleeper is counted before the last check, so a thread that adds or changes a member afterwards finds a
    // sleeper to wake.
    set->sleepers.fetch_add(1);
    {
      std::lock_guard lock(set->mutex);
      quiet = passivate_idle(set, true);
    }
    {
      std::lock_guard lock(set->signal_lock);
      told = !set->signalled.empty();
    }
    if (quiet && !told) {
      const int64_t left = wake_at == INT64_MAX ? -1 : std::max<int64_t>(wake_at - base::now_ns(), 0);
      count = next::epoll_pwait(epoll, events, most, in_ms(left), mask);
    }
    set->sleepers.fetch_sub(1);
    if (count < 0) return -1;
    if (take_marker(set, events, &count)) {
      std::lock_guard lock(set->mutex);
      drain_inner(set);
    }
    if (count != 0) {
      hand_over(set);
      return count;
    }
  }
}

}  // namespace nupa::sockets
