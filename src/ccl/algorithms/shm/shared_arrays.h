// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Arrays that other ranks read in place, without a copy through a slot.
#include <vector>

#include "ccl/channel/shm_group.h"

namespace nupa::ccl::shm {

/// In bytes. From this size of an operation on, it is worth the time to publish where its arrays are.
constexpr size_t kSharedFrom = 8192;

/// An array that a rank shows to the others, or nothing if they do not need it.
struct Shown {
  const void* data = nullptr;
  size_t bytes = 0;
  bool is_needed = false;
};

/// The arrays of all ranks in one operation, by rank, as this rank has them mapped. Null: that rank shows none.
struct SharedArrays {
  bool are_mapped = false;  ///< every rank can map what all others show; otherwise the lists are empty
  std::vector<const std::byte*> in;
  std::vector<std::byte*> out;
  std::vector<uint64_t> in_addresses;  ///< in their owners' processes; empty: some array cannot be read
  size_t read_from = 0;                ///< from this size in bytes on, CMA is faster than two copies through slots

  /// Returns whether `bytes` of each `in` are better read in place.
  bool can_be_read(size_t bytes) const { return are_mapped || (!in_addresses.empty() && bytes >= read_from); }
  /// Reads from another rank's `in`. Returns 0 or an errno value.
  int read(ShmGroup& group, uint32_t rank, void* to, size_t offset, size_t bytes) const;
};

/// Returns whether ranks publish their arrays at all; the same on all ranks if `bytes` is.
inline bool may_share(const ShmGroup& group, size_t bytes) {
  return group.mapped_regions() != nullptr && bytes >= kSharedFrom;
}
/// Every rank publishes its arrays. If they are mapped, all ranks may use them until a barrier.
CollectiveTask show_arrays(ShmGroup& group, Shown in, Shown out, SharedArrays* arrays);

}  // namespace nupa::ccl::shm
