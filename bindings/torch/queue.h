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

/// Thread::start() for code that PyTorch calls. Throws std::system_error: there is no thread to be had.
void start_thread(progress::Thread& thread, progress::ThreadName name, std::function<void()> body);

/// Something that is done in its turn.
class Job {
 public:
  virtual ~Job() = default;
  /// By whichever thread has the turn; is_done() afterwards.
  virtual void run() = 0;
  bool is_done() const { return done_.load(std::memory_order_acquire); }

 protected:
  std::atomic<bool> done_{false};
};

/// Jobs of a process group, in the order in which they came. Whoever waits for one runs it, and those before it, in its
/// own thread: a hand-over would cost fifty times what a small all_reduce does. For what nobody waits for there is a
/// thread: at once where somebody has asked for it, else after a moment. Any thread.
class Queue {
 public:
  using Clock = std::chrono::steady_clock;

  Queue() = default;
  ~Queue() { stop(); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  /// Throws std::system_error: there is no thread to be had.
  void add(std::shared_ptr<Job> job);
  /// What is here now is to be done though nobody waits.
  void hasten();
  void wait(const Job& job);
  /// Whether it was done in time. The caller runs nothing, because it could not stop.
  bool wait_until(const Job& job, Clock::time_point until);
  /// Until nothing is left.
  void drain();
  /// No jobs are left, and none comes any more. Not by its own thread.
  void stop();

 private:
  using Lock = std::unique_lock<std::mutex>;

  void run_first(Lock& lock);
  void serve();
  // For the thread.
  bool is_free() const { return !jobs_.empty() && !is_running_; }
  uint64_t first() const { return added_ - jobs_.size() + 1; }
  bool is_wanted() const { return is_free() && (ends_ || first() <= hastened_); }
  bool is_due() const { return is_wanted() || (is_free() && first() <= seen_); }
  void rest(Lock& lock);

  std::mutex mutex_;
  progress::Condition changed_;  ///< a job is done
  progress::Condition wanted_;   ///< the thread is
  std::deque<std::shared_ptr<Job>> jobs_;
  uint64_t added_ = 0;     ///< jobs, ever
  uint64_t hastened_ = 0;  ///< those up to here
  uint64_t seen_ = 0;      ///< by the thread, those up to here
  uint32_t waiters_ = 0;
  uint32_t looks_in_vain_ = 0;
  bool is_running_ = false;
  bool is_asleep_ = false;  ///< the thread, until it is woken
  bool ends_ = false;
  progress::Thread thread_;
};

}  // namespace nupa::torch_backend
