// SPDX-License-Identifier: Apache-2.0
/// The functions of rdma/rsocket.h.
#include <fcntl.h>
#include <netinet/in.h>
#include <rdma/rsocket.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <memory>

#include "rsockets/datagram.h"
#include "rsockets/descriptor_table.h"
#include "rsockets/event_set.h"
#include "rsockets/option_value.h"
#include "rsockets/poll.h"
#include "rsockets/stream.h"

#define NUPA_RSOCKETS extern "C" __attribute__((visibility("default")))

namespace {

using nupa::rsockets::Datagram;
using nupa::rsockets::Deadline;
using nupa::rsockets::DescriptorTable;
using nupa::rsockets::EventSet;
using nupa::rsockets::Pieces;
using nupa::rsockets::Socket;
using nupa::rsockets::Stream;
using nupa::rsockets::Use;

/// Turns a negative errno into errno and -1.
template <class Number>
Number answer(Number result) {
  if (result >= 0) [[likely]]
    return result;
  errno = static_cast<int>(-result);
  return -1;
}

/// Calls `call` with the rsocket kept alive. EBADF if there is none.
template <class Call>
auto on(int fd, Use use, Call call) -> decltype(call(*static_cast<Socket*>(nullptr))) {
  const auto lease = DescriptorTable::instance().lease(fd, use);
  using Number = decltype(call(*lease.get()));
  if (!lease) return answer(static_cast<Number>(-EBADF));
  return answer(call(*lease.get()));
}

ssize_t send_pieces(int fd, Pieces data, int flags, const sockaddr* to, socklen_t length) {
  return on(fd, Use::kSend, [&](Socket& socket) { return socket.send(data, flags, to, length); });
}
ssize_t receive_pieces(int fd, Pieces room, int flags, sockaddr* from, socklen_t* length) {
  return on(fd, Use::kReceive, [&](Socket& socket) { return socket.receive(room, flags, from, length); });
}

/// Returns the stream if it is connected, as mapped buffers require. Otherwise returns null.
Stream* connected_stream(Socket& socket) {
  if (socket.type() != SOCK_STREAM) return nullptr;
  auto* stream = static_cast<Stream*>(&socket);
  return stream->connected() ? stream : nullptr;
}

}  // namespace

NUPA_RSOCKETS int rsocket(int domain, int type, int protocol) {
  const int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);  // an rsocket is closed at exec even without SOCK_CLOEXEC
  const bool stream = kind == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP);
  const bool datagram = kind == SOCK_DGRAM && (protocol == 0 || protocol == IPPROTO_UDP);
  if ((domain != AF_INET && domain != AF_INET6 && domain != AF_IB) || (!stream && !datagram) ||
      (domain == AF_IB && datagram)) {
    return answer(-ENOTSUP);
  }
  std::unique_ptr<Socket> socket;
  if (stream) {
    socket = Stream::make(domain);
  } else {
    socket = Datagram::make(domain);
  }
  if (!socket) return -1;
  if ((type & SOCK_NONBLOCK) != 0) socket->set_status_flags(O_NONBLOCK);
  const int fd = socket->fd();
  const int rc = DescriptorTable::instance().add(std::move(socket));
  return rc != 0 ? answer(rc) : fd;
}

NUPA_RSOCKETS int rbind(int fd, const sockaddr* addr, socklen_t length) {
  return on(fd, Use::kOther, [&](Socket& socket) { return socket.bind(addr, length); });
}

NUPA_RSOCKETS int rlisten(int fd, int backlog) {
  return on(fd, Use::kOther, [&](Socket& socket) { return socket.listen(backlog); });
}

NUPA_RSOCKETS int raccept(int fd, sockaddr* addr, socklen_t* length) {
  return on(fd, Use::kReceive, [&](Socket& socket) {
    Socket* accepted = nullptr;
    int rc = socket.accept(&accepted);
    if (rc != 0) return rc;
    std::unique_ptr<Socket> owner(accepted);
    if (addr != nullptr && length != nullptr) accepted->peer_name(addr, length);
    const int number = accepted->fd();
    rc = DescriptorTable::instance().add(std::move(owner));
    return rc != 0 ? rc : number;
  });
}

