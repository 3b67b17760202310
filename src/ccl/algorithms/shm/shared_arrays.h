#pragma once
/// Arrays that ranks take from where they lie, without a slot between.
#include <vector>

#include "ccl/channel/shm_group.h"

namespace nupa::ccl::mapped {

/// From so many bytes of an operation on it is worth the time to tell where its arrays lie.
constexpr size_t kSharedFrom = 8192;

/// What a rank has to show of an array: nothing if others do not need it.
struct Shown {
  const void* data = nullptr;
  size_t bytes = 0;
  bool is_needed = false;
};

/// All ranks' arrays of one operation, by rank, as this rank has them mapped. Null: that rank shows none.
struct SharedArrays {
  bool are_mapped = false;  ///< every rank can map what every other one shows; else the lists are empty
  std::vector<const std::byte*> in;
  std::vector<std::byte*> out;
  std::vector<uint64_t> in_addresses;  ///< in their owners' processes; empty: not all can be read
  size_t read_from = 0;                ///< of so many bytes and more the system's copy is faster than two by slots

  /// Whether `bytes` of each `in` are better taken from where they lie.
  bool can_be_read(size_t bytes) const { return are_mapped || (!in_addresses.empty() && bytes >= read_from); }
  /// From another rank's `in`. 0 or an errno value.
  int read(MappedGroup& group, uint32_t rank, void* to, size_t offset, size_t bytes) const;
};

/// Whether ranks are asked at all; the same everywhere if `bytes` is.
inline bool may_share(const MappedGroup& group, size_t bytes) {
  return group.windows() != nullptr && bytes >= kSharedFrom;
}
/// Every rank shows its arrays. If they are mapped, all may use them until a barrier.
Steps show_arrays(MappedGroup& group, Shown in, Shown out, SharedArrays* arrays);

}  // namespace nupa::ccl::mapped
