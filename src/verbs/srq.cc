// SPDX-License-Identifier: Apache-2.0
/// Shared receive queues.
#include <cstring>

#include "verbs/wrappers.h"

namespace nupa::verbs {

namespace {

ibv_srq* make_srq(ibv_pd* pd, SrqOptions options, void* srq_context) try {
  auto* made = new VSrq{};
  options.user_context = made;
  auto core = core_of(pd->context).create_srq(*of(pd)->core, options);
  if (!core) {
    delete made;
    return refuse(core.error(), "ibv_create_srq");
  }
  made->core = core->release();
  made->srq.context = pd->context;
  made->srq.srq_context = srq_context;
  made->srq.pd = pd;
  made->srq.handle = made->core->handle();
  pthread_mutex_init(&made->srq.mutex, nullptr);
  pthread_cond_init(&made->srq.cond, nullptr);
  use(pd);
  return &made->srq;
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM, "ibv_create_srq");
}

}  // namespace

ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attr) {
  if (context == nullptr || attr == nullptr || attr->comp_mask >= IBV_SRQ_INIT_ATTR_RESERVED) return refuse(EINVAL);
  const auto type =
      (attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0 ? number_in(attr->srq_type) : uint32_t{IBV_SRQT_BASIC};
  if (type != IBV_SRQT_BASIC && type != IBV_SRQT_XRC) return refuse(EOPNOTSUPP);
  if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0 || attr->pd == nullptr) return refuse(EINVAL);
  SrqOptions options;
  options.max_wr = attr->attr.max_wr;
  options.max_sge = attr->attr.max_sge;
  options.limit = 0;
  if (type == IBV_SRQT_XRC) {
    if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_XRCD) == 0 || (attr->comp_mask & IBV_SRQ_INIT_ATTR_CQ) == 0 ||
        attr->xrcd == nullptr || attr->cq == nullptr)
      return refuse(EINVAL);
    options.type = SrqType::kXrc;
    options.xrcd = of(attr->xrcd)->core;
    options.cq = of(attr->cq)->core;
  }
  ibv_srq* srq = make_srq(attr->pd, options, attr->srq_context);
  if (srq != nullptr) of(srq)->core->query(&attr->attr.max_wr, &attr->attr.max_sge, nullptr);
  return srq;
}

int get_srq_num(ibv_srq* srq, uint32_t* number) {
  if (srq == nullptr || number == nullptr) return answer(EINVAL);
  *number = of(srq)->core->number();
  return 0;
}

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  SharedReceiveQueue* core = of(srq)->core;
  for (; wr != nullptr; wr = wr->next) {
    const int error = core->post_recv(convert(*wr));
    if (__builtin_expect(error != 0, 0)) {
      if (bad_wr != nullptr) *bad_wr = wr;
      return answer(error);
    }
  }
  return 0;
}

}  // namespace nupa::verbs

using namespace nupa::verbs;

NUPA_VERBS ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) {
  if (pd == nullptr || attr == nullptr) return refuse(EINVAL);
  nupa::SrqOptions options;
  options.max_wr = attr->attr.max_wr;
  options.max_sge = attr->attr.max_sge;
  // Only ibv_modify_srq arms the limit (ibv_create_srq's manual).
  ibv_srq* srq = make_srq(pd, options, attr->srq_context);
  if (srq != nullptr) of(srq)->core->query(&attr->attr.max_wr, &attr->attr.max_sge, nullptr);
  return srq;
}

NUPA_VERBS int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask) {
  if (srq == nullptr || attr == nullptr) return answer(EINVAL);
  return answer(of(srq)->core->modify(static_cast<uint32_t>(mask), attr->max_wr, attr->srq_limit));
}

NUPA_VERBS int ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attr) {
  if (srq == nullptr || attr == nullptr) return answer(EINVAL);
  return answer(of(srq)->core->query(&attr->max_wr, &attr->max_sge, &attr->srq_limit));
}

NUPA_VERBS int ibv_destroy_srq(ibv_srq* srq) {
  if (srq == nullptr) return answer(EINVAL);
  ibv_pd* const pd = srq->pd;
  const int error = destroy(of(srq), srq, [srq](uint32_t delivered) { return srq->events_completed == delivered; });
  if (error == 0) leave(pd);
  return error;
}
