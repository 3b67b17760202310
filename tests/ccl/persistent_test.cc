// SPDX-License-Identifier: Apache-2.0
/// Persistent calls: kept once, started many times.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "job.h"

namespace nupa::ccl {
namespace {

/// Each start reads the arrays as they are at that time.
TEST(CclPersistent, OneCollective_EachStart_UsesTheArraysAsTheyAreThen) {
  for (const uint32_t ranks : {1u, 2u, 4u})
    for (const size_t elements : {size_t{0}, size_t{1}, size_t{14}, size_t{15}, size_t{30'000}}) {
      const auto endings = run_job(ranks, [elements](Rank& rank) {
        std::vector<int32_t> in(elements);
        std::vector<int32_t> out(elements);
        std::vector<int32_t> all(elements * rank.ranks());
        auto* const world = rank.world();
        nupa_ccl_persistent* sum = nullptr;
        nupa_ccl_persistent* gather = nullptr;
        rank.expect_ok(nupa_ccl_group_start(), "group_start");
        rank.expect_ok(
            nupa_ccl_all_reduce(in.data(), out.data(), elements, NUPA_CCL_INT32, NUPA_CCL_SUM, world, nullptr), "sum");
        rank.expect_ok(nupa_ccl_group_keep(&sum), "group_keep");
        rank.expect_ok(nupa_ccl_group_start(), "group_start");
        rank.expect_ok(nupa_ccl_all_gather(in.data(), all.data(), elements, NUPA_CCL_INT32, world, nullptr), "gather");
        rank.expect_ok(nupa_ccl_group_keep(&gather), "group_keep");
        const auto ranks_all = static_cast<int32_t>(rank.ranks());
        for (int32_t turn = 0; turn < 50; ++turn) {
          in.assign(elements, turn + static_cast<int32_t>(rank.rank()));
          nupa_ccl_request* request = nullptr;
          rank.expect_ok(nupa_ccl_start(sum, turn % 3 == 0 ? &request : nullptr), "start");
          if (request != nullptr) rank.expect_ok(nupa_ccl_wait(request), "wait");
          rank.expect_ok(nupa_ccl_start(gather, nullptr), "start");
          const std::vector<int32_t> expected(elements, turn * ranks_all + ranks_all * (ranks_all - 1) / 2);
          rank.expect(out == expected, "the sum is wrong");
          for (size_t i = 0; i < all.size(); ++i)
            rank.expect(all[i] == turn + static_cast<int32_t>(i / elements), "what was gathered is wrong");
        }
        rank.expect_ok(nupa_ccl_persistent_free(sum), "free");
        rank.expect_ok(nupa_ccl_persistent_free(gather), "free");
      });
      EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks, " << elements << " elements";
    }
}

/// Collectives with lists of counts and with a factor, and messages, in one group.
TEST(CclPersistent, SeveralCalls_KeptTogether_AreAllDoneByEachStart) {
  const auto endings = run_job(3, [](Rank& rank) {
    auto* const world = rank.world();
    const uint32_t self = rank.rank();
    const uint32_t next = (self + 1) % 3;
    const uint32_t before = (self + 2) % 3;
    float value = 0;
    float product = 0;
    const float factor = static_cast<float>(self + 1);
    nupa_ccl_op op;
    rank.expect_ok(nupa_ccl_op_create_premultiplied_sum(&factor, NUPA_CCL_FLOAT32, &op), "op");
    int32_t sent[4] = {};
    int32_t got[5] = {};
    nupa_ccl_status status{};
    int16_t own[3] = {};
    int16_t whole[6] = {};
    nupa_ccl_persistent* kept = nullptr;
    {
      size_t counts[] = {1, 2, 3};
      size_t offsets[] = {0, 1, 3};
      rank.expect_ok(nupa_ccl_group_start(), "group_start");
      rank.expect_ok(nupa_ccl_all_reduce(&value, &product, 1, NUPA_CCL_FLOAT32, op, world, nullptr), "all_reduce");
      rank.expect_ok(nupa_ccl_recv(got, 5, NUPA_CCL_INT32, before, NUPA_CCL_ANY_TAG, world, &status, nullptr), "recv");
      rank.expect_ok(nupa_ccl_send(sent, 4, NUPA_CCL_INT32, next, 7, world, nullptr), "send");
      rank.expect_ok(nupa_ccl_all_gatherv(own, whole, counts, offsets, NUPA_CCL_INT16, world, nullptr), "all_gatherv");
      rank.expect_ok(nupa_ccl_group_keep(&kept), "group_keep");
      std::memset(counts, 0xff, sizeof counts);  // they were taken
    }
    for (int turn = 0; turn < 40; ++turn) {
      value = static_cast<float>(turn);
      for (auto& one : sent) one = turn * 10 + static_cast<int>(self);
      for (auto& one : own) one = static_cast<int16_t>(turn + static_cast<int>(self));
      nupa_ccl_request* request = nullptr;
      const bool is_part = turn % 4 == 3;
      if (is_part) rank.expect_ok(nupa_ccl_group_start(), "group_start");
      rank.expect_ok(nupa_ccl_start(kept, turn % 4 == 1 ? &request : nullptr), "start");
      if (is_part) rank.expect_ok(nupa_ccl_group_end(&request), "group_end");
      if (request != nullptr) rank.expect_ok(nupa_ccl_wait(request), "wait");
      rank.expect(product == static_cast<float>(turn * 6), "the product is wrong");
      rank.expect(got[0] == turn * 10 + static_cast<int>(before) && got[3] == got[0] && got[4] == 0, "the message");
      rank.expect(status.rank == before && status.tag == 7 && status.count == 4, "the status");
      for (int i = 0; i < 6; ++i)
        rank.expect(whole[i] == turn + (i < 1 ? 0 : i < 3 ? 1 : 2), "what was gathered is wrong");
    }
    rank.expect_ok(nupa_ccl_persistent_free(kept), "free");
    rank.expect_ok(nupa_ccl_op_destroy(op), "op_destroy");
  });
  EXPECT_EQ(endings, all_well(3));
}

/// The operator's factor is kept with the call.
TEST(CclPersistent, PremultipliedSum_OperatorDestroyed_KeepsItsFactor) {
  EXPECT_EQ(run_job(2,
                    [](Rank& rank) {
                      int32_t in = 0;
                      int32_t out = 0;
                      const auto factor = static_cast<int32_t>(rank.rank() + 2);
                      nupa_ccl_op op;
                      rank.expect_ok(nupa_ccl_op_create_premultiplied_sum(&factor, NUPA_CCL_INT32, &op), "op");
                      nupa_ccl_persistent* kept = nullptr;
                      rank.expect_ok(nupa_ccl_group_start(), "group_start");
                      rank.expect_ok(nupa_ccl_all_reduce(&in, &out, 1, NUPA_CCL_INT32, op, rank.world(), nullptr),
                                     "all_reduce");
                      rank.expect_ok(nupa_ccl_group_keep(&kept), "group_keep");
                      rank.expect_ok(nupa_ccl_op_destroy(op), "op_destroy");
                      for (in = 1; in < 20; ++in) {
                        rank.expect_ok(nupa_ccl_start(kept, nullptr), "start");
                        rank.expect(out == 5 * in, "the sum is " + std::to_string(out));
                      }
                      rank.expect_ok(nupa_ccl_persistent_free(kept), "free");
                    }),
            all_well(2));
}

/// Outside a group so small a collective is done within the call.
TEST(CclPersistent, SmallCollectiveInAGroup_IsBegunByTheGroupsEnd) {
  const auto play = [](Rank& rank) {
    auto* const world = rank.world();
    int32_t value = 1;
    nupa_ccl_persistent* kept = nullptr;
    rank.expect_ok(nupa_ccl_barrier(world, nullptr), "barrier");
    rank.expect_ok(nupa_ccl_group_start(), "group_start");
    rank.expect_ok(nupa_ccl_all_reduce(&value, &value, 1, NUPA_CCL_INT32, NUPA_CCL_SUM, world, nullptr), "all_reduce");
    rank.expect(value == 1, "it has been done before the group's end");
    rank.expect_ok(nupa_ccl_group_end(nullptr), "group_end");
    rank.expect(value == 2, "the sum");
    rank.expect_ok(nupa_ccl_group_start(), "group_start");
    rank.expect_ok(nupa_ccl_all_reduce(&value, &value, 1, NUPA_CCL_INT32, NUPA_CCL_SUM, world, nullptr), "all_reduce");
    rank.expect_ok(nupa_ccl_group_keep(&kept), "group_keep");
    rank.expect(value == 2, "what is kept has been done");
    rank.expect_ok(nupa_ccl_start(kept, nullptr), "start");
    rank.expect(value == 4, "the second sum");
    rank.expect_ok(nupa_ccl_persistent_free(kept), "free");
  };
  EXPECT_EQ(run_job(2, play), all_well(2));
}

TEST(CclPersistent, StartInAGroup_IsDoneByTheGroupsEnd) {
  EXPECT_EQ(run_job(2,
                    [](Rank& rank) {
                      int32_t value = 1;
                      nupa_ccl_persistent* kept = nullptr;
                      rank.expect_ok(nupa_ccl_group_start(), "group_start");
                      rank.expect_ok(
                          nupa_ccl_all_reduce(&value, &value, 1, NUPA_CCL_INT32, NUPA_CCL_SUM, rank.world(), nullptr),
                          "all_reduce");
                      rank.expect_ok(nupa_ccl_group_keep(&kept), "group_keep");
                      rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
                      rank.expect_ok(nupa_ccl_group_start(), "group_start");
                      rank.expect_ok(nupa_ccl_start(kept, nullptr), "start");
                      rank.expect(value == 1, "it is done when the group ends");
                      rank.expect_ok(nupa_ccl_group_end(nullptr), "group_end");
                      rank.expect(value == 2, "the sum");
                      rank.expect_ok(nupa_ccl_persistent_free(kept), "free");
                    }),
            all_well(2));
}

TEST(CclPersistent, WrongArguments_AreRefused) {
  const auto endings = run_job(2, [](Rank& rank) {
    nupa_ccl_persistent* kept = nullptr;
    rank.expect(nupa_ccl_group_keep(&kept) == EINVAL, "no group");
    rank.expect(nupa_ccl_start(nullptr, nullptr) == EINVAL, "nothing was kept");
    rank.expect_ok(nupa_ccl_persistent_free(nullptr), "none");
    rank.expect_ok(nupa_ccl_group_start(), "outer");
    rank.expect_ok(nupa_ccl_group_start(), "inner");
    rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
    rank.expect(nupa_ccl_group_keep(&kept) == EINVAL && kept == nullptr, "a part of a group");
    rank.expect_ok(nupa_ccl_group_end(nullptr), "the outer one has it");
    // One of nothing.
    rank.expect_ok(nupa_ccl_group_start(), "group_start");
    rank.expect_ok(nupa_ccl_group_keep(&kept), "group_keep");
    rank.expect_ok(nupa_ccl_start(kept, nullptr), "start");
    rank.expect_ok(nupa_ccl_persistent_free(kept), "free");
  });
  EXPECT_EQ(endings, all_well(2));
}

}  // namespace
}  // namespace nupa::ccl
