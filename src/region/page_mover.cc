#include "region/page_mover.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "region/raw_mapping.h"

namespace nupa::region {
namespace {

/// Memory moves in steps, at most this long and cut at multiples of it: a huge page moves whole,
/// and a thread that waits at the guard waits for one step, about 0.8 ms.
constexpr uint64_t kStep = UINT64_C(2) << 20;

#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateWrite = 23;  // Linux 5.14
#endif

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

/// Puts the mapping at `from` in the place of what is at `to`. mremap looks at the limits before it
/// removes anything, which mmap over a mapping does not on every kernel.
bool put(void* from, uint64_t length, uintptr_t to) {
  if (raw_mremap(from, length, pointer(to)) != MAP_FAILED) return true;
  raw_munmap(from, length);
  return false;
}

uintptr_t step_end(uintptr_t at, uintptr_t end) { return std::min((at / kStep + 1) * kStep, end); }

/// Makes the touched pages from `at` on this process's own again, which fork made common with a
/// child. Returns the end of that run.
uintptr_t make_exclusive(uintptr_t at, uintptr_t end) {
  const std::vector<bool> touched = touched_pages(at, end);
  const auto run = std::find(touched.begin(), touched.end(), false) - touched.begin();
  const uint64_t length = std::max<uint64_t>(static_cast<uint64_t>(run), 1) * kPageSize;
  raw_madvise(pointer(at), length, kPopulateWrite);
  return at + length;
}

}  // namespace

PageMover::~PageMover() {
  if (scratch_ != 0) raw_munmap(pointer(scratch_), kStep);
}

bool PageMover::make_scratch() {
  if (scratch_ != 0) return true;
  void* room = raw_mmap(nullptr, 2 * kStep, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return false;
  const auto begin = reinterpret_cast<uintptr_t>(room);
  const uintptr_t aligned = (begin + kStep - 1) / kStep * kStep;
  if (aligned > begin) raw_munmap(room, aligned - begin);
  raw_munmap(pointer(aligned + kStep), begin + 2 * kStep - (aligned + kStep));
  if (guard_.close_absent(aligned, kStep) != 0) {
    raw_munmap(pointer(aligned), kStep);
    return false;
  }
  scratch_ = aligned;
  return true;
}

int PageMover::show_file(uintptr_t at, uint64_t length, uint64_t offset) const {
  void* view = raw_mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file_.fd(), static_cast<int64_t>(offset));
  if (view == MAP_FAILED) return errno;
  return put(view, length, at) ? 0 : ENOMEM;
}

void PageMover::bring_back(uintptr_t at, uint64_t length) {
  // The pages hold the program's data: only a mapping that has gone meanwhile ends this.
  const uintptr_t scratch = scratch_ + at % kStep;
  int error = EBUSY;
  for (uint64_t done = 0; done < length && (error == 0 || error == EBUSY || error == ENOMEM);) {
    done += guard_.move(at + done, scratch + done, length - done, &error);
    if (done < length) sched_yield();
  }
}

PageMover::Step PageMover::evacuate(uintptr_t at, uint64_t length, uint64_t offset) {
  if (!make_scratch()) return {0, ENOMEM};
  const uintptr_t scratch = scratch_ + at % kStep;
  std::unique_lock alone(copies_);
  const int closed = guard_.close_absent(at, length);
  if (closed != 0) return {0, closed == ENOMEM ? ENOMEM : EINVAL};
  Step step;
  step.moved = guard_.move(scratch, at, length, &step.error);
  if (step.moved > 0) {
    int error = file_.write(scratch, step.moved, offset);
    if (error == 0) error = show_file(at, step.moved, offset);
    if (error != 0) {
      bring_back(at, step.moved);
      file_.punch(offset, step.moved);
      step = {0, error};
    }
  }
  guard_.open_range(at, length);
  // What is here now is a copy, or nothing.
  raw_madvise(pointer(scratch), length, MADV_DONTNEED);
  return step;
}

PageMover::Step PageMover::copy(uintptr_t at, uint64_t length, uint64_t offset, bool guarded) {
  std::unique_lock alone(copies_);
  if (guarded) {
    const int closed = guard_.close_writes(at, length, false);
    if (closed != 0) return {0, closed == ENOMEM ? ENOMEM : EINVAL};
  }
  int error = file_.write(at, length, offset);
  if (error == 0) error = show_file(at, length, offset);
  if (error != 0) file_.punch(offset, length);
  if (guarded) guard_.open_range(at, length);
  return error == 0 ? Step{length, 0} : Step{0, error};
}

int PageMover::move_in(const Piece& wanted, Company company, std::vector<Piece>* moved) {
  if (company == Company::kUnsafe) return 0;
  if (company == Company::kGuarded && !guard_.can_move() && !guard_.can_protect()) return 0;
  uintptr_t exclusive_end = wanted.begin;  // up to here a busy page is not busy because of fork
  uint64_t skip = kPageSize;
  for (uintptr_t at = wanted.begin; at < wanted.end;) {
    const uintptr_t end = step_end(at, wanted.end);
    const Step step = guard_.can_move() ? evacuate(at, end - at, wanted.offset_of(at))
                                        : copy(at, end - at, wanted.offset_of(at), company == Company::kGuarded);
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
    // Without memory or mappings the rest stays private: the kernel's copies reach it.
    if (step.error != EBUSY) return 0;
    if (at >= exclusive_end) {
      exclusive_end = make_exclusive(at, step_end(at, wanted.end));
      continue;
    }
    // Pinned pages come in rows: look ever further on.
    at = std::min(at + skip, wanted.end);
    skip = std::min(2 * skip, kStep);
  }
  return 0;
}

bool PageMover::make_anonymous(uintptr_t at, uint64_t length, uint64_t offset, int protection, bool guarded) {
  void* fresh = raw_mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (fresh == MAP_FAILED) return false;
  std::unique_lock alone(copies_);
  if (guarded && guard_.close_writes(at, length, true) != 0) {
    raw_munmap(fresh, length);
    return false;
  }
  bool done = file_.read(static_cast<std::byte*>(fresh), length, offset) &&
              (protection == (PROT_READ | PROT_WRITE) || mprotect(fresh, length, protection) == 0);
  if (done)
    done = put(fresh, length, at);
  else
    raw_munmap(fresh, length);
  if (guarded) guard_.open_range(at, length);
  return done;
}

bool PageMover::make_copy_on_write(uintptr_t at, uint64_t length, uint64_t offset, int protection) {
  // Nobody has to wait: what was written before the exchange lies in the file, whose content is
  // final from then on, and what is written after it goes to a private copy of the page.
  void* view = raw_mmap(nullptr, length, protection, MAP_PRIVATE, file_.fd(), static_cast<int64_t>(offset));
  if (view == MAP_FAILED || !put(view, length, at)) return false;
  // With every page copied the file's part can go, and a page that the program drops reads as zeros
  // again.
  uint64_t data = 0;
  uint64_t data_end = 0;
  bool copied = true;
  for (uint64_t next = offset; copied && file_.next_data(next, offset + length, &data, &data_end); next = data_end)
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
    if (anonymous && make_anonymous(at, end - at, offset, protection, guarded))
      file_.punch(offset, end - at);
    else if (!make_copy_on_write(at, end - at, offset, protection))
      return at;
    at = end;
  }
  return piece.end;
}

}  // namespace nupa::region
