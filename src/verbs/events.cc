// SPDX-License-Identifier: Apache-2.0
/// Asynchronous events, fork, and the table of operations.
#include "verbs/wrappers.h"

namespace nupa::verbs {

void set_operations(verbs_context* verbs) {
  verbs->query_port = query_port;
  verbs->query_device_ex = query_device_ex;
  verbs->query_rt_values = query_rt_values;
  verbs->alloc_td = alloc_td;
  verbs->dealloc_td = dealloc_td;
  verbs->alloc_parent_domain = alloc_parent_domain;
  verbs->alloc_null_mr = alloc_null_mr;
  verbs->reg_dm_mr = reg_dm_mr;
  verbs->alloc_dm = alloc_dm;
  verbs->free_dm = free_dm;
  verbs->advise_mr = advise_mr;
  verbs->create_cq_ex = create_cq_ex;
  verbs->modify_cq = modify_cq;
  verbs->create_srq_ex = create_srq_ex;
  verbs->get_srq_num = get_srq_num;
  verbs->open_xrcd = open_xrcd;
  verbs->close_xrcd = close_xrcd;
  verbs->create_qp_ex = create_qp_ex;
  verbs->open_qp = open_qp;
  ibv_context_ops& ops = verbs->context.ops;
  ops.alloc_mw = alloc_mw;
  ops.bind_mw = bind_mw;
  ops.dealloc_mw = dealloc_mw;
  ops.poll_cq = poll_cq;
  ops.req_notify_cq = req_notify_cq;
  ops.post_srq_recv = post_srq_recv;
  ops.post_send = post_send;
  ops.post_recv = post_recv;
}

namespace {

template <class Object>
void acknowledge(Object* object, uint32_t* completed) {
  pthread_mutex_lock(&object->mutex);
  ++*completed;
  pthread_cond_signal(&object->cond);
  pthread_mutex_unlock(&object->mutex);
}

/// Translates an event and counts it at its object, which the core keeps alive meanwhile.
void hand_out(Opened& opened, const AsyncEvent& taken, ibv_async_event* event) {
  std::lock_guard lock(opened.mutex);
  event->event_type = static_cast<ibv_event_type>(taken.type);
  if (taken.cq != nullptr) {
    auto* made = static_cast<VCq*>(taken.cq->user_context());
    ++made->async_delivered;
    event->element.cq = ibv_cq_ex_to_cq(&made->ex);
  } else if (taken.qp != nullptr) {
    auto* made = static_cast<VQp*>(taken.qp->user_context());
    ++made->async_delivered;
    event->element.qp = &made->ex.qp_base;
  } else if (taken.srq != nullptr) {
    auto* made = static_cast<VSrq*>(taken.srq->user_context());
    ++made->async_delivered;
    event->element.srq = &made->srq;
  } else {
    event->element.port_num = taken.port_num;
  }
}

}  // namespace
}  // namespace nupa::verbs

using namespace nupa::verbs;

NUPA_VERBS int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  if (context == nullptr || event == nullptr) {
    errno = EINVAL;
    return -1;
  }
  Opened& opened = *context_of(context)->opened;
  // In a forked child this fails before it takes a lock.
  const auto taken = opened.core->next_event([&](const nupa::AsyncEvent& told) { hand_out(opened, told, event); });
  if (taken) return 0;
  errno = taken.error().code();
  return -1;
}

NUPA_VERBS void ibv_ack_async_event(ibv_async_event* event) {
  if (event == nullptr) return;
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
      acknowledge(event->element.cq, &event->element.cq->async_events_completed);
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      acknowledge(event->element.qp, &event->element.qp->events_completed);
      break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      acknowledge(event->element.srq, &event->element.srq->events_completed);
      break;
    default:
      break;
  }
}

// A child gets a private copy of registered memory at fork(), so no preparation is needed.
NUPA_VERBS int ibv_fork_init(void) { return 0; }
NUPA_VERBS ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }
NUPA_VERBS int ibv_dontfork_range(void*, size_t) { return 0; }
NUPA_VERBS int ibv_dofork_range(void*, size_t) { return 0; }
