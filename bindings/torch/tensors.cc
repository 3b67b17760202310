// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/tensors.h"

#include <optional>

namespace nupa::torch_backend {
namespace {

struct NumberType {
  nupa_ccl_type type;
  size_t per_element;
};

/// Returns nothing for types that have no arithmetic.
std::optional<NumberType> number_type(at::ScalarType type) {
  switch (type) {
    case at::kChar:
      return NumberType{NUPA_CCL_INT8, 1};
    case at::kByte:
      return NumberType{NUPA_CCL_UINT8, 1};
    case at::kShort:
      return NumberType{NUPA_CCL_INT16, 1};
    case at::kInt:
      return NumberType{NUPA_CCL_INT32, 1};
    case at::kLong:
      return NumberType{NUPA_CCL_INT64, 1};
    case at::kHalf:
      return NumberType{NUPA_CCL_FLOAT16, 1};
    case at::kBFloat16:
      return NumberType{NUPA_CCL_BFLOAT16, 1};
    case at::kFloat:
      return NumberType{NUPA_CCL_FLOAT32, 1};
    case at::kDouble:
      return NumberType{NUPA_CCL_FLOAT64, 1};
    case at::kComplexFloat:
      return NumberType{NUPA_CCL_FLOAT32, 2};
    case at::kComplexDouble:
      return NumberType{NUPA_CCL_FLOAT64, 2};
#if NUPA_TORCH_FLOAT8
    case at::ScalarType::Float8_e4m3fn:
      return NumberType{NUPA_CCL_FLOAT8_E4M3, 1};
    case at::ScalarType::Float8_e5m2:
      return NumberType{NUPA_CCL_FLOAT8_E5M2, 1};
#endif
#if NUPA_TORCH_UNSIGNED
    case at::ScalarType::UInt16:
      return NumberType{NUPA_CCL_UINT16, 1};
    case at::ScalarType::UInt32:
      return NumberType{NUPA_CCL_UINT32, 1};
    case at::ScalarType::UInt64:
      return NumberType{NUPA_CCL_UINT64, 1};
#endif
    default:
      return {};
  }
}

using Op = c10d::ReduceOp::RedOpType;

/// The operators for numbers. Returns nothing if the operator needs a factor.
std::optional<nupa_ccl_op> number_op(Op op) {
  switch (op) {
    case Op::SUM:
      return NUPA_CCL_SUM;
    case Op::AVG:
      return NUPA_CCL_AVERAGE;
    case Op::PRODUCT:
      return NUPA_CCL_PRODUCT;
    case Op::MIN:
      return NUPA_CCL_MIN;
    case Op::MAX:
      return NUPA_CCL_MAX;
    case Op::BAND:
      return NUPA_CCL_BIT_AND;
    case Op::BOR:
      return NUPA_CCL_BIT_OR;
    case Op::BXOR:
      return NUPA_CCL_BIT_XOR;
    default:
      return {};
  }
}

/// The operators for truth values. As in torch, their sum is true if any is. Returns nothing if there is none.
std::optional<nupa_ccl_op> bool_op(Op op) {
  switch (op) {
    case Op::SUM:
    case Op::MAX:
    case Op::BOR:
      return NUPA_CCL_LOGICAL_OR;
    case Op::PRODUCT:
    case Op::MIN:
    case Op::BAND:
      return NUPA_CCL_LOGICAL_AND;
    case Op::BXOR:
      return NUPA_CCL_LOGICAL_XOR;
    default:
      return {};
  }
}

const char* name_of(Op op) {
  constexpr const char* kNames[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  return op < std::size(kNames) ? kNames[op] : "this operator";
}

bool is_integral(at::ScalarType type) { return c10::isIntegralType(type, false); }

/// Returns the factor as a tensor of one element.
at::Tensor factor_of(const char* call, const c10d::ReduceOp& op, at::ScalarType type) {
  const auto* const supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(supplement != nullptr, "nupa: ", call, ": PREMUL_SUM has no factor");
#if TORCH_VERSION_MAJOR >= 2
  const at::Tensor given = supplement->tensor_factor;
#else
  const at::Tensor given = supplement->tensor_factors.empty() ? at::Tensor() : supplement->tensor_factors.front();
#endif
  const at::ScalarType real = c10::toRealValueType(type);
  if (!given.defined()) return at::full({1}, supplement->double_factor, at::kDouble).to(real);
  TORCH_CHECK_VALUE(given.numel() == 1 && given.device().is_cpu(), "nupa: ", call,
                    ": the factor of PREMUL_SUM has to be one number on the CPU");
  return given.reshape({1}).to(real);
}

bool lies_flat(const at::Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }

bool lie_flat(const Tensors& parts) {
  const char* next = nullptr;
  for (const at::Tensor& part : parts) {
    if (part.numel() == 0) continue;
    const char* const begin = static_cast<const char*>(part.data_ptr());
    if (!lies_flat(part) || (next != nullptr && begin != next)) return false;
    next = begin + part.nbytes();
  }
  return true;
}

}  // namespace

void check(const char* call, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "nupa: ", call, ": a tensor is undefined");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, "nupa: ", call, ": sparse tensors are not supported");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.device().is_cpu(), "nupa: ", call, ": a tensor is on device ", tensor.device(),
                              "; only CPU tensors are supported");
}

