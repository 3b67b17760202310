#pragma once
#include <array>

#include "core/seam/timers.h"
#include "transport/roce/protocol/flights.h"
#include "transport/roce/protocol/path_set.h"
#include "transport/roce/protocol/send_queue.h"

namespace nupa::roce {

/// What does not change while a queue pair is connected.
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
  uint8_t mark = kNupaMark;  ///< 0: nothing but the standard is spoken
};

/// For people (`nupa stat`).
struct RequesterCounters {
  uint64_t packets = 0;
  uint64_t resent_sequence = 0;  ///< after a sequence NAK or an answer that skipped one
  uint64_t resent_timeout = 0;
  uint64_t resent_selective = 0;  ///< after an answer that told of later ones, or of a dead path
  uint64_t rnr_naks = 0;
  uint64_t stray = 0;  ///< answers that fit nothing that was asked
  uint64_t notifications = 0;
  uint64_t marked = 0;
  uint64_t late = 0;      ///< packets that had counted as lost, and came after all
  uint64_t examined = 0;  ///< packets under way that answers and timers looked at
};

/// The sending half of an RC, UC or XRC queue pair (IBTA 9.7, 9.8): requests become packets, answers become
/// completions.
class Requester {
 public:
  Requester(Host& host, const RequesterOptions& options);

  bool full() const { return queue_.full(); }
  /// Takes a checked request; the queue is not full. Nothing is sent before transmit(). `fault`: not kSuccess if the
  /// request is at fault; it ends with that status in its turn.
  void post(const SendWr& wr, uint32_t position, WcStatus fault = WcStatus::kSuccess) {
    asking_ += queue_.push(wr, position, fault).answered();
  }
  /// Both may change at any time. `max_rd_atomic`: READs and atomics that may be outstanding.
  void set_limits(const core::RetryLimits& limits, uint8_t max_rd_atomic) {
    limits_ = limits;
    max_rd_atomic_ = max_rd_atomic;
  }
  /// Bytes that may be under way: of what is sent, and of the responses that are asked for.
  void set_room(uint64_t sends, uint64_t responses) {
    room_ = sends;
    response_room_ = responses;
  }
  /// What is under way, as set_room() counts it.
  uint64_t sent_bytes() const { return failed_ ? 0 : paths_.in_flight() - awaited_; }
  uint64_t awaited_bytes() const { return failed_ ? 0 : awaited_; }
  /// Whether READs or atomics are among what is not complete.
  bool asks() const { return asking_ != 0; }
  /// What the last transmit() found too little room for.
  enum class Starved : uint8_t { kNo, kSends, kResponses };
  Starved starved() const { return starved_; }
  /// Packets that are to be sent again.
  uint32_t lost() const { return flights_.lost(); }
  /// Bytes that the other end can take; UINT64_MAX: it has not said.
  uint64_t peer_window() const { return peer_window_; }
  /// While paused nothing new is started; what was started goes on (SQD).
  void pause(bool paused);
  bool drained() const;
  /// Completes everything with kWrFlushErr and takes no more packets: the queue pair is in the error state.
  void flush();

  /// Sends what may be sent now, at most `budget` packets. True if the budget was what ended it.
  bool transmit(int64_t now, Output& output, uint32_t budget);
  /// An answer: kAcknowledge, kAtomicAcknowledge, READ responses, kSelectiveAck, kPathEcho; or a notification (CNP).
  void receive(const Packet& packet, int64_t now);
  /// Whether packets wait for an answer.
  bool waits() const { return !failed_ && una_ < send_; }
  /// Whether the one of that number does, as the wire shows it.
  bool is_under_way(uint32_t psn) const;
  /// The peer's host says that nobody has the port that packets go to, and quotes one that is under way here, or by
  /// another queue pair that leads to the same process. Anybody may have forged that: unless something is heard of the
  /// peer, a request ends when one more repetition has stayed without an answer for a while.
  void doubt_peer();
  /// When transmit() or on_timer() has something to do next without a packet coming in; INT64_MAX: never.
  int64_t deadline() const;
  void on_timer(int64_t now);

  uint32_t next_psn() const { return psn_of(send_); }
  bool idle() const { return queue_.empty(); }
  bool selective() const { return selective_; }
  const PathSet& paths() const { return paths_; }
  /// Both ends know the addresses of so many paths now; so the other end is NUPA.
  void set_paths(uint32_t count) {
    if (!reliable()) return;  // UC drops what comes out of order
    selective_ = true;
    paths_.set_count(count);
  }
  /// Where the payload of the next READ response goes, by and large; null: not known.
  const std::byte* next_place() const { return next_place_; }
  const RequesterCounters& counters() const { return counters_; }

 private:
  using State = Flight::State;
  enum class Doubt : uint8_t {
    kNone,
    kTold,   ///< its host says that the process is gone
    kAsked,  ///< and it was asked once more since
  };
  enum class Loss : uint8_t {
    kSeen,     ///< what the other end has told means that it is not there
    kSilence,  ///< the other end has told nothing
  };
  /// Packets that may be under way: what a selective acknowledgement can tell of.
  static constexpr uint32_t kWindow = kBitmapBits;
  static constexpr uint32_t kReadPackets = 256;    ///< responses asked for at once
  static constexpr uint32_t kStripedPackets = 64;  ///< the same where paths take turns
  static constexpr uint32_t kAckEvery = 32;

