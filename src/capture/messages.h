// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The packets that stand for requests of a transport that has no packets: those that an adapter would send for them
/// (IBTA 9.4, 9.7). One thread at a time for one Flow.

#include <cstdint>
#include <string_view>

#include "base/piece.h"
#include "capture/tap.h"
#include <nupa/types.h>

namespace nupa::capture {

/// The requests of one queue pair to its peer, or a datagram queue pair's to one destination.
struct Flow {
  Gid source{};
  Gid destination{};
  std::string_view transport{};
  uint32_t device = 0;
  uint32_t qp = 0;
  uint32_t dest_qpn = 0;
  QpType type = QpType::kRc;
  uint32_t mtu = 4096;
  uint8_t traffic_class = 0;
  uint32_t psn = 0;         ///< of the next request
  uint32_t answer_psn = 0;  ///< of the oldest request that is not answered
  uint32_t msn = 0;         ///< requests answered so far
};

enum class MessageKind : uint8_t { kSend, kWrite, kRead, kCompareSwap, kFetchAdd, kAtomicWrite, kFlush };

struct Message {
  MessageKind kind = MessageKind::kSend;
  bool has_immediate = false;
  bool invalidates = false;
  bool solicited = false;
  uint32_t imm_or_rkey = 0;
  uint32_t rkey = 0;
  uint64_t address = 0;
  uint64_t swap_or_add = 0;
  uint64_t compare = 0;
  uint32_t srqn = 0;                    ///< XRC
  uint32_t qkey = 0;                    ///< UD
  uint32_t flush = 0;                   ///< FLUSH: flush_flag bits
  uint64_t range = 0;                   ///< FLUSH: bytes of the range; 0: the whole region
  const base::Piece* pieces = nullptr;  ///< the list: what is sent, and where responses lie
  uint32_t piece_count = 0;
  uint64_t length = 0;
};

/// The responder's answer to a request (IBTA 9.7.5.2.4).
enum class Answer : uint8_t {
  kNone,  ///< it sent no packet
  kDone,  ///< a response, or an acknowledgement
  kNotReady,
  kInvalidRequest,
  kRemoteAccess,
  kRemoteOperation,
};

/// Records the packets of a request and takes their sequence numbers.
[[gnu::cold]] void record_request(Flow& flow, const Message& message);
/// Records the responder's packets for the oldest request, which is `message`, and passes its sequence numbers.
[[gnu::cold]] void record_answer(Flow& flow, const Message& message, Answer answer);
/// Records a management datagram between the queue pairs 1 of two hosts.
[[gnu::cold]] void record_mad(Flow& flow, const std::byte* bytes, uint32_t length);

}  // namespace nupa::capture
