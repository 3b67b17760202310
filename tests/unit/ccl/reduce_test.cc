// SPDX-License-Identifier: Apache-2.0
/// Compares the reductions of collectives with a serial reference, for each instruction set of this processor.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ccl/reduce/combine.h"
#include "ccl/reduce/float_control.h"
#include "ccl/reduce/formats.h"
#include "ccl/reduce/kernels.h"
#include "ccl/reduce/reduce.h"

namespace nupa::ccl {
namespace {

// ---- the short formats ----------------------------------------------------------------------------------------------

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

/// All that a format can say, without sign and infinities, in rising order.
std::vector<double> numbers_of(Format format) {
  std::vector<double> numbers;
  for (uint32_t bits = 0; bits <= format.largest(); ++bits) numbers.push_back(decode_float(format, bits));
  return numbers;
}

/// By the definition: the nearest number, of two that are equally near the one whose last bit is 0.
uint32_t nearest(Format format, const std::vector<double>& numbers, float value) {
  const uint32_t sign = std::signbit(value) ? format.sign() : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  const auto above = std::lower_bound(numbers.begin(), numbers.end(), magnitude);
  if (above == numbers.end()) {
    // One step beyond the largest stands for all that is too large.
    const double step = numbers.back() - numbers[numbers.size() - 2];
    const bool over = magnitude >= numbers.back() + step / 2;
    return sign | (over && format.has_infinity ? format.infinity() : format.largest());
  }
  auto index = static_cast<uint32_t>(above - numbers.begin());
  if (*above != magnitude) {
    const double up = *above - magnitude;
    const double down = magnitude - numbers[index - 1];
    if (down < up || (down == up && index % 2 == 1)) --index;
  }
  return sign | index;
}

/// Numbers of every exponent, and those around each number of the format and around the middle between two.
std::vector<float> interesting(Format format) {
  std::vector<float> values{0.0f, -0.0f, std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()};
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    const float value = from_bits(static_cast<uint32_t>(random()));
    if (!std::isnan(value)) values.push_back(value);
  }
  const auto numbers = numbers_of(format);
  for (size_t i = 0; i + 1 < numbers.size(); ++i)
    for (const double at : {numbers[i], (numbers[i] + numbers[i + 1]) / 2}) {
      const auto near = static_cast<float>(at);
      for (const float value : {near, std::nextafter(near, 1e30f), std::nextafter(near, -1e30f)}) {
        values.push_back(value);
        values.push_back(-value);
      }
    }
  return values;
}

TEST(CclFormats, Decode_KnownBits_EqualTheStandardsNumbers) {
  EXPECT_EQ(decode_float(kE4m3Format, 0x7e), 448.0f);
  EXPECT_EQ(decode_float(kE4m3Format, 0x01), std::ldexp(1.0f, -9));
  EXPECT_EQ(decode_float(kE4m3Format, 0x38), 1.0f);
  EXPECT_EQ(decode_float(kE4m3Format, 0xb8), -1.0f);
  EXPECT_TRUE(std::isnan(decode_float(kE4m3Format, 0x7f)));
  EXPECT_EQ(decode_float(kE5m2Format, 0x7b), 57344.0f);
  EXPECT_EQ(decode_float(kE5m2Format, 0x01), std::ldexp(1.0f, -16));
  EXPECT_EQ(decode_float(kE5m2Format, 0x7c), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(decode_float(kE5m2Format, 0x7d)));
  EXPECT_EQ(decode_float(kBfloat16Format, 0x3f80), 1.0f);
  EXPECT_EQ(decode_float(kBfloat16Format, 0x0001), from_bits(0x00010000));
}

/// GCC 12 has _Float16 in C++ on x86 only.
#if defined(__x86_64__)
using CompilersFloat16 = _Float16;
#else
using CompilersFloat16 = __fp16;
#endif

TEST(CclFormats, Float16_AllValues_EqualTheCompilersConversion) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto value = static_cast<float>(std::bit_cast<CompilersFloat16>(static_cast<uint16_t>(bits)));
    if (std::isnan(value))
      ASSERT_TRUE(std::isnan(decode_float(kFloat16Format, bits))) << bits;
    else
      ASSERT_EQ(std::bit_cast<uint32_t>(decode_float(kFloat16Format, bits)), std::bit_cast<uint32_t>(value)) << bits;
  }
  for (const float value : interesting(kFloat16Format))
    ASSERT_EQ(encode_float(kFloat16Format, value), std::bit_cast<uint16_t>(static_cast<CompilersFloat16>(value)))
        << value;
}

