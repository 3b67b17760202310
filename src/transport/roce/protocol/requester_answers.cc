// SPDX-License-Identifier: Apache-2.0
/// The requester's input: acknowledgements, responses and timeouts.
#include <algorithm>
#include <cstring>

#include "transport/roce/protocol/requester.h"
#include "base/probe.h"
#include "core/seam/timers.h"

namespace nupa::roce {
namespace {

/// Packets that may be in flight to a standard peer that has answered.
constexpr uint32_t kStandardWindowPackets = 256;

WcStatus status_of(NakCode code) {
  switch (code) {
    case NakCode::kInvalidRequest:
      return WcStatus::kRemInvReqErr;
    case NakCode::kRemoteAccess:
      return WcStatus::kRemAccessErr;
    default:
      return WcStatus::kRemOpErr;
  }
}

}  // namespace

void Requester::receive(const Packet& packet, int64_t now) {
  if (failed_ || !reliable()) return;
  doubt_ = Doubt::kNone;  // the peer is alive
  if (packet.opcode == kCnpOpcode) {
    ++counters_.notifications;
    return paths_[std::min<uint32_t>(packet.path, paths_.count() - 1)].congestion->on_notification(now);
  }
  if (packet.opcode == kPathEcho) return paths_.on_echo(packet.psn, now);
  if (packet.opcode == kSelectiveAck) return options_.mark == kNupaMark ? on_selective(packet, now) : void();
  if (service_of(packet.opcode) != options_.service) {
    ++counters_.stray;
    return;
  }
  const uint32_t traits = traits_of(packet.opcode);
  if ((traits & trait::kRead) != 0) return on_read_response(packet, now);
  if ((traits & trait::kAtomic) != 0) return on_atomic_acknowledge(packet, now);
  on_acknowledge(packet, now);
}

void Requester::note_round_trip(Path& path, int64_t rtt, uint32_t marked, int64_t now) {
  if (rtt > 0) {
    path.round_trip.sample(rtt);
    backoff_ = 0;  // Karn's rule: a packet that was sent once has measured the current round trip
  }
  path.congestion->on_arrived(now, 0, rtt, marked);
}

void Requester::settle(const Flight& entry) {
  paths_[entry.path].settle(entry.bytes);
  if (entry.state == State::kAwaited) awaited_ -= entry.bytes;
}

void Requester::arrive(Seq seq, int64_t now) {
  const Flight& entry = flight(seq);
  if (entry.state == State::kArrived) return;
  Path& path = paths_[entry.path];
  if (entry.state == State::kSent || entry.state == State::kAwaited) {
    settle(entry);
    path.arrive(now, seq, entry.bytes, entry.sent_ns);
    if (paths_.count() > 1) path.delivery.arrived(now, entry.bytes, path.round_trip.smoothed());
  }
  // The packet was late, and no repetition will follow that would show it.
  if (entry.state == State::kLost && !entry.by_silence) counters_.late += path.find_late(1, una_, send_);
  flights_.arrive(seq);
}

void Requester::advance(int64_t now) {
  const Seq before = una_;
  while (una_ < executed_ && flight(una_).state == State::kArrived) {
    flights_.rest(una_);
    ++una_;
  }
  if (una_ == before) return;
  timer_from_ = progress_ns_ = now;
  retries_ = rnr_tries_ = 0;
  if (backoff_ > 0) --backoff_;
  for (uint32_t i = 0; i < paths_.count(); ++i) {
    if (paths_[i].hole_seq <= una_) paths_[i].hole_since_ns = 0;
    paths_[i].reordering.on_progress(now, una_, paths_[i].round_trip.longest());
  }
  while (reads_popped_ != reads_pushed_ && reads_[reads_popped_ % reads_.size()] <= una_) ++reads_popped_;
  // The peer has acknowledged packets that were about to be repeated. transmit() finds the request of `send_`.
  send_ = std::max(send_, una_);
  complete_in_order();
}

void Requester::complete_in_order() {
  while (!failed_ && !queue_.empty()) {
    const Request& oldest = queue_.at(queue_.head());
    if (oldest.fault != WcStatus::kSuccess) return fail(queue_.head(), oldest.fault);
    if (oldest.packets == 0 ? !oldest.done : oldest.end() > una_) return;
    const Request request = oldest;
    if (cursor_ == queue_.head()) ++cursor_;
    asking_ -= request.answered();
    queue_.pop();
    host_.complete_send(request.wr, request.position, WcStatus::kSuccess, request.length);
  }
}

Seq Requester::acknowledge_below(Seq end, int64_t now) {
  Seq missing = end;
  executed_ = std::max(executed_, end);
  const Seq from = selective_ ? std::max(una_, settled_) : una_;
  Seq seq = from;
  while (seq < end) {
    const Request& request = queue_.at(queue_.find(seq));
    const Seq until = std::min(end, request.end());
    if (!request.answered()) {
      for (; seq < until; ++seq) arrive(seq, now);
      continue;
    }
    for (; seq < until; ++seq)
      if (flight(seq).state != State::kArrived) missing = std::min(missing, seq);
    if (!selective_ && missing != end) break;
  }
  counters_.examined += seq - from;
  settled_ = std::max(settled_, seq);
  advance(now);
  return missing;
}

void Requester::go_back(Seq seq) {
  for (Seq at = seq; at < send_; ++at) {
    const Flight& entry = flight(at);
    if (entry.state == State::kSent || entry.state == State::kAwaited) settle(entry);
    flights_.rest(at);
  }
  settled_ = std::min(settled_, seq);
  send_ = seq;
  cursor_ = queue_.find(seq);
}

void Requester::go_back_once(Seq seq, int64_t now) {
  // Packets in flight beyond `seq` cause the same answer again; the repeated packet needs its time.
  if (went_back_to_ == seq || seq >= send_) return;
  went_back_to_ = seq;
  counters_.resent_sequence += send_ - seq;
  NUPA_PROBE(retransmission, options_.dest_qpn, psn_of(seq), static_cast<uint32_t>(send_ - seq));
  paths_[0].congestion->on_go_back(now, static_cast<uint32_t>(send_ - seq));
  go_back(seq);
}

void Requester::on_acknowledge(const Packet& packet, int64_t now) {
  const Seq seq = nearest(una_, packet.psn);
  if (seq + 1 < una_ || seq >= high_) {
    ++counters_.stray;
    return;
  }
  if (packet.mark != kNupaMark) peer_window_ = std::max(peer_window_, uint64_t{kStandardWindowPackets} * options_.mtu);
  const AckKind kind = ack_kind_of(packet.syndrome);
  if (kind == AckKind::kReserved) return;
  if (kind != AckKind::kAck) {
    if (seq < una_) return;  // about a packet that was acknowledged since
    const Seq missing = acknowledge_below(seq, now);
    if (failed_) return;
    if (missing != seq && kind == AckKind::kNak && ack_value_of(packet.syndrome) == 0) {
      ++counters_.sequence_naks;
      return go_back_once(missing, now);
    }
    return on_nak(packet.syndrome, seq, now);
  }
  const Flight& entry = flight(seq);
  const bool timed = seq >= una_ && entry.state == State::kSent && !entry.resent;
  const int64_t rtt = timed ? now - entry.sent_ns : 0;
  if (timed) note_round_trip(paths_[entry.path], rtt, 0, now);
  const Seq missing = acknowledge_below(seq + 1, now);
  if (!failed_ && missing != seq + 1 && !selective_) go_back_once(missing, now);
}

void Requester::on_nak(uint8_t syndrome, Seq failing, int64_t now) {
  if (failing >= high_) return;
  if (ack_kind_of(syndrome) == AckKind::kRnrNak) {
    ++counters_.rnr_naks;
    // A packet that was repeated too early is rejected again while this side already waits: that does not count as a
    // retry.
    if (now < rnr_until_) return;
    if (limits_.rnr_retry != core::kRnrForEver && rnr_tries_ >= limits_.rnr_retry)
      return fail(queue_.find(failing), WcStatus::kRnrRetryExcErr);
    ++rnr_tries_;
    rnr_until_ = now + core::rnr_timer_ns(ack_value_of(syndrome));
    if (!selective_) return go_back(failing);
    return lose(failing);
  }
  const auto code = static_cast<NakCode>(ack_value_of(syndrome));
  if (code == NakCode::kSequence) {
    ++counters_.sequence_naks;
    if (!selective_) go_back_once(failing, now);
    return;
  }
  if (code > NakCode::kInvalidRdRequest) return;
  fail(queue_.find(failing), status_of(code));
}

void Requester::on_selective(const Packet& packet, int64_t now) {
  const Seq seq = nearest(una_, packet.psn);
  if (seq + 1 < una_ || seq >= high_) {
    ++counters_.stray;
    return;
  }
  selective_ = true;
  peer_window_ = packet.window == 0 ? UINT64_MAX : packet.window;
  const Seq trigger = nearest(una_, packet.trigger);
  int64_t rtt = 0;
  uint8_t path = 0;
  if (packet.trigger_valid && trigger >= una_ && trigger < high_) {
    const Flight& entry = flight(trigger);
    if (entry.state == State::kSent && !entry.resent) rtt = now - entry.sent_ns - packet.delay_ns;
    path = entry.path;
  }
  // An acknowledgement that others overtook counts fewer marks than are known already.
  Path& marked_path = paths_[std::min<uint32_t>(packet.trigger_path, paths_.count() - 1)];
  const auto more = static_cast<int32_t>(packet.marked - marked_path.marked_seen);
  const uint32_t marked = more > 0 ? static_cast<uint32_t>(more) : 0;
  counters_.marked += marked;
  marked_path.marked_seen += marked;
  if (rtt > 0) note_round_trip(paths_[path], rtt, 0, now);
  if (marked > 0) note_round_trip(marked_path, 0, marked, now);
  if (packet.duplicates_valid) {
    constexpr uint32_t kAbove = 8;  // the packet has 24 of 32 bits
    const auto twice = static_cast<int32_t>((packet.duplicates - duplicates_seen_) << kAbove) >> kAbove;
    if (twice > 0) {
      duplicates_seen_ = packet.duplicates;
      find_late(static_cast<uint32_t>(twice));
    }
  }
  Seq highest = seq;
  for (uint32_t word = 0; word < packet.payload_length / 4; ++word) {
    const Seq from = seq + 1 + word * 32;
    if (from >= high_) break;
    uint32_t bits;
    std::memcpy(&bits, packet.payload + word * 4, 4);
    bits = bitmap_word(bits);
    if (high_ - from < 32) bits &= (uint32_t{1} << (high_ - from)) - 1;
    if (bits != 0) highest = from + 31 - static_cast<uint32_t>(__builtin_clz(bits));
    for (bits &= ~flights_.reported(from); bits != 0; bits &= bits - 1)
      note_reported(from + static_cast<uint32_t>(__builtin_ctz(bits)), now);
  }
  acknowledge_below(seq + 1, now);
  if (failed_) return;
  // An acknowledgement without news may still be about older packets. The timer is for silence only.
  if (waits()) timer_from_ = now;
  // An acknowledgement of a repeated packet, the last one in order, reports on the packets behind it, too.
  if (highest > seq || is_overtaken(una_, now)) {
    lose_overtaken_request(seq + 1, now);
    find_lost(now);
  }
  // The packet after the last one in order is missing. If the peer had reported it as arrived, the peer found no
  // receive for it in its turn and dropped it.
  if (seq + 1 == executed_ && seq + 1 < send_ && flight(seq + 1).state == State::kArrived &&
      !queue_.at(queue_.find(seq + 1)).answered())
    lose(seq + 1);
  if (ack_kind_of(packet.syndrome) == AckKind::kRnrNak || ack_kind_of(packet.syndrome) == AckKind::kNak) {
    if (seq + 1 >= una_) on_nak(packet.syndrome, seq + 1, now);
  }
}

void Requester::note_reported(Seq seq, int64_t now) {
  ++counters_.examined;
  const Flight& entry = flight(seq);
  flights_.note_reported(seq);
  if (!queue_.at(queue_.find(seq)).answered())
    arrive(seq, now);
  else if (entry.state == State::kAwaited)
    paths_[entry.path].note_arrival(now, seq, entry.sent_ns);
}

void Requester::find_late(uint32_t packets) {
  for (uint32_t i = 0; i < paths_.count() && packets > 0; ++i) {
    const uint32_t late = paths_[i].find_late(packets, una_, send_);
    counters_.late += late;
    packets -= late;
  }
}

void Requester::lose(Seq seq, Loss loss) {
  const Flight& entry = flight(seq);
  if (entry.state == State::kIdle || entry.state == State::kLost) return;
  if (entry.state == State::kArrived)
    settled_ = std::min(settled_, seq);
  else
    settle(entry);
  flights_.lose(seq, loss == Loss::kSilence);
}

bool Requester::is_overtaken(Seq seq, int64_t now) const {
  if (seq >= send_ || flight(seq).state != State::kSent) return false;
  const Flight& entry = flight(seq);
  return paths_[entry.path].overdue_ns(seq, entry.sent_ns, entry.resent) <= now;
}

void Requester::lose_overtaken_request(Seq expected, int64_t now) {
  if (expected < una_ || expected < executed_ || expected >= send_ || flight(expected).state != State::kAwaited) return;
  const Flight first = flight(expected);
  if (paths_[first.path].overdue_ns(expected, first.sent_ns, first.resent) > now) return;
  const Seq end = std::min(read_end(expected), send_);
  for (Seq seq = expected; seq < end && flight(seq).state == State::kAwaited; ++seq) lose(seq);
}

int64_t Requester::overdue_ns(uint32_t index) const {
  const Seq seq = flights_.oldest(index, State::kSent, una_);
  return seq == Flights::kNone ? INT64_MAX : paths_[index].overdue_ns(seq, flight(seq).sent_ns, flight(seq).resent);
}

int64_t Requester::oldest_sent_ns(uint32_t index) const {
  int64_t oldest = INT64_MAX;
  for (const State state : {State::kSent, State::kAwaited})
    if (const Seq seq = flights_.oldest(index, state, una_); seq != Flights::kNone)
      oldest = std::min(oldest, flight(seq).sent_ns);
  return oldest;
}

uint32_t Requester::find_lost(uint32_t index, int64_t now) {
  Path& path = paths_[index];
  uint32_t found = 0;
  ++counters_.examined;
  for (; overdue_ns(index) <= now; ++found) lose(flights_.oldest(index, State::kSent, una_));
  if (path.is_hole_due(now)) {
    for (Seq seq = flights_.oldest(index, State::kAwaited, una_);
         seq != Flights::kNone && path.before_hole(seq, flight(seq).sent_ns);
         seq = flights_.oldest(index, State::kAwaited, una_)) {
      lose(seq);
      ++found;
    }
    path.hole_since_ns = 0;
  }
  counters_.examined += found;
  return found;
}

void Requester::find_lost(int64_t now) {
  std::array<int64_t, kMaxPaths> oldest;
  oldest.fill(INT64_MAX);
  for (uint32_t i = 0; i < paths_.count(); ++i) {
    if (const uint32_t found = find_lost(i, now); found > 0) paths_[i].lose(now, found, send_);
    oldest[i] = oldest_sent_ns(i);
  }
  if (const uint32_t dead = paths_.find_dead(oldest, now); dead != 0) leave(dead);
}

void Requester::leave(uint32_t dead) {
  for (uint32_t i = 0; i < paths_.count(); ++i) {
    if ((dead >> i & 1) == 0) continue;
    for (const State state : {State::kSent, State::kAwaited})
      for (Seq seq = flights_.oldest(i, state, una_); seq != Flights::kNone; seq = flights_.oldest(i, state, una_))
        lose(seq);
  }
}

void Requester::on_read_response(const Packet& packet, int64_t now) {
  const Seq seq = nearest(una_, packet.psn);
  if (seq < una_ || seq >= high_) {
    ++counters_.stray;
    if (seq < una_) find_late(1);
    return;
  }
  const Request& request = queue_.at(queue_.find(seq));
  // Annex A19: this is how a responder acknowledges an ATOMIC WRITE.
  if (request.wr.opcode == Opcode::kAtomicWrite && packet.payload_length == 0) return on_acknowledge(packet, now);
  const bool fits = request.wr.opcode == Opcode::kRdmaRead || request.wr.opcode == Opcode::kFlush;
  if (!fits || packet.payload_length != bytes_at(request, seq)) {
    ++counters_.stray;
    return;
  }
  const Seq missing = acknowledge_below(seq, now);
  if (failed_) return;
  if (!selective_) {
    // Responses come in order: a response that is early shows that others are lost.
    if (missing != seq) return go_back_once(missing, now);
    if (seq >= send_) return;  // sent before it was requested again
  }
  const Flight& entry = flight(seq);
  if (entry.state == State::kArrived) return find_late(1);
  if (!SendQueue::scatter(request, host_, (seq - request.first) * options_.mtu, packet.payload, packet.payload_length,
                          &next_place_))
    return fail_in_turn(queue_.find(seq), WcStatus::kLocProtErr);
  if (entry.state == State::kAwaited && !entry.resent) {
    const int64_t rtt = now - entry.sent_ns;
    // Only the first response measures a round trip: the others wait for those before them. The first response to a
    // later part of a READ waits, too, but that is this sender's own queue, which its window controls.
    const bool first = seq == request.first || begins_read(seq);
    // A response that waited at the peer for a lost packet before it does not measure one either.
    const RoundTrip& known = paths_[entry.path].round_trip;
    const bool waited = resent_ns_ >= entry.sent_ns && known.known() && rtt > known.timeout();
    if (first && !waited) note_round_trip(paths_[entry.path], rtt, 0, now);
  }
  Path& path = paths_[entry.path];
  if (seq > una_ && path.hole_since_ns == 0) path.note_hole(now, seq, entry.sent_ns);
  arrive(seq, now);
  executed_ = std::max(executed_, seq + 1);
  if (selective_) timer_from_ = now;
  advance(now);
}

void Requester::on_atomic_acknowledge(const Packet& packet, int64_t now) {
  const Seq seq = nearest(una_, packet.psn);
  if (seq < una_ || seq >= high_ || !queue_.at(queue_.find(seq)).is_atomic()) {
    ++counters_.stray;
    return;
  }
  const Seq missing = acknowledge_below(seq, now);
  if (failed_) return;
  if (!selective_) {
    if (missing != seq) return go_back_once(missing, now);
    if (seq >= send_) return;
  }
  if (flight(seq).state == State::kArrived) return;
  const Request& request = queue_.at(queue_.find(seq));
  if (!SendQueue::scatter(request, host_, 0, reinterpret_cast<const std::byte*>(&packet.found), sizeof packet.found,
                          &next_place_))
    return fail_in_turn(queue_.find(seq), WcStatus::kLocProtErr);
  arrive(seq, now);
  executed_ = std::max(executed_, seq + 1);
  advance(now);
}

bool Requester::probe_tail() {
  // The last packets or their acknowledgements are lost, or the peer is late. An answer to one more packet shows which.
  if (!selective_ || paths_.count() > 1 || flight(una_).state != State::kSent) return false;
  lose(una_, Loss::kSilence);
  return true;
}

void Requester::on_timeout(int64_t now) {
  ++counters_.timeouts;
  // While this process was stopped or had no processor it sent nothing: that time does not count as the peer's silence.
  progress_ns_ += now - (timer_from_ + timeout_ns());
  const int64_t most = core::retry_limit_ns(limits_.timeout, limits_.retry_cnt);
  const bool hopeless = selective_ ? most != 0 && now - progress_ns_ >= most : retries_ >= limits_.retry_cnt;
  if (hopeless || doubt_ == Doubt::kAsked) return fail(queue_.find(una_), WcStatus::kRetryExcErr);
  if (doubt_ == Doubt::kReported) doubt_ = Doubt::kAsked;
  timer_from_ = now;
  if (retries_++ == 0 && probe_tail()) return;
  ++backoff_;
  went_back_to_ = 0;
  for (uint32_t i = 0; i < paths_.count(); ++i) paths_[i].hole_since_ns = 0;
  paths_.silence(now);
  if (!selective_) {
    counters_.resent_timeout += send_ - una_;
    NUPA_PROBE(retransmission, options_.dest_qpn, psn_of(una_), static_cast<uint32_t>(send_ - una_));
    return go_back(una_);
  }
  for (Seq seq = una_; seq < send_; ++seq) {
    const Flight& entry = flight(seq);
    if (entry.state == State::kArrived && (seq != executed_ || queue_.at(queue_.find(seq)).answered())) continue;
    lose(seq, Loss::kSilence);
  }
}

void Requester::fail_in_turn(uint32_t index, WcStatus status) {
  queue_.at(index).fault = status;
  complete_in_order();
}

void Requester::fail(uint32_t index, WcStatus status) {
  // Requests before it are not done either, and cannot be completed any more.
  failed_ = true;
  while (!queue_.empty()) {
    const uint32_t at = queue_.head();
    const Request request = queue_.at(at);
    queue_.pop();
    host_.complete_send(request.wr, request.position, at == index ? status : WcStatus::kWrFlushErr, 0);
  }
}

}  // namespace nupa::roce
