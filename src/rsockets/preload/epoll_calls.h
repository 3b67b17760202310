// SPDX-License-Identifier: Apache-2.0
#pragma once
/// epoll_ctl() and epoll_wait() of sets that have overlays.
#include <sys/epoll.h>

#include <csignal>
#include <cstdint>

namespace nupa::sockets {

/// What epoll_ctl() does for a descriptor that is an overlay, or may become one.
int control(int epoll, int operation, int fd, epoll_event* event);
/// Around libc's call for a set that has none, while another thread may add the first. False: that has happened.
bool begin_plain_wait(int epoll);
/// *count is what libc's call has returned. False: it reported that member alone, and wait() goes on.
bool end_plain_wait(int epoll, epoll_event* events, int* count);
/// epoll_pwait() for one that has; with a limit in nanoseconds; < 0: none.
int wait(int epoll, epoll_event* events, int most, int64_t limit_ns, const sigset_t* mask);

}  // namespace nupa::sockets
