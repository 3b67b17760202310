// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Tests of the drop-in as a program sees it: through verbs.h and the shared library. They are built into verbs_tests,
/// which links the drop-in.
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <poll.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace nupa::test {

/// How long something is waited for that has to come; only a test that fails waits so long.
constexpr std::chrono::seconds kTimeout{10};

inline bool runs_over(const char* name) {
  const char* transport = std::getenv("NUPA_TRANSPORT");
  return transport != nullptr && std::strcmp(transport, name) == 0;
}

/// Requests leave as packets or records: what they do is seen some time after the post, not when it returns.
inline bool sends_packets() { return runs_over("roce") || runs_over("pool"); }

/// Packets leave by network interfaces, through sockets: a packet may be lost, and each interface joins a group.
inline bool uses_network() { return runs_over("roce"); }

/// A post has copied its data when it returns, so inline data may have any length.
inline bool copies_in_post() { return !sends_packets(); }

/// Whether packets can come from a GID of IPv6: an address of an interface.
inline bool is_own_address(const ibv_gid& gid) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return false;
  bool found = false;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next)
    found = found || (at->ifa_addr != nullptr && at->ifa_addr->sa_family == AF_INET6 &&
                      std::memcmp(&reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr, &gid, 16) == 0);
  freeifaddrs(list);
  return found;
}

/// The place in the list of the device of the network interfaces. The device of a pool, which has the pool's address
/// alone, comes before it.
inline int place_of_network_device() {
  ibv_device** list = ibv_get_device_list(nullptr);
  int place = 0;
  while (list != nullptr && list[place] != nullptr && std::strcmp(ibv_get_device_name(list[place]), "nupa0") != 0)
    ++place;
  if (list != nullptr) ibv_free_device_list(list);
  return place;
}

/// The device, opened, with a protection domain and a completion queue.
class Verbs : public ::testing::Test {
 protected:
  static constexpr int kQueueLength = 64;
  static constexpr int kWholeAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                      IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

  void SetUp() override {
    ibv_device** list = ibv_get_device_list(nullptr);
    ASSERT_NE(list, nullptr);
    for (int i = 0; i <= place; ++i) ASSERT_NE(list[i], nullptr);
    context = ibv_open_device(list[place]);
    ibv_free_device_list(list);
    ASSERT_NE(context, nullptr) << std::strerror(errno);
    pd = ibv_alloc_pd(context);
    ASSERT_NE(pd, nullptr);
    cq = ibv_create_cq(context, 4 * kQueueLength, this, nullptr, 0);
    ASSERT_NE(cq, nullptr);
  }

  void TearDown() override {
    for (ibv_qp* qp : qps) EXPECT_EQ(ibv_destroy_qp(qp), 0);
    for (ibv_mr* mr : mrs) EXPECT_EQ(ibv_dereg_mr(mr), 0);
    if (cq != nullptr) {
      EXPECT_EQ(ibv_destroy_cq(cq), 0);
    }
    if (pd != nullptr) {
      EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    }
    if (context != nullptr) {
      EXPECT_EQ(ibv_close_device(context), 0);
    }
  }

  ibv_mr* reg(void* addr, size_t length, int access = kWholeAccess) {
    ibv_mr* mr = ibv_reg_mr(pd, addr, length, access);
    if (mr != nullptr) mrs.push_back(mr);
    return mr;
  }

  ibv_qp_init_attr init(ibv_qp_type type = IBV_QPT_RC) {
    ibv_qp_init_attr attr{};
    attr.qp_context = this;
    attr.send_cq = attr.recv_cq = cq;
    attr.cap = {kQueueLength, kQueueLength, 4, 4, 256};
    attr.qp_type = type;
    return attr;
  }

  ibv_qp* make_qp(ibv_qp_type type = IBV_QPT_RC) {
    ibv_qp_init_attr attr = init(type);
    return keep(ibv_create_qp(pd, &attr));
  }

  /// A queue pair with the ibv_wr_* calls for `operations`.
  ibv_qp* make_builder_qp(uint64_t operations, ibv_qp_type type = IBV_QPT_RC) {
    const ibv_qp_init_attr plain = init(type);
    ibv_qp_init_attr_ex attr{};
    std::memcpy(&attr, &plain, offsetof(ibv_qp_init_attr, sq_sig_all));
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.pd = pd;
    attr.send_ops_flags = operations;
    return keep(ibv_create_qp_ex(context, &attr));
  }

  ibv_qp* keep(ibv_qp* qp) {
    if (qp != nullptr) qps.push_back(qp);
    return qp;
  }

  static bool has_gid(ibv_context* of, uint32_t index) {
    ibv_gid_entry entry;
    return ibv_query_gid_ex(of, 1, index, &entry, 0) == 0;
  }

