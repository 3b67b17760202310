// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/unique_fd.h"

namespace nupa::memory {

/// The operations on a userfaultfd. The object owns nothing and can lie on a stack: while memory is being moved, its
/// mover must not access anything that could be part of that memory.
class GuardHandle {
 public:
  explicit GuardHandle(int fd) : fd_(fd) {}

  /// Makes accesses to absent pages of [begin, begin+length) wait. One mapping only. Returns 0 or an errno value;
  /// EBUSY: the program watches the range with its own userfaultfd.
  int close_absent(uintptr_t begin, uint64_t length) const;
  /// Makes writes to [begin, begin+length) wait, and on private memory also accesses to absent pages.
  int close_writes(uintptr_t begin, uint64_t length, bool shared) const;
  /// Reverts either call and wakes the threads that wait. Works also where the range has been replaced.
  void open_range(uintptr_t begin, uint64_t length) const;

  /// Moves the pages of private memory [from, from+length) to `to`, a range closed by close_absent(). Holes stay holes.
  /// Returns the bytes done, from the start. *error is 0 if all are done. EBUSY: the next page is pinned by the kernel
  /// for input or output, or shared with another process by fork(). EINVAL: the mapping is not an ordinary one. ENOMEM.
  uint64_t move(uintptr_t to, uintptr_t from, uint64_t length, int* error) const;

 private:
  int fd_;
};

/// Blocks other threads at a range of pages while its memory moves: a userfaultfd whose faults are not answered. A
/// thread that faults there, in its own code or inside a system call, sleeps until open_range() and then continues with
/// the memory that is mapped by then. One thread at a time.
class WriteGuard {
 public:
  /// The accesses that the kernel lets this process block.
  enum class Kind {
    kNone,      ///< no access
    kUserOnly,  ///< accesses by a thread's own code; a system call that meets the guard fails with EFAULT
    kFull,      ///< accesses by system calls, too
  };

  /// The kind that open() would return, determined once. Any thread.
  static Kind available();

  WriteGuard() = default;
  /// Opens a guard of the best kind that the kernel allows. `allow_move` false: does not use the move operation, as on
  /// a kernel older than 6.8.
  static WriteGuard open(bool allow_move = true);

  Kind kind() const { return kind_; }
  /// True if the kernel can move pages away (UFFDIO_MOVE, Linux 6.8).
  bool can_move() const { return can_move_; }
  /// True if the kernel can write-protect private memory (5.7), and shared memory too (5.19).
  bool can_protect() const { return can_protect_; }
  bool can_protect_shared() const { return can_protect_shared_; }

  GuardHandle handle() const { return GuardHandle(fd_.get()); }

  /// Drops the descriptor: in a child of fork() it would act on the parent's memory.
  void abandon() { *this = WriteGuard(); }

 private:
  base::UniqueFd fd_;
  Kind kind_ = Kind::kNone;
  bool can_move_ = false;
  bool can_protect_ = false;
  bool can_protect_shared_ = false;
};

}  // namespace nupa::memory
