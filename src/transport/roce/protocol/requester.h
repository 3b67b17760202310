// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>

#include "core/seam/timers.h"
#include "transport/roce/protocol/flights.h"
#include "transport/roce/protocol/path_set.h"
#include "transport/roce/protocol/send_queue.h"

namespace nupa::roce {

/// Attributes that do not change while a queue pair is connected.
struct RequesterOptions {
  Service service = Service::kRc;  ///< kRc, kUc or kXrc
  uint32_t dest_qpn = 0;
  uint32_t first_psn = 0;
  uint32_t mtu = 1024;
  uint16_t pkey = 0xffff;
  uint32_t max_wr = 1;
  uint32_t max_sge = 1;
  uint32_t max_inline = 0;
  std::string_view congestion = "tolerant";
  uint8_t mark = kNupaMark;  ///< 0: standard packets only
};

/// Counters for `nupa stat`.
struct RequesterCounters {
  uint64_t packets = 0;
  uint64_t resent_sequence = 0;  ///< after a sequence NAK or an acknowledgement that skipped a response
  uint64_t resent_timeout = 0;
  uint64_t resent_selective = 0;  ///< after an acknowledgement of later packets, or on a dead path
  uint64_t sequence_naks = 0;
  uint64_t timeouts = 0;
  uint64_t rnr_naks = 0;
  uint64_t stray = 0;  ///< answers to no outstanding packet
  uint64_t notifications = 0;
  uint64_t marked = 0;
  uint64_t late = 0;      ///< packets that had counted as lost and arrived later
  uint64_t examined = 0;  ///< packets in flight that acknowledgements and timers looked at
};

/// The requester of an RC, UC or XRC queue pair (IBTA 9.7, 9.8): it turns requests into packets, and answers into
/// completions.
class Requester {
 public:
  Requester(Host& host, const RequesterOptions& options);

  bool full() const { return queue_.full(); }
  /// Takes a checked request; the queue must not be full. Nothing is sent before transmit(). `fault`: if it is not
  /// kSuccess, the request completes with that status in its turn.
  void post(const SendWr& wr, uint32_t position, WcStatus fault = WcStatus::kSuccess) {
    asking_ += queue_.push(wr, position, fault).answered();
  }
  /// Both may change at any time. `max_rd_atomic`: READs and atomics that may be outstanding.
  void set_limits(const core::RetryLimits& limits, uint8_t max_rd_atomic) {
    limits_ = limits;
    max_rd_atomic_ = max_rd_atomic;
  }
  /// Limits the bytes in flight: those that are sent, and those of requested responses.
  void set_room(uint64_t sends, uint64_t responses) {
    room_ = sends;
    response_room_ = responses;
  }
  /// Bytes in flight, as set_room() counts them.
  uint64_t sent_bytes() const { return failed_ ? 0 : paths_.in_flight() - awaited_; }
  uint64_t awaited_bytes() const { return failed_ ? 0 : awaited_; }
  /// True if READs or atomics are not complete.
  bool asks() const { return asking_ != 0; }
  /// The limit of set_room() that stopped the last transmit().
  enum class Starved : uint8_t { kNo, kSends, kResponses };
  Starved starved() const { return starved_; }
  /// Packets that have to be sent again.
  uint32_t lost() const { return flights_.lost(); }
  /// Bytes that the peer can take; UINT64_MAX: the peer sets no limit.
  uint64_t peer_window() const { return peer_window_; }
  /// While paused, no new request is started; started ones continue (SQD).
  void pause(bool paused);
  bool drained() const;
  /// The queue pair is in the error state: completes all requests with kWrFlushErr and takes no more packets.
  void flush();

  /// Sends what may be sent now, at most `budget` packets. Returns true if the budget ended it.
  bool transmit(int64_t now, Output& output, uint32_t budget);
  /// Takes an answer (kAcknowledge, kAtomicAcknowledge, READ responses, kSelectiveAck, kPathEcho) or a notification
  /// (CNP).
  void receive(const Packet& packet, int64_t now);
  /// True if packets wait for an answer.
  bool waits() const { return !failed_ && una_ < send_; }
  /// True if the peer has answered the oldest packet that it has no receive, and nothing has arrived since.
  bool awaits_receive() const { return !failed_ && rnr_tries_ != 0; }
  /// True if the packet with this PSN is in flight.
  bool is_under_way(uint32_t psn) const;
  /// The peer's host reports that no process has the destination port. It quotes a packet in flight of this queue pair,
  /// or of another one to the same process. Anybody may have forged the report. A request therefore fails only if one
  /// more repetition stays without an answer for a while, and nothing else arrives from the peer.
  void doubt_peer();
  /// When transmit() or on_timer() has work next if no packet arrives; INT64_MAX: never.
  int64_t deadline() const;
  void on_timer(int64_t now);

