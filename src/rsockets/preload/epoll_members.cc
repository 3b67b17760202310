// SPDX-License-Identifier: Apache-2.0
#include "rsockets/preload/epoll_members.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "rsockets/descriptor_table.h"
#include "base/fence.h"
#include "rsockets/preload/next.h"

namespace nupa::sockets {

using rsockets::DescriptorTable;
using rsockets::Use;

namespace {

constexpr uint32_t kReadable = EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
constexpr uint32_t kWritable = EPOLLOUT | EPOLLWRNORM;
/// The data of an entry of the inner set: the member's descriptor in the program, and the watched descriptor.
struct InnerData {
  int member;
  int descriptor;

  uint64_t number() const {
    return static_cast<uint64_t>(static_cast<uint32_t>(member)) << 32 | static_cast<uint32_t>(descriptor);
  }
  static InnerData of(uint64_t number) { return {static_cast<int>(number >> 32), static_cast<int>(number)}; }
};

/// Checks without an event before a member becomes passive.
constexpr uint32_t kIdleLooks = 8;

/// Returns the events of the member, or 0.
uint32_t look(Item* item) {
  if (item->disabled) return 0;
  const auto lease = DescriptorTable::instance().lease(item->rsocket, Use::kOther);
  if (!lease) return 0;
  const bool edges = (item->wanted.events & EPOLLET) != 0;
  if (edges) lease->ready(0);
  const uint32_t read_edge = lease->read_edges();
  const uint32_t write_edge = lease->write_edges();
  const auto mask = static_cast<short>(item->wanted.events & (kReadable | kWritable));
  const auto ready = static_cast<uint16_t>(lease->ready(mask));
  if (ready == 0) return 0;
  const bool moved = item->fresh || read_edge != item->read_edge ||
                     ((item->wanted.events & kWritable) != 0 && write_edge != item->write_edge);
  if (edges && !moved) return 0;
  item->read_edge = read_edge;
  item->write_edge = write_edge;
  return ready;
}

void notify(Item* item, uint32_t ready, epoll_event* event) {
  event->events = ready;
  event->data = item->wanted.data;
  item->fresh = false;
  item->idle_looks = 0;
  if ((item->wanted.events & EPOLLONESHOT) != 0) item->disabled = true;
}

/// Arms a member, so that a descriptor becomes readable when something happens. Returns false if the member has events
/// now.
bool passivate(Item* item) {
  {
    const auto lease = DescriptorTable::instance().lease(item->rsocket, Use::kOther);
    if (lease) {
      std::vector<pollfd> fds;
      lease->arm(&fds);
      for (const pollfd& entry : fds) {
        if (std::find(item->watched.begin(), item->watched.end(), entry.fd) != item->watched.end()) continue;
        epoll_event event{};
        event.events = EPOLLIN | EPOLLET;
        event.data.u64 = InnerData{item->fd, entry.fd}.number();
        if (next::epoll_ctl(item->set->inner, EPOLL_CTL_ADD, entry.fd, &event) == 0) item->watched.push_back(entry.fd);
      }
    }
  }
  // This check restores the edges, so that the next collect() reports the event.
  const uint32_t read_edge = item->read_edge;
  const uint32_t write_edge = item->write_edge;
  const bool something = look(item) != 0;
  item->read_edge = read_edge;
  item->write_edge = write_edge;
  if (something) {
    item->idle_looks = 0;
    return false;
  }
  item->active = false;
  return true;
}

}  // namespace

constinit FdTable<Set> set_table;
std::mutex all_sets_mutex;

std::atomic<int>& sleepers_of(int epoll) {
  constexpr size_t kCounts = 4096;
  static constinit std::atomic<int> counts[kCounts] = {};
  return counts[static_cast<uint32_t>(epoll) % kCounts];
}

namespace {

/// Never destroyed: at exit threads may be inside.
constinit std::vector<Set*>* sets = nullptr;

}  // namespace

std::vector<Set*>& all_sets() {
  if (sets == nullptr) sets = new std::vector<Set*>;
  return *sets;
}

void forget_all_sets() {
  new (&all_sets_mutex) std::mutex;
  sets = nullptr;
  set_table.for_each([](const Set* set) { set_table.take(set->fd); });
}

namespace {

/// Wakes the threads that sleep in the set. The eventfd is never read, since each write is an edge. progress::WakeUp is
/// not used, because its libc calls would enter this library again.
void kick(const Set* set) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = next::write(set->kick, &one, sizeof one);
}

}  // namespace

void Item::changed() {
  if (signalled.exchange(true)) return;
  {
    std::lock_guard lock(set->signal_lock);
    set->signalled.push_back(this);
  }
  if (set->sleepers.load() == 0) return;
  kick(set);
}

