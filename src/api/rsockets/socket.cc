#include "socket.h"

#include <fcntl.h>
#include <infiniband/ib.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace nupa::rsockets {

const int Socket::kNonBlocking = O_NONBLOCK;

size_t Pieces::bytes() const {
  size_t sum = 0;
  for (int i = 0; i < count; ++i) sum += list[i].iov_len;
  return sum;
}

int Socket::sleep(const Deadline& deadline, bool (*test)(void*), void* context) {
  ThreadWaiter& waiter = ThreadWaiter::mine();
  thread_local std::vector<pollfd> fds;
  waiter.reset();
  observers_.add(&waiter);
  fds.clear();
  fds.push_back({waiter.fd(), POLLIN, 0});
  arm(&fds);
  ready(0);
  int result = kLookAgain;
  if (test(context)) {
    result = 0;
  } else {
    timespec storage;
    const int count = ppoll(fds.data(), fds.size(), deadline.remaining(&storage), nullptr);
    if (count < 0) result = -errno;
    if (count == 0 && deadline.passed()) result = -EAGAIN;
  }
  observers_.remove(&waiter);
  bool event = false;
  for (size_t i = 1; i < fds.size(); ++i) event |= fds[i].revents != 0;
  if (event && result != 0) {
    wake();
    ready(0);
    if (test(context)) result = 0;
  }
  return result;
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
