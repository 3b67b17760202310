/// The arithmetic itself, compiled once for each instruction set.
#include "ccl/reduce/kernels.h"

#include <cstring>
#include <limits>
#include <type_traits>

#include "ccl/reduce/formats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ccl/reduce/kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace nupa::ccl::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// ---- integers: plain loops over a block at a time, which the compiler makes vectors of --------------------------

/// What lies in the first cache: a block, and the sum so far.
constexpr size_t kBlockBytes = 4096;

/// The unsigned type of the same size: wraps.
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
// A part of a logical result is 1 or 0 already, and stays what it is.
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

/// `to` may be `a` or `b`.
template <class T, class Op>
HWY_ATTR void combine_blocks(T* to, const T* a, const T* b, size_t elements) {
#pragma GCC ivdep
  for (size_t i = 0; i < elements; ++i) to[i] = Op::of(a[i], b[i]);
}

template <class T>
HWY_ATTR void multiply_block(T* to, const T* from, T factor, size_t elements) {
#pragma GCC ivdep
  for (size_t i = 0; i < elements; ++i) to[i] = IntProduct::of(from[i], factor);
}

template <class T>
HWY_ATTR void divide_block(T* block, uint32_t divisor, size_t elements) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  for (size_t i = 0; i < elements; ++i) block[i] = static_cast<T>(static_cast<Wide>(block[i]) / Wide{divisor});
}

