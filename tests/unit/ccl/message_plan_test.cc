// SPDX-License-Identifier: Apache-2.0
/// Tests of the choice of an algorithm for messages.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../../support/ccl_calls.h"
#include "ccl/planner/planner.h"
#include "channels.h"

namespace nupa::ccl {
namespace {

std::string name_of(const Call& call, ChannelGroup& group, const Wishes& wishes = {}) {
  const auto* const chosen = choose(call, group, wishes);
  return chosen == nullptr ? "none" : chosen->name;
}

Call call_of(Operation operation, size_t bytes) {
  Call call;
  call.operation = operation;
  call.elements = bytes;
  return call;
}

class NoChannels final : public ChannelGroup::Provider {
 public:
  void want(uint32_t) override {}
  Wait ready(uint32_t) override { return {}; }
  MessageChannel& channel(uint32_t) override { std::abort(); }
  uint32_t ahead() const override { return 1; }
  bool is_used(uint32_t) const override { return false; }
};

TEST(CclMessagePlan, Choose_UpTo16Ranks_ReducesInRankOrder) {
  NoChannels provider;
  for (const size_t bytes : {size_t{8}, size_t{1} << 24}) {
    ChannelGroup few(0, std::vector<uint32_t>(16), provider);
    ChannelGroup more(0, std::vector<uint32_t>(17), provider);
    for (const Operation operation :
         {Operation::kReduce, Operation::kAllReduce, Operation::kReduceScatter, Operation::kScan, Operation::kExscan}) {
      EXPECT_EQ(choose(call_of(operation, bytes), few)->order, Order::kOfRanks) << bytes;
      EXPECT_EQ(choose(call_of(operation, bytes), more)->order, Order::kOther) << bytes;
      EXPECT_EQ(choose(call_of(operation, bytes), more, {true, ""})->order, Order::kOfRanks) << bytes;
    }
  }
}

TEST(CclMessagePlan, Choose_UserOperator_IsNotTheRing) {
  NoChannels provider;
  ChannelGroup group(0, std::vector<uint32_t>(17), provider);
  Call call = call_of(Operation::kAllReduce, 1 << 24);
  EXPECT_EQ(name_of(call, group, {false, "ring"}), "ring");
  call.reducer.function = [](void*, const void*, size_t, int, void*) {};
  EXPECT_NE(name_of(call, group, {false, "ring"}), "ring");
  call.operation = Operation::kReduceScatter;
  EXPECT_EQ(name_of(call, group, {false, "ring"}), "direct");
}

TEST(CclMessagePlan, Choose_BlocksOfUnequalLength_AreNotCombined) {
  NoChannels provider;
  ChannelGroup group(0, std::vector<uint32_t>(17), provider);
  for (const Operation operation :
       {Operation::kGather, Operation::kScatter, Operation::kAllGather, Operation::kAllToAll}) {
    Call call = call_of(operation, 8);
    const char* const name = operation == Operation::kGather || operation == Operation::kScatter ? "binomial" : "bruck";
    EXPECT_EQ(name_of(call, group, {false, name}), name);
    call.equal = false;
    EXPECT_NE(name_of(call, group, {false, name}), name);
  }
}

TEST(CclMessagePlan, Choose_DeterministicBeyond512Ranks_FindsNoAlgorithm) {
  NoChannels provider;
  ChannelGroup most(0, std::vector<uint32_t>(kMaxSources), provider);
  ChannelGroup too_many(0, std::vector<uint32_t>(kMaxSources + 1), provider);
  EXPECT_EQ(name_of(call_of(Operation::kReduce, 8), most, {true, ""}), "direct");
  EXPECT_EQ(name_of(call_of(Operation::kReduce, 8), too_many, {true, ""}), "none");
}

TEST(CclMessagePlan, Choose_NamedAlgorithm_IsUsedWhereItFits) {
  NoChannels provider;
  ChannelGroup group(0, std::vector<uint32_t>(4), provider);
  EXPECT_EQ(name_of(call_of(Operation::kBroadcast, 8), group, {false, "four-ary"}), "four-ary");
  EXPECT_EQ(name_of(call_of(Operation::kBroadcast, 8), group, {false, "no-such"}), "direct");
  EXPECT_EQ(name_of(call_of(Operation::kAllReduce, 8), group, {true, "ring"}), "one-shot")
      << "not in the order of the ranks";
}

}  // namespace
}  // namespace nupa::ccl
