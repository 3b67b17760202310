// SPDX-License-Identifier: Apache-2.0
/// The layout of elements in memory, and the conversion of vectors of them to vectors of the computing type and back.
/// Included once for each instruction set.
///
/// A codec works on one step, which has the elements of four vectors of the computing type. Each codec chooses which
/// element is in which of the four vectors. load() and store() agree on it, so neither has to order elements across a
/// vector.
#if defined(NUPA_CCL_REDUCE_CODECS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NUPA_CCL_REDUCE_CODECS_INL_H_
#undef NUPA_CCL_REDUCE_CODECS_INL_H_
#else
#define NUPA_CCL_REDUCE_CODECS_INL_H_
#endif

#include <hwy/highway.h>

#include <array>

#include "ccl/reduce/formats.h"

HWY_BEFORE_NAMESPACE();
namespace nupa::ccl::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// For types whose stored form is also the computing type.
template <class T>
struct PlainCodec {
  using Stored = T;
  using Tag = hn::ScalableTag<T>;
  using V = hn::Vec<Tag>;
  HWY_INLINE static void load(const Stored* from, V& v0, V& v1, V& v2, V& v3) {
    const Tag tag;
    const size_t lanes = hn::Lanes(tag);
    v0 = hn::LoadU(tag, from);
    v1 = hn::LoadU(tag, from + lanes);
    v2 = hn::LoadU(tag, from + 2 * lanes);
    v3 = hn::LoadU(tag, from + 3 * lanes);
  }
  HWY_INLINE static void store(V v0, V v1, V v2, V v3, Stored* to) {
    const Tag tag;
    const size_t lanes = hn::Lanes(tag);
    hn::StoreU(v0, tag, to);
    hn::StoreU(v1, tag, to + lanes);
    hn::StoreU(v2, tag, to + 2 * lanes);
    hn::StoreU(v3, tag, to + 3 * lanes);
  }
};

/// Computes the minimum or maximum of short floating-point numbers. The result is one of them, so they are not decoded:
/// the codec converts them to integers in the same order, with -0 below +0. NaNs are beyond all numbers on the side
/// that keeps them. `Bits` is signed.
template <class Bits, Format kFormat, bool kMost>
struct Ordered {
  using Stored = Bits;
  using Tag = hn::ScalableTag<Bits>;
  using V = hn::Vec<Tag>;
  HWY_INLINE static void load(const Stored* from, V& v0, V& v1, V& v2, V& v3) {
    PlainCodec<Bits>::load(from, v0, v1, v2, v3);
    v0 = in_order(v0);
    v1 = in_order(v1);
    v2 = in_order(v2);
    v3 = in_order(v3);
  }
  HWY_INLINE static void store(V v0, V v1, V v2, V v3, Stored* to) {
    PlainCodec<Bits>::store(flipped(v0), flipped(v1), flipped(v2), flipped(v3), to);
  }

 private:
  static constexpr Bits kMagnitude = static_cast<Bits>(kFormat.sign() - 1);
  static constexpr Bits kLargest = static_cast<Bits>(kFormat.has_infinity ? kFormat.infinity() : kFormat.largest());

  /// Reverses the order of negative numbers. It is its own inverse.
  HWY_INLINE static V flipped(V bits) {
    return hn::Xor(bits, hn::And(hn::BroadcastSignBit(bits), hn::Set(Tag(), kMagnitude)));
  }
  /// NaNs of one sign are beyond all numbers already.
  HWY_INLINE static V in_order(V bits) {
    const V v = flipped(bits);
    if constexpr (kMost) {
      const V least = hn::Set(Tag(), static_cast<Bits>(~kLargest));
      return hn::IfThenElse(hn::Lt(v, least), hn::Set(Tag(), kMagnitude), v);
    } else {
      const V most = hn::Set(Tag(), kLargest);
      return hn::IfThenElse(hn::Gt(v, most), hn::Set(Tag(), static_cast<Bits>(~kMagnitude)), v);
    }
  }
};

using Singles = hn::ScalableTag<float>;
using Single = hn::Vec<Singles>;

