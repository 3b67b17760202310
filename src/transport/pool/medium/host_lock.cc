// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/medium/host_lock.h"

#include <fcntl.h>

#include "base/system_error.h"
#include "progress/waiter.h"

namespace nupa::pool {
namespace {

/// Behind the end of each medium. A host has 2^16 bytes: the first one is its lock, the others are its records.
constexpr off_t kLockBase = off_t{1} << 50;
constexpr off_t kLockBytesOfHost = 1 << 16;

constexpr int64_t kFirstPauseNs = 100'000;
constexpr int64_t kLongestPauseNs = 10'000'000;
/// A process that joins can hold the lock for some seconds: it watches the heartbeat of an earlier boot.
constexpr int64_t kTimeoutNs = 20'000'000'000;

struct flock byte_of(uint16_t host, off_t number, short type) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = kLockBase + host * kLockBytesOfHost + number;
  range.l_len = 1;
  return range;
}

int set(int fd, uint16_t host, off_t number, short type) {
  const struct flock range = byte_of(host, number, type);
  return fcntl(fd, F_OFD_SETLK, &range) == 0 ? 0 : errno;
}

}  // namespace

Result<void> HostLock::lock() {
  if (!own_.holds()) return fail(ENODEV, "the pool belongs to the parent process");
  const progress::Deadline deadline = progress::Deadline::in_ns(kTimeoutNs);
  for (progress::Backoff pauses(kFirstPauseNs, kLongestPauseNs);; progress::sleep_for(pauses.next_ns())) {
    const int error = set(fd_, host_, 0, F_WRLCK);
    if (error == 0) return {};
    if (error != EAGAIN && error != EACCES && error != EINTR)
      return base::fail_call(error, "cannot lock the pool for host ", host_);
    if (deadline.passed())
      return fail(EBUSY, "another process of host ", host_, " keeps the lock of the pool (is it stopped?)");
  }
}

bool HostLock::try_lock() { return own_.holds() && set(fd_, host_, 0, F_WRLCK) == 0; }

void HostLock::unlock() {
  if (own_.holds()) set(fd_, host_, 0, F_UNLCK);
}

bool HostLock::take_record(uint16_t record) { return own_.holds() && set(fd_, host_, 1 + record, F_WRLCK) == 0; }

bool HostLock::is_taken(uint16_t record) {
  if (!own_.holds()) return true;
  struct flock range = byte_of(host_, 1 + record, F_WRLCK);
  // An error leaves a record alone.
  return fcntl(fd_, F_OFD_GETLK, &range) != 0 || range.l_type != F_UNLCK;
}

}  // namespace nupa::pool
