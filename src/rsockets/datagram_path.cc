// SPDX-License-Identifier: Apache-2.0
#include "rsockets/datagram_path.h"
#include "rdmacm/private.h"
#include "progress/descriptors.h"

#include <netinet/in.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace nupa::rsockets {
namespace {

constexpr uint64_t kReceiveId = UINT64_C(1) << 62;
constexpr int kResolveMs = 2000;
constexpr uint32_t kQueueKey = RDMA_UDP_QKEY;

uint32_t mtu_bytes(uint8_t mtu_code) { return 128u << mtu_code; }

/// Waits for one event of the expected kind. Returns 0 or a negative errno.
int await(rdma_event_channel* channel, rdma_cm_event_type expected) {
  const auto deadline = progress::Deadline::in_ms(kResolveMs);
  rdma_cm_event* event;
  while (rdma_get_cm_event(channel, &event) != 0) {
    if (errno != EAGAIN && errno != EINTR) return -errno;
    if (const auto ready = progress::wait_readable(channel->fd, deadline); !ready) return -ready.error().code();
  }
  const int rc = event->event == expected ? 0 : -error_of(*event);
  rdma_ack_cm_event(event);
  return rc;
}

int gid_index(ibv_context* verbs, uint8_t port, const ibv_gid& gid, const ibv_port_attr& attr) {
  int first = 0;
  bool any = false;
  for (int i = 0; i < attr.gid_tbl_len; ++i) {
    ibv_gid_entry entry;
    if (ibv_query_gid_ex(verbs, port, static_cast<uint32_t>(i), &entry, 0) != 0) continue;
    if (std::memcmp(&entry.gid, &gid, sizeof gid) != 0) continue;
    if (entry.gid_type == IBV_GID_TYPE_ROCE_V2) return i;
    if (!any) first = i;
    any = true;
  }
  return first;
}

}  // namespace

std::unique_ptr<DatagramPath> DatagramPath::make(const sockaddr_storage& local, const Sizes& sizes) {
  std::unique_ptr<DatagramPath> path(new (std::nothrow) DatagramPath);
  if (!path) {
    errno = ENOMEM;
    return nullptr;
  }
  path->local_ = local;
  path->header_ = header_of(local);
  const int rc = path->open(sizes);
  if (rc == 0) return path;
  path.reset();
  errno = -rc;
  return nullptr;
}

int DatagramPath::open(const Sizes& sizes) {
  sizes_ = sizes;
  int rc = channel_.open();
  if (rc != 0) return rc;
  if (rdma_create_id(channel_.get(), &id_, nullptr, RDMA_PS_UDP) != 0) {
    id_ = nullptr;
    return -errno;
  }
  // The UDP socket has the port. Here any port will do, as peers learn the queue pair's number.
  sockaddr_storage address = local_;
  (address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port
                                : reinterpret_cast<sockaddr_in6&>(address).sin6_port) = 0;
  if (rdma_bind_addr(id_, reinterpret_cast<sockaddr*>(&address)) != 0) return -errno;
  // An id that is bound to a loopback address has no device.
  if (id_->verbs == nullptr && nupa_rdmacm_use_stand_in(id_) != 0) return -errno;
  if (id_->verbs == nullptr) return -ENODEV;
  rc = source_.open(id_->verbs, static_cast<int>(sizes.send_requests + sizes.receive_requests));
  if (rc != 0) return rc;
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = source_.cq();
  attr.qp_type = IBV_QPT_UD;
  attr.sq_sig_all = 1;
  attr.cap.max_send_wr = sizes.send_requests;
  attr.cap.max_recv_wr = sizes.receive_requests;
  attr.cap.max_send_sge = 1;
  attr.cap.max_recv_sge = 1;
  attr.cap.max_inline_data = sizes.inline_bytes;
  if (rdma_create_qp(id_, nullptr, &attr) != 0) return -errno;
  sizes_.inline_bytes = attr.cap.max_inline_data;

  const size_t send_bytes = size_t{sizes.send_requests} * kLowWater;
  memory_bytes_ = send_bytes + size_t{sizes.receive_requests} * kReceiveSlot;
  void* memory = mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return -errno;
  memory_ = send_memory_ = static_cast<std::byte*>(memory);
  receive_memory_ = memory_ + send_bytes;
  region_ = ibv_reg_mr(id_->pd, memory_, memory_bytes_, IBV_ACCESS_LOCAL_WRITE);
  if (region_ == nullptr) return -errno;
  for (uint32_t slot = 0; slot < sizes.send_requests; ++slot) free_.push_back(slot);
  for (uint32_t slot = 0; slot < sizes.receive_requests; ++slot) {
    rc = post_receive(slot);
    if (rc != 0) return -rc;
  }
  return 0;
}

DatagramPath::~DatagramPath() {
  if (id_ != nullptr && id_->qp != nullptr) rdma_destroy_qp(id_);
  if (region_ != nullptr) ibv_dereg_mr(region_);
  if (memory_ != nullptr) munmap(memory_, memory_bytes_);
  source_.close();
  if (id_ != nullptr) rdma_destroy_id(id_);
}

