/// Calls that make and end connections, and what is asked about them.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rdma/rsocket.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>

#include "../descriptor_table.h"
#include "../poll.h"
#include "base/clock.h"
#include "epoll_set.h"
#include "next.h"
#include "overlay.h"
#include "rules.h"

using namespace nupa::sockets;
using nupa::rsockets::Deadline;
using nupa::rsockets::DescriptorTable;
using nupa::rsockets::Use;
using Mode = Overlay::Mode;

namespace {

constexpr int64_t kNsPerMs = 1'000'000;

int option_of(int fd, int name) {
  int value = 0;
  socklen_t length = sizeof value;
  return next::getsockopt(fd, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
}

bool may_be_rsocket(int fd) {
  return usable() && option_of(fd, SO_TYPE) == SOCK_STREAM && allowed(option_of(fd, SO_DOMAIN)) &&
         option_of(fd, SO_PROTOCOL) == IPPROTO_TCP;
}

bool nonblocking(int fd) { return (next::fcntl(fd, F_GETFL) & O_NONBLOCK) != 0; }

/// What the program has set on its socket and an rsocket knows, too.
void take_over_options(int fd, int rsocket) {
  for (const int name : {SO_RCVTIMEO, SO_SNDTIMEO, SO_LINGER}) {
    alignas(timeval) char value[sizeof(timeval)];
    socklen_t length = sizeof value;
    if (next::getsockopt(fd, SOL_SOCKET, name, value, &length) == 0) {
      rsetsockopt(rsocket, SOL_SOCKET, name, value, length);
    }
  }
}

/// Tries the rsocket. 0: connected; EINPROGRESS: it goes on, the overlay is laid; else TCP has to be tried.
int try_rsocket(int fd, const sockaddr* peer, socklen_t length) {
  const int rsocket_fd = make_rsocket(peer->sa_family);
  if (rsocket_fd < 0) return errno;
  take_over_options(fd, rsocket_fd);
  sockaddr_storage local{};
  socklen_t local_length = sizeof local;
  const bool bound = next::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &local_length) == 0 &&
                     reinterpret_cast<sockaddr_in*>(&local)->sin_port != 0;
  if (bound && local.ss_family == peer->sa_family) {
    rbind(rsocket_fd, reinterpret_cast<sockaddr*>(&local), local_length);
  }
  leave_epoll_sets(fd);
  int error = rconnect(rsocket_fd, peer, length) == 0 ? 0 : errno;
  if (error == EINPROGRESS && !nonblocking(fd)) {
    pollfd wanted{rsocket_fd, POLLOUT, 0};
    const int count = rpoll(&wanted, 1, static_cast<int>(connect_ms()));
    socklen_t size = sizeof error;
    if (count <= 0) {
      error = ETIMEDOUT;
    } else {
      rgetsockopt(rsocket_fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  if (error == 0 || error == EINPROGRESS) {
    if (error == 0 && !nonblocking(fd)) rfcntl(rsocket_fd, F_SETFL, 0);
    Overlay* overlay = lay(fd, error == 0 ? Mode::kConnected : Mode::kConnecting, rsocket_fd);
    if (overlay != nullptr) {
      __builtin_memcpy(&overlay->peer, peer, length);
      overlay->peer_length = length;
      overlay->connect_until_ns = nupa::base::now_ns() + connect_ms() * kNsPerMs;
      join_epoll_sets(fd);
      return error;
    }
    error = ENOMEM;
  }
  rclose(rsocket_fd);
  remember_plain(peer, error != ECONNREFUSED);
  join_epoll_sets(fd);
  return error;
}

/// The rsocket of a listener or a connection; kNone or kLostRsocket.
int any_rsocket(int fd) {
  const Overlay* overlay = overlay_of(fd);
  return overlay == nullptr ? Overlay::kNone : overlay->rsocket.load();
}

int accept_one(int fd, sockaddr* addr, socklen_t* length, int flags, int rsocket_fd) {
  const int accepted = raccept(rsocket_fd, addr, length);
  if (accepted < 0) return -1;
  // The descriptor that the program gets: a socket that is not connected, under the overlay.
  const int number = socket(option_of(fd, SO_DOMAIN), SOCK_STREAM | (flags & (SOCK_CLOEXEC | SOCK_NONBLOCK)), 0);
  if ((flags & SOCK_NONBLOCK) != 0) rfcntl(accepted, F_SETFL, O_NONBLOCK);
  if (number >= 0 && lay(number, Mode::kConnected, accepted) != nullptr) return number;
  const int error = number < 0 ? errno : ENOMEM;
  if (number >= 0) next::close(number);
  rclose(accepted);
  errno = error;
  return -1;
}

int share_with(int old_fd, int new_fd) {
  Overlay* overlay = new_fd < 0 || new_fd == old_fd ? nullptr : overlay_of(old_fd);
  if (overlay != nullptr) share(new_fd, overlay);
  return new_fd;
}

void drop(int fd) {
  forget_in_epoll_sets(fd);
  lift(fd);
}

}  // namespace

NUPA_SHOWN int listen(int fd, int backlog) noexcept {
  const int rc = next::listen(fd, backlog);
  if (rc != 0 || !may_be_rsocket(fd)) return rc;
  Overlay* overlay = overlay_of(fd);
  if (overlay == nullptr) overlay = lay(fd, Mode::kListening, Overlay::kNone);
  if (overlay != nullptr) overlay->backlog = backlog;
  return rc;
}

NUPA_SHOWN int accept4(int fd, sockaddr* addr, socklen_t* length, int flags) {
  Overlay* overlay = overlay_of(fd);
  const int rsocket_fd =
      overlay != nullptr && overlay->mode.load() == Mode::kListening ? listening_rsocket(fd, overlay) : Overlay::kNone;
  if (rsocket_fd < 0) return next::accept4(fd, addr, length, flags);
  for (;;) {
    const socklen_t room = length == nullptr ? 0 : *length;
    const int number = accept_one(fd, addr, length, flags, rsocket_fd);
    if (number >= 0 || errno != EAGAIN) return number;
    if (length != nullptr) *length = room;
    const bool may_wait = !nonblocking(fd);
    pollfd both[] = {{fd, POLLIN, 0}, {rsocket_fd, POLLIN, 0}};
    const auto deadline = may_wait ? Deadline::never() : Deadline::in_ms(0);
    const PlainPoll plain;
    const int count = nupa::rsockets::poll_mixed(both, 2, deadline, !may_wait, nullptr);
    if (count < 0) {
      errno = -count;
      return -1;
    }
    if (both[0].revents != 0 || !may_wait) return next::accept4(fd, addr, length, flags);
  }
}

NUPA_SHOWN int accept(int fd, sockaddr* addr, socklen_t* length) { return accept4(fd, addr, length, 0); }

NUPA_SHOWN int connect(int fd, const sockaddr* peer, socklen_t length) {
  if (Overlay* overlay = overlay_of(fd)) {
    if (!settle(fd, overlay)) {
      errno = EALREADY;
      return -1;
    }
    if (overlay_of(fd) != nullptr) {
      errno = EISCONN;
      return -1;
    }
    return next::connect(fd, peer, length);
  }
  const bool inet = peer != nullptr && length <= sizeof(sockaddr_storage) &&
                    ((length >= sizeof(sockaddr_in) && peer->sa_family == AF_INET) ||
                     (length >= sizeof(sockaddr_in6) && peer->sa_family == AF_INET6));
  if (!inet || !may_be_rsocket(fd) || known_plain(peer)) return next::connect(fd, peer, length);
  sockaddr_storage other;
  socklen_t other_length = sizeof other;
  if (next::getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_length) == 0) {
    return next::connect(fd, peer, length);  // which says that it is connected
  }
  const int error = try_rsocket(fd, peer, length);
  if (error == 0) return 0;
  if (error != EINPROGRESS) return next::connect(fd, peer, length);
  errno = error;
  return -1;
}

NUPA_SHOWN int shutdown(int fd, int how) noexcept {
  const Overlay* overlay = overlay_of(fd);
  if (overlay == nullptr || overlay->mode.load() == Mode::kLost) return next::shutdown(fd, how);
  const int rsocket_fd = overlay->rsocket.load();
  if (overlay->mode.load() != Mode::kListening) return rshutdown(rsocket_fd, how);
  if (rsocket_fd >= 0) rshutdown(rsocket_fd, how);
  return next::shutdown(fd, how);
}

NUPA_SHOWN int close(int fd) {
  drop(fd);
  return next::close(fd);
}

NUPA_SHOWN int getpeername(int fd, sockaddr* addr, socklen_t* length) noexcept {
  const int rsocket_fd = data_rsocket(fd);
  return rsocket_fd < 0 ? next::getpeername(fd, addr, length) : rgetpeername(rsocket_fd, addr, length);
}

NUPA_SHOWN int getsockname(int fd, sockaddr* addr, socklen_t* length) noexcept {
  const int rsocket_fd = data_rsocket(fd);
  return rsocket_fd < 0 ? next::getsockname(fd, addr, length) : rgetsockname(rsocket_fd, addr, length);
}

NUPA_SHOWN int setsockopt(int fd, int level, int name, const void* value, socklen_t length) noexcept {
  const int rc = next::setsockopt(fd, level, name, value, length);
  const int rsocket_fd = any_rsocket(fd);
  if (rsocket_fd >= 0 && rc == 0) {
    const int error = errno;
    rsetsockopt(rsocket_fd, level, name, value, length);
    errno = error;  // the program's socket has taken it
  }
  return rc;
}

NUPA_SHOWN int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept {
  const int rsocket_fd = data_rsocket(fd);
  if (rsocket_fd >= 0 && level == SOL_SOCKET && name == SO_ERROR) {
    return rgetsockopt(rsocket_fd, level, name, value, length);
  }
  return next::getsockopt(fd, level, name, value, length);
}

namespace {

int control_file(int fd, int command, void* argument) {
  const int rc = next::fcntl(fd, command, argument);
  if (rc < 0) return rc;
  if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) return share_with(fd, rc);
  const Overlay* overlay = command == F_SETFL ? overlay_of(fd) : nullptr;
  // While it connects, the rsocket does not block whatever the program's descriptor does; listeners neither.
  if (overlay != nullptr && overlay->mode.load() == Mode::kConnected) {
    rfcntl(overlay->rsocket.load(), F_SETFL, static_cast<int>(reinterpret_cast<intptr_t>(argument)) & O_NONBLOCK);
  }
  return rc;
}

}  // namespace

NUPA_SHOWN int fcntl(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* argument = va_arg(rest, void*);
  va_end(rest);
  return control_file(fd, command, argument);
}

NUPA_SHOWN int fcntl64(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* argument = va_arg(rest, void*);
  va_end(rest);
  return control_file(fd, command, argument);
}

NUPA_SHOWN int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list rest;
  va_start(rest, request);
  void* argument = va_arg(rest, void*);
  va_end(rest);
  if (request == FIONREAD) {
    const int rsocket_fd = data_rsocket(fd);
    const auto lease =
        rsocket_fd < 0 ? DescriptorTable::Lease() : DescriptorTable::instance().lease(rsocket_fd, Use::kOther);
    if (lease) {
      *static_cast<int*>(argument) = static_cast<int>(lease->readable_bytes());
      return 0;
    }
  }
  const int rc = next::ioctl(fd, request, argument);
  const Overlay* overlay = request == FIONBIO && rc == 0 ? overlay_of(fd) : nullptr;
  if (overlay != nullptr && overlay->mode.load() == Mode::kConnected) {
    rfcntl(overlay->rsocket.load(), F_SETFL, *static_cast<int*>(argument) != 0 ? O_NONBLOCK : 0);
  }
  return rc;
}

NUPA_SHOWN int dup(int fd) noexcept { return share_with(fd, next::dup(fd)); }

NUPA_SHOWN int dup2(int fd, int other) noexcept {
  if (fd != other && next::fcntl(fd, F_GETFD) >= 0) drop(other);
  return share_with(fd, next::dup2(fd, other));
}

NUPA_SHOWN int dup3(int fd, int other, int flags) noexcept {
  if (fd != other && next::fcntl(fd, F_GETFD) >= 0) drop(other);
  return share_with(fd, next::dup3(fd, other, flags));
}
