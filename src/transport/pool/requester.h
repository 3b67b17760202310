// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The requester of an RC, UC or XRC queue pair (IBTA 9.7, 9.8): it turns requests into records, and answers into
/// completions. All calls are made with the queue pair's send lock held.
///
/// A channel loses nothing. So there is no timer that sends again, and every record that the target does not take is
/// answered. The requester then goes back to the message that the target expects.

#include <memory>
#include <vector>

#include "core/seam/qp_context.h"
#include "core/seam/request.h"
#include "core/seam/timers.h"
#include "progress/deadline.h"
#include "transport/pool/granted.h"
#include "transport/pool/link.h"
#include "transport/pool/records.h"
#include "transport/pool/statistics.h"

namespace nupa::pool {

class Requester {
 public:
  /// Sequence numbers of messages are compared by their distance, so at most half of them may be outstanding.
  static constexpr uint32_t kWindow = 1u << 14;
  /// Shorter messages go through the ring. A message of one packet changes nothing at a target that is not ready for it
  /// (IBTA 9.7.5.2.8), and a placed one does.
  static constexpr uint32_t kLeastPlaced = 4097;

  Requester(core::QpContext& context, Statistics& statistics, uint32_t remote_qpn, uint16_t first_sequence);

  /// Takes a checked request and copies its inline data. Nothing is sent before transmit().
  void post(const core::Request& request);
  /// Both may change at any time. `max_rd_atomic`: READs, atomics and FLUSH requests that may be outstanding.
  void set_limits(const core::RetryLimits& limits, uint8_t max_rd_atomic) {
    limits_ = limits;
    max_rd_atomic_ = max_rd_atomic;
  }
  /// While paused, no new request is begun; begun ones continue (SQD).
  void pause(bool paused);
  bool drained() const;
  /// The queue pair is in the error state: completes all requests with kWrFlushErr and takes no more answers.
  void flush();
  bool idle() const { return head_ == tail_; }
  /// A request is not sent yet, or not to its end.
  bool has_unsent() const { return cursor_ != tail_; }
  uint16_t next_sequence() const { return next_; }

  enum class Next : uint8_t {
    kNothing,  ///< an answer, a timer or a post continues
    kRoom,     ///< the channel is full or not open yet
  };
  /// The report of a target.
  struct Acknowledgement {
    uint16_t sequence = 0;  ///< the message that it expects next
    uint8_t credits = 0;    ///< index into kCredits: the receives for it and the messages behind it
  };
  /// Writes records. `own`: what this queue pair reports as a target. `budget`: bytes after which others are to have
  /// their turn.
  Next transmit(Link& link, Acknowledgement own, uint64_t budget);
  /// There is no link, and the search for the peer goes on.
  void no_peer(int64_t now);
  /// The peer has ended, or does not answer: the oldest request fails.
  void peer_failed();

  /// Returns false if no outstanding message fits.
  bool acknowledge(Acknowledgement target);
  void answered(const Answer& answer, uint32_t part_bytes, int64_t now);
  /// A kReadAnswer or kAtomicAnswer.
  void response(const Record& record, const Payload& payload);
  /// The target has granted a region. Returns false if the grant is to be returned.
  bool granted(const Granted::Region& region) { return !failed_ && granted_.add(region); }
  /// The target asks for a grant back: it is not used from now on.
  void returns(uint32_t number) { granted_.remove(number); }
  /// True if the target had no receive for the oldest message, and the message is to be sent again.
  bool awaits_receive() const { return not_ready_tries_ != 0 && !idle(); }
  void on_timer(int64_t now);
  /// When on_timer() has work; INT64_MAX: never.
  int64_t deadline() const { return idle() ? INT64_MAX : waits_until_ns_; }

 private:
  /// A request in the queue, with copies of all that it points to.
  struct Pending {
    SendWr wr;  ///< sg_list points to the queue's copy
    uint32_t position = 0;
    WcStatus fault = WcStatus::kSuccess;
    uint64_t length = 0;
    uint32_t receive = 0;  ///< the number of messages before it that take a receive
    uint16_t sequence = 0;
    bool numbered = false;  ///< it has begun, and `receive` and `sequence` are valid
    bool done = false;      ///< a local request was run; a response is complete; UC: it was sent
    bool again = false;     ///< READ, atomic: taken by a queue pair that is absent now, so it is to be sent again
    bool rings = false;     ///< it goes through the ring, or the rest of it
    uint32_t received = 0;  ///< READ: bytes of the response

    bool takes_receive() const {
      return wr.opcode != Opcode::kRdmaWrite && wr.opcode != Opcode::kAtomicWrite && !is_answered();
    }
    bool is_answered() const { return core::is_answered(wr.opcode); }
  };

