// SPDX-License-Identifier: Apache-2.0
/// Communicators: how they are made, split and destroyed, and what they report when a rank fails.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "job.h"
#include "../support/sanitizers.h"

namespace nupa::ccl {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

int64_t sum(nupa_ccl_comm* comm, int64_t mine, int* error = nullptr) {
  int64_t result = -1;
  const int ended = nupa_ccl_all_reduce(&mine, &result, 1, NUPA_CCL_INT64, NUPA_CCL_SUM, comm, nullptr);
  if (error != nullptr) *error = ended;
  return result;
}

TEST(CclCommunicators, UniqueId_UsedAgain_MakesFurtherCommunicators) {
  EXPECT_EQ(run_job(3,
                    [](Rank& rank) {
                      for (int i = 0; i < 20; ++i) {
                        nupa_ccl_comm* comm = nullptr;
                        const nupa_ccl_unique_id id = rank.id();
                        rank.expect_ok(nupa_ccl_comm_init_rank(&comm, 3, &id, rank.rank()), "init");
                        rank.expect(sum(comm, rank.rank() + i) == 3 + 3 * i, "sum");
                        rank.expect_ok(nupa_ccl_comm_destroy(comm), "destroy");
                      }
                    }),
            all_well(3));
}

TEST(CclCommunicators, Communicator_OfHundredsOfRanksOnOneHost_ReducesAndGathers) {
  const uint32_t kRanks = test::kSanitized ? 24 : 256;
  EXPECT_EQ(run_job(kRanks,
                    [kRanks](Rank& rank) {
                      for (int i = 0; i < 3; ++i) {
                        int error = 0;
                        const int64_t all = sum(rank.world(), 1, &error);
                        rank.expect_ok(error, "sum");
                        rank.expect(all == kRanks, "sum is " + std::to_string(all));
                      }
                      std::vector<int32_t> all(kRanks);
                      const auto mine = static_cast<int32_t>(rank.rank() * 3);
                      rank.expect_ok(nupa_ccl_all_gather(&mine, all.data(), 1, NUPA_CCL_INT32, rank.world(), nullptr),
                                     "gather");
                      for (uint32_t i = 0; i < kRanks; ++i) rank.expect(all[i] == static_cast<int32_t>(3 * i), "all");
                    }),
            all_well(kRanks));
}

/// The caller goes on as process 1 of a PID namespace. False: the system allows none.
bool enter_pid_namespace() {
  if (unshare(CLONE_NEWPID) != 0) return false;
  const pid_t inside = fork();
  if (inside == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return true;
  }
  int status = -1;
  waitpid(inside, &status, 0);
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE);
}

/// In that namespace rank 0's process number names no process, so CMA by number would fail.
TEST(CclCommunicators, RankInAnotherPidNamespace_Sum_IsRight) {
  const SharedCount refused;
  const auto endings = run_job(2, [&](Rank& rank) {
    if (rank.rank() == 1 && !enter_pid_namespace()) refused.add();
    int error = 0;
    const int64_t all = sum(rank.world(), 1, &error);
    rank.expect_ok(error, "all_reduce");
    rank.expect(all == 2, "sum");
  });
  EXPECT_EQ(endings, all_well(2));
  if (refused.now() != 0) GTEST_SKIP() << "PID namespaces are not allowed";
}

