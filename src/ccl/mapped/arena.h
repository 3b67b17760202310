#pragma once
/// What ranks that share memory have of each other. Each has an arena of its own, which all of them map and only it
/// writes, but for the words by which others sleep and end everything.
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ccl/cause.h"
#include "ccl/mapped/windows.h"
#include "ccl/parts.h"

namespace nupa::ccl {

/// A rank's part of a tiny operation: all in one cache line, the number of its step last.
struct alignas(kCacheLine) FlagLine {
  static constexpr size_t kPayload = 56;
  std::byte payload[kPayload];
  std::atomic<uint32_t> step;
  uint32_t unused;
};
static_assert(sizeof(FlagLine) == kCacheLine);

/// Slots and lines are used in turn. A rank that is two operations behind may still read what it was given: the next
/// operation takes the other turn, and the one after it begins when that rank has begun the one between.
constexpr size_t kTurns = 2;

/// Where an arena begins. After it, from kSlotsAt on, the slots: kTurns for what goes in, kTurns for what comes out.
struct ArenaHead {
  /// By anybody: a Cause.
  alignas(kCacheLine) std::atomic<uint64_t> ended;
  /// How many sleep until the owner tells something.
  alignas(kCacheLine) std::atomic<uint32_t> sleepers;
  /// How far the owner has come.
  alignas(kCacheLine) std::atomic<uint32_t> mark;
  /// How many of the others will not look at this arena any more; counted by them.
  alignas(kCacheLine) std::atomic<uint32_t> departed;
  FlagLine lines[kTurns];
  /// By the owner: what others may map.
  PublishedRegion regions[kPublishedRegions];
};

constexpr size_t kSlotsAt = 4096;
static_assert(sizeof(ArenaHead) <= kSlotsAt);
constexpr size_t kSlots = 2 * kTurns;

constexpr size_t arena_bytes(size_t slot_bytes) { return kSlotsAt + kSlots * slot_bytes; }

/// The owner's operations end, and whatever it begins later, and whoever waits for it looks. The first cause stays.
void end_arena(ArenaHead& head, const Cause& cause);

}  // namespace nupa::ccl
