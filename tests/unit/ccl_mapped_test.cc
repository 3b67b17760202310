/// Collectives among ranks that map each other's arenas: here the threads of one process, whose arenas are its memory.
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
#include "ccl/mapped/all_reduce.h"

namespace nupa::ccl {
namespace {

constexpr size_t kSlot = 4096;
constexpr int64_t kPatienceNs = 60'000'000'000;
constexpr int64_t kShortNs = 200'000'000;

struct FreeDelete {
  void operator()(void* memory) const { std::free(memory); }
};
using Arena = std::unique_ptr<std::byte, FreeDelete>;

class Job {
 public:
  explicit Job(uint32_t ranks, int64_t spin_ns = 0) {
    const size_t bytes = ArenaLayout(ranks, kSlot).bytes();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      arenas_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)));
      std::memset(arenas_.back().get(), 0, bytes);
      places_.push_back(arenas_.back().get());
    }
    for (uint32_t rank = 0; rank < ranks; ++rank)
      groups_.push_back(std::make_unique<MappedGroup>(rank, places_, kSlot, spin_ns));
  }
  MappedGroup& group(uint32_t rank) { return *groups_[rank]; }
  uint32_t ranks() const { return static_cast<uint32_t>(groups_.size()); }

  /// Each rank in a thread of its own.
  void run(const std::function<void(MappedGroup&)>& play) {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < ranks(); ++rank) threads.emplace_back([&, rank] { play(group(rank)); });
    for (auto& thread : threads) thread.join();
  }

 private:
  std::vector<Arena> arenas_;
  std::vector<std::byte*> places_;
  std::vector<std::unique_ptr<MappedGroup>> groups_;
};

using Algorithm = Steps (*)(MappedGroup&, ReduceTask);

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
void all_reduce_once(MappedGroup& group, Algorithm algorithm, uint32_t operation, size_t elements, bool in_place,
                     const Reduction& reduction) {
  std::vector<float> in = input_of(group.rank(), operation, elements);
  std::vector<float> out(elements, -1);
  Steps steps = algorithm(group, {reduction, in.data(), in_place ? in.data() : out.data(), elements});
  ASSERT_EQ(group.run(steps, kPatienceNs), 0);
  const auto expected = expected_of(group.ranks(), operation, reduction, elements);
  const auto& result = in_place ? in : out;
  for (size_t i = 0; i < elements; ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(result[i]), std::bit_cast<uint32_t>(expected[i]))
        << "rank " << group.rank() << " of " << group.ranks() << ", element " << i << " of " << elements;
}

constexpr Reduction kSum{Type::kFloat32, Operator::kSum};

TEST(CclMappedAllReduce, EachAlgorithmEqualsTheSerialReferenceToTheBit) {
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
      job.run([&](MappedGroup& group) {
        uint32_t operation = 0;
        for (const size_t elements : one.sizes)
          for (const bool in_place : {false, true})
            for (const Operator op : {Operator::kSum, Operator::kMax, Operator::kAverage}) {
              const Reduction reduction{Type::kFloat32, op, op == Operator::kAverage ? group.ranks() : 0};
              ASSERT_NO_FATAL_FAILURE(
                  all_reduce_once(group, one.algorithm, operation++, elements, in_place, reduction));
            }
      });
    }
}

