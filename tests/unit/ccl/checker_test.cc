// SPDX-License-Identifier: Apache-2.0
/// Tests of the checking mode: which calls agree, which rank an error names, and its text.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ccl/diagnostics/checker.h"
#include "ccl/diagnostics/description.h"

namespace nupa::ccl {
namespace {

Call sum_of(size_t elements) {
  Call call;
  call.operation = Operation::kAllReduce;
  call.reducer.reduction = {Type::kFloat32, Operator::kSum};
  call.elements = elements;
  return call;
}

Description described(const Call& call, uint64_t number = 1, uint32_t rank = 0, uint32_t ranks = 4) {
  return Description::of(call, number, rank, ranks);
}

TEST(CclDescription, AgreesWith_AnyFieldDiffers_IsFalse) {
  const Description right = described(sum_of(10));
  EXPECT_TRUE(right.agrees_with(right));
  const auto differs = [&](const auto& change) {
    Description other = right;
    change(other);
    return !other.agrees_with(right) && !right.agrees_with(other);
  };
  EXPECT_TRUE(differs([](Description& one) { ++one.number; }));
  EXPECT_TRUE(differs([](Description& one) { ++one.elements; }));
  EXPECT_TRUE(differs([](Description& one) { ++one.root; }));
  EXPECT_TRUE(differs([](Description& one) { one.operation = Operation::kScan; }));
  EXPECT_TRUE(differs([](Description& one) { one.purpose = Purpose::kDup; }));
  EXPECT_TRUE(differs([](Description& one) { ++one.type; }));
  EXPECT_TRUE(differs([](Description& one) { ++one.op; }));
  EXPECT_TRUE(differs([](Description& one) { one.equal = 0; }));
  Description lists = right;
  lists.equal = 0;
  Description other = lists;
  other.elements = 11;
  EXPECT_TRUE(lists.agrees_with(other)) << "with lists each rank has its own count";
}

TEST(CclDescription, Of_Call_HoldsAllItsFields) {
  Call call = sum_of(10);
  call.root = 3;
  call.purpose = Purpose::kSplit;
  const Description made = described(call, 7);
  EXPECT_EQ(made.number, 7u);
  EXPECT_EQ(made.elements, 10u);
  EXPECT_EQ(made.root, 3u);
  EXPECT_EQ(made.operation, Operation::kAllReduce);
  EXPECT_EQ(made.purpose, Purpose::kSplit);
  EXPECT_EQ(made.type, static_cast<uint8_t>(Type::kFloat32));
  EXPECT_EQ(made.op, static_cast<uint8_t>(Operator::kSum));
  EXPECT_EQ(made.equal, 1);
  call.reducer.function = [](void*, const void*, size_t, int, void*) {};
  EXPECT_EQ(described(call).op, Description::kFunction);
}

TEST(CclDescription, Ordinal_Number_HasTheEnglishSuffix) {
  const auto ordinal = [](uint64_t number) { return described(sum_of(1), number).ordinal(); };
  for (const auto& [number, text] : std::vector<std::pair<uint64_t, std::string>>{{1, "1st"},
                                                                                  {2, "2nd"},
                                                                                  {3, "3rd"},
                                                                                  {4, "4th"},
                                                                                  {10, "10th"},
                                                                                  {11, "11th"},
                                                                                  {12, "12th"},
                                                                                  {13, "13th"},
                                                                                  {19, "19th"},
                                                                                  {20, "20th"},
                                                                                  {21, "21st"},
                                                                                  {22, "22nd"},
                                                                                  {23, "23rd"},
                                                                                  {111, "111th"},
                                                                                  {121, "121st"}})
    EXPECT_EQ(ordinal(number), text);
}

TEST(CclDescription, Text_EachOperation_NamesItsArguments) {
  Call call = sum_of(100);
  EXPECT_EQ(described(call).text(), "all_reduce of 100 float32, sum");
  call.operation = Operation::kReduce;
  call.root = 1;
  EXPECT_EQ(described(call).text(), "reduce of 100 float32, sum, root 1");
  for (const Operation operation : {Operation::kBroadcast, Operation::kGather, Operation::kScatter}) {
    call.operation = operation;
    EXPECT_EQ(described(call).text(), std::string(name_of(operation)) + " of 100 float32, root 1");
  }
  call.operation = Operation::kAllGather;
  EXPECT_EQ(described(call).text(), "all_gather of 100 float32");
  call.purpose = Purpose::kDup;
  EXPECT_EQ(described(call).text(), "comm_dup");
  EXPECT_EQ(described(Call{}).text(), "barrier");
}

std::shared_ptr<const BlockLists> lists_of(const std::vector<size_t>& in, const std::vector<size_t>& out) {
  auto lists = std::make_shared<BlockLists>();
  lists->held = in;
  lists->held.insert(lists->held.end(), out.begin(), out.end());
  const size_t offsets = lists->held.size();
  lists->held.resize(offsets + std::max(in.size(), out.size()));
  const size_t* const held = lists->held.data();
  lists->in = {0, held, held + offsets};
  lists->out = {0, held + in.size(), held + offsets};
  return lists;
}

TEST(CclFlows, FlowsOf_EachOperation_HoldsTheBytesSentAndReceivedByRank) {
  Call call;
  call.equal = false;
  call.elements = 5;
  call.root = 1;
  call.lists = lists_of({1, 2, 3}, {4, 5, 6});
  using Flows = std::vector<uint64_t>;
  const auto flows = [&](Operation operation, uint32_t rank) {
    call.operation = operation;
    return flows_of(call, rank, 3);
  };
  EXPECT_EQ(flows(Operation::kGather, 0), (Flows{0, 5, 0, 0, 0, 0}));
  EXPECT_EQ(flows(Operation::kGather, 1), (Flows{0, 5, 0, 4, 5, 6}));
  EXPECT_EQ(flows(Operation::kScatter, 0), (Flows{0, 0, 0, 0, 5, 0}));
  EXPECT_EQ(flows(Operation::kScatter, 1), (Flows{1, 2, 3, 0, 5, 0}));
  EXPECT_EQ(flows(Operation::kAllToAll, 0), (Flows{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(flows(Operation::kAllGather, 0), (Flows{4, 5, 6, 0, 0, 0}));
  EXPECT_EQ(flows(Operation::kReduceScatter, 0), (Flows{1, 2, 3, 0, 0, 0}));
}

/// The checks of all ranks, whose exchanges give the tables that the test has made.
class CclChecker : public ::testing::Test {
 protected:
  /// As rank 0 has it: `calls` are all ranks'.
  Cause check(const std::vector<Call>& calls, const std::vector<uint64_t>& numbers = {}) {
    const auto ranks = static_cast<uint32_t>(calls.size());
    exchanges = barriers = 0;
    Checker checker(0, ranks, [&](Call& call) {
      if (call.operation == Operation::kBarrier) {
        ++barriers;
        return 0;
      }
      ++exchanges;
      if (error_of_exchange != 0) return error_of_exchange;
      auto* to = static_cast<std::byte*>(call.out);
      for (uint32_t rank = 0; rank < ranks; ++rank, to += call.elements) {
        if (exchanges == 1) {
          const Description made = Description::of(calls[rank], numbers.empty() ? 1 : numbers[rank], rank, ranks);
          EXPECT_EQ(call.elements, sizeof made);
          std::memcpy(to, &made, sizeof made);
        } else {
          const std::vector<uint64_t> flows = flows_of(calls[rank], rank, ranks);
          EXPECT_EQ(call.elements, flows.size() * sizeof flows[0]);
          std::memcpy(to, flows.data(), call.elements);
        }
      }
      return 0;
    });
    const Cause cause = checker.check(calls[0], numbers.empty() ? 1 : numbers[0]);
    text = checker.text();
    return cause;
  }

  std::string text;
  int exchanges = 0;
  int barriers = 0;
  int error_of_exchange = 0;
};

TEST_F(CclChecker, Check_AllCallsAgree_ReportsNothing) {
  EXPECT_FALSE(check({sum_of(5), sum_of(5), sum_of(5)}));
  EXPECT_EQ(text, "");
  EXPECT_EQ(exchanges, 1);
  EXPECT_EQ(barriers, 0);
  EXPECT_FALSE(check({sum_of(5)}));
  EXPECT_EQ(exchanges, 0) << "one rank agrees with itself";
}

TEST_F(CclChecker, Check_CallsDiffer_NamesTheFirstRankThatDiffersFromMost) {
  const Cause cause = check({sum_of(6), sum_of(5), sum_of(7), sum_of(5), sum_of(5)});
  EXPECT_EQ(cause.error, EPROTO);
  EXPECT_EQ(cause.rank, 0u);
  EXPECT_EQ(text,
            "rank 0 called all_reduce of 6 float32, sum (its 1st), rank 1 all_reduce of 5 float32, sum; 1 more differ "
            "from rank 1");
  EXPECT_EQ(barriers, 1) << "all have the text before one ends";
}

TEST_F(CclChecker, Check_TwoEqualHalves_TheFirstHalfIsRight) {
  EXPECT_EQ(check({sum_of(5), sum_of(6), sum_of(6), sum_of(5)}).rank, 1u);
  EXPECT_EQ(check({sum_of(5), sum_of(6)}).rank, 1u);
}

TEST_F(CclChecker, Check_NumbersOfCallsDiffer_NamesTheRank) {
  const Cause cause = check({sum_of(5), sum_of(5), sum_of(5)}, {3, 3, 4});
  EXPECT_EQ(cause.error, EPROTO);
  EXPECT_EQ(cause.rank, 2u);
  EXPECT_NE(text.find("(its 4th)"), std::string::npos) << text;
}

TEST_F(CclChecker, Check_ExchangeFails_ReturnsItsErrorAndNamesNoRank) {
  error_of_exchange = ECONNRESET;
  const Cause cause = check({sum_of(5), sum_of(6)});
  EXPECT_EQ(cause.error, ECONNRESET);
  EXPECT_EQ(cause.rank, kNoRank);
  EXPECT_EQ(text, "");
  EXPECT_EQ(barriers, 0);
}

Call gatherv_of(size_t bytes, const std::vector<size_t>& at_root) {
  Call call;
  call.operation = Operation::kGather;
  call.equal = false;
  call.elements = bytes;
  if (!at_root.empty()) call.lists = lists_of({}, at_root);
  return call;
}

TEST_F(CclChecker, Check_GathervCountsDiffer_NamesTheSender) {
  EXPECT_FALSE(check({gatherv_of(1, {1, 2, 3}), gatherv_of(2, {}), gatherv_of(3, {})}));
  EXPECT_EQ(exchanges, 1) << "sums tell that all agree";
  // As many bytes in all, but not of the same ranks.
  const Cause cause = check({gatherv_of(1, {1, 2, 3}), gatherv_of(3, {}), gatherv_of(2, {})});
  EXPECT_EQ(cause.error, EPROTO);
  EXPECT_EQ(cause.rank, 1u);
  EXPECT_EQ(text, "gatherv of uint8, root 0 (the 1st): rank 1 sends 3 uint8 to rank 0, which expects 2 uint8");
  EXPECT_EQ(exchanges, 2);
  EXPECT_EQ(barriers, 1);
}

Call scatterv_of(size_t bytes, const std::vector<size_t>& at_root) {
  Call call = gatherv_of(bytes, {});
  call.operation = Operation::kScatter;
  if (!at_root.empty()) call.lists = lists_of(at_root, {});
  return call;
}

TEST_F(CclChecker, Check_ScattervCountsDiffer_NamesTheReceiver) {
  EXPECT_FALSE(check({scatterv_of(1, {1, 2, 3}), scatterv_of(2, {}), scatterv_of(3, {})}));
  const Cause cause = check({scatterv_of(1, {1, 2, 3}), scatterv_of(2, {}), scatterv_of(4, {})});
  EXPECT_EQ(cause.rank, 2u);
  EXPECT_EQ(text, "scatterv of uint8, root 0 (the 1st): rank 0 sends 3 uint8 to rank 2, which expects 4 uint8");
}

Call all_gatherv_of(const std::vector<size_t>& bytes) {
  Call call;
  call.operation = Operation::kAllGather;
  call.equal = false;
  call.lists = lists_of({}, bytes);
  return call;
}

TEST_F(CclChecker, Check_AllGathervListsDiffer_NamesTheFirstRankThatDiffers) {
  EXPECT_FALSE(check({all_gatherv_of({1, 2, 3}), all_gatherv_of({1, 2, 3}), all_gatherv_of({1, 2, 3})}));
  const Cause cause = check({all_gatherv_of({1, 2, 3}), all_gatherv_of({1, 2, 3}), all_gatherv_of({2, 1, 3})});
  EXPECT_EQ(cause.error, EPROTO);
  EXPECT_EQ(cause.rank, 2u);
  EXPECT_EQ(text, "rank 2 called all_gatherv of uint8 (the 1st) with 2 uint8 of rank 0, rank 0 with 1 uint8");
}

TEST_F(CclChecker, Check_MoreThan1024Ranks_ReportsTheErrorAndNamesNoRank) {
  std::vector<Call> calls(1025, gatherv_of(1, {}));
  calls[0] = gatherv_of(1, std::vector<size_t>(1025, 1));
  EXPECT_FALSE(check(calls));
  calls[7].elements = 2;
  const Cause cause = check(calls);
  EXPECT_EQ(cause.error, EPROTO);
  EXPECT_EQ(cause.rank, kNoRank);
  EXPECT_EQ(exchanges, 1) << "all counts would be too much";
  EXPECT_EQ(text, "gatherv of uint8, root 0 (the 1st): ranks have counts that do not agree");
}

}  // namespace
}  // namespace nupa::ccl
