// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/ack_scheduler.h"

#include <algorithm>

#include "progress/poll_policy.h"

namespace nupa::roce {
namespace {

/// Packets of a stream are acknowledged together: when none followed for this time, or a quarter of the bytes that may
/// be in flight has arrived.
constexpr int64_t kGatherNs = 4'000;
constexpr uint32_t kAnswersAWindow = 4;

}  // namespace

AckScheduler::Due AckScheduler::due(uint32_t packets, bool for_program, uint32_t share, int64_t now) {
  if (packets == 0) return gathers() && now - owed_since_ns_ >= kGatherNs ? Due::kAll : Due::kNone;
  if (streams_ && owed_bytes_ < share / kAnswersAWindow) {
    owed_since_ns_ = now;
    return Due::kNone;
  }
  return !for_program || packets > progress::PollPolicy::kFewPackets ? Due::kAll : Due::kSome;
}

void AckScheduler::answer(Hold& hold, TransmitBatch& batch, int64_t now, bool all) {
  size_t kept = 0;
  for (QpReceiver* queue_pair : touched_) {
    bool owes = true;  // also if another thread holds it
    if (hold.take(*queue_pair)) {
      queue_pair->transmit(now, batch, all);
      batch.flush();
      owes = queue_pair->owes_answers() && !all;
    }
    if (owes)
      touched_[kept++] = queue_pair;
    else
      queue_pair->touched_ = false;
  }
  touched_.resize(kept);
  owed_bytes_ = 0;
  hold.release();
}

void AckScheduler::remove(QpReceiver& queue_pair) {
  touched_.erase(std::remove(touched_.begin(), touched_.end(), &queue_pair), touched_.end());
  if (touched_.empty()) owed_bytes_ = 0;
}

}  // namespace nupa::roce
