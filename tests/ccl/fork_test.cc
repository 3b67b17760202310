// SPDX-License-Identifier: Apache-2.0
/// Children of ranks: they make communicators of their own, and inherited ones stay their parent's.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <vector>

#include "job.h"
#include "../support/sanitizers.h"

namespace nupa::ccl {
namespace {

/// A child of the rank. One that hangs is killed.
pid_t begin_child(const Rank& rank, const std::function<void()>& body) {
  const pid_t child = fork();
  rank.expect(child >= 0, "fork");
  if (child != 0) return child;
  alarm(kJobLimitSeconds / 2);
  body();
  exit(0);  // as programs end, with what they have inherited
}

void await_child(const Rank& rank, pid_t child) {
  int status = -1;
  rank.expect(waitpid(child, &status, 0) == child && status == 0, "a child: status " + std::to_string(status));
}

/// All ranks call it.
void expect_works(const Rank& rank, nupa_ccl_comm* comm, const std::string& what) {
  uint32_t ranks = 0;
  uint32_t own = 0;
  nupa_ccl_comm_size(comm, &ranks);
  nupa_ccl_comm_rank(comm, &own);
  int64_t mine = own;
  int64_t all = -1;
  rank.expect_ok(nupa_ccl_all_reduce(&mine, &all, 1, NUPA_CCL_INT64, NUPA_CCL_SUM, comm, nullptr), what);
  rank.expect(all == ranks * (ranks - 1) / 2, what + ": the sum");
  const uint32_t right = (own + 1) % ranks;
  const uint32_t left = (own + ranks - 1) % ranks;
  rank.expect_ok(nupa_ccl_sendrecv(&mine, 1, right, 1, &all, 1, left, 1, NUPA_CCL_INT64, comm, nullptr), what);
  rank.expect(all == left, what + ": the message");
}

TEST(CclForks, ChildrenOfARank_MakeACommunicatorOfTheirOwn) {
  if (test::kThreadSanitizer) GTEST_SKIP() << test::kNoThreadInChild;
  const auto endings = run_job(2, [](Rank& rank) {
    expect_works(rank, rank.world(), "before");
    if (rank.rank() == 0) {
      nupa_ccl_unique_id id;
      rank.expect_ok(nupa_ccl_get_unique_id(&id), "an id");
      std::vector<pid_t> children;
      for (const uint32_t number : {0u, 1u})
        children.push_back(begin_child(rank, [&] {
          nupa_ccl_comm* own = nullptr;
          rank.expect_ok(nupa_ccl_comm_init_rank(&own, 2, &id, number), "of children");
          expect_works(rank, own, "between children");
          rank.expect_ok(nupa_ccl_comm_destroy(own), "destroy");
          if (number == 0) rank.expect_ok(nupa_ccl_comm_destroy(rank.world()), "destroy what was inherited");
        }));
      for (const pid_t child : children) await_child(rank, child);
    }
    expect_works(rank, rank.world(), "after");
  });
  EXPECT_EQ(endings, all_well(2));
}

/// A thread of the parent executes the communicator's operations at that time, and another one waits for a message.
TEST(CclForks, InheritedCommunicator_CallsInAChild_FailWithEnodev) {
  const Signal begun;
  const auto endings = run_job(2, [&](Rank& rank) {
    expect_works(rank, rank.world(), "before");
    int64_t value = 41 + rank.rank();
    nupa_ccl_request* barrier = nullptr;
    if (rank.rank() == 1) {
      begun.take(rank);
      rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
      rank.expect_ok(nupa_ccl_send(&value, 1, NUPA_CCL_INT64, 0, 7, rank.world(), nullptr), "send");
      expect_works(rank, rank.world(), "after");
      return;
    }
    nupa_ccl_persistent* kept = nullptr;
    nupa_ccl_group_start();
    nupa_ccl_barrier(rank.world(), nullptr);
    rank.expect_ok(nupa_ccl_group_keep(&kept), "keep");
    void* const memory = nupa_ccl_alloc(4096);
    rank.expect(memory != nullptr, "memory");
    nupa_ccl_request* message = nullptr;
    rank.expect_ok(nupa_ccl_recv(&value, 1, NUPA_CCL_INT64, 1, 7, rank.world(), nullptr, &message), "recv");
    rank.expect_ok(nupa_ccl_barrier(rank.world(), &barrier), "barrier");
    await_child(rank, begin_child(rank, [&] {
                  const auto expect_ended = [&](int error, const std::string& what) {
                    rank.expect(error == ENODEV, what + ": " + std::to_string(error));
                    rank.expect(std::string(nupa_ccl_error_text()).find("parent process") != std::string::npos,
                                what + ": " + nupa_ccl_error_text());
                  };
                  nupa_ccl_comm* const world = rank.world();
                  nupa_ccl_comm* made = nullptr;
                  nupa_ccl_request* request = nullptr;
                  int64_t other = 0;
                  int error = 0;
                  char plan[256];
                  expect_ended(nupa_ccl_wait(barrier), "wait");
                  expect_ended(nupa_ccl_wait(message), "wait for a message");
                  expect_ended(nupa_ccl_barrier(world, nullptr), "barrier");
                  expect_ended(nupa_ccl_barrier(world, &request), "barrier that is begun");
                  expect_ended(nupa_ccl_all_reduce(&value, &other, 1, NUPA_CCL_INT64, NUPA_CCL_SUM, world, nullptr),
                               "sum");
                  expect_ended(nupa_ccl_start(kept, nullptr), "kept calls");
                  expect_ended(nupa_ccl_send(&value, 1, NUPA_CCL_INT64, 1, 7, world, nullptr), "send");
                  expect_ended(nupa_ccl_recv(&other, 1, NUPA_CCL_INT64, 1, 7, world, nullptr, &request), "recv");
                  expect_ended(nupa_ccl_comm_dup(world, &made), "dup");
                  expect_ended(nupa_ccl_comm_shrink(world, &made), "shrink");
                  expect_ended(nupa_ccl_plan(world, "barrier", 0, plan, sizeof plan), "plan");
                  rank.expect_ok(nupa_ccl_comm_error(world, &error, nullptr), "error");
                  rank.expect(error == ENODEV, "error");
                  rank.expect_ok(nupa_ccl_free(memory), "free");
                  rank.expect_ok(nupa_ccl_comm_abort(world), "abort");
                  rank.expect_ok(nupa_ccl_comm_destroy(world), "destroy");
                }));
    begun.give();
    rank.expect_ok(nupa_ccl_wait(barrier), "wait");
    rank.expect_ok(nupa_ccl_wait(message), "wait for a message");
    rank.expect(value == 42, "the message");
    expect_works(rank, rank.world(), "after");
    rank.expect_ok(nupa_ccl_free(memory), "free");
    nupa_ccl_persistent_free(kept);
  });
  EXPECT_EQ(endings, all_well(2));
}

}  // namespace
}  // namespace nupa::ccl
