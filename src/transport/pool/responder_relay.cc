// SPDX-License-Identifier: Apache-2.0
/// The responder with a relay: a message is acknowledged when the far end has executed it.
#include <cstring>

#include "transport/pool/responder.h"

namespace nupa::pool {
namespace {

/// IBTA table 45: 0.01 ms. The far end had its time to post a receive.
constexpr uint8_t kShortestRnrTimer = 1;

}  // namespace

void Responder::note_taken(const Record& record) {
  reported_ = false;
  // The relay holds at most kMostRelayed that have not ended, and the endings were taken before.
  if (!responds(record)) relayed_->sequences[relayed_->taken++ % core::kMostRelayed] = expected_;
  message_ = {};
  ++expected_;
}

void Responder::take_endings() {
  if (relayed_ == nullptr || failed_ || relayed_->is_lost || relayed_->never_ready) return;
  if (relayed_->taken == relayed_->ended) return;
  const core::Relay::Endings endings = relayed_->relay.endings();
  if (endings.count != relayed_->ended) {
    relayed_->ended = endings.count;
    relayed_->reported_waiting = false;
    // Only one answer waits to be written, and the peer must not miss that it has to go back.
    if (reported_)
      owe(relayed_->report.outcome, relayed_->report.detail, relayed_->report.part);
    else
      owe(Outcome::kDone);
  }
  if (relayed_->taken == relayed_->ended) return;
  if (endings.next != WcStatus::kSuccess) return end_relayed(endings.next);
  if (endings.awaits_receive && !relayed_->reported_waiting) owe(Outcome::kNotReady, context_.rnr_timer() & 31);
  relayed_->reported_waiting = endings.awaits_receive;
}

void Responder::end_relayed(WcStatus status) {
  if (status != WcStatus::kRnrRetryExcErr) return fail_relayed(acknowledged(), status);
  relayed_->never_ready = true;
  owe(Outcome::kNotReady, kShortestRnrTimer);
}

void Responder::owe_for_duplicate() {
  if (relayed_ != nullptr && relayed_->never_ready) return owe(Outcome::kNotReady, kShortestRnrTimer);
  if (relayed_ != nullptr && relayed_->reported_waiting) return owe(Outcome::kNotReady, context_.rnr_timer() & 31);
  owe(Outcome::kDone);
}

void Responder::fail_relayed(uint16_t sequence, WcStatus status) {
  relayed_->taken = relayed_->ended;
  drop_responses_from(sequence);
  expected_ = sequence;
  drop_message();
  const auto refusal = core::relayed_refusal(status);
  if (!refusal) {
    // Without an answer the peer would wait for ever: it has no timer.
    relayed_->is_lost = true;
    return owe(Outcome::kAbsent);
  }
  owe(Outcome::kRefused, static_cast<uint8_t>(refuse(*refusal).refusal()));
  failed_ = true;
}

void Responder::drop_responses_from(uint16_t sequence) {
  for (; pushed_ != popped_; --pushed_) {
    const Response& last = responses_[(pushed_ - 1) % kResponses];
    if (static_cast<int16_t>(last.sequence - sequence) < 0) return;
    if (last.relayed) relayed_->relay.release(last.ticket);
  }
}

bool Responder::fetch(Response& response, uint64_t offset, uint32_t length, const std::byte** data) {
  using State = core::Relay::Fetched::State;
  const core::Relay::Fetched fetched = relayed_->relay.fetch(response.ticket, offset, length);
  relayed_->awaits_bytes = fetched.state == State::kLater;
  if (fetched.state == State::kFailed) fail_relayed(response.sequence, fetched.status);
  *data = fetched.data;
  return fetched.state == State::kReady;
}

bool Responder::fetch_found(Response& response) {
  const std::byte* data = nullptr;
  if (!fetch(response, 0, core::kAtomicBytes, &data)) return false;
  std::memcpy(&response.found, data, sizeof response.found);
  relayed_->relay.release(response.ticket);
  response.relayed = false;
  return true;
}

}  // namespace nupa::pool
