#pragma once
/// The program's epoll sets, as descriptors become overlays, stop being ones, and are closed.

namespace nupa::sockets {

/// Whether the descriptor is a set that has, or may get, members of ours.
bool is_known_set(int fd);
/// Whether a set has members of ours; else the kernel's calls do.
bool has_members(int epoll);

/// Before the descriptor of a TCP socket becomes an overlay: opens what its sets need for that. 0 or an errno.
int prepare_epoll_sets(int fd);
/// An overlay is gone or there: its descriptor is watched by the kernel's set, or by ours.
void leave_epoll_sets(int fd);
void join_epoll_sets(int fd);
/// A descriptor is closed: what we know of it as a member, or as a set.
void forget_in_epoll_sets(int fd);

}  // namespace nupa::sockets
