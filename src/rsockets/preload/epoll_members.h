#pragma once
/// Members of a program's epoll set whose data go over rsockets.
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

/// A member whose data go over an rsocket. An active one is looked at in every wait; a passive one has asked its
/// completion queue to make a descriptor readable, which the inner epoll set watches.
struct Item final : rsockets::Observer {
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

/// Threads in epoll_wait() that sleep or are about to, by the set's number: also in libc's call, of a set without
/// members of ours so far. Numbers may share a count, and a forked child keeps its parent's: then a thread that need
/// not wake does.
std::atomic<int>& sleepers_of(int epoll);

/// One epoll set of the program that has, or may get, members of ours.
struct Set {
  explicit Set(int epoll) : fd(epoll), sleepers(sleepers_of(epoll)) {}

  const int fd;
  std::mutex mutex;
  std::unordered_map<int, std::unique_ptr<Item>> items;
  std::unordered_map<int, epoll_event> plain;  ///< the kernel's members that may become ours
  std::vector<Item*> active;
  std::vector<Item*> listeners;  ///< those that the kernel's set has, too
  int inner = -1;                ///< rsockets' descriptors; itself a member of the program's set
  int kick = -1;
  std::atomic<bool> has_items{false};
  std::atomic<int>& sleepers;
  progress::SpinLock signal_lock;
  std::vector<Item*> signalled;

  uint64_t marker() const { return reinterpret_cast<uintptr_t>(this) | 1; }
};

/// Sets by their descriptor, and all of them. The lock of all comes before a set's, and that before those of rsockets.
extern FdTable<Set> set_table;
extern std::mutex all_sets_mutex;
/// Wants the lock.
std::vector<Set*>& all_sets();
/// In a forked child: there are none, the lock is new, and those of its parent stay as they are.
void forget_all_sets();
/// Null: there is none, or no memory for one.
Set* set_of(int epoll, bool make);

// All below want the set's mutex.

/// Opens the two descriptors of a set with members of ours, once. 0 or an errno.
int open_inner(Set* set);
/// 0 or an errno.
int add_item(Set* set, int fd, int rsocket, const epoll_event& wanted, bool listens);
bool remove_item(Set* set, int fd);
void close_inner(Set* set);
/// It is looked at from here on.
void activate(Item* item);
/// Activates those that have been told of.
void absorb_signals(Set* set);
/// What the active ones have to tell.
int collect(Set* set, epoll_event* events, int most);
/// Makes the idle ones passive, or all of them. True: nobody has anything to tell.
bool passivate_idle(Set* set, bool all);
/// Takes the events of passive ones and activates them.
void drain_inner(Set* set);
void wake_sleepers(Set* set);

}  // namespace nupa::sockets