template <class T, class Op>
HWY_ATTR void reduce_integers(const Reduction& reduction, void* result, const Source* sources, uint32_t count,
                              size_t elements) {
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
      // The result may be where a later source lies.
      T* const to = i + 1 == count && reduction.divisor == 0 ? out + at : sum;
      combine_blocks<T, Op>(to, so_far, block_of(i, multiplied), here);
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

// ---- floating point: vectors of the type that is added up in, each element read once --------------------------------

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
// Neither is less where they are equal, zeros of both signs, or not numbers: the bits of both tell what is right.
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

using Singles = hn::ScalableTag<float>;
using Doubles = hn::ScalableTag<double>;

/// An element's type as it lies in memory, and how a vector of it becomes one to count with and back.
struct Float32Codec {
  using Stored = float;
  using Tag = Singles;
  static constexpr bool kFinishes = false;  ///< what is stored is what was counted with
  HWY_INLINE static hn::Vec<Tag> load(const Stored* from) { return hn::LoadU(Tag(), from); }
  HWY_INLINE static void store(hn::Vec<Tag> v, Stored* to) { hn::StoreU(v, Tag(), to); }
};
struct Float64Codec {
  using Stored = double;
  using Tag = Doubles;
  HWY_INLINE static hn::Vec<Tag> load(const Stored* from) { return hn::LoadU(Tag(), from); }
  HWY_INLINE static void store(hn::Vec<Tag> v, Stored* to) { hn::StoreU(v, Tag(), to); }
};

using Words = hn::RebindToUnsigned<Singles>;
using Integers = hn::RebindToSigned<Singles>;

HWY_INLINE hn::Vec<Words> word(uint32_t value) { return hn::Set(Words(), value); }
HWY_INLINE hn::Vec<Singles> as_single(hn::Vec<Words> bits) { return hn::BitCast(Singles(), bits); }
HWY_INLINE hn::Vec<Words> as_words(hn::Vec<Singles> v) { return hn::BitCast(Words(), v); }
/// Bits as numbers of their own: they are all below 2 to the power of 31, where the signed comparison is the same.
HWY_INLINE hn::Mask<Words> is_less(hn::Vec<Words> a, hn::Vec<Words> b) {
  return hn::RebindMask(Words(), hn::Lt(hn::BitCast(Integers(), a), hn::BitCast(Integers(), b)));
}

/// decode_float() and encode_float() of formats.h, a vector at a time.
template <uint32_t kExponent, uint32_t kMantissa, bool kInfinity>
HWY_INLINE hn::Vec<Singles> decode(hn::Vec<Words> bits) {
  constexpr Format kFormat{kExponent, kMantissa, kInfinity};
  constexpr int kShift = kFloat32Mantissa - kMantissa;
  const auto sign = hn::ShiftLeft<31 - kExponent - kMantissa>(hn::And(bits, word(kFormat.sign())));
  const auto rest = hn::And(bits, word(kFormat.sign() - 1));
  const auto shifted = hn::ShiftLeft<kShift>(rest);
  constexpr uint32_t kScale = (2 * kFloat32Bias - kFormat.bias()) << kFloat32Mantissa;
  const auto scaled = as_words(hn::Mul(as_single(shifted), as_single(word(kScale))));
  hn::Vec<Words> magnitude;
  if constexpr (kInfinity) {
    const auto special = hn::Or(word(kFloat32Infinity), hn::ShiftLeft<kShift>(hn::Sub(rest, word(kFormat.infinity()))));
    magnitude = hn::IfThenElse(is_less(rest, word(kFormat.infinity())), scaled, special);
  } else {
    magnitude = hn::IfThenElse(is_less(rest, word(kFormat.nan())), scaled, word(kFloat32Infinity | 1u << 22));
  }
  return as_single(hn::Or(sign, magnitude));
}

template <uint32_t kExponent, uint32_t kMantissa, bool kInfinity>
HWY_INLINE hn::Vec<Words> encode(hn::Vec<Singles> value) {
  constexpr Format kFormat{kExponent, kMantissa, kInfinity};
  constexpr int kShift = kFloat32Mantissa - kMantissa;
  const auto bits = as_words(value);
  const auto sign = hn::ShiftRight<31 - kExponent - kMantissa>(hn::And(bits, word(kFloat32Sign)));
  const auto rest = hn::And(bits, word(~kFloat32Sign));
  const auto upper = hn::ShiftRight<kShift>(rest);
  const auto odd = hn::And(upper, word(1));
  auto rounded = hn::ShiftRight<kShift>(hn::Add(hn::Add(rest, word((1u << (kShift - 1)) - 1)), odd));
  if constexpr (kExponent < 8) {
    rounded = hn::Sub(rounded, word((kFloat32Bias - kFormat.bias()) << kMantissa));
    constexpr uint32_t kSmallestNormal = (kFloat32Bias - kFormat.bias() + 1) << kFloat32Mantissa;
    constexpr uint32_t kMagic = (kFloat32Bias - kFormat.bias() + 1 + kShift) << kFloat32Mantissa;
    const auto small = hn::Sub(as_words(hn::Add(as_single(rest), as_single(word(kMagic)))), word(kMagic));
    rounded = hn::IfThenElse(is_less(rest, word(kSmallestNormal)), small, rounded);
  }
  const auto most = word(kInfinity ? kFormat.infinity() : kFormat.largest());
  rounded = hn::IfThenElse(is_less(most, rounded), most, rounded);
  const auto kept = hn::And(upper, word(kFormat.infinity() | ((1u << kMantissa) - 1)));
  const auto nan = kInfinity ? hn::Or(word(kFormat.nan()), kept) : word(kFormat.nan());
  if constexpr (!kInfinity) {
    rounded = hn::IfThenElse(is_less(rest, word(kFloat32Infinity)), rounded, nan);
  } else {
    rounded = hn::IfThenElse(is_less(word(kFloat32Infinity), rest), nan, rounded);
  }
  return hn::Or(sign, rounded);
}

template <class Bits, uint32_t kExponent, uint32_t kMantissa, bool kInfinity>
struct ShortCodec {
  using Stored = Bits;
  using Tag = Singles;
  using Narrow = hn::Rebind<Bits, Singles>;
  HWY_INLINE static hn::Vec<Tag> load(const Stored* from) {
    return decode<kExponent, kMantissa, kInfinity>(hn::PromoteTo(Words(), hn::LoadU(Narrow(), from)));
  }
  HWY_INLINE static void store(hn::Vec<Tag> v, Stored* to) {
    const auto bits = hn::BitCast(Integers(), encode<kExponent, kMantissa, kInfinity>(v));
    hn::StoreU(hn::DemoteTo(Narrow(), bits), Narrow(), to);
  }
};
using E4m3Codec = ShortCodec<uint8_t, 4, 3, false>;
using E5m2Codec = ShortCodec<uint8_t, 5, 2, true>;

/// The upper half: no exponent to put right.
struct Bfloat16Codec {
  using Stored = uint16_t;
  using Tag = Singles;
  using Narrow = hn::Rebind<uint16_t, Singles>;
  HWY_INLINE static hn::Vec<Tag> load(const Stored* from) {
    return as_single(hn::ShiftLeft<16>(hn::PromoteTo(Words(), hn::LoadU(Narrow(), from))));
  }
  HWY_INLINE static void store(hn::Vec<Tag> v, Stored* to) {
    const auto bits = hn::BitCast(Integers(), encode<8, 7, true>(v));
    hn::StoreU(hn::DemoteTo(Narrow(), bits), Narrow(), to);
  }
};

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
/// The processor converts.
struct Float16Codec {
  using Stored = uint16_t;
  using Tag = Singles;
  using Narrow = hn::Rebind<hwy::float16_t, Singles>;
  HWY_INLINE static hn::Vec<Tag> load(const Stored* from) {
    return hn::PromoteTo(Tag(), hn::LoadU(Narrow(), reinterpret_cast<const hwy::float16_t*>(from)));
  }
  HWY_INLINE static void store(hn::Vec<Tag> v, Stored* to) {
    hn::StoreU(hn::DemoteTo(Narrow(), v), Narrow(), reinterpret_cast<hwy::float16_t*>(to));
  }
};
#else
using Float16Codec = ShortCodec<uint16_t, 5, 10, true>;
#endif

template <class Codec>
HWY_INLINE hn::TFromD<typename Codec::Tag> factor_of(const Source& source) {
  using Stored = typename Codec::Stored;
  using Tag = typename Codec::Tag;
  HWY_ALIGN Stored lanes[hn::MaxLanes(Tag())] = {};
  std::memcpy(lanes, source.factor, sizeof lanes[0]);
  return hn::GetLane(Codec::load(lanes));
}

/// What becomes of the elements of one vector's length, from each source at `at`.
template <class Codec, class Op, bool kFactors>
HWY_INLINE hn::Vec<typename Codec::Tag> reduce_vector(const typename Codec::Stored* const* from,
                                                      const hn::TFromD<typename Codec::Tag>* factors, uint32_t count,
                                                      size_t at) {
  const typename Codec::Tag tag;
  const Op op;
  auto sum = Codec::load(from[0] + at);
  if (kFactors) sum = hn::Mul(sum, hn::Set(tag, factors[0]));
  for (uint32_t i = 1; i < count; ++i) {
    auto next = Codec::load(from[i] + at);
    if (kFactors) next = hn::Mul(next, hn::Set(tag, factors[i]));
    sum = op(sum, next);
  }
  return sum;
}

template <class Codec, class Op, bool kFactors>
HWY_ATTR void reduce_floats_of(const Reduction& reduction, void* result, const Source* sources, uint32_t count,
                               size_t elements) {
  using Stored = typename Codec::Stored;
  using Tag = typename Codec::Tag;
  using T = hn::TFromD<Tag>;
  const Tag tag;
  const size_t lanes = hn::Lanes(tag);
  const Stored* from[kMaxSources];
  T factors[kFactors ? kMaxSources : 1];
  for (uint32_t i = 0; i < count; ++i) {
    from[i] = static_cast<const Stored*>(sources[i].data);
    if (kFactors) factors[i] = sources[i].factor == nullptr ? T{1} : factor_of<Codec>(sources[i]);
  }
  const bool divides = reduction.divisor != 0;
  const auto divisor = hn::Set(tag, static_cast<T>(divides ? reduction.divisor : 1));
  Stored* const out = static_cast<Stored*>(result);
  size_t at = 0;
  if (!divides && count == 2) {
    // The most frequent case by itself: the compiler unrolls it.
    for (; at + 2 * lanes <= elements; at += 2 * lanes) {
      const auto first = reduce_vector<Codec, Op, kFactors>(from, factors, 2, at);
      const auto second = reduce_vector<Codec, Op, kFactors>(from, factors, 2, at + lanes);
      Codec::store(first, out + at);
      Codec::store(second, out + at + lanes);
    }
  }
  for (; at + lanes <= elements; at += lanes) {
    auto sum = reduce_vector<Codec, Op, kFactors>(from, factors, count, at);
    if (divides) sum = hn::Div(sum, divisor);
    Codec::store(sum, out + at);
  }
  if (at == elements) return;
  // What is left, as if there were a whole vector of it.
  HWY_ALIGN Stored rest[hn::MaxLanes(tag)] = {};
  const size_t bytes = (elements - at) * sizeof(Stored);
  const Stored* const here[1] = {rest};
  std::memcpy(rest, from[0] + at, bytes);
  auto sum = reduce_vector<Codec, Op, kFactors>(here, factors, 1, 0);
  const Op op;
  for (uint32_t i = 1; i < count; ++i) {
    std::memcpy(rest, from[i] + at, bytes);
    sum = op(sum, reduce_vector<Codec, Op, kFactors>(here, &factors[kFactors ? i : 0], 1, 0));
  }
  if (divides) sum = hn::Div(sum, divisor);
  Codec::store(sum, rest);
  std::memcpy(out + at, rest, bytes);
}

template <class Codec>
HWY_ATTR void reduce_floats(const Reduction& reduction, void* result, const Source* sources, uint32_t count,
                            size_t elements) {
  switch (reduction.op) {
    case Operator::kSum:
    case Operator::kAverage:
      return reduce_floats_of<Codec, FloatSum, false>(reduction, result, sources, count, elements);
    case Operator::kPremultipliedSum:
      return reduce_floats_of<Codec, FloatSum, true>(reduction, result, sources, count, elements);
    case Operator::kProduct:
      return reduce_floats_of<Codec, FloatProduct, false>(reduction, result, sources, count, elements);
    case Operator::kMin:
      return reduce_floats_of<Codec, FloatMin, false>(reduction, result, sources, count, elements);
    case Operator::kMax:
      return reduce_floats_of<Codec, FloatMax, false>(reduction, result, sources, count, elements);
    default:
      return;
  }
}

// ---- which of them -------------------------------------------------------------------------------------------------

template <class T>
HWY_ATTR void reduce_integers_by(const Reduction& reduction, void* result, const Source* sources, uint32_t count,
                                 size_t elements) {
  switch (reduction.op) {
    case Operator::kSum:
    case Operator::kAverage:
    case Operator::kPremultipliedSum:
      return reduce_integers<T, IntSum>(reduction, result, sources, count, elements);
    case Operator::kProduct:
      return reduce_integers<T, IntProduct>(reduction, result, sources, count, elements);
    case Operator::kMin:
      return reduce_integers<T, IntMin>(reduction, result, sources, count, elements);
    case Operator::kMax:
      return reduce_integers<T, IntMax>(reduction, result, sources, count, elements);
    case Operator::kBitAnd:
      return reduce_integers<T, BitAnd>(reduction, result, sources, count, elements);
    case Operator::kBitOr:
      return reduce_integers<T, BitOr>(reduction, result, sources, count, elements);
    case Operator::kBitXor:
      return reduce_integers<T, BitXor>(reduction, result, sources, count, elements);
    case Operator::kLogicalAnd:
      return reduce_integers<T, LogicalAnd>(reduction, result, sources, count, elements);
    case Operator::kLogicalOr:
      return reduce_integers<T, LogicalOr>(reduction, result, sources, count, elements);
    case Operator::kLogicalXor:
      return reduce_integers<T, LogicalXor>(reduction, result, sources, count, elements);
  }
}

HWY_ATTR void run(const Reduction& reduction, void* result, const Source* sources, uint32_t count, size_t elements) {
  switch (reduction.type) {
    case Type::kInt8:
      return reduce_integers_by<int8_t>(reduction, result, sources, count, elements);
    case Type::kUint8:
      return reduce_integers_by<uint8_t>(reduction, result, sources, count, elements);
    case Type::kInt16:
      return reduce_integers_by<int16_t>(reduction, result, sources, count, elements);
    case Type::kUint16:
      return reduce_integers_by<uint16_t>(reduction, result, sources, count, elements);
    case Type::kInt32:
      return reduce_integers_by<int32_t>(reduction, result, sources, count, elements);
    case Type::kUint32:
      return reduce_integers_by<uint32_t>(reduction, result, sources, count, elements);
    case Type::kInt64:
      return reduce_integers_by<int64_t>(reduction, result, sources, count, elements);
    case Type::kUint64:
      return reduce_integers_by<uint64_t>(reduction, result, sources, count, elements);
    case Type::kFloat16:
      return reduce_floats<Float16Codec>(reduction, result, sources, count, elements);
    case Type::kBfloat16:
      return reduce_floats<Bfloat16Codec>(reduction, result, sources, count, elements);
    case Type::kFloat32:
      return reduce_floats<Float32Codec>(reduction, result, sources, count, elements);
    case Type::kFloat64:
      return reduce_floats<Float64Codec>(reduction, result, sources, count, elements);
    case Type::kFloat8E4m3:
      return reduce_floats<E4m3Codec>(reduction, result, sources, count, elements);
    case Type::kFloat8E5m2:
      return reduce_floats<E5m2Codec>(reduction, result, sources, count, elements);
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
