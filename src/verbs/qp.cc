// SPDX-License-Identifier: Apache-2.0
/// Queue pairs: creation, modification, posting.
#include <algorithm>
#include <cstring>

#include "base/private_send_flag.h"
#include "verbs/private.h"
#include "verbs/wrappers.h"

namespace nupa::verbs {

namespace {

QpCap to_core(const ibv_qp_cap& cap) {
  return {cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data};
}

ibv_qp_cap from_core(const QpCap& cap) {
  return {cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data};
}

/// The first members of ibv_qp_init_attr and ibv_qp_init_attr_ex are the same.
template <class Attr>
VQp* make_qp(ibv_context* context, ibv_pd* pd, Attr* attr, ibv_xrcd* xrcd, uint32_t flags = 0) try {
  auto* made = new VQp{};
  QpOptions options;
  options.type = static_cast<QpType>(number_in(attr->qp_type));
  options.send_cq = attr->send_cq == nullptr ? nullptr : of(attr->send_cq)->core;
  options.recv_cq = attr->recv_cq == nullptr ? nullptr : of(attr->recv_cq)->core;
  options.srq = attr->srq == nullptr ? nullptr : of(attr->srq)->core;
  options.xrcd = xrcd == nullptr ? nullptr : of(xrcd)->core;
  options.cap = to_core(attr->cap);
  options.signal_all = attr->sq_sig_all != 0;
  options.hears_itself = (flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB) == 0;
  options.user_context = made;
  auto core = core_of(context).create_qp(pd == nullptr ? nullptr : of(pd)->core, options);
  if (!core) {
    delete made;
    return refuse(core.error(), "ibv_create_qp");
  }
  made->core = core->release();
  made->core->query(nullptr, &options);
  attr->cap = from_core(options.cap);
  made->max_inline = options.cap.max_inline_data;
  made->max_sge = options.cap.max_send_sge;
  made->type = attr->qp_type;
  ibv_qp& qp = made->ex.qp_base;
  qp.context = context;
  qp.qp_context = attr->qp_context;
  qp.pd = pd;
  qp.send_cq = attr->send_cq;
  qp.recv_cq = attr->recv_cq;
  qp.srq = attr->srq;
  qp.handle = made->core->handle();
  qp.qp_num = made->core->number();
  qp.state = IBV_QPS_RESET;
  qp.qp_type = attr->qp_type;
  pthread_mutex_init(&qp.mutex, nullptr);
  pthread_cond_init(&qp.cond, nullptr);
  use(pd);
  return made;
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM, "ibv_create_qp");
}

void convert_target(const ibv_send_wr& wr, ibv_qp_type type, SendWr* out);

/// True if plain_request() has all members that the operation reads.
bool is_plain(const ibv_send_wr& wr, ibv_qp_type type) {
  constexpr uint32_t kPlain = 1u << IBV_WR_RDMA_WRITE | 1u << IBV_WR_RDMA_WRITE_WITH_IMM | 1u << IBV_WR_RDMA_READ |
                              1u << IBV_WR_SEND | 1u << IBV_WR_SEND_WITH_IMM;
  const uint32_t opcode = number_in(wr.opcode);
  return opcode < 32 && (kPlain >> opcode & 1) != 0 && (type == IBV_QPT_RC || type == IBV_QPT_UC);
}

/// Each member is named, so that the compiler stores them one by one: it clears a large object by a loop first.
inline SendWr plain_request(const ibv_send_wr& wr) {
  return {.wr_id = wr.wr_id,
          .sg_list = reinterpret_cast<const Sge*>(wr.sg_list),
          .num_sge = list_length(wr.sg_list, wr.num_sge),
          .opcode = static_cast<Opcode>(number_in(wr.opcode)),
          .flags = wr.send_flags,
          .imm_or_rkey = wr.imm_data,
          .rkey = wr.wr.rdma.rkey,
          .remote_addr = wr.wr.rdma.remote_addr,
          .compare_add = 0,
          .swap = 0,
          .remote_qpn = 0,
          .remote_qkey = 0,
          .remote_srqn = 0,
          .ah = nullptr,
          .mw = nullptr,
          .bind = {nullptr, 0, 0, 0}};
}

inline SendWr convert(const ibv_send_wr& wr, ibv_qp_type type) {
  SendWr out = plain_request(wr);
  if (__builtin_expect(!is_plain(wr, type), 0)) convert_target(wr, type, &out);
  return out;
}

/// An atomic write moves one word of eight bytes.
bool is_one_word(const ibv_send_wr& wr) {
  constexpr int kMostEntries = 8;  // entries of one byte or more
  if (wr.sg_list == nullptr || wr.num_sge < 1 || wr.num_sge > kMostEntries) return false;
  uint64_t bytes = 0;
  for (int i = 0; i < wr.num_sge; ++i) bytes += wr.sg_list[i].length;
  return bytes == kAtomicBytes;
}

[[gnu::noinline]] void convert_target(const ibv_send_wr& wr, ibv_qp_type type, SendWr* out) {
  switch (number_in(wr.opcode)) {
    case IBV_WR_ATOMIC_WRITE:
      if (!is_one_word(wr)) out->num_sge = UINT32_MAX;  // the core rejects the count
      break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      out->remote_addr = wr.wr.atomic.remote_addr;
      out->rkey = wr.wr.atomic.rkey;
      out->compare_add = wr.wr.atomic.compare_add;
      out->swap = wr.wr.atomic.swap;
      break;
    case IBV_WR_BIND_MW:
      out->mw = wr.bind_mw.mw == nullptr ? nullptr : of(wr.bind_mw.mw)->core;
      out->rkey = wr.bind_mw.rkey;
      out->bind.region = wr.bind_mw.bind_info.mr == nullptr ? nullptr : of(wr.bind_mw.bind_info.mr)->core;
      out->bind.addr = wr.bind_mw.bind_info.addr;
      out->bind.length = wr.bind_mw.bind_info.length;
      out->bind.access_flags = wr.bind_mw.bind_info.mw_access_flags;
      break;
    case kWrFlush:
      out->imm_or_rkey = 0;  // ibv_send_wr has no fields for it: the core rejects a FLUSH without a placement type
      break;
    default:
      if (type == IBV_QPT_UD) {
        out->ah = wr.wr.ud.ah == nullptr ? nullptr : of(wr.wr.ud.ah)->core;
        out->remote_qpn = wr.wr.ud.remote_qpn;
        out->remote_qkey = wr.wr.ud.remote_qkey;
      }
      break;
  }
  if (type == IBV_QPT_XRC_SEND) out->remote_srqn = wr.qp_type.xrc.remote_srqn;
}

}  // namespace

