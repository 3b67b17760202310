// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>

#include "transport/roce/protocol/sequence.h"

namespace nupa::roce {

/// How much later than a packet that was sent after it a packet of a path may arrive before it counts as lost: the
/// adaptive window of RFC 8985, section 6.2, step 4. The window grows by one step in each round trip in which packets
/// that had counted as lost turn out to be late. It shrinks by one step after kPersist recoveries without a late
/// packet.
class ReorderWindow {
 public:
  /// RFC 8985, section 6.2: RACK.reo_wnd_persist.
  static constexpr uint32_t kPersist = 16;
  /// The threads and queues of a host reorder by as much on any path.
  static constexpr int64_t kLeastNs = 10'000;

  /// `least_ns`: the least round trip, 0: not measured.
  int64_t ns(int64_t least_ns) const { return steps_ * std::max(least_ns / 4, kLeastNs); }

  /// `packets` more count as lost; they were sent before `next`. Returns true if no others are in doubt.
  bool on_lost(int64_t now, uint32_t packets, Seq next) {
    forget_what_is_over(now);
    const bool first = doubtful_ == 0;
    doubtful_ += packets;
    if (recovery_end_ == 0) recovery_end_ = next;
    forget_ns_ = INT64_MAX;
    return first;
  }
  /// All packets below `una` have arrived. `longest_ns`: as in on_duplicates().
  void on_progress(int64_t now, Seq una, int64_t longest_ns) {
    forget_what_is_over(now);
    if (recovery_end_ == 0 || una < recovery_end_) return;
    recovery_end_ = 0;
    // A needless repetition arrives after the packet that it repeats.
    forget_ns_ = now + 2 * longest_ns;
    if (--persist_ != 0) return;
    steps_ = std::max<int64_t>(steps_ - 1, 1);
    persist_ = kPersist;
  }
  /// Returns how many of `packets` that arrived twice had counted as lost on this path. `longest_ns`: the longest
  /// recent round trip. The window does not grow beyond it, since a packet that is later than that has waited for
  /// something else.
  uint32_t on_duplicates(uint32_t packets, Seq una, Seq next, int64_t least_ns, int64_t longest_ns) {
    const uint32_t late = std::min(packets, doubtful_);
    if (late == 0) return 0;
    doubtful_ -= late;
    persist_ = kPersist;
    if (una >= round_end_) {
      round_end_ = next;
      if (ns(least_ns) < longest_ns) ++steps_;
    }
    return late;
  }
  bool in_doubt() const { return doubtful_ != 0; }

 private:
  void forget_what_is_over(int64_t now) {
    if (now >= forget_ns_) doubtful_ = 0;
  }

  int64_t steps_ = 1;              ///< RACK.reo_wnd_mult
  uint32_t persist_ = kPersist;    ///< recoveries until the window shrinks
  uint32_t doubtful_ = 0;          ///< packets that count as lost and may turn out to be late
  Seq round_end_ = 0;              ///< RACK.dsack_round: the window does not grow again before
  Seq recovery_end_ = 0;           ///< 0: nothing is being recovered
  int64_t forget_ns_ = INT64_MAX;  ///< packets in doubt count as lost from then on
};

}  // namespace nupa::roce
