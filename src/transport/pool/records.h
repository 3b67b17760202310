// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The records of a channel, and how they lie in a header line. No I/O. A record that was read is a copy: its fields
/// are numbers of the peer's choice, and only decode() has checked them. All numbers are little endian.
///
///     tag       kind (5 bits), flags (5 bits), bytes of payload in the header line (6 bits)
///     ANSWERS   1 to kMaxAnswers answers of 8 bytes
///     others    queue pair (24 bits), source queue pair (24), sequence (16), acknowledgement (16), traits (4), credits
///               (4), then
///               payload length (32) if payload lies behind the header line
///               immediate data or key (32) with kImmediate or kInvalidate
///               SRQ number (32) with kXrc
///               operands of the kind
///               offset (32) and total (32) of a part that is not the whole message
///               payload, if there are no lines behind the header
///
///     operands  WRITE key (32), address (64); READ the same and length (32); PLACED the same and number of the grant
///     (32)
///               ATOMIC operation (8), key (32), address (64), operand (64), swap (64), length (32)
///               FLUSH flags (8), key (32), address (64), length (32)
///               ATOMIC ANSWER value found (64); DATAGRAM Q_Key (32); MAD source port (16), destination port (16)
///               GRANT number (32), key (32), address (64), bytes (64), offset in the pool (64); ASK BACK number (32)

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/seam/qp_context.h"
#include "core/seam/responder.h"
#include "transport/pool/medium/line_ring.h"

namespace nupa::pool {

enum class RecordKind : uint8_t {
  kSend = 1,    ///< a part of a SEND, with its immediate data or the key to invalidate
  kWrite,       ///< a part of an RDMA WRITE
  kRead,        ///< the request of an RDMA READ
  kReadAnswer,  ///< a part of its answer
  kAtomic,      ///< the request of an atomic, or an ATOMIC WRITE
  kAtomicAnswer,
  kAnswers,   ///< acknowledgements of up to kMaxAnswers queue pairs
  kDatagram,  ///< of a UD queue pair, whole; its payload begins with the route header
  kMad,       ///< a management datagram, whole
  kPlaced,    ///< a part of an RDMA WRITE whose bytes are in the target's memory already
  kGrant,     ///< from the target to the requester: a region whose bytes the requester places itself from now on
  kAskBack,   ///< from the target to the requester: the grant has to be returned
  kFlush,     ///< the request of a FLUSH, whose answer is that of a READ of no bytes
};
inline constexpr uint8_t kLastKind = static_cast<uint8_t>(RecordKind::kFlush);

namespace record_flag {
inline constexpr uint8_t kFirst = 1;       ///< the first part of a message
inline constexpr uint8_t kLast = 2;        ///< the last part
inline constexpr uint8_t kImmediate = 4;   ///< the operand is immediate data
inline constexpr uint8_t kInvalidate = 8;  ///< the operand is a key
inline constexpr uint8_t kSolicited = 16;
inline constexpr uint8_t kWhole = kFirst | kLast;
}  // namespace record_flag

/// Further traits of a record: 4 bits of the header.
namespace record_trait {
inline constexpr uint8_t kXrc = 1;       ///< names a shared receive queue
inline constexpr uint8_t kAcks = 2;      ///< `ack` is valid
inline constexpr uint8_t kResent = 4;    ///< the first record after the requester went back
inline constexpr uint8_t kForProbe = 8;  ///< MAD: for the socket of probes
}  // namespace record_trait

/// Receives that a target has posted, behind all messages that it acknowledges: a code of 4 bits, as the credits of an
/// adapter (IBTA 9.7.7.2). 0: nothing is reported.
inline constexpr std::array<uint16_t, 16> kCredits{0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 1024};
/// Returns the largest code of no more receives than these.
uint8_t credits_of(uint64_t receives);

/// Bytes of the fields that all kinds but ANSWERS have.
inline constexpr size_t kCommonBytes = 11;
/// Payload of a SEND that lies in the header line.
inline constexpr size_t kMaxInlineBytes = Header::kBytes - kCommonBytes;
/// The longest payload of one record.
inline constexpr uint32_t kMaxPartBytes = 64 << 10;
/// XRC: the core reaches the memory of another process in copies of at most one packet. A relay hands out as much.
inline constexpr uint32_t kShortPartBytes = 4096;
/// Payload of a kMad record: the datagram, and the addresses of its source and its destination.
inline constexpr uint32_t kMadPayloadBytes = 256 + 2 * sizeof(Gid);
/// The longest payload of a datagram, with the route header.
inline constexpr uint32_t kMaxDatagramBytes = 4096 + 40;

struct Record {
  RecordKind kind = RecordKind::kSend;
  uint8_t flags = 0;       ///< record_flag
  uint8_t traits = 0;      ///< record_trait
  uint32_t qp_num = 0;     ///< of the target, 24 bits
  uint32_t source_qp = 0;  ///< 24 bits
  uint16_t sequence = 0;   ///< of the message at its queue pair
  uint16_t ack = 0;        ///< the source queue pair expects this message next from the target
  uint8_t credits = 0;     ///< with kAcks: index into kCredits
  uint32_t length = 0;     ///< bytes of payload of this record; PLACED: bytes of the part
  uint32_t immediate = 0;  ///< immediate data, or the key to invalidate
  uint32_t srqn = 0;       ///< XRC
  uint32_t rkey = 0;
  uint64_t address = 0;  ///< WRITE, PLACED: of the message's beginning; GRANT: of the region
  uint32_t offset = 0;   ///< of the part in the message
  uint32_t total = 0;    ///< bytes of the message
  core::AtomicOp operation = core::AtomicOp::kCompareSwap;
  uint64_t operand = 0;  ///< ATOMIC: compare, add or new value; ATOMIC ANSWER: the value found
  uint64_t swap = 0;
  uint32_t qkey = 0;
  uint16_t from_port = 0;
  uint16_t to_port = 0;
  uint32_t grant = 0;  ///< number of the grant
  uint64_t bytes = 0;  ///< GRANT: of the region
  uint8_t flush = 0;   ///< FLUSH: flush_flag bits
  uint64_t place = 0;  ///< GRANT: its offset in the pool, in the territory of the sender's host
  /// decode(): the payload in the header line; null: it lies behind the header line, or there is none.
  const std::byte* inlined = nullptr;

