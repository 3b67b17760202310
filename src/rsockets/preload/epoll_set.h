// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Updates the program's epoll sets when a descriptor becomes an overlay, stops being one, or is closed.

namespace nupa::sockets {

/// True if the descriptor is a set that has rsocket members or may get them.
bool is_known_set(int fd);
/// True if the set has rsocket members. Otherwise the kernel's calls are enough.
bool has_members(int epoll);

/// Called before the descriptor of a TCP socket becomes an overlay. Opens the descriptors that its sets then need.
/// Returns 0 or an errno.
int prepare_epoll_sets(int fd);
/// The first is called before a descriptor gets or loses its overlay, the second one afterwards. The descriptor is then
/// in the kernel's set, or is an rsocket member.
void leave_epoll_sets(int fd);
void join_epoll_sets(int fd);
/// A descriptor is closed. Removes it as a member of sets, and as a set.
void forget_in_epoll_sets(int fd);

}  // namespace nupa::sockets
