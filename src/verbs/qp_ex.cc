// SPDX-License-Identifier: Apache-2.0
/// The ibv_wr_* builder: requests are staged between wr_start and wr_complete.
#include <cstring>

#include "verbs/wrappers.h"

namespace nupa::verbs {
namespace {

Builder& builder(ibv_qp_ex* qp) { return *of(qp)->builder; }

/// Keeps the first fault for wr_complete, because the builder's functions return nothing.
void remember(ibv_qp_ex* qp, int error) {
  if (builder(qp).error == 0) builder(qp).error = error;
}

/// Begins the next request. Without memory for it the run fails as after any other fault, and the setters change a
/// spare request.
Builder::Staged& stage(ibv_qp_ex* qp, Opcode opcode) {
  Builder& b = builder(qp);
  try {
    b.last = &b.staged.emplace_back();
  } catch (const std::bad_alloc&) {
    remember(qp, ENOMEM);
    b.spare = {};
    b.last = &b.spare;
  }
  if ((qp->wr_flags & ~kSendFlags) != 0) remember(qp, EINVAL);
  b.last->wr.opcode = opcode;
  b.last->wr.wr_id = qp->wr_id;
  // Only wr_set_inline_data sets the inline flag, never the caller (ibv_wr_post's manual).
  b.last->wr.flags = qp->wr_flags & ~send_flag::kInline;
  return *b.last;
}

SendWr& stage_remote(ibv_qp_ex* qp, Opcode opcode, uint32_t rkey, uint64_t remote_addr) {
  SendWr& wr = stage(qp, opcode).wr;
  wr.rkey = rkey;
  wr.remote_addr = remote_addr;
  return wr;
}

/// Returns the request that the setters change. Without one the whole run fails.
Builder::Staged* last(ibv_qp_ex* qp) {
  if (builder(qp).last == nullptr) remember(qp, EINVAL);
  return builder(qp).last;
}

template <class Item>
void append(ibv_qp_ex* qp, std::vector<Item>* to, const Item* from, size_t count) try {
  if (count != 0) to->insert(to->end(), from, from + count);
} catch (const std::bad_alloc&) {
  remember(qp, ENOMEM);
}

void wr_atomic_cmp_swp(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr, uint64_t compare, uint64_t swap) {
  SendWr& wr = stage_remote(qp, Opcode::kCompareSwap, rkey, remote_addr);
  wr.compare_add = compare;
  wr.swap = swap;
}

void wr_atomic_fetch_add(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr, uint64_t add) {
  stage_remote(qp, Opcode::kFetchAdd, rkey, remote_addr).compare_add = add;
}

void put_inline(ibv_qp_ex* qp, Builder::Staged* staged, size_t count, const ibv_data_buf* list) {
  if (staged->wr.opcode == Opcode::kFlush) return remember(qp, EINVAL);
  size_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    if (list[i].length > of(qp)->max_inline - bytes) return remember(qp, EINVAL);
    bytes += list[i].length;
  }
  Builder& b = builder(qp);
  staged->inline_offset = b.inline_data.size();
  for (size_t i = 0; i < count; ++i)
    append(qp, &b.inline_data, static_cast<const std::byte*>(list[i].addr), list[i].length);
  staged->wr.flags |= send_flag::kInline;
  staged->wr.num_sge = 1;
  staged->first_sge = b.list.size();
  // wr_complete sets the address, when the buffer does not grow any more.
  const Sge data{0, static_cast<uint32_t>(bytes), 0};
  append(qp, &b.list, &data, 1);
}

/// Copies the value at once, like inline data.
void wr_atomic_write(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr, const void* value) {
  stage_remote(qp, Opcode::kAtomicWrite, rkey, remote_addr);
  if (value == nullptr) return remember(qp, EINVAL);
  const ibv_data_buf word{const_cast<void*>(value), kAtomicBytes};
  put_inline(qp, builder(qp).last, 1, &word);
}

void wr_flush(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr, size_t length, uint8_t type, uint8_t level) {
  SendWr& wr = stage_remote(qp, Opcode::kFlush, rkey, remote_addr);
  wr.compare_add = length;
  wr.imm_or_rkey = type | (level == kFlushMr ? flush_flag::kRegion : 0);
  if ((type & ~(kFlushGlobal | kFlushPersistent)) != 0 || type == 0 || level > kFlushMr) remember(qp, EINVAL);
}

void wr_bind_mw(ibv_qp_ex* qp, ibv_mw* mw, uint32_t rkey, const ibv_mw_bind_info* info) {
  SendWr& wr = stage(qp, Opcode::kBindMw).wr;
  if (mw == nullptr || info == nullptr) return remember(qp, EINVAL);
  wr.mw = of(mw)->core;
  wr.rkey = rkey;
  wr.bind.region = info->mr == nullptr ? nullptr : of(info->mr)->core;
  wr.bind.addr = info->addr;
  wr.bind.length = info->length;
  wr.bind.access_flags = info->mw_access_flags;
}

void wr_local_inv(ibv_qp_ex* qp, uint32_t rkey) { stage(qp, Opcode::kLocalInv).wr.imm_or_rkey = rkey; }
void wr_rdma_read(ibv_qp_ex* qp, uint32_t rkey, uint64_t addr) { stage_remote(qp, Opcode::kRdmaRead, rkey, addr); }
void wr_rdma_write(ibv_qp_ex* qp, uint32_t rkey, uint64_t addr) { stage_remote(qp, Opcode::kRdmaWrite, rkey, addr); }
void wr_rdma_write_imm(ibv_qp_ex* qp, uint32_t rkey, uint64_t addr, __be32 imm) {
  stage_remote(qp, Opcode::kRdmaWriteWithImm, rkey, addr).imm_or_rkey = imm;
}
void wr_send(ibv_qp_ex* qp) { stage(qp, Opcode::kSend); }
void wr_send_imm(ibv_qp_ex* qp, __be32 imm) { stage(qp, Opcode::kSendWithImm).wr.imm_or_rkey = imm; }
void wr_send_inv(ibv_qp_ex* qp, uint32_t rkey) { stage(qp, Opcode::kSendWithInv).wr.imm_or_rkey = rkey; }

void wr_set_ud_addr(ibv_qp_ex* qp, ibv_ah* ah, uint32_t qpn, uint32_t qkey) {
  if (ah == nullptr) return remember(qp, EINVAL);
  if (Builder::Staged* staged = last(qp)) {
    staged->wr.ah = of(ah)->core;
    staged->wr.remote_qpn = qpn;
    staged->wr.remote_qkey = qkey;
    staged->addressed = true;
  }
}

void wr_set_xrc_srqn(ibv_qp_ex* qp, uint32_t number) {
  if (Builder::Staged* staged = last(qp)) {
    staged->wr.remote_srqn = number;
    staged->addressed = true;
  }
}

void wr_set_inline_data_list(ibv_qp_ex* qp, size_t count, const ibv_data_buf* list) {
  Builder::Staged* staged = last(qp);
  if (staged == nullptr) return;
  if (list == nullptr && count != 0) return remember(qp, EINVAL);
  put_inline(qp, staged, count, list);
}

void wr_set_inline_data(ibv_qp_ex* qp, void* addr, size_t length) {
  const ibv_data_buf one{addr, length};
  wr_set_inline_data_list(qp, 1, &one);
}

void wr_set_sge_list(ibv_qp_ex* qp, size_t count, const ibv_sge* list) {
  Builder::Staged* staged = last(qp);
  if (staged == nullptr) return;
  if (staged->wr.opcode == Opcode::kFlush || count > of(qp)->max_sge || (list == nullptr && count != 0))
    return remember(qp, EINVAL);
  Builder& b = builder(qp);
  const auto* from = reinterpret_cast<const Sge*>(list);
  staged->wr.flags &= ~send_flag::kInline;
  staged->wr.num_sge = static_cast<uint32_t>(count);
  staged->first_sge = b.list.size();
  append(qp, &b.list, from, count);
}

void wr_set_sge(ibv_qp_ex* qp, uint32_t lkey, uint64_t addr, uint32_t length) {
  const ibv_sge one{addr, length, lkey};
  wr_set_sge_list(qp, 1, &one);
}

void reset(Builder& b) {
  b.staged.clear();
  b.list.clear();
  b.inline_data.clear();
  b.last = nullptr;
  b.error = 0;
}

/// Returns whether each request has its destination, for the services that need one (ibv_wr_post's manual, QP specific
/// setters). Checked here, before any request is posted.
bool all_addressed(ibv_qp_ex* qp) {
  const ibv_qp_type type = qp->qp_base.qp_type;
  if (type != IBV_QPT_UD && type != IBV_QPT_XRC_SEND) return true;
  for (const Builder::Staged& staged : builder(qp).staged) {
    const bool local = staged.wr.opcode == Opcode::kBindMw || staged.wr.opcode == Opcode::kLocalInv;
    if (!local && !staged.addressed) return false;
  }
  return true;
}

void wr_start(ibv_qp_ex* qp) { builder(qp).mutex.lock(); }

int wr_complete(ibv_qp_ex* qp) {
  Builder& b = builder(qp);
  if (!all_addressed(qp)) remember(qp, EINVAL);
  int error = b.error;
  if (error == 0) {
    QueuePair* core = of(qp)->core;
    core->post_begin();
    for (Builder::Staged& staged : b.staged) {
      staged.wr.sg_list = b.list.data() + staged.first_sge;
      if ((staged.wr.flags & send_flag::kInline) != 0)
        b.list[staged.first_sge].addr = reinterpret_cast<uint64_t>(b.inline_data.data() + staged.inline_offset);
      error = core->post(staged.wr);
      if (error != 0) break;
    }
    core->post_end();
  }
  reset(b);
  b.mutex.unlock();
  return answer(error);
}

void wr_abort(ibv_qp_ex* qp) {
  reset(builder(qp));
  builder(qp).mutex.unlock();
}

}  // namespace

