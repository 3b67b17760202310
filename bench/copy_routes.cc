// SPDX-License-Identifier: Apache-2.0
// The ways in which Linux copies between two addresses of user memory: processor time of the calling thread, of the
// whole process, and bandwidth. Each round runs each way once; the table has medians (docs/design/copy-engines.md).
//   copy_routes [--rounds N]
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kMost = 64 * kMiB;
constexpr size_t kSizes[] = {kMiB, 16 * kMiB, kMost};
constexpr unsigned kLimitS = 120;

[[noreturn]] void fail(const char* what) {
  fprintf(stderr, "copy_routes: %s: %s\n", what, strerror(errno));
  exit(1);
}

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// The source is private memory, the destination a memfd, as registered memory of a peer is.
struct Memory {
  int file = memfd_create("copy_routes", MFD_CLOEXEC);
  char* from = nullptr;
  char* to = nullptr;

  Memory() {
    if (file < 0 || ftruncate(file, kMost) != 0) fail("memfd");
    void* const anonymous = mmap(nullptr, kMost, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void* const mapped = mmap(nullptr, kMost, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (anonymous == MAP_FAILED || mapped == MAP_FAILED) fail("mmap");
    from = static_cast<char*>(anonymous);
    to = static_cast<char*>(mapped);
    memset(from, 1, kMost);
    memset(to, 2, kMost);
  }
};

/// A thread that copies when it is asked to.
class Helper {
 public:
  Helper() : thread_([this] { run(); }) {}
  ~Helper() {
    give(nullptr, nullptr, 0);
    thread_.join();
  }
  void copy(char* to, const char* from, size_t length) {
    give(to, from, length);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !wanted_; });
  }

 private:
  void give(char* to, const char* from, size_t length) {
    std::lock_guard lock(mutex_);
    to_ = to, from_ = from, length_ = length;
    wanted_ = true;
    changed_.notify_all();
  }
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return wanted_; });
      if (to_ == nullptr) return;
      lock.unlock();
      memcpy(to_, from_, length_);
      lock.lock();
      wanted_ = false;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  char* to_ = nullptr;
  const char* from_ = nullptr;
  size_t length_ = 0;
  bool wanted_ = false;
  std::thread thread_;
};

/// io_uring with one entry under way, by system calls.
class Ring {
 public:
  Ring() {
    io_uring_params params{};
    fd_ = static_cast<int>(syscall(SYS_io_uring_setup, 4, &params));
    if (fd_ < 0) return;
    const size_t ring = std::max(params.sq_off.array + params.sq_entries * sizeof(uint32_t),
                                 params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
    void* const rings = mmap(nullptr, ring, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, IORING_OFF_SQ_RING);
    void* const entries = mmap(nullptr, params.sq_entries * sizeof(io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED,
                               fd_, IORING_OFF_SQES);
    if (rings == MAP_FAILED || entries == MAP_FAILED || (params.features & IORING_FEAT_SINGLE_MMAP) == 0)
      fail("io_uring");
    auto* const base = static_cast<char*>(rings);
    sq_tail_ = reinterpret_cast<uint32_t*>(base + params.sq_off.tail);
    sq_mask_ = *reinterpret_cast<uint32_t*>(base + params.sq_off.ring_mask);
    array_ = reinterpret_cast<uint32_t*>(base + params.sq_off.array);
    cq_head_ = reinterpret_cast<uint32_t*>(base + params.cq_off.head);
    cq_tail_ = reinterpret_cast<uint32_t*>(base + params.cq_off.tail);
    cq_mask_ = *reinterpret_cast<uint32_t*>(base + params.cq_off.ring_mask);
    results_ = reinterpret_cast<io_uring_cqe*>(base + params.cq_off.cqes);
    entries_ = static_cast<io_uring_sqe*>(entries);
  }
  bool works() const { return fd_ >= 0; }
  /// Bytes of `memory` to or from the file's beginning, by a worker of the kernel.
  void move(uint8_t operation, int file, char* memory, size_t length) {
    for (size_t done = 0; done < length;) {
      const uint32_t tail = *sq_tail_;
      io_uring_sqe& entry = entries_[tail & sq_mask_];
      entry = {};
      entry.opcode = operation;
      entry.flags = IOSQE_ASYNC;
      entry.fd = file;
      entry.addr = reinterpret_cast<uint64_t>(memory + done);
      entry.len = static_cast<uint32_t>(length - done);
      entry.off = done;
      array_[tail & sq_mask_] = tail & sq_mask_;
      __atomic_store_n(sq_tail_, tail + 1, __ATOMIC_RELEASE);
      if (syscall(SYS_io_uring_enter, fd_, 1, 1, IORING_ENTER_GETEVENTS, nullptr, 0) < 0) fail("io_uring_enter");
      const uint32_t head = *cq_head_;
      if (__atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE) == head) fail("io_uring has no completion");
      const int result = results_[head & cq_mask_].res;
      __atomic_store_n(cq_head_, head + 1, __ATOMIC_RELEASE);
      if (result <= 0) {
        errno = -result;
        fail("io_uring");
      }
      done += static_cast<size_t>(result);
    }
  }

 private:
  int fd_ = -1;
  uint32_t* sq_tail_ = nullptr;
  uint32_t sq_mask_ = 0;
  uint32_t* array_ = nullptr;
  uint32_t* cq_head_ = nullptr;
  uint32_t* cq_tail_ = nullptr;
  uint32_t cq_mask_ = 0;
  io_uring_cqe* results_ = nullptr;
  io_uring_sqe* entries_ = nullptr;
};

void write_by_kernel(const Memory& memory, size_t length) {
  const iovec mine{memory.from, length};
  const iovec theirs{memory.to, length};
  if (process_vm_writev(getpid(), &mine, 1, &theirs, 1, 0) != static_cast<ssize_t>(length)) fail("process_vm_writev");
}

void write_to_file(const Memory& memory, size_t length) {
  if (pwrite(memory.file, memory.from, length, 0) != static_cast<ssize_t>(length)) fail("pwrite");
}

/// Pages of the source into a pipe without a copy, and from there into the file with one.
void splice_to_file(const Memory& memory, size_t length) {
  static int ends[2] = {-1, -1};
  if (ends[0] < 0 && (pipe2(ends, O_CLOEXEC) != 0 || fcntl(ends[0], F_SETPIPE_SZ, static_cast<int>(kMiB)) < 0))
    fail("pipe");
  off_t at = 0;
  for (size_t done = 0; done < length;) {
    iovec source{memory.from + done, std::min(length - done, kMiB)};
    const ssize_t put = vmsplice(ends[1], &source, 1, 0);
    if (put <= 0) fail("vmsplice");
    for (ssize_t taken = 0; taken < put;) {
      const ssize_t got = splice(ends[0], nullptr, memory.file, &at, static_cast<size_t>(put - taken), 0);
      if (got <= 0) fail("splice");
      taken += got;
    }
    done += static_cast<size_t>(put);
  }
}

struct Way {
  const char* name;
  std::function<void(size_t length)> run;
};
struct Samples {
  std::vector<double> caller_us, process_us, rate;
};

}  // namespace

