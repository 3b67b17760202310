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

Outcome<std::vector<Card>> meet_next(const UniqueId& id, uint32_t rank, uint32_t world, const Card& card,
                                     int64_t limit_ns, uint64_t* meeting) {
  static std::mutex mutex;
  static auto* const next = new std::map<std::pair<decltype(UniqueId::secret), uint32_t>, uint64_t>;
  while (true) {
    {
      std::lock_guard lock(mutex);
      *meeting = (*next)[{id.secret, rank}]++;
    }
    auto cards = meet(id, *meeting, rank, world, card, limit_ns);
    // A program that ran before in this process's place has been there.
    if (!cards && cards.error().code == EALREADY) continue;
    return cards;
  }
}

}  // namespace nupa::ccl
