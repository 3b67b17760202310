// SPDX-License-Identifier: Apache-2.0
/// NUPA_CCL_CHECK=1: every rank reports a mismatch of calls, and no rank hangs.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "job.h"

namespace nupa::ccl {
namespace {

constexpr nupa_ccl_type kFloat = NUPA_CCL_FLOAT32;
/// Longer than any test's arrays.
constexpr size_t kRoom = 4096;

int64_t factor = 2;

/// One call of a rank in a kind of mismatch.
using Play = std::function<int(nupa_ccl_comm* comm, uint32_t rank, uint32_t ranks, float* in, float* out)>;

struct Mismatch {
  const char* name;
  Play right;
  Play wrong;                      ///< the last rank's call
  std::vector<std::string> texts;  ///< parts of every rank's error text; %L is the last rank
};

int reduce_all(nupa_ccl_comm* comm, float* in, float* out, size_t count, nupa_ccl_type type, nupa_ccl_op op) {
  return nupa_ccl_all_reduce(in, out, count, type, op, comm, nullptr);
}

std::vector<size_t> offsets_of(uint32_t ranks) {
  std::vector<size_t> offsets(ranks);
  for (uint32_t rank = 0; rank < ranks; ++rank) offsets[rank] = rank * 16;
  return offsets;
}

int gatherv(nupa_ccl_comm* comm, uint32_t ranks, float* in, float* out, size_t mine) {
  const std::vector<size_t> counts(ranks, 5);
  return nupa_ccl_gatherv(in, mine, out, counts.data(), offsets_of(ranks).data(), kFloat, 0, comm, nullptr);
}
int scatterv(nupa_ccl_comm* comm, uint32_t ranks, float* in, float* out, size_t mine) {
  const std::vector<size_t> counts(ranks, 5);
  return nupa_ccl_scatterv(in, counts.data(), offsets_of(ranks).data(), out, mine, kFloat, 0, comm, nullptr);
}
/// `of_first`: rank 0's count, as this rank has it.
int all_gatherv(nupa_ccl_comm* comm, uint32_t ranks, float* in, float* out, size_t of_first) {
  std::vector<size_t> counts(ranks, 5);
  counts[0] = of_first;
  return nupa_ccl_all_gatherv(in, out, counts.data(), offsets_of(ranks).data(), kFloat, comm, nullptr);
}
int reduce_scatterv(nupa_ccl_comm* comm, uint32_t ranks, float* in, float* out, size_t of_first) {
  std::vector<size_t> counts(ranks, 5);
  counts[0] = of_first;
  return nupa_ccl_reduce_scatterv(in, out, counts.data(), kFloat, NUPA_CCL_SUM, comm, nullptr);
}
int all_to_allv(nupa_ccl_comm* comm, uint32_t ranks, float* in, float* out, size_t to_first) {
  std::vector<size_t> given(ranks, 5);
  const std::vector<size_t> taken(ranks, 5);
  given[0] = to_first;
  const std::vector<size_t> offsets = offsets_of(ranks);
  return nupa_ccl_all_to_allv(in, given.data(), offsets.data(), out, taken.data(), offsets.data(), kFloat, comm,
                              nullptr);
}

/// As `play`, of a call that needs neither rank nor ranks.
template <class F>
Play of(F play) {
  return [play](nupa_ccl_comm* comm, uint32_t, uint32_t, float* in, float* out) { return play(comm, in, out); };
}
template <class F>
Play with(F play, size_t count) {
  return [play, count](nupa_ccl_comm* comm, uint32_t, uint32_t ranks, float* in, float* out) {
    return play(comm, ranks, in, out, count);
  };
}
Play summing(size_t count, nupa_ccl_type type = kFloat, nupa_ccl_op op = NUPA_CCL_SUM) {
  return of([=](auto* comm, float* in, float* out) { return reduce_all(comm, in, out, count, type, op); });
}
Play broadcast(uint32_t root) {
  return of([=](auto* comm, float* in, float*) { return nupa_ccl_broadcast(in, 10, kFloat, root, comm, nullptr); });
}
Play split(bool by_dup) {
  return of([=](auto* comm, float*, float*) {
    nupa_ccl_comm* made = nullptr;
    return by_dup ? nupa_ccl_comm_dup(comm, &made) : nupa_ccl_comm_split(comm, 0, 0, &made);
  });
}
Play by_factor() {
  return of([](auto* comm, float* in, float* out) {
    nupa_ccl_op op = 0;
    const int error = nupa_ccl_op_create_premultiplied_sum(&factor, kFloat, &op);
    return error != 0 ? error : reduce_all(comm, in, out, 10, kFloat, op);
  });
}
Play by_function() {
  return of([](auto* comm, float* in, float* out) {
    nupa_ccl_op op = 0;
    const int error = nupa_ccl_op_create([](void*, const void*, size_t, int, void*) {}, nullptr, &op);
    return error != 0 ? error : reduce_all(comm, in, out, 10, kFloat, op);
  });
}

const Play kBarrier = of([](auto* comm, float*, float*) { return nupa_ccl_barrier(comm, nullptr); });
const Play kGather =
    of([](auto* comm, float* in, float* out) { return nupa_ccl_gather(in, out, 5, kFloat, 0, comm, nullptr); });

const std::vector<Mismatch>& mismatches() {
  static const std::vector<Mismatch> all = {
      {"count",
       summing(101),
       summing(100),
       {"rank %L called all_reduce of 100 float32, sum (its 2nd), rank 0 all_reduce of 101 float32, sum"}},
      {"operation",
       summing(100),
       kBarrier,
       {"rank %L called barrier (its 2nd), rank 0 all_reduce of 100 float32, sum"}},
      {"type",
       summing(100),
       summing(100, NUPA_CCL_INT32),
       {"rank %L called all_reduce of 100 int32, sum (its 2nd), rank 0 all_reduce of 100 float32, sum"}},
      {"operator", summing(100), summing(100, kFloat, NUPA_CCL_MAX), {"float32, max (its 2nd), rank 0", "32, sum"}},
      {"factor", summing(10), by_factor(), {"rank %L", "premultiplied sum (its 2nd)", "rank 0"}},
      {"function", summing(10), by_function(), {"rank %L", "a user-defined operator (its 2nd)", "rank 0"}},
      {"root",
       broadcast(0),
       broadcast(1),
       {"rank %L called broadcast of 10 float32, root 1 (its 2nd), rank 0 broadcast of 10 float32, root 0"}},
      {"split", split(false), split(true), {"rank %L called comm_dup (its 2nd), rank 0 comm_split"}},
      {"split-or-operation", split(false), summing(100), {"rank %L called all_reduce of 100", "rank 0 comm_split"}},
      {"list-or-none",
       kGather,
       with(gatherv, 5),
       {"rank %L called gatherv of float32, root 0 (its 2nd), rank 0 gather of 5"}},
      {"gatherv",
       with(gatherv, 5),
       with(gatherv, 4),
       {"gatherv of float32, root 0 (the 2nd): rank %L sends 4 float32 to rank 0, which expects 5 float32"}},
      {"scatterv",
       with(scatterv, 5),
       with(scatterv, 7),
       {"scatterv of float32, root 0 (the 2nd): rank 0 sends 5 float32 to rank %L, which expects 7 float32"}},
      {"all_gatherv",
       with(all_gatherv, 5),
       with(all_gatherv, 6),
       {"rank %L called all_gatherv of float32 (the 2nd) with 6 float32 of rank 0, rank 0 with 5 float32"}},
      {"reduce_scatterv",
       with(reduce_scatterv, 5),
       with(reduce_scatterv, 0),
       {"rank %L called reduce_scatterv of float32, sum (the 2nd) with 0 float32 of rank 0, rank 0 with 5 float32"}},
      {"all_to_allv",
       with(all_to_allv, 5),
       with(all_to_allv, 1),
       {"all_to_allv of float32 (the 2nd): rank %L sends 1 float32 to rank 0, which expects 5 float32"}},
  };
  return all;
}

std::string with_rank(std::string text, uint32_t rank) {
  if (const size_t at = text.find("%L"); at != std::string::npos) text.replace(at, 2, std::to_string(rank));
  return text;
}

/// All ranks make two calls. The last rank's second call is wrong.
void play(Rank& rank, const Mismatch& mismatch) {
  const uint32_t last = rank.ranks() - 1;
  std::vector<float> in(kRoom, 1);
  std::vector<float> out(kRoom, -1);
  const auto call = [&](const Play& one) {
    return one(rank.world(), rank.rank(), rank.ranks(), in.data(), out.data());
  };
  rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
  const int error = call(rank.rank() == last ? mismatch.wrong : mismatch.right);
  const std::string text = nupa_ccl_error_text();
  rank.expect(error == EPROTO, std::string(mismatch.name) + " ended by " + std::strerror(error) + ": " + text);
  for (const std::string& expected : mismatch.texts)
    rank.expect(text.find(with_rank(expected, last)) != std::string::npos, std::string(mismatch.name) + ": " + text);
  for (const float value : out) rank.expect(value == -1, std::string(mismatch.name) + " has moved data");
  uint32_t who = 0;
  int why = 0;
  rank.expect_ok(nupa_ccl_comm_error(rank.world(), &why, &who), "error");
  rank.expect(why == EPROTO && who == last, std::string(mismatch.name) + " names " + std::to_string(who));
  rank.expect(nupa_ccl_barrier(rank.world(), nullptr) == EPROTO && text == nupa_ccl_error_text(), "a later call");
}

/// Runs over shared memory, by messages in shared memory, and by packets.
class CclChecking : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    setenv("NUPA_CCL_CHECK", "1", 1);
    // A rank that hangs is reported before the test's own limit.
    setenv("NUPA_CCL_TIMEOUT", "20", 1);
    if (std::string(GetParam()) == "messages") setenv("NUPA_CCL_MAPPED_RANKS", "1", 1);
    if (std::string(GetParam()) == "packets") setenv("NUPA_TRANSPORT", "roce", 1);
  }
  void TearDown() override {
    for (const char* const name : {"NUPA_CCL_CHECK", "NUPA_CCL_TIMEOUT", "NUPA_CCL_MAPPED_RANKS"}) unsetenv(name);
    if (std::string(GetParam()) == "packets") unsetenv("NUPA_TRANSPORT");
  }
};
INSTANTIATE_TEST_SUITE_P(Provider, CclChecking, ::testing::Values("memory", "messages", "packets"),
                         [](const auto& about) { return std::string(about.param); });

