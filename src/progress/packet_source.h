// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace nupa::progress {

/// The thread that looks for packets.
enum class Receiver : uint8_t {
  kThread,   ///< the one that serves the source: it looks everywhere
  kPoller,   ///< one of the program that polls: it looks again soon, each time in one place
  kSleeper,  ///< one of the program that sleeps, and packets have woken it: it looks until it finds them
};

/// Sockets or memory on which packets arrive, and what is done with them: a transport's port. An AdaptivePoller decides
/// which thread calls it, one at a time, and holds a mutex meanwhile.
class PacketSource {
 public:
  virtual ~PacketSource() = default;
  /// Takes a bounded number of the packets that have come, and does what is due. Asks AdaptivePoller::after() how much
  /// of that is for this thread. Never waits. True: there was something.
  virtual bool take_turn(Receiver receiver) = 0;
  /// What turns have left for later is done now: answers leave. Never waits.
  virtual void finish_turns() = 0;
  /// A turn of a thread that descriptors woke brought no packet: they report something else, and do so again and again
  /// until that is taken.
  virtual void take_errors() = 0;
  /// What came last was part of a stream: more will follow.
  virtual bool streams() const = 0;
  /// All packets that ever came. Any thread.
  virtual uint64_t packets() const = 0;
};

}  // namespace nupa::progress