namespace {

int post_one(QueuePair* core, const ibv_send_wr& wr, ibv_qp_type type) {
  const SendWr one = convert(wr, type);
  return (wr.send_flags & ~kSendFlags) == 0 ? core->post(one) : EINVAL;
}

[[gnu::noinline]] int post_list(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  if (wr == nullptr) return 0;
  const ibv_qp_type type = of(qp)->type;
  QueuePair* core = of(qp)->core;
  int error = 0;
  core->post_begin();
  do {
    error = post_one(core, *wr, type);
    if (__builtin_expect(error != 0, 0)) break;
    wr = wr->next;
  } while (wr != nullptr);
  core->post_end();
  if (__builtin_expect(error == 0, 1)) return 0;
  if (bad_wr != nullptr) *bad_wr = wr;
  return answer(error);
}

}  // namespace

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  if (__builtin_expect(wr == nullptr || wr->next != nullptr, 0)) return post_list(qp, wr, bad_wr);
  const SendWr only = convert(*wr, of(qp)->type);
  const int error = (wr->send_flags & ~kSendFlags) == 0 ? of(qp)->core->post_send(only) : EINVAL;
  if (__builtin_expect(error == 0, 1)) return 0;
  if (bad_wr != nullptr) *bad_wr = wr;
  return answer(error);
}

