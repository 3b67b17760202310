// SPDX-License-Identifier: Apache-2.0
#include "job.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>

#include "base/clock.h"
#include "../support/sanitizers.h"

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

Signal::Signal() {
  if (pipe2(ends_, O_CLOEXEC) != 0) std::perror("a pipe for a signal");
}

Signal::~Signal() {
  close(ends_[0]);
  close(ends_[1]);
}

void Signal::give() const {
  if (write(ends_[1], "", 1) != 1) std::perror("a signal");
}

void Signal::take(const Rank& rank) const {
  pollfd wanted{ends_[0], POLLIN, 0};
  char byte = 0;
  rank.expect(poll(&wanted, 1, kJobLimitSeconds * 1000) == 1 && read(ends_[0], &byte, 1) == 1, "a signal did not come");
}

SharedCount::SharedCount() {
  void* const memory = mmap(nullptr, sizeof *word_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::perror("memory for a count");
  word_ = new (memory) std::atomic<uint32_t>(0);
}

SharedCount::~SharedCount() { munmap(word_, sizeof *word_); }

void check_barriers(Rank& rank, const SharedCount& came) {
  constexpr uint32_t kTurns = 12;
  constexpr useconds_t kLateUs = 300;
  for (uint32_t turn = 1; turn <= kTurns; ++turn) {
    if (turn % rank.ranks() == rank.rank()) usleep(kLateUs);  // sleep: one rank after the other is late
    came.add();
    rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
    rank.expect(came.now() >= turn * rank.ranks(), "left a barrier before all had come");
  }
}

SeparateMemories::SeparateMemories() : folder_("/tmp/nupa-memories-XXXXXX") {
  if (mkdtemp(folder_.data()) == nullptr) std::perror("a folder for memories");
}

SeparateMemories::~SeparateMemories() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void SeparateMemories::enter(uint32_t number) const {
  const std::string own = folder_ + "/" + std::to_string(number);
  if (mkdir(own.c_str(), S_IRWXU) != 0 && errno != EEXIST) std::perror(own.c_str());
  setenv("NUPA_RUNTIME_DIR", own.c_str(), 1);
}

namespace {

/// With NUPA_TEST_POOL=file:PATH the ranks are on two hosts of that pool in turns.
void enter_host_of_pool(uint32_t rank) {
  constexpr uint32_t kHosts = 2;
  const char* const pool = getenv("NUPA_TEST_POOL");
  const char* const folder = getenv("NUPA_RUNTIME_DIR");
  if (pool == nullptr || folder == nullptr) return;
  const std::string host = std::to_string(rank % kHosts);
  setenv("NUPA_POOL", (std::string(pool) + ",host=" + host).c_str(), 1);
  const std::string own = std::string(folder) + "/host" + host;
  if (mkdir(own.c_str(), S_IRWXU) != 0 && errno != EEXIST) std::perror(own.c_str());
  setenv("NUPA_RUNTIME_DIR", own.c_str(), 1);
}

/// Forks all ranks before it makes the id and sends it to them: a process with threads cannot be forked safely.
Endings manage_job(uint32_t ranks, const std::function<void(Rank&)>& play, int limit_s) {
  std::vector<pid_t> pids;
  std::vector<int> ids;
  for (uint32_t number = 0; number < ranks; ++number) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return Endings(ranks, errno);
    const pid_t pid = fork();
    if (pid == 0) {
      nupa_ccl_unique_id id;
      if (read(ends[0], &id, sizeof id) != sizeof id) _exit(kFailed);
      enter_host_of_pool(number);
      Rank rank(number, ranks, id);
      play(rank);
      rank.finish();
      std::fflush(nullptr);
      _exit(0);
    }
    close(ends[0]);
    ids.push_back(ends[1]);
    pids.push_back(pid);
  }
  nupa_ccl_unique_id id;
  const int error = nupa_ccl_get_unique_id(&id);
  for (const int to : ids) {
    if (error == 0 && write(to, &id, sizeof id) != sizeof id) std::perror("the id of a job");
    close(to);
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
    if (left > 0) usleep(1000);  // sleep: the pause between two looks
  }
  return endings;
}

}  // namespace

Endings run_job(uint32_t ranks, const std::function<void(Rank&)>& play, int limit_s) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Endings(ranks, errno);
  const pid_t manager = fork();
  if (manager == 0) {
    const Endings endings = manage_job(ranks, play, limit_s);
    const auto bytes = static_cast<ssize_t>(endings.size() * sizeof endings[0]);
    _exit(write(ends[1], endings.data(), endings.size() * sizeof endings[0]) == bytes ? 0 : 1);
  }
  close(ends[1]);
  Endings endings(ranks, kFailed);
  if (read(ends[0], endings.data(), ranks * sizeof endings[0]) <= 0)
    std::fprintf(stderr, "the job's manager returned no endings\n");
  close(ends[0]);
  waitpid(manager, nullptr, 0);
  return endings;
}

std::vector<uint32_t> rank_counts() {
  if (test::kSanitized) return {1, 2, 5};
  return {1, 2, 3, 4, 5, 6, 7, 8, 9};
}

Endings all_well(uint32_t ranks) { return Endings(ranks, 0); }

}  // namespace nupa::ccl