int main(int argc, char** argv) {
  int rounds = 9;
  if (argc == 3 && std::string(argv[1]) == "--rounds")
    rounds = atoi(argv[2]);
  else if (argc != 1)
    rounds = 0;
  if (rounds < 1) {
    fprintf(stderr, "usage: copy_routes [--rounds N]\n");
    return 2;
  }
  alarm(kLimitS);
  const Memory memory;
  Helper helper;
  Ring ring;
  std::vector<Way> ways = {
      {"memcpy", [&](size_t length) { memcpy(memory.to, memory.from, length); }},
      {"memcpy by a thread", [&](size_t length) { helper.copy(memory.to, memory.from, length); }},
      {"process_vm_writev", [&](size_t length) { write_by_kernel(memory, length); }},
      {"pwrite to a memfd", [&](size_t length) { write_to_file(memory, length); }},
      {"vmsplice and splice to a memfd", [&](size_t length) { splice_to_file(memory, length); }},
  };
  if (ring.works()) {
    ways.push_back({"io_uring WRITE to a memfd",
                    [&](size_t length) { ring.move(IORING_OP_WRITE, memory.file, memory.from, length); }});
    ways.push_back({"io_uring READ of a memfd",
                    [&](size_t length) { ring.move(IORING_OP_READ, memory.file, memory.from, length); }});
  }
  printf("| way | size | processor time of the caller, us | of the process, us | GB/s |\n|---|---:|---:|---:|---:|\n");
  for (const size_t size : kSizes) {
    std::vector<Samples> samples(ways.size());
    for (int round = 0; round <= rounds; ++round)
      for (size_t i = 0; i < ways.size(); ++i) {
        const double caller = seconds_of(CLOCK_THREAD_CPUTIME_ID), process = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
        const double begun = seconds_of(CLOCK_MONOTONIC);
        ways[i].run(size);
        if (round == 0) continue;  // warms
        samples[i].rate.push_back(static_cast<double>(size) / (seconds_of(CLOCK_MONOTONIC) - begun) / 1e9);
        samples[i].caller_us.push_back((seconds_of(CLOCK_THREAD_CPUTIME_ID) - caller) * 1e6);
        samples[i].process_us.push_back((seconds_of(CLOCK_PROCESS_CPUTIME_ID) - process) * 1e6);
      }
    for (size_t i = 0; i < ways.size(); ++i)
      printf("| %s | %zu MiB | %.0f | %.0f | %.2f |\n", ways[i].name, size / kMiB, median(samples[i].caller_us),
             median(samples[i].process_us), median(samples[i].rate));
  }
  return 0;
}
