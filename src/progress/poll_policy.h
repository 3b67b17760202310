// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>

/// The decisions of the threads that wait for packets: counters and the time go in, the next step comes out. Nothing
/// here reads the clock, waits, or knows a socket, so that tables of cases test all of it.

namespace nupa::progress {

/// What a serving thread sees of the threads that poll in its place. Counters only grow.
struct PollsSeen {
  int64_t at_ns;
  uint64_t polls;    ///< by threads of the program
  uint64_t packets;  ///< that they brought
};

/// While threads of the program poll, the serving thread looks from time to time whether they still do. Such a look
/// takes a core away for as long as a message takes. Pollers put it off as long as this is true of what was seen when
/// they did so last and of what is seen now.
constexpr bool needs_no_look(const PollsSeen& before, const PollsSeen& now) {
  // A program that polls more seldom leaves packets waiting, and the thread may have to take them.
  constexpr int64_t kDenseNs = 25'000;
  const bool dense = now.polls - before.polls >= static_cast<uint64_t>((now.at_ns - before.at_ns) / kDenseNs);
  // Polls that bring nothing for long may be of a program that needs no packets: it is not to pay for looking.
  return dense && now.packets != before.packets;
}

/// Whether a thread that polls memory gives its core to others after so many empty polls in a row: first after many,
/// since they take less than a round trip between two cores, and then again after fewer.
constexpr bool yields_after_empty_polls(uint32_t polls) {
  constexpr uint32_t kFirst = 1024, kEvery = 128;
  return polls >= kFirst && polls % kEvery == 0;
}

/// Decides what follows a look for packets. One thread at a time.
class PollPolicy {
 public:
  /// A few packets at a time are a program's ping-pong: its reply goes first, the acknowledgement after it.
  static constexpr uint32_t kFewPackets = 2;

  enum class Step : uint8_t {
    kReturn,        ///< nothing came: the program comes again at once
    kProgramFirst,  ///< what the program does now, and its next poll, do the rest
    kWork,          ///< acknowledgements, timers, and those that wait for room
  };
  struct Look {
    bool for_program;  ///< by a thread of the program that polls
    uint32_t packets;  ///< that it brought
    bool owed;         ///< acknowledgements were owed before it
    bool streams;      ///< what came last was part of much
    bool others_wait;  ///< for room, or for a timer
  };
  Step after(const Look& look) {
    if (!look.for_program) return Step::kWork;
    if (look.packets > 0)
      return look.packets <= kFewPackets && !look.streams && !look.others_wait ? Step::kProgramFirst : Step::kWork;
    // A clock that is read in each poll that finds nothing would be a good part of it.
    return look.owed || ++vain_polls_ % kPollsAClock == 0 ? Step::kWork : Step::kReturn;
  }

  /// Another thread received at each of the last `polls` polls of this thread, and may wait for this thread's core.
  static constexpr bool yields_to_receiver(uint32_t polls) { return polls % kShutOutPolls == 0; }

 private:
  /// Polls that find nothing before the timers are looked at.
  static constexpr uint32_t kPollsAClock = 8;
  static constexpr uint32_t kShutOutPolls = 32;

  uint32_t vain_polls_ = 0;
};

/// What the thread that serves the sockets does: it takes packets itself, or leaves them to threads of the program that
/// poll, and looks whether they still do. Where they leave packets waiting in several looks in a row, it takes packets
/// beside them for a while. One thread's.
class ThreadPolicy {
 public:
  /// While threads of the program poll, the thread looks at least this often whether they still do.
  static constexpr int64_t kLongestWatchNs = 1'000'000;
  /// A packet that a polling program has not fetched after this long waits for nobody.
  static constexpr int64_t kWaitedNs = 40'000;

  enum class Step : uint8_t {
    kSleepForPackets,  ///< packets, kicks and timers wake it
    kSleepForTimers,   ///< the program takes the packets
  };
  struct Seen {
    uint64_t polls;        ///< by threads of the program, since the beginning
    uint64_t slept_after;  ///< so many of them one went to sleep; 0: none ever did
  };
  /// A turn begins.
  Step begin(const Seen& seen) {
    polled_ = seen.polls != polls_ && seen.polls > seen.slept_after + kLastPolls;
    polls_ = seen.polls;
    tells_of_sleep_ = seen.slept_after != 0;
    watches_ = polled_ && devoted_ == 0;
    return watches_ ? Step::kSleepForTimers : Step::kSleepForPackets;
  }
  /// When its sleep ends by itself. `earliest_ns`: of what is expected. INT64_MAX: never.
  int64_t sleeps_until(int64_t earliest_ns, int64_t now) const {
    if (!watches_) return earliest_ns;
    const int64_t wait = std::max<int64_t>(earliest_ns - now, 0);
    return now + std::max(std::min(wait, watch_ns_), kShortestWatchNs);
  }
  /// Whether it stays awake after it has worked. Not beside a program that polls, whose own thread may need this core.
  bool lingers(bool streams) const { return streams && !polled_; }

  struct Turn {
    int64_t slept_at_ns;  ///< when its sleep began
    uint64_t packets;     ///< that ever came
    bool left;            ///< packets waited that nobody fetched
    bool worked;          ///< there was something to do
  };
  /// The turn is over. True: polls bring nothing for so long that the program is not to pay for them.
  bool end(const Turn& turn) {
    if (watches_) return end_watch(turn);
    quiet_since_ns_ = 0;
    watch_ns_ = kWatchNs;
    if (devoted_ > 0 && --devoted_ == 0) {
      // Packets still come by it.
      if (turn.worked)
        devoted_ = kDevotion;
      else
        waiting_turns_ = 0;
    }
    return false;
  }

