// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/send_backlog.h"

#include <algorithm>

#include "progress/pauses.h"

namespace nupa::roce {
namespace {

// The time until the first retry, and between retries while nothing leaves.
using progress::kFirstRetryPauseNs;
using progress::kLongestRetryPauseNs;
/// The interval between two turns: time for one batch of a queue pair.
constexpr int64_t kHeldUpTurnNs = 10'000;

}  // namespace

void SendBacklog::note(int64_t now_ns) {
  // If a time is set already, nothing is to be done: the thread that resets it looks at the backlogs after that. The
  // count of a backlog, which was stored before this call, and the time are both sequentially consistent: either this
  // thread sees that the time was reset, or that thread sees the message.
  int64_t none = INT64_MAX;
  const int64_t at = now_ns + kFirstRetryPauseNs;
  if (retry_ns_.compare_exchange_strong(none, at)) expect_(at);
}

int64_t SendBacklog::turn(int64_t now_ns) {
  // INT64_MAX: everything has left meanwhile.
  const int64_t retry = retry_ns_.load(std::memory_order_relaxed);
  const int64_t earliest = retry == INT64_MAX ? now_ns : std::max(retry, now_ns);
  int64_t last = last_turn_ns_.load(std::memory_order_relaxed);
  int64_t mine;
  do mine = std::max(earliest, last + kHeldUpTurnNs);
  while (!last_turn_ns_.compare_exchange_weak(last, mine, std::memory_order_relaxed));
  return mine;
}

int64_t SendBacklog::retry(int64_t now_ns) {
  const int64_t at = retry_ns_.load();
  if (now_ns < at) return at;
  retry_ns_.store(INT64_MAX);
  bool some = false;
  bool waits = false;
  for (uint32_t i = 0; i < sockets_.size(); ++i) {
    if (waiting_[i].empty()) continue;
    uint32_t lost = 0;
    int error = 0;
    some = waiting_[i].flush(sockets_[i], &lost, &error) || some;
    lost_.fetch_add(lost, std::memory_order_relaxed);
    waits = waits || !waiting_[i].empty();
  }
  pause_ns_ = some || pause_ns_ == 0 ? kFirstRetryPauseNs : std::min(2 * pause_ns_, kLongestRetryPauseNs);
  if (!waits) {
    pause_ns_ = 0;
    return retry_ns_.load();
  }
  int64_t next = now_ns + pause_ns_;
  // A batch that was kept meanwhile may have set an earlier time.
  int64_t none = INT64_MAX;
  if (!retry_ns_.compare_exchange_strong(none, next)) next = none;
  return next;
}

}  // namespace nupa::roce
