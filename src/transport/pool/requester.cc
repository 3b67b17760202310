// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/requester.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "base/memory_fault.h"
#include "base/ordered_copy.h"
#include "core/seam/whole_message.h"

namespace nupa::pool {
namespace {

/// The pauses before a message is sent again to a queue pair that does not receive yet, or whose memory another process
/// has to copy.
constexpr int64_t kFirstPauseNs = 100'000;
constexpr int64_t kLongestPauseNs = 5'000'000;
constexpr int64_t kShortestRnrPauseNs = 50'000;
/// UC has no timeout. Its messages wait so long for a peer that is not there yet, and are lost then.
constexpr int64_t kUnreliableWaitNs = 1'000'000'000;

}  // namespace

Requester::Requester(core::QpContext& context, Statistics& statistics, uint32_t remote_qpn, uint16_t first_sequence)
    : context_(context),
      statistics_(statistics),
      remote_qpn_(remote_qpn),
      max_sge_(std::max(context.cap().max_send_sge, 1u)),
      max_inline_(context.cap().max_inline_data),
      pending_(std::bit_ceil(std::max(context.cap().max_send_wr, 1u))),
      lists_(std::make_unique<Sge[]>(pending_.size() * max_sge_)),
      inlined_(std::make_unique_for_overwrite<std::byte[]>(pending_.size() * max_inline_)),
      mask_(static_cast<uint32_t>(pending_.size()) - 1),
      next_(first_sequence),
      acknowledged_(first_sequence),
      in_ring_(first_sequence),
      pauses_(kFirstPauseNs, kLongestPauseNs) {}

void Requester::post(const core::Request& request) {
  const uint32_t slot = tail_ & mask_;
  Pending& pending = pending_[slot];
  pending.wr = request.wr;
  pending.position = request.position;
  pending.fault = request.fault;
  pending.length = 0;
  pending.numbered = pending.done = pending.again = pending.rings = false;
  pending.received = 0;
  Sge* const list = &lists_[size_t{slot} * max_sge_];
  std::byte* to = inlined_of(pending);
  const bool inlined = (request.wr.flags & send_flag::kInline) != 0;
  for (uint32_t i = 0; i < request.wr.num_sge; ++i) {
    list[i] = request.wr.sg_list[i];
    pending.length += list[i].length;
    if (!inlined || list[i].length == 0) continue;
    std::memcpy(to, reinterpret_cast<const void*>(list[i].addr), list[i].length);
    list[i].addr = reinterpret_cast<uint64_t>(to);
    to += list[i].length;
  }
  pending.wr.sg_list = list;
  ++tail_;
}

void Requester::pause(bool paused) {
  paused_ = paused;
  pause_at_ = cursor_;
  // Requests that have begun continue to their end. After a step back these may be behind the cursor.
  while (pause_at_ != tail_ && (at(pause_at_).numbered || at(pause_at_).done)) ++pause_at_;
}

bool Requester::drained() const { return failed_ || idle() || (paused_ && head_ == pause_at_); }

void Requester::flush() {
  failed_ = true;
  granted_.clear();
  while (head_ != tail_) {
    const Pending& oldest = at(head_);
    const SendWr wr = oldest.wr;
    const uint32_t position = oldest.position;
    ++head_;
    context_.complete_send(wr, position, WcStatus::kWrFlushErr, 0);
  }
  cursor_ = head_;
  outstanding_ = 0;
  waits_until_ns_ = INT64_MAX;
}

uint32_t Requester::part_bytes(const Link& link) const {
  return context_.type() == QpType::kXrcSend ? std::min(link.part_bytes(), kShortPartBytes) : link.part_bytes();
}

void Requester::count_outstanding() {
  outstanding_ = 0;
  for (uint32_t index = head_; index != cursor_; ++index) outstanding_ += at(index).is_answered() && !at(index).done;
}

bool Requester::is_fenced(const Pending& pending) const {
  return (pending.wr.flags & send_flag::kFence) != 0 && outstanding_ > 0;
}

bool Requester::begin(Pending& pending) {
  if (is_fenced(pending)) return false;
  if (pending.is_answered() && outstanding_ >= max_rd_atomic_) return false;
  if (pending.numbered) return true;
  if (static_cast<uint16_t>(next_ - acknowledged_) >= kWindow && reliable()) return false;
  pending.sequence = next_++;
  pending.receive = next_receive_;
  next_receive_ += pending.takes_receive();
  pending.numbered = true;
  if (!reliable()) acknowledged_ = next_;
  return true;
}

bool Requester::run_local(Pending& pending) {
  if (!pending.done) {
    if (is_fenced(pending)) return false;
    const WcStatus status = context_.run_local(pending.wr);
    if (status != WcStatus::kSuccess) {
      fail_in_turn(cursor_, status);
      return false;
    }
    pending.done = true;
  }
  pass_cursor();
  complete_in_order();
  return true;
}

void Requester::pass_cursor() {
  const Pending& passed = at(cursor_);
  outstanding_ += passed.is_answered() && !passed.done;
  ++cursor_;
  sent_ = 0;
}

Requester::Next Requester::transmit(Link& link, Acknowledgement own, uint64_t budget) {
  const uint32_t most = part_bytes(link);
  while (!failed_ && cursor_ != tail_) {
    if (waits_until_ns_ != INT64_MAX || (paused_ && cursor_ == pause_at_)) return Next::kNothing;
    Pending& pending = at(cursor_);
    if (pending.fault != WcStatus::kSuccess) {
      complete_in_order();
      return Next::kNothing;
    }
    if (core::is_local(pending.wr.opcode)) {
      if (!run_local(pending)) return Next::kNothing;
      continue;
    }
    // After a step back: the target has taken it meanwhile.
    if (reliable() && is_settled(pending)) {
      pass_cursor();
      continue;
    }
    if (sent_ == 0 && !begin(pending)) return Next::kNothing;
    if (budget == 0) return Next::kRoom;
    const bool answers = pending.is_answered();
    const uint64_t step = answers ? pending.length : std::min<uint64_t>(most, pending.length - sent_);
    switch (write_part(link, pending, own)) {
      case Link::Wrote::kYes:
        break;
      case Link::Wrote::kNotNow:
        count_one(statistics_.room_waits);
        return Next::kRoom;
      case Link::Wrote::kUnreadable:
        fail_in_turn(cursor_, WcStatus::kLocProtErr);
        return Next::kNothing;
      case Link::Wrote::kLost:
        return Next::kNothing;
    }
    count_one(statistics_.sent);
    context_.port_counts().sent_packet(answers ? 0 : step);
    resent_ = false;
    if (!reliable()) absent_since_ns_ = 0;
    // Without a receive the target does not take a message with immediate data yet.
    const bool waits = pending.rings || !is_sure_of_receive(pending);
    // Otherwise a near number, so that distances keep their sign.
    in_ring_ = waits ? static_cast<uint16_t>(pending.sequence + 1) : acknowledged_;
    sent_ += step;
    budget -= std::min(budget, (answers ? 0 : step) + kLineBytes);
    if (sent_ < pending.length) continue;
    pending.done = pending.done || !reliable();
    pending.again = false;
    pass_cursor();
    if (!reliable()) complete_in_order();
  }
  return Next::kNothing;
}

const Granted::Region* Requester::place_of(Pending& pending, uint64_t length) {
  const SendWr& wr = pending.wr;
  if (!pending.rings && sent_ == 0) {
    // The target executes records of the ring later than this message would be placed, so it has to have taken all of
    // them. It may have taken a message that is sent again, and its program uses the memory for something else.
    const bool is_write = wr.opcode == Opcode::kRdmaWrite || wr.opcode == Opcode::kRdmaWriteWithImm;
    pending.rings = !is_write || context_.type() != QpType::kRc || granted_.empty() || pending.length < kLeastPlaced ||
                    static_cast<int16_t>(in_ring_ - acknowledged_) > 0;
  }
  const Granted::Region* const region =
      pending.rings ? nullptr : granted_.find(wr.rkey, wr.remote_addr + sent_, sent_ == 0 ? pending.length : length);
  pending.rings = region == nullptr;
  return region;
}

Link::Wrote Requester::write_part(Link& link, Pending& pending, Acknowledgement own) {
  Record record;
  record.qp_num = remote_qpn_;
  record.source_qp = context_.number();
  record.sequence = pending.sequence;
  record.ack = own.sequence;
  record.credits = own.credits;
  record.traits = record_trait::kAcks;
  if (resent_) record.traits |= record_trait::kResent;
  if (context_.type() == QpType::kXrcSend) {
    record.traits |= record_trait::kXrc;
    record.srqn = pending.wr.remote_srqn;
  }
  record.rkey = pending.wr.rkey;
  record.address = pending.wr.remote_addr;
  record.total = static_cast<uint32_t>(pending.length);
  if (pending.is_answered() || pending.wr.opcode == Opcode::kAtomicWrite) return write_request(link, pending, record);
  const SendWr& wr = pending.wr;
  record.kind = wr.opcode == Opcode::kRdmaWrite || wr.opcode == Opcode::kRdmaWriteWithImm ? RecordKind::kWrite
                                                                                          : RecordKind::kSend;
  record.offset = static_cast<uint32_t>(sent_);
  record.length = static_cast<uint32_t>(std::min<uint64_t>(part_bytes(link), pending.length - sent_));
  if (sent_ == 0) record.flags |= record_flag::kFirst;
  if (sent_ + record.length == pending.length) {
    record.flags |= record_flag::kLast;
    record.immediate = wr.imm_or_rkey;
    if (wr.opcode == Opcode::kSendWithImm || wr.opcode == Opcode::kRdmaWriteWithImm)
      record.flags |= record_flag::kImmediate;
    if (wr.opcode == Opcode::kSendWithInv) record.flags |= record_flag::kInvalidate;
    if ((wr.flags & send_flag::kSolicited) != 0 && wr.opcode != Opcode::kRdmaWrite)
      record.flags |= record_flag::kSolicited;
  }
  const Granted::Region* const region = place_of(pending, record.length);
  if (region == nullptr && (wr.flags & send_flag::kInline) != 0)
    return link.write_own(record, inlined_of(pending) + sent_);
  base::Piece pieces[core::kMaxSge];
  uint32_t count = 0;
  if (!gather(pending, sent_, record.length, pieces, &count)) return Link::Wrote::kUnreadable;
  if (region == nullptr) return link.write(record, pieces, count);
  record.kind = RecordKind::kPlaced;
  record.grant = region->number;
  std::byte* const to = region->at + (wr.remote_addr + sent_ - region->address);
  const Link::Wrote wrote = link.place(record, to, pieces, count);
  if (wrote == Link::Wrote::kYes) count_one(statistics_.placed);
  return wrote;
}

Link::Wrote Requester::write_request(Link& link, Pending& pending, Record& record) {
  const SendWr& wr = pending.wr;
  pending.rings = true;
  if (wr.opcode == Opcode::kRdmaRead) {
    record.kind = RecordKind::kRead;
    return link.write(record, nullptr, 0);
  }
  if (wr.opcode == Opcode::kFlush) {
    const core::FlushPart flush = core::flush_of(wr);
    record.kind = RecordKind::kFlush;
    record.flush = static_cast<uint8_t>(flush.flags);
    record.address = flush.address;
    record.total = static_cast<uint32_t>(flush.length);
    return link.write(record, nullptr, 0);
  }
  record.kind = RecordKind::kAtomic;
  record.operation = wr.opcode == Opcode::kCompareSwap ? core::AtomicOp::kCompareSwap
                     : wr.opcode == Opcode::kFetchAdd  ? core::AtomicOp::kFetchAdd
                                                       : core::AtomicOp::kWrite;
  record.operand = wr.compare_add;
  record.swap = wr.swap;
  if (wr.opcode != Opcode::kAtomicWrite) return link.write(record, nullptr, 0);
  // The word is in the list, or in the request itself if the builder made the request. A list of another length is for
  // the responder to refuse.
  if (pending.length == 0) {
    record.total = core::kAtomicBytes;
  } else if (pending.length == core::kAtomicBytes) {
    base::Piece pieces[core::kMaxSge];
    uint32_t count = 0;
    if (!gather(pending, 0, core::kAtomicBytes, pieces, &count)) return Link::Wrote::kUnreadable;
    auto* to = reinterpret_cast<std::byte*>(&record.operand);
    record.operand = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const base::Piece& piece = pieces[i];
      if (piece.data != nullptr &&
          !base::try_access(piece.data, piece.length, [&] { std::memcpy(to, piece.data, piece.length); }))
        return Link::Wrote::kUnreadable;
      to += piece.length;
    }
  }
  const Link::Wrote wrote = link.write(record, nullptr, 0);
  // It is one record, whatever the length of its list.
  if (wrote == Link::Wrote::kYes) sent_ = pending.length;
  return wrote;
}

