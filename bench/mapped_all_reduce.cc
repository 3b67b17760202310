/// How long all_reduce takes among processes that map each other's arenas: float32 sums, each rank on a core of its own
/// as far as there are so many, the best of five rounds. `build/bench/mapped_all_reduce [RANKS]`, by default 2.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/clock.h"
#include "ccl/mapped/all_reduce.h"

using namespace nupa;

namespace {

constexpr size_t kSlot = 256 << 10;
constexpr size_t kLargest = 64 << 20;
constexpr size_t kLargestInSlots = 8 << 10;
constexpr int kRounds = 5;
constexpr int64_t kRoundNs = 60'000'000;
constexpr int64_t kLimitNs = 20'000'000'000;
constexpr int64_t kSpinNs = 50'000;

ccl::Steps begin(ccl::MappedGroup& group, const std::vector<float>& in, std::vector<float>& out, size_t bytes) {
  const ccl::ReduceTask task{{ccl::Type::kFloat32, ccl::Operator::kSum}, in.data(), out.data(), bytes / sizeof(float)};
  if (bytes <= ccl::FlagLine::kPayload) return ccl::all_reduce_lines(group, task);
  return bytes <= kLargestInSlots ? ccl::all_reduce_slots(group, task) : ccl::all_reduce_slices(group, task);
}

int play(uint32_t rank, const std::vector<std::byte*>& arenas, int64_t cores) {
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(rank % cores, &own);
  sched_setaffinity(0, sizeof own, &own);
  ccl::MappedGroup group(rank, arenas, kSlot, static_cast<int64_t>(arenas.size()) <= cores ? kSpinNs : 0);
  std::vector<float> in(kLargest / sizeof(float), 1);
  std::vector<float> out(in.size());
  const auto once = [&](size_t bytes) {
    ccl::Steps steps = begin(group, in, out, bytes);
    return group.run(steps, kLimitNs);
  };
  for (const size_t bytes : {size_t{8}, size_t{4} << 10, size_t{64} << 10, size_t{1} << 20, kLargest}) {
    // How often is what all have to agree on: by the size alone.
    const int64_t times = std::clamp<int64_t>(kRoundNs / static_cast<int64_t>(bytes / 8 + 1000), 3, 20'000);
    double best = 1e300;
    for (int round = 0; round < kRounds; ++round) {
      const int64_t began = base::now_ns();
      for (int64_t i = 0; i < times; ++i)
        if (once(bytes) != 0) return 1;
      best = std::min(best, static_cast<double>(base::now_ns() - began) / static_cast<double>(times));
    }
    if (rank == 0)
      std::printf("%10zu bytes %12.2f us %8.2f GB/s\n", bytes, best / 1e3, static_cast<double>(bytes) / best);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  if (ranks < 1 || ranks > 64) {
    std::fprintf(stderr, "mapped_all_reduce: 1 to 64 ranks\n");
    return 2;
  }
  std::vector<std::byte*> arenas;
  for (int i = 0; i < ranks; ++i) {
    void* const arena = mmap(nullptr, ccl::ArenaLayout(static_cast<uint32_t>(ranks), kSlot).bytes(),
                             PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (arena == MAP_FAILED) {
      std::perror("mapped_all_reduce: arenas");
      return 1;
    }
    arenas.push_back(static_cast<std::byte*>(arena));
  }
  const int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
  for (int rank = 1; rank < ranks; ++rank)
    if (fork() == 0) _exit(play(static_cast<uint32_t>(rank), arenas, cores));
  int worst = play(0, arenas, cores);
  int status = 0;
  while (wait(&status) > 0) worst = std::max(worst, status == 0 ? 0 : 1);
  return worst;
}
