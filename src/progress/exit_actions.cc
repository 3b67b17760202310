// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <semaphore.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>

#include "progress/lifecycle.h"
#include "progress/thread.h"
#include "progress/waiter.h"

/// Defined by the preload library, if it is loaded: _exit() calls it first. A program under `nupa run` that ends by
/// _exit(), as the children of servers do, runs no exit handler, but still runs the exit actions.
extern "C" __attribute__((weak, visibility("default"))) std::atomic<void (*)()> nupa_before_exit;

namespace nupa::progress {
namespace {

constexpr size_t kExitStages = 6;
constexpr size_t kMost = 64;  ///< actions per stage
/// The additional time that the exiting thread waits, compared to the thread that supervises the actions and has to run
/// meanwhile.
constexpr int64_t kSlackNs = kActionNs;
constexpr int64_t kForgetNs = kNsPerSecond;

/// An action, or a free place: then `object` is null.
struct Place {
  std::atomic<void*> object{nullptr};
  std::atomic<void (*)(void*)> run{nullptr};
  std::atomic<void (*)(void*)> at_once{nullptr};
  std::atomic<uint32_t> inside{0};  ///< threads that run one of the two functions, or are about to read `object`

  /// Calls the function unless the object was removed. Counts first and reads `object` second; forget_at_exit() removes
  /// first and reads the count second.
  void call(std::atomic<void (*)(void*)> Place::*function) {
    inside.fetch_add(1);
    if (void* const found = object.load(); found != nullptr)
      if (auto* const wanted = (this->*function).load(); wanted != nullptr) wanted(found);
    inside.fetch_sub(1);
  }
};

using Places = std::array<Place, kExitStages * kMost>;
Places g_places;

std::mutex g_mutex;  ///< held by at_exit() and forget_at_exit(); the exiting thread does not take it
size_t g_actions = 0;
/// The process that the actions belong to. A child of vfork() shares everything with its parent except the process
/// number, and a child in its own PID namespace may even have the same number.
std::atomic<pid_t> g_process{0};
std::atomic<uint32_t> g_begun_in{0};
std::atomic<bool> g_begun{false};
std::atomic<bool> g_stop{false};
std::atomic<int64_t> g_until_ns{0};  ///< when the running action is late
sem_t g_asked;
sem_t g_over;
/// In memory without a destructor: a child constructs a new thread object in its place.
alignas(Thread) std::byte g_thread[sizeof(Thread)];

Thread& thread() { return *std::launder(reinterpret_cast<Thread*>(g_thread)); }

bool are_here() { return g_process.load() == getpid() && g_begun_in.load() == process_generation(); }

/// No thread adds or removes an action during fork().
class Exits final : public ForkParticipant {
 public:
  void before_fork() override { g_mutex.lock(); }
  void in_parent() override { g_mutex.unlock(); }
  bool in_child() override {
    for (Place& place : g_places) {
      place.object.store(nullptr);
      place.inside.store(0);
    }
    g_actions = 0;
    g_mutex.unlock();
    return true;
  }
};

/// False: the deadline has passed. It may move meanwhile.
bool wait(sem_t* semaphore, const std::atomic<int64_t>& until_ns, int64_t slack_ns) {
  for (;;) {
    const int64_t until = until_ns.load() + slack_ns;
    const timespec end{until / kNsPerSecond, until % kNsPerSecond};
    if (sem_clockwait(semaphore, CLOCK_MONOTONIC, &end) == 0) return true;
    if (errno == ETIMEDOUT && until_ns.load() + slack_ns <= until) return false;
    if (errno != ETIMEDOUT && errno != EINTR) return false;
  }
}

/// The progress through the actions, shared by several threads: if one is stuck, the next thread goes on with the rest.
struct Walk {
  std::atomic<size_t> next{0};      ///< index of the next place
  std::atomic<uint32_t> walker{0};  ///< the number of the thread that runs actions
  sem_t over;

  Walk() { sem_init(&over, 0, 0); }

