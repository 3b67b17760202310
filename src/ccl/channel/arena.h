// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The shared memory of a rank. Each rank has one arena that all ranks of the group map. Only its owner writes it,
/// except for the words with which other ranks announce that they sleep, leave, or end all operations. ShmGroup
/// describes the order of its words. Entries of `regions` have no order themselves. An entry is written before the step
/// that announces its number, and stays until the operation after the next one; by then all ranks have read it. After
/// the compare-exchange of `ended` all sleepers are woken. A thread that falls asleep at that moment looks again after
/// progress::kLongestWordSleepNs.
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ccl/error/cause.h"
#include "ccl/channel/mapped_regions.h"
#include "ccl/call/arrays.h"

namespace nupa::ccl {

/// A rank's part of a tiny operation in one cache line. The step number is written last.
struct alignas(kCacheLine) FlagLine {
  static constexpr size_t kPayload = 56;
  std::byte payload[kPayload];
  std::atomic<uint32_t> step;
  uint32_t unused;
};
static_assert(sizeof(FlagLine) == kCacheLine);

/// Each generation uses a flag line and eager slots, which are used again kSmallTurns or kTurns generations later. A
/// rank may read what it got in a generation until it begins the next one. There are more lines and small slots than
/// large ones, so that a rank that only sends can be that many operations ahead of a rank that only receives.
constexpr uint32_t kTurns = 2;
constexpr uint32_t kSmallTurns = 8;
constexpr size_t kSmallSlotBytes = 4096;

/// The beginning of an arena. From kSlotsAt on, kSmallTurns small input slots follow, then the large slots: kTurns for
/// input and kTurns for output.
struct ArenaHead {
  /// A packed Cause, or 0. Any rank may write it.
  alignas(kCacheLine) std::atomic<uint64_t> ended;
  /// Threads that sleep until the owner publishes something.
  alignas(kCacheLine) std::atomic<uint32_t> sleepers;
  /// The last step that the owner has completed.
  alignas(kCacheLine) std::atomic<uint32_t> mark;
  /// Number of other ranks that do not access this arena any more. Those ranks count it up.
  alignas(kCacheLine) std::atomic<uint32_t> departed;
  FlagLine lines[kSmallTurns];
  /// Allocations that other ranks may map. The owner writes it.
  PublishedRegion regions[kPublishedRegions];
};

constexpr size_t kSlotsAt = 4096;
static_assert(sizeof(ArenaHead) <= kSlotsAt);
constexpr size_t kSlots = 2 * kTurns;

constexpr size_t kLargeSlotsAt = kSlotsAt + kSmallTurns * kSmallSlotBytes;

constexpr size_t arena_bytes(size_t slot_bytes) { return kLargeSlotsAt + kSlots * slot_bytes; }

/// Ends the operations of the arena's owner, including later ones, and wakes the threads that wait for them. The first
/// cause is kept.
void end_arena(ArenaHead& head, const Cause& cause);

}  // namespace nupa::ccl
