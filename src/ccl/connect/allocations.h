// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/device.h>
#include <nupa/result.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>

namespace nupa::ccl {

/// The memory that this process has allocated for other ranks to map, by address. Thread-safe.
class Allocations {
 public:
  /// The values that another rank needs to map an allocation.
  struct Region {
    uint64_t serial;  ///< unique in this process, also after a release; not 0
    uint64_t base;
    uint64_t bytes;
    uint32_t rkey;
  };

  Allocations(Device& device, ProtectionDomain& pd) : device_(device), pd_(pd) {}

  /// Allocates whole pages, which are zeroed. Errors: those of alloc_mr().
  Result<void*> allocate(size_t bytes);
  /// Frees an allocation. Returns false if none begins at `memory`.
  bool release(void* memory);
  /// Finds the allocation that contains [data, data + bytes).
  std::optional<Region> find(const void* data, size_t bytes) const;

 private:
  struct Entry {
    std::unique_ptr<MemoryRegion> region;
    uint64_t serial;
  };

  Device& device_;
  ProtectionDomain& pd_;
  mutable std::shared_mutex mutex_;
  std::map<uint64_t, Entry> entries_;  ///< by first address
  std::atomic<size_t> count_{0};
  uint64_t serial_ = 0;
};

}  // namespace nupa::ccl
