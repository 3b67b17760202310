#pragma once
#include <nupa/device.h>
#include <nupa/result.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>

namespace nupa::ccl {

/// Memory that a process has allocated so that other ranks can map it, by address. Any thread.
class Allocations {
 public:
  /// As others need it to map it.
  struct Region {
    uint64_t serial;  ///< of no other one, ever, in this process; not 0
    uint64_t base;
    uint64_t bytes;
    uint32_t rkey;
  };

  Allocations(Device& device, ProtectionDomain& pd) : device_(device), pd_(pd) {}

  /// Zeroed whole pages. Errors: those of alloc_mr().
  Result<void*> allocate(size_t bytes);
  /// False: nothing begins there.
  bool release(void* memory);
  /// The one that [data, data + bytes) is a part of.
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
