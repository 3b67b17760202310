#pragma once
#include <vector>

#include "ccl/mapped/arena.h"
#include "ccl/mapped/reads.h"
#include "ccl/waiter.h"

namespace nupa::ccl {

/// Ranks that map each other's arenas, as one of them has it. Operations begin in the same order on all ranks, one
/// after the other, and are cut into steps that have the same numbers everywhere: a rank that has come through a step
/// says so in its arena, where those look who need what it has done.
///
/// An operation takes turns. In each turn every rank has a line, a slot in and a slot out, which it may write once all
/// others have begun the turn before, for then they have left the one before that, where these were used last. Ranks
/// know it when they have waited for all in the turn before (all_met()); else may_write() says what to wait for. So
/// each rank tells the first step of each turn, whatever it does there.
///
/// One thread at a time. Ranks are numbered within the group.
class MappedGroup {
 public:
  /// `arenas`: of all ranks, by rank, zeroed before the first one is used; they must outlive this. `ranks_outside`:
  /// what each is called in a Wait.
  MappedGroup(uint32_t rank, std::vector<std::byte*> arenas, std::vector<uint32_t> ranks_outside, size_t slot_bytes,
              const WaitRules& rules);

  uint32_t rank() const { return rank_; }
  uint32_t ranks() const { return static_cast<uint32_t>(arenas_.size()); }
  size_t slot_bytes() const { return slot_bytes_; }
  const WaitRules& rules() const { return rules_; }
  FramePool& frames() { return frames_; }
  /// Null: no rank's arrays can be mapped. The same on all ranks.
  Windows* windows() const { return windows_; }
  void set_windows(Windows* windows) { windows_ = windows; }
  /// Null: no rank's ordinary memory can be read. The same on all ranks.
  Reads* reads() const { return reads_; }
  void set_reads(Reads* reads) { reads_ = reads; }

  /// An operation of so many steps begins; returns the number before its first one.
  uint32_t begin(uint32_t steps) {
    const uint32_t before = step_;
    step_ += steps;
    return before;
  }
  /// `first_step`: the turn's.
  uint32_t next_turn(uint32_t first_step) {
    first_step_before_ = first_step_;
    first_step_ = first_step;
    met_before_ = met_;
    met_ = false;
    return turn_++;
  }
  /// All ranks were waited for in this turn.
  void all_met() { met_ = true; }
  /// Whether this turn's line and slots may be written without a look at may_write().
  bool may_write() const { return met_before_; }
  /// Until `rank` has left what is written in this turn.
  Wait may_write(uint32_t rank) const { return reached(rank, first_step_before_); }

  /// Whether the next turn's may be, by all that can be seen now.
  bool may_write_next() const {
    for (uint32_t rank = 0; !met_ && rank < ranks(); ++rank)
      if (rank != rank_ && !reached(rank, first_step_).is_over()) return false;
    return true;
  }

  /// This rank has come through the step.
  void tell(uint32_t step) { count_up(head().mark, step, head().sleepers, rules_); }
  Wait reached(uint32_t rank, uint32_t step) const {
    ArenaHead& there = head_of(rank);
    return {&there.mark, step, ranks_outside_[rank], &there.sleepers};
  }
  /// This rank has come through the step and says so much with it.
  void write_line(uint32_t turn, const void* payload, size_t length, uint32_t step) {
    FlagLine& line = head().lines[turn % kTurns];
    copy_array(line.payload, payload, length);
    count_up(line.step, step, head().sleepers, rules_);
  }
  const FlagLine& line_of(uint32_t rank, uint32_t turn) const { return head_of(rank).lines[turn % kTurns]; }
  Wait wrote_line(uint32_t rank, uint32_t turn, uint32_t step) const {
    return {&line_of(rank, turn).step, step, ranks_outside_[rank], &head_of(rank).sleepers};
  }

  /// What `rank` has put in, or out, in this turn.
  std::byte* slot_in(uint32_t rank, uint32_t turn) const { return slot(rank, turn % kTurns); }
  std::byte* slot_out(uint32_t rank, uint32_t turn) const { return slot(rank, kTurns + turn % kTurns); }

  /// This rank will not look at the arena of `rank` any more.
  void leave(uint32_t rank) {
    ArenaHead& there = head_of(rank);
    there.departed.fetch_add(1, std::memory_order_release);
    wake(there.departed, there.sleepers, rules_);
  }
  Wait all_left() const { return {&head().departed, ranks() - 1, kNoRank, &head().sleepers}; }

  /// Why all that this rank does ends.
  Cause ended() const { return Cause::unpacked(head().ended.load(std::memory_order_acquire)); }

 private:
  ArenaHead& head_of(uint32_t rank) const { return *reinterpret_cast<ArenaHead*>(arenas_[rank]); }
  ArenaHead& head() const { return *head_; }
  std::byte* slot(uint32_t rank, size_t number) const { return arenas_[rank] + kSlotsAt + number * slot_bytes_; }

  const uint32_t rank_;
  const std::vector<std::byte*> arenas_;
  const std::vector<uint32_t> ranks_outside_;
  ArenaHead* const head_;
  const size_t slot_bytes_;
  const WaitRules rules_;
  FramePool frames_;
  Windows* windows_ = nullptr;
  Reads* reads_ = nullptr;
  uint32_t step_ = 0;
  uint32_t turn_ = 0;
  uint32_t first_step_ = 0;
  uint32_t first_step_before_ = 0;
  bool met_ = true;
  bool met_before_ = true;
};

}  // namespace nupa::ccl
