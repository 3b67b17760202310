#include "ccl/bootstrap/roots.h"

#include <cerrno>
#include <map>
#include <mutex>
#include <set>

#include "ccl/bootstrap/place.h"
#include "progress/of_process.h"

namespace nupa::ccl {
namespace {

/// Ranks of one meeting may come so long after each other.
constexpr int64_t kMeetingNs = 300'000'000'000;

/// Numbers of meetings, of one id and one rank. All ranks count alike, so that they come to the same meeting.
struct Numbers {
  uint64_t next = 0;
  std::set<uint64_t> unused;  ///< below `next`: of meetings that failed here, and may still be held

  uint64_t take() { return unused.empty() ? next++ : unused.extract(unused.begin()).value(); }
};

progress::ForkMutex& g_roots_mutex = *new progress::ForkMutex;
progress::ForkMutex& g_numbers_mutex = *new progress::ForkMutex;

}  // namespace

Result<UniqueId> root_here() {
  // Guests may be served until the process is gone.
  static auto* const roots = new std::vector<std::unique_ptr<MeetingRoot>>;
  auto root = MeetingRoot::start(kMeetingNs);
  if (!root) return tl::unexpected(root.error());
  std::lock_guard lock(g_roots_mutex);
  roots->push_back(std::move(*root));
  return roots->back()->id();
}

Result<Met> meet_next(const UniqueId& id, uint32_t rank, uint32_t world, const Card& card, int64_t limit_ns) {
  static auto* const all = new std::map<std::pair<decltype(UniqueId::secret), uint32_t>, Numbers>;
  const auto numbers = [&]() -> Numbers& { return (*all)[{id.secret, rank}]; };
  while (true) {
    uint64_t meeting = 0;
    {
      std::lock_guard lock(g_numbers_mutex);
      meeting = numbers().take();
    }
    // The root says who is missing when the limit is over.
    auto met = meet(id, meeting, rank, world, card, {limit_ns, limit_ns + kAnswerNs, limit_ns});
    if (met) return met;
    // A program that ran before in this process's place has been there, or the meeting lacked ranks.
    if (met.error().code() == EALREADY) continue;
    std::lock_guard lock(g_numbers_mutex);
    numbers().unused.insert(meeting);
    return met;
  }
}

}  // namespace nupa::ccl