  bool has(uint8_t flag) const { return (flags & flag) != 0; }
  bool is(uint8_t trait) const { return (traits & trait) != 0; }
  bool is_first() const { return has(record_flag::kFirst); }
  bool is_last() const { return has(record_flag::kLast); }
  bool is_about_grant() const { return kind == RecordKind::kGrant || kind == RecordKind::kAskBack; }
};

/// Bytes of payload that fit into the header line of this record.
size_t inline_room(const Record& record);
/// Writes the header. `payload`: record.length bytes that are copied into the header line if they fit there; otherwise
/// the caller stores the payload behind the header, and `payload` is not read.
void encode(const Record& record, const std::byte* payload, Header* header);
/// `record`: a fresh one, for the result, which points into `header`. Returns false if no writer that keeps the rules
/// has written this. Not for kAnswers.
bool decode(const Header& header, Record* record);
/// The same. Empty: false.
std::optional<Record> decode(const Header& header);

/// The kind in a header's tag; empty: there is no such kind.
std::optional<RecordKind> kind_of(const Header& header);

/// The result of the message `sequence` at its target.
enum class Outcome : uint8_t {
  kDone = 0,    ///< all messages before `sequence` are done; `detail`: credits
  kNotReady,    ///< no receive is posted (RNR); `detail`: the timer code
  kAgain,       ///< the memory of another process was not copied yet: to be sent again
  kAbsent,      ///< no queue pair receives here
  kOutOfOrder,  ///< a message before it is missing
  kRefused,     ///< `detail`: core::Refusal
  kReturned,    ///< no answer to a message: the grant grant_of() is returned to queue pair `qp_num`
};

/// One acknowledgement. Cumulative: all messages before `sequence` of the queue pair are done.
struct Answer {
  uint32_t qp_num = 0;    ///< of the requester, 24 bits
  uint16_t sequence = 0;  ///< the next message that the target expects
  Outcome outcome = Outcome::kDone;
  uint8_t detail = 0;  ///< 5 bits; kDone: index into kCredits
  uint16_t part = 0;   ///< the part of the message that the target expects next, modulo kParts
  bool operator==(const Answer&) const = default;
};
inline constexpr size_t kMaxAnswers = Header::kBytes / 8;
inline constexpr uint32_t kParts = 1u << 15;

/// The answer that returns a grant, whose number has 31 bits.
Answer return_of(uint32_t qp_num, uint32_t grant);
uint32_t grant_of(const Answer& returned);
/// The answer as a word of a kAnswers record; never 0, because no queue pair has the number 0.
uint64_t word_of(const Answer& answer);
/// Empty: the word is no answer.
std::optional<Answer> answer_of(uint64_t word);
/// `words`: 1 to kMaxAnswers.
void encode_answers(std::span<const uint64_t> words, Header* header);
/// Returns the number of answers; 0: the record is garbage.
size_t decode_answers(const Header& header, Answer* answers);

/// Bytes of a message that one record carries at most, on a ring of so many lines: a power of two.
uint32_t part_bytes_of(uint32_t ring_lines);

}  // namespace nupa::pool
