// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <new>
#include <vector>

#include "progress/lifecycle.h"

namespace nupa::progress {
namespace {

constexpr size_t kStages = 5;
std::atomic<uint32_t> g_generation{0};

/// Never destroyed: fork() may run while static objects are being destroyed.
struct Forks {
  std::mutex mutex;
  std::array<std::vector<ForkParticipant*>, kStages> stages;
};

Forks& forks() {
  static Forks* const all = new Forks;
  return *all;
}

void prepare() {
  Forks& all = forks();
  all.mutex.lock();
  for (auto& stage : all.stages)
    for (ForkParticipant* participant : stage) participant->before_fork();
}

void in_parent() {
  Forks& all = forks();
  for (auto stage = all.stages.rbegin(); stage != all.stages.rend(); ++stage)
    for (auto participant = stage->rbegin(); participant != stage->rend(); ++participant) (*participant)->in_parent();
  all.mutex.unlock();
}

void in_child() {
  Forks& all = forks();
  g_generation.fetch_add(1);
  for (auto& stage : all.stages)
    stage.erase(std::remove_if(stage.begin(), stage.end(), [](ForkParticipant* each) { return !each->in_child(); }),
                stage.end());
  all.mutex.unlock();
}

/// Installed before main(), and before the handlers of all libraries that depend on this one. So it runs first in a
/// child and last before a fork, and handlers of programs still find everything working.
[[gnu::constructor]] void install() {
  forks();
  pthread_atfork(prepare, in_parent, in_child);
}

}  // namespace

uint32_t process_generation() { return g_generation.load(std::memory_order_relaxed); }

int join_forks(ForkStage stage, ForkParticipant* participant) {
  Forks& all = forks();
  std::lock_guard lock(all.mutex);
  try {
    all.stages[static_cast<size_t>(stage)].push_back(participant);
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
  return 0;
}

void leave_forks(ForkParticipant* participant) {
  Forks& all = forks();
  std::lock_guard lock(all.mutex);
  for (auto& stage : all.stages) stage.erase(std::remove(stage.begin(), stage.end(), participant), stage.end());
}

}  // namespace nupa::progress
