#include "memory/page_mover.h"

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "memory/raw_mapping.h"
#include "progress/waiter.h"

namespace nupa::memory {
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

/// Exchanges one range for another mapping while its pages are nowhere. Lies on the stack, with all it needs: the range
/// may hold the ends of other things on its first and last page, the library's own objects among them, and touching one
/// of these would be waiting for oneself. So between close and open: no heap, no members of others, no logging.
struct Exchange {
  GuardHandle guard;
  FileHandle file;
  uintptr_t room;     ///< the scratch mapping, kStep bytes
  uintptr_t scratch;  ///< where the pages lie meanwhile, of the range's length, in `room`
  uintptr_t at;
  uint64_t length;
  uint64_t offset;  ///< in the file

  int show_file(uint64_t shown, int protection) const {
    void* view = file.map(shown, offset, protection, MAP_SHARED);
    if (view == MAP_FAILED) return errno;
    return put(view, shown, at) ? 0 : ENOMEM;
  }

  void bring_back(uint64_t moved) const {
    // The pages hold the program's data: only a mapping that has gone meanwhile ends this.
    int error = EBUSY;
    for (uint64_t done = 0; done < moved && (error == 0 || error == EBUSY || error == ENOMEM);) {
      done += guard.move(at + done, scratch + done, moved - done, &error);
      if (done < moved) progress::yield();
    }
  }

  /// Moves the pages to `scratch`, as move() does. The range stays closed if this returns more than 0. The kernel moves
  /// to a registered mapping only, and a thread that reads all of the process's memory sleeps there: so the scratch
  /// mapping is registered for the move alone, and reads as ordinary memory at any other time.
  uint64_t take_away(int* error) const {
    int closed = guard.close_absent(room, kStep);
    if (closed == 0) {
      raw_madvise(pointer(scratch), length, MADV_DONTNEED);  // the pages of zeros that such a thread has left
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

  /// Moves the pages away, into the file, and shows the file. Bytes from the start that are done; *error as of move().
  uint64_t evacuate(int protection, int* error) const {
    const uint64_t moved = take_away(error);
    int failed = 0;
    if (moved > 0) {
      failed = file.write(scratch, moved, offset, true);
      if (failed == 0) failed = show_file(moved, protection);
      if (failed != 0) bring_back(moved);
      guard.open_range(at, length);
    }
    // What is here now is a copy, or nothing.
    raw_madvise(pointer(scratch), length, MADV_DONTNEED);
    if (failed == 0) return moved;
    file.punch(offset, moved);
    *error = failed;
    return 0;
  }

  /// Copies the pages into the file and shows it; 0, or as of evacuate().
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

  /// The other way round: what the file shows becomes private memory. False: a limit, or not all could be read.
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
    // The kernel moves pages between mappings of one protection only.
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
  // What differs is not merged with a neighbour, and then registered without another mapping. It holds nothing to dump.
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
  uintptr_t exclusive_end = wanted.begin;  // up to here a busy page is not busy because of fork
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

bool PageMover::make_copy_on_write(uintptr_t at, uint64_t length, uint64_t offset, int protection) {
  // Nobody has to wait: what was written before the exchange lies in the file, whose content is
  // final from then on, and what is written after it goes to a private copy of the page.
  void* view = file_.handle().map(length, offset, protection, MAP_PRIVATE);
  if (view == MAP_FAILED || !put(view, length, at)) return false;
  // With every page copied the file's part can go, and a page that the program drops reads as zeros
  // again.
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
