// SPDX-License-Identifier: Apache-2.0
/// What an owner knows about the memory that it has granted, and a requester about what it may write to.
#include <gtest/gtest.h>

#include "transport/pool/grants.h"

namespace nupa::pool {
namespace {

using Which = Grants::Which;

constexpr ProcessId kPeer{1, 2, 33};
constexpr ProcessId kOther{1, 2, 34};  ///< a later life of the same record

Grant region(uint32_t rkey, uint32_t qp_num = 5, const ProcessId& peer = kPeer) {
  return {.peer = peer,
          .qp_num = qp_num,
          .requester = 9,
          .rkey = rkey,
          .address = 0,
          .bytes = 8192,
          .offset = rkey * 8192ull};
}

TEST(PoolGrants, Add_ARegionTwice_IsOneGrant) {
  Grants grants;
  Grant one = region(1), again = region(1), other = region(1, 6);
  EXPECT_TRUE(grants.add(&one));
  EXPECT_FALSE(grants.add(&again));
  EXPECT_TRUE(grants.add(&other)) << "of another queue pair";
  EXPECT_NE(one.number, other.number);
  grants.drop(one.number);
  EXPECT_TRUE(grants.add(&again));
}

TEST(PoolGrants, Add_BeyondTheRegionsOfAQueuePair_IsRefused) {
  Grants grants;
  for (uint32_t rkey = 1; rkey <= kMostGranted; ++rkey) {
    Grant grant = region(rkey);
    EXPECT_TRUE(grants.add(&grant));
  }
  Grant more = region(99), other = region(99, 6);
  EXPECT_FALSE(grants.add(&more));
  EXPECT_TRUE(grants.add(&other));
}

TEST(PoolGrants, Has_OnlyForItsPeerQueuePairAndKey) {
  Grants grants;
  Grant grant = region(1);
  grants.add(&grant);
  EXPECT_TRUE(grants.has(grant.number, kPeer, 5, 1));
  EXPECT_FALSE(grants.has(grant.number + 1, kPeer, 5, 1));
  EXPECT_FALSE(grants.has(grant.number, kOther, 5, 1));
  EXPECT_FALSE(grants.has(grant.number, kPeer, 6, 1));
  EXPECT_FALSE(grants.has(grant.number, kPeer, 5, 2));
}

TEST(PoolGrants, AskBack_IsOverWhenThePeerReturns) {
  Grants grants;
  Grant grant = region(1), other = region(2);
  grants.add(&grant);
  grants.add(&other);
  EXPECT_FALSE(grants.ask_back({.rkey = 3, .qp_num = 0}));
  EXPECT_TRUE(grants.ask_back({.rkey = 1, .qp_num = 0}));
  ASSERT_EQ(grants.unasked().size(), 1u);
  EXPECT_EQ(grants.unasked()[0].number, grant.number);
  EXPECT_TRUE(grants.has_unasked());
  grants.asked(grant.number);
  EXPECT_FALSE(grants.has_unasked());
  EXPECT_TRUE(grants.has(grant.number, kPeer, 5, 1)) << "what it placed before it was asked counts";
  EXPECT_TRUE(grants.awaits({.rkey = 1, .qp_num = 0}));
  grants.returned(kOther, grant.number);
  EXPECT_TRUE(grants.awaits({.rkey = 1, .qp_num = 0})) << "another process cannot return it";
  grants.returned(kPeer, grant.number);
  EXPECT_FALSE(grants.awaits({.rkey = 1, .qp_num = 0}));
  EXPECT_FALSE(grants.covers(grant.offset, 1));
  EXPECT_TRUE(grants.covers(other.offset, 1));
}

TEST(PoolGrants, Abandoned_NobodyWaits_AndTheMemoryIsKept) {
  Grants grants;
  Grant late = region(1), other = region(2), of_other = region(3, 5, kOther);
  grants.add(&late);
  grants.add(&other);
  grants.add(&of_other);
  grants.ask_back({.rkey = 1, .qp_num = 0});
  EXPECT_EQ(grants.abandon(Which{.rkey = 1, .qp_num = 0}), 1u);
  EXPECT_FALSE(grants.has(late.number, kPeer, 5, 1)) << "the key may name other memory by now";
  EXPECT_TRUE(grants.has(other.number, kPeer, 5, 2));
  EXPECT_FALSE(grants.awaits({.rkey = 2, .qp_num = 0})) << "the peer does not answer";
  EXPECT_TRUE(grants.awaits({.rkey = 3, .qp_num = 0}));
  EXPECT_EQ(grants.abandoned(), std::vector<ProcessId>{kPeer});
  EXPECT_TRUE(grants.covers(late.offset, 1));
  // It answers one question, so it will answer the next one.
  grants.returned(kPeer, other.number);
  EXPECT_TRUE(grants.awaits({.rkey = 1, .qp_num = 0}));
  EXPECT_FALSE(grants.has(late.number, kPeer, 5, 1));
  grants.ended(kPeer);
  EXPECT_FALSE(grants.covers(late.offset, 1));
  EXPECT_TRUE(grants.any());
}

TEST(PoolGrants, SilentPeer_IsAwaitedAgainWhenItLives) {
  Grants grants;
  Grant grant = region(1);
  grants.add(&grant);
  grants.abandon(kPeer);
  EXPECT_FALSE(grants.awaits({}));
  EXPECT_TRUE(grants.has(grant.number, kPeer, 5, 1)) << "it was not asked for it";
  grants.revive(kPeer);
  EXPECT_TRUE(grants.awaits({}));
}

TEST(PoolGrants, Covers_TheBytesOfTheRegionAlone) {
  Grants grants;
  Grant grant = region(2);  // [16384, 24576)
  grants.add(&grant);
  EXPECT_FALSE(grants.covers(0, 16384));
  EXPECT_TRUE(grants.covers(0, 16385));
  EXPECT_TRUE(grants.covers(24575, 1));
  EXPECT_FALSE(grants.covers(24576, 100));
}

TEST(PoolGranted, Find_WithinARegion) {
  std::byte memory[100];
  Granted granted;
  EXPECT_TRUE(granted.empty());
  EXPECT_TRUE(granted.add({.number = 1, .rkey = 7, .address = 1000, .bytes = 100, .at = memory}));
  EXPECT_NE(granted.find(7, 1000, 100), nullptr);
  EXPECT_NE(granted.find(7, 1099, 1), nullptr);
  EXPECT_EQ(granted.find(7, 999, 10), nullptr);
  EXPECT_EQ(granted.find(7, 1001, 100), nullptr);
  EXPECT_EQ(granted.find(7, 1000, ~uint64_t{0}), nullptr);
  EXPECT_EQ(granted.find(8, 1000, 1), nullptr);
  granted.remove(2);
  EXPECT_NE(granted.find(7, 1000, 1), nullptr);
  granted.remove(1);
  EXPECT_EQ(granted.find(7, 1000, 1), nullptr);
  EXPECT_TRUE(granted.empty());
}

TEST(PoolGranted, Add_WithoutRoom_IsRefused) {
  Granted granted;
  for (uint32_t i = 1; i <= kMostGranted; ++i)
    EXPECT_TRUE(granted.add({.number = i, .rkey = i, .address = 0, .bytes = 1, .at = nullptr}));
  EXPECT_FALSE(granted.add({.number = 99, .rkey = 99, .address = 0, .bytes = 1, .at = nullptr}));
  granted.remove(1);
  EXPECT_TRUE(granted.add({.number = 99, .rkey = 99, .address = 0, .bytes = 1, .at = nullptr}));
  for (uint32_t i = 2; i <= kMostGranted; ++i) EXPECT_NE(granted.find(i, 0, 1), nullptr);
}

}  // namespace
}  // namespace nupa::pool
