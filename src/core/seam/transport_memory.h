// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/result.h>

#include <cstddef>
#include <cstdint>

namespace nupa::core {

/// Memory that a transport lends to programs of its device, because it carries data there at lower cost. The
/// core makes device memory of it. Any thread, without a send lock.
class TransportMemory {
 public:
  virtual ~TransportMemory() = default;

  /// Bytes of the longest allocation that succeeds at present.
  virtual uint64_t available() = 0;
  /// Allocates zeroed memory that begins with a page. ENOMEM: there is not enough room.
  virtual Result<std::byte*> allocate(uint64_t bytes) = 0;
  /// Frees an allocation of `bytes` at `memory`, which no key of this process names any more.
  virtual void free(std::byte* memory, uint64_t bytes) = 0;
};

}  // namespace nupa::core
