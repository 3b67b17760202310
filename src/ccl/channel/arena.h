#pragma once
/// What ranks that share memory have of each other. Each has an arena of its own, which all of them map and only it
/// writes, but for the words by which others sleep and end everything.
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ccl/error/cause.h"
#include "ccl/channel/mapped_regions.h"
#include "ccl/call/arrays.h"

namespace nupa::ccl {

/// A rank's part of a tiny operation: all in one cache line, the number of its step last.
struct alignas(kCacheLine) FlagLine {
  static constexpr size_t kPayload = 56;
  std::byte payload[kPayload];
  std::atomic<uint32_t> step;
  uint32_t unused;
};
static_assert(sizeof(FlagLine) == kCacheLine);

/// Lines and slots are used in turn. A rank may still read what it was given in a turn until it has begun the next one;
/// there are more lines and small slots than large ones, so that who only gives can be so many operations ahead of who
/// only takes.
constexpr uint32_t kTurns = 2;
constexpr uint32_t kSmallTurns = 8;
constexpr size_t kSmallSlotBytes = 4096;

/// Where an arena begins. After it, from kSlotsAt on, kSmallTurns small slots for what goes in, then the large ones:
/// kTurns for what goes in, kTurns for what comes out.
struct ArenaHead {
  /// By anybody: a Cause.
  alignas(kCacheLine) std::atomic<uint64_t> ended;
  /// How many sleep until the owner tells something.
  alignas(kCacheLine) std::atomic<uint32_t> sleepers;
  /// How far the owner has come.
  alignas(kCacheLine) std::atomic<uint32_t> mark;
  /// How many of the others will not look at this arena any more; counted by them.
  alignas(kCacheLine) std::atomic<uint32_t> departed;
  FlagLine lines[kSmallTurns];
  /// By the owner: what others may map.
  PublishedRegion regions[kPublishedRegions];
};

constexpr size_t kSlotsAt = 4096;
static_assert(sizeof(ArenaHead) <= kSlotsAt);
constexpr size_t kSlots = 2 * kTurns;

constexpr size_t kLargeSlotsAt = kSlotsAt + kSmallTurns * kSmallSlotBytes;

constexpr size_t arena_bytes(size_t slot_bytes) { return kLargeSlotsAt + kSlots * slot_bytes; }

/// The owner's operations end, and whatever it begins later, and whoever waits for it looks. The first cause stays.
void end_arena(ArenaHead& head, const Cause& cause);

}  // namespace nupa::ccl
