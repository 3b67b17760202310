// SPDX-License-Identifier: Apache-2.0
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
  kAuto,    ///< remap where no call of the program can fail because of it
  kAlways,  ///< also where a system call of another thread into the buffer may fail with EFAULT meanwhile
  kNever,   ///< remap nothing
};

/// NUPA_REMAP = auto (the default), always or never. EINVAL: it has another value.
Result<Policy> policy_from_environment();

struct RemapOptions {
  /// The most mappings that remapping may create; the kernel allows a process 65,530 in all (vm.max_map_count).
  size_t max_pieces = 16384;
  /// False: UFFDIO_MOVE is not used, as on a kernel older than Linux 6.8.
  bool may_move = true;
};

/// Makes registered memory of this process reachable by plain loads and stores of other processes: moves the whole
/// pages of a buffer into the region file, which peers map, and back. Method and costs:
/// docs/design/memory-registration.md. Any thread.
///
/// fork(): the child gets a private copy of every shared page, and its remapper shares nothing more. The parent's
/// fork() returns when the copies are made. Pages of allocate() stay common to both.
class Remapper final : private ForkParticipant {
 public:
  /// EMFILE, ENFILE, ENOMEM.
  static Result<std::unique_ptr<Remapper>> create(Policy policy, const RemapOptions& options = {});
  /// Makes pages that are still shared private again, except those of allocate().
  ~Remapper() override;

  /// The region file, which is passed to peers; -1 in a child of fork() until it calls allocate().
  int fd() const { return file_.fd(); }
  /// The file's length in bytes, mostly holes.
  uint64_t size() const;

  /// Makes the pages of [address, address+length) reachable as far as that is possible and safe. A first or last page
  /// that also holds other data moves only where every thread can be blocked. Returns the reachable pieces, sorted and
  /// disjoint, perhaps none; peers reach the rest by CMA. Only private anonymous writable memory moves. A limit on
  /// mappings or memory results in fewer pieces. EFAULT: not all is mapped, or not writable if `writable_needed`, or
  /// otherwise not readable. EFBIG: RLIMIT_FSIZE. Each success needs one unshare() of the same range. Signals are
  /// blocked until it returns.
  Result<std::vector<Piece>> share(void* address, size_t length, bool writable_needed);

  /// Reverts share() of the same range. Pages without another holder become private memory again with the same content;
  /// no peer may write them meanwhile. Pages that the program has unmapped or replaced are left alone.
  void unshare(void* address, size_t length);

  /// True if all of [address, address+length) is mapped, and writable or else readable as asked. Also true if /proc
  /// cannot be read.
  static bool mapped(const void* address, size_t length, bool writable_needed);

  /// The number of the library's threads. They hold copy_mutex() shared when they write a program's memory, so they do
  /// not count as other threads.
  void set_internal_threads(int count) { internal_threads_ = count; }
  std::shared_mutex& copy_mutex() { return copy_mutex_; }

  /// Allocates zeroed memory of whole pages that is shared from the start. ENOMEM, EFBIG; EINVAL: `length` is 0 or too
  /// large.
  Result<Piece> allocate(size_t length);
  void release(const Piece& piece);

 private:
  /// The successful calls of share(), keyed by first byte and end.
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
  bool reported_unsafe_ = false;
  bool left_over_ = false;  ///< some pages without a holder are still shared
  bool in_child_ = false;
};

}  // namespace nupa::memory
