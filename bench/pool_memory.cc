// SPDX-License-Identifier: Apache-2.0
// RDMA WRITEs of 1 MiB between two hosts of a pool, as ib_write_bw sends them, into memory of the target that the
// program has allocated with malloc() and with ibv_alloc_dm(), which lies in the pool. Plain verbs; the processes are
// hosts 0 and 1 of a pool that was formatted. The answer is one JSON object: GB/s of each.
//   pool_memory --pool MEDIUM [--cores A,B] [--size BYTES] [--count N]   (MEDIUM: as in NUPA_POOL, without host=)
#include <infiniband/verbs.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "verbs_side.h"

namespace {

using bench::check;
using bench::check_status;
using bench::Clock;
using bench::Peer;
using bench::Side;

constexpr unsigned kLimitS = 100;
constexpr int kRounds = 5;

struct Options {
  int core[2] = {0, 1};
  std::string pool;
  uint32_t size = 1 << 20;
  uint32_t count = 1000;
};

struct Target {
  uint64_t addr;
  uint32_t rkey;
};

void become_host(const Options& options, int number) {
  const std::string setting = options.pool + ",host=" + std::to_string(number);
  check(setenv("NUPA_POOL", setting.c_str(), 1) == 0 && setenv("NUPA_TRANSPORT", "pool", 1) == 0, "setenv");
}

void serve(const Peer& peer, const Options& options) {
  become_host(options, 0);
  Side side(peer, 1);
  side.grow_to(1);
  constexpr unsigned kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  std::vector<char> ordinary(options.size, 1);
  ibv_mr* const of_ordinary = ibv_reg_mr(side.pd(), ordinary.data(), ordinary.size(), kAccess);
  check(of_ordinary != nullptr, "ibv_reg_mr");
  ibv_alloc_dm_attr attr{};
  attr.length = options.size;
  ibv_dm* const dm = ibv_alloc_dm(side.context(), &attr);
  check(dm != nullptr, "ibv_alloc_dm");
  ibv_mr* const of_dm = ibv_reg_dm_mr(side.pd(), dm, 0, options.size, kAccess | IBV_ACCESS_ZERO_BASED);
  check(of_dm != nullptr, "ibv_reg_dm_mr");
  const Target targets[] = {{reinterpret_cast<uint64_t>(ordinary.data()), of_ordinary->rkey}, {0, of_dm->rkey}};
  peer.send(targets, sizeof targets);
  peer.meet();  // the thread of the transport serves meanwhile
  // What the requester has sent last is there.
  std::vector<char> seen(options.size);
  check_status(ibv_memcpy_from_dm(seen.data(), dm, 0, seen.size()), "ibv_memcpy_from_dm");
  errno = EILSEQ;
  check(seen == ordinary && seen.back() == static_cast<char>(options.size), "the memories differ");
  check_status(ibv_dereg_mr(of_dm), "ibv_dereg_mr");
  check_status(ibv_free_dm(dm), "ibv_free_dm");
  peer.meet();
}

/// Returns GB/s.
double write_all(const Side& side, const Options& options, const ibv_mr* source, const Target& target) {
  ibv_sge sge{reinterpret_cast<uint64_t>(source->addr), options.size, source->lkey};
  ibv_send_wr wr{}, *bad = nullptr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma = {target.addr, target.rkey};
  const auto begun = Clock::now();
  for (uint32_t posted = 0, done = 0; done < options.count;) {
    for (; posted < options.count && posted - done < bench::kDepth; ++posted)
      check_status(ibv_post_send(side.qp(0), &wr, &bad), "ibv_post_send");
    ibv_wc wc[16];
    const int got = ibv_poll_cq(side.cq(), 16, wc);
    check(got >= 0, "ibv_poll_cq");
    for (int i = 0; i < got; ++i) check(wc[i].status == IBV_WC_SUCCESS, ibv_wc_status_str(wc[i].status));
    done += static_cast<uint32_t>(got);
  }
  return static_cast<double>(options.size) * options.count / bench::us_since(begun) / 1e3;
}

void measure(const Peer& peer, const Options& options) {
  become_host(options, 1);
  Side side(peer, 1);
  side.grow_to(1);
  std::vector<char> data(options.size);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i + 1);
  ibv_mr* const source = ibv_reg_mr(side.pd(), data.data(), data.size(), 0);
  check(source != nullptr, "ibv_reg_mr");
  Target targets[2];
  peer.receive(targets, sizeof targets);
  Options few = options;
  few.count = 20;
  for (const Target& target : targets) write_all(side, few, source, target);
  std::vector<double> rates[2];
  for (int round = 0; round < kRounds; ++round)
    for (int i = 0; i < 2; ++i) rates[i].push_back(write_all(side, options, source, targets[i]));
  printf("{\"ordinary\": %.3f, \"device\": %.3f}\n", bench::median(rates[0]), bench::median(rates[1]));
  fflush(stdout);
  peer.meet();
  peer.meet();
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--pool")
      options.pool = argv[i + 1];
    else if (name == "--size")
      options.size = static_cast<uint32_t>(strtoul(argv[i + 1], nullptr, 10));
    else if (name == "--count")
      options.count = static_cast<uint32_t>(strtoul(argv[i + 1], nullptr, 10));
    else if (name != "--cores" || sscanf(argv[i + 1], "%d,%d", &options.core[0], &options.core[1]) != 2)
      return false;
  }
  return argc % 2 == 1 && !options.pool.empty() && options.size > 0 && options.size % 4 == 0 && options.count > 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    fprintf(stderr, "usage: pool_memory --pool MEDIUM [--cores A,B] [--size BYTES] [--count N]\n");
    return 2;
  }
  return bench::run_two(
      options.core, kLimitS, [&](const Peer& peer) { serve(peer, options); },
      [&](const Peer& peer) { measure(peer, options); });
}
