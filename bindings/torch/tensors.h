// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Tensors as arrays of the C API.
#include <nupa/ccl.h>

#include "bindings/torch/torch_version.h"

namespace nupa::torch_backend {

using Tensors = std::vector<at::Tensor>;

/// Check the arguments of `call`, which the exceptions name. NotImplementedError: a tensor is sparse or not in CPU
/// memory. TypeError: tensors of one list have different types. ValueError: an undefined tensor, or a number of tensors
/// other than `count`.
void check(const char* call, const at::Tensor& tensor);
void check_list(const char* call, const Tensors& tensors, size_t count);
/// Returns the only tensor of a list. Throws as check_list() does.
const at::Tensor& only(const char* call, const Tensors& tensors);

/// The elements of tensors as one array: the tensors' own memory if it is contiguous, otherwise a copy.
class Flat {
 public:
  explicit Flat(Tensors parts);
  explicit Flat(const at::Tensor& part) : Flat(Tensors{part}) {}

  /// Copy the tensors' elements to data(), and back.
  void load();
  void store();

  void* data() const { return data_; }
  size_t elements() const { return elements_; }
  size_t bytes() const { return elements_ * parts_.front().element_size(); }
  at::ScalarType type() const { return parts_.front().scalar_type(); }
  const Tensors& parts() const { return parts_; }
  bool parts_are_equal() const;
  /// Returns the size of each part in bytes.
  std::vector<size_t> sizes() const;

 private:
  template <typename Function>
  void each_copy(const Function& function);

  Tensors parts_;
  at::Tensor copy_;  ///< undefined if there is no copy
  void* data_ = nullptr;
  size_t elements_ = 0;
};

/// A reduction of tensors of one type: the type of the C API's elements, their number for each element of a tensor, and
/// the operator.
class Reduction {
 public:
  /// Throws TypeError if `type` has no such reduction, and ValueError if there is no such operator.
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