bool Requester::gather(const Pending& pending, uint64_t offset, uint64_t length, base::Piece* pieces, uint32_t* count) {
  const bool inlined = (pending.wr.flags & send_flag::kInline) != 0;
  for (uint32_t i = 0; i < pending.wr.num_sge && length > 0; ++i) {
    const Sge& sge = pending.wr.sg_list[i];
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    auto* data = reinterpret_cast<std::byte*>(sge.addr);
    if (!inlined && !context_.locate(sge, 0, &data)) return false;
    const uint64_t bytes = std::min<uint64_t>(sge.length - offset, length);
    pieces[(*count)++] = {data == nullptr ? nullptr : data + offset, bytes};
    length -= bytes;
    offset = 0;
  }
  return true;
}

bool Requester::scatter(const Pending& pending, uint64_t offset, const std::byte* data, uint64_t length) {
  for (uint32_t i = 0; i < pending.wr.num_sge && length > 0; ++i) {
    const Sge& sge = pending.wr.sg_list[i];
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    std::byte* to = nullptr;
    if (!context_.locate(sge, access::kLocalWrite, &to)) return false;
    const uint64_t bytes = std::min<uint64_t>(sge.length - offset, length);
    if (to != nullptr) {
      to += offset;
      if (!base::try_access(to, bytes, [&] { base::copy_block(to, data, bytes); })) return false;
    }
    data += bytes;
    length -= bytes;
    offset = 0;
  }
  return true;
}

