// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Ranks of a job as processes, as programs have them.
#include <nupa/ccl.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "../support/sanitizers.h"

namespace nupa::ccl {

/// One rank, in a process of its own. A failure is said on standard error and ends it.
class Rank {
 public:
  Rank(uint32_t rank, uint32_t ranks, const nupa_ccl_unique_id& id) : rank_(rank), ranks_(ranks), id_(id) {}

  uint32_t rank() const { return rank_; }
  uint32_t ranks() const { return ranks_; }
  const nupa_ccl_unique_id& id() const { return id_; }
  /// The communicator of all.
  nupa_ccl_comm* world();

  /// Ends the process if `held` does not hold.
  void expect(bool held, const std::string& what) const;
  void expect_ok(int error, const std::string& what) const;
  /// All requests are waited for; the communicator is destroyed as programs do it.
  void finish();

 private:
  uint32_t rank_;
  uint32_t ranks_;
  nupa_ccl_unique_id id_;
  nupa_ccl_comm* world_ = nullptr;
};

/// Ranks that share no memory, on one host: each memory has a runtime directory of its own. They go with this.
class SeparateMemories {
 public:
  SeparateMemories();
  ~SeparateMemories();
  SeparateMemories(const SeparateMemories&) = delete;
  SeparateMemories& operator=(const SeparateMemories&) = delete;
  /// This process is in that one; before it has a communicator.
  void enter(uint32_t number) const;

 private:
  std::string folder_;
};

/// How each rank's process ended: its status, or minus the signal.
using Endings = std::vector<int>;
/// Many times what any job takes, also beside other programs.
constexpr int kJobLimitSeconds = test::kSanitized ? 240 : 60;
/// Runs `play` as `ranks` processes. A rank that has not ended after `limit_s` is killed: its ending is -SIGKILL.
Endings run_job(uint32_t ranks, const std::function<void(Rank&)>& play, int limit_s = kJobLimitSeconds);
/// 1 to 9; a sanitizer, which takes ten times as long, sees with a few of them what there is to be seen.
std::vector<uint32_t> rank_counts();

/// An event that one rank waits for and others bring about; made before the job.
class Signal {
 public:
  Signal();
  ~Signal();
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;
  /// Counts it.
  void give() const;
  /// Until it has been given once more for each rank that takes it. Ends the process if that does not come.
  void take(const Rank& rank) const;

 private:
  int ends_[2];
};

/// A number that all ranks of a job count up; made before the job.
class SharedCount {
 public:
  SharedCount();
  ~SharedCount();
  SharedCount(const SharedCount&) = delete;
  SharedCount& operator=(const SharedCount&) = delete;
  void add() const { word_->fetch_add(1); }
  uint32_t now() const { return word_->load(); }

 private:
  std::atomic<uint32_t>* word_;
};

/// Barriers to which one rank after the other comes late: nobody is through before that one has come.
void check_barriers(Rank& rank, const SharedCount& came);

/// Of a job in which all ended well.
Endings all_well(uint32_t ranks);

}  // namespace nupa::ccl
