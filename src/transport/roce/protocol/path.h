// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "transport/roce/congestion/congestion.h"
#include "transport/roce/protocol/reorder_window.h"
#include "transport/roce/protocol/sequence.h"

namespace nupa::roce {

/// Round trip times of a path, smoothed as in RFC 6298.
class RoundTrip {
 public:
  void sample(int64_t rtt_ns) {
    latest_ = rtt_ns;
    longest_ = std::max(rtt_ns, longest_ - (longest_ - rtt_ns) / 64);
    least_ = least_ == 0 ? rtt_ns : std::min(least_, rtt_ns);
    if (smoothed_ == 0) {
      smoothed_ = rtt_ns;
      variation_ = rtt_ns / 2;
      return;
    }
    const int64_t error = rtt_ns - smoothed_;
    variation_ += ((error < 0 ? -error : error) - variation_) / 4;
    smoothed_ += error / 8;
  }
  bool known() const { return smoothed_ != 0; }
  int64_t smoothed() const { return smoothed_; }
  int64_t variation() const { return variation_; }
  int64_t latest() const { return latest_; }
  int64_t least() const { return least_; }
  /// The longest recent one: longer ones are forgotten in about sixty samples.
  int64_t longest() const { return longest_; }
  /// After this time without an answer, something counts as lost. A thread that handles packets may be descheduled for
  /// one or two ticks, which is no loss; kLeastTimeoutNs therefore is the clock's granularity (G of RFC 6298).
  int64_t timeout() const {
    constexpr int64_t kUnknown = 20'000'000;
    return smoothed_ == 0 ? kUnknown : smoothed_ + std::max(4 * variation_, kLeastTimeoutNs);
  }
  static constexpr int64_t kLeastTimeoutNs = 2'000'000;

 private:
  int64_t smoothed_ = 0;
  int64_t variation_ = 0;
  int64_t latest_ = 0;
  int64_t least_ = 0;
  int64_t longest_ = 0;
};

/// The delivery rate of a path: the best of the last round trips. It is forgotten slowly, since a path with little to
/// do delivers little.
class DeliveryRate {
 public:
  /// The path was idle: packets that arrive from now on are measured.
  void restart(int64_t now) {
    since_ns_ = now;
    arrived_ = 0;
  }
  void arrived(int64_t now, uint32_t bytes, int64_t round_trip_ns) {
    arrived_ += bytes;
    const int64_t took = now - since_ns_;
    if (took < std::max(round_trip_ns, kLeastNs) || arrived_ < kLeastBytes) return;
    const double sample = static_cast<double>(arrived_) / static_cast<double>(took);
    rate_ = std::max(sample, rate_ * kForget);
    restart(now);
  }
  /// Bytes per nanosecond; 0: not measured yet.
  double rate() const { return rate_; }

 private:
  static constexpr int64_t kLeastNs = 100'000;
  static constexpr uint64_t kLeastBytes = 16'384;
  static constexpr double kForget = 0.9;
  int64_t since_ns_ = 0;
  uint64_t arrived_ = 0;
  double rate_ = 0;
};

/// One path to the peer, as the requester sees it.
struct Path {
  enum class Health : uint8_t {
    kUnproven,  ///< no packet is known to have passed
    kAlive,
    kDead,  ///< its packets did not arrive while those of other paths did
  };
  RoundTrip round_trip;
  DeliveryRate delivery;
  std::unique_ptr<Congestion> congestion;
  Health health = Health::kUnproven;
  uint64_t in_flight = 0;         ///< bytes
  int64_t next_send_ns = 0;       ///< pacing
  uint64_t pace = 0;              ///< bytes a second, 0: not paced
  int64_t newest_arrived_ns = 0;  ///< when the newest packet that has arrived was sent
  Seq newest_arrived = 0;         ///< the highest number of those sent at that time
  int64_t newest_known_ns = 0;    ///< when its arrival became known
  int64_t heard_ns = 0;           ///< when an arrival last became known
  ReorderWindow reordering;

  uint64_t unasked = 0;      ///< bytes sent since the last request for an acknowledgement
  int64_t asked_ns = 0;      ///< time of that request, or when the path began to be used
  uint32_t marked_seen = 0;  ///< packets that met a congested queue, as the peer counts

  // READ responses come in the order in which they were requested. If one came before others: since when, which one,
  // and when it was requested.
  int64_t hole_since_ns = 0;
  Seq hole_seq = 0;
  int64_t hole_sent_ns = 0;

  int64_t next_probe_ns = 0;
  int64_t probe_sent_ns = 0;
  uint32_t probe = 0;  ///< token of the last probe
  uint32_t probes_unanswered = 0;