Set* set_of(int epoll, bool make) {
  Set* set = set_table.get(epoll);
  if (set != nullptr || !make) return set;
  std::lock_guard lock(all_sets_mutex);
  set = set_table.get(epoll);
  if (set != nullptr) return set;
  set = new (std::nothrow) Set(epoll);
  if (set == nullptr) return nullptr;
  all_sets().push_back(set);
  set_table.set(epoll, set);
  return set;
}

void activate(Item* item) {
  item->idle_looks = 0;
  if (item->active) return;
  item->active = true;
  item->set->active.push_back(item);
}

void wake_sleepers(Set* set) {
  base::fence_after_update();  // after has_items is set; a sleeper in libc's call reads it after it was counted
  if (set->sleepers.load() != 0) kick(set);
}

int open_inner(Set* set) {
  if (set->inner >= 0) return 0;
  set->inner = epoll_create1(EPOLL_CLOEXEC);
  set->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = InnerData{-1, -1}.number();
  int rc = next::epoll_ctl(set->inner, EPOLL_CTL_ADD, set->kick, &event);
  event.events = EPOLLIN;
  event.data.u64 = set->marker();
  if (rc == 0) rc = next::epoll_ctl(set->fd, EPOLL_CTL_ADD, set->inner, &event);
  if (rc == 0) return 0;
  const int error = set->inner < 0 || set->kick < 0 ? EMFILE : errno;
  close_inner(set);
  return error;
}

void close_inner(Set* set) {
  if (set->inner >= 0) next::close(set->inner);
  if (set->kick >= 0) next::close(set->kick);
  set->inner = set->kick = -1;
}

int add_item(Set* set, int fd, int rsocket, const epoll_event& wanted, bool listens) {
  const int rc = open_inner(set);
  if (rc != 0) return rc;
  auto item = std::make_unique<Item>();
  item->set = set;
  item->fd = fd;
  item->rsocket = rsocket;
  item->wanted = wanted;
  const auto lease = DescriptorTable::instance().lease(rsocket, Use::kOther);
  if (!lease) return EBADF;
  lease->observers().add(item.get());
  activate(item.get());
  if (listens) set->listeners.push_back(item.get());
  set->items[fd] = std::move(item);
  set->has_items.store(true);
  wake_sleepers(set);
  return 0;
}

bool remove_item(Set* set, int fd) {
  const auto found = set->items.find(fd);
  if (found == set->items.end()) return false;
  Item* item = found->second.get();
  {
    const auto lease = DescriptorTable::instance().lease(item->rsocket, Use::kOther);
    if (lease) {
      lease->observers().remove(item);
      for (const int watched : item->watched) next::epoll_ctl(set->inner, EPOLL_CTL_DEL, watched, nullptr);
    }
  }
  {
    std::lock_guard lock(set->signal_lock);
    std::erase(set->signalled, item);
  }
  std::erase(set->active, item);
  std::erase(set->listeners, item);
  set->items.erase(found);
  return true;
}

void absorb_signals(Set* set) {
  std::lock_guard lock(set->signal_lock);
  for (Item* item : set->signalled) {
    // An exchange, so that the following check sees every change signalled before.
    item->signalled.exchange(false);
    activate(item);
  }
  set->signalled.clear();
}

int collect(Set* set, epoll_event* events, int most) {
  int count = 0;
  const size_t all = set->active.size();
  size_t looked = 0;
  for (; looked < all && count < most; ++looked) {
    Item* item = set->active[looked];
    const uint32_t ready = look(item);
    if (ready != 0) {
      notify(item, ready, &events[count++]);
    } else {
      ++item->idle_looks;
    }
  }
  // Members that were not checked come first the next time.
  std::rotate(set->active.begin(), set->active.begin() + static_cast<ptrdiff_t>(looked), set->active.end());
  return count;
}

bool passivate_idle(Set* set, bool all) {
  bool quiet = true;
  std::erase_if(set->active, [&](Item* item) {
    if (!all && item->idle_looks < kIdleLooks) return false;
    const bool passive = passivate(item);
    quiet &= passive;
    return passive;
  });
  return quiet;
}

void drain_inner(Set* set) {
  constexpr int kTogether = 64;
  epoll_event events[kTogether];
  int count;
  do {
    count = next::epoll_pwait(set->inner, events, kTogether, 0, static_cast<const sigset_t*>(nullptr));
    for (int i = 0; i < count; ++i) {
      const InnerData data = InnerData::of(events[i].data.u64);
      const auto found = set->items.find(data.member);
      if (found == set->items.end()) continue;
      Item* item = found->second.get();
      const auto lease = DescriptorTable::instance().lease(item->rsocket, Use::kOther);
      if (lease) lease->wake(data.descriptor);
      activate(item);
    }
  } while (count == kTogether);
}

}  // namespace nupa::sockets
