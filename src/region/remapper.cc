#include "region/remapper.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/log.h"
#include "base/shared_file.h"
#include "region/write_guard.h"

namespace nupa::region {
namespace {

constexpr uint64_t kPage = 4096;
/// A guarded move is made in steps of this size: a writer waits for one step at most, about 0.3 ms.
constexpr uint64_t kGuardedStep = 1 << 20;
/// The file grows in steps, to save calls.
constexpr uint64_t kGrowStep = 64 << 20;
/// Mappings of this process that may come from remapping; the kernel allows 65,530 in all (vm.max_map_count).
constexpr size_t kMaxIntervals = 16384;

uintptr_t page_up(uintptr_t address) { return (address + kPage - 1) & ~(kPage - 1); }
uintptr_t page_down(uintptr_t address) { return address & ~(kPage - 1); }

int thread_count() {
  base::UniqueFd fd(open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t got = fd ? read(fd.get(), text, sizeof text - 1) : -1;
  if (got <= 0) return INT32_MAX;
  text[got] = '\0';
  // The second field, the command in parentheses, may hold anything; the 20th is num_threads.
  const char* at = std::strrchr(text, ')');
  for (int field = 2; at != nullptr && field < 20; ++field) at = std::strchr(at + 1, ' ');
  return at == nullptr ? INT32_MAX : std::atoi(at);
}

/// Which of the pages hold anything: present or swapped, by /proc/self/pagemap. Without it: all.
std::vector<bool> touched_pages(uintptr_t begin, uintptr_t end) {
  const size_t count = (end - begin) / kPage;
  std::vector<bool> touched(count, true);
  base::UniqueFd fd(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!fd) return touched;
  std::vector<uint64_t> entries(std::min<size_t>(count, 8192));
  for (size_t done = 0; done < count;) {
    const size_t step = std::min(entries.size(), count - done);
    const ssize_t got = pread(fd.get(), entries.data(), step * 8, static_cast<off_t>((begin / kPage + done) * 8));
    if (got != static_cast<ssize_t>(step * 8)) return touched;
    for (size_t i = 0; i < step; ++i) touched[done + i] = entries[i] >> 62 != 0;
    done += step;
  }
  return touched;
}

/// Copies what the pages hold into the file; pages never touched stay holes.
bool copy_into_file(int fd, uintptr_t begin, uintptr_t end, uint64_t offset) {
  const std::vector<bool> touched = touched_pages(begin, end);
  for (size_t page = 0; page < touched.size();) {
    if (!touched[page]) {
      ++page;
      continue;
    }
    size_t last = page;
    while (last < touched.size() && touched[last]) ++last;
    uint64_t done = page * kPage;
    while (done < last * kPage) {
      const ssize_t wrote = pwrite(fd, reinterpret_cast<const void*>(begin + done), last * kPage - done,
                                   static_cast<off_t>(offset + done));
      if (wrote <= 0) return false;
      done += static_cast<uint64_t>(wrote);
    }
    page = last;
  }
  return true;
}

/// Copies the parts of the file that hold anything to fresh memory.
bool copy_out_of_file(int fd, uint64_t offset, uint64_t length, std::byte* to) {
  off_t at = static_cast<off_t>(offset);
  const off_t end = static_cast<off_t>(offset + length);
  while (at < end) {
    const off_t data = lseek(fd, at, SEEK_DATA);
    if (data < 0) return errno == ENXIO;
    if (data >= end) return true;
    const off_t hole = std::min(lseek(fd, data, SEEK_HOLE), end);
    for (off_t done = data; done < hole;) {
      const ssize_t got = pread(fd, to + (done - static_cast<off_t>(offset)), static_cast<size_t>(hole - done), done);
      if (got <= 0) return false;
      done += got;
    }
    at = hole;
  }
  return true;
}

Remapper* g_remapper = nullptr;
void fork_prepare() {
  if (g_remapper != nullptr) g_remapper->before_fork();
}
void fork_parent() {
  if (g_remapper != nullptr) g_remapper->after_fork_parent();
}
void fork_child() {
  if (g_remapper != nullptr) g_remapper->after_fork_child();
  g_remapper = nullptr;
}

}  // namespace

Policy policy_from_environment() {
  const char* text = std::getenv("NUPA_REMAP");
  const std::string_view wanted = text == nullptr ? "auto" : text;
  if (wanted == "always") return Policy::kAlways;
  if (wanted == "never") return Policy::kNever;
  if (wanted != "auto") NUPA_WARN("NUPA_REMAP is auto, always or never, not '%s': auto is used", text);
  return Policy::kAuto;
}

Result<std::unique_ptr<Remapper>> Remapper::create(Policy policy) {
  auto file = base::make_shared_file("nupa-region");
  if (!file) return tl::unexpected(file.error());
  struct stat status;
  if (fstat(file->get(), &status) != 0) return fail(errno, "the region file cannot be examined");
  std::unique_ptr<Remapper> remapper(new Remapper(std::move(*file), status.st_ino, policy));
  static const int registered = pthread_atfork(fork_prepare, fork_parent, fork_child);
  if (registered != 0) return fail(registered, "no memory for fork handlers");
  g_remapper = remapper.get();
  return remapper;
}

Remapper::~Remapper() {
  std::lock_guard lock(mutex_);
  if (g_remapper == this) g_remapper = nullptr;
  // What could not be made private so far stays mapped: its content is the program's.
  const Safety now = safety();
  for (const auto& [begin, interval] : intervals_)
    if (now != Safety::kUnsafe) move_out(begin, interval, now);
}

Result<uint64_t> Remapper::reserve(uint64_t length) {
  const uint64_t offset = next_offset_;
  const uint64_t end = offset + length;
  if (end > file_size_) {
    const uint64_t wanted = (end + kGrowStep - 1) & ~(kGrowStep - 1);
    auto grown = base::grow_shared_file(file_.get(), wanted);
    if (!grown) grown = base::grow_shared_file(file_.get(), end);
    if (!grown) return tl::unexpected(grown.error());
    file_size_ = std::max(wanted, end);
  }
  // Offsets are never used twice: a writer of another process that is late hits nothing new.
  next_offset_ = end;
  return offset;
}

Remapper::Safety Remapper::safety() const {
  if (thread_count() - internal_threads_ <= 1) return Safety::kAlone;
  switch (WriteGuard::available()) {
    case WriteGuard::Kind::kFull:
      return Safety::kGuarded;
    case WriteGuard::Kind::kUserOnly:
      return policy_ == Policy::kAlways ? Safety::kGuarded : Safety::kUnsafe;
    case WriteGuard::Kind::kNone:
      break;
  }
  return Safety::kUnsafe;
}

void Remapper::split_at(uintptr_t address) {
  auto next = intervals_.upper_bound(address);
  if (next == intervals_.begin()) return;
  auto found = std::prev(next);
  if (found->first == address || address >= found->second.end) return;
  const Interval tail{found->second.end, found->second.file_offset + (address - found->first), found->second.users};
  found->second.end = address;
  intervals_.emplace(address, tail);
}

void Remapper::drop_stale(const std::vector<Vma>& vmas, uintptr_t begin, uintptr_t end) {
  split_at(begin);
  split_at(end);
  for (auto it = intervals_.lower_bound(begin); it != intervals_.end() && it->first < end;) {
    // Ours only if every byte of it still shows our file at its place; the program may have mapped anew there.
    uintptr_t at = it->first;
    for (const Vma& vma : vmas) {
      if (vma.end <= at || vma.begin > at) continue;
      if (vma.inode != inode_ || vma.file_offset + (at - vma.begin) != it->second.file_offset + (at - it->first)) break;
      at = vma.end;
    }
    if (at >= it->second.end) {
      ++it;
      continue;
    }
    base::punch_shared_file(file_.get(), it->second.file_offset, it->second.end - it->first);
    it = intervals_.erase(it);
  }
}

bool Remapper::overlaps_unshared(uintptr_t begin, uintptr_t end) const {
  // A peer may be writing such a range through the kernel, into the pages that would be left behind.
  for (const auto& [start, registration] : active_)
    for (const auto& [from, to] : registration.copied)
      if (from < end && to > begin) return true;
  return false;
}

int Remapper::move_in(uintptr_t begin, uintptr_t end, Safety safety) {
  auto offset = reserve(end - begin);
  if (!offset) return offset.error().code;
  const uint64_t step = safety == Safety::kGuarded ? kGuardedStep : end - begin;
  uintptr_t at = begin;
  int error = 0;
  while (at < end && error == 0) {
    const uintptr_t stop = std::min<uintptr_t>(at + step, end);
    const uint64_t file_offset = *offset + (at - begin);
    std::unique_ptr<WriteGuard> guard;
    if (safety == Safety::kGuarded) {
      auto guarded = WriteGuard::protect(at, stop - at);
      if (!guarded) break;  // not guardable: leave the rest to the kernel's copies
      guard = std::move(*guarded);
    }
    if (!copy_into_file(file_.get(), at, stop, file_offset)) {
      error = errno == ENOSPC || errno == ENOMEM ? ENOMEM : EFAULT;
      break;
    }
    if (mmap(reinterpret_cast<void*>(at), stop - at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_.get(),
             static_cast<off_t>(file_offset)) == MAP_FAILED) {
      // The old pages are still in place: nothing is lost. Too many mappings, most likely.
      base::punch_shared_file(file_.get(), file_offset, stop - at);
      break;
    }
    at = stop;
  }
  if (at > begin) intervals_.emplace(begin, Interval{at, *offset, 0});
  return error;
}

bool Remapper::move_out(uintptr_t begin, const Interval& interval, Safety safety) {
  const uint64_t step = safety == Safety::kGuarded ? kGuardedStep : interval.end - begin;
  for (uintptr_t at = begin; at < interval.end;) {
    const uint64_t length = std::min<uint64_t>(step, interval.end - at);
    const uint64_t offset = interval.file_offset + (at - begin);
    void* fresh = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) return false;
    std::unique_ptr<WriteGuard> guard;
    if (safety == Safety::kGuarded) {
      auto guarded = WriteGuard::protect(at, length);
      if (guarded) guard = std::move(*guarded);
    }
    const bool copied = (safety == Safety::kAlone || guard != nullptr) &&
                        copy_out_of_file(file_.get(), offset, length, static_cast<std::byte*>(fresh));
    if (!copied ||
        mremap(fresh, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, reinterpret_cast<void*>(at)) == MAP_FAILED) {
      munmap(fresh, length);
      return false;
    }
    base::punch_shared_file(file_.get(), offset, length);
    at += length;
  }
  return true;
}

Result<std::vector<Piece>> Remapper::share(void* address, uint64_t length, bool writable) {
  const auto first = reinterpret_cast<uintptr_t>(address);
  const uintptr_t last = first + length;
  std::unique_lock copies(copy_mutex_);
  std::lock_guard lock(mutex_);
  auto vmas = list_vmas(first, last);
  if (!vmas) return tl::unexpected(vmas.error());
  uintptr_t covered = first;
  for (const Vma& vma : *vmas) {
    if (vma.begin > covered || !vma.readable || (writable && !vma.writable)) break;
    covered = vma.end;
  }
  if (covered < last) return fail(EFAULT, "the range is not mapped as asked");

  std::vector<Piece> pieces;
  const uintptr_t begin = page_up(first);
  const uintptr_t end = page_down(last);
  if (begin < end) {
    drop_stale(*vmas, begin, end);
    const Safety now = policy_ == Policy::kNever ? Safety::kUnsafe : safety();
    if (now == Safety::kUnsafe && policy_ == Policy::kAuto)
      NUPA_INFO("%p, %zu bytes: not remapped, other threads run and userfaultfd is not to be had (nupa doctor)",
                address, static_cast<size_t>(length));
    for (const Vma& vma : *vmas) {
      const uintptr_t from = std::max(vma.begin, begin);
      const uintptr_t to = std::min(vma.end, end);
      if (from >= to || now == Safety::kUnsafe || vma.shared || !vma.plain || !vma.writable || vma.executable) continue;
      if (intervals_.size() >= kMaxIntervals || overlaps_unshared(from, to)) continue;
      const int error = move_in(from, to, now);
      if (error != 0) return fail(error, "a registered buffer cannot be moved to shared memory");
    }
    split_at(begin);
    split_at(end);
    for (auto it = intervals_.lower_bound(begin); it != intervals_.end() && it->first < end; ++it) {
      ++it->second.users;
      if (!pieces.empty() && pieces.back().end == it->first &&
          pieces.back().file_offset + (it->first - pieces.back().begin) == it->second.file_offset)
        pieces.back().end = it->second.end;
      else
        pieces.push_back({it->first, it->second.end, it->second.file_offset});
    }
  }
  Registration registration{last, {}};
  uintptr_t at = first;
  for (const Piece& piece : pieces) {
    if (piece.begin > at) registration.copied.emplace_back(at, piece.begin);
    at = piece.end;
  }
  if (at < last) registration.copied.emplace_back(at, last);
  active_.emplace(first, std::move(registration));
  return pieces;
}

void Remapper::unshare(void* address, uint64_t length) {
  const auto first = reinterpret_cast<uintptr_t>(address);
  const uintptr_t last = first + length;
  std::unique_lock copies(copy_mutex_);
  std::lock_guard lock(mutex_);
  auto [from, to] = active_.equal_range(first);
  const auto found = std::find_if(from, to, [&](const auto& range) { return range.second.end == last; });
  if (found == to) return;
  active_.erase(found);
  const uintptr_t begin = page_up(first);
  const uintptr_t end = page_down(last);
  if (begin >= end) return;
  if (auto vmas = list_vmas(begin, end)) drop_stale(*vmas, begin, end);
  const Safety now = safety();
  for (auto it = intervals_.lower_bound(begin); it != intervals_.end() && it->first < end;) {
    if (it->second.users > 0) --it->second.users;
    // What cannot move now stays shared and known: fork still isolates it, a later registration finds it.
    if (it->second.users == 0 && now != Safety::kUnsafe && move_out(it->first, it->second, now))
      it = intervals_.erase(it);
    else
      ++it;
  }
}

Result<Piece> Remapper::allocate(uint64_t length) {
  const uint64_t bytes = page_up(length);
  std::lock_guard lock(mutex_);
  auto offset = reserve(bytes);
  if (!offset) return tl::unexpected(offset.error());
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), static_cast<off_t>(*offset));
  if (address == MAP_FAILED) return fail(errno, "shared memory cannot be mapped");
  const auto begin = reinterpret_cast<uintptr_t>(address);
  return Piece{begin, begin + bytes, *offset};
}

