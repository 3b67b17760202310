// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Sets of descriptors for repoll_create(), repoll_ctl() and repoll_wait(): epoll(7) over rsockets and ordinary
/// descriptors. As in rdma-core, a set reports levels, with EPOLLET too, and is no member of other sets.
#include <poll.h>
#include <sys/epoll.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/unique_fd.h"
#include "progress/deadline.h"
#include "progress/wake_up.h"

namespace nupa::rsockets {

/// All functions: any thread. Errors are negative errno values.
class EventSet {
 public:
  /// Returns the descriptor of a new set. `flags`: O_CLOEXEC and O_NONBLOCK belong to the descriptor, others have no
  /// effect. ENOMEM, EMFILE, ENFILE.
  static int create(int flags);
  /// The set of a descriptor. Null: it is none, or it is one of the parent of this process.
  static std::shared_ptr<EventSet> of(int fd);
  /// Ends the set of a descriptor, and each wait() in it with EBADF. EBADF: it is none. EBUSY: it has members.
  static int close(int fd);
  /// The rsocket is closed, and no member of any set from now on.
  static void forget(int fd);

  EventSet(base::UniqueFd fd, base::UniqueFd other) : fd_(std::move(fd)), other_(std::move(other)) {}
  /// epoll_ctl(). EBADF: `fd` is not open. EEXIST, ENOENT, EINVAL, EFAULT, ENOMEM.
  int control(int operation, int fd, const epoll_event* event);
  /// epoll_wait(). Returns the number of events. EINVAL, EFAULT, EINTR, ENOMEM, EMFILE, EBADF.
  int wait(epoll_event* events, int most, const progress::Deadline& deadline, bool nonblocking);

 private:
  struct Member {
    int fd = -1;
    epoll_event wanted{};
    uint64_t serial = 0;     ///< of its last change, unique in the set
    bool is_silent = false;  ///< EPOLLONESHOT has reported
  };
  class Waiter;
  struct CloseWakeUp {
    void operator()(progress::WakeUp* wake_up) const {
      wake_up->close();
      delete wake_up;
    }
  };
  using WakeUp = std::unique_ptr<progress::WakeUp, CloseWakeUp>;

  // With mutex_ held.
  std::vector<Member>::iterator find(int fd);
  void wake_waiters();
  void remove(std::vector<Member>::iterator member);
  int report(const std::vector<pollfd>& looked, const std::vector<uint64_t>& serials, epoll_event* events, int most);

  base::UniqueFd fd_;
  const base::UniqueFd other_;  ///< of its pipe, to which nobody writes
  std::mutex mutex_;            ///< leaf
  std::vector<Member> members_;
  std::vector<progress::WakeUp*> waiters_;  ///< of the threads that sleep in wait()
  std::vector<WakeUp> spare_;               ///< for later calls
  uint64_t serial_ = 0;
  size_t first_ = 0;  ///< the member that is reported first, so that each one has its turn
  bool is_closed_ = false;
};

}  // namespace nupa::rsockets
