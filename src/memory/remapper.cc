// SPDX-License-Identifier: Apache-2.0
#include "memory/remapper.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "base/log.h"
#include "base/settings.h"
#include "base/system_error.h"
#include "memory/signal_hold.h"

namespace nupa::memory {
namespace {

int protection_of(const Vma& vma) {
  return (vma.readable ? PROT_READ : 0) | (vma.writable ? PROT_WRITE : 0) | (vma.executable ? PROT_EXEC : 0);
}

/// The rule of the kernel's ib_umem: a region that is written needs the right to write only, any other the right to
/// read.
bool mapped_as_asked(const std::vector<Vma>& vmas, uintptr_t begin, uintptr_t end, bool writable) {
  uintptr_t covered = begin;
  for (const Vma& vma : vmas) {
    if (vma.begin > covered || !(writable ? vma.writable : vma.readable)) return false;
    covered = vma.end;
  }
  return covered >= end;
}

}  // namespace

Result<Policy> policy_from_environment() {
  constexpr Policy kPolicies[] = {Policy::kAuto, Policy::kAlways, Policy::kNever};
  static_assert(base::find_setting("NUPA_REMAP")->choices == "auto always never");
  const auto wanted = base::word_setting("NUPA_REMAP");
  if (!wanted) return tl::unexpected(wanted.error());
  return kPolicies[*wanted];
}

Remapper::Remapper(RegionFile file, Policy policy, const RemapOptions& options)
    : file_(std::move(file)),
      policy_(policy),
      options_(options),
      mover_(file_, policy == Policy::kNever ? WriteGuard() : WriteGuard::open(options.may_move), copy_mutex_) {
  fork_file_ = &file_;
}

Result<std::unique_ptr<Remapper>> Remapper::create(Policy policy, const RemapOptions& options) {
  auto file = RegionFile::create();
  if (!file) return tl::unexpected(file.error());
  std::unique_ptr<Remapper> remapper(new Remapper(std::move(*file), policy, options));
  const int error = join_forks(remapper.get());
  if (error != 0) return base::fail_call(error, "cannot install fork handlers");
  return remapper;
}

Remapper::~Remapper() {
  leave_forks(this);
  SignalHold hold;
  std::lock_guard lock(mutex_);
  if (in_child_) return;
  for (const auto& [range, pieces] : registrations_)
    for (const Piece& piece : pieces) intervals_.drop(piece);
  left_over_ = true;
  move_out_unused(0, UINTPTR_MAX);
  if (!intervals_.empty())
    NUPA_WARN("%zu ranges of registered memory stay shared: no further mappings (vm.max_map_count, ulimit -v)",
              intervals_.size());
}

uint64_t Remapper::size() const {
  std::lock_guard lock(mutex_);
  return file_.size();
}

Company Remapper::company() const {
  const WriteGuard& guard = mover_.guard();
  const bool may_guard = guard.kind() == WriteGuard::Kind::kFull ||
                         (guard.kind() == WriteGuard::Kind::kUserOnly && policy_ == Policy::kAlways);
  if (may_guard && guard.can_protect_shared()) return Company::kGuarded;
  if (thread_count() - internal_threads_ <= 1) return Company::kAlone;
  return may_guard ? Company::kGuarded : Company::kUnsafe;
}

void Remapper::forget_stale(uintptr_t begin, uintptr_t end, const std::vector<Vma>& vmas) {
  for (const Piece& piece : intervals_.forget_stale(begin, end, vmas, file_)) follow(piece);
}

void Remapper::follow(const Piece& gone) {
  // Most often the program has unmapped the pages. If it has moved them (realloc by mremap), they are at another
  // address. They have no holder there, so they become private at the next occasion.
  bool moved = false;
  if (auto vmas = list_vmas(0, UINTPTR_MAX)) {
    for (const Vma& vma : *vmas) {
      const uint64_t vma_last = vma.file_offset + (vma.end - vma.begin);
      if (!file_.shows(vma, vma.begin, vma.file_offset) || vma.file_offset >= gone.file_offset + gone.length() ||
          vma_last <= gone.file_offset)
        continue;
      moved = true;
      if (intervals_.pieces(vma.begin, vma.end).empty()) intervals_.insert({vma.begin, vma.end, vma.file_offset});
    }
  } else {
    return;
  }
  if (moved)
    left_over_ = true;
  else
    file_.punch(gone.file_offset, gone.length());
}

bool Remapper::reached_by_kernel(uintptr_t begin, uintptr_t end) const {
  // Peers write such bytes through the kernel, which pins a page for a moment. Where pages are moved away, the kernel
  // rejects a pinned page. Where they are copied, the write would reach the page that is left behind.
  if (mover_.guard().can_move() && mover_.guard().kind() == WriteGuard::Kind::kFull) return false;
  for (const auto& [range, pieces] : registrations_) {
    uintptr_t at = std::max(range.first, begin);
    const uintptr_t last = std::min(range.second, end);
    for (const Piece& piece : pieces)
      if (piece.begin <= at && piece.end > at) at = piece.end;
    if (at < last) return true;
  }
  return false;
}

bool Remapper::may_move_edges(const Vma& vma) const {
  // The first and last page hold other data too, so all threads have to be blocked, whatever they access there.
  if (mover_.guard().kind() != WriteGuard::Kind::kFull || !mover_.guard().can_protect_shared()) return false;
  const auto holds = [&](const void* what) {
    const auto at = reinterpret_cast<uintptr_t>(what);
    return at >= vma.begin && at < vma.end;
  };
  if (holds(__builtin_frame_address(0)) || holds(__builtin_thread_pointer())) return false;
  // Another thread's stack must not move, because the kernel writes to its end by itself. Such a mapping has a small
  // guard area below.
  constexpr uint64_t kMostOfAGuard = 64 << 10;
  auto below = list_vmas(vma.begin - kPageSize, vma.begin);
  return below && (below->empty() || below->back().readable || below->back().writable ||
                   below->back().end - below->back().begin > kMostOfAGuard);
}

int Remapper::move_in(uintptr_t first, uintptr_t last, const std::vector<Vma>& vmas) {
  const Company now = company();
  if (now == Company::kUnsafe) {
    if (!reported_unsafe_)
      NUPA_INFO(
          "registered memory is copied through the kernel: other threads run, and userfaultfd may not "
          "pause their system calls (set vm.unprivileged_userfaultfd=1, or NUPA_REMAP=always)");
    reported_unsafe_ = true;
    return 0;
  }
  const auto stack = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  const auto thread = reinterpret_cast<uintptr_t>(__builtin_thread_pointer());
  std::vector<Piece> moved;
  int error = 0;
  for (const Vma& vma : vmas) {
    if (!vma.plain || vma.shared || !vma.writable || vma.executable) continue;
    const bool edges = may_move_edges(vma);
    const uintptr_t from = std::max(vma.begin, edges ? page_down(first) : page_up(first));
    const uintptr_t to = std::min(vma.end, edges ? page_up(last) : page_down(last));
    if (from >= to || (stack >= from && stack < to) || (thread >= from && thread < to)) continue;
    if (intervals_.size() + moved.size() >= options_.max_pieces || reached_by_kernel(from, to)) continue;
    auto offset = file_.reserve(to - from);
    error = offset ? mover_.move_in({from, to, *offset}, protection_of(vma), now, &moved) : offset.error().code();
    if (error != 0) break;
  }
  for (const Piece& piece : moved) intervals_.insert(piece);
  return error;
}

void Remapper::move_out_unused(uintptr_t begin, uintptr_t end) {
  const bool all = left_over_;
  const std::vector<Piece> unused = all ? intervals_.pieces(0, UINTPTR_MAX, true) : intervals_.pieces(begin, end, true);
  left_over_ = false;
  if (unused.empty()) return;
  const Company now = company();
  for (const Piece& piece : unused) {
    auto vmas = list_vmas(piece.begin, piece.end);
    if (!vmas) continue;
    forget_stale(piece.begin, piece.end, *vmas);
    for (const Vma& vma : *vmas)
      for (const Piece& part : intervals_.pieces(std::max(vma.begin, piece.begin), std::min(vma.end, piece.end))) {
        const uintptr_t done = mover_.move_out(part, protection_of(vma), now);
        intervals_.erase(part.begin, done);
        left_over_ |= done < part.end;
      }
  }
}

bool Remapper::mapped(const void* address, size_t length, bool writable_needed) {
  const auto first = reinterpret_cast<uintptr_t>(address);
  if (length > UINTPTR_MAX - first) return false;
  auto vmas = list_vmas(first, first + length);
  return !vmas || mapped_as_asked(*vmas, first, first + length, writable_needed);
}

Result<std::vector<Piece>> Remapper::share(void* address, size_t length, bool writable_needed) {
  const auto first = reinterpret_cast<uintptr_t>(address);
  if (first > UINTPTR_MAX - kPageSize || length > UINTPTR_MAX - kPageSize - first)
    return fail(EFAULT, "the range exceeds the address space");
  const uintptr_t last = first + length;
  const uintptr_t begin = page_down(first);
  const uintptr_t end = length == 0 ? begin : page_up(last);
  SignalHold hold;
  std::lock_guard lock(mutex_);
  if (in_child_) return std::vector<Piece>();
  auto vmas = list_vmas(first, last);
  if (!vmas) {
    // There is no /proc, or this process may not read it. Nothing is known about the range, so it stays as it is.
    NUPA_INFO("registered memory is copied through the kernel: %s", vmas.error().what());
    registrations_.emplace(std::make_pair(first, last), std::vector<Piece>());
    return std::vector<Piece>();
  }
  if (!mapped_as_asked(*vmas, first, last, writable_needed))
    return fail(EFAULT, "the range is not mapped with the requested access");
  std::vector<Piece> pieces;
  if (begin < end) {
    forget_stale(begin, end, *vmas);
    if (policy_ != Policy::kNever) {
      const int error = move_in(first, last, *vmas);
      if (error != 0) {
        move_out_unused(begin, end);
        return fail(error, "the file size limit (ulimit -f) is too small for registered memory");
      }
    }
    pieces = intervals_.hold(begin, end);
  }
  registrations_.emplace(std::make_pair(first, last), pieces);
  return pieces;
}

void Remapper::unshare(void* address, size_t length) {
  const auto first = reinterpret_cast<uintptr_t>(address);
  SignalHold hold;
  std::lock_guard lock(mutex_);
  if (in_child_) return;
  // The caller does not distinguish several registrations of one range. The one with the fewest live bytes is removed:
  // the program may have mapped memory again between them, and pages that a later one needs must stay.
  auto [from, to] = registrations_.equal_range({first, first + length});
  if (from == to) return;
  const auto live_bytes = [&](const Registrations::value_type& registration) {
    uint64_t bytes = 0;
    for (const Piece& piece : registration.second)
      for (const Piece& now : intervals_.pieces(piece.begin, piece.end))
        if (now.file_offset == piece.offset_of(now.begin)) bytes += now.length();
    return bytes;
  };
  const uintptr_t begin = page_down(first);
  const uintptr_t end = page_up(first + length);
  if (auto vmas = list_vmas(begin, end)) forget_stale(begin, end, *vmas);
  const auto chosen =
      std::min_element(from, to, [&](const auto& a, const auto& b) { return live_bytes(a) < live_bytes(b); });
  for (const Piece& piece : chosen->second) intervals_.drop(piece);
  registrations_.erase(chosen);
  move_out_unused(begin, end);
}

Result<Piece> Remapper::allocate(size_t length) {
  if (length == 0 || length > SIZE_MAX - kPageSize) return fail(EINVAL, "the length is zero or too large");
  const uint64_t bytes = page_up(length);
  std::lock_guard lock(mutex_);
  if (file_.fd() < 0) {
    // A child of fork() has closed its parent's file, but inherited objects may still allocate memory.
    auto own = RegionFile::create();
    if (!own) return tl::unexpected(own.error());
    file_ = std::move(*own);
  }
  auto offset = file_.reserve(bytes);
  if (!offset) return tl::unexpected(offset.error());
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.fd(), static_cast<off_t>(*offset));
  if (memory == MAP_FAILED) return base::fail_call(errno, "cannot map ", bytes, " bytes of shared memory");
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  return Piece{begin, begin + bytes, *offset};
}

