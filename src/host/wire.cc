// SPDX-License-Identifier: Apache-2.0
#include "host/wire.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/system_error.h"
#include "progress/descriptors.h"

namespace nupa::host {

Result<void> send_message(int socket, const Message& message, const int* fds, size_t fd_count, const Payload* payload) {
  iovec data[2] = {{const_cast<Message*>(&message), sizeof message},
                   {const_cast<Payload*>(payload), payload == nullptr ? 0 : sizeof *payload}};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = data;
  header.msg_iovlen = payload == nullptr ? 1 : 2;
  if (fd_count > 0) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
    std::memcpy(CMSG_DATA(rights), fds, fd_count * sizeof(int));
  }
  for (;;) {
    const ssize_t sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == static_cast<ssize_t>(data[0].iov_len + data[1].iov_len)) return {};
    if (sent < 0 && errno == EINTR) continue;
    return fail(sent < 0 ? errno : EPROTO, "cannot send a message to a process");
  }
}

Result<Received> receive_message(int socket) {
  Received received;
  iovec data[2] = {{&received.message, sizeof received.message}, {&received.payload, sizeof received.payload}};
  // Room for more descriptors than belong there, so that those of a hostile sender are received and closed, not leaked.
  constexpr size_t kRoom = 16;
  alignas(cmsghdr) char control[CMSG_SPACE(kRoom * sizeof(int))];
  msghdr header{};
  header.msg_iov = data;
  header.msg_iovlen = 2;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t got;
  bool reset = false;
  do {
    got = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // If a process exited without reading everything, this error is reported once before the messages that it sent.
  } while (got < 0 && (errno == EINTR || (errno == ECONNRESET && !std::exchange(reset, true))));
  if (got < 0) return fail(errno == ECONNRESET ? ENOTCONN : errno, "cannot receive a message of a process");
  bool too_many = false;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof fd);
      base::UniqueFd owned(fd);
      if (received.fd_count < kMaxFds)
        received.fds[received.fd_count++] = std::move(owned);
      else
        too_many = true;
    }
  }
  if (got == 0) return fail(ENOTCONN, "the peer process closed the connection");
  const bool has_payload = got >= static_cast<ssize_t>(sizeof(Message)) &&
                           received.message.kind == static_cast<uint32_t>(MessageKind::kPayload);
  // Too many descriptors set `too_many`. Otherwise this process has no room for the missing ones: the message itself is
  // complete, and its reader sees by fd_count how many arrived.
  received.truncated = (header.msg_flags & MSG_CTRUNC) != 0;
  if (got != static_cast<ssize_t>(sizeof(Message) + (has_payload ? sizeof(Payload) : 0)) || too_many ||
      (header.msg_flags & MSG_TRUNC) != 0 || received.message.magic != kWireMagic ||
      received.message.version != kWireVersion)
    return fail(EPROTO, "invalid message (another version of NUPA?)");
  return received;
}

Result<void> wait_readable(int socket, int timeout_ms) {
  const auto waited = progress::wait_readable(socket, progress::Deadline::in_ms(timeout_ms));
  if (waited) return {};
  const int error = waited.error().code();
  return fail(error, error == ETIMEDOUT ? "timeout: the peer process does not answer"
                                        : "cannot wait for the answer of the peer process");
}

Result<Credentials> peer_credentials(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    return base::fail_call(errno, "cannot read the user of the peer process");
  return Credentials{credentials.pid, credentials.uid};
}

}  // namespace nupa::host