  uint32_t next_psn() const { return psn_of(send_); }
  bool idle() const { return queue_.empty(); }
  bool selective() const { return selective_; }
  const PathSet& paths() const { return paths_; }
  /// Both sides have the addresses of `count` paths now; this implies that the peer is NUPA.
  void set_paths(uint32_t count) {
    if (!reliable()) return;  // UC drops packets that come out of order
    selective_ = true;
    paths_.set_count(count);
  }
  /// The approximate place of the next READ response's payload; null: not known.
  const std::byte* next_place() const { return next_place_; }
  const RequesterCounters& counters() const { return counters_; }

 private:
  using State = Flight::State;
  enum class Doubt : uint8_t {
    kNone,
    kReported,  ///< its host reports that the port is closed
    kAsked,     ///< and a repetition was sent since
  };
  enum class Loss : uint8_t {
    kSeen,     ///< the answers of the peer show that it is missing
    kSilence,  ///< no answer arrived
  };
  /// Packets that may be in flight: as many as a selective acknowledgement covers.
  static constexpr uint32_t kWindow = kBitmapBits;
  static constexpr uint32_t kReadPackets = 256;    ///< responses of one READ request packet
  static constexpr uint32_t kStripedPackets = 64;  ///< the same with several paths
  static constexpr uint32_t kAckEvery = 32;

  /// Each path's share. Most connections have one path, and a division costs as much as the rest of the headers.
  uint64_t peer_window_share() const { return paths_.count() == 1 ? peer_window_ : peer_window_ / paths_.count(); }
  bool reliable() const { return options_.service != Service::kUc; }
  const Flight& flight(Seq seq) const { return flights_[seq]; }
  uint32_t bytes_at(const Request& request, Seq seq) const;
  /// Sends the packet (or the part of a READ) at `seq`, for the first time or again. Returns how many numbers it
  /// covers; 0: not now.
  uint32_t send_at(uint32_t index, Seq seq, bool again, int64_t now, Output& output);
  uint32_t send_message_packet(const Request& request, Seq seq, bool again, uint32_t path, int64_t now, Output& output);
  /// Returns the end of the READ or atomic request in flight that `seq` belongs to.
  Seq read_end(Seq seq) const;
  /// True if a READ request packet began at `seq`.
  bool begins_read(Seq seq) const;
  /// The packet is not in flight any more.
  void settle(const Flight& entry);
  uint32_t send_read(const Request& request, Seq seq, bool again, uint32_t path, int64_t now, Output& output);
  uint32_t send_flush(const Request& request, Seq seq, uint32_t path, int64_t now, Output& output);
  uint32_t send_atomic(const Request& request, Seq seq, uint32_t path, int64_t now, Output& output);
  Packet packet_for(const Request& request, Seq seq) const;
  void note_sent(Seq seq, uint32_t bytes, uint32_t path, State state, int64_t now);
  /// True if its fence holds it back, since READs or atomics before it are not complete (IBTA 10.8.3.3).
  bool fenced(const Request& request) const;
  bool may_start(const Request& request) const;
  bool has_started(const Request& request) const;
  int pick_path(const Request& request, uint32_t bytes, int64_t now);
  bool run_local(uint32_t index);
  void transmit_probes(int64_t now, Output& output);
  uint32_t reads_outstanding() const { return reads_pushed_ - reads_popped_; }

