// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "ccl/channel/arena.h"
#include "ccl/channel/peer_reads.h"
#include "ccl/coroutine/waiter.h"
#include "progress/words.h"

namespace nupa::ccl {

/// Ranks that map each other's arenas, from the view of one of them. Operations begin in the same order on all ranks,
/// one after the other, and consist of steps with the same numbers on all ranks. A rank publishes each completed step
/// in its arena, where the ranks that need its result look.
///
/// An operation uses generations. In each generation every rank has a flag line, an input slot and an output slot,
/// small or large. A rank may write them once all others have left the generation in which they were used last, that
/// is, have begun the next one. This is certain after a wait for all ranks in a later generation (all_have_begun()), or
/// from their published steps; otherwise may_write() returns what to wait for. Therefore each rank publishes the first
/// step of each generation, whatever it does there, unless all ranks wait for all in it.
///
/// Memory order, on any processor: a rank releases what it has written, and what it has finished to read, by counting
/// up `mark` or a flag line's step (progress::count_up()). A rank acquires it by a Wait, or in may_write(). So
/// - A rank reads a line or a slot after the step in which it was written.
/// - A rank writes a line or a slot again after each other rank has begun the next generation. A rank publishes that
///   step after its last reads.
/// Each word has one writer, except `departed`. Other ranks count it up by updates, and an update continues the release
/// of the one before, so all_left() acquires those of all ranks. progress::wake() has the barrier between a word and
/// the look at its sleepers.
///
/// One thread at a time. Ranks are numbered within the group.
class ShmGroup {
 public:
  /// `arenas`: those of all ranks, by rank, zeroed before the first use; they must outlive this. `ranks_outside`: each
  /// member's rank in the communicator, which a Wait names.
  ShmGroup(uint32_t rank, std::vector<std::byte*> arenas, std::vector<uint32_t> ranks_outside, size_t slot_bytes,
           const WaitRules& rules);

  uint32_t rank() const { return rank_; }
  uint32_t ranks() const { return static_cast<uint32_t>(arenas_.size()); }
  size_t slot_bytes() const { return slot_bytes_; }
  const WaitRules& rules() const { return rules_; }
  FramePool& frames() { return frames_; }
  /// Null if no rank's arrays can be mapped. The same on all ranks.
  MappedRegions* mapped_regions() const { return mapped_regions_; }
  void set_mapped_regions(MappedRegions* mapped_regions) { mapped_regions_ = mapped_regions; }
  /// Null if no rank's ordinary memory can be read. The same on all ranks.
  PeerReads* reads() const { return reads_; }
  void set_reads(PeerReads* reads) { reads_ = reads; }
  /// Number of calls before this one; show_arrays() counts with it. The same on all ranks.
  uint32_t count_shown() { return shown_++; }
  /// Time that a signal takes from rank to rank, in ns, as this rank has measured it.
  uint32_t signal_ns() const { return signal_ns_; }
  void set_signal_ns(uint32_t ns) { signal_ns_ = ns; }

  /// Begins an operation of `steps` steps. Returns the number before its first step.
  uint32_t begin(uint32_t steps) {
    const uint64_t before = step_;
    step_ += steps;
    if (__builtin_expect((before ^ step_) >> kRefreshedBits != 0, 0)) refresh(static_cast<uint32_t>(before));
    return static_cast<uint32_t>(before);
  }
  /// Begins a generation. `first_step`: its first step.
  uint32_t next_turn(uint32_t first_step) {
    first_steps_[turn_ % kSmallTurns] = whole(first_step);
    return static_cast<uint32_t>(turn_++);
  }
  /// Records that all ranks have begun this generation.
  void all_have_begun() { last_begun_ = turn_ - 1; }

  /// Slots that are used again after `turns` generations.
  struct Slots {
    size_t at;
    size_t bytes;
    uint32_t turns;
  };
  /// Slots for `bytes` in each generation, or for a part of them. The same on all ranks.
  Slots slots(size_t bytes) const {
    if (bytes <= kSmallSlotBytes) return {kSlotsAt, kSmallSlotBytes, kSmallTurns};
    return {kLargeSlotsAt, slot_bytes_, kTurns};
  }

  /// Returns whether this generation's flag line, or slots that are used again after `turns` generations, may be
  /// written now.
  bool may_write(uint32_t turns) { return have_all_begun(turn_ - turns); }
  /// The same for the flag line of the next generation.
  bool may_write_next_line() { return have_all_begun(turn_ + 1 - kSmallTurns); }
  /// Returns a Wait until `rank` has left the generation whose memory is written in this one.
  Wait may_write(uint32_t rank, uint32_t turns) const {
    return reached(rank, static_cast<uint32_t>(first_steps_[(turn_ - turns) % kSmallTurns]));
  }

