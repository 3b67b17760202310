// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <memory>

#include "core/seam/relay.h"
#include "core/seam/responder.h"
#include "transport/roce/protocol/host.h"
#include "transport/roce/protocol/reorder.h"

namespace nupa::roce {

struct ResponderOptions {
  Service service = Service::kRc;  ///< kRc, kUc or kXrc
  uint32_t peer_qpn = 0;
  uint32_t first_psn = 0;
  uint32_t mtu = 1024;
  uint16_t pkey = 0xffff;
  uint32_t window = 0;       ///< bytes that the sender may have in flight; 0: no limit is sent
  uint8_t mark = kNupaMark;  ///< 0: standard packets only
};

/// Counters for `nupa stat`.
struct ResponderCounters {
  uint64_t packets = 0;
  uint64_t duplicates = 0;
  uint64_t early = 0;    ///< arrived before their turn
  uint64_t dropped = 0;  ///< no room to keep them, or not what was expected
  uint64_t rnr_naks = 0;
  uint64_t marked = 0;
};

/// The responder of an RC, UC or XRC queue pair (IBTA 9.7, 9.8): it turns packets into memory contents, receives and
/// answers.
class Responder {
 public:
  Responder(Host& host, const ResponderOptions& options, PacketMemory& pool);

  void set_max_rd_atomic(uint8_t count) { max_rd_atomic_ = count; }
  /// Bytes that the sender may have in flight from now on; 0: no limit is sent.
  void set_window(uint32_t bytes) { window_ = bytes; }
  /// Takes a request, or a probe of a path. `congested`: it met a congested queue on its way (ECN CE). Answers leave by
  /// the path that it arrived on.
  void receive(const Packet& packet, bool congested, int64_t now);
  /// Sends READ responses and acknowledgements that are due, at most `budget` packets. Returns true if there is more.
  bool transmit(int64_t now, Output& output, uint32_t budget);
  /// The place of the next packet's payload, if it is the expected packet; null: not known.
  const std::byte* next_place() const { return next_place_; }
  bool has_output() const {
    return responses_pushed_ != responses_popped_ || due_ != Due::kNothing || cnp_due_ || echoes_ != 0 ||
           packet_awaits_memory_ || (relayed_ != nullptr && has_endings());
  }
  /// True if something waits for another process to copy its memory. transmit() continues it, and sends what else is
  /// due.
  bool awaits_memory() const {
    return packet_awaits_memory_ || (response_awaits_memory_ && responses_pushed_ != responses_popped_);
  }
  /// The queue pair leaves the states that receive: a partly filled receive completes as flushed.
  void stop();

  const ResponderCounters& counters() const { return counters_; }

