// SPDX-License-Identifier: Apache-2.0
/// A plain verbs program that sends a packet of every kind between queue pairs of its own, and provokes every refusal.
/// Says what went wrong; exit status 0 when nothing did.
///   wire_probe GID   the index of the GID that all use
#include <infiniband/verbs.h>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr uint32_t kMtu = 1024;
constexpr uint32_t kLargest = 3 * kMtu - 7;  // first, middle and last packet, with a pad
constexpr std::array<uint32_t, 3> kSizes = {kLargest, 13, 0};
constexpr uint32_t kQkey = 0x11111111;
constexpr uint64_t kSendOps = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_WRITE;
constexpr uint32_t kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                             IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

int failures = 0;

void expect(bool good, const char* what) {
  if (good) return;
  ++failures;
  std::printf("%s failed\n", what);
}

/// What all queue pairs share. What is sent comes from the first half of the buffer and goes to the second.
struct Device {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* sends = nullptr;
  ibv_cq* receives = nullptr;
  ibv_xrcd* xrcd = nullptr;
  ibv_mr* mr = nullptr;
  ibv_gid gid{};
  uint8_t gid_index = 0;
  alignas(8) std::array<char, 2 * 4096> buffer{};

  bool open(uint8_t index) {
    gid_index = index;
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    if (list == nullptr || count == 0) return false;
    context = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    if (context == nullptr || ibv_query_gid(context, 1, gid_index, &gid) != 0) return false;
    pd = ibv_alloc_pd(context);
    sends = ibv_create_cq(context, 256, nullptr, nullptr, 0);
    receives = ibv_create_cq(context, 256, nullptr, nullptr, 0);
    ibv_xrcd_init_attr domain{};
    domain.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    domain.fd = -1;
    domain.oflags = O_CREAT;
    xrcd = ibv_open_xrcd(context, &domain);
    mr = ibv_reg_mr(pd, buffer.data(), buffer.size(), kAccess);
    return pd != nullptr && sends != nullptr && receives != nullptr && xrcd != nullptr && mr != nullptr;
  }
  ibv_sge from(uint32_t length) const { return {reinterpret_cast<uint64_t>(buffer.data()), length, mr->lkey}; }
  ibv_sge to(uint32_t length) const {
    return {reinterpret_cast<uint64_t>(buffer.data()) + buffer.size() / 2, length, mr->lkey};
  }
};
Device device;

/// The status of the next send.
ibv_wc_status next_status() {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(20);
  ibv_wc wc{};
  while (Clock::now() < end)
    if (ibv_poll_cq(device.sends, 1, &wc) == 1) return wc.status;
  return IBV_WC_RESP_TIMEOUT_ERR;
}

bool make_ready(ibv_qp* qp, ibv_qp_type type, uint32_t peer) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qkey = kQkey;
  attr.qp_access_flags = kAccess & ~IBV_ACCESS_LOCAL_WRITE & ~IBV_ACCESS_MW_BIND;
  const int last = type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
  if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | last) != 0) return false;
  const bool reliable = type != IBV_QPT_UD && type != IBV_QPT_UC;
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = peer;
  attr.max_dest_rd_atomic = 4;
  attr.min_rnr_timer = 12;  // 0.64 ms
  attr.ah_attr.is_global = 1;
  attr.ah_attr.grh.dgid = device.gid;
  attr.ah_attr.grh.sgid_index = device.gid_index;
  attr.ah_attr.port_num = 1;
  int mask = IBV_QP_STATE;
  if (type != IBV_QPT_UD) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (reliable && type != IBV_QPT_XRC_SEND) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  if (ibv_modify_qp(qp, &attr, mask) != 0) return false;
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 14;  // 67 ms
  attr.retry_cnt = 7;
  attr.rnr_retry = 7;
  attr.max_rd_atomic = 4;
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (reliable) mask |= IBV_QP_TIMEOUT;
  if (reliable && type != IBV_QPT_XRC_RECV) mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  return ibv_modify_qp(qp, &attr, mask) == 0;
}

/// A queue pair that sends, and one that receives what it sends.
struct Pair {
  ibv_qp* sender = nullptr;
  ibv_qp* receiver = nullptr;
  ibv_srq* srq = nullptr;  // of XRC
  uint32_t srqn = 0;

  explicit Pair(ibv_qp_type type) {
    const bool xrc = type == IBV_QPT_XRC_SEND;
    sender = create(type);
    receiver = create(xrc ? IBV_QPT_XRC_RECV : type);
    if (xrc) create_srq();
    expect(sender != nullptr && receiver != nullptr, "creating queue pairs");
    if (sender == nullptr || receiver == nullptr) return;
    expect(make_ready(receiver, xrc ? IBV_QPT_XRC_RECV : type, sender->qp_num), "making the receiver ready");
    expect(make_ready(sender, type, receiver->qp_num), "making the sender ready");
  }

