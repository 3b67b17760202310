// SPDX-License-Identifier: Apache-2.0
#include "rsockets/preload/take_over.h"

#include <fcntl.h>
#include <rdma/rsocket.h>

#include <cerrno>

#include "rsockets/endpoint.h"
#include "rsockets/stream.h"
#include "base/clock.h"
#include "rsockets/preload/epoll_set.h"
#include "rsockets/preload/next.h"
#include "rsockets/preload/overlay.h"
#include "rsockets/preload/rules.h"

namespace nupa::sockets {

using rsockets::DescriptorTable;
using rsockets::Stream;
using rsockets::Use;

namespace {

/// TCP takes over after the rsocket's attempt failed. The program still waits for the attempt's result. If TCP fails at
/// once, the rsocket reports the error of connect(), as the kernel would later.
void fall_back(int fd, Overlay* overlay, int error) {
  const auto* peer = reinterpret_cast<const sockaddr*>(&overlay->peer);
  remember_plain(peer, error != ECONNREFUSED);
  const sockaddr_storage address = overlay->peer;
  const socklen_t length = overlay->peer_length;
  if (next::connect(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    // Another thread may have called connect() before.
    const bool goes_on = errno == EINPROGRESS || errno == EALREADY || errno == EISCONN || errno == EINTR;
    if (!goes_on) return give_up(overlay, errno);
  }
  leave_epoll_sets(fd);
  lift(fd);
  join_epoll_sets(fd);
}

}  // namespace

void give_up(Overlay* overlay, int error) {
  {
    const auto lease = DescriptorTable::instance().lease(overlay->rsocket.load(), Use::kOther);
    if (!lease || !static_cast<Stream*>(lease.get())->give_up(error)) return;
  }
  overlay->failed.store(true);
  overlay->mode.store(Overlay::Mode::kConnected);
}

bool settle(int fd, Overlay* overlay) {
  if (overlay->mode.load() != Overlay::Mode::kConnecting) return true;
  const int error = errno;
  int failure = 0;
  {
    const auto lease = DescriptorTable::instance().lease(overlay->rsocket.load(), Use::kOther);
    if (!lease) return true;
    lease->ready(0);
    auto* stream = static_cast<Stream*>(lease.get());
    if (stream->connecting()) {
      if (base::now_ns() < overlay->connect_until_ns) return false;
      failure = ETIMEDOUT;
    } else if (stream->phase() == Stream::Phase::kFailed) {
      socklen_t length = sizeof failure;
      stream->get_option(SOL_SOCKET, SO_ERROR, &failure, &length);
      if (failure == 0) failure = ECONNREFUSED;
    }
  }
  if (failure == 0) {
    overlay->mode.store(Overlay::Mode::kConnected);
    // The program may have changed its descriptor during the attempt.
    rfcntl(overlay->rsocket.load(), F_SETFL, next::fcntl(fd, F_GETFL) & O_NONBLOCK);
  } else {
    fall_back(fd, overlay, failure);
  }
  errno = error;
  return true;
}

int data_rsocket(int fd) {
  Overlay* overlay = overlay_of(fd);
  if (overlay == nullptr) [[likely]]
    return Overlay::kNone;
  const auto mode = overlay->mode.load(std::memory_order_relaxed);
  if (mode == Overlay::Mode::kConnected) return overlay->rsocket.load(std::memory_order_relaxed);
  if (mode == Overlay::Mode::kLost) return kLostRsocket;
  if (mode == Overlay::Mode::kListening) return Overlay::kNone;
  // Data is requested during a connection attempt. Only a nonblocking descriptor gets here, since connect() waits on a
  // blocking one.
  if (settle(fd, overlay)) return overlay_of(fd) == nullptr ? Overlay::kNone : overlay->rsocket.load();
  return overlay->rsocket.load();
}

}  // namespace nupa::sockets