void Requester::made_progress() {
  not_ready_tries_ = 0;
  absent_since_ns_ = 0;
  pauses_.reset();
}

bool Requester::acknowledge(Acknowledgement target) {
  if (failed_ || !reliable()) return true;
  const auto outstanding = static_cast<uint16_t>(next_ - acknowledged_);
  const auto more = static_cast<uint16_t>(target.sequence - acknowledged_);
  if (more > outstanding) {
    // An older acknowledgement that a newer one has overtaken is no fault.
    return static_cast<uint16_t>(acknowledged_ - target.sequence) < kWindow;
  }
  acknowledged_ = target.sequence;
  if (target.credits != 0) note_credits(kCredits[target.credits]);
  if (more == 0) return true;
  made_progress();
  complete_in_order();
  return true;
}

void Requester::note_credits(uint32_t receives) {
  if (static_cast<int32_t>(expected_ - head_) < 0) expected_ = head_;
  // The first that is not acknowledged has the number of the first receive.
  while (expected_ != tail_ && (core::is_local(at(expected_).wr.opcode) || is_acknowledged(at(expected_)))) ++expected_;
  const bool has_begun = expected_ != tail_ && at(expected_).numbered;
  const uint32_t sure = (has_begun ? at(expected_).receive : next_receive_) + receives;
  if (static_cast<int32_t>(sure - sure_receives_) > 0) sure_receives_ = sure;
}