  /// Of each path; most connections have one, and a division costs as much as the rest of the headers.
  uint64_t peer_window_share() const { return paths_.count() == 1 ? peer_window_ : peer_window_ / paths_.count(); }
  bool reliable() const { return options_.service != Service::kUc; }
  const Flight& flight(Seq seq) const { return flights_[seq]; }
  uint32_t bytes_at(const Request& request, Seq seq) const;
  /// The packet (or READ's part) at `seq`, again or for the first time. Returns the numbers that it covers, 0: not now.
  uint32_t send_at(uint32_t index, Seq seq, bool again, int64_t now, Output& output);
  uint32_t send_message_packet(const Request& request, Seq seq, bool again, uint32_t path, int64_t now, Output& output);
  /// Where the READ or atomic request under way that `seq` is of ends.
  Seq read_end(Seq seq) const;
  /// Whether a READ was asked for from `seq` on.
  bool begins_read(Seq seq) const;
  /// A packet that was under way is not any more.
  void settle(const Flight& entry);
  uint32_t send_read(const Request& request, Seq seq, bool again, uint32_t path, int64_t now, Output& output);
  uint32_t send_atomic(const Request& request, Seq seq, uint32_t path, int64_t now, Output& output);
  Packet packet_for(const Request& request, Seq seq) const;
  void note_sent(Seq seq, uint32_t bytes, uint32_t path, State state, int64_t now);
  /// IBTA 10.8.3.3: its fence holds it back, with READs or atomics before it that are not complete.
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
  /// Everything below `end` was executed by the other end. `stop_at`: where an answer is missing, or `end`.
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
  /// Of one path, and returns how many.
  uint32_t find_lost(uint32_t index, int64_t now);
  /// When the oldest packet of a path counts as lost; INT64_MAX: none that was sent later has arrived.
  int64_t overdue_ns(uint32_t index) const;
  /// When the oldest packet under way on a path was sent; INT64_MAX: none is.
  int64_t oldest_sent_ns(uint32_t index) const;
  /// So many packets have come twice.
  void find_late(uint32_t packets);
  /// The other end says that this packet has arrived.
  void note_told(Seq seq, int64_t now);
  /// The other end waits for `expected`. If that is a READ or an atomic, and what was sent later by its path is there,
  /// no answer to it will come.
  void lose_overtaken_request(Seq expected, int64_t now);
  /// Whether what was sent later than this packet, by the same path, has arrived.
  bool is_overtaken(Seq seq, int64_t now) const;
  /// What is under way on these paths, one bit each, is lost.
  void leave(uint32_t dead);
  void on_timeout(int64_t now);
  /// Sends the oldest packet again, so that there is something to answer (RFC 8985, section 7). False: not now.
  bool probe_tail();
  /// Everything ends: the other end has refused this request, or is not there.
  void fail(uint32_t index, WcStatus status);
  /// The request cannot go on for a reason of this end: it ends when all before it have (IBTA 10.8.5).
  void fail_in_turn(uint32_t index, WcStatus status);
  int64_t timeout_ns() const;
  /// How long a peer in doubt has for an answer.
  int64_t doubt_ns() const;

  Host& host_;
  const RequesterOptions options_;
  SendQueue queue_;
  core::RetryLimits limits_;
  uint8_t max_rd_atomic_ = 1;
  Flights flights_;  ///< of [una_, high_); none for UC
  PathSet paths_;

  uint32_t cursor_;  ///< the request that `send_` belongs to, or one before it
  Seq una_;          ///< the oldest packet that is not known to have arrived
  Seq send_;         ///< the next to be sent in turn
  Seq high_;         ///< one more than the highest that was ever sent
  Seq settled_;      ///< SENDs and WRITEs below are known to have arrived, if acknowledgements are selective
  Seq executed_;  ///< what is below was executed by the other end, in order; what merely arrived may still be refused
  bool selective_ = false;
  bool failed_ = false;
  bool paused_ = false;
  uint32_t pause_at_ = 0;  ///< the first request that is not to start
  uint64_t peer_window_;   ///< bytes that the other end can take
  uint64_t room_ = UINT64_MAX;
  uint64_t response_room_ = UINT64_MAX;
  uint64_t awaited_ = 0;  ///< bytes of responses under way
  uint32_t asking_ = 0;   ///< READs and atomics that are not complete
  Starved starved_ = Starved::kNo;

  /// READ and atomic requests under way: where each ends.
  std::array<Seq, 256> reads_{};
  uint32_t reads_pushed_ = 0;
  uint32_t reads_popped_ = 0;

  int64_t timer_from_ = 0;   ///< since when nothing has been heard of what is under way
  int64_t progress_ns_ = 0;  ///< when something was heard last; later by what time this process did not run
  int64_t resent_ns_ = 0;    ///< when something was sent again last
  uint32_t backoff_ = 0;
  uint32_t retries_ = 0;
  uint32_t rnr_tries_ = 0;
  Doubt doubt_ = Doubt::kNone;
  int64_t rnr_until_ = 0;
  int64_t pacing_until_ = 0;
  uint32_t duplicates_seen_ = 0;  ///< packets that came twice, as the other end counts
  const std::byte* next_place_ = nullptr;
  Seq went_back_to_ = 0;  ///< where the last go_back_once() went
  RequesterCounters counters_;
};

}  // namespace nupa::roce
