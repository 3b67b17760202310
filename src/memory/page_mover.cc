// SPDX-License-Identifier: Apache-2.0
#include "memory/page_mover.h"

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "memory/raw_mapping.h"
#include "progress/waiter.h"

namespace nupa::memory {
namespace {

/// The longest step in which memory moves. Steps end at multiples of it, so a huge page moves whole. A thread that
/// waits at the guard waits for one step, about 0.8 ms.
constexpr uint64_t kStep = UINT64_C(2) << 20;

#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateWrite = 23;  // Linux 5.14
#endif

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

/// Moves the mapping at `from` over the one at `to`. mremap checks the limits before it removes anything; mmap over a
/// mapping does not on every kernel.
bool put(void* from, uint64_t length, uintptr_t to) {
  if (raw_mremap(from, length, pointer(to)) != MAP_FAILED) return true;
  raw_munmap(from, length);
  return false;
}

uintptr_t step_end(uintptr_t at, uintptr_t end) { return std::min((at / kStep + 1) * kStep, end); }

/// Makes the touched pages from `at` on exclusive to this process again; fork() shared them with a child. Returns the
/// end of that run.
uintptr_t make_exclusive(uintptr_t at, uintptr_t end) {
  const std::vector<bool> touched = touched_pages(at, end);
  const auto run = std::find(touched.begin(), touched.end(), false) - touched.begin();
  const uint64_t length = std::max<uint64_t>(static_cast<uint64_t>(run), 1) * kPageSize;
  raw_madvise(pointer(at), length, kPopulateWrite);
  return at + length;
}

/// Exchanges one range for another mapping while the range has no pages. The object lies on the stack with all that it
/// needs. The first and last page of the range may hold parts of other objects, also the library's own; an access to
/// them would wait for this thread itself. So between close and open it uses no heap, no members of other objects, and
/// no logging.
struct Exchange {
  GuardHandle guard;
  FileHandle file;
  uintptr_t room;     ///< the scratch mapping, kStep bytes
  uintptr_t scratch;  ///< where the pages are meanwhile, of the range's length, in `room`
  uintptr_t at;
  uint64_t length;
  uint64_t offset;  ///< offset in the file

  int show_file(uint64_t shown, int protection) const {
    void* view = file.map(shown, offset, protection, MAP_SHARED);
    if (view == MAP_FAILED) return errno;
    return put(view, shown, at) ? 0 : ENOMEM;
  }

  void bring_back(uint64_t moved) const {
    // The pages hold the program's data, so this ends early only if the mapping was removed meanwhile.
    int error = EBUSY;
    for (uint64_t done = 0; done < moved && (error == 0 || error == EBUSY || error == ENOMEM);) {
      done += guard.move(at + done, scratch + done, moved - done, &error);
      if (done < moved) progress::yield();
    }
  }

  /// Moves the pages to `scratch`, as move() does. The range stays closed if this returns more than 0. The kernel moves
  /// pages only to a registered mapping, where a thread that reads all of the process's memory would sleep. So the
  /// scratch mapping is registered for the move alone, and is ordinary memory at any other time.
  uint64_t take_away(int* error) const {
    int closed = guard.close_absent(room, kStep);
    if (closed == 0) {
      raw_madvise(pointer(scratch), length, MADV_DONTNEED);  // zero pages that the reads of such a thread have left
      closed = guard.close_absent(at, length);
      if (closed != 0) guard.open_range(room, kStep);
    }
    if (closed != 0) {
      *error = closed == ENOMEM ? ENOMEM : EINVAL;
      return 0;
    }
    const uint64_t moved = guard.move(scratch, at, length, error);
    guard.open_range(room, kStep);
    if (moved == 0) guard.open_range(at, length);
    return moved;
  }

  /// Moves the pages away and into the file, and maps the file there. Returns the bytes that are done, from the start;
  /// *error as for move().
  uint64_t evacuate(int protection, int* error) const {
    const uint64_t moved = take_away(error);
    int failed = 0;
    if (moved > 0) {
      failed = file.write(scratch, moved, offset, true);
      if (failed == 0) failed = show_file(moved, protection);
      if (failed != 0) bring_back(moved);
      guard.open_range(at, length);
    }
    // The scratch mapping now holds a copy, or nothing.
    raw_madvise(pointer(scratch), length, MADV_DONTNEED);
    if (failed == 0) return moved;
    file.punch(offset, moved);
    *error = failed;
    return 0;
  }

  /// Copies the pages into the file and maps the file there. Returns 0 or an error as evacuate().
  int copy(int protection, bool guarded) const {
    if (guarded) {
      const int closed = guard.close_writes(at, length, false);
      if (closed != 0) return closed == ENOMEM ? ENOMEM : EINVAL;
    }
    int error = file.write(at, length, offset, !guarded);
    if (error == 0) error = show_file(length, protection);
    if (guarded) guard.open_range(at, length);
    if (error != 0) file.punch(offset, length);
    return error;
  }

  /// The reverse: makes the mapped part of the file private memory. False: a limit, or the file could not be read.
  bool make_anonymous(int protection, bool guarded) const {
    void* fresh = raw_mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) return false;
    if (guarded && guard.close_writes(at, length, true) != 0) {
      raw_munmap(fresh, length);
      return false;
    }
    bool done = file.read(static_cast<std::byte*>(fresh), length, offset) &&
                (protection == (PROT_READ | PROT_WRITE) || mprotect(fresh, length, protection) == 0);
    if (done)
      done = put(fresh, length, at);
    else
      raw_munmap(fresh, length);
    if (guarded) guard.open_range(at, length);
    return done;
  }
};

}  // namespace

