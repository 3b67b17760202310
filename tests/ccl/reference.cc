// SPDX-License-Identifier: Apache-2.0
#include "reference.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

namespace nupa::ccl {

namespace {

using Array = std::vector<std::byte>;

/// splitmix64: every rank computes the arrays of all ranks, and the standard's generators are too slow for that.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15) {}
  uint64_t operator()() {
    uint64_t value = state_ += 0x9e3779b97f4a7c15;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
    value = (value ^ value >> 27) * 0x94d049bb133111eb;
    return value ^ value >> 31;
  }

 private:
  uint64_t state_;
};

/// An array of elements of so many bytes, each with the lower bits of what `bits_of` gives.
template <class BitsOf>
Array array_of(size_t size, size_t elements, BitsOf bits_of) {
  Array all(elements * size);
  const auto fill = [&](auto one) {
    for (size_t i = 0; i < elements; ++i) {
      one = static_cast<decltype(one)>(bits_of());
      std::memcpy(&all[i * sizeof one], &one, sizeof one);
    }
  };
  if (size == 1) fill(uint8_t{});
  if (size == 2) fill(uint16_t{});
  if (size == 4) fill(uint32_t{});
  if (size == 8) fill(uint64_t{});
  return all;
}

struct Shape {
  uint32_t exponent_bits;
  uint32_t mantissa_bits;
};

Shape shape_of(Type type) {
  switch (type) {
    case Type::kFloat16:
      return {5, 10};
    case Type::kBfloat16:
      return {8, 7};
    case Type::kFloat32:
      return {8, 23};
    case Type::kFloat64:
      return {11, 52};
    case Type::kFloat8E4m3:
      return {4, 3};
    default:
      return {5, 2};
  }
}

Array make_numbers(Type type, size_t elements, uint32_t seed) {
  Random random(seed);
  if (is_integer(type)) return array_of(size_of(type), elements, random);
  const Shape shape = shape_of(type);
  const uint64_t bias = (uint64_t{1} << (shape.exponent_bits - 1)) - 1;
  return array_of(size_of(type), elements, [&] {
    const uint64_t bits = random();
    const uint64_t exponent = bias - 2 + bits % 4;
    const uint64_t mantissa = bits >> 4 & ((uint64_t{1} << shape.mantissa_bits) - 1);
    return (bits >> 63) << (shape.exponent_bits + shape.mantissa_bits) | exponent << shape.mantissa_bits | mantissa;
  });
}

Array make_simple_numbers(Type type, size_t elements, uint32_t seed) {
  Random random(seed);
  const size_t size = size_of(type);
  uint64_t one = 1;
  if (!is_integer(type)) {
    const Shape shape = shape_of(type);
    one = ((uint64_t{1} << (shape.exponent_bits - 1)) - 1) << shape.mantissa_bits;
  }
  const uint64_t minus_one = is_integer(type) ? ~uint64_t{0} : one | uint64_t{1} << (8 * size - 1);
  return array_of(size, elements, [&] {
    const uint64_t value = random() % 3;
    return value == 0 ? minus_one : value == 1 ? 0 : one;
  });
}

/// What a rank has in the latest round, made once for all that a round does.
const Array& array_in(const Round& round, uint32_t rank) {
  static Round latest{};
  static std::map<uint32_t, Array> arrays;
  if (round != latest) arrays.clear();
  latest = round;
  Array& array = arrays[rank];
  const uint32_t seed = round.seed * 64 + rank;
  if (array.empty() && round.elements > 0)
    array = round.simple ? make_simple_numbers(round.type, round.elements, seed)
                         : make_numbers(round.type, round.elements, seed);
  return array;
}

}  // namespace

Bytes numbers(Type type, size_t elements, uint32_t seed) {
  const Array array = make_numbers(type, elements, seed);
  return {array.begin(), array.end()};
}

Bytes Round::of(uint32_t rank) const {
  const Array& array = array_in(*this, rank);
  return {array.begin(), array.end()};
}

std::string Round::text(const char* what, bool in_place) const {
  return std::string(what) + " of type " + std::to_string(static_cast<int>(type)) + ", " + std::to_string(elements) +
         " elements" + (in_place ? ", in place" : "");
}

Bytes reduced(const Round& round, const Reduction& reduction, uint32_t begin, uint32_t end,
              const std::vector<Bytes>& factors) {
  std::vector<Source> sources;
  for (uint32_t rank = begin; rank < end; ++rank)
    sources.push_back({array_in(round, rank).data(), factors.empty() ? nullptr : factors[rank].data()});
  Bytes result(round.elements * size_of(round.type));
  reduce(reduction, result.data(), sources.data(), end - begin, round.elements);
  return result;
}