TEST(CclMappedAllReduce, AlgorithmsFollowEachOtherInAnyOrder) {
  for (const uint32_t ranks : {2u, 3u, 5u})
    for (const int64_t spin_ns : {int64_t{0}, int64_t{20'000}}) {
      Job job(ranks, spin_ns);
      job.run([&](MappedGroup& group) {
        std::mt19937 same(5);
        std::mt19937 own(group.rank());
        for (uint32_t operation = 0; operation < 400; ++operation) {
          constexpr Algorithm kAlgorithms[] = {all_reduce_lines, all_reduce_slots, all_reduce_slices};
          constexpr size_t kMost[] = {14, 1024, 3000};
          const uint32_t which = same() % 3;
          const size_t elements = same() % (kMost[which] + 1);
          // Some are late, each time others.
          if (own() % 16 == 0) usleep(own() % 300);
          ASSERT_NO_FATAL_FAILURE(
              all_reduce_once(group, kAlgorithms[which], operation, elements, operation % 2 == 0, kSum));
        }
      });
    }
}

TEST(CclMappedAllReduce, EveryTypeGoesThrough) {
  for (uint32_t t = 0; t < kTypes; ++t) {
    const auto type = static_cast<Type>(t);
    Job job(3);
    job.run([&](MappedGroup& group) {
      const size_t elements = 3 * kSlot / size_of(type) + 5;
      std::vector<std::byte> in(elements * size_of(type), std::byte{0});
      // The smallest number that is not 0, three times, is the same in every order.
      for (size_t i = 0; i < elements; ++i) in[i * size_of(type)] = std::byte{1};
      std::vector<std::byte> out(in.size());
      Steps steps = all_reduce_slices(group, {{type, Operator::kMax}, in.data(), out.data(), elements});
      ASSERT_EQ(group.run(steps, kPatienceNs), 0);
      ASSERT_EQ(out, in) << t;
    });
  }
}

TEST(CclMappedAllReduce, NumbersOfStepsMayWrap) {
  Job job(2);
  // As after four thousand million steps.
  for (uint32_t rank = 0; rank < 2; ++rank) job.group(rank).begin(UINT32_MAX - 20);
  for (uint32_t rank = 0; rank < 2; ++rank) job.group(rank).tell(UINT32_MAX - 20);
  job.run([&](MappedGroup& group) {
    for (uint32_t operation = 0; operation < 100; ++operation)
      ASSERT_NO_FATAL_FAILURE(all_reduce_once(group, all_reduce_slices, operation, 2500, false, kSum));
  });
}

TEST(CclMappedGroup, ARankThatDoesNotComeEndsAllInTime) {
  for (const Algorithm algorithm : {all_reduce_lines, all_reduce_slots, all_reduce_slices}) {
    Job job(3);
    job.run([&](MappedGroup& group) {
      if (group.rank() == 1) return;
      float value = 1;
      Steps steps = algorithm(group, {kSum, &value, &value, 1});
      EXPECT_EQ(group.run(steps, kShortNs), ETIMEDOUT);
      EXPECT_TRUE(steps.is_done());
      // And so does all that comes later.
      Steps next = algorithm(group, {kSum, &value, &value, 1});
      EXPECT_EQ(group.run(next, kPatienceNs), ETIMEDOUT);
    });
    EXPECT_EQ(job.group(1).aborted(), ETIMEDOUT);
  }
}

TEST(CclMappedGroup, AbortWakesWhoeverSleeps) {
  Job job(2);
  std::thread other([&] {
    usleep(50'000);
    job.group(1).abort(ECONNRESET);
  });
  float value = 1;
  Steps steps = all_reduce_lines(job.group(0), {kSum, &value, &value, 1});
  const int64_t began = base::now_ns();
  EXPECT_EQ(job.group(0).run(steps, kPatienceNs), ECONNRESET);
  EXPECT_LT(base::now_ns() - began, kPatienceNs);
  other.join();
}

// ---- steps ------------------------------------------------------------------------------------------------------

Steps wait_for(std::atomic<uint32_t>& word, uint32_t value, int answer) {
  if (const int error = co_await Wait{&word, value}; error != 0) co_return error;
  co_return answer;
}

Steps wait_twice(std::atomic<uint32_t>& word, int* seen) {
  *seen = co_await wait_for(word, 1, 10);
  const int second = co_await wait_for(word, 2, 20);
  *seen += second;
  co_return second;
}

TEST(CclSteps, GoOnWhenTheWordIsThere) {
  std::atomic<uint32_t> word{0};
  Steps steps = wait_for(word, 3, 7);
  EXPECT_FALSE(steps.go_on());
  EXPECT_EQ(steps.waits_for().word, &word);
  EXPECT_EQ(steps.waits_for().value, 3u);
  word = 2;
  EXPECT_FALSE(steps.go_on());
  word = 4;
  EXPECT_TRUE(steps.go_on());
  EXPECT_EQ(steps.result(), 7);
}

TEST(CclSteps, OneMayWaitForAnother) {
  std::atomic<uint32_t> word{0};
  int seen = 0;
  Steps steps = wait_twice(word, &seen);
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

TEST(CclSteps, NobodyWaitsWhereNothingIsMissing) {
  std::atomic<uint32_t> word{9};
  int seen = 0;
  Steps steps = wait_twice(word, &seen);
  EXPECT_TRUE(steps.go_on());
  EXPECT_EQ(seen, 30);
}

TEST(CclSteps, AreEndedAtTheirWait) {
  std::atomic<uint32_t> word{0};
  int seen = 0;
  Steps steps = wait_twice(word, &seen);
  EXPECT_FALSE(steps.go_on());
  steps.end(ECANCELED);
  EXPECT_TRUE(steps.is_done());
  EXPECT_EQ(steps.result(), ECANCELED);
  EXPECT_EQ(seen, 2 * ECANCELED);
  Steps unbegun = wait_for(word, 1, 7);
  unbegun.end(EPIPE);
  EXPECT_EQ(unbegun.result(), EPIPE);
}

TEST(CclSteps, MayBeLeftWhileTheyWait) {
  std::atomic<uint32_t> word{0};
  int seen = 0;
  {
    Steps steps = wait_twice(word, &seen);
    EXPECT_FALSE(steps.go_on());
  }
  EXPECT_EQ(seen, 0);
}

}  // namespace
}  // namespace nupa::ccl
