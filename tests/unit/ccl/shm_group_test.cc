// SPDX-License-Identifier: Apache-2.0
/// Tests of collectives among ranks that map each other's arenas. The ranks are threads of one process.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/shm/inline_path.h"
#include "../../support/ccl_calls.h"

namespace nupa::ccl {
namespace {

using namespace shm;

constexpr size_t kSlot = 4096;
constexpr int64_t kTimeoutNs = 60'000'000'000;
constexpr int64_t kShortNs = 200'000'000;

struct FreeDelete {
  void operator()(void* memory) const { std::free(memory); }
};
using Arena = std::unique_ptr<std::byte, FreeDelete>;

/// One rank's group and what goes on around it.
class Player final : public ProgressHooks {
 public:
  Player(uint32_t rank, const std::vector<std::byte*>& arenas, const std::vector<uint32_t>& names,
         const WaitRules& rules)
      : group(rank, arenas, names, kSlot, rules), arenas_(arenas) {}

  int run(CollectiveTask& steps, int64_t limit_ns = kTimeoutNs) {
    return run_tasks(steps, group.rules(), *this, limit_ns);
  }
  void end(const Cause& cause) {
    for (std::byte* const arena : arenas_) end_arena(*reinterpret_cast<ArenaHead*>(arena), cause);
  }
  Cause ended() const override { return group.ended(); }
  Cause on_timeout(const Wait& wait) override {
    end({ETIMEDOUT, wait.rank});
    return ended();
  }

  ShmGroup group;

 private:
  const std::vector<std::byte*> arenas_;
};

constexpr WaitRules kSleepSoon{0, true};
constexpr WaitRules kSpin{20'000, false};

class Job {
 public:
  explicit Job(uint32_t ranks, const WaitRules& rules = kSleepSoon) {
    const size_t bytes = arena_bytes(kSlot);
    std::vector<uint32_t> names;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      arenas_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)));
      std::memset(arenas_.back().get(), 0, bytes);
      places_.push_back(arenas_.back().get());
      names.push_back(rank);
    }
    for (uint32_t rank = 0; rank < ranks; ++rank)
      players_.push_back(std::make_unique<Player>(rank, places_, names, rules));
  }
  Player& player(uint32_t rank) { return *players_[rank]; }
  uint32_t ranks() const { return static_cast<uint32_t>(players_.size()); }

  /// Each rank in a thread of its own.
  void run(const std::function<void(Player&)>& play) {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < ranks(); ++rank)
      threads.emplace_back([&, rank] {
        play(player(rank));
        // One that has failed does not come to what the others wait for.
        if (testing::Test::HasFailure()) player(rank).end({ECANCELED, rank});
      });
    for (auto& thread : threads) thread.join();
  }

 private:
  std::vector<Arena> arenas_;
  std::vector<std::byte*> places_;
  std::vector<std::unique_ptr<Player>> players_;
};

using Algorithm = CollectiveTask (*)(ShmGroup&, const Call&);

/// What rank r brings to the n-th operation.
std::vector<float> input_of(uint32_t rank, uint32_t operation, size_t elements) {
  std::mt19937 random(rank * 7919 + operation);
  std::vector<float> values(elements);
  for (float& value : values) value = std::uniform_real_distribution<float>(-100, 100)(random);
  return values;
}

std::vector<float> expected_of(uint32_t ranks, uint32_t operation, const Reduction& reduction, size_t elements) {
  std::vector<std::vector<float>> inputs;
  std::vector<Source> sources;
  for (uint32_t rank = 0; rank < ranks; ++rank) inputs.push_back(input_of(rank, operation, elements));
  for (const auto& input : inputs) sources.push_back({input.data()});
  std::vector<float> result(elements);
  reduce(reduction, result.data(), sources.data(), ranks, elements);
  return result;
}

/// One all_reduce on one rank, checked.
void all_reduce_once(Player& player, Algorithm algorithm, uint32_t operation, size_t elements, bool in_place,
                     const Reduction& reduction) {
  ShmGroup& group = player.group;
  std::vector<float> in = input_of(group.rank(), operation, elements);
  std::vector<float> out(elements, -1);
  const Call call = reduce_call({reduction}, in.data(), in_place ? in.data() : out.data(), elements);
  CollectiveTask steps = algorithm(group, call);
  ASSERT_EQ(player.run(steps), 0);
  const auto expected = expected_of(group.ranks(), operation, reduction, elements);
  const auto& result = in_place ? in : out;
  for (size_t i = 0; i < elements; ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(result[i]), std::bit_cast<uint32_t>(expected[i]))
        << "rank " << group.rank() << " of " << group.ranks() << ", element " << i << " of " << elements;
}

