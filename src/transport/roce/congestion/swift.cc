// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/congestion/swift.h"

#include <algorithm>
#include <cmath>

namespace nupa::roce {
namespace {

/// The delay that all flows together may add to the least round trip by queues. This is the paper's base target, which
/// stands for the whole delay there.
constexpr double kBaseTargetNs = 25'000;
/// On a long path the target adds this share of the least round trip, if that is more. Four acknowledgements come per
/// window (Path::should_ask), so a sender's own batches queue for up to a quarter of a round trip.
constexpr double kBaseTargetShare = 1.0 / 4;
// Flow scaling (section 3.5): the queue of N flows varies like sqrt(N), and windows are like 1 / N. The target
// therefore grows with 1 / sqrt(window), from nothing at kScalingMost packets to kScalingRangeNs at kScalingLeast.
constexpr double kScalingLeast = 0.1;                  ///< packets
constexpr double kScalingMost = 100;                   ///< packets
constexpr double kScalingRangeNs = 4 * kBaseTargetNs;  ///< left open by the paper
// The paper names these and gives no values; the values are those of public simulations of it (htsim).
constexpr double kIncrease = 1.0;  ///< ai: packets a round trip
/// After this many round trips without a queue the increase is larger (Mittal et al., "TIMELY", SIGCOMM 2015, section
/// 4.3: hyperactive increase), so that a wide window recovers from a moment's delay.
constexpr uint32_t kCalmRoundTrips = 5;
constexpr double kCalmIncrease = 5.0;
constexpr double kBeta = 0.8;             ///< share of the excess delay
constexpr double kMostDecrease = 0.5;     ///< max_mdf
constexpr double kLeastPackets = 0.01;    ///< min_cwnd
constexpr uint32_t kTimeoutsToReset = 5;  ///< RETX_RESET_THRESHOLD
/// A least round trip of this age is measured again, with this share of the window in flight, for this many round
/// trips: one to drain, one to measure, and the rest because not all flows begin at once. That costs all flows one to
/// two hundredths of the link.
constexpr int64_t kLeastAgeNs = 10'000'000;
constexpr int64_t kLeastAgeRoundTrips = 100;
constexpr double kDrainShare = 1.0 / 8;
constexpr int64_t kDrainRoundTrips = 4;
constexpr double kLeastDrained = 1.0 / kDrainRoundTrips;  ///< packets: one in that time, to get a sample
/// A round trip that is longer by at most 1 / kAgain confirms the least one.
constexpr int64_t kAgain = 64;
/// A larger share of losses is congestion even without delay: a queue that was full when this flow started looks like a
/// long path. The share is BBRLossThresh of draft-ietf-ccwg-bbr, counted over this many packets.
constexpr double kLossShare = 0.02;
constexpr double kLossesOf = 256;
/// Losses are counted over this many windows if that is more. A wide window recovers slowly, so chance must not halve
/// it.
constexpr double kLossesOfWindows = 4;

constexpr int64_t least_age(int64_t rtt_ns) { return std::max(kLeastAgeNs, kLeastAgeRoundTrips * rtt_ns); }

}  // namespace

double Swift::target_ns() const {
  const double most = 1 / std::sqrt(kScalingLeast);
  const double least = 1 / std::sqrt(kScalingMost);
  const double scale = kScalingRangeNs / (most - least);
  const double flows = scale * (1 / std::sqrt(packets_) - least);
  const auto least_round_trip = static_cast<double>(least_ns_);
  return least_round_trip + std::max(kBaseTargetNs, kBaseTargetShare * least_round_trip) +
         std::clamp(flows, 0.0, kScalingRangeNs);
}

void Swift::decrease(int64_t now, double factor) {
  if (now - decreased_ns_ < delay_ns_) return;
  decreased_ns_ = now;
  calm_ = 0;
  packets_ = std::max(packets_ * factor, kLeastPackets);
}

void Swift::drain(int64_t now) {
  draining_ = true;
  drained_ns_ = delay_ns_;
  drain_until_ns_ = now + kDrainRoundTrips * delay_ns_;
}

void Swift::stand(int64_t now, int64_t rtt_ns) {
  if (now >= half_until_ns_) {
    half_until_ns_ = now + rtt_ns / 2;
    last_half_ns_ = this_half_ns_ == 0 ? rtt_ns : this_half_ns_;
    this_half_ns_ = rtt_ns;
  }
  this_half_ns_ = std::min(this_half_ns_, rtt_ns);
  delay_ns_ = std::min(this_half_ns_, last_half_ns_);
}

void Swift::sample(int64_t now, int64_t rtt_ns) {
  stand(now, rtt_ns);
  timeouts_ = 0;
  if (least_ns_ == 0 || rtt_ns <= least_ns_ + least_ns_ / kAgain) {
    least_ns_ = least_ns_ == 0 ? rtt_ns : std::min(least_ns_, rtt_ns);
    least_at_ns_ = now;
  }
  if (draining_) {
    drained_ns_ = std::min(drained_ns_, rtt_ns);
    if (now < drain_until_ns_) return;
    draining_ = false;
    least_ns_ = drained_ns_;
    least_at_ns_ = now;
  } else if (now - least_at_ns_ >= least_age(rtt_ns)) {
    drain(now);
  }
}

void Swift::on_arrived(int64_t now, uint32_t bytes, int64_t rtt_ns, uint32_t) {
  const double arrived = bytes / packet_bytes_;
  arrived_ += arrived;
  const double losses_of = std::max(kLossesOf, kLossesOfWindows * packets_);
  if (arrived_ + lost_ > losses_of) lost_ = arrived_ = 0;
  if (rtt_ns > 0) sample(now, rtt_ns);
  if (delay_ns_ == 0 || draining_) return;
  const auto delay = static_cast<double>(delay_ns_);
  const double target = target_ns();
  if (delay > target) {
    calm_ = 0;
    before_.reset();
    if (rtt_ns > 0) decrease(now, std::max(1 - kBeta * (delay - target) / delay, 1 - kMostDecrease));
    return;
  }
  if (now >= calm_until_ns_) {
    calm_until_ns_ = now + delay_ns_;
    ++calm_;
  }
  const double increase = calm_ > kCalmRoundTrips && packets_ > kCalmIncrease ? kCalmIncrease : kIncrease;
  packets_ += packets_ < 1 ? arrived : increase * arrived / packets_;
  packets_ = std::min(packets_, kMostPackets);
}

void Swift::on_loss(int64_t now, uint32_t packets) {
  lost_ += packets;
  if (delay_ns_ == 0 || draining_) return;
  const double losses_of = std::max(kLossesOf, kLossesOfWindows * packets_);
  const bool many = lost_ >= kLossShare * losses_of && lost_ > kLossShare * (lost_ + arrived_);
  if (many || static_cast<double>(delay_ns_) > target_ns()) {
    lost_ = arrived_ = 0;
    decrease(now, 1 - kMostDecrease);
  }
  // Either the link loses at random, or the queue has been full since this flow started. Draining shows which.
  if (now - drain_until_ns_ >= least_age(delay_ns_)) drain(now);
}

void Swift::remember() { before_ = {packets_, lost_, drain_until_ns_, draining_}; }

void Swift::undo() {
  if (!before_) return;
  packets_ = std::max(packets_, before_->packets);
  lost_ = std::min(lost_, before_->lost);
  if (!draining_ || before_->draining) return;
  draining_ = false;
  drain_until_ns_ = before_->drain_until_ns;
}

void Swift::on_timeout(int64_t now) {
  before_.reset();
  draining_ = false;
  if (++timeouts_ >= kTimeoutsToReset)
    packets_ = kLeastPackets;
  else
    decrease(now, 1 - kMostDecrease);
}

double Swift::allowed_packets() const {
  return draining_ ? std::max(packets_ * kDrainShare, std::min(packets_, kLeastDrained)) : packets_;
}

uint64_t Swift::window() const { return static_cast<uint64_t>(std::max(allowed_packets(), 1.0) * packet_bytes_); }

uint64_t Swift::rate(int64_t) {
  const double packets = allowed_packets();
  if (packets >= 1 || delay_ns_ == 0) return 0;
  constexpr double kSecond = 1e9;
  return static_cast<uint64_t>(std::max(packets * packet_bytes_ * kSecond / static_cast<double>(delay_ns_), 1.0));
}

}  // namespace nupa::roce
