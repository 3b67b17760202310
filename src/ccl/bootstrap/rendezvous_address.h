// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Places for a rendezvous that all ranks know before they start, so that they need no unique id.
#include <string>
#include <string_view>

#include "ccl/bootstrap/rendezvous.h"

namespace nupa::ccl {

struct RendezvousAddress {
  std::string host;  ///< name or address where rank 0 listens, with `port`
  uint16_t port = 0;
  std::string key;   ///< key that all ranks need; empty: none
  std::string path;  ///< instead of a host: a file into which rank 0 writes its unique id

  /// Accepts "tcp://HOST:PORT" and "tcp://[IPv6]:PORT", with "?key=TEXT" or without, and "file:///PATH". EINVAL: the
  /// text is none of these.
  static Result<RendezvousAddress> parse(std::string_view text);
};

/// Takes part in the only rendezvous at this place, as one of `world` ranks; rank 0 is the server. The others wait for
/// a server for `limit_ns`, also after one has closed. The server waits for missing ranks for `limit_ns`. Errors: as
/// join_rendezvous(); EADDRINUSE, EADDRNOTAVAIL: rank 0 cannot listen there; EACCES: the file belongs to another user;
/// errors of name resolution and of files.
Result<RendezvousResult> join_rendezvous_at(const RendezvousAddress& place, uint32_t rank, uint32_t world,
                                            const PeerInfoBytes& peer_info, int64_t limit_ns);
Result<RendezvousResult> join_rendezvous_at_port(const RendezvousAddress& place, uint32_t rank, uint32_t world,
                                                 const PeerInfoBytes& peer_info, int64_t limit_ns);
Result<RendezvousResult> join_rendezvous_by_file(const RendezvousAddress& place, uint32_t rank, uint32_t world,
                                                 const PeerInfoBytes& peer_info, int64_t limit_ns);

/// Rank 0's part of a rendezvous at its own server, which has answered all ranks when this returns.
Result<RendezvousResult> join_own_rendezvous(RendezvousServer& server, uint32_t world, const PeerInfoBytes& peer_info,
                                             int64_t limit_ns);

/// The server reports missing ranks when the limit is over: a rank waits this much longer for the answer.
constexpr int64_t kAnswerNs = 5'000'000'000;

}  // namespace nupa::ccl
