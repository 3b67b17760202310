// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "transport/roce/congestion/cubic.h"

namespace nupa::roce {

/// For a network about which nothing is known. The receiver's room is the limit until more than 2 % of the packets are
/// lost, the threshold of BBR (draft-ietf-ccwg-bbr, BBRLossThresh). Each such event shrinks the window as CUBIC does
/// (RFC 9438). Fewer losses are taken for a link that loses at random. A network that loses nothing is used whole at
/// once, and a queue that overflows is overrun only until the losses are known. Round trips do not count, since a busy
/// host makes them long without any queue.
class Tolerant final : public Congestion {
 public:
  explicit Tolerant(uint32_t packet_bytes) : packet_bytes_(packet_bytes), cubic_(packet_bytes, kMostPackets) {}

  std::string_view name() const override { return "tolerant"; }
  void on_arrived(int64_t now, uint32_t bytes, int64_t rtt_ns, uint32_t marked) override;
  void on_loss(int64_t now, uint32_t packets) override;
  void remember() override;
  void undo() override;
  /// They count as lost: towards a standard peer each loss soon shrinks the window, as in CUBIC.
  void on_go_back(int64_t now, uint32_t packets) override { on_loss(now, packets); }
  /// A single timeout is ignored: a descheduled thread may be its cause.
  void on_timeout(int64_t now) override;
  void on_notification(int64_t now) override { cubic_.on_notification(now); }
  uint64_t window() const override { return cubic_.window(); }
  /// Paces packets on long paths, so that held-back packets overrun no queue.
  uint64_t rate(int64_t now) override;

 private:
  /// The number of packets among which losses are counted.
  double lot() const;

  const double packet_bytes_;
  Cubic cubic_;
  double arrived_ = 0;  ///< packets that arrived of this lot
  double lost_ = 0;
  double lost_before_ = 0;  ///< lost_ at the last remember()
  uint32_t timeouts_ = 0;   ///< consecutive ones without an arrival
  int64_t least_ns_ = 0;    ///< the least of all round trips
};

}  // namespace nupa::roce
