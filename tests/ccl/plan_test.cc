// SPDX-License-Identifier: Apache-2.0
/// nupa_ccl_plan(): the algorithm that a communicator would use, and why.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "job.h"

namespace nupa::ccl {
namespace {

constexpr size_t kRoom = 256;

std::string plan_of(Rank& rank, const char* operation, size_t bytes) {
  char text[kRoom];
  rank.expect_ok(nupa_ccl_plan(rank.world(), operation, bytes, text, sizeof text), operation);
  return text;
}

TEST(CclPlan, Plan_OfEachOperation_NamesAlgorithmAndReason) {
  for (const uint32_t ranks : {1u, 3u}) {
    const auto endings = run_job(ranks, [](Rank& rank) {
      for (const char* operation : {"barrier", "broadcast", "gather", "scatter", "all_gather", "all_to_all", "reduce",
                                    "all_reduce", "reduce_scatter", "scan", "exscan"})
        for (const size_t bytes : {size_t{0}, size_t{8}, size_t{1} << 30}) {
          const std::string plan = plan_of(rank, operation, bytes);
          const size_t colon = plan.find(": ");
          rank.expect(colon > 0 && colon < plan.size() - 2, "a plan is not `name: why`: " + plan);
        }
      // It is asked between operations and disturbs none.
      int64_t value = 1;
      rank.expect_ok(nupa_ccl_all_reduce(&value, &value, 1, NUPA_CCL_INT64, NUPA_CCL_SUM, rank.world(), nullptr),
                     "sum");
      rank.expect(value == rank.ranks(), "the sum is wrong");
      plan_of(rank, "all_reduce", 8);
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

TEST(CclPlan, Plan_MoreRanksThanMappedRanks_UsesMessages) {
  const char* const transport = std::getenv("NUPA_TRANSPORT");
  if (transport != nullptr && std::strcmp(transport, "roce") == 0) GTEST_SKIP() << "by packets no memory is shared";
  const char* const given = std::getenv("NUPA_CCL_MAPPED_RANKS");
  const std::string before = given == nullptr ? "" : given;
  setenv("NUPA_CCL_MAPPED_RANKS", "2", 1);
  for (const uint32_t ranks : {2u, 3u})
    EXPECT_EQ(run_job(ranks,
                      [](Rank& rank) {
                        const std::string plan = plan_of(rank, "all_reduce", 8);
                        rank.expect(plan.starts_with(rank.ranks() == 2 ? "lines:" : "one-shot:"), plan);
                      }),
              all_well(ranks));
  before.empty() ? unsetenv("NUPA_CCL_MAPPED_RANKS") : setenv("NUPA_CCL_MAPPED_RANKS", before.c_str(), 1);
}

TEST(CclPlan, Plan_WrongArguments_AreRefused) {
  EXPECT_EQ(run_job(2,
                    [](Rank& rank) {
                      char text[kRoom];
                      auto* const world = rank.world();
                      for (const char* name : {"", "allreduce", "all_reduce ", "ALL_REDUCE"})
                        rank.expect(nupa_ccl_plan(world, name, 8, text, sizeof text) == EINVAL, "an unknown name");
                      rank.expect(nupa_ccl_plan(nullptr, "scan", 8, text, sizeof text) == EINVAL, "no communicator");
                      rank.expect(nupa_ccl_plan(world, nullptr, 8, text, sizeof text) == EINVAL, "no operation");
                      rank.expect(nupa_ccl_plan(world, "scan", 8, nullptr, kRoom) == EINVAL, "no text");
                      rank.expect(nupa_ccl_plan(world, "scan", 8, text, 0) == EINVAL, "no room");
                      const std::string whole = plan_of(rank, "scan", 8);
                      std::memset(text, 'x', sizeof text);
                      rank.expect_ok(nupa_ccl_plan(world, "scan", 8, text, 4), "little room");
                      rank.expect(whole.substr(0, 3) == text && text[4] == 'x', "not cut where the room ends");
                    }),
            all_well(2));
}

}  // namespace
}  // namespace nupa::ccl
