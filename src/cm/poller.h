#pragma once
#include <sys/epoll.h>

#include <cstdint>

#include "base/unique_fd.h"
#include <nupa/result.h>

namespace nupa::cm {

/// What the service thread sleeps on. Any thread may add and remove; one waits.
class Poller {
 public:
  /// Errors of descriptors.
  Result<void> open();
  /// In a child of fork(), which shares it with its parent.
  void abandon() { epoll_.reset(); }

  /// From now on it wakes when `fd` is readable or hung up. False: errno says why.
  bool add(int fd);
  void remove(int fd);
  /// Whether it wakes, too, when the socket, which was added, has room.
  void want_room(int socket, bool wanted);

  /// Sleeps until something is ready, or until `wake_ns` of the monotonic clock; INT64_MAX: without end. Returns how
  /// many are ready, at most `room`.
  int wait(epoll_event* ready, int room, int64_t wake_ns);

 private:
  base::UniqueFd epoll_;
};

}  // namespace nupa::cm