  // requester_answers.cc
  void on_acknowledge(const Packet& packet, int64_t now);
  void on_selective(const Packet& packet, int64_t now);
  void on_read_response(const Packet& packet, int64_t now);
  void on_atomic_acknowledge(const Packet& packet, int64_t now);
  /// The peer has executed everything below `end`. Returns the first number whose response is missing, or `end`.
  Seq acknowledge_below(Seq end, int64_t now);
  void note_round_trip(Path& path, int64_t rtt, uint32_t marked, int64_t now);
  void arrive(Seq seq, int64_t now);
  void advance(int64_t now);
  void complete_in_order();
  void on_nak(uint8_t syndrome, Seq failing, int64_t now);
  void go_back(Seq seq);
  void go_back_once(Seq seq, int64_t now);
  void lose(Seq seq, Loss loss = Loss::kSeen);
  void find_lost(int64_t now);
  /// The same for one path. Returns the number of packets that are lost.
  uint32_t find_lost(uint32_t index, int64_t now);
  /// When the oldest packet of a path counts as lost; INT64_MAX: no packet that was sent later has arrived.
  int64_t overdue_ns(uint32_t index) const;
  /// When the oldest packet in flight on a path was sent; INT64_MAX: none is in flight.
  int64_t oldest_sent_ns(uint32_t index) const;
  /// `packets` have arrived twice.
  void find_late(uint32_t packets);
  /// The peer acknowledged this packet.
  void note_reported(Seq seq, int64_t now);
  /// The peer waits for `expected`. If that is a READ or an atomic and later packets of its path have arrived, the
  /// request is lost, and no response to it will come.
  void lose_overtaken_request(Seq expected, int64_t now);
  /// True if a packet that was sent later on the same path has arrived, and this one counts as lost.
  bool is_overtaken(Seq seq, int64_t now) const;
  /// All packets in flight on these paths, one bit each, are lost.
  void leave(uint32_t dead);
  void on_timeout(int64_t now);
  /// Sends the oldest packet again to get an answer (RFC 8985, section 7). Returns false if that is not possible now.
  bool probe_tail();
  /// Ends all requests: the peer has rejected this one, or does not answer.
  void fail(uint32_t index, WcStatus status);
  /// The request cannot continue for a local reason: it fails when all before it have completed (IBTA 10.8.5).
  void fail_in_turn(uint32_t index, WcStatus status);
  int64_t timeout_ns() const;
  /// How long a peer in doubt may take to answer.
  int64_t doubt_ns() const;

  Host& host_;
  const RequesterOptions options_;
  SendQueue queue_;
  core::RetryLimits limits_;
  uint8_t max_rd_atomic_ = 1;
  Flights flights_;  ///< states of [una_, high_); none for UC
  PathSet paths_;

  uint32_t cursor_;  ///< the request that `send_` belongs to, or one before it
  Seq una_;          ///< the oldest packet that is not known to have arrived
  Seq send_;         ///< the next packet to be sent in turn
  Seq high_;         ///< one more than the highest number ever sent
  Seq settled_;      ///< SENDs and WRITEs below have arrived; used with selective acknowledgements
  Seq executed_;     ///< the peer has executed all below, in order; packets that only arrived may still be rejected
  bool selective_ = false;
  bool flush_as_rxe_ = false;  ///< FLUSH requests have the CRC of rdma_rxe
  bool failed_ = false;
  bool paused_ = false;
  uint32_t pause_at_ = 0;  ///< the first request that must not start
  uint64_t peer_window_;   ///< bytes that the peer can take
  uint64_t room_ = UINT64_MAX;
  uint64_t response_room_ = UINT64_MAX;
  uint64_t awaited_ = 0;  ///< bytes of responses in flight
  uint32_t asking_ = 0;   ///< READs and atomics that are not complete
  Starved starved_ = Starved::kNo;

  /// Ends of the READ and atomic requests in flight.
  std::array<Seq, 256> reads_{};
  uint32_t reads_pushed_ = 0;
  uint32_t reads_popped_ = 0;

  int64_t timer_from_ = 0;   ///< the last arrival, or start, of packets in flight
  int64_t progress_ns_ = 0;  ///< the last progress, moved forward by times in which this process did not run
  int64_t resent_ns_ = 0;    ///< when a packet was last sent again
  uint32_t backoff_ = 0;
  uint32_t retries_ = 0;
  uint32_t rnr_tries_ = 0;
  Doubt doubt_ = Doubt::kNone;
  int64_t rnr_until_ = 0;
  int64_t pacing_until_ = 0;
  uint32_t duplicates_seen_ = 0;  ///< packets that arrived twice, as the peer counts
  const std::byte* next_place_ = nullptr;
  Seq went_back_to_ = 0;  ///< target of the last go_back_once()
  RequesterCounters counters_;
};

}  // namespace nupa::roce
