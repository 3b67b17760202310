// SPDX-License-Identifier: Apache-2.0
// How many 8-byte operations a second one thread gets through one reliable queue pair, posted one by one and as lists,
// with a completion for each kSignalEvery-th, and nothing else in the loop. Two processes, plain verbs; the answer is
// one JSON object in millions a second.
//   message_rate [--cores A,B] [--seconds S] [--clock wall|cpu]   (cpu: of the thread, for a machine that others use)
#include <infiniband/verbs.h>

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
using bench::Peer;
using bench::Side;

constexpr unsigned kLimitS = 60;
constexpr uint32_t kSignalEvery = 64;
constexpr uint32_t kRounds = 5;

struct Test {
  const char* name;
  ibv_wr_opcode opcode;
  uint32_t list;
};
constexpr Test kTests[] = {{"write", IBV_WR_RDMA_WRITE, 1},
                           {"write_list", IBV_WR_RDMA_WRITE, 16},
                           {"atomic", IBV_WR_ATOMIC_FETCH_AND_ADD, 1},
                           {"atomic_list", IBV_WR_ATOMIC_FETCH_AND_ADD, 16}};

struct Options {
  int core[2] = {0, 1};
  double seconds = 0.1;
  clockid_t clock = CLOCK_MONOTONIC;
};

double now_us(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

/// The requests of one completion, chained in lists of `test.list`.
class Batch {
 public:
  Batch(const Side& side, const Test& test) : side_(side), sge_(side.outgoing(0, 8)), requests_(kSignalEvery) {
    for (uint32_t i = 0; i < kSignalEvery; ++i) {
      ibv_send_wr& wr = requests_[i];
      wr.sg_list = &sge_;
      wr.num_sge = 1;
      wr.opcode = test.opcode;
      if ((i + 1) % test.list != 0) wr.next = &requests_[i + 1];
      if (test.opcode == IBV_WR_RDMA_WRITE) {
        wr.wr.rdma = {side.peer_of(0).addr, side.peer_of(0).rkey};
      } else {
        wr.wr.atomic.remote_addr = side.peer_of(0).addr;
        wr.wr.atomic.rkey = side.peer_of(0).rkey;
        wr.wr.atomic.compare_add = 1;
      }
    }
    requests_.back().send_flags = IBV_SEND_SIGNALED;
    step_ = test.list;
  }

  void run() {
    ibv_send_wr* bad = nullptr;
    for (uint32_t i = 0; i < kSignalEvery; i += step_)
      check_status(ibv_post_send(side_.qp(0), &requests_[i], &bad), "ibv_post_send");
    ibv_wc wc{};
    int got = 0;
    while ((got = ibv_poll_cq(side_.cq(), 1, &wc)) == 0) {
    }
    check(got == 1 && wc.status == IBV_WC_SUCCESS, "completion");
  }

 private:
  const Side& side_;
  ibv_sge sge_;
  std::vector<ibv_send_wr> requests_;
  uint32_t step_ = 1;
};

double millions_a_second(const Side& side, const Test& test, const Options& options) {
  Batch batch(side, test);
  const double start = now_us(options.clock);
  uint64_t done = 0;
  double us = 0;
  do {
    for (int i = 0; i < 100; ++i) batch.run();
    done += 100 * kSignalEvery;
    us = now_us(options.clock) - start;
  } while (us < options.seconds * 1e6);
  return static_cast<double>(done) / us;
}

void measure(const Peer& peer, const Options& options) {
  Side side(peer, 1);
  side.grow_to(1);
  std::vector<double> rates[std::size(kTests)];
  for (uint32_t round = 0; round <= kRounds; ++round)
    for (size_t i = 0; i < std::size(kTests); ++i) {
      const double rate = millions_a_second(side, kTests[i], options);
      if (round > 0) rates[i].push_back(rate);  // the first round warms
    }
  for (size_t i = 0; i < std::size(kTests); ++i)
    printf("%s\"%s\": %.3f", i == 0 ? "{" : ", ", kTests[i].name, bench::median(rates[i]));
  printf("}\n");
  peer.meet();
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--seconds")
      options.seconds = atof(argv[i + 1]);
    else if (name == "--clock")
      options.clock = std::string(argv[i + 1]) == "cpu" ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    else if (name != "--cores" || sscanf(argv[i + 1], "%d,%d", &options.core[0], &options.core[1]) != 2)
      return false;
  }
  return argc % 2 == 1 && options.seconds > 0 && options.seconds < 2;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    fprintf(stderr, "usage: message_rate [--cores A,B] [--seconds S] [--clock wall|cpu]\n");
    return 2;
  }
  return bench::run_beside_memory(options.core, kLimitS, [&](const Peer& peer) { measure(peer, options); });
}
