// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/result.h>

#include <cerrno>
#include <cstdint>

#include "progress/lifecycle.h"

namespace nupa::pool {

/// The locks among the processes of one host. The host's lock guards its tables. A process locks its record as long as
/// it lives, and each block that it borrows from another process. The locks are bytes of the medium's file, so all
/// processes that can map the pool share them. The kernel frees the locks of a process that dies. Any thread; the
/// host's lock does not nest.
class HostLock {
 public:
  /// `fd`: an open file of this object alone, which stays open while it exists.
  HostLock(int fd, uint16_t host) : fd_(fd), host_(host) {}

  /// EBUSY: another process keeps it. ENODEV: in a forked child. ENOLCK.
  Result<void> lock();
  /// The same without waiting.
  bool try_lock();
  void unlock();

  /// Takes a record until the file is closed. False: a living process has it.
  bool take_record(uint16_t record);
  /// True if another living process has the record.
  bool is_taken(uint16_t record);

  /// Locks a block beside others that borrow it, until return_block() or the end of the process. False: ENOLCK.
  bool borrow_block(uint32_t block);
  void return_block(uint32_t block);
  /// True if another living process borrows the block.
  bool is_borrowed(uint32_t block);

 private:
  int fd_;
  uint16_t host_;
  progress::OfThisProcess own_;
};

/// The host's lock for a scope. Check is_held(). `Lock`: HostLock, or that of a simulation.
template <class Lock>
class HeldHostLock {
 public:
  explicit HeldHostLock(Lock& lock, bool waits = true) : lock_(lock) {
    if (waits)
      result_ = lock.lock();
    else if (!lock.try_lock())
      result_ = fail(EBUSY, "the host's lock is held");
  }
  ~HeldHostLock() {
    if (result_) lock_.unlock();
  }
  HeldHostLock(const HeldHostLock&) = delete;
  HeldHostLock& operator=(const HeldHostLock&) = delete;
  bool is_held() const { return result_.has_value(); }
  const Error& error() const { return result_.error(); }

 private:
  Lock& lock_;
  Result<void> result_;
};

}  // namespace nupa::pool
