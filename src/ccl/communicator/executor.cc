// SPDX-License-Identifier: Apache-2.0
#include "ccl/communicator/executor.h"

namespace nupa::ccl {

Executor::~Executor() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.has_started()) thread_.join();
}

int Executor::add(std::shared_ptr<Job> job) {
  {
    std::lock_guard lock(mutex_);
    if (!thread_.has_started())
      if (const auto started = thread_.start("nupa-ccl-run", [this] { serve(); }); !started)
        return started.error().code();
    queue_.push_back(std::move(job));
    queued_.store(queue_.size(), std::memory_order_seq_cst);
  }
  changed_.notify_all();
  return 0;
}

void Executor::notify_all_callers() {
  // With this lock, a thread that checked before the turn was free is asleep by now, or checks again.
  { std::lock_guard lock(mutex_); }
  changed_.notify_all();
}

bool Executor::run_one() {
  if (running_.exchange(true, std::memory_order_acquire)) return false;
  std::shared_ptr<Job> job;
  {
    std::lock_guard lock(mutex_);
    if (!queue_.empty()) job = queue_.front();
  }
  if (job != nullptr) {
    job->result_ = job->run();
    std::lock_guard lock(mutex_);
    queue_.pop_front();
    queued_.store(queue_.size(), std::memory_order_seq_cst);
    job->done_.store(true, std::memory_order_release);
  }
  // Also without a job: another thread may have tried to take the turn meanwhile.
  give_back();
  if (job != nullptr) changed_.notify_all();
  return job != nullptr;
}

int Executor::wait(const std::shared_ptr<Job>& job) {
  while (!job->is_done()) {
    if (run_one()) continue;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return job->is_done() || !running_.load(std::memory_order_seq_cst); });
  }
  return job->result();
}

void Executor::serve() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] {
        return (ends_ && queue_.empty()) || (!queue_.empty() && !running_.load(std::memory_order_seq_cst));
      });
      if (ends_ && queue_.empty()) return;
    }
    run_one();
  }
}

}  // namespace nupa::ccl