  /// From this device to itself, or to `towards`: by the first GID, which on the wire has to be an address. The second
  /// one is always an address; the device of a pool has only one GID, which leads to the pool.
  ibv_ah_attr path() {
    ibv_ah_attr attr{};
    attr.is_global = 1;
    attr.port_num = 1;
    attr.grh.hop_limit = 1;
    EXPECT_EQ(ibv_query_gid(context, 1, 0, &attr.grh.dgid), 0);
    if (towards != nullptr || (sends_packets() && !is_own_address(attr.grh.dgid) && has_gid(context, 1))) {
      attr.grh.sgid_index = 1;
      EXPECT_EQ(ibv_query_gid(towards != nullptr ? towards : context, 1, 1, &attr.grh.dgid), 0);
    }
    return attr;
  }

  int to_init(ibv_qp* qp) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qkey = kQkey;
    attr.qp_access_flags = qp_access;
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                             (qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
  }

  int to_rts(ibv_qp* qp, uint32_t peer, bool only_rtr = false) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_4096;
    attr.dest_qp_num = peer;
    attr.max_dest_rd_atomic = responder_depth;
    attr.min_rnr_timer = min_rnr_timer;
    attr.ah_attr = path();
    // The attributes of each step: for all, for the connected services, for the reliable ones (IBTA table 91).
    const bool connected = qp->qp_type != IBV_QPT_UD;
    const bool reliable = connected && qp->qp_type != IBV_QPT_UC;
    int mask = IBV_QP_STATE;
    if (connected) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (reliable) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    if (const int error = ibv_modify_qp(qp, &attr, mask); error != 0 || only_rtr) return error;
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = timeout;
    attr.retry_cnt = 7;
    attr.rnr_retry = rnr_retry;
    attr.max_rd_atomic = initiator_depth;
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (reliable) mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    return ibv_modify_qp(qp, &attr, mask);
  }

  void connect(ibv_qp* a, ibv_qp* b) {
    ASSERT_NE(a, nullptr);
    ASSERT_NE(b, nullptr);
    ASSERT_EQ(to_init(a), 0);
    if (a != b) {
      ASSERT_EQ(to_init(b), 0);
    }
    ASSERT_EQ(to_rts(a, b->qp_num), 0);
    if (a != b) {
      ASSERT_EQ(to_rts(b, a->qp_num), 0);
    }
  }

  int post_recv(ibv_qp* qp, uint64_t wr_id, void* addr, uint32_t length, uint32_t lkey) {
    ibv_sge sge{reinterpret_cast<uint64_t>(addr), length, lkey};
    ibv_recv_wr wr{};
    wr.wr_id = wr_id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp, &wr, &bad);
  }

  /// A request of one entry; opcode, keys and flags are the caller's to add.
  ibv_send_wr request(ibv_wr_opcode opcode, uint64_t wr_id, ibv_sge* sge) {
    ibv_send_wr wr{};
    wr.wr_id = wr_id;
    wr.sg_list = sge;
    wr.num_sge = sge == nullptr ? 0 : 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    return wr;
  }
  int post(ibv_qp* qp, ibv_send_wr wr) {
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &wr, &bad);
  }

  int move(ibv_qp* qp, ibv_qp_state state) {
    ibv_qp_attr attr{};
    attr.qp_state = state;
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
  }

  ibv_qp_state state_of(ibv_qp* qp) {
    ibv_qp_attr attr{};
    ibv_qp_init_attr made{};
    EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &made), 0);
    return attr.qp_state;
  }
  /// Whether the queue pair reaches the state: a peer's fault is told to its owner in the background.
  bool reaches(ibv_qp* qp, ibv_qp_state state) {
    const auto end = std::chrono::steady_clock::now() + kTimeout;
    while (state_of(qp) != state)
      if (std::chrono::steady_clock::now() > end) return false;
    return true;
  }

  /// Waits for an asynchronous event and acknowledges it; kNoEvent: none came.
  ibv_async_event next_event(int wait_ms = std::chrono::milliseconds(kTimeout).count()) {
    ibv_async_event event{};
    event.event_type = kNoEvent;
    pollfd ready{context->async_fd, POLLIN, 0};
    if (poll(&ready, 1, wait_ms) != 1 || ibv_get_async_event(context, &event) != 0) return event;
    ibv_ack_async_event(&event);
    return event;
  }

  /// Whether an event comes that ibv_get_cq_event() can take.
  bool becomes_readable(ibv_comp_channel* channel) {
    pollfd ready{channel->fd, POLLIN, 0};
    return poll(&ready, 1, std::chrono::milliseconds(kTimeout).count()) == 1;
  }

  /// Nothing comes for some milliseconds.
  bool stays_empty(ibv_cq* from) {
    ibv_wc wc;
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    while (std::chrono::steady_clock::now() < end)
      if (ibv_poll_cq(from, 1, &wc) != 0) return false;
    return true;
  }

  /// Waits for one completion; status kNoCompletion: none came.
  ibv_wc next(ibv_cq* from) {
    ibv_wc wc{};
    const auto end = std::chrono::steady_clock::now() + kTimeout;
    while (std::chrono::steady_clock::now() < end)
      if (ibv_poll_cq(from, 1, &wc) == 1) return wc;
    wc.status = kNoCompletion;
    return wc;
  }
  ibv_wc next() { return next(cq); }

  static constexpr uint32_t kQkey = 0x11;
  // Of services that this device has not: never told by it.
  static constexpr ibv_event_type kNoEvent = IBV_EVENT_WQ_FATAL;
  static constexpr ibv_wc_status kNoCompletion = IBV_WC_TM_ERR;
  // What connect() asks for; set before it.
  unsigned int qp_access = kWholeAccess & ~IBV_ACCESS_MW_BIND;
  uint8_t timeout = 14;         ///< 67 ms: a request that nobody answers ends after half a second
  uint8_t rnr_retry = 7;        ///< for ever
  uint8_t min_rnr_timer = 1;    ///< 10 us
  uint8_t initiator_depth = 4;  ///< READs and atomics under way
  uint8_t responder_depth = 4;
  int place = 0;                   ///< of the device in the list
  ibv_context* towards = nullptr;  ///< the other end's device; null: the own one
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  std::vector<ibv_qp*> qps;
  std::vector<ibv_mr*> mrs;
};