void check_list(const char* call, const Tensors& tensors, size_t count) {
  TORCH_CHECK_VALUE(tensors.size() == count, "nupa: ", call, ": a list has ", tensors.size(), " tensors, not ", count);
  for (const at::Tensor& tensor : tensors) {
    check(call, tensor);
    TORCH_CHECK_TYPE(tensor.scalar_type() == tensors.front().scalar_type(), "nupa: ", call,
                     ": tensors of one list have different types: ", tensors.front().scalar_type(), " and ",
                     tensor.scalar_type());
  }
}

const at::Tensor& only(const char* call, const Tensors& tensors) {
  check_list(call, tensors, 1);
  return tensors.front();
}

Flat::Flat(Tensors parts) : parts_(std::move(parts)) {
  for (at::Tensor& part : parts_) {
    // Parameters are detached too: autograd must not record what ranks exchange.
    if (part.requires_grad()) part = part.detach();
    elements_ += static_cast<size_t>(part.numel());
  }
  if (!lie_flat(parts_)) {
    copy_ = at::empty({static_cast<int64_t>(elements_)}, parts_.front().options());
    data_ = copy_.data_ptr();
    return;
  }
  for (size_t i = 0; i < parts_.size() && data_ == nullptr; ++i) data_ = parts_[i].data_ptr();
}

template <typename Function>
void Flat::each_copy(const Function& function) {
  if (!copy_.defined()) return;
  const at::NoGradGuard no_grad;
  int64_t at = 0;
  for (const at::Tensor& part : parts_) {
    function(part, copy_.narrow(0, at, part.numel()).view(part.sizes()));
    at += part.numel();
  }
}

void Flat::load() {
  each_copy([](const at::Tensor& part, const at::Tensor& copy) { copy.copy_(part); });
}

void Flat::store() {
  each_copy([](const at::Tensor& part, const at::Tensor& copy) { part.copy_(copy); });
}

bool Flat::parts_are_equal() const {
  for (const at::Tensor& part : parts_)
    if (part.numel() != parts_.front().numel()) return false;
  return true;
}

std::vector<size_t> Flat::sizes() const {
  std::vector<size_t> sizes;
  for (const at::Tensor& part : parts_) sizes.push_back(part.nbytes());
  return sizes;
}

Reduction::Reduction(const char* call, const c10d::ReduceOp& reduce, at::ScalarType scalar) {
  const Op kind = reduce;
  if (scalar == at::kBool) {
    const auto found = bool_op(kind);
    TORCH_CHECK_TYPE(found.has_value(), "nupa: ", call, ": ", name_of(kind), " is not defined for bool");
    op = *found;
    return;
  }
  const auto number = number_type(scalar);
  TORCH_CHECK_TYPE(number.has_value(), "nupa: ", call, ": tensors of type ", scalar, " cannot be reduced");
  type = number->type;
  per_element = number->per_element;
  const bool is_linear = kind == Op::SUM || kind == Op::AVG || kind == Op::PREMUL_SUM;
  TORCH_CHECK_TYPE(per_element == 1 || is_linear, "nupa: ", call, ": ", name_of(kind),
                   " is not defined for complex numbers");
  const bool is_bitwise = kind == Op::BAND || kind == Op::BOR || kind == Op::BXOR;
  TORCH_CHECK_TYPE(!is_bitwise || is_integral(scalar), "nupa: ", call, ": ", name_of(kind),
                   " is defined for integers only, not for ", scalar);
  if (const auto found = number_op(kind)) {
    op = *found;
    return;
  }
  TORCH_CHECK_VALUE(kind == Op::PREMUL_SUM, "nupa: ", call, ": unknown operator");
  const at::Tensor factor = factor_of(call, reduce, scalar);
  TORCH_CHECK(nupa_ccl_op_create_premultiplied_sum(factor.data_ptr(), type, &op) == 0, "nupa: ", call, ": ",
              nupa_ccl_error_text());
  is_made_ = true;
}

Reduction::~Reduction() {
  if (is_made_) nupa_ccl_op_destroy(op);
}

}  // namespace nupa::torch_backend
