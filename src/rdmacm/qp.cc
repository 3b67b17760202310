// SPDX-License-Identifier: Apache-2.0
/// Queue pairs of ids. They are made with defaults for what the program leaves out, and moved through their states with
/// the agreed parameters.
#include <algorithm>
#include <cstring>

#include "base/reason.h"
#include "rdmacm/id.h"

namespace nupa::rdmacm {
namespace {

constexpr uint8_t kRnrTimer = 12;  // 0.64 ms (IBTA table 45)

bool is_initiator(ibv_qp_type type) { return type != IBV_QPT_XRC_RECV; }
bool is_responder(ibv_qp_type type) { return type != IBV_QPT_XRC_SEND; }
bool is_reliable(ibv_qp_type type) { return type != IBV_QPT_UC && type != IBV_QPT_UD; }

void fill_init(const Id& id, ibv_qp_attr* attr, int* mask) {
  attr->pkey_index = 0;
  attr->port_num = 1;
  *mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  if (id.is_datagram()) {
    attr->qkey = id.qkey;
    *mask |= IBV_QP_QKEY;
    return;
  }
  attr->qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  if (id.responder_resources > 0) attr->qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  if (!id.agreed) attr->qp_access_flags = 0;
  *mask |= IBV_QP_ACCESS_FLAGS;
}

void fill_to_rtr(const Id& id, ibv_qp_attr* attr, int* mask) {
  *mask = IBV_QP_STATE;
  if (id.is_datagram()) return;
  const ConnectionPath& path = id.route.path;
  attr->ah_attr = {};
  attr->ah_attr.is_global = 1;
  attr->ah_attr.port_num = 1;
  attr->ah_attr.sl = path.service_level;
  std::memcpy(&attr->ah_attr.grh.dgid, path.remote.raw.data(), 16);
  attr->ah_attr.grh.sgid_index = static_cast<uint8_t>(id.route.gid_index);
  attr->ah_attr.grh.hop_limit = path.hop_limit;
  attr->ah_attr.grh.traffic_class = path.traffic_class;
  attr->ah_attr.grh.flow_label = path.flow_label;
  attr->path_mtu = static_cast<ibv_mtu>(path.mtu);
  attr->dest_qp_num = id.remote_qpn;
  attr->rq_psn = id.receive_psn;
  *mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (is_reliable(id.shown.qp_type) && is_responder(id.shown.qp_type)) {
    attr->max_dest_rd_atomic = id.responder_resources;
    attr->min_rnr_timer = kRnrTimer;
    *mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  }
}

void fill_to_rts(const Id& id, ibv_qp_attr* attr, int* mask) {
  *mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  attr->sq_psn = id.is_datagram() ? 0 : id.send_psn;
  if (is_reliable(id.shown.qp_type)) {
    attr->timeout = id.ack_timeout.value_or(id.route.path.ack_timeout);
    *mask |= IBV_QP_TIMEOUT;
    if (is_initiator(id.shown.qp_type)) {
      attr->retry_cnt = id.retry_count;
      attr->rnr_retry = id.rnr_retry_count;
      attr->max_rd_atomic = id.initiator_depth;
      *mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    }
  }
}

int move(Id& id, ibv_qp_state state) {
  ibv_qp_attr attr{};
  int mask = 0;
  attr.qp_state = state;
  if (const int error = fill_attributes(id, &attr, &mask); error != 0) return error;
  return ibv_modify_qp(id.shown.qp, &attr, mask);
}

void destroy_queues(rdma_cm_id* id) {
  // With XRC, the shared receive queue owns the receive completion queue.
  if (id->qp_type == IBV_QPT_XRC_RECV && id->srq != nullptr) return;
  if (id->recv_cq != nullptr) {
    ibv_destroy_cq(id->recv_cq);
    if (id->send_cq != nullptr && id->send_cq != id->recv_cq) ibv_destroy_cq(id->send_cq);
  } else if (id->send_cq != nullptr) {
    ibv_destroy_cq(id->send_cq);
  }
  if (id->recv_cq_channel != nullptr) {
    ibv_destroy_comp_channel(id->recv_cq_channel);
    if (id->send_cq_channel != nullptr && id->send_cq_channel != id->recv_cq_channel)
      ibv_destroy_comp_channel(id->send_cq_channel);
  } else if (id->send_cq_channel != nullptr) {
    ibv_destroy_comp_channel(id->send_cq_channel);
  }
  id->send_cq = id->recv_cq = nullptr;
  id->send_cq_channel = id->recv_cq_channel = nullptr;
}

/// Makes a completion queue with a channel. Returns an errno value.
int make_queue(rdma_cm_id* id, uint32_t entries, ibv_comp_channel** channel, ibv_cq** cq) {
  *channel = ibv_create_comp_channel(id->verbs);
  if (*channel == nullptr) return errno;
  *cq = ibv_create_cq(id->verbs, static_cast<int>(entries == 0 ? 1 : entries), id, *channel, 0);
  if (*cq != nullptr) return 0;
  const int error = errno;
  ibv_destroy_comp_channel(*channel);
  *channel = nullptr;
  return error;
}

/// Returns how many receives can complete at once.
uint32_t receives_of(const ibv_qp_init_attr_ex& attr) {
  ibv_srq_attr shared{};
  if (attr.srq != nullptr) ibv_query_srq(attr.srq, &shared);
  return std::max(attr.cap.max_recv_wr, shared.max_wr);
}

int create_qp(Id& id, ibv_qp_init_attr_ex* attr) {
  rdma_cm_id& shown = id.shown;
  if (shown.qp != nullptr) return base::reject(EINVAL, "the id has a queue pair");
  if (const int failed = use_stand_in(id); failed != 0) return failed;
  OpenDevice* device = shown.verbs == nullptr ? nullptr : device_of(shown.verbs);
  if (device == nullptr)
    return base::reject(EINVAL, "the id is bound to no device (rdma_resolve_addr() or rdma_bind_addr() comes first)");
  if ((attr->comp_mask & IBV_QP_INIT_ATTR_PD) == 0 || attr->pd == nullptr) {
    attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
    attr->pd = shown.pd;
  } else if (attr->pd->context != shown.verbs) {
    return base::reject(EINVAL, "the protection domain is not of the id's device context (id->verbs)");
  }
  if ((attr->comp_mask & IBV_QP_INIT_ATTR_XRCD) == 0 && attr->qp_type == IBV_QPT_XRC_RECV) {
    attr->xrcd = shared_xrcd(*device);
    if (attr->xrcd == nullptr) return errno;
    attr->comp_mask |= IBV_QP_INIT_ATTR_XRCD;
  }
  if (attr->srq != nullptr && attr->srq->context != shown.verbs)
    return base::reject(EINVAL, "the shared receive queue is not of the id's device context (id->verbs)");
  const auto differ = [](const ibv_cq* of_id, const ibv_cq* given) {
    return of_id != nullptr && given != nullptr && of_id != given;
  };
  if (differ(shown.send_cq, attr->send_cq) || differ(shown.recv_cq, attr->recv_cq))
    return base::reject(EINVAL, "the id has other completion queues (id->send_cq, id->recv_cq)");
  // A message of an XRC connection names its shared receive queue.
  if (attr->srq == nullptr && attr->qp_type != IBV_QPT_XRC_RECV) attr->srq = shown.srq;
  int error = 0;
  const bool own_receive = attr->recv_cq == nullptr && shown.recv_cq == nullptr && attr->qp_type != IBV_QPT_XRC_RECV &&
                           attr->qp_type != IBV_QPT_XRC_SEND;
  if (own_receive) error = make_queue(&shown, receives_of(*attr), &shown.recv_cq_channel, &shown.recv_cq);
  if (error == 0 && attr->send_cq == nullptr && shown.send_cq == nullptr && attr->qp_type != IBV_QPT_XRC_RECV)
    error = make_queue(&shown, attr->cap.max_send_wr, &shown.send_cq_channel, &shown.send_cq);
  if (error != 0) {
    destroy_queues(&shown);
    return error;
  }
  if (attr->send_cq == nullptr) attr->send_cq = shown.send_cq;
  if (attr->recv_cq == nullptr) attr->recv_cq = shown.recv_cq != nullptr ? shown.recv_cq : attr->send_cq;
  shown.qp = ibv_create_qp_ex(shown.verbs, attr);
  if (shown.qp == nullptr) {
    error = errno;
    destroy_queues(&shown);
    return error;
  }
  error = move(id, IBV_QPS_INIT);
  if (error == 0 && id.is_datagram()) error = move(id, IBV_QPS_RTR);
  if (error == 0 && id.is_datagram()) error = move(id, IBV_QPS_RTS);
  if (error != 0) {
    ibv_destroy_qp(shown.qp);
    shown.qp = nullptr;
    destroy_queues(&shown);
    return error;
  }
  shown.pd = attr->pd;
  return 0;
}

}  // namespace

int fill_attributes(Id& id, ibv_qp_attr* attr, int* mask) {
  switch (attr->qp_state) {
    case IBV_QPS_INIT:
      fill_init(id, attr, mask);
      return 0;
    case IBV_QPS_RTR:
      if (!id.is_datagram() && !id.agreed) return EINVAL;
      fill_to_rtr(id, attr, mask);
      return 0;
    case IBV_QPS_RTS:
      if (!id.is_datagram() && !id.agreed) return EINVAL;
      fill_to_rts(id, attr, mask);
      return 0;
    default:
      return EINVAL;
  }
}

int bring_up(Id& id) {
  if (id.shown.qp == nullptr) return 0;
  // INIT again, now with the agreed remote access rights.
  int error = move(id, IBV_QPS_INIT);
  if (error == 0) error = move(id, IBV_QPS_RTR);
  if (error == 0) error = move(id, IBV_QPS_RTS);
  return error;
}

int to_error(Id& id) {
  if (id.shown.qp == nullptr || id.is_datagram()) return 0;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  return ibv_modify_qp(id.shown.qp, &attr, IBV_QP_STATE);
}

}  // namespace nupa::rdmacm