/// A codec of consecutive vectors in memory. `One` has load() and store() of one vector.
template <class One>
struct InOrder {
  using Stored = typename One::Stored;
  using Tag = Singles;
  HWY_INLINE static void load(const Stored* from, Single& v0, Single& v1, Single& v2, Single& v3) {
    const size_t lanes = hn::Lanes(Tag());
    v0 = One::load(from);
    v1 = One::load(from + lanes);
    v2 = One::load(from + 2 * lanes);
    v3 = One::load(from + 3 * lanes);
  }
  HWY_INLINE static void store(Single v0, Single v1, Single v2, Single v3, Stored* to) {
    const size_t lanes = hn::Lanes(Tag());
    One::store(v0, to);
    One::store(v1, to + lanes);
    One::store(v2, to + 2 * lanes);
    One::store(v3, to + 3 * lanes);
  }
};

#if HWY_TARGET == HWY_SCALAR

template <class Bits, Format kFormat>
struct OneNumber {
  using Stored = Bits;
  HWY_INLINE static Single load(const Stored* from) { return hn::Set(Singles(), decode_float(kFormat, *from)); }
  HWY_INLINE static void store(Single v, Stored* to) {
    *to = static_cast<Stored>(encode_float(kFormat, hn::GetLane(v)));
  }
};
using Float16Codec = InOrder<OneNumber<uint16_t, kFloat16Format>>;
using Bfloat16Codec = InOrder<OneNumber<uint16_t, kBfloat16Format>>;
using E4m3Codec = InOrder<OneNumber<uint8_t, kE4m3Format>>;
using E5m2Codec = InOrder<OneNumber<uint8_t, kE5m2Format>>;

#else

using Words = hn::RebindToUnsigned<Singles>;
using Integers = hn::RebindToSigned<Singles>;
using Halves = hn::Repartition<uint16_t, Singles>;
using SignedHalves = hn::Repartition<int16_t, Singles>;
using Bytes = hn::Repartition<uint8_t, Singles>;
using SignedBytes = hn::Repartition<int8_t, Singles>;
using Word = hn::Vec<Words>;
using Half = hn::Vec<Halves>;
using Byte = hn::Vec<Bytes>;

HWY_INLINE Word word(uint32_t value) { return hn::Set(Words(), value); }
HWY_INLINE Half half(uint32_t value) { return hn::Set(Halves(), static_cast<uint16_t>(value)); }
HWY_INLINE Byte byte(uint32_t value) { return hn::Set(Bytes(), static_cast<uint8_t>(value)); }
HWY_INLINE Single as_single(Word bits) { return hn::BitCast(Singles(), bits); }
HWY_INLINE Word as_words(Single v) { return hn::BitCast(Words(), v); }
HWY_INLINE Half as_halves(Word v) { return hn::BitCast(Halves(), v); }

// Compares bits as unsigned numbers. The sign bit is always clear, so the signed comparison gives the same result.
HWY_INLINE hn::Mask<Words> is_less(Word a, Word b) {
  return hn::RebindMask(Words(), hn::Lt(hn::BitCast(Integers(), a), hn::BitCast(Integers(), b)));
}
HWY_INLINE hn::Mask<Halves> is_less(Half a, Half b) {
  return hn::RebindMask(Halves(), hn::Lt(hn::BitCast(SignedHalves(), a), hn::BitCast(SignedHalves(), b)));
}
HWY_INLINE hn::Mask<Bytes> is_less(Byte a, Byte b) {
  return hn::RebindMask(Bytes(), hn::Lt(hn::BitCast(SignedBytes(), a), hn::BitCast(SignedBytes(), b)));
}

// Vectors of narrow elements are made of the even and the odd elements, so that no bits cross a wide element.
HWY_INLINE Single even_singles(Half upper) { return as_single(hn::ShiftLeft<16>(hn::BitCast(Words(), upper))); }
HWY_INLINE Single odd_singles(Half upper) { return as_single(hn::And(hn::BitCast(Words(), upper), word(0xffff0000))); }
HWY_INLINE Half upper_halves(Word even, Word odd) {
  return hn::OddEven(as_halves(odd), as_halves(hn::ShiftRight<16>(even)));
}
HWY_INLINE Half lower_halves(Word even, Word odd) {
  return hn::OddEven(as_halves(hn::ShiftLeft<16>(odd)), as_halves(even));
}
HWY_INLINE Half even_halves(Byte lower, Byte upper) {
  return hn::BitCast(Halves(),
                     hn::OddEven(hn::BitCast(Bytes(), hn::ShiftLeft<8>(hn::BitCast(Halves(), upper))), lower));
}
HWY_INLINE Half odd_halves(Byte lower, Byte upper) {
  return hn::BitCast(Halves(),
                     hn::OddEven(upper, hn::BitCast(Bytes(), hn::ShiftRight<8>(hn::BitCast(Halves(), lower)))));
}
HWY_INLINE Byte lower_bytes(Half even, Half odd) {
  return hn::OddEven(hn::BitCast(Bytes(), hn::ShiftLeft<8>(odd)), hn::BitCast(Bytes(), even));
}