constexpr Reduction kSum{Type::kFloat32, Operator::kSum};

TEST(CclShmAllReduce, AllReduce_EachAlgorithm_EqualsTheSerialReference) {
  struct Case {
    Algorithm algorithm;
    std::vector<size_t> sizes;
  };
  const Case cases[] = {{all_reduce_lines, {0, 1, 2, 13, 14}},
                        {all_reduce_slots, {0, 1, 3, 16, 1000, 1024}},
                        {all_reduce_slices, {0, 1, 5, 17, 1000, 1024, 1025, 5000}}};
  for (uint32_t ranks = 1; ranks <= 9; ++ranks)
    for (const Case& one : cases) {
      Job job(ranks);
      job.run([&](Player& player) {
        uint32_t operation = 0;
        for (const size_t elements : one.sizes)
          for (const bool in_place : {false, true})
            for (const Operator op : {Operator::kSum, Operator::kMax, Operator::kAverage}) {
              const Reduction reduction{Type::kFloat32, op, op == Operator::kAverage ? player.group.ranks() : 0};
              ASSERT_NO_FATAL_FAILURE(
                  all_reduce_once(player, one.algorithm, operation++, elements, in_place, reduction));
            }
      });
    }
}

TEST(CclShmAllReduce, AllReduce_AlgorithmsInRandomOrder_EqualTheSerialReference) {
  for (const uint32_t ranks : {2u, 3u, 5u})
    for (const WaitRules& rules : {kSleepSoon, kSpin}) {
      Job job(ranks, rules);
      job.run([&](Player& player) {
        std::mt19937 same(5);
        std::mt19937 own(player.group.rank());
        for (uint32_t operation = 0; operation < 400; ++operation) {
          constexpr Algorithm kAlgorithms[] = {all_reduce_lines, all_reduce_slots, all_reduce_slices};
          constexpr size_t kMost[] = {14, 1024, 3000};
          const uint32_t which = same() % 3;
          const size_t elements = same() % (kMost[which] + 1);
          // Some are late, each time others.
          if (own() % 16 == 0) usleep(own() % 300);  // sleep: some ranks are late, at random
          ASSERT_NO_FATAL_FAILURE(
              all_reduce_once(player, kAlgorithms[which], operation, elements, operation % 2 == 0, kSum));
        }
      });
    }
}

TEST(CclShmAllReduce, AllReduce_EachType_GivesTheMaximum) {
  for (uint32_t t = 0; t < kTypes; ++t) {
    const auto type = static_cast<Type>(t);
    Job job(3);
    job.run([&](Player& player) {
      const size_t elements = 3 * kSlot / size_of(type) + 5;
      std::vector<std::byte> in(elements * size_of(type), std::byte{0});
      // The smallest number that is not 0, three times, is the same in every order.
      for (size_t i = 0; i < elements; ++i) in[i * size_of(type)] = std::byte{1};
      std::vector<std::byte> out(in.size());
      const Call call = reduce_call({{type, Operator::kMax}}, in.data(), out.data(), elements);
      CollectiveTask steps = all_reduce_slices(player.group, call);
      ASSERT_EQ(player.run(steps), 0);
      ASSERT_EQ(out, in) << t;
    });
  }
}

TEST(CclShmAllReduce, AllReduce_StepNumbersWrap_EqualsTheSerialReference) {
  Job job(2);
  // As after four thousand million steps, in which no line was written.
  for (uint32_t rank = 0; rank < 2; ++rank) {
    constexpr uint32_t kAtOnce = 1 << 27;
    ShmGroup& group = job.player(rank).group;
    for (uint32_t i = 0; i < UINT32_MAX / kAtOnce; ++i) group.begin(kAtOnce);
    group.begin(kAtOnce - 20);
  }
  job.run([&](Player& player) {
    for (uint32_t operation = 0; operation < 100; ++operation) {
      constexpr Algorithm kAlgorithms[] = {all_reduce_lines, all_reduce_slices};
      ASSERT_NO_FATAL_FAILURE(
          all_reduce_once(player, kAlgorithms[operation % 2], operation, operation % 2 == 0 ? 10 : 2500, false, kSum));
    }
  });
}