void Remapper::release(const Piece& piece) {
  munmap(reinterpret_cast<void*>(piece.begin), piece.end - piece.begin);
  base::punch_shared_file(file_.get(), piece.file_offset, piece.end - piece.begin);
}

void Remapper::before_fork() {
  copy_mutex_.lock();
  mutex_.lock();
  // A shared page would show each side's writes to the other. The child copies all of it before it does anything
  // else, and the parent's fork() waits for that: the child closes the pipe, or dies and so closes it too.
  // What the program has unmapped by itself meanwhile is no longer ours to copy.
  if (!intervals_.empty())
    if (auto vmas = list_vmas(0, UINTPTR_MAX)) drop_stale(*vmas, 0, UINTPTR_MAX);
  if (!intervals_.empty() && pipe2(fork_pipe_, O_CLOEXEC) != 0) fork_pipe_[0] = fork_pipe_[1] = -1;
}

void Remapper::after_fork_parent() {
  if (fork_pipe_[1] >= 0) {
    close(fork_pipe_[1]);
    char nothing;
    while (read(fork_pipe_[0], &nothing, 1) < 0 && errno == EINTR) {
    }
    close(fork_pipe_[0]);
    fork_pipe_[0] = fork_pipe_[1] = -1;
  }
  mutex_.unlock();
  copy_mutex_.unlock();
}

void Remapper::after_fork_child() {
  for (const auto& [begin, interval] : intervals_) {
    const uint64_t length = interval.end - begin;
    void* fresh = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) {
      // Out of memory: a child that sees later writes of its parent is worse than one that sees none at all.
      mmap(reinterpret_cast<void*>(begin), length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
      continue;
    }
    copy_out_of_file(file_.get(), interval.file_offset, length, static_cast<std::byte*>(fresh));
    mremap(fresh, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, reinterpret_cast<void*>(begin));
  }
  intervals_.clear();
  active_.clear();
  // From here on this object is the child's own: an inherited context may still allocate device memory.
  file_.reset();
  next_offset_ = 0;
  file_size_ = 0;
  if (auto file = base::make_shared_file("nupa-region")) file_ = std::move(*file);
  struct stat status;
  if (fstat(file_.get(), &status) == 0) inode_ = status.st_ino;
  if (fork_pipe_[1] >= 0) {
    close(fork_pipe_[0]);
    close(fork_pipe_[1]);
    fork_pipe_[0] = fork_pipe_[1] = -1;
  }
  mutex_.unlock();
  copy_mutex_.unlock();
}

}  // namespace nupa::region
