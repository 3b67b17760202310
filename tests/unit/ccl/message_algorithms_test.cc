// SPDX-License-Identifier: Apache-2.0
/// Tests of whole algorithms over channels, with more fragments than may be under way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "../../support/ccl_calls.h"
#include "ccl/algorithms/messages.h"
#include "ccl/p2p/message_peer.h"
#include "channels.h"

namespace nupa::ccl {
namespace {

using Numbers = std::vector<uint32_t>;
using Reduce = CollectiveTask (*)(ChannelGroup&, const Call&);

/// Runs all ranks' steps in one thread, in an order that changes. False: all wait for each other, or one has failed.
bool play(std::vector<CollectiveTask>& all, uint32_t seed) {
  std::mt19937 random(seed);
  for (CollectiveTask& steps : all) (void)steps.go_on();
  while (true) {
    // Channels change only by these steps. If no rank can go on, no rank ever will.
    std::vector<CollectiveTask*> can;
    bool are_done = true;
    for (CollectiveTask& steps : all) {
      if (steps.is_done()) continue;
      are_done = false;
      if (steps.waits_for().is_over()) can.push_back(&steps);
    }
    if (are_done) break;
    if (can.empty()) return false;
    (void)can[random() % can.size()]->go_on();
  }
  return std::all_of(all.begin(), all.end(), [](const CollectiveTask& steps) { return steps.result() == 0; });
}

constexpr size_t kInPiece = 4096 / sizeof(uint32_t);
/// Nothing, less than a piece, whole pieces, and more of them than a channel has.
constexpr size_t kElements[] = {0, 1, kInPiece - 1, kInPiece, kInPiece + 1, 2 * kInPiece, 45 * kInPiece + 7};

Numbers numbers_of(uint32_t rank, size_t elements) {
  Numbers numbers(elements);
  for (size_t i = 0; i < elements; ++i) numbers[i] = static_cast<uint32_t>(i * 16 + rank * 1000003);
  return numbers;
}

Numbers sum_of(uint32_t begin, uint32_t end, size_t elements) {
  Numbers sum(elements);
  for (uint32_t rank = begin; rank < end; ++rank) {
    const Numbers one = numbers_of(rank, elements);
    for (size_t i = 0; i < elements; ++i) sum[i] += one[i];
  }
  return sum;
}

enum class Which : uint8_t { kAll, kRoot, kBeforeAndOwn, kBefore };

/// Each rank has its numbers in `in` and as much room in `out`, unless it is done in place.
void expect_reduced(const char* name, Reduce algorithm, Which which) {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 8u})
    for (const size_t elements : kElements)
      for (const bool in_place : {false, true}) {
        ChannelWorld world(ranks);
        std::vector<Numbers> in;
        std::vector<Numbers> out(ranks, Numbers(elements));
        KeptCalls calls;
        std::vector<CollectiveTask> all;
        const uint32_t root = ranks / 2;
        for (uint32_t rank = 0; rank < ranks; ++rank) in.push_back(numbers_of(rank, elements));
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          auto* const to = in_place ? in[rank].data() : out[rank].data();
          const Operation operation = which == Which::kBefore ? Operation::kExscan : Operation::kScan;
          const Call& call = calls.keep(reduce_call(kSum, in[rank].data(), to, elements, root, {}, operation));
          all.push_back(algorithm(world.group(rank), call));
        }
        ASSERT_TRUE(play(all, ranks)) << name << " of " << elements << " at " << ranks << " ranks";
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          if ((which == Which::kRoot && rank != root) || (which == Which::kBefore && rank == 0)) continue;
          const uint32_t end = which == Which::kBefore ? rank : which == Which::kBeforeAndOwn ? rank + 1 : ranks;
          ASSERT_EQ((in_place ? in : out)[rank], sum_of(0, end, elements))
              << name << " of " << elements << " at rank " << rank << " of " << ranks;
        }
      }
}

