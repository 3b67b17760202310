#pragma once
/// Ranks that do collectives together, as one of them has it: the order of their operations (Executor), the groups that
/// algorithms run on (Groups), how all of it ends, and how it is split or shrunk (Survivors). The C functions use it.
/// Any thread; calls of several threads are done one after the other.
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ccl/call/call.h"
#include "ccl/algorithms/shm/line_call.h"
#include "ccl/diagnostics/checker.h"
#include "ccl/communicator/executor.h"
#include "ccl/communicator/groups.h"
#include "ccl/connect/links.h"
#include "ccl/communicator/options.h"
#include "ccl/communicator/survivors.h"
#include "ccl/p2p/messages.h"
#include "ccl/channel/topology.h"
#include "ccl/diagnostics/observe.h"
#include "progress/lifecycle.h"

namespace nupa::ccl {

/// A group of ranks that do collectives, as one of them has it. Every rank calls the same operations in the same order;
/// calls of several threads of one rank are done one after the other.
///
/// In a forked child it is its parent's: it has ended there with ENODEV, which costs the calls of a parent nothing, and
/// is never destroyed.
class Communicator final : private Surroundings, private progress::ForkParticipant {
 public:
  /// `cards`: of all ranks. Errors: those of the core.
  static Result<std::unique_ptr<Communicator>> make(std::shared_ptr<Endpoint> endpoint, const CommunicatorId& id,
                                                    uint32_t rank, std::vector<RankCard> cards,
                                                    const CommunicatorOptions& options);
  ~Communicator() override;

  /// False in a forked child.
  bool is_here() const { return !is_inherited_; }
  uint32_t rank() const { return topology_.rank; }
  uint32_t ranks() const { return topology_.ranks; }
  const Topology& topology() const { return topology_; }

  /// To its end. 0 or an errno value: as start(), or ended()'s.
  int run(const Call& call);
  /// The same for the smallest of calls, if nothing stands in its way: else kNotNow, and nothing has been done.
  static constexpr int kNotNow = -1;
  int run_line(const LineCall& call);
  /// To be done in its turn; `call`'s arrays must stay until wait() has returned.
  Result<std::shared_ptr<Job>> start(Call call);
  int wait(const std::shared_ptr<Job>& job) { return executor_.wait(job); }

  /// Sends and receives; not in the order of the collectives. Made when they are first used.
  Messages& messages();

  /// Ranks of one `color` become a communicator, ordered by `key` and then by rank; those of color kNoColor none
  /// (null). Called by all ranks.
  static constexpr int64_t kNoColor = -1;
  Result<std::unique_ptr<Communicator>> split(int64_t color, int64_t key, Purpose purpose = Purpose::kSplit);

  /// Those who are left become a communicator, in their order: without ranks that are gone, and that were waited for
  /// in vain. Called by all of them, as often as each other. ECONNABORTED: they have gone on without this one.
  Result<std::unique_ptr<Communicator>> shrink();

  /// All ranks have come here, so that nobody needs anything of the others any more; not to be used afterwards.
  int finish();
  /// Ends what all ranks have under way, and whatever they begin later. Any thread.
  void end(const Cause& cause) { links_->end(cause); }
  Cause ended() const override;
  /// For people: what a cause is.
  std::string text_of(const Cause& cause) const;
  /// Whether what ranks call is compared.
  bool checks() const { return checker_ != nullptr; }
  /// As traces and profilers have it, from 1 on.
  uint32_t number_in_process() const { return number_in_process_; }
  /// For people: how this call would be done, and why. While nothing is under way; the first time a collective.
  std::string plan_of(const Call& call);

 private:
  class Task;
  class LaneWays;
  class Leaving;

  Communicator(std::shared_ptr<Endpoint> endpoint, const CommunicatorId& id, std::vector<RankCard> cards,
               const CommunicatorOptions& options);
  Result<void> open();
  /// In this communicator's turn. `queued_ns`: since when it waits for it; 0: it did not.
  int run_now(const Call& call, int64_t queued_ns);
  [[gnu::noinline]] int run_in_turn(const Call& call);
  /// The same without a look at anything but the operation.
  [[gnu::noinline]] int do_now(const Call& call);
  [[gnu::cold]] int end_by(int error);
  int exchange_lines(MappedGroup& group, const LineCall& call);
  /// The same where somebody observes or ranks check.
  [[gnu::cold]] int run_observed(const Call& call, int64_t queued_ns);
  int check(const Call& call);
  void begin_observing();
  /// By the endpoint's thread or one that waits: links say so.
  void on_end(const Cause& cause);
  std::vector<bool> gone() const;

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
  const std::vector<RankCard> cards_;
  const CommunicatorOptions options_;
  Topology topology_;
  // What links tell, by the endpoint's thread, as long as there are any.
  std::atomic<bool> is_leaving_{false};
  std::atomic<int64_t> first_left_ns_{0};  ///< while leaving: 0: nobody has been seen to be gone
  mutable std::mutex gone_mutex_;
  std::vector<bool> gone_;  ///< by rank; empty: nobody is known to be
  std::unique_ptr<MemoryRegion> arena_;
  const ArenaHead* head_ = nullptr;  ///< where it begins
  bool is_inherited_ = false;
  std::unique_ptr<WirePort> wires_;  ///< null: all ranks share memory
  std::unique_ptr<Links> links_;
  std::unique_ptr<LaneGroup::Ways> collective_ways_;
  std::unique_ptr<LaneGroup::Ways> message_ways_;
  std::unique_ptr<Groups> groups_;
  std::once_flag messages_once_;
  std::unique_ptr<Messages> messages_;
  uint64_t splits_ = 0;
  uint64_t shrinks_ = 0;
  std::shared_ptr<Survivors> survivors_;  ///< by whom this communicator was decided upon
  uint32_t number_in_process_ = 0;
  uint64_t checked_ = 0;
  uint64_t calls_ = 0;                ///< that were observed
  const char* algorithm_ = nullptr;   ///< of the operation that was begun last
  Event* observed_ = nullptr;         ///< the operation that runs, if somebody observes it
  std::unique_ptr<Checker> checker_;  ///< null: what ranks call is not compared
  Executor executor_;                 ///< the last one: its thread uses all the others
};

}  // namespace nupa::ccl