int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  QueuePair* core = of(qp)->core;
  for (; wr != nullptr; wr = wr->next) {
    const int error = core->post_recv(convert(*wr));
    if (__builtin_expect(error != 0, 0)) {
      if (bad_wr != nullptr) *bad_wr = wr;
      return answer(error);
    }
  }
  return 0;
}

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr) try {
  constexpr uint32_t kKnown =
      IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  if (context == nullptr || attr == nullptr) return refuse(EINVAL);
  if ((attr->comp_mask & ~kKnown) != 0) return refuse(EOPNOTSUPP);
  const uint32_t flags = (attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 ? attr->create_flags : 0;
  const bool joins_groups = number_in(attr->qp_type) == IBV_QPT_UD;
  const uint32_t known_flags = joins_groups ? uint32_t{IBV_QP_CREATE_BLOCK_SELF_MCAST_LB} : 0;
  if ((flags & ~known_flags) != 0) return refuse(EOPNOTSUPP);
  ibv_pd* pd = (attr->comp_mask & IBV_QP_INIT_ATTR_PD) != 0 ? attr->pd : nullptr;
  ibv_xrcd* xrcd = (attr->comp_mask & IBV_QP_INIT_ATTR_XRCD) != 0 ? attr->xrcd : nullptr;
  const bool builds = (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
  if (builds && !can_build(number_in(attr->qp_type), attr->send_ops_flags)) return refuse(EOPNOTSUPP);
  if (builds && (attr->send_ops_flags & IBV_QP_EX_WITH_ATOMIC_WRITE) != 0) {
    // The builder's atomic write carries its word inline, so both limits are raised if the program requested less.
    attr->cap.max_inline_data = std::max(attr->cap.max_inline_data, kAtomicBytes);
    attr->cap.max_send_sge = std::max(attr->cap.max_send_sge, 1u);
  }
  VQp* made = make_qp(context, pd, attr, xrcd, flags);
  if (made != nullptr && builds) set_builder(made, attr->send_ops_flags);
  return made == nullptr ? nullptr : &made->ex.qp_base;
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* attr) try {
  constexpr uint32_t kNeeded = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  if (context == nullptr || attr == nullptr || attr->comp_mask >= IBV_QP_OPEN_ATTR_RESERVED ||
      (attr->comp_mask & kNeeded) != kNeeded || number_in(attr->qp_type) != IBV_QPT_XRC_RECV || attr->xrcd == nullptr)
    return refuse(EINVAL);
  auto* made = new VQp{};
  auto core = core_of(context).open_qp(*of(attr->xrcd)->core, attr->qp_num, made);
  if (!core) {
    delete made;
    return refuse(core.error(), "ibv_create_qp");
  }
  made->core = core->release();
  made->type = attr->qp_type;
  QpAttr current;
  made->core->query(&current, nullptr);
  ibv_qp& qp = made->ex.qp_base;
  qp.context = context;
  qp.state = static_cast<ibv_qp_state>(current.state);
  qp.qp_context = (attr->comp_mask & IBV_QP_OPEN_ATTR_CONTEXT) != 0 ? attr->qp_context : nullptr;
  qp.handle = made->core->handle();
  qp.qp_num = made->core->number();
  qp.qp_type = attr->qp_type;
  pthread_mutex_init(&qp.mutex, nullptr);
  pthread_cond_init(&qp.cond, nullptr);
  return &qp;
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

}  // namespace nupa::verbs

using namespace nupa::verbs;

int nupa_verbs_post_inline(ibv_qp* qp, const ibv_send_wr* wr) {
  nupa::SendWr only = convert(*wr, of(qp)->type);
  only.flags |= nupa::send_flag::kAnyLength;
  return of(qp)->core->post_send(only);
}

NUPA_VERBS ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  if (pd == nullptr || attr == nullptr) return refuse(EINVAL);
  VQp* made = make_qp(pd->context, pd, attr, nullptr);
  return made == nullptr ? nullptr : &made->ex.qp_base;
}

NUPA_VERBS ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
  return qp == nullptr || of(qp)->builder == nullptr ? nullptr : &of(qp)->ex;
}

namespace {

/// Atomic, because threads may query and modify at the same time. Only the program reads the field.
void show_state(ibv_qp* qp, ibv_qp_state state) { __atomic_store_n(&qp->state, state, __ATOMIC_RELAXED); }

}  // namespace

NUPA_VERBS int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) try {
  if (qp == nullptr || attr == nullptr) return answer(EINVAL);
  nupa::QpAttr core;
  core.state = static_cast<nupa::QpState>(number_in(attr->qp_state));
  core.cur_state = static_cast<nupa::QpState>(number_in(attr->cur_qp_state));
  core.path_mtu = static_cast<nupa::Mtu>(number_in(attr->path_mtu));
  core.path_mig_state = static_cast<nupa::PathMigState>(number_in(attr->path_mig_state));
  core.qkey = attr->qkey;
  core.rq_psn = attr->rq_psn;
  core.sq_psn = attr->sq_psn;
  core.dest_qp_num = attr->dest_qp_num;
  core.access_flags = attr->qp_access_flags;
  if ((mask & IBV_QP_AV) != 0) core.av = to_core(attr->ah_attr);
  core.pkey_index = attr->pkey_index;
  core.en_sqd_async_notify = attr->en_sqd_async_notify != 0;
  core.max_rd_atomic = attr->max_rd_atomic;
  core.max_dest_rd_atomic = attr->max_dest_rd_atomic;
  core.min_rnr_timer = attr->min_rnr_timer;
  core.port_num = attr->port_num;
  core.timeout = attr->timeout;
  core.retry_cnt = attr->retry_cnt;
  core.rnr_retry = attr->rnr_retry;
  core.rate_limit = attr->rate_limit;
  const int error = of(qp)->core->modify(core, static_cast<uint32_t>(mask));
  if (error == 0 && (mask & IBV_QP_STATE) != 0) show_state(qp, attr->qp_state);
  return answer(error);
} catch (const std::bad_alloc&) {
  return answer(ENOMEM);
}

