// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The wire format of the datagrams that ranks send to each other's mailboxes, in little-endian numbers.
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace nupa::ccl {

/// The id of a communicator. A process that does not have it cannot send mail to the communicator's ranks.
using CommunicatorId = std::array<uint64_t, 2>;

enum class MailKind : uint16_t {
  kHello = 1,   ///< the sender's side of a link; asks for the receiver's side
  kAnswer = 2,  ///< the sender's side, which is connected
  kEnd = 3,     ///< all operations end, with the cause
  kAsk = 8,     ///< asks for which rank the receiver waits
  kWaits = 9,   ///< answers: the rank that the sender waits for
  // For the agreement on dead ranks (shrink_agreement.h):
  kDead = 4,        ///< one dead rank
  kDeadSum = 5,     ///< number and hash of all dead ranks
  kDecided = 6,     ///< one dead rank of the decision
  kDecidedSum = 7,  ///< number and hash of those of the decision
};

struct Mail {
  static constexpr uint32_t kMagic = 0x4c4d434e;  // "NCML"
  static constexpr uint16_t kVersion = 2;

  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  MailKind kind = MailKind::kHello;
  CommunicatorId communicator{};
  uint32_t from = 0;    ///< rank
  uint32_t to = 0;      ///< rank
  uint32_t qp_num = 0;  ///< of the link
  uint32_t rkey = 0;    ///< of the arena
  uint64_t arena = 0;   ///< its address
  uint64_t bytes = 0;   ///< its length
  uint64_t cause = 0;   ///< kEnd: a Cause
  uint64_t dead = 0;    ///< kDead, kDecided: a rank; sums: the number of ranks; kWaits: a rank or kNoRank
  uint64_t hash = 0;    ///< sums: the hash of the ranks
};
static_assert(sizeof(Mail) == 80 && std::is_trivially_copyable_v<Mail>);

}  // namespace nupa::ccl
