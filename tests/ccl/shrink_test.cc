// SPDX-License-Identifier: Apache-2.0
/// nupa_ccl_comm_shrink(): the ranks that are left make a communicator and go on.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "job.h"
#include "../support/sanitizers.h"

namespace nupa::ccl {
namespace {

/// Sums `value` of all ranks; *error: 0, or the error of the call.
int64_t sum(nupa_ccl_comm* comm, int64_t value, int* error) {
  int64_t all = 0;
  *error = nupa_ccl_all_reduce(&value, &all, 1, NUPA_CCL_INT64, NUPA_CCL_SUM, comm, nullptr);
  return all;
}

uint32_t size_of(Rank& rank, nupa_ccl_comm* comm) {
  uint32_t size = 0;
  rank.expect_ok(nupa_ccl_comm_size(comm, &size), "size");
  return size;
}

/// Calls operations until one fails.
void use_until_it_ends(nupa_ccl_comm* comm) {
  std::vector<float> data(300'000, 1);
  int error = 0;
  while (error == 0)
    error = nupa_ccl_all_reduce(data.data(), data.data(), data.size(), NUPA_CCL_FLOAT32, NUPA_CCL_MAX, comm, nullptr);
}

/// Expects that `left` has these ranks of the world, in this order.
void expect_left(Rank& rank, nupa_ccl_comm* left, const std::vector<uint32_t>& members) {
  rank.expect(size_of(rank, left) == members.size(), "how many are left: " + std::to_string(size_of(rank, left)));
  uint32_t place = 0;
  rank.expect_ok(nupa_ccl_comm_rank(left, &place), "rank");
  rank.expect(members[place] == rank.rank(), "which one this is: " + std::to_string(place));
  std::vector<uint32_t> all(members.size());
  const uint32_t own = rank.rank();
  for (int turn = 0; turn < 20; ++turn) {
    rank.expect_ok(nupa_ccl_all_gather(&own, all.data(), 1, NUPA_CCL_UINT32, left, nullptr), "all_gather");
    rank.expect(all == members, "the ranks that are left");
  }
}

/// Destroys the old communicator, if it is not the world.
nupa_ccl_comm* shrink(Rank& rank, nupa_ccl_comm* comm) {
  nupa_ccl_comm* left = nullptr;
  rank.expect_ok(nupa_ccl_comm_shrink(comm, &left), "shrink");
  if (comm != rank.world()) rank.expect_ok(nupa_ccl_comm_destroy(comm), "destroy");
  return left;
}

Endings endings_of(uint32_t ranks, const std::vector<uint32_t>& killed) {
  Endings endings = all_well(ranks);
  for (const uint32_t rank : killed) endings[rank] = -SIGKILL;
  return endings;
}

/// Microseconds after which slow ranks, too, have returned from the call that this rank returned from.
constexpr unsigned kMoment = 100'000;

/// Kills this process after `us` microseconds.
void die_soon(unsigned us) {
  std::thread([us] {
    usleep(us);  // sleep: the process dies after that time
    kill(getpid(), SIGKILL);
  }).detach();
}

TEST(CclShrink, Training_OneOfFourRanksIsKilled_ThreeFinish) {
  // Linear regression by gradient descent: each rank has its own samples of one line.
  const auto endings = run_job(4, [](Rank& rank) {
    constexpr int kSteps = 400;
    constexpr int kSamples = 64;
    constexpr size_t kPadding = 200'000;  // an all_reduce takes long enough to be killed in
    std::mt19937 random(rank.rank());
    std::uniform_real_distribution<float> at(-1, 1);
    std::vector<std::pair<float, float>> samples;
    for (int i = 0; i < kSamples; ++i) {
      const float x = at(random);
      samples.emplace_back(x, 3 * x - 2);
    }
    nupa_ccl_comm* comm = rank.world();
    float weights[2] = {0, 0};
    std::vector<float> gradient(2 + kPadding);
    for (int step = 0; step < kSteps; ++step) {
      if (rank.rank() == 2 && step == 50) die_soon(300);
      std::fill(gradient.begin(), gradient.end(), 0.0F);
      for (const auto& [x, y] : samples) {
        const float error = weights[0] * x + weights[1] - y;
        gradient[0] += 2 * error * x / kSamples;
        gradient[1] += 2 * error / kSamples;
      }
      const int error = nupa_ccl_all_reduce(gradient.data(), gradient.data(), gradient.size(), NUPA_CCL_FLOAT32,
                                            NUPA_CCL_AVERAGE, comm, nullptr);
      if (error != 0) {
        rank.expect(error == ECONNRESET && comm == rank.world(), "why a step has failed");
        comm = shrink(rank, comm);
        // Ranks may be a step apart: those that have done this step send their weights.
        struct {
          double done, sum[2];
        } state{static_cast<double>(step), {weights[0], weights[1]}}, first{};
        rank.expect_ok(nupa_ccl_all_reduce(&state.done, &first.done, 1, NUPA_CCL_FLOAT64, NUPA_CCL_MAX, comm, nullptr),
                       "which step");
        const bool has = first.done == state.done;
        double mine[3] = {has ? 1.0 : 0.0, has ? state.sum[0] : 0, has ? state.sum[1] : 0};
        rank.expect_ok(nupa_ccl_all_reduce(mine, mine, 3, NUPA_CCL_FLOAT64, NUPA_CCL_SUM, comm, nullptr), "weights");
        weights[0] = static_cast<float>(mine[1] / mine[0]);
        weights[1] = static_cast<float>(mine[2] / mine[0]);
        step = static_cast<int>(first.done) - 1;
        continue;
      }
      weights[0] -= 0.2F * gradient[0];
      weights[1] -= 0.2F * gradient[1];
    }
    expect_left(rank, comm, {0, 1, 3});
    rank.expect(std::abs(weights[0] - 3) < 0.01 && std::abs(weights[1] + 2) < 0.01, "what was learned");
    float least[2];
    rank.expect_ok(nupa_ccl_all_reduce(weights, least, 2, NUPA_CCL_FLOAT32, NUPA_CCL_MIN, comm, nullptr), "min");
    rank.expect(least[0] == weights[0] && least[1] == weights[1], "all have the same weights");
    rank.expect_ok(nupa_ccl_comm_destroy(comm), "destroy");
  });
  EXPECT_EQ(endings, endings_of(4, {2}));
}

TEST(CclShrink, Shrink_TwoRanksDieAndAThirdLater_OthersGoOn) {
  const auto endings = run_job(6, [](Rank& rank) {
    int error = 0;
    rank.expect(sum(rank.world(), 1, &error) == 6 && error == 0, "sum of all");
    if (rank.rank() == 0 || rank.rank() == 4) die_soon(kMoment);
    use_until_it_ends(rank.world());
    nupa_ccl_comm* left = shrink(rank, rank.world());
    // If one of the two died later than the other, the new communicator may still have it.
    while (size_of(rank, left) > 4) {
      use_until_it_ends(left);
      left = shrink(rank, left);
    }
    expect_left(rank, left, {1, 2, 3, 5});
    if (rank.rank() == 3) die_soon(kMoment);
    use_until_it_ends(left);
    left = shrink(rank, left);
    expect_left(rank, left, {1, 2, 5});
    rank.expect_ok(nupa_ccl_comm_destroy(left), "destroy");
  });
  EXPECT_EQ(endings, endings_of(6, {0, 3, 4}));
}

TEST(CclShrink, Shrink_AnotherRankDiesMeanwhile_OthersGoOn) {
  const int kLimitSeconds = test::kSanitized ? 120 : 20;  // of what takes a tenth of a second
  for (unsigned turn = 0; turn < (test::kSanitized ? 3 : 10); ++turn) {
    const auto endings = run_job(
        5,
        [turn](Rank& rank) {
          nupa_ccl_barrier(rank.world(), nullptr);  // a slow rank sees in it that a rank died
          if (rank.rank() == 1) die_soon(5000);
          use_until_it_ends(rank.world());
          if (rank.rank() == 3) die_soon(turn * 150);
          nupa_ccl_comm* left = shrink(rank, rank.world());
          while (size_of(rank, left) > 3) {
            use_until_it_ends(left);
            left = shrink(rank, left);
          }
          expect_left(rank, left, {0, 2, 4});
          rank.expect_ok(nupa_ccl_comm_destroy(left), "destroy");
        },
        kLimitSeconds);
    ASSERT_EQ(endings, endings_of(5, {1, 3})) << turn;
  }
}

TEST(CclShrink, Shrink_OfARankThatWasLate_FailsWithEconnaborted) {
  setenv("NUPA_CCL_TIMEOUT", "1", 1);
  const Signal decided;
  const Signal asked;
  const auto endings = run_job(3, [&](Rank& rank) {
    int error = 0;
    rank.expect(sum(rank.world(), 1, &error) == 3 && error == 0, "sum of all");
    nupa_ccl_comm* left = nullptr;
    if (rank.rank() == 1) {
      for (int other = 0; other < 2; ++other) decided.take(rank);
      sum(rank.world(), 1, &error);
      rank.expect(error == ETIMEDOUT, "the error of the rank that hung");
      rank.expect(nupa_ccl_comm_shrink(rank.world(), &left) == ECONNABORTED && left == nullptr, "it is left out");
      for (int other = 0; other < 2; ++other) asked.give();
      return;
    }
    use_until_it_ends(rank.world());
    left = shrink(rank, rank.world());
    expect_left(rank, left, {0, 2});
    decided.give();
    asked.take(rank);  // the late rank asks the others
    rank.expect_ok(nupa_ccl_comm_destroy(left), "destroy");
  });
  unsetenv("NUPA_CCL_TIMEOUT");
  EXPECT_EQ(endings, all_well(3));
}

/// As when a machine is suspended: the ranks have not read yet what the others sent meanwhile.
TEST(CclShrink, Shrink_RanksWereStopped_KeepsThem) {
  setenv("NUPA_CCL_TIMEOUT", "1", 1);
  const Signal gathered;
  const auto endings = run_job(3, [&](Rank& rank) {
    const int32_t own = getpid();
    std::vector<int32_t> pids(3);
    rank.expect_ok(nupa_ccl_all_gather(&own, pids.data(), 1, NUPA_CCL_INT32, rank.world(), nullptr), "all_gather");
    if (rank.rank() == 1) {
      for (int others = 0; others < 2; ++others) gathered.take(rank);
      if (fork() != 0) kill(getpid(), SIGKILL);
      // sleep: then rank 0 waits for rank 2's message, and rank 2 has not sent it yet
      usleep(300'000);
      for (const int signal : {SIGSTOP, SIGCONT}) {
        kill(pids[0], signal);
        kill(pids[2], signal);
        if (signal == SIGSTOP) usleep(1'500'000);  // sleep: the two are stopped for so long
      }
      _exit(0);
    }
    gathered.give();
    use_until_it_ends(rank.world());
    if (rank.rank() == 2) usleep(500'000);  // sleep: rank 2 is late
    nupa_ccl_comm* left = shrink(rank, rank.world());
    expect_left(rank, left, {0, 2});
    rank.expect_ok(nupa_ccl_comm_destroy(left), "destroy");
  });
  unsetenv("NUPA_CCL_TIMEOUT");
  EXPECT_EQ(endings, endings_of(3, {1}));
}

TEST(CclShrink, Shrink_AllRanksLive_KeepsAllRanks) {
  const auto endings = run_job(3, [](Rank& rank) {
    nupa_ccl_comm* left = shrink(rank, rank.world());
    expect_left(rank, left, {0, 1, 2});
    nupa_ccl_comm* again = shrink(rank, rank.world());
    expect_left(rank, again, {0, 1, 2});
    int error = 0;
    rank.expect(sum(rank.world(), 1, &error) == 3 && error == 0, "the old one is as before");
    rank.expect_ok(nupa_ccl_comm_destroy(left), "destroy");
    rank.expect_ok(nupa_ccl_comm_destroy(again), "destroy");
    rank.expect(nupa_ccl_comm_shrink(nullptr, &left) == EINVAL, "of none");
  });
  EXPECT_EQ(endings, all_well(3));
}

}  // namespace
}  // namespace nupa::ccl