int DatagramPath::post_receive(uint32_t slot) {
  ibv_sge list{};
  list.addr = reinterpret_cast<uintptr_t>(receive_memory_) + size_t{slot} * kReceiveSlot;
  list.length = kReceiveSlot;
  list.lkey = region_->lkey;
  ibv_recv_wr wr{};
  wr.wr_id = kReceiveId | slot;
  wr.sg_list = &list;
  wr.num_sge = 1;
  ibv_recv_wr* bad;
  return ibv_post_recv(id_->qp, &wr, &bad);
}

int DatagramPath::send(uint32_t length, ibv_ah* ah, uint32_t queue_pair) {
  ibv_sge list{};
  list.addr = reinterpret_cast<uintptr_t>(next());
  list.length = length;
  list.lkey = region_->lkey;
  ibv_send_wr wr{};
  wr.wr_id = free_.back();
  wr.sg_list = &list;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  if (length <= sizes_.inline_bytes) wr.send_flags = IBV_SEND_INLINE;
  wr.wr.ud.ah = ah;
  wr.wr.ud.remote_qpn = queue_pair;
  wr.wr.ud.remote_qkey = kQueueKey;
  ibv_send_wr* bad;
  const int rc = ibv_post_send(id_->qp, &wr, &bad);
  if (rc != 0) return -rc;
  free_.pop_back();
  return 0;
}

bool DatagramPath::poll(Arrival* arrival) {
  ibv_wc completion;
  while (ibv_poll_cq(source_.cq(), 1, &completion) > 0) {
    const auto slot = static_cast<uint32_t>(completion.wr_id);
    if ((completion.wr_id & kReceiveId) == 0) {
      free_.push_back(slot);
    } else if (completion.status != IBV_WC_SUCCESS || completion.byte_len < kGrh) {
      if (completion.status != IBV_WC_WR_FLUSH_ERR) post_receive(slot);
    } else {
      arrival->slot = slot;
      arrival->data = receive_memory_ + size_t{slot} * kReceiveSlot + kGrh;
      arrival->length = completion.byte_len - kGrh;
      return true;
    }
  }
  return false;
}

void DatagramPath::give_back(uint32_t slot) { post_receive(slot); }

ibv_ah* DatagramPath::resolve(const sockaddr_storage& peer, uint32_t* limit) const {
  EventChannel channel;
  rdma_cm_id* id = nullptr;
  sockaddr_storage from = local_;
  (from.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(from).sin_port
                             : reinterpret_cast<sockaddr_in6&>(from).sin6_port) = 0;
  sockaddr_storage to = peer;
  int rc = channel.open();
  if (rc == 0 && rdma_create_id(channel.get(), &id, nullptr, RDMA_PS_UDP) != 0) rc = -errno;
  if (rc != 0) {
    errno = -rc;
    return nullptr;
  }
  auto* source = reinterpret_cast<sockaddr*>(&from);
  rc = rdma_resolve_addr(id, source, reinterpret_cast<sockaddr*>(&to), kResolveMs) != 0 ? -errno : 0;
  if (rc == 0) rc = await(channel.get(), RDMA_CM_EVENT_ADDR_RESOLVED);
  if (rc == 0 && rdma_resolve_route(id, kResolveMs) != 0) rc = -errno;
  if (rc == 0) rc = await(channel.get(), RDMA_CM_EVENT_ROUTE_RESOLVED);
  ibv_ah* ah = nullptr;
  ibv_port_attr port;
  if (rc == 0 && id->route.num_paths > 0 && ibv_query_port(id_->verbs, id_->port_num, &port) == 0) {
    const ibv_sa_path_rec& path = id->route.path_rec[0];
    *limit = std::min(kLowWater, mtu_bytes(path.mtu));
    ibv_ah_attr attr{};
    if (path.hop_limit > 1 || port.link_layer == IBV_LINK_LAYER_ETHERNET) {
      attr.is_global = 1;
      attr.grh.dgid = path.dgid;
      attr.grh.flow_label = be32toh(path.flow_label);
      attr.grh.sgid_index = static_cast<uint8_t>(gid_index(id_->verbs, id_->port_num, path.sgid, port));
      attr.grh.hop_limit = path.hop_limit;
      attr.grh.traffic_class = path.traffic_class;
    }
    attr.dlid = be16toh(path.dlid);
    attr.sl = path.sl;
    attr.src_path_bits = static_cast<uint8_t>(be16toh(path.slid) & ((1u << port.lmc) - 1));
    attr.static_rate = path.rate;
    attr.port_num = id_->port_num;
    ah = ibv_create_ah(id_->pd, &attr);
    if (ah == nullptr) rc = -errno;
  }
  rdma_destroy_id(id);
  if (ah == nullptr) errno = rc != 0 ? -rc : EHOSTUNREACH;
  return ah;
}

}  // namespace nupa::rsockets
