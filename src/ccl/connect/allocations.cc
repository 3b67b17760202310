// SPDX-License-Identifier: Apache-2.0
#include "ccl/connect/allocations.h"

#include <mutex>

namespace nupa::ccl {

Result<void*> Allocations::allocate(size_t bytes) {
  auto region = device_.alloc_mr(pd_, bytes, access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead,
                                 MemorySource::kTransport);
  if (!region) return tl::unexpected(region.error());
  void* const memory = (*region)->addr();
  const std::lock_guard lock(mutex_);
  entries_[reinterpret_cast<uint64_t>(memory)] = {std::move(*region), ++serial_};
  count_.store(entries_.size(), std::memory_order_release);
  return memory;
}

bool Allocations::release(void* memory) {
  std::unique_ptr<MemoryRegion> unused;  // ends after the lock: it may wait for ranks that read it
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(reinterpret_cast<uint64_t>(memory));
  if (found == entries_.end()) return false;
  unused = std::move(found->second.region);
  entries_.erase(found);
  count_.store(entries_.size(), std::memory_order_release);
  return true;
}

std::optional<Allocations::Region> Allocations::find(const void* data, size_t bytes) const {
  if (count_.load(std::memory_order_acquire) == 0) return {};
  const auto address = reinterpret_cast<uint64_t>(data);
  const std::shared_lock lock(mutex_);
  auto found = entries_.upper_bound(address);
  if (found == entries_.begin()) return {};
  --found;
  const MemoryRegion& region = *found->second.region;
  if (address - found->first > region.length() || region.length() - (address - found->first) < bytes) return {};
  return Region{found->second.serial, found->first, region.length(), region.rkey()};
}

}  // namespace nupa::ccl
