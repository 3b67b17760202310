#pragma once
/// How ranks that only have a unique id find each other: each tells a root of itself, and gets what all have told.
#include <cstdint>
#include <memory>
#include <vector>

#include "ccl/start/unique_id.h"

namespace nupa::ccl {

/// What a rank tells of itself; opaque here.
using Card = std::vector<std::byte>;
constexpr uint32_t kMaxCardBytes = 4096;
constexpr uint32_t kMaxRanks = 65536;

/// Where meetings are held: a TCP port and a thread, in a rank's process or a launcher's.
class MeetingRoot {
 public:
  /// `addresses`: of this host, as others know it; empty: all that its interfaces have, the loopback last. `limit_ns`:
  /// after the first rank of a meeting has come, when whoever is there is told who is not. Errors: those of sockets and
  /// threads.
  static Outcome<std::unique_ptr<MeetingRoot>> start(int64_t limit_ns, std::vector<Address> addresses = {});
  /// Those who wait get ECONNABORTED.
  virtual ~MeetingRoot() = default;
  virtual const UniqueId& id() const = 0;
};

/// Takes part as one of `world` ranks in the meeting of this number, each of which is held once; returns all cards, by
/// rank, once all have come. EINVAL: ranks do not agree on how many they are, or the card is too large; EEXIST:
/// somebody is this rank already; EALREADY: the meeting is over; ETIMEDOUT: ranks are missing (which ones, is said) or
/// the root does not answer within `limit_ns` from now; ECONNREFUSED and others: there is no way to the root;
/// ECONNABORTED: it is gone.
Outcome<std::vector<Card>> meet(const UniqueId& id, uint64_t meeting, uint32_t rank, uint32_t world, const Card& card,
                                int64_t limit_ns);

}  // namespace nupa::ccl