TEST(CclMessageAlgorithms, Reductions_EachAlgorithmAndSize_EqualTheSum) {
  using namespace messages;
  expect_reduced("one-shot", all_reduce_one_shot, Which::kAll);
  expect_reduced("slices", all_reduce_slices, Which::kAll);
  expect_reduced("doubling", all_reduce_doubling, Which::kAll);
  expect_reduced("halving", all_reduce_halving, Which::kAll);
  expect_reduced("ring", all_reduce_ring, Which::kAll);
  expect_reduced("direct", reduce_direct, Which::kRoot);
  expect_reduced(
      "binomial", [](ChannelGroup& group, const Call& call) { return reduce_tree(group, call, Tree::kBinomial); },
      Which::kRoot);
  expect_reduced(
      "four-ary", [](ChannelGroup& group, const Call& call) { return reduce_tree(group, call, Tree::kFourAry); },
      Which::kRoot);
  for (const Reduce scan : {scan_direct, scan_doubling}) {
    expect_reduced("scan", scan, Which::kBeforeAndOwn);
    expect_reduced("exscan", scan, Which::kBefore);
  }
}

/// Lengths of blocks, by rank, with a gap behind each.
struct Lists {
  std::vector<size_t> lengths;
  std::vector<size_t> offsets;
  explicit Lists(const std::vector<size_t>& elements, size_t gap = 3) {
    size_t at = 0;
    for (const size_t count : elements) {
      lengths.push_back(count * sizeof(uint32_t));
      offsets.push_back(at);
      at += (count + gap) * sizeof(uint32_t);
    }
  }
  Blocks blocks() const { return {0, lengths.data(), offsets.data()}; }
  size_t room() const { return (offsets.back() + lengths.back()) / sizeof(uint32_t) + 3; }
};

constexpr uint32_t kGap = 0x77777777;

/// What rank `from` has for `to`.
Numbers block_of(uint32_t from, uint32_t to, size_t elements) { return numbers_of(from * 64 + to, elements); }

size_t length_of(uint32_t from, uint32_t to) { return kElements[(from * 3 + to * 5) % std::size(kElements)]; }

void put(const Numbers& block, size_t offset, Numbers* to) {
  std::copy(block.begin(), block.end(), to->begin() + static_cast<ptrdiff_t>(offset / sizeof(uint32_t)));
}

void expect_exchanged(CollectiveTask (*algorithm)(ChannelGroup&, const Call&), uint32_t ranks, bool in_place) {
  ChannelWorld world(ranks);
  std::vector<Lists> gives;
  std::vector<Lists> gets;
  std::vector<Numbers> in;
  std::vector<Numbers> out;
  std::vector<Numbers> expected;
  KeptCalls calls;
  std::vector<CollectiveTask> all;
  // In place both lists are the same.
  const auto given = [&](uint32_t from, uint32_t to) {
    return in_place ? length_of(std::min(from, to), std::max(from, to)) : length_of(from, to);
  };
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    std::vector<size_t> give;
    std::vector<size_t> get;
    for (uint32_t other = 0; other < ranks; ++other) {
      give.push_back(given(rank, other));
      get.push_back(given(other, rank));
    }
    gives.emplace_back(give);
    gets.emplace_back(get);
    in.emplace_back(gives[rank].room(), kGap);
    out.emplace_back(gets[rank].room(), kGap);
    expected.emplace_back(gets[rank].room(), kGap);
    for (uint32_t other = 0; other < ranks; ++other) {
      put(block_of(rank, other, give[other]), gives[rank].offsets[other], &in[rank]);
      put(block_of(other, rank, get[other]), gets[rank].offsets[other], &expected[rank]);
    }
  }
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    auto* const to = in_place ? in[rank].data() : out[rank].data();
    const Call& call = calls.keep(exchange_call(in[rank].data(), gives[rank].blocks(), to, gets[rank].blocks(), false));
    all.push_back(algorithm(world.group(rank), call));
  }
  ASSERT_TRUE(play(all, ranks)) << ranks;
  EXPECT_EQ(in_place ? in : out, expected) << ranks << (in_place ? " in place" : "");
}

TEST(CclMessageAlgorithms, AllToAll_BlocksOfDifferentLengths_ReachEachRank) {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 8u})
    for (const bool in_place : {false, true}) {
      expect_exchanged(messages::all_to_all_direct, ranks, in_place);
      expect_exchanged(messages::all_to_all_pairwise, ranks, in_place);
    }
}