TEST(CclFormats, Encode_AnyFloat_RoundsToNearestEven) {
  for (const Format format : {kFloat16Format, kBfloat16Format, kE4m3Format, kE5m2Format}) {
    const auto numbers = numbers_of(format);
    for (const float value : interesting(format)) {
      if (std::isinf(value)) continue;
      ASSERT_EQ(encode_float(format, value), nearest(format, numbers, value))
          << value << ", " << format.exponent_bits << " bits of exponent";
    }
  }
}

TEST(CclFormats, Encode_InfinityOrNan_StaysInfinityOrNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(encode_float(kE4m3Format, infinity), 0x7fu);
  EXPECT_EQ(encode_float(kE5m2Format, -infinity), 0xfcu);
  EXPECT_EQ(encode_float(kFloat16Format, infinity), 0x7c00u);
  EXPECT_EQ(encode_float(kBfloat16Format, -infinity), 0xff80u);
  for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0xffffffffu})
    for (const Format format : {kFloat16Format, kBfloat16Format, kE4m3Format, kE5m2Format})
      EXPECT_TRUE(std::isnan(decode_float(format, encode_float(format, from_bits(bits)))));
}

// ---- reductions -----------------------------------------------------------------------------------------------------

constexpr Operator kAllOperators[] = {Operator::kSum,        Operator::kProduct,   Operator::kMin,
                                      Operator::kMax,        Operator::kAverage,   Operator::kPremultipliedSum,
                                      Operator::kBitAnd,     Operator::kBitOr,     Operator::kBitXor,
                                      Operator::kLogicalAnd, Operator::kLogicalOr, Operator::kLogicalXor};

/// One element as it is counted with.
struct Number {
  double real;       ///< of floating point: float32 or float64
  uint64_t integer;  ///< of integers, sign extended
};

bool is_signed(Type type) { return is_integer(type) && static_cast<int>(type) % 2 == 0; }

const Format* format_of(Type type) {
  switch (type) {
    case Type::kFloat16:
      return &kFloat16Format;
    case Type::kBfloat16:
      return &kBfloat16Format;
    case Type::kFloat8E4m3:
      return &kE4m3Format;
    case Type::kFloat8E5m2:
      return &kE5m2Format;
    default:
      return nullptr;
  }
}

/// The serial reference.
class Reference {
 public:
  explicit Reference(Type type) : type_(type), size_(size_of(type)) {}

  Number load(const std::byte* from) const {
    uint64_t bits = 0;
    std::memcpy(&bits, from, size_);
    if (is_integer(type_)) return {0, widen(bits)};
    if (const Format* format = format_of(type_)) return {decode_float(*format, static_cast<uint32_t>(bits)), 0};
    if (type_ == Type::kFloat32) return {from_bits(static_cast<uint32_t>(bits)), 0};
    return {std::bit_cast<double>(bits), 0};
  }
  void store(Number number, std::byte* to) const {
    uint64_t bits = number.integer;
    if (const Format* format = format_of(type_))
      bits = encode_float(*format, static_cast<float>(number.real));
    else if (type_ == Type::kFloat32)
      bits = std::bit_cast<uint32_t>(static_cast<float>(number.real));
    else if (type_ == Type::kFloat64)
      bits = std::bit_cast<uint64_t>(number.real);
    std::memcpy(to, &bits, size_);
  }
  Number multiply(Number a, Number b) const { return {round(a.real * b.real), widen(a.integer * b.integer)}; }
  Number divide(Number a, uint32_t by) const {
    const uint64_t quotient =
        is_signed(type_) ? static_cast<uint64_t>(static_cast<int64_t>(a.integer) / int64_t{by}) : a.integer / by;
    return {round(a.real / by), quotient};
  }
  Number combine(Operator op, Number a, Number b) const {
    switch (op) {
      case Operator::kSum:
      case Operator::kAverage:
      case Operator::kPremultipliedSum:
        return {round(a.real + b.real), widen(a.integer + b.integer)};
      case Operator::kProduct:
        return multiply(a, b);
      case Operator::kMin:
        return less(b, a) ? b : a;
      case Operator::kMax:
        return less(a, b) ? b : a;
      case Operator::kBitAnd:
        return {0, a.integer & b.integer};
      case Operator::kBitOr:
        return {0, a.integer | b.integer};
      case Operator::kBitXor:
        return {0, a.integer ^ b.integer};
      case Operator::kLogicalAnd:
        return {0, a.integer != 0 && b.integer != 0};
      case Operator::kLogicalOr:
        return {0, a.integer != 0 || b.integer != 0};
      case Operator::kLogicalXor:
        return {0, (a.integer != 0) != (b.integer != 0)};
    }
    return {};
  }

