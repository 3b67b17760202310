// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <deque>
#include <mutex>

#include "copy/copy_engine.h"
#include "progress/condition.h"
#include "progress/thread.h"

namespace nupa::copy {

/// Threads of the library that copy, named nupa-copy. They start with the first job and sleep while there is none. All
/// of them work on the oldest job, in chunks.
class ThreadEngine final : public CopyEngine {
 public:
  ThreadEngine(uint32_t threads, Hooks hooks) : most_threads_(threads), hooks_(std::move(hooks)) {}
  /// All jobs have ended.
  ~ThreadEngine() override;

  std::string_view name() const override { return "thread"; }
  std::unique_ptr<CopyJob> make_job() override;
  bool submit(CopyJob& job) override;
  JobState poll(CopyJob& job) override { return state_of(job); }
  void cancel(CopyJob& job) override;
  bool reports_end() const override { return true; }
  int64_t next_look(const CopyJob& job, int64_t now_ns) const override;

 private:
  class Job;
  /// Under the mutex. Returns false if no thread runs and none can be started.
  bool start_threads();
  void run();
  /// Copies one chunk of the oldest job. The lock is of mutex_; it is held at the beginning and at the end.
  void work(std::unique_lock<std::mutex>& lock);
  /// Ends a job that no thread copies for.
  void finish(std::unique_lock<std::mutex>& lock, Job& job);

  const uint32_t most_threads_;
  const Hooks hooks_;
  std::mutex mutex_;
  progress::Condition wanted_;  ///< a job was submitted, or the engine stops
  progress::Condition left_;    ///< a thread has ended a chunk of a cancelled job
  std::deque<Job*> queue_;      ///< jobs with bytes that no thread has begun
  std::deque<progress::Thread> threads_;
  bool stops_ = false;
};

}  // namespace nupa::copy
