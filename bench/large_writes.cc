// SPDX-License-Identifier: Apache-2.0
// Large RDMA WRITEs through one reliable queue pair between two processes: the processor time of the thread that posts,
// bandwidth, and how much of a computation runs while data is copied. Plain verbs; bench/copy_engines.py runs it with
// each copy engine. The answer is one JSON object by size in bytes.
//   large_writes [--cores A,B] [--sizes BYTES,...] [--mib N]   (N: MiB of each measurement)
#include <infiniband/verbs.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "verbs_side.h"

namespace {

using bench::check;
using bench::check_status;
using bench::median;
using bench::Peer;
using bench::Side;

constexpr unsigned kLimitS = 100;
constexpr size_t kMost = size_t{64} << 20;
/// The program polls this often while it computes, as one does that wants to go on when its data is there.
constexpr double kPieceUs = 50;

struct Options {
  int core[2] = {0, 1};
  std::vector<size_t> sizes = {size_t{1} << 20, size_t{16} << 20, kMost};
  size_t bytes = size_t{512} << 20;
};

double us_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

struct Memory {
  char* at = nullptr;
  ibv_mr* mr = nullptr;

  explicit Memory(const Side& side) {
    void* const mapped = mmap(nullptr, kMost, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(mapped != MAP_FAILED, "mmap");
    at = static_cast<char*>(mapped);
    memset(at, 1, kMost);
    mr = ibv_reg_mr(side.pd(), at, kMost, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    check(mr != nullptr, "ibv_reg_mr");
  }
};

struct Remote {
  uint64_t addr;
  uint32_t rkey;
};

/// Arithmetic without memory. Returns after about `us`, by a number of turns that was measured before.
class Computation {
 public:
  Computation() {
    constexpr uint64_t kTurns = 20'000'000;
    const double begun = us_of(CLOCK_THREAD_CPUTIME_ID);
    turn(kTurns);
    turns_per_us_ = static_cast<double>(kTurns) / (us_of(CLOCK_THREAD_CPUTIME_ID) - begun);
  }
  void run(double us) { turn(static_cast<uint64_t>(us * turns_per_us_)); }

 private:
  void turn(uint64_t count) {
    uint64_t value = value_;
    for (uint64_t i = 0; i < count; ++i) {
      value = value * 6364136223846793005u + 1442695040888963407u;
      asm volatile("" : "+r"(value));
    }
    value_ = value;
  }
  double turns_per_us_ = 0;
  uint64_t value_ = 1;
};

class Writes {
 public:
  Writes(const Side& side, const Memory& memory, const Remote& remote, size_t size)
      : side_(side), sge_{reinterpret_cast<uint64_t>(memory.at), static_cast<uint32_t>(size), memory.mr->lkey} {
    wr_.sg_list = &sge_;
    wr_.num_sge = 1;
    wr_.opcode = IBV_WR_RDMA_WRITE;
    wr_.send_flags = IBV_SEND_SIGNALED;
    wr_.wr.rdma = {remote.addr, remote.rkey};
  }
  void post() {
    ibv_send_wr* bad = nullptr;
    check_status(ibv_post_send(side_.qp(0), &wr_, &bad), "ibv_post_send");
  }
  bool poll() {
    ibv_wc wc{};
    const int got = ibv_poll_cq(side_.cq(), 1, &wc);
    check(got >= 0 && (got == 0 || wc.status == IBV_WC_SUCCESS), "completion");
    return got == 1;
  }
  void arm() { check_status(ibv_req_notify_cq(side_.cq(), 0), "ibv_req_notify_cq"); }
  void sleep() {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    check(ibv_get_cq_event(side_.channel(), &cq, &context) == 0, "ibv_get_cq_event");
    ibv_ack_cq_events(cq, 1);
    while (!poll()) {
    }
  }

 private:
  const Side& side_;
  ibv_sge sge_;
  ibv_send_wr wr_{};
};

struct Samples {
  std::vector<double> post_us, poster_us, process_us, write_us, overlap;
};

/// The program sleeps until the completion event.
void with_events(Writes& writes, Samples& samples) {
  writes.arm();
  const double process = us_of(CLOCK_PROCESS_CPUTIME_ID), poster = us_of(CLOCK_THREAD_CPUTIME_ID);
  writes.post();
  const double posted = us_of(CLOCK_THREAD_CPUTIME_ID);
  writes.sleep();
  samples.post_us.push_back(posted - poster);
  samples.poster_us.push_back(us_of(CLOCK_THREAD_CPUTIME_ID) - poster);
  samples.process_us.push_back(us_of(CLOCK_PROCESS_CPUTIME_ID) - process);
}

/// The program polls for the completion.
double by_polling(Writes& writes) {
  const double begun = us_of(CLOCK_MONOTONIC);
  writes.post();
  while (!writes.poll()) {
  }
  return us_of(CLOCK_MONOTONIC) - begun;
}

/// The part of the copy that runs beside a computation of the same length. 0: none, 1: all.
double overlap(Writes& writes, Computation& computation, double write_us) {
  double begun = us_of(CLOCK_MONOTONIC);
  for (double done = 0; done < write_us; done += kPieceUs) computation.run(kPieceUs);
  const double alone = us_of(CLOCK_MONOTONIC) - begun;
  begun = us_of(CLOCK_MONOTONIC);
  writes.post();
  bool is_over = false;
  for (double done = 0; done < write_us; done += kPieceUs) {
    computation.run(kPieceUs);
    is_over = is_over || writes.poll();
  }
  while (!is_over) is_over = writes.poll();
  const double both = us_of(CLOCK_MONOTONIC) - begun;
  return (alone + write_us - both) / std::min(alone, write_us);
}

void measure(const Peer& peer, const Options& options) {
  // The library's threads may run on both cores, and the thread that posts on one.
  cpu_set_t both;
  CPU_ZERO(&both);
  CPU_SET(options.core[0], &both);
  CPU_SET(options.core[1], &both);
  check(sched_setaffinity(0, sizeof both, &both) == 0, "sched_setaffinity");
  Side side(peer, 1, true);
  side.grow_to(1);
  const Memory memory(side);
  Remote remote{};
  peer.receive(&remote, sizeof remote);
  Writes first(side, memory, remote, kMost);
  by_polling(first);  // starts the engine's threads, and maps the peer's memory
  bench::pin(options.core[1]);
  Computation computation;
  bool is_first = true;
  for (const size_t size : options.sizes) {
    Writes writes(side, memory, remote, size);
    Samples samples;
    by_polling(writes);
    for (size_t done = 0; done < options.bytes; done += size) {
      with_events(writes, samples);
      samples.write_us.push_back(by_polling(writes));
      samples.overlap.push_back(overlap(writes, computation, samples.write_us.back()));
    }
    const double write_us = median(samples.write_us);
    printf(
        "%s\"%zu\": {\"post_us\": %.2f, \"poster_us\": %.2f, \"process_us\": %.2f, \"write_us\": %.2f, "
        "\"gb_s\": %.3f, \"overlap\": %.3f}",
        is_first ? "{" : ", ", size, median(samples.post_us), median(samples.poster_us), median(samples.process_us),
        write_us, static_cast<double>(size) / write_us / 1e3, median(samples.overlap));
    is_first = false;
  }
  printf("}\n");
  peer.meet();
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--sizes") {
      options.sizes.clear();
      for (char* at = argv[i + 1]; *at != '\0'; at += *at == ',' ? 1 : 0)
        options.sizes.push_back(strtoull(at, &at, 10));
    } else if (name == "--mib") {
      options.bytes = strtoull(argv[i + 1], nullptr, 10) << 20;
    } else if (name != "--cores" || sscanf(argv[i + 1], "%d,%d", &options.core[0], &options.core[1]) != 2) {
      return false;
    }
  }
  for (const size_t size : options.sizes)
    if (size == 0 || size > kMost) return false;
  return argc % 2 == 1 && !options.sizes.empty() && options.bytes != 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    fprintf(stderr, "usage: large_writes [--cores A,B] [--sizes BYTES,...] [--mib N]\n");
    return 2;
  }
  return bench::run_two(
      options.core, kLimitS,
      [](const Peer& peer) {
        Side side(peer, 1, true);
        side.grow_to(1);
        const Memory memory(side);
        const Remote remote{reinterpret_cast<uint64_t>(memory.at), memory.mr->rkey};
        peer.send(&remote, sizeof remote);
        peer.meet();  // sleeps meanwhile
      },
      [&](const Peer& peer) { measure(peer, options); });
}