 private:
  /// Cut to the type's bits and extended again.
  uint64_t widen(uint64_t bits) const {
    const auto unused = static_cast<int>(64 - 8 * size_);
    if (is_signed(type_)) return static_cast<uint64_t>(static_cast<int64_t>(bits << unused) >> unused);
    return bits << unused >> unused;
  }
  double round(double value) const {
    return type_ == Type::kFloat64 ? value : static_cast<double>(static_cast<float>(value));
  }
  /// -0 is less than +0; NaNs are not compared.
  bool less(Number a, Number b) const {
    if (!is_integer(type_))
      return a.real < b.real || (a.real == b.real && std::signbit(a.real) && !std::signbit(b.real));
    return is_signed(type_) ? static_cast<int64_t>(a.integer) < static_cast<int64_t>(b.integer) : a.integer < b.integer;
  }

  Type type_;
  size_t size_;
};

class CclReduce : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }

  /// Random bits are mostly huge or tiny numbers: half of the elements are of the size that programs have.
  std::vector<std::byte> random_array(Type type, size_t elements) {
    std::vector<std::byte> bytes(elements * size_of(type));
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    const Reference reference(type);
    for (size_t i = 0; i < elements; i += 2) {
      const double usual = std::uniform_real_distribution<double>(-8, 8)(random);
      reference.store({usual, static_cast<uint64_t>(static_cast<int64_t>(usual * 10))}, &bytes[i * size_of(type)]);
    }
    return bytes;
  }

  void check(Type type, Operator op, uint32_t sources, size_t elements, int in_place, uint32_t divisor, size_t shift) {
    const size_t size = size_of(type);
    const Reference reference(type);
    std::vector<std::vector<std::byte>> arrays;
    std::vector<std::byte> factors;
    for (uint32_t i = 0; i < sources; ++i) arrays.push_back(random_array(type, elements + 2));
    if (op == Operator::kPremultipliedSum) factors = random_array(type, sources);
    std::vector<std::byte> expected(elements * size);
    std::vector<bool> nan(elements);
    for (size_t e = 0; e < elements; ++e) {
      Number sum{};
      for (uint32_t i = 0; i < sources; ++i) {
        Number next = reference.load(&arrays[i][(e + shift) * size]);
        if (!factors.empty()) next = reference.multiply(next, reference.load(&factors[i * size]));
        nan[e] = nan[e] || std::isnan(next.real);
        sum = i == 0 ? next : reference.combine(op, sum, next);
      }
      if (divisor != 0) sum = reference.divide(sum, divisor);
      nan[e] = nan[e] || std::isnan(sum.real);
      reference.store(sum, &expected[e * size]);
    }
    std::vector<std::byte> result((elements + 2) * size, std::byte{0x5a});
    std::byte* const to = in_place < 0 ? &result[shift * size] : &arrays[in_place][shift * size];
    const std::byte behind = to[elements * size];
    std::vector<Source> list;
    for (uint32_t i = 0; i < sources; ++i)
      list.push_back({&arrays[i][shift * size], factors.empty() ? nullptr : &factors[i * size]});
    if (elements > 0) kernel()({type, op, divisor}, to, list.data(), sources, elements);
    ASSERT_EQ(to[elements * size], behind) << "nothing is written behind the end";
    for (size_t e = 0; e < elements; ++e) {
      if (nan[e]) {
        ASSERT_TRUE(std::isnan(reference.load(to + e * size).real)) << describe(type, op, sources, elements, e);
        continue;
      }
      ASSERT_EQ(std::memcmp(to + e * size, &expected[e * size], size), 0)
          << describe(type, op, sources, elements, e) << ": " << reference.load(to + e * size).real << " instead of "
          << reference.load(&expected[e * size]).real;
    }
  }
  static std::string describe(Type type, Operator op, uint32_t sources, size_t elements, size_t at) {
    return "type " + std::to_string(static_cast<int>(type)) + ", operator " + std::to_string(static_cast<int>(op)) +
           ", " + std::to_string(sources) + " sources of " + std::to_string(elements) + " elements, at " +
           std::to_string(at);
  }

  std::mt19937_64 random{11};
};

