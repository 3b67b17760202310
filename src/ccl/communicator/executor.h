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

/// Something a communicator is to do, in its turn.
class Job {
 public:
  virtual ~Job() = default;
  /// By whichever thread runs it; never two jobs of one executor at the same time. An errno value; 0: done.
  virtual int run() = 0;

  bool is_done() const { return done_.load(std::memory_order_acquire); }
  /// Of one that is done.
  int result() const { return result_; }

 private:
  friend class Executor;
  std::atomic<bool> done_{false};
  int result_ = 0;
};

/// Runs the jobs of a communicator in the order in which they came: in the thread that waits for one, else in a thread
/// of its own. Any thread.
class Executor {
 public:
  Executor() = default;
  /// No jobs are left.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Takes the turn if nobody has it and nothing waits. Then the caller may do something itself, and gives it back.
  bool try_take() {
    if (queued_.load(std::memory_order_relaxed) != 0) return false;
    if (running_.exchange(true, std::memory_order_acquire)) return false;
    if (queued_.load(std::memory_order_relaxed) == 0) return true;
    give_back();
    return false;
  }
  /// The same, once that is so. A collective in another thread may take as long as it likes: the wait naps.
  void take() {
    for (progress::Waiter waiter(progress::kHolderPolicy); !try_take();) waiter.turn();
  }
  void give_back() {
    running_.store(false, std::memory_order_seq_cst);
    if (__builtin_expect(queued_.load(std::memory_order_seq_cst) != 0, 0)) tell_all();
  }

  /// To be run in its turn. An errno value: there is no thread to be had.
  int add(std::shared_ptr<Job> job);
  /// Until it is done. Returns its result.
  int wait(const std::shared_ptr<Job>& job);
  /// In a forked child, whose parent's threads may have the turn: the turn is free, and nothing waits for it. No jobs
  /// are added there.
  void abandon() {
    queued_.store(0, std::memory_order_relaxed);
    running_.store(false, std::memory_order_relaxed);
  }

 private:
  /// Runs the oldest job, if nobody else runs one.
  bool run_one();
  void serve();
  void tell_all();

  std::atomic<bool> running_{false};
  std::atomic<size_t> queued_{0};
  std::mutex mutex_;
  progress::Condition changed_;  ///< a job came, or is done, or the turn is free
  std::deque<std::shared_ptr<Job>> queue_;
  bool ends_ = false;
  progress::Thread thread_;
};

}  // namespace nupa::ccl
