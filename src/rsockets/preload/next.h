// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The functions of libc that this library replaces.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <csignal>

#include "base/next_function.h"

namespace nupa::sockets {

template <class Function>
using Next = base::NextFunction<Function>;

namespace next {
extern Next<int(int)> close;
extern Next<int(int, int)> listen;
extern Next<int(int, const sockaddr*, socklen_t)> connect;
extern Next<int(int, sockaddr*, socklen_t*, int)> accept4;
extern Next<int(int, int)> shutdown;
extern Next<int(int, sockaddr*, socklen_t*)> getpeername;
extern Next<int(int, sockaddr*, socklen_t*)> getsockname;
extern Next<int(int, int, int, const void*, socklen_t)> setsockopt;
extern Next<int(int, int, int, void*, socklen_t*)> getsockopt;
extern Next<int(int, int, ...)> fcntl;
extern Next<int(int, unsigned long, ...)> ioctl;
extern Next<int(int)> dup;
extern Next<int(int, int)> dup2;
extern Next<int(int, int, int)> dup3;
extern Next<ssize_t(int, void*, size_t)> read;
extern Next<ssize_t(int, const iovec*, int)> readv;
extern Next<ssize_t(int, void*, size_t, int)> recv;
extern Next<ssize_t(int, void*, size_t, int, sockaddr*, socklen_t*)> recvfrom;
extern Next<ssize_t(int, msghdr*, int)> recvmsg;
extern Next<ssize_t(int, const void*, size_t)> write;
extern Next<ssize_t(int, const iovec*, int)> writev;
extern Next<ssize_t(int, const void*, size_t, int)> send;
extern Next<ssize_t(int, const void*, size_t, int, const sockaddr*, socklen_t)> sendto;
extern Next<ssize_t(int, const msghdr*, int)> sendmsg;
extern Next<ssize_t(int, int, off_t*, size_t)> sendfile;
extern Next<int(pollfd*, nfds_t, int)> poll;
extern Next<int(pollfd*, nfds_t, const timespec*, const sigset_t*)> ppoll;
extern Next<int(int, fd_set*, fd_set*, fd_set*, timeval*)> select;
extern Next<int(int, fd_set*, fd_set*, fd_set*, const timespec*, const sigset_t*)> pselect;
extern Next<int(int, int, int, epoll_event*)> epoll_ctl;
extern Next<int(int, epoll_event*, int, int, const sigset_t*)> epoll_pwait;
extern Next<int(int, epoll_event*, int, const timespec*, const sigset_t*)> epoll_pwait2;
}  // namespace next

}  // namespace nupa::sockets
