// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The outcome of one try to execute a request.

#include <nupa/queue_pair.h>

#include <cstdint>

namespace nupa::shm_transport {

enum class Verdict : uint8_t {
  kDone,      ///< completed, successfully or not: see status()
  kNotReady,  ///< the receiver has no receive posted (RNR): try again
  kNoAnswer,  ///< the peer cannot be reached or does not take requests yet: try again
  kCopying,   ///< a copy engine copies the data: try again until it is done
};

/// It is one word, since each message returns one. A structure of bytes and words is stored in parts and then loaded as
/// a whole, and processors stall on such a load.
class Outcome {
 public:
  static constexpr Outcome done(WcStatus status) { return Outcome(Verdict::kDone, static_cast<uint32_t>(status)); }
  /// `rnr_timer`: the receiver's timer code (IBTA table 45).
  static constexpr Outcome not_ready(uint32_t rnr_timer) { return Outcome(Verdict::kNotReady, rnr_timer & 0x1f); }
  static constexpr Outcome no_answer() { return Outcome(Verdict::kNoAnswer, 0); }
  static constexpr Outcome copying() { return Outcome(Verdict::kCopying, 0); }

  constexpr Verdict verdict() const { return static_cast<Verdict>(word_ >> 8); }
  constexpr bool is_done() const { return word_ < (1u << 8); }
  constexpr bool succeeded() const { return word_ == 0; }
  /// Valid with kDone only.
  constexpr WcStatus status() const { return static_cast<WcStatus>(word_ & 0xff); }
  /// Valid with kNotReady only.
  constexpr uint32_t rnr_timer() const { return word_ & 0xff; }

 private:
  constexpr Outcome(Verdict verdict, uint32_t detail) : word_(static_cast<uint32_t>(verdict) << 8 | detail) {}
  uint32_t word_;
};
static_assert(static_cast<uint32_t>(Verdict::kDone) == 0 && static_cast<uint32_t>(WcStatus::kSuccess) == 0);

}  // namespace nupa::shm_transport
