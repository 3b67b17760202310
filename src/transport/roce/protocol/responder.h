#pragma once
#include <array>

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
  uint32_t window = 0;       ///< bytes that the sender may have under way; 0: nothing is said
  uint8_t mark = kNupaMark;  ///< 0: nothing but the standard is spoken
};

/// For people.
struct ResponderCounters {
  uint64_t packets = 0;
  uint64_t duplicates = 0;
  uint64_t early = 0;    ///< came before their turn
  uint64_t dropped = 0;  ///< early ones for which there was no room, or that did not fit what was expected
  uint64_t rnr_naks = 0;
  uint64_t marked = 0;
};

/// The receiving half of an RC, UC or XRC queue pair (IBTA 9.7, 9.8): packets become memory, receives and answers.
class Responder {
 public:
  Responder(Host& host, const ResponderOptions& options, PacketMemory& pool);

  void set_max_rd_atomic(uint8_t count) { max_rd_atomic_ = count; }
  /// Bytes that the sender may have under way from now on; 0: nothing is said.
  void set_window(uint32_t bytes) { window_ = bytes; }
  /// A request, or a probe of a path. `congested`: it met a congested queue on its way (ECN CE). Answers go
  /// the way it came.
  void receive(const Packet& packet, bool congested, int64_t now);
  /// Sends READ responses and acknowledgements that are due, at most `budget` packets. True if there is more.
  bool transmit(int64_t now, Output& output, uint32_t budget);
  /// Where the payload of the next packet goes if it is the one that should come; null: not known.
  const std::byte* next_place() const { return next_place_; }
  bool has_output() const {
    return responses_pushed_ != responses_popped_ || due_ != Due::kNothing || cnp_due_ || echoes_ != 0 ||
           packet_awaits_memory_;
  }
  /// Something waits for another process to copy its memory: transmit() goes on with it, and sends what is due else.
  bool awaits_memory() const {
    return packet_awaits_memory_ || (response_awaits_memory_ && responses_pushed_ != responses_popped_);
  }
  /// The queue pair leaves the states that receive: a receive that was being filled is completed as flushed.
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
  /// An answer with data that is to be sent, or is being sent.
  struct Response {
    bool atomic = false;
    bool replay = false;
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
    kNotServed,  ///< the memory is another process's, which has not copied yet
  };
  enum class Due : uint8_t { kNothing, kAck, kSequenceNak, kNotReady, kRefusal };
  /// Packets out of order that do not ask are answered together: this many, or what has come in this time since the
  /// last answer. It is a quarter of the shortest reordering window, so that losses are found no later for it.
  static constexpr uint32_t kUnansweredPackets = 16;
  static constexpr int64_t kUnansweredNs = 2'500;
  static constexpr uint32_t kResponses = 64;   ///< with repetitions
  static constexpr uint32_t kRemembered = 32;  ///< atomics whose results are kept

  void receive_reliable(const Packet& packet, int64_t now);
  void receive_unreliable(const Packet& packet);
  /// The first request whose turn has come says that the connection stands, whatever comes of it (IBTA 11.6.3.1).
  void note_established();
  /// Executes the packet whose turn it is, and notes what answer is due.
  Result take_turn(const Packet& next, bool placed);
  /// The same of those that came before their turn, as far as there is no gap.
  void take_kept(int64_t now);
  void receive_duplicate(const Packet& packet, Seq seq);
  void receive_early(const Packet& packet, Seq seq, int64_t now);
  /// A packet that did not ask has come out of order, or filled a gap: an answer is due after a while.
  void note_unanswered(int64_t now);
  Result execute(const Packet& packet, bool placed);
  Result execute_send(const Packet& packet, uint32_t traits);
  Result execute_write(const Packet& packet, uint32_t traits, bool placed);
  Result execute_read(const Packet& packet);
  Result execute_atomic(const Packet& packet);
  Result execute_atomic_write(const Packet& packet);
  /// Whether the packet may come next, and has the length that its place asks for (IBTA 9.7.4.1).
  bool fits_sequence(const Packet& packet, uint32_t traits) const;
  Inbound inbound_of(const Packet& packet, WcOpcode opcode) const;
  /// What follows here from a verdict of the rules.
  Result result_of(core::Verdict verdict);
  /// A request that is refused before the rules see it, or while it is answered.
  Result refuse(core::Refusal refusal);
  void drop_message();
  bool has_room_for_response() const { return responses_pushed_ - responses_popped_ < kResponses; }
  bool push_response(const Response& response);
  bool send_response(Response& response, int64_t now, Output& output);
  /// A READ that cannot be answered to its end. True: the response is over.
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
  bool nak_sent_ = false;  ///< for the gap at expected_
  bool skipping_ = false;  ///< UC: the rest of a message whose beginning was lost
  bool cnp_due_ = false;
  bool packet_awaits_memory_ = false;  ///< the one of expected_, which is among the kept ones
  bool response_awaits_memory_ = false;
  Due due_ = Due::kNothing;
  NakCode refusal_ = NakCode::kSequence;
  uint8_t rnr_timer_ = 0;
  Seq trigger_ = 0;
  int64_t trigger_ns_ = 0;
  uint32_t unanswered_ = 0;   ///< packets that came out of order since the last acknowledgement
  int64_t answered_ns_ = 0;   ///< when that left
  uint32_t repetitions_ = 0;  ///< SENDs' and WRITEs' packets that came twice
  int64_t last_cnp_ns_ = 0;
  uint8_t path_ = 0;      ///< by which the latest packet came
  uint8_t cnp_path_ = 0;  ///< by which a marked one came
  uint32_t echoes_ = 0;   ///< paths by which a probe came, one bit each
  std::array<uint32_t, kMaxPaths> tokens_{};
  std::array<uint32_t, kMaxPaths> marked_{};  ///< packets that came marked
  std::array<Response, kResponses> responses_;
  uint32_t responses_pushed_ = 0;
  uint32_t responses_popped_ = 0;
  std::array<Remembered, kRemembered> remembered_;
  uint32_t remembered_count_ = 0;
  std::array<uint32_t, kBitmapWords> bitmap_{};  ///< of the acknowledgement that is on its way
  ResponderCounters counters_;
};

}  // namespace nupa::roce
