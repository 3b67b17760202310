// SPDX-License-Identifier: Apache-2.0
#include "copy/thread_engine.h"

#include <algorithm>
#include <new>

#include "base/log.h"
#include "copy/guarded_copy.h"
#include "progress/clock.h"

namespace nupa::copy {

namespace {

/// A look at a job whose end should have been reported.
constexpr int64_t kBackupLookNs = 100 * progress::kNsPerMs;

}  // namespace

class ThreadEngine::Job final : public CopyJob {
 public:
  void begin() {
    next_ = 0;
    offset_ = 0;
    cancelled = faulted = false;
    state_.store(JobState::kRunning, std::memory_order_relaxed);
  }
  using CopyJob::end;
  bool is_running() const { return state_.load(std::memory_order_relaxed) == JobState::kRunning; }
  bool has_more() const { return next_ < copies.size(); }
  /// The next bytes that no thread has begun. Length 0: there are none.
  Copy take_chunk() {
    if (!has_more()) return {};
    const Copy& whole = copies[next_];
    const uint64_t length = std::min(kChunk, whole.length - offset_);
    const Copy chunk{whole.to + offset_, whole.from + offset_, length};
    offset_ += length;
    if (offset_ == whole.length) {
      ++next_;
      offset_ = 0;
    }
    return chunk;
  }

  // Under the engine's mutex.
  uint32_t inside = 0;  ///< threads that copy for it
  bool cancelled = false;
  bool faulted = false;

 private:
  size_t next_ = 0;      ///< index of the copy that is not begun completely
  uint64_t offset_ = 0;  ///< bytes of it that are begun
};

ThreadEngine::~ThreadEngine() {
  {
    std::lock_guard lock(mutex_);
    stops_ = true;
  }
  wanted_.notify_all();
  for (progress::Thread& thread : threads_) thread.join();
}

std::unique_ptr<CopyJob> ThreadEngine::make_job() { return std::unique_ptr<CopyJob>(new (std::nothrow) Job); }

bool ThreadEngine::start_threads() {
  if (!threads_.empty()) return true;
  while (threads_.size() < most_threads_) {
    threads_.emplace_back();
    const auto started = threads_.back().start("nupa-copy", [this] { run(); });
    if (started) continue;
    threads_.pop_back();
    NUPA_WARN("%s", started.error().what());
    break;
  }
  if (!threads_.empty()) hooks_.started_threads(static_cast<int>(threads_.size()));
  return !threads_.empty();
}

bool ThreadEngine::submit(CopyJob& submitted) try {
  Job& job = static_cast<Job&>(submitted);
  {
    std::lock_guard lock(mutex_);
    if (!start_threads()) return false;
    queue_.push_back(&job);
    job.begin();
  }
  if (most_threads_ == 1)
    wanted_.notify_one();
  else
    wanted_.notify_all();
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

void ThreadEngine::cancel(CopyJob& submitted) {
  Job& job = static_cast<Job&>(submitted);
  std::unique_lock lock(mutex_);
  if (job.is_running()) {
    job.cancelled = true;
    std::erase(queue_, &job);
    left_.wait(lock, [&] { return job.inside == 0; });
  }
  // A thread that has ended the job has left it with the mutex.
  if (job.is_running()) job.end(JobState::kIdle);
}

int64_t ThreadEngine::next_look(const CopyJob&, int64_t now_ns) const { return now_ns + kBackupLookNs; }

void ThreadEngine::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wanted_.wait(lock, [this] { return stops_ || !queue_.empty(); });
    if (stops_) return;
    if (!queue_.front()->writes_program_memory) {
      work(lock);
      continue;
    }
    // Before a chunk is taken: a thread that cancels the job may hold this mutex shared, and waits for chunks.
    lock.unlock();
    std::shared_lock moves(*hooks_.moves);
    lock.lock();
    work(lock);
  }
}

void ThreadEngine::work(std::unique_lock<std::mutex>& lock) {
  if (queue_.empty()) return;
  Job& job = *queue_.front();
  const Copy chunk = job.take_chunk();
  if (!job.has_more()) queue_.pop_front();
  ++job.inside;
  lock.unlock();
  const bool copied = copy_guarded(chunk);
  lock.lock();
  --job.inside;
  if (!copied) {
    job.faulted = true;
    std::erase(queue_, &job);
  }
  if (job.inside != 0) return;
  if (job.cancelled)
    left_.notify_all();
  else if (job.faulted || !job.has_more())
    finish(lock, job);
}

void ThreadEngine::finish(std::unique_lock<std::mutex>& lock, Job& job) {
  if (!job.faulted) {
    ++job.inside;
    lock.unlock();
    const bool stored = store_last(job.last);
    lock.lock();
    --job.inside;
    job.faulted = !stored;
    if (job.cancelled) return left_.notify_all();
  }
  job.end(job.faulted ? JobState::kFault : JobState::kDone);
  lock.unlock();
  hooks_.ended();
  lock.lock();
}

}  // namespace nupa::copy
