// SPDX-License-Identifier: Apache-2.0
#include "progress/descriptors.h"

#include <cerrno>

#include "base/system_error.h"

namespace nupa::progress {
namespace {

Result<void> wait_for_one(int fd, short events, Deadline deadline) {
  pollfd one{fd, events, 0};
  const auto ready = wait_descriptors({&one, 1}, deadline, Signals::kIgnore);
  if (!ready) return tl::unexpected(ready.error());
  if (*ready == 0) return fail(ETIMEDOUT, "timeout: the descriptor is not ready");
  return {};
}

}  // namespace

Result<int> wait_descriptors(std::span<pollfd> fds, Deadline deadline, Signals signals, const sigset_t* mask) {
  for (;;) {
    timespec storage;
    const int ready = ppoll(fds.data(), fds.size(), deadline.left(&storage), mask);
    if (ready >= 0) return ready;
    if (errno != EINTR || signals == Signals::kReturn) return base::fail_call(errno, "cannot wait for descriptors");
  }
}

Result<void> wait_readable(int fd, Deadline deadline) { return wait_for_one(fd, POLLIN, deadline); }
Result<void> wait_writable(int fd, Deadline deadline) { return wait_for_one(fd, POLLOUT, deadline); }
bool is_readable(int fd) { return wait_readable(fd, Deadline::at(0)).has_value(); }

}  // namespace nupa::progress