TEST_P(CclChecking, Mismatch_OfEachKind_IsNamedByAllRanks) {
  for (const uint32_t ranks : {2u, 4u})
    for (const Mismatch& mismatch : mismatches())
      EXPECT_EQ(run_job(ranks, [&](Rank& rank) { play(rank, mismatch); }), all_well(ranks))
          << mismatch.name << " at " << ranks << " ranks";
}

TEST_P(CclChecking, Destroy_InPlaceOfABarrier_IsAMismatch) {
  EXPECT_EQ(
      run_job(4,
              [](Rank& rank) {
                nupa_ccl_comm* comm = nullptr;
                rank.expect_ok(nupa_ccl_comm_dup(rank.world(), &comm), "dup");
                const int error = rank.rank() == 2 ? nupa_ccl_comm_destroy(comm) : nupa_ccl_barrier(comm, nullptr);
                const std::string text = nupa_ccl_error_text();
                rank.expect(error == EPROTO && text == "rank 2 called comm_destroy (its 1st), rank 0 barrier", text);
                if (rank.rank() != 2) rank.expect_ok(nupa_ccl_comm_destroy(comm), "destroy");
                rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "the world goes on");
              }),
      all_well(4));
}

TEST_P(CclChecking, Mismatch_OfSeveralRanks_CountsThem) {
  EXPECT_EQ(run_job(4,
                    [](Rank& rank) {
                      float in[4] = {1, 2, 3, 4};
                      float out[16];
                      nupa_ccl_request* first = nullptr;
                      nupa_ccl_request* second = nullptr;
                      const auto sum = [&](nupa_ccl_request** request) {
                        return nupa_ccl_all_reduce(in, out, 1, kFloat, NUPA_CCL_SUM, rank.world(), request);
                      };
                      const auto gather = [&](nupa_ccl_request** request) {
                        return nupa_ccl_all_gather(in, out, 1, kFloat, rank.world(), request);
                      };
                      const bool other = rank.rank() == 1 || rank.rank() == 3;
                      rank.expect_ok(other ? gather(&first) : sum(&first), "begin");
                      rank.expect_ok(other ? sum(&second) : gather(&second), "begin");
                      const int error = nupa_ccl_wait(first);
                      const std::string text = nupa_ccl_error_text();
                      rank.expect(error == EPROTO && text ==
                                                         "rank 1 called all_gather of 1 float32 (its 1st), rank 0 "
                                                         "all_reduce of 1 float32, sum; 1 more differ from rank 0",
                                  text);
                      rank.expect(nupa_ccl_wait(second) == EPROTO, "what is queued behind it");
                    }),
            all_well(4));
}