void check_reductions(Rank& rank, const Round& round, nupa_ccl_op op, bool in_place) {
  const Reduction reduction{round.type, static_cast<Operator>(op), op == NUPA_CCL_AVERAGE ? rank.ranks() : 0};
  const size_t bytes = round.elements * size_of(round.type);
  const uint32_t root = round.seed % rank.ranks();
  const Bytes all = reduced(round, reduction, 0, rank.ranks());

  Bytes in = round.of(rank.rank());
  Bytes out(bytes);
  std::byte* const to = in_place ? in.data() : out.data();
  const auto renew = [&] {
    const Bytes own = round.of(rank.rank());
    std::copy(own.begin(), own.end(), in.begin());
  };
  rank.expect_ok(nupa_ccl_all_reduce(in.data(), to, round.elements, round.c_type(), op, rank.world(), nullptr),
                 round.text("all_reduce", in_place));
  rank.expect(std::equal(all.begin(), all.end(), to), round.text("all_reduce is wrong", in_place));

  renew();
  std::fill(out.begin(), out.end(), std::byte{});
  rank.expect_ok(nupa_ccl_reduce(in.data(), to, round.elements, round.c_type(), op, root, rank.world(), nullptr),
                 round.text("reduce", in_place));
  rank.expect(rank.rank() != root || std::equal(all.begin(), all.end(), to), round.text("reduce is wrong", in_place));
  rank.expect(rank.rank() == root || in == round.of(rank.rank()), round.text("reduce has changed in", in_place));

  if (op == NUPA_CCL_AVERAGE) return;
  renew();
  rank.expect_ok(nupa_ccl_scan(in.data(), to, round.elements, round.c_type(), op, rank.world(), nullptr),
                 round.text("scan", in_place));
  const Bytes before_and_own = reduced(round, reduction, 0, rank.rank() + 1);
  rank.expect(std::equal(before_and_own.begin(), before_and_own.end(), to), round.text("scan is wrong", in_place));

  renew();
  if (!in_place) std::fill(out.begin(), out.end(), std::byte{0x5a});
  const Bytes untouched = in_place ? in : out;
  rank.expect_ok(nupa_ccl_exscan(in.data(), to, round.elements, round.c_type(), op, rank.world(), nullptr),
                 round.text("exscan", in_place));
  const Bytes before = rank.rank() == 0 ? untouched : reduced(round, reduction, 0, rank.rank());
  rank.expect(std::equal(before.begin(), before.end(), to), round.text("exscan is wrong", in_place));
}

void check_reduce_scatter(Rank& rank, const Round& whole, nupa_ccl_op op, bool in_place) {
  const Reduction reduction{whole.type, static_cast<Operator>(op), op == NUPA_CCL_AVERAGE ? rank.ranks() : 0};
  const size_t count = whole.elements / rank.ranks();
  const size_t block = count * size_of(whole.type);
  const Bytes all = reduced(whole, reduction, 0, rank.ranks());
  Bytes in = whole.of(rank.rank());
  Bytes out(block);
  std::byte* const to = in_place ? in.data() + rank.rank() * block : out.data();
  rank.expect_ok(nupa_ccl_reduce_scatter(in.data(), to, count, whole.c_type(), op, rank.world(), nullptr),
                 whole.text("reduce_scatter", in_place));
  const auto own = all.begin() + static_cast<ptrdiff_t>(rank.rank() * block);
  rank.expect(std::equal(own, own + static_cast<ptrdiff_t>(block), to),
              whole.text("reduce_scatter is wrong", in_place));
}