  static ibv_qp* create(ibv_qp_type type) {
    ibv_qp_init_attr_ex init{};
    init.qp_type = type;
    init.sq_sig_all = 1;
    init.send_cq = device.sends;
    init.recv_cq = device.receives;
    init.comp_mask = type == IBV_QPT_XRC_RECV ? IBV_QP_INIT_ATTR_XRCD : IBV_QP_INIT_ATTR_PD;
    init.pd = device.pd;
    init.xrcd = device.xrcd;
    init.cap = {16, 16, 1, 1, 0};
    if (type == IBV_QPT_RC) {
      init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
      init.send_ops_flags = kSendOps;
    }
    return ibv_create_qp_ex(device.context, &init);
  }

  void create_srq() {
    ibv_srq_init_attr_ex init{};
    init.attr = {16, 1, 0};
    init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    init.srq_type = IBV_SRQT_XRC;
    init.pd = device.pd;
    init.xrcd = device.xrcd;
    init.cq = device.receives;
    srq = ibv_create_srq_ex(device.context, &init);
    expect(srq != nullptr && ibv_get_srq_num(srq, &srqn) == 0, "creating a shared receive queue");
  }

  void post_receive(ibv_sge sge) const {
    ibv_wc wc;
    while (ibv_poll_cq(device.receives, 1, &wc) > 0) {
    }
    ibv_recv_wr wr{};
    ibv_recv_wr* bad;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    expect((srq != nullptr ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(receiver, &wr, &bad)) == 0, "a receive");
  }

  ibv_send_wr request(ibv_wr_opcode opcode) const {
    ibv_send_wr wr{};
    wr.opcode = opcode;
    wr.imm_data = 0x01020304;
    wr.qp_type.xrc.remote_srqn = srqn;
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      wr.wr.atomic = {device.to(0).addr, 1, 2, device.mr->rkey};
    } else if (opcode != IBV_WR_SEND && opcode != IBV_WR_SEND_WITH_IMM) {
      wr.wr.rdma = {device.to(0).addr, device.mr->rkey};
    }
    return wr;
  }

  static ibv_wc_status run(ibv_qp* qp, ibv_send_wr wr, uint32_t length) {
    ibv_sge sge = device.from(length);
    ibv_send_wr* bad;
    if (wr.opcode != IBV_WR_BIND_MW) wr.sg_list = &sge;
    wr.num_sge = wr.opcode == IBV_WR_BIND_MW ? 0 : 1;
    return ibv_post_send(qp, &wr, &bad) == 0 ? next_status() : IBV_WC_GENERAL_ERR;
  }

  void send(const char* what, ibv_wr_opcode opcode, uint32_t length) const {
    expect(run(sender, request(opcode), length) == IBV_WC_SUCCESS, what);
  }

  /// A receive has completed.
  static bool received() {
    ibv_wc wc{};
    for (int tries = 0; tries < 100'000'000; ++tries)
      if (ibv_poll_cq(device.receives, 1, &wc) == 1) return wc.status == IBV_WC_SUCCESS;
    return false;
  }

  void destroy_receiver() {
    expect(ibv_destroy_qp(receiver) == 0, "destroying the receiver");
    receiver = nullptr;
  }

  ~Pair() {
    if (sender != nullptr) ibv_destroy_qp(sender);
    if (receiver != nullptr) ibv_destroy_qp(receiver);
    if (srq != nullptr) ibv_destroy_srq(srq);
  }
};

/// SEND and WRITE with all their parts.
void send_messages(const Pair& pair) {
  for (const uint32_t length : kSizes) {
    pair.post_receive(device.to(kLargest));
    pair.send("SEND", IBV_WR_SEND, length);
    pair.post_receive(device.to(kLargest));
    pair.send("SEND with immediate", IBV_WR_SEND_WITH_IMM, length);
    pair.send("WRITE", IBV_WR_RDMA_WRITE, length);
    pair.post_receive(device.to(kLargest));
    pair.send("WRITE with immediate", IBV_WR_RDMA_WRITE_WITH_IMM, length);
  }
}

