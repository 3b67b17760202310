// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/responder.h"

#include <algorithm>

#include "transport/pool/requester.h"

namespace nupa::pool {

using core::Refusal;
using core::Verdict;

namespace {

/// True for a message of one or several records; the others are one record.
bool comes_in_parts(const Record& record) {
  return record.kind == RecordKind::kSend || record.kind == RecordKind::kWrite || record.kind == RecordKind::kPlaced;
}

}  // namespace

void Responder::owe(Outcome outcome, uint8_t detail, uint16_t part) {
  owes_ = true;
  const uint16_t sequence = acknowledged();
  const bool goes_back = outcome == Outcome::kAgain || outcome == Outcome::kOutOfOrder;
  if (relayed_ != nullptr && goes_back) relayed_->report = {remote_qpn_, sequence, outcome, detail, part};
  due_ = {remote_qpn_, sequence, outcome, detail, part};
}

uint8_t Responder::credits() const {
  if (!reports_credits_) return 0;
  return credits_of(context_.waiting_receives().value_or(0));
}

uint64_t Responder::take_due() {
  // A refusal that overtook the response to an earlier READ would end that READ.
  if (!owes_ || (due_.outcome == Outcome::kRefused && has_responses())) return 0;
  owes_ = false;
  if (due_.outcome == Outcome::kDone) due_.detail = credits();
  return word_of(due_);
}

void Responder::drop_message() {
  rules_.give_back(&message_.received);
  message_ = {};
}

void Responder::stop() {
  // The requester may have been acknowledged that these requests were taken, and would wait for ever.
  if (has_responses() && !(owes_ && due_.outcome == Outcome::kRefused)) owe(Outcome::kAbsent);
  failed_ = true;
  awaits_memory_ = false;
  if (relayed_ != nullptr) drop_responses_from(static_cast<uint16_t>(expected_ - kResponses));
  popped_ = pushed_;
  drop_message();
}

void Responder::receive(const Record& record, const Payload& payload, uint32_t part_bytes, bool is_granted) {
  if (failed_) return;
  count_one(statistics_.received);
  context_.port_counts().received_packet(record.length);
  if (relayed_ != nullptr) {
    take_endings();
    if (failed_) return;
    if (relayed_->is_lost) return owe(Outcome::kAbsent);
  }
  is_granted_ = is_granted;
  if (!reliable()) return receive_unreliable(record, payload);
  receive_reliable(record, payload, is_xrc() ? std::min(part_bytes, kShortPartBytes) : part_bytes);
}

void Responder::receive_reliable(const Record& record, const Payload& payload, uint32_t part_bytes) {
  if (record.is(record_trait::kResent)) reported_ = false;
  const auto ahead = static_cast<int16_t>(record.sequence - expected_);
  const uint64_t stands = message_.received.offset;
  if (ahead < 0 || (ahead == 0 && record.offset < stands)) {
    // It was sent twice: the requester went back because of an older answer.
    count_one(statistics_.dropped);
    context_.port_counts().add_alone(shm::PortCount::kDuplicates, 1);
    if (ahead < 0 && (record.is_last() || !comes_in_parts(record))) owe_for_duplicate();
    return;
  }
  if (ahead > 0 || record.offset > stands) {
    count_one(statistics_.dropped);
    context_.port_counts().add_alone(shm::PortCount::kOutOfSequence, 1);
    // The requester goes back already, or it has to.
    if (!reported_) owe(Outcome::kOutOfOrder, 0, static_cast<uint16_t>(stands / part_bytes % kParts));
    reported_ = true;
    return;
  }
  if (!established_) context_.established();
  established_ = true;
  if (record.length > part_bytes) {
    take(refuse(Refusal::kInvalidRequest), record, part_bytes);
    return;
  }
  take(execute(record, payload), record, part_bytes);
}

void Responder::take(Verdict verdict, const Record& record, uint32_t part_bytes) {
  const auto part = static_cast<uint16_t>(message_.received.offset / part_bytes % kParts);
  if (verdict.is_taken()) return note_taken(record);
  if (verdict.is_accepted()) {
    reported_ = false;
    if (comes_in_parts(record) && !record.is_last()) return;
    message_ = {};
    ++expected_;
    if (!responds(record)) owe(Outcome::kDone);
    return;
  }
  // The RNR timer makes the requester try again.
  if (verdict.is_not_ready() || verdict.is_later()) {
    context_.port_counts().add_alone(shm::PortCount::kOutOfBuffer, 1);
    owe(Outcome::kNotReady, context_.rnr_timer() & 31, part);
    reported_ = true;
    return;
  }
  if (verdict.is_not_served()) {
    owe(Outcome::kAgain, 0, part);
    reported_ = true;
    return;
  }
  const Refusal refusal = verdict.is_refused() ? verdict.refusal() : Refusal::kRemoteOperation;
  owe(Outcome::kRefused, static_cast<uint8_t>(refusal));
  failed_ = true;
  drop_message();
}

void Responder::receive_unreliable(const Record& record, const Payload& payload) {
  // IBTA 9.8.2.2.1: a message whose beginning was dropped is dropped to its end.
  if (record.is_first()) {
    drop_message();
    skipping_ = false;
  }
  if (skipping_ || record.offset != message_.received.offset || !fits(record)) {
    count_one(statistics_.dropped);
    drop_message();
    skipping_ = true;
    return;
  }
  if (!established_) context_.established();
  established_ = true;
  const Verdict verdict = execute(record, payload);
  if (verdict.is_accepted()) {
    if (record.is_last()) message_ = {};
    return;
  }
  count_one(statistics_.dropped);
  failed_ = verdict.is_refused();
  drop_message();
  skipping_ = true;
}

bool Responder::fits(const Record& record) const {
  const bool is_write = record.kind == RecordKind::kWrite || record.kind == RecordKind::kPlaced;
  const Kind kind = record.kind == RecordKind::kSend ? Kind::kSend : is_write ? Kind::kWrite : Kind::kNone;
  if (kind == Kind::kNone) return reliable() && message_.kind == Kind::kNone;
  if (record.is_first()) return message_.kind == Kind::kNone || message_.received.offset == 0;
  if (message_.kind != kind || record.total != message_.total) return false;
  return kind != Kind::kWrite || (record.rkey == message_.rkey && record.address == message_.address);
}

Verdict Responder::refuse(Refusal refusal) {
  core::Inbound none;
  return rules_.refuse(refusal, &none, &message_.received);
}

Verdict Responder::execute(const Record& record, const Payload& payload) {
  if (!fits(record)) return refuse(Refusal::kInvalidRequest);
  switch (record.kind) {
    case RecordKind::kSend:
      return execute_send(record, payload);
    case RecordKind::kWrite:
    case RecordKind::kPlaced:
      return execute_write(record, payload);
    case RecordKind::kRead:
      return execute_read(record);
    case RecordKind::kFlush:
      return execute_flush(record);
    default:
      return execute_atomic(record);
  }
}

core::Inbound Responder::inbound_of(const Record& record, WcOpcode opcode) const {
  core::Inbound inbound;
  inbound.opcode = opcode;
  inbound.src_qp = remote_qpn_;
  inbound.solicited = record.has(record_flag::kSolicited);
  if (record.has(record_flag::kImmediate)) {
    inbound.wc_flags = wc_flag::kWithImm;
    inbound.imm_data = record.immediate;
  } else if (record.has(record_flag::kInvalidate)) {
    inbound.wc_flags = wc_flag::kWithInv;
    inbound.imm_data = record.immediate;
  }
  return inbound;
}

Verdict Responder::execute_send(const Record& record, const Payload& payload) {
  core::Inbound inbound = inbound_of(record, WcOpcode::kRecv);
  const Verdict verdict =
      rules_.send({record.is_first(), record.is_last(), payload.pieces.data(), payload.count, record.length,
                   record.srqn, record.is_last() && record.has(record_flag::kInvalidate), record.immediate},
                  &inbound, &message_.received);
  if (verdict.is_accepted() || verdict.is_not_served()) {
    message_.kind = Kind::kSend;
    message_.total = record.total;
  }
  return verdict;
}

Verdict Responder::check_placed(const Record& record) {
  if (!is_granted_ || !reliable() || is_xrc()) return refuse(Refusal::kRemoteAccess);
  core::ContextTarget::Range range;
  return rules_.destination({true, true, false, false, nullptr, 0, record.length, record.length,
                             record.address + record.offset, record.rkey, record.srqn},
                            &range);
}

Verdict Responder::execute_write(const Record& record, const Payload& payload) {
  const bool is_placed = record.kind == RecordKind::kPlaced;
  if (is_placed && record.length > 0)
    if (const Verdict checked = check_placed(record); !checked.is_accepted()) return checked;
  core::Inbound inbound = inbound_of(record, WcOpcode::kRecvRdmaWithImm);
  const bool has_immediate = record.is_last() && record.has(record_flag::kImmediate);
  const Verdict verdict =
      rules_.write({record.is_first(), record.is_last(), has_immediate, is_placed, payload.pieces.data(), payload.count,
                    record.length, record.total, record.address, record.rkey, record.srqn},
                   &inbound, &message_.received);
  if (verdict.is_accepted()) {
    const bool may_place = reliable() && !is_xrc() && record.total >= Requester::kLeastPlaced;
    if (may_place && !is_placed && record.is_first()) written_key_ = record.rkey;
    message_.kind = Kind::kWrite;
    message_.srqn = record.srqn;
    message_.rkey = record.rkey;
    message_.address = record.address;
    message_.total = record.total;
  }
  return verdict;
}

Verdict Responder::execute_read(const Record& record) {
  core::ContextTarget::Range range;
  const Verdict verdict =
      rules_.read(record.srqn, record.rkey, record.address, record.total, outstanding(), max_rd_atomic_, &range);
  if (!verdict.is_accepted() && !verdict.is_taken()) return verdict;
  Response response;
  response.relayed = verdict.is_taken();
  response.ticket = rules_.ticket();
  response.sequence = record.sequence;
  response.srqn = record.srqn;
  response.rkey = record.rkey;
  response.address = record.address;
  response.length = record.total;
  responses_[pushed_++ % kResponses] = response;
  return verdict;
}

Verdict Responder::execute_atomic(const Record& record) {
  const bool writes = record.operation == core::AtomicOp::kWrite;
  if (writes && record.total != core::kAtomicBytes) return refuse(Refusal::kInvalidRequest);
  uint64_t operand = record.operand;
  const Verdict verdict = rules_.atomic(record.operation, record.srqn, record.rkey, record.address, &operand,
                                        record.swap, outstanding(), max_rd_atomic_);
  if ((!verdict.is_accepted() && !verdict.is_taken()) || writes) return verdict;
  Response response;
  response.atomic = true;
  response.relayed = verdict.is_taken();
  response.ticket = rules_.ticket();
  response.sequence = record.sequence;
  response.found = operand;
  responses_[pushed_++ % kResponses] = response;
  return verdict;
}

Verdict Responder::execute_flush(const Record& record) {
  if (outstanding() == kResponses) return Verdict::not_served();
  const Verdict verdict =
      rules_.flush({record.flush, record.total, record.address, record.rkey, record.srqn}, max_rd_atomic_);
  if (!verdict.is_accepted() && !verdict.is_taken()) return verdict;
  Response response;
  response.relayed = verdict.is_taken();
  response.ticket = rules_.ticket();
  response.sequence = record.sequence;
  responses_[pushed_++ % kResponses] = response;
  return verdict;
}

void Responder::give_up(const Response& response, Refusal refusal) {
  expected_ = response.sequence;
  const Verdict verdict = refuse(refusal);
  popped_ = pushed_;
  owe(Outcome::kRefused, static_cast<uint8_t>(verdict.refusal()));
  failed_ = true;
  drop_message();
}

bool Responder::send_response(Link& link, Response& response) {
  Record record;
  record.kind = response.atomic ? RecordKind::kAtomicAnswer : RecordKind::kReadAnswer;
  record.qp_num = remote_qpn_;
  record.source_qp = context_.number();
  record.sequence = response.sequence;
  record.ack = acknowledged();
  record.credits = credits();
  record.traits = record_trait::kAcks;
  base::Piece piece{nullptr, 0};
  if (response.atomic) {
    if (response.relayed && !fetch_found(response)) return false;
    record.operand = response.found;
  } else {
    const bool is_short = is_xrc() || response.relayed;
    const uint32_t most = is_short ? std::min(link.part_bytes(), kShortPartBytes) : link.part_bytes();
    record.length = std::min(most, response.length - response.sent);
    record.offset = response.sent;
    record.total = response.length;
    if (record.offset == 0) record.flags |= record_flag::kFirst;
    if (record.offset + record.length == record.total) record.flags |= record_flag::kLast;
    if (response.relayed) {
      const std::byte* data = nullptr;
      if (!fetch(response, response.sent, record.length, &data)) return false;
      piece = {const_cast<std::byte*>(data), record.length};
    } else if (record.length > 0) {
      piece.length = record.length;
      piece.data = context_.reach(response.srqn, response.rkey, response.address + response.sent, record.length,
                                  access::kRemoteRead);
      awaits_memory_ = piece.data == nullptr && context_.awaits_memory();
      if (awaits_memory_) return false;
      // The key became invalid after the request was accepted.
      if (piece.data == nullptr) {
        give_up(response, Refusal::kRemoteAccess);
        return true;
      }
    }
  }
  switch (link.write(record, &piece, piece.length > 0 ? 1 : 0)) {
    case Link::Wrote::kYes:
      context_.port_counts().sent_packet(record.length);
      response.sent += record.length;
      if (response.sent != response.length) return true;
      if (response.relayed) relayed_->relay.release(response.ticket);
      ++popped_;
      return true;
    case Link::Wrote::kUnreadable:
      give_up(response, Refusal::kRemoteOperation);
      return true;
    case Link::Wrote::kLost:
      popped_ = pushed_;
      return true;
    case Link::Wrote::kNotNow:
      break;
  }
  return false;
}

bool Responder::transmit(Link& link, uint64_t budget) {
  while (has_responses()) {
    Response& response = responses_[popped_ % kResponses];
    const uint64_t step = std::min(response.length - response.sent, link.part_bytes()) + kLineBytes;
    if (budget == 0) return false;
    if (!send_response(link, response)) return awaits_memory_ || !has_responses() || awaits_bytes();
    budget -= std::min(budget, step);
  }
  return true;
}

}  // namespace nupa::pool