namespace {

Bytes joined(const Round& round, uint32_t ranks) {
  Bytes all;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const Bytes one = round.of(rank);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

}  // namespace

void check_movements(Rank& rank, const Round& round, bool in_place) {
  const uint32_t ranks = rank.ranks();
  const uint32_t root = round.seed % ranks;
  const size_t bytes = round.elements * size_of(round.type);
  const bool is_root = rank.rank() == root;
  const Bytes own = round.of(rank.rank());
  const Bytes all = joined(round, ranks);
  const size_t place = rank.rank() * bytes;

  Bytes data = own;
  rank.expect_ok(nupa_ccl_broadcast(data.data(), round.elements, round.c_type(), root, rank.world(), nullptr),
                 round.text("broadcast", true));
  rank.expect(data == round.of(root), round.text("broadcast is wrong", true));

  Bytes out(all.size());
  std::copy(own.begin(), own.end(), out.begin() + static_cast<ptrdiff_t>(place));
  rank.expect_ok(nupa_ccl_all_gather(in_place ? out.data() + place : own.data(), out.data(), round.elements,
                                     round.c_type(), rank.world(), nullptr),
                 round.text("all_gather", in_place));
  rank.expect(out == all, round.text("all_gather is wrong", in_place));

  out.assign(all.size(), std::byte{});
  std::copy(own.begin(), own.end(), out.begin() + static_cast<ptrdiff_t>(place));
  rank.expect_ok(nupa_ccl_gather(in_place ? out.data() + place : own.data(), is_root ? out.data() : nullptr,
                                 round.elements, round.c_type(), root, rank.world(), nullptr),
                 round.text("gather", in_place));
  rank.expect(!is_root || out == all, round.text("gather is wrong", in_place));

  Bytes in = is_root ? all : Bytes{};
  Bytes part(bytes);
  std::byte* const to = in_place && is_root ? in.data() + place : part.data();
  rank.expect_ok(nupa_ccl_scatter(in.data(), to, round.elements, round.c_type(), root, rank.world(), nullptr),
                 round.text("scatter", in_place));
  rank.expect(std::equal(own.begin(), own.end(), to), round.text("scatter is wrong", in_place));

  // Rank s's block for rank r is block r of an array that s alone has.
  const auto sent = [&](uint32_t from) { return numbers(round.type, round.elements * ranks, round.seed * 64 + from); };
  Bytes gives = sent(rank.rank());
  Bytes gets(gives.size());
  rank.expect_ok(nupa_ccl_all_to_all(gives.data(), in_place ? gives.data() : gets.data(), round.elements,
                                     round.c_type(), rank.world(), nullptr),
                 round.text("all_to_all", in_place));
  const Bytes& got = in_place ? gives : gets;
  for (uint32_t from = 0; from < ranks; ++from) {
    const Bytes its = sent(from);
    rank.expect(
        std::equal(its.begin() + static_cast<ptrdiff_t>(place), its.begin() + static_cast<ptrdiff_t>(place + bytes),
                   got.begin() + static_cast<ptrdiff_t>(from * bytes)),
        round.text("all_to_all is wrong", in_place));
  }
  rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
}

namespace {

/// Counts of a v-operation: some ranks have nothing.
std::vector<size_t> uneven(uint32_t ranks, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<size_t> counts(ranks);
  for (size_t& count : counts) count = random() % 3 == 0 ? 0 : random() % 3000;
  return counts;
}

/// With a gap after each block.
std::vector<size_t> offsets_of(const std::vector<size_t>& counts) {
  std::vector<size_t> offsets;
  size_t at = 3;
  for (const size_t count : counts) {
    offsets.push_back(at);
    at += count + 5;
  }
  return offsets;
}

}  // namespace

void check_uneven(Rank& rank, uint32_t seed) {
  constexpr Type kType = Type::kUint32;
  const uint32_t ranks = rank.ranks();
  const uint32_t self = rank.rank();
  const uint32_t root = seed % ranks;
  const auto counts = uneven(ranks, seed);
  const auto offsets = offsets_of(counts);
  const size_t room = offsets.back() + counts.back() + 5;
  const auto block = [&](uint32_t of) { return Round{kType, counts[of], seed}.of(of); };
  const size_t size = size_of(kType);
  const Bytes gap(room * size, std::byte{0x77});
  Bytes whole = gap;
  for (uint32_t of = 0; of < ranks; ++of) {
    const Bytes its = block(of);
    std::copy(its.begin(), its.end(), whole.begin() + static_cast<ptrdiff_t>(offsets[of] * size));
  }
  const Bytes own = block(self);

  Bytes out = gap;
  rank.expect_ok(nupa_ccl_all_gatherv(own.data(), out.data(), counts.data(), offsets.data(), NUPA_CCL_UINT32,
                                      rank.world(), nullptr),
                 "all_gatherv");
  rank.expect(out == whole, "all_gatherv is wrong");

  out = gap;
  const bool is_root = self == root;
  rank.expect_ok(nupa_ccl_gatherv(own.data(), counts[self], out.data(), is_root ? counts.data() : nullptr,
                                  is_root ? offsets.data() : nullptr, NUPA_CCL_UINT32, root, rank.world(), nullptr),
                 "gatherv");
  rank.expect(out == (is_root ? whole : gap), "gatherv is wrong");

  Bytes part(own.size());
  rank.expect_ok(nupa_ccl_scatterv(is_root ? whole.data() : nullptr, is_root ? counts.data() : nullptr,
                                   is_root ? offsets.data() : nullptr, part.data(), counts[self], NUPA_CCL_UINT32, root,
                                   rank.world(), nullptr),
                 "scatterv");
  rank.expect(part == own, "scatterv is wrong");

  const size_t sum = std::accumulate(counts.begin(), counts.end(), size_t{0});
  const Round all{kType, sum, seed + 7};
  const Bytes reference = reduced(all, {kType, Operator::kSum}, 0, ranks);
  const Bytes in = all.of(self);
  Bytes reduced_part(own.size());
  rank.expect_ok(nupa_ccl_reduce_scatterv(in.data(), reduced_part.data(), counts.data(), NUPA_CCL_UINT32, NUPA_CCL_SUM,
                                          rank.world(), nullptr),
                 "reduce_scatterv");
  const size_t begin = std::accumulate(counts.begin(), counts.begin() + self, size_t{0}) * size;
  rank.expect(std::equal(reduced_part.begin(), reduced_part.end(), reference.begin() + static_cast<ptrdiff_t>(begin)),
              "reduce_scatterv is wrong");

  // What s gives to r is as long as uneven(s)[r] says.
  const auto gives = uneven(ranks, seed * 31 + self);
  const auto gives_at = offsets_of(gives);
  const Bytes given = numbers(kType, gives_at.back() + gives.back() + 5, seed * 64 + self);
  std::vector<size_t> gets(ranks);
  for (uint32_t from = 0; from < ranks; ++from) gets[from] = uneven(ranks, seed * 31 + from)[self];
  const auto gets_at = offsets_of(gets);
  Bytes got((gets_at.back() + gets.back() + 5) * size, std::byte{0x33});
  Bytes expected = got;
  for (uint32_t from = 0; from < ranks; ++from) {
    const auto its = uneven(ranks, seed * 31 + from);
    const auto at = offsets_of(its);
    const Bytes bytes = numbers(kType, at.back() + its.back() + 5, seed * 64 + from);
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(at[self] * size), gets[from] * size,
                expected.begin() + static_cast<ptrdiff_t>(gets_at[from] * size));
  }
  rank.expect_ok(nupa_ccl_all_to_allv(given.data(), gives.data(), gives_at.data(), got.data(), gets.data(),
                                      gets_at.data(), NUPA_CCL_UINT32, rank.world(), nullptr),
                 "all_to_allv");
  rank.expect(got == expected, "all_to_allv is wrong");
}

