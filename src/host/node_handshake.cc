// SPDX-License-Identifier: Apache-2.0
/// The handshake between processes of a host: one connects and sends a hello, and the other one answers with its own.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>

#include "base/clock.h"
#include "base/log.h"
#include "base/lowest_descriptor.h"
#include "host/handshake.h"
#include "host/node_impl.h"
#include "progress/pauses.h"

namespace nupa::host {
namespace {

constexpr int64_t kHelloTimeoutNs = 1'000'000'000;

constexpr const char* kFullText = "peers take half of the descriptors of this process";
constexpr const char* kNoRoomText = "one of the two processes has reached its limit of peers (half of ulimit -n)";

auto fail_no_room(uint32_t slot) { return fail(EMFILE, "the process of slot ", slot, ": ", kNoRoomText); }

bool says(const Received& received, MessageKind kind) { return received.message.kind == static_cast<uint32_t>(kind); }

}  // namespace

bool NodeImpl::has_room() {
  const auto asked = std::count_if(connections_.begin(), connections_.end(), [](const auto& entry) {
    return entry.second.peer == nullptr && entry.second.asked_slot != 0;
  });
  return known_peers_.size() + static_cast<size_t>(asked) < Peer::most_peers();
}

void NodeImpl::warn_once(const char* what) {
  if (!warned_) NUPA_WARN("%s (raise ulimit -n): no shared memory with further processes of this host", what);
  warned_ = true;
}

void NodeImpl::refuse(uint32_t slot) {
  const auto id = dir_->socket_id(slot);
  if (!id) return;  // it exited
  refused_.insert_or_assign(slot, *id);
}

bool NodeImpl::is_refused(uint32_t slot) const {
  if (refused_.empty()) return false;
  const auto id = dir_->socket_id(slot);
  return id && std::any_of(refused_.begin(), refused_.end(), [&](const auto& each) { return each.second == *id; });
}

void NodeImpl::send_refusal(int fd) {
  [[maybe_unused]] const auto sent = send_message(fd, message_of(MessageKind::kNoRoom), nullptr, 0);
}

bool NodeImpl::refuse_next() {
  std::unique_lock lock(mutex_);
  if (!spare_) return false;
  spare_.reset();
  const base::UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd) {
    // A process sends its hello as soon as it is connected. If the hello is not there yet, only that process records
    // that the two do not connect.
    const auto received = receive_message(fd.get());
    warn_once("no free descriptor for another process");
    if (received && says(*received, MessageKind::kHello)) refuse(received->message.slot);
    send_refusal(fd.get());
  }
  return static_cast<bool>(fd);
}

Result<void> NodeImpl::send_hello(int fd) {
  Message hello = message_of(MessageKind::kHello);
  hello.probe = reinterpret_cast<uint64_t>(&instance_);
  const int fds[kMaxFds] = {segment_->fd(), region_fd_, wakeup_fd_.fd()};
  return send_message(fd, hello, fds, kMaxFds);
}

Result<PeerRef> NodeImpl::connect(uint32_t slot, std::chrono::milliseconds timeout) {
  if (PeerRef known = find(slot); known != nullptr) return known;
  if (on_service_thread()) timeout = std::chrono::milliseconds(0);
  base::UniqueFd asked;
  bool is_full = false;
  {
    std::unique_ptr<Loop::Watch> watch;
    std::lock_guard lock(mutex_);
    if (PeerRef known = known_peers_.find(slot); known != nullptr) return known;
    if (timeout.count() == 0 && is_asked(slot))
      return fail(ETIMEDOUT, "the process of slot ", slot, " has not answered the handshake yet");
    std::tie(asked, watch) = take_asked(slot);
    if (!asked && is_refused(slot)) return fail_no_room(slot);
    is_full = !asked && !has_room();
    if (is_full) {
      warn_once(kFullText);
      refuse(slot);
    }
  }
  if (asked) {
    auto met = wait_for_hello(std::move(asked), slot, timeout);
    // The process of the earlier handshake may have exited, and another one may have the slot now.
    if (met || met.error().code() != EHOSTUNREACH) return met;
  }
  auto socket = dir_->connect(slot);
  if (!socket) {
    const int code = socket.error().code();
    return fail(code == ENOENT || code == ECONNREFUSED ? EHOSTUNREACH : code, "no process has slot ", slot);
  }
  if (is_full) {
    send_refusal(socket->get());
    return fail_no_room(slot);
  }
  // If it has closed the connection by now, it may have sent the reason.
  if (auto sent = send_hello(socket->get()); !sent && sent.error().code() != EPIPE)
    return fail(sent.error().with_code(EHOSTUNREACH));
  return wait_for_hello(std::move(*socket), slot, timeout);
}