TEST(CclMessageAlgorithms, AllGather_BlocksOfDifferentLengths_ReachEachRank) {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 8u})
    for (CollectiveTask (*const algorithm)(ChannelGroup&, const Call&) :
         {messages::all_gather_direct, messages::all_gather_ring}) {
      ChannelWorld world(ranks);
      std::vector<size_t> lengths;
      for (uint32_t rank = 0; rank < ranks; ++rank) lengths.push_back(length_of(rank, 1));
      const Lists lists(lengths);
      Numbers expected(lists.room(), kGap);
      std::vector<Numbers> out(ranks, expected);
      std::vector<Numbers> in;
      KeptCalls calls;
      std::vector<CollectiveTask> all;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        in.push_back(block_of(rank, 0, lengths[rank]));
        put(in[rank], lists.offsets[rank], &expected);
        const Call& call =
            calls.keep(gather_call(0, in[rank].data(), lists.lengths[rank], out[rank].data(), lists.blocks(), false));
        all.push_back(algorithm(world.group(rank), call));
      }
      ASSERT_TRUE(play(all, ranks)) << ranks;
      for (uint32_t rank = 0; rank < ranks; ++rank) ASSERT_EQ(out[rank], expected) << rank << " of " << ranks;
    }
}

TEST(CclMessageAlgorithms, ReduceScatter_BlocksOfDifferentLengths_EqualTheSum) {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 8u})
    for (const Reduce algorithm : {messages::reduce_scatter_direct, messages::reduce_scatter_ring}) {
      ChannelWorld world(ranks);
      std::vector<size_t> lengths;
      for (uint32_t rank = 0; rank < ranks; ++rank) lengths.push_back(length_of(rank, 2));
      const Lists lists(lengths, 0);
      const size_t whole = lists.room() - 3;
      std::vector<Numbers> in;
      std::vector<Numbers> out;
      KeptCalls calls;
      std::vector<CollectiveTask> all;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        in.push_back(numbers_of(rank, whole));
        out.emplace_back(lengths[rank]);
        const Call& call = calls.keep(reduce_call(kSum, in[rank].data(), out[rank].data(), whole, 0, lists.blocks()));
        all.push_back(algorithm(world.group(rank), call));
      }
      ASSERT_TRUE(play(all, ranks)) << ranks;
      const Numbers sum = sum_of(0, ranks, whole);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        const auto begin = sum.begin() + static_cast<ptrdiff_t>(lists.offsets[rank] / sizeof(uint32_t));
        ASSERT_EQ(out[rank], Numbers(begin, begin + static_cast<ptrdiff_t>(lengths[rank]))) << rank << " of " << ranks;
        ASSERT_EQ(in[rank], numbers_of(rank, whole)) << "nothing of it was changed";
      }
    }
}

/// Equal blocks of all ranks, one after the other.
Numbers whole_of(uint32_t ranks, size_t elements) {
  Numbers whole;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const Numbers one = numbers_of(rank, elements);
    whole.insert(whole.end(), one.begin(), one.end());
  }
  return whole;
}

TEST(CclMessageAlgorithms, BroadcastGatherScatter_EachRoot_DeliverEqualBlocks) {
  using namespace messages;
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 7u, 8u})
    for (const size_t elements : kElements)
      for (uint32_t root = 0; root < ranks; root += 2) {
        const size_t bytes = elements * sizeof(uint32_t);
        const Numbers whole = whole_of(ranks, elements);
        const std::string text =
            std::to_string(elements) + " at " + std::to_string(ranks) + " ranks, root " + std::to_string(root);
        for (const int kind : {0, 1, 2}) {
          ChannelWorld world(ranks);
          std::vector<Numbers> data(ranks, Numbers(elements, kGap));
          data[root] = numbers_of(root, elements);
          KeptCalls calls;
          std::vector<CollectiveTask> all;
          for (uint32_t rank = 0; rank < ranks; ++rank) {
            const Call& call = calls.keep(broadcast_call(root, data[rank].data(), bytes));
            const Tree tree = kind == 1 ? Tree::kBinomial : Tree::kFourAry;
            all.push_back(kind == 0 ? broadcast_direct(world.group(rank), call)
                                    : broadcast_tree(world.group(rank), call, tree));
          }
          ASSERT_TRUE(play(all, ranks)) << "broadcast of " << text;
          for (const Numbers& one : data) ASSERT_EQ(one, numbers_of(root, elements)) << "broadcast of " << text;
        }
        for (CollectiveTask (*const algorithm)(ChannelGroup&, const Call&) : {gather_direct, gather_tree}) {
          ChannelWorld world(ranks);
          std::vector<Numbers> in;
          Numbers out(whole.size(), kGap);
          KeptCalls calls;
          std::vector<CollectiveTask> all;
          for (uint32_t rank = 0; rank < ranks; ++rank) {
            in.push_back(numbers_of(rank, elements));
            const Call& call =
                calls.keep(gather_call(root, in[rank].data(), bytes, rank == root ? out.data() : nullptr, {bytes}));
            all.push_back(algorithm(world.group(rank), call));
          }
          ASSERT_TRUE(play(all, ranks)) << "gather of " << text;
          ASSERT_EQ(out, whole) << "gather of " << text;
        }
        for (CollectiveTask (*const algorithm)(ChannelGroup&, const Call&) : {scatter_direct, scatter_tree}) {
          ChannelWorld world(ranks);
          std::vector<Numbers> out(ranks, Numbers(elements, kGap));
          KeptCalls calls;
          std::vector<CollectiveTask> all;
          for (uint32_t rank = 0; rank < ranks; ++rank) {
            const void* const from = rank == root ? whole.data() : nullptr;
            const Call& call = calls.keep(scatter_call(root, from, {bytes}, out[rank].data(), bytes));
            all.push_back(algorithm(world.group(rank), call));
          }
          ASSERT_TRUE(play(all, ranks)) << "scatter of " << text;
          for (uint32_t rank = 0; rank < ranks; ++rank)
            ASSERT_EQ(out[rank], numbers_of(rank, elements)) << "scatter of " << text;
        }
      }
}

