// SPDX-License-Identifier: Apache-2.0
// What many queue pairs cost: latency of an 8-byte RDMA WRITE by turns over N reliable queue pairs beside the same over
// one, memory of an idle queue pair, and the time that opening the device and registering memory take. Two processes,
// plain verbs; the answer is one JSON object.
//   many_qps [--qps N] [--cores A,B] [--register-mib M] [--quick]
#include <infiniband/verbs.h>

#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "verbs_side.h"

namespace {

using bench::check;
using bench::check_status;
using bench::Clock;
using bench::median;
using bench::Peer;
using bench::Side;
using bench::us_since;

constexpr unsigned kLimitS = 50;  // the whole program, so that nothing is left behind

struct Options {
  uint32_t qps = 1000;
  int core[2] = {0, 1};
  size_t register_mib = 1024;
  bool quick = false;
};

/// What a process holds: its own memory, shared memory counted by its share, page tables, and blocks of memory files.
struct Memory {
  double own_kib = 0;
  double shared_kib = 0;
  double tables_kib = 0;
  std::map<uint64_t, double> file_kib;  ///< by inode: a file that both processes hold is one file
};

double field_kib(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, name.size(), name) == 0) return strtod(line.c_str() + name.size(), nullptr);
  }
  return 0;
}

Memory memory_now() {
  Memory memory;
  memory.own_kib = field_kib("/proc/self/smaps_rollup", "Pss_Anon:");
  memory.shared_kib = field_kib("/proc/self/smaps_rollup", "Pss_Shmem:");
  memory.tables_kib = field_kib("/proc/self/status", "VmPTE:");
  DIR* open_files = opendir("/proc/self/fd");
  check(open_files != nullptr, "/proc/self/fd");
  while (const dirent* entry = readdir(open_files)) {
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    char target[256];
    const ssize_t length = readlink(path.c_str(), target, sizeof target - 1);
    if (length <= 0) continue;
    target[length] = '\0';
    struct stat info {};
    if ((strncmp(target, "/memfd:", 7) == 0 || strncmp(target, "/dev/shm/", 9) == 0) &&
        stat(path.c_str(), &info) == 0) {
      memory.file_kib[info.st_ino] = static_cast<double>(info.st_blocks) * 512 / 1024;
    }
  }
  closedir(open_files);
  return memory;
}

void send_memory(const Peer& peer, const Memory& memory) {
  const double sums[4] = {memory.own_kib, memory.shared_kib, memory.tables_kib,
                          static_cast<double>(memory.file_kib.size())};
  peer.send(sums, sizeof sums);
  for (const auto& file : memory.file_kib) peer.send(&file, sizeof file);
}

// This process's memory and the other's together.
Memory memory_of_both(const Peer& peer) {
  Memory memory = memory_now();
  double sums[4];
  peer.receive(sums, sizeof sums);
  memory.own_kib += sums[0];
  memory.shared_kib += sums[1];
  memory.tables_kib += sums[2];
  for (int i = 0; i < static_cast<int>(sums[3]); ++i) {
    std::pair<uint64_t, double> file;
    peer.receive(&file, sizeof file);
    memory.file_kib[file.first] = file.second;
  }
  return memory;
}

double files_kib(const Memory& memory) {
  double sum = 0;
  for (const auto& file : memory.file_kib) sum += file.second;
  return sum;
}

// How the two processes go through the same phases.
struct Plan {
  explicit Plan(const Options& options) : rounds(options.quick ? 10 : 30), laps(5) {}
  int rounds;  ///< how often one queue pair and all of them take turns
  int laps;    ///< measurements in a row, each of as many writes as there are queue pairs
};

void serve(const Peer& peer, const Options& options) {
  peer.meet();
  Side side(peer, options.qps);
  side.grow_to(1);
  side.ping_pong(1, 1000, false);
  send_memory(peer, memory_now());
  side.grow_to(options.qps);
  send_memory(peer, memory_now());
  const Plan plan(options);
  for (int round = 0; round <= plan.rounds; ++round) {
    for (const size_t count : {size_t{1}, size_t{options.qps}}) {
      side.rewind();
      for (int lap = 0; lap < plan.laps; ++lap) side.ping_pong(count, options.qps, false);
    }
  }
  peer.meet();
}