Result<PeerRef> NodeImpl::wait_for_hello(base::UniqueFd socket, uint32_t slot, std::chrono::milliseconds timeout) {
  const int64_t deadline = base::now_ns() + std::chrono::nanoseconds(timeout).count();
  for (;;) {
    const int64_t left = (deadline - base::now_ns()) / 1'000'000;
    if (auto ready = wait_readable(socket.get(), static_cast<int>(std::max<int64_t>(left, 0))); !ready) {
      // The answer may be on its way. Then the other process has this one as a peer, and would take the end of the
      // socket for this one's death. So the socket stays open.
      std::lock_guard lock(mutex_);
      add_connection(std::move(socket), nullptr).asked_slot = slot;
      return tl::unexpected(ready.error());
    }
    auto received = receive_message(socket.get());
    if (!received) {
      if (received.error().code() == EAGAIN) continue;
      const int code = received.error().code();
      return fail(received.error().with_code(code == ENOTCONN ? EHOSTUNREACH : code));
    }
    const bool is_refused = says(*received, MessageKind::kNoRoom);
    auto handshake =
        is_refused ? Result<Handshake>(fail_no_room(slot)) : check_hello(socket.get(), std::move(*received));
    if (!handshake && handshake.error().code() == EMFILE) {
      std::lock_guard lock(mutex_);
      refuse(slot);
      // It has this process as a peer, and must undo that.
      if (!is_refused) send_refusal(socket.get());
    }
    if (!handshake) return tl::unexpected(handshake.error());
    if (!shm::claims_slot(*handshake->tables.header, slot))
      return fail(EPROTO, "another process answered for slot ", slot);
    std::lock_guard lock(mutex_);
    PeerRef peer = known_peers_.adopt(std::move(*handshake));
    peer->set_asker(this);
    add_connection(std::move(socket), peer);
    return peer;
  }
}

std::pair<base::UniqueFd, std::unique_ptr<Loop::Watch>> NodeImpl::take_asked(uint32_t slot) {
  const auto found = asked_of(slot);
  if (found == connections_.end()) return {};
  std::pair taken(std::move(found->second.fd), std::move(found->second.watch));
  connections_.erase(found);
  return taken;
}

void NodeImpl::accept_all() {
  for (;;) {
    // fork() takes the mutex as well, so that in_child() finds each descriptor of a peer.
    std::unique_lock lock(mutex_);
    if (!spare_) spare_ = base::out_of_the_way(base::UniqueFd(fcntl(region_fd_, F_DUPFD_CLOEXEC, 0)));
    base::UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      const int error = errno;
      lock.unlock();
      if (base::is_out_of_descriptors(error)) {
        if (refuse_next()) continue;
        NUPA_WARN("cannot accept a connection of another process: %s", strerror(error));
        arrivals_->pause_until(base::now_ns() + progress::kAcceptPauseNs);
      }
      return;
    }
    const int number = fd.get();
    auto& late = add_connection(std::move(fd), nullptr).hello_deadline;
    late = std::make_unique<Loop::Timer>(*loop_, [this, number](int64_t) { drop(number, std::unique_lock(mutex_)); });
    late->set(base::now_ns() + kHelloTimeoutNs);
  }
}

bool NodeImpl::on_capture(Connection& connection, Received received) {
  const auto credentials = peer_credentials(connection.fd.get());
  if (!credentials || credentials->uid != geteuid() || received.fd_count != 1) return false;
  if (auto attached = events_.on_capture(std::move(received.fds[0])); !attached) {
    NUPA_INFO("a capture was refused: %s", attached.error().what());
    return false;
  }
  connection.captures = true;
  return send_message(connection.fd.get(), message_of(MessageKind::kCaptured), nullptr, 0).has_value();
}

bool NodeImpl::on_hello(Connection& connection, Received received) {
  connection.hello_deadline.reset();
  const bool answers = connection.asked_slot == 0;
  if (received.message.kind == static_cast<uint32_t>(MessageKind::kObserver) && answers) {
    auto credentials = peer_credentials(connection.fd.get());
    connection.observer = true;
    if (!credentials || credentials->uid != geteuid()) return false;
    events_.on_observed();
    return static_cast<bool>(send_hello(connection.fd.get()));
  }
  if (says(received, MessageKind::kCapture) && answers) return on_capture(connection, std::move(received));
  const uint32_t slot = answers ? received.message.slot : connection.asked_slot;
  if (says(received, MessageKind::kNoRoom)) {
    refuse(slot);
    return false;
  }
  const bool is_further =
      answers && says(received, MessageKind::kHello) && known_peers_.find(received.message) == nullptr;
  const bool is_full = is_further && !has_room();
  if (is_full) warn_once(kFullText);
  auto handshake = is_full || (is_further && is_refused(slot)) ? Result<Handshake>(fail_no_room(slot))
                                                               : check_hello(connection.fd.get(), std::move(received));
  if (!handshake && handshake.error().code() == EMFILE) {
    refuse(slot);
    send_refusal(connection.fd.get());
    return false;
  }
  if (!handshake) NUPA_WARN("handshake with another process failed: %s", handshake.error().what());
  if (!handshake || (answers && !send_hello(connection.fd.get())) ||
      (!answers && !shm::claims_slot(*handshake->tables.header, connection.asked_slot)))
    return false;
  connection.peer = known_peers_.adopt(std::move(*handshake));
  connection.peer->set_asker(this);
  return true;
}

}  // namespace nupa::host
