// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "transport/roce/port/burst.h"
#include "transport/roce/port/channel.h"
#include "transport/roce/port/holds.h"

namespace nupa::roce {

/// When the channels that got packets send what they owe for them: acknowledgements, and what these let go. The
/// program's answer to a few packets goes before. Packets of a stream are answered together, when nothing came after
/// them for a moment or a part of what may be under way has come. All under the lock of the port's turns.
class AckScheduler {
 public:
  /// If nobody looks any more, the port's thread answers so much later.
  static constexpr int64_t kForgottenNs = 1'000'000;

  /// There may be so many channels: nothing is allocated where packets arrive.
  void reserve(size_t channels) { touched_.reserve(channels); }
  /// The channel got something.
  void touch(Channel& channel) {
    if (channel.touched_) return;
    channel.touched_ = true;
    touched_.push_back(&channel);
  }
  /// A look at a socket brought that; no packets: nothing.
  void came(uint32_t packets, uint32_t bytes) {
    if (packets > 0) streams_ = packets >= kStreamPackets;
    if (streams_) owed_bytes_ += bytes;
  }
  /// What came last was part of much.
  bool streams() const { return streams_; }
  /// Some channels owe an answer.
  bool owes() const { return !touched_.empty(); }
  /// A stream's packets are not answered yet.
  bool owes_stream() const { return owed_bytes_ != 0; }
  /// More is to come before they answer.
  bool gathers() const { return owes() && owes_stream(); }

  /// Which of the answers are due.
  enum class Due : uint8_t { kNone, kSome, kAll };
  /// After a look at all sockets that brought `packets`. Each of the peers may have `share` bytes under way.
  Due due(uint32_t packets, bool for_program, uint32_t share, int64_t now);
  /// Has the channels send. `all` false: acknowledgements may wait for the next time. A channel that another thread
  /// holds owes its answer still.
  void answer(Hold& hold, Burst& burst, int64_t now, bool all);
  /// The channel is gone.
  void remove(Channel& channel);

 private:
  /// So many packets at once are a stream's.
  static constexpr uint32_t kStreamPackets = 8;

  std::vector<Channel*> touched_;
  uint32_t owed_bytes_ = 0;    ///< of a stream, not answered yet
  int64_t owed_since_ns_ = 0;  ///< the last of them
  bool streams_ = false;
};

}  // namespace nupa::roce
