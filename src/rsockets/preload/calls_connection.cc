// SPDX-License-Identifier: Apache-2.0
/// Calls that make and end connections, and those that return their properties.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rdma/rsocket.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdint>

#include "rsockets/descriptor_table.h"
#include "rsockets/poll.h"
#include "rsockets/socket.h"
#include "base/clock.h"
#include "base/gid.h"
#include "rsockets/preload/epoll_set.h"
#include "rsockets/preload/next.h"
#include "rsockets/preload/overlay.h"
#include "progress/clock.h"
#include "rsockets/preload/rules.h"
#include "rsockets/preload/take_over.h"

using namespace nupa::sockets;
using nupa::rsockets::Deadline;
using nupa::rsockets::DescriptorTable;
using nupa::rsockets::Use;
using Mode = Overlay::Mode;

namespace {

using nupa::progress::kNsPerMs;

int option_of(int fd, int name) {
  int value = 0;
  socklen_t length = sizeof value;
  return next::getsockopt(fd, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
}

bool may_be_rsocket(int fd) {
  return usable() && option_of(fd, SO_TYPE) == SOCK_STREAM && allowed(option_of(fd, SO_DOMAIN)) &&
         option_of(fd, SO_PROTOCOL) == IPPROTO_TCP;
}

/// True, with errno EINVAL, for a TCP socket under a wrong setting. TCP instead of RDMA would hide the mistake.
bool is_refused(int fd) {
  if (!is_misconfigured() || option_of(fd, SO_TYPE) != SOCK_STREAM || option_of(fd, SO_PROTOCOL) != IPPROTO_TCP)
    return false;
  errno = EINVAL;
  return true;
}

bool nonblocking(int fd) { return (next::fcntl(fd, F_GETFL) & O_NONBLOCK) != 0; }

/// Waits until a connection attempt succeeds or fails, even if signals arrive. Returns false after a timeout.
bool await_connection(int rsocket_fd) {
  const int64_t until = nupa::base::now_ns() + connect_ms() * kNsPerMs;
  for (;;) {
    pollfd wanted{rsocket_fd, POLLOUT, 0};
    const int64_t left_ms = (until - nupa::base::now_ns() + kNsPerMs - 1) / kNsPerMs;
    const int count = rpoll(&wanted, 1, static_cast<int>(std::max<int64_t>(left_ms, 0)));
    if (count < 0 && errno == EINTR) continue;
    return count > 0;
  }
}

/// Tries to connect by an rsocket. Returns 0 if it is connected, or EINPROGRESS if the attempt continues with an
/// overlay. After any other error the caller tries TCP.
int try_rsocket(int fd, const sockaddr* peer, socklen_t length) {
  const int rsocket_fd = make_rsocket(peer->sa_family);
  if (rsocket_fd < 0) return errno;
  const int unprepared = prepare_epoll_sets(fd);
  if (unprepared != 0) {
    rclose(rsocket_fd);
    return unprepared;
  }
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
    if (await_connection(rsocket_fd)) {
      socklen_t size = sizeof error;
      rgetsockopt(rsocket_fd, SOL_SOCKET, SO_ERROR, &error, &size);
    } else {
      error = ETIMEDOUT;
    }
  }
  if (error == 0 || error == EINPROGRESS) {
    if (error == 0 && !nonblocking(fd)) rfcntl(rsocket_fd, F_SETFL, 0);
    Overlay* overlay = spare_overlay(error == 0 ? Mode::kConnected : Mode::kConnecting, rsocket_fd);
    if (overlay != nullptr) {
      __builtin_memcpy(&overlay->peer, peer, length);
      overlay->peer_length = length;
      overlay->connect_until_ns = nupa::base::now_ns() + connect_ms() * kNsPerMs;
    }
    if (overlay != nullptr && lay(fd, overlay)) {
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

/// Returns the rsocket of a listener or a connection, kNone or kLostRsocket.
int any_rsocket(int fd) {
  const Overlay* overlay = overlay_of(fd);
  return overlay == nullptr ? Overlay::kNone : overlay->rsocket.load();
}

/// Returns an rsocket's address in the family of the program's socket, as TCP does. An rsocket that accepts IPv4 and
/// IPv6 reports each address in its own family.
void give_name(int domain, sockaddr_storage name, sockaddr* addr, socklen_t* length) {
  auto* four = reinterpret_cast<sockaddr_in*>(&name);
  auto* six = reinterpret_cast<sockaddr_in6*>(&name);
  if (domain == AF_INET6 && name.ss_family == AF_INET) {
    const sockaddr_in plain = *four;
    *six = {};
    six->sin6_family = AF_INET6;
    six->sin6_port = plain.sin_port;
    const nupa::Gid mapped = nupa::base::ipv4_gid(plain.sin_addr);
    __builtin_memcpy(&six->sin6_addr, mapped.raw.data(), sizeof six->sin6_addr);
  } else if (domain == AF_INET && name.ss_family == AF_INET6) {
    const sockaddr_in6 mapped = *six;
    *four = {};
    four->sin_family = AF_INET;
    four->sin_port = mapped.sin6_port;
    __builtin_memcpy(&four->sin_addr, &mapped.sin6_addr.s6_addr[12], sizeof four->sin_addr);
  }
  nupa::rsockets::give_address(reinterpret_cast<const sockaddr*>(&name), addr, length);
}

/// getpeername() and getsockname() of a connection over an rsocket.
int ask_name(int (*call)(int, sockaddr*, socklen_t*), int fd, int rsocket_fd, sockaddr* addr, socklen_t* length) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  const int rc = call(rsocket_fd, reinterpret_cast<sockaddr*>(&name), &size);
  if (rc == 0) give_name(option_of(fd, SO_DOMAIN), name, addr, length);
  return rc;
}

bool has_waiting(int rsocket_fd) {
  const auto lease = DescriptorTable::instance().lease(rsocket_fd, Use::kOther);
  return lease && lease->ready(POLLIN) != 0;
}

/// Accepts a connection of the rsocket. Returns -1 and EAGAIN if none waits.
int accept_rsocket(int fd, sockaddr* addr, socklen_t* length, int flags, int rsocket_fd) {
  if (!has_waiting(rsocket_fd)) {
    errno = EAGAIN;
    return -1;
  }
  // The program gets an unconnected socket under the overlay. If that cannot be made, the connection stays in the
  // queue, as with TCP.
  const int domain = option_of(fd, SO_DOMAIN);
  const int number = socket(domain, SOCK_STREAM | (flags & (SOCK_CLOEXEC | SOCK_NONBLOCK)), 0);
  if (number < 0) return -1;
  int error = ENOMEM;
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  const int accepted = raccept(rsocket_fd, reinterpret_cast<sockaddr*>(&peer), &size);
  if (accepted < 0) {
    error = errno;
  } else {
    if ((flags & SOCK_NONBLOCK) != 0) rfcntl(accepted, F_SETFL, O_NONBLOCK);
    Overlay* overlay = spare_overlay(Mode::kConnected, accepted);
    if (overlay != nullptr && lay(number, overlay)) {
      if (addr != nullptr && length != nullptr) give_name(domain, peer, addr, length);
      return number;
    }
    rclose(accepted);
  }
  next::close(number);
  errno = error;
  return -1;
}

/// Accepts a TCP connection without waiting, because during a wait nobody would accept the rsocket's connections.
/// Returns -1 and EAGAIN if another thread has accepted it or is about to.
int accept_plain(int fd, Overlay* overlay, sockaddr* addr, socklen_t* length, int flags) {
  errno = EAGAIN;
  if (overlay->accepting.exchange(true)) return -1;
  struct Turn {
    Overlay* overlay;
    ~Turn() { overlay->accepting.store(false); }  // also in a thread that is cancelled
  };
  const Turn turn{overlay};
  pollfd entry{fd, POLLIN, 0};
  return next::poll(&entry, 1, 0) == 1 ? next::accept4(fd, addr, length, flags) : -1;
}

/// Returns the deadline of a call that waits for connections.
Deadline accept_deadline(int fd) {
  timeval time{};
  socklen_t length = sizeof time;
  next::getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, &length);
  const int64_t ns = time.tv_sec * nupa::progress::kNsPerSecond + time.tv_usec * nupa::progress::kNsPerUs;
  return ns == 0 ? Deadline::never() : Deadline::in_ns(ns);
}

/// Removes the overlay of a failed attempt, so that the program may try again. Returns -1 if its error was not reported
/// yet.
int lift_failed(int fd, Overlay* overlay) {
  int error = 0;
  socklen_t length = sizeof error;
  rgetsockopt(overlay->rsocket.load(), SOL_SOCKET, SO_ERROR, &error, &length);
  leave_epoll_sets(fd);
  lift(fd);
  join_epoll_sets(fd);
  errno = error;
  return error == 0 ? 0 : -1;
}

int share_with(int old_fd, int new_fd) {
  Overlay* overlay = new_fd < 0 || new_fd == old_fd ? nullptr : overlay_of(old_fd);
  if (overlay != nullptr && !in_parents_memory()) share(new_fd, overlay);
  return new_fd;
}

void drop(int fd) {
  if ((overlay_of(fd) == nullptr && !is_known_set(fd)) || in_parents_memory()) return;
  forget_in_epoll_sets(fd);
  lift(fd);
}

/// Called after libc's dup2() or dup3(). A successful call has replaced `other`.
int replace(int fd, int other, int result) {
  if (result < 0 || fd == other) return result;
  drop(other);
  return share_with(fd, other);
}

}  // namespace

NUPA_SHOWN int listen(int fd, int backlog) noexcept {
  if (is_refused(fd)) return -1;
  const int rc = next::listen(fd, backlog);
  if (rc != 0 || !may_be_rsocket(fd)) return rc;
  Overlay* overlay = overlay_of(fd);
  const bool fresh = overlay == nullptr;
  if (fresh) overlay = spare_overlay(Mode::kListening, Overlay::kNone);
  if (overlay != nullptr) overlay->backlog = backlog;
  if (fresh && overlay != nullptr) lay(fd, overlay);
  return rc;
}

NUPA_SHOWN int accept4(int fd, sockaddr* addr, socklen_t* length, int flags) {
  Overlay* overlay = overlay_of(fd);
  const int rsocket_fd =
      overlay != nullptr && overlay->mode.load() == Mode::kListening ? listening_rsocket(fd, overlay) : Overlay::kNone;
  if (rsocket_fd < 0) return next::accept4(fd, addr, length, flags);
  int number = accept_rsocket(fd, addr, length, flags, rsocket_fd);
  if (number >= 0 || errno != EAGAIN) return number;
  if (nonblocking(fd)) return next::accept4(fd, addr, length, flags);
  const auto deadline = accept_deadline(fd);
  do {
    pollfd both[] = {{fd, POLLIN, 0}, {rsocket_fd, POLLIN, 0}};
    const PlainPoll plain;
    const int count = nupa::rsockets::poll_mixed(both, 2, deadline, false, nullptr);
    if (count > 0 && overlay->rsocket.load() != rsocket_fd) {
      errno = EBADF;  // another thread has closed the listener
      return -1;
    }
    if (count <= 0) {
      errno = count < 0 ? -count : EAGAIN;
      return -1;
    }
    number = both[1].revents != 0 ? accept_rsocket(fd, addr, length, flags, rsocket_fd)
                                  : accept_plain(fd, overlay, addr, length, flags);
  } while (number < 0 && errno == EAGAIN);
  return number;
}

NUPA_SHOWN int accept(int fd, sockaddr* addr, socklen_t* length) { return accept4(fd, addr, length, 0); }

NUPA_SHOWN int connect(int fd, const sockaddr* peer, socklen_t length) {
  if (Overlay* overlay = overlay_of(fd)) {
    if (!settle(fd, overlay)) {
      errno = EALREADY;
      return -1;
    }
    overlay = overlay_of(fd);
    if (overlay != nullptr && !overlay->failed.load()) {
      errno = EISCONN;
      return -1;
    }
    if (overlay != nullptr && lift_failed(fd, overlay) != 0) return -1;
    return next::connect(fd, peer, length);
  }
  if (is_refused(fd)) return -1;
  const bool inet = peer != nullptr && length <= sizeof(sockaddr_storage) &&
                    ((length >= sizeof(sockaddr_in) && peer->sa_family == AF_INET) ||
                     (length >= sizeof(sockaddr_in6) && peer->sa_family == AF_INET6));
  if (!inet || !may_be_rsocket(fd) || known_plain(peer)) return next::connect(fd, peer, length);
  sockaddr_storage other;
  socklen_t other_length = sizeof other;
  if (next::getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_length) == 0) {
    return next::connect(fd, peer, length);  // it reports that the socket is connected
  }
  const int error = try_rsocket(fd, peer, length);
  if (error == 0) return 0;
  if (error != EINPROGRESS) return next::connect(fd, peer, length);
  errno = error;
  return -1;
}

