// SPDX-License-Identifier: Apache-2.0
#include "ccl/bootstrap/kept_servers.h"

#include <cerrno>
#include <map>
#include <mutex>
#include <set>

#include "ccl/bootstrap/rendezvous_address.h"
#include "progress/of_process.h"

namespace nupa::ccl {
namespace {

/// How long the first rank of a rendezvous waits for the others, unless it sends its own limit.
constexpr int64_t kRendezvousNs = 300'000'000'000;

/// The rendezvous numbers of one id and one rank. All ranks count alike, so that they join the same rendezvous.
struct KeptNumbers {
  uint64_t next = 0;
  std::set<uint64_t> unused;  ///< below `next`: they failed here, and may be tried again

  uint64_t take() { return unused.empty() ? next++ : unused.extract(unused.begin()).value(); }
};

progress::ForkMutex& g_roots_mutex = *new progress::ForkMutex;
progress::ForkMutex& g_numbers_mutex = *new progress::ForkMutex;

}  // namespace

Result<UniqueId> start_server_here() {
  // Never freed: clients may be served until the process exits.
  static auto* const servers = new std::vector<std::unique_ptr<RendezvousServer>>;
  auto server = RendezvousServer::start(kRendezvousNs);
  if (!server) return tl::unexpected(server.error());
  std::lock_guard lock(g_roots_mutex);
  servers->push_back(std::move(*server));
  return servers->back()->id();
}

Result<RendezvousResult> join_next_rendezvous(const UniqueId& id, uint32_t rank, uint32_t world,
                                              const PeerInfoBytes& peer_info, int64_t limit_ns) {
  static auto* const all = new std::map<std::pair<decltype(UniqueId::secret), uint32_t>, KeptNumbers>;
  const auto numbers = [&]() -> KeptNumbers& { return (*all)[{id.secret, rank}]; };
  while (true) {
    uint64_t rendezvous = 0;
    {
      std::lock_guard lock(g_numbers_mutex);
      rendezvous = numbers().take();
    }
    // The server answers when the limit is over, with the list of missing ranks.
    auto joined = join_rendezvous(id, rendezvous, rank, world, peer_info, {limit_ns, limit_ns + kAnswerNs, limit_ns});
    if (joined) return joined;
    // An earlier process of this rank has taken part in this rendezvous, or it has failed because ranks were missing.
    if (joined.error().code() == EALREADY) continue;
    std::lock_guard lock(g_numbers_mutex);
    numbers().unused.insert(rendezvous);
    return joined;
  }
}

}  // namespace nupa::ccl
