#pragma once
/// How ranks that only have a unique id find each other: each tells the root of itself, and gets what all have told.
#include <cstdint>
#include <memory>
#include <vector>

#include "ccl/start/unique_id.h"

namespace nupa::ccl {

/// What a rank tells of itself; opaque here.
using Card = std::vector<std::byte>;
constexpr uint32_t kMaxCardBytes = 4096;
constexpr uint32_t kMaxRanks = 65536;

/// The root of one meeting: a TCP port and a thread. It needs no rank to be in its process.
class MeetingRoot {
 public:
  /// `addresses`: of this host, as others know it; empty: all that its interfaces have, the loopback last. `limit_ns`:
  /// from now, when whoever is there is told who is not. Errors: those of sockets and threads.
  static Outcome<std::unique_ptr<MeetingRoot>> start(int64_t limit_ns, std::vector<Address> addresses = {});
  /// Ends a meeting that is not complete: those who wait get ECONNABORTED.
  virtual ~MeetingRoot() = default;
  virtual const UniqueId& id() const = 0;
};

/// Takes part as one of `world` ranks; returns all cards, by rank, once all have come. EINVAL: ranks do not agree on
/// their number, or the id or card is wrong; EEXIST: somebody is this rank already; ETIMEDOUT: ranks are missing (which
/// ones, is said) or the root does not answer within `limit_ns` from now; ECONNREFUSED and others: there is no way to
/// the root; ECONNABORTED: it is gone.
Outcome<std::vector<Card>> meet(const UniqueId& id, uint32_t rank, uint32_t world, const Card& card, int64_t limit_ns);

}  // namespace nupa::ccl
