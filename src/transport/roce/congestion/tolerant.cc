// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/congestion/tolerant.h"

#include <algorithm>

namespace nupa::roce {
namespace {

/// BBRLossThresh of draft-ietf-ccwg-bbr.
constexpr double kLossShare = 0.02;
/// Losses are counted over this many packets, or this many windows if that is more: chance must not look like
/// congestion.
constexpr double kLossesOf = 256;
constexpr double kLossesOfWindows = 4;
/// Shorter paths are not paced: there a queue is refilled before it runs dry, and batches of packets cost less.
constexpr int64_t kFarNs = 2'000'000;
/// Faster than packets arrive, so that the window is used.
constexpr double kPaceGain = 1.25;

}  // namespace

double Tolerant::lot() const {
  return std::max(kLossesOf, kLossesOfWindows * static_cast<double>(cubic_.window()) / packet_bytes_);
}

void Tolerant::on_arrived(int64_t now, uint32_t bytes, int64_t rtt_ns, uint32_t marked) {
  if (bytes > 0) timeouts_ = 0;
  if (rtt_ns > 0) least_ns_ = least_ns_ == 0 ? rtt_ns : std::min(least_ns_, rtt_ns);
  arrived_ += bytes / packet_bytes_;
  if (arrived_ + lost_ > lot()) arrived_ = lost_ = 0;
  cubic_.on_arrived(now, bytes, rtt_ns, marked);
}

uint64_t Tolerant::rate(int64_t) {
  if (least_ns_ < kFarNs) return 0;
  constexpr double kNsPerSecond = 1e9;
  const auto window = static_cast<double>(cubic_.window());
  return static_cast<uint64_t>(kPaceGain * window * kNsPerSecond / static_cast<double>(cubic_.round_trip_ns()));
}

void Tolerant::on_loss(int64_t now, uint32_t packets) {
  lost_ += packets;
  if (lost_ < kLossShare * lot() || lost_ <= kLossShare * (lost_ + arrived_)) return;
  arrived_ = lost_ = 0;
  cubic_.on_loss(now, packets);
}

void Tolerant::remember() {
  lost_before_ = lost_;
  cubic_.remember();
}

void Tolerant::undo() {
  lost_ = std::min(lost_, lost_before_);
  cubic_.undo();
}

void Tolerant::on_timeout(int64_t now) {
  if (++timeouts_ > 1) cubic_.on_timeout(now);
}

}  // namespace nupa::roce
