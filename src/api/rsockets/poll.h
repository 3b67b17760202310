#pragma once
#include <poll.h>
#include <sys/select.h>

#include "waiter.h"

namespace nupa::rsockets {

/// poll() over rsockets and ordinary descriptors: a count, or a negative errno. mask: as ppoll().
int poll_mixed(pollfd* fds, nfds_t count, const Deadline& deadline, bool nonblocking, const sigset_t* mask);
/// select() likewise; the sets are changed as select() does.
int select_mixed(int count, fd_set* read, fd_set* write, fd_set* except, const Deadline& deadline, bool nonblocking,
                 const sigset_t* mask);

}  // namespace nupa::rsockets