using namespace nupa::rdmacm;

NUPA_RDMACM int rdma_create_qp_ex(rdma_cm_id* shown, ibv_qp_init_attr_ex* attr) {
  Id* known = id_of(shown);
  if (known == nullptr) return -1;
  Id& id = *known;
  std::lock_guard lock(id.mutex);
  return answer(create_qp(id, attr));
}

NUPA_RDMACM int rdma_create_qp(rdma_cm_id* shown, ibv_pd* pd, ibv_qp_init_attr* attr) {
  if (attr == nullptr) return answer(EINVAL, "the attributes are null");
  ibv_qp_init_attr_ex full{};
  static_assert(offsetof(ibv_qp_init_attr_ex, comp_mask) == sizeof(ibv_qp_init_attr) ||
                offsetof(ibv_qp_init_attr_ex, comp_mask) == offsetof(ibv_qp_init_attr, sq_sig_all) + sizeof(int));
  std::memcpy(static_cast<void*>(&full), attr, offsetof(ibv_qp_init_attr_ex, comp_mask));
  full.comp_mask = IBV_QP_INIT_ATTR_PD;
  full.pd = pd;
  if (rdma_create_qp_ex(shown, &full) != 0) return -1;
  // Returns the capabilities that the queue pair got.
  std::memcpy(attr, &full, offsetof(ibv_qp_init_attr_ex, comp_mask));
  return 0;
}

