// SPDX-License-Identifier: Apache-2.0
#include "ccl/reduce/reduce.h"

#include "ccl/reduce/float_control.h"
#include "ccl/reduce/kernels.h"

namespace nupa::ccl {
namespace {

/// Sets the default rounding. Threads of a program may round otherwise or flush denormals, and the ranks' results must
/// not differ.
class UsualRounding {
 public:
  UsualRounding() : before_(float_control()) {
    if (is_other()) set_float_control(kUsualFloatControl);
  }
  ~UsualRounding() {
    if (is_other()) set_float_control(before_);
  }
  UsualRounding(const UsualRounding&) = delete;
  UsualRounding& operator=(const UsualRounding&) = delete;

 private:
  bool is_other() const { return __builtin_expect((before_ & ~kPastExceptions) != kUsualFloatControl, 0); }
  FloatControl before_;
};

/// Up to this size, the loads of vectors cost more than vectors save.
constexpr size_t kFewBytes = 64;

template <class T>
void add_few(void* result, const Source* sources, uint32_t count, size_t elements) {
  for (size_t i = 0; i < elements; ++i) {
    T sum = static_cast<const T*>(sources[0].data)[i];
    for (uint32_t k = 1; k < count; ++k) sum += static_cast<const T*>(sources[k].data)[i];
    static_cast<T*>(result)[i] = sum;
  }
}

/// Returns false unless this is a sum of few elements whose stored form is also the computing type.
bool reduce_few(const Reduction& reduction, void* result, const Source* sources, uint32_t count, size_t elements) {
  if (reduction.op != Operator::kSum || elements > kFewBytes / size_of(reduction.type)) return false;
  switch (reduction.type) {
    case Type::kInt32:
    case Type::kUint32:
      add_few<uint32_t>(result, sources, count, elements);
      return true;
    case Type::kInt64:
    case Type::kUint64:
      add_few<uint64_t>(result, sources, count, elements);
      return true;
    case Type::kFloat32:
      add_few<float>(result, sources, count, elements);
      return true;
    case Type::kFloat64:
      add_few<double>(result, sources, count, elements);
      return true;
    default:
      return false;
  }
}

}  // namespace

void reduce(const Reduction& reduction, void* result, const Source* sources, uint32_t count, size_t elements) {
  if (elements == 0 || count == 0) return;
  static const Kernel run = kernel();
  if (is_integer(reduction.type)) {
    if (!reduce_few(reduction, result, sources, count, elements)) run(reduction, result, sources, count, elements);
    return;
  }
  const UsualRounding usual;
  if (!reduce_few(reduction, result, sources, count, elements)) run(reduction, result, sources, count, elements);
}

}  // namespace nupa::ccl