 private:
  using Rules = core::Responder<core::ContextTarget>;
  enum class Kind : uint8_t { kNone, kSend, kWrite };
  /// The message that is being received.
  struct Message {
    Kind kind = Kind::kNone;
    uint32_t srqn = 0;
    uint32_t rkey = 0;
    uint64_t address = 0;
    uint64_t length = 0;  ///< WRITE
    Seq first = 0;
    Rules::Message received = {.wants_behind = true};
  };
  /// A response with data that is queued, or partly sent.
  struct Response {
    bool atomic = false;
    bool replay = false;
    bool counts = false;  ///< against max_rd_atomic: the answer to a READ or an atomic
    uint8_t path = 0;
    Seq first = 0;
    uint32_t packets = 1;
    uint32_t next = 0;
    uint32_t srqn = 0;
    uint32_t rkey = 0;
    uint64_t address = 0;
    uint64_t length = 0;
    uint64_t found = 0;
    uint32_t msn = 0;
    uint32_t ticket = 0;   ///< of the relay
    bool relayed = false;  ///< the relay has the data
  };
  /// SENDs and WRITEs that a relay has taken. They are acknowledged when the relay reports their end.
  struct Relayed {
    explicit Relayed(core::Relay& to) : relay(to) {}
    core::Relay& relay;
    std::array<Seq, core::kMostRelayed> last{};  ///< the last packet of each
    uint64_t taken = 0;
    uint64_t ended = 0;
    bool reported_waiting = false;  ///< the wait for a receive of the oldest one was reported
    bool never_ready = false;       ///< the target of the oldest one had no receive until the retries were used up
  };
  struct Remembered {
    Seq seq = 0;
    uint64_t found = 0;
    uint32_t msn = 0;
  };
  enum class Result : uint8_t {
    kAccepted,
    kNotReady,
    kRefused,
    kDropped,
    kNotServed,  ///< another process has the memory and has not copied yet
  };
  enum class Due : uint8_t { kNothing, kAck, kSequenceNak, kNotReady, kRefusal };
  /// Packets out of order that do not request an acknowledgement are acknowledged together: after this many of them, or
  /// with the first one that arrives this long after the last acknowledgement. The time is a quarter of the shortest
  /// reordering window, so that losses are found no later.
  static constexpr uint32_t kUnansweredPackets = 16;
  static constexpr int64_t kUnansweredNs = 2'500;
  static constexpr uint32_t kResponses = 64;   ///< including repeated ones
  static constexpr uint32_t kRemembered = 32;  ///< atomics whose results are kept

  void receive_reliable(const Packet& packet, int64_t now);
  void receive_unreliable(const Packet& packet);
  /// The first request in order shows that the connection is established, whatever its result (IBTA 11.6.3.1).
  void note_established();
  /// Executes the expected packet, and notes which answer is due.
  Result take_turn(const Packet& next, bool placed);
  /// Executes the kept packets up to the first gap.
  void take_kept(int64_t now);
  void receive_duplicate(const Packet& packet, Seq seq);
  void receive_early(const Packet& packet, Seq seq, int64_t now);
  /// A packet that requests no acknowledgement arrived out of order, or filled a gap: one is due after a while.
  void note_unanswered(int64_t now);
  Result execute(const Packet& packet, bool placed);
  Result execute_send(const Packet& packet, uint32_t traits);
  Result execute_write(const Packet& packet, uint32_t traits, bool placed);
  Result execute_read(const Packet& packet);
  Result execute_atomic(const Packet& packet);
  Result execute_atomic_write(const Packet& packet);
  Result execute_flush(const Packet& packet);
  /// A response without payload to the expected packet.
  Response empty_response(const Packet& packet) const;
  /// Annex A19: an ATOMIC WRITE is answered by a response, unless the peer is NUPA, or a relay takes the request.
  bool responds_to_atomic_write() const { return !peer_is_nupa_ && relayed_ == nullptr; }
  /// Bytes of the response to a READ or a FLUSH.
  static uint32_t response_bytes(const Packet& packet, uint32_t traits) {
    return (traits & trait::kFeth) != 0 ? 0 : packet.length;
  }
  /// True if the packet may come next, and has the length that its position requires (IBTA 9.7.4.1).
  bool fits_sequence(const Packet& packet, uint32_t traits) const;
  Inbound inbound_of(const Packet& packet, WcOpcode opcode) const;
  /// Translates a verdict of the rules, and notes the answer.
  Result result_of(core::Verdict verdict);
  /// Rejects a request before the rules see it, or while it is answered.
  Result refuse(core::Refusal refusal);
  void drop_message();

