#pragma once
#include <nupa/result.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "memory/fork_snapshot.h"
#include "memory/interval_map.h"
#include "memory/page_mover.h"
#include "memory/piece.h"
#include "memory/region_file.h"

namespace nupa::memory {

enum class Policy {
  kAuto,    ///< remap where nothing that the program does can fail of it
  kAlways,  ///< also where a system call of another thread into the buffer may meanwhile fail with
            ///< EFAULT
  kNever,   ///< remap nothing
};

/// NUPA_REMAP = auto (the default), always or never.
Policy policy_from_environment();

struct RemapOptions {
  /// Mappings that remapping may make; the kernel allows a process 65,530 in all
  /// (vm.max_map_count).
  size_t max_pieces = 16384;
  /// False leaves UFFDIO_MOVE unused, as on a kernel older than Linux 6.8.
  bool may_move = true;
};

/// Makes registered memory of this process reachable by plain loads and stores of another one:
/// moves the whole pages of a buffer into the region file, which peers map, and back.
/// docs/memory.md tells how and what it costs. Any thread.
///
/// fork(): the child gets a private copy of every shared page and a remapper that shares nothing
/// more; the parent's fork() returns when the copies are made. Pages of allocate() stay common to
/// both.
class Remapper final : private ForkParticipant {
 public:
  /// EMFILE, ENFILE, ENOMEM.
  static Result<std::unique_ptr<Remapper>> create(Policy policy, const RemapOptions& options = {});
  /// Makes private again what is still shared, the pieces of allocate() excepted.
  ~Remapper() override;

  /// The region file, to be passed to peers; -1 in a child of fork until it calls allocate().
  int fd() const { return file_.fd(); }
  /// Its length in bytes, mostly of holes.
  uint64_t size() const;

  /// Makes the pages of [address, address+length) reachable as far as that is possible and safe (the first and last
  /// page, if they hold other things too, only where every thread can be held up), and returns those that are, sorted
  /// and disjoint; perhaps none: the rest is for process_vm_readv and its like. Only private anonymous writable memory
  /// moves; a limit on mappings or memory gives fewer pieces. EFAULT: not all mapped, or not writable if
  /// `writable_needed`, else not readable. EFBIG: RLIMIT_FSIZE. Pair each success with one unshare() of the
  /// same range. Signals wait until it returns.
  Result<std::vector<Piece>> share(void* address, size_t length, bool writable_needed);

  /// Gives back what share() returned for the same range. Pages without another holder become
  /// private memory again with the same content; no peer may be writing them. What the program
  /// unmapped or replaced is left alone.
  void unshare(void* address, size_t length);

  /// Whether all of [address, address+length) is mapped, and writable if that is asked, else readable. True where /proc
  /// is not to be read.
  static bool mapped(const void* address, size_t length, bool writable_needed);

  /// Threads of the library itself: they hold copy_mutex() shared when they write a program's
  /// memory, and so do not count as others.
  void set_internal_threads(int count) { internal_threads_ = count; }
  std::shared_mutex& copy_mutex() { return copy_mutex_; }

  /// Zeroed memory that is shared from the start, whole pages. ENOMEM, EFBIG; EINVAL for none.
  Result<Piece> allocate(size_t length);
  void release(const Piece& piece);

 private:
  /// One successful share(), keyed by its first byte and the byte after its last.
  using Registrations = std::multimap<std::pair<uintptr_t, uintptr_t>, std::vector<Piece>>;

  Remapper(RegionFile file, Policy policy, const RemapOptions& options);

  void before_fork() override;
  void after_fork_in_parent() override;
  void after_fork_in_child() override;

  Company company() const;
  int move_in(uintptr_t first, uintptr_t last, const std::vector<Vma>& vmas);
  bool may_move_edges(const Vma& vma) const;
  void move_out_unused(uintptr_t begin, uintptr_t end);
  void forget_stale(uintptr_t begin, uintptr_t end, const std::vector<Vma>& vmas);
  void follow(const Piece& gone);
  bool reached_by_kernel(uintptr_t begin, uintptr_t end) const;

  RegionFile file_;
  const Policy policy_;
  const RemapOptions options_;
  std::atomic<int> internal_threads_{0};
  std::shared_mutex copy_mutex_;

  mutable std::mutex mutex_;  ///< taken before copy_mutex_
  PageMover mover_;
  IntervalMap intervals_;
  Registrations registrations_;
  bool told_unsafe_ = false;
  bool left_over_ = false;  ///< some pages without a holder are still shared
  bool in_child_ = false;
};

}  // namespace nupa::memory
