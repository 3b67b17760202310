// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <poll.h>
#include <sys/select.h>

#include <vector>

#include "rsockets/waiter.h"

namespace nupa::rsockets {

/// poll() over rsockets and ordinary descriptors. Returns a count or a negative errno. `mask` is as in ppoll().
int poll_mixed(pollfd* fds, nfds_t count, const Deadline& deadline, bool nonblocking, const sigset_t* mask);

/// The sets of a select() as a list for poll(). A null set is empty; `count` is at most FD_SETSIZE.
class SelectSets {
 public:
  SelectSets(int count, fd_set* read, fd_set* write, fd_set* except);

  pollfd* list() { return list_.data(); }
  nfds_t size() const { return list_.size(); }
  /// Leaves only the ready descriptors in the sets, by the same rules as Linux's select(), and returns their number.
  /// Returns -EBADF and leaves the sets unchanged if a descriptor is not open.
  int keep_ready();

 private:
  fd_set* const read_;
  fd_set* const write_;
  fd_set* const except_;
  std::vector<pollfd> list_;
};

/// select() over rsockets and ordinary descriptors. Returns a count or a negative errno, and changes the sets as
/// select() does.
int select_mixed(int count, fd_set* read, fd_set* write, fd_set* except, const Deadline& deadline, bool nonblocking,
                 const sigset_t* mask);

}  // namespace nupa::rsockets
