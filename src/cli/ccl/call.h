// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A collective that is measured repeatedly, with its arguments and arrays.
#include <cstddef>
#include <cstdlib>
#include <memory>

#include "cli/ccl/operations.h"
#include "cli/ccl/rank.h"

namespace nupa::cli::collectives {

/// The arguments that are the same on all ranks.
struct Shape {
  Operation operation;
  nupa_ccl_type type;
  nupa_ccl_builtin_op op;
  uint32_t root;
  bool in_place;
  size_t count;  ///< elements, as the library's function takes them

  size_t element_bytes() const { return traits_of(type).size; }
  size_t block_bytes() const { return count * element_bytes(); }
  /// Returns its size as nccl-tests counts it.
  size_t bytes(uint32_t ranks) const { return block_bytes() * (traits_of(operation).is_total ? ranks : 1); }
};

/// Memory for both arrays of every call. Pages are touched only if a call needs them.
class Buffers {
 public:
  /// Returns null if there is not enough memory. `shared`: allocate with nupa_ccl_alloc().
  static std::unique_ptr<Buffers> of(size_t bytes, bool shared);
  std::byte* first() const { return first_.get(); }
  std::byte* second() const { return second_.get(); }

 private:
  using Memory = std::unique_ptr<std::byte, void (*)(std::byte*)>;
  static Memory allocate(size_t bytes, bool shared);
  Buffers(Memory first, Memory second) : first_(std::move(first)), second_(std::move(second)) {}

  Memory first_;
  Memory second_;
};

class Call {
 public:
  Call(const Shape& shape, const Rank& rank, const Buffers& buffers);

  const Shape& shape() const { return shape_; }
  std::byte* in() const { return in_; }
  std::byte* out() const { return out_; }
  /// The number of elements that this rank sends, and that it receives.
  size_t in_count() const { return in_count_; }
  size_t out_count() const { return out_count_; }

  /// Runs the call to its end. Returns 0 or an errno value.
  int run() const;

 private:
  void place(const Buffers& buffers);

  Shape shape_;
  nupa_ccl_comm* comm_;
  uint32_t rank_;
  size_t in_count_ = 0;
  size_t out_count_ = 0;
  std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
};

}  // namespace nupa::cli::collectives
