// SPDX-License-Identifier: Apache-2.0
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/gid.h"
#include "base/own_addresses.h"
#include "base/unique_fd.h"
#include "ccl/bootstrap/rendezvous_members.h"
#include "ccl/bootstrap/rendezvous_wire.h"
#include "ccl/bootstrap/socket_address.h"
#include "progress/lifecycle.h"
#include "progress/loop.h"
#include "progress/pauses.h"

namespace nupa::ccl {
namespace {

using progress::Loop;

constexpr int kBacklog = 1024;
using progress::kNsPerSecond;

constexpr Gid kLoopback = base::ipv4_gid(127, 0, 0, 1);

/// The addresses of this host. Those that other hosts can reach are first.
std::vector<Gid> addresses_of_host() {
  std::vector<Gid> ipv4;
  std::vector<Gid> ipv6;
  for (const base::OwnAddress& own : base::own_addresses()) {
    if (!own.is_up || own.is_loopback || base::is_link_local(own.gid)) continue;
    (base::is_ipv4(own.gid) ? ipv4 : ipv6).push_back(own.gid);
  }
  ipv4.insert(ipv4.end(), ipv6.begin(), ipv6.end());
  if (ipv4.size() >= UniqueId::kMaxAddresses) ipv4.resize(UniqueId::kMaxAddresses - 1);
  ipv4.push_back(kLoopback);
  return ipv4;
}

/// Opens a listening socket. `port` 0: any free port, which is stored there. On failure, returns no descriptor and sets
/// errno.
base::UniqueFd listen_at(const Gid& address, uint16_t* port) {
  SocketAddress at(address, *port);
  base::UniqueFd fd(socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fd;
  // Connections of an earlier job at this port may still be closing.
  const int on = 1;
  const int off = 0;
  if (*port != 0) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (at.family() == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (bind(fd.get(), at.get(), at.length()) != 0 || listen(fd.get(), kBacklog) != 0) return {};
  socklen_t length = at.length();
  getsockname(fd.get(), at.get(), &length);
  *port = at.port();
  return fd;
}

/// Listens at all addresses, with an IPv6 socket for both families, or an IPv4 socket where there is no IPv6.
base::UniqueFd listen_anywhere(uint16_t* port) {
  base::UniqueFd fd = listen_at({}, port);
  if (!fd && errno != EADDRINUSE) fd = listen_at(base::ipv4_gid(0, 0, 0, 0), port);
  return fd;
}

/// A client, from its connection on.
struct Client {
  base::UniqueFd fd;
  std::optional<progress::ParentOnly> of_parent;
  std::unique_ptr<Loop::Watch> watch;
  std::unique_ptr<Loop::Timer> silence;  ///< closes the connection if no request comes; null after the request
  std::vector<std::byte> received;
  bool has_joined = false;  ///< it has joined a rendezvous
  uint64_t rendezvous = 0;
  uint32_t rank = 0;
  std::shared_ptr<const std::string> answer_text;  ///< the answer, which clients share; then the connection is closed
  size_t sent_bytes = 0;
};

/// Encodes an answer with its header.
std::shared_ptr<const std::string> answer_of(int status, const std::string& text) {
  const uint32_t head[] = {static_cast<uint32_t>(status), static_cast<uint32_t>(text.size())};
  static_assert(sizeof head == kAnswerBytes);
  auto answer = std::make_shared<std::string>(reinterpret_cast<const char*>(head), sizeof head);
  *answer += text;
  return answer;
}

std::string random_name() {
  std::string name(kNameBytes, 0);
  // getrandom() does not fail for up to 256 bytes.
  (void)!getrandom(name.data(), name.size(), 0);
  return name;
}

class Server final : public RendezvousServer {
 public:
  Server(int64_t limit_ns, int64_t silence_ns) : limit_ns_(limit_ns), silence_ns_(silence_ns) {}
  ~Server() override { end(); }
  void finish() override {
    if (loop_ == nullptr) return;
    if (!loop_->post([this] { finish_soon(); })) loop_->stop();
    loop_->join();
    clients_.clear();
    listener_of_parent_.reset();
    listener_.reset();
  }
  const UniqueId& id() const override { return id_; }

  /// Listens at a free port, with a random secret.
  Result<void> open(std::vector<Gid> addresses);
  Result<void> open_at(const Gid& address, uint16_t port, const decltype(UniqueId::secret)& secret);

 private:
  using Clients = std::list<Client>;
  struct Rendezvous {
    explicit Rendezvous(RendezvousMembers of) : members(std::move(of)) {}

    RendezvousMembers members;
    std::unique_ptr<Loop::Timer> deadline{};
    std::unique_ptr<Loop::Timer> notice{};  ///< reports which ranks are missing, once
  };

  Result<void> run();
  /// Ends the thread. No handler runs afterwards.
  void end();

  // These functions run on the loop.
  void take_clients();
  void on_client(Clients::iterator client, uint32_t events);
  /// Reads what a client sends. Returns false if the connection has to be closed.
  bool receive_from(Client& client);
  /// Adds a client with a complete request to its rendezvous. Returns the error to answer with.
  Result<void> add(Client& client);
  /// Ends a rendezvous, with the same answer for all its clients.
  void end_rendezvous(uint64_t rendezvous, const std::shared_ptr<const std::string>& answer);
  /// Begins to send an answer, which goes on as the socket has room.
  static void answer(Client& client, std::shared_ptr<const std::string> text);
  /// Sends as much of the answer as the socket takes. Returns false if the connection has to be closed: all is sent, or
  /// it is broken.
  static bool send_to(Client& client);
  void drop(Clients::iterator client);
  /// Accepts no more clients. The loop stops when all answers are sent, or after kSilenceNs.
  void finish_soon();
  void stop_if_all_are_answered();

  const int64_t limit_ns_;
  const int64_t silence_ns_;
  UniqueId id_;
  base::UniqueFd listener_;
  /// Closes listener_ in forked children, so that clients notice the exit of this process.
  std::optional<progress::ParentOnly> listener_of_parent_;
  std::unique_ptr<Loop> loop_;
  // These members belong to the loop.
  std::unique_ptr<Loop::Watch> arrivals_;
  std::unique_ptr<Loop::Timer> last_moment_;  ///< set by finish_soon()
  Clients clients_;
  std::map<uint64_t, Rendezvous> rendezvous_;
  std::set<uint64_t> over_;
};

Result<void> Server::open(std::vector<Gid> addresses) {
  listener_ = listen_anywhere(&id_.port);
  if (!listener_) {
    const int error = errno;
    return fail(error, "the rendezvous server cannot listen: ", std::strerror(error));
  }
  id_.addresses = addresses.empty() ? addresses_of_host() : std::move(addresses);
  if (getrandom(id_.secret.data(), id_.secret.size(), 0) != static_cast<ssize_t>(id_.secret.size()))
    return fail(EIO, "cannot get random numbers from the kernel");
  return run();
}

Result<void> Server::open_at(const Gid& address, uint16_t port, const decltype(UniqueId::secret)& secret) {
  const bool anywhere = address == Gid{};
  id_ = {secret, port, {anywhere ? kLoopback : address}};
  listener_ = anywhere ? listen_anywhere(&id_.port) : listen_at(address, &id_.port);
  if (!listener_) {
    const int error = errno;
    return fail(error, "the rendezvous server cannot listen at port ", port, ": ", std::strerror(error));
  }
  return run();
}

Result<void> Server::run() {
  auto loop = Loop::open();
  if (!loop) return tl::unexpected(loop.error());
  loop_ = std::move(*loop);
  listener_of_parent_.emplace(listener_.get());
  auto arrivals = loop_->watch(listener_.get(), [this](uint32_t) { take_clients(); });
  if (!arrivals) return tl::unexpected(arrivals.error());
  arrivals_ = std::move(*arrivals);
  if (const auto started = loop_->start("nupa-rendezvous"); !started) return tl::unexpected(started.error());
  return {};
}

void Server::end() {
  if (loop_ == nullptr) return;
  loop_->stop();
  loop_->join();
}

void Server::finish_soon() {
  arrivals_ = nullptr;
  last_moment_ = std::make_unique<Loop::Timer>(*loop_, [this](int64_t) { loop_->stop(); });
  last_moment_->set(progress::now_ns() + kSilenceNs);
  stop_if_all_are_answered();
}

void Server::stop_if_all_are_answered() {
  const auto waits = [](const Client& client) { return client.answer_text != nullptr; };
  if (last_moment_ != nullptr && std::none_of(clients_.begin(), clients_.end(), waits)) loop_->stop();
}

void Server::take_clients() {
  while (true) {
    base::UniqueFd fd(progress::open_for_parent(
        [this] { return accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); }));
    if (!fd) {
      if (base::is_out_of_descriptors(errno)) arrivals_->pause_until(progress::now_ns() + progress::kAcceptPauseNs);
      return;
    }
    clients_.emplace_back();
    const auto client = std::prev(clients_.end());
    client->of_parent.emplace(fd.get());
    auto watch = loop_->watch(fd.get(), [this, client](uint32_t events) { on_client(client, events); });
    client->fd = std::move(fd);
    if (!watch) {
      clients_.pop_back();
      continue;
    }
    client->watch = std::move(*watch);
    client->silence = std::make_unique<Loop::Timer>(*loop_, [this, client](int64_t) { drop(client); });
    client->silence->set(progress::now_ns() + silence_ns_);
  }
}

void Server::on_client(Clients::iterator client, uint32_t events) {
  const bool is_there = (events & ~EPOLLOUT) == 0 || receive_from(*client);
  if (!is_there || (client->answer_text != nullptr && (events & EPOLLOUT) != 0 && !send_to(*client))) drop(client);
}

void Server::drop(Clients::iterator client) {
  clients_.erase(client);
  stop_if_all_are_answered();
}

bool Server::receive_from(Client& client) {
  std::byte buffer[4096];
  while (true) {
    const ssize_t got = recv(client.fd.get(), buffer, sizeof buffer, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (got <= 0) {
      // A rank that disconnects before the rendezvous is complete may join again.
      if (const auto found = rendezvous_.find(client.rendezvous); client.has_joined && found != rendezvous_.end()) {
        found->second.members.leave(client.rank);
        if (found->second.members.is_empty()) rendezvous_.erase(found);
      }
      return false;
    }
    if (client.has_joined || client.answer_text != nullptr) continue;
    client.received.insert(client.received.end(), buffer, buffer + got);
    if (client.received.size() > kRequestBytes + kMaxPeerInfoBytes) return false;
  }
  if (client.has_joined || client.answer_text != nullptr || client.received.size() < kRequestBytes) return true;
  const auto length = read_at<uint32_t>(client.received, kLengthAt);
  if (read_at<uint32_t>(client.received, kMagicAt) != kRendezvousMagic || length > kMaxPeerInfoBytes ||
      std::memcmp(client.received.data() + kSecretAt, id_.secret.data(), id_.secret.size()) != 0)
    return false;
  if (client.received.size() < kRequestBytes + length) return true;
  if (const auto added = add(client); !added) answer(client, answer_of(added.error().code(), added.error().what()));
  return true;
}

Result<void> Server::add(Client& client) {
  const auto rendezvous = read_at<uint64_t>(client.received, kRendezvousAt);
  const auto rank = read_at<uint32_t>(client.received, kRankAt);
  const auto world = read_at<uint32_t>(client.received, kWorldAt);
  if (read_at<uint16_t>(client.received, kVersionAt) != kRendezvousVersion)
    return fail(EINVAL, "the rendezvous server has another version of NUPA");
  if (world > kMaxRanks || rank >= world)
    return fail(EINVAL, "rank " + std::to_string(rank) + " of " + std::to_string(world) + " is out of range");
  if (over_.count(rendezvous) != 0) return fail(EALREADY, "the rendezvous has ended");
  const auto limit_s = read_at<uint16_t>(client.received, kLimitAt);
  const int64_t deadline = progress::now_ns() + (limit_s == 0 ? limit_ns_ : limit_s * kNsPerSecond);
  const auto place = rendezvous_.try_emplace(rendezvous, RendezvousMembers(world, deadline)).first;
  RendezvousMembers& members = place->second.members;
  const auto peer_info_at = client.received.begin() + kRequestBytes;
  PeerInfoBytes peer_info(peer_info_at, peer_info_at + read_at<uint32_t>(client.received, kLengthAt));
  if (auto joined = members.join(rank, world, std::move(peer_info)); !joined) return joined;
  client.has_joined = true;
  client.rendezvous = rendezvous;
  client.rank = rank;
  client.silence = nullptr;
  if (members.is_complete()) {
    end_rendezvous(rendezvous, answer_of(0, random_name() + members.table()));
    return {};
  }
  // The server answers before the first rank gives up, so that every rank gets the list of missing ranks.
  members.end_by(deadline);
  auto& timer = place->second.deadline;
  if (timer == nullptr) {
    timer = std::make_unique<Loop::Timer>(*loop_, [this, rendezvous, &members](int64_t) {
      end_rendezvous(rendezvous, answer_of(ETIMEDOUT, members.missing()));
    });
    place->second.notice = std::make_unique<Loop::Timer>(*loop_, [&members, world](int64_t now_ns) {
      std::fprintf(stderr, "nupa: ccl: a rendezvous of %u ranks waits for %lld s more; %s\n", world,
                   static_cast<long long>((members.deadline() - now_ns) / kNsPerSecond), members.missing().c_str());
    });
    place->second.notice->set(progress::now_ns() + kWaitNoticeNs);
  }
  timer->set(members.deadline());
  return {};
}

void Server::end_rendezvous(uint64_t rendezvous, const std::shared_ptr<const std::string>& text) {
  for (Client& client : clients_)
    if (client.has_joined && client.rendezvous == rendezvous) answer(client, text);
  over_.insert(rendezvous);
  rendezvous_.erase(rendezvous);
}

void Server::answer(Client& client, std::shared_ptr<const std::string> text) {
  client.answer_text = std::move(text);
  client.watch->want_room(true);
}

bool Server::send_to(Client& client) {
  while (client.sent_bytes < client.answer_text->size()) {
    const ssize_t sent = send(client.fd.get(), client.answer_text->data() + client.sent_bytes,
                              client.answer_text->size() - client.sent_bytes, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (sent <= 0) return false;
    client.sent_bytes += static_cast<size_t>(sent);
  }
  return false;
}

}  // namespace

Result<std::unique_ptr<RendezvousServer>> RendezvousServer::start(int64_t limit_ns, std::vector<Gid> addresses,
                                                                  int64_t silence_ns) {
  auto server = std::make_unique<Server>(limit_ns, silence_ns);
  if (auto opened = server->open(std::move(addresses)); !opened) return tl::unexpected(opened.error());
  return server;
}

Result<std::unique_ptr<RendezvousServer>> RendezvousServer::start_at(int64_t limit_ns, const Gid& address,
                                                                     uint16_t port,
                                                                     const decltype(UniqueId::secret)& secret) {
  auto server = std::make_unique<Server>(limit_ns, kSilenceNs);
  if (auto opened = server->open_at(address, port, secret); !opened) return tl::unexpected(opened.error());
  return server;
}

}  // namespace nupa::ccl
