// SPDX-License-Identifier: Apache-2.0
/// Tests of the calls of a responder to the core: receives and memory of XRC targets and of shared receive queues.
#include <fcntl.h>
#include <gtest/gtest.h>

#include "core/qp.h"
#include "../core/shm_fixture.h"
#include "engine_fixture.h"

namespace nupa::core {
namespace {

/// The queue pair takes requests from now on, though nothing leads to a peer.
void take_requests(shm::QpShared& shared) {
  std::atomic<uint64_t>& state = shared.state;
  state.store(shm::pack_state(shm::epoch_of(state.load()), QpState::kRtr));
}

/// What the core gives to the responder of an XRC target, call by call.
class RoceXrcHost : public ShmTest {
 protected:
  void SetUp() override {
    ShmTest::SetUp();
    domain = std::move(*handle->open_xrcd(-1, O_CREAT));
    target = std::move(*handle->create_qp(nullptr, {.type = QpType::kXrcRecv, .xrcd = domain.get()}));
    ASSERT_EQ(to_init(static_cast<Qp&>(*target)), 0);
    take_requests(shared(static_cast<Qp&>(*target)));
    host = std::make_unique<QpContextImpl>(static_cast<Qp&>(*target));
  }
  void TearDown() override {
    host.reset();
    target.reset();
    queue.reset();
    domain.reset();
    ShmTest::TearDown();
  }
  /// The domain's queue, whose receives complete in `completions`, in place of the one before.
  Srq& make_queue(Cq& completions) {
    queue.reset();
    queue = std::move(
        *handle->create_srq(*pd, {.max_wr = 4, .type = SrqType::kXrc, .xrcd = domain.get(), .cq = &completions}));
    return static_cast<Srq&>(*queue);
  }
  std::byte* read_at(uint32_t number) {
    return host->reach(number, region->rkey(), reinterpret_cast<uint64_t>(memory), 8, access::kRemoteRead);
  }

  std::unique_ptr<XrcDomain> domain;
  std::unique_ptr<QueuePair> target;
  std::unique_ptr<SharedReceiveQueue> queue;
  std::unique_ptr<QpContextImpl> host;
};

TEST_F(RoceXrcHost, Message_QueueDestroyedMeanwhile_IsRefusedEvenIfItsNumberIsBack) {
  Srq& srq = make_queue(*cq);
  ASSERT_EQ(receive(srq, 7), 0);
  ASSERT_EQ(receive(srq, 8), 0);
  ASSERT_TRUE(host->select(srq.number()) == core::Selection::kYes && host->take_receive());
  EXPECT_EQ(host->receive_room(), 64u);
  EXPECT_NE(read_at(srq.number()), nullptr);
  // While the message is under way, a response to an earlier READ finds that the queue is not there.
  std::atomic<uint32_t>& in_use = tables().srq[srq.index()].in_use;
  in_use.store(0);
  EXPECT_EQ(read_at(srq.number()), nullptr);
  in_use.store(1);
  EXPECT_EQ(host->receive_room(), 0u);
  const std::byte data[8] = {};
  const std::byte* behind = nullptr;
  EXPECT_FALSE(host->place(0, data, sizeof data, &behind));
  host->complete_receive({}, WcStatus::kSuccess);
  EXPECT_TRUE(is_empty());
  ASSERT_TRUE(host->select(srq.number()) == core::Selection::kYes && host->take_receive()) << "the next message";
  host->complete_receive({}, WcStatus::kSuccess);
  EXPECT_EQ(next().wr_id, 8u);
}

TEST_F(RoceXrcHost, Queue_WithTheNumberOfAnEarlierOne_IsADifferentQueue) {
  Srq* srq = &make_queue(*cq);
  const uint32_t number = srq->number();
  ASSERT_EQ(receive(*srq, 1), 0);
  ASSERT_TRUE(host->select(number) == core::Selection::kYes && host->take_receive());
  host->complete_receive({}, WcStatus::kSuccess);
  EXPECT_EQ(next().wr_id, 1u);
  // A number is given out again after all others.
  Cq* const others = make_cq(4);
  srq = &make_queue(*others);
  for (uint32_t i = 0; i < shm::kMaxSrq && srq->number() != number; ++i) srq = &make_queue(*others);
  ASSERT_EQ(srq->number(), number);
  ASSERT_EQ(receive(*srq, 2), 0);
  ASSERT_TRUE(host->select(number) == core::Selection::kYes && host->take_receive());
  host->complete_receive({}, WcStatus::kSuccess);
  EXPECT_TRUE(is_empty()) << "told where the earlier queue's receives complete";
  EXPECT_EQ(next(others).wr_id, 2u);
}

TEST_F(RoceXrcHost, PolledReceive_MakesRoomInItsQueue) {
  Srq& srq = make_queue(*cq);
  for (uint64_t i = 1; i <= 16; ++i) {  // the queue has room for four
    ASSERT_EQ(receive(srq, i), 0);
    ASSERT_TRUE(host->select(srq.number()) == core::Selection::kYes && host->take_receive());
    host->complete_receive({}, WcStatus::kSuccess);
    EXPECT_EQ(next().wr_id, i);
  }
}

/// What the core gives to the responder of a queue pair with a shared receive queue.
class RoceSharedReceives : public ShmTest {};

TEST_F(RoceSharedReceives, Buffers_OfASharedReceiveQueue_AreOfItsOwnDomain) {
  const auto domain = std::move(*handle->alloc_pd());
  const auto buffer = std::move(*handle->alloc_mr(*domain, 64, access::kLocalWrite));
  const auto srq = std::move(*handle->create_srq(*domain, {.max_wr = 4}));
  const QpOptions options{.type = QpType::kRc, .send_cq = cq, .recv_cq = cq, .srq = srq.get(), .cap = {8, 8, 4, 4, 64}};
  const auto qp = std::move(*handle->create_qp(pd.get(), options));
  take_requests(shared(static_cast<Qp&>(*qp)));
  QpContextImpl host(static_cast<Qp&>(*qp));
  const Sge sge{reinterpret_cast<uint64_t>(buffer->addr()), 64, buffer->lkey()};
  ASSERT_EQ(srq->post_recv({1, &sge, 1}), 0);
  ASSERT_EQ(receive(*srq, 2), 0);  // of the queue pair's domain
  const auto data = roce::test::pattern_bytes(8);
  const std::byte* behind = nullptr;
  ASSERT_TRUE(host.take_receive());
  EXPECT_TRUE(host.place(0, data.data(), 8, &behind));
  EXPECT_EQ(0, std::memcmp(buffer->addr(), data.data(), 8));
  host.complete_receive({}, WcStatus::kSuccess);
  EXPECT_EQ(next().wr_id, 1u);
  ASSERT_TRUE(host.take_receive());
  EXPECT_FALSE(host.place(0, data.data(), 8, &behind));
  host.complete_receive({}, WcStatus::kLocProtErr);
  EXPECT_EQ(next().wr_id, 2u);
}

}  // namespace
}  // namespace nupa::core
