// SPDX-License-Identifier: Apache-2.0
/// Reductions of floating-point types in vectors of the computing type. Each element is read once. Included once for
/// each instruction set.
#if defined(NUPA_CCL_REDUCE_FLOATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NUPA_CCL_REDUCE_FLOATS_INL_H_
#undef NUPA_CCL_REDUCE_FLOATS_INL_H_
#else
#define NUPA_CCL_REDUCE_FLOATS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>
#include <type_traits>

#include "ccl/reduce/codecs-inl.h"
#include "ccl/reduce/reduce.h"

HWY_BEFORE_NAMESPACE();
namespace nupa::ccl::HWY_NAMESPACE {
namespace {

struct FloatSum {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};
struct FloatProduct {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Mul(a, b);
  }
};
// If neither number is less, they are equal, zeros of both signs, or one is NaN. The bits of both then give the result.
struct FloatMin {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::IfThenElse(hn::Lt(a, b), a, hn::IfThenElse(hn::Lt(b, a), b, hn::Or(a, b)));
  }
};
struct FloatMax {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    const V same = hn::IfThenElse(hn::Eq(a, b), hn::And(a, b), hn::Or(a, b));
    return hn::IfThenElse(hn::Lt(b, a), a, hn::IfThenElse(hn::Lt(a, b), b, same));
  }
};

/// For numbers in the form of Ordered.
struct OrderedMin {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Min(a, b);
  }
};
struct OrderedMax {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Max(a, b);
  }
};

/// A scaling in addition to Op.
enum class Scaling { kNone, kFactors, kDivisor };

/// A reduction by `Op` with a scaling.
template <class Codec, class Op, Scaling kScaling>
class FloatReduction {
 public:
  using Stored = typename Codec::Stored;
  using Tag = typename Codec::Tag;
  using T = hn::TFromD<Tag>;
  using V = hn::Vec<Tag>;

  HWY_ATTR static void run(const Reduction& reduction, void* result, const Source* sources, uint32_t count,
                           size_t elements) {
    if (count == 1 && kScaling == Scaling::kNone) {
      std::memmove(result, sources[0].data, elements * sizeof(Stored));
      return;
    }
    const Stored* from[kMaxSources];
    T factors[kScaling == Scaling::kFactors ? kMaxSources : 1];
    for (uint32_t i = 0; i < count; ++i) {
      from[i] = static_cast<const Stored*>(sources[i].data);
      if constexpr (kScaling == Scaling::kFactors) factors[i] = factor_of(sources[i]);
    }
    const T divisor = static_cast<T>(reduction.divisor);
    const size_t at_once = 4 * hn::Lanes(Tag());
    Stored* const out = static_cast<Stored*>(result);
    size_t at = 0;
    if (count == 2) {
      // Two sources are the most frequent case, so they have a loop without a loop over sources.
      for (; at + at_once <= elements; at += at_once) step(from, factors, 2, divisor, at, out);
    } else {
      for (; at + at_once <= elements; at += at_once) step(from, factors, count, divisor, at, out);
    }
    if (at < elements) rest(from, factors, count, divisor, at, elements, out);
  }

 private:
  HWY_INLINE static T factor_of(const Source& source) {
    if (source.factor == nullptr) return T{1};
    HWY_ALIGN Stored lanes[4 * hn::MaxLanes(Tag())] = {};
    std::memcpy(lanes, source.factor, sizeof lanes[0]);
    V v0, v1, v2, v3;
    Codec::load(lanes, v0, v1, v2, v3);
    return hn::GetLane(v0);
  }