void Remapper::release(const Piece& piece) {
  std::lock_guard lock(mutex_);
  // In a child of fork() the piece may belong to the parent's file, which the parent still uses.
  auto vmas = list_vmas(piece.begin, piece.end);
  const bool ours = vmas && !vmas->empty() && file_.shows(vmas->front(), piece.begin, piece.file_offset);
  munmap(reinterpret_cast<void*>(piece.begin), piece.length());
  if (ours) file_.punch(piece.file_offset, piece.length());
}

void Remapper::before_fork() {
  mutex_.lock();
  fork_pieces_.clear();
  if (intervals_.empty()) return;
  for (const Piece& piece : intervals_.pieces(0, UINTPTR_MAX))
    if (auto vmas = list_vmas(piece.begin, piece.end)) forget_stale(piece.begin, piece.end, *vmas);
  fork_pieces_ = intervals_.pieces(0, UINTPTR_MAX);
}

void Remapper::after_fork_in_parent() { mutex_.unlock(); }

void Remapper::after_fork_in_child() {
  in_child_ = true;
  file_.close();
  mover_.abandon_in_child();
  // A thread of the library may have held it, and does not exist in the child.
  new (&copy_mutex_) std::shared_mutex;
  mutex_.unlock();
}

}  // namespace nupa::memory
