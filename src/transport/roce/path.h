#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>

#include "transport/roce/congestion/congestion.h"

namespace nupa::roce {

/// Round trip times of a path, smoothed as RFC 6298 does.
class RoundTrip {
 public:
  void sample(int64_t rtt_ns) {
    latest_ = rtt_ns;
    least_ = least_ == 0 ? rtt_ns : std::min(least_, rtt_ns);
    if (smoothed_ == 0) {
      smoothed_ = rtt_ns;
      variation_ = rtt_ns / 2;
      return;
    }
    const int64_t error = rtt_ns - smoothed_;
    variation_ += ((error < 0 ? -error : error) - variation_) / 4;
    smoothed_ += error / 8;
  }
  bool known() const { return smoothed_ != 0; }
  int64_t smoothed() const { return smoothed_; }
  int64_t latest() const { return latest_; }
  int64_t least() const { return least_; }
  /// After this long without a word something is lost. A thread that handles packets may be away for a scheduler's
  /// tick or two, which is no loss: hence the least value.
  int64_t timeout() const {
    constexpr int64_t kLeast = 2'000'000;
    constexpr int64_t kUnknown = 20'000'000;
    return smoothed_ == 0 ? kUnknown : std::max(smoothed_ + 4 * variation_, kLeast);
  }

 private:
  int64_t smoothed_ = 0;
  int64_t variation_ = 0;
  int64_t latest_ = 0;
  int64_t least_ = 0;
};

/// One way to the other end, as the requester sees it.
struct Path {
  RoundTrip round_trip;
  std::unique_ptr<Congestion> congestion;
  uint64_t in_flight = 0;         ///< bytes
  int64_t next_send_ns = 0;       ///< pacing
  int64_t newest_arrived_ns = 0;  ///< when the latest packet that is known to have arrived was sent

  bool has_room(uint32_t bytes) const { return in_flight == 0 || in_flight + bytes <= congestion->window(); }
  /// Accounts for a packet that leaves.
  void depart(int64_t now, uint32_t bytes) {
    in_flight += bytes;
    const uint64_t rate = congestion->rate();
    if (rate == 0) return;
    constexpr int64_t kSecond = 1'000'000'000;
    // A sender that paused may not catch up, but for a short burst.
    constexpr int64_t kBurstNs = 10'000;
    next_send_ns = std::max(next_send_ns, now - kBurstNs) +
                   static_cast<int64_t>(static_cast<unsigned __int128>(bytes) * kSecond / rate);
  }
  void settle(uint32_t bytes) { in_flight -= std::min<uint64_t>(bytes, in_flight); }
};

}  // namespace nupa::roce
