// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/congestion/cubic.h"

#include <algorithm>
#include <cmath>

namespace nupa::roce {
namespace {

constexpr double kC = 0.4;                                   ///< packets a second cubed; RFC 9438, section 5
constexpr double kBeta = 0.7;                                ///< RFC 9438, section 4.6
constexpr double kRenoStep = 3 * (1 - kBeta) / (1 + kBeta);  ///< alpha_cubic, packets a round trip; section 4.3
constexpr double kLeastPackets = 2;                          ///< after a loss; section 4.6
constexpr double kMostGrowth = 1.5;                          ///< of the window in a round trip; section 4.4
/// A round trip that grows by an eighth ends slow start (RFC 9406, section 4.2), within bounds. The RFC's bounds of 4
/// and 16 ms are for wide-area networks. The lower bound here is above the queue that a batch of this sender causes
/// itself.
constexpr int64_t kDelayShare = 8;
constexpr int64_t kLeastDelayNs = 10'000;
constexpr int64_t kMostDelayNs = 16'000'000;

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

void Cubic::slow_start_may_end(int64_t now, int64_t rtt_ns) {
  if (now >= round_until_ns_) {
    last_least_ns_ = round_least_ns_;
    round_least_ns_ = rtt_ns;
    round_until_ns_ = now + rtt_ns;
  }
  round_least_ns_ = std::min(round_least_ns_, rtt_ns);
  if (last_least_ns_ == 0) return;
  const int64_t grown = std::clamp(last_least_ns_ / kDelayShare, kLeastDelayNs, kMostDelayNs);
  if (round_least_ns_ >= last_least_ns_ + grown) threshold_ = packets_;
}

void Cubic::sample(int64_t now, int64_t rtt_ns) {
  constexpr int64_t kSmoothing = 8;  // RFC 6298
  smoothed_ns_ += smoothed_ns_ == 0 ? rtt_ns : (rtt_ns - smoothed_ns_) / kSmoothing;
  if (packets_ < threshold_) slow_start_may_end(now, rtt_ns);
}

void Cubic::begin_epoch(int64_t now) {
  epoch_ns_ = now;
  if (peak_ < packets_) peak_ = packets_;
  k_ = std::cbrt((peak_ - packets_) / kC);
  reno_ = packets_;
}

void Cubic::avoid(int64_t now, double arrived) {
  if (epoch_ns_ == 0) begin_epoch(now);
  reno_ += (reno_ < prior_ ? kRenoStep : 1) * arrived / packets_;
  const auto curve = [this](double t) { return kC * std::pow(t - k_, 3) + peak_; };
  const double t = seconds(now - epoch_ns_);
  if (curve(t) < reno_) {
    packets_ = std::max(packets_, reno_);
    return;
  }
  const double target = std::clamp(curve(t + seconds(smoothed_ns_)), packets_, kMostGrowth * packets_);
  packets_ += (target - packets_) * arrived / packets_;
}

void Cubic::on_arrived(int64_t now, uint32_t bytes, int64_t rtt_ns, uint32_t marked) {
  if (rtt_ns > 0) sample(now, rtt_ns);
  if (marked > 0) on_mark(now);
  if (bytes == 0 || now < recovery_until_ns_) return;
  const double arrived = bytes / packet_bytes_;
  if (packets_ < threshold_)
    packets_ += arrived;
  else
    avoid(now, arrived);
  packets_ = std::min(packets_, kMostPackets);
}

void Cubic::remember_peak() {
  // Fast convergence (section 4.7): a flow whose peak is lower than before leaves room for new flows.
  peak_ = packets_ < peak_ ? packets_ * (1 + kBeta) / 2 : packets_;
  prior_ = packets_;
  threshold_ = std::max(packets_ * kBeta, kLeastPackets);
  epoch_ns_ = 0;
}

void Cubic::on_loss(int64_t now, uint32_t) {
  if (now < recovery_until_ns_) return;
  recovery_until_ns_ = now + smoothed_ns_;
  remember_peak();
  packets_ = threshold_;
}

void Cubic::on_mark(int64_t now) {
  before_.reset();
  on_loss(now, 1);
}

void Cubic::remember() { before_ = {packets_, threshold_, peak_, prior_, reno_, k_, epoch_ns_}; }

void Cubic::undo() {
  if (!before_ || before_->packets < packets_) return;
  packets_ = before_->packets;
  threshold_ = before_->threshold;
  peak_ = before_->peak;
  prior_ = before_->prior;
  reno_ = before_->reno;
  k_ = before_->k;
  epoch_ns_ = before_->epoch_ns;
  recovery_until_ns_ = 0;
}

void Cubic::on_timeout(int64_t now) {
  before_.reset();
  // Ends the recovery: the window grows again with the next arrival.
  recovery_until_ns_ = now;
  if (packets_ > 1) remember_peak();
  packets_ = 1;
}

}  // namespace nupa::roce
