// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The ranks that call collectives together. This folder has the order of their operations (Executor), the groups that
/// algorithms run on (Groups), how a communicator ends, and how it is split or shrunk (ShrinkAgreement). The C
/// functions use it. Thread-safe; calls of several threads run one after the other.
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ccl/call/call.h"
#include "ccl/algorithms/shm/inline_call.h"
#include "ccl/diagnostics/checker.h"
#include "ccl/communicator/executor.h"
#include "ccl/communicator/groups.h"
#include "ccl/connect/links.h"
#include "ccl/communicator/options.h"
#include "ccl/communicator/shrink_agreement.h"
#include "ccl/p2p/messages.h"
#include "ccl/channel/topology.h"
#include "ccl/diagnostics/observe.h"
#include "progress/lifecycle.h"

namespace nupa::ccl {

/// One rank's view of the ranks that call collectives together. Every rank calls the same operations in the same order;
/// calls of several threads of one rank run one after the other.
///
/// In a forked child, the parent's communicator has ended with ENODEV and is never destroyed. This costs the parent's
/// calls nothing.
class Communicator final : private ProgressHooks, private progress::ForkParticipant {
 public:
  /// `peer_infos`: peer info of all ranks, by rank. Returns errors of the core.
  static Result<std::unique_ptr<Communicator>> make(std::shared_ptr<Endpoint> endpoint, const CommunicatorId& id,
                                                    uint32_t rank, std::vector<PeerInfo> peer_infos,
                                                    const CommunicatorOptions& options);
  ~Communicator() override;

  /// Returns false in a forked child.
  bool is_here() const { return !is_inherited_; }
  uint32_t rank() const { return topology_.rank; }
  uint32_t ranks() const { return topology_.ranks; }
  const Topology& topology() const { return topology_; }

  /// Runs the call to its end. Returns 0, an error of start(), or the error of ended().
  int run(const Call& call);
  /// Runs a small call inline if it can start at once. Otherwise returns kNotNow, with nothing done.
  static constexpr int kNotNow = -1;
  int run_line(const InlineCall& call);
  /// Queues the call. Its arrays must stay valid until wait() has returned.
  Result<std::shared_ptr<Job>> start(Call call);
  int wait(const std::shared_ptr<Job>& job) { return executor_.wait(job); }

  /// The sends and receives, which are not ordered with the collectives. Created at the first use.
  Messages& messages();

  /// A collective that makes a communicator of the ranks of each `color`, ordered by `key` and then by rank. Ranks of
  /// color kNoColor get null.
  static constexpr int64_t kNoColor = -1;
  Result<std::unique_ptr<Communicator>> split(int64_t color, int64_t key, Purpose purpose = Purpose::kSplit);

  /// Makes a communicator of the surviving ranks, in their order, without the ranks that have died or timed out. All
  /// surviving ranks have to call it, equally often. ECONNABORTED: the others have left this rank out.
  Result<std::unique_ptr<Communicator>> shrink();

  /// Waits until all ranks have called it, so that no rank needs another one any more. The communicator must not be
  /// used afterwards.
  int finish();
  /// Ends the operations of all ranks, those in progress and later ones.
  void end(const Cause& cause) { links_->end(cause); }
  Cause ended() const override;
  /// Describes a cause for an error text.
  std::string text_of(const Cause& cause) const;
  /// Returns whether the ranks compare their calls (NUPA_CCL_CHECK).
  bool checks() const { return checker_ != nullptr; }
  /// The communicator's number in traces and profilers, counted from 1.
  uint32_t number_in_process() const { return number_in_process_; }
  /// Describes which algorithm the call would run, and why. No operation may be in progress. The first time it is a
  /// collective.
  std::string plan_of(const Call& call);

 private:
  class Task;
  class ChannelProvider;
  class Leaving;

  Communicator(std::shared_ptr<Endpoint> endpoint, const CommunicatorId& id, std::vector<PeerInfo> peer_infos,
               const CommunicatorOptions& options);
  Result<void> open();
  /// Runs the call while this thread holds the executor's turn. `queued_ns`: when it was queued; 0: it was not.
  int run_now(const Call& call, int64_t queued_ns);
  [[gnu::noinline]] int run_in_turn(const Call& call);
  /// Runs the call without checks for an end or for observers.
  [[gnu::noinline]] int do_now(const Call& call);
  [[gnu::cold]] int end_by(int error);
  int exchange_lines(ShmGroup& group, const InlineCall& call);
  /// Runs the call with the checking mode, the trace and the profiler.
  [[gnu::cold]] int run_observed(const Call& call, int64_t queued_ns);
  int check(const Call& call);
  Result<void> begin_observing();
  /// Links call it when all operations have to end, on the endpoint's thread or on a thread that waits.
  void on_end(const Cause& cause);
  std::vector<bool> dead() const;

  // progress::ForkParticipant
  void before_fork() override {}
  void in_parent() override {}
  bool in_child() override;

  void look() override;
  void sleep(int64_t limit_ns) override;

  void on_long_wait(const Wait& wait, bool is_late) override;
  void note_long_wait_for(uint32_t rank) override { links_->note_long_wait_for(rank); }
  Cause on_timeout(const Wait& wait) override;
  bool observes_waits() const override { return observed_ != nullptr; }
  void on_waited(const Wait& wait, int64_t began_ns, int64_t ended_ns) override;

  const std::shared_ptr<Endpoint> endpoint_;
  const CommunicatorId id_;
  const std::vector<PeerInfo> peer_infos_;
  const CommunicatorOptions options_;
  Topology topology_;
  // The callbacks of rdma_port_ and links_ use these members from other threads, so that they outlive both.
  std::atomic<bool> is_leaving_{false};
  std::atomic<int64_t> first_left_ns_{0};  ///< when the first rank was seen to leave; 0: none has
  mutable std::mutex dead_mutex_;
  std::vector<bool> dead_;  ///< by rank: it is known to have died; empty: none is
  std::unique_ptr<MemoryRegion> arena_;
  const ArenaHead* head_ = nullptr;  ///< the head of arena_; in a forked child, of a substitute
  bool is_inherited_ = false;
  std::unique_ptr<RdmaPort> rdma_port_;  ///< null: all ranks share memory
  std::unique_ptr<Links> links_;
  std::unique_ptr<ChannelGroup::Provider> collective_ways_;
  std::unique_ptr<ChannelGroup::Provider> message_ways_;
  std::unique_ptr<Groups> groups_;
  std::once_flag messages_once_;
  std::unique_ptr<Messages> messages_;
  uint64_t splits_ = 0;
  uint64_t shrinks_ = 0;
  std::shared_ptr<ShrinkAgreement>
      agreement_;  ///< the agreement that made this communicator, which still answers ranks
  uint32_t number_in_process_ = 0;
  uint64_t checked_ = 0;
  uint64_t calls_ = 0;                ///< number of observed calls
  const char* algorithm_ = nullptr;   ///< of the last operation that started
  Event* observed_ = nullptr;         ///< the running operation if it is observed
  std::unique_ptr<Checker> checker_;  ///< null: calls are not compared
  Executor executor_;                 ///< the last member: its thread uses all others
};

}  // namespace nupa::ccl
