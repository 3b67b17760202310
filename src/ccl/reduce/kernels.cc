// SPDX-License-Identifier: Apache-2.0
/// The arithmetic of reductions, compiled once for each instruction set.
#include "ccl/reduce/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels.cc"
#include <hwy/foreach_target.h>
// These must be included after foreach_target.h.
#include <hwy/highway.h>

#include "ccl/reduce/floats-inl.h"
#include "ccl/reduce/integers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nupa::ccl::HWY_NAMESPACE {
namespace {

HWY_ATTR void run(const Reduction& reduction, void* result, const Source* sources, uint32_t count, size_t elements) {
  switch (reduction.type) {
    case Type::kInt8:
      return reduce_integers<int8_t>(reduction, result, sources, count, elements);
    case Type::kUint8:
      return reduce_integers<uint8_t>(reduction, result, sources, count, elements);
    case Type::kInt16:
      return reduce_integers<int16_t>(reduction, result, sources, count, elements);
    case Type::kUint16:
      return reduce_integers<uint16_t>(reduction, result, sources, count, elements);
    case Type::kInt32:
      return reduce_integers<int32_t>(reduction, result, sources, count, elements);
    case Type::kUint32:
      return reduce_integers<uint32_t>(reduction, result, sources, count, elements);
    case Type::kInt64:
      return reduce_integers<int64_t>(reduction, result, sources, count, elements);
    case Type::kUint64:
      return reduce_integers<uint64_t>(reduction, result, sources, count, elements);
    case Type::kFloat16:
      return reduce_short_floats<Float16Codec, kFloat16Format>(reduction, result, sources, count, elements);
    case Type::kBfloat16:
      return reduce_short_floats<Bfloat16Codec, kBfloat16Format>(reduction, result, sources, count, elements);
    case Type::kFloat32:
      return reduce_floats<float>(reduction, result, sources, count, elements);
    case Type::kFloat64:
      return reduce_floats<double>(reduction, result, sources, count, elements);
    case Type::kFloat8E4m3:
      return reduce_short_floats<E4m3Codec, kE4m3Format>(reduction, result, sources, count, elements);
    case Type::kFloat8E5m2:
      return reduce_short_floats<E5m2Codec, kE5m2Format>(reduction, result, sources, count, elements);
  }
}

}  // namespace

Kernel here() { return &run; }

}  // namespace nupa::ccl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nupa::ccl {

HWY_EXPORT(here);

Kernel kernel() { return HWY_DYNAMIC_DISPATCH(here)(); }

}  // namespace nupa::ccl
#endif
