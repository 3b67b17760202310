#include "epoll_set.h"

#include <netinet/in.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../descriptor_table.h"
#include "base/clock.h"
#include "base/spin.h"
#include "fd_table.h"
#include "next.h"
#include "overlay.h"
#include "rules.h"

namespace nupa::sockets {
namespace {

using rsockets::DescriptorTable;
using rsockets::Observer;
using rsockets::Spin;
using rsockets::Use;

constexpr uint32_t kReadable = EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
constexpr uint32_t kWritable = EPOLLOUT | EPOLLWRNORM;
/// Looks at a member that finds nothing before it is asked to tell by itself.
constexpr uint32_t kIdleLooks = 8;
constexpr int64_t kNsPerMs = 1'000'000;

struct Set;

/// A member whose data go over an rsocket. An active one is looked at in every wait; a passive one has asked its
/// completion queue to make a descriptor readable, which the inner epoll set watches.
struct Item final : Observer {
  Set* set = nullptr;
  int fd = -1;
  int rsocket = -1;
  epoll_event wanted{};
  bool active = false;
  bool disabled = false;  ///< EPOLLONESHOT has told once
  bool fresh = true;      ///< nothing told since it was added or changed
  uint32_t read_edge = 0;
  uint32_t write_edge = 0;
  uint32_t idle_looks = 0;
  std::vector<int> watched;
  std::atomic<bool> signalled{false};

  void changed() override;
};

/// One epoll set of the program that has, or may get, members of ours.
struct Set {
  int fd = -1;
  std::mutex mutex;
  std::unordered_map<int, std::unique_ptr<Item>> items;
  std::unordered_map<int, epoll_event> plain;  ///< the kernel's members that may become ours
  std::vector<Item*> active;
  int inner = -1;  ///< rsockets' descriptors; itself a member of the program's set
  int kick = -1;
  std::atomic<bool> has_items{false};
  std::atomic<int> sleepers{0};
  base::SpinLock signal_lock;
  std::vector<Item*> signalled;