TEST(CclShmGroup, Operations_AllKindsInRandomOrder_GiveTheRightResults) {
  // Those whose ranks do not all wait for each other, between those whose do.
  for (const uint32_t ranks : {2u, 3u, 5u})
    for (const WaitRules& rules : {kSleepSoon, kSpin}) {
      Job job(ranks, rules);
      job.run([&](Player& player) {
        std::mt19937 same(7);
        std::mt19937 own(player.group.rank());
        ShmGroup& group = player.group;
        const uint32_t self = group.rank();
        for (uint32_t operation = 0; operation < 600; ++operation) {
          if (own() % 16 == 0) usleep(own() % 200);  // sleep: some ranks are late, at random
          const uint32_t root = same() % ranks;
          const size_t elements = 1 + same() % 2500;
          const auto mine = static_cast<int32_t>(operation * 16 + self);
          std::vector<int32_t> data(elements, mine);
          std::vector<int32_t> many(elements * ranks, -1);
          const size_t bytes = elements * sizeof data[0];
          const Reducer sum{{Type::kInt32, Operator::kSum}};
          switch (same() % 6) {
            case 0: {
              const Call call = broadcast_call(root, data.data(), bytes);
              CollectiveTask steps =
                  bytes <= FlagLine::kPayload ? broadcast_line(group, call) : broadcast_slots(group, call);
              ASSERT_EQ(player.run(steps), 0);
              ASSERT_EQ(data, std::vector<int32_t>(elements, static_cast<int32_t>(operation * 16 + root)));
              break;
            }
            case 1: {
              const Call call = gather_call(root, data.data(), bytes, many.data(), {bytes});
              CollectiveTask steps = gather(group, call);
              ASSERT_EQ(player.run(steps), 0);
              for (uint32_t rank = 0; self == root && rank < ranks; ++rank)
                for (size_t i = 0; i < elements; ++i)
                  ASSERT_EQ(many[rank * elements + i], static_cast<int32_t>(operation * 16 + rank));
              break;
            }
            case 2: {
              const Call call = reduce_call(sum, data.data(), data.data(), elements, root);
              CollectiveTask steps = reduce_slots(group, call);
              ASSERT_EQ(player.run(steps), 0);
              const auto n = static_cast<int32_t>(ranks);
              const auto all = static_cast<int32_t>(operation * 16) * n + n * (n - 1) / 2;
              ASSERT_EQ(data, std::vector<int32_t>(elements, self == root ? all : mine));
              break;
            }
            case 3: {
              const Call call = reduce_call(sum, data.data(), data.data(), elements);
              CollectiveTask steps = scan(group, call);
              ASSERT_EQ(player.run(steps), 0);
              const auto n = static_cast<int32_t>(self + 1);
              ASSERT_EQ(data,
                        std::vector<int32_t>(elements, static_cast<int32_t>(operation * 16) * n + n * (n - 1) / 2));
              break;
            }
            case 4: {
              CollectiveTask steps = barrier(group);
              ASSERT_EQ(player.run(steps), 0);
              break;
            }
            default:
              ASSERT_NO_FATAL_FAILURE(
                  all_reduce_once(player, all_reduce_lines, operation, elements % 15, operation % 2 == 0, kSum));
          }
        }
      });
    }
}

TEST(CclShmGroup, AllReduce_OneRankIsMissing_TimesOutAtAllRanks) {
  for (const Algorithm algorithm : {all_reduce_lines, all_reduce_slots, all_reduce_slices}) {
    Job job(3);
    job.run([&](Player& player) {
      if (player.group.rank() == 1) return;
      float value = 1;
      const Call call = reduce_call({kSum}, &value, &value, 1);
      CollectiveTask steps = algorithm(player.group, call);
      EXPECT_EQ(player.run(steps, kShortNs), ETIMEDOUT);
      EXPECT_TRUE(steps.is_done());
      // And so does all that comes later.
      CollectiveTask next = algorithm(player.group, call);
      EXPECT_EQ(player.run(next), ETIMEDOUT);
    });
    EXPECT_EQ(job.player(1).ended().error, ETIMEDOUT);
    EXPECT_EQ(job.player(1).ended().rank, 1u);
  }
}

