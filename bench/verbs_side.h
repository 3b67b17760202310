// SPDX-License-Identifier: Apache-2.0
// One of two processes that speak plain verbs: a socket pair to the other, the device, a region, connected queue pairs.
#pragma once
#include <infiniband/verbs.h>

#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace bench {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kDepth = 128;   // work requests in each queue, as perftest's bandwidth programs have by default
constexpr size_t kSlotBytes = 64;  // one cache line a queue pair
constexpr size_t kPage = 4096;

[[noreturn]] inline void fail(const char* what) {
  fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
  exit(1);
}

/// Ends the program with errno's text unless `ok`.
inline void check(bool ok, const char* what) {
  if (!ok) fail(what);
}

/// For the calls that return an errno value.
inline void check_status(int status, const char* what) {
  if (status != 0) {
    errno = status;
    fail(what);
  }
}

inline double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// The other process, over a socket pair.
class Peer {
 public:
  explicit Peer(int fd) : fd_(fd) {}
  void send(const void* bytes, size_t size) const {
    check(write(fd_, bytes, size) == static_cast<ssize_t>(size), "write to the other process");
  }
  void receive(void* bytes, size_t size) const {
    for (size_t done = 0; done < size;) {
      const ssize_t got = read(fd_, static_cast<char*>(bytes) + done, size - done);
      if (got == 0) errno = ECONNRESET;
      check(got > 0, "read from the other process");
      done += static_cast<size_t>(got);
    }
  }
  /// Both go on only when both are here.
  void meet() const {
    char token = 'm';
    send(&token, 1);
    receive(&token, 1);
  }

 private:
  int fd_;
};

struct Address {
  uint32_t qpn;
  uint32_t rkey;
  uint64_t addr;
  ibv_gid gid;
};

/// A context of the first device; ends the program when there is none.
inline ibv_context* open_first_device() {
  ibv_device** devices = ibv_get_device_list(nullptr);
  check(devices != nullptr && devices[0] != nullptr, "no device");
  ibv_context* context = ibv_open_device(devices[0]);
  check(context != nullptr, "ibv_open_device");
  ibv_free_device_list(devices);
  return context;
}

/// One process's side: the device, one region with a line for each queue pair, and the queue pairs.
class Side {
 public:
  Side(const Peer& peer, size_t most, bool has_events = false) : peer_(peer), context_(open_first_device()) {
    pd_ = ibv_alloc_pd(context_);
    check(pd_ != nullptr, "ibv_alloc_pd");
    if (has_events) {
      channel_ = ibv_create_comp_channel(context_);
      check(channel_ != nullptr, "ibv_create_comp_channel");
    }
    cq_ = ibv_create_cq(context_, 1024, nullptr, channel_, 0);
    check(cq_ != nullptr, "ibv_create_cq");
    const size_t bytes = (2 * kSlotBytes * most + kPage - 1) / kPage * kPage;
    void* buffer = nullptr;
    check(posix_memalign(&buffer, 4096, bytes) == 0, "posix_memalign");
    memset(buffer, 0, bytes);
    mr_ = ibv_reg_mr(pd_, buffer, bytes, kAccess);
    check(mr_ != nullptr, "ibv_reg_mr");
    incoming_ = static_cast<char*>(buffer);
    outgoing_ = incoming_ + kSlotBytes * most;
    choose_gid();
  }

  /// Creates and connects queue pairs until there are `count`; returns the microseconds that creating took.
  double grow_to(size_t count) {
    const size_t first = qps_.size();
    const auto start = Clock::now();
    for (size_t i = first; i < count; ++i) {
      ibv_qp_init_attr attr{};
      attr.send_cq = attr.recv_cq = cq_;
      attr.qp_type = IBV_QPT_RC;
      attr.cap = {kDepth, kDepth, 1, 1, 0};
      qps_.push_back(ibv_create_qp(pd_, &attr));
      check(qps_.back() != nullptr, "ibv_create_qp");
    }
    const double created_us = us_since(start);
    std::vector<Address> mine, theirs(count - first);
    for (size_t i = first; i < count; ++i) {
      mine.push_back({qps_[i]->qp_num, mr_->rkey, reinterpret_cast<uint64_t>(incoming_ + i * kSlotBytes), gid_});
    }
    // In small parts: a socket's buffer need not hold the whole.
    for (size_t i = 0; i < mine.size(); ++i) {
      peer_.send(&mine[i], sizeof mine[i]);
      peer_.receive(&theirs[i], sizeof theirs[i]);
    }
    for (size_t i = first; i < count; ++i) connect(qps_[i], theirs[i - first]);
    peers_.insert(peers_.end(), theirs.begin(), theirs.end());
    peer_.meet();
    return created_us;
  }

  /// One side of a ping-pong of 8-byte writes, by turns over the first `count` queue pairs.
  void ping_pong(size_t count, uint64_t turns, bool begins) {
    for (uint64_t turn = 0; turn < turns; ++turn) {
      const size_t i = next_++ % count;
      const uint64_t token = ++tokens_;
      if (!begins) wait_for(i, token);
      post(i, token);
      if (begins) wait_for(i, token);
      reap();
    }
  }

