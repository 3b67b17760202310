// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>

/// The decisions of threads that wait for packets, as functions of counters and of the time. This file reads no clock,
/// does not wait, and uses no socket, so tables of cases test all of it.

namespace nupa::progress {

/// The serving thread's view of the threads that poll in its place. Counters only grow.
struct PollsSeen {
  int64_t at_ns;
  uint64_t polls;    ///< polls by threads of the program
  uint64_t packets;  ///< packets that they brought
};

/// While threads of the program poll, the serving thread checks from time to time whether they still do. Such a check
/// takes a core for as long as a message takes. Pollers put it off as long as this function is true for the counters
/// when they did so last and the counters now.
constexpr bool needs_no_look(const PollsSeen& before, const PollsSeen& now) {
  // A program that polls less often leaves packets waiting, and the serving thread may have to take them.
  constexpr int64_t kDenseNs = 25'000;
  const bool dense = now.polls - before.polls >= static_cast<uint64_t>((now.at_ns - before.at_ns) / kDenseNs);
  // If polls bring no packets for long, the program may need none, and should not pay for looking.
  return dense && now.packets != before.packets;
}

/// True if a thread that polls memory yields after this many empty polls in a row: first after many, because they take
/// less than a round trip between two cores, and then again after fewer.
constexpr bool yields_after_empty_polls(uint32_t polls) {
  constexpr uint32_t kFirst = 1024, kEvery = 128;
  return polls >= kFirst && polls % kEvery == 0;
}

/// Decides the next step after a look for packets. One thread at a time.
class PollPolicy {
 public:
  /// A few packets at a time are a program's ping-pong: its reply is sent first, and the acknowledgement after it.
  static constexpr uint32_t kFewPackets = 2;

  enum class Step : uint8_t {
    kReturn,        ///< nothing arrived: the program polls again at once
    kProgramFirst,  ///< the program goes first; its next poll does the rest
    kWork,          ///< acknowledgements, timers, and queue pairs that wait for room
  };
  struct Look {
    bool for_program;  ///< the look was by a thread of the program that polls
    uint32_t packets;  ///< packets that it brought
    bool owed;         ///< acknowledgements were owed before the look
    bool streams;      ///< the last packets were part of a stream
    bool others_wait;  ///< queue pairs wait for room, or for a timer
  };
  Step after(const Look& look) {
    if (!look.for_program) return Step::kWork;
    if (look.packets > 0)
      return look.packets <= kFewPackets && !look.streams && !look.others_wait ? Step::kProgramFirst : Step::kWork;
    // Reading the clock in each empty poll would be a large part of the poll's cost.
    return look.owed || ++empty_polls_ % kPollsAClock == 0 ? Step::kWork : Step::kReturn;
  }

  /// True if this thread should yield: another thread was receiving at each of its last `polls` polls, and may wait for
  /// its core.
  static constexpr bool yields_to_receiver(uint32_t polls) { return polls % kShutOutPolls == 0; }

 private:
  /// Empty polls before the timers are checked.
  static constexpr uint32_t kPollsAClock = 8;
  static constexpr uint32_t kShutOutPolls = 32;

  uint32_t empty_polls_ = 0;
};

/// The rules of the serving thread: it takes packets itself, or leaves them to polling threads of the program and
/// checks whether they still poll. If they leave packets waiting in several checks in a row, it takes packets beside
/// them for a while. Used by one thread.
class ThreadPolicy {
 public:
  /// While threads of the program poll, the thread checks at least this often whether they still do.
  static constexpr int64_t kLongestWatchNs = 1'000'000;
  /// After this time the serving thread takes a packet that the polling program has not taken.
  static constexpr int64_t kWaitedNs = 40'000;

  enum class Step : uint8_t {
    kSleepForPackets,  ///< packets, kicks and timers wake it
    kSleepForTimers,   ///< the program takes the packets
  };
  struct Seen {
    uint64_t polls;        ///< polls by threads of the program, since the beginning
    uint64_t slept_after;  ///< polls before a thread went to sleep; 0: none ever did
  };
  /// Begins a turn.
  Step begin(const Seen& seen) {
    polled_ = seen.polls != polls_ && seen.polls > seen.slept_after + kLastPolls;
    polls_ = seen.polls;
    announces_sleep_ = seen.slept_after != 0;
    watches_ = polled_ && dedicated_turns_ == 0;
    return watches_ ? Step::kSleepForTimers : Step::kSleepForPackets;
  }
  /// The time when its sleep ends without being woken. `earliest_ns`: the earliest expected deadline. INT64_MAX: never.
  int64_t sleeps_until(int64_t earliest_ns, int64_t now) const {
    if (!watches_) return earliest_ns;
    const int64_t wait = std::max<int64_t>(earliest_ns - now, 0);
    return now + std::max(std::min(wait, watch_ns_), kShortestWatchNs);
  }
  /// True if it stays awake after it has worked. Not beside a program that polls, whose own thread may need this core.
  bool lingers(bool streams) const { return streams && !polled_; }