void Requester::complete_in_order() {
  while (!failed_ && head_ != tail_) {
    const Pending& oldest = at(head_);
    if (oldest.fault != WcStatus::kSuccess) return fail(head_, oldest.fault);
    const bool is_over =
        core::is_local(oldest.wr.opcode) || oldest.is_answered() || !reliable() ? oldest.done : is_acknowledged(oldest);
    if (!is_over) return;
    if (cursor_ == head_) {
      ++cursor_;
      sent_ = 0;
    }
    ++head_;
    // Its place is used again by the next post, which needs the send lock.
    context_.complete_send(oldest.wr, oldest.position, WcStatus::kSuccess, oldest.length);
  }
}

void Requester::fail(uint32_t index, WcStatus status) {
  failed_ = true;
  // A READ before it has no response, because its target is in the error state.
  if (head_ != index) status = WcStatus::kRetryExcErr;
  const SendWr wr = at(head_).wr;
  const uint32_t position = at(head_).position;
  ++head_;
  context_.complete_send(wr, position, status, 0);
  flush();
}

void Requester::fail_in_turn(uint32_t index, WcStatus status) {
  at(index).fault = status;
  complete_in_order();
}

uint32_t Requester::find(uint16_t sequence) const {
  for (uint32_t index = head_; index != tail_; ++index) {
    const Pending& pending = at(index);
    if (pending.numbered && pending.sequence == sequence) return index;
    if (!pending.numbered && !core::is_local(pending.wr.opcode)) break;
  }
  return tail_;
}

