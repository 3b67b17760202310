// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <mutex>

#include "base/unique_fd.h"
#include "progress/deadline.h"
#include <nupa/export.h>
#include <nupa/result.h>

namespace nupa::progress {

/// flock(2) between processes, and between the threads of one process, which flock() alone lets in together. Any
/// thread.
class FileLock {
 public:
  /// `fd`: the lock's own open file: a child or another object with the same one would hold the lock as well, after the
  /// owner's death too. A forked child's copy is closed, and the lock is not the child's.
  NUPA_EXPORT explicit FileLock(base::UniqueFd fd);
  NUPA_EXPORT ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  /// Tries again after pauses of 200 us, doubled up to 20 ms: of hundreds that wait, most leave the processor to the
  /// one that has it. EBUSY: late. ENODEV: in a forked child. ENOLCK.
  NUPA_EXPORT Result<void> lock(Deadline deadline);
  NUPA_EXPORT void unlock();

 private:
  base::UniqueFd fd_;
  const pid_t process_;
  std::mutex threads_;  ///< held with the file's lock
};

}  // namespace nupa::progress
