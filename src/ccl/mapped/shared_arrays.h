#pragma once
/// Arrays that ranks take from where they lie, without a slot between.
#include <vector>

#include "ccl/mapped/group.h"

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
};

/// Whether ranks are asked at all; the same everywhere if `bytes` is.
inline bool may_share(const MappedGroup& group, size_t bytes) {
  return group.windows() != nullptr && bytes >= kSharedFrom;
}
/// Every rank shows its arrays. If they are mapped, all may use them until a barrier.
Steps show_arrays(MappedGroup& group, Shown in, Shown out, SharedArrays* arrays);

}  // namespace nupa::ccl::mapped
