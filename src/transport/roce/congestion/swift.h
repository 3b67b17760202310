#pragma once
#include <optional>

#include "transport/roce/congestion/congestion.h"

namespace nupa::roce {

/// Swift (Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter", SIGCOMM 2020):
/// a window that grows by a packet a round trip while the round trip is shorter than a target, and shrinks by what it
/// is longer, at most once a round trip. Needs nothing from switches. A window below one packet is kept by pacing.
///
/// Differences from the paper: the network's own delay is not configured but the least round trip seen lately. Flows
/// that came to a queue would take it for the network, so one that has not seen its least for long drains what it has
/// under way for a moment, as BBR does (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 2016).
/// Others see the shorter queue too and count from then: so all come to drain together, and see the empty network.
/// Losses without delay are not congestion but a link that loses at random: the paper halves for them, this does not.
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
  /// The paper gives none. With the ten of RFC 6928, flows that start together would not see the empty network.
  static constexpr double kFirstPackets = 2;

  struct Remembered {
    double packets;
    double lost;
    int64_t drain_until_ns;
    bool draining;
  };

  double target_ns() const;
  double allowed_packets() const;
  /// Looks for the least round trip anew.
  void drain(int64_t now);
  void sample(int64_t now, int64_t rtt_ns);
  /// The least round trip of the last one or so: a queue shows in all of them, a thread that was away in some (Arun and
  /// Balakrishnan, "Copa", NSDI 2018, section 2.2).
  void stand(int64_t now, int64_t rtt_ns);
  /// Times `factor`, unless that was done within this round trip.
  void decrease(int64_t now, double factor);

  const double packet_bytes_;
  double packets_ = kFirstPackets;  ///< cwnd
  int64_t least_ns_ = 0;            ///< 0: no round trip known
  int64_t delay_ns_ = 0;            ///< the standing round trip
  int64_t least_at_ns_ = 0;         ///< when the least was seen last
  int64_t decreased_ns_ = 0;
  int64_t drain_until_ns_ = 0;
  int64_t half_until_ns_ = 0;  ///< half a round trip ends, of which the least is kept, and of the one before
  int64_t this_half_ns_ = 0;
  int64_t last_half_ns_ = 0;
  int64_t drained_ns_ = 0;  ///< the least round trip of this draining
  bool draining_ = false;
  double arrived_ = 0;  ///< packets, of the last few
  double lost_ = 0;
  std::optional<Remembered> before_;  ///< losses that may have been none
  uint32_t calm_ = 0;                 ///< round trips in a row without a queue
  int64_t calm_until_ns_ = 0;
  uint32_t timeouts_ = 0;  ///< without an answer between
};

}  // namespace nupa::roce