  struct Turn {
    int64_t slept_at_ns;  ///< when its sleep began
    uint64_t packets;     ///< packets since the beginning
    bool left;            ///< packets waited that no polling thread took
    bool worked;          ///< there was something to do
  };
  /// Ends a turn. True: polls have brought nothing for so long that the program should not pay for them.
  bool end(const Turn& turn) {
    if (watches_) return end_watch(turn);
    quiet_since_ns_ = 0;
    watch_ns_ = kWatchNs;
    if (dedicated_turns_ > 0 && --dedicated_turns_ == 0) {
      // The serving thread still receives packets.
      if (turn.worked)
        dedicated_turns_ = kDedicatedTurns;
      else
        waiting_turns_ = 0;
    }
    return false;
  }

 private:
  /// The interval of checks at first. It grows if programs have polled for long, because each check disturbs a poller
  /// on the same core. There is no check while pollers put it off.
  static constexpr int64_t kWatchNs = 250'000;
  static constexpr int64_t kShortestWatchNs = kWatchNs / 4;
  /// Polls that a thread still does after it has announced its sleep: one for each queue that it armed.
  static constexpr uint64_t kLastPolls = 4;
  /// Turns in which packets had waited, before the thread waits for packets itself beside the pollers.
  static constexpr int kWaitingTurns = 3;
  static constexpr int kDedicatedTurns = 64;
  /// After this time without a packet only the serving thread waits for the next one.
  static constexpr int64_t kQuietNs = 100'000'000;

  bool end_watch(const Turn& turn) {
    // A program that polls rarely leaves packets waiting: then they are worth a wake-up.
    if (packets_ != turn.packets || quiet_since_ns_ == 0) quiet_since_ns_ = turn.slept_at_ns;
    packets_ = turn.packets;
    // A program that announces its sleep takes packets once it has its core again.
    waiting_turns_ = turn.left && turn.worked && !announces_sleep_ ? waiting_turns_ + 1 : 0;
    watch_ns_ = turn.left ? kWatchNs : std::min(2 * watch_ns_, kLongestWatchNs);
    if (waiting_turns_ >= kWaitingTurns) dedicated_turns_ = kDedicatedTurns;
    return turn.slept_at_ns - quiet_since_ns_ >= kQuietNs;
  }

  uint64_t polls_ = 0;
  uint64_t packets_ = 0;
  bool polled_ = false;   ///< threads of the program have polled since the turn before
  bool watches_ = false;  ///< in this turn it leaves packets to the pollers
  bool announces_sleep_ = false;
  int64_t watch_ns_ = kWatchNs;
  int64_t quiet_since_ns_ = 0;
  int waiting_turns_ = 0;  ///< turns in a row in which packets had waited although the program polls
  int dedicated_turns_ =
      0;  ///< dedicated-polling budget: turns left in which this thread waits for packets beside the pollers
};

/// How long the serving thread stays awake after a part of a stream. Waking it costs the sender more than this, and the
/// sender sends at least as much in the meantime. Used by one thread.
class LingerPolicy {
 public:
  explicit constexpr LingerPolicy(int64_t now) : until_ns_(now + kLingerNs) {}
  /// More of the stream came.
  constexpr void stream_came(int64_t now) { until_ns_ = now + kLingerNs; }
  constexpr bool goes_on(int64_t now) const { return now < until_ns_; }

 private:
  static constexpr int64_t kLingerNs = 50'000;
  int64_t until_ns_;
};

/// The rules of a packet loop that has nothing to move: it looks for more and yields its core meanwhile, or it sleeps.
/// Used by one thread.
class PacketLoopPolicy {
 public:
  enum class Step : uint8_t {
    kYield,       ///< yields its core as long as other threads want it, and looks again
    kYieldTimed,  ///< the same, and reports the time to yielded()
    kSleep,
  };

