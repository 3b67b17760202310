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
    constexpr int64_t kUnknown = 20'000'000;
    return smoothed_ == 0 ? kUnknown : std::max(smoothed_ + 4 * variation_, kLeastTimeoutNs);
  }
  static constexpr int64_t kLeastTimeoutNs = 2'000'000;

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

  uint64_t unasked = 0;  ///< bytes sent since an acknowledgement was asked for last
  int64_t asked_ns = 0;  ///< when that was, or when the path came to life

  /// Whether there is nothing under way that will be answered: then one packet more, which asks, may always leave. A
  /// window that shrank below what had not asked would stay closed for ever.
  bool unanswered() const { return in_flight <= unasked; }
  bool has_room(uint32_t bytes) const { return unanswered() || in_flight + bytes <= congestion->window(); }
  /// Whether a packet of `bytes` that leaves now has to ask for an acknowledgement: answers must come before what may
  /// be under way (`most` bytes) is used up, and before silence counts as loss, however slow the path is.
  bool should_ask(int64_t now, uint32_t bytes, uint64_t most) const {
    constexpr uint64_t kAnswersPerWindow = 4;
    constexpr int64_t kMostSilenceNs = RoundTrip::kLeastTimeoutNs / 4;
    return unasked + bytes >= std::min(most, congestion->window()) / kAnswersPerWindow ||
           (in_flight != 0 && now - asked_ns >= kMostSilenceNs);
  }
  /// Of a packet that is about to depart.
  void note_ask(int64_t now, uint32_t bytes, bool asks) {
    unasked = asks ? 0 : unasked + bytes;
    if (asks || in_flight == 0) asked_ns = now;
  }
  /// Accounts for a packet that leaves.
  void depart(int64_t now, uint32_t bytes) {
    in_flight += bytes;
    const uint64_t rate = congestion->rate(now);
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
