// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>

#include "transport/roce/congestion/congestion.h"

namespace nupa::roce {

/// CUBIC (RFC 9438). The window fills the queue at the bottleneck until a packet is lost or marked, then falls to 0.7
/// of its size. It grows back along a cubic curve, or as fast as Reno's if that is faster, which is the case in a data
/// centre. Slow start ends when the round trip grows (RFC 9406). For networks that drop and do not mark, and for links
/// shared with TCP.
class Cubic final : public Congestion {
 public:
  explicit Cubic(uint32_t packet_bytes, double first_packets = kFirstPackets)
      : packet_bytes_(packet_bytes), packets_(first_packets) {}

  std::string_view name() const override { return "cubic"; }
  void on_arrived(int64_t now, uint32_t bytes, int64_t rtt_ns, uint32_t marked) override;
  void on_loss(int64_t now, uint32_t packets) override;
  void remember() override;
  /// See RFC 9438, section 4.9.2.
  void undo() override;
  void on_timeout(int64_t now) override;
  /// A NUPA peer's acknowledgements report the same marks, but a standard peer's acknowledgements report none.
  void on_notification(int64_t now) override { on_mark(now); }
  uint64_t window() const override { return static_cast<uint64_t>(packets_ * packet_bytes_); }
  uint64_t rate(int64_t) override { return 0; }
  /// Smoothed; 0 if none was measured.
  int64_t round_trip_ns() const { return smoothed_ns_; }

 private:
  static constexpr double kFirstPackets = 10;  ///< RFC 6928

  struct Remembered {
    double packets;
    double threshold;
    double peak;
    double prior;
    double reno;
    double k;
    int64_t epoch_ns;
  };

  void on_mark(int64_t now);
  void sample(int64_t now, int64_t rtt_ns);
  void slow_start_may_end(int64_t now, int64_t rtt_ns);
  void avoid(int64_t now, double arrived);
  void begin_epoch(int64_t now);
  /// Saves what the curve needs after an event of congestion. The caller sets the window itself.
  void remember_peak();

  const double packet_bytes_;
  double packets_;                   ///< cwnd
  double threshold_ = kMostPackets;  ///< ssthresh
  double peak_ = 0;                  ///< W_max
  double prior_ = 0;                 ///< cwnd_prior
  double reno_ = 0;                  ///< W_est
  double k_ = 0;                     ///< K, seconds from the epoch's start to the peak
  int64_t epoch_ns_ = 0;             ///< when the epoch began; 0: none since the last event
  int64_t recovery_until_ns_ = 0;    ///< losses until then are of the same event
  int64_t smoothed_ns_ = 0;
  std::optional<Remembered> before_;  ///< the state before losses that may be late packets

  int64_t round_until_ns_ = 0;
  int64_t round_least_ns_ = 0;  ///< least of this round trip's samples
  int64_t last_least_ns_ = 0;   ///< least of the round trip before
};

}  // namespace nupa::roce
