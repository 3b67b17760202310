#pragma once
#include <sys/epoll.h>

#include <csignal>
#include <cstdint>

namespace nupa::sockets {

/// What epoll_ctl() does for a descriptor that is an overlay, or may become one.
int control(int epoll, int operation, int fd, epoll_event* event);
/// Whether the descriptor is a set that has, or may get, members of ours.
bool is_known_set(int fd);
/// Whether a set has members of ours; else the kernel's calls do.
bool has_members(int epoll);
/// Around libc's call for a set that has none, while another thread may add the first. False: that has happened.
bool begin_plain_wait(int epoll);
/// *count is what libc's call has returned. False: it told of that member alone, and wait() goes on.
bool end_plain_wait(int epoll, epoll_event* events, int* count);
/// epoll_pwait() for one that has; with a limit in nanoseconds; < 0: none.
int wait(int epoll, epoll_event* events, int most, int64_t limit_ns, const sigset_t* mask);

/// Before the descriptor of a TCP socket becomes an overlay: opens what its sets need for that. 0 or an errno.
int prepare_epoll_sets(int fd);
/// An overlay is gone or there: its descriptor is watched by the kernel's set, or by ours.
void leave_epoll_sets(int fd);
void join_epoll_sets(int fd);
/// A descriptor is closed: what we know of it as a member, or as a set.
void forget_in_epoll_sets(int fd);

}  // namespace nupa::sockets
