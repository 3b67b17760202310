// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string_view>
#include <vector>

namespace nupa::copy {

/// Bytes to copy. The two ranges do not overlap.
struct Copy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  uint64_t length = 0;
};

enum class JobState : uint8_t {
  kIdle,     ///< not submitted, or cancelled
  kRunning,  ///< bytes may be accessed at any moment
  kDone,     ///< all bytes are copied, and visible to a thread that has seen this state
  kFault,    ///< memory of the job is not mapped; some bytes may be copied
  kBroken,   ///< the engine does not work any more; some bytes may be copied
};

/// A list of copies that an engine executes. One thread at a time uses a job, except its engine. Its users fill the
/// public members while the state is not kRunning.
class CopyJob {
 public:
  CopyJob() = default;
  virtual ~CopyJob() = default;
  CopyJob(const CopyJob&) = delete;
  CopyJob& operator=(const CopyJob&) = delete;

  /// Copied in any order.
  std::vector<Copy> copies;
  /// At most 8 bytes. They become visible after all bytes of `copies`, by base::store_tail(), because programs poll on
  /// the last bytes of an RDMA WRITE.
  Copy last;
  /// The destination is memory of this program, which may move when it is registered.
  bool writes_program_memory = false;
  /// A number that the user has made odd before CopyEngine::submit(). The engine adds 1 (release) when it accesses no
  /// byte of the job any more. Other threads and processes watch it, as they watch a send lock (shm/send_lock.h).
  std::atomic<uint32_t>* busy = nullptr;

 protected:
  friend class CopyEngine;
  /// Sets the state and makes `busy` even. The last access of an engine to a job that another thread may poll.
  void end(JobState state) {
    busy->store(busy->load(std::memory_order_relaxed) + 1, std::memory_order_release);
    state_.store(state, std::memory_order_release);
  }
  std::atomic<JobState> state_{JobState::kIdle};
};

/// Executes copy jobs. Any thread. The engine outlives its jobs. It takes no lock of its callers, so they may hold
/// locks in each call.
class CopyEngine {
 public:
  CopyEngine() = default;
  virtual ~CopyEngine() = default;
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  /// A word of NUPA_COPY_ENGINE. Constant.
  virtual std::string_view name() const = 0;
  /// Returns an empty job for this engine. Null: there is no memory.
  virtual std::unique_ptr<CopyJob> make_job() = 0;
  /// Begins a job of make_job(). False: the engine has no room or does not work, nothing was copied, and `busy` is as
  /// before. The caller then copies itself.
  virtual bool submit(CopyJob& job) = 0;
  /// Returns the state of a submitted job. An engine without threads does its work here.
  virtual JobState poll(CopyJob& job) = 0;
  /// Ends a job early. When it returns, no byte of the job is accessed any more, and the job may be destroyed or
  /// submitted again. Waits for the bytes that are being copied: tens of microseconds.
  virtual void cancel(CopyJob& job) = 0;
  /// True if the engine calls Hooks::ended at the end of each job that is not cancelled. Constant.
  virtual bool reports_end() const = 0;
  /// Returns the time (CLOCK_MONOTONIC, ns) at which the next poll() of a running job is useful.
  virtual int64_t next_look(const CopyJob& job, int64_t now_ns) const = 0;

 protected:
  static JobState state_of(const CopyJob& job) { return job.state_.load(std::memory_order_acquire); }
};

/// The functions of the process that an engine uses.
struct Hooks {
  /// A job has ended: its user should poll soon. Called by the engine's threads, without a lock.
  std::function<void()> ended;
  /// Held shared while a thread of the engine writes the program's memory.
  std::shared_mutex* moves = nullptr;
  /// The engine has started threads that write the program's memory only with `moves`.
  std::function<void(int threads)> started_threads;
  /// The engine writes the program's memory without `moves`.
  std::function<void()> writes_unguarded;
};

/// The chunk of the thread engine and the bound of a cancel, bytes. 256 KiB take 25 to 80 us.
inline constexpr uint64_t kChunk = uint64_t{256} << 10;

}  // namespace nupa::copy
