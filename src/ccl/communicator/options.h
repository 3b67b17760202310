// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/result.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "ccl/call/call.h"

namespace nupa::ccl {

/// The parts of a rank's arena are multiples of this many bytes.
inline constexpr size_t kPage = 4096;

/// The settings of a program's communicators. They have to be the same on all ranks.
struct CommunicatorOptions {
  int64_t limit_ns = 0;        ///< time limit of a wait for another rank
  size_t slot_bytes = 0;       ///< length of a large slot of the arena; a multiple of kPage
  bool reads = true;           ///< ranks of one host read each other's memory by CMA, where the system allows it
  uint32_t mapped_ranks = 0;   ///< a node with more ranks than this does not map arenas but exchanges messages
  bool checks = false;         ///< ranks compare their calls before they run them
  bool deterministic = false;  ///< each element is reduced in the order of the ranks, and rounded once
  std::string algorithms;      ///< "all_reduce=slices,broadcast=slots": algorithms to use wherever they fit

  /// Reads NUPA_CCL_TIMEOUT (seconds), NUPA_CCL_SLOT_BYTES, NUPA_CCL_MAPPED_RANKS, NUPA_CCL_CHECK,
  /// NUPA_CCL_DETERMINISTIC, NUPA_CCL_ALGO and NUPA_CCL_READS, and checks NUPA_CCL_TRACE. EINVAL: a value is not valid.
  static Result<CommunicatorOptions> from_environment();

  /// The algorithm that `algorithms` names for an operation; empty if it names none.
  std::string wanted(Operation operation) const;
};

}  // namespace nupa::ccl
