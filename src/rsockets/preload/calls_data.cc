// SPDX-License-Identifier: Apache-2.0
/// Calls that transfer data.
#include <fcntl.h>
#include <rdma/rsocket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>

#include "rsockets/preload/next.h"
#include "rsockets/preload/overlay.h"
#include "rsockets/preload/take_over.h"

using namespace nupa::sockets;

namespace {

/// Fails a call on a connection of the parent process, whose data is not reachable here.
ssize_t lost() {
  errno = ECONNRESET;
  return -1;
}

bool is_nonblocking(int rsocket_fd, int flags) {
  return (flags & MSG_DONTWAIT) != 0 || (rfcntl(rsocket_fd, F_GETFL) & O_NONBLOCK) != 0;
}

/// Returns the result of a send as TCP does. A send on a connection that takes no more data raises SIGPIPE unless
/// MSG_NOSIGNAL is set. The first nonblocking send after the peer process died succeeds: TCP detects a death only after
/// it has sent something, and programs rely on the next read for the error. redis-benchmark would repeat a failed send
/// forever.
ssize_t as_tcp(int rsocket_fd, ssize_t result, const iovec* list, size_t count, int flags) {
  if (result >= 0) [[likely]]
    return result;
  if (errno == ECONNRESET) {
    if (is_nonblocking(rsocket_fd, flags)) {
      size_t bytes = 0;
      for (size_t i = 0; i < count; ++i) bytes += list[i].iov_len;
      return static_cast<ssize_t>(bytes);
    }
    errno = ECONNRESET;
  }
  if (errno == EPIPE && (flags & MSG_NOSIGNAL) == 0) {
    raise(SIGPIPE);
    errno = EPIPE;
  }
  return result;
}
ssize_t as_tcp(int rsocket_fd, ssize_t result, size_t length, int flags) {
  const iovec whole{nullptr, length};
  return as_tcp(rsocket_fd, result, &whole, 1, flags);
}

/// TCP ignores the address of a connected socket.
ssize_t send_message(int rsocket_fd, const msghdr& message, int flags) {
  msghdr without_name = message;
  without_name.msg_name = nullptr;
  without_name.msg_namelen = 0;
  return as_tcp(rsocket_fd, rsendmsg(rsocket_fd, &without_name, flags), message.msg_iov, message.msg_iovlen, flags);
}

}  // namespace

// Calls libc for a plain descriptor and rsockets otherwise.
#define NUPA_EITHER(fd, plain, ours)              \
  const int rsocket_fd = data_rsocket(fd);        \
  if (rsocket_fd == Overlay::kNone) return plain; \
  if (rsocket_fd == kLostRsocket) return lost();  \
  return ours

NUPA_SHOWN ssize_t read(int fd, void* buffer, size_t length) {
  NUPA_EITHER(fd, next::read(fd, buffer, length), rread(rsocket_fd, buffer, length));
}
NUPA_SHOWN ssize_t readv(int fd, const iovec* list, int count) {
  NUPA_EITHER(fd, next::readv(fd, list, count), rreadv(rsocket_fd, list, count));
}
NUPA_SHOWN ssize_t recv(int fd, void* buffer, size_t length, int flags) {
  NUPA_EITHER(fd, next::recv(fd, buffer, length, flags), rrecv(rsocket_fd, buffer, length, flags));
}
NUPA_SHOWN ssize_t recvfrom(int fd, void* buffer, size_t length, int flags, sockaddr* from, socklen_t* from_length) {
  NUPA_EITHER(fd, next::recvfrom(fd, buffer, length, flags, from, from_length),
              rrecvfrom(rsocket_fd, buffer, length, flags, from, from_length));
}
NUPA_SHOWN ssize_t recvmsg(int fd, msghdr* message, int flags) {
  NUPA_EITHER(fd, next::recvmsg(fd, message, flags), rrecvmsg(rsocket_fd, message, flags));
}

// Programs built with _FORTIFY_SOURCE call these. The checks of libc add nothing here.
NUPA_SHOWN ssize_t __read_chk(int fd, void* buffer, size_t length, size_t) { return read(fd, buffer, length); }
NUPA_SHOWN ssize_t __recv_chk(int fd, void* buffer, size_t length, size_t, int flags) {
  return recv(fd, buffer, length, flags);
}
NUPA_SHOWN ssize_t __recvfrom_chk(int fd, void* buffer, size_t length, size_t, int flags, sockaddr* from,
                                  socklen_t* from_length) {
  return recvfrom(fd, buffer, length, flags, from, from_length);
}

NUPA_SHOWN ssize_t write(int fd, const void* data, size_t length) {
  NUPA_EITHER(fd, next::write(fd, data, length), as_tcp(rsocket_fd, rwrite(rsocket_fd, data, length), length, 0));
}
NUPA_SHOWN ssize_t writev(int fd, const iovec* list, int count) {
  NUPA_EITHER(fd, next::writev(fd, list, count),
              as_tcp(rsocket_fd, rwritev(rsocket_fd, list, count), list, static_cast<size_t>(count), 0));
}
NUPA_SHOWN ssize_t send(int fd, const void* data, size_t length, int flags) {
  NUPA_EITHER(fd, next::send(fd, data, length, flags),
              as_tcp(rsocket_fd, rsend(rsocket_fd, data, length, flags), length, flags));
}
NUPA_SHOWN ssize_t sendto(int fd, const void* data, size_t length, int flags, const sockaddr* to, socklen_t to_length) {
  // TCP ignores the address of a connected socket.
  NUPA_EITHER(fd, next::sendto(fd, data, length, flags, to, to_length),
              as_tcp(rsocket_fd, rsend(rsocket_fd, data, length, flags), length, flags));
}
NUPA_SHOWN ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  NUPA_EITHER(fd, next::sendmsg(fd, message, flags), send_message(rsocket_fd, *message, flags));
}

namespace {

/// Copies a file in parts through memory. The file offset is only advanced by what was sent.
ssize_t copy_file(int rsocket_fd, int file, off_t* offset, size_t length) {
  constexpr size_t kPiece = 65536;
  thread_local std::byte buffer[kPiece];
  const bool own = offset == nullptr;
  off_t place = own ? lseek(file, 0, SEEK_CUR) : *offset;
  if (place < 0) return -1;
  size_t done = 0;
  ssize_t result = 0;
  while (done < length) {
    const ssize_t got = pread(file, buffer, std::min(kPiece, length - done), place);
    if (got <= 0) {
      result = got;
      break;
    }
    const auto bytes = static_cast<size_t>(got);
    result = as_tcp(rsocket_fd, rsend(rsocket_fd, buffer, bytes, 0), bytes, 0);
    if (result <= 0) break;
    done += static_cast<size_t>(result);
    place += result;
    if (result < got) break;
  }
  if (own) {
    lseek(file, place, SEEK_SET);
  } else {
    *offset = place;
  }
  return done != 0 ? static_cast<ssize_t>(done) : result;
}

}  // namespace

NUPA_SHOWN ssize_t sendfile(int fd, int file, off_t* offset, size_t length) noexcept {
  NUPA_EITHER(fd, next::sendfile(fd, file, offset, length), copy_file(rsocket_fd, file, offset, length));
}
NUPA_SHOWN ssize_t sendfile64(int fd, int file, off64_t* offset, size_t length) noexcept {
  static_assert(sizeof(off_t) == sizeof(off64_t));
  return sendfile(fd, file, offset, length);
}
