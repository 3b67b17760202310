#pragma once
#include <cstdint>

#include "base/unique_fd.h"

namespace nupa::memory {

/// The operations on a userfaultfd. A value that owns nothing and can lie on a stack: while memory is on the move its
/// mover must not look at anything that could be on the move itself.
class GuardHandle {
 public:
  explicit GuardHandle(int fd) : fd_(fd) {}

  /// From now on a touch of an absent page of [begin, begin+length) waits. One mapping only. 0 or
  /// errno; EBUSY: the program watches it with a userfaultfd of its own.
  int close_absent(uintptr_t begin, uint64_t length) const;
  /// From now on a write to [begin, begin+length) waits, and on private memory a touch of an absent
  /// page too.
  int close_writes(uintptr_t begin, uint64_t length, bool shared) const;
  /// Ends either, wakes who waits. Also where the range has been replaced.
  void open_range(uintptr_t begin, uint64_t length) const;

  /// Moves the pages of private memory [from, from+length) to `to`, a range closed by
  /// close_absent(); holes stay holes. Returns the bytes done, from the start; *error is 0 if that
  /// is all, EBUSY if the next page is pinned by the kernel for input or output, or shared with
  /// another process by fork, EINVAL where the mapping is of no ordinary kind, ENOMEM.
  uint64_t move(uintptr_t to, uintptr_t from, uint64_t length, int* error) const;

 private:
  int fd_;
};

/// Holds up the other threads at a range of pages while its memory changes place: a userfaultfd
/// that nobody answers. A thread that faults there, in its own code or inside a system call, sleeps
/// until open_range() and then goes on in whatever is mapped by then. One thread at a time.
class WriteGuard {
 public:
  /// Whom the kernel lets this process hold up.
  enum class Kind {
    kNone,      ///< nobody
    kUserOnly,  ///< a thread in its own code; a system call that meets the guard fails with EFAULT
    kFull,      ///< system calls too
  };

  /// What open() would get, asked once. Any thread.
  static Kind available();

  WriteGuard() = default;
  /// Asks the kernel. `allow_move` false leaves the move operation unused, as if the kernel were
  /// older than 6.8.
  static WriteGuard open(bool allow_move = true);

  Kind kind() const { return kind_; }
  /// The kernel can move pages away (UFFDIO_MOVE, Linux 6.8).
  bool can_move() const { return can_move_; }
  /// The kernel can write-protect private memory (5.7), and shared memory too (5.19).
  bool can_protect() const { return can_protect_; }
  bool can_protect_shared() const { return can_protect_shared_; }

  GuardHandle handle() const { return GuardHandle(fd_.get()); }

  /// Forgets the descriptor: in a child of fork it would act on the parent's memory.
  void abandon() { *this = WriteGuard(); }

 private:
  base::UniqueFd fd_;
  Kind kind_ = Kind::kNone;
  bool can_move_ = false;
  bool can_protect_ = false;
  bool can_protect_shared_ = false;
};

}  // namespace nupa::memory
