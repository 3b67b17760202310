#pragma once
#include <cstddef>
#include <cstdint>

namespace nupa::ccl {

/// An allocation that other ranks may map, in a table in its owner's arena.
struct PublishedRegion {
  uint64_t serial;
  uint64_t base;
  uint64_t bytes;
  uint32_t rkey;
  uint32_t unused;
};
constexpr uint32_t kPublishedRegions = 64;

/// Where an array lies in one of them. Serial 0: in memory that others cannot map.
struct Place {
  uint64_t serial = 0;
  uint64_t offset = 0;
  uint32_t entry = 0;  ///< in the table; until the operation after the next one
};

/// The arrays of an operation in memory that ranks map of each other.
class Windows {
 public:
  virtual ~Windows() = default;
  /// Makes it known where this rank's array lies.
  virtual Place publish(const void* data, size_t bytes) = 0;
  /// What `rank` of the group has published; null: it cannot be mapped.
  virtual std::byte* find(uint32_t rank, const Place& place) = 0;
};

}  // namespace nupa::ccl
