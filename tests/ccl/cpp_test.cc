// SPDX-License-Identifier: Apache-2.0
/// nupa/ccl.hpp: each function calls its counterpart in nupa/ccl.h, and refuses arrays that are too short.
#include <gtest/gtest.h>
#include <nupa/ccl.hpp>

#include <array>
#include <numeric>

#include "job.h"

namespace nupa::ccl {
namespace {

namespace cc = nupa::collectives;

/// A communicator of the job's ranks.
cc::Communicator world_of(const Rank& rank) { return {rank.ranks(), rank.id(), rank.rank()}; }

TEST(CclCpp, EachOperation_ThroughTheCppApi_GivesTheSameResult) {
  const auto endings = run_job(3, [](Rank& rank) {
    cc::Communicator world = world_of(rank);
    const auto self = static_cast<int>(world.rank());
    rank.expect(world.size() == 3 && world.rank() == rank.rank() && world.error() == 0, "who it is");
    using Ints = std::vector<int>;

    Ints data(5, self);
    world.broadcast(data, 1);
    rank.expect(data == Ints(5, 1), "broadcast");

    const std::array<int, 2> own{self, 10 + self};
    Ints all(6);
    world.all_gather(own, all);
    rank.expect(all == Ints({0, 10, 1, 11, 2, 12}), "all_gather");
    Ints at_root(self == 2 ? 6 : 0);
    world.gather(own, at_root, 2);
    rank.expect(self != 2 || at_root == all, "gather");
    Ints part(2);
    world.scatter(at_root, part, 2);
    rank.expect(part == Ints({self, 10 + self}), "scatter");

    const Ints gives{self * 3, self * 3 + 1, self * 3 + 2};
    Ints gets(3);
    world.all_to_all(gives, gets);
    rank.expect(gets == Ints({self, self + 3, self + 6}), "all_to_all");

    Ints sum(2);
    world.all_reduce(own, sum);
    rank.expect(sum == Ints({3, 33}), "all_reduce");
    world.all_reduce(own, std::span(sum), cc::kMax);
    rank.expect(sum == Ints({2, 12}), "the largest");
    Ints rooted(self == 0 ? 2 : 0);
    world.reduce(own, rooted, cc::kSum, 0);
    rank.expect(self != 0 || rooted == Ints({3, 33}), "reduce");
    Ints one(1);
    world.reduce_scatter(gives, one);
    rank.expect(one == Ints({9 + 3 * self}), "reduce_scatter");
    world.scan(std::span<const int>(own), sum);
    rank.expect(sum[0] == self * (self + 1) / 2, "scan");
    world.exscan(own, sum, cc::kSum);
    rank.expect(self == 0 || sum[0] == self * (self - 1) / 2, "exscan");
    world.barrier();

    // Lists: rank r has r + 1 elements, with gaps.
    const std::vector<size_t> counts{1, 2, 3};
    const std::vector<size_t> offsets{0, 2, 5};
    const Ints mine(counts[world.rank()], 100 + self);
    const Ints whole{100, -1, 101, 101, -1, 102, 102, 102};
    Ints gathered(8, -1);
    world.all_gather(mine, gathered, {counts, offsets});
    rank.expect(gathered == whole, "all_gather of parts");
    Ints gathered_at_root(self == 1 ? 8 : 0, -1);
    world.gather(mine, gathered_at_root, {counts, offsets}, 1);
    rank.expect(self != 1 || gathered_at_root == whole, "gather of parts");
    Ints scattered(counts[world.rank()]);
    world.scatter(gathered_at_root, {counts, offsets}, scattered, 1);
    rank.expect(scattered == mine, "scatter of parts");
    Ints six(6);
    std::iota(six.begin(), six.end(), 0);
    Ints reduced(counts[world.rank()]);
    world.reduce_scatter(six, reduced, counts);
    const int first = self * (self + 1) / 2;
    for (size_t i = 0; i < reduced.size(); ++i)
      rank.expect(reduced[i] == 3 * (first + static_cast<int>(i)), "reduce_scatter of parts");
    // r gives one element to each, at r's place.
    const std::vector<size_t> ones{1, 1, 1};
    const std::vector<size_t> places{2, 1, 0};
    Ints turned(3);
    world.all_to_all(gives, {ones, places}, turned, {ones, places});
    rank.expect(turned == Ints({8 - self, 5 - self, 2 - self}), "all_to_all of parts");
  });
  EXPECT_EQ(endings, all_well(3));
}

TEST(CclCpp, MessagesGroupsAndPersistentCalls_ThroughTheCppApi_GiveTheSameResult) {
  const auto endings = run_job(2, [](Rank& rank) {
    cc::Communicator world = world_of(rank);
    const uint32_t other = 1 - world.rank();
    std::vector<double> in(1000, world.rank());
    std::vector<double> out(1000);
    cc::Status status{};
    world.sendrecv(in, other, out, other, 3, 3, &status);
    rank.expect(out == std::vector<double>(1000, other) && status.count == 1000 && status.tag == 3, "sendrecv");

    cc::Request sent;
    cc::Request got;
    world.recv(out, cc::kAnyRank, 5, &status, &got);
    world.send(in, other, 5, &sent);
    sent.wait();
    got.wait();
    rank.expect(!got && got.is_done() && status.rank == other && status.tag == 5, "recv that was begun");

    cc::Array<float> allocated(5000, 2);
    {
      cc::Group group;
      world.all_reduce(allocated, allocated);
      world.send(in, other);
      world.recv(out, other);
      group.start().wait();
    }
    rank.expect(allocated.back() == 4, "a group");
    cc::Persistent kept = [&] {
      cc::Group group;
      world.all_reduce(allocated, allocated);
      return group.keep();
    }();
    kept.run();
    kept.start().wait();
    rank.expect(allocated.front() == 16, "what is kept is done as often as it is asked for");
    {
      const cc::Group dropped;
      world.all_reduce(allocated, allocated);
    }
    world.barrier();
    rank.expect(allocated.front() == 16, "a group without an end does nothing");

    int32_t count = 7;
    const auto product = cc::MadeOp::premultiplied_sum(int32_t{3});
    world.all_reduce(std::span(&count, 1), std::span(&count, 1), product);
    rank.expect(count == 42, "premultiplied");
    uint64_t longest = 100 + world.rank();
    const auto larger = cc::MadeOp::function<uint64_t>([](uint64_t& a, const uint64_t& b) { a = b > a ? b : a; });
    world.all_reduce(std::span(&longest, 1), std::span(&longest, 1), larger);
    rank.expect(longest == 101, "a function");

    cc::Communicator alone = world.split(world.rank(), 0);
    rank.expect(alone.size() == 1, "split");
    rank.expect(!world.split(world.rank() == 0 ? -1 : 1, 0) == (world.rank() == 0), "of no color");
    cc::Communicator again = world.dup();
    again.barrier();
    cc::Communicator moved = std::move(again);
    rank.expect(moved.size() == 2 && !again, "moved");
  });
  EXPECT_EQ(endings, all_well(2));
}

TEST(CclCpp, FailedCall_ThroughTheCppApi_ThrowsItsError) {
  const auto endings = run_job(2, [](Rank& rank) {
    cc::Communicator world = world_of(rank);
    std::vector<int> short_one(1);
    std::vector<int> longer(4);
    const auto refuses = [&](const auto& call, const char* what) {
      try {
        call();
        rank.expect(false, what);
      } catch (const std::invalid_argument&) {
      }
    };
    refuses([&] { world.all_reduce(longer, short_one); }, "no room for a sum");
    refuses([&] { world.all_gather(longer, longer); }, "no room for all");
    refuses([&] { world.reduce_scatter(short_one, longer); }, "blocks that are not there");
    const std::vector<size_t> counts{1, 9};
    const std::vector<size_t> offsets{0, 1};
    refuses([&] { world.all_gather(short_one, longer, {counts, offsets}); }, "parts beyond the end");
    // A part that is too long for its offset. Memory behind it exists, so that a missing check harms nothing.
    const std::vector<size_t> as_many{1, 4};
    std::vector<int> of_five(9);
    const std::span<int> five(of_five.data(), 5);
    std::vector<int> four(rank.rank() == 0 ? 1 : 4);
    const std::vector<size_t> behind{0, 2};
    refuses([&] { world.all_gather(four, five, {as_many, behind}); }, "a part that begins too late");
    const std::vector<size_t> at_end{0, 1};
    world.all_gather(four, five, {as_many, at_end});
    try {
      world.broadcast(longer, 9);
      rank.expect(false, "no such root");
    } catch (const cc::Error& error) {
      rank.expect(error.code().value() == EINVAL && error.rank() == cc::kAnyRank, error.what());
    }
    try {
      for (int turn = 0;; ++turn) {
        if (turn == 3 && rank.rank() == 1) world.abort();
        world.all_reduce(longer, longer);
      }
    } catch (const cc::Error& error) {
      rank.expect(error.code() == std::errc::operation_canceled && error.rank() == 1, error.what());
      rank.expect(std::string(error.what()).find("has aborted") != std::string::npos, error.what());
    }
    rank.expect(world.error() == ECANCELED, "it has ended");
  });
  EXPECT_EQ(endings, all_well(2));
}

static_assert(cc::type_of<long>() == NUPA_CCL_INT64 && cc::type_of<unsigned char>() == NUPA_CCL_UINT8);
static_assert(cc::type_of<short>() == NUPA_CCL_INT16 && cc::type_of<const unsigned>() == NUPA_CCL_UINT32);
static_assert(cc::type_of<cc::Bfloat16>() == NUPA_CCL_BFLOAT16 && cc::type_of<std::byte>() == NUPA_CCL_UINT8);
static_assert(!cc::Element<bool> && !cc::Element<void*> && !cc::Element<std::string>);
static_assert(cc::Out<std::vector<float>> && !cc::Out<std::span<const float>> && cc::In<std::span<const float>>);

}  // namespace
}  // namespace nupa::ccl
