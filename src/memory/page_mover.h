// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "memory/write_guard.h"
#include "memory/piece.h"
#include "memory/region_file.h"

namespace nupa::memory {

/// The other threads that may access the memory while it moves.
enum class Company {
  kAlone,    ///< the calling thread is the only thread
  kGuarded,  ///< other threads run, and the guard may block them
  kUnsafe,   ///< other threads run and cannot be blocked
};

/// Moves whole pages between private memory and the region file. No byte that any thread writes meanwhile is lost:
/// docs/design/memory-registration.md has the argument. One thread at a time, with its signals held (SignalHold).
class PageMover {
 public:
  /// `copies` is locked exclusively in each step: threads that write user memory under a shared lock of it wait
  /// meanwhile.
  PageMover(const RegionFile& file, WriteGuard guard, std::shared_mutex& copies)
      : file_(file), guard_(std::move(guard)), copies_(copies) {}
  ~PageMover();
  PageMover(const PageMover&) = delete;
  PageMover& operator=(const PageMover&) = delete;

  const WriteGuard& guard() const { return guard_; }

  /// Moves the pages of `wanted`, a part of one private anonymous writable mapping with this protection, into the file.
  /// Appends the moved pieces. Pages that the kernel has pinned, or whose move a limit of the process forbids, stay as
  /// they are. Returns 0 or EFBIG.
  int move_in(const Piece& wanted, int protection, Company company, std::vector<Piece>* moved);

  /// Makes `piece`, a part of one mapping of the file, private memory with the same content and protection, and frees
  /// its part of the file. No other process may write it any more. Returns the address up to which this is done: less
  /// than piece.end if a limit of the process stopped it.
  uintptr_t move_out(const Piece& piece, int protection, Company company);

  /// Drops the parent's descriptor. Async-signal-safe.
  void abandon_in_child() { guard_.abandon(); }

 private:
  /// The bytes that moved, from the start of a step, and why not all did: 0, EBUSY (next page), EINVAL (the mapping),
  /// ENOMEM, EFBIG.
  struct Step {
    uint64_t moved = 0;
    int error = 0;
  };
  Step step_in(uintptr_t at, uint64_t length, uint64_t offset, int protection, bool guarded);
  bool make_scratch(int protection);
  bool make_copy_on_write(uintptr_t at, uint64_t length, uint64_t offset, int protection);

  const RegionFile& file_;
  WriteGuard guard_;
  std::shared_mutex& copies_;
  int scratch_protection_ = 0;
  uintptr_t scratch_ = 0;  ///< kStep bytes, aligned to kStep: holds evacuated pages while they are copied
};

}  // namespace nupa::memory
