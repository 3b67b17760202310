// SPDX-License-Identifier: Apache-2.0
/// Reductions of integers: plain loops over one block at a time, which the compiler vectorizes. Included once for each
/// instruction set.
#if defined(NUPA_CCL_REDUCE_INTEGERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NUPA_CCL_REDUCE_INTEGERS_INL_H_
#undef NUPA_CCL_REDUCE_INTEGERS_INL_H_
#else
#define NUPA_CCL_REDUCE_INTEGERS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>
#include <type_traits>

#include "ccl/reduce/reduce.h"

/// Before a loop: no turn depends on another one.
#ifndef NUPA_INDEPENDENT_TURNS
#ifdef __clang__
#define NUPA_INDEPENDENT_TURNS
#else
#define NUPA_INDEPENDENT_TURNS _Pragma("GCC ivdep")
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace nupa::ccl::HWY_NAMESPACE {
namespace {

/// A block and the sum so far fit into the first-level cache.
constexpr size_t kBlockBytes = 4096;

/// An unsigned type of at least the same size, in which arithmetic wraps.
template <class T>
using Wrapping = std::conditional_t<(sizeof(T) < sizeof(unsigned)), unsigned, std::make_unsigned_t<T>>;

struct IntSum {
  template <class T>
  HWY_ATTR static T of(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  }
};
struct IntProduct {
  template <class T>
  HWY_ATTR static T of(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
  }
};
struct IntMin {
  template <class T>
  HWY_ATTR static T of(T a, T b) {
    return b < a ? b : a;
  }
};
struct IntMax {
  template <class T>
  HWY_ATTR static T of(T a, T b) {
    return a < b ? b : a;
  }
};
struct BitAnd {
  template <class T>
  HWY_ATTR static T of(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct BitOr {
  template <class T>
  HWY_ATTR static T of(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct BitXor {
  template <class T>
  HWY_ATTR static T of(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};
// An element of a partial logical result is 1 or 0 already, and does not change.
struct LogicalAnd {
  template <class T>
  HWY_ATTR static T of(T a, T b) {
    return static_cast<T>((a != 0) & (b != 0));
  }
};
struct LogicalOr {
  template <class T>
  HWY_ATTR static T of(T a, T b) {
    return static_cast<T>((a | b) != 0);
  }
};
struct LogicalXor {
  template <class T>
  HWY_ATTR static T of(T a, T b) {
    return static_cast<T>((a != 0) ^ (b != 0));
  }
};

/// One block of `elements`. `to` may be `a` or `b`.
using CombineBlocks = void (*)(void* to, const void* a, const void* b, size_t elements);

template <class T, class Op>
HWY_ATTR void combine_blocks(void* to, const void* a, const void* b, size_t elements) {
  T* const result = static_cast<T*>(to);
  const T* const left = static_cast<const T*>(a);
  const T* const right = static_cast<const T*>(b);
  NUPA_INDEPENDENT_TURNS
  for (size_t i = 0; i < elements; ++i) result[i] = Op::of(left[i], right[i]);
}

/// A sum of signed numbers has the bits of a sum of unsigned ones, and so have products and operations on bits: one
/// loop is for both.
template <class T>
CombineBlocks combine_blocks_by(Operator op) {
  using Bits = std::make_unsigned_t<T>;
  switch (op) {
    case Operator::kSum:
    case Operator::kAverage:
    case Operator::kPremultipliedSum:
      return &combine_blocks<Bits, IntSum>;
    case Operator::kProduct:
      return &combine_blocks<Bits, IntProduct>;
    case Operator::kMin:
      return &combine_blocks<T, IntMin>;
    case Operator::kMax:
      return &combine_blocks<T, IntMax>;
    case Operator::kBitAnd:
      return &combine_blocks<Bits, BitAnd>;
    case Operator::kBitOr:
      return &combine_blocks<Bits, BitOr>;
    case Operator::kBitXor:
      return &combine_blocks<Bits, BitXor>;
    case Operator::kLogicalAnd:
      return &combine_blocks<Bits, LogicalAnd>;
    case Operator::kLogicalOr:
      return &combine_blocks<Bits, LogicalOr>;
    case Operator::kLogicalXor:
      return &combine_blocks<Bits, LogicalXor>;
  }
  return nullptr;
}

template <class T>
HWY_ATTR void multiply_block(T* to, const T* from, T factor, size_t elements) {
  NUPA_INDEPENDENT_TURNS
  for (size_t i = 0; i < elements; ++i) to[i] = IntProduct::of(from[i], factor);
}

/// The type in which a `T` is divided. The integer part is exact: a quotient is further below the next integer than its
/// rounding error in any mode, because the type has far more bits than `T`.
template <class T>
using Quotient = std::conditional_t<
    sizeof(T) <= 2, float,
    std::conditional_t<sizeof(T) == 4, double, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>>;

template <class T>
HWY_ATTR void divide_block(T* block, uint32_t divisor, size_t elements) {
  const auto by = static_cast<Quotient<T>>(divisor);
  for (size_t i = 0; i < elements; ++i) block[i] = static_cast<T>(static_cast<Quotient<T>>(block[i]) / by);
}

template <class T>
HWY_ATTR void reduce_integers(const Reduction& reduction, void* result, const Source* sources, uint32_t count,
                              size_t elements) {
  const CombineBlocks combine = combine_blocks_by<T>(reduction.op);
  constexpr size_t kBlock = kBlockBytes / sizeof(T);
  alignas(64) T sum[kBlock];
  alignas(64) T multiplied[kBlock];
  T* const out = static_cast<T*>(result);
  for (size_t at = 0; at < elements; at += kBlock) {
    const size_t here = elements - at < kBlock ? elements - at : kBlock;
    const auto block_of = [&](uint32_t i, T* place) HWY_ATTR {
      const T* const from = static_cast<const T*>(sources[i].data) + at;
      if (sources[i].factor == nullptr) return from;
      T factor;
      std::memcpy(&factor, sources[i].factor, sizeof factor);
      multiply_block(place, from, factor, here);
      return static_cast<const T*>(place);
    };
    const T* so_far = block_of(0, sum);
    for (uint32_t i = 1; i < count; ++i) {
      // The last step writes the result, which may be in the place of a later source.
      T* const to = i + 1 == count && reduction.divisor == 0 ? out + at : sum;
      combine(to, so_far, block_of(i, multiplied), here);
      so_far = to;
    }
    if (reduction.divisor != 0) {
      if (so_far != sum) std::memcpy(sum, so_far, here * sizeof(T));
      divide_block(sum, reduction.divisor, here);
      so_far = sum;
    }
    if (so_far != out + at) std::memmove(out + at, so_far, here * sizeof(T));
  }
}

}  // namespace
}  // namespace nupa::ccl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
