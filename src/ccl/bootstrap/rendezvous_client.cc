// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "base/gid_text.h"
#include "base/unique_fd.h"
#include "ccl/bootstrap/rendezvous.h"
#include "ccl/bootstrap/rendezvous_wire.h"
#include "ccl/bootstrap/socket_address.h"
#include "ccl/bootstrap/wait_notice.h"
#include "progress/descriptors.h"
#include "progress/waiter.h"

namespace nupa::ccl {
namespace {

/// Time limit to connect to one address; then the next address is tried.
constexpr int64_t kTryNs = 1'000'000'000;
/// Interval at which a waiting rank calls RendezvousLimits::may_go_on.
constexpr int64_t kLookNs = 200'000'000;
/// A server listens before its id exists. If all addresses refuse connections in this many rounds in a row, the server
/// has exited.
constexpr int kMostRefusals = 20;

/// Waits until `end`. On failure, returns false and sets errno.
bool wait_for(int fd, short events, int64_t end) {
  const auto deadline = progress::Deadline::at(end);
  const auto ready = events == POLLIN ? progress::wait_readable(fd, deadline) : progress::wait_writable(fd, deadline);
  if (!ready) errno = ready.error().code();
  return ready.has_value();
}

/// On failure, returns no descriptor and sets errno.
base::UniqueFd connect_to(const Gid& address, uint16_t port, int64_t end) {
  SocketAddress to(address, port);
  base::UniqueFd fd(socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fd;
  int error = 0;
  if (connect(fd.get(), to.get(), to.length()) != 0) {
    if (errno != EINPROGRESS) return {};
    if (!wait_for(fd.get(), POLLOUT, end)) return {};
    socklen_t size = sizeof error;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error != 0) {
    errno = error;
    return {};
  }
  return fd;
}

Result<void> ask(const RendezvousLimits& limits) {
  if (!limits.may_go_on || limits.may_go_on()) return {};
  return fail(ECANCELED, "the rendezvous was canceled");
}

/// The server's address in error texts.
std::string place_of(const Gid& address, uint16_t port) {
  return base::gid_text(address) + " port " + std::to_string(port);
}

/// A connection to the server, and the server's address.
struct ServerConnection {
  base::UniqueFd fd;
  std::string place;
};

/// Connects to the server. It tries all addresses in rounds: some may belong to networks that only the server's host is
/// in, and the server may not listen yet.
Result<ServerConnection> connect_to_server(const UniqueId& id, const RendezvousLimits& limits, WaitNotice& notice) {
  const int64_t end = base::now_ns() + limits.root_ns;
  int error = ETIMEDOUT;
  int refusals = 0;
  std::string tried;
  while (base::now_ns() < end && refusals < kMostRefusals) {
    ++refusals;
    if (auto may = ask(limits); !may) return tl::unexpected(may.error());
    for (const Gid& address : id.addresses) {
      base::UniqueFd fd = connect_to(address, id.port, std::min(end, base::now_ns() + kTryNs));
      if (fd) return ServerConnection{std::move(fd), place_of(address, id.port)};
      const int why = errno;
      // An attempt that the limit has cut short does not hide the reason of the one before.
      if (why != ETIMEDOUT || base::now_ns() < end) error = why;
      tried = place_of(address, id.port);
      if (error != ECONNREFUSED) refusals = 0;
    }
    notice.look("the rendezvous server at " + tried + ": " + std::strerror(error));
    progress::sleep_for(kServerPauseNs);
  }
  return fail(error, "cannot connect to the rendezvous server: ", tried, ": ", std::strerror(error));
}

class ServerDialog {
 public:
  ServerDialog(ServerConnection server, const RendezvousLimits& limits)
      : server_(std::move(server)), limits_(limits), end_(base::now_ns() + limits.answer_ns) {}

  /// An error that names the server. `what` follows its address in the text.
  template <class... What>
  tl::unexpected<Error> failed(int code, const What&... what) const {
    return fail(code, "the rendezvous server at ", server_.place, what...);
  }

  Result<void> send_all(const std::vector<std::byte>& what) {
    for (size_t done = 0; done < what.size();) {
      const ssize_t sent = send(server_.fd.get(), what.data() + done, what.size() - done, MSG_NOSIGNAL);
      if (sent > 0)
        done += static_cast<size_t>(sent);
      else if (auto may = may_go_on(sent, POLLOUT); !may)
        return may;
    }
    return {};
  }
  Result<void> receive(std::vector<std::byte>* what, size_t length) {
    const size_t begin = what->size();
    what->resize(begin + length);
    for (size_t done = 0; done < length;) {
      const ssize_t got = recv(server_.fd.get(), what->data() + begin + done, length - done, 0);
      if (got > 0)
        done += static_cast<size_t>(got);
      else if (auto may = may_go_on(got, POLLIN); !may)
        return may;
    }
    return {};
  }

 private:
  Result<void> may_go_on(ssize_t moved, short events) {
    if (moved == 0) return failed(ECONNABORTED, " closed the connection");
    if (errno == EINTR) return {};
    if (errno != EAGAIN) return failed(ECONNABORTED, ": ", std::strerror(errno));
    while (!wait_for(server_.fd.get(), events, std::min(end_, base::now_ns() + kLookNs))) {
      if (errno != ETIMEDOUT || base::now_ns() >= end_) return failed(errno, " does not answer");
      if (auto may = ask(limits_); !may) return may;
    }
    return {};
  }

  const ServerConnection server_;
  const RendezvousLimits& limits_;
  int64_t end_;
};

}  // namespace

Result<RendezvousResult> join_rendezvous(const UniqueId& id, uint64_t rendezvous, uint32_t rank, uint32_t world,
                                         const PeerInfoBytes& peer_info, const RendezvousLimits& limits) {
  if (rank >= world || world > kMaxRanks)
    return fail(EINVAL, "rank " + std::to_string(rank) + " of " + std::to_string(world) + " is out of range");
  if (peer_info.size() > kMaxPeerInfoBytes)
    return fail(EINVAL, "the peer info of rank ", rank, " is too large: ", peer_info.size(), " bytes, at most ",
                kMaxPeerInfoBytes);
  WaitNotice own(rank);
  auto server = connect_to_server(id, limits, limits.notice == nullptr ? own : *limits.notice);
  if (!server) return tl::unexpected(server.error());
  ServerDialog dialog(std::move(*server), limits);
  std::vector<std::byte> request(kRequestBytes + peer_info.size());
  write_at(&request, kMagicAt, kRendezvousMagic);
  write_at(&request, kVersionAt, kRendezvousVersion);
  const int64_t limit_s = (limits.missing_ns + base::kNsPerSecond - 1) / base::kNsPerSecond;
  write_at(&request, kLimitAt, static_cast<uint16_t>(std::min<int64_t>(limit_s, UINT16_MAX)));
  write_at(&request, kSecretAt, id.secret);
  write_at(&request, kRendezvousAt, rendezvous);
  write_at(&request, kRankAt, rank);
  write_at(&request, kWorldAt, world);
  write_at(&request, kLengthAt, static_cast<uint32_t>(peer_info.size()));
  std::copy(peer_info.begin(), peer_info.end(), request.begin() + kRequestBytes);
  if (auto sent = dialog.send_all(request); !sent) return tl::unexpected(sent.error());
  std::vector<std::byte> head;
  if (auto received = dialog.receive(&head, kAnswerBytes); !received) return tl::unexpected(received.error());
  const auto status = read_at<uint32_t>(head, 0);
  const auto length = read_at<uint32_t>(head, 4);
  if (length > kNameBytes + uint64_t{world} * (kMaxPeerInfoBytes + 4))
    return dialog.failed(EPROTO, " sent an invalid answer");
  std::vector<std::byte> body;
  if (auto received = dialog.receive(&body, length); !received) return tl::unexpected(received.error());
  if (status != 0) {
    const std::string text(reinterpret_cast<const char*>(body.data()), body.size());
    return fail(static_cast<int>(status), "rendezvous of " + std::to_string(world) + " ranks: " + text);
  }
  RendezvousResult joined;
  if (body.size() < kNameBytes) return dialog.failed(EPROTO, " sent an answer that is too short");
  joined.name = read_at<decltype(joined.name)>(body, 0);
  joined.peer_infos.resize(world);
  size_t at = kNameBytes;
  for (PeerInfoBytes& one : joined.peer_infos) {
    if (body.size() - at < 4) return dialog.failed(EPROTO, " sent an answer that is too short");
    const auto size = read_at<uint32_t>(body, at);
    at += 4;
    if (size > body.size() - at) return dialog.failed(EPROTO, " sent an answer that is too short");
    one.assign(body.begin() + static_cast<ptrdiff_t>(at), body.begin() + static_cast<ptrdiff_t>(at + size));
    at += size;
  }
  return joined;
}

}  // namespace nupa::ccl
