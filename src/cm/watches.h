#pragma once
#include <functional>
#include <mutex>
#include <new>
#include <unordered_map>

#include "cm/poller.h"

namespace nupa::cm {

/// Descriptors that the service thread watches for others: Node::watch(). Any thread.
class Watches {
 public:
  explicit Watches(Poller& poller) : poller_(poller) {}

  /// Errors of epoll.
  Result<void> add(int fd, std::function<void()> ready);
  /// After this returns what was to be called is not running, unless it is the caller.
  void remove(int fd);
  /// Calls what watches `fd`. False: nobody does.
  bool call(int fd);

  /// Held over fork(); nothing runs meanwhile.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  /// Instead of unlock() in a child of fork(): a recursive mutex is unlocked only by the thread that has locked it, and
  /// the child's thread is another one.
  void unlock_in_child() { new (&mutex_) std::recursive_mutex; }

 private:
  Poller& poller_;
  std::recursive_mutex mutex_;  ///< held while what watches runs
  std::unordered_map<int, std::function<void()>> watches_;
};

}  // namespace nupa::cm
