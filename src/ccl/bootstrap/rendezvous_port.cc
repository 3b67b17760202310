// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <netdb.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "base/clock.h"
#include "base/gid.h"
#include "ccl/bootstrap/rendezvous_address.h"
#include "ccl/bootstrap/socket_address.h"
#include "ccl/bootstrap/wait_notice.h"
#include "progress/waiter.h"

namespace nupa::ccl {
namespace {

/// How long rank 0 retries a port that is in use: the server of an earlier job may be about to close it.
constexpr int64_t kLeavingNs = 5'000'000'000;
/// Rejections in a row after which a rank gives up. A server that is about to close causes fewer of them.
constexpr int kMostRebuffs = 100;

/// FNV-1a with 128 bits. The hash crosses the network in clear text, and an eavesdropper can take part with it alone: a
/// stronger hash would not help.
decltype(UniqueId::secret) secret_of(const std::string& key) {
  __extension__ using Wide = unsigned __int128;
  constexpr Wide kPrime = Wide{1} << 88 | 0x13b;
  Wide hash = Wide{0x6c62272e07bb0142} << 64 | 0x62b821756295c58d;
  for (const char one : key) hash = (hash ^ static_cast<unsigned char>(one)) * kPrime;
  decltype(UniqueId::secret) secret;
  std::memcpy(secret.data(), &hash, sizeof hash);
  return secret;
}

std::optional<Gid> number_of(const std::string& host) {
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return base::ipv4_gid(v4);
  Gid gid;
  if (inet_pton(AF_INET6, host.c_str(), gid.raw.data()) == 1) return gid;
  return {};
}

Result<std::vector<Gid>> resolve(const std::string& host) {
  if (const auto number = number_of(host)) return std::vector<Gid>{*number};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0)
    return fail(EHOSTUNREACH, "cannot resolve '" + host + "': " + gai_strerror(error));
  std::vector<Gid> addresses;
  for (const addrinfo* at = found; at != nullptr && addresses.size() < UniqueId::kMaxAddresses; at = at->ai_next)
    if (at->ai_family == AF_INET || at->ai_family == AF_INET6) addresses.push_back(gid_of(at->ai_addr));
  freeaddrinfo(found);
  return addresses;
}

/// A host may resolve its own name to another address than other hosts do (127.0.1.1 on Debian), so that for a name
/// rank 0 listens at all addresses. Only `localhost` is the same everywhere.
Gid address_to_listen_at(const std::string& host) {
  if (const auto number = number_of(host)) return *number;
  if (host == "localhost") return base::ipv4_gid(127, 0, 0, 1);
  return Gid{};
}

Result<std::unique_ptr<RendezvousServer>> open_server(const RendezvousAddress& place, int64_t limit_ns) {
  const Gid address = address_to_listen_at(place.host);
  const int64_t end = base::now_ns() + std::min(limit_ns, kLeavingNs);
  while (true) {
    auto server = RendezvousServer::start_at(limit_ns, address, place.port, secret_of(place.key));
    if (server || server.error().code() != EADDRINUSE || base::now_ns() >= end) return server;
    progress::sleep_for(kServerPauseNs);
  }
}

}  // namespace

Result<RendezvousResult> join_rendezvous_at_port(const RendezvousAddress& place, uint32_t rank, uint32_t world,
                                                 const PeerInfoBytes& peer_info, int64_t limit_ns) {
  if (rank == 0) {
    auto server = open_server(place, limit_ns);
    if (!server) return tl::unexpected(server.error());
    return join_own_rendezvous(**server, world, peer_info, limit_ns);
  }
  const int64_t end = base::now_ns() + limit_ns;
  WaitNotice notice(rank);
  int rebuffs = 0;
  while (true) {
    Result<RendezvousResult> joined = fail(0, "");
    // In each round, because the name may be known only after rank 0 has started.
    if (auto addresses = resolve(place.host)) {
      const UniqueId id{secret_of(place.key), place.port, std::move(*addresses)};
      joined =
          join_rendezvous(id, 0, rank, world, peer_info, {end - base::now_ns(), limit_ns + kAnswerNs, 0, {}, &notice});
      if (joined) return joined;
    } else {
      joined = tl::unexpected(addresses.error());
    }
    const Error why = joined.error();
    const std::string where = place.host + ":" + std::to_string(place.port) + ": ";
    const bool is_rebuff = why.code() == ECONNABORTED || why.code() == EALREADY;
    rebuffs = is_rebuff ? rebuffs + 1 : 0;
    if (rebuffs == kMostRebuffs)
      return fail(why.code(), where + "the server there rejects this rank: it has another key, or serves another job");
    if (!is_rebuff && why.code() != ECONNREFUSED && why.code() != EHOSTUNREACH)
      return fail(why.code(), where + why.what());
    if (base::now_ns() >= end) return fail(why.code(), where + "rank 0 did not join: " + why.what());
    notice.look("rank 0 at " + where + why.what());
    progress::sleep_for(kServerPauseNs);
  }
}

}  // namespace nupa::ccl