TEST_P(CclChecking, MatchingCalls_OfEachKind_Succeed) {
  EXPECT_EQ(run_job(3,
                    [](Rank& rank) {
                      std::vector<float> in(kRoom, 1);
                      std::vector<float> out(kRoom, -1);
                      for (int turn = 0; turn < 10; ++turn)
                        for (const Mismatch& mismatch : mismatches()) {
                          const int error =
                              mismatch.right(rank.world(), rank.rank(), rank.ranks(), in.data(), out.data());
                          rank.expect_ok(error, mismatch.name);
                        }
                      // A factor for each rank, and in place on one rank only, are no mismatch.
                      const float own = static_cast<float>(rank.rank() + 1);
                      nupa_ccl_op op = 0;
                      rank.expect_ok(nupa_ccl_op_create_premultiplied_sum(&own, kFloat, &op), "op");
                      rank.expect_ok(
                          reduce_all(rank.world(), in.data(), rank.rank() == 0 ? in.data() : out.data(), 9, kFloat, op),
                          "own factors");
                      rank.expect((rank.rank() == 0 ? in : out)[8] == 6, "the sum");
                    }),
            all_well(3));
}

TEST_P(CclChecking, RankThatNeverCalls_AfterTheTimeout_IsNamed) {
  setenv("NUPA_CCL_TIMEOUT", "1", 1);
  const Signal ended;
  EXPECT_EQ(run_job(3,
                    [&](Rank& rank) {
                      rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
                      for (int other = 0; rank.rank() == 1 && other < 2; ++other) ended.take(rank);
                      const int error = nupa_ccl_barrier(rank.world(), nullptr);
                      const std::string text = nupa_ccl_error_text();
                      rank.expect(error == ETIMEDOUT && text.find("rank 1 (process ") == 0, text);
                      if (rank.rank() != 1) ended.give();
                    }),
            all_well(3));
}

