#pragma once
/// How ranks that only have a unique id find each other: each tells a root of itself, and gets what all have told.
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "ccl/bootstrap/unique_id.h"

namespace nupa::ccl {

/// What a rank tells of itself; opaque here.
using Card = std::vector<std::byte>;
constexpr uint32_t kMaxCardBytes = 4096;
constexpr uint32_t kMaxRanks = 65536;

/// Where meetings are held: a TCP port and a thread, in a rank's process or a launcher's.
class MeetingRoot {
 public:
  /// A connection that names no rank within this time is closed: other programs may have found the port.
  static constexpr int64_t kSilenceNs = 10'000'000'000;

  /// `addresses`: of this host, as others know it; empty: all that its interfaces have, the loopback last. `limit_ns`:
  /// after the first rank of a meeting has come, when whoever is there is told who is not. Errors: those of sockets and
  /// threads.
  static Result<std::unique_ptr<MeetingRoot>> start(int64_t limit_ns, std::vector<Gid> addresses = {},
                                                    int64_t silence_ns = kSilenceNs);
  /// At a port and with a secret that others know before. `address` zero: all of this host. EADDRINUSE: somebody
  /// listens there; EADDRNOTAVAIL: the address is not of this host.
  static Result<std::unique_ptr<MeetingRoot>> start_at(int64_t limit_ns, const Gid& address, uint16_t port,
                                                       const decltype(UniqueId::secret)& secret);
  /// Those who wait get ECONNABORTED.
  virtual ~MeetingRoot() = default;
  /// Nobody is let in any more. Returns when those whose meeting is over have been told; the port is free then.
  virtual void finish() = 0;
  virtual const UniqueId& id() const = 0;
};

/// What a meeting comes to.
struct Met {
  std::array<uint64_t, 2> name{};  ///< random, the same for all ranks; no other meeting has it
  std::vector<Card> cards;         ///< by rank
};

/// Before a root that was not found is looked for again.
inline constexpr int64_t kRootPauseNs = 50 * base::kNsPerMs;

struct Patience {
  int64_t root_ns;    ///< for a root to listen
  int64_t answer_ns;  ///< for its answer, after it has been found
  /// For the other ranks, in whole seconds: then the root ends the meeting and says who is missing. 0: when the root's
  /// own limit is over.
  int64_t missing_ns = 0;
  /// Asked a few times a second while there is something to wait for; false ends it by ECANCELED. May be none.
  std::function<bool()> may_go_on{};
};

/// Takes part as one of `world` ranks in the meeting of this number, each of which is held once; returns once all have
/// come. EINVAL: ranks do not agree on how many they are, or the card is too large; EEXIST: somebody is this rank
/// already; EALREADY: the meeting is over; ETIMEDOUT: ranks are missing (which ones, is said) or the root does not
/// answer; ECONNREFUSED and others: there is no way to the root; ECONNABORTED: it is gone.
Result<Met> meet(const UniqueId& id, uint64_t meeting, uint32_t rank, uint32_t world, const Card& card,
                 const Patience& patience);

}  // namespace nupa::ccl