/// The same with the device of the network interfaces, which has several addresses, IPv4 ones among them.
class VerbsOfNetworks : public Verbs {
 protected:
  void SetUp() override {
    place = place_of_network_device();
    Verbs::SetUp();
  }
};

/// Two queue pairs, `a` and `b`, with a completion queue each, and memory that both may use.
class VerbsPair : public Verbs {
 protected:
  void SetUp() override {
    Verbs::SetUp();
    other_cq = ibv_create_cq(context, 4 * kQueueLength, nullptr, nullptr, 0);
    ASSERT_NE(other_cq, nullptr);
    mr = reg(memory, sizeof memory);
    ASSERT_NE(mr, nullptr);
  }
  void TearDown() override {
    for (ibv_qp* qp : qps) EXPECT_EQ(ibv_destroy_qp(qp), 0);
    qps.clear();
    if (srq != nullptr) {
      EXPECT_EQ(ibv_destroy_srq(srq), 0);
    }
    if (other_cq != nullptr) {
      EXPECT_EQ(ibv_destroy_cq(other_cq), 0);
    }
    Verbs::TearDown();
  }

  void make_pair(ibv_qp_type type = IBV_QPT_RC) {
    a = make_qp(type);
    ibv_qp_init_attr attr = init(type);
    attr.send_cq = attr.recv_cq = other_cq;
    attr.srq = srq;
    b = keep(ibv_create_qp(pd, &attr));
    connect(a, b);
  }

  /// When this returns, what was posted before has come to where it goes: on the wire it was in front of this.
  void catch_up() {
    ibv_cq* own = ibv_create_cq(context, 1, nullptr, nullptr, 0);
    ibv_qp_init_attr attr = init();
    attr.send_cq = attr.recv_cq = own;
    ibv_qp* loop = ibv_create_qp(pd, &attr);
    connect(loop, loop);
    ASSERT_EQ(post(loop, request(IBV_WR_RDMA_WRITE, 1, nullptr)), 0);
    EXPECT_EQ(next(own).status, IBV_WC_SUCCESS);
    EXPECT_EQ(ibv_destroy_qp(loop), 0);
    EXPECT_EQ(ibv_destroy_cq(own), 0);
  }

  uint64_t address(size_t offset) { return reinterpret_cast<uint64_t>(memory + offset); }
  ibv_sge span(size_t offset, uint32_t length) { return {address(offset), length, mr->lkey}; }
  int receive(ibv_qp* qp, uint64_t wr_id, size_t offset, uint32_t length) {
    return post_recv(qp, wr_id, memory + offset, length, mr->lkey);
  }
  ibv_send_wr remote(ibv_wr_opcode opcode, uint64_t wr_id, ibv_sge* sge, size_t offset) {
    ibv_send_wr wr = request(opcode, wr_id, sge);
    wr.wr.rdma = {address(offset), mr->rkey};
    return wr;
  }

  alignas(4096) char memory[16384] = {};
  ibv_mr* mr = nullptr;
  ibv_cq* other_cq = nullptr;  ///< of `b`
  ibv_srq* srq = nullptr;      ///< if set before make_pair(), `b` receives from it
  ibv_qp* a = nullptr;
  ibv_qp* b = nullptr;
};

}  // namespace nupa::test