  void go(uint32_t me) {
    for (;;) {
      if (walker.load() != me) return;
      const size_t place = next.fetch_add(1);
      if (place >= g_places.size()) break;
      g_until_ns.store(now_ns() + kActionNs);
      g_places[place].call(&Place::run);
    }
    sem_post(&over);
  }
};

/// Runs each action on a thread that may get stuck. A thread that does is left behind, with its locks.
void run_all() {
  g_until_ns.store(now_ns() + kActionNs);
  // Threads that were left behind still use it.
  const auto walk = std::make_shared<Walk>();
  for (uint32_t me = 0; walk->next.load() < g_places.size(); ++me) {
    walk->walker.store(me);
    g_until_ns.store(now_ns() + kActionNs);
    if (!start_detached("nupa-exit", [walk, me] { walk->go(me); })) return walk->go(me);
    if (wait(&walk->over, g_until_ns, 0)) return;
  }
}

void serve() {
  while (sem_wait(&g_asked) != 0) {
  }
  if (!g_stop.load()) run_all();
  sem_post(&g_over);  // also without actions: nothing is left that an exit could wait for
}

void hook_into_sudden_exit(void (*before)()) {
  // The linker resolves an undefined weak symbol to null, but the compiler assumes that every object has an address.
  std::atomic<void (*)()>* volatile const hook = &nupa_before_exit;
  if (hook != nullptr) hook->store(before);
}

/// Registers once in a process and its children, without the lock, because fork() takes the stages' lock before this
/// one. False: no memory.
bool register_once() {
  static Exits exits;
  static const int registered = std::atexit(run_exit_actions) + join_forks(ForkStage::kDescriptors, &exits);
  return registered == 0;
}

/// Returns 0 or an errno value.
int start() {
  if (!are_here()) {
    new (g_thread) Thread;
    g_begun.store(false);
    g_begun_in.store(process_generation());
    g_process.store(getpid());
  }
  g_stop.store(false);
  sem_init(&g_asked, 0, 0);
  sem_init(&g_over, 0, 0);
  const auto started = thread().start("nupa-exit", serve);
  if (!started) return started.error().code();
  hook_into_sudden_exit(run_exit_actions);
  return 0;
}

}  // namespace

int at_exit(ExitStage stage, const ExitAction& action) {
  if (!register_once()) return ENOMEM;
  std::lock_guard lock(g_mutex);
  const size_t first = static_cast<size_t>(stage) * kMost;
  const auto begin = g_places.begin() + static_cast<ptrdiff_t>(first);
  const auto free = std::find_if(begin, begin + kMost, [](const Place& place) {
    return place.object.load() == nullptr && place.inside.load() == 0;
  });
  if (free == begin + kMost) return ENOMEM;
  if (g_actions == 0)
    if (const int error = start(); error != 0) return error;
  ++g_actions;
  free->run.store(action.run);
  free->at_once.store(action.at_once);
  free->object.store(action.object);
  return 0;
}

void forget_at_exit(void* object) {
  if (!are_here()) return;
  // The destructors of static objects run after the actions, in a thread that may have been interrupted while it held
  // the lock.
  std::unique_lock lock(g_mutex, std::defer_lock);
  if (!g_begun.load()) lock.lock();
  for (Place& place : g_places) {
    void* expected = object;
    if (!place.object.compare_exchange_strong(expected, nullptr)) continue;
    wait_for([&] { return place.inside.load() == 0; }, kPeerPolicy, Deadline::in_ns(kForgetNs));
    if (!lock.owns_lock() || --g_actions != 0 || g_begun.load()) continue;
    hook_into_sudden_exit(nullptr);
    g_stop.store(true);
    sem_post(&g_asked);
    thread().join();
  }
}

void run_exit_actions() {
  if (!are_here() || g_begun.exchange(true)) return;
  for (Place& place : g_places) place.call(&Place::at_once);
  g_until_ns.store(now_ns() + kActionNs);
  sem_post(&g_asked);
  wait(&g_over, g_until_ns, kSlackNs);
}

void put_off_exit(Deadline until) {
  int64_t before = g_until_ns.load();
  while (before < until.at_ns() && !g_until_ns.compare_exchange_weak(before, until.at_ns())) {
  }
}

}  // namespace nupa::progress