TEST(CclMessageAlgorithms, AllGatherAndAllToAll_EqualBlocks_ReachEachRank) {
  using namespace messages;
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 7u, 8u})
    for (const size_t elements : kElements) {
      const size_t bytes = elements * sizeof(uint32_t);
      const Numbers whole = whole_of(ranks, elements);
      for (CollectiveTask (*const algorithm)(ChannelGroup&, const Call&) :
           {all_gather_direct, all_gather_bruck, all_gather_ring}) {
        ChannelWorld world(ranks);
        std::vector<Numbers> in;
        std::vector<Numbers> out(ranks, Numbers(whole.size(), kGap));
        KeptCalls calls;
        std::vector<CollectiveTask> all;
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          in.push_back(numbers_of(rank, elements));
          const Call& call = calls.keep(gather_call(0, in[rank].data(), bytes, out[rank].data(), {bytes}));
          all.push_back(algorithm(world.group(rank), call));
        }
        ASSERT_TRUE(play(all, ranks)) << elements << " at " << ranks;
        for (const Numbers& one : out) ASSERT_EQ(one, whole) << elements << " at " << ranks;
      }
      ChannelWorld world(ranks);
      std::vector<Numbers> in;
      std::vector<Numbers> out(ranks, Numbers(whole.size(), kGap));
      KeptCalls calls;
      std::vector<CollectiveTask> all;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        in.push_back(numbers_of(rank, whole.size()));
        const Call& call = calls.keep(exchange_call(in[rank].data(), {bytes}, out[rank].data(), {bytes}));
        all.push_back(all_to_all_bruck(world.group(rank), call));
      }
      ASSERT_TRUE(play(all, ranks)) << elements << " at " << ranks;
      for (uint32_t rank = 0; rank < ranks; ++rank)
        for (uint32_t from = 0; from < ranks; ++from)
          ASSERT_TRUE(std::equal(out[rank].begin() + static_cast<ptrdiff_t>(from * elements),
                                 out[rank].begin() + static_cast<ptrdiff_t>((from + 1) * elements),
                                 in[from].begin() + static_cast<ptrdiff_t>(rank * elements)))
              << elements << " from " << from << " to " << rank << " of " << ranks;
    }
}

/// A barrier's fragments carry no data. The test checks which rank waits for which.
TEST(CclMessageAlgorithms, Barrier_OneRankHasNotEntered_NoneReturns) {
  for (const uint32_t ranks : {2u, 3u, 5u, 8u})
    for (uint32_t late = 0; late < ranks; ++late) {
      ChannelWorld world(ranks);
      std::vector<CollectiveTask> all;
      for (uint32_t rank = 0; rank < ranks; ++rank)
        if (rank != late) all.push_back(messages::barrier(world.group(rank)));
      EXPECT_FALSE(play(all, late));
      for (const CollectiveTask& steps : all) EXPECT_FALSE(steps.is_done()) << late << " of " << ranks;
      all.push_back(messages::barrier(world.group(late)));
      for (size_t turn = 0; turn < ranks * ranks; ++turn)
        for (CollectiveTask& steps : all)
          if (!steps.is_done()) (void)steps.go_on();
      for (const CollectiveTask& steps : all) EXPECT_TRUE(steps.is_done()) << late << " of " << ranks;
    }
}

}  // namespace
}  // namespace nupa::ccl
