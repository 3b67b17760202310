#pragma once
/// One collective as it is measured again and again: its arguments and its arrays.
#include <cstddef>
#include <cstdlib>
#include <memory>

#include "cli/ccl/operations.h"
#include "cli/ccl/rank.h"

namespace nupa::cli::collectives {

/// What all ranks say alike.
struct Shape {
  Operation operation;
  nupa_ccl_type type;
  nupa_ccl_builtin_op op;
  uint32_t root;
  bool in_place;
  size_t count;  ///< of elements, as the library's function takes it

  size_t element_bytes() const { return traits_of(type).size; }
  size_t block_bytes() const { return count * element_bytes(); }
  /// Its size as nccl-tests counts it.
  size_t bytes(uint32_t ranks) const { return block_bytes() * (traits_of(operation).is_total ? ranks : 1); }
};

/// Memory for both arrays of each call, touched only as far as calls need it.
class Buffers {
 public:
  /// Null: there is not so much memory. `shared`: of nupa_ccl_alloc().
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
  /// Elements that this rank gives, and those that come to it.
  size_t in_count() const { return in_count_; }
  size_t out_count() const { return out_count_; }

  /// To its end. An errno value.
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
