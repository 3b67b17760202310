// SPDX-License-Identifier: Apache-2.0
/// A plain verbs program for the requests of IBTA annex A19, FLUSH and ATOMIC WRITE, between two devices. Prints the
/// first fault; exit status 0 if there was none.
///   placement_pair DEVICE GID PORT [SERVER]
/// The client makes the requests; the server checks its memory at the end.
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../support/later_flush.h"

namespace {

using namespace nupa::test;  // NOLINT: the names of FLUSH

constexpr int kRounds = 100;
constexpr uint32_t kBytes = 16384;
constexpr uint32_t kWordAt = kBytes - 8;
constexpr uint32_t kWriteBytes = 5000;
constexpr uint8_t kDepth = 8;
constexpr uint64_t kOperations = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_SEND |
                                 IBV_QP_EX_WITH_ATOMIC_WRITE | kQpExWithFlush;
constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | kAccessFlushGlobal;

[[noreturn]] void fail(const char* what, int value = 0) {
  std::printf("%s failed: %d, errno %s\n", what, value, std::strerror(errno));
  std::fflush(stdout);
  std::_Exit(1);
}
void expect(bool good, const char* what, int value = 0) {
  if (!good) fail(what, value);
}

/// The data by which each side connects to the other.
struct Card {
  ibv_gid gid;
  uint64_t address;
  uint32_t qp_num;
  uint32_t rkey;
};

int listen_once(uint16_t port) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_port = htons(port);
  expect(bind(listener, reinterpret_cast<sockaddr*>(&own), sizeof own) == 0 && listen(listener, 1) == 0, "listen");
  const int taken = accept(listener, nullptr, nullptr);
  expect(taken >= 0, "accept");
  return taken;
}