PageMover::~PageMover() {
  if (scratch_ != 0) raw_munmap(pointer(scratch_), kStep);
}

bool PageMover::make_scratch(int protection) {
  if (scratch_ != 0 && protection == scratch_protection_) return true;
  if (scratch_ != 0) {
    // The kernel moves pages only between mappings of the same protection.
    if (mprotect(pointer(scratch_), kStep, protection) != 0) return false;
    scratch_protection_ = protection;
    return true;
  }
  void* room = raw_mmap(nullptr, 2 * kStep, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return false;
  const auto begin = reinterpret_cast<uintptr_t>(room);
  const uintptr_t aligned = (begin + kStep - 1) / kStep * kStep;
  if (aligned > begin) raw_munmap(room, aligned - begin);
  raw_munmap(pointer(aligned + kStep), begin + 2 * kStep - (aligned + kStep));
  // MADV_DONTDUMP makes the mapping differ from its neighbours. So the kernel does not merge them, and registering it
  // needs no further mapping. It has no content for a core dump either.
  raw_madvise(pointer(aligned), kStep, MADV_DONTDUMP);
  scratch_ = aligned;
  scratch_protection_ = protection;
  return true;
}

PageMover::Step PageMover::step_in(uintptr_t at, uint64_t length, uint64_t offset, int protection, bool guarded) {
  if (guard_.can_move() && !make_scratch(protection)) return {0, ENOMEM};
  std::unique_lock alone(copies_);
  const Exchange exchange{guard_.handle(), file_.handle(), scratch_, scratch_ + at % kStep, at, length, offset};
  Step step;
  if (guard_.can_move()) {
    step.moved = exchange.evacuate(protection, &step.error);
  } else {
    step.error = exchange.copy(protection, guarded);
    step.moved = step.error == 0 ? length : 0;
  }
  return step;
}

int PageMover::move_in(const Piece& wanted, int protection, Company company, std::vector<Piece>* moved) {
  if (company == Company::kUnsafe) return 0;
  if (company == Company::kGuarded && !guard_.can_move() && !guard_.can_protect()) return 0;
  uintptr_t exclusive_end = wanted.begin;  // up to here fork() is not the reason for a busy page
  uint64_t skip = kPageSize;
  for (uintptr_t at = wanted.begin; at < wanted.end;) {
    const uintptr_t end = step_end(at, wanted.end);
    const Step step = step_in(at, end - at, wanted.offset_of(at), protection, company == Company::kGuarded);
    if (step.moved > 0) {
      if (!moved->empty() && moved->back().end == at && moved->back().offset_of(at) == wanted.offset_of(at))
        moved->back().end = at + step.moved;
      else
        moved->push_back({at, at + step.moved, wanted.offset_of(at)});
      at += step.moved;
      skip = kPageSize;
    }
    if (step.error == 0) continue;
    if (step.error == EFBIG) return EFBIG;
    // Without memory or mappings the rest stays private, and peers reach it by the kernel's copies.
    if (step.error != EBUSY) return 0;
    if (at >= exclusive_end) {
      exclusive_end = make_exclusive(at, step_end(at, wanted.end));
      continue;
    }
    // Pinned pages come in runs, so the skip grows.
    at = std::min(at + skip, wanted.end);
    skip = std::min(2 * skip, kStep);
  }
  return 0;
}

bool PageMover::make_copy_on_write(uintptr_t at, uint64_t length, uint64_t offset, int protection) {
  // No thread has to wait. Data written before the exchange is in the file, whose content is final from then on. Later
  // writes go to a private copy of the page.
  void* view = file_.handle().map(length, offset, protection, MAP_PRIVATE);
  if (view == MAP_FAILED || !put(view, length, at)) return false;
  // Once every page is copied, the file's part can be freed, and a page that the program drops reads as zeros again.
  uint64_t data = 0;
  uint64_t data_end = 0;
  bool copied = true;
  for (uint64_t next = offset; copied && file_.handle().next_data(next, offset + length, &data, &data_end);
       next = data_end)
    copied = raw_madvise(pointer(at + (data - offset)), data_end - data, kPopulateWrite) == 0;
  if (copied) file_.punch(offset, length);
  return true;
}

uintptr_t PageMover::move_out(const Piece& piece, int protection, Company company) {
  const bool guarded = company == Company::kGuarded && guard_.can_protect_shared();
  const bool anonymous = guarded || company == Company::kAlone;
  for (uintptr_t at = piece.begin; at < piece.end;) {
    const uintptr_t end = step_end(at, piece.end);
    const uint64_t offset = piece.offset_of(at);
    bool done = false;
    if (anonymous) {
      std::unique_lock alone(copies_);
      done = Exchange{guard_.handle(), file_.handle(), 0, 0, at, end - at, offset}.make_anonymous(protection, guarded);
    }
    if (done)
      file_.punch(offset, end - at);
    else if (!make_copy_on_write(at, end - at, offset, protection))
      return at;
    at = end;
  }
  return piece.end;
}

}  // namespace nupa::memory