  /// True if no packet in flight will be answered. One more packet, which requests an acknowledgement, may then always
  /// leave. Otherwise a window that shrank below the unasked bytes would stay closed for ever.
  bool unanswered() const { return in_flight <= unasked; }
  bool has_room(uint32_t bytes) const { return unanswered() || in_flight + bytes <= congestion->window(); }
  /// True if a packet of `bytes` that leaves now has to request an acknowledgement. Acknowledgements must come before
  /// the `most` bytes that may be in flight are used up, and before silence counts as loss, however slow the path is.
  bool should_ask(int64_t now, uint32_t bytes, uint64_t most) const {
    constexpr uint64_t kAnswersPerWindow = 4;
    constexpr int64_t kMostSilenceNs = RoundTrip::kLeastTimeoutNs / 4;
    return unasked + bytes >= std::min(most, congestion->window()) / kAnswersPerWindow ||
           (in_flight != 0 && now - asked_ns >= kMostSilenceNs);
  }
  /// Called for a packet that is about to depart.
  void note_ask(int64_t now, uint32_t bytes, bool asks) {
    unasked = asks ? 0 : unasked + bytes;
    if (asks || in_flight == 0) asked_ns = now;
  }
  /// Accounts for a packet that leaves.
  void depart(int64_t now, uint32_t bytes) {
    if (in_flight == 0) delivery.restart(now);
    in_flight += bytes;
    pace = congestion->rate(now);
    if (pace == 0) return;
    // A sender that paused may catch up only by a short burst.
    constexpr int64_t kBurstNs = 10'000;
    next_send_ns = std::max(next_send_ns, now - kBurstNs) +
                   static_cast<int64_t>(static_cast<unsigned __int128>(bytes) * base::kNsPerSecond / pace);
  }
  void settle(uint32_t bytes) { in_flight -= std::min<uint64_t>(bytes, in_flight); }
  void note_arrival(int64_t now, Seq seq, int64_t sent_ns) {
    if (sent_ns < newest_arrived_ns || (sent_ns == newest_arrived_ns && seq <= newest_arrived)) return;
    newest_arrived_ns = sent_ns;
    newest_arrived = seq;
    newest_known_ns = now;
  }
  /// The packet `seq` has arrived. It has `bytes`, was sent at `sent_ns`, and is settled.
  void arrive(int64_t now, Seq seq, uint32_t bytes, int64_t sent_ns) {
    note_arrival(now, seq, sent_ns);
    heard_ns = now;
    congestion->on_arrived(now, bytes, 0, 0);
  }
  void note_hole(int64_t now, Seq seq, int64_t sent_ns) {
    hole_since_ns = now;
    hole_seq = seq;
    hole_sent_ns = sent_ns;
  }
  bool is_hole_due(int64_t now) const { return hole_since_ns != 0 && now >= hole_since_ns + reorder_ns(); }
  /// True if a response that was requested at `sent_ns` should have come before the noted one.
  bool before_hole(Seq seq, int64_t sent_ns) const {
    return sent_ns < hole_sent_ns || (sent_ns == hole_sent_ns && seq < hole_seq);
  }
  /// How much later than a packet that was sent after it a packet may arrive before it counts as lost.
  int64_t reorder_ns() const { return reordering.ns(round_trip.least()); }
  /// Returns when a packet that was sent at `sent_ns` counts as lost, if it is not acknowledged before. INT64_MAX: no
  /// packet that was sent later has arrived. 0 (at once): one has arrived that was sent later by more than the
  /// reordering window. Otherwise it counts as lost when its own round trip and the window are over (RFC 8985, section
  /// 6.2, step 5). `again`: it was sent before, and not in the order of the numbers.
  int64_t overdue_ns(Seq seq, int64_t sent_ns, bool again) const {
    if (sent_ns + reorder_ns() < newest_arrived_ns) return 0;
    const bool overtaken =
        sent_ns < newest_arrived_ns || (sent_ns == newest_arrived_ns && seq < newest_arrived && !again);
    // The newest packet's round trip alone is not enough: acknowledgements have paths of unequal length, too.
    const int64_t rtt = std::max(newest_known_ns - newest_arrived_ns, round_trip.smoothed());
    return overtaken ? sent_ns + rtt + reorder_ns() + 1 : INT64_MAX;
  }
  /// `packets` were overtaken and count as lost; they were sent before `next`.
  void lose(int64_t now, uint32_t packets, Seq next) {
    if (reordering.on_lost(now, packets, next)) congestion->remember();
    congestion->on_loss(now, packets);
  }
  /// `packets` have arrived twice. Returns how many of them had counted as lost on this path.
  uint32_t find_late(uint32_t packets, Seq una, Seq next) {
    const uint32_t late = reordering.on_duplicates(packets, una, next, round_trip.least(), round_trip.longest());
    if (late > 0 && !reordering.in_doubt()) congestion->undo();
    return late;
  }
  /// The path counts as dead if nothing arrives for this time while other paths deliver.
  int64_t death_ns() const {
    constexpr int64_t kLeast = 200'000;
    return std::max(3 * round_trip.smoothed() + 4 * round_trip.variation(), kLeast);
  }
  /// Estimates when a packet of `bytes` would arrive if it were sent now: packets in flight go first.
  double delivery_ns(uint32_t bytes) const {
    const auto least = static_cast<double>(round_trip.least());
    if (delivery.rate() == 0) return least;
    return least + static_cast<double>(in_flight + bytes) / delivery.rate();
  }
};

}  // namespace nupa::roce