int call(const char* server, uint16_t port) {
  const int caller = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  expect(inet_pton(AF_INET, server, &to.sin_addr) == 1, "address");
  expect(connect(caller, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0, "connect");
  return caller;
}

Card exchange(int peer, const Card& own) {
  Card theirs{};
  expect(write(peer, &own, sizeof own) == sizeof own, "write to the peer");
  expect(recv(peer, &theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs, "read from the peer");
  return theirs;
}

class Side {
 public:
  Side(const char* device, uint8_t gid_index) : gid_index_(gid_index) {
    ibv_device** const list = ibv_get_device_list(nullptr);
    int place = 0;
    while (list != nullptr && list[place] != nullptr && std::strcmp(ibv_get_device_name(list[place]), device) != 0)
      ++place;
    expect(list != nullptr && list[place] != nullptr, "device");
    context_ = ibv_open_device(list[place]);
    expect(context_ != nullptr, "ibv_open_device");
    ibv_device_attr_ex attr{};
    expect(ibv_query_device_ex(context_, nullptr, &attr) == 0, "ibv_query_device_ex");
    expect((attr.device_cap_flags_ex & kDeviceFlushGlobal) != 0, "the device's FLUSH_GLOBAL");
    pd_ = ibv_alloc_pd(context_);
    cq_ = ibv_create_cq(context_, 256, nullptr, nullptr, 0);
    mr_ = (ibv_reg_mr)(pd_, memory, kBytes, kAccess);
    expect(mr_ != nullptr, "ibv_reg_mr");
    ibv_qp_init_attr_ex init{};
    init.send_cq = init.recv_cq = cq_;
    init.cap = {128, 16, 1, 1, 64};
    init.qp_type = IBV_QPT_RC;
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.pd = pd_;
    init.send_ops_flags = kOperations;
    qp_ = ibv_create_qp_ex(context_, &init);
    expect(qp_ != nullptr, "ibv_create_qp_ex");
    ex = ibv_qp_to_qp_ex(qp_);
    ex->wr_flags = IBV_SEND_SIGNALED;
  }

  Card card() const {
    Card own{};
    expect(ibv_query_gid(context_, 1, gid_index_, &own.gid) == 0, "ibv_query_gid");
    own.address = reinterpret_cast<uint64_t>(memory);
    own.qp_num = qp_->qp_num;
    own.rkey = mr_->rkey;
    return own;
  }

  void connect_to(const Card& peer) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = static_cast<unsigned int>(kAccess) | kAccessFlushPersistent;
    int error = ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    expect(error == 0, "to INIT", error);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer.qp_num;
    attr.rq_psn = attr.sq_psn = 0xfffff0;  // it wraps
    attr.max_dest_rd_atomic = attr.max_rd_atomic = kDepth;
    attr.min_rnr_timer = 12;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.dgid = peer.gid;
    attr.ah_attr.grh.sgid_index = gid_index_;
    attr.ah_attr.grh.hop_limit = 64;
    error = ibv_modify_qp(qp_, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    expect(error == 0, "to RTR", error);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 16;  // 0.27 s: an emulated processor may be slow
    attr.retry_cnt = attr.rnr_retry = 7;
    error = ibv_modify_qp(
        qp_, &attr,
        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    expect(error == 0, "to RTS", error);
  }

  ibv_sge piece(uint32_t offset, uint32_t length) const {
    return {reinterpret_cast<uint64_t>(memory) + offset, length, mr_->lkey};
  }
  void set_piece(uint32_t offset, uint32_t length) {
    const ibv_sge sge = piece(offset, length);
    ibv_wr_set_sge(ex, sge.lkey, sge.addr, sge.length);
  }

  /// The next completion.
  ibv_wc next() {
    using Clock = std::chrono::steady_clock;
    ibv_wc wc{};
    for (const auto end = Clock::now() + std::chrono::seconds(30); Clock::now() < end;)
      if (ibv_poll_cq(cq_, 1, &wc) == 1) return wc;
    fail("waiting for a completion");
  }
  void expect_next(uint64_t wr_id, ibv_wc_opcode opcode) {
    const ibv_wc wc = next();
    expect(wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status), static_cast<int>(wr_id));
    expect(wc.wr_id == wr_id, "the order of completions", static_cast<int>(wc.wr_id));
    expect(wc.opcode == opcode, "the opcode of a completion", wc.opcode);
  }

  ibv_qp_ex* ex = nullptr;
  alignas(4096) inline static unsigned char memory[kBytes];

 private:
  const uint8_t gid_index_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_qp* qp_ = nullptr;
};

/// A WRITE of several packets, a FLUSH of its range, an ATOMIC WRITE, and a FLUSH of the region.
void run_round(Side& side, const Card& peer, uint64_t round) {
  for (uint32_t i = 0; i < kWriteBytes; ++i) Side::memory[i] = static_cast<unsigned char>(round + i);
  const uint64_t id = round * 8;
  ibv_wr_start(side.ex);
  side.ex->wr_id = id;
  ibv_wr_rdma_write(side.ex, peer.rkey, peer.address);
  side.set_piece(0, kWriteBytes);
  side.ex->wr_id = id + 1;
  wr_flush(side.ex, peer.rkey, peer.address, kWriteBytes, kFlushGlobal, kFlushRange);
  side.ex->wr_id = id + 2;
  ibv_wr_atomic_write(side.ex, peer.rkey, peer.address + kWordAt, &round);
  side.ex->wr_id = id + 3;
  wr_flush(side.ex, peer.rkey, 0, 0, kFlushGlobal, kFlushMr);
  expect(ibv_wr_complete(side.ex) == 0, "ibv_wr_complete");
  side.expect_next(id, IBV_WC_RDMA_WRITE);
  side.expect_next(id + 1, kWcFlush);
  side.expect_next(id + 2, IBV_WC_ATOMIC_WRITE);
  side.expect_next(id + 3, kWcFlush);
}

/// Many requests at once, more than may be outstanding.
void run_many(Side& side, const Card& peer) {
  constexpr uint64_t kMany = 40;
  ibv_wr_start(side.ex);
  for (uint64_t i = 0; i < kMany; ++i) {
    side.ex->wr_id = i;
    const uint64_t value = kRounds + i;
    if (i % 2 == 0)
      wr_flush(side.ex, peer.rkey, peer.address + i, 8, kFlushGlobal, kFlushRange);
    else
      ibv_wr_atomic_write(side.ex, peer.rkey, peer.address + kWordAt, &value);
  }
  expect(ibv_wr_complete(side.ex) == 0, "ibv_wr_complete");
  for (uint64_t i = 0; i < kMany; ++i) side.expect_next(i, i % 2 == 0 ? kWcFlush : IBV_WC_ATOMIC_WRITE);
  uint64_t word = 0;
  ibv_wr_start(side.ex);
  side.ex->wr_id = 1;
  ibv_wr_rdma_read(side.ex, peer.rkey, peer.address + kWordAt);
  side.set_piece(8192, 8);
  expect(ibv_wr_complete(side.ex) == 0, "ibv_wr_complete");
  side.expect_next(1, IBV_WC_RDMA_READ);
  std::memcpy(&word, Side::memory + 8192, sizeof word);
  expect(word == kRounds + kMany - 1, "the last ATOMIC WRITE", static_cast<int>(word));
}

/// The region has no right to persistence.
void run_refused(Side& side, const Card& peer) {
  ibv_wr_start(side.ex);
  wr_flush(side.ex, peer.rkey, peer.address, 8, kFlushPersistent, kFlushRange);
  expect(ibv_wr_complete(side.ex) == 0, "ibv_wr_complete");
  const ibv_wc wc = side.next();
  expect(wc.status == IBV_WC_REM_ACCESS_ERR, "the refusal of persistence", wc.status);
}

}  // namespace

int main(int count, char** words) {
  if (count < 4) {
    std::puts("usage: placement_pair DEVICE GID PORT [SERVER]");
    return 2;
  }
  Side side(words[1], static_cast<uint8_t>(std::atoi(words[2])));
  const auto port = static_cast<uint16_t>(std::atoi(words[3]));
  const bool is_client = count > 4;
  const int peer = is_client ? call(words[4], port) : listen_once(port);
  const Card theirs = exchange(peer, side.card());
  side.connect_to(theirs);
  exchange(peer, side.card());  // both are connected
  if (is_client) {
    for (uint64_t round = 0; round < kRounds; ++round) run_round(side, theirs, round);
    run_many(side, theirs);
    run_refused(side, theirs);
    expect(write(peer, "!", 1) == 1, "write to the peer");
    return 0;
  }
  char end = 0;
  expect(recv(peer, &end, 1, MSG_WAITALL) == 1, "the client");
  for (uint32_t i = 0; i < kWriteBytes; ++i)
    expect(Side::memory[i] == static_cast<unsigned char>(kRounds - 1 + i), "the data", static_cast<int>(i));
  return 0;
}
