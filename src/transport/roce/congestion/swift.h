// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>

#include "transport/roce/congestion/congestion.h"

namespace nupa::roce {

/// Swift (Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter", SIGCOMM 2020).
/// The window grows by one packet per round trip while the round trip is shorter than a target. It shrinks in
/// proportion to the excess, at most once per round trip. Nothing is needed from switches. A window below one packet is
/// enforced by pacing.
///
/// Differences from the paper: The network's own delay is not configured; it is the least recent round trip. A flow
/// that starts while there is a queue would take the queue for the network's delay. A flow that has not seen its least
/// round trip for long therefore drains its packets in flight for a moment, as BBR does (Cardwell et al., "BBR:
/// Congestion-Based Congestion Control", ACM Queue 2016). Other flows see the shorter queue too, and count from then.
/// So all flows come to drain at the same time, and see the empty network. Losses without delay are taken for a link
/// that loses at random: the paper halves the window for them, this does not.
class Swift final : public Congestion {
 public:
  explicit Swift(uint32_t packet_bytes) : packet_bytes_(packet_bytes) {}

  std::string_view name() const override { return "swift"; }
  void on_arrived(int64_t now, uint32_t bytes, int64_t rtt_ns, uint32_t marked) override;
  void on_loss(int64_t now, uint32_t packets) override;
  void remember() override;
  void undo() override;
  void on_timeout(int64_t now) override;
  void on_notification(int64_t) override {}
  uint64_t window() const override;
  uint64_t rate(int64_t now) override;

 private:
  /// The paper gives no value. With the ten packets of RFC 6928, flows that start together would not see the empty
  /// network.
  static constexpr double kFirstPackets = 2;

  struct Remembered {
    double packets;
    double lost;
    int64_t drain_until_ns;
    bool draining;
  };

  double target_ns() const;
  double allowed_packets() const;
  /// Begins to measure the least round trip again.
  void drain(int64_t now);
  void sample(int64_t now, int64_t rtt_ns);
  /// Updates the standing round trip, the least of about one round trip's samples. A queue shows in all of them, a
  /// descheduled thread only in some (Arun and Balakrishnan, "Copa", NSDI 2018, section 2.2).
  void stand(int64_t now, int64_t rtt_ns);
  /// Multiplies the window by `factor`, unless it was decreased within this round trip.
  void decrease(int64_t now, double factor);

  const double packet_bytes_;
  double packets_ = kFirstPackets;  ///< cwnd
  int64_t least_ns_ = 0;            ///< 0: not known
  int64_t delay_ns_ = 0;            ///< the standing round trip
  int64_t least_at_ns_ = 0;         ///< when the least was last seen
  int64_t decreased_ns_ = 0;
  int64_t drain_until_ns_ = 0;
  int64_t half_until_ns_ = 0;  ///< end of half a round trip; the least of it and of the half before are kept
  int64_t this_half_ns_ = 0;
  int64_t last_half_ns_ = 0;
  int64_t drained_ns_ = 0;  ///< the least round trip while draining
  bool draining_ = false;
  double arrived_ = 0;  ///< packets that arrived of the last few
  double lost_ = 0;
  std::optional<Remembered> before_;  ///< the state before losses that may be late packets
  uint32_t calm_ = 0;                 ///< consecutive round trips without a queue
  int64_t calm_until_ns_ = 0;
  uint32_t timeouts_ = 0;  ///< consecutive ones without an arrival
};

}  // namespace nupa::roce