void Requester::go_back(uint32_t index, uint64_t offset) {
  count_one(statistics_.resent);
  for (uint32_t begun = index; begun != cursor_; ++begun) at(begun).rings = true;
  if (cursor_ != tail_ && sent_ > 0) at(cursor_).rings = true;
  cursor_ = index;
  sent_ = offset < at(index).length ? offset : 0;
  resent_ = true;
  count_outstanding();
}

void Requester::answered(const Answer& answer, uint32_t part_bytes, int64_t now) {
  if (failed_ || !reliable() || idle()) return;
  // Messages before it may be absent as well.
  if (answer.outcome == Outcome::kAbsent) return absent(now);
  const auto credits = answer.outcome == Outcome::kDone ? answer.detail : uint8_t{0};
  if (!acknowledge({answer.sequence, credits})) {
    count_one(statistics_.stray);
    // The peer is in another life of the connection, or its program has given another number.
    return absent(now);
  }
  if (failed_ || answer.outcome == Outcome::kDone) return;
  const uint32_t index = find(answer.sequence);
  // A response can be given up after its request was acknowledged.
  const bool is_given_up =
      answer.outcome == Outcome::kRefused && index != tail_ && at(index).is_answered() && !at(index).done;
  if ((answer.sequence != acknowledged_ && !is_given_up) || index == tail_) {
    count_one(statistics_.stray);
    return absent(now);
  }
  if (answer.outcome == Outcome::kRefused)
    return fail(index, core::rule_of(static_cast<core::Refusal>(answer.detail)).requester);
  // While it waits, answers to records that were on their way change nothing.
  if (waits_until_ns_ != INT64_MAX) return;
  // The part that the target expects, by its number modulo kParts: the last one that was sent.
  if (context_.type() == QpType::kXrcSend) part_bytes = std::min(part_bytes, kShortPartBytes);
  const uint64_t sent = index == cursor_ ? sent_ : at(index).length;
  const uint64_t parts = sent / part_bytes;
  uint64_t part = parts / kParts * kParts + answer.part;
  if (part > parts) part = part >= kParts ? part - kParts : 0;
  const uint64_t offset = part * part_bytes;
  switch (answer.outcome) {
    case Outcome::kNotReady:
      count_one(statistics_.not_ready);
      context_.shared().counters.rnr.fetch_add(not_ready_tries_ == 0, std::memory_order_relaxed);
      if (limits_.rnr_retry != core::kRnrForEver && not_ready_tries_ >= limits_.rnr_retry)
        return fail(index, WcStatus::kRnrRetryExcErr);
      ++not_ready_tries_;
      absent_since_ns_ = 0;
      go_back(index, offset);
      return wait(now + std::max(core::rnr_timer_ns(answer.detail), kShortestRnrPauseNs));
    case Outcome::kAgain:
      // The message gets on in steps: the limit applies to the time without a step.
      if (offset != again_at_) absent_since_ns_ = 0;
      again_at_ = offset;
      go_back(index, offset);
      if (absent_since_ns_ == 0) absent_since_ns_ = now;
      if (limits_.timeout != 0 && now - absent_since_ns_ >= core::retry_limit_ns(limits_.timeout, limits_.retry_cnt))
        return fail(index, WcStatus::kRetryExcErr);
      return wait(now + pauses_.next_ns());
    case Outcome::kOutOfOrder:
      context_.port_counts().add_alone(shm::PortCount::kSequenceNaks, 1);
      return go_back(index, offset);
    default:
      return absent(now);
  }
}

