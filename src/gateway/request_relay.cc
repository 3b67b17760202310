// SPDX-License-Identifier: Apache-2.0
#include "gateway/request_relay.h"

#include <algorithm>
#include <cstring>

namespace nupa::gateway {
namespace {

constexpr uint64_t kPageBytes = 4096;  // the largest MTU, too: no packet of an answer lies around the end of the ring
constexpr uint64_t kLineBytes = 64;

constexpr uint64_t rounded_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

RequestRelay::RequestRelay(std::byte* memory, uint64_t window, std::function<void()> on_work)
    : memory_(memory), on_work_(std::move(on_work)) {
  requests_.capacity = answers_.capacity = window;
}

void RequestRelay::copy_in(const core::Piece* pieces, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    const std::byte* from = pieces[i].data;
    for (uint64_t left = pieces[i].length; left > 0;) {
      const uint64_t at = requests_.place(requests_.head);
      const uint64_t step = std::min(left, requests_.capacity - at);
      if (from == nullptr) {
        std::memset(memory_ + at, 0, step);
      } else {
        std::memcpy(memory_ + at, from, step);
        from += step;
      }
      requests_.head += step;
      left -= step;
    }
  }
}

void RequestRelay::push(const Part& part) {
  waiting_.push_back(part);
  taken_ += part.ends;
  on_work_();
}

core::Verdict RequestRelay::send(const core::SendPart& part, const core::Inbound& message) {
  if (part.first) {
    requests_.rewind();
    arriving_ = {requests_.head, 0, 0};
  }
  if (arriving_.staged + part.length > requests_.capacity) {
    // A refusal ends the connection, so what was taken before has to end first.
    const bool under_way = taken_ != endings_.count || !asked_.empty();
    return under_way ? core::Verdict::not_served() : core::Verdict::refused(core::Refusal::kReceiveTooSmall);
  }
  if (requests_.room() < part.length || (part.last && is_full())) return core::Verdict::not_served();
  copy_in(part.pieces, part.piece_count);
  arriving_.staged += static_cast<uint32_t>(part.length);
  if (!part.last) return core::Verdict::accepted();
  Part made;
  if (part.invalidates) {
    made.opcode = Opcode::kSendWithInv;
    made.imm_or_rkey = part.invalidated_rkey;
  } else if ((message.wc_flags & wc_flag::kWithImm) != 0) {
    made.opcode = Opcode::kSendWithImm;
    made.imm_or_rkey = message.imm_data;
  }
  made.solicited = message.solicited;
  made.ends = true;
  made.length = arriving_.staged;
  made.position = arriving_.begin;
  push(made);
  return core::Verdict::taken();
}

core::Verdict RequestRelay::write(const core::WritePart& part, const core::Inbound& message) {
  if (part.first) {
    requests_.rewind();
    arriving_ = {requests_.head, 0, 0};
  }
  if (requests_.room() < part.length || (part.last && is_full())) return core::Verdict::not_served();
  copy_in(part.pieces, part.piece_count);
  arriving_.staged += static_cast<uint32_t>(part.length);
  if (!part.last && arriving_.staged < kPartBytes) return core::Verdict::accepted();
  Part made;
  made.opcode = Opcode::kRdmaWrite;
  if (part.last && part.has_immediate) {
    made.opcode = Opcode::kRdmaWriteWithImm;
    made.imm_or_rkey = message.imm_data;
    made.solicited = message.solicited;
  }
  made.ends = part.last;
  made.rkey = part.rkey;
  made.address = part.address + arriving_.sent;
  made.length = arriving_.staged;
  made.position = arriving_.begin;
  push(made);
  arriving_ = {requests_.head, arriving_.sent + arriving_.staged, 0};
  return part.last ? core::Verdict::taken() : core::Verdict::accepted();
}

core::Verdict RequestRelay::write_atomically(uint32_t rkey, uint64_t address, uint64_t value) {
  if (is_full()) return core::Verdict::not_served();
  Part made;
  made.opcode = Opcode::kAtomicWrite;
  made.ends = true;
  made.rkey = rkey;
  made.address = address;
  made.compare_add = value;
  push(made);
  return core::Verdict::taken();
}

core::Verdict RequestRelay::ask(const Part& request, uint64_t length, uint32_t* ticket) {
  if (asked_.size() >= kMostReads) return core::Verdict::not_served();
  Asked asked;
  asked.request = request;
  asked.request.has_answer = true;
  asked.request.ticket = *ticket = first_ticket_ + static_cast<uint32_t>(asked_.size());
  asked.length = length;
  asked_.push_back(asked);
  push(asked.request);
  return core::Verdict::taken();
}

core::Verdict RequestRelay::read(uint32_t rkey, uint64_t address, uint64_t length, uint32_t* ticket) {
  Part request;
  request.opcode = Opcode::kRdmaRead;
  request.rkey = rkey;
  request.address = address;
  return ask(request, length, ticket);
}

core::Verdict RequestRelay::atomic(core::AtomicOp op, uint32_t rkey, uint64_t address, uint64_t operand, uint64_t swap,
                                   uint32_t* ticket) {
  Part request;
  request.opcode = op == core::AtomicOp::kCompareSwap ? Opcode::kCompareSwap : Opcode::kFetchAdd;
  request.rkey = rkey;
  request.address = address;
  request.compare_add = operand;
  request.swap = swap;
  return ask(request, core::kAtomicBytes, ticket);
}

core::Verdict RequestRelay::flush(const core::FlushPart& part, uint32_t* ticket) {
  Part request;
  request.opcode = Opcode::kFlush;
  request.imm_or_rkey = part.flags;
  request.rkey = part.rkey;
  request.address = part.address;
  request.compare_add = part.length;
  return ask(request, 0, ticket);
}

RequestRelay::Asked* RequestRelay::find(uint32_t ticket) {
  const uint32_t index = ticket - first_ticket_;
  return index < asked_.size() ? &asked_[index] : nullptr;
}

core::Relay::Fetched RequestRelay::fetch(uint32_t ticket, uint64_t offset, uint32_t length) {
  using State = Fetched::State;
  Asked* const asked = find(ticket);
  if (asked == nullptr) return {State::kFailed, nullptr, WcStatus::kRemOpErr};
  if (asked->status != WcStatus::kSuccess) return {State::kFailed, nullptr, asked->status};
  if (offset + length > asked->arrived || (length == 0 && !asked->is_complete)) return {};
  // The bytes before are not needed any more. Answers leave in the order of their tickets.
  if (asked == &asked_.front() && offset > 0) {
    const uint64_t before = answers_.tail;
    answers_.tail = asked->base + offset;
    if (answers_.tail != before && !waiting_.empty()) on_work_();
  }
  return {State::kReady, memory_ + requests_.capacity + answers_.place(asked->base + offset), WcStatus::kSuccess};
}

void RequestRelay::release(uint32_t ticket) {
  if (Asked* const asked = find(ticket); asked != nullptr) asked->is_released = true;
  drop_released();
}

void RequestRelay::drop_released() {
  bool has_room = false;
  while (!asked_.empty() && asked_.front().is_released && asked_.front().under_way == 0) {
    const Asked& oldest = asked_.front();
    // A part of it may still be in waiting_, where next() passes over it.
    if (oldest.is_placed) answers_.tail = std::max(answers_.tail, oldest.base + oldest.posted);
    asked_.pop_front();
    ++first_ticket_;
    has_room = true;
  }
  if (asked_.empty()) answers_.tail = answers_.head;
  answers_.rewind();
  if (has_room && !waiting_.empty()) on_work_();
}

bool RequestRelay::take_place(Asked& asked, uint64_t bytes) {
  uint64_t from = answers_.head;
  if (!asked.is_placed) {
    from = rounded_up(from, asked.length <= kPageBytes ? kLineBytes : kPageBytes);
    if (asked.length <= kPageBytes && answers_.place(from) + asked.length > answers_.capacity)
      from = rounded_up(from, answers_.capacity);
  }
  if (from + bytes - answers_.tail > answers_.capacity) return false;
  if (!asked.is_placed) {
    asked.base = from;
    asked.is_placed = true;
  }
  answers_.head = from + bytes;
  return true;
}

std::optional<RequestRelay::Part> RequestRelay::next_of(Asked& asked) {
  const uint64_t bytes = std::min<uint64_t>(asked.length - asked.posted, kPartBytes);
  if (!take_place(asked, bytes)) return std::nullopt;
  Part part = asked.request;
  if (part.opcode == Opcode::kRdmaRead) part.address += asked.posted;
  part.position = asked.base + asked.posted;
  part.length = static_cast<uint32_t>(bytes);
  asked.posted += bytes;
  ++asked.under_way;
  if (asked.posted == asked.length) waiting_.pop_front();
  return part;
}

std::optional<RequestRelay::Part> RequestRelay::next() {
  while (!waiting_.empty()) {
    const Part part = waiting_.front();
    if (!part.has_answer) {
      waiting_.pop_front();
      return part;
    }
    Asked* const asked = find(part.ticket);
    if (asked != nullptr && !asked->is_released) return next_of(*asked);
    waiting_.pop_front();
  }
  return std::nullopt;
}

int RequestRelay::pieces_of(const Part& part, std::span<Sge, 2> pieces, uint32_t lkey) const {
  if (part.length == 0) return 0;
  const RingPositions& ring = part.has_answer ? answers_ : requests_;
  const std::byte* const base = part.has_answer ? memory_ + requests_.capacity : memory_;
  const uint64_t at = ring.place(part.position);
  const uint64_t first = std::min<uint64_t>(part.length, ring.capacity - at);
  pieces[0] = {reinterpret_cast<uint64_t>(base + at), static_cast<uint32_t>(first), lkey};
  if (first == part.length) return 1;
  pieces[1] = {reinterpret_cast<uint64_t>(base), static_cast<uint32_t>(part.length - first), lkey};
  return 2;
}

void RequestRelay::end(const Part& part, WcStatus status) {
  const bool succeeded = status == WcStatus::kSuccess;
  if (part.has_answer) {
    Asked* const asked = find(part.ticket);
    if (asked == nullptr) return;
    --asked->under_way;
    asked->arrived += succeeded ? part.length : 0;
    asked->is_complete = succeeded && asked->arrived == asked->length;
    if (!succeeded && !has_failed_) asked->status = status;
    if (asked->is_released) drop_released();
  } else {
    if (succeeded) {
      if (part.length > 0) requests_.tail = part.position + part.length;
      endings_.count += part.ends;
    } else if (!has_failed_) {
      endings_.next = status;
    }
    endings_.awaits_receive = false;
  }
  has_failed_ = has_failed_ || !succeeded;
}

bool RequestRelay::note_waiting(bool awaits_receive) {
  if (endings_.awaits_receive == awaits_receive) return false;
  endings_.awaits_receive = awaits_receive;
  return true;
}

}  // namespace nupa::gateway
