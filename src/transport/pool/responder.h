// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The responder of an RC, UC or XRC queue pair (IBTA 9.7, 9.8): it turns records into memory contents, receives and
/// answers. All calls are made with the queue pair's send lock held.

#include <array>
#include <memory>
#include <utility>

#include "core/seam/responder.h"
#include "transport/pool/link.h"
#include "transport/pool/records.h"
#include "transport/pool/statistics.h"

namespace nupa::pool {

class Responder {
 public:
  Responder(core::QpContext& context, Statistics& statistics, uint32_t remote_qpn, uint16_t first_sequence)
      : context_(context),
        statistics_(statistics),
        target_(context),
        rules_(target_, context.type() != QpType::kUc),
        remote_qpn_(remote_qpn),
        expected_(first_sequence) {
    if (core::Relay* const relay = context.relay(); relay != nullptr) relayed_ = std::make_unique<Relayed>(*relay);
  }

  void set_max_rd_atomic(uint8_t count) { max_rd_atomic_ = std::min<uint32_t>(count, kResponses); }
  /// Takes a request. `payload`: record.length bytes. `part_bytes`: see Link. `is_granted`: PLACED: the peer may place
  /// by the key.
  void receive(const Record& record, const Payload& payload, uint32_t part_bytes, bool is_granted = false);
  /// The key of a long WRITE that has just begun through the ring, once; 0: there was none. The peer might place the
  /// next one itself.
  uint32_t take_written_key() { return std::exchange(written_key_, 0); }
  /// Writes responses, about `budget` bytes. Returns false if the channel has no room for the next one, or if the
  /// budget is used up.
  bool transmit(Link& link, uint64_t budget);
  bool has_responses() const { return popped_ != pushed_; }
  /// True if a response waits for another process to copy its memory: transmit() is to be called again soon.
  bool awaits_memory() const { return awaits_memory_ && has_responses(); }
  /// Takes the answer that is due: word_of() it; 0: none is.
  uint64_t take_due();
  /// The peer places messages, and is to know how many more are sure of a receive.
  void report_credits() { reports_credits_ = true; }
  /// The code of the receives behind acknowledged().
  uint8_t credits() const;
  /// All messages before this one were taken. With a relay, they have ended at the far end.
  uint16_t acknowledged() const {
    return relayed_ == nullptr || relayed_->taken == relayed_->ended ? expected_ : relayed_->oldest();
  }
  /// The relay has more to report. Without one: does nothing.
  void take_endings();
  /// The queue pair leaves the states that receive: a partly filled receive completes as flushed.
  void stop();

 private:
  using Rules = core::Responder<core::ContextTarget>;
  enum class Kind : uint8_t { kNone, kSend, kWrite };
  /// The message of which parts have arrived.
  struct Message {
    Kind kind = Kind::kNone;
    uint32_t srqn = 0;
    uint32_t rkey = 0;
    uint64_t address = 0;
    uint32_t total = 0;
    Rules::Message received;
  };
  /// A response that is to be written, or partly written.
  struct Response {
    bool atomic = false;
    uint16_t sequence = 0;
    uint32_t srqn = 0;
    uint32_t rkey = 0;
    uint64_t address = 0;
    uint32_t length = 0;
    uint32_t sent = 0;
    uint64_t found = 0;
    bool relayed = false;  ///< the bytes, or the value found, come from the relay
    uint32_t ticket = 0;
  };
  /// The requests that a relay has taken.
  struct Relayed {
    explicit Relayed(core::Relay& its_relay) : relay(its_relay) {}
    uint16_t oldest() const { return sequences[ended % core::kMostRelayed]; }

    core::Relay& relay;
    uint64_t taken = 0;  ///< SENDs, WRITEs and ATOMIC_WRITEs
    uint64_t ended = 0;
    std::array<uint16_t, core::kMostRelayed> sequences{};  ///< of those that have not ended
    Answer report;                                         ///< `reported_`: what the requester was answered
    bool reported_waiting = false;                         ///< the peer knows that the far end has no receive
    bool never_ready = false;                              ///< the far end had none for as long as the retries lasted
    bool is_lost = false;                                  ///< the far end does not answer
    bool awaits_bytes = false;                             ///< of the oldest response
  };
  static constexpr uint32_t kResponses = 32;  ///< more than the most that a program may allow

  bool reliable() const { return context_.type() != QpType::kUc; }
  bool is_xrc() const { return context_.type() == QpType::kXrcRecv; }
  void receive_reliable(const Record& record, const Payload& payload, uint32_t part_bytes);
  void receive_unreliable(const Record& record, const Payload& payload);
  core::Verdict execute(const Record& record, const Payload& payload);
  core::Verdict execute_send(const Record& record, const Payload& payload);
  core::Verdict execute_write(const Record& record, const Payload& payload);
  /// Checks a part that is in place like one that is not.
  core::Verdict check_placed(const Record& record);
  core::Verdict execute_read(const Record& record);
  core::Verdict execute_atomic(const Record& record);
  core::Verdict execute_flush(const Record& record);
  /// True if a response ends the request, which acknowledges it and all before it.
  static bool responds(const Record& record) {
    return record.kind == RecordKind::kRead || record.kind == RecordKind::kFlush ||
           (record.kind == RecordKind::kAtomic && record.operation != core::AtomicOp::kWrite);
  }
  /// True if the record may come next.
  bool fits(const Record& record) const;
  core::Inbound inbound_of(const Record& record, WcOpcode opcode) const;
  core::Verdict refuse(core::Refusal refusal);
  void take(core::Verdict verdict, const Record& record, uint32_t part_bytes);
  void drop_message();
  // With a relay: responder_relay.cc.
  void note_taken(const Record& record);
  void end_relayed(WcStatus status);
  /// A message that the relay has taken came again.
  void owe_for_duplicate();
  /// Ends the request `sequence`, which the far end has not executed, and all behind it.
  void fail_relayed(uint16_t sequence, WcStatus status);
  void drop_responses_from(uint16_t sequence);
  /// Returns false if the bytes have not arrived, or if the response was given up.
  bool fetch(Response& response, uint64_t offset, uint32_t length, const std::byte** data);
  bool fetch_found(Response& response);
  void owe(Outcome outcome, uint8_t detail = 0, uint16_t part = 0);
  bool send_response(Link& link, Response& response);
  /// The READ cannot be answered to its end.
  void give_up(const Response& response, core::Refusal refusal);
  uint32_t outstanding() const { return pushed_ - popped_; }
  bool awaits_bytes() const { return relayed_ != nullptr && relayed_->awaits_bytes; }

  core::QpContext& context_;
  Statistics& statistics_;
  core::ContextTarget target_;
  Rules rules_;
  const uint32_t remote_qpn_;
  uint32_t max_rd_atomic_ = 1;
  uint16_t expected_;
  Message message_;
  uint32_t written_key_ = 0;
  bool is_granted_ = false;  ///< of the record that is received at present
  bool reports_credits_ = false;
  bool failed_ = false;
  bool established_ = false;
  bool reported_ = false;  ///< the requester was answered that it has to go back
  bool skipping_ = false;  ///< UC: drops the rest of a message
  bool awaits_memory_ = false;
  bool owes_ = false;
  Answer due_;
  std::unique_ptr<Relayed> relayed_;  ///< null: no relay
  std::array<Response, kResponses> responses_;
  uint32_t pushed_ = 0;
  uint32_t popped_ = 0;
};

}  // namespace nupa::pool