void Requester::absent(int64_t now) {
  count_one(statistics_.absent);
  if (failed_ || idle() || waits_until_ns_ != INT64_MAX) return;
  if (absent_since_ns_ == 0) absent_since_ns_ = now;
  if (limits_.timeout != 0 && now - absent_since_ns_ >= core::retry_limit_ns(limits_.timeout, limits_.retry_cnt))
    return fail(head_, WcStatus::kRetryExcErr);
  // Back to the oldest message that the target has not taken. A queue pair that is absent sends no response either: a
  // READ or an atomic that waits for one is sent again, and its answer shows whether the queue pair comes back. One
  // that is there after all drops the repetition.
  uint32_t oldest = cursor_;
  for (uint32_t index = head_; index != cursor_; ++index) {
    Pending& pending = at(index);
    if (!pending.numbered) continue;
    const bool is_taken = is_acknowledged(pending);
    if (is_taken && (!pending.is_answered() || pending.done)) continue;
    pending.again = is_taken;
    if (oldest == cursor_) oldest = index;
  }
  if (oldest != tail_ && at(oldest).numbered) go_back(oldest, 0);
  wait(now + pauses_.next_ns());
}

void Requester::no_peer(int64_t now) {
  if (failed_ || idle() || paused_) return;
  if (absent_since_ns_ == 0) absent_since_ns_ = now;
  const int64_t passed = now - absent_since_ns_;
  if (!reliable()) {
    if (passed >= kUnreliableWaitNs) lose_all();
  } else if (limits_.timeout != 0 && passed >= core::retry_limit_ns(limits_.timeout, limits_.retry_cnt)) {
    fail(head_, WcStatus::kRetryExcErr);
  }
}

void Requester::peer_failed() {
  if (failed_ || idle()) return;
  if (reliable()) return fail(head_, WcStatus::kRetryExcErr);
  lose_all();
}

void Requester::lose_all() {
  absent_since_ns_ = 0;
  while (!failed_ && cursor_ != tail_) {
    Pending& pending = at(cursor_);
    if (pending.fault != WcStatus::kSuccess) return complete_in_order();
    if (core::is_local(pending.wr.opcode)) {
      if (!run_local(pending)) return;
      continue;
    }
    pending.done = true;
    pass_cursor();
    complete_in_order();
  }
}

void Requester::response(const Record& record, const Payload& payload) {
  if (failed_) return;
  const uint32_t index = find(record.sequence);
  if (index == tail_) {
    count_one(statistics_.stray);
    return;
  }
  context_.port_counts().received_packet(record.length);
  Pending& pending = at(index);
  const bool atomic = record.kind == RecordKind::kAtomicAnswer;
  // If another queue pair answers a READ that was sent again, the beginning comes again and does not fit.
  const bool reads = pending.wr.opcode == Opcode::kRdmaRead || pending.wr.opcode == Opcode::kFlush;
  const bool fits =
      !pending.done && (atomic ? core::is_atomic(pending.wr.opcode)
                               : reads && record.total == pending.length && record.offset == pending.received);
  if (!fits) {
    count_one(statistics_.stray);
    return;
  }
  // The target has taken this message, and all before it.
  acknowledge({static_cast<uint16_t>(record.sequence + 1)});
  if (failed_) return;
  uint64_t operand = record.operand;
  const Payload found{{{{reinterpret_cast<std::byte*>(&operand), core::kAtomicBytes}}}, 1};
  const Payload& answer = atomic ? found : payload;
  for (uint32_t i = 0; i < answer.count; ++i) {
    const base::Piece& piece = answer.pieces[i];
    if (!scatter(pending, pending.received, piece.data, piece.length))
      return fail_in_turn(index, WcStatus::kLocProtErr);
    pending.received += static_cast<uint32_t>(piece.length);
  }
  made_progress();
  if (!atomic && pending.received < pending.length) return;
  pending.done = true;
  count_outstanding();
  complete_in_order();
}

void Requester::on_timer(int64_t now) {
  if (now >= waits_until_ns_) waits_until_ns_ = INT64_MAX;
}

}  // namespace nupa::pool
