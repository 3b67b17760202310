#pragma once
/// A descriptor that counts events which wait (an eventfd with EFD_SEMAPHORE): the program polls it and sets O_NONBLOCK
/// on it as it likes.
#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace nupa::base {

/// Takes one away again, for an event that is not to be told any more. False: a reader was faster, and will find
/// nothing. Never waits, though the descriptor may be one whose reads do.
inline bool count_back(int fd) {
  uint64_t one;
  iovec to{&one, sizeof one};
  constexpr off_t kNowhere = -1;
  const ssize_t got = ::preadv2(fd, &to, 1, kNowhere, RWF_NOWAIT);
  if (got >= 0 || errno != EOPNOTSUPP) return got == sizeof one;
  // Linux before 5.8: a reader that comes between the two makes this wait for the next event.
  pollfd ready{fd, POLLIN, 0};
  return ::poll(&ready, 1, 0) == 1 && ::read(fd, &one, sizeof one) == sizeof one;
}

}  // namespace nupa::base