  uint64_t marker() const { return reinterpret_cast<uintptr_t>(this) | 1; }
};

constinit FdTable<Set> table;
std::mutex all_mutex;
std::vector<Set*>& all_sets() {
  static auto* sets = new std::vector<Set*>;
  return *sets;
}

void Item::changed() {
  if (signalled.exchange(true)) return;
  {
    std::lock_guard lock(set->signal_lock);
    set->signalled.push_back(this);
  }
  if (set->sleepers.load() == 0) return;
  const uint64_t one = 1;
  if (next::write(set->kick, &one, sizeof one) < 0) return;
}

Set* set_of(int epoll, bool make) {
  Set* set = table.get(epoll);
  if (set != nullptr || !make) return set;
  std::lock_guard lock(all_mutex);
  set = table.get(epoll);
  if (set != nullptr) return set;
  set = new (std::nothrow) Set;
  if (set == nullptr) return nullptr;
  set->fd = epoll;
  all_sets().push_back(set);
  table.set(epoll, set);
  return set;
}

int open_inner(Set* set) {
  if (set->inner >= 0) return 0;
  set->inner = epoll_create1(EPOLL_CLOEXEC);
  set->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.fd = -1;
  next::epoll_ctl(set->inner, EPOLL_CTL_ADD, set->kick, &event);
  event.events = EPOLLIN;
  event.data.u64 = set->marker();
  return next::epoll_ctl(set->fd, EPOLL_CTL_ADD, set->inner, &event);
}

void activate(Item* item) {
  item->idle_looks = 0;
  if (item->active) return;
  item->active = true;
  item->set->active.push_back(item);
}

void wake_sleepers(Set* set) {
  const uint64_t one = 1;
  if (set->sleepers.load() != 0 && next::write(set->kick, &one, sizeof one) < 0) return;
}

void add_item(Set* set, int fd, int rsocket, const epoll_event& wanted) {
  if (open_inner(set) != 0) return;
  auto item = std::make_unique<Item>();
  item->set = set;
  item->fd = fd;
  item->rsocket = rsocket;
  item->wanted = wanted;
  const auto lease = DescriptorTable::instance().lease(rsocket, Use::kOther);
  if (!lease) return;
  lease->observers().add(item.get());
  activate(item.get());
  set->items[fd] = std::move(item);
  set->has_items.store(true);
  wake_sleepers(set);
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
  set->items.erase(found);
  return true;
}

/// What the member has to tell now; 0: nothing.
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

void tell(Item* item, uint32_t ready, epoll_event* event) {
  event->events = ready;
  event->data = item->wanted.data;
  item->fresh = false;
  item->idle_looks = 0;
  if ((item->wanted.events & EPOLLONESHOT) != 0) item->disabled = true;
}

/// Asks a member to make a descriptor readable when something happens. False: it has something to tell.
bool passivate(Item* item) {
  {
    const auto lease = DescriptorTable::instance().lease(item->rsocket, Use::kOther);
    if (lease) {
      thread_local std::vector<pollfd> fds;
      fds.clear();
      lease->arm(&fds);
      for (const pollfd& entry : fds) {
        if (std::find(item->watched.begin(), item->watched.end(), entry.fd) != item->watched.end()) continue;
        epoll_event event{};
        event.events = EPOLLIN | EPOLLET;
        event.data.fd = item->fd;
        if (next::epoll_ctl(item->set->inner, EPOLL_CTL_ADD, entry.fd, &event) == 0) item->watched.push_back(entry.fd);
      }
    }
  }
  // Looked at without taking the edge: the next collect() tells it.
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

void absorb_signals(Set* set) {
  std::lock_guard lock(set->signal_lock);
  for (Item* item : set->signalled) {
    item->signalled.store(false);
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
      tell(item, ready, &events[count++]);
    } else {
      ++item->idle_looks;
    }
  }
  // Those that were not looked at come first the next time.
  std::rotate(set->active.begin(), set->active.begin() + static_cast<ptrdiff_t>(looked), set->active.end());
  return count;
}

/// Makes the idle ones passive, or all of them. True: nobody has anything to tell.
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
      const auto found = set->items.find(events[i].data.fd);
      if (found == set->items.end()) continue;
      Item* item = found->second.get();
      const auto lease = DescriptorTable::instance().lease(item->rsocket, Use::kOther);
      if (lease) lease->wake();
      activate(item);
    }
  } while (count == kTogether);
}

/// Takes our own entry out of what the kernel told. True: it was there.
bool take_marker(const Set* set, epoll_event* events, int* count) {
  for (int i = 0; i < *count; ++i) {
    if (events[i].data.u64 != set->marker()) continue;
    events[i] = events[--*count];
    return true;
  }
  return false;
}

/// A listener may be told by both its sockets: once is enough.
int drop_doubles(const epoll_event* told, int count, epoll_event* more, int more_count) {
  for (int i = 0; i < count; ++i) {
    for (int k = 0; k < more_count; ++k) {
      if (more[k].data.u64 == told[i].data.u64) more[k--] = more[--more_count];
    }
  }
  return more_count;
}

