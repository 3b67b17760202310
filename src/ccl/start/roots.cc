#include "ccl/start/roots.h"

#include <cerrno>
#include <map>
#include <mutex>

namespace nupa::ccl {
namespace {

/// Ranks of one meeting may come so long after each other.
constexpr int64_t kMeetingNs = 300'000'000'000;

}  // namespace

Outcome<UniqueId> root_here() {
  static std::mutex mutex;
  // Guests may be served until the process is gone.
  static auto* const roots = new std::vector<std::unique_ptr<MeetingRoot>>;
  auto root = MeetingRoot::start(kMeetingNs);
  if (!root) return tl::unexpected(root.error());
  std::lock_guard lock(mutex);
  roots->push_back(std::move(*root));
  return roots->back()->id();
}

Outcome<Met> meet_next(const UniqueId& id, uint32_t rank, uint32_t world, const Card& card, int64_t limit_ns) {
  static std::mutex mutex;
  static auto* const next = new std::map<std::pair<decltype(UniqueId::secret), uint32_t>, uint64_t>;
  while (true) {
    uint64_t meeting = 0;
    {
      std::lock_guard lock(mutex);
      meeting = (*next)[{id.secret, rank}]++;
    }
    auto met = meet(id, meeting, rank, world, card, {limit_ns, limit_ns});
    // A program that ran before in this process's place has been there.
    if (!met && met.error().code == EALREADY) continue;
    return met;
  }
}

}  // namespace nupa::ccl