NUPA_RDMACM void rdma_destroy_qp(rdma_cm_id* id) {
  if (id->qp != nullptr) ibv_destroy_qp(id->qp);
  id->qp = nullptr;
  destroy_queues(id);
}

NUPA_RDMACM int rdma_create_srq_ex(rdma_cm_id* id, ibv_srq_init_attr_ex* attr) {
  if (nupa_rdmacm_use_stand_in(id) != 0) return -1;
  OpenDevice* device = id->verbs == nullptr ? nullptr : device_of(id->verbs);
  if (device == nullptr) return answer(EINVAL, "the id is bound to no device");
  if (attr == nullptr) return answer(EINVAL, "the attributes are null");
  if (id->srq != nullptr) return answer(EINVAL, "the id has a shared receive queue");
  if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) == 0) return answer(EINVAL, "comp_mask has no IBV_SRQ_INIT_ATTR_TYPE");
  if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0 || attr->pd == nullptr) {
    attr->pd = id->pd;
    attr->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
  }
  if (attr->srq_type == IBV_SRQT_XRC) {
    if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_XRCD) == 0 || attr->xrcd == nullptr) {
      attr->xrcd = shared_xrcd(*device);
      if (attr->xrcd == nullptr) return -1;
      attr->comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
    }
    if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_CQ) == 0 || attr->cq == nullptr) {
      if (id->recv_cq == nullptr)
        if (const int error = make_queue(id, attr->attr.max_wr, &id->recv_cq_channel, &id->recv_cq); error != 0)
          return answer(error);
      attr->cq = id->recv_cq;
      attr->comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
    }
  }
  ibv_srq* srq = ibv_create_srq_ex(id->verbs, attr);
  if (srq == nullptr) {
    const int error = errno;
    destroy_queues(id);
    return answer(error);
  }
  if (id->pd == nullptr) id->pd = attr->pd;
  id->srq = srq;
  return 0;
}

NUPA_RDMACM int rdma_create_srq(rdma_cm_id* id, ibv_pd* pd, ibv_srq_init_attr* attr) {
  if (attr == nullptr) return answer(EINVAL);
  ibv_srq_init_attr_ex full{};
  full.srq_context = attr->srq_context;
  full.attr = attr->attr;
  full.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
  full.srq_type = id->qp_type == IBV_QPT_XRC_RECV || id->qp_type == IBV_QPT_XRC_SEND ? IBV_SRQT_XRC : IBV_SRQT_BASIC;
  full.pd = pd;
  if (rdma_create_srq_ex(id, &full) != 0) return -1;
  attr->attr = full.attr;
  return 0;
}

NUPA_RDMACM void rdma_destroy_srq(rdma_cm_id* id) {
  if (id->srq != nullptr) ibv_destroy_srq(id->srq);
  id->srq = nullptr;
  destroy_queues(id);
}

NUPA_RDMACM int rdma_init_qp_attr(rdma_cm_id* shown, ibv_qp_attr* attr, int* mask) {
  Id* known = id_of(shown);
  if (known == nullptr) return -1;
  Id& id = *known;
  if (attr == nullptr || mask == nullptr) return answer(EINVAL);
  std::lock_guard lock(id.mutex);
  if (!id.has_device) return answer(EINVAL, "the id is bound to no device (rdma_resolve_addr() comes first)");
  return answer(fill_attributes(id, attr, mask));
}