NUPA_SHOWN int shutdown(int fd, int how) noexcept {
  Overlay* overlay = overlay_of(fd);
  if (overlay != nullptr && overlay->mode.load() == Mode::kConnecting) {
    if (!settle(fd, overlay)) give_up(overlay, ECONNRESET);  // TCP ends an attempt, too
    overlay = overlay_of(fd);
    if (overlay != nullptr && overlay->failed.load()) return 0;
  }
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
  const Overlay* overlay = overlay_of(fd);
  const bool failed = overlay != nullptr && overlay->failed.load();  // then the program's socket reports ENOTCONN
  return rsocket_fd < 0 || failed ? next::getpeername(fd, addr, length)
                                  : ask_name(rgetpeername, fd, rsocket_fd, addr, length);
}

NUPA_SHOWN int getsockname(int fd, sockaddr* addr, socklen_t* length) noexcept {
  const int rsocket_fd = data_rsocket(fd);
  return rsocket_fd < 0 ? next::getsockname(fd, addr, length) : ask_name(rgetsockname, fd, rsocket_fd, addr, length);
}

NUPA_SHOWN int setsockopt(int fd, int level, int name, const void* value, socklen_t length) noexcept {
  const int rc = next::setsockopt(fd, level, name, value, length);
  const int rsocket_fd = any_rsocket(fd);
  if (rsocket_fd >= 0 && rc == 0) {
    const int error = errno;
    rsetsockopt(rsocket_fd, level, name, value, length);
    errno = error;  // the program's socket has accepted the option
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
  // A connecting or listening rsocket is always nonblocking, whatever the program's descriptor is.
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

NUPA_SHOWN int dup2(int fd, int other) noexcept { return replace(fd, other, next::dup2(fd, other)); }

NUPA_SHOWN int dup3(int fd, int other, int flags) noexcept { return replace(fd, other, next::dup3(fd, other, flags)); }
