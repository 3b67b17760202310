// SPDX-License-Identifier: Apache-2.0
#include "core/pending_requests.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

namespace nupa::core {
namespace {

struct FakeCq {
  std::atomic<int> pending_qps{0};
};

struct FakeQp;
using Pending = PendingRequests<FakeQp, FakeCq>;

struct FakeQp {
  FakeCq* send_cq() const { return cq; }
  int64_t progress(int64_t now_ns) {
    ++tries;
    tried_ns = now_ns;
    if (wait_ns != INT64_MAX) return now_ns + wait_ns;
    removes_itself_from->remove(*this);
    return INT64_MAX;
  }

  FakeCq* cq = nullptr;
  int64_t wait_ns = 1000;
  Pending* removes_itself_from = nullptr;
  int tries = 0;
  int64_t tried_ns = 0;
};

class CorePendingRequests : public testing::Test {
 protected:
  /// As the service thread.
  int64_t serve(int64_t now_ns) {
    std::lock_guard lock(objects_);
    return pending_.progress(now_ns);
  }

  std::mutex objects_;
  int kicks_ = 0;
  int64_t kicked_for_ns_ = -1;
  Pending pending_{objects_, [this](int64_t at_ns) {
                     ++kicks_;
                     kicked_for_ns_ = at_ns;
                   }};
  FakeCq cq_;
  FakeCq other_cq_;
};

TEST_F(CorePendingRequests, Add_TwiceForPollers_CountsOnceAndKicksEachTime) {
  FakeQp qp{.cq = &cq_};
  pending_.add(qp, true);
  pending_.add(qp, true);
  EXPECT_EQ(cq_.pending_qps, 1);
  EXPECT_EQ(kicks_, 2);
  EXPECT_EQ(kicked_for_ns_, 0) << "soon";
  pending_.remove(qp);
  EXPECT_EQ(cq_.pending_qps, 0);
  pending_.remove(qp);
  EXPECT_EQ(cq_.pending_qps, 0) << "it was removed before";
}

TEST_F(CorePendingRequests, Poll_InAChild_TriesNothing) {
  FakeQp qp{.cq = &cq_};
  pending_.add(qp, true);
  const pid_t child = fork();
  if (child == 0) {
    pending_.poll(cq_);
    _exit(qp.tries);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  pending_.poll(cq_);
  EXPECT_EQ(qp.tries, 1);
}

TEST_F(CorePendingRequests, Add_ForTheServiceThreadThenForPollers_CountsFromThenOn) {
  FakeQp qp{.cq = &cq_};
  pending_.add(qp, false);
  EXPECT_EQ(cq_.pending_qps, 0);
  pending_.add(qp, true);
  EXPECT_EQ(cq_.pending_qps, 1);
  pending_.add(qp, false);
  EXPECT_EQ(cq_.pending_qps, 1) << "pollers go on trying it";
  pending_.remove(qp);
  EXPECT_EQ(cq_.pending_qps, 0);
}

TEST_F(CorePendingRequests, Remove_AddedForTheServiceThread_ChangesNoCount) {
  FakeQp qp{.cq = &cq_};
  pending_.add(qp, false);
  pending_.remove(qp);
  EXPECT_EQ(cq_.pending_qps, 0);
}

TEST_F(CorePendingRequests, Add_NoCompletionQueueForSends_IsTriedByTheServiceThread) {
  FakeQp qp;
  pending_.add(qp, true);
  EXPECT_EQ(serve(5), 1005);
  pending_.remove(qp);
  EXPECT_EQ(serve(5), INT64_MAX);
  EXPECT_EQ(qp.tries, 1);
}

TEST_F(CorePendingRequests, Poll_SeveralQueuePairs_TriesThoseOfItsQueueOnly) {
  FakeQp here{.cq = &cq_};
  FakeQp for_the_service_thread{.cq = &cq_};
  FakeQp elsewhere{.cq = &other_cq_};
  pending_.add(here, true);
  pending_.add(for_the_service_thread, false);
  pending_.add(elsewhere, true);
  pending_.poll(cq_);
  EXPECT_EQ(here.tries, 1);
  EXPECT_EQ(for_the_service_thread.tries, 0);
  EXPECT_EQ(elsewhere.tries, 0);
}

TEST_F(CorePendingRequests, Poll_BesideAThreadThatHasTheObjects_ReturnsAtOnce) {
  FakeQp qp{.cq = &cq_};
  pending_.add(qp, true);
  {
    std::lock_guard lock(objects_);
    pending_.poll(cq_);
    EXPECT_EQ(qp.tries, 0);
  }
  pending_.poll(cq_);
  EXPECT_EQ(qp.tries, 1);
}

TEST_F(CorePendingRequests, Poll_RequestsStillWait_SchedulesTheServiceThreadForTheEarliest) {
  FakeQp late{.cq = &cq_, .wait_ns = 3000};
  FakeQp early{.cq = &cq_, .wait_ns = 2000};
  FakeQp later{.cq = &cq_, .wait_ns = 4000};
  for (FakeQp* qp : {&late, &early, &later}) pending_.add(*qp, true);
  kicks_ = 0;
  pending_.poll(cq_);
  EXPECT_EQ(kicks_, 1);
  EXPECT_EQ(kicked_for_ns_, early.tried_ns + 2000) << "the program may not poll again";
}

TEST_F(CorePendingRequests, Poll_RequestsAreDone_DoesNotWakeTheServiceThread) {
  FakeQp done{.cq = &cq_, .wait_ns = INT64_MAX, .removes_itself_from = &pending_};
  pending_.add(done, true);
  kicks_ = 0;
  pending_.poll(cq_);
  EXPECT_EQ(done.tries, 1);
  EXPECT_EQ(kicks_, 0);
}

TEST_F(CorePendingRequests, Progress_SeveralRequestsWait_ReturnsTheEarliestTime) {
  FakeQp late{.cq = &cq_, .wait_ns = 3000};
  FakeQp early{.cq = &cq_, .wait_ns = 2000};
  FakeQp later{.cq = &other_cq_, .wait_ns = 4000};
  pending_.add(late, true);
  pending_.add(early, false);
  pending_.add(later, true);
  EXPECT_EQ(serve(10), 2010);
  EXPECT_EQ(late.tries + early.tries + later.tries, 3);
}

TEST_F(CorePendingRequests, Progress_RequestIsDone_MayRemoveItself) {
  FakeQp done{.cq = &cq_, .wait_ns = INT64_MAX, .removes_itself_from = &pending_};
  FakeQp waits{.cq = &cq_};
  pending_.add(done, true);
  pending_.add(waits, true);
  EXPECT_EQ(serve(10), 1010);
  EXPECT_EQ(cq_.pending_qps, 1);
  EXPECT_EQ(serve(20), 1020);
  EXPECT_EQ(done.tries, 1);
  EXPECT_EQ(waits.tries, 2);
}

}  // namespace
}  // namespace nupa::core
