#pragma once
#include <nupa/result.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "ccl/call/call.h"

namespace nupa::ccl {

/// What the parts of a rank's arena are multiples of.
inline constexpr size_t kPage = 4096;

/// What a program's user says of its communicators. The same on all ranks.
struct CommunicatorOptions {
  int64_t limit_ns = 0;        ///< of an operation, until whoever it waits for is named
  size_t slot_bytes = 0;       ///< multiple of a page
  bool reads = true;           ///< ranks of one host read each other's memory, where the system lets them
  uint32_t mapped_ranks = 0;   ///< of one memory, at most, for all to look at each other's
  bool checks = false;         ///< before each call ranks tell each other what it is
  bool deterministic = false;  ///< each element is reduced in the order of the ranks, and rounded once
  std::string algorithms;      ///< "all_reduce=slices,broadcast=slots": to be used wherever they fit

  /// By NUPA_CCL_TIMEOUT (seconds), NUPA_CCL_SLOT_BYTES, NUPA_CCL_MAPPED_RANKS, NUPA_CCL_CHECK,
  /// NUPA_CCL_DETERMINISTIC, NUPA_CCL_ALGO, NUPA_CCL_READS. EINVAL: one of them cannot be read.
  static Result<CommunicatorOptions> from_environment();

  /// What `algorithms` says of an operation; empty: nothing.
  std::string wanted(Operation operation) const;
};

}  // namespace nupa::ccl
