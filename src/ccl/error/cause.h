// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace nupa::ccl {

constexpr uint32_t kNoRank = UINT32_MAX;

/// Why operations end: an errno value, and the rank of the communicator that caused it.
struct Cause {
  int error = 0;
  uint32_t rank = kNoRank;

  explicit operator bool() const { return error != 0; }
  /// Packs the cause into one word, for memory that ranks share. 0 is no cause.
  uint64_t packed() const { return static_cast<uint64_t>(rank) << 32 | static_cast<uint32_t>(error); }
  static Cause unpacked(uint64_t word) {
    if (word == 0) return {};
    return {static_cast<int>(static_cast<uint32_t>(word)), static_cast<uint32_t>(word >> 32)};
  }
};

}  // namespace nupa::ccl