/// bfloat16 is the upper half of a float32.
struct Bfloat16Codec {
  using Stored = uint16_t;
  using Tag = Singles;
  HWY_INLINE static void load(const Stored* from, Single& v0, Single& v1, Single& v2, Single& v3) {
    const Halves halves;
    const auto a = hn::LoadU(halves, from);
    const auto b = hn::LoadU(halves, from + hn::Lanes(halves));
    v0 = even_singles(a);
    v1 = odd_singles(a);
    v2 = even_singles(b);
    v3 = odd_singles(b);
  }
  HWY_INLINE static void store(Single v0, Single v1, Single v2, Single v3, Stored* to) {
    const Halves halves;
    hn::StoreU(upper_halves(rounded(v0), rounded(v1)), halves, to);
    hn::StoreU(upper_halves(rounded(v2), rounded(v3)), halves, to + hn::Lanes(halves));
  }

 private:
  /// Returns the result in the upper half. A NaN stays the same: it was loaded or is the processor's own one, so its
  /// lower half has no bits that could carry.
  HWY_INLINE static Word rounded(Single v) {
    const auto bits = as_words(v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), word(1));
    return hn::Add(hn::Add(bits, word(0x7fff)), odd);
  }
};

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3_DL
/// The processor has instructions for the conversion.
struct OneFloat16 {
  using Stored = uint16_t;
  using Narrow = hn::Rebind<hwy::float16_t, Singles>;
  HWY_INLINE static Single load(const Stored* from) {
    return hn::PromoteTo(Singles(), hn::LoadU(Narrow(), reinterpret_cast<const hwy::float16_t*>(from)));
  }
  HWY_INLINE static void store(Single v, Stored* to) {
    hn::StoreU(hn::DemoteTo(Narrow(), v), Narrow(), reinterpret_cast<hwy::float16_t*>(to));
  }
};
#else
/// decode_float() and encode_float() of formats.h for a vector at a time.
struct OneFloat16 {
  using Stored = uint16_t;
  using Narrow = hn::Rebind<uint16_t, Singles>;
  static constexpr Format kFormat = kFloat16Format;
  static constexpr int kShift = kFloat32Mantissa - kFormat.mantissa_bits;
  static constexpr int kSignShift = 16;
  HWY_INLINE static Single load(const Stored* from) {
    const auto bits = hn::PromoteTo(Words(), hn::LoadU(Narrow(), from));
    const auto sign = hn::ShiftLeft<kSignShift>(hn::And(bits, word(kFormat.sign())));
    const auto rest = hn::And(bits, word(kFormat.sign() - 1));
    const auto shifted = hn::ShiftLeft<kShift>(rest);
    constexpr uint32_t kScale = (2 * kFloat32Bias - kFormat.bias()) << kFloat32Mantissa;
    const auto scaled = as_words(hn::Mul(as_single(shifted), as_single(word(kScale))));
    const auto special = hn::Or(word(kFloat32Infinity), hn::ShiftLeft<kShift>(hn::Sub(rest, word(kFormat.infinity()))));
    const auto magnitude = hn::IfThenElse(is_less(rest, word(kFormat.infinity())), scaled, special);
    return as_single(hn::Or(sign, magnitude));
  }
  HWY_INLINE static void store(Single v, Stored* to) {
    const auto bits = hn::BitCast(Integers(), encode(as_words(v)));
    hn::StoreU(hn::DemoteTo(Narrow(), bits), Narrow(), to);
  }

