// SPDX-License-Identifier: Apache-2.0
/// Options and names of datagram rsockets. Options that are not handled here go to the UDP socket.
#include <rdma/rsocket.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "rsockets/datagram.h"
#include "rsockets/limits.h"
#include "rsockets/option_value.h"

namespace nupa::rsockets {

int Datagram::listen(int) { return -EOPNOTSUPP; }
int Datagram::accept(Socket**) { return -EOPNOTSUPP; }

int Datagram::local_name(sockaddr* addr, socklen_t* length) {
  return getsockname(udp_.get(), addr, length) == 0 ? 0 : -errno;
}
int Datagram::peer_name(sockaddr* addr, socklen_t* length) {
  return getpeername(udp_.get(), addr, length) == 0 ? 0 : -errno;
}

size_t Datagram::readable_bytes() {
  ready(POLLIN);
  std::lock_guard lock(mutex_);
  return received_.empty() ? 0 : received_.front().length;
}

int Datagram::set_option(int level, int name, const void* value, socklen_t length) {
  std::lock_guard lock(mutex_);
  if (level == SOL_SOCKET && (name == SO_RCVTIMEO || name == SO_SNDTIMEO)) {
    timeval time;
    const int rc = read_option(value, length, &time);
    if (rc == 0) (name == SO_RCVTIMEO ? receive_timeout_ms_ : send_timeout_ms_) = to_ms(time);
    return rc;
  }
  int number = 0;
  if (level == SOL_RDMA || (level == SOL_SOCKET && (name == SO_RCVBUF || name == SO_SNDBUF))) {
    const int rc = read_option(value, length, &number);
    if (rc != 0) return rc;
    if (number < 0) return -EINVAL;
  }
  if (level != SOL_RDMA) {
    const auto bytes = static_cast<uint32_t>(std::clamp<int64_t>(number * INT64_C(2), kLowWater, kMaxBuffer));
    if (level == SOL_SOCKET && name == SO_RCVBUF && paths_.empty()) receive_bytes_ = bytes;
    if (level == SOL_SOCKET && name == SO_SNDBUF && paths_.empty()) send_bytes_ = bytes;
    return setsockopt(udp_.get(), level, name, value, length) == 0 ? 0 : -errno;
  }
  if (!paths_.empty()) return -EINVAL;
  const auto requests = std::clamp(static_cast<uint32_t>(number), 1u, kMaxRequests);
  switch (name) {
    case RDMA_SQSIZE:
      send_requests_ = requests;
      return 0;
    case RDMA_RQSIZE:
      receive_requests_ = requests;
      return 0;
    case RDMA_INLINE:
      inline_bytes_ = std::min(static_cast<uint32_t>(number), kMaxRequests);
      return 0;
    default:
      return -ENOPROTOOPT;
  }
}

int Datagram::get_option(int level, int name, void* value, socklen_t* length) {
  std::lock_guard lock(mutex_);
  const auto give = [&](auto number) { return give_option(static_cast<int>(number), value, length); };
  if (level == SOL_RDMA) {
    switch (name) {
      case RDMA_SQSIZE:
        return give(send_requests_);
      case RDMA_RQSIZE:
        return give(receive_requests_);
      case RDMA_INLINE:
        return give(inline_bytes_);
      default:
        return -ENOPROTOOPT;
    }
  }
  if (level == SOL_SOCKET) {
    if (name == SO_RCVBUF) return give(receive_bytes_);
    if (name == SO_SNDBUF) return give(send_bytes_);
    if (name == SO_RCVTIMEO) return give_option(to_timeval(receive_timeout_ms_), value, length);
    if (name == SO_SNDTIMEO) return give_option(to_timeval(send_timeout_ms_), value, length);
  }
  return getsockopt(udp_.get(), level, name, value, length) == 0 ? 0 : -errno;
}

}  // namespace nupa::rsockets
