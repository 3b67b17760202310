// SPDX-License-Identifier: Apache-2.0
#pragma once
/// An rsockets peer made by hand: an rdma_cm id with a queue pair of its own, whose messages are chosen by the test.
/// The test reads each message of the rsocket, and can send messages that no rsocket sends.
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <sys/mman.h>

#include <array>
#include <optional>

#include "rsockets/wire.h"
#include "api_support.h"

namespace nupa::rsockets_test {

using rsockets::ConnectData;
using rsockets::Control;
using rsockets::encode;
using rsockets::Op;
using rsockets::RemoteBuffer;
using rsockets::RemoteMapping;

class Peer {
 public:
  static constexpr size_t kTargetEntries = 8;
  static constexpr size_t kMappingEntries = 8;
  static constexpr size_t kDataBytes = 1 << 20;
  static constexpr uint32_t kReceives = 512;
  static constexpr uint32_t kSends = 512;

  /// What the rsocket writes into.
  struct Memory {
    RemoteBuffer targets[kTargetEntries];
    RemoteMapping mappings[kMappingEntries];
    char data[kDataBytes];
    char outgoing[kDataBytes];
  };

  Peer() : channel_(rdma_create_event_channel()) {
    memory_ =
        static_cast<Memory*>(mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~Peer() {
    if (event_ != nullptr) rdma_ack_cm_event(event_);
    if (qp_ != nullptr) ibv_destroy_qp(qp_);
    if (region_ != nullptr) ibv_dereg_mr(region_);
    if (send_cq_ != nullptr) ibv_destroy_cq(send_cq_);
    if (receive_cq_ != nullptr) ibv_destroy_cq(receive_cq_);
    if (id_ != nullptr) rdma_destroy_id(id_);
    if (listener_ != nullptr) rdma_destroy_id(listener_);
    rdma_destroy_event_channel(channel_);
    munmap(memory_, sizeof(Memory));
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  Memory& memory() { return *memory_; }
  /// What the rsocket said of itself, in host order.
  const ConnectData& theirs() const { return theirs_; }
  RemoteBuffer their_targets() const { return rsockets::from_network(theirs_.targets); }
  RemoteBuffer their_buffer() const { return rsockets::from_network(theirs_.first); }
  uint16_t their_credits() const { return be16toh(theirs_.credits); }

  /// As an rsocket with the whole of data as its first target buffer, and many credits. Filled in by connect/accept:
  /// addresses and keys.
  ConnectData mine = [] {
    ConnectData data{};
    data.version = rsockets::kConnectVersion;
    data.flags = rsockets::kConnectMappings;
    data.credits = htobe16(400);
    data.mappings = 4;
    data.targets.length = htobe32(2);
    data.first.length = htobe32(kDataBytes);
    return data;
  }();

  /// How often the rsocket asks again when nothing answers.
  uint8_t retries = 7;
  /// Messages that it is ready for. The rsocket repeats one more until next_message() has taken one.
  uint32_t receives = kReceives;

  // To an rsocket that listens.

  /// Asks for a connection. The event that answers it: RDMA_CM_EVENT_CONNECT_RESPONSE or a rejection.
  int ask(const sockaddr_in& address, int rnr_retries = 7) {
    rnr_retries_ = rnr_retries;
    if (rdma_create_id(channel_, &id_, nullptr, RDMA_PS_TCP) != 0) return -1;
    sockaddr_in to = address;
    if (rdma_resolve_addr(id_, nullptr, reinterpret_cast<sockaddr*>(&to), kSoonMs) != 0) return -1;
    if (next_event() != RDMA_CM_EVENT_ADDR_RESOLVED || rdma_resolve_route(id_, kSoonMs) != 0) return -1;
    if (next_event() != RDMA_CM_EVENT_ROUTE_RESOLVED || !make_queues()) return -1;
    rdma_conn_param param = connect_param();
    if (rdma_connect(id_, &param) != 0) return -1;
    return next_event();
  }
  /// Confirms what ask() was answered with.
  bool confirm() {
    take_their_data();
    return bring_up() && rdma_establish(id_) == 0;
  }
  bool connect(const sockaddr_in& address, int rnr_retries = 7) {
    return ask(address, rnr_retries) == RDMA_CM_EVENT_CONNECT_RESPONSE && confirm();
  }
  int reject() { return rdma_reject(id_, nullptr, 0); }

  // From an rsocket that connects.

  /// The address that rsockets connect to; its port, in network order, is any if none is given.
  sockaddr_in listen(in_port_t port = 0) {
    sockaddr_in address = loopback(0);
    address.sin_port = port;
    EXPECT_EQ(rdma_create_id(channel_, &listener_, nullptr, RDMA_PS_TCP), 0);
    EXPECT_EQ(rdma_bind_addr(listener_, reinterpret_cast<sockaddr*>(&address)), 0);
    EXPECT_EQ(rdma_listen(listener_, 8), 0);
    address.sin_port = rdma_get_src_port(listener_);
    return address;
  }
  /// Waits for the request.
  bool requested() {
    if (next_event() != RDMA_CM_EVENT_CONNECT_REQUEST) return false;
    id_ = event_->id;
    take_their_data();
    return true;
  }
  bool accept() {
    drop_event();
    if (!make_queues() || !bring_up()) return false;
    rdma_conn_param param = connect_param();
    return rdma_accept(id_, &param) == 0;
  }
  void refuse() {
    drop_event();
    EXPECT_EQ(rdma_reject(id_, nullptr, 0), 0);
  }
  bool established() { return next_event() == RDMA_CM_EVENT_ESTABLISHED; }

  /// The next event's type, which stays until the one after it; -1: none came.
  int next_event() {
    drop_event();
    pollfd wanted{channel_->fd, POLLIN, 0};
    if (::poll(&wanted, 1, kSoonMs) != 1 || rdma_get_cm_event(channel_, &event_) != 0) return -1;
    return event_->event;
  }
  bool has_event() {
    pollfd wanted{channel_->fd, POLLIN, 0};
    return ::poll(&wanted, 1, 0) == 1;
  }
  /// Answers nothing any more, and says nothing of it.
  void fall_silent() {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    EXPECT_EQ(ibv_modify_qp(qp_, &attr, IBV_QP_STATE), 0);
  }
  /// Ends the connection without a word of rsockets.
  void disconnect() { EXPECT_EQ(rdma_disconnect(id_), 0); }

  // Messages.

  /// The next message of the rsocket; nothing: none came in time.
  std::optional<uint32_t> next_message() {
    std::optional<uint32_t> message;
    await([&] {
      message = message_now();
      return message.has_value();
    });
    return message;
  }
  /// Nothing: none has come so far.
  std::optional<uint32_t> message_now() {
    ibv_wc wc;
    if (ibv_poll_cq(receive_cq_, 1, &wc) != 1 || wc.status != IBV_WC_SUCCESS) return std::nullopt;
    EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    post_receives(1);
    return be32toh(wc.imm_data);
  }
  /// Writes bytes at the rsocket, with a message if there is one. How it ended.
  ibv_wc_status write(const void* bytes, uint32_t length, uint64_t addr, uint32_t key,
                      std::optional<uint32_t> message = {}) {
    if (length != 0) std::memcpy(memory_->outgoing, bytes, length);
    ibv_sge piece{reinterpret_cast<uintptr_t>(memory_->outgoing), length, region_->lkey};
    ibv_send_wr wr{};
    wr.opcode = message ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    if (length != 0) {
      wr.sg_list = &piece;
      wr.num_sge = 1;
    }
    if (message) wr.imm_data = htobe32(*message);
    wr.wr.rdma.remote_addr = addr;
    wr.wr.rdma.rkey = key;
    ibv_send_wr* bad;
    if (ibv_post_send(qp_, &wr, &bad) != 0) return IBV_WC_GENERAL_ERR;
    ibv_wc wc{};
    wc.status = IBV_WC_RESP_TIMEOUT_ERR;
    await([&] { return ibv_poll_cq(send_cq_, 1, &wc) == 1; });
    return wc.status;
  }
  ibv_wc_status send(uint32_t message) { return write(nullptr, 0, 0, 0, message); }
  /// Data into the rsocket's first target buffer, at an offset.
  ibv_wc_status send_data(const std::string& data, uint32_t at = 0) {
    const RemoteBuffer to = their_buffer();
    return write(data.data(), static_cast<uint32_t>(data.size()), to.addr + at, to.key,
                 encode(Op::kData, static_cast<uint32_t>(data.size())));
  }
  /// An entry of the rsocket's table of target buffers.
  ibv_wc_status write_target(uint32_t index, const RemoteBuffer& entry) {
    const RemoteBuffer to = their_targets();
    return write(&entry, sizeof entry, to.addr + index * sizeof entry, to.key);
  }
  /// An entry of the rsocket's table of mapped buffers, which lies behind the other one.
  ibv_wc_status write_mapping(uint32_t index, const RemoteMapping& entry) {
    const RemoteBuffer to = their_targets();
    return write(&entry, sizeof entry, to.addr + to.length * sizeof(RemoteBuffer) + index * sizeof entry, to.key);
  }
  uint64_t data_addr() const { return reinterpret_cast<uintptr_t>(memory_->data); }
  uint32_t key() const { return region_->rkey; }

 private:
  void drop_event() {
    if (event_ != nullptr) rdma_ack_cm_event(event_);
    event_ = nullptr;
  }
  void take_their_data() {
    const rdma_conn_param& seen = event_->param.conn;
    ASSERT_GE(seen.private_data_len, sizeof theirs_);
    std::memcpy(&theirs_, seen.private_data, sizeof theirs_);
  }
  bool make_queues() {
    region_ = ibv_reg_mr(id_->pd, memory_, sizeof(Memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    send_cq_ = ibv_create_cq(id_->verbs, kSends, nullptr, nullptr, 0);
    receive_cq_ = ibv_create_cq(id_->verbs, kReceives, nullptr, nullptr, 0);
    if (region_ == nullptr || send_cq_ == nullptr || receive_cq_ == nullptr) return false;
    ibv_qp_init_attr attr{};
    attr.qp_type = IBV_QPT_RC;
    attr.send_cq = send_cq_;
    attr.recv_cq = receive_cq_;
    attr.cap.max_send_wr = kSends;
    attr.cap.max_recv_wr = kReceives;
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    qp_ = ibv_create_qp(id_->pd, &attr);
    return qp_ != nullptr && move(IBV_QPS_INIT) && post_receives(receives);
  }
  rdma_conn_param connect_param() {
    mine.targets.addr = htobe64(reinterpret_cast<uintptr_t>(memory_->targets));
    mine.targets.key = htobe32(region_->rkey);
    if (mine.first.addr == 0) mine.first.addr = htobe64(data_addr());
    if (mine.first.key == 0) mine.first.key = htobe32(region_->rkey);
    rdma_conn_param param{};
    param.private_data = &mine;
    param.private_data_len = sizeof mine;
    param.qp_num = qp_->qp_num;
    param.retry_count = retries;
    param.rnr_retry_count = 7;
    return param;
  }
  bool move(ibv_qp_state state) {
    ibv_qp_attr attr{};
    int mask = 0;
    attr.qp_state = state;
    if (rdma_init_qp_attr(id_, &attr, &mask) != 0) return false;
    if ((mask & IBV_QP_ACCESS_FLAGS) != 0) attr.qp_access_flags |= IBV_ACCESS_REMOTE_WRITE;
    if ((mask & IBV_QP_RNR_RETRY) != 0) attr.rnr_retry = static_cast<uint8_t>(rnr_retries_);
    return ibv_modify_qp(qp_, &attr, mask) == 0;
  }
  bool bring_up() { return move(IBV_QPS_RTR) && move(IBV_QPS_RTS); }
  bool post_receives(uint32_t count) {
    ibv_recv_wr wr{};
    ibv_recv_wr* bad;
    for (uint32_t i = 0; i < count; ++i) {
      if (ibv_post_recv(qp_, &wr, &bad) != 0) return false;
    }
    return true;
  }

  rdma_event_channel* channel_;
  rdma_cm_id* listener_ = nullptr;
  rdma_cm_id* id_ = nullptr;
  rdma_cm_event* event_ = nullptr;
  Memory* memory_;
  ibv_mr* region_ = nullptr;
  ibv_cq* send_cq_ = nullptr;
  ibv_cq* receive_cq_ = nullptr;
  ibv_qp* qp_ = nullptr;
  int rnr_retries_ = 7;
  ConnectData theirs_{};
};

}  // namespace nupa::rsockets_test
