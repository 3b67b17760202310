// SPDX-License-Identifier: Apache-2.0
// More queue pairs than one slot of the host has numbers (docs/design/many-queue-pairs.md).
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <set>

#include "fixture.h"

namespace nupa::test {
namespace {

constexpr uint32_t kSlotQp = 4096;
uint32_t slot_of(const ibv_qp* qp) { return qp->qp_num >> 12; }

/// Many queue pairs, nearly all of which are never connected.
class VerbsMany : public VerbsPair {
 protected:
  void make(size_t count) {
    ibv_qp_init_attr attr = init();
    attr.cap = {2, 2, 1, 1, 0};
    while (qps.size() < count) ASSERT_NE(keep(ibv_create_qp(pd, &attr)), nullptr) << qps.size() << strerror(errno);
  }
  std::set<uint32_t> slots() const {
    std::set<uint32_t> all;
    for (const ibv_qp* qp : qps) all.insert(slot_of(qp));
    return all;
  }
  /// A message from one to the other.
  void talk(ibv_qp* from, ibv_qp* to) {
    ASSERT_EQ(receive(to, 1, 256, 64), 0);
    ibv_sge sge = span(0, 8);
    ASSERT_EQ(post(from, request(IBV_WR_SEND, 2, &sge)), 0);
    for (int i = 0; i < 2; ++i) {
      const ibv_wc wc = next();
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
      EXPECT_EQ(wc.qp_num, wc.wr_id == 1 ? to->qp_num : from->qp_num);
    }
  }
};

TEST_F(VerbsMany, QueuePairs_OfSeveralSlots_ExchangeMessages) {
  ASSERT_NO_FATAL_FAILURE(make(2 * kSlotQp + 4));
  EXPECT_EQ(slots().size(), 3u);
  std::set<uint32_t> numbers;
  for (const ibv_qp* qp : qps) numbers.insert(qp->qp_num);
  EXPECT_EQ(numbers.size(), qps.size());
  EXPECT_EQ(slot_of(qps[0]), slot_of(qps[kSlotQp - 1]));
  EXPECT_NE(slot_of(qps[0]), slot_of(qps[kSlotQp]));
  const std::array<std::array<size_t, 2>, 3> pairs{
      {{0, kSlotQp}, {kSlotQp - 1, 2 * kSlotQp + 3}, {kSlotQp + 1, 2 * kSlotQp}}};
  for (const auto& [one, other] : pairs) ASSERT_NO_FATAL_FAILURE(connect(qps[one], qps[other]));
  for (int round = 0; round < 3; ++round)
    for (const auto& [one, other] : pairs) {
      ASSERT_NO_FATAL_FAILURE(talk(qps[one], qps[other])) << one << " to " << other;
      ASSERT_NO_FATAL_FAILURE(talk(qps[other], qps[one])) << other << " to " << one;
    }
}

TEST_F(VerbsMany, NumbersOfAllSlots_AreUsedAgain) {
  ASSERT_NO_FATAL_FAILURE(make(kSlotQp + 10));
  const std::set<uint32_t> before = slots();
  // The numbers of the last slot that were never used come first.
  ASSERT_NO_FATAL_FAILURE(make(2 * kSlotQp));
  std::set<uint32_t> given_back;
  for (const size_t at : {size_t{2 * kSlotQp - 1}, size_t{kSlotQp}, size_t{kSlotQp - 1}, size_t{0}}) {
    given_back.insert(qps[at]->qp_num);
    ASSERT_EQ(ibv_destroy_qp(qps[at]), 0);
    qps.erase(qps.begin() + static_cast<ptrdiff_t>(at));
  }
  const size_t kept = qps.size();
  ASSERT_NO_FATAL_FAILURE(make(2 * kSlotQp));
  EXPECT_EQ(slots(), before) << "no further slot";
  for (size_t at = kept; at < qps.size(); ++at) EXPECT_EQ(given_back.erase(qps[at]->qp_num), 1u);
  ASSERT_NE(slot_of(qps[kept]), slot_of(qps[kept + 3])) << "one of each slot";
  ASSERT_NO_FATAL_FAILURE(connect(qps[kept], qps[kept + 3]));
  ASSERT_NO_FATAL_FAILURE(talk(qps[kept], qps[kept + 3]));
  ASSERT_NO_FATAL_FAILURE(talk(qps[kept + 3], qps[kept]));
}

TEST_F(VerbsMany, Datagrams_ReachQueuePairsOfFurtherSlots) {
  ASSERT_NO_FATAL_FAILURE(make(kSlotQp));
  a = make_qp(IBV_QPT_UD);
  b = make_qp(IBV_QPT_UD);
  ASSERT_NE(slot_of(a), slot_of(qps[0]));
  ASSERT_EQ(to_init(a), 0);
  ASSERT_EQ(to_init(b), 0);
  ASSERT_EQ(to_rts(a, 0), 0);
  ASSERT_EQ(to_rts(b, 0), 0);
  ibv_ah_attr to = path();
  ibv_ah* ah = ibv_create_ah(pd, &to);
  ASSERT_NE(ah, nullptr);
  ASSERT_EQ(receive(b, 1, 256, 128), 0);
  ibv_sge sge = span(0, 8);
  ibv_send_wr wr = request(IBV_WR_SEND, 2, &sge);
  wr.wr.ud = {ah, b->qp_num, kQkey};
  ASSERT_EQ(post(a, wr), 0);
  for (int i = 0; i < 2; ++i) {
    const ibv_wc wc = next();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    if (wc.wr_id == 1) {
      EXPECT_EQ(wc.src_qp, a->qp_num);
    }
  }
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST_F(VerbsMany, QueuePairOfAFurtherSlot_Fails_ReportsItsEvent) {
  ASSERT_NO_FATAL_FAILURE(make(kSlotQp + 2));
  ibv_qp* const one = qps[kSlotQp];
  ibv_qp* const other = qps[kSlotQp + 1];
  ASSERT_NO_FATAL_FAILURE(connect(one, other));
  ibv_sge sge = span(0, 8);
  ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, 7, &sge, 0);
  wr.wr.rdma.rkey ^= 0x5500;
  ASSERT_EQ(post(one, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_REM_ACCESS_ERR);
  // The peer's owner is told by its number.
  EXPECT_TRUE(reaches(other, IBV_QPS_ERR));
  const ibv_async_event event = next_event();
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
  EXPECT_EQ(event.element.qp, other);
}

TEST(VerbsLimit, MaxQp_IsTheNumberThatAProcessCanMake) {
  const pid_t child = fork();  // that exits without destroying them one by one
  if (child == 0) {
    ibv_device** list = ibv_get_device_list(nullptr);
    ibv_context* const context = list == nullptr || list[0] == nullptr ? nullptr : ibv_open_device(list[0]);
    if (context == nullptr) _exit(1);
    ibv_device_attr limits{};
    if (ibv_query_device(context, &limits) != 0 || limits.max_qp != 65536) _exit(2);
    ibv_pd* const pd = ibv_alloc_pd(context);
    ibv_cq* const cq = ibv_create_cq(context, 1, nullptr, nullptr, 0);
    ibv_srq_init_attr srq_attr{};
    srq_attr.attr = {1, 1, 0};
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = cq;
    attr.srq = ibv_create_srq(pd, &srq_attr);
    attr.cap = {1, 0, 1, 0, 0};
    attr.qp_type = IBV_QPT_RC;
    for (int made = 0; made < limits.max_qp; ++made)
      if (ibv_create_qp(pd, &attr) == nullptr) _exit(3);
    if (ibv_create_qp(pd, &attr) != nullptr) _exit(4);
    _exit(errno == ENOMEM ? 0 : 5);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace nupa::test
