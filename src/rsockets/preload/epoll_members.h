// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Members of a program's epoll set whose data goes over rsockets.
#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "rsockets/waiter.h"
#include "rsockets/preload/fd_table.h"
#include "progress/spin_lock.h"

namespace nupa::sockets {

struct Set;

/// A member whose data goes over an rsocket ("rsocket member"). Every wait polls an active member. A passive member has
/// armed its completion queue, whose descriptor is in the inner epoll set.
struct Item final : rsockets::Observer {
  Set* set = nullptr;
  int fd = -1;
  int rsocket = -1;
  epoll_event wanted{};
  bool active = false;
  bool disabled = false;  ///< EPOLLONESHOT has reported once
  bool fresh = true;      ///< nothing was reported since it was added or changed
  uint32_t read_edge = 0;
  uint32_t write_edge = 0;
  uint32_t idle_looks = 0;
  std::vector<int> watched;
  std::atomic<bool> signalled{false};

  void changed() override;
};

/// Counts the threads that sleep in epoll_wait() or are about to, by the set's descriptor number. A thread in libc's
/// call on a set without rsocket members counts, too. Sets may share a count, and a forked child keeps its parent's
/// counts. The only effect is a needless wakeup.
std::atomic<int>& sleepers_of(int epoll);

/// An epoll set of the program that has rsocket members, or may get them.
struct Set {
  explicit Set(int epoll) : fd(epoll), sleepers(sleepers_of(epoll)) {}

  const int fd;
  std::mutex mutex;
  std::unordered_map<int, std::unique_ptr<Item>> items;
  std::unordered_map<int, epoll_event> plain;  ///< the kernel's members that may become rsocket members
  std::vector<Item*> active;
  std::vector<Item*> listeners;  ///< those that are also in the kernel's set
  int inner = -1;                ///< epoll set with the descriptors of rsockets; a member of the program's set
  int kick = -1;
  std::atomic<bool> has_items{false};
  std::atomic<int>& sleepers;
  progress::SpinLock signal_lock;
  std::vector<Item*> signalled;

  uint64_t marker() const { return reinterpret_cast<uintptr_t>(this) | 1; }
};

/// The sets by descriptor, and a list of all sets. Lock order: all_sets_mutex, the mutex of a set, the locks of
/// rsockets.
extern FdTable<Set> set_table;
extern std::mutex all_sets_mutex;
/// Returns all sets. The caller holds all_sets_mutex.
std::vector<Set*>& all_sets();
/// In a forked child: the list becomes empty, the lock is new, and the parent's sets are not touched.
void forget_all_sets();
/// Returns null if there is no such set, or if there is no memory for one.
Set* set_of(int epoll, bool make);

// The functions below are called with the set's mutex held.

/// Opens the two descriptors that a set with rsocket members needs, once. Returns 0 or an errno.
int open_inner(Set* set);
/// Returns 0 or an errno.
int add_item(Set* set, int fd, int rsocket, const epoll_event& wanted, bool listens);
bool remove_item(Set* set, int fd);
void close_inner(Set* set);
/// Makes a member active: every wait polls it.
void activate(Item* item);
/// Activates the members that have signalled a change.
void absorb_signals(Set* set);
/// Collects the events of active members and returns their number.
int collect(Set* set, epoll_event* events, int most);
/// Makes the idle members passive, or all of them. True if no member has events.
bool passivate_idle(Set* set, bool all);
/// Takes the events of passive members and activates them.
void drain_inner(Set* set);
void wake_sleepers(Set* set);

}  // namespace nupa::sockets
