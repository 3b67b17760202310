// SPDX-License-Identifier: Apache-2.0
/// The responder with a relay: a request is acknowledged when its target has executed it.
#include <algorithm>
#include <cstring>

#include "transport/roce/protocol/responder.h"

namespace nupa::roce {
namespace {

/// IBTA table 45: 0.01 ms. The target had its time to post a receive.
constexpr uint8_t kShortestRnrTimer = 1;

}  // namespace

bool Responder::has_endings() const {
  if (failed_ || relayed_->taken == relayed_->ended || relayed_->never_ready) return false;
  const core::Relay::Endings endings = relayed_->relay.endings();
  return endings.count != relayed_->ended || endings.next != WcStatus::kSuccess ||
         endings.awaits_receive != relayed_->reported_waiting;
}

void Responder::note_taken() {
  if (relayed_ == nullptr) return;
  // The relay holds at most kMostRelayed that have not ended. Endings are taken before each use of `last` for an
  // answer.
  relayed_->last[relayed_->taken++ % core::kMostRelayed] = expected_;
}

void Responder::take_endings() {
  if (!has_endings()) return;
  const core::Relay::Endings endings = relayed_->relay.endings();
  if (endings.count != relayed_->ended) {
    relayed_->ended = endings.count;
    relayed_->reported_waiting = false;
    if (due_ == Due::kNothing || due_ == Due::kNotReady) due_ = Due::kAck;
  }
  if (relayed_->taken == relayed_->ended) return;
  if (endings.next != WcStatus::kSuccess) return end_relayed(endings.next);
  if (endings.awaits_receive && !relayed_->reported_waiting) {
    due_ = Due::kNotReady;
    rnr_timer_ = host_.rnr_timer();
    ++counters_.rnr_naks;
  }
  relayed_->reported_waiting = endings.awaits_receive;
}

void Responder::end_relayed(WcStatus status) {
  if (status == WcStatus::kRnrRetryExcErr) {
    relayed_->never_ready = true;
    due_ = Due::kNotReady;
    rnr_timer_ = kShortestRnrTimer;
    ++counters_.rnr_naks;
    return;
  }
  const Seq failing = acknowledged();
  relayed_->taken = relayed_->ended;
  drop_responses_from(failing);
  expected_ = failing;
  const auto refusal = core::relayed_refusal(status);
  if (refusal) {
    refuse(*refusal);
  } else {
    stop();
    due_ = Due::kNothing;
  }
}

void Responder::receive_duplicate_of_relay() {
  if (relayed_->never_ready || relayed_->reported_waiting) {
    due_ = Due::kNotReady;
    ++counters_.rnr_naks;
  } else if (peer_is_nupa_ && due_ == Due::kNothing) {
    due_ = Due::kAck;  // it reports that this side is alive; standard peers would see no progress in it
  }
}

void Responder::ask_again(Response& again, bool is_flush) {
  for (uint32_t i = responses_popped_; i != responses_pushed_; ++i) {
    const Response& response = responses_[i % kResponses];
    if (!response.atomic && again.first >= response.first + response.next &&
        again.first + again.packets <= response.first + response.packets)
      return;  // will be sent anyway
  }
  // A FLUSH whose response has left is done.
  again.relayed = !is_flush && has_room_for_response() &&
                  relayed_->relay.read(again.rkey, again.address, again.length, &again.ticket).is_taken();
  if (again.relayed != !is_flush || !push_response(again)) ++counters_.dropped;
}

bool Responder::fetch(Response& response, uint64_t offset, uint32_t length, const std::byte** data) {
  using State = core::Relay::Fetched::State;
  const core::Relay::Fetched fetched = relayed_->relay.fetch(response.ticket, offset, length);
  response_awaits_memory_ = fetched.state == State::kLater;
  if (fetched.state == State::kFailed) give_up_relayed(response, fetched.status);
  *data = fetched.data;
  return fetched.state == State::kReady;
}

bool Responder::fetch_found(Response& response) {
  const std::byte* data;
  if (!fetch(response, 0, core::kAtomicBytes, &data)) return false;
  std::memcpy(&response.found, data, sizeof response.found);
  relayed_->relay.release(response.ticket);
  response.relayed = false;
  remembered_[remembered_count_++ % kRemembered] = {response.first, response.found, response.msn};
  return true;
}

void Responder::give_up_relayed(Response& response, WcStatus status) {
  if (response.replay) {
    response.next = response.packets;
    return;
  }
  const Seq failing = response.first + response.next;
  relayed_->taken = relayed_->ended;
  drop_responses_from(0);
  response.next = response.packets;
  expected_ = failing;
  const auto refusal = core::relayed_refusal(status);
  if (refusal) {
    refuse(*refusal);
  } else {
    stop();
    due_ = Due::kNothing;
  }
}

void Responder::drop_responses_from(Seq seq) {
  for (; responses_pushed_ != responses_popped_; --responses_pushed_) {
    const Response& last = responses_[(responses_pushed_ - 1) % kResponses];
    if (last.first < seq) return;
    if (last.relayed) relayed_->relay.release(last.ticket);
  }
}

uint32_t Responder::arrived_from(Seq from) {
  Seq missing = expected_;
  while (reorder_.has(missing)) ++missing;
  if (reorder_.bitmap(missing, bitmap_.data()) == 0) return 0;
  const uint32_t words = reorder_.bitmap(from, bitmap_.data());
  // The relay has taken these. The first one does not count as arrived, because its message has not ended.
  for (Seq seq = from + 1; seq < expected_; ++seq) {
    const auto bit = static_cast<uint32_t>(seq - from);
    if (bit / 32 >= words) break;
    bitmap_[bit / 32] |= 1u << (bit % 32);
  }
  return words;
}

}  // namespace nupa::roce