NUPA_VERBS int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
  if (qp == nullptr || attr == nullptr || init == nullptr) return answer(EINVAL);
  nupa::QpAttr core;
  nupa::QpOptions options;
  if (const int error = of(qp)->core->query(&core, &options); error != 0) return answer(error);
  std::memset(attr, 0, sizeof *attr);
  attr->qp_state = static_cast<ibv_qp_state>(core.state);
  attr->cur_qp_state = static_cast<ibv_qp_state>(core.cur_state);
  attr->path_mtu = static_cast<ibv_mtu>(core.path_mtu);
  attr->path_mig_state = static_cast<ibv_mig_state>(core.path_mig_state);
  attr->qkey = core.qkey;
  attr->rq_psn = core.rq_psn;
  attr->sq_psn = core.sq_psn;
  attr->dest_qp_num = core.dest_qp_num;
  attr->qp_access_flags = core.access_flags;
  attr->cap = from_core(core.cap);
  from_core(core.av, &attr->ah_attr);
  attr->pkey_index = core.pkey_index;
  attr->en_sqd_async_notify = core.en_sqd_async_notify;
  attr->sq_draining = core.sq_draining;
  attr->max_rd_atomic = core.max_rd_atomic;
  attr->max_dest_rd_atomic = core.max_dest_rd_atomic;
  attr->min_rnr_timer = core.min_rnr_timer;
  attr->port_num = core.port_num;
  attr->timeout = core.timeout;
  attr->retry_cnt = core.retry_cnt;
  attr->rnr_retry = core.rnr_retry;
  show_state(qp, attr->qp_state);
  std::memset(init, 0, sizeof *init);
  init->qp_context = qp->qp_context;
  init->send_cq = qp->send_cq;
  init->recv_cq = qp->recv_cq;
  init->srq = qp->srq;
  init->cap = from_core(options.cap);
  init->qp_type = qp->qp_type;
  init->sq_sig_all = options.signal_all;
  return 0;
}

NUPA_VERBS int ibv_query_qp_data_in_order(ibv_qp* qp, ibv_wr_opcode op, uint32_t flags) {
  // The last bytes of a write become visible last, which a program that polls the last byte relies on. NUPA does not
  // promise more for all lengths, and the ABI of this version has no weaker answer than "the whole message".
  (void)qp;
  (void)op;
  (void)flags;
  return 0;
}

NUPA_VERBS int ibv_query_ece(ibv_qp* qp, ibv_ece* ece) {
  if (qp == nullptr || ece == nullptr) return answer(EINVAL);
  std::memset(ece, 0, sizeof *ece);
  return answer(EOPNOTSUPP);  // the answer of every provider without ECE
}

NUPA_VERBS int ibv_set_ece(ibv_qp* qp, ibv_ece* ece) {
  if (qp == nullptr || ece == nullptr) return answer(EINVAL);
  if (ece->comp_mask != 0) return answer(EINVAL);
  // A vendor of zero requests no options (the manual: they are then ignored).
  return ece->vendor_id == 0 ? 0 : answer(EOPNOTSUPP);
}

NUPA_VERBS int ibv_destroy_qp(ibv_qp* qp) {
  if (qp == nullptr) return answer(EINVAL);
  ibv_pd* const pd = qp->pd;
  const int error = destroy(of(qp), qp, [qp](uint32_t delivered) { return qp->events_completed == delivered; });
  if (error == 0) leave(pd);
  return error;
}

NUPA_VERBS int ibv_attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  if (qp == nullptr || gid == nullptr) return answer(EINVAL);
  nupa::Gid group;
  std::memcpy(group.raw.data(), gid->raw, 16);
  return answer(of(qp)->core->attach_multicast(group, lid));
}

NUPA_VERBS int ibv_detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  if (qp == nullptr || gid == nullptr) return answer(EINVAL);
  nupa::Gid group;
  std::memcpy(group.raw.data(), gid->raw, 16);
  return answer(of(qp)->core->detach_multicast(group, lid));
}
