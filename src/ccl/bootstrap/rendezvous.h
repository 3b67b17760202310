// SPDX-License-Identifier: Apache-2.0
#pragma once
/// How ranks that only have a unique id find each other: each sends its peer info to a rendezvous server, which returns
/// the peer info of all ranks.
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "ccl/bootstrap/unique_id.h"

namespace nupa::ccl {

/// The peer info of a rank, which is opaque here.
using PeerInfoBytes = std::vector<std::byte>;
constexpr uint32_t kMaxPeerInfoBytes = 4096;
constexpr uint32_t kMaxRanks = 65536;

/// A rendezvous server: a TCP port and a thread, in the process of a rank or of a launcher.
class RendezvousServer {
 public:
  /// A connection that sends no request within this time is closed: another program may have found the port.
  static constexpr int64_t kSilenceNs = 10'000'000'000;

  /// `limit_ns`: time after the first rank of a rendezvous, after which the ranks that have joined get the list of
  /// missing ranks. `addresses`: where other hosts reach this one; empty: the addresses of all interfaces, the loopback
  /// address last. Errors: those of sockets and threads.
  static Result<std::unique_ptr<RendezvousServer>> start(int64_t limit_ns, std::vector<Gid> addresses = {},
                                                         int64_t silence_ns = kSilenceNs);
  /// Starts a server with a port and a secret that the clients know in advance. `address` zero: all addresses of this
  /// host. EADDRINUSE: the port is in use; EADDRNOTAVAIL: this host does not have the address.
  static Result<std::unique_ptr<RendezvousServer>> start_at(int64_t limit_ns, const Gid& address, uint16_t port,
                                                            const decltype(UniqueId::secret)& secret);
  /// Ranks that still wait get ECONNABORTED.
  virtual ~RendezvousServer() = default;
  /// Accepts no more clients. Returns when all pending answers are sent, or after kSilenceNs; the port is free then.
  virtual void finish() = 0;
  virtual const UniqueId& id() const = 0;
};

/// The result of a rendezvous.
struct RendezvousResult {
  std::array<uint64_t, 2> name{};         ///< random and unique; the same for all ranks
  std::vector<PeerInfoBytes> peer_infos;  ///< by rank
};

/// After this time, the server reports which ranks it waits for, and a rank that cannot reach the server reports that.
inline constexpr int64_t kWaitNoticeNs = 5 * base::kNsPerSecond;

/// Pause between two attempts to reach a server.
inline constexpr int64_t kServerPauseNs = 50 * base::kNsPerMs;

class WaitNotice;

/// How long a rank waits.
struct RendezvousLimits {
  int64_t root_ns;    ///< until a server listens
  int64_t answer_ns;  ///< for the server's answer, once a connection is open
  /// For the other ranks, rounded up to seconds: then the server ends the rendezvous and reports the missing ranks. 0:
  /// the server's own limit counts.
  int64_t missing_ns = 0;
  /// Called a few times a second during a wait; false ends the wait with ECANCELED. May be empty.
  std::function<bool()> may_go_on{};
  /// The notice of a wait that has begun before. Null: the wait begins with the call.
  WaitNotice* notice = nullptr;
};

/// Takes part in the rendezvous with number `rendezvous`, as one of `world` ranks, and returns when all have joined.
/// Each number is used for one rendezvous. EINVAL: ranks have different values of `world`, or the peer info is too
/// large. EEXIST: this rank has joined already. EALREADY: the rendezvous is over. ETIMEDOUT: ranks are missing (the
/// text lists them), or the server does not answer. ECONNREFUSED and others: the server cannot be reached.
/// ECONNABORTED: it has closed the connection.
Result<RendezvousResult> join_rendezvous(const UniqueId& id, uint64_t rendezvous, uint32_t rank, uint32_t world,
                                         const PeerInfoBytes& peer_info, const RendezvousLimits& limits);

}  // namespace nupa::ccl