/// Connections under way: some may have to fall back to TCP. Their end of time in *next_ns.
void settle_connecting(Set* set, int64_t* next_ns) {
  thread_local std::vector<int> connecting;
  connecting.clear();
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

int control_item(Set* set, int operation, int fd, int rsocket, const epoll_event* event) {
  std::lock_guard lock(set->mutex);
  const auto found = set->items.find(fd);
  const bool there = found != set->items.end();
  switch (operation) {
    case EPOLL_CTL_ADD:
      if (there) return EEXIST;
      add_item(set, fd, rsocket, *event);
      return 0;
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

}  // namespace

int control(int epoll, int operation, int fd, epoll_event* event) {
  Overlay* overlay = overlay_of(fd);
  const auto mode = overlay == nullptr ? Overlay::Mode::kLost : overlay->mode.load();
  if (mode == Overlay::Mode::kConnected || mode == Overlay::Mode::kConnecting) {
    Set* set = set_of(epoll, true);
    if (set == nullptr || (event == nullptr && operation != EPOLL_CTL_DEL)) {
      errno = set == nullptr ? ENOMEM : EFAULT;
      return -1;
    }
    const int error = control_item(set, operation, fd, overlay->rsocket.load(), event);
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
    if (control_item(set, operation, fd, rsocket, event) == ENOENT && operation == EPOLL_CTL_MOD) {
      control_item(set, EPOLL_CTL_ADD, fd, rsocket, event);
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

bool has_members(int epoll) {
  const Set* set = table.get(epoll);
  return set != nullptr && set->has_items.load(std::memory_order_acquire);
}

int wait(int epoll, epoll_event* events, int most, int64_t limit_ns, const sigset_t* mask) {
  const auto in_ms = [](int64_t ns) {
    return ns < 0 ? -1 : static_cast<int>(std::min<int64_t>((ns + kNsPerMs - 1) / kNsPerMs, INT_MAX));
  };
  Set* set = table.get(epoll);
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
      count += drop_doubles(events, count, events + count, more);
    }
    if (count != 0) return count;
    if (base::now_ns() >= until) return 0;
    if (busy && spin.again()) continue;
    {
      std::lock_guard lock(set->mutex);
      if (!passivate_idle(set, true)) continue;
    }
    set->sleepers.fetch_add(1);
    bool told;
    {
      std::lock_guard lock(set->signal_lock);
      told = !set->signalled.empty();
    }
    if (!told) {
      const int64_t left = wake_at == INT64_MAX ? -1 : std::max<int64_t>(wake_at - base::now_ns(), 0);
      count = next::epoll_pwait(epoll, events, most, in_ms(left), mask);
    }
    set->sleepers.fetch_sub(1);
    if (count < 0) return -1;
    if (take_marker(set, events, &count)) {
      std::lock_guard lock(set->mutex);
      drain_inner(set);
    }
    if (count != 0) return count;
  }
}

void leave_epoll_sets(int fd) {
  std::lock_guard all(all_mutex);
  for (Set* set : all_sets()) {
    std::lock_guard lock(set->mutex);
    const auto found = set->items.find(fd);
    if (found != set->items.end()) {
      const epoll_event wanted = found->second->wanted;
      remove_item(set, fd);
      set->plain[fd] = wanted;
    } else if (set->plain.contains(fd) && next::epoll_ctl(set->fd, EPOLL_CTL_DEL, fd, nullptr) != 0) {
      set->plain.erase(fd);  // it was another descriptor of this number
    }
  }
}

void join_epoll_sets(int fd) {
  const Overlay* overlay = overlay_of(fd);
  std::lock_guard all(all_mutex);
  for (Set* set : all_sets()) {
    std::lock_guard lock(set->mutex);
    const auto found = set->plain.find(fd);
    if (found == set->plain.end()) continue;
    epoll_event wanted = found->second;
    if (overlay != nullptr) {
      set->plain.erase(found);
      add_item(set, fd, overlay->rsocket.load(), wanted);
    } else {
      next::epoll_ctl(set->fd, EPOLL_CTL_ADD, fd, &wanted);
    }
  }
}

void forget_in_epoll_sets(int fd) {
  if (overlay_of(fd) != nullptr) {
    std::lock_guard all(all_mutex);
    for (Set* set : all_sets()) {
      std::lock_guard lock(set->mutex);
      remove_item(set, fd);
      set->plain.erase(fd);
    }
  }
  Set* set = table.take(fd);
  if (set == nullptr) return;
  {
    std::lock_guard all(all_mutex);
    std::erase(all_sets(), set);
  }
  std::lock_guard lock(set->mutex);
  while (!set->items.empty()) remove_item(set, set->items.begin()->first);
  set->plain.clear();
  set->has_items.store(false);
  if (set->inner >= 0) next::close(set->inner);
  if (set->kick >= 0) next::close(set->kick);
  set->inner = set->kick = -1;
  // The object itself stays: a thread may be about to leave wait().
}

void forget_epoll_sets() {
  for (Set* set : all_sets()) table.take(set->fd);
  all_sets().clear();
}

}  // namespace nupa::sockets
