#pragma once
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "memory/write_guard.h"
#include "memory/piece.h"
#include "memory/region_file.h"

namespace nupa::memory {

/// Who else may touch the memory that moves.
enum class Company {
  kAlone,    ///< the calling thread is the only one
  kGuarded,  ///< others run, and the guard may hold them up
  kUnsafe,   ///< others run and cannot be held up
};

/// Moves whole pages between private memory and the region file. No byte that any thread writes
/// meanwhile is lost: see docs/memory.md for the argument. One thread at a time, its signals held
/// (SignalHold).
class PageMover {
 public:
  /// `copies` is taken alone for each step: who holds it shared writes no user memory meanwhile.
  PageMover(const RegionFile& file, WriteGuard guard, std::shared_mutex& copies)
      : file_(file), guard_(std::move(guard)), copies_(copies) {}
  ~PageMover();
  PageMover(const PageMover&) = delete;
  PageMover& operator=(const PageMover&) = delete;

  const WriteGuard& guard() const { return guard_; }

  /// Puts the pages of `wanted`, part of one private anonymous writable mapping of this protection, into the file.
  /// Appends what moved; pages that the kernel holds, and what a limit of the process forbids, stay
  /// as they are. 0, or EFBIG.
  int move_in(const Piece& wanted, int protection, Company company, std::vector<Piece>* moved);

  /// Makes `piece`, part of one mapping of the file, private memory with the same content and
  /// protection, and frees its part of the file. Nobody in another process may write it any more.
  /// Returns the address up to which that is done: less than piece.end when a limit of the process
  /// stopped it.
  uintptr_t move_out(const Piece& piece, int protection, Company company);

  /// Forgets what belongs to the parent. Async-signal-safe.
  void abandon_in_child() { guard_.abandon(); }

 private:
  /// Bytes from the start of a step that moved, and why it was not all: 0, EBUSY (next page),
  /// EINVAL (the mapping), ENOMEM, EFBIG.
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
  uintptr_t scratch_ = 0;  ///< kStep bytes, aligned to kStep, where evacuated pages lie while they are copied
};

}  // namespace nupa::memory
