// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The records of a channel, and how they lie in a header line. No I/O. A record that was read is a copy: its fields
/// are numbers of the peer's choice, and only decode() has checked them.
///
///   tag      kind(5 bits) flags(5) inline_bytes(6)
///   bytes    queue pair(24 bits) source queue pair(24) sequence(16), then the operands of the kind, then inline bytes

#include <cstddef>
#include <cstdint>
#include <optional>

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
  kDatagram,  ///< of a UD queue pair, whole
  kMad,       ///< a management datagram, whole
};
inline constexpr uint8_t kLastKind = static_cast<uint8_t>(RecordKind::kMad);

namespace record_flag {
inline constexpr uint8_t kFirst = 1;       ///< the first part of a message
inline constexpr uint8_t kLast = 2;        ///< the last part
inline constexpr uint8_t kImmediate = 4;   ///< the operand is immediate data
inline constexpr uint8_t kInvalidate = 8;  ///< the operand is a key
inline constexpr uint8_t kSolicited = 16;
}  // namespace record_flag

/// Bytes of the operands in the header line, by kind.
inline constexpr size_t kCommonBytes = 8;
inline constexpr size_t kMaxInlineBytes = Header::kBytes - kCommonBytes;

/// What all kinds have.
struct Record {
  RecordKind kind = RecordKind::kSend;
  uint8_t flags = 0;
  uint8_t inline_bytes = 0;    ///< at the end of the header line
  uint32_t qp_num = 0;         ///< of the target, 24 bits
  uint32_t source_qp = 0;      ///< 24 bits
  uint16_t sequence = 0;       ///< of the message at its queue pair
  uint32_t payload_bytes = 0;  ///< behind the header line; at most the payload lines hold
};

/// SEND, WRITE and answers of READs: where the part belongs.
struct PartOperands {
  uint32_t immediate = 0;  ///< immediate data, or the key to invalidate
  uint32_t srqn = 0;       ///< XRC
  uint32_t rkey = 0;       ///< WRITE
  uint64_t address = 0;    ///< WRITE: of the message's beginning
  uint32_t offset = 0;     ///< of the part in the message
  uint32_t total = 0;      ///< bytes of the message
};

/// One acknowledgement. Cumulative: all messages before `sequence` of the queue pair are done.
struct Answer {
  uint32_t qp_num = 0;    ///< of the requester, 24 bits
  uint16_t sequence = 0;  ///< the next message that the target expects
  uint8_t verdict = 0;    ///< of the message `sequence`, if it was not executed; 0: none
  uint8_t detail = 0;     ///< the timer code of a receiver that is not ready, or the refusal
};
inline constexpr size_t kMaxAnswers = Header::kBytes / 8;

}  // namespace nupa::pool
