// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/result.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace nupa::core {

/// Memory that a transport lends to programs of its device, because it carries data there at lower cost. The
/// core makes device memory and memory regions of it. Any thread, without a send lock.
class TransportMemory {
 public:
  virtual ~TransportMemory() = default;

  /// Bytes of the longest allocation that succeeds at present.
  virtual uint64_t available() = 0;
  /// True if data of peers gets into it by one copy fewer than into other memory. Constant.
  virtual bool saves_copies() const = 0;
  /// How other processes of the host find an allocation.
  struct Place {
    uint64_t owner = 0;  ///< of this process, not 0
    uint64_t offset = 0;
  };
  struct Lent {
    std::byte* memory = nullptr;
    Place place;
  };
  /// Allocates zeroed memory that begins with a page. ENOMEM: there is not enough room.
  virtual Result<Lent> allocate(uint64_t bytes) = 0;
  /// Frees an allocation of `bytes` at `memory`, which no key of this process names any more.
  virtual void free(std::byte* memory, uint64_t bytes) = 0;

  /// An allocation of another process of the host, as memory of this one. The bytes stay that process's until the
  /// pointer is destroyed, also if it frees them or ends. Null: it has no such allocation, or this process cannot map
  /// it.
  virtual std::shared_ptr<std::byte> borrow(const Place& place, uint64_t bytes) = 0;
};

}  // namespace nupa::core