TEST_P(CclReduce, Kernel_EachTypeAndOperator_EqualsTheSerialReference) {
  for (uint32_t t = 0; t < kTypes; ++t)
    for (const Operator op : kAllOperators) {
      const auto type = static_cast<Type>(t);
      if (!is_defined(op, type)) continue;
      for (const uint32_t sources : {1u, 2u, 3u, 4u, 8u, 9u})
        for (const size_t elements : {size_t{0}, size_t{1}, size_t{7}, size_t{16}, size_t{33}, size_t{1031}}) {
          const uint32_t divisor = op == Operator::kAverage ? sources : 0;
          ASSERT_NO_FATAL_FAILURE(check(type, op, sources, elements, -1, divisor, 0));
        }
    }
}

TEST_P(CclReduce, Kernel_ResultIsOneOfTheSources_EqualsTheSerialReference) {
  for (uint32_t t = 0; t < kTypes; ++t)
    for (const Operator op : kAllOperators) {
      const auto type = static_cast<Type>(t);
      if (!is_defined(op, type)) continue;
      for (const uint32_t sources : {1u, 2u, 5u})
        for (uint32_t place = 0; place < sources; ++place)
          ASSERT_NO_FATAL_FAILURE(
              check(type, op, sources, 4500, static_cast<int>(place), op == Operator::kAverage ? 3 : 0, 1));
    }
}

TEST_P(CclReduce, Average_WithoutDivisor_IsTheSum) {
  for (uint32_t t = 0; t < kTypes; ++t)
    ASSERT_NO_FATAL_FAILURE(check(static_cast<Type>(t), Operator::kAverage, 3, 100, -1, 0, 0));
}

TEST_P(CclReduce, Product_OfFloat8_SaturatesWithinFloat32AndIsNanBeyond) {
  // 448 to the power of 14 is less than 16 times below float32's largest.
  const std::byte large[] = {std::byte{0x7e}, std::byte{0x7e}, std::byte{0x7e}, std::byte{0x7e}};
  const std::byte last[] = {std::byte{0x58}, std::byte{0x5c}, std::byte{0x60}, std::byte{0xd8}};  // 16, 24, 32, -16
  std::vector<Source> sources(14, Source{large});
  sources.push_back({last});
  std::byte product[4];
  kernel()({Type::kFloat8E4m3, Operator::kProduct}, product, sources.data(), 15, 4);
  EXPECT_EQ(product[0], std::byte{0x7e});
  EXPECT_EQ(product[1], std::byte{0x7e});
  EXPECT_EQ(product[2], std::byte{0x7f});
  EXPECT_EQ(product[3], std::byte{0xfe});
}

