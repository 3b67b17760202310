// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

namespace nupa::ccl {

/// CMA: reads of other ranks' ordinary memory, which the kernel copies from one process to the other.
class PeerReads {
 public:
  virtual ~PeerReads() = default;
  /// Reads from `address` in the process of `rank` of the group. Returns 0 or an errno value.
  virtual int read(uint32_t rank, void* to, uint64_t address, size_t bytes) = 0;
};

}  // namespace nupa::ccl