  /// Bytes that were moved by shared memory, or by packets.
  void moved_by_memory(uint64_t bytes) { memory_bytes_ += bytes; }
  void moved_by_packets(uint64_t bytes) { packet_bytes_ += bytes; }
  /// There was something to move.
  void worked() { idle_ = false; }
  /// There was nothing to move.
  Step found_nothing(int64_t now) {
    if (!idle_) begin(now);
    const bool streams = now < streams_until_ns_;
    const bool looks = streams || (now < looks_until_ns_ && now >= crowded_until_ns_);
    if (now >= sleeps_until_ns_ && looks) return streams ? Step::kYield : Step::kYieldTimed;
    idle_ = false;
    return Step::kSleep;
  }
  /// Reports how long a yield took. Beside a program that never sleeps, a loop that yields gets the core back after
  /// milliseconds, while a sleeping loop that is woken gets it at once. So after a long yield the loop sleeps instead,
  /// for longer and longer times.
  void yielded(int64_t began_ns, int64_t ended_ns) {
    if (ended_ns - began_ns < kAwayNs) return;
    // If no long yield came for as long as it has slept, the times start again from the shortest.
    const bool again = began_ns - crowded_until_ns_ < crowded_ns_;
    crowded_ns_ = again ? std::min(2 * crowded_ns_, kLongestCrowdedNs) : kCrowdedNs;
    crowded_until_ns_ = ended_ns + crowded_ns_;
  }

 private:
  /// How long it looks for more before it sleeps.
  static constexpr int64_t kLookNs = 50'000;
  static constexpr int64_t kAwayNs = 2'000'000;
  static constexpr int64_t kCrowdedNs = 10'000'000;
  static constexpr int64_t kLongestCrowdedNs = 160'000'000;
  /// A loop that has moved this many bytes at a time has a stream. By shared memory it then sleeps at once for the time
  /// below: data that arrives while it is being woken is moved together, and the programs at both ends use its core
  /// meanwhile. By packets it looks for longer: while it sleeps, another thread has to take them from the socket, which
  /// costs more.
  static constexpr uint64_t kStreamBytes = 16 * 1024;
  static constexpr int64_t kMemoryStreamNs = 1'000'000;
  static constexpr int64_t kPacketStreamNs = 2'000'000;

  /// Called the first time that there is nothing to move.
  void begin(int64_t now) {
    idle_ = true;
    looks_until_ns_ = now + kLookNs;
    if (memory_bytes_ >= kStreamBytes) sleeps_until_ns_ = now + kMemoryStreamNs;
    if (packet_bytes_ >= kStreamBytes) streams_until_ns_ = now + kPacketStreamNs;
    memory_bytes_ = packet_bytes_ = 0;
  }

  bool idle_ = false;                              ///< there was nothing in the last turn
  uint64_t memory_bytes_ = 0, packet_bytes_ = 0;   ///< moved since there was nothing last
  int64_t looks_until_ns_ = 0;                     ///< from then on it sleeps
  int64_t sleeps_until_ns_ = 0;                    ///< until then it sleeps and does not look
  int64_t streams_until_ns_ = 0;                   ///< until then it looks and does not sleep
  int64_t crowded_until_ns_ = 0, crowded_ns_ = 0;  ///< until then it does not yield, and the length of that time
};

/// Decides whether a thread that waits for an event looks for packets before it sleeps. Used by one thread.
///
/// Waking a thread on a sleeping core costs 25 us, more than most answers take. But a look is of no use if answers take
/// longer. It is harmful if the peer waits for this core, which a yield does not always give to a program of another
/// control group. So the decision depends on the results of earlier looks: after a look without a result the thread
/// sleeps at once the next time, then the next two times, and so on.
class LookPolicy {
 public:
  /// The time in which a sleeping peer is woken and answers. After that neither side has to sleep any more.
  static constexpr int64_t kLookNs = 50'000;
  static constexpr uint32_t kMostSkipped = 256;

  /// Call it before a sleep: true if the thread looks first.
  bool looks() {
    if (left_ == 0) return true;
    --left_;
    return false;
  }
  /// Records the result of the look: packets or the event came, or nothing.
  void looked(bool found) {
    skipped_ = found ? 0 : skipped_ == 0 ? 1 : skipped_ < kMostSkipped ? 2 * skipped_ : kMostSkipped;
    left_ = skipped_;
  }

 private:
  uint32_t skipped_ = 0;
  uint32_t left_ = 0;
};

}  // namespace nupa::progress
