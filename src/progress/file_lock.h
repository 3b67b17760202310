// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <mutex>

#include "base/unique_fd.h"
#include "progress/deadline.h"
#include <nupa/export.h>
#include <nupa/result.h>

namespace nupa::progress {

/// A lock between processes by flock(2), and also between the threads of one process, which flock() alone does not
/// exclude. Any thread.
class FileLock {
 public:
  /// `fd`: an open file of this lock alone: a child or another object with the same open file would hold the lock as
  /// well, also after the owner's death. In a forked child the descriptor is closed, and the child does not hold the
  /// lock.
  NUPA_EXPORT explicit FileLock(base::UniqueFd fd);
  NUPA_EXPORT ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  /// Tries again after pauses of 200 us, doubled up to 20 ms: with hundreds of waiters, most leave the processor to the
  /// holder. EBUSY: the deadline passed. ENODEV: in a forked child. ENOLCK.
  NUPA_EXPORT Result<void> lock(Deadline deadline);
  NUPA_EXPORT void unlock();

 private:
  base::UniqueFd fd_;
  const pid_t process_;
  std::mutex threads_;  ///< held together with the file's lock
};

}  // namespace nupa::progress
