// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Runs the ranks of a job, each in a process of its own.
#include <nupa/ccl.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "../support/sanitizers.h"

namespace nupa::ccl {

/// One rank, in a process of its own. A failed expectation is printed to standard error and ends the process.
class Rank {
 public:
  Rank(uint32_t rank, uint32_t ranks, const nupa_ccl_unique_id& id) : rank_(rank), ranks_(ranks), id_(id) {}

  uint32_t rank() const { return rank_; }
  uint32_t ranks() const { return ranks_; }
  const nupa_ccl_unique_id& id() const { return id_; }
  /// The communicator of all ranks. The first call makes it.
  nupa_ccl_comm* world();

  /// Ends the process if `held` does not hold.
  void expect(bool held, const std::string& what) const;
  void expect_ok(int error, const std::string& what) const;
  /// Destroys the communicator, which waits for all requests.
  void finish();

 private:
  uint32_t rank_;
  uint32_t ranks_;
  nupa_ccl_unique_id id_;
  nupa_ccl_comm* world_ = nullptr;
};

/// Groups of ranks on one host that share no memory with each other: each group has a runtime directory of its own. The
/// destructor removes the directories.
class SeparateMemories {
 public:
  SeparateMemories();
  ~SeparateMemories();
  SeparateMemories(const SeparateMemories&) = delete;
  SeparateMemories& operator=(const SeparateMemories&) = delete;
  /// Puts the calling process into group `number`. It has to have no communicator yet.
  void enter(uint32_t number) const;

 private:
  std::string folder_;
};

/// The exit status of each rank's process, or minus the signal that ended it.
using Endings = std::vector<int>;
/// Many times the duration of any job, also when other programs use the cores.
inline const int kJobLimitSeconds = test::kSanitized ? 240 : 60;
/// Runs `play` in `ranks` processes. A rank that runs longer than `limit_s` is killed: its ending is -SIGKILL.
Endings run_job(uint32_t ranks, const std::function<void(Rank&)>& play, int limit_s = kJobLimitSeconds);
/// The numbers of ranks to test: 1 to 9, and 1, 2 and 5 under a sanitizer, which takes ten times as long.
std::vector<uint32_t> rank_counts();

/// An event that one rank waits for and other ranks signal. It is made before the job.
class Signal {
 public:
  Signal();
  ~Signal();
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;
  /// Counts one event.
  void give() const;
  /// Waits for one event and takes it. Ends the process if none comes within the job's limit.
  void take(const Rank& rank) const;

 private:
  int ends_[2];
};

/// A counter that all ranks of a job increment. It is made before the job.
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

/// Calls barriers, with one rank after the other late: no rank may return from a barrier before all have called it.
void check_barriers(Rank& rank, const SharedCount& came);

/// The endings of a job in which all ranks exited with status 0.
Endings all_well(uint32_t ranks);

}  // namespace nupa::ccl
