// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "progress/condition.h"
#include "progress/thread.h"

namespace nupa::torch_backend {

/// Thread::start() for code that PyTorch calls. Throws std::system_error if no thread can be started.
void start_thread(progress::Thread& thread, progress::ThreadName name, std::function<void()> body);

/// A task of a Queue.
class Job {
 public:
  virtual ~Job() = default;
  /// Called by the thread that has taken the job. is_done() is true afterwards.
  virtual void run() = 0;
  bool is_done() const { return done_.load(std::memory_order_acquire); }

 protected:
  std::atomic<bool> done_{false};
};

/// The jobs of a process group, in the order in which they were added. A thread that waits for a job runs it, and the
/// jobs before it, because passing them to another thread would cost fifty times a small all_reduce. Another thread
/// runs the jobs that no thread waits for: at once after hasten(), otherwise after a moment. Thread-safe.
class Queue {
 public:
  using Clock = std::chrono::steady_clock;

  Queue() = default;
  ~Queue() { stop(); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  /// Throws std::system_error if no thread can be started.
  void add(std::shared_ptr<Job> job);
  /// Makes the queue's thread run the current jobs at once, although no thread waits for them.
  void hasten();
  void wait(const Job& job);
  /// Returns whether the job was done in time. The caller runs no job, because it could not stop.
  bool wait_until(const Job& job, Clock::time_point until);
  /// Waits until no job is left.
  void drain();
  /// Waits until no job is left; none may be added afterwards. Must not be called by the queue's own thread.
  void stop();

 private:
  using Lock = std::unique_lock<std::mutex>;

  void run_first(Lock& lock);
  void serve();
  // Used by the queue's thread.
  bool is_free() const { return !jobs_.empty() && !is_running_; }
  uint64_t first() const { return added_ - jobs_.size() + 1; }
  bool is_wanted() const { return is_free() && (ends_ || first() <= hastened_); }
  bool is_due() const { return is_wanted() || (is_free() && first() <= seen_); }
  void rest(Lock& lock);

  std::mutex mutex_;
  progress::Condition changed_;  ///< a job is done
  progress::Condition wanted_;   ///< the thread is needed
  std::deque<std::shared_ptr<Job>> jobs_;
  uint64_t added_ = 0;     ///< jobs that were ever added
  uint64_t hastened_ = 0;  ///< number of the last job of hasten()
  uint64_t seen_ = 0;      ///< number of the last job that the thread has seen
  uint32_t waiters_ = 0;
  uint32_t looks_in_vain_ = 0;
  bool is_running_ = false;
  bool is_asleep_ = false;  ///< the thread sleeps until it is woken
  bool ends_ = false;
  progress::Thread thread_;
};

}  // namespace nupa::torch_backend
