// SPDX-License-Identifier: Apache-2.0
// What this machine can do at best, for the figures to be compared with: printed as one JSON object.
//   machine_limits [--cores A,B] [--sizes BYTES,...] [--only line|memcpy] [--copies N] [--quick]
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  int core_a = 0;
  int core_b = 1;
  bool quick = false;
  size_t copies = 0;  ///< memcpy: how many; 0: as long as it takes
  std::string only;   ///< "line", "memcpy", or empty for everything
  std::vector<size_t> sizes = {64 << 10, 1 << 20, 16 << 20};
};

double elapsed_ns(Clock::time_point since) {
  return std::chrono::duration<double, std::nano>(Clock::now() - since).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

bool pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

// The compiler must believe that the bytes are read, or it drops the copy.
void used(void* bytes) { asm volatile("" : : "r"(bytes) : "memory"); }

// Spins until the flag has the value. Yields after long, so that one core for both threads still ends.
void wait_for(const std::atomic<uint64_t>& flag, uint64_t value) {
  for (int spins = 0; flag.load(std::memory_order_acquire) != value; ++spins) {
    if (spins > 100000) {
      sched_yield();
      spins = 0;
    }
  }
}

// One way of a cache line between two cores, in nanoseconds: half of a round trip on one line, the median of many
// blocks (a block is long enough for the clock's own cost not to count, short enough to escape the scheduler).
double line_transfer_ns(const Options& options) {
  constexpr uint64_t kBlock = 200;
  const uint64_t blocks = options.quick ? 500 : 2000;
  struct alignas(128) Line {
    std::atomic<uint64_t> value{0};
  };
  static Line line;
  line.value = 0;
  std::thread peer([&] {
    pin(options.core_b);
    for (uint64_t turn = 0; turn < blocks * kBlock; ++turn) {
      wait_for(line.value, 2 * turn + 1);
      line.value.store(2 * turn + 2, std::memory_order_release);
    }
  });
  pin(options.core_a);
  std::vector<double> samples;
  uint64_t turn = 0;
  for (uint64_t block = 0; block < blocks; ++block) {
    const auto start = Clock::now();
    for (uint64_t i = 0; i < kBlock; ++i, ++turn) {
      line.value.store(2 * turn + 1, std::memory_order_release);
      wait_for(line.value, 2 * turn + 2);
    }
    samples.push_back(elapsed_ns(start) / (2.0 * kBlock));
  }
  peer.join();
  return median(samples);
}

// Two warm buffers of one size. `shared`: the second is a shared mapping, as memory that two processes reach must be.
class Buffers {
 public:
  Buffers(size_t size, bool shared) : size_(size), shared_(shared) {
    if (posix_memalign(&from, 4096, size) != 0) return;
    if (shared) {
      to = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      if (to == MAP_FAILED) to = nullptr;
    } else if (posix_memalign(&to, 4096, size) != 0) {
      to = nullptr;
    }
    if (to == nullptr) return;
    memset(from, 1, size);
    memset(to, 2, size);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() {
    free(from);
    if (!shared_) {
      free(to);
    } else if (to != nullptr) {
      munmap(to, size_);
    }
  }

  void* from = nullptr;
  void* to = nullptr;

 private:
  size_t size_;
  bool shared_;
};

// Bandwidth of memcpy on one core in 10^9 bytes a second, between two buffers of `size` bytes. `options.copies`: of so
// many from the first on, as a program that sends as many messages sees it, for the second level cache needs tens of
// thousands of copies until it holds both buffers best. Else the median of blocks.
double memcpy_rate(const Options& options, size_t size, bool shared) {
  const Buffers buffers(size, shared);
  if (buffers.to == nullptr) return 0;
  const size_t copies = options.copies > 0 ? options.copies : std::max<size_t>(1, (32 << 20) / size);
  const double total_ns = options.copies > 0 ? 0 : options.quick ? 60e6 : 200e6;
  const size_t blocks = options.copies > 0 ? 1 : 5;
  std::vector<double> samples;
  const auto begin = Clock::now();
  while (elapsed_ns(begin) < total_ns || samples.size() < blocks) {
    const auto start = Clock::now();
    for (size_t i = 0; i < copies; ++i) {
      memcpy(buffers.to, buffers.from, size);
      used(buffers.to);
    }
    samples.push_back(static_cast<double>(size * copies) / elapsed_ns(start));
  }
  return median(samples);
}

template <typename Call>
double call_ns(Call call, bool quick) {
  constexpr int kBlock = 1000;
  std::vector<double> samples;
  for (int block = 0; block < (quick ? 50 : 300); ++block) {
    const auto start = Clock::now();
    for (int i = 0; i < kBlock; ++i) call();
    samples.push_back(elapsed_ns(start) / kBlock);
  }
  return median(samples);
}

// Ticks a microsecond of the counter that perftest reads; 0 where this program cannot read it.
double ticks_per_us() {
#if defined(__x86_64__)
  const auto start = Clock::now();
  const uint64_t ticks = __rdtsc();
  while (elapsed_ns(start) < 50e6) {
  }
  const uint64_t passed = __rdtsc() - ticks;
  return static_cast<double>(passed) * 1000.0 / elapsed_ns(start);
#else
  return 0;
#endif
}

void print_memcpy(const Options& options, bool shared) {
  printf("\"%s\": {", shared ? "memcpy_shared" : "memcpy");
  for (size_t i = 0; i < options.sizes.size(); ++i) {
    const double rate = memcpy_rate(options, options.sizes[i], shared);
    printf("%s\"%zu\": %.4f", i == 0 ? "" : ", ", options.sizes[i], rate);
  }
  printf("}");
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--quick") {
      options.quick = true;
    } else if (name == "--only" && i + 1 < argc) {
      options.only = argv[++i];
      if (options.only != "line" && options.only != "memcpy") return false;
    } else if (name == "--cores" && i + 1 < argc) {
      if (sscanf(argv[++i], "%d,%d", &options.core_a, &options.core_b) != 2) return false;
    } else if (name == "--copies" && i + 1 < argc) {
      options.copies = strtoull(argv[++i], nullptr, 10);
    } else if (name == "--sizes" && i + 1 < argc) {
      options.sizes.clear();
      char* rest = argv[++i];
      while (*rest != '\0') {
        options.sizes.push_back(strtoull(rest, &rest, 10));
        if (options.sizes.back() == 0 || (*rest != '\0' && *rest++ != ',')) return false;
      }
    } else {
      return false;
    }
  }
  return !options.sizes.empty();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    fprintf(stderr,
            "usage: machine_limits [--cores A,B] [--sizes BYTES,...] [--only line|memcpy] [--copies N] [--quick]\n");
    return 2;
  }
  for (const int core : {options.core_b, options.core_a}) {
    if (!pin(core)) {
      fprintf(stderr, "machine_limits: cannot run on core %d\n", core);
      return 1;
    }
  }
  if (options.only == "line") {
    printf("{\"line_ns\": %.2f}\n", line_transfer_ns(options));
    return 0;
  }
  printf("{");
  if (options.only.empty()) {
    printf("\"line_ns\": %.2f, ", line_transfer_ns(options));
    printf("\"syscall_ns\": %.2f, ", call_ns([] { syscall(SYS_getppid); }, options.quick));
    printf("\"yield_ns\": %.2f, ", call_ns([] { sched_yield(); }, options.quick));
    printf("\"ticks_per_us\": %.3f, ", ticks_per_us());
    print_memcpy(options, true);
    printf(", ");
  }
  print_memcpy(options, false);
  printf("}\n");
  return 0;
}
