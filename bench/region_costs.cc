// SPDX-License-Identifier: Apache-2.0
// What it costs to share memory with other processes and to fork: the table of docs/design/memory-registration.md, in
// microseconds.
//   region_costs
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "memory/remapper.h"

namespace {

using nupa::base::now_ns;
using nupa::memory::kPageSize;
using nupa::memory::Remapper;

[[noreturn]] void give_up(const char* what) {
  fprintf(stderr, "region_costs: %s\n", what);
  exit(1);
}

struct Memory {
  Memory(size_t pages, bool touched) : bytes(pages * kPageSize) {
    data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) give_up("not enough memory");
    if (touched) memset(data, 1, bytes);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { munmap(data, bytes); }
  void* data;
  size_t bytes;
};

std::unique_ptr<Remapper> make_remapper(bool may_move) {
  nupa::memory::RemapOptions options;
  options.may_move = may_move;
  auto made = Remapper::create(nupa::memory::Policy::kAuto, options);
  if (!made) give_up("no region file: too many open files, or no memory");
  return std::move(*made);
}

void share(Remapper& remapper, const Memory& memory) {
  auto pieces = remapper.share(memory.data, memory.bytes, true);
  if (!pieces) give_up("share failed");
  if (pieces->empty()) give_up("nothing was shared: see what `nupa doctor` says of userfaultfd");
}

void sharing(Remapper& remapper, size_t pages, bool touched, int rounds) {
  double share_us = 1e12, unshare_us = 1e12;
  for (int round = 0; round < rounds; ++round) {
    Memory memory(pages, touched);
    const int64_t start = now_ns();
    share(remapper, memory);
    const int64_t shared = now_ns();
    remapper.unshare(memory.data, memory.bytes);
    share_us = std::min(share_us, static_cast<double>(shared - start) / 1e3);
    unshare_us = std::min(unshare_us, static_cast<double>(now_ns() - shared) / 1e3);
  }
  printf("  %8zu KiB %-9s share %10.1f us  unshare %10.1f us\n", pages * kPageSize / 1024,
         touched ? "touched" : "untouched", share_us, unshare_us);
}

void forking(Remapper& remapper, size_t pages) {
  Memory memory(std::max<size_t>(pages, 1), true);
  if (pages > 0) share(remapper, memory);
  double best_us = 1e12;
  for (int round = 0; round < 20; ++round) {
    const int64_t start = now_ns();
    const pid_t child = fork();
    if (child == 0) _exit(0);
    if (child < 0) give_up("fork failed");
    best_us = std::min(best_us, static_cast<double>(now_ns() - start) / 1e3);
    waitpid(child, nullptr, 0);
  }
  printf("fork with %zu KiB shared: %.1f us\n", pages * kPageSize / 1024, best_us);
  if (pages > 0) remapper.unshare(memory.data, memory.bytes);
}

}  // namespace

int main() {
  for (const bool company : {false, true}) {
    std::atomic<bool> stop{false};
    std::thread other;
    if (company) {
      other = std::thread([&] {
        while (!stop) usleep(100);
      });
    }
    for (const bool may_move : {true, false}) {
      const auto remapper = make_remapper(may_move);
      printf("%s, %s\n", may_move ? "moved" : "protected", company ? "beside another thread" : "alone");
      for (const size_t pages : {size_t{1}, size_t{16}, size_t{256}, size_t{1} << 15, size_t{1} << 18})
        for (const bool touched : {true, false}) sharing(*remapper, pages, touched, pages > 1000 ? 3 : 200);
    }
    stop = true;
    if (company) other.join();
  }
  const auto remapper = make_remapper(true);
  for (const size_t pages : {size_t{0}, size_t{1}, size_t{1} << 15}) forking(*remapper, pages);
  return 0;
}