NUPA_RSOCKETS int rconnect(int fd, const sockaddr* addr, socklen_t length) {
  return on(fd, Use::kOther, [&](Socket& socket) { return socket.connect(addr, length); });
}

NUPA_RSOCKETS int rshutdown(int fd, int how) {
  return on(fd, Use::kOther, [&](Socket& socket) { return socket.shutdown(how); });
}

NUPA_RSOCKETS int rclose(int fd) {
  if (!DescriptorTable::instance().contains(fd)) return answer(EventSet::close(fd));
  // Before another thread can have its number.
  EventSet::forget(fd);
  return answer(DescriptorTable::instance().close(fd));
}

NUPA_RSOCKETS ssize_t rrecv(int fd, void* buffer, size_t length, int flags) {
  const iovec piece{buffer, length};
  return receive_pieces(fd, {&piece, 1}, flags, nullptr, nullptr);
}

NUPA_RSOCKETS ssize_t rrecvfrom(int fd, void* buffer, size_t length, int flags, sockaddr* from,
                                socklen_t* from_length) {
  const iovec piece{buffer, length};
  return receive_pieces(fd, {&piece, 1}, flags, from, from_length);
}

NUPA_RSOCKETS ssize_t rrecvmsg(int fd, msghdr* message, int flags) {
  if (message->msg_iovlen > INT32_MAX) return answer<ssize_t>(-EMSGSIZE);
  message->msg_controllen = 0;  // there are no control messages
  message->msg_flags = 0;
  const Pieces room{message->msg_iov, static_cast<int>(message->msg_iovlen)};
  auto* from = static_cast<sockaddr*>(message->msg_name);
  return receive_pieces(fd, room, flags, from, from == nullptr ? nullptr : &message->msg_namelen);
}

NUPA_RSOCKETS ssize_t rread(int fd, void* buffer, size_t length) { return rrecv(fd, buffer, length, 0); }

NUPA_RSOCKETS ssize_t rreadv(int fd, const iovec* list, int count) {
  if (count < 0) return answer<ssize_t>(-EINVAL);
  return receive_pieces(fd, {list, count}, 0, nullptr, nullptr);
}

NUPA_RSOCKETS ssize_t rsend(int fd, const void* data, size_t length, int flags) {
  const iovec piece{const_cast<void*>(data), length};
  return send_pieces(fd, {&piece, 1}, flags, nullptr, 0);
}

NUPA_RSOCKETS ssize_t rsendto(int fd, const void* data, size_t length, int flags, const sockaddr* to,
                              socklen_t to_length) {
  const iovec piece{const_cast<void*>(data), length};
  return send_pieces(fd, {&piece, 1}, flags, to, to_length);
}

NUPA_RSOCKETS ssize_t rsendmsg(int fd, const msghdr* message, int flags) {
  if (message->msg_control != nullptr && message->msg_controllen != 0) return answer<ssize_t>(-ENOTSUP);
  if (message->msg_iovlen > INT32_MAX) return answer<ssize_t>(-EMSGSIZE);
  const Pieces data{message->msg_iov, static_cast<int>(message->msg_iovlen)};
  return send_pieces(fd, data, flags, static_cast<const sockaddr*>(message->msg_name), message->msg_namelen);
}

NUPA_RSOCKETS ssize_t rwrite(int fd, const void* data, size_t length) { return rsend(fd, data, length, 0); }

NUPA_RSOCKETS ssize_t rwritev(int fd, const iovec* list, int count) {
  if (count < 0) return answer<ssize_t>(-EINVAL);
  return send_pieces(fd, {list, count}, 0, nullptr, 0);
}

NUPA_RSOCKETS int rpoll(pollfd* fds, nfds_t count, int timeout) {
  return answer(nupa::rsockets::poll_mixed(fds, count, Deadline::in_ms(timeout), timeout == 0, nullptr));
}