  // responder_relay.cc
  /// Everything below has ended. It is expected_ unless a relay has not ended requests.
  Seq acknowledged() const {
    return relayed_ == nullptr || relayed_->taken == relayed_->ended
               ? expected_
               : relayed_->last[relayed_->ended % core::kMostRelayed];
  }
  /// True if the relay has reported something for which no answer has been sent yet.
  bool has_endings() const;
  void take_endings();
  /// The oldest request of the relay has failed.
  void end_relayed(WcStatus status);
  /// A packet of a SEND or WRITE arrived again that the relay has taken.
  void receive_duplicate_of_relay();
  /// A READ was requested again, which is executed again; or a FLUSH, which is not.
  void ask_again(Response& again, bool is_flush);
  /// The relay has taken the message that the expected packet ends.
  void note_taken();
  /// Fetches the payload of a response. Returns false if the response cannot be sent now, or has ended.
  bool fetch(Response& response, uint64_t offset, uint32_t length, const std::byte** data);
  /// The same for the value that an atomic has found, which it remembers.
  bool fetch_found(Response& response);
  /// The relay's READ or atomic cannot be answered.
  void give_up_relayed(Response& response, WcStatus status);
  /// Forgets the responses from `seq` on, which will not be sent.
  void drop_responses_from(Seq seq);
  /// Sets the bits of the packets from `from` on that have arrived. Returns the number of words used; 0 also if no
  /// packet is missing, since the peer would then take the packet at `from` for lost.
  uint32_t arrived_from(Seq from);

  bool has_room_for_response() const { return responses_pushed_ - responses_popped_ < kResponses; }
  bool push_response(const Response& response);
  bool send_response(Response& response, int64_t now, Output& output);
  /// The READ cannot be answered to its end. Returns true: the response is over.
  bool give_up(Response& response, Seq seq, core::Refusal refusal);
  bool send_acknowledgement(int64_t now, Output& output);
  bool send_notification(Output& output);
  bool send_echoes(Output& output);
  Packet answer(Operation operation, Seq seq) const;
  uint32_t packets_of(uint64_t length) const;
  bool reliable() const { return options_.service != Service::kUc; }
  uint32_t responses_outstanding() const;

  Host& host_;
  core::ContextTarget target_;
  const ResponderOptions options_;
  Rules rules_;
  std::unique_ptr<Relayed> relayed_;  ///< null: there is no relay
  Reorder reorder_;
  Seq expected_;
  uint32_t msn_ = 0;
  Message message_;
  const std::byte* next_place_ = nullptr;
  uint32_t window_;
  uint8_t max_rd_atomic_ = 16;
  bool failed_ = false;
  bool established_ = false;
  bool peer_is_nupa_ = false;
  bool nak_sent_ = false;  ///< a NAK for the gap at expected_ was sent
  bool skipping_ = false;  ///< UC: drops the rest of a message whose beginning was lost
  bool cnp_due_ = false;
  bool packet_awaits_memory_ = false;  ///< the packet at expected_, which is kept in reorder_
  bool response_awaits_memory_ = false;
  Due due_ = Due::kNothing;
  NakCode refusal_ = NakCode::kSequence;
  uint8_t rnr_timer_ = 0;
  Seq trigger_ = 0;
  int64_t trigger_ns_ = 0;
  uint32_t unanswered_ = 0;   ///< packets that arrived out of order since the last acknowledgement
  int64_t answered_ns_ = 0;   ///< when the last acknowledgement left
  uint32_t repetitions_ = 0;  ///< packets of SENDs and WRITEs that arrived twice
  int64_t last_cnp_ns_ = 0;
  uint8_t path_ = 0;      ///< path of the latest packet
  uint8_t cnp_path_ = 0;  ///< path of the latest packet with a congestion mark
  uint32_t echoes_ = 0;   ///< paths on which a probe arrived, one bit each
  std::array<uint32_t, kMaxPaths> tokens_{};
  std::array<uint32_t, kMaxPaths> marked_{};  ///< packets that arrived with a congestion mark
  std::array<Response, kResponses> responses_;
  uint32_t responses_pushed_ = 0;
  uint32_t responses_popped_ = 0;
  std::array<Remembered, kRemembered> remembered_;
  uint32_t remembered_count_ = 0;
  std::array<uint32_t, kBitmapWords> bitmap_{};  ///< bitmap of the acknowledgement that is being sent
  ResponderCounters counters_;
};

}  // namespace nupa::roce
