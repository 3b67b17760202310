// SPDX-License-Identifier: Apache-2.0
#include "progress/file_lock.h"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/system_error.h"
#include "progress/lifecycle.h"
#include "progress/waiter.h"

namespace nupa::progress {
namespace {

constexpr int64_t kFirstPauseNs = 200'000;
constexpr int64_t kLongestPauseNs = 20'000'000;

}  // namespace

FileLock::FileLock(base::UniqueFd fd) : fd_(std::move(fd)), process_(getpid()) { close_in_children(fd_.get()); }

FileLock::~FileLock() {
  if (process_ == getpid())
    forget_for_children(fd_.get());
  else
    fd_.release();  // it was closed, and the number may belong to another file
}

Result<void> FileLock::lock(Deadline deadline) {
  if (process_ != getpid()) return fail(ENODEV, "the file lock belongs to the parent process");
  for (Backoff pauses(kFirstPauseNs, kLongestPauseNs);; sleep_for(pauses.next_ns())) {
    // The file's lock belongs to this object, so another thread may hold it by this object.
    if (threads_.try_lock()) {
      if (flock(fd_.get(), LOCK_EX | LOCK_NB) == 0) return {};
      const int error = errno;
      threads_.unlock();
      if (error != EWOULDBLOCK && error != EINTR) return base::fail_call(error, "cannot lock a file");
    }
    if (deadline.passed()) return fail(EBUSY, "timeout: another process or thread holds the file lock");
  }
}

void FileLock::unlock() {
  if (process_ == getpid()) flock(fd_.get(), LOCK_UN);
  threads_.unlock();
}

}  // namespace nupa::progress
