#pragma once
/// Places that all ranks know before they start, where they meet without anybody to bring them a unique id.
#include <string>
#include <string_view>

#include "ccl/bootstrap/rendezvous.h"

namespace nupa::ccl {

struct MeetingPlace {
  std::string host;  ///< with `port`: where rank 0 listens; a name or an address
  uint16_t port = 0;
  std::string key;   ///< whoever takes part has to have it; empty: anybody may
  std::string path;  ///< else a file in which rank 0 tells where it listens

  /// "tcp://HOST:PORT", "tcp://[IPv6]:PORT", with "?key=TEXT" or without; "file:///PATH". EINVAL: it is none of them.
  static Result<MeetingPlace> parse(std::string_view text);
};

/// Takes part as one of `world` ranks in the one meeting that is held there; rank 0 is its root. Others wait for a root
/// for `limit_ns`, and where one has gone for another one; whoever is there then waits for those who are missing for
/// `limit_ns` after rank 0. Errors: as meet(); EADDRINUSE, EADDRNOTAVAIL: rank 0 cannot listen there; those of names
/// and files; EACCES: the file is another user's.
Result<Met> meet_at(const MeetingPlace& place, uint32_t rank, uint32_t world, const Card& card, int64_t limit_ns);
Result<Met> meet_at_port(const MeetingPlace& place, uint32_t rank, uint32_t world, const Card& card, int64_t limit_ns);
Result<Met> meet_by_file(const MeetingPlace& place, uint32_t rank, uint32_t world, const Card& card, int64_t limit_ns);

/// Rank 0's part: at a root of its own, which has told everybody when this returns.
Result<Met> meet_at_own(MeetingRoot& root, uint32_t world, const Card& card, int64_t limit_ns);

/// The root says who is missing when the limit is over: its answer is waited for a little longer.
constexpr int64_t kAnswerNs = 5'000'000'000;

}  // namespace nupa::ccl
