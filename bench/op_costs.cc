// SPDX-License-Identifier: Apache-2.0
// The time of one 8-byte request of one thread, by kinds of loop, with nothing else in it. Two processes, plain verbs;
// the answer is one JSON object in nanoseconds of the thread's processor time.
//   op_costs [--cores A,B] [--count N] [--only KIND]
// Kinds: read and write: a post and its completion, one by one. write_unsignalled: a completion for each hundredth.
// write_list: lists of 16, a completion for each.
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

constexpr unsigned kLimitS = 120;
constexpr uint32_t kRounds = 5;

/// `requests` posts of `list` requests each; the last one has a completion.
struct Kind {
  const char* name;
  ibv_wr_opcode opcode;
  uint32_t posts;
  uint32_t list;
};
constexpr Kind kKinds[] = {{"read", IBV_WR_RDMA_READ, 1, 1},
                           {"write", IBV_WR_RDMA_WRITE, 1, 1},
                           {"write_unsignalled", IBV_WR_RDMA_WRITE, 100, 1},
                           {"write_list", IBV_WR_RDMA_WRITE, 1, 16}};

struct Options {
  int core[2] = {0, 1};
  uint64_t count = 1000000;
  std::string only;
};

double now_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

double ns_each(const Side& side, const Kind& kind, uint64_t count) {
  ibv_sge sge = side.outgoing(0, 8);
  std::vector<ibv_send_wr> requests(kind.list);
  for (uint32_t i = 0; i < kind.list; ++i) {
    requests[i].sg_list = &sge;
    requests[i].num_sge = 1;
    requests[i].opcode = kind.opcode;
    requests[i].wr.rdma = {side.peer_of(0).addr, side.peer_of(0).rkey};
    if (i + 1 < kind.list) requests[i].next = &requests[i + 1];
  }
  ibv_send_wr* bad = nullptr;
  ibv_wc wc{};
  const uint64_t step = uint64_t{kind.posts} * kind.list;
  uint64_t done = 0;
  const double start = now_ns();
  for (; done < count; done += step) {
    requests.back().send_flags = 0;
    for (uint32_t i = 1; i < kind.posts; ++i) check_status(ibv_post_send(side.qp(0), requests.data(), &bad), "post");
    requests.back().send_flags = IBV_SEND_SIGNALED;
    check_status(ibv_post_send(side.qp(0), requests.data(), &bad), "post");
    int got = 0;
    while ((got = ibv_poll_cq(side.cq(), 1, &wc)) == 0) {
    }
    check(got == 1 && wc.status == IBV_WC_SUCCESS, "completion");
  }
  return (now_ns() - start) / static_cast<double>(done);
}

void measure(const Peer& peer, const Options& options) {
  Side side(peer, 1);
  side.grow_to(1);
  const char* separator = "{";
  for (const Kind& kind : kKinds) {
    if (!options.only.empty() && options.only != kind.name) continue;
    std::vector<double> found;
    ns_each(side, kind, options.count / 10);  // warms
    for (uint32_t round = 0; round < kRounds; ++round) found.push_back(ns_each(side, kind, options.count));
    printf("%s\"%s\": %.2f", separator, kind.name, bench::median(found));
    separator = ", ";
  }
  printf("}\n");
  peer.meet();
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--count")
      options.count = strtoull(argv[i + 1], nullptr, 10);
    else if (name == "--only")
      options.only = argv[i + 1];
    else if (name != "--cores" || sscanf(argv[i + 1], "%d,%d", &options.core[0], &options.core[1]) != 2)
      return false;
  }
  return argc % 2 == 1 && options.count >= 1000;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    fprintf(stderr, "usage: op_costs [--cores A,B] [--count N] [--only KIND]\n");
    return 2;
  }
  return bench::run_beside_memory(options.core, kLimitS, [&](const Peer& peer) { measure(peer, options); });
}
