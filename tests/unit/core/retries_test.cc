// SPDX-License-Identifier: Apache-2.0
/// Tests of the limits of requests to a peer that does not answer or is not ready. The test passes the time.
#include "base/clock.h"
#include "shm_fixture.h"
#include "core/seam/timers.h"

namespace nupa::core {
namespace {

using core::ack_timeout_ns;
using core::rnr_timer_ns;

class ShmRetries : public ShmTest {
 protected:
  /// A request that waits since some moment between `from` and `to`, on `a`, and that only the test tries.
  struct Waiting {
    int64_t from;
    int64_t to;
  };
  Waiting post_waiting(Opcode opcode) {
    Waiting waiting{base::now_ns(), 0};
    EXPECT_EQ(opcode == Opcode::kSend ? send(*a, 1) : write(*a, 1), 0);
    waiting.to = base::now_ns();
    try_by_hand(*a);
    return waiting;
  }
  /// Tries the request as if it were `now`; another thread may hold the queue pair at this moment.
  void try_at(int64_t now) {
    ASSERT_TRUE(soon([&] { return a->progress(now) != now + 20'000; }));
  }
  /// Fails exactly `limit` nanoseconds after it began to wait, with `status`.
  void expect_limit(const Waiting& waiting, int64_t limit, WcStatus status) {
    try_at(waiting.from + limit - 1);
    EXPECT_TRUE(is_empty()) << "given up too early";
    EXPECT_EQ(state_of(*a), QpState::kRts);
    try_at(waiting.to + limit);
    WorkCompletion wc{};
    ASSERT_EQ(cq->poll(&wc, 1), 1) << "not given up in time";
    EXPECT_EQ(wc.status, status);
    EXPECT_EQ(wc.wr_id, 1u);
    EXPECT_EQ(state_of(*a), QpState::kErr);
  }
};

// Eight minutes and more.
constexpr uint8_t kLongTimeout = 27;

TEST_F(ShmRetries, Request_PeerDoesNotAnswer_FailsAfterFourTimeoutsPerTry) {  // IBTA 9.7.6.1.3, 9.7.5.2.8
  for (const uint8_t retries : {0, 1, 5, 7}) {
    a = make_qp();
    b = make_qp();  // stays in RESET and does not answer
    ASSERT_EQ(connect(*a, b->number(), {.timeout = kLongTimeout, .retry_cnt = retries}), 0);
    const Waiting waiting = post_waiting(Opcode::kRdmaWrite);
    expect_limit(waiting, (retries + 1) * 4 * ack_timeout_ns(kLongTimeout), WcStatus::kRetryExcErr);
    EXPECT_EQ(shared(*a).counters.errors.load(), 1u);
    EXPECT_EQ(shared(*a).counters.messages.load(), 0u);
  }
}

TEST_F(ShmRetries, Request_TimeoutZero_WaitsForEver) {  // IBTA 9.7.6.1.3
  a = make_qp();
  b = make_qp();
  ASSERT_EQ(connect(*a, b->number(), {.timeout = 0, .retry_cnt = 0}), 0);
  const Waiting waiting = post_waiting(Opcode::kRdmaWrite);
  try_at(waiting.to + 8 * ack_timeout_ns(31));
  EXPECT_TRUE(is_empty());
  EXPECT_EQ(state_of(*a), QpState::kRts);
}

TEST_F(ShmRetries, Send_ReceiverNotReady_FailsAfterRnrRetryTimers) {  // IBTA 9.7.5.2.8
  constexpr uint8_t kLongestTimer = 0;                                // 655.36 ms
  for (const uint8_t retries : {5, 6}) {
    make_pair(QpType::kRc, {.rnr_retry = retries, .min_rnr_timer = kLongestTimer});
    const Waiting waiting = post_waiting(Opcode::kSend);
    expect_limit(waiting, retries * rnr_timer_ns(kLongestTimer), WcStatus::kRnrRetryExcErr);
    EXPECT_EQ(state_of(*b), QpState::kRts);
  }
}

TEST_F(ShmRetries, Send_RnrRetrySeven_WaitsForEver) {  // IBTA 9.7.5.2.8
  make_pair(QpType::kRc, {.rnr_retry = 7, .min_rnr_timer = 1});
  const Waiting waiting = post_waiting(Opcode::kSend);
  try_at(waiting.to + 1000 * rnr_timer_ns(0));
  EXPECT_TRUE(is_empty());
  EXPECT_EQ(state_of(*a), QpState::kRts);
}

TEST_F(ShmRetries, Request_RetryCountChanged_UsesTheNewLimit) {
  a = make_qp();
  b = make_qp();
  ASSERT_EQ(connect(*a, b->number(), {.timeout = kLongTimeout, .retry_cnt = 7}), 0);
  const Waiting waiting = post_waiting(Opcode::kRdmaWrite);
  ASSERT_EQ(move(*a, QpState::kSqd), 0);
  QpAttr attr;
  attr.retry_cnt = 2;
  ASSERT_EQ(a->modify(attr, qp_attr::kRetryCnt), 0);
  ASSERT_EQ(move(*a, QpState::kRts), 0);
  expect_limit(waiting, 3 * 4 * ack_timeout_ns(kLongTimeout), WcStatus::kRetryExcErr);
}

TEST_F(ShmRetries, Request_ReasonOfTheWaitChanges_StartsTheLimitAgain) {
  a = make_qp();
  b = make_qp();
  ASSERT_EQ(connect(*a, b->number(), {.timeout = kLongTimeout, .retry_cnt = 0, .rnr_retry = 6}), 0);
  const int64_t changed = post_waiting(Opcode::kSend).to + 6 * rnr_timer_ns(0);
  try_at(changed - 1);
  EXPECT_EQ(shared(*a).counters.rnr.load(), 0u);
  // It answers from now on, but is not ready.
  ASSERT_EQ(connect(*b, a->number(), {.min_rnr_timer = 0}), 0);
  try_at(changed);
  EXPECT_EQ(shared(*a).counters.rnr.load(), 1u);
  expect_limit({changed, changed}, 6 * rnr_timer_ns(0), WcStatus::kRnrRetryExcErr);
}

TEST_F(ShmRetries, Progress_ReceiverNotReady_TriesAgainAfterTheReceiversTimer) {  // IBTA 9.7.5.2.8, table 45
  for (const uint8_t timer : {0, 26}) {
    make_pair(QpType::kRc, {.rnr_retry = 7, .min_rnr_timer = timer});
    post_waiting(Opcode::kSend);
    const int64_t now = base::now_ns();
    int64_t wanted = 0;
    ASSERT_TRUE(soon([&] { return (wanted = a->progress(now)) != now + 20'000; }));
    EXPECT_EQ(wanted, now + rnr_timer_ns(timer));
  }
}

TEST_F(ShmRetries, Counters_ReceiverNotReady_CountEachRequestOnce) {
  make_pair(QpType::kRc, {.rnr_retry = 7, .min_rnr_timer = 0});
  post_waiting(Opcode::kSend);
  for (int i = 0; i < 3; ++i) try_at(base::now_ns());
  EXPECT_EQ(shared(*a).counters.rnr.load(), 1u);
  ASSERT_EQ(receive(*b, 2), 0);
  try_at(base::now_ns());
  EXPECT_EQ(next().status, WcStatus::kSuccess);
  EXPECT_EQ(next().status, WcStatus::kSuccess);
  EXPECT_EQ(shared(*a).counters.rnr.load(), 1u);
  EXPECT_EQ(shared(*a).counters.messages.load(), 1u);
  EXPECT_EQ(shared(*a).counters.bytes.load(), 8u);
  EXPECT_EQ(shared(*a).counters.errors.load(), 0u);
  EXPECT_EQ(shared(*b).received.load(), 1u);
}

}  // namespace
}  // namespace nupa::core