  HWY_INLINE static void load(const Stored* from, const T* factor, V& v0, V& v1, V& v2, V& v3) {
    Codec::load(from, v0, v1, v2, v3);
    if constexpr (kScaling == Scaling::kFactors) {
      const V by = hn::Set(Tag(), *factor);
      v0 = hn::Mul(v0, by);
      v1 = hn::Mul(v1, by);
      v2 = hn::Mul(v2, by);
      v3 = hn::Mul(v3, by);
    }
  }
  HWY_INLINE static void combine(const Stored* from, const T* factor, V& v0, V& v1, V& v2, V& v3) {
    V n0, n1, n2, n3;
    load(from, factor, n0, n1, n2, n3);
    const Op op;
    v0 = op(v0, n0);
    v1 = op(v1, n1);
    v2 = op(v2, n2);
    v3 = op(v3, n3);
  }
  HWY_INLINE static void store(V v0, V v1, V v2, V v3, T divisor, Stored* to) {
    if constexpr (kScaling == Scaling::kDivisor) {
      const V by = hn::Set(Tag(), divisor);
      v0 = hn::Div(v0, by);
      v1 = hn::Div(v1, by);
      v2 = hn::Div(v2, by);
      v3 = hn::Div(v3, by);
    }
    Codec::store(v0, v1, v2, v3, to);
  }
  static HWY_INLINE const T* factor_at(const T* factors, uint32_t i) {
    return &factors[kScaling == Scaling::kFactors ? i : 0];
  }

  /// Reduces the elements of four vectors, which begin at `at` in each source.
  HWY_INLINE static void step(const Stored* const* from, const T* factors, uint32_t count, T divisor, size_t at,
                              Stored* out) {
    V v0, v1, v2, v3;
    load(from[0] + at, factors, v0, v1, v2, v3);
    for (uint32_t i = 1; i < count; ++i) combine(from[i] + at, factor_at(factors, i), v0, v1, v2, v3);
    store(v0, v1, v2, v3, divisor, out + at);
  }

  /// Reduces the remaining elements as if they were a whole step.
  HWY_INLINE static void rest(const Stored* const* from, const T* factors, uint32_t count, T divisor, size_t at,
                              size_t elements, Stored* out) {
    HWY_ALIGN Stored left[4 * hn::MaxLanes(Tag())] = {};
    const size_t bytes = (elements - at) * sizeof(Stored);
    V v0, v1, v2, v3;
    std::memcpy(left, from[0] + at, bytes);
    load(left, factors, v0, v1, v2, v3);
    for (uint32_t i = 1; i < count; ++i) {
      std::memcpy(left, from[i] + at, bytes);
      combine(left, factor_at(factors, i), v0, v1, v2, v3);
    }
    store(v0, v1, v2, v3, divisor, left);
    std::memcpy(out + at, left, bytes);
  }
};

/// `Codec` is for sums and products, `ForMin` and `ForMax` are for minimum and maximum.
template <class Codec, class ForMin, class Min, class ForMax, class Max>
HWY_ATTR void reduce_floats_by(const Reduction& reduction, void* result, const Source* sources, uint32_t count,
                               size_t elements) {
  switch (reduction.op) {
    case Operator::kSum:
    case Operator::kAverage:
      if (reduction.divisor != 0)
        return FloatReduction<Codec, FloatSum, Scaling::kDivisor>::run(reduction, result, sources, count, elements);
      return FloatReduction<Codec, FloatSum, Scaling::kNone>::run(reduction, result, sources, count, elements);
    case Operator::kPremultipliedSum:
      return FloatReduction<Codec, FloatSum, Scaling::kFactors>::run(reduction, result, sources, count, elements);
    case Operator::kProduct:
      return FloatReduction<Codec, FloatProduct, Scaling::kNone>::run(reduction, result, sources, count, elements);
    case Operator::kMin:
      return FloatReduction<ForMin, Min, Scaling::kNone>::run(reduction, result, sources, count, elements);
    case Operator::kMax:
      return FloatReduction<ForMax, Max, Scaling::kNone>::run(reduction, result, sources, count, elements);
    default:
      return;
  }
}

template <class T>
HWY_ATTR void reduce_floats(const Reduction& reduction, void* result, const Source* sources, uint32_t count,
                            size_t elements) {
  using Codec = PlainCodec<T>;
  reduce_floats_by<Codec, Codec, FloatMin, Codec, FloatMax>(reduction, result, sources, count, elements);
}

template <class Codec, Format kFormat>
HWY_ATTR void reduce_short_floats(const Reduction& reduction, void* result, const Source* sources, uint32_t count,
                                  size_t elements) {
  using Bits = std::make_signed_t<typename Codec::Stored>;
  reduce_floats_by<Codec, Ordered<Bits, kFormat, false>, OrderedMin, Ordered<Bits, kFormat, true>, OrderedMax>(
      reduction, result, sources, count, elements);
}

}  // namespace
}  // namespace nupa::ccl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
