// SPDX-License-Identifier: Apache-2.0
// memmove beside copy_block: nanoseconds a copy, the median of pairs of buffers that are fresh each time, since a
// pair's first tens of thousands of copies are slower than what comes after.
//   block_copy [--copies N]
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/block_copy.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRounds = 9;

// Pages that nothing used before; they stay, so that the next ones are others.
std::byte* fresh(size_t size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    fprintf(stderr, "block_copy: not enough memory\n");
    exit(1);
  }
  memset(memory, 1, size);
  return static_cast<std::byte*>(memory);
}

template <class Copy>
double ns_of(size_t size, long copies, Copy copy) {
  std::byte* from = fresh(size);
  std::byte* to = fresh(size);
  const auto start = Clock::now();
  for (long i = 0; i < copies; ++i) {
    copy(to, from, size);
    asm volatile("" : : "r"(to) : "memory");
  }
  const double ns = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  return ns / static_cast<double>(copies);
}

double median(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  long copies = 20000;
  if (argc == 3 && strcmp(argv[1], "--copies") == 0) copies = atol(argv[2]);
  if ((argc != 1 && argc != 3) || copies <= 0) {
    fprintf(stderr, "usage: block_copy [--copies N]\n");
    return 2;
  }
  printf("%10s %12s %12s %8s\n", "bytes", "memmove ns", "block ns", "ratio");
  for (const size_t size : {4096, 16384, 32768, 65536, 131072, 262144, 524288}) {
    std::vector<double> library, ours;
    for (int round = 0; round < kRounds; ++round) {
      library.push_back(
          ns_of(size, copies, [](std::byte* to, const std::byte* from, size_t n) { memmove(to, from, n); }));
      ours.push_back(ns_of(size, copies, nupa::base::copy_block));
    }
    const double theirs = median(library), own = median(ours);
    printf("%10zu %12.0f %12.0f %8.2f\n", size, theirs, own, own / theirs);
  }
  return 0;
}