TEST_P(CclChecking, Receive_OfAnotherType_NamesBothTypes) {
  EXPECT_EQ(
      run_job(
          2,
          [](Rank& rank) {
            int32_t value = 7;
            for (const bool early : {false, true}) {
              // Once as the message arrives, and once after it was kept.
              if (rank.rank() == 0) {
                rank.expect_ok(nupa_ccl_send(&value, 1, NUPA_CCL_INT32, 1, 3, rank.world(), nullptr), "send");
                rank.expect_ok(nupa_ccl_send(&value, 1, NUPA_CCL_INT32, 1, 4, rank.world(), nullptr), "send");
                continue;
              }
              if (early)
                rank.expect_ok(nupa_ccl_recv(&value, 1, NUPA_CCL_INT32, 0, 4, rank.world(), nullptr, nullptr), "recv");
              const int error = nupa_ccl_recv(&value, 1, kFloat, 0, 3, rank.world(), nullptr, nullptr);
              const std::string text = nupa_ccl_error_text();
              rank.expect(error == EPROTO && text == "rank 0 sent int32 with tag 3, rank 1 receives float32", text);
              if (!early)
                rank.expect_ok(nupa_ccl_recv(&value, 1, NUPA_CCL_INT32, 0, 4, rank.world(), nullptr, nullptr), "recv");
            }
            rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "the communicator goes on");
          }),
      all_well(2));
}

TEST_P(CclChecking, Check_OnOneRankOnly_FailsWithEproto) {
  unsetenv("NUPA_CCL_CHECK");
  EXPECT_EQ(run_job(2,
                    [](Rank& rank) {
                      if (rank.rank() == 1) setenv("NUPA_CCL_CHECK", "1", 1);
                      const int error = nupa_ccl_barrier(rank.world(), nullptr);
                      rank.expect(error == EPROTO && std::strstr(nupa_ccl_error_text(), "NUPA_CCL_CHECK") != nullptr,
                                  nupa_ccl_error_text());
                    }),
            all_well(2));
}

TEST_P(CclChecking, CheckAndDeterministic_OnDifferentRanks_FailWithEproto) {
  EXPECT_EQ(run_job(2,
                    [](Rank& rank) {
                      if (rank.rank() == 1) {
                        unsetenv("NUPA_CCL_CHECK");
                        setenv("NUPA_CCL_DETERMINISTIC", "1", 1);
                      }
                      const int error = nupa_ccl_barrier(rank.world(), nullptr);
                      rank.expect(error == EPROTO && std::strstr(nupa_ccl_error_text(), "other settings") != nullptr,
                                  nupa_ccl_error_text());
                    }),
            all_well(2));
}

}  // namespace
}  // namespace nupa::ccl