/// READ and atomics with their answers.
void ask(const Pair& pair) {
  for (const uint32_t length : {kLargest, 2 * kMtu, 13u, 0u}) pair.send("READ", IBV_WR_RDMA_READ, length);
  pair.send("compare and swap", IBV_WR_ATOMIC_CMP_AND_SWP, 8);
  pair.send("fetch and add", IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
}

void atomic_write(const Pair& pair) {
  ibv_qp_ex* qp = ibv_qp_to_qp_ex(pair.sender);
  ibv_wr_start(qp);
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_atomic_write(qp, device.mr->rkey, device.to(0).addr, "1234567");
  expect(ibv_wr_complete(qp) == 0 && next_status() == IBV_WC_SUCCESS, "atomic WRITE");
}

/// Each takes a key away that the receiver has given for a window.
void send_and_invalidate(const Pair& pair) {
  for (const uint32_t length : {kLargest, 13u}) {
    ibv_mw* window = ibv_alloc_mw(device.pd, IBV_MW_TYPE_2);
    if (window == nullptr) return expect(false, "allocating a window");
    ibv_send_wr bind = pair.request(IBV_WR_BIND_MW);
    bind.bind_mw = {window, ibv_inc_rkey(window->rkey), {device.mr, device.to(0).addr, 64, IBV_ACCESS_REMOTE_READ}};
    expect(Pair::run(pair.receiver, bind, 0) == IBV_WC_SUCCESS, "binding a window");
    pair.post_receive(device.to(kLargest));
    ibv_send_wr wr = pair.request(IBV_WR_SEND_WITH_INV);
    wr.invalidate_rkey = bind.bind_mw.rkey;
    expect(Pair::run(pair.sender, wr, length) == IBV_WC_SUCCESS, "SEND with invalidate");
    ibv_dealloc_mw(window);
  }
}

void send_datagrams() {
  const Pair pair(IBV_QPT_UD);
  ibv_ah_attr attr{};
  attr.is_global = 1;
  attr.grh.dgid = device.gid;
  attr.grh.sgid_index = device.gid_index;
  attr.port_num = 1;
  ibv_ah* ah = ibv_create_ah(device.pd, &attr);
  for (const ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM}) {
    pair.post_receive(device.to(kLargest));
    ibv_send_wr wr = pair.request(opcode);
    wr.wr.ud = {ah, pair.receiver->qp_num, kQkey};
    expect(Pair::run(pair.sender, wr, 13) == IBV_WC_SUCCESS, "datagram");
  }
  ibv_destroy_ah(ah);
}

/// What the receiver refuses, each with a NAK of its own.
void be_refused() {
  {
    const Pair pair(IBV_QPT_RC);
    ibv_send_wr wr = pair.request(IBV_WR_RDMA_WRITE);
    wr.wr.rdma.rkey += 0x100000;
    expect(Pair::run(pair.sender, wr, 13) == IBV_WC_REM_ACCESS_ERR, "a WRITE with a wrong key");
  }
  {
    const Pair pair(IBV_QPT_RC);
    pair.post_receive(device.to(1));
    expect(Pair::run(pair.sender, pair.request(IBV_WR_SEND), 13) == IBV_WC_REM_INV_REQ_ERR, "a SEND that is too long");
  }
  {
    const Pair pair(IBV_QPT_RC);
    ibv_sge nowhere = device.to(64);
    nowhere.lkey += 0x100000;
    pair.post_receive(nowhere);
    expect(Pair::run(pair.sender, pair.request(IBV_WR_SEND), 13) == IBV_WC_REM_OP_ERR, "a SEND to a wrong key");
  }
  const Pair pair(IBV_QPT_RC);
  ibv_send_wr wr = pair.request(IBV_WR_SEND);
  ibv_sge sge = device.from(13);
  ibv_send_wr* bad;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  expect(ibv_post_send(pair.sender, &wr, &bad) == 0, "posting before a receive");
  constexpr useconds_t kLater = 20'000;  // the receiver has said by then that it is not ready
  usleep(kLater);                        // sleep: the receiver answers "not ready" within that time
  pair.post_receive(device.to(64));
  expect(next_status() == IBV_WC_SUCCESS, "a SEND before its receive");
}

/// What a receiver has taken is acknowledged, even if the receiver goes at once.
void leave() {
  for (int i = 0; i < 20; ++i) {
    Pair pair(IBV_QPT_RC);
    pair.post_receive(device.to(64));
    ibv_send_wr wr = pair.request(IBV_WR_SEND);
    ibv_sge sge = device.from(13);
    ibv_send_wr* bad;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    expect(ibv_post_send(pair.sender, &wr, &bad) == 0 && Pair::received(), "a SEND to one who goes");
    pair.destroy_receiver();
    expect(next_status() == IBV_WC_SUCCESS, "an acknowledgement by one who goes");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fputs("usage: wire_probe GID\n", stderr), 2;
  if (!device.open(static_cast<uint8_t>(std::strtoul(argv[1], nullptr, 0)))) return std::puts("no device"), 2;
  {
    const Pair pair(IBV_QPT_RC);
    send_messages(pair);
    ask(pair);
    atomic_write(pair);
    send_and_invalidate(pair);
    // Enough for what happens to one packet in many.
    for (int i = 0; i < 50; ++i) pair.send("WRITE", IBV_WR_RDMA_WRITE, kLargest);
  }
  {
    const Pair pair(IBV_QPT_XRC_SEND);
    send_messages(pair);
    ask(pair);
  }
  {
    const Pair pair(IBV_QPT_UC);
    send_messages(pair);
  }
  send_datagrams();
  be_refused();
  leave();
  return failures == 0 ? 0 : 1;
}
