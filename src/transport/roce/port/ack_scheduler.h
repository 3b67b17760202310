// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "transport/roce/port/transmit_batch.h"
#include "transport/roce/port/qp_receiver.h"
#include "transport/roce/port/holds.h"

namespace nupa::roce {

/// Decides when queue pairs that received packets send acknowledgements, and the requests that arrived ones release.
/// After a few packets, the program may answer first. Packets of a stream are acknowledged together: when none followed
/// for a moment, or when a share of the bytes that may be in flight has arrived. All calls are made under the poller's
/// lock.
class AckScheduler {
 public:
  /// If no thread polls any more, the serving thread acknowledges after this time.
  static constexpr int64_t kForgottenNs = 1'000'000;

  /// Makes room for `queue_pairs` queue pairs, so that arriving packets allocate nothing.
  void reserve(size_t queue_pairs) { touched_.reserve(queue_pairs); }
  /// The queue pair received something.
  void touch(QpReceiver& queue_pair) {
    if (queue_pair.touched_) return;
    queue_pair.touched_ = true;
    touched_.push_back(&queue_pair);
  }
  /// Counts the packets of one look at a socket. Without packets it counts nothing.
  void came(uint32_t packets, uint32_t bytes) {
    if (packets > 0) streams_ = packets >= kStreamPackets;
    if (streams_) owed_bytes_ += bytes;
  }
  /// True if the last packets were part of a stream.
  bool streams() const { return streams_; }
  /// True if queue pairs owe acknowledgements.
  bool owes() const { return !touched_.empty(); }
  /// True if packets of a stream are not acknowledged yet.
  bool owes_stream() const { return owed_bytes_ != 0; }
  /// True if acknowledgements wait for more packets.
  bool gathers() const { return owes() && owes_stream(); }

  /// Which acknowledgements are due.
  enum class Due : uint8_t { kNone, kSome, kAll };
  /// Called after a look at all sockets that found `packets`. Each peer may have `share` bytes in flight.
  Due due(uint32_t packets, bool for_program, uint32_t share, int64_t now);
  /// Makes the queue pairs send. `all` false: acknowledgements may wait for the next time. A queue pair that another
  /// thread holds still owes its acknowledgement afterwards.
  void answer(Hold& hold, TransmitBatch& batch, int64_t now, bool all);
  /// The queue pair is removed.
  void remove(QpReceiver& queue_pair);

 private:
  /// This many packets at once are a stream.
  static constexpr uint32_t kStreamPackets = 8;

  std::vector<QpReceiver*> touched_;
  uint32_t owed_bytes_ = 0;    ///< bytes of a stream, not acknowledged yet
  int64_t owed_since_ns_ = 0;  ///< when the last of them arrived
  bool streams_ = false;
};

}  // namespace nupa::roce
