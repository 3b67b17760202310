// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>

#include "copy/copy_engine.h"
#include "copy/work_queue.h"

namespace nupa::copy {

/// Copies by a work queue of an Intel Data Streaming Accelerator. It has no thread: poll() looks at completion records
/// and submits what follows.
class DsaEngine final : public CopyEngine {
 public:
  /// A larger piece would make cancel() wait longer.
  static constexpr uint64_t kMostPiece = uint64_t{1} << 20;
  /// Descriptors of a job that are under way at a time.
  static constexpr size_t kFlights = 4;

  explicit DsaEngine(std::unique_ptr<WorkQueue> queue);

  std::string_view name() const override { return "dsa"; }
  std::unique_ptr<CopyJob> make_job() override;
  bool submit(CopyJob& job) override;
  JobState poll(CopyJob& job) override;
  void cancel(CopyJob& job) override;
  bool reports_end() const override { return false; }
  int64_t next_look(const CopyJob& job, int64_t now_ns) const override;

 private:
  class Job;
  struct Flight;
  /// Submits pieces until the job has no free flight or the queue has no room.
  void fill(Job& job);
  void launch(Flight& flight);
  /// Looks at the completion record of a flight.
  void look(Job& job, Flight& flight);
  /// Resolves a page fault of the device and submits the rest.
  void go_on(Job& job, Flight& flight);
  void break_down(const char* reason, unsigned status);

  const std::unique_ptr<WorkQueue> queue_;
  const uint64_t piece_;
  std::atomic<bool> broken_{false};
};

}  // namespace nupa::copy
