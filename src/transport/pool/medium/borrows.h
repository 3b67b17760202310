// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <mutex>

#include "progress/lifecycle.h"

namespace nupa::pool {

/// The blocks of other processes of this host that this process uses as memory. Each is locked for as long, so that
/// nobody gives it away: neither its owner nor, when that is dead, the others. The kernel frees the locks of a process
/// that dies. `Lock`: HostLock, or that of a simulation. Any thread.
template <class Lock>
class Borrows {
 public:
  explicit Borrows(Lock& lock) : lock_(&lock) {}

  /// Under the host's lock. Returns false if the kernel has no room for a lock.
  bool take(uint32_t block) {
    std::lock_guard mutex(mutex_);
    if (lock_ == nullptr) return false;
    uint32_t& users = users_[block];
    if (users == 0 && !lock_->borrow_block(block)) {
      users_.erase(block);
      return false;
    }
    ++users;
    return true;
  }

  void give_back(uint32_t block) {
    if (!own_.holds()) return;
    std::lock_guard mutex(mutex_);
    const auto found = users_.find(block);
    if (lock_ == nullptr || found == users_.end() || --found->second != 0) return;
    users_.erase(found);
    lock_->return_block(block);
  }

  /// The locks end with the file.
  void close() {
    if (!own_.holds()) return;
    std::lock_guard mutex(mutex_);
    lock_ = nullptr;
  }

 private:
  progress::OfThisProcess own_;
  std::mutex mutex_;  ///< leaf
  Lock* lock_;
  std::map<uint32_t, uint32_t> users_;  ///< of each block, in this process
};

}  // namespace nupa::pool
