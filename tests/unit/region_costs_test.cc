// The figures of docs/memory.md: unit_tests --gtest_also_run_disabled_tests
// --gtest_filter='RemapperCosts*'
#include <atomic>
#include <cstdio>
#include <thread>

#include "base/clock.h"
#include "region_test_support.h"

namespace nupa::region::testing {
namespace {

struct Cost {
  double share_us;
  double unshare_us;
};

Cost measure(Remapper& remapper, size_t pages, bool touched, int rounds) {
  Cost best{1e12, 1e12};
  for (int round = 0; round < rounds; ++round) {
    Memory memory(pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
    if (touched) std::memset(memory.data(), 1, memory.size());
    const int64_t start = base::now_ns();
    auto pieces = remapper.share(memory.data(), memory.size(), true);
    const int64_t shared = base::now_ns();
    remapper.unshare(memory.data(), memory.size());
    const int64_t unshared = base::now_ns();
    EXPECT_TRUE(pieces.has_value());
    best.share_us = std::min(best.share_us, static_cast<double>(shared - start) / 1e3);
    best.unshare_us = std::min(best.unshare_us, static_cast<double>(unshared - shared) / 1e3);
  }
  return best;
}

TEST(RemapperCosts, DISABLED_Table) {
  for (const bool company : {false, true}) {
    std::atomic<bool> stop{false};
    std::thread other;
    if (company)
      other = std::thread([&] {
        while (!stop) usleep(100);
      });
    for (const Way& way : kWays) {
      RemapOptions options;
      options.may_move = way.may_move;
      auto remapper = make_remapper(Policy::kAuto, options);
      std::printf("%s, %s\n", way.name, company ? "beside another thread" : "alone");
      for (const size_t pages : {size_t{1}, size_t{16}, size_t{256}, size_t{1} << 15, size_t{1} << 18})
        for (const bool touched : {true, false}) {
          const Cost cost = measure(*remapper, pages, touched, pages > 1000 ? 3 : 200);
          std::printf("  %8zu KiB %-9s share %10.1f us  unshare %10.1f us\n", pages * 4,
                      touched ? "touched" : "untouched", cost.share_us, cost.unshare_us);
        }
    }
    stop = true;
    if (company) other.join();
  }
}

TEST(RemapperCosts, DISABLED_Fork) {
  auto remapper = make_remapper();
  for (const size_t pages : {size_t{0}, size_t{1}, size_t{1} << 15}) {
    Memory memory(pages + 1);
    std::memset(memory.data(), 1, memory.size());
    if (pages > 0) {
      ASSERT_TRUE(remapper->share(memory.data(), pages * kPageSize, true).has_value());
    }
    double best = 1e12;
    for (int round = 0; round < 20; ++round) {
      const int64_t start = base::now_ns();
      const pid_t child = fork();
      if (child == 0) _exit(0);
      best = std::min(best, static_cast<double>(base::now_ns() - start) / 1e3);
      waitpid(child, nullptr, 0);
    }
    std::printf("fork with %zu KiB shared: %.1f us\n", pages * 4, best);
    if (pages > 0) remapper->unshare(memory.data(), pages * kPageSize);
  }
}

}  // namespace
}  // namespace nupa::region::testing
