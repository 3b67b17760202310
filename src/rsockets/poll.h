#pragma once
#include <poll.h>
#include <sys/select.h>

#include <vector>

#include "rsockets/waiter.h"

namespace nupa::rsockets {

/// poll() over rsockets and ordinary descriptors: a count, or a negative errno. mask: as ppoll().
int poll_mixed(pollfd* fds, nfds_t count, const Deadline& deadline, bool nonblocking, const sigset_t* mask);

/// The sets of a select() as a list for poll(). A null set is empty; `count` is at most FD_SETSIZE.
class SelectSets {
 public:
  SelectSets(int count, fd_set* read, fd_set* write, fd_set* except);

  pollfd* list() { return list_.data(); }
  nfds_t size() const { return list_.size(); }
  /// Leaves in the sets what poll() has found, as Linux's select() reads its events: how many are left. -EBADF, and the
  /// sets as they were: a descriptor is not open.
  int keep_ready();

 private:
  fd_set* const read_;
  fd_set* const write_;
  fd_set* const except_;
  std::vector<pollfd> list_;
};

/// select() over rsockets and ordinary descriptors: a count, or a negative errno. The sets are changed as select()
/// does.
int select_mixed(int count, fd_set* read, fd_set* write, fd_set* except, const Deadline& deadline, bool nonblocking,
                 const sigset_t* mask);

}  // namespace nupa::rsockets
