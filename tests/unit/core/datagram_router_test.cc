// SPDX-License-Identifier: Apache-2.0
/// Tests of the datagram router: which transport sends a datagram, and what happens to requests that are held back.
#include "core/datagram_router.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "shm_fixture.h"
#include "../roce/engine_fixture.h"

namespace nupa::core {
namespace {

class FakeSender final : public DatagramSender {
 public:
  Reach leads_to(const AddressVector&, uint32_t qp_num) override {
    ++asked;
    return qp_num == theirs ? Reach::kYes : otherwise;
  }
  std::optional<WcStatus> send(const Request& request) override {
    if (refusals > 0) {
      --refusals;
      return std::nullopt;
    }
    sent.push_back(request.wr.wr_id);
    lengths.push_back(request.length);
    return status;
  }
  void withdraw() override { withdrawn = true; }

  uint32_t theirs = 0;  ///< the number that it leads to
  Reach otherwise = Reach::kNo;
  WcStatus status = WcStatus::kSuccess;
  int refusals = 0;  ///< so often it cannot send yet
  uint32_t asked = 0;
  std::vector<uint64_t> sent;
  std::vector<uint64_t> lengths;
  bool withdrawn = false;
};

class DatagramRouterTest : public ::testing::Test {
 protected:
  DatagramRouterTest() {
    context.identity().shared = &shared;
    context.identity().type = QpType::kUd;
    set_state(QpState::kRts);
    for (FakeSender** each : {&first, &second}) {
      auto made = std::make_unique<FakeSender>();
      *each = made.get();
      router.add(std::move(made));
    }
    vector.is_global = true;
    vector.dgid.raw[15] = 1;
  }
  void set_state(QpState state) { shared.state.store(shm::pack_state(1, state)); }
  Posted post(uint64_t wr_id, uint32_t qp_num = 7, WcStatus fault = WcStatus::kSuccess) {
    const Sge sge{roce::test::kBase, 8, roce::test::kKey};
    SendWr wr;
    wr.wr_id = wr_id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.remote_qpn = qp_num;
    const Piece piece{nullptr, 8};
    return router.post({wr, &vector, &piece, 1, 8, 0, fault});
  }
  void to_a_group() { vector.dgid.raw[0] = 0xff; }

