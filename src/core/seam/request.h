// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A send request as the core gives it to a transport, and the transport's answer.

#include <nupa/queue_pair.h>

#include <cstdint>

#include "base/piece.h"

namespace nupa::core {

/// Bytes that an atomic operation reads and writes (IBTA 9.4.5).
constexpr uint64_t kAtomicBytes = 8;
/// The longest message of a connected service, bytes (IBTA 9.3.2).
constexpr uint64_t kMaxMessage = uint64_t{1} << 31;

/// The largest number of entries of a scatter or gather list. A post holds the pieces of one request on its stack.
constexpr uint32_t kMaxSge = 32;

constexpr bool is_atomic(Opcode opcode) { return opcode == Opcode::kCompareSwap || opcode == Opcode::kFetchAdd; }
/// Requests whose results are written to the memory of the request's list.
constexpr bool writes_own_list(Opcode opcode) { return opcode == Opcode::kRdmaRead || is_atomic(opcode); }
/// Requests that a response ends, and that count against max_rd_atomic.
constexpr bool is_answered(Opcode opcode) { return writes_own_list(opcode) || opcode == Opcode::kFlush; }
/// Requests that only affect this process.
constexpr bool is_local(Opcode opcode) { return opcode == Opcode::kBindMw || opcode == Opcode::kLocalInv; }

/// True if a FLUSH with these flush_flag bits has a meaning.
constexpr bool is_flush(uint32_t flags) {
  constexpr uint32_t kPlacements = flush_flag::kGlobal | flush_flag::kPersistent;
  return (flags & kPlacements) != 0 && (flags & ~(kPlacements | flush_flag::kRegion)) == 0;
}
/// The access bits that a FLUSH needs.
constexpr uint32_t flush_rights(uint32_t flags) {
  return ((flags & flush_flag::kGlobal) != 0 ? access::kFlushGlobal : 0) |
         ((flags & flush_flag::kPersistent) != 0 ? access::kFlushPersistent : 0);
}

using base::Piece;

/// One request that the core has checked at post(). It is valid during the call only: a transport that returns
/// Posted::taken() keeps a copy (DeferredSends makes one).
struct Request {
  const SendWr& wr;             ///< the transport reads `pieces` instead of its list, unless it keeps the request
  const AddressVector* vector;  ///< UD: the destination; null otherwise
  const Piece* pieces;          ///< entries of length 0 are left out
  uint32_t piece_count;         ///< 0 to kMaxSge
  uint64_t length;              ///< bytes of all pieces
  uint32_t position;            ///< index in the send queue, passed back to QpContext::complete_send()
  WcStatus fault;  ///< not kSuccess: the request is not executed and ends with this status when its turn comes
};

/// The result of Endpoint::post(). It is one word because a structure of bytes is stored in parts and then loaded as a
/// whole, and processors stall on such a load.
class Posted {
 public:
  /// The request has ended; the core completes it now.
  static constexpr Posted done(WcStatus status) { return Posted(static_cast<uint32_t>(status)); }
  /// The transport keeps the request and calls QpContext::complete_send() for it exactly once.
  static constexpr Posted taken() { return Posted(kTaken); }
  /// The transport did nothing and keeps nothing: post() returns ENOMEM to the program.
  static constexpr Posted no_memory() { return Posted(kNoMemory); }

  constexpr bool succeeded() const { return word_ == 0; }
  constexpr bool is_taken() const { return word_ == kTaken; }
  constexpr bool is_refused() const { return word_ == kNoMemory; }
  /// Valid after done() only.
  constexpr WcStatus status() const { return static_cast<WcStatus>(word_); }

 private:
  static constexpr uint32_t kTaken = 1u << 8;
  static constexpr uint32_t kNoMemory = 1u << 9;
  explicit constexpr Posted(uint32_t word) : word_(word) {}
  uint32_t word_;
};
static_assert(static_cast<uint32_t>(WcStatus::kSuccess) == 0);

}  // namespace nupa::core
