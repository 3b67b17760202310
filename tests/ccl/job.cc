#include "job.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "base/clock.h"

namespace nupa::ccl {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr int kFailed = 97;

}  // namespace

nupa_ccl_comm* Rank::world() {
  if (world_ == nullptr) expect_ok(nupa_ccl_comm_init_rank(&world_, ranks_, &id_, rank_), "init_rank");
  return world_;
}

void Rank::expect(bool held, const std::string& what) const {
  if (held) return;
  std::fprintf(stderr, "rank %u of %u: %s\n", rank_, ranks_, what.c_str());
  _exit(kFailed);
}

void Rank::expect_ok(int error, const std::string& what) const {
  if (error != 0) expect(false, what + ": " + std::strerror(error) + ": " + nupa_ccl_error_text());
}

void Rank::finish() {
  if (world_ != nullptr) expect_ok(nupa_ccl_comm_destroy(world_), "destroy");
  world_ = nullptr;
}

Endings run_job(uint32_t ranks, const std::function<void(Rank&)>& play, int limit_s) {
  nupa_ccl_unique_id id;
  if (const int error = nupa_ccl_get_unique_id(&id); error != 0) return Endings(ranks, error);
  std::vector<pid_t> pids;
  for (uint32_t number = 0; number < ranks; ++number) {
    const pid_t pid = fork();
    if (pid == 0) {
      Rank rank(number, ranks, id);
      play(rank);
      rank.finish();
      std::fflush(nullptr);
      _exit(0);
    }
    pids.push_back(pid);
  }
  Endings endings(ranks, kFailed);
  const int64_t until = base::now_ns() + limit_s * kNsPerSecond;
  std::vector<bool> ended(ranks);
  for (uint32_t left = ranks; left > 0;) {
    for (uint32_t number = 0; number < ranks; ++number) {
      int status = 0;
      if (ended[number] || waitpid(pids[number], &status, WNOHANG) != pids[number]) continue;
      endings[number] = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      ended[number] = true;
      --left;
    }
    if (left > 0 && base::now_ns() > until) {
      for (uint32_t number = 0; number < ranks; ++number)
        if (!ended[number]) {
          std::fprintf(stderr, "rank %u of %u hangs\n", number, ranks);
          kill(pids[number], SIGKILL);
        }
    }
    if (left > 0) usleep(1000);
  }
  return endings;
}

Endings all_well(uint32_t ranks) { return Endings(ranks, 0); }

}  // namespace nupa::ccl