  /// The next turn is the first queue pair's.
  void rewind() { next_ = 0; }
  ibv_context* context() const { return context_; }
  ibv_pd* pd() const { return pd_; }
  ibv_cq* cq() const { return cq_; }
  /// Null unless `has_events`.
  ibv_comp_channel* channel() const { return channel_; }
  ibv_qp* qp(size_t i) const { return qps_[i]; }
  const Address& peer_of(size_t i) const { return peers_[i]; }
  /// The line of this process's memory that queue pair `i` sends from.
  ibv_sge outgoing(size_t i, uint32_t bytes) const {
    return {reinterpret_cast<uint64_t>(outgoing_ + i * kSlotBytes), bytes, mr_->lkey};
  }

 private:
  static constexpr unsigned kAccess =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

  void choose_gid() {
    static const uint8_t kMappedIpv4[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    for (int i = 0; i < 16; ++i) {
      ibv_gid gid{};
      if (ibv_query_gid(context_, 1, i, &gid) != 0) continue;
      if (i > 0 && memcmp(gid.raw, kMappedIpv4, sizeof kMappedIpv4) != 0) continue;
      gid_ = gid;
      gid_index_ = static_cast<uint8_t>(i);
      if (i > 0) return;
    }
  }

  void connect(ibv_qp* qp, const Address& peer) const {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = kAccess;
    check_status(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
                 "ibv_modify_qp to INIT");
    attr = {};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_4096;
    attr.dest_qp_num = peer.qpn;
    attr.max_dest_rd_atomic = 16;
    attr.min_rnr_timer = 12;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.dgid = peer.gid;
    attr.ah_attr.grh.sgid_index = gid_index_;
    attr.ah_attr.grh.hop_limit = 64;
    check_status(ibv_modify_qp(qp, &attr,
                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
                 "ibv_modify_qp to RTR");
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 16;
    check_status(ibv_modify_qp(qp, &attr,
                               IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                   IBV_QP_MAX_QP_RD_ATOMIC),
                 "ibv_modify_qp to RTS");
  }

  void post(size_t i, uint64_t token) {
    char* const slot = outgoing_ + i * kSlotBytes;
    memcpy(slot, &token, sizeof token);
    ibv_sge sge{reinterpret_cast<uint64_t>(slot), sizeof token, mr_->lkey};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = peers_[i].addr;
    wr.wr.rdma.rkey = peers_[i].rkey;
    check_status(ibv_post_send(qps_[i], &wr, &bad), "ibv_post_send");
  }

  void wait_for(size_t i, uint64_t token) const {
    const auto* slot = reinterpret_cast<const uint64_t*>(incoming_ + i * kSlotBytes);
    for (int spins = 0; __atomic_load_n(slot, __ATOMIC_ACQUIRE) != token; ++spins) {
      if (spins > 1000000) {
        sched_yield();
        spins = 0;
      }
    }
  }

  void reap() {
    ibv_wc wc{};
    int got = 0;
    while ((got = ibv_poll_cq(cq_, 1, &wc)) == 0) {
    }
    if (got < 0 || wc.status != IBV_WC_SUCCESS) {
      fprintf(stderr, "%s: completion: %s\n", program_invocation_short_name,
              got < 0 ? "cannot poll" : ibv_wc_status_str(wc.status));
      exit(1);
    }
  }

  const Peer& peer_;
  ibv_context* context_;
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  char* incoming_ = nullptr;
  char* outgoing_ = nullptr;
  ibv_gid gid_{};
  uint8_t gid_index_ = 0;
  std::vector<ibv_qp*> qps_;
  std::vector<Address> peers_;
  uint64_t next_ = 0;
  uint64_t tokens_ = 0;
};

inline void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  check(sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity");
}

/// Runs `serve` in a child on cores[0] and `measure` here on cores[1], each with its end of a socket pair; nothing is
/// left behind after `limit_s`. Returns the exit status. Call it before anything of the device.
template <class Serve, class Measure>
int run_two(const int cores[2], unsigned limit_s, Serve&& serve, Measure&& measure) {
  int ends[2];
  check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
  const pid_t parent = getpid();
  const pid_t child = fork();
  check(child >= 0, "fork");
  alarm(limit_s);
  pin(cores[child == 0 ? 0 : 1]);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close(ends[0]);
    serve(Peer(ends[1]));
    exit(0);
  }
  close(ends[1]);
  measure(Peer(ends[0]));
  int status = 0;
  check(waitpid(child, &status, 0) == child, "waitpid");
  if (status != 0)
    fprintf(stderr, "%s: the other process ended with status %d\n", program_invocation_short_name, status);
  return status == 0 ? 0 : 1;
}

/// run_two() with a child that has one queue pair and lets `measure` access its memory.
template <class Measure>
int run_beside_memory(const int cores[2], unsigned limit_s, Measure&& measure) {
  return run_two(
      cores, limit_s,
      [](const Peer& peer) {
        Side side(peer, 1);
        side.grow_to(1);
        peer.meet();
      },
      std::forward<Measure>(measure));
}

}  // namespace bench
