#pragma once
#include <vector>

#include "ccl/mapped/arena.h"
#include "ccl/steps.h"

namespace nupa::ccl {

/// Ranks that map each other's arenas, as one of them has it. Operations begin in the same order on all ranks, one
/// after the other, and are cut into steps that have the same numbers everywhere: a rank that has come through a step
/// tells the others, and waits for theirs where it needs what they have done.
///
/// An operation takes turns. Each turn has a line from every rank to every other, and a slot in and one out of every
/// rank. They are used again two turns later, by when everybody must have left them. So all ranks tell each other the
/// first step of a turn and wait for each other there, before they take the next one: then they have left the one
/// before.
///
/// One thread at a time; abort() any.
class MappedGroup {
 public:
  /// `arenas`: of all ranks, by rank, zeroed before the first one is used; they must outlive this. `spin_ns`: how long
  /// run() spins at a wait before it sleeps; 0 where ranks share cores.
  MappedGroup(uint32_t rank, std::vector<std::byte*> arenas, size_t slot_bytes, int64_t spin_ns);

  uint32_t rank() const { return rank_; }
  uint32_t ranks() const { return static_cast<uint32_t>(arenas_.size()); }
  size_t slot_bytes() const { return layout_.slot_bytes(); }

  /// An operation of so many steps begins; returns the number before its first one.
  uint32_t begin(uint32_t steps);
  uint32_t next_turn() { return turn_++; }
  /// All ranks are told that this one has come through the step.
  void tell(uint32_t step);
  /// The same for one of them.
  void tell(uint32_t rank, uint32_t step);
  /// Until `rank` has come through the step.
  Wait reached(uint32_t rank, uint32_t step) const { return {&marks_here_[rank].step, step}; }

  /// The line that `rank` writes to here, and the one that this rank writes to there, of the operation's turn.
  const FlagLine& line_from(uint32_t rank, uint32_t turn) const { return lines_of(arenas_[rank_], turn)[rank]; }
  void write_line(uint32_t to, uint32_t turn, const void* payload, size_t length, uint32_t step);

  /// What `rank` has put in, or out, in this turn.
  std::byte* slot_in(uint32_t rank, uint32_t turn) const { return slot(rank, turn % ArenaLayout::kTurns); }
  std::byte* slot_out(uint32_t rank, uint32_t turn) const {
    return slot(rank, ArenaLayout::kTurns + turn % ArenaLayout::kTurns);
  }
  /// Ends what all ranks have under way, and whatever they begin later.
  void abort(int error);
  /// An errno value; 0: nobody has aborted.
  int aborted() const { return static_cast<int>(head_of(rank_).aborted.load(std::memory_order_acquire)); }

  /// Runs an operation to its end in this thread: 0, an errno value of its own or abort()'s, or ETIMEDOUT after
  /// `limit_ns`, and then all ranks are aborted.
  int run(Steps& steps, int64_t limit_ns);

 private:
  ArenaHead& head_of(uint32_t rank) const { return *reinterpret_cast<ArenaHead*>(arenas_[rank]); }
  FlagLine* lines_of(std::byte* arena, uint32_t turn) const {
    return reinterpret_cast<FlagLine*>(arena + layout_.lines()) + (turn % ArenaLayout::kTurns) * ranks();
  }
  std::byte* slot(uint32_t rank, size_t number) const {
    return arenas_[rank] + layout_.slots() + number * layout_.slot_bytes();
  }
  void wake(uint32_t rank);
  void sleep(const Wait& wait, int64_t until_ns);

  uint32_t rank_;
  std::vector<std::byte*> arenas_;
  ArenaLayout layout_;
  const Mark* marks_here_;
  const int64_t spin_ns_;
  uint32_t step_ = 0;
  uint32_t turn_ = 0;
};

}  // namespace nupa::ccl
