#pragma once
/// Registered memory that peers reach with plain loads and stores. See docs/memory.md.

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "base/unique_fd.h"
#include "region/vma.h"

namespace nupa::region {

/// Pages [begin, end) of this process, backed by the region file from file_offset on.
struct Piece {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  uint64_t file_offset = 0;
};

enum class Policy {
  kAuto,    ///< remap where it is safe
  kAlways,  ///< also where a system call of another thread into the buffer could fail meanwhile
  kNever,
};

/// NUPA_REMAP = auto (default), always, never.
Policy policy_from_environment();

/// Moves the whole pages of registered buffers into this process's region file, and back. Any thread.
class Remapper {
 public:
  /// EMFILE, ENFILE, ENOMEM.
  static Result<std::unique_ptr<Remapper>> create(Policy policy);
  ~Remapper();

  /// The region file: peers map it.
  int fd() const { return file_.get(); }

  /// Makes what is safe and worth it of [address, address+length) reachable; returns those pieces, sorted, perhaps
  /// none. EFAULT: not mapped, or not writable though `writable`; EFBIG, ENOMEM: a limit of the process.
  /// Pair each success with one unshare() of the same range.
  Result<std::vector<Piece>> share(void* address, uint64_t length, bool writable);
  /// The last unshare() of a page makes it private again, with its content. No peer may write it any more.
  void unshare(void* address, uint64_t length);

  /// Memory that is shared from the start. ENOMEM, EFBIG.
  Result<Piece> allocate(uint64_t length);
  void release(const Piece& piece);

  /// Threads of the library itself: they take copy_mutex() shared before they write a program's memory.
  void set_internal_threads(int count) { internal_threads_ = count; }
  std::shared_mutex& copy_mutex() { return copy_mutex_; }

  /// fork() handlers.
  void before_fork();
  void after_fork_parent();
  void after_fork_child();

 private:
  struct Interval {
    uintptr_t end;
    uint64_t file_offset;
    uint32_t users;
  };
  using Intervals = std::map<uintptr_t, Interval>;

  Remapper(base::UniqueFd file, uint64_t inode, Policy policy)
      : file_(std::move(file)), inode_(inode), policy_(policy) {}

  Result<uint64_t> reserve(uint64_t length);
  void split_at(uintptr_t address);
  void drop_stale(const std::vector<Vma>& vmas, uintptr_t begin, uintptr_t end);
  bool overlaps_unshared(uintptr_t begin, uintptr_t end) const;
  /// How the present moment allows memory to move: not at all, guarded, or freely (no other thread).
  enum class Safety { kUnsafe, kGuarded, kAlone };
  Safety safety() const;
  int move_in(uintptr_t begin, uintptr_t end, Safety safety);
  bool move_out(uintptr_t begin, const Interval& interval, Safety safety);

  base::UniqueFd file_;
  uint64_t inode_;
  Policy policy_;
  std::atomic<int> internal_threads_{0};
  std::shared_mutex copy_mutex_;

  std::mutex mutex_;
  uint64_t next_offset_ = 0;
  uint64_t file_size_ = 0;
  Intervals intervals_;
  struct Registration {
    uintptr_t end;
    std::vector<std::pair<uintptr_t, uintptr_t>> copied;  ///< its parts that peers reach through the kernel
  };
  std::multimap<uintptr_t, Registration> active_;  ///< registered ranges, to the byte

  int fork_pipe_[2] = {-1, -1};
};

}  // namespace nupa::region