void check_joining(Rank& rank, size_t elements) {
  const auto join = [](void* result, const void* next, size_t count, int, void*) {
    constexpr uint64_t kPrime = 65521;
    for (size_t i = 0; i < count; ++i) {
      uint64_t& first = static_cast<uint64_t*>(result)[i];
      const uint64_t second = static_cast<const uint64_t*>(next)[i];
      const uint64_t scale = (first >> 32) * (second >> 32) % kPrime;
      const uint64_t shift = ((first & 0xffffffff) * (second >> 32) + (second & 0xffffffff)) % kPrime;
      first = scale << 32 | shift;
    }
  };
  const auto map_of = [](uint32_t of, size_t i) { return uint64_t{of + 2 + i % 7} << 32 | (of * 31 + i % 13); };
  nupa_ccl_op op;
  rank.expect_ok(nupa_ccl_op_create(join, nullptr, &op), "op_create");
  std::vector<uint64_t> mine(elements);
  for (size_t i = 0; i < elements; ++i) mine[i] = map_of(rank.rank(), i);
  std::vector<uint64_t> expected(elements);
  std::vector<uint64_t> next(elements);
  for (size_t i = 0; i < elements; ++i) expected[i] = map_of(0, i);
  std::vector<uint64_t> before;
  for (uint32_t of = 1; of < rank.ranks(); ++of) {
    if (of == rank.rank() + 1) before = expected;
    for (size_t i = 0; i < elements; ++i) next[i] = map_of(of, i);
    join(expected.data(), next.data(), elements, 0, nullptr);
  }
  if (rank.rank() + 1 == rank.ranks()) before = expected;
  std::vector<uint64_t> out(elements);
  rank.expect_ok(nupa_ccl_all_reduce(mine.data(), out.data(), elements, NUPA_CCL_UINT64, op, rank.world(), nullptr),
                 "all_reduce by a function");
  rank.expect(out == expected, "all_reduce by a function is wrong");
  const uint32_t root = rank.ranks() / 2;
  rank.expect_ok(nupa_ccl_reduce(mine.data(), out.data(), elements, NUPA_CCL_UINT64, op, root, rank.world(), nullptr),
                 "reduce by a function");
  rank.expect(rank.rank() != root || out == expected, "reduce by a function is wrong");
  rank.expect_ok(nupa_ccl_scan(mine.data(), out.data(), elements, NUPA_CCL_UINT64, op, rank.world(), nullptr),
                 "scan by a function");
  rank.expect(out == before, "scan by a function is wrong");
  rank.expect_ok(nupa_ccl_op_destroy(op), "op_destroy");
}

}  // namespace nupa::ccl