TEST(CclShmGroup, End_RankSleeps_IsWoken) {
  Job job(2);
  std::thread other([&] {
    usleep(50'000);  // sleep: the other rank sleeps by then; if it does not, it finds the end at once
    job.player(1).end({ECONNRESET, 1});
  });
  float value = 1;
  const Call call = reduce_call({kSum}, &value, &value, 1);
  CollectiveTask steps = all_reduce_lines(job.player(0).group, call);
  const int64_t began = base::now_ns();
  EXPECT_EQ(job.player(0).run(steps), ECONNRESET);
  EXPECT_LT(base::now_ns() - began, kTimeoutNs);
  other.join();
}

TEST(CclShmGroup, Depart_OneRankHasNotDeparted_Waits) {
  Job job(3);
  CollectiveTask first = depart(job.player(0).group);
  EXPECT_FALSE(first.go_on());
  CollectiveTask second = depart(job.player(1).group);
  EXPECT_FALSE(second.go_on());
  EXPECT_FALSE(first.go_on()) << "rank 2 may still look at its arena";
  CollectiveTask last = depart(job.player(2).group);
  EXPECT_TRUE(last.go_on());
  EXPECT_TRUE(first.go_on());
  EXPECT_TRUE(second.go_on());
}

/// A rank that only sends is ahead of one that only receives by one generation fewer than there are slots.
TEST(CclShmGroup, Broadcast_SlotMayStillBeRead_RootWaits) {
  std::vector<std::byte> data(kSmallSlotBytes + 1, std::byte{7});
  for (const bool by_line : {true, false}) {
    Job job(2);
    const Call call = broadcast_call(0, data.data(), by_line ? FlagLine::kPayload : kSmallSlotBytes);
    const auto give = [&](uint32_t rank) {
      ShmGroup& group = job.player(rank).group;
      return by_line ? broadcast_line(group, call) : broadcast_slots(group, call);
    };
    for (uint32_t i = 0; i + 1 < kSmallTurns; ++i) {
      CollectiveTask steps = give(0);
      ASSERT_TRUE(steps.go_on()) << i;
    }
    CollectiveTask next = give(0);
    EXPECT_FALSE(next.go_on()) << "no rank has read the first slot";
    CollectiveTask taken = give(1);
    EXPECT_TRUE(taken.go_on());
    EXPECT_TRUE(next.go_on());
    CollectiveTask behind = give(0);
    EXPECT_FALSE(behind.go_on());
  }
  // Two parts, in the two large slots.
  Job job(2);
  const Call call = broadcast_call(0, data.data(), data.size());
  CollectiveTask given = broadcast_slots(job.player(0).group, call);
  EXPECT_FALSE(given.go_on()) << "the second part is a turn ahead";
  CollectiveTask taken = broadcast_slots(job.player(1).group, call);
  EXPECT_FALSE(taken.go_on());
  EXPECT_TRUE(given.go_on());
  EXPECT_TRUE(taken.go_on());
}

/// The same where nothing stands between a call and the lines.
TEST(CclInlinePath, Broadcast_LineMayStillBeRead_RootDoesNotWriteIt) {
  Job job(2);
  int32_t value = 7;
  const InlineCall call{Operation::kBroadcast, &value, &value, 1, {Type::kInt32, Operator::kSum}, 0};
  ShmGroup& root = job.player(0).group;
  ShmGroup& other = job.player(1).group;
  for (uint32_t i = 0; i + 1 < kSmallTurns; ++i) {
    ASSERT_TRUE(may_begin(root, call)) << i;
    const Exchange exchange = begin_line(root, call);
    ASSERT_TRUE(all_came(root, exchange));
    end_line(root, call, exchange);
  }
  EXPECT_FALSE(may_begin(root, call)) << "no rank has read the first line";
  ASSERT_TRUE(may_begin(other, call)) << "a rank that only receives writes no line";
  const Exchange exchange = begin_line(other, call);
  EXPECT_TRUE(all_came(other, exchange));
  end_line(other, call, exchange);
  EXPECT_TRUE(may_begin(root, call));
}

TEST(CclInlinePath, AllCame_EachOperation_WaitsForTheRanksItNeeds) {
  for (const Operation operation : {Operation::kBarrier, Operation::kAllReduce, Operation::kAllGather}) {
    Job job(3);
    int32_t value[3] = {1, 0, 0};
    const InlineCall call{operation, value, value, 1, {Type::kInt32, Operator::kSum}, 0};
    Exchange exchanges[3] = {};
    for (uint32_t rank = 0; rank < 2; ++rank) exchanges[rank] = begin_line(job.player(rank).group, call);
    for (uint32_t rank = 0; rank < 2; ++rank) EXPECT_FALSE(all_came(job.player(rank).group, exchanges[rank]));
    exchanges[2] = begin_line(job.player(2).group, call);
    for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_TRUE(all_came(job.player(rank).group, exchanges[rank]));
  }
  Job job(3);
  int32_t value = 1;
  const InlineCall call{Operation::kBroadcast, &value, &value, 1, {Type::kInt32, Operator::kSum}, 2};
  const Exchange taken = begin_line(job.player(0).group, call);
  EXPECT_FALSE(all_came(job.player(0).group, taken));
  const Exchange given = begin_line(job.player(2).group, call);
  EXPECT_TRUE(all_came(job.player(2).group, given)) << "the root waits for no rank";
  EXPECT_TRUE(all_came(job.player(0).group, taken)) << "others wait for the root alone";
}

/// All ranks in one thread: each goes as far as it can, one after the other.
void run_in_turns(Job& job, const std::function<CollectiveTask(ShmGroup&)>& begin) {
  std::vector<CollectiveTask> all;
  for (uint32_t rank = 0; rank < job.ranks(); ++rank) all.push_back(begin(job.player(rank).group));
  constexpr int kMostTurns = 100;
  size_t left = all.size();
  for (int turn = 0; turn < kMostTurns && left > 0; ++turn)
    for (CollectiveTask& steps : all)
      if (!steps.is_done() && steps.go_on()) --left;
  ASSERT_EQ(left, 0u) << "ranks that wait for each other";
  for (const CollectiveTask& steps : all) ASSERT_EQ(steps.result(), 0);
}

/// Each slot holds a part of every rank's block. The ranks that are a turn ahead write the slot behind it.
TEST(CclShmGroup, ScatterExchangeReduce_MoreRanksThanCacheLinesOfASlot_GiveTheRightResults) {
  for (const uint32_t ranks : {70u, 100u, 192u}) {
    const size_t elements = 3 * kSlot / ranks / sizeof(uint64_t);  // of a block: some parts
    const size_t bytes = elements * sizeof(uint64_t);
    const auto element = [&](uint32_t from, uint32_t to, size_t i) {
      return (uint64_t{from} * ranks + to) * elements + i;
    };
    const auto blocks_of = [&](uint32_t from) {
      std::vector<uint64_t> all;
      for (uint32_t to = 0; to < ranks; ++to)
        for (size_t i = 0; i < elements; ++i) all.push_back(element(from, to, i));
      return all;
    };
    std::vector<std::vector<uint64_t>> in;
    for (uint32_t rank = 0; rank < ranks; ++rank) in.push_back(blocks_of(rank));

    Job scattering(ranks);
    std::vector<std::vector<uint64_t>> parts(ranks, std::vector<uint64_t>(elements));
    KeptCalls calls;
    ASSERT_NO_FATAL_FAILURE(run_in_turns(scattering, [&](ShmGroup& group) {
      return scatter(group, calls.keep(scatter_call(0, in[0].data(), {bytes}, parts[group.rank()].data(), bytes)));
    }));
    for (uint32_t rank = 0; rank < ranks; ++rank)
      for (size_t i = 0; i < elements; ++i) ASSERT_EQ(parts[rank][i], element(0, rank, i)) << rank << " of " << ranks;

    Job exchanging(ranks);
    std::vector<std::vector<uint64_t>> out(ranks, std::vector<uint64_t>(elements * ranks));
    ASSERT_NO_FATAL_FAILURE(run_in_turns(exchanging, [&](ShmGroup& group) {
      const uint32_t rank = group.rank();
      return all_to_all(group, calls.keep(exchange_call(in[rank].data(), {bytes}, out[rank].data(), {bytes})));
    }));
    for (uint32_t rank = 0; rank < ranks; ++rank)
      for (uint32_t from = 0; from < ranks; ++from)
        for (size_t i = 0; i < elements; ++i)
          ASSERT_EQ(out[rank][from * elements + i], element(from, rank, i)) << rank << " of " << ranks;

    Job reducing(ranks);
    const Reducer sum{{Type::kUint64, Operator::kSum}};
    ASSERT_NO_FATAL_FAILURE(run_in_turns(reducing, [&](ShmGroup& group) {
      const uint32_t rank = group.rank();
      return reduce_scatter(group, calls.keep(reduce_call(sum, in[rank].data(), parts[rank].data(), elements)));
    }));
    for (uint32_t rank = 0; rank < ranks; ++rank)
      for (size_t i = 0; i < elements; ++i) {
        uint64_t all = 0;
        for (uint32_t from = 0; from < ranks; ++from) all += element(from, rank, i);
        ASSERT_EQ(parts[rank][i], all) << rank << " of " << ranks;
      }
  }
}

CollectiveTask wait_for_mark(ShmGroup& group, uint32_t rank, uint32_t step) {
  co_return co_await group.reached(rank, step);
}

TEST(CclShmGroup, RunTasks_WaitsForSeveralRanks_EndWhenAllHaveArrived) {
  for (const WaitRules& rules : {kSleepSoon, kSpin}) {
    Job job(4, rules);
    job.run([&](Player& player) {
      const uint32_t self = player.group.rank();
      // The last one tells first.
      if (self > 0) {
        usleep((4 - self) * 20'000);  // sleep: the last rank comes first
        return player.group.publish(1);
      }
      CollectiveTask all[] = {wait_for_mark(player.group, 1, 1), wait_for_mark(player.group, 2, 1),
                              wait_for_mark(player.group, 3, 1)};
      EXPECT_EQ(run_tasks(all, rules, player, kTimeoutNs), 0);
    });
  }
}

// ---- steps ----------------------------------------------------------------------------------------------------------

CollectiveTask wait_for(std::atomic<uint32_t>& word, uint32_t value, int answer) {
  if (const int error = co_await Wait{&word, value}; error != 0) co_return error;
  co_return answer;
}

CollectiveTask wait_twice(std::atomic<uint32_t>& word, int* seen) {
  *seen = co_await wait_for(word, 1, 10);
  const int second = co_await wait_for(word, 2, 20);
  *seen += second;
  co_return second;
}

TEST(CclCollectiveTask, GoOn_WordHasReachedTheValue_Returns) {
  std::atomic<uint32_t> word{0};
  CollectiveTask steps = wait_for(word, 3, 7);
  EXPECT_FALSE(steps.go_on());
  EXPECT_EQ(steps.waits_for().word, &word);
  EXPECT_EQ(steps.waits_for().value, 3u);
  word = 2;
  EXPECT_FALSE(steps.go_on());
  word = 4;
  EXPECT_TRUE(steps.go_on());
  EXPECT_EQ(steps.result(), 7);
}

TEST(CclCollectiveTask, GoOn_TaskAwaitsAnother_ContinuesWithItsResult) {
  std::atomic<uint32_t> word{0};
  int seen = 0;
  CollectiveTask steps = wait_twice(word, &seen);
  EXPECT_FALSE(steps.go_on());
  EXPECT_EQ(steps.waits_for().value, 1u);
  word = 1;
  EXPECT_FALSE(steps.go_on());
  EXPECT_EQ(seen, 10);
  EXPECT_EQ(steps.waits_for().value, 2u);
  word = 2;
  EXPECT_TRUE(steps.go_on());
  EXPECT_EQ(seen, 30);
  EXPECT_EQ(steps.result(), 20);
}

TEST(CclCollectiveTask, GoOn_WordsAreReachedAlready_ReturnsAtOnce) {
  std::atomic<uint32_t> word{9};
  int seen = 0;
  CollectiveTask steps = wait_twice(word, &seen);
  EXPECT_TRUE(steps.go_on());
  EXPECT_EQ(seen, 30);
}

TEST(CclCollectiveTask, End_TaskThatWaits_ReturnsTheError) {
  std::atomic<uint32_t> word{0};
  int seen = 0;
  CollectiveTask steps = wait_twice(word, &seen);
  EXPECT_FALSE(steps.go_on());
  steps.end(ECANCELED);
  EXPECT_TRUE(steps.is_done());
  EXPECT_EQ(steps.result(), ECANCELED);
  EXPECT_EQ(seen, 2 * ECANCELED);
  CollectiveTask unbegun = wait_for(word, 1, 7);
  unbegun.end(EPIPE);
  EXPECT_EQ(unbegun.result(), EPIPE);
}

TEST(CclCollectiveTask, Destroy_TaskThatWaits_ContinuesNothing) {
  std::atomic<uint32_t> word{0};
  int seen = 0;
  {
    CollectiveTask steps = wait_twice(word, &seen);
    EXPECT_FALSE(steps.go_on());
  }
  EXPECT_EQ(seen, 0);
}

}  // namespace
}  // namespace nupa::ccl
