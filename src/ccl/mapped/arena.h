#pragma once
/// What ranks that share memory have of each other. Each has an arena of its own, which all of them map.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nupa::ccl {

constexpr size_t kCacheLine = 64;

/// memcpy() of arrays that may be nowhere when they are empty.
inline void copy_array(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

/// A rank's part of a tiny operation, written by one rank into the memory of another: all in one cache line, the number
/// of its step last.
struct alignas(kCacheLine) FlagLine {
  static constexpr size_t kPayload = 56;
  std::byte payload[kPayload];
  std::atomic<uint32_t> step;
  uint32_t unused;
};
static_assert(sizeof(FlagLine) == kCacheLine);

/// How far one rank has come, written by it into the memory of another.
struct alignas(kCacheLine) Mark {
  std::atomic<uint32_t> step;
};
static_assert(sizeof(Mark) == kCacheLine);

/// The first lines of an arena.
struct ArenaHead {
  /// Written by its owner: somebody sleeps at the bell.
  alignas(kCacheLine) std::atomic<uint32_t> sleeps;
  /// Rung by others; a futex.
  alignas(kCacheLine) std::atomic<uint32_t> bell;
  /// Written by anybody: not 0, an errno value by which all operations end.
  alignas(kCacheLine) std::atomic<uint32_t> aborted;
};

/// Where what lies in an arena of `ranks` ranks:
///
///   head            ArenaHead
///   marks           Mark[ranks]          by the rank that writes it
///   lines           FlagLine[2][ranks]   in turn, by the rank that writes it
///   slots           slot_bytes each, kSlots of them: the owner's elements, on their way in and out
///
/// A rank that is two operations behind may still read what it was given: the next operation takes the other turn, and
/// the one after it begins when that rank has begun the one between.
class ArenaLayout {
 public:
  static constexpr size_t kTurns = 2;
  /// In and out, in turn.
  static constexpr size_t kSlots = 2 * kTurns;

  constexpr ArenaLayout(uint32_t ranks, size_t slot_bytes) : ranks_(ranks), slot_bytes_(slot_bytes) {}

  constexpr size_t slot_bytes() const { return slot_bytes_; }
  constexpr size_t marks() const { return (sizeof(ArenaHead) + kCacheLine - 1) / kCacheLine * kCacheLine; }
  constexpr size_t lines() const { return marks() + ranks_ * sizeof(Mark); }
  constexpr size_t slots() const { return (lines() + kTurns * ranks_ * sizeof(FlagLine) + kPage - 1) / kPage * kPage; }
  constexpr size_t bytes() const { return slots() + kSlots * slot_bytes_; }

 private:
  static constexpr size_t kPage = 4096;
  uint32_t ranks_;
  size_t slot_bytes_;
};

}  // namespace nupa::ccl
