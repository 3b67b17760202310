// SPDX-License-Identifier: Apache-2.0
#include "core/seam/deferred_sends.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace nupa::core {

namespace {

/// The pause before the next try for a peer that does not answer.
constexpr int64_t kNoAnswerPauseNs = 500'000;
constexpr int64_t kShortestRnrPauseNs = 50'000;

bool is_over(const DeferredSend& send, const RetryLimits& limits, int64_t now_ns, WcStatus* status) {
  const int64_t waited = now_ns - send.first_try_ns;
  if (send.reason == DeferredSend::Reason::kNotReady) {
    *status = WcStatus::kRnrRetryExcErr;
    return limits.rnr_retry != kRnrForEver && waited >= limits.rnr_retry * rnr_timer_ns(send.rnr_timer);
  }
  *status = WcStatus::kRetryExcErr;
  return limits.timeout != 0 && waited >= retry_limit_ns(limits.timeout, limits.retry_cnt);
}

}  // namespace

DeferredSend* DeferredSends::keep(const Request& request) try {
  auto kept = std::make_unique<DeferredSend>();
  kept->wr = request.wr;
  kept->position = request.position;
  kept->fault = request.fault;
  kept->list.assign(request.wr.sg_list, request.wr.sg_list + request.wr.num_sge);
  if ((request.wr.flags & send_flag::kInline) != 0) {
    uint64_t bytes = 0;
    for (const Sge& sge : kept->list) bytes += sge.length;
    kept->inline_data.resize(bytes);
    std::byte* to = kept->inline_data.data();
    for (Sge& sge : kept->list) {
      if (sge.length != 0) std::memcpy(to, reinterpret_cast<const void*>(sge.addr), sge.length);
      sge.addr = reinterpret_cast<uint64_t>(to);
      to += sge.length;
    }
  }
  kept->wr.sg_list = kept->list.data();
  kept->has_vector = request.vector != nullptr;
  if (kept->has_vector) kept->vector = *request.vector;
  waiting_.push_back(std::move(kept));
  return waiting_.back().get();
} catch (const std::bad_alloc&) {
  return nullptr;
}

void DeferredSends::end_front(QpContext& context, WcStatus status, uint64_t length) {
  // Taken off the list first: the core may call empty() within complete_send().
  const std::unique_ptr<DeferredSend> ended = std::move(waiting_.front());
  waiting_.pop_front();
  context.complete_send(ended->wr, ended->position, status, length);
}

void DeferredSends::flush(QpContext& context) {
  while (!waiting_.empty()) end_front(context, WcStatus::kWrFlushErr, 0);
}

bool DeferredSends::translate(const DeferredSend& send, QpContext& context, Piece* pieces, uint32_t* count,
                              uint64_t* length) {
  const bool inlined = (send.wr.flags & send_flag::kInline) != 0;
  const uint32_t rights = writes_own_list(send.wr.opcode) ? access::kLocalWrite : 0;
  for (const Sge& sge : send.list) {
    if (sge.length == 0) continue;
    Piece& piece = pieces[(*count)++];
    piece = {reinterpret_cast<std::byte*>(sge.addr), sge.length};
    if (!inlined && !context.locate(sge, rights, &piece.data)) return false;
    *length += sge.length;
  }
  return true;
}

void DeferredSends::note_copying(int64_t now_ns) {
  DeferredSend& oldest = front();
  if (oldest.reason != DeferredSend::Reason::kCopying) oldest.first_try_ns = now_ns;
  oldest.reason = DeferredSend::Reason::kCopying;
}

int64_t DeferredSends::postpone(DeferredSend::Reason reason, uint32_t rnr_timer, const RetryLimits& limits,
                                int64_t now_ns, WcStatus* status) {
  DeferredSend& oldest = front();
  if (oldest.reason != reason) oldest.first_try_ns = now_ns;
  oldest.reason = reason;
  oldest.rnr_timer = rnr_timer;
  if (is_over(oldest, limits, now_ns, status)) return 0;
  if (reason == DeferredSend::Reason::kNoAnswer) return now_ns + kNoAnswerPauseNs;
  return now_ns + std::max(rnr_timer_ns(rnr_timer), kShortestRnrPauseNs);
}

}  // namespace nupa::core
