// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/protocol/responder.h"

#include <algorithm>
#include <cstring>

#include "base/memory_fault.h"

namespace nupa::roce {
namespace {

using namespace trait;  // NOLINT: the conditions below are unreadable otherwise

/// The least time between two notifications of a flow (Zhu et al., DCQCN, SIGCOMM 2015, section 3.1).
constexpr int64_t kNotificationPauseNs = 50'000;

}  // namespace

Responder::Responder(Host& host, const ResponderOptions& options, PacketMemory& pool)
    : host_(host),
      target_(host),
      options_(options),
      rules_(target_, options.service != Service::kUc),
      relayed_(target_.relay() != nullptr ? std::make_unique<Relayed>(*target_.relay()) : nullptr),
      reorder_(pool),
      expected_(first_seq(options.first_psn)),
      window_(options.window) {}

uint32_t Responder::packets_of(uint64_t length) const {
  return std::max<uint32_t>(static_cast<uint32_t>((length + options_.mtu - 1) / options_.mtu), 1);
}

uint32_t Responder::responses_outstanding() const {
  uint32_t count = 0;
  for (uint32_t i = responses_popped_; i != responses_pushed_; ++i) count += responses_[i % kResponses].counts;
  return count;
}

void Responder::stop() {
  failed_ = true;
  if (relayed_ != nullptr) drop_responses_from(0);
  packet_awaits_memory_ = response_awaits_memory_ = false;
  drop_message();
  reorder_.clear();
}

void Responder::drop_message() {
  rules_.give_back(&message_.received);
  message_ = {};
}

void Responder::receive(const Packet& packet, bool congested, int64_t now) {
  if (failed_) return;
  const uint8_t path = packet.path;
  if (packet.opcode == kPathProbe) {
    if (options_.mark != kNupaMark) return;
    tokens_[path] = packet.psn;
    echoes_ |= 1u << path;
    return;
  }
  path_ = path;
  if (congested) {
    ++counters_.marked;
    ++marked_[path];
    cnp_path_ = path;
    if (now - last_cnp_ns_ >= kNotificationPauseNs) {
      last_cnp_ns_ = now;
      cnp_due_ = true;
    }
  }
  const Service expected_service = options_.service;
  if (service_of(packet.opcode) != expected_service || (traits_of(packet.opcode) & kResponse) != 0) {
    ++counters_.dropped;
    return;
  }
  ++counters_.packets;
  if (!reliable()) return receive_unreliable(packet);
  receive_reliable(packet, now);
}

void Responder::receive_reliable(const Packet& packet, int64_t now) {
  peer_is_nupa_ = peer_is_nupa_ || (options_.mark == kNupaMark && packet.mark == kNupaMark);
  const Seq seq = nearest(expected_, packet.psn);
  trigger_ = seq;
  trigger_ns_ = now;
  if (seq < expected_) return receive_duplicate(packet, seq);
  if (seq > expected_) return receive_early(packet, seq, now);
  const Result result = take_turn(packet, false);
  // It is not acknowledged before it is executed, and its sender repeats it.
  if (result == Result::kNotServed) packet_awaits_memory_ = reorder_.has(seq) || reorder_.keep(seq, packet, false);
  if (result != Result::kAccepted) return;
  if (packet_awaits_memory_) reorder_.pass(seq, seq + 1);
  packet_awaits_memory_ = false;
  take_kept(now);
}

void Responder::note_established() {
  if (!established_) host_.established();
  established_ = true;
}

Responder::Result Responder::take_turn(const Packet& next, bool placed) {
  note_established();
  const Result result = execute(next, placed);
  if (result == Result::kAccepted) {
    nak_sent_ = false;
    // A request that a relay has taken is acknowledged when it ends, and so are the packets behind it.
    const bool ends_later = acknowledged() != expected_;
    // IBTA 9.7.5.1: the response acknowledges the request and all before it. If the response were lost, an
    // acknowledgement with the same number would report that it had arrived: rdma_rxe completes the READ in that case.
    const uint32_t traits = traits_of(next.opcode);
    const bool answered = (traits & (kRead | kAtomic)) != 0 && ((traits & kPayload) == 0 || responds_to_atomic_write());
    if (answered && !peer_is_nupa_)
      due_ = Due::kNothing;
    else if (((next.ack_request || due_ == Due::kNotReady) && !ends_later) || due_ == Due::kSequenceNak)
      due_ = Due::kAck;
  } else if (result == Result::kNotReady) {
    due_ = Due::kNotReady;
    rnr_timer_ = host_.rnr_timer();
    ++counters_.rnr_naks;
    nak_sent_ = true;  // packets that follow are known to be out of order
  }
  return result;
}

void Responder::take_kept(int64_t now) {
  bool filled = false;
  while (!failed_ && reorder_.has(expected_)) {
    Result result = Result::kAccepted;
    packet_awaits_memory_ = !reorder_.take(expected_, [&](const Packet& next, bool placed) {
      result = take_turn(next, placed);
      return result != Result::kNotServed;
    });
    if (packet_awaits_memory_) break;
    filled = true;
    if (result != Result::kAccepted) break;
  }
  if (filled && peer_is_nupa_) note_unanswered(now);
}

void Responder::note_unanswered(int64_t now) {
  ++unanswered_;
  if (due_ == Due::kNothing && (unanswered_ >= kUnansweredPackets || now - answered_ns_ >= kUnansweredNs))
    due_ = Due::kAck;
}

void Responder::receive_early(const Packet& packet, Seq seq, int64_t now) {
  ++counters_.early;
  if (!peer_is_nupa_) {
    if (nak_sent_) return;
    nak_sent_ = true;
    due_ = Due::kSequenceNak;
    return;
  }
  if (seq - expected_ >= kBitmapBits) {
    ++counters_.dropped;
    return;
  }
  const uint32_t traits = traits_of(packet.opcode);
  const bool twice = reorder_.has(seq);
  if (due_ == Due::kNothing && (packet.ack_request || twice)) due_ = Due::kAck;
  if (twice) {
    ++counters_.duplicates;
    repetitions_ += (traits & kPayload) != 0;
    return;
  }
  note_unanswered(now);
  bool placed = false;
  // If the expected packet awaits memory, this one is not placed: it would displace the other at the memory's owner.
  if (!packet_awaits_memory_ && relayed_ == nullptr && message_.kind == Kind::kWrite && (traits & kWrite) != 0 &&
      (traits & (kStarts | kEnds)) == 0 && packet.payload_length == options_.mtu &&
      seq + 1 < message_.first + packets_of(message_.length)) {
    const uint64_t offset = (seq - message_.first) * options_.mtu;
    std::byte* to = host_.reach(message_.srqn, message_.rkey, message_.address + offset, packet.payload_length,
                                access::kRemoteWrite);
    const bool copied = to != nullptr && base::try_access(to, packet.payload_length, [&] {
                          std::memcpy(to, packet.payload, packet.payload_length);
                        });
    placed = copied && host_.wrote(packet.payload_length);
  }
  if (!reorder_.keep(seq, packet, placed)) ++counters_.dropped;
}

void Responder::receive_duplicate(const Packet& packet, Seq seq) {
  ++counters_.duplicates;
  const uint32_t traits = traits_of(packet.opcode);
  if ((traits & kRead) != 0) {
    const uint32_t length = response_bytes(packet, traits);
    const uint32_t packets = packets_of(length);
    if (seq + packets > expected_) {
      ++counters_.dropped;
      return;
    }
    Response again;
    again.replay = true;
    again.path = path_;
    again.first = seq;
    again.packets = packets;
    again.srqn = packet.srqn;
    again.rkey = packet.rkey;
    again.address = packet.address;
    again.length = length;
    again.msn = msn_;
    if (relayed_ != nullptr) return ask_again(again, (traits & kFeth) != 0);
    for (uint32_t i = responses_popped_; i != responses_pushed_; ++i) {
      Response& response = responses_[i % kResponses];
      if (response.atomic || seq < response.first || seq + packets > response.first + response.packets) continue;
      const auto within = static_cast<uint32_t>(seq - response.first);
      const bool to_its_end = seq + packets == response.first + response.packets;
      if (within > response.next || (within == response.next && !to_its_end)) return;  // will be sent anyway
      if (!to_its_end) continue;
      // The repeated request is a request by itself (IBTA 9.7.5.1): its responses begin with a First or an Only,
      // wherever it begins in the old one.
      again.replay = response.replay;
      again.msn = response.msn;
      response = again;
      return;
    }
    if (!push_response(again)) ++counters_.dropped;
    return;
  }
  if ((traits & kAtomic) != 0 && (traits & kReth) == 0) {
    for (const Remembered& remembered : remembered_) {
      if (remembered.seq != seq) continue;
      Response response;
      response.atomic = response.replay = true;
      response.path = path_;
      response.first = seq;
      response.found = remembered.found;
      response.msn = remembered.msn;
      if (!push_response(response)) ++counters_.dropped;
      return;
    }
    ++counters_.dropped;
    return;
  }
  ++repetitions_;
  if ((traits & kAtomic) != 0 && responds_to_atomic_write()) {
    Response again = empty_response(packet);
    again.replay = true;
    again.first = seq;
    if (!push_response(again)) ++counters_.dropped;
    return;
  }
  if (relayed_ != nullptr && seq >= acknowledged()) return receive_duplicate_of_relay();
  if (due_ == Due::kNothing) due_ = Due::kAck;
}

bool Responder::fits_sequence(const Packet& packet, uint32_t traits) const {
  const Kind kind = (traits & kSend) != 0 ? Kind::kSend : (traits & kWrite) != 0 ? Kind::kWrite : Kind::kNone;
  if ((traits & kStarts) != 0 ? message_.kind != Kind::kNone : message_.kind != kind) return false;
  if (kind == Kind::kNone) return true;
  if ((traits & kEnds) == 0) return packet.payload_length == options_.mtu;
  if (packet.payload_length > options_.mtu) return false;
  return (traits & kStarts) != 0 || packet.payload_length > 0;
}

Responder::Result Responder::execute(const Packet& packet, bool placed) {
  const uint32_t traits = traits_of(packet.opcode);
  Result result;
  if (!fits_sequence(packet, traits)) {
    result = refuse(core::Refusal::kInvalidRequest);
  } else if ((traits & kSend) != 0) {
    result = execute_send(packet, traits);
  } else if ((traits & kWrite) != 0) {
    result = execute_write(packet, traits, placed);
  } else if ((traits & kRead) != 0) {
    result = (traits & kFeth) != 0 ? execute_flush(packet) : execute_read(packet);
  } else {
    result = (traits & kReth) != 0 ? execute_atomic_write(packet) : execute_atomic(packet);
  }
  if (result != Result::kAccepted) return result;
  const Seq behind = expected_ + 1;
  expected_ += (traits & kRead) != 0 ? packets_of(response_bytes(packet, traits)) : 1;
  reorder_.pass(behind, expected_);
  return result;
}

namespace {

NakCode nak_of(core::Refusal refusal) {
  switch (core::rule_of(refusal).requester) {
    case WcStatus::kRemInvReqErr:
      return NakCode::kInvalidRequest;
    case WcStatus::kRemAccessErr:
      return NakCode::kRemoteAccess;
    default:
      return NakCode::kRemoteOperation;
  }
}

}  // namespace

Responder::Result Responder::refuse(core::Refusal refusal) {
  // A refusal ends everything, and what a relay has taken before has to end first.
  if (relayed_ != nullptr && relayed_->taken != relayed_->ended) return Result::kNotServed;
  Inbound none;
  return result_of(rules_.refuse(refusal, &none, &message_.received));
}

Responder::Result Responder::result_of(core::Verdict verdict) {
  if (verdict.is_accepted() || verdict.is_taken()) return Result::kAccepted;
  // The RNR timer makes the requester try again; no other answer does.
  if (verdict.is_not_ready() || verdict.is_later()) return Result::kNotReady;
  if (verdict.is_not_served()) return Result::kNotServed;
  if (verdict.is_dropped()) {
    // IBTA 9.9.3: an unreliable service drops the message.
    drop_message();
    skipping_ = true;
    return Result::kRefused;
  }
  if (reliable()) {
    refusal_ = nak_of(verdict.refusal());
    due_ = Due::kRefusal;
  }
  packet_awaits_memory_ = false;
  failed_ = true;
  drop_message();
  reorder_.clear();
  return Result::kRefused;
}

Inbound Responder::inbound_of(const Packet& packet, WcOpcode opcode) const {
  const uint32_t traits = traits_of(packet.opcode);
  Inbound inbound;
  inbound.opcode = opcode;
  inbound.src_qp = options_.peer_qpn;
  inbound.solicited = packet.solicited;
  if ((traits & kImm) != 0) {
    inbound.wc_flags = wc_flag::kWithImm;
    inbound.imm_data = packet.imm;
  } else if ((traits & kIeth) != 0) {
    inbound.wc_flags = wc_flag::kWithInv;
    inbound.imm_data = packet.invalidate;
  }
  return inbound;
}

Responder::Result Responder::execute_send(const Packet& packet, uint32_t traits) {
  const bool starts = (traits & kStarts) != 0;
  const bool ends = (traits & kEnds) != 0;
  Inbound inbound = inbound_of(packet, WcOpcode::kRecv);
  const core::Piece piece{const_cast<std::byte*>(packet.payload), packet.payload_length};
  Message& message = message_;
  message.received.behind = nullptr;
  const Result result = result_of(rules_.send(
      {starts, ends, &piece, 1, packet.payload_length, packet.srqn, (traits & kIeth) != 0, packet.invalidate}, &inbound,
      &message.received));
  next_place_ = nullptr;
  if (result != Result::kAccepted) return result;
  if (starts) {
    message.kind = Kind::kSend;
    message.srqn = packet.srqn;
    message.first = expected_;
  }
  if (!ends) {
    next_place_ = message.received.behind;
    return Result::kAccepted;
  }
  message_ = {};
  msn_ = (msn_ + 1) & kPsnMask;
  note_taken();
  return Result::kAccepted;
}

Responder::Result Responder::execute_write(const Packet& packet, uint32_t traits, bool placed) {
  const bool starts = (traits & kStarts) != 0;
  const bool ends = (traits & kEnds) != 0;
  // message_ changes only when the whole packet is known to be right, so that a repetition finds nothing half done.
  Message message = message_;
  if (starts) {
    message.kind = Kind::kWrite;
    message.srqn = packet.srqn;
    message.rkey = packet.rkey;
    message.address = packet.address;
    message.length = packet.length;
    message.first = expected_;
    if (ends ? packet.length != packet.payload_length : packet.length <= packet.payload_length)
      return refuse(core::Refusal::kInvalidRequest);
  }
  const uint64_t after = message.received.offset + packet.payload_length;
  if (ends ? after != message.length : after >= message.length) return refuse(core::Refusal::kInvalidRequest);
  Inbound inbound = inbound_of(packet, WcOpcode::kRecvRdmaWithImm);
  const core::Piece piece{const_cast<std::byte*>(packet.payload), packet.payload_length};
  message.received.behind = nullptr;
  const core::Verdict verdict =
      rules_.write({starts, ends, (traits & kImm) != 0, placed, &piece, 1, packet.payload_length, message.length,
                    message.address, message.rkey, message.srqn},
                   &inbound, &message.received);
  if (const Result result = result_of(verdict); result != Result::kAccepted) return result;
  if (!placed) next_place_ = ends ? nullptr : message.received.behind;
  message_ = ends ? Message{} : message;
  if (!ends) return Result::kAccepted;
  msn_ = (msn_ + 1) & kPsnMask;
  note_taken();
  return Result::kAccepted;
}

Responder::Result Responder::execute_read(const Packet& packet) {
  // Repeated responses fill all the room. The peer is entitled to this READ, and requests it again.
  const uint32_t outstanding = responses_outstanding();
  if (outstanding < max_rd_atomic_ && !has_room_for_response()) {
    ++counters_.dropped;
    return Result::kDropped;
  }
  core::ContextTarget::Range range;
  const core::Verdict verdict =
      rules_.read(packet.srqn, packet.rkey, packet.address, packet.length, outstanding, max_rd_atomic_, &range);
  if (const Result result = result_of(verdict); result != Result::kAccepted) return result;
  Response response;
  response.counts = true;
  response.path = packet.path;
  response.first = expected_;
  response.packets = packets_of(packet.length);
  response.srqn = packet.srqn;
  response.rkey = packet.rkey;
  response.address = packet.address;
  response.length = packet.length;
  response.msn = msn_ = (msn_ + 1) & kPsnMask;
  response.relayed = verdict.is_taken();
  response.ticket = rules_.ticket();
  push_response(response);
  return Result::kAccepted;
}

Responder::Result Responder::execute_atomic(const Packet& packet) {
  if (relayed_ != nullptr && !has_room_for_response()) {
    ++counters_.dropped;
    return Result::kDropped;
  }
  const bool swaps = operation_of(packet.opcode) == Operation::kCompareSwap;
  uint64_t found = swaps ? packet.compare : packet.swap_or_add;
  const core::Verdict verdict =
      rules_.atomic(swaps ? core::AtomicOp::kCompareSwap : core::AtomicOp::kFetchAdd, packet.srqn, packet.rkey,
                    packet.address, &found, packet.swap_or_add, responses_outstanding(), max_rd_atomic_);
  if (const Result result = result_of(verdict); result != Result::kAccepted) return result;
  msn_ = (msn_ + 1) & kPsnMask;
  if (!verdict.is_taken()) remembered_[remembered_count_++ % kRemembered] = {expected_, found, msn_};
  Response response;
  response.atomic = response.counts = true;
  response.relayed = verdict.is_taken();
  response.ticket = rules_.ticket();
  response.path = packet.path;
  response.first = expected_;
  response.found = found;
  response.msn = msn_;
  push_response(response);  // without room the requester asks again, and the result is remembered
  return Result::kAccepted;
}

Responder::Result Responder::execute_atomic_write(const Packet& packet) {
  uint64_t value;
  if (packet.payload_length != sizeof value || packet.length != sizeof value)
    return refuse(core::Refusal::kInvalidRequest);
  std::memcpy(&value, packet.payload, sizeof value);
  if (responds_to_atomic_write() && !has_room_for_response()) {
    ++counters_.dropped;
    return Result::kDropped;
  }
  const core::Verdict verdict =
      rules_.atomic(core::AtomicOp::kWrite, packet.srqn, packet.rkey, packet.address, &value, 0, 0, 1);
  if (const Result result = result_of(verdict); result != Result::kAccepted) return result;
  msn_ = (msn_ + 1) & kPsnMask;
  note_taken();
  if (responds_to_atomic_write()) push_response(empty_response(packet));
  return Result::kAccepted;
}

Responder::Response Responder::empty_response(const Packet& packet) const {
  Response response;
  response.path = packet.path;
  response.first = expected_;
  response.msn = msn_;
  return response;
}

Responder::Result Responder::execute_flush(const Packet& packet) {
  if (!has_room_for_response()) {
    ++counters_.dropped;
    return Result::kDropped;
  }
  const core::Verdict verdict =
      rules_.flush({packet.flush, packet.length, packet.address, packet.rkey, packet.srqn}, max_rd_atomic_);
  if (const Result result = result_of(verdict); result != Result::kAccepted) return result;
  msn_ = (msn_ + 1) & kPsnMask;
  Response response = empty_response(packet);
  response.relayed = verdict.is_taken();
  response.ticket = rules_.ticket();
  push_response(response);
  return Result::kAccepted;
}

void Responder::receive_unreliable(const Packet& packet) {
  const uint32_t traits = traits_of(packet.opcode);
  const Seq seq = nearest(expected_, packet.psn);
  // IBTA 9.8.2.2.1: a message with a gap is dropped, and so is everything until the next one begins. Numbers that were
  // seen before are no gap: a packet that overtook others caused it.
  if (seq < expected_ && expected_ - seq < kBitmapBits) {
    ++counters_.duplicates;
    return;
  }
  if (seq != expected_) {
    ++counters_.early;
    drop_message();
    skipping_ = true;
  }
  expected_ = seq;
  if ((traits & kStarts) != 0) {
    drop_message();
    skipping_ = false;
  }
  note_established();
  if (!skipping_ && execute(packet, false) == Result::kAccepted) return;
  // Dropped because no receive is posted, because it does not fit, or with the rest of its message.
  drop_message();
  skipping_ = true;
  expected_ = seq + 1;
}

}  // namespace nupa::roce
