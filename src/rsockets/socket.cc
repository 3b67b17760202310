// SPDX-License-Identifier: Apache-2.0
#include "progress/descriptors.h"
#include "rsockets/socket.h"

#include <fcntl.h>
#include <infiniband/ib.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace nupa::rsockets {

namespace {

/// Descriptors of the waiter, the connection events and the completions.
constexpr size_t kMostDescriptors = 3;

}  // namespace

const int Socket::kNonBlocking = O_NONBLOCK;
const int Socket::kInterrupted = -EINTR;

size_t Pieces::bytes() const {
  size_t sum = 0;
  for (int i = 0; i < count; ++i) sum += list[i].iov_len;
  return sum;
}

int Socket::sleep(const Deadline& deadline, bool (*test)(void*), void* context) {
  SleepingThread waiter;
  std::vector<pollfd> fds;
  fds.reserve(kMostDescriptors);
  waiter.take();
  observers_.add(&waiter);
  fds.push_back({waiter.fd(), POLLIN, 0});
  arm(&fds);
  ready(0);
  if (test(context)) {
    observers_.remove(&waiter);
    return 0;
  }
  const auto count = progress::wait_descriptors(fds, deadline, progress::Signals::kReturn);
  observers_.remove(&waiter);
  if (!count) return -count.error().code();
  if (*count > 0) {
    for (size_t i = 1; i < fds.size(); ++i)
      if (fds[i].revents != 0) wake(fds[i].fd);
    ready(0);
    if (test(context)) return 0;
  }
  // The deadline is checked by the clock: a sleep with a descriptor that stays readable never reports a timeout.
  return deadline.passed() ? -EAGAIN : kLookAgain;
}

socklen_t address_length(const sockaddr* addr) {
  switch (addr->sa_family) {
    case AF_INET:
      return sizeof(sockaddr_in);
    case AF_INET6:
      return sizeof(sockaddr_in6);
    case AF_IB:
      return sizeof(sockaddr_ib);
    default:
      return sizeof(addr->sa_family);
  }
}

void give_address(const sockaddr* from, sockaddr* to, socklen_t* length) {
  const socklen_t full = address_length(from);
  std::memcpy(to, from, std::min(*length, full));
  *length = full;
}

}  // namespace nupa::rsockets
