/// Every operation against a serial reference, among processes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

#include "ccl/reduce/reduce.h"
#include "job.h"

namespace nupa::ccl {
namespace {

/// Whether this rank's arrays are of nupa_ccl_alloc().
bool g_allocates = false;

template <class T>
struct ArrayAllocator {
  using value_type = T;
  ArrayAllocator() = default;
  template <class U>
  explicit ArrayAllocator(const ArrayAllocator<U>&) {}
  T* allocate(size_t count) {
    if (!g_allocates) return std::allocator<T>().allocate(count);
    auto* const array = static_cast<T*>(nupa_ccl_alloc(count * sizeof(T)));
    if (array == nullptr) throw std::bad_alloc();
    return array;
  }
  void deallocate(T* array, size_t count) {
    if (nupa_ccl_free(array) != 0) std::allocator<T>().deallocate(array, count);
  }
  bool operator==(const ArrayAllocator&) const { return true; }
};
using Bytes = std::vector<std::byte, ArrayAllocator<std::byte>>;

/// With small slots, so that small arrays take several turns.
class CclOperations : public ::testing::Test {
 protected:
  void SetUp() override { setenv("NUPA_CCL_SLOT_BYTES", "4096", 1); }
  void TearDown() override { unsetenv("NUPA_CCL_SLOT_BYTES"); }
};

/// Numbers of a type whose sums and products stay numbers.
Bytes numbers(Type type, size_t elements, uint32_t seed) {
  std::mt19937_64 random(seed);
  const size_t size = size_of(type);
  Bytes all(elements * size);
  struct Shape {
    uint32_t exponent_bits;
    uint32_t mantissa_bits;
  };
  const auto shape_of = [](Type of) -> Shape {
    switch (of) {
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
  };
  for (size_t i = 0; i < elements; ++i) {
    uint64_t bits = random();
    if (!is_integer(type)) {
      const Shape shape = shape_of(type);
      const uint64_t bias = (uint64_t{1} << (shape.exponent_bits - 1)) - 1;
      const uint64_t exponent = bias - 2 + bits % 4;
      const uint64_t mantissa = random() & ((uint64_t{1} << shape.mantissa_bits) - 1);
      bits = (bits >> 63) << (shape.exponent_bits + shape.mantissa_bits) | exponent << shape.mantissa_bits | mantissa;
    }
    std::memcpy(&all[i * size], &bits, size);
  }
  return all;
}

/// Numbers -1, 0 and 1, whose sums of a few are exact in every type.
Bytes simple_numbers(Type type, size_t elements, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(elements);
  for (float& value : values) value = static_cast<float>(random() % 3) - 1;
  const size_t size = size_of(type);
  Bytes all(elements * size);
  const auto one_of = [](Type of) -> uint64_t {
    switch (of) {
      case Type::kFloat16:
        return 0x3c00;
      case Type::kBfloat16:
        return 0x3f80;
      case Type::kFloat32:
        return 0x3f800000;
      case Type::kFloat64:
        return 0x3ff0000000000000;
      case Type::kFloat8E4m3:
        return 0x38;
      case Type::kFloat8E5m2:
        return 0x3c;
      default:
        return 1;
    }
  };
  const uint64_t one = one_of(type);
  const uint64_t minus_one = is_integer(type) ? ~uint64_t{0} : one | uint64_t{1} << (8 * size - 1);
  for (size_t i = 0; i < elements; ++i) {
    const uint64_t bits = values[i] == 0 ? 0 : values[i] > 0 ? one : minus_one;
    std::memcpy(&all[i * size], &bits, size);
  }
  return all;
}

/// One operation's arrays on all ranks, which each rank knows how to make.
struct Round {
  Type type;
  size_t elements;
  uint32_t seed;
  bool simple = false;

  Bytes of(uint32_t rank) const {
    return simple ? simple_numbers(type, elements, seed * 64 + rank) : numbers(type, elements, seed * 64 + rank);
  }
  std::string text(const char* what, bool in_place) const {
    return std::string(what) + " of type " + std::to_string(static_cast<int>(type)) + ", " + std::to_string(elements) +
           " elements" + (in_place ? ", in place" : "");
  }
  nupa_ccl_type c_type() const { return static_cast<nupa_ccl_type>(type); }
};

/// What ranks begin to end-1 have, reduced.
Bytes reduced(const Round& round, const Reduction& reduction, uint32_t begin, uint32_t end,
              const std::vector<Bytes>& factors = {}) {
  std::vector<Bytes> arrays;
  std::vector<Source> sources;
  for (uint32_t rank = begin; rank < end; ++rank) arrays.push_back(round.of(rank));
  for (uint32_t rank = begin; rank < end; ++rank)
    sources.push_back({arrays[rank - begin].data(), factors.empty() ? nullptr : factors[rank].data()});
  Bytes result(round.elements * size_of(round.type));
  reduce(reduction, result.data(), sources.data(), end - begin, round.elements);
  return result;
}

constexpr nupa_ccl_op kOps[] = {NUPA_CCL_SUM,         NUPA_CCL_PRODUCT,    NUPA_CCL_MIN,        NUPA_CCL_MAX,
                                NUPA_CCL_AVERAGE,     NUPA_CCL_BIT_AND,    NUPA_CCL_BIT_OR,     NUPA_CCL_BIT_XOR,
                                NUPA_CCL_LOGICAL_AND, NUPA_CCL_LOGICAL_OR, NUPA_CCL_LOGICAL_XOR};
/// Nothing, one, odd ones, a line's edges, a slot's edges (tests use small slots) and several slots.
constexpr size_t kSizes[] = {0, 1, 7, 14, 57, 1000, 4099};

/// Operations that reduce, for one type, operator and size.
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

/// A whole number of elements for each rank.
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

TEST_F(CclOperations, ReductionsOfEveryTypeAndOperator) {
  for (const uint32_t ranks : rank_counts()) {
    const auto endings = run_job(ranks, [](Rank& rank) {
      uint32_t seed = 0;
      for (uint32_t t = 0; t < kTypes; ++t)
        for (const nupa_ccl_op op : kOps) {
          const auto type = static_cast<Type>(t);
          if (!is_defined(static_cast<Operator>(op), type)) continue;
          for (const size_t elements : kSizes) {
            // All sizes with sums, two of them with each of the others.
            ++seed;
            if (op != NUPA_CCL_SUM && seed % 4 != 0) continue;
            const Round round{type, elements, seed};
            for (const bool in_place : {false, true}) {
              check_reductions(rank, round, op, in_place);
              check_reduce_scatter(rank, {type, elements * rank.ranks(), seed}, op, in_place);
            }
          }
        }
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

Bytes joined(const Round& round, uint32_t ranks) {
  Bytes all;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const Bytes one = round.of(rank);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

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

TEST_F(CclOperations, MovementsOfEveryType) {
  for (const uint32_t ranks : rank_counts()) {
    const auto endings = run_job(ranks, [](Rank& rank) {
      uint32_t seed = 0;
      for (uint32_t t = 0; t < kTypes; ++t)
        for (const size_t elements : kSizes)
          for (const bool in_place : {false, true})
            check_movements(rank, {static_cast<Type>(t), elements, ++seed}, in_place);
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

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

TEST_F(CclOperations, BlocksOfDifferentLengths) {
  for (const uint32_t ranks : rank_counts()) {
    const auto endings = run_job(ranks, [](Rank& rank) {
      for (uint32_t seed = 0; seed < 40; ++seed) check_uneven(rank, seed);
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

/// An operator that does not commute: an affine map after another one, modulo a prime, as two halves of a word.
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

/// Elements are combined in other groups by these, so that only exact sums are the same.
TEST_F(CclOperations, EveryAlgorithmByMessages) {
  constexpr const char* kChoices[] = {
      "broadcast=binomial,gather=binomial,scatter=binomial,all_gather=bruck,all_to_all=bruck,reduce=binomial,"
      "all_reduce=doubling,reduce_scatter=ring,scan=doubling,exscan=doubling",
      "broadcast=four-ary,all_gather=ring,all_to_all=pairwise,reduce=four-ary,all_reduce=halving", "all_reduce=ring",
      "all_reduce=slices", "all_reduce=one-shot"};
  setenv("NUPA_CCL_MAPPED_RANKS", "1", 1);
  for (const char* const choice : kChoices)
    for (const uint32_t ranks : rank_counts()) {
      if (ranks > 8) continue;  // sums of the shortest type would not be exact
      setenv("NUPA_CCL_ALGO", choice, 1);
      const auto endings = run_job(ranks, [](Rank& rank) {
        uint32_t seed = 0;
        for (uint32_t t = 0; t < kTypes; ++t)
          for (const nupa_ccl_op op : {NUPA_CCL_SUM, NUPA_CCL_PRODUCT, NUPA_CCL_MAX, NUPA_CCL_AVERAGE})
            for (const size_t elements : kSizes) {
              if (++seed % (kIsSanitized ? 10 : 3) != 0) continue;
              const Round round{static_cast<Type>(t), elements, seed, true};
              const bool in_place = seed % 2 == 0;
              check_reductions(rank, round, op, in_place);
              check_reduce_scatter(rank, {round.type, elements * rank.ranks(), seed, true}, op, in_place);
              if (op == NUPA_CCL_SUM) check_movements(rank, round, in_place);
            }
        for (uint32_t turn = 0; turn < 5; ++turn) check_uneven(rank, turn);
        check_joining(rank, 5000);
      });
      EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks, " << choice;
    }
  unsetenv("NUPA_CCL_ALGO");
  unsetenv("NUPA_CCL_MAPPED_RANKS");
}

TEST_F(CclOperations, ManyRanksByMessages) {
  for (const uint32_t ranks : {17u, 24u}) {
    if (kIsSanitized && ranks > 17) continue;
    setenv("NUPA_CCL_MAPPED_RANKS", "1", 1);
    const auto endings = run_job(ranks, [](Rank& rank) {
      for (const size_t elements : {size_t{3}, size_t{3000}, size_t{100'000}}) {
        const Round round{Type::kInt32, elements, 3};
        check_reductions(rank, round, NUPA_CCL_SUM, false);
        check_reduce_scatter(rank, {Type::kInt32, elements / 10 * rank.ranks(), 3}, NUPA_CCL_SUM, false);
        check_movements(rank, {Type::kInt32, elements / 10, 3}, false);
      }
      check_joining(rank, 5000);
    });
    unsetenv("NUPA_CCL_MAPPED_RANKS");
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

TEST_F(CclOperations, FactorsAndFunctionsOfThePrograms) {
  for (const uint32_t ranks : {1u, 2u, 5u}) {
    const auto endings = run_job(ranks, [](Rank& rank) {
      for (const size_t elements : kSizes) {
        const Round round{Type::kFloat32, elements, 9};
        std::vector<Bytes> factors;
        for (uint32_t of = 0; of < rank.ranks(); ++of) factors.push_back(numbers(Type::kFloat32, 1, 1000 + of));
        nupa_ccl_op op;
        rank.expect_ok(nupa_ccl_op_create_premultiplied_sum(factors[rank.rank()].data(), NUPA_CCL_FLOAT32, &op), "op");
        const Bytes in = round.of(rank.rank());
        Bytes out(in.size());
        rank.expect_ok(
            nupa_ccl_all_reduce(in.data(), out.data(), elements, NUPA_CCL_FLOAT32, op, rank.world(), nullptr),
            round.text("premultiplied", false));
        rank.expect(out == reduced(round, {Type::kFloat32, Operator::kPremultipliedSum}, 0, rank.ranks(), factors),
                    round.text("premultiplied is wrong", false));
        rank.expect_ok(nupa_ccl_op_destroy(op), "op_destroy");

        check_joining(rank, elements);
      }
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

/// Memory of nupa_ccl_alloc() on all ranks, on some of them, and that is freed and comes again.
TEST_F(CclOperations, AllocatedMemory) {
  for (uint32_t ranks = 1; ranks <= 5; ++ranks) {
    const auto endings = run_job(ranks, [](Rank& rank) {
      constexpr size_t kMost = 100'000;
      for (uint32_t turn = 0; turn < (kIsSanitized ? 20 : 60); ++turn) {
        const size_t elements = turn % 4 == 0 ? kMost : 3000 + turn * 37;
        const Round round{Type::kFloat32, elements, turn};
        const bool allocates = turn % 3 != 2 || rank.rank() % 2 == 0;
        const bool in_place = turn % 5 == 1;
        const Bytes values = round.of(rank.rank());
        Bytes ordinary(values.size() + 64);
        auto* const memory = static_cast<std::byte*>(nupa_ccl_alloc(2 * values.size() + 64));
        rank.expect(memory != nullptr, "alloc");
        // Not at its beginning.
        std::byte* const in = memory + 64;
        std::copy(values.begin(), values.end(), in);
        std::byte* const out = in_place ? in : allocates ? in + values.size() : ordinary.data();
        const Bytes expected = reduced(round, {Type::kFloat32, Operator::kSum}, 0, rank.ranks());
        for (int again = 0; again < (in_place ? 1 : 3); ++again) {
          rank.expect_ok(nupa_ccl_all_reduce(in, out, elements, NUPA_CCL_FLOAT32, NUPA_CCL_SUM, rank.world(), nullptr),
                         round.text("all_reduce of allocated memory", in_place));
          rank.expect(std::equal(expected.begin(), expected.end(), out), round.text("is wrong", in_place));
          // Written to at once: nobody reads it any more.
          std::fill(out, out + values.size(), std::byte{0x11});
        }
        rank.expect_ok(nupa_ccl_free(memory), "free");
      }
      rank.expect(nupa_ccl_free(&rank) == EINVAL, "what was not allocated");
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

/// Whoever can map all arrays takes and puts elements where they lie; all ranks have to see it alike.
TEST_F(CclOperations, EveryOperationOnAllocatedMemory) {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u})
    for (const bool by_all : {true, false}) {
      const auto endings = run_job(ranks, [by_all](Rank& rank) {
        for (const size_t elements : {size_t{5000}, size_t{20'011}})
          for (uint32_t turn = 0; turn < 4; ++turn) {
            g_allocates = by_all || (turn + rank.rank()) % 2 == 0;
            const bool in_place = turn % 2 != 0;
            const Round round{Type::kFloat32, elements, turn};
            check_reductions(rank, round, NUPA_CCL_SUM, in_place);
            check_reduce_scatter(rank, {Type::kFloat32, elements * rank.ranks(), turn}, NUPA_CCL_SUM, in_place);
            check_movements(rank, round, in_place);
            check_uneven(rank, turn);
            check_joining(rank, elements);
          }
      });
      EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks, " << (by_all ? "all" : "some") << " allocate";
    }
}

/// Each way into the smallest operations follows each other one, with ranks that are late at random.
TEST_F(CclOperations, SmallOnesInAnyOrder) {
  for (const uint32_t ranks : {2u, 3u, 5u}) {
    const auto endings = run_job(ranks, [](Rank& rank) {
      std::mt19937 shared(7);
      std::mt19937 own(rank.rank());
      const int64_t n = rank.ranks();
      for (int64_t turn = 0; turn < (kIsSanitized ? 2000 : 20'000); ++turn) {
        const uint32_t kind = shared() % 5;
        const uint32_t root = shared() % rank.ranks();
        const bool begins = shared() % 8 == 0;
        if (own() % 64 == 0) usleep(own() % 100);
        nupa_ccl_request* begun = nullptr;
        nupa_ccl_request** const request = begins ? &begun : nullptr;
        int64_t value[9] = {turn * 1000 + rank.rank()};
        int64_t all[9] = {};
        nupa_ccl_comm* const world = rank.world();
        int error = 0;
        if (kind == 0) error = nupa_ccl_all_reduce(value, all, 1, NUPA_CCL_INT64, NUPA_CCL_SUM, world, request);
        if (kind == 1) error = nupa_ccl_broadcast(value, 1, NUPA_CCL_INT64, root, world, request);
        if (kind == 2) error = nupa_ccl_all_gather(value, all, 1, NUPA_CCL_INT64, world, request);
        if (kind == 3) error = nupa_ccl_barrier(world, request);
        // By slots, in the same turns.
        if (kind == 4) error = nupa_ccl_scan(value, all, 1, NUPA_CCL_INT64, NUPA_CCL_SUM, world, request);
        if (error == 0 && begins) error = nupa_ccl_wait(begun);
        rank.expect_ok(error, "a small one");
        const int64_t upto = kind == 4 ? rank.rank() + 1 : n;
        if (kind == 0 || kind == 4) rank.expect(all[0] == upto * turn * 1000 + upto * (upto - 1) / 2, "sum");
        if (kind == 1) rank.expect(value[0] == turn * 1000 + root, "broadcast");
        for (int64_t i = 0; kind == 2 && i < n; ++i) rank.expect(all[i] == turn * 1000 + i, "all_gather");
      }
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

TEST_F(CclOperations, RequestsAreDoneInTheirOrder) {
  for (const uint32_t ranks : {1u, 2u, 4u}) {
    const auto endings = run_job(ranks, [](Rank& rank) {
      for (int turn = 0; turn < 50; ++turn) {
        constexpr size_t kElements = 3000;
        std::vector<std::vector<int64_t>> arrays;
        std::vector<nupa_ccl_request*> requests(8);
        for (size_t i = 0; i < requests.size(); ++i) arrays.emplace_back(kElements, rank.rank() + i);
        // The second half goes on with the results of the first one.
        for (size_t i = 0; i < requests.size(); ++i) {
          auto& array = arrays[i % 4];
          rank.expect_ok(nupa_ccl_all_reduce(array.data(), array.data(), kElements, NUPA_CCL_INT64, NUPA_CCL_SUM,
                                             rank.world(), &requests[i]),
                         "begin");
        }
        int done = 0;
        if (turn % 2 == 0)
          while (done == 0) rank.expect_ok(nupa_ccl_test(requests.back(), &done), "test");
        for (auto* const request : requests) rank.expect_ok(nupa_ccl_wait(request), "wait");
        const int64_t n = rank.ranks();
        for (int64_t i = 0; i < 4; ++i)
          rank.expect(arrays[static_cast<size_t>(i)] == std::vector<int64_t>(kElements, (n * (n - 1) / 2 + n * i) * n),
                      "a result is wrong");
      }
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

TEST_F(CclOperations, WrongArgumentsAreRefused) {
  EXPECT_EQ(
      run_job(
          2,
          [](Rank& rank) {
            float value = 1;
            auto* const world = rank.world();
            const auto refused = [&](int error, const char* what) {
              rank.expect(error == EINVAL && *nupa_ccl_error_text() != 0, what);
            };
            refused(
                nupa_ccl_all_reduce(&value, &value, 1, static_cast<nupa_ccl_type>(14), NUPA_CCL_SUM, world, nullptr),
                "a type that is none");
            refused(nupa_ccl_all_reduce(&value, &value, 1, NUPA_CCL_FLOAT32, 12, world, nullptr), "no operator");
            refused(nupa_ccl_all_reduce(&value, &value, 1, NUPA_CCL_FLOAT32, 5, world, nullptr), "no factor");
            refused(nupa_ccl_all_reduce(&value, &value, 1, NUPA_CCL_FLOAT32, NUPA_CCL_BIT_OR, world, nullptr),
                    "bits of floating point");
            refused(nupa_ccl_all_reduce(nullptr, &value, 1, NUPA_CCL_FLOAT32, NUPA_CCL_SUM, world, nullptr), "nowhere");
            refused(nupa_ccl_broadcast(&value, 1, NUPA_CCL_FLOAT32, 2, world, nullptr), "no such root");
            refused(nupa_ccl_scan(&value, &value, 1, NUPA_CCL_FLOAT32, NUPA_CCL_AVERAGE, world, nullptr), "average");
            refused(nupa_ccl_all_reduce(&value, &value, SIZE_MAX / 2, NUPA_CCL_FLOAT32, NUPA_CCL_SUM, world, nullptr),
                    "too large");
            refused(nupa_ccl_all_reduce(&value, &value, 1, NUPA_CCL_FLOAT32, NUPA_CCL_SUM, nullptr, nullptr), "none");
            // Nothing of this was begun.
            rank.expect_ok(nupa_ccl_barrier(world, nullptr), "barrier");
          }),
      all_well(2));
}

}  // namespace
}  // namespace nupa::ccl