TEST(CclCommunicators, Split_ByColorAndKey_GroupsAndOrdersRanks) {
  for (const uint32_t ranks : {1u, 2u, 5u, 8u}) {
    const auto endings = run_job(ranks, [](Rank& rank) {
      const uint32_t self = rank.rank();
      const uint32_t all = rank.ranks();
      nupa_ccl_comm* half = nullptr;
      // The last of them is the first one there.
      rank.expect_ok(nupa_ccl_comm_split(rank.world(), self % 2, -static_cast<int64_t>(self), &half), "split");
      uint32_t place = 0;
      uint32_t size = 0;
      rank.expect_ok(nupa_ccl_comm_rank(half, &place), "rank");
      rank.expect_ok(nupa_ccl_comm_size(half, &size), "size");
      rank.expect(size == (all + 1 - self % 2) / 2, "size of a half");
      rank.expect(place == size - 1 - self / 2, "place in a half");
      int64_t expected = 0;
      for (uint32_t other = self % 2; other < all; other += 2) expected += other;
      // Both at work at the same time.
      for (int i = 0; i < 100; ++i) {
        rank.expect(sum(half, self) == expected, "sum of a half");
        rank.expect(sum(rank.world(), 1) == all, "sum of all");
      }
      nupa_ccl_comm* again = nullptr;
      rank.expect_ok(nupa_ccl_comm_dup(half, &again), "dup");
      rank.expect(sum(again, self) == expected, "sum of the other half");
      rank.expect_ok(nupa_ccl_comm_destroy(half), "destroy");
      rank.expect(sum(again, 2) == 2 * size, "sum after the first is gone");
      rank.expect_ok(nupa_ccl_comm_destroy(again), "destroy");
      nupa_ccl_comm* none = nullptr;
      rank.expect_ok(nupa_ccl_comm_split(rank.world(), self == 0 ? -1 : 0, 0, &none), "split without one");
      rank.expect((none == nullptr) == (self == 0), "without the one");
      if (none != nullptr) rank.expect(sum(none, 1) == all - 1, "sum without the one");
      rank.expect_ok(nupa_ccl_comm_destroy(none), "destroy");
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

TEST(CclCommunicators, Split_EqualKeys_KeepTheOrderOfTheRanks) {
  EXPECT_EQ(run_job(5,
                    [](Rank& rank) {
                      const auto place_in = [&](nupa_ccl_comm* comm) {
                        uint32_t place = UINT32_MAX;
                        rank.expect_ok(nupa_ccl_comm_rank(comm, &place), "rank");
                        return place;
                      };
                      nupa_ccl_comm* made = nullptr;
                      rank.expect_ok(nupa_ccl_comm_dup(rank.world(), &made), "dup");
                      rank.expect(place_in(made) == rank.rank(), "a dup has the same ranks");
                      rank.expect_ok(nupa_ccl_comm_destroy(made), "destroy");
                      // 0 and 4 have the larger key, 1 to 3 the same smaller one.
                      const bool is_outer = rank.rank() == 0 || rank.rank() == 4;
                      const int64_t largest = INT64_MAX;
                      rank.expect_ok(nupa_ccl_comm_split(rank.world(), largest, is_outer ? largest : INT64_MIN, &made),
                                     "split");
                      const uint32_t places[] = {3, 0, 1, 2, 4};
                      rank.expect(place_in(made) == places[rank.rank()],
                                  "the place is " + std::to_string(place_in(made)));
                      rank.expect_ok(nupa_ccl_comm_destroy(made), "destroy");
                      for (const int64_t color : {int64_t{-1}, int64_t{-5}, INT64_MIN}) {
                        rank.expect_ok(nupa_ccl_comm_split(rank.world(), color, 0, &made), "split");
                        rank.expect(made == nullptr, "a negative color is none");
                      }
                    }),
            all_well(5));
}

TEST(CclCommunicators, BarrierAndDestroy_OneRankIsLate_ReturnAfterAllRanksCalled) {
  for (const uint32_t ranks : {2u, 3u, 5u}) {
    const SharedCount came;
    const SharedCount went;
    EXPECT_EQ(run_job(ranks,
                      [&](Rank& rank) {
                        check_barriers(rank, came);
                        for (uint32_t turn = 1; turn <= 3; ++turn) {
                          // sleep: one rank after the other is late
                          if (turn % rank.ranks() == rank.rank()) usleep(1000);
                          went.add();
                          rank.finish();
                          rank.expect(went.now() >= turn * rank.ranks(), "destroyed before all had come");
                          rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
                        }
                      }),
              all_well(ranks));
  }
}

TEST(CclCommunicators, Init_InvalidEnvironmentVariable_FailsWithItsName) {
  EXPECT_EQ(run_job(1,
                    [](Rank& rank) {
                      setenv("NUPA_CCL_TIMEOUT", "soon", 1);
                      nupa_ccl_comm* comm = nullptr;
                      const nupa_ccl_unique_id id = rank.id();
                      rank.expect(nupa_ccl_comm_init_rank(&comm, 1, &id, 0) == EINVAL && comm == nullptr, "init");
                      rank.expect(std::strstr(nupa_ccl_error_text(), "NUPA_CCL_TIMEOUT") != nullptr,
                                  nupa_ccl_error_text());
                      unsetenv("NUPA_CCL_TIMEOUT");
                    }),
            all_well(1));
}

/// Expects that the communicator ended within seconds with this error, and that the error names this rank.
void expect_named(Rank& rank, int error, int expected_error, uint32_t expected_rank, int64_t began, int64_t within_s) {
  rank.expect(error == expected_error, "ended by " + std::string(std::strerror(error)));
  rank.expect(base::now_ns() - began < within_s * kNsPerSecond, "took too long");
  int reported = 0;
  uint32_t who = 0;
  rank.expect_ok(nupa_ccl_comm_error(rank.world(), &reported, &who), "error");
  rank.expect(reported == expected_error && who == expected_rank, "named rank " + std::to_string(who));
  rank.expect(std::string(nupa_ccl_error_text()).find("rank " + std::to_string(expected_rank)) != std::string::npos,
              std::string("the text is: ") + nupa_ccl_error_text());
  // Each later call fails at once.
  rank.expect(nupa_ccl_barrier(rank.world(), nullptr) == expected_error, "a later call");
}

TEST(CclFaults, Destroy_AnotherRankDiesBeforeItsOwn_FailsWithEconnreset) {
  const Signal about_to_destroy;
  const auto endings = run_job(2, [&](Rank& rank) {
    rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
    if (rank.rank() == 1) {
      about_to_destroy.take(rank);
      usleep(50'000);  // sleep: the other one waits in its call by now, or fails there at once
      kill(getpid(), SIGKILL);
    }
    about_to_destroy.give();
    const int error = nupa_ccl_comm_destroy(rank.world());
    rank.expect(error == ECONNRESET, std::string("destroyed: ") + std::strerror(error));
    _exit(0);
  });
  EXPECT_EQ(endings, (Endings{0, -SIGKILL}));
}

TEST(CclFaults, KilledRank_DuringSums_IsNamedByAllOthers) {
  for (const uint32_t ranks : {2u, 4u, 7u}) {
    const uint32_t victim = ranks / 2;
    const auto endings = run_job(ranks, [victim](Rank& rank) {
      int error = 0;
      // The victim may die while others still return from this one: then it may fail as the next one does.
      const int64_t first = sum(rank.world(), 1, &error);
      rank.expect(error != 0 || first == rank.ranks(), "sum");
      if (rank.rank() == victim) kill(getpid(), SIGKILL);
      const int64_t began = base::now_ns();
      while (error == 0) sum(rank.world(), 1, &error);
      expect_named(rank, error, ECONNRESET, victim, began, 10);
    });
    Endings expected = all_well(ranks);
    expected[victim] = -SIGKILL;
    EXPECT_EQ(endings, expected) << ranks << " ranks";
  }
}

/// RoCE sends large arrays from where they lie. After an operation has failed, the program may reuse its arrays.
TEST(CclFaults, FailedOperation_Returned_ReadsNoArrayAgain) {
  const auto endings = run_job(3, [](Rank& rank) {
    constexpr size_t kElements = 3 << 20;
    rank.expect(sum(rank.world(), 1) == rank.ranks(), "sum");
    if (rank.rank() == 1) {
      const auto dies = [](void*) -> void* {
        usleep(100'000);  // sleep: the rank dies amid the operations below
        kill(getpid(), SIGKILL);
        return nullptr;
      };
      pthread_t thread;
      rank.expect(pthread_create(&thread, nullptr, dies, nullptr) == 0, "thread");
    }
    int error = 0;
    while (error == 0) {
      std::vector<float> in(kElements, 1);
      std::vector<float> out(kElements);
      error =
          nupa_ccl_all_reduce(in.data(), out.data(), kElements, NUPA_CCL_FLOAT32, NUPA_CCL_SUM, rank.world(), nullptr);
    }
    rank.expect(error == ECONNRESET, "error");
    uint32_t who = 0;
    rank.expect_ok(nupa_ccl_comm_error(rank.world(), &error, &who), "error");
    rank.expect(who == 1, "named rank " + std::to_string(who));
    usleep(500'000);  // sleep: a rank that still sent would send again within that time
  });
  EXPECT_EQ(endings, (Endings{0, -SIGKILL, 0}));
}

TEST(CclFaults, RankThatExits_DuringSums_IsNamedByAllOthers) {
  const auto endings = run_job(3, [](Rank& rank) {
    rank.expect(sum(rank.world(), 1) == rank.ranks(), "sum");
    if (rank.rank() == 1) exit(5);
    int error = 0;
    const int64_t began = base::now_ns();
    while (error == 0) sum(rank.world(), 1, &error);
    expect_named(rank, error, ECONNRESET, 1, began, 10);
  });
  EXPECT_EQ(endings, (Endings{0, 5, 0}));
}

/// A stopped process answers no packets. Its peers see that it lives and retry for longer than to an unreachable host.
TEST(CclFaults, StoppedRank_ContinuedAfterSixSeconds_SumSucceeds) {
  const auto endings = run_job(2, [](Rank& rank) {
    setenv("NUPA_TRANSPORT", "roce", 1);
    rank.expect(sum(rank.world(), 1) == 2, "sum");
    const int32_t own = getpid();
    int32_t pids[2];
    rank.expect_ok(nupa_ccl_all_gather(&own, pids, 1, NUPA_CCL_INT32, rank.world(), nullptr), "all_gather");
    if (rank.rank() == 0) {
      kill(pids[1], SIGSTOP);
      const pid_t waker = fork();
      if (waker == 0) {
        sleep(6);  // sleep: the rank is stopped for so long
        _exit(kill(pids[1], SIGCONT) == 0 ? 0 : 1);
      }
    }
    int error = 0;
    rank.expect(sum(rank.world(), 1, &error) == 2, std::string("sum: ") + nupa_ccl_error_text());
    rank.expect_ok(error, "sum");
  });
  EXPECT_EQ(endings, all_well(2));
}

TEST(CclFaults, HungRank_AfterTheTimeout_IsNamedByAllOthers) {
  setenv("NUPA_CCL_TIMEOUT", "1", 1);
  const Signal ended;
  const auto endings = run_job(3, [&](Rank& rank) {
    rank.expect(sum(rank.world(), 1) == rank.ranks(), "sum");
    const int64_t began = base::now_ns();
    int error = 0;
    if (rank.rank() == 2) {
      for (int other = 0; other < 2; ++other) ended.take(rank);
      // What the others sent before they failed may be enough for one call.
      while (error == 0) sum(rank.world(), 1, &error);
      rank.expect(error == ETIMEDOUT, std::string("the late one: ") + nupa_ccl_error_text());
      return;
    }
    while (error == 0) sum(rank.world(), 1, &error);
    expect_named(rank, error, ETIMEDOUT, 2, began, 10);
    ended.give();
  });
  unsetenv("NUPA_CCL_TIMEOUT");
  EXPECT_EQ(endings, all_well(3));
}

/// In a ring each rank waits for the rank before it. The first rank that times out is the furthest from the stopped
/// one.
TEST(CclFaults, StoppedRank_InARing_IsNamedByAllOthers) {
  constexpr uint32_t kStopped = 3;
  constexpr uint32_t kFirst = 2;
  setenv("NUPA_CCL_MAPPED_RANKS", "1", 1);
  setenv("NUPA_CCL_ALGO", "all_gather=ring", 1);
  for (const bool by_signal : {false, true}) {
    const auto endings = run_job(6, [by_signal](Rank& rank) {
      setenv("NUPA_CCL_TIMEOUT", rank.rank() == kFirst ? "1" : "4", 1);
      const int32_t own = getpid();
      std::vector<int32_t> pids(rank.ranks());
      const auto gather = [&] {
        return nupa_ccl_all_gather(&own, pids.data(), 1, NUPA_CCL_INT32, rank.world(), nullptr);
      };
      rank.expect_ok(gather(), "all_gather");
      rank.expect(sum(rank.world(), 1) == rank.ranks(), "sum");
      if (rank.rank() == kStopped) {
        if (!by_signal) usleep(3'000'000);  // sleep: the rank stays away for so long
        if (by_signal) kill(own, SIGSTOP);
        // A rank that was stopped may have all messages that its first call needs, but not those of the next one.
        const int error = gather();
        rank.expect(by_signal || error == ETIMEDOUT, "the late one");
        rank.expect(gather() != 0, "the late one's next call");
        return;
      }
      const int64_t began = base::now_ns();
      int error = gather();
      if (by_signal && rank.rank() == kFirst) kill(pids[kStopped], SIGCONT);
      // The stopped rank may forward all messages when it continues, before the ranks behind it learn of the timeout.
      if (by_signal && error == 0 && rank.rank() > kStopped) error = gather();
      expect_named(rank, error, ETIMEDOUT, kStopped, began, 10);
    });
    EXPECT_EQ(endings, all_well(6)) << (by_signal ? "by a signal" : "by itself");
  }
  for (const char* name : {"NUPA_CCL_MAPPED_RANKS", "NUPA_CCL_ALGO"}) unsetenv(name);
}

/// In a circle no rank is the cause: each rank names the one that the first timeout named.
TEST(CclFaults, ReceivesInACircle_FirstTimeout_NamesTheSourceOfItsReceive) {
  const auto endings = run_job(3, [](Rank& rank) {
    setenv("NUPA_CCL_TIMEOUT", rank.rank() == 0 ? "1" : "4", 1);
    rank.expect(sum(rank.world(), 1) == rank.ranks(), "sum");
    const int64_t began = base::now_ns();
    float value = 0;
    const uint32_t before = (rank.rank() + 2) % 3;
    const int error = nupa_ccl_recv(&value, 1, NUPA_CCL_FLOAT32, before, 0, rank.world(), nullptr, nullptr);
    expect_named(rank, error, ETIMEDOUT, 2, began, 10);
  });
  EXPECT_EQ(endings, all_well(3));
}

TEST(CclFaults, Abort_OfOneRank_FailsAllWithEcanceled) {
  const auto endings = run_job(4, [](Rank& rank) {
    rank.expect(sum(rank.world(), 1) == rank.ranks(), "sum");
    if (rank.rank() == 3) {
      usleep(100'000);  // sleep: the others are amid operations by then; if they are not, their first one fails
      rank.expect_ok(nupa_ccl_comm_abort(rank.world()), "abort");
    }
    int error = 0;
    const int64_t began = base::now_ns();
    while (error == 0) sum(rank.world(), 1, &error);
    expect_named(rank, error, ECANCELED, 3, began, 10);
  });
  EXPECT_EQ(endings, all_well(4));
}

TEST(CclFaults, Rendezvous_WithMissingRanks_ErrorListsThem) {
  setenv("NUPA_CCL_TIMEOUT", "2", 1);
  const auto endings = run_job(3, [](Rank& rank) {
    if (rank.rank() == 1) return;
    nupa_ccl_comm* comm = nullptr;
    const nupa_ccl_unique_id id = rank.id();
    rank.expect(nupa_ccl_comm_init_rank(&comm, 3, &id, rank.rank()) == ETIMEDOUT, "init");
    const std::string text = nupa_ccl_error_text();
    rank.expect(text.ends_with("missing: rank 1"), text);
  });
  unsetenv("NUPA_CCL_TIMEOUT");
  EXPECT_EQ(endings, all_well(3));
}

}  // namespace
}  // namespace nupa::ccl
