#pragma once
#include <vector>

#include "ccl/channel/arena.h"
#include "ccl/channel/peer_reads.h"
#include "ccl/coroutine/waiter.h"
#include "progress/words.h"

namespace nupa::ccl {

/// Ranks that map each other's arenas, as one of them has it. Operations begin in the same order on all ranks, one
/// after the other, and are cut into steps that have the same numbers everywhere: a rank that has come through a step
/// says so in its arena, where those look who need what it has done.
///
/// An operation takes turns. In each turn every rank has a line, a slot in and a slot out, small or large, which it may
/// write once all others have left the turn in which they were used last, which they have when they have begun the next
/// one. Ranks know it when they have waited for all in a later turn (all_met()) or look at what those tell; else
/// may_write() says what to wait for. So each rank tells the first step of each turn, whatever it does there, unless
/// all wait for all in it.
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
  /// How often arrays have been shown; the same on all ranks.
  uint32_t count_shown() { return shown_++; }
  /// How long a signal's way takes, as this rank has measured it.
  uint32_t signal_ns() const { return signal_ns_; }
  void set_signal_ns(uint32_t ns) { signal_ns_ = ns; }

  /// An operation of so many steps begins; returns the number before its first one.
  uint32_t begin(uint32_t steps) {
    const uint64_t before = step_;
    step_ += steps;
    if (__builtin_expect((before ^ step_) >> kRefreshedBits != 0, 0)) refresh(static_cast<uint32_t>(before));
    return static_cast<uint32_t>(before);
  }
  /// `first_step`: the turn's.
  uint32_t next_turn(uint32_t first_step) {
    first_steps_[turn_ % kSmallTurns] = whole(first_step);
    return static_cast<uint32_t>(turn_++);
  }
  /// All ranks have begun this turn.
  void all_met() { last_met_ = turn_ - 1; }

  /// Slots that are used again so many turns later.
  struct Slots {
    size_t at;
    size_t bytes;
    uint32_t turns;
  };
  /// For so many bytes a turn, or part of them. The same on all ranks.
  Slots slots(size_t bytes) const {
    if (bytes <= kSmallSlotBytes) return {kSlotsAt, kSmallSlotBytes, kSmallTurns};
    return {kLargeSlotsAt, slot_bytes_, kTurns};
  }

  /// Whether this turn's line, or slots of so many turns, may be written without waiting for anybody.
  bool may_write(uint32_t turns) { return have_all_begun(turn_ - turns); }
  /// The same of the next turn's line.
  bool may_write_next_line() { return have_all_begun(turn_ + 1 - kSmallTurns); }
  /// Until `rank` has left what is written in this turn.
  Wait may_write(uint32_t rank, uint32_t turns) const {
    return reached(rank, static_cast<uint32_t>(first_steps_[(turn_ - turns) % kSmallTurns]));
  }

  /// This rank has come through the step.
  void tell(uint32_t step) { progress::count_up(head().mark, step, head().sleepers, rules_.fences()); }
  Wait reached(uint32_t rank, uint32_t step) const {
    ArenaHead& there = head_of(rank);
    return {&there.mark, step, ranks_outside_[rank], &there.sleepers};
  }
  /// This rank has come through the step and says so much with it.
  void write_line(uint32_t turn, const void* payload, size_t length, uint32_t step) {
    FlagLine& line = head().lines[turn % kSmallTurns];
    copy_array(line.payload, payload, length);
    progress::count_up(line.step, step, head().sleepers, rules_.fences());
  }
  const FlagLine& line_of(uint32_t rank, uint32_t turn) const { return head_of(rank).lines[turn % kSmallTurns]; }
  Wait wrote_line(uint32_t rank, uint32_t turn, uint32_t step) const {
    return {&line_of(rank, turn).step, step, ranks_outside_[rank], &head_of(rank).sleepers};
  }

  /// What `rank` has put in in this turn.
  std::byte* slot_in(uint32_t rank, uint32_t turn, const Slots& slots) const {
    return arenas_[rank] + slots.at + turn % slots.turns * slots.bytes;
  }
  /// The same of large slots; and what it has put out.
  std::byte* slot_in(uint32_t rank, uint32_t turn) const { return large_slot(rank, turn % kTurns); }
  std::byte* slot_out(uint32_t rank, uint32_t turn) const { return large_slot(rank, kTurns + turn % kTurns); }

  /// This rank will not look at the arena of `rank` any more.
  void leave(uint32_t rank) {
    ArenaHead& there = head_of(rank);
    there.departed.fetch_add(1, std::memory_order_release);
    progress::wake(there.departed, there.sleepers, rules_.fences());
  }
  Wait all_left() const { return {&head().departed, ranks() - 1, kNoRank, &head().sleepers}; }

  /// Why all that this rank does ends.
  Cause ended() const { return Cause::unpacked(head().ended.load(std::memory_order_acquire)); }

 private:
  static constexpr int kRefreshedBits = 28;

  ArenaHead& head_of(uint32_t rank) const { return *reinterpret_cast<ArenaHead*>(arenas_[rank]); }
  ArenaHead& head() const { return *head_; }
  std::byte* large_slot(uint32_t rank, size_t number) const {
    return arenas_[rank] + kLargeSlotsAt + number * slot_bytes_;
  }
  /// Words that this rank has not written for long would look like those of steps to come.
  void refresh(uint32_t step);
  /// A step that others tell the lower half of; not far from this rank's own.
  uint64_t whole(uint32_t step) const {
    return step_ + static_cast<uint64_t>(int64_t{static_cast<int32_t>(step - static_cast<uint32_t>(step_))});
  }
  /// `turn`: one of the last ones. Others' words are looked at only where what was seen there does not say it: each
  /// look takes the line from who writes it.
  bool have_all_begun(uint64_t turn) {
    if (turn <= last_met_) return true;
    const uint64_t step = first_steps_[turn % kSmallTurns];
    for (uint32_t rank = 0; rank < ranks(); ++rank) {
      if (rank == rank_ || seen_[rank] >= step) continue;
      seen_[rank] = whole(head_of(rank).mark.load(std::memory_order_acquire));
      if (seen_[rank] < step) return false;
    }
    last_met_ = turn;
    return true;
  }

  const uint32_t rank_;
  const std::vector<std::byte*> arenas_;
  const std::vector<uint32_t> ranks_outside_;
  ArenaHead* const head_;
  const size_t slot_bytes_;
  const WaitRules rules_;
  FramePool frames_;
  Windows* windows_ = nullptr;
  Reads* reads_ = nullptr;
  uint32_t shown_ = 0;
  uint32_t signal_ns_ = 0;
  // Longer than what is told, for what was seen may be long ago.
  uint64_t step_ = 0;
  uint64_t turn_ = kSmallTurns;             ///< so that there are turns before the first one
  uint64_t last_met_ = kSmallTurns - 1;     ///< the last turn that all are known to have begun
  uint64_t first_steps_[kSmallTurns] = {};  ///< of the last turns
  std::vector<uint64_t> seen_;              ///< how far each rank had come when it was looked at
};

}  // namespace nupa::ccl
