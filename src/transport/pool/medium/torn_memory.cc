// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/medium/torn_memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>
#include <vector>

#include "base/lowest_descriptor.h"
#include "base/shared_file.h"
#include "base/system_error.h"
#include "progress/file_lock.h"
#include "progress/lifecycle.h"
#include "transport/pool/medium/layout.h"

namespace nupa::pool {
namespace {

constexpr size_t kStripes = 256;
constexpr size_t kControlBytes = 64 << 10;
constexpr uint64_t kReady = 0x315950434e524f54ull;
constexpr size_t kRecentLines = 16;
/// The longest wait for a process that fills the copy.
constexpr int64_t kFillNs = 20'000'000'000;
/// One instruction in so many has something happen beside it.
constexpr uint64_t kOneIn = 6;

std::string copy_path(const std::string& path, uint16_t host) { return path + ".host" + std::to_string(host); }

uint64_t load_word(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
void store_word(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

/// A line as a cache takes it from memory: the other words are at least as new as word 0.
Line snapshot(const Line* line) {
  Line copy;
  copy.words[0] = __atomic_load_n(&line->words[0], __ATOMIC_ACQUIRE);
  for (size_t i = 1; i < kLineWords; ++i) copy.words[i] = load_word(&line->words[i]);
  return copy;
}

bool is_zero(const Line* lines, size_t number) {
  constexpr Line kZero;
  return std::all_of(lines, lines + number,
                     [&](const Line& line) { return std::memcmp(&line, &kZero, sizeof line) == 0; });
}

}  // namespace

/// A lock for the lines of one residue. If its holder is killed, the next one finishes the move of `line`.
struct TornMemory::Stripe {
  pthread_mutex_t mutex;
  uint64_t line;
  bool is_dropping;
};
struct TornMemory::Control {
  std::atomic<uint64_t> ready;
  uint64_t pool_inode;
  uint64_t bytes;
  Stripe stripes[kStripes];
};

class TornMemory::Locked {
 public:
  Locked(TornMemory& memory, uint64_t line) : stripe_(memory.control_->stripes[line % kStripes]) {
    if (pthread_mutex_lock(&stripe_.mutex) == EOWNERDEAD) {
      // Words that came from the file, and were not noted, would look as if the program had stored them.
      if (stripe_.is_dropping)
        for (size_t i = 0; i < kLineWords; ++i)
          store_word(&memory.base_[stripe_.line].words[i], load_word(&memory.copy_[stripe_.line].words[i]));
      pthread_mutex_consistent(&stripe_.mutex);
    }
    stripe_.line = line;
    stripe_.is_dropping = false;
  }
  ~Locked() {
    stripe_.is_dropping = false;
    pthread_mutex_unlock(&stripe_.mutex);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  void begin_to_drop() { stripe_.is_dropping = true; }

 private:
  Stripe& stripe_;
};

/// The instructions that a thread has started, and its random numbers.
struct TornMemory::Thread {
  uint64_t memory = 0;
  std::mt19937_64 random;
  std::vector<uint64_t> writing;
  std::vector<uint64_t> dropping;
  std::array<uint64_t, kRecentLines> recent{};
  size_t next_recent = 0;
};

TornMemory::TornMemory(base::UniqueFd fd, Line* shared, uint64_t lines, uint64_t seed)
    : id_([] {
        static std::atomic<uint64_t> last{0};
        return ++last;
      }()),
      seed_(seed),
      number_of_lines_(lines),
      fd_(std::move(fd)),
      shared_(shared) {}

Result<std::unique_ptr<TornMemory>> TornMemory::open(const std::string& path, Line* shared, uint64_t bytes,
                                                     uint16_t host, uint64_t seed) {
  const std::string copy = copy_path(path, host);
  const int opened = progress::open_for_parent([&] {
    return base::out_of_the_way(base::UniqueFd(::open(copy.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)))
        .release();
  });
  if (opened < 0) return base::fail_call(errno, "cannot open the copy of the pool ", copy);
  std::unique_ptr<TornMemory> memory(new TornMemory(base::UniqueFd(opened), shared, bytes / kLineBytes, seed + host));
  struct stat pool {};
  if (stat(path.c_str(), &pool) != 0) return base::fail_call(errno, "cannot stat the pool file ", path);
  // One process fills the copy, and the others wait for it.
  base::UniqueFd to_lock(::open(copy.c_str(), O_RDWR | O_CLOEXEC));
  if (!to_lock) return base::fail_call(errno, "cannot open the copy of the pool ", copy);
  progress::FileLock lock(std::move(to_lock));
  if (auto locked = lock.lock(progress::Deadline::in_ns(kFillNs)); !locked) return tl::unexpected(locked.error());
  auto filled = memory->fill(copy, pool.st_ino);
  lock.unlock();
  if (!filled) return tl::unexpected(filled.error());
  return memory;
}

Result<void> TornMemory::fill(const std::string& copy, uint64_t pool_inode) {
  const uint64_t bytes = number_of_lines_ * kLineBytes;
  const uint64_t size = kControlBytes + 2 * bytes;
  struct stat status {};
  if (fstat(fd_.get(), &status) != 0 || static_cast<uint64_t>(status.st_size) != size) {
    if (ftruncate(fd_.get(), 0) != 0) return base::fail_call(errno, "cannot empty the copy of the pool ", copy);
    if (auto grown = base::grow_shared_file(fd_.get(), size); !grown) return grown;
  }
  void* const mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (mapped == MAP_FAILED) return base::fail_call(errno, "cannot map the copy of the pool ", copy);
  progress::blank_in_children(mapped, size);
  mapped_ = static_cast<std::byte*>(mapped);
  control_ = reinterpret_cast<Control*>(mapped_);
  copy_ = reinterpret_cast<Line*>(mapped_ + kControlBytes);
  base_ = copy_ + number_of_lines_;
  static_assert(sizeof(Control) <= kControlBytes);
  Control& control = *control_;
  if (control.ready.load() != kReady || control.pool_inode != pool_inode) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    for (Stripe& stripe : control.stripes) pthread_mutex_init(&stripe.mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    // Pages of zeros stay holes of the copy.
    constexpr size_t kPageLines = kPageBytes / kLineBytes;
    for (uint64_t at = 0; at < number_of_lines_; at += kPageLines) {
      const size_t number = std::min<uint64_t>(kPageLines, number_of_lines_ - at);
      if (control.ready.load() == 0 && is_zero(shared_ + at, number)) continue;
      std::memcpy(copy_ + at, shared_ + at, number * kLineBytes);
      std::memcpy(base_ + at, copy_ + at, number * kLineBytes);
    }
    control.pool_inode = pool_inode;
    control.bytes = bytes;
    control.ready.store(kReady);
  }
  return {};
}

TornMemory::~TornMemory() {
  if (mapped_ == nullptr) return;
  progress::forget_mapping_for_children(mapped_);
  munmap(mapped_, kControlBytes + 2 * number_of_lines_ * kLineBytes);
  progress::forget_for_children(fd_.get());
}

void TornMemory::remove_copies(const std::string& path, uint16_t hosts) {
  for (uint16_t host = 0; host < hosts; ++host) unlink(copy_path(path, host).c_str());
}

TornMemory::Thread& TornMemory::me() {
  // A thread uses one pool, or in tests a few.
  static thread_local std::vector<Thread> threads;
  for (Thread& thread : threads)
    if (thread.memory == id_) return thread;
  static std::atomic<uint64_t> number{0};
  constexpr size_t kMostMemories = 8;
  if (threads.size() == kMostMemories) threads.erase(threads.begin());
  Thread& thread = threads.emplace_back();
  thread.memory = id_;
  thread.random.seed(seed_ * 1'000'003 + ++number);
  return thread;
}

uint64_t TornMemory::index_of(const void* address) const {
  return static_cast<uint64_t>(static_cast<const std::byte*>(address) - reinterpret_cast<const std::byte*>(copy_)) /
         kLineBytes;
}

uint64_t TornMemory::load(const uint64_t* word) {
  happen(me(), index_of(word));
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

void TornMemory::load_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  Thread& thread = me();
  while (bytes > 0) {
    const size_t inside = reinterpret_cast<uintptr_t>(from) % sizeof(uint64_t);
    const uint64_t word = load_word(reinterpret_cast<const uint64_t*>(from - inside));
    const size_t run = std::min(bytes, sizeof word - inside);
    std::memcpy(to, reinterpret_cast<const std::byte*>(&word) + inside, run);
    to += run;
    from += run;
    bytes -= run;
    if (bytes > 0 && reinterpret_cast<uintptr_t>(from) % kLineBytes == 0) happen(thread, index_of(from));
  }
}

void TornMemory::store(uint64_t* word, uint64_t value) {
  Thread& thread = me();
  const uint64_t line = index_of(word);
  happen(thread, line);
  // An invalidation that this thread has started, and its store to the line: they are executed in their order.
  if (const auto found = std::find(thread.dropping.begin(), thread.dropping.end(), line);
      found != thread.dropping.end()) {
    thread.dropping.erase(found);
    drop_now(line);
  }
  // A line is dirty after a store of any value.
  uint64_t* const before = &base_[line].words[word - copy_[line].words];
  if (load_word(before) == value) store_word(before, ~value);
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

void TornMemory::write_back(const Line* line) {
  Thread& thread = me();
  thread.writing.push_back(index_of(line));
  happen(thread, index_of(line));
}

void TornMemory::invalidate(const Line* line) {
  Thread& thread = me();
  thread.dropping.push_back(index_of(line));
  happen(thread, index_of(line));
}

void TornMemory::store_fence() {
  Thread& thread = me();
  for (const uint64_t line : thread.writing) write_back_now(line);
  thread.writing.clear();
  for (const uint64_t line : thread.dropping) write_back_now(line);
}

void TornMemory::full_fence() {
  store_fence();
  Thread& thread = me();
  for (const uint64_t line : thread.dropping) drop_now(line);
  thread.dropping.clear();
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void TornMemory::happen(Thread& thread, uint64_t line) {
  thread.recent[thread.next_recent++ % kRecentLines] = line;
  const uint64_t drawn = thread.random();
  if (drawn % kOneIn != 0) return;
  const auto take = [&](std::vector<uint64_t>& lines) {
    const size_t at = (drawn >> 16) % lines.size();
    const uint64_t taken = lines[at];
    lines[at] = lines.back();
    lines.pop_back();
    return taken;
  };
  const uint64_t recent = thread.recent[(drawn >> 24) % kRecentLines];
  switch (drawn >> 8 & 3) {
    case 0:  // something that was started completes
      if (!thread.writing.empty()) write_back_now(take(thread.writing));
      break;
    case 1:
      if (!thread.dropping.empty()) drop_now(take(thread.dropping));
      break;
    case 2:  // an eviction; the line comes again, because the program's own loads must find it
      drop_now(recent);
      break;
    case 3:  // a neighbour is prefetched
      if (recent + 1 < number_of_lines_) drop_now(recent + 1);
      break;
  }
}

void TornMemory::write_back_locked(uint64_t line) {
  const Line now = snapshot(copy_ + line);
  bool is_dirty = false;
  for (size_t i = 0; i < kLineWords; ++i) is_dirty = is_dirty || now.words[i] != load_word(&base_[line].words[i]);
  if (!is_dirty) return;
  for (size_t i = 1; i < kLineWords; ++i) store_word(&shared_[line].words[i], now.words[i]);
  __atomic_store_n(&shared_[line].words[0], now.words[0], __ATOMIC_RELEASE);
  for (size_t i = 0; i < kLineWords; ++i) store_word(&base_[line].words[i], now.words[i]);
}

void TornMemory::write_back_now(uint64_t line) {
  const Locked locked(*this, line);
  write_back_locked(line);
}

void TornMemory::drop_now(uint64_t line) {
  Locked locked(*this, line);
  write_back_locked(line);
  locked.begin_to_drop();
  const Line fresh = snapshot(shared_ + line);
  // Word 0 last: a thread that sees it sees the others. A word that the program stores meanwhile stays.
  for (size_t i = kLineWords; i-- > 0;) {
    uint64_t* const word = &copy_[line].words[i];
    uint64_t before = load_word(&base_[line].words[i]);
    if (before == fresh.words[i]) continue;
    if (__atomic_compare_exchange_n(word, &before, fresh.words[i], false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
      store_word(&base_[line].words[i], fresh.words[i]);
  }
}

}  // namespace nupa::pool
