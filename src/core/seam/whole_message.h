// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Builds a request as one message, for transports that do not divide it into packets. Any thread.

#include <algorithm>
#include <cstring>

#include "core/seam/qp_context.h"
#include "core/seam/request.h"
#include "core/seam/responder.h"

namespace nupa::core {

/// The message as the completion of its receive shows it. `source`: the queue pair that sends it. The transport adds
/// the service level and the route.
inline Inbound inbound_of(const SendWr& wr, uint32_t source) {
  Inbound inbound;
  inbound.src_qp = source;
  inbound.solicited = (wr.flags & send_flag::kSolicited) != 0;
  if (wr.opcode == Opcode::kSendWithImm || wr.opcode == Opcode::kRdmaWriteWithImm) {
    inbound.wc_flags = wc_flag::kWithImm;
    inbound.imm_data = wr.imm_or_rkey;
  } else if (wr.opcode == Opcode::kSendWithInv) {
    inbound.wc_flags = wc_flag::kWithInv;
    inbound.imm_data = wr.imm_or_rkey;
  }
  if (wr.opcode == Opcode::kRdmaWriteWithImm) inbound.opcode = WcOpcode::kRecvRdmaWithImm;
  return inbound;
}

/// A whole SEND with its data.
inline SendPart whole_send(const SendWr& wr, const Piece* pieces, uint32_t count, uint64_t length) {
  return {true, true, pieces, count, length, wr.remote_srqn, wr.opcode == Opcode::kSendWithInv, wr.imm_or_rkey};
}

/// A whole datagram. Its data begins with the route header.
inline SendPart whole_datagram(const Piece* pieces, uint32_t count, uint64_t length) {
  return {true, true, pieces, count, length, 0, false, 0};
}

/// A whole RDMA WRITE with its data.
inline WritePart whole_write(const SendWr& wr, const Piece* pieces, uint32_t count, uint64_t length) {
  const bool has_immediate = wr.opcode == Opcode::kRdmaWriteWithImm;
  return {true, true, has_immediate, false, pieces, count, length, length, wr.remote_addr, wr.rkey, wr.remote_srqn};
}

/// A FLUSH. One of the whole region names no range.
inline FlushPart flush_of(const SendWr& wr) {
  const bool is_whole = (wr.imm_or_rkey & flush_flag::kRegion) != 0;
  return {wr.imm_or_rkey, is_whole ? 0 : wr.compare_add, is_whole ? 0 : wr.remote_addr, wr.rkey, wr.remote_srqn};
}

/// The operation of an atomic request: one with is_atomic(), or an ATOMIC_WRITE.
inline AtomicOp atomic_op_of(Opcode opcode) {
  if (opcode == Opcode::kAtomicWrite) return AtomicOp::kWrite;
  return opcode == Opcode::kCompareSwap ? AtomicOp::kCompareSwap : AtomicOp::kFetchAdd;
}

/// The Q_Key of a datagram. If its high bit is set, the sender's own Q_Key is used (IBTA 10.2.5).
inline uint32_t qkey_of(const SendWr& wr, const QpContext& sender) {
  constexpr uint32_t kOwn = 0x80000000;
  return (wr.remote_qkey & kOwn) != 0 ? sender.qkey() : wr.remote_qkey;
}

/// Copies the bytes of the request's list to `to`, which has room for them. Bytes of a null region are not written.
inline void gather(const Request& request, std::byte* to) {
  for (uint32_t i = 0; i < request.piece_count; ++i) {
    if (request.pieces[i].data != nullptr) std::memcpy(to, request.pieces[i].data, request.pieces[i].length);
    to += request.pieces[i].length;
  }
}

/// A copy of the bytes of the request's list, behind `before` zeros.
inline std::vector<std::byte> gathered(const Request& request, size_t before = 0) {
  std::vector<std::byte> bytes(before + request.length);
  gather(request, bytes.data() + before);
  return bytes;
}

/// Copies `length` bytes to the memory of the request's list, or fewer if the list is shorter.
inline void scatter(const Request& request, const std::byte* from, uint64_t length) {
  for (uint32_t i = 0; i < request.piece_count && length > 0; ++i) {
    const uint64_t step = std::min(length, request.pieces[i].length);
    if (request.pieces[i].data != nullptr) std::memcpy(request.pieces[i].data, from, step);
    from += step;
    length -= step;
  }
}

}  // namespace nupa::core