  Pending& at(uint32_t index) { return pending_[index & mask_]; }
  const Pending& at(uint32_t index) const { return pending_[index & mask_]; }
  /// The copy of its inline data.
  std::byte* inlined_of(const Pending& pending) const {
    return inlined_.get() + static_cast<size_t>(&pending - pending_.data()) * max_inline_;
  }
  bool reliable() const { return context_.type() != QpType::kUc; }
  /// True if the target has taken the message.
  bool is_acknowledged(const Pending& pending) const {
    return pending.numbered && static_cast<int16_t>(pending.sequence - acknowledged_) < 0;
  }
  /// True if the target has taken the message, and the response comes if the message has one.
  bool is_settled(const Pending& pending) const { return is_acknowledged(pending) && (pending.done || !pending.again); }
  /// Returns the bytes of one part of this queue pair's messages.
  uint32_t part_bytes(const Link& link) const;
  bool is_fenced(const Pending& pending) const;
  /// Begins the request at the cursor if it may begin now.
  bool begin(Pending& pending);
  /// Returns true if the request is behind the cursor now.
  bool run_local(Pending& pending);
  Link::Wrote write_part(Link& link, Pending& pending, Acknowledgement own);
  Link::Wrote write_request(Link& link, Pending& pending, Record& record);
  /// The region in which the next part of a WRITE is to be placed; null: it goes through the ring.
  const Granted::Region* place_of(Pending& pending, uint64_t length);
  /// `receives`: posted at the target, for messages that it has not acknowledged.
  void note_credits(uint32_t receives);
  /// True if a receive is posted for the message and each one before it, so that the target takes it at once.
  bool is_sure_of_receive(const Pending& pending) const {
    return !pending.takes_receive() || static_cast<int32_t>(pending.receive - sure_receives_) < 0;
  }
  void pass_cursor();
  /// Finds the bytes [offset, offset + length) of a request's list. Returns false if a key is not valid.
  bool gather(const Pending& pending, uint64_t offset, uint64_t length, base::Piece* pieces, uint32_t* count);
  bool scatter(const Pending& pending, uint64_t offset, const std::byte* data, uint64_t length);
  void complete_in_order();
  /// Ends all requests: the peer has refused the one at `index`, or does not answer.
  void fail(uint32_t index, WcStatus status);
  /// The request cannot continue for a local reason: it fails when all before it have completed (IBTA 10.8.5).
  void fail_in_turn(uint32_t index, WcStatus status);
  /// UC has no answers in any case: its messages are lost, and nothing reports that (IBTA 9.8.2).
  void lose_all();
  void go_back(uint32_t index, uint64_t offset);
  void count_outstanding();
  /// Returns the index of the outstanding message with that number, or tail_.
  uint32_t find(uint16_t sequence) const;
  /// The peer's queue pair does not exist, or does not receive yet.
  void absent(int64_t now);
  void wait(int64_t until_ns) { waits_until_ns_ = until_ns; }
  void made_progress();

  core::QpContext& context_;
  Statistics& statistics_;
  const uint32_t remote_qpn_;
  const uint32_t max_sge_;
  const uint32_t max_inline_;
  core::RetryLimits limits_;
  uint8_t max_rd_atomic_ = 1;

  std::vector<Pending> pending_;
  std::unique_ptr<Sge[]> lists_;
  std::unique_ptr<std::byte[]> inlined_;  ///< a piece for each request: the copies of its inline data
  const uint32_t mask_;
  uint32_t head_ = 0;    ///< the oldest request that is not complete
  uint32_t cursor_ = 0;  ///< the request that is sent next
  uint32_t tail_ = 0;
  uint32_t expected_ = 0;  ///< note_credits(): the oldest request that was not acknowledged, unless head_ is behind it
  uint32_t next_receive_ = 0;   ///< messages that take a receive and have begun
  uint32_t sure_receives_ = 0;  ///< the first of these that may find no receive
  uint64_t sent_ = 0;           ///< bytes of the request at the cursor that were sent
  uint32_t outstanding_ = 0;    ///< READs and atomics before the cursor that are not complete
  uint16_t next_;
  uint16_t acknowledged_;  ///< the target has taken all messages before this one
  uint16_t in_ring_;       ///< no later message waits at the target or in the ring
  Granted granted_;
  bool resent_ = false;  ///< the next record is the first after a step back
  bool failed_ = false;
  bool paused_ = false;
  uint32_t pause_at_ = 0;  ///< the first request that must not begin
  int64_t waits_until_ns_ = INT64_MAX;
  uint32_t not_ready_tries_ = 0;
  int64_t absent_since_ns_ = 0;  ///< 0: the peer has answered last
  uint64_t again_at_ = 0;        ///< where the message stood at the last Outcome::kAgain
  progress::Backoff pauses_;
};

}  // namespace nupa::pool
