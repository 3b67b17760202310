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
/// Behind those: a byte for each block of a host.
constexpr off_t kBlockBase = off_t{1} << 51;
constexpr off_t kBlockBytesOfHost = off_t{1} << 32;

constexpr int64_t kFirstPauseNs = 100'000;
constexpr int64_t kLongestPauseNs = 10'000'000;
/// A process that joins can hold the lock for some seconds: it watches the heartbeat of an earlier boot.
constexpr int64_t kTimeoutNs = 20'000'000'000;

struct flock byte_at(off_t at, short type) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = at;
  range.l_len = 1;
  return range;
}

off_t byte_of(uint16_t host, off_t number) { return kLockBase + host * kLockBytesOfHost + number; }
off_t byte_of_block(uint16_t host, uint32_t block) { return kBlockBase + host * kBlockBytesOfHost + block; }

int set(int fd, off_t at, short type) {
  const struct flock range = byte_at(at, type);
  return fcntl(fd, F_OFD_SETLK, &range) == 0 ? 0 : errno;
}

/// True if another open file has locked the byte, or if that cannot be found out.
bool is_locked(int fd, off_t at) {
  struct flock range = byte_at(at, F_WRLCK);
  return fcntl(fd, F_OFD_GETLK, &range) != 0 || range.l_type != F_UNLCK;
}

}  // namespace

Result<void> HostLock::lock() {
  if (!own_.holds()) return fail(ENODEV, "the pool belongs to the parent process");
  const progress::Deadline deadline = progress::Deadline::in_ns(kTimeoutNs);
  for (progress::Backoff pauses(kFirstPauseNs, kLongestPauseNs);; progress::sleep_for(pauses.next_ns())) {
    const int error = set(fd_, byte_of(host_, 0), F_WRLCK);
    if (error == 0) return {};
    if (error != EAGAIN && error != EACCES && error != EINTR)
      return base::fail_call(error, "cannot lock the pool for host ", host_);
    if (deadline.passed())
      return fail(EBUSY, "another process of host ", host_, " keeps the lock of the pool (is it stopped?)");
  }
}

bool HostLock::try_lock() { return own_.holds() && set(fd_, byte_of(host_, 0), F_WRLCK) == 0; }

void HostLock::unlock() {
  if (own_.holds()) set(fd_, byte_of(host_, 0), F_UNLCK);
}

bool HostLock::take_record(uint16_t record) {
  return own_.holds() && set(fd_, byte_of(host_, 1 + record), F_WRLCK) == 0;
}

bool HostLock::is_taken(uint16_t record) { return !own_.holds() || is_locked(fd_, byte_of(host_, 1 + record)); }

bool HostLock::borrow_block(uint32_t block) {
  return own_.holds() && set(fd_, byte_of_block(host_, block), F_RDLCK) == 0;
}

void HostLock::return_block(uint32_t block) {
  if (own_.holds()) set(fd_, byte_of_block(host_, block), F_UNLCK);
}

bool HostLock::is_borrowed(uint32_t block) { return !own_.holds() || is_locked(fd_, byte_of_block(host_, block)); }

}  // namespace nupa::pool
