// SPDX-License-Identifier: Apache-2.0
/// The order of the requests of a queue pair over a pool: fences, depths, pauses, local requests.
#include "requests.h"

namespace nupa::pool::test {
namespace {

class PoolOrder : public PoolRequests {};

TEST_F(PoolOrder, LocalRequests_RunInTheirTurn) {
  b.core().receives = {64, 64};
  SendWr local;
  local.opcode = Opcode::kLocalInv;
  local.wr_id = 2;
  a.send(1, 8);
  a.post(local);
  a.send(3, 8);
  ASSERT_TRUE(done(a, 3));
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(i + 1, a.core().done[i].wr_id);
  EXPECT_EQ(std::vector<uint64_t>{2}, a.core().locals);
}

TEST_F(PoolOrder, Fence_WaitsForTheReadBefore) {
  b.core().receives = {64};
  b.core().stopped = true;  // the READ's memory comes later
  a.post(read(1, 0), 0, 8);
  SendWr wr;
  wr.wr_id = 2;
  wr.flags = send_flag::kFence;
  a.post(wr, 0, 8);
  for (int i = 0; i < 50; ++i) turns();
  EXPECT_TRUE(b.core().received.empty());
  EXPECT_TRUE(a.core().done.empty());
  b.core().stopped = false;
  ASSERT_TRUE(done(a, 2));
  EXPECT_EQ(1u, b.core().received.size());
}

TEST_F(PoolOrder, ReadDepth_AtItsLimit_HoldsBackTheNextRead) {
  Pair c(*hosts[0], 1, 5, 6, QpType::kRc, [](QpAttr& attr) { attr.max_rd_atomic = 2; });
  Pair d(*hosts[1], 0, 6, 5, QpType::kRc, [](QpAttr& attr) { attr.max_dest_rd_atomic = 2; });
  d.core().stopped = true;
  for (uint64_t i = 0; i < 5; ++i) c.post(read(i, 0), 0, 8);
  for (int i = 0; i < 50; ++i) turns();
  EXPECT_TRUE(c.core().done.empty());
  d.core().stopped = false;
  ASSERT_TRUE(done(c, 5));
  for (const auto& one : c.core().done) EXPECT_EQ(WcStatus::kSuccess, one.status);
}

TEST_F(PoolOrder, ReadDepth_BeyondTheTargets_IsRefused) {
  Pair c(*hosts[0], 1, 5, 6);
  Pair d(*hosts[1], 0, 6, 5, QpType::kRc, [](QpAttr& attr) { attr.max_dest_rd_atomic = 1; });
  d.core().stopped = true;
  c.post(read(1, 0), 0, 8);
  c.post(read(2, 0), 0, 8);
  for (int i = 0; i < 50; ++i) turns();
  d.core().stopped = false;
  ASSERT_TRUE(done(c, 2));
  EXPECT_EQ(WcStatus::kSuccess, c.core().done[0].status);
  EXPECT_EQ(WcStatus::kRemInvReqErr, c.core().done[1].status);
}

TEST_F(PoolOrder, LocalFault_EndsInItsTurn) {
  b.core().receives = {64};
  a.send(1, 8);
  SendWr wr;
  wr.wr_id = 2;
  a.post(wr, 0, 8, WcStatus::kLocProtErr);
  a.send(3, 8);
  ASSERT_TRUE(done(a, 3));
  EXPECT_EQ(WcStatus::kSuccess, a.core().done[0].status);
  EXPECT_EQ(WcStatus::kLocProtErr, a.core().done[1].status);
  EXPECT_EQ(WcStatus::kWrFlushErr, a.core().done[2].status);
  EXPECT_EQ(1u, b.core().received.size());
}

TEST_F(PoolOrder, Pause_BegunRequestsEnd_OthersWait) {
  b.core().receives = {64, 64};
  b.core().stopped = true;
  a.send(1, 8);
  turns();
  ASSERT_TRUE(a.core().try_enter());
  a.endpoint->pause(true);
  EXPECT_FALSE(a.endpoint->drained());
  a.core().leave();
  a.send(2, 8);
  b.core().stopped = false;
  ASSERT_TRUE(done(a, 1));
  EXPECT_TRUE(a.endpoint->drained());
  for (int i = 0; i < 50; ++i) turns();
  EXPECT_EQ(1u, a.core().done.size());
  ASSERT_TRUE(a.core().try_enter());
  a.endpoint->pause(false);
  a.core().leave();
  ASSERT_TRUE(done(a, 2));
}

TEST_F(PoolOrder, Flush_CompletesAllInOrder) {
  for (uint64_t i = 0; i < 3; ++i) a.send(i, 8);
  ASSERT_TRUE(a.core().try_enter());
  a.endpoint->flush();
  a.core().leave();
  ASSERT_EQ(3u, a.core().done.size());
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(i, a.core().done[i].wr_id);
  for (int i = 0; i < 50; ++i) turns();
  EXPECT_EQ(3u, a.core().done.size());
}

}  // namespace
}  // namespace nupa::pool::test
