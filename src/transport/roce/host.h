#pragma once
/// The surroundings of the engine: what it asks of the queue pair that it serves, and where its packets go.

#include <nupa/queue_pair.h>

#include <optional>

#include "transport/roce/wire.h"

namespace nupa::roce {

/// What a receive's completion tells of a message.
struct Inbound {
  WcOpcode opcode = WcOpcode::kRecv;
  uint32_t imm_data = 0;  ///< as sent, or the invalidated key with wc_flag::kWithInv
  uint32_t wc_flags = 0;
  uint32_t byte_len = 0;
  uint32_t src_qp = 0;
  bool solicited = false;
};

/// The core's side of one queue pair. The engine calls it from within its own calls, nowhere else.
class Host {
 public:
  virtual ~Host() = default;

  // What the requester needs.
  /// Where the bytes of a list's entry lie at this moment, with rights (access bits) on them; *data null: a null
  /// region. False: the key does not open them any more.
  virtual bool locate(const Sge& sge, uint32_t rights, std::byte** data) = 0;
  /// BIND_MW and LOCAL_INV.
  virtual WcStatus run_local(const SendWr& wr) = 0;
  /// A request is done, in the order of posting; `length`: bytes of the message. After one that failed come the others
  /// with kWrFlushErr, and the engine takes no more.
  virtual void complete_send(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length) = 0;

  // What the responder needs.
  /// The memory that a request names, if the queue pair and the key give it `rights` (IBTA 9.4.1.1.3); else null.
  /// `length` is not 0; more than kMaxMtu: the rights are asked for alone. Valid until the engine's call ends, or with
  /// XRC until the next one of this host, since it may be a copy. `srqn`: XRC, whose requests name their receive queue.
  virtual std::byte* reach(uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights) = 0;
  /// What reach() gave last has been written from its beginning. False: the memory is out of reach by now.
  virtual bool wrote([[maybe_unused]] uint32_t length) { return true; }
  enum class Atomic : uint8_t { kCompareSwap, kFetchAdd, kWrite };
  /// `operand` goes in as compare, add or new value and comes back as the value found. kSuccess; kRemAccessErr: as
  /// reach(); kRemInvReqErr: no word that a processor can be atomic on; kRemOpErr: out of reach.
  virtual WcStatus run_atomic(Atomic operation, uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t* operand,
                              uint64_t swap);
  enum class Take : uint8_t {
    kTaken,
    kNone,     ///< none is posted
    kNoQueue,  ///< XRC: no such shared receive queue in the domain
  };
  /// Takes the oldest posted receive; it stays taken until completed or returned.
  virtual Take take_receive(uint32_t srqn) = 0;
  /// Bytes that the taken receive has room for.
  virtual uint64_t receive_room() const = 0;
  /// Copies into the taken receive's buffers; *behind: where the copy ended. False: their keys do not open them.
  virtual bool place(uint64_t offset, const std::byte* data, uint32_t length, const std::byte** behind) = 0;
  virtual void complete_receive(const Inbound& message, WcStatus status) = 0;
  virtual void return_receive() = 0;
  /// SEND_WITH_INV. False: not such a window's key.
  virtual bool invalidate(uint32_t rkey) = 0;
  /// The responder refuses a request: the queue pair goes to the error state, with an event if one is named.
  virtual void refuse(std::optional<EventType> event) = 0;
  /// The code of the time that a requester waits for a receive (IBTA table 45).
  virtual uint8_t rnr_timer() const = 0;
  /// The first packet that was accepted.
  virtual void established() = 0;
};

/// A part of a packet's payload in the program's memory. `data` null: zeros.
struct Fragment {
  const std::byte* data;
  uint32_t length;
};

/// What became of a packet.
enum class Sent : uint8_t {
  kYes,
  kNotNow,      ///< the engine offers it again with the next transmit()
  kUnreadable,  ///< the program's memory is not there any more
};

/// Takes packets on their way. The payload has to be read before the engine's caller lets go of the queue pair.
class Output {
 public:
  virtual ~Output() = default;
  virtual Sent send(uint8_t path, const Packet& packet, const Fragment* payload, uint32_t fragments) = 0;
};

}  // namespace nupa::roce
