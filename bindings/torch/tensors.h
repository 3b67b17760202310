#pragma once
/// Tensors as arrays of the C API.
#include <nupa/ccl.h>

#include "bindings/torch/torch_version.h"

namespace nupa::torch_backend {

using Tensors = std::vector<at::Tensor>;

/// Of `calls`'s arguments, for whose sake it throws: NotImplementedError: sparse, or not in the CPU's memory;
/// TypeError: tensors of one list are of different types; ValueError: there are not as many as `count`.
void check(const char* call, const at::Tensor& tensor);
void check_list(const char* call, const Tensors& tensors, size_t count);
/// The only one. As check_list().
const at::Tensor& only(const char* call, const Tensors& tensors);

/// Tensors' elements, one after the other: their own memory where they lie so, else a copy.
class Flat {
 public:
  explicit Flat(Tensors parts);
  explicit Flat(const at::Tensor& part) : Flat(Tensors{part}) {}

  /// What the tensors hold comes to data(), and back.
  void load();
  void store();

  void* data() const { return data_; }
  size_t elements() const { return elements_; }
  size_t bytes() const { return elements_ * parts_.front().element_size(); }
  at::ScalarType type() const { return parts_.front().scalar_type(); }
  const Tensors& parts() const { return parts_; }
  bool parts_are_equal() const;
  /// Bytes of each part.
  std::vector<size_t> sizes() const;

 private:
  template <typename Function>
  void each_copy(const Function& function);

  Tensors parts_;
  at::Tensor copy_;  ///< undefined: there is none
  void* data_ = nullptr;
  size_t elements_ = 0;
};

/// A reduction of tensors of one type: of which type its elements are, how many a tensor's element has, and the
/// operator.
class Reduction {
 public:
  /// TypeError: `type` cannot be reduced so.
  Reduction(const char* call, const c10d::ReduceOp& op, at::ScalarType type);
  ~Reduction();
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;

  nupa_ccl_type type = NUPA_CCL_UINT8;
  size_t per_element = 1;
  nupa_ccl_op op = NUPA_CCL_SUM;

 private:
  bool is_made_ = false;
};

}  // namespace nupa::torch_backend
