// SPDX-License-Identifier: Apache-2.0
#include "rsockets/preload/next.h"

namespace nupa::sockets::next {

constinit Next<int(int)> close("close");
constinit Next<int(int, int)> listen("listen");
constinit Next<int(int, const sockaddr*, socklen_t)> connect("connect");
constinit Next<int(int, sockaddr*, socklen_t*, int)> accept4("accept4");
constinit Next<int(int, int)> shutdown("shutdown");
constinit Next<int(int, sockaddr*, socklen_t*)> getpeername("getpeername");
constinit Next<int(int, sockaddr*, socklen_t*)> getsockname("getsockname");
constinit Next<int(int, int, int, const void*, socklen_t)> setsockopt("setsockopt");
constinit Next<int(int, int, int, void*, socklen_t*)> getsockopt("getsockopt");
constinit Next<int(int, int, ...)> fcntl("fcntl");
constinit Next<int(int, unsigned long, ...)> ioctl("ioctl");
constinit Next<int(int)> dup("dup");
constinit Next<int(int, int)> dup2("dup2");
constinit Next<int(int, int, int)> dup3("dup3");
constinit Next<ssize_t(int, void*, size_t)> read("read");
constinit Next<ssize_t(int, const iovec*, int)> readv("readv");
constinit Next<ssize_t(int, void*, size_t, int)> recv("recv");
constinit Next<ssize_t(int, void*, size_t, int, sockaddr*, socklen_t*)> recvfrom("recvfrom");
constinit Next<ssize_t(int, msghdr*, int)> recvmsg("recvmsg");
constinit Next<ssize_t(int, const void*, size_t)> write("write");
constinit Next<ssize_t(int, const iovec*, int)> writev("writev");
constinit Next<ssize_t(int, const void*, size_t, int)> send("send");
constinit Next<ssize_t(int, const void*, size_t, int, const sockaddr*, socklen_t)> sendto("sendto");
constinit Next<ssize_t(int, const msghdr*, int)> sendmsg("sendmsg");
constinit Next<ssize_t(int, int, off_t*, size_t)> sendfile("sendfile");
constinit Next<int(pollfd*, nfds_t, int)> poll("poll");
constinit Next<int(pollfd*, nfds_t, const timespec*, const sigset_t*)> ppoll("ppoll");
constinit Next<int(int, fd_set*, fd_set*, fd_set*, timeval*)> select("select");
constinit Next<int(int, fd_set*, fd_set*, fd_set*, const timespec*, const sigset_t*)> pselect("pselect");
constinit Next<int(int, int, int, epoll_event*)> epoll_ctl("epoll_ctl");
constinit Next<int(int, epoll_event*, int, int, const sigset_t*)> epoll_pwait("epoll_pwait");
constinit Next<int(int, epoll_event*, int, const timespec*, const sigset_t*)> epoll_pwait2("epoll_pwait2");

}  // namespace nupa::sockets::next
