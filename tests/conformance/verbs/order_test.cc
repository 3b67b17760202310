// SPDX-License-Identifier: Apache-2.0
/// An order of completions that programs rely on although no standard promises it: a send has completed before the
/// peer's program can reply to it, as with an adapter.
#include <sched.h>

#include <atomic>
#include <thread>

#include "fixture.h"

namespace nupa::test {
namespace {

class VerbsOrder : public VerbsPair {
 protected:
  /// Sender and receiver have one core, so that whoever is woken may run at once, in the middle of what wakes it.
  void SetUp() override {
    if (uses_network()) GTEST_SKIP() << "an acknowledgement may be lost, and the answer come first";
    VerbsPair::SetUp();
    ASSERT_EQ(sched_getaffinity(0, sizeof everywhere, &everywhere), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  }
  void TearDown() override {
    if (uses_network()) return;
    EXPECT_EQ(sched_setaffinity(0, sizeof everywhere, &everywhere), 0);
    VerbsPair::TearDown();
  }

  /// Sleeps until the event of the completion queue, which is armed.
  void sleep_for_event(ibv_comp_channel* channel) {
    ASSERT_TRUE(becomes_readable(channel));
    ibv_cq* told;
    void* ignored;
    ASSERT_EQ(ibv_get_cq_event(channel, &told, &ignored), 0);
    ibv_ack_cq_events(told, 1);
  }

  cpu_set_t everywhere{};
};

TEST_F(VerbsOrder, SendCompletion_PeerReplies_IsPolledBeforeTheReply) {
  constexpr int kMessages = 2000;
  ibv_comp_channel* channel = ibv_create_comp_channel(context);
  ASSERT_NE(channel, nullptr);
  ASSERT_EQ(ibv_destroy_cq(other_cq), 0);
  other_cq = ibv_create_cq(context, 64, nullptr, channel, 0);
  ASSERT_NE(other_cq, nullptr);
  make_pair();
  ASSERT_EQ(receive(b, 1, 0, 64), 0);
  // The answerer looks only once the event has woken it: a look before could find the message in the moment between its
  // completion and the sender's own, which is no fault.
  std::atomic<int> armed{0};
  std::thread answerer([&] {
    for (int i = 1; i <= kMessages; ++i) {
      ASSERT_EQ(ibv_req_notify_cq(other_cq, 0), 0);
      armed = i;
      ASSERT_NO_FATAL_FAILURE(sleep_for_event(channel));
      ibv_wc got{};
      ASSERT_EQ(ibv_poll_cq(other_cq, 1, &got), 1);
      ASSERT_EQ(got.status, IBV_WC_SUCCESS);
      ASSERT_EQ(got.opcode, IBV_WC_RECV);
      ASSERT_EQ(receive(b, 1, 0, 64), 0);
      ibv_sge sge = span(1024, 8);
      ASSERT_EQ(post(b, request(IBV_WR_SEND, 2, &sge)), 0);
      ASSERT_EQ(next(other_cq).opcode, IBV_WC_SEND);
    }
  });
  int inverted = 0;
  for (int i = 1; i <= kMessages && !HasFailure(); ++i) {
    ASSERT_EQ(receive(a, 3, 2048, 64), 0);
    while (armed != i && !HasFailure()) sched_yield();
    ibv_sge sge = span(3072, 8);
    ASSERT_EQ(post(a, request(IBV_WR_SEND, 4, &sge)), 0);
    const ibv_wc first = next();
    ASSERT_EQ(first.status, IBV_WC_SUCCESS);
    ASSERT_EQ(next().status, IBV_WC_SUCCESS);
    inverted += first.wr_id != 4;
  }
  answerer.join();
  EXPECT_EQ(inverted, 0);
  for (ibv_qp* qp : qps) EXPECT_EQ(ibv_destroy_qp(qp), 0);
  qps.clear();
  EXPECT_EQ(ibv_destroy_cq(other_cq), 0);
  other_cq = nullptr;
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

}  // namespace
}  // namespace nupa::test