void measure_open() {
  auto start = Clock::now();
  ibv_device** devices = ibv_get_device_list(nullptr);
  check(devices != nullptr && devices[0] != nullptr, "no device");
  printf("{\"list_us\": %.2f", us_since(start));
  start = Clock::now();
  ibv_context* context = ibv_open_device(devices[0]);
  check(context != nullptr, "ibv_open_device");
  printf(", \"open_first_us\": %.2f", us_since(start));
  ibv_close_device(context);
  std::vector<double> again;
  for (int i = 0; i < 21; ++i) {
    start = Clock::now();
    context = ibv_open_device(devices[0]);
    check(context != nullptr, "ibv_open_device");
    again.push_back(us_since(start));
    ibv_close_device(context);
  }
  ibv_free_device_list(devices);
  printf(", \"open_again_us\": %.2f", median(again));
}

void measure_memory(const Memory& before, const Memory& after, uint32_t grown) {
  const double ends = 2.0 * grown;  // the growth is both processes'
  const double own = (after.own_kib - before.own_kib) * 1024 / ends;
  const double seen = (after.shared_kib - before.shared_kib) * 1024 / ends;
  const double allocated = (files_kib(after) - files_kib(before)) * 1024 / ends;
  const double tables = (after.tables_kib - before.tables_kib) * 1024 / ends;
  printf(", \"qp_own_bytes\": %.0f, \"qp_shared_bytes\": %.0f, \"qp_table_bytes\": %.0f, \"qp_bytes\": %.0f", own,
         std::max(seen, allocated), tables, own + std::max(seen, allocated) + tables);
}

void measure_registration(ibv_pd* pd, size_t mib, int times) {
  const size_t bytes = mib << 20;
  std::vector<double> registered, released;
  for (int i = 0; i < times; ++i) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "mmap");
    memset(memory, 1, bytes);
    auto start = Clock::now();
    ibv_mr* mr = ibv_reg_mr(pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    registered.push_back(us_since(start) / 1000);
    check(mr != nullptr, "ibv_reg_mr");
    start = Clock::now();
    check_status(ibv_dereg_mr(mr), "ibv_dereg_mr");
    released.push_back(us_since(start) / 1000);
    munmap(memory, bytes);
  }
  printf(", \"register_mib\": %zu, \"reg_mr_ms\": %.3f, \"dereg_mr_ms\": %.3f", mib, median(registered),
         median(released));
}

void measure(const Peer& peer, const Options& options) {
  measure_open();
  peer.meet();
  Side side(peer, options.qps);
  side.grow_to(1);
  side.ping_pong(1, 1000, true);
  const Memory before = memory_of_both(peer);
  const auto start = Clock::now();
  const double created_us = side.grow_to(options.qps);
  const double connected_us = us_since(start);
  const Memory after = memory_of_both(peer);
  measure_memory(before, after, options.qps - 1);
  printf(", \"create_qp_us\": %.2f, \"connect_qp_us\": %.2f", created_us / (options.qps - 1),
         connected_us / (options.qps - 1));
  const Plan plan(options);
  std::vector<double> one, all;
  for (int round = 0; round <= plan.rounds; ++round) {
    for (const size_t count : {size_t{1}, size_t{options.qps}}) {
      side.rewind();
      for (int lap = 0; lap < plan.laps; ++lap) {
        const auto began = Clock::now();
        side.ping_pong(count, options.qps, true);
        const double ns = us_since(began) * 1000 / (2.0 * options.qps);
        if (round > 0) (count == 1 ? one : all).push_back(ns);  // the first round warms
      }
    }
  }
  printf(", \"qps\": %u, \"one_ns\": %.2f, \"all_ns\": %.2f", options.qps, median(one), median(all));
  peer.meet();
  if (options.register_mib > 0) measure_registration(side.pd(), options.register_mib, options.quick ? 1 : 3);
  printf("}\n");
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--quick") {
      options.quick = true;
    } else if (i + 1 == argc) {
      return false;
    } else if (name == "--qps") {
      options.qps = static_cast<uint32_t>(atoi(argv[++i]));
    } else if (name == "--register-mib") {
      options.register_mib = static_cast<size_t>(atoi(argv[++i]));
    } else if (name != "--cores" || sscanf(argv[++i], "%d,%d", &options.core[0], &options.core[1]) != 2) {
      return false;
    }
  }
  return options.qps >= 2 && options.qps <= 100000;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    fprintf(stderr, "usage: many_qps [--qps N] [--cores A,B] [--register-mib M] [--quick]\n");
    return 2;
  }
  return bench::run_two(
      options.core, kLimitS, [&](const Peer& peer) { serve(peer, options); },
      [&](const Peer& peer) { measure(peer, options); });
}
