// SPDX-License-Identifier: Apache-2.0
/// FLUSH over a pool (IBTA annex A19).
#include "../../support/fake_relay.h"
#include "requests.h"

namespace nupa::pool::test {
namespace {

using Texts = std::vector<std::string>;
using nupa::test::FakeRelay;

SendWr flush(uint64_t id, uint64_t length, uint32_t flags = flush_flag::kGlobal) {
  SendWr wr;
  wr.wr_id = id;
  wr.opcode = Opcode::kFlush;
  wr.remote_addr = kBase + 8;
  wr.rkey = kKey;
  wr.imm_or_rkey = flags;
  wr.compare_add = length;
  return wr;
}

class PoolFlush : public PoolRequests {};

TEST_F(PoolFlush, Flush_BehindAWrite_EndsAfterIt) {
  fill(a, 0, 50'000);
  a.post(write(0), 0, 50'000);
  a.post(flush(1, 100));
  a.post(flush(2, 100, flush_flag::kGlobal | flush_flag::kRegion));
  ASSERT_TRUE(done(a, 3));
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(a.core().done[i].wr_id, i);
    EXPECT_EQ(a.core().done[i].status, WcStatus::kSuccess);
  }
  EXPECT_EQ(a.core().done[1].length, 0u);
  EXPECT_EQ(b.core().flushed, (Texts{"8+100", "region"}));
  EXPECT_TRUE(holds_pattern(b, 0, 50'000));
}

TEST_F(PoolFlush, WithoutTheRight_IsRefused) {
  a.post(flush(1, 100, flush_flag::kPersistent));
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(a.core().done[0].status, WcStatus::kRemAccessErr);
  ASSERT_EQ(b.core().refusals.size(), 1u);
  EXPECT_EQ(b.core().refusals[0], EventType::kQpAccessErr);
}

TEST_F(PoolFlush, ManyAtOnce_AllEnd) {
  constexpr size_t kMany = 40;
  for (size_t i = 0; i < kMany; ++i) a.post(flush(i, 1));
  ASSERT_TRUE(done(a, kMany));
  for (size_t i = 0; i < kMany; ++i) EXPECT_EQ(a.core().done[i].status, WcStatus::kSuccess) << i;
}

class PoolFlushRelay : public PoolEngine {
 protected:
  PoolFlushRelay() { hosts[1]->turn(); }
  FakeRelay relay;
  Pair a{*hosts[0], 1, 1, 2};
  Pair b{*hosts[1], 0, 2, 1, QpType::kRc, {}, &relay};
};

TEST_F(PoolFlushRelay, Flush_EndsWhenTheFarEndHasAnswered) {
  a.post(flush(1, 100));
  ASSERT_TRUE(until([&] { return relay.requests.size() == 1; }));
  EXPECT_EQ(relay.requests, (Texts{"FLUSH 1 of 100"}));
  for (int i = 0; i < 50; ++i) turns();
  EXPECT_TRUE(a.core().done.empty());
  relay.make_ready(7, {});
  b.answer();
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(a.core().done[0].status, WcStatus::kSuccess);
  EXPECT_TRUE(relay.answers.at(7).is_released);
}

}  // namespace
}  // namespace nupa::pool::test