 private:
  HWY_INLINE static Word encode(Word bits) {
    const auto sign = hn::ShiftRight<kSignShift>(hn::And(bits, word(kFloat32Sign)));
    const auto rest = hn::And(bits, word(~kFloat32Sign));
    const auto upper = hn::ShiftRight<kShift>(rest);
    const auto odd = hn::And(upper, word(1));
    auto rounded = hn::ShiftRight<kShift>(hn::Add(hn::Add(rest, word((1u << (kShift - 1)) - 1)), odd));
    rounded = hn::Sub(rounded, word((kFloat32Bias - kFormat.bias()) << kFormat.mantissa_bits));
    constexpr uint32_t kSmallestNormal = (kFloat32Bias - kFormat.bias() + 1) << kFloat32Mantissa;
    constexpr uint32_t kMagic = (kFloat32Bias - kFormat.bias() + 1 + kShift) << kFloat32Mantissa;
    const auto small = hn::Sub(as_words(hn::Add(as_single(rest), as_single(word(kMagic)))), word(kMagic));
    rounded = hn::IfThenElse(is_less(rest, word(kSmallestNormal)), small, rounded);
    rounded = hn::IfThenElse(is_less(word(kFormat.infinity()), rounded), word(kFormat.infinity()), rounded);
    const auto kept = hn::And(upper, word(kFormat.sign() - 1));
    const auto nan = hn::Or(word(kFormat.nan()), kept);
    return hn::Or(sign, hn::IfThenElse(is_less(word(kFloat32Infinity), rest), nan, rounded));
  }
};
#endif
using Float16Codec = InOrder<OneFloat16>;

/// 8-bit formats. They are loaded as bfloat16, which has all of their numbers. Its two bytes are computed in vectors of
/// bytes.
template <Format kFormat>
struct ByteCodec {
  using Stored = uint8_t;
  using Tag = Singles;
  HWY_INLINE static void load(const Stored* from, Single& v0, Single& v1, Single& v2, Single& v3) {
    const auto bits = hn::LoadU(Bytes(), from);
    Byte lower, upper;
    to_bfloat16(bits, lower, upper);
    upper = hn::Or(upper, hn::And(bits, byte(kFormat.sign())));
    const auto even = even_halves(lower, upper);
    const auto odd = odd_halves(lower, upper);
    v0 = even_singles(even);
    v1 = odd_singles(even);
    v2 = even_singles(odd);
    v3 = odd_singles(odd);
  }
  HWY_INLINE static void store(Single v0, Single v1, Single v2, Single v3, Stored* to) {
    hn::StoreU(lower_bytes(encode(v0, v1), encode(v2, v3)), Bytes(), to);
  }

 private:
  /// The shift from this format's mantissa to that of bfloat16.
  static constexpr int kShift = kBfloat16Format.mantissa_bits - kFormat.mantissa_bits;
#if HWY_TARGET == HWY_AVX3_DL
  /// Looks up both bytes: the magnitude's seven bits index the entries of two vectors.
  HWY_INLINE static void to_bfloat16(Byte bits, Byte& lower, Byte& upper) {
    lower = look_up(kLower, bits);
    upper = look_up(kUpper, bits);
  }
  using Table = std::array<uint8_t, 128>;
  HWY_INLINE static Byte look_up(const Table& table, Byte bits) {
    const auto first = hn::Load(Bytes(), table.data());
    const auto second = hn::Load(Bytes(), table.data() + table.size() / 2);
    return Byte{_mm512_permutex2var_epi8(first.raw, bits.raw, second.raw)};
  }
  static constexpr Table table(int shift) {
    Table entries{};
    for (uint32_t bits = 0; bits < entries.size(); ++bits)
      entries[bits] = static_cast<uint8_t>(std::bit_cast<uint32_t>(decode_float(kFormat, bits)) >> shift);
    return entries;
  }
  alignas(64) static constexpr Table kLower = table(16);
  alignas(64) static constexpr Table kUpper = table(24);
#else
  /// Shifts the exponent and the mantissa to their places. Tables correct the values with an exponent of 0.
  HWY_INLINE static void to_bfloat16(Byte bits, Byte& lower, Byte& upper) {
    const auto rest = hn::And(bits, byte(kFormat.sign() - 1));
    // Values of 16 and more get the uppermost bit, for which the lookup returns 0.
    const auto index = hn::Xor(hn::SaturatedAdd(rest, byte(0x70)), byte(0x70));
    const auto lower_of_small = hn::TableLookupBytesOr0(hn::LoadDup128(Bytes(), kLowerOfSmall.data()), index);
    const auto upper_of_small = hn::TableLookupBytesOr0(hn::LoadDup128(Bytes(), kUpperOfSmall.data()), index);
    lower = hn::Xor(hn::ShiftLeft<kShift>(bits), lower_of_small);
    upper = hn::Xor(hn::Add(hn::ShiftRight<8 - kShift>(rest), byte(kUpperBias)), upper_of_small);
    upper = hn::Or(upper, hn::IfThenElseZero(is_less(byte(kFormat.largest()), rest), byte(0x7f)));
  }
  /// The increase of the exponent, in the upper byte. The exponent grows by an even number, so the lower byte has no
  /// part of it.
  static constexpr uint32_t kUpperBias = (kFloat32Bias - kFormat.bias()) / 2;