TEST_P(CclReduce, Kernel_EachPairOfFloat8Values_EqualsTheReference) {
  constexpr size_t kPairs = 0x10000;
  std::vector<std::byte> a(kPairs);
  std::vector<std::byte> b(kPairs);
  std::vector<std::byte> result(kPairs);
  for (size_t i = 0; i < kPairs; ++i) {
    a[i] = static_cast<std::byte>(i >> 8);
    b[i] = static_cast<std::byte>(i);
  }
  const Source sources[] = {{a.data()}, {b.data()}};
  for (const Type type : {Type::kFloat8E4m3, Type::kFloat8E5m2})
    for (const Operator op : {Operator::kSum, Operator::kProduct, Operator::kMin, Operator::kMax, Operator::kAverage}) {
      const uint32_t divisor = op == Operator::kAverage ? 3 : 0;
      kernel()({type, op, divisor}, result.data(), sources, 2, kPairs);
      const Reference reference(type);
      for (size_t i = 0; i < kPairs; ++i) {
        const Number x = reference.load(&a[i]);
        const Number y = reference.load(&b[i]);
        Number number = reference.combine(op, x, y);
        if (divisor != 0) number = reference.divide(number, divisor);
        std::byte expected{};
        reference.store(number, &expected);
        if (std::isnan(x.real) || std::isnan(y.real) || std::isnan(number.real))
          ASSERT_TRUE(std::isnan(reference.load(&result[i]).real)) << describe(type, op, 2, kPairs, i);
        else
          ASSERT_EQ(result[i], expected) << describe(type, op, 2, kPairs, i);
      }
    }
}

TEST_P(CclReduce, Average_OfIntegers_IsTheQuotient) {
  for (const uint32_t divisor : {1u, 2u, 3u, 7u, 255u, 257u, 32768u, 65535u, 65537u, 2147483647u, 4294967295u})
    for (const Type type : {Type::kInt8, Type::kUint8, Type::kInt16, Type::kUint16, Type::kInt32, Type::kUint32}) {
      const size_t size = size_of(type);
      // Multiples of the divisor and their neighbours, of both signs, up to where the type wraps.
      std::vector<uint32_t> numbers;
      for (uint32_t i = 0; i < 3000; ++i)
        for (const uint32_t beside : {0u, 1u, ~0u}) {
          const uint32_t number = (i < 1500 ? i : static_cast<uint32_t>(random())) * divisor + beside;
          numbers.push_back(number);
          numbers.push_back(-number);
        }
      std::vector<std::byte> array(numbers.size() * size);
      std::vector<std::byte> result(array.size());
      for (size_t i = 0; i < numbers.size(); ++i) std::memcpy(&array[i * size], &numbers[i], size);
      const Source source{array.data()};
      kernel()({type, Operator::kAverage, divisor}, result.data(), &source, 1, numbers.size());
      const Reference reference(type);
      for (size_t i = 0; i < numbers.size(); ++i) {
        const uint64_t expected = reference.divide(reference.load(&array[i * size]), divisor).integer;
        ASSERT_EQ(reference.load(&result[i * size]).integer, expected)
            << "type " << static_cast<int>(type) << ", " << numbers[i] << " / " << divisor;
      }
    }
}

TEST_P(CclReduce, MinAndMax_OfZerosAndNans_AreOrdered) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float a[] = {0.0f, -0.0f, nan, 1.0f, nan, -0.0f};
  const float b[] = {-0.0f, 0.0f, 1.0f, nan, nan, -0.0f};
  float least[6];
  float most[6];
  const Source sources[] = {{a}, {b}};
  kernel()({Type::kFloat32, Operator::kMin}, least, sources, 2, 6);
  kernel()({Type::kFloat32, Operator::kMax}, most, sources, 2, 6);
  EXPECT_TRUE(std::signbit(least[0]) && std::signbit(least[1]) && std::signbit(least[5]));
  EXPECT_FALSE(std::signbit(most[0]) || std::signbit(most[1]));
  EXPECT_TRUE(std::signbit(most[5]));
  for (int i = 2; i < 5; ++i) EXPECT_TRUE(std::isnan(least[i]) && std::isnan(most[i]));
}

