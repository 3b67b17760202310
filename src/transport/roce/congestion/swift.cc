#include "transport/roce/congestion/swift.h"

#include <algorithm>
#include <cmath>

namespace nupa::roce {
namespace {

/// What the queues on the way may add to the least round trip, all flows together. The paper's base target, which
/// stands for the whole delay there.
constexpr double kBaseTargetNs = 25'000;
/// On a long way this share of it, if that is more: answers come four a window (Path::should_ask), so a sender's own
/// bursts queue for up to a quarter of a round trip.
constexpr double kBaseTargetShare = 1.0 / 4;
// Flow scaling (section 3.5): N flows' queue varies like sqrt(N), and windows are like 1 / N; so the target grows
// with 1 / sqrt(window), from nothing at kScalingMost packets to kScalingRangeNs at kScalingLeast.
constexpr double kScalingLeast = 0.1;                  ///< packets
constexpr double kScalingMost = 100;                   ///< packets
constexpr double kScalingRangeNs = 4 * kBaseTargetNs;  ///< left open by the paper
// The paper names these and gives no values; they are what public simulations of it use (htsim).
constexpr double kIncrease = 1.0;  ///< ai: packets a round trip
/// After so many round trips without a queue the increase is larger (Mittal et al., "TIMELY", SIGCOMM 2015, section
/// 4.3: hyperactive increase), so that a wide window comes back from a moment's delay.
constexpr uint32_t kCalmRoundTrips = 5;
constexpr double kCalmIncrease = 5.0;
constexpr double kBeta = 0.8;             ///< of the excess of delay
constexpr double kMostDecrease = 0.5;     ///< max_mdf
constexpr double kLeastPackets = 0.01;    ///< min_cwnd
constexpr uint32_t kTimeoutsToReset = 5;  ///< RETX_RESET_THRESHOLD
/// A least round trip so old is looked for again, with this share of the window under way, for so many round trips: one
/// to drain, one to see, one as not all begin at once. That costs all flows one to two hundredths of the link.
constexpr int64_t kLeastAgeNs = 10'000'000;
constexpr int64_t kLeastAgeRoundTrips = 100;
constexpr double kDrainShare = 1.0 / 8;
constexpr int64_t kDrainRoundTrips = 4;
constexpr double kLeastDrained = 1.0 / kDrainRoundTrips;  ///< packets: one in that time, to see anything
/// A round trip so little longer is the least one seen again.
constexpr int64_t kAgain = 64;
/// More losses than these are congestion though there is no delay: a queue that was full when this flow came looks like
/// a long way. BBRLossThresh of draft-ietf-ccwg-bbr, of so many packets.
constexpr double kLossShare = 0.02;
constexpr double kLossesOf = 256;
/// Of so many windows if that is more, since a wide one comes back slowly: chance must not halve it.
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
  // A link that loses at random, or a queue that has been full ever since this flow came. A look tells.
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