  shm::QpShared shared{};
  roce::test::RecordingHost context;
  DatagramRouter router{context, "first"};
  FakeSender* first = nullptr;
  FakeSender* second = nullptr;
  AddressVector vector;
};

TEST_F(DatagramRouterTest, Post_DestinationOfTheFirstSender_IsSentByIt) {
  first->theirs = 7;
  second->theirs = 8;
  EXPECT_TRUE(post(1, 7).succeeded());
  EXPECT_TRUE(post(2, 8).succeeded());
  EXPECT_EQ(first->sent, std::vector<uint64_t>{1});
  EXPECT_EQ(second->sent, std::vector<uint64_t>{2});
}

TEST_F(DatagramRouterTest, Post_DestinationOfNoSender_IsSentByTheLast) {
  EXPECT_TRUE(post(1).succeeded());
  EXPECT_EQ(first->sent, std::vector<uint64_t>{});
  EXPECT_EQ(second->sent, std::vector<uint64_t>{1});
}

TEST_F(DatagramRouterTest, Post_DestinationHasNotAnsweredYet_WaitsForItsAnswer) {
  first->otherwise = DatagramSender::Reach::kNotYet;
  EXPECT_TRUE(post(1).is_taken());
  EXPECT_NE(router.progress(0), INT64_MAX);
  EXPECT_TRUE(first->sent.empty() && second->sent.empty());
  first->theirs = 7;
  EXPECT_EQ(router.progress(0), INT64_MAX);
  EXPECT_EQ(first->sent, std::vector<uint64_t>{1});
}

TEST_F(DatagramRouterTest, Post_DestinationDoesNotAnswer_IsSentByTheLast) {
  first->otherwise = DatagramSender::Reach::kNotYet;
  EXPECT_TRUE(post(1).is_taken());
  first->otherwise = DatagramSender::Reach::kNo;
  EXPECT_EQ(router.progress(0), INT64_MAX);
  EXPECT_EQ(second->sent, std::vector<uint64_t>{1});
}

TEST_F(DatagramRouterTest, Post_SenderRefuses_IsSentLaterAndInOrder) {
  first->theirs = 7;
  first->refusals = 2;
  EXPECT_TRUE(post(1).is_taken());
  EXPECT_TRUE(post(2).is_taken()) << "it overtook the one that waits";
  EXPECT_TRUE(first->sent.empty() && context.done.empty());
  constexpr int64_t kNow = 1'000'000;
  EXPECT_GT(router.progress(kNow), kNow);
  EXPECT_EQ(router.progress(kNow), INT64_MAX);
  EXPECT_EQ(first->sent, (std::vector<uint64_t>{1, 2}));
  ASSERT_EQ(context.done.size(), 2u);
  for (const auto& done : context.done) EXPECT_EQ(done.status, WcStatus::kSuccess);
  EXPECT_TRUE(post(3).succeeded());
}

TEST_F(DatagramRouterTest, Progress_SenderRefusesForLong_PausesGrowUpToALimit) {
  first->theirs = 7;
  first->refusals = 100;
  EXPECT_TRUE(post(1).is_taken());
  int64_t before = 0;
  for (int i = 0; i < 3; ++i) {
    const int64_t pause = router.progress(0);
    EXPECT_GT(pause, before);
    before = pause;
  }
  for (int i = 0; i < 20; ++i) EXPECT_LE(router.progress(0), 1'000'000);
  first->refusals = 0;
  router.progress(0);
  first->refusals = 2;
  EXPECT_TRUE(post(2).is_taken());
  EXPECT_LT(router.progress(0), before) << "a new wait begins with the shortest pause";
}

TEST_F(DatagramRouterTest, Multicast_OneTransportCannotSendYet_IsSentOnceByEach) {
  to_a_group();
  first->status = WcStatus::kLocLenErr;
  second->refusals = 1;
  EXPECT_TRUE(post(1).is_taken());
  EXPECT_EQ(first->sent, std::vector<uint64_t>{1});
  EXPECT_EQ(router.progress(0), INT64_MAX);
  EXPECT_EQ(first->sent, std::vector<uint64_t>{1});
  EXPECT_EQ(second->sent, std::vector<uint64_t>{1});
  ASSERT_EQ(context.done.size(), 1u);
  EXPECT_EQ(context.done[0].status, WcStatus::kLocLenErr) << "the first fault";
}

TEST_F(DatagramRouterTest, Multicast_FlushedHalfSent_NextOneIsSentByEach) {
  to_a_group();
  second->refusals = 1;
  EXPECT_TRUE(post(1).is_taken());
  router.flush();
  ASSERT_EQ(context.done.size(), 1u);
  EXPECT_EQ(context.done[0].status, WcStatus::kWrFlushErr);
  EXPECT_TRUE(post(2).succeeded());
  EXPECT_EQ(first->sent, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(second->sent, std::vector<uint64_t>{2});
}

TEST_F(DatagramRouterTest, Post_DestinationAppearsLater_IsSentByTheFirstFromThenOn) {
  EXPECT_TRUE(post(1).succeeded());
  ASSERT_EQ(second->sent.size(), 1u);
  first->theirs = 7;
  EXPECT_TRUE(soon([&] {
    post(2);
    return !first->sent.empty();
  }));
}

TEST_F(DatagramRouterTest, Route_ManyDatagrams_IsNotLookedUpForEach) {
  constexpr uint32_t kMany = 10'000;
  for (uint32_t i = 0; i < kMany; ++i) post(i);
  EXPECT_EQ(second->sent.size(), kMany);
  EXPECT_LT(first->asked, kMany);
}

TEST_F(DatagramRouterTest, Route_AnotherAddressWithTheSameNumber_IsLookedUp) {
  EXPECT_TRUE(post(1).succeeded());
  const uint32_t before = first->asked;
  vector.dgid.raw[15] = 2;
  EXPECT_TRUE(post(2).succeeded());
  EXPECT_GT(first->asked, before);
}

TEST_F(DatagramRouterTest, Multicast_SeveralTransports_IsSentByAllAndReportsTheFirstFault) {
  to_a_group();
  second->status = WcStatus::kLocLenErr;
  const Posted posted = post(1);
  EXPECT_EQ(posted.status(), WcStatus::kLocLenErr);
  EXPECT_EQ(first->sent, std::vector<uint64_t>{1});
  EXPECT_EQ(second->sent, std::vector<uint64_t>{1});
  first->status = WcStatus::kLocQpOpErr;
  EXPECT_EQ(post(2).status(), WcStatus::kLocQpOpErr);
  EXPECT_EQ(second->sent, (std::vector<uint64_t>{1, 2}));
}

TEST_F(DatagramRouterTest, RequestWithAFault_IsNotSent) {
  EXPECT_EQ(post(1, 7, WcStatus::kLocProtErr).status(), WcStatus::kLocProtErr);
  EXPECT_TRUE(first->sent.empty() && second->sent.empty());
}

TEST_F(DatagramRouterTest, Resume_PausedQueue_SendsInOrder) {
  first->theirs = 7;
  router.pause(true);
  EXPECT_TRUE(post(1).is_taken());
  EXPECT_TRUE(post(2).is_taken());
  EXPECT_EQ(router.progress(0), INT64_MAX);
  EXPECT_TRUE(first->sent.empty());
  router.pause(false);
  EXPECT_TRUE(post(3).is_taken()) << "it overtook those that wait";
  router.progress(0);
  EXPECT_EQ(first->sent, (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(first->lengths, (std::vector<uint64_t>{8, 8, 8}));
  ASSERT_EQ(context.done.size(), 3u);
  for (const auto& done : context.done) EXPECT_EQ(done.status, WcStatus::kSuccess);
}

TEST_F(DatagramRouterTest, Resume_KeyRevokedMeanwhile_CompletesWithAProtectionError) {
  router.pause(true);
  EXPECT_TRUE(post(1).is_taken());
  EXPECT_TRUE(post(2).is_taken());
  context.memory.clear();
  router.pause(false);
  router.progress(0);
  ASSERT_EQ(context.done.size(), 2u);
  EXPECT_EQ(context.done[0].status, WcStatus::kLocProtErr);
  EXPECT_EQ(context.done[1].status, WcStatus::kWrFlushErr);
  EXPECT_TRUE(second->sent.empty());
}

TEST_F(DatagramRouterTest, RequestsOfAQueueThatFailed_AreFlushed) {
  router.pause(true);
  EXPECT_TRUE(post(1).is_taken());
  router.pause(false);
  set_state(QpState::kErr);
  router.progress(0);
  ASSERT_EQ(context.done.size(), 1u);
  EXPECT_EQ(context.done[0].status, WcStatus::kWrFlushErr);
  EXPECT_TRUE(second->sent.empty());
}

TEST_F(DatagramRouterTest, Withdraw_SeveralSenders_WithdrawsAll) {
  router.withdraw();
  EXPECT_TRUE(first->withdrawn && second->withdrawn);
}

}  // namespace
}  // namespace nupa::core