TEST_P(CclReduce, Kernel_ArrayCutIntoParts_GivesTheSameBits) {
  for (const Type type : {Type::kFloat16, Type::kBfloat16, Type::kFloat32, Type::kFloat64, Type::kFloat8E4m3}) {
    constexpr size_t kElements = 3001;
    constexpr uint32_t kSources = 5;
    const size_t size = size_of(type);
    std::vector<std::vector<std::byte>> arrays;
    std::vector<Source> list;
    for (uint32_t i = 0; i < kSources; ++i) arrays.push_back(random_array(type, kElements));
    for (const auto& array : arrays) list.push_back({array.data()});
    std::vector<std::byte> whole(kElements * size);
    std::vector<std::byte> parts(kElements * size);
    kernel()({type, Operator::kSum}, whole.data(), list.data(), kSources, kElements);
    for (size_t at = 0; at < kElements;) {
      const size_t here = std::min<size_t>(random() % 97 + 1, kElements - at);
      std::vector<Source> moved;
      for (const auto& array : arrays) moved.push_back({&array[at * size]});
      kernel()({type, Operator::kSum}, &parts[at * size], moved.data(), kSources, here);
      at += here;
    }
    const Reference reference(type);
    for (size_t i = 0; i < kElements; ++i) {
      if (std::isnan(reference.load(&whole[i * size]).real)) continue;
      ASSERT_EQ(std::memcmp(&whole[i * size], &parts[i * size], size), 0) << i;
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<int64_t>& info) { return hwy::TargetName(info.param); }

INSTANTIATE_TEST_SUITE_P(Targets, CclReduce, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), name_of);

TEST(CclReduceMode, Reduce_OtherRoundingMode_RoundsToNearestAndRestoresTheMode) {
  // Halves of the last bit, and numbers that some modes flush.
  const float a[] = {1.0f, from_bits(1), 16777216.0f};
  const float b[] = {from_bits(0x33800000), from_bits(1), 1.0f};
  const Source sources[] = {{a}, {b}};
  float usual[3];
  float upwards[3];
  reduce({Type::kFloat32, Operator::kSum}, usual, sources, 2, 3);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  reduce({Type::kFloat32, Operator::kSum}, upwards, sources, 2, 3);
  EXPECT_EQ(std::fegetround(), FE_UPWARD) << "and is as it was";
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(std::memcmp(usual, upwards, sizeof usual), 0);
  EXPECT_EQ(usual[1], from_bits(2));
}

/// reduce() itself, which has a way of its own for few elements, beside the kernel.
TEST(CclReduceFew, Reduce_FewElements_EqualsTheKernel) {
  std::mt19937_64 random(5);
  constexpr size_t kMost = 80;
  constexpr uint32_t kSources = 9;
  for (uint32_t t = 0; t < kTypes; ++t)
    for (const Operator op : kAllOperators) {
      const auto type = static_cast<Type>(t);
      if (!is_defined(op, type)) continue;
      const size_t size = size_of(type);
      const Reference reference(type);
      std::vector<std::vector<std::byte>> arrays(kSources, std::vector<std::byte>(kMost * size));
      std::vector<std::byte> factors(kSources * size);
      const auto usual = [&] { return std::uniform_real_distribution<double>(-8, 8)(random); };
      const auto put = [&](std::byte* to) {
        const double value = usual();
        reference.store({value, static_cast<uint64_t>(static_cast<int64_t>(value * 10))}, to);
      };
      for (auto& array : arrays)
        for (size_t i = 0; i < kMost; ++i) put(&array[i * size]);
      for (uint32_t i = 0; i < kSources; ++i) put(&factors[i * size]);
      for (const uint32_t sources : {1u, 2u, 3u, 9u})
        for (const size_t elements : {size_t{1}, 64 / size - 1, 64 / size, 64 / size + 1, kMost}) {
          const Reduction reduction{type, op, op == Operator::kAverage ? 3u : 0u};
          std::vector<Source> list;
          for (uint32_t i = 0; i < sources; ++i)
            list.push_back({arrays[i].data(), op == Operator::kPremultipliedSum ? &factors[i * size] : nullptr});
          std::vector<std::byte> expected(kMost * size, std::byte{0x5a});
          std::vector<std::byte> result = expected;
          if (elements > 0) kernel()(reduction, expected.data(), list.data(), sources, elements);
          reduce(reduction, result.data(), list.data(), sources, elements);
          ASSERT_EQ(result, expected) << "type " << t << ", operator " << static_cast<int>(op) << ", " << sources
                                      << " sources of " << elements;
        }
    }
}

TEST(CclReduceFew, Reduce_NoElementsOrNoSources_WritesNothing) {
  float result = 5;
  const float one = 1;
  const Source source{&one};
  reduce({Type::kFloat32, Operator::kSum}, &result, &source, 1, 0);
  reduce({Type::kFloat32, Operator::kSum}, &result, &source, 0, 1);
  EXPECT_EQ(result, 5);
}

TEST(CclReduceMode, Reduce_ManyElementsInOtherRoundingMode_RoundsToNearestAndRestoresTheMode) {
  constexpr size_t kElements = 100;
  std::vector<float> a(kElements, 1.0f);
  std::vector<float> b(kElements, from_bits(0x33800000));
  a[1] = b[1] = from_bits(1);
  const Source sources[] = {{a.data()}, {b.data()}};
  std::vector<float> result(kElements);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  const FloatControl before = float_control();
#if defined(__SSE2__)
  constexpr FloatControl kFlushAndZero = 0x8040;  // FTZ, DAZ
#else
  constexpr FloatControl kFlushAndZero = 1u << 24;  // FZ
#endif
  set_float_control(before | kFlushAndZero);
  reduce({Type::kFloat32, Operator::kSum}, result.data(), sources, 2, kElements);
  EXPECT_EQ(float_control() & kFlushAndZero, kFlushAndZero) << "and is as it was";
  set_float_control(before);
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(result[0], 1.0f);
  EXPECT_EQ(result[1], from_bits(2)) << "what is small is no zero";
}

/// One rank's, whose function sees no more than 8 KiB at once, and never the program's own arrays.
TEST(CclCombine, Combine_UserFunction_GetsEachElementOnceInTheOrderOfTheSources) {
  constexpr size_t kElements = 2 * 8192 / sizeof(uint64_t) + 3;
  struct Seen {
    size_t calls = 0;
    size_t most = 0;
    size_t elements = 0;
  } seen;
  Reducer reducer{{Type::kUint64, Operator::kSum}};
  reducer.argument = &seen;
  reducer.function = [](void* result, const void* next, size_t count, int type, void* argument) {
    auto& about = *static_cast<Seen*>(argument);
    ++about.calls;
    about.most = std::max(about.most, count);
    about.elements += count;
    EXPECT_EQ(type, static_cast<int>(Type::kUint64));
    for (size_t i = 0; i < count; ++i) {
      uint64_t& value = static_cast<uint64_t*>(result)[i];
      value = value * 10 + static_cast<const uint64_t*>(next)[i];
    }
  };
  std::vector<std::vector<uint64_t>> arrays;
  for (uint64_t i = 1; i <= 10; ++i) arrays.emplace_back(kElements, i % 10);
  for (const uint32_t count : {1u, 8u, 9u, 10u})
    for (const uint32_t place : {0u, count - 1}) {
      auto copies = arrays;
      seen = {};
      Factors none;
      combine_ranks(reducer, none, copies[place].data(), count, kElements,
                    [&](uint32_t rank) -> const void* { return copies[rank].data(); });
      uint64_t expected = 1;
      for (uint32_t i = 1; i < count; ++i) expected = expected * 10 + (i + 1) % 10;
      for (const uint64_t value : copies[place]) ASSERT_EQ(value, expected) << count << " into " << place;
      EXPECT_EQ(seen.elements, (count - 1) * kElements);
      EXPECT_EQ(seen.calls, 3 * (count - 1));
      EXPECT_LE(seen.most, 8192 / sizeof(uint64_t));
    }
}

}  // namespace
}  // namespace nupa::ccl