  /// Publishes that this rank has completed the step.
  void publish(uint32_t step) { progress::count_up(head().mark, step, head().sleepers, rules_.fences()); }
  Wait reached(uint32_t rank, uint32_t step) const {
    ArenaHead& there = head_of(rank);
    return {&there.mark, step, ranks_outside_[rank], &there.sleepers};
  }
  /// Publishes that this rank has completed the step, together with a payload.
  void write_line(uint32_t turn, const void* payload, size_t length, uint32_t step) {
    FlagLine& line = head().lines[turn % kSmallTurns];
    copy_array(line.payload, payload, length);
    progress::count_up(line.step, step, head().sleepers, rules_.fences());
  }
  const FlagLine& line_of(uint32_t rank, uint32_t turn) const { return head_of(rank).lines[turn % kSmallTurns]; }
  Wait wrote_line(uint32_t rank, uint32_t turn, uint32_t step) const {
    return {&line_of(rank, turn).step, step, ranks_outside_[rank], &head_of(rank).sleepers};
  }

  /// Returns what `rank` has written as input in this generation.
  std::byte* slot_in(uint32_t rank, uint32_t turn, const Slots& slots) const {
    return arenas_[rank] + slots.at + turn % slots.turns * slots.bytes;
  }
  /// The same for large slots, and the output of `rank`.
  std::byte* slot_in(uint32_t rank, uint32_t turn) const { return large_slot(rank, turn % kTurns); }
  std::byte* slot_out(uint32_t rank, uint32_t turn) const { return large_slot(rank, kTurns + turn % kTurns); }

  /// Publishes that this rank does not access the arena of `rank` any more.
  void leave(uint32_t rank) {
    ArenaHead& there = head_of(rank);
    there.departed.fetch_add(1, std::memory_order_release);
    progress::wake(there.departed, there.sleepers, rules_.fences());
  }
  Wait all_left() const { return {&head().departed, ranks() - 1, kNoRank, &head().sleepers}; }

  /// Returns why all operations of this rank have ended.
  Cause ended() const { return Cause::unpacked(head().ended.load(std::memory_order_acquire)); }

 private:
  static constexpr int kRefreshedBits = 28;

  ArenaHead& head_of(uint32_t rank) const { return *reinterpret_cast<ArenaHead*>(arenas_[rank]); }
  ArenaHead& head() const { return *head_; }
  std::byte* large_slot(uint32_t rank, size_t number) const {
    return arenas_[rank] + kLargeSlotsAt + number * slot_bytes_;
  }
  /// Writes the words that this rank has not written for long. Otherwise they would wrap and look like future steps.
  void refresh(uint32_t step);
  /// Extends the lower half of a step, which other ranks publish, to 64 bits. It must be near this rank's own step.
  uint64_t whole(uint32_t step) const {
    return step_ + static_cast<uint64_t>(int64_t{static_cast<int32_t>(step - static_cast<uint32_t>(step_))});
  }
  /// `turn`: one of the last generations. Reads the words of other ranks only if the values seen before do not
  /// suffice, because each read takes the cache line from its writer.
  bool have_all_begun(uint64_t turn) {
    if (turn <= last_begun_) return true;
    const uint64_t step = first_steps_[turn % kSmallTurns];
    for (uint32_t rank = 0; rank < ranks(); ++rank) {
      if (rank == rank_ || seen_[rank] >= step) continue;
      seen_[rank] = whole(head_of(rank).mark.load(std::memory_order_acquire));
      if (seen_[rank] < step) return false;
    }
    last_begun_ = turn;
    return true;
  }

  const uint32_t rank_;
  const std::vector<std::byte*> arenas_;
  const std::vector<uint32_t> ranks_outside_;
  ArenaHead* const head_;
  const size_t slot_bytes_;
  const WaitRules rules_;
  FramePool frames_;
  MappedRegions* mapped_regions_ = nullptr;
  PeerReads* reads_ = nullptr;
  uint32_t shown_ = 0;
  uint32_t signal_ns_ = 0;
  // These are wider than the published steps, because a value may have been seen long ago.
  uint64_t step_ = 0;
  uint64_t turn_ = kSmallTurns;             ///< so that there are generations before the first one
  uint64_t last_begun_ = kSmallTurns - 1;   ///< the last generation that all ranks are known to have begun
  uint64_t first_steps_[kSmallTurns] = {};  ///< of the last generations
  std::vector<uint64_t> seen_;              ///< the step of each rank when it was read last
};

}  // namespace nupa::ccl
