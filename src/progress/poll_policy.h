// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace nupa::progress {

/// What a port's thread sees of the threads that poll in its place. Counters only grow.
struct PollsSeen {
  int64_t at_ns;
  uint64_t polls;    ///< by threads of the program
  uint64_t packets;  ///< that they brought
};

/// While threads of the program poll, the port's thread looks from time to time whether they still do. Such a look
/// takes a core away for as long as a message takes. Pollers put it off as long as this is true of what was seen when
/// they did so last and of what is seen now.
constexpr bool needs_no_look(const PollsSeen& before, const PollsSeen& now) {
  // A program that polls more seldom leaves packets waiting, and the thread may have to take them.
  constexpr int64_t kDenseNs = 25'000;
  const bool dense = now.polls - before.polls >= static_cast<uint64_t>((now.at_ns - before.at_ns) / kDenseNs);
  // Polls that bring nothing for long may be of a program that needs no packets: it is not to pay for looking.
  return dense && now.packets != before.packets;
}

/// Whether a thread that waits for an event looks for packets before it sleeps. One thread's.
///
/// To be woken on a core that has fallen asleep costs 25 us, more than most answers take. But a look is of no use where
/// answers take longer, and harmful where the peer waits for this very core, which a yield does not always give to a
/// program of another control group. So it is by what came of the looks before: after one in which nothing came the
/// thread sleeps at once the next time, then the next two times, and so on.
class LookPolicy {
 public:
  /// A peer that sleeps is woken, and answers: after that neither has to sleep any more.
  static constexpr int64_t kLookNs = 50'000;
  static constexpr uint32_t kMostSkipped = 256;

  /// Before a sleep.
  bool looks() {
    if (left_ == 0) return true;
    --left_;
    return false;
  }
  /// How the look ended: packets or the event came, or nothing.
  void looked(bool found) {
    skipped_ = found ? 0 : skipped_ == 0 ? 1 : skipped_ < kMostSkipped ? 2 * skipped_ : kMostSkipped;
    left_ = skipped_;
  }

 private:
  uint32_t skipped_ = 0;
  uint32_t left_ = 0;
};

}  // namespace nupa::progress
