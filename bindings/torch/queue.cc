// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/queue.h"

#include <system_error>

namespace nupa::torch_backend {
namespace {

/// A job that no thread waits for begins after one to two of these intervals. Waking the thread for each job would cost
/// more than small jobs do; polling at this interval costs about a hundredth of a core.
constexpr int64_t kLookNs = 500'000;
/// After this number of polls without a job the thread sleeps, and the next job wakes it.
constexpr uint32_t kLooksInVain = 20;

}  // namespace

void start_thread(progress::Thread& thread, progress::ThreadName name, std::function<void()> body) {
  const auto started = thread.start(name, std::move(body));
  if (!started) throw std::system_error(started.error().code(), std::generic_category(), started.error().what());
}

void Queue::stop() {
  {
    Lock lock(mutex_);
    ends_ = true;
  }
  wanted_.notify_all();
  if (thread_.has_started()) thread_.join();
}

void Queue::add(std::shared_ptr<Job> job) {
  bool wake = false;
  {
    Lock lock(mutex_);
    if (!thread_.has_started()) start_thread(thread_, "nupa-torch-q", [this] { serve(); });
    jobs_.push_back(std::move(job));
    ++added_;
    wake = is_asleep_;
  }
  if (wake) wanted_.notify_one();
}

void Queue::hasten() {
  {
    Lock lock(mutex_);
    if (jobs_.empty() || hastened_ == added_) return;
    hastened_ = added_;
  }
  wanted_.notify_one();
}

void Queue::run_first(Lock& lock) {
  std::shared_ptr<Job> job = std::move(jobs_.front());
  jobs_.pop_front();
  is_running_ = true;
  lock.unlock();
  job->run();
  // The lock is not held: the job's destructor may wait for Python's lock, whose owner may wait for this one.
  job.reset();
  lock.lock();
  is_running_ = false;
  if (waiters_ > 0) changed_.notify_all();
  if (is_wanted()) wanted_.notify_one();
}

void Queue::wait(const Job& job) {
  if (job.is_done()) return;
  Lock lock(mutex_);
  while (!job.is_done()) {
    if (!is_running_ && !jobs_.empty()) {
      run_first(lock);
      continue;
    }
    ++waiters_;
    changed_.wait(lock, [&] { return job.is_done() || is_free(); });
    --waiters_;
  }
}

bool Queue::wait_until(const Job& job, Clock::time_point until) {
  hasten();
  Lock lock(mutex_);
  ++waiters_;
  const auto at = std::chrono::duration_cast<std::chrono::nanoseconds>(until.time_since_epoch());
  changed_.wait(
      lock, [&] { return job.is_done(); }, progress::Deadline::at(at.count()));
  --waiters_;
  return job.is_done();
}

void Queue::drain() {
  Lock lock(mutex_);
  while (!jobs_.empty() || is_running_) {
    if (!is_running_) {
      run_first(lock);
      continue;
    }
    ++waiters_;
    changed_.wait(lock, [this] { return !is_running_; });
    --waiters_;
  }
}

void Queue::rest(Lock& lock) {
  if (!jobs_.empty() || seen_ != added_) looks_in_vain_ = 0;
  if (++looks_in_vain_ > kLooksInVain) {
    is_asleep_ = true;
    wanted_.wait(lock, [this] { return ends_ || seen_ != added_; });
    is_asleep_ = false;
    looks_in_vain_ = 0;
  }
  seen_ = added_;
  wanted_.wait(
      lock, [this] { return is_wanted() || (ends_ && jobs_.empty()); }, progress::Deadline::in_ns(kLookNs));
}

void Queue::serve() {
  Lock lock(mutex_);
  while (!ends_ || !jobs_.empty()) {
    if (is_due())
      run_first(lock);
    else
      rest(lock);
  }
}

}  // namespace nupa::torch_backend
