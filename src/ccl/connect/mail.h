#pragma once
/// What ranks tell each other by datagrams, as it lies on the wire, in little-endian numbers.
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace nupa::ccl {

/// Names a communicator; whoever does not know it cannot speak to its ranks.
using CommunicatorId = std::array<uint64_t, 2>;

enum class MailKind : uint16_t {
  kHello = 1,   ///< this is my end of our link: make yours
  kAnswer = 2,  ///< this is mine; it is connected
  kEnd = 3,     ///< all ends, and why
  kAsk = 8,     ///< whom do you wait for?
  kWaits = 9,   ///< for this one
  // Of those who are left (survivors.h):
  kGone = 4,        ///< one who is gone
  kGoneSum = 5,     ///< all of them
  kDecided = 6,     ///< one who is gone, as was decided
  kDecidedSum = 7,  ///< all of them
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
  uint64_t gone = 0;    ///< kGone, kDecided: a rank; their sums: how many; kWaits: a rank or kNoRank
  uint64_t hash = 0;    ///< sums: of all of them
};
static_assert(sizeof(Mail) == 80 && std::is_trivially_copyable_v<Mail>);

}  // namespace nupa::ccl
