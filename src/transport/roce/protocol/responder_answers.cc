// SPDX-License-Identifier: Apache-2.0
/// The responder's output: READ responses, acknowledgements, notifications.
#include <algorithm>

#include "transport/roce/protocol/responder.h"

namespace nupa::roce {

Packet Responder::answer(Operation operation, Seq seq) const {
  Packet packet;
  packet.opcode = opcode_of(options_.service, operation);
  packet.mark = options_.mark;
  packet.pkey = options_.pkey;
  packet.dest_qpn = options_.peer_qpn;
  packet.psn = psn_of(seq);
  packet.syndrome = syndrome(AckKind::kAck, kAckUnlimited);
  packet.msn = msn_;
  return packet;
}

bool Responder::push_response(const Response& response) {
  if (!has_room_for_response()) return false;
  responses_[responses_pushed_++ % kResponses] = response;
  return true;
}

bool Responder::send_response(Response& response, int64_t, Output& output) {
  const Seq seq = response.first + response.next;
  if (response.atomic) {
    if (response.relayed && !fetch_found(response)) return response.next >= response.packets;
    Packet packet = answer(Operation::kAtomicAcknowledge, seq);
    packet.found = response.found;
    packet.msn = response.msn;
    if (output.send(response.path, packet, nullptr, 0) != Sent::kYes) return false;
    ++response.next;
    return true;
  }
  const bool first = response.next == 0;
  const bool last = response.next + 1 == response.packets;
  const Operation operation = first  ? last ? Operation::kReadResponseOnly : Operation::kReadResponseFirst
                              : last ? Operation::kReadResponseLast
                                     : Operation::kReadResponseMiddle;
  Packet packet = answer(operation, seq);
  packet.msn = response.msn;
  const uint64_t offset = uint64_t{response.next} * options_.mtu;
  packet.payload_length = static_cast<uint32_t>(std::min<uint64_t>(options_.mtu, response.length - offset));
  Fragment fragment{nullptr, packet.payload_length};
  if (response.relayed) {
    if (!fetch(response, offset, packet.payload_length, &fragment.data)) return response.next >= response.packets;
  } else if (packet.payload_length > 0) {
    fragment.data = host_.reach(response.srqn, response.rkey, response.address + offset, packet.payload_length,
                                access::kRemoteRead);
    response_awaits_memory_ = fragment.data == nullptr && host_.awaits_memory();
    if (response_awaits_memory_) return false;
    // The key became invalid after the request was accepted.
    if (fragment.data == nullptr) return give_up(response, seq, core::Refusal::kRemoteAccess);
  }
  switch (output.send(response.path, packet, &fragment, packet.payload_length > 0 ? 1 : 0)) {
    case Sent::kYes:
      ++response.next;
      return true;
    case Sent::kNotNow:
      return false;
    case Sent::kUnreadable:
      break;
  }
  return give_up(response, seq, core::Refusal::kRemoteOperation);
}

bool Responder::give_up(Response& response, Seq seq, core::Refusal refusal) {
  response.next = response.packets;
  // A repeated response is simply ended.
  if (response.replay) return true;
  expected_ = seq;
  refuse(refusal);
  responses_popped_ = responses_pushed_;
  return true;
}

bool Responder::send_acknowledgement(int64_t now, Output& output) {
  const bool about_next = due_ != Due::kAck;
  const Seq below = acknowledged();
  Packet packet = answer(Operation::kAcknowledge, about_next ? below : below - 1);
  if (due_ == Due::kSequenceNak) packet.syndrome = syndrome(AckKind::kNak, static_cast<uint8_t>(NakCode::kSequence));
  if (due_ == Due::kRefusal) packet.syndrome = syndrome(AckKind::kNak, static_cast<uint8_t>(refusal_));
  if (due_ == Due::kNotReady) packet.syndrome = syndrome(AckKind::kRnrNak, rnr_timer_);
  Fragment fragment{nullptr, 0};
  if (peer_is_nupa_) {
    packet.opcode = kSelectiveAck;
    packet.psn = psn_of(below - 1);
    packet.trigger_valid = trigger_ns_ != 0;
    packet.trigger = psn_of(trigger_);
    packet.delay_ns = static_cast<uint32_t>(std::clamp<int64_t>(now - trigger_ns_, 0, UINT32_MAX));
    packet.window = window_;
    packet.trigger_path = path_;
    packet.marked = marked_[path_];
    packet.duplicates_valid = true;
    packet.duplicates = repetitions_ & kPsnMask;
    const uint32_t words = relayed_ == nullptr ? reorder_.bitmap(below, bitmap_.data()) : arrived_from(below);
    if (words > 0 && packet_awaits_memory_ && below == expected_) bitmap_[0] &= ~1u;  // it may still be rejected
    for (uint32_t i = 0; i < words; ++i) bitmap_[i] = bitmap_word(bitmap_[i]);
    fragment = {reinterpret_cast<const std::byte*>(bitmap_.data()), words * 4};
    packet.payload_length = fragment.length;
  }
  if (output.send(path_, packet, &fragment, fragment.length > 0 ? 1 : 0) != Sent::kYes) return false;
  due_ = Due::kNothing;
  trigger_ns_ = 0;
  unanswered_ = 0;
  answered_ns_ = now;
  return true;
}

bool Responder::send_notification(Output& output) {
  Packet packet = answer(Operation::kAcknowledge, 0);
  packet.opcode = kCnpOpcode;
  packet.psn = 0;
  packet.becn = true;
  if (output.send(cnp_path_, packet, nullptr, 0) != Sent::kYes) return false;
  cnp_due_ = false;
  return true;
}

bool Responder::send_echoes(Output& output) {
  for (uint8_t path = 0; echoes_ != 0; ++path) {
    if ((echoes_ >> path & 1) == 0) continue;
    Packet packet = answer(Operation::kAcknowledge, 0);
    packet.opcode = kPathEcho;
    packet.psn = tokens_[path];
    if (output.send(path, packet, nullptr, 0) != Sent::kYes) return false;
    echoes_ &= ~(1u << path);
  }
  return true;
}

bool Responder::transmit(int64_t now, Output& output, uint32_t budget) {
  if (relayed_ != nullptr) take_endings();
  if (packet_awaits_memory_) [[unlikely]]
    take_kept(now);
  if (cnp_due_ && !send_notification(output)) return true;
  if (echoes_ != 0 && !send_echoes(output)) return true;
  for (; budget > 0; --budget) {
    if (responses_popped_ == responses_pushed_) break;
    Response& response = responses_[responses_popped_ % kResponses];
    if (!send_response(response, now, output)) {
      if (response.relayed && response_awaits_memory_) break;
      return true;
    }
    if (response.next >= response.packets && responses_popped_ != responses_pushed_) {
      if (response.relayed) relayed_->relay.release(response.ticket);
      ++responses_popped_;
    }
  }
  // An acknowledgement that overtook a response would report the response as lost.
  const bool responses_wait =
      responses_popped_ != responses_pushed_ && responses_[responses_popped_ % kResponses].first < acknowledged();
  if (due_ != Due::kNothing && !(responses_wait && (!peer_is_nupa_ || due_ == Due::kRefusal)))
    send_acknowledgement(now, output);
  return has_output();
}

}  // namespace nupa::roce
