// SPDX-License-Identifier: Apache-2.0
/// How fast arrays are reduced: gigabytes of result a second, by type, operator and number of sources, beside memcpy of
/// as much.
/// Best of several passes: `build/bench/reduce_rates [BYTES ...]`, by default of a result in the first cache and of one
/// that no cache holds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "ccl/reduce/reduce.h"

using namespace nupa;

namespace {

constexpr int kPasses = 7;
constexpr int64_t kPassNs = 30'000'000;

struct Row {
  const char* name;
  ccl::Type type;
};
constexpr Row kRows[] = {
    {"int8", ccl::Type::kInt8},       {"int32", ccl::Type::kInt32},         {"int64", ccl::Type::kInt64},
    {"float16", ccl::Type::kFloat16}, {"bfloat16", ccl::Type::kBfloat16},   {"float32", ccl::Type::kFloat32},
    {"float64", ccl::Type::kFloat64}, {"fp8 e4m3", ccl::Type::kFloat8E4m3}, {"fp8 e5m2", ccl::Type::kFloat8E5m2}};

struct Column {
  const char* name;
  ccl::Operator op;
  uint32_t sources;
};
constexpr uint32_t kMostSources = 8;
constexpr Column kColumns[] = {{"sum of 2", ccl::Operator::kSum, 2},
                               {"sum of 4", ccl::Operator::kSum, 4},
                               {"sum of 8", ccl::Operator::kSum, kMostSources},
                               {"max of 2", ccl::Operator::kMax, 2},
                               {"max of 4", ccl::Operator::kMax, 4},
                               {"mean of 2", ccl::Operator::kAverage, 2}};

/// Gigabytes of result a second.
template <class Work>
double rate(size_t bytes, const Work& work) {
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const int64_t began = base::now_ns();
    int64_t took = 0;
    double done = 0;
    do {
      work();
      done += static_cast<double>(bytes);
      took = base::now_ns() - began;
    } while (took < kPassNs);
    best = std::max(best, done / static_cast<double>(took));
  }
  return best;
}

using Memory = std::unique_ptr<std::byte, decltype(&std::free)>;

Memory allocate(size_t bytes) {
  constexpr size_t kAlignment = 4096;
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) & ~(kAlignment - 1))),
                &std::free);
  // Small numbers of every type: what is no number costs time on some processors.
  if (memory) std::memset(memory.get(), 0x11, bytes);
  return memory;
}

int measure(size_t bytes) {
  std::vector<Memory> arrays;
  for (uint32_t i = 0; i <= kMostSources; ++i) arrays.push_back(allocate(bytes));
  if (std::any_of(arrays.begin(), arrays.end(), [](const Memory& memory) { return memory == nullptr; })) {
    std::fprintf(stderr, "reduce_rates: no memory for arrays of %zu bytes\n", bytes);
    return 1;
  }
  const double copied = rate(bytes, [&] { std::memcpy(arrays[0].get(), arrays[1].get(), bytes); });
  std::printf("%zu bytes of result, GB/s; memcpy %.1f\n%-10s", bytes, copied, "");
  for (const Column& column : kColumns) std::printf(" %10s", column.name);
  std::printf("\n");
  for (const Row& row : kRows) {
    std::printf("%-10s", row.name);
    for (const Column& column : kColumns) {
      ccl::Source sources[kMostSources];
      for (uint32_t i = 0; i < column.sources; ++i) sources[i].data = arrays[i + 1].get();
      const size_t elements = bytes / ccl::size_of(row.type);
      const bool divides = column.op == ccl::Operator::kAverage;
      const ccl::Reduction reduction{row.type, column.op, divides ? column.sources : 0};
      const auto work = [&] { ccl::reduce(reduction, arrays[0].get(), sources, column.sources, elements); };
      std::printf(" %10.1f", rate(bytes, work));
    }
    std::printf("\n");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<size_t> sizes;
  for (int i = 1; i < argc; ++i) {
    sizes.push_back(std::strtoull(argv[i], nullptr, 10));
    if (sizes.back() == 0 || sizes.back() % 8 != 0) {
      std::fprintf(stderr, "reduce_rates: sizes are multiples of 8 bytes\n");
      return 2;
    }
  }
  if (sizes.empty()) sizes = {16 << 10, 64 << 20};
  for (const size_t size : sizes)
    if (measure(size) != 0) return 1;
  return 0;
}
