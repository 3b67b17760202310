// SPDX-License-Identifier: Apache-2.0
/// Compares each algorithm with a serial reference, for ranks in one memory and in several.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "reference.h"
#include "../support/sanitizers.h"

namespace nupa::ccl {
namespace {

using CclAlgorithms = WithSmallSlots;

/// One type of each length. How messages are cut depends on the length only, and the arithmetic of every type has tests
/// of its own.
constexpr Type kTypesByLength[] = {Type::kFloat8E4m3, Type::kBfloat16, Type::kInt32, Type::kFloat64};

/// These algorithms combine elements in another order than the reference, so only exact sums are equal.
void check_algorithms_of_all(Rank& rank) {
  uint32_t seed = 0;
  for (const nupa_ccl_op op : {NUPA_CCL_SUM, NUPA_CCL_PRODUCT, NUPA_CCL_MAX, NUPA_CCL_AVERAGE})
    for (const size_t elements : kSizes)
      for (const bool in_place : {false, true}) {
        // In place, and with each operator, the next one of the types.
        const Round round{kTypesByLength[seed++ % std::size(kTypesByLength)], elements, seed, true};
        if (test::kSanitized && seed % 3 != 0) continue;
        if (op != NUPA_CCL_SUM && seed % 2 != 0) continue;
        check_reductions(rank, round, op, in_place);
        check_reduce_scatter(rank, {round.type, elements * rank.ranks(), seed, true}, op, in_place);
        if (op == NUPA_CCL_SUM) check_movements(rank, round, in_place);
      }
  for (uint32_t turn = 0; turn < 5; ++turn) check_uneven(rank, turn);
  check_joining(rank, 5000);
}

/// For choices that change all_reduce only.
void check_all_reduce(Rank& rank) {
  uint32_t seed = 0;
  for (const nupa_ccl_op op : {NUPA_CCL_SUM, NUPA_CCL_PRODUCT, NUPA_CCL_MAX, NUPA_CCL_AVERAGE})
    for (const size_t elements : kSizes)
      for (const bool in_place : {false, true}) {
        const Round round{kTypesByLength[seed++ % std::size(kTypesByLength)], elements, seed, true};
        const uint32_t divisor = op == NUPA_CCL_AVERAGE ? rank.ranks() : 0;
        Bytes in = round.of(rank.rank());
        Bytes out(in.size());
        Bytes& to = in_place ? in : out;
        rank.expect_ok(nupa_ccl_all_reduce(in.data(), to.data(), elements, round.c_type(), op, rank.world(), nullptr),
                       round.text("all_reduce", in_place));
        rank.expect(to == reduced(round, {round.type, static_cast<Operator>(op), divisor}, 0, rank.ranks()),
                    round.text("all_reduce is wrong", in_place));
      }
}

/// 1 to 8 ranks: with 9, sums of the shortest type would not be exact.
TEST_F(CclAlgorithms, EveryAlgorithm_ByMessages_EqualsTheSerialReference) {
  constexpr const char* kOfAll[] = {
      "broadcast=binomial,gather=binomial,scatter=binomial,all_gather=bruck,all_to_all=bruck,reduce=binomial,"
      "all_reduce=doubling,reduce_scatter=ring,scan=doubling,exscan=doubling",
      "broadcast=four-ary,all_gather=ring,all_to_all=pairwise,reduce=four-ary,all_reduce=halving"};
  constexpr const char* kOfAllReduce[] = {"all_reduce=ring", "all_reduce=slices", "all_reduce=one-shot"};
  setenv("NUPA_CCL_MAPPED_RANKS", "1", 1);
  for (const uint32_t ranks : test::kSanitized ? std::vector{2u, 5u} : std::vector{1u, 2u, 3u, 5u, 6u, 7u, 8u}) {
    const auto endings = run_job(ranks, [&](Rank& rank) {
      const auto with = [&](const char* choice, const auto& check) {
        setenv("NUPA_CCL_ALGO", choice, 1);
        check(rank);
        rank.finish();  // the next communicator reads what is chosen
      };
      for (const char* const choice : kOfAll) with(choice, check_algorithms_of_all);
      for (const char* const choice : kOfAllReduce) with(choice, check_all_reduce);
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
  unsetenv("NUPA_CCL_MAPPED_RANKS");
}

TEST_F(CclAlgorithms, ManyRanks_ByMessages_EqualTheSerialReference) {
  for (const uint32_t ranks : {17u, 24u}) {
    if (test::kSanitized && ranks > 17) continue;
    setenv("NUPA_CCL_MAPPED_RANKS", "1", 1);
    const auto endings = run_job(ranks, [](Rank& rank) {
      for (const size_t elements : {size_t{3}, size_t{3000}, size_t{100'000}}) {
        if (rank.ranks() > 17 && elements > 3000) continue;
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

/// Calls every kind of operation. With `simple`, sums are exact in any order.
void check_everything(Rank& rank, bool simple) {
  uint32_t seed = 0;
  for (const Type type : {Type::kInt32, Type::kBfloat16, Type::kFloat32, Type::kFloat8E4m3})
    for (const nupa_ccl_op op : {NUPA_CCL_SUM, NUPA_CCL_PRODUCT, NUPA_CCL_MAX, NUPA_CCL_AVERAGE})
      for (const size_t elements : {size_t{0}, size_t{1}, size_t{13}, size_t{1000}, size_t{20'011}}) {
        if (++seed % (test::kSanitized ? 8 : 2) != 0) continue;
        const bool in_place = seed % 4 == 0;
        check_reductions(rank, {type, elements, seed, simple}, op, in_place);
        check_reduce_scatter(rank, {type, elements * rank.ranks(), seed, simple}, op, in_place);
        if (op == NUPA_CCL_SUM) check_movements(rank, {type, elements, seed, simple}, in_place);
      }
  for (uint32_t turn = 0; turn < 5; ++turn) check_uneven(rank, turn);
  check_joining(rank, 5000);
}

std::string plan_of(Rank& rank, const char* operation, size_t bytes) {
  char text[256];
  rank.expect_ok(nupa_ccl_plan(rank.world(), operation, bytes, text, sizeof text), operation);
  return text;
}

/// Which memory each rank is in, one digit a rank.
struct Layout {
  const char* memories;
  const char* all_reduce;  ///< the algorithm of a large all_reduce
  uint32_t ranks() const { return static_cast<uint32_t>(std::strlen(memories)); }
  uint32_t memory_of(uint32_t rank) const { return static_cast<uint32_t>(memories[rank] - '0'); }
};
constexpr Layout kLayouts[] = {{"0011", "columns"},  {"00111", "columns"},  {"01010", "columns"},
                               {"011", "two-level"}, {"001122", "columns"}, {"0102", "two-level"}};

class CclHierarchical : public WithSmallSlots {
 protected:
  void SetUp() override {
    const char* const transport = std::getenv("NUPA_TRANSPORT");
    if ((transport != nullptr && std::strcmp(transport, "auto") != 0) ||
        std::getenv("NUPA_CCL_MAPPED_RANKS") != nullptr)
      GTEST_SKIP() << "needs memory within each host and packets between hosts";
    WithSmallSlots::SetUp();
  }
};

TEST_F(CclHierarchical, EveryOperation_InEachLayout_EqualsTheSerialReference) {
  for (const Layout& layout : kLayouts) {
    if (test::kSanitized && layout.ranks() > 5) continue;
    const SeparateMemories memories;
    const SharedCount came;
    const auto endings = run_job(layout.ranks(), [&](Rank& rank) {
      memories.enter(layout.memory_of(rank.rank()));
      check_barriers(rank, came);
      const std::string name = std::string(layout.all_reduce) + ":";
      rank.expect(plan_of(rank, "all_reduce", 1 << 20).starts_with(name), plan_of(rank, "all_reduce", 1 << 20));
      rank.expect(plan_of(rank, "broadcast", 8).starts_with("two-level:"), plan_of(rank, "broadcast", 8));
      check_everything(rank, true);
    });
    EXPECT_EQ(endings, all_well(layout.ranks())) << layout.memories;
  }
}

/// The result has the same bits as that of one process that reduces the arrays in rank order.
TEST_F(CclHierarchical, Deterministic_InEachLayout_EqualsTheSerialOrder) {
  setenv("NUPA_CCL_DETERMINISTIC", "1", 1);
  for (const Layout& layout : kLayouts) {
    if (test::kSanitized && layout.ranks() > 4) continue;
    const SeparateMemories memories;
    const auto endings = run_job(layout.ranks(), [&](Rank& rank) {
      memories.enter(layout.memory_of(rank.rank()));
      check_everything(rank, false);
    });
    EXPECT_EQ(endings, all_well(layout.ranks())) << layout.memories;
  }
  unsetenv("NUPA_CCL_DETERMINISTIC");
}

TEST_F(CclHierarchical, RankOfAnotherHost_Dies_IsNamedByAllRanks) {
  for (const uint32_t victim : {0u, 1u, 3u}) {
    const SeparateMemories memories;
    const auto endings = run_job(4, [&](Rank& rank) {
      memories.enter(rank.rank() / 2);
      std::vector<float> values(100'000, 1);
      for (uint32_t turn = 0;; ++turn) {
        if (turn == 5 && rank.rank() == victim) _exit(0);  // others may still be in the turn before
        const int error = nupa_ccl_all_reduce(values.data(), values.data(), values.size(), NUPA_CCL_FLOAT32,
                                              NUPA_CCL_MAX, rank.world(), nullptr);
        if (error == 0) continue;
        uint32_t gone = 0;
        rank.expect_ok(nupa_ccl_comm_error(rank.world(), nullptr, &gone), "comm_error");
        rank.expect(turn >= 4 && error == ECONNRESET && gone == victim, nupa_ccl_error_text());
        nupa_ccl_comm* left;
        rank.expect_ok(nupa_ccl_comm_shrink(rank.world(), &left), "shrink");
        int64_t sum = 1;
        rank.expect_ok(nupa_ccl_all_reduce(&sum, &sum, 1, NUPA_CCL_INT64, NUPA_CCL_SUM, left, nullptr), "the rest");
        rank.expect(sum == 3, "the sum of the ranks that are left");
        rank.expect_ok(nupa_ccl_comm_destroy(left), "destroy");
        return;
      }
    });
    EXPECT_EQ(endings, all_well(4)) << "rank " << victim;
  }
}

/// With few and many ranks, and with another algorithm chosen.
TEST_F(CclAlgorithms, Deterministic_ByMessages_EqualsTheSerialOrder) {
  setenv("NUPA_CCL_DETERMINISTIC", "1", 1);
  setenv("NUPA_CCL_MAPPED_RANKS", "1", 1);
  for (const uint32_t ranks : {3u, 17u}) {
    if (test::kSanitized && ranks > 3) continue;
    for (const char* const choice : {"", "all_reduce=ring,reduce=binomial,reduce_scatter=ring,scan=doubling"}) {
      setenv("NUPA_CCL_ALGO", choice, 1);
      const auto endings = run_job(ranks, [](Rank& rank) {
        for (const size_t elements : {size_t{1}, size_t{9001}})
          for (const Type type : {Type::kFloat32, Type::kBfloat16}) {
            check_reductions(rank, {type, elements, 3}, NUPA_CCL_SUM, false);
            check_reduce_scatter(rank, {type, elements * rank.ranks(), 3}, NUPA_CCL_SUM, false);
          }
      });
      EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks, " << choice;
    }
  }
  unsetenv("NUPA_CCL_ALGO");
  unsetenv("NUPA_CCL_MAPPED_RANKS");
  unsetenv("NUPA_CCL_DETERMINISTIC");
}

/// Ranks with different settings would get different bits.
TEST_F(CclAlgorithms, Deterministic_OnOneRankOnly_FailsWithEproto) {
  setenv("NUPA_CCL_TIMEOUT", "10", 1);
  const auto endings = run_job(2, [](Rank& rank) {
    if (rank.rank() == 1) setenv("NUPA_CCL_DETERMINISTIC", "1", 1);
    int64_t value = 1;
    const int error = nupa_ccl_all_reduce(&value, &value, 1, NUPA_CCL_INT64, NUPA_CCL_SUM, rank.world(), nullptr);
    rank.expect(error == EPROTO, std::string("a rank that differs: ") + std::strerror(error));
  });
  unsetenv("NUPA_CCL_TIMEOUT");
  EXPECT_EQ(endings, all_well(2));
}

}  // namespace
}  // namespace nupa::ccl