  /// The error of the shifted bits of numbers with an exponent of 0, which are not normal.
  static constexpr uint32_t wrong_by(uint32_t bits) {
    const uint32_t right = std::bit_cast<uint32_t>(decode_float(kFormat, bits)) >> 16;
    return right ^ ((bits << kShift) + (kUpperBias << 8));
  }
  using Table = std::array<uint8_t, 16>;
  static constexpr Table table(int shift) {
    Table entries{};
    for (uint32_t bits = 0; bits < entries.size(); ++bits)
      entries[bits] = static_cast<uint8_t>(wrong_by(bits) >> shift);
    return entries;
  }
  alignas(16) static constexpr Table kLowerOfSmall = table(0);
  alignas(16) static constexpr Table kUpperOfSmall = table(8);
#endif

  /// The number of mantissa bits of a float32 that are dropped.
  static constexpr int kDropped = kFloat32Mantissa - kFormat.mantissa_bits;

  /// Adds a number whose last bit has the weight of the last kept bit, so that the processor rounds. The upper half
  /// then has the sign and the exponent, and the lower half has the mantissa with its first bit.
  HWY_INLINE static Word round(Single v) {
    const auto smallest_normal = word((kFloat32Bias - kFormat.bias() + 1) << kFloat32Mantissa);
    auto exponent = hn::Max(hn::And(as_words(v), word(kFloat32Infinity)), smallest_normal);
    // Without infinities, a large finite number must stay finite. The limit makes the added number irrelevant for it.
    if constexpr (!kFormat.has_infinity) exponent = hn::Min(exponent, word((kFloat32Bias + 32) << kFloat32Mantissa));
    const auto sign = hn::And(as_words(v), word(kFloat32Sign));
    const auto scale = as_single(word((kFloat32Bias + kDropped) << kFloat32Mantissa));
    return as_words(hn::MulAdd(as_single(hn::Or(exponent, sign)), scale, v));
  }
  /// Returns each number in the lower byte of a half.
  HWY_INLINE static Half encode(Single even, Single odd) {
    const auto even_rounded = round(even);
    const auto odd_rounded = round(odd);
    const auto upper = upper_halves(even_rounded, odd_rounded);
    const auto rest = hn::And(upper, half(kBfloat16Format.sign() - 1));
    // The mantissa's first bit counts as 1 of the exponent.
    constexpr uint32_t kBias = kFloat32Bias - kFormat.bias() + kDropped + 1;
    const auto exponent = hn::Sub(hn::ShiftRight<kShift>(rest), half(kBias << kFormat.mantissa_bits));
    const auto number = hn::Min(hn::SaturatedAdd(exponent, lower_halves(even_rounded, odd_rounded)),
                                half(kFormat.has_infinity ? kFormat.infinity() : kFormat.largest()));
    Half magnitude;
    if constexpr (kFormat.has_infinity) {
      const auto nan = hn::And(hn::ShiftRight<kShift>(rest), half(kFormat.sign() - 1));
      magnitude = hn::IfThenElse(is_less(half(kBfloat16Format.infinity()), rest), nan, number);
    } else {
      magnitude = hn::IfThenElse(is_less(half(kBfloat16Format.largest()), rest), half(kFormat.nan()), number);
    }
    return hn::Or(magnitude, hn::And(hn::ShiftRight<8>(upper), half(kFormat.sign())));
  }
};
using E4m3Codec = ByteCodec<kE4m3Format>;
using E5m2Codec = ByteCodec<kE5m2Format>;

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace
}  // namespace nupa::ccl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
