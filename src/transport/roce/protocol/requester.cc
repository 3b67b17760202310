// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/protocol/requester.h"
#include "base/probe.h"

#include <algorithm>

#include "core/seam/timers.h"
#include "core/seam/whole_message.h"

namespace nupa::roce {
namespace {

/// Packets in flight before the peer has answered: hundreds of queue pairs may begin to fill its socket at once.
constexpr uint32_t kFirstWindowPackets = 4;
constexpr uint32_t kMaxFragments = 64;
constexpr Seq kFewResponses = 16;
/// The least time for an answer of a peer whose port is reported as closed: it may only wait for a processor.
constexpr int64_t kDoubtNs = 200'000'000;
/// The same if no round trip is known.
constexpr int64_t kUnknownWayNs = 1'000'000'000;

uint64_t left(uint64_t most, uint64_t used) { return most - std::min(most, used); }

Operation message_operation(const Request& request, bool first, bool last) {
  const bool write = request.wr.opcode == Opcode::kRdmaWrite || request.wr.opcode == Opcode::kRdmaWriteWithImm;
  const bool imm = request.wr.opcode == Opcode::kSendWithImm || request.wr.opcode == Opcode::kRdmaWriteWithImm;
  if (request.wr.opcode == Opcode::kSendWithInv && last)
    return first ? Operation::kSendOnlyInv : Operation::kSendLastInv;
  if (write) {
    if (!last) return first ? Operation::kWriteFirst : Operation::kWriteMiddle;
    if (first) return imm ? Operation::kWriteOnlyImm : Operation::kWriteOnly;
    return imm ? Operation::kWriteLastImm : Operation::kWriteLast;
  }
  if (!last) return first ? Operation::kSendFirst : Operation::kSendMiddle;
  if (first) return imm ? Operation::kSendOnlyImm : Operation::kSendOnly;
  return imm ? Operation::kSendLastImm : Operation::kSendLast;
}

}  // namespace

Requester::Requester(Host& host, const RequesterOptions& options)
    : host_(host),
      options_(options),
      queue_(options.max_wr, options.max_sge, options.max_inline, options.mtu, first_seq(options.first_psn)),
      flights_(options.service != Service::kUc),
      paths_(options.congestion, options.mtu + kBthBytes + kIcrcBytes),
      cursor_(0),
      una_(first_seq(options.first_psn)),
      send_(una_),
      high_(una_),
      settled_(una_),
      executed_(una_),
      peer_window_(uint64_t{kFirstWindowPackets} * options.mtu) {}

bool Requester::has_started(const Request& request) const {
  return request.packets == 0 ? request.done : high_ > request.first;
}

void Requester::pause(bool paused) {
  paused_ = paused;
  // Requests that have sent a packet continue to their end. After a go-back these may be requests behind the cursor.
  pause_at_ = cursor_;
  while (pause_at_ != queue_.tail() && has_started(queue_.at(pause_at_))) ++pause_at_;
}

bool Requester::drained() const {
  if (failed_ || queue_.empty()) return true;
  return paused_ && queue_.head() == pause_at_;
}

void Requester::flush() {
  failed_ = true;
  while (!queue_.empty()) {
    const Request request = queue_.at(queue_.head());
    queue_.pop();
    host_.complete_send(request.wr, request.position, WcStatus::kWrFlushErr, 0);
  }
}

uint32_t Requester::bytes_at(const Request& request, Seq seq) const {
  const uint64_t offset = (seq - request.first) * options_.mtu;
  return static_cast<uint32_t>(std::min<uint64_t>(options_.mtu, request.length - std::min(offset, request.length)));
}

Packet Requester::packet_for(const Request& request, Seq seq) const {
  Packet packet;
  packet.mark = options_.mark;
  packet.pkey = options_.pkey;
  packet.dest_qpn = options_.dest_qpn;
  packet.psn = psn_of(seq);
  packet.srqn = request.wr.remote_srqn;
  return packet;
}

bool Requester::fenced(const Request& request) const {
  return (request.wr.flags & send_flag::kFence) != 0 && reads_outstanding() > 0;
}

bool Requester::may_start(const Request& request) const {
  if (fenced(request)) return false;
  return !request.answered() || reads_outstanding() < max_rd_atomic_;
}

int Requester::pick_path(const Request& request, uint32_t bytes, int64_t now) {
  if (!reliable()) return 0;
  // The response has to find room here.
  const bool answered = request.answered();
  if (bytes > left(answered ? response_room_ : room_, answered ? awaited_bytes() : sent_bytes())) {
    starved_ = answered ? Starved::kResponses : Starved::kSends;
    return -1;
  }
  return paths_.pick(bytes, answered ? UINT64_MAX : peer_window_, now, &pacing_until_);
}

void Requester::note_sent(Seq seq, uint32_t bytes, uint32_t path, State state, int64_t now) {
  if (!waits() && seq >= send_) timer_from_ = progress_ns_ = now;
  const bool again = seq < high_;
  high_ = std::max(high_, seq + 1);
  if (!reliable()) return;
  flights_.send(seq, now, bytes, path, state, again);
  if (state == State::kAwaited) awaited_ += bytes;
  paths_[path].depart(now, bytes);
}

uint32_t Requester::send_message_packet(const Request& request, Seq seq, bool again, uint32_t path, int64_t now,
                                        Output& output) {
  const SendWr& wr = request.wr;
  const bool first = seq == request.first;
  const bool last = seq + 1 == request.end();
  Packet packet = packet_for(request, seq);
  packet.payload_length = bytes_at(request, seq);
  Fragment fragments[kMaxFragments];
  uint32_t count = 0;
  if (wr.opcode == Opcode::kAtomicWrite) {
    packet.opcode = opcode_of(options_.service, Operation::kAtomicWrite);
    packet.length = sizeof wr.compare_add;
    // A list of another length is sent as it is, for the responder to reject.
    if (request.length == 0) {
      packet.payload_length = sizeof wr.compare_add;
      fragments[0] = {reinterpret_cast<const std::byte*>(&wr.compare_add), sizeof wr.compare_add};
      count = 1;
    }
  } else {
    packet.opcode = opcode_of(options_.service, message_operation(request, first, last));
    packet.length = static_cast<uint32_t>(request.length);
  }
  if (count == 0 && packet.payload_length > 0) {
    count = queue_.gather(request, host_, (seq - request.first) * options_.mtu, packet.payload_length, fragments);
    if (count == 0) {
      fail_in_turn(queue_.find(seq), WcStatus::kLocProtErr);
      return 0;
    }
  }
  packet.address = wr.remote_addr;
  packet.rkey = wr.rkey;
  packet.imm = wr.imm_or_rkey;
  packet.invalidate = wr.imm_or_rkey;
  packet.solicited = last && (wr.flags & send_flag::kSolicited) != 0;
  const uint32_t bytes = packet.payload_length + kBthBytes + kIcrcBytes;
  packet.ack_request = reliable() && (last || again || seq % kAckEvery == kAckEvery - 1 ||
                                      paths_[path].should_ask(now, bytes, peer_window_share()) ||
                                      left(room_, sent_bytes()) < 2 * uint64_t{bytes});
  switch (output.send(static_cast<uint8_t>(path), packet, fragments, count)) {
    case Sent::kYes:
      break;
    case Sent::kNotNow:
      return 0;
    case Sent::kUnreadable:
      fail_in_turn(queue_.find(seq), WcStatus::kLocProtErr);
      return 0;
  }
  paths_[path].note_ask(now, bytes, packet.ack_request);
  note_sent(seq, bytes, path, State::kSent, now);
  return 1;
}

bool Requester::begins_read(Seq seq) const {
  // The last completed request counts, too: the next one begins at its end.
  for (uint32_t i = reads_popped_ == 0 ? 0 : reads_popped_ - 1; i != reads_pushed_; ++i)
    if (reads_[i % reads_.size()] == seq) return true;
  return false;
}

Seq Requester::read_end(Seq seq) const {
  for (uint32_t i = reads_popped_; i != reads_pushed_; ++i)
    if (const Seq end = reads_[i % reads_.size()]; end > seq) return end;
  return high_;
}

uint32_t Requester::send_read(const Request& request, Seq seq, bool again, uint32_t path, int64_t now, Output& output) {
  // A part that was requested before is requested within its old bounds, so that the count of outstanding requests
  // stays right. The responder would drop a request for ever that began before the expected number and ended after it.
  Seq end = std::min<Seq>(request.end(), seq + (paths_.count() > 1 ? kStripedPackets : kReadPackets));
  if (seq < high_) end = std::min(end, read_end(seq));
  if (selective_ && again) {
    end = seq + 1;
    // If the request itself was lost, several parts of it would be more requests than may be outstanding. Packets that
    // a go-back covered before the peer was known are idle.
    const State missing = seq < send_ ? State::kLost : State::kIdle;
    while (end < request.end() && end < high_ && end - seq < kReadPackets && flight(end).state == missing) ++end;
    end = std::min(end, read_end(seq));
  }
  end = std::min<Seq>(end, una_ + kWindow);
  if (!again) {
    // The responses have to find room here, and a request for a few responses is not worth a round trip.
    const uint64_t room =
        std::min(left(response_room_, awaited_), left(paths_[path].congestion->window(), paths_[path].in_flight));
    const Seq fits = std::max<Seq>(room / (options_.mtu + kBthBytes + kIcrcBytes), paths_[path].in_flight == 0 ? 1 : 0);
    if (fits < std::min<Seq>(end - seq, kFewResponses) && paths_[path].in_flight != 0) return 0;
    end = std::min(end, seq + fits);
  }
  const uint64_t offset = (seq - request.first) * options_.mtu;
  Packet packet = packet_for(request, seq);
  packet.opcode = opcode_of(options_.service, Operation::kReadRequest);
  packet.address = request.wr.remote_addr + offset;
  packet.rkey = request.wr.rkey;
  packet.length = static_cast<uint32_t>(
      std::min<uint64_t>(request.length - offset, uint64_t{static_cast<uint32_t>(end - seq)} * options_.mtu));
  packet.ack_request = true;
  if (output.send(static_cast<uint8_t>(path), packet, nullptr, 0) != Sent::kYes) return 0;
  if (seq >= high_) reads_[reads_pushed_++ % reads_.size()] = end;
  for (Seq at = seq; at < end; ++at)
    note_sent(at, bytes_at(request, at) + kBthBytes + kIcrcBytes, path, State::kAwaited, now);
  return static_cast<uint32_t>(end - seq);
}

uint32_t Requester::send_atomic(const Request& request, Seq seq, uint32_t path, int64_t now, Output& output) {
  const SendWr& wr = request.wr;
  const bool swap = wr.opcode == Opcode::kCompareSwap;
  Packet packet = packet_for(request, seq);
  packet.opcode = opcode_of(options_.service, swap ? Operation::kCompareSwap : Operation::kFetchAdd);
  packet.address = wr.remote_addr;
  packet.rkey = wr.rkey;
  packet.swap_or_add = swap ? wr.swap : wr.compare_add;
  packet.compare = swap ? wr.compare_add : 0;
  packet.ack_request = true;
  if (output.send(static_cast<uint8_t>(path), packet, nullptr, 0) != Sent::kYes) return 0;
  if (seq >= high_) reads_[reads_pushed_++ % reads_.size()] = seq + 1;
  note_sent(seq, kMaxHeaderBytes, path, State::kAwaited, now);
  return 1;
}

uint32_t Requester::send_flush(const Request& request, Seq seq, uint32_t path, int64_t now, Output& output) {
  const core::FlushPart flush = core::flush_of(request.wr);
  Packet packet = packet_for(request, seq);
  packet.opcode = opcode_of(options_.service, Operation::kFlush);
  packet.address = flush.address;
  packet.rkey = flush.rkey;
  packet.length = static_cast<uint32_t>(flush.length);
  packet.flush = flush.flags;
  // A standard peer that does not answer may be rdma_rxe. The two forms of the CRC take turns until one is answered.
  if (seq == una_ && seq < high_ && !selective_) flush_as_rxe_ = !flush_as_rxe_;
  packet.crc_as_rxe = flush_as_rxe_;
  packet.ack_request = true;
  if (output.send(static_cast<uint8_t>(path), packet, nullptr, 0) != Sent::kYes) return 0;
  if (seq >= high_) reads_[reads_pushed_++ % reads_.size()] = seq + 1;
  note_sent(seq, kBthBytes + kIcrcBytes, path, State::kAwaited, now);
  return 1;
}

uint32_t Requester::send_at(uint32_t index, Seq seq, bool again, int64_t now, Output& output) {
  const Request& request = queue_.at(index);
  const int path = pick_path(request, bytes_at(request, seq) + kBthBytes + kIcrcBytes, now);
  if (path < 0) return 0;
  const auto chosen = static_cast<uint32_t>(path);
  if (again) resent_ns_ = now;
  if (request.wr.opcode == Opcode::kRdmaRead) return send_read(request, seq, again, chosen, now, output);
  if (request.wr.opcode == Opcode::kFlush) return send_flush(request, seq, chosen, now, output);
  if (request.is_atomic()) return send_atomic(request, seq, chosen, now, output);
  return send_message_packet(request, seq, again, chosen, now, output);
}

bool Requester::run_local(uint32_t index) {
  Request& request = queue_.at(index);
  if (!request.done) {
    if (fenced(request)) return false;
    const WcStatus status = host_.run_local(request.wr);
    if (status != WcStatus::kSuccess) {
      fail_in_turn(index, status);
      return false;
    }
    request.done = true;
  }
  ++cursor_;
  complete_in_order();
  return true;
}

void Requester::transmit_probes(int64_t now, Output& output) {
  Packet packet;
  packet.mark = options_.mark;
  packet.pkey = options_.pkey;
  packet.dest_qpn = options_.dest_qpn;
  paths_.transmit_probes(now, packet, output);
}

bool Requester::transmit(int64_t now, Output& output, uint32_t budget) {
  pacing_until_ = 0;
  starved_ = Starved::kNo;
  if (paths_.count() > 1 && !failed_ && !queue_.empty()) transmit_probes(now, output);
  for (; budget > 0; --budget) {
    if (failed_ || now < rnr_until_) return false;
    if (flights_.lost() > 0) {
      const Seq seq = flights_.first_lost(una_);
      uint64_t& resent = flight(seq).by_silence ? counters_.resent_timeout : counters_.resent_selective;
      if (send_at(queue_.find(seq), seq, true, now, output) == 0) return false;
      ++counters_.packets;
      ++resent;
      NUPA_PROBE(retransmission, options_.dest_qpn, psn_of(seq), 1u);
      continue;
    }
    if (cursor_ == queue_.tail() || (paused_ && cursor_ == pause_at_)) return false;
    const Request& request = queue_.at(cursor_);
    if (request.fault != WcStatus::kSuccess) {
      complete_in_order();
      return false;
    }
    if (request.packets == 0) {
      if (!run_local(cursor_)) return false;
      continue;
    }
    if (send_ >= request.end()) {
      ++cursor_;
      continue;
    }
    if (reliable() && send_ - una_ >= kWindow) return false;
    const bool fresh = send_ >= high_;
    if (!fresh && flight(send_).state == State::kArrived) {
      if (!waits()) timer_from_ = progress_ns_ = now;
      ++send_;
      continue;
    }
    if (fresh && request.answered() && max_rd_atomic_ == 0) {
      fail_in_turn(cursor_, WcStatus::kLocQpOpErr);
      return false;
    }
    if (fresh && (send_ == request.first || request.answered()) && !may_start(request)) return false;
    const uint32_t sent = send_at(cursor_, send_, !fresh, now, output);
    if (sent == 0) return false;
    ++counters_.packets;
    send_ += sent;
    if (!reliable()) {
      una_ = send_;
      if (send_ == request.end()) ++cursor_;
      complete_in_order();
    }
  }
  return true;
}

bool Requester::is_under_way(uint32_t psn) const {
  const Seq seq = nearest(una_, psn);
  return waits() && seq >= una_ && seq < high_;
}

void Requester::doubt_peer() {
  if (waits() && doubt_ == Doubt::kNone) doubt_ = Doubt::kReported;
}

int64_t Requester::doubt_ns() const {
  const int64_t given = core::ack_timeout_ns(limits_.timeout);
  if (!selective_ || !paths_.measured()) return given == 0 ? kUnknownWayNs : given;
  return std::max(paths_.timeout(), given == 0 ? kDoubtNs : std::min(given, kDoubtNs));
}

int64_t Requester::timeout_ns() const {
  const int64_t given = core::ack_timeout_ns(limits_.timeout);
  if (doubt_ != Doubt::kNone && (doubt_ == Doubt::kAsked || given == 0)) return doubt_ns();
  // The first repetition comes soon; a silent peer may wait for a processor.
  if (!selective_) return given * std::min(int64_t{1} << std::min(retries_, 8u), core::kMostTimeouts);
  constexpr uint32_t kMostBackoff = 6;
  int64_t timeout = paths_.timeout();
  // While nothing is measured, the program's timeout may be better. Otherwise its retry limits could be reached before
  // a single repetition.
  if (!paths_.measured() && given != 0) timeout = std::min(timeout, given);
  const int64_t longer = timeout << std::min(backoff_, kMostBackoff);
  // It is not slower than the standard's pace either; otherwise the retry limits would be reached after few
  // repetitions.
  return given == 0 ? longer : std::min(longer, std::max(timeout, given));
}

int64_t Requester::deadline() const {
  if (failed_ || queue_.empty()) return INT64_MAX;
  int64_t when = INT64_MAX;
  if (rnr_until_ != 0) {
    when = rnr_until_;
  } else if (waits()) {
    if (const int64_t timeout = timeout_ns(); timeout != 0) when = timer_from_ + timeout;
    for (uint32_t i = 0; i < paths_.count(); ++i) {
      if (const Path& path = paths_[i]; path.hole_since_ns != 0)
        when = std::min(when, path.hole_since_ns + path.reorder_ns());
      when = std::min(when, overdue_ns(i));
    }
    when = std::min(when, paths_.look_deadline());
  }
  when = std::min(when, paths_.deadline());
  if (pacing_until_ != 0) when = std::min(when, pacing_until_);
  return when;
}

void Requester::on_timer(int64_t now) {
  if (failed_ || queue_.empty()) return;
  if (rnr_until_ != 0) {
    if (now < rnr_until_) return;
    rnr_until_ = 0;
    timer_from_ = progress_ns_ = now;
  }
  if (!waits()) return;
  bool due = paths_.is_look_due(now);
  for (uint32_t i = 0; i < paths_.count(); ++i) due = due || paths_[i].is_hole_due(now) || overdue_ns(i) <= now;
  if (due) find_lost(now);
  const int64_t timeout = timeout_ns();
  if (timeout != 0 && now >= timer_from_ + timeout) on_timeout(now);
}

}  // namespace nupa::roce
