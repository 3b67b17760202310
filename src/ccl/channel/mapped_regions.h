// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

namespace nupa::ccl {

/// An allocation that other ranks may map, as an entry of the table in its owner's arena.
struct PublishedRegion {
  uint64_t serial;
  uint64_t base;
  uint64_t bytes;
  uint32_t rkey;
  uint32_t unused;
};
constexpr uint32_t kPublishedRegions = 64;

/// The place of an array in a published allocation. Serial 0: the array is in memory that others cannot map.
struct Place {
  uint64_t serial = 0;
  uint64_t offset = 0;
  uint32_t entry = 0;  ///< in the table; valid until the operation after the next one
};

/// The mappings of other ranks' allocations that an operation's arrays lie in.
class MappedRegions {
 public:
  virtual ~MappedRegions() = default;
  /// Publishes the allocation of this rank's array, and returns the array's place in it.
  virtual Place publish(const void* data, size_t bytes) = 0;
  /// Returns the local address of an array that `rank` of the group has published, or null if it cannot be mapped.
  virtual std::byte* find(uint32_t rank, const Place& place) = 0;
};

}  // namespace nupa::ccl
