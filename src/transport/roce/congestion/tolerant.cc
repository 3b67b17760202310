#include "transport/roce/congestion/tolerant.h"

#include <algorithm>

namespace nupa::roce {
namespace {

/// BBRLossThresh.
constexpr double kLossShare = 0.02;
/// Of so many packets, or so many windows if that is more: chance must not look like congestion.
constexpr double kLossesOf = 256;
constexpr double kLossesOfWindows = 4;

}  // namespace

double Tolerant::lot() const {
  return std::max(kLossesOf, kLossesOfWindows * static_cast<double>(cubic_.window()) / packet_bytes_);
}

void Tolerant::on_arrived(int64_t now, uint32_t bytes, int64_t rtt_ns, uint32_t marked) {
  if (bytes > 0) timeouts_ = 0;
  arrived_ += bytes / packet_bytes_;
  if (arrived_ + lost_ > lot()) arrived_ = lost_ = 0;
  cubic_.on_arrived(now, bytes, rtt_ns, marked);
}

void Tolerant::on_loss(int64_t now, uint32_t packets) {
  lost_ += packets;
  if (lost_ < kLossShare * lot() || lost_ <= kLossShare * (lost_ + arrived_)) return;
  arrived_ = lost_ = 0;
  cubic_.on_loss(now, packets);
}

void Tolerant::on_timeout(int64_t now) {
  if (++timeouts_ > 1) cubic_.on_timeout(now);
}

}  // namespace nupa::roce
