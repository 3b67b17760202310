// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A send request on its way from the core to a transport, and what the transport did with it.

#include <nupa/queue_pair.h>

#include <cstdint>

#include "base/piece.h"

namespace nupa::core {

/// Bytes that an atomic operation reads and writes (IBTA 9.4.5).
constexpr uint64_t kAtomicBytes = 8;
/// The longest message of a connected service, bytes (IBTA 9.3.2).
constexpr uint64_t kMaxMessage = uint64_t{1} << 31;

/// Entries of a scatter or gather list: a post holds the pieces of one request on its stack.
constexpr uint32_t kMaxSge = 32;

constexpr bool is_atomic(Opcode opcode) { return opcode == Opcode::kCompareSwap || opcode == Opcode::kFetchAdd; }
/// Requests that write to the memory of their own list.
constexpr bool writes_own_list(Opcode opcode) { return opcode == Opcode::kRdmaRead || is_atomic(opcode); }
/// Requests that concern this process alone.
constexpr bool is_local(Opcode opcode) { return opcode == Opcode::kBindMw || opcode == Opcode::kLocalInv; }

using base::Piece;

/// One request that the core has checked at post(). Valid during the call only: a transport that returns
/// Posted::taken() keeps a copy (DeferredSends makes one).
struct Request {
  const SendWr& wr;             ///< read `pieces` instead of its list, unless the request is kept
  const AddressVector* vector;  ///< UD: the destination; null otherwise
  const Piece* pieces;          ///< entries of length 0 are left out
  uint32_t piece_count;         ///< 0 to kMaxSge
  uint64_t length;              ///< bytes of all pieces
  uint32_t position;            ///< in the send queue; given back to QpContext::complete_send()
  WcStatus fault;               ///< not kSuccess: the request is not executed, it ends with this status in its turn
};

/// The outcome of Endpoint::post(). One word: a structure of bytes is written in parts and read as a whole,
/// for which processors wait.
class Posted {
 public:
  /// Finished; the core completes it now.
  static constexpr Posted done(WcStatus status) { return Posted(static_cast<uint32_t>(status)); }
  /// Kept: QpContext::complete_send() will be called for it, exactly once.
  static constexpr Posted taken() { return Posted(kTaken); }
  /// Nothing was done and nothing is kept: post() returns ENOMEM to the program.
  static constexpr Posted no_memory() { return Posted(kNoMemory); }

  constexpr bool succeeded() const { return word_ == 0; }
  constexpr bool is_taken() const { return word_ == kTaken; }
  constexpr bool is_refused() const { return word_ == kNoMemory; }
  /// Only of done().
  constexpr WcStatus status() const { return static_cast<WcStatus>(word_); }

 private:
  static constexpr uint32_t kTaken = 1u << 8;
  static constexpr uint32_t kNoMemory = 1u << 9;
  explicit constexpr Posted(uint32_t word) : word_(word) {}
  uint32_t word_;
};
static_assert(static_cast<uint32_t>(WcStatus::kSuccess) == 0);

}  // namespace nupa::core
