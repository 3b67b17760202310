// SPDX-License-Identifier: Apache-2.0
#include "rsockets/preload/epoll_set.h"

#include "rsockets/preload/epoll_members.h"
#include "rsockets/preload/next.h"
#include "rsockets/preload/overlay.h"

namespace nupa::sockets {

bool is_known_set(int fd) { return set_table.get(fd) != nullptr; }

bool has_members(int epoll) {
  const Set* set = set_table.get(epoll);
  return set != nullptr && set->has_items.load(std::memory_order_acquire);
}

int prepare_epoll_sets(int fd) {
  std::lock_guard all(all_sets_mutex);
  for (Set* set : all_sets()) {
    std::lock_guard lock(set->mutex);
    if (!set->plain.contains(fd)) continue;
    const int error = open_inner(set);
    if (error != 0) return error;
  }
  return 0;
}

void leave_epoll_sets(int fd) {
  std::lock_guard all(all_sets_mutex);
  for (Set* set : all_sets()) {
    std::lock_guard lock(set->mutex);
    const auto found = set->items.find(fd);
    if (found != set->items.end()) {
      const epoll_event wanted = found->second->wanted;
      remove_item(set, fd);
      set->plain[fd] = wanted;
    } else if (set->plain.contains(fd) && next::epoll_ctl(set->fd, EPOLL_CTL_DEL, fd, nullptr) != 0) {
      set->plain.erase(fd);  // the number belonged to another descriptor
    }
  }
}

void join_epoll_sets(int fd) {
  const Overlay* overlay = overlay_of(fd);
  std::lock_guard all(all_sets_mutex);
  for (Set* set : all_sets()) {
    std::lock_guard lock(set->mutex);
    const auto found = set->plain.find(fd);
    if (found == set->plain.end()) continue;
    epoll_event wanted = found->second;
    if (overlay != nullptr) {
      set->plain.erase(found);
      add_item(set, fd, overlay->rsocket.load(), wanted, false);
    } else {
      next::epoll_ctl(set->fd, EPOLL_CTL_ADD, fd, &wanted);
    }
  }
}

void forget_in_epoll_sets(int fd) {
  if (overlay_of(fd) != nullptr) {
    std::lock_guard all(all_sets_mutex);
    for (Set* set : all_sets()) {
      std::lock_guard lock(set->mutex);
      remove_item(set, fd);
      set->plain.erase(fd);
    }
  }
  Set* set = set_table.take(fd);
  if (set == nullptr) return;
  {
    std::lock_guard all(all_sets_mutex);
    std::erase(all_sets(), set);
  }
  std::lock_guard lock(set->mutex);
  while (!set->items.empty()) remove_item(set, set->items.begin()->first);
  set->plain.clear();
  set->has_items.store(false);
  close_inner(set);
  // The object is not freed: a thread may still be leaving wait().
}

}  // namespace nupa::sockets
