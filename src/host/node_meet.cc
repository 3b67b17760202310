/// How processes of a host meet: one connects and says hello, the other one answers with its own.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>

#include "base/clock.h"
#include "base/log.h"
#include "host/introduction.h"
#include "host/node_impl.h"

namespace nupa::host {
namespace {

constexpr int64_t kHelloPatienceNs = 1'000'000'000;
constexpr int64_t kAcceptPauseNs = 100'000'000;

}  // namespace

Result<void> NodeImpl::say_hello(int fd) {
  Message hello = message_of(MessageKind::kHello);
  hello.probe = reinterpret_cast<uint64_t>(&instance_);
  const int fds[kMaxFds] = {segment_->fd(), region_fd_, doorbell_.fd()};
  return send_message(fd, hello, fds, kMaxFds);
}

Result<PeerRef> NodeImpl::connect(uint32_t slot, std::chrono::milliseconds timeout) {
  if (PeerRef known = find(slot); known != nullptr) return known;
  if (on_service_thread()) timeout = std::chrono::milliseconds(0);
  base::UniqueFd asked;
  {
    std::unique_ptr<Loop::Watch> watch;
    std::lock_guard lock(mutex_);
    if (PeerRef known = met_.find(slot); known != nullptr) return known;
    if (timeout.count() == 0 && is_asked(slot))
      return fail(ETIMEDOUT, "the process of slot ", slot, " has not answered yet");
    std::tie(asked, watch) = take_asked(slot);
  }
  if (asked) {
    auto met = wait_for_hello(std::move(asked), slot, timeout);
    // The process that was asked before may have ended. Another one may have the slot now.
    if (met || met.error().code() != EHOSTUNREACH) return met;
  }
  auto socket = dir_->connect(slot);
  if (!socket) {
    const int code = socket.error().code();
    return fail(code == ENOENT || code == ECONNREFUSED ? EHOSTUNREACH : code, "no process has slot ", slot);
  }
  if (auto sent = say_hello(socket->get()); !sent) return fail(sent.error().with_code(EHOSTUNREACH));
  return wait_for_hello(std::move(*socket), slot, timeout);
}

Result<PeerRef> NodeImpl::wait_for_hello(base::UniqueFd socket, uint32_t slot, std::chrono::milliseconds timeout) {
  const int64_t deadline = base::now_ns() + std::chrono::nanoseconds(timeout).count();
  for (;;) {
    const int64_t left = (deadline - base::now_ns()) / 1'000'000;
    if (auto ready = wait_readable(socket.get(), static_cast<int>(std::max<int64_t>(left, 0))); !ready) {
      // The answer may be on its way. The other process has met this one then, and would take the end of the socket for
      // this one's death: it stays open.
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
    auto introduced = check_hello(socket.get(), std::move(*received));
    if (!introduced) return tl::unexpected(introduced.error());
    if (!shm::claims_slot(*introduced->tables.header, slot))
      return fail(EPROTO, "another process answers for slot ", slot);
    std::lock_guard lock(mutex_);
    PeerRef peer = met_.adopt(std::move(*introduced));
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
    base::UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (base::is_out_of_descriptors(errno)) {
        NUPA_WARN("cannot let another process in: %s", strerror(errno));
        arrivals_->pause_until(base::now_ns() + kAcceptPauseNs);
      }
      return;
    }
    const int number = fd.get();
    std::lock_guard lock(mutex_);
    auto& late = add_connection(std::move(fd), nullptr).hello_deadline;
    late = std::make_unique<Loop::Timer>(*loop_, [this, number](int64_t) { drop(number, std::unique_lock(mutex_)); });
    late->set(base::now_ns() + kHelloPatienceNs);
  }
}

bool NodeImpl::on_hello(Connection& connection, Received received) {
  connection.hello_deadline.reset();
  const bool answers = connection.asked_slot == 0;
  if (received.message.kind == static_cast<uint32_t>(MessageKind::kObserver) && answers) {
    auto credentials = peer_credentials(connection.fd.get());
    connection.observer = true;
    return credentials && credentials->uid == geteuid() && say_hello(connection.fd.get());
  }
  auto introduced = check_hello(connection.fd.get(), std::move(received));
  if (!introduced) NUPA_WARN("another process is not let in: %s", introduced.error().what());
  if (!introduced || (answers && !say_hello(connection.fd.get())) ||
      (!answers && !shm::claims_slot(*introduced->tables.header, connection.asked_slot)))
    return false;
  connection.peer = met_.adopt(std::move(*introduced));
  connection.peer->set_asker(this);
  return true;
}

}  // namespace nupa::host
