// SPDX-License-Identifier: Apache-2.0
#pragma once
/// epoll_ctl() and epoll_wait() for epoll sets with overlays.
#include <sys/epoll.h>

#include <csignal>
#include <cstdint>

namespace nupa::sockets {

/// epoll_ctl() for a descriptor that is an overlay or may become one.
int control(int epoll, int operation, int fd, epoll_event* event);
/// Called before libc's call for a set without rsocket members, since another thread may add the first one meanwhile.
/// Returns false if it already has one.
bool begin_plain_wait(int epoll);
/// Called after libc's call, which returned *count. Returns false if the call reported only the inner epoll set; the
/// caller then calls wait().
bool end_plain_wait(int epoll, epoll_event* events, int* count);
/// epoll_pwait() for a set with rsocket members. The limit is in nanoseconds; negative means no limit.
int wait(int epoll, epoll_event* events, int most, int64_t limit_ns, const sigset_t* mask);

}  // namespace nupa::sockets
