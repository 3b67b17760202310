// SPDX-License-Identifier: Apache-2.0
/// Ranks call random collectives for a given time: each result is checked, memory and descriptors must not grow, and
/// jobs with killed ranks go on without them. scripts/soak runs it.
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>

#include "base/clock.h"
#include "tests/ccl/reference.h"

namespace nupa::ccl {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;
/// What a process takes while it gets to know each operation is no growth.
constexpr uint32_t kWarmUp = 300;
constexpr uint32_t kBetweenLooks = 50;
constexpr size_t kGrowthBytes = 24 << 20;

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t pages = 0;
  size_t resident = 0;
  file >> pages >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t descriptors() {
  size_t count = 0;
  if (DIR* const folder = opendir("/proc/self/fd"); folder != nullptr) {
    while (readdir(folder) != nullptr) ++count;
    closedir(folder);
  }
  return count;
}

/// A communicator of some of the ranks, another one of those, and each is given up.
void check_splits(Rank& rank, uint32_t seed) {
  std::mt19937 shared(seed);
  std::vector<int64_t> colors(rank.ranks());
  for (int64_t& color : colors) color = static_cast<int64_t>(shared() % 3) - (shared() % 5 == 0 ? 3 : 0);
  const int64_t own = colors[rank.rank()];
  nupa_ccl_comm* part = nullptr;
  rank.expect_ok(nupa_ccl_comm_split(rank.world(), own, -static_cast<int64_t>(rank.rank()), &part), "split");
  rank.expect((part == nullptr) == (own < 0), "a rank is in a part without having a color, or the other way round");
  if (part == nullptr) return;
  nupa_ccl_comm* again = nullptr;
  rank.expect_ok(nupa_ccl_comm_dup(part, &again), "dup");
  int64_t count = 1;
  rank.expect_ok(nupa_ccl_all_reduce(&count, &count, 1, NUPA_CCL_INT64, NUPA_CCL_SUM, again, nullptr), "of a part");
  rank.expect(count == std::count(colors.begin(), colors.end(), own), "as many as have its color");
  rank.expect_ok(nupa_ccl_comm_destroy(again), "destroy");
  rank.expect_ok(nupa_ccl_comm_destroy(part), "destroy");
}

/// One thing that all ranks do, by a seed that they share.
void do_something(Rank& rank, uint32_t seed) {
  std::mt19937 shared(seed);
  g_allocates = shared() % 4 == 0;
  const auto type = static_cast<Type>(shared() % kTypes);
  const size_t elements = shared() % (shared() % 3 == 0 ? 100'000 : 2000);
  const bool in_place = shared() % 2 == 0;
  const Round round{type, elements, seed, true};
  switch (shared() % 8) {
    case 0:
      return check_movements(rank, round, in_place);
    case 1:
      return check_uneven(rank, seed);
    case 2:
      return check_joining(rank, elements);
    case 3:
      return check_splits(rank, seed);
    case 4:
      return check_reduce_scatter(rank, {type, elements / rank.ranks() * rank.ranks(), seed, true}, NUPA_CCL_SUM,
                                  in_place);
    default:
      break;
  }
  const nupa_ccl_op op = kOps[shared() % std::size(kOps)];
  if (is_defined(static_cast<Operator>(op), type)) check_reductions(rank, round, op, in_place);
}

void check_growth(const Rank& rank, size_t resident, size_t open) {
  const size_t now = resident_bytes();
  rank.expect(now < resident + resident / 5 + kGrowthBytes,
              "memory has grown from " + std::to_string(resident) + " to " + std::to_string(now) + " bytes");
  rank.expect(descriptors() <= open + 4,
              "descriptors have become more: " + std::to_string(open) + " and " + std::to_string(descriptors()));
}

/// Until the time is over, as rank 0 says.
void go_on(Rank& rank, uint32_t first_seed, int64_t until_ns) {
  std::mt19937 own(rank.rank() + first_seed);
  size_t resident = 0;
  size_t open = 0;
  for (uint32_t turn = 0;; ++turn) {
    if (turn % kBetweenLooks == 0) {
      uint8_t goes_on = base::now_ns() < until_ns ? 1 : 0;
      rank.expect_ok(nupa_ccl_broadcast(&goes_on, 1, NUPA_CCL_UINT8, 0, rank.world(), nullptr), "whether to go on");
      if (rank.rank() == 0 && (turn % (20 * kBetweenLooks) == 0 || goes_on == 0))
        std::printf("  %u turns, %zu MiB, %zu descriptors\n", turn, resident_bytes() >> 20, descriptors());
      std::fflush(stdout);
      if (goes_on == 0) break;
    }
    if (turn == kWarmUp) {
      resident = resident_bytes();
      open = descriptors();
    }
    if (own() % 32 == 0) usleep(own() % 2000);  // sleep: some ranks are late, at random
    do_something(rank, first_seed + turn);
  }
  if (resident != 0) check_growth(rank, resident, open);
}

/// One of the ranks is killed at any moment; the others do without.
void lose_one(Rank& rank, uint32_t seed) {
  std::mt19937 shared(seed);
  const uint32_t victim = shared() % rank.ranks();
  const auto delay = static_cast<useconds_t>(shared() % 300'000);
  nupa_ccl_comm* comm = rank.world();  // who has not come to it is no member
  if (rank.rank() == victim) {
    if (fork() == 0) {
      usleep(delay);  // sleep: the kill comes at a random moment
      kill(getppid(), SIGKILL);
      _exit(0);
    }
  }
  std::vector<float> values(1 + shared() % 200'000, 1);
  for (int turn = 0;; ++turn) {
    const int error =
        nupa_ccl_all_reduce(values.data(), values.data(), values.size(), NUPA_CCL_FLOAT32, NUPA_CCL_MAX, comm, nullptr);
    if (error == 0) continue;
    uint32_t gone = 0;
    rank.expect_ok(nupa_ccl_comm_error(comm, nullptr, &gone), "comm_error");
    rank.expect(error == ECONNRESET && gone == victim, nupa_ccl_error_text());
    break;
  }
  nupa_ccl_comm* left = nullptr;
  rank.expect_ok(nupa_ccl_comm_shrink(comm, &left), "shrink");
  int64_t count = 1;
  rank.expect_ok(nupa_ccl_all_reduce(&count, &count, 1, NUPA_CCL_INT64, NUPA_CCL_SUM, left, nullptr), "of the rest");
  rank.expect(count + 1 == rank.ranks(), "as many as are left");
  rank.expect_ok(nupa_ccl_comm_destroy(left), "destroy");
}

bool all_but_killed(const Endings& endings, bool one_is_killed) {
  const auto well = static_cast<size_t>(std::count(endings.begin(), endings.end(), 0));
  const auto killed = static_cast<size_t>(std::count(endings.begin(), endings.end(), -SIGKILL));
  return well + (one_is_killed ? killed : 0) == endings.size() && (!one_is_killed || killed == 1);
}

int soak(uint32_t ranks, int seconds, uint32_t seed, const std::string& what, uint32_t memories) {
  const int64_t until = base::now_ns() + seconds * kNsPerSecond;
  const SeparateMemories separate;
  const auto settle = [&](const Rank& rank) {
    if (memories > 1) separate.enter(rank.rank() % memories);
  };
  // A job of one kind or another, with a seed that says all of it.
  for (uint32_t job = 0; base::now_ns() < until; ++job) {
    const bool kills = what == "kills";
    const uint32_t own_seed = seed + job * 1'000'003;
    const auto endings = run_job(
        ranks,
        [&](Rank& rank) {
          settle(rank);
          if (kills)
            lose_one(rank, own_seed);
          else
            go_on(rank, own_seed, until);
        },
        kills ? 60 : seconds + 120);
    if (!all_but_killed(endings, kills)) {
      std::printf("failed with %u ranks, seed %u, job %u\n", ranks, own_seed, job);
      return 1;
    }
    if (kills && job % 20 == 19) std::printf("  %u jobs\n", job + 1);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace nupa::ccl

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  if (count < 5 || (what != "turns" && what != "kills")) {
    std::fprintf(stderr, "usage: ccl_soak turns|kills RANKS SECONDS SEED [MEMORIES]\n");
    return 2;
  }
  const auto number = [&](int index) { return static_cast<uint32_t>(std::strtoul(arguments[index], nullptr, 10)); };
  return nupa::ccl::soak(number(2), static_cast<int>(number(3)), number(4), what, count > 5 ? number(5) : 1);
}
