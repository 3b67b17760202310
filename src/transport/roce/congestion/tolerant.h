#pragma once
#include "transport/roce/congestion/cubic.h"

namespace nupa::roce {

/// For a way of which nothing is known: all that the receiver has room for may be under way until more than 2 % are
/// lost, the threshold of BBR (draft-ietf-ccwg-bbr, BBRLossThresh), and then again and again what CUBIC (RFC 9438)
/// makes of such an event. Losses below are a link's that loses at random. A network that loses nothing is used whole
/// at once, a queue that overflows is not overrun for longer than it takes to hear of it, and round trips do not
/// matter, which a busy host makes long without any queue.
class Tolerant final : public Congestion {
 public:
  explicit Tolerant(uint32_t packet_bytes) : packet_bytes_(packet_bytes), cubic_(packet_bytes, kMostPackets) {}

  std::string_view name() const override { return "tolerant"; }
  void on_arrived(int64_t now, uint32_t bytes, int64_t rtt_ns, uint32_t marked) override;
  void on_loss(int64_t now, uint32_t packets) override;
  void remember() override;
  void undo() override;
  /// They are as good as lost: towards a standard peer it soon minds each loss, as CUBIC does.
  void on_go_back(int64_t now, uint32_t packets) override { on_loss(now, packets); }
  /// One alone may be a thread that was away.
  void on_timeout(int64_t now) override;
  void on_notification(int64_t now) override { cubic_.on_notification(now); }
  uint64_t window() const override { return cubic_.window(); }
  /// Where the other end is far: what has been held back goes no faster than this, and overruns no queue.
  uint64_t rate(int64_t now) override;

 private:
  /// Packets, of which losses are counted.
  double lot() const;

  const double packet_bytes_;
  Cubic cubic_;
  double arrived_ = 0;  ///< packets of this lot
  double lost_ = 0;
  double lost_before_ = 0;  ///< when remember() was called
  uint32_t timeouts_ = 0;   ///< in a row
  int64_t least_ns_ = 0;    ///< of all round trips
};

}  // namespace nupa::roce
