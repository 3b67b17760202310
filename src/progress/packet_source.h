// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace nupa::progress {

/// The thread that looks for packets.
enum class Receiver : uint8_t {
  kThread,   ///< the serving thread: it looks everywhere
  kPoller,   ///< a thread of the program that polls: it looks again soon, each time in one place
  kSleeper,  ///< a sleeping thread of the program that packets have woken: it looks until it finds them
};

/// The sockets or memory on which packets arrive, and the work that they cause: a transport's port. An AdaptivePoller
/// decides which thread calls it. It calls one thread at a time and holds a mutex meanwhile.
class PacketSource {
 public:
  virtual ~PacketSource() = default;
  /// Takes a bounded number of the packets that have arrived, and does due work. Asks AdaptivePoller::after() how much
  /// of that this thread does. Never waits. True: there was something to do.
  virtual bool take_turn(Receiver receiver) = 0;
  /// Does the work that turns have left for later: acknowledgements are sent. Never waits.
  virtual void finish_turns() = 0;
  /// Called after a turn of a thread that descriptors woke, if it brought no packet. The descriptors then report an
  /// error, and do so until it is taken.
  virtual void take_errors() = 0;
  /// A thread is about to sleep on the descriptors. Senders that make them readable only for a thread that sleeps see
  /// from now on that one does. False: packets have come already, and the thread takes a turn in place of the sleep.
  /// kThread: it wakes up at the deadlines of AdaptivePoller::expect(), kSleeper: it does not. Several threads may
  /// sleep. Called without the mutex.
  virtual bool begin_sleep([[maybe_unused]] Receiver receiver) { return true; }
  /// The thread does not sleep any more: once for each begin_sleep() that was true. `ready`: the descriptors were
  /// readable. The thread takes a turn or calls begin_sleep() next.
  virtual void end_sleep([[maybe_unused]] Receiver receiver, [[maybe_unused]] bool ready) {}
  /// True if the last packets were part of a stream: more will follow.
  virtual bool streams() const = 0;
  /// True if descriptors wake a thread for packets. False: the serving thread has to look for them from time to time.
  virtual bool wakes() const { return true; }
  /// The number of packets since the beginning. Any thread.
  virtual uint64_t packets() const = 0;
};

}  // namespace nupa::progress