bool can_build(uint32_t type, uint64_t flags) {
  constexpr uint64_t kDatagram = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
  constexpr uint64_t kUnreliable = kDatagram | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                   IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV;
  constexpr uint64_t kReliable = kUnreliable | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_WRITE | kQpExWithFlush;
  switch (type) {
    case IBV_QPT_RC:
    case IBV_QPT_XRC_SEND:
      return (flags & ~kReliable) == 0;
    case IBV_QPT_UC:
      return (flags & ~kUnreliable) == 0;
    case IBV_QPT_UD:
      return (flags & ~kDatagram) == 0;
    default:
      return flags == 0;
  }
}

void set_builder(VQp* made, uint64_t flags) {
  // Reserve room for a usual run, so that the first runs do not allocate.
  constexpr size_t kUsualRun = 32;
  made->builder = new Builder;
  made->builder->staged.reserve(kUsualRun);
  made->builder->list.reserve(kUsualRun * 2);
  made->builder->inline_data.reserve(made->max_inline);
  ibv_qp_ex& qp = made->ex;
  if (flags & IBV_QP_EX_WITH_RDMA_WRITE) qp.wr_rdma_write = wr_rdma_write;
  if (flags & IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM) qp.wr_rdma_write_imm = wr_rdma_write_imm;
  if (flags & IBV_QP_EX_WITH_SEND) qp.wr_send = wr_send;
  if (flags & IBV_QP_EX_WITH_SEND_WITH_IMM) qp.wr_send_imm = wr_send_imm;
  if (flags & IBV_QP_EX_WITH_RDMA_READ) qp.wr_rdma_read = wr_rdma_read;
  if (flags & IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP) qp.wr_atomic_cmp_swp = wr_atomic_cmp_swp;
  if (flags & IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD) qp.wr_atomic_fetch_add = wr_atomic_fetch_add;
  if (flags & IBV_QP_EX_WITH_LOCAL_INV) qp.wr_local_inv = wr_local_inv;
  if (flags & IBV_QP_EX_WITH_BIND_MW) qp.wr_bind_mw = wr_bind_mw;
  if (flags & IBV_QP_EX_WITH_SEND_WITH_INV) qp.wr_send_inv = wr_send_inv;
  if (flags & IBV_QP_EX_WITH_ATOMIC_WRITE) qp.wr_atomic_write = wr_atomic_write;
  if (flags & kQpExWithFlush) wr_flush_of(qp, made->behind) = wr_flush;
  qp.wr_set_ud_addr = wr_set_ud_addr;
  qp.wr_set_xrc_srqn = wr_set_xrc_srqn;
  qp.wr_set_inline_data = wr_set_inline_data;
  qp.wr_set_inline_data_list = wr_set_inline_data_list;
  qp.wr_set_sge = wr_set_sge;
  qp.wr_set_sge_list = wr_set_sge_list;
  qp.wr_start = wr_start;
  qp.wr_complete = wr_complete;
  qp.wr_abort = wr_abort;
}

}  // namespace nupa::verbs
