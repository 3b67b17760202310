// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "progress/condition.h"
#include "progress/thread.h"
#include "progress/waiter.h"

namespace nupa::ccl {

/// An operation of a communicator that runs in its turn.
class Job {
 public:
  virtual ~Job() = default;
  /// Any thread may call it, but never for two jobs of one executor at the same time. Returns 0 or an errno value.
  virtual int run() = 0;

  bool is_done() const { return done_.load(std::memory_order_acquire); }
  /// The result of a job that is done.
  int result() const { return result_; }

 private:
  friend class Executor;
  std::atomic<bool> done_{false};
  int result_ = 0;
};

/// Runs the jobs of a communicator in the order in which they were added, in a thread that waits for a job or in the
/// executor's own thread. Thread-safe.
class Executor {
 public:
  Executor() = default;
  /// Returns when all jobs are done.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Takes the turn if no thread holds it and no job is queued. The caller may then run an operation itself, and has to
  /// call give_back().
  bool try_take() {
    if (queued_.load(std::memory_order_relaxed) != 0) return false;
    if (running_.exchange(true, std::memory_order_acquire)) return false;
    if (queued_.load(std::memory_order_relaxed) == 0) return true;
    give_back();
    return false;
  }
  /// Waits for the turn and takes it. The wait naps, because a collective in another thread may take any time.
  void take() {
    for (progress::Waiter waiter(progress::kHolderPolicy); !try_take();) waiter.turn();
  }
  void give_back() {
    running_.store(false, std::memory_order_seq_cst);
    if (__builtin_expect(queued_.load(std::memory_order_seq_cst) != 0, 0)) notify_all_callers();
  }

  /// Queues a job. Returns 0, or an errno value if the executor's thread cannot be started.
  int add(std::shared_ptr<Job> job);
  /// Waits until the job is done and returns its result.
  int wait(const std::shared_ptr<Job>& job);
  /// Frees the turn in a forked child, since a thread of the parent may have held it. Jobs of the parent do not run in
  /// the child, and no jobs are added there.
  void abandon() {
    queued_.store(0, std::memory_order_relaxed);
    running_.store(false, std::memory_order_relaxed);
  }

 private:
  /// Runs the oldest job unless another thread holds the turn. Returns whether it ran one.
  bool run_one();
  void serve();
  void notify_all_callers();

  std::atomic<bool> running_{false};
  std::atomic<size_t> queued_{0};
  std::mutex mutex_;
  progress::Condition changed_;  ///< a job was added or is done, or the turn is free
  std::deque<std::shared_ptr<Job>> queue_;
  bool ends_ = false;
  progress::Thread thread_;
};

}  // namespace nupa::ccl