 private:
  /// It looks this often at first; more seldom if programs have polled for long, since each look disturbs a poller on
  /// the same core, and not at all while pollers put it off.
  static constexpr int64_t kWatchNs = 250'000;
  static constexpr int64_t kShortestWatchNs = kWatchNs / 4;
  /// So often a thread still polls after it has said that it sleeps: once for each queue that it armed.
  static constexpr uint64_t kLastPolls = 4;
  /// Turns of the watch in which packets had waited, before the thread waits for packets itself beside the pollers.
  static constexpr int kPatience = 3;
  static constexpr int kDevotion = 64;
  /// Without any packet for this long this thread alone waits for the next one.
  static constexpr int64_t kQuietNs = 100'000'000;

  bool end_watch(const Turn& turn) {
    // A program that polls only now and then leaves packets waiting: they are worth a wake-up then.
    if (packets_ != turn.packets || quiet_since_ns_ == 0) quiet_since_ns_ = turn.slept_at_ns;
    packets_ = turn.packets;
    // A program that says when it sleeps fetches what comes once it has its core again.
    waiting_turns_ = turn.left && turn.worked && !tells_of_sleep_ ? waiting_turns_ + 1 : 0;
    watch_ns_ = turn.left ? kWatchNs : std::min(2 * watch_ns_, kLongestWatchNs);
    if (waiting_turns_ >= kPatience) devoted_ = kDevotion;
    return turn.slept_at_ns - quiet_since_ns_ >= kQuietNs;
  }

  uint64_t polls_ = 0;
  uint64_t packets_ = 0;
  bool polled_ = false;   ///< since the turn before
  bool watches_ = false;  ///< in this turn
  bool tells_of_sleep_ = false;
  int64_t watch_ns_ = kWatchNs;
  int64_t quiet_since_ns_ = 0;
  int waiting_turns_ = 0;  ///< of late, in which packets had waited although the program polls
  int devoted_ = 0;        ///< turns left in which this thread waits for packets beside the pollers
};

/// How long the serving thread stays awake after a part of a stream: to be woken costs the sender more, and it sends at
/// least as much in the meantime. One thread's.
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

/// What a loop that moves packets does when there is nothing to move: it looks for more and lets others have its core
/// meanwhile, or it sleeps. One thread's.
class PacketLoopPolicy {
 public:
  enum class Step : uint8_t {
    kYield,    ///< gives its core away for as long as others want it, and looks again
    kMakeWay,  ///< the same, and made_way() hears how long that was
    kSleep,
  };

  /// So much was moved by shared memory, or by packets.
  void moved_by_memory(uint64_t bytes) { memory_bytes_ += bytes; }
  void moved_by_packets(uint64_t bytes) { packet_bytes_ += bytes; }
  /// There was something to do.
  void worked() { idle_ = false; }
  /// There was nothing.
  Step found_nothing(int64_t now) {
    if (!idle_) begin(now);
    const bool streams = now < streams_until_ns_;
    const bool looks = streams || (now < looks_until_ns_ && now >= crowded_until_ns_);
    if (now >= sleeps_until_ns_ && looks) return streams ? Step::kYield : Step::kMakeWay;
    idle_ = false;
    return Step::kSleep;
  }
  /// A program that never sleeps had the core: a loop that makes way for it gets the core back after milliseconds, a
  /// loop that is woken gets it at once. So it sleeps instead, for ever longer times.
  void made_way(int64_t began_ns, int64_t ended_ns) {
    if (ended_ns - began_ns < kAwayNs) return;
    // Once it was left alone for as long as it has slept, this is the first time.
    const bool again = began_ns - crowded_until_ns_ < crowded_ns_;
    crowded_ns_ = again ? std::min(2 * crowded_ns_, kLongestCrowdedNs) : kCrowdedNs;
    crowded_until_ns_ = ended_ns + crowded_ns_;
  }

 private:
  /// It looks for more for so long before it sleeps.
  static constexpr int64_t kLookNs = 50'000;
  static constexpr int64_t kAwayNs = 2'000'000;
  static constexpr int64_t kCrowdedNs = 10'000'000;
  static constexpr int64_t kLongestCrowdedNs = 160'000'000;
  /// A loop that has moved so much at a time has a stream. By memory it does not look for more, for so long: what comes
  /// while it is being woken is moved together, and the programs at both ends have its core meanwhile. By packets it
  /// looks on for longer: while it sleeps another thread has to take them from the socket, which costs more.
  static constexpr uint64_t kStreamBytes = 16 * 1024;
  static constexpr int64_t kMemoryStreamNs = 1'000'000;
  static constexpr int64_t kPacketStreamNs = 2'000'000;

  /// The first time that there is nothing.
  void begin(int64_t now) {
    idle_ = true;
    looks_until_ns_ = now + kLookNs;
    if (memory_bytes_ >= kStreamBytes) sleeps_until_ns_ = now + kMemoryStreamNs;
    if (packet_bytes_ >= kStreamBytes) streams_until_ns_ = now + kPacketStreamNs;
    memory_bytes_ = packet_bytes_ = 0;
  }

  bool idle_ = false;                              ///< there was nothing in the last turn
  uint64_t memory_bytes_ = 0, packet_bytes_ = 0;   ///< moved since there was nothing
  int64_t looks_until_ns_ = 0;                     ///< then it sleeps
  int64_t sleeps_until_ns_ = 0;                    ///< until then it does not look at all
  int64_t streams_until_ns_ = 0;                   ///< until then it does nothing else
  int64_t crowded_until_ns_ = 0, crowded_ns_ = 0;  ///< until then nobody is made way for, and how long that was
};

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