NUPA_RSOCKETS int rselect(int count, fd_set* read, fd_set* write, fd_set* except, timeval* timeout) {
  const int64_t us = timeout == nullptr ? 0 : timeout->tv_sec * INT64_C(1000000) + timeout->tv_usec;
  const auto deadline = timeout == nullptr ? Deadline::never() : Deadline::in_ns(us * nupa::progress::kNsPerUs);
  return answer(
      nupa::rsockets::select_mixed(count, read, write, except, deadline, timeout != nullptr && us == 0, nullptr));
}

// The header of Debian 12 does not declare these.

NUPA_RSOCKETS int repoll_create(int flags) { return answer(EventSet::create(flags)); }

NUPA_RSOCKETS int repoll_ctl(int set, int operation, int fd, epoll_event* event) {
  const auto found = EventSet::of(set);
  return answer(found == nullptr ? -EINVAL : found->control(operation, fd, event));
}

NUPA_RSOCKETS int repoll_wait(int set, epoll_event* events, int most, int timeout) {
  const auto found = EventSet::of(set);
  return answer(found == nullptr ? -EINVAL : found->wait(events, most, Deadline::in_ms(timeout), timeout == 0));
}

NUPA_RSOCKETS int rgetpeername(int fd, sockaddr* addr, socklen_t* length) {
  return on(fd, Use::kOther, [&](Socket& socket) { return socket.peer_name(addr, length); });
}

NUPA_RSOCKETS int rgetsockname(int fd, sockaddr* addr, socklen_t* length) {
  return on(fd, Use::kOther, [&](Socket& socket) { return socket.local_name(addr, length); });
}

NUPA_RSOCKETS int rsetsockopt(int fd, int level, int name, const void* value, socklen_t length) {
  return on(fd, Use::kOther, [&](Socket& socket) { return socket.set_option(level, name, value, length); });
}

NUPA_RSOCKETS int rgetsockopt(int fd, int level, int name, void* value, socklen_t* length) {
  return on(fd, Use::kOther, [&](Socket& socket) { return socket.get_option(level, name, value, length); });
}

NUPA_RSOCKETS int rfcntl(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  const bool takes_number = command == F_SETFL || command == F_SETFD;
  const int number = takes_number ? va_arg(rest, int) : 0;
  va_end(rest);
  return on(fd, Use::kOther, [&](Socket& socket) {
    switch (command) {
      case F_GETFL:
        return socket.status_flags() | O_RDWR;
      case F_SETFL:
        socket.set_status_flags(number & ~O_ACCMODE);
        return 0;
      case F_GETFD:
      case F_SETFD: {
        const int rc = fcntl(fd, command, number);
        return rc < 0 ? -errno : rc;
      }
      default:
        return -ENOTSUP;
    }
  });
}

NUPA_RSOCKETS off_t riomap(int fd, void* buffer, size_t length, int protection, int flags, off_t offset) {
  static_cast<void>(flags);
  return on(fd, Use::kOther, [&](Socket& socket) -> off_t {
    Stream* stream = connected_stream(socket);
    return stream == nullptr ? -EINVAL : stream->map(buffer, length, protection, offset);
  });
}

NUPA_RSOCKETS int riounmap(int fd, void* buffer, size_t length) {
  return on(fd, Use::kOther, [&](Socket& socket) {
    return socket.type() != SOCK_STREAM ? -EINVAL : static_cast<Stream*>(&socket)->unmap(buffer, length);
  });
}

NUPA_RSOCKETS size_t riowrite(int fd, const void* data, size_t length, off_t offset, int flags) {
  return static_cast<size_t>(on(fd, Use::kSend, [&](Socket& socket) -> ssize_t {
    Stream* stream = connected_stream(socket);
    if (stream == nullptr) return -ENOTCONN;
    return stream->write_mapped(static_cast<const std::byte*>(data), length, offset, flags);
  }));
}
