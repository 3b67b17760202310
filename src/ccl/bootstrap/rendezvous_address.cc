// SPDX-License-Identifier: Apache-2.0
#include "ccl/bootstrap/rendezvous_address.h"

#include <cerrno>
#include <charconv>

namespace nupa::ccl {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kFile = "file://";
constexpr std::string_view kKey = "key=";

tl::unexpected<Error> wrong(std::string_view text) {
  std::string text_with_forms(text);
  text_with_forms += ": expected tcp://HOST:PORT, tcp://HOST:PORT?key=TEXT or file:///PATH";
  return fail(EINVAL, std::move(text_with_forms));
}

Result<RendezvousAddress> port_of(std::string_view text) {
  std::string_view rest = text.substr(kTcp.size());
  RendezvousAddress place;
  if (const size_t query = rest.find('?'); query != rest.npos) {
    const std::string_view key = rest.substr(query + 1);
    if (!key.starts_with(kKey) || key.size() == kKey.size()) return wrong(text);
    place.key = key.substr(kKey.size());
    rest = rest.substr(0, query);
  }
  const size_t colon = rest.rfind(':');
  if (colon == rest.npos) return wrong(text);
  std::string_view host = rest.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']'))
    host = host.substr(1, host.size() - 2);
  else if (host.find(':') != host.npos)
    return wrong(text);
  const char* const end = rest.data() + rest.size();
  const auto [read, error] = std::from_chars(rest.data() + colon + 1, end, place.port);
  if (error != std::errc{} || read != end || place.port == 0 || host.empty()) return wrong(text);
  place.host = host;
  return place;
}

}  // namespace

Result<RendezvousAddress> RendezvousAddress::parse(std::string_view text) {
  if (text.starts_with(kTcp)) return port_of(text);
  // A relative path would depend on the working directory, which ranks need not share.
  if (!text.starts_with(kFile) || text.substr(kFile.size(), 1) != "/" || text.ends_with('/')) return wrong(text);
  RendezvousAddress place;
  place.path = text.substr(kFile.size());
  return place;
}

Result<RendezvousResult> join_rendezvous_at(const RendezvousAddress& place, uint32_t rank, uint32_t world,
                                            const PeerInfoBytes& peer_info, int64_t limit_ns) {
  if (place.path.empty()) return join_rendezvous_at_port(place, rank, world, peer_info, limit_ns);
  return join_rendezvous_by_file(place, rank, world, peer_info, limit_ns);
}

Result<RendezvousResult> join_own_rendezvous(RendezvousServer& server, uint32_t world, const PeerInfoBytes& peer_info,
                                             int64_t limit_ns) {
  auto joined = join_rendezvous(server.id(), 0, 0, world, peer_info, {limit_ns, limit_ns + kAnswerNs});
  // Also after a failure, so that the other ranks receive the reason.
  server.finish();
  return joined;
}

}  // namespace nupa::ccl
