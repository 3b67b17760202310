// SPDX-License-Identifier: Apache-2.0
/// Protection domains, memory regions, windows, device memory, address handles, XRC domains.
#include <cstring>

#include "base/gid.h"
#include "verbs/wrappers.h"

namespace nupa::verbs {
namespace {

ibv_mr* wrap(ibv_pd* pd, std::unique_ptr<MemoryRegion> core, void* addr) {
  auto made = std::make_unique<VMr>();
  made->core = core.get();
  made->mr.context = pd->context;
  made->mr.pd = pd;
  made->mr.addr = addr;
  made->mr.length = core->length();
  made->mr.handle = core->handle();
  made->mr.lkey = core->lkey();
  made->mr.rkey = core->rkey();
  Opened& opened = *context_of(pd->context)->opened;
  {
    std::lock_guard lock(opened.mutex);
    opened.mrs[made->mr.handle] = made.get();
  }
  core.release();
  use(pd);
  return &made.release()->mr;
}

ibv_mr* reg(ibv_pd* pd, void* addr, size_t length, uint64_t iova, unsigned int access_flags) try {
  if (pd == nullptr) return refuse(EINVAL, "ibv_reg_mr");
  // A region of the whole address space (implicit on-demand paging) is not supported.
  const bool implicit = addr == nullptr && length == SIZE_MAX && (access_flags & IBV_ACCESS_ON_DEMAND) != 0;
  if (implicit) return refuse(EOPNOTSUPP, "ibv_reg_mr");
  auto core = core_of(pd->context).reg_mr(*of(pd)->core, addr, length, iova, access_flags);
  if (!core) return refuse(core.error(), "ibv_reg_mr");
  return wrap(pd, std::move(*core), addr);
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM, "ibv_reg_mr");
}

int copy_to_dm(ibv_dm* dm, uint64_t offset, const void* from, size_t length) {
  return answer(of(dm)->core->copy_to(offset, from, length), "ibv_memcpy_to_dm");
}

int copy_from_dm(void* to, ibv_dm* dm, uint64_t offset, size_t length) {
  return answer(of(dm)->core->copy_from(to, offset, length), "ibv_memcpy_from_dm");
}

std::unique_ptr<VDm> wrap(ibv_context* context, DeviceMemory* core, bool imported) {
  auto made = std::make_unique<VDm>();
  made->core = core;
  made->imported = imported;
  made->dm.context = context;
  made->dm.memcpy_to_dm = copy_to_dm;
  made->dm.memcpy_from_dm = copy_from_dm;
  made->dm.comp_mask = IBV_DM_MASK_HANDLE;
  made->dm.handle = core->handle();
  return made;
}

ibv_pd* wrap(ibv_context* context, VPd* made, ProtectionDomain* core) {
  made->core = core;
  made->pd.context = context;
  made->pd.handle = core->handle();
  return &made->pd;
}

}  // namespace

ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* attr) try {
  if (context == nullptr || attr == nullptr || attr->comp_mask != 0) return refuse(EINVAL);
  auto* made = new VTd{};
  made->td.context = context;
  return &made->td;
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

int dealloc_td(ibv_td* td) {
  if (td == nullptr) return answer(EINVAL);
  auto* made = reinterpret_cast<VTd*>(td);
  if (made->users.load() != 0) return answer(EBUSY);
  delete made;
  return 0;
}

ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* attr) try {
  constexpr uint32_t kKnown = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
  if (context == nullptr || attr == nullptr || attr->pd == nullptr || (attr->comp_mask & ~kKnown) != 0)
    return refuse(EINVAL);
  // The allocators are for buffers that a provider takes from the program's memory. NUPA has none: rings are in the
  // segment that peers map, so the callbacks are never called.
  auto* made = new VParentPd{};
  VPd* original = of(attr->pd);
  made->original = original->original == nullptr ? original : original->original;
  ++made->original->children;
  made->td = reinterpret_cast<VTd*>(attr->td);
  if (made->td != nullptr) ++made->td->users;
  return wrap(context, made, made->original->core);
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

ibv_mr* alloc_null_mr(ibv_pd* pd) try {
  if (pd == nullptr) return refuse(EINVAL);
  auto core = core_of(pd->context).alloc_null_mr(*of(pd)->core);
  if (!core) return refuse(core.error());
  return wrap(pd, std::move(*core), nullptr);
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

ibv_mr* reg_dm_mr(ibv_pd* pd, ibv_dm* dm, uint64_t offset, size_t length, unsigned int access_flags) try {
  if (pd == nullptr || dm == nullptr) return refuse(EINVAL);
  auto core = core_of(pd->context).reg_dm_mr(*of(pd)->core, *of(dm)->core, offset, length, access_flags);
  if (!core) return refuse(core.error());
  return wrap(pd, std::move(*core), nullptr);
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

ibv_dm* alloc_dm(ibv_context* context, ibv_alloc_dm_attr* attr) try {
  if (context == nullptr || attr == nullptr || attr->comp_mask != 0) return refuse(EINVAL);
  auto core = core_of(context).alloc_dm(attr->length, attr->log_align_req);
  if (!core) return refuse(core.error());
  auto made = wrap(context, core->get(), false);
  Opened& opened = *context_of(context)->opened;
  {
    std::lock_guard lock(opened.mutex);
    opened.dms[made->dm.handle] = made.get();
  }
  core->release();
  return &made.release()->dm;
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

int free_dm(ibv_dm* dm) {
  if (dm == nullptr) return answer(EINVAL);
  VDm* made = of(dm);
  if (const int error = made->core->close(); error != 0) return answer(error);
  forget_number(dm->context, &Opened::dms, dm->handle);
  delete made->core;
  delete made;
  return 0;
}

int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* list, uint32_t count) {
  if (pd == nullptr) return answer(EINVAL);
  return answer(core_of(pd->context)
                    .advise_mr(*of(pd)->core, static_cast<MrAdvice>(number_in(advice)), flags,
                               reinterpret_cast<Sge*>(list), count));
}

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) try {
  if (pd == nullptr) return refuse(EINVAL);
  auto core = core_of(pd->context).alloc_mw(*of(pd)->core, static_cast<MwType>(number_in(type)));
  if (!core) return refuse(core.error());
  auto* made = new VMw{};
  made->core = core->release();
  made->mw.context = pd->context;
  made->mw.pd = pd;
  made->mw.rkey = made->core->rkey();
  made->mw.handle = made->core->handle();
  made->mw.type = type;
  use(pd);
  return &made->mw;
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

int dealloc_mw(ibv_mw* mw) {
  if (mw == nullptr) return answer(EINVAL);
  VMw* made = of(mw);
  if (const int error = made->core->close(); error != 0) return answer(error);
  leave(mw->pd);
  delete made->core;
  delete made;
  return 0;
}

int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind) {
  if (qp == nullptr || mw == nullptr || bind == nullptr) return answer(EINVAL);
  SendWr wr;
  wr.wr_id = bind->wr_id;
  wr.opcode = Opcode::kBindMw;
  wr.flags = bind->send_flags;
  wr.mw = of(mw)->core;
  wr.rkey = ibv_inc_rkey(mw->rkey);  // chosen here: the bind may have to wait, but the program gets its key now
  wr.bind.region = bind->bind_info.mr == nullptr ? nullptr : of(bind->bind_info.mr)->core;
  wr.bind.addr = bind->bind_info.addr;
  wr.bind.length = bind->bind_info.length;
  wr.bind.access_flags = bind->bind_info.mw_access_flags;
  const int error = of(qp)->core->post_send(wr);
  if (error == 0) mw->rkey = wr.rkey;
  return answer(error);
}

ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* attr) try {
  constexpr uint32_t kNeeded = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  if (context == nullptr || attr == nullptr || attr->comp_mask != kNeeded) return refuse(EINVAL);
  auto core = core_of(context).open_xrcd(attr->fd, attr->oflags);
  if (!core) return refuse(core.error());
  auto* made = new VXrcd{};
  made->xrcd.context = context;
  made->core = core->release();
  return &made->xrcd;
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

int close_xrcd(ibv_xrcd* xrcd) {
  if (xrcd == nullptr) return answer(EINVAL);
  VXrcd* made = of(xrcd);
  if (const int error = made->core->close(); error != 0) return answer(error);
  delete made->core;
  delete made;
  return 0;
}

AddressVector to_core(const ibv_ah_attr& attr) {
  AddressVector vector;
  std::memcpy(vector.dgid.raw.data(), attr.grh.dgid.raw, 16);
  vector.flow_label = attr.grh.flow_label;
  vector.sgid_index = attr.grh.sgid_index;
  vector.hop_limit = attr.grh.hop_limit;
  vector.traffic_class = attr.grh.traffic_class;
  vector.dlid = attr.dlid;
  vector.sl = attr.sl;
  vector.src_path_bits = attr.src_path_bits;
  vector.static_rate = attr.static_rate;
  vector.is_global = attr.is_global != 0;
  vector.port_num = attr.port_num;
  return vector;
}

void from_core(const AddressVector& vector, ibv_ah_attr* attr) {
  std::memset(attr, 0, sizeof *attr);
  std::memcpy(attr->grh.dgid.raw, vector.dgid.raw.data(), 16);
  attr->grh.flow_label = vector.flow_label;
  attr->grh.sgid_index = vector.sgid_index;
  attr->grh.hop_limit = vector.hop_limit;
  attr->grh.traffic_class = vector.traffic_class;
  attr->dlid = vector.dlid;
  attr->sl = vector.sl;
  attr->src_path_bits = vector.src_path_bits;
  attr->static_rate = vector.static_rate;
  attr->is_global = vector.is_global;
  attr->port_num = vector.port_num;
}

}  // namespace nupa::verbs

using namespace nupa::verbs;

NUPA_VERBS ibv_pd* ibv_alloc_pd(ibv_context* context) try {
  if (context == nullptr) return refuse(EINVAL);
  auto core = core_of(context).alloc_pd();
  if (!core) return refuse(core.error());
  auto made = std::make_unique<VPd>();
  ibv_pd* pd = wrap(context, made.get(), core->get());
  Opened& opened = *context_of(context)->opened;
  {
    std::lock_guard lock(opened.mutex);
    opened.pds[pd->handle] = made.get();
  }
  core->release();
  made.release();
  return pd;
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

NUPA_VERBS int ibv_dealloc_pd(ibv_pd* pd) {
  if (pd == nullptr) return answer(EINVAL);
  VPd* made = of(pd);
  if (made->original != nullptr) {
    auto* parent = static_cast<VParentPd*>(made);
    if (parent->objects.load() != 0) return answer(EBUSY);
    --parent->original->children;
    if (parent->td != nullptr) --parent->td->users;
    delete parent;
    return 0;
  }
  if (made->children.load() != 0) return answer(EBUSY);
  if (const int error = made->core->close(); error != 0) return answer(error);
  forget_number(pd->context, &Opened::pds, pd->handle);
  delete made->core;
  delete made;
  return 0;
}

NUPA_VERBS ibv_pd* ibv_import_pd(ibv_context* context, uint32_t handle) try {
  if (context == nullptr) return refuse(EINVAL);
  if (is_inherited(context)) return refuse(ENODEV);
  Opened& opened = *context_of(context)->opened;
  std::lock_guard lock(opened.mutex);
  const auto found = opened.pds.find(handle);
  if (found == opened.pds.end()) return refuse(ENOENT);
  auto* made = new VParentPd{};
  made->original = found->second;
  ++made->original->children;
  return wrap(context, made, found->second->core);
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

NUPA_VERBS void ibv_unimport_pd(ibv_pd* pd) {
  if (pd != nullptr && of(pd)->original != nullptr) ibv_dealloc_pd(pd);
}

NUPA_VERBS ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, size_t length, int access_flags) {
  return reg(pd, addr, length, reinterpret_cast<uint64_t>(addr), static_cast<unsigned>(access_flags));
}

NUPA_VERBS ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova, int access_flags) {
  return reg(pd, addr, length, iova, static_cast<unsigned>(access_flags));
}

NUPA_VERBS ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t iova, unsigned int access_flags) {
  return reg(pd, addr, length, iova, access_flags);
}

NUPA_VERBS ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                                     int access_flags) try {
  if (pd == nullptr) return refuse(EINVAL);
  auto core =
      core_of(pd->context).reg_dmabuf_mr(*of(pd)->core, offset, length, iova, fd, static_cast<unsigned>(access_flags));
  if (!core) return refuse(core.error());
  // The program only knows the region's offset in the descriptor.
  return wrap(pd, std::move(*core), reinterpret_cast<void*>(offset));
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

NUPA_VERBS int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* addr, size_t length, int access_flags) try {
  const bool bad = mr == nullptr || (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) != 0 ||
                   ((flags & IBV_REREG_MR_CHANGE_PD) != 0 && pd == nullptr);
  const int error =
      bad ? EINVAL
          : core_of(mr->context)
                .rereg_mr(*of(mr)->core, static_cast<uint32_t>(flags), pd == nullptr ? nullptr : of(pd)->core, addr,
                          length, static_cast<uint32_t>(access_flags));
  if (error != 0) {
    errno = explained(error, "ibv_rereg_mr");
    return IBV_REREG_MR_ERR_INPUT;
  }
  mr->lkey = of(mr)->core->lkey();
  mr->rkey = of(mr)->core->rkey();
  if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0) {
    mr->addr = addr;
    mr->length = length;
  }
  if ((flags & IBV_REREG_MR_CHANGE_PD) != 0) {
    use(pd);
    leave(mr->pd);
    mr->pd = pd;
  }
  return 0;
} catch (const std::bad_alloc&) {
  errno = ENOMEM;
  return IBV_REREG_MR_ERR_INPUT;
}

NUPA_VERBS int ibv_dereg_mr(ibv_mr* mr) {
  if (mr == nullptr) return answer(EINVAL);
  VMr* made = of(mr);
  if (const int error = made->core->close(); error != 0) return answer(error);
  forget_number(mr->context, &Opened::mrs, mr->handle);
  leave(mr->pd);
  delete made->core;
  delete made;
  return 0;
}

NUPA_VERBS ibv_mr* ibv_import_mr(ibv_pd* pd, uint32_t handle) try {
  if (pd == nullptr) return refuse(EINVAL);
  if (is_inherited(pd->context)) return refuse(ENODEV);
  Opened& opened = *context_of(pd->context)->opened;
  std::lock_guard lock(opened.mutex);
  const auto found = opened.mrs.find(handle);
  if (found == opened.mrs.end()) return refuse(ENOENT);
  auto* made = new VMr(*found->second);
  made->imported = true;
  made->mr.context = pd->context;
  made->mr.pd = pd;
  // The address does not apply to an imported region; null is expected (ibv_import_mr's manual).
  made->mr.addr = nullptr;
  use(pd);
  return &made->mr;
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

NUPA_VERBS void ibv_unimport_mr(ibv_mr* mr) {
  if (mr == nullptr || !of(mr)->imported) return;
  leave(mr->pd);
  delete of(mr);
}

NUPA_VERBS ibv_dm* ibv_import_dm(ibv_context* context, uint32_t handle) try {
  if (context == nullptr) return refuse(EINVAL);
  if (is_inherited(context)) return refuse(ENODEV);
  Opened& opened = *context_of(context)->opened;
  std::lock_guard lock(opened.mutex);
  const auto found = opened.dms.find(handle);
  if (found == opened.dms.end()) return refuse(ENOENT);
  return &wrap(context, found->second->core, true).release()->dm;
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

NUPA_VERBS void ibv_unimport_dm(ibv_dm* dm) {
  if (dm != nullptr && of(dm)->imported) delete of(dm);
}

NUPA_VERBS ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) try {
  if (pd == nullptr || attr == nullptr) return refuse(EINVAL);
  auto core = core_of(pd->context).create_ah(*of(pd)->core, to_core(*attr));
  if (!core) return refuse(core.error());
  auto* made = new VAh{};
  made->core = core->release();
  made->ah.context = pd->context;
  made->ah.pd = pd;
  made->ah.handle = made->core->handle();
  use(pd);
  return &made->ah;
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

NUPA_VERBS int ibv_destroy_ah(ibv_ah* ah) {
  if (ah == nullptr) return answer(EINVAL);
  VAh* made = of(ah);
  if (const int error = made->core->close(); error != 0) return answer(error);
  leave(ah->pd);
  delete made->core;
  delete made;
  return 0;
}

NUPA_VERBS int ibv_init_ah_from_wc(ibv_context* context, uint8_t port_num, ibv_wc* wc, ibv_grh* grh,
                                   ibv_ah_attr* attr) {
  if (context == nullptr || wc == nullptr || attr == nullptr) {
    errno = EINVAL;
    return -1;
  }
  std::memset(attr, 0, sizeof *attr);
  attr->dlid = wc->slid;
  attr->sl = wc->sl;
  attr->src_path_bits = wc->dlid_path_bits;
  attr->port_num = port_num;
  if ((wc->wc_flags & IBV_WC_GRH) == 0) return 0;
  if (grh == nullptr) {
    errno = EINVAL;
    return -1;
  }
  // The 40 bytes hold an InfiniBand header, or an IPv4 header in their last 20 (RoCEv2 over IPv4).
  const auto* bytes = reinterpret_cast<const uint8_t*>(grh);
  ibv_gid source{};
  ibv_gid own{};
  attr->is_global = 1;
  if (bytes[0] >> 4 == 6) {
    source = grh->sgid;
    own = grh->dgid;
    attr->grh.traffic_class = static_cast<uint8_t>(be32toh(grh->version_tclass_flow) >> 20);
    attr->grh.flow_label = be32toh(grh->version_tclass_flow) & 0xfffff;
  } else {
    std::memcpy(source.raw, nupa::base::ipv4_gid(bytes + 20 + 12).raw.data(), sizeof source.raw);
    std::memcpy(own.raw, nupa::base::ipv4_gid(bytes + 20 + 16).raw.data(), sizeof own.raw);
    attr->grh.traffic_class = bytes[21];
  }
  attr->grh.dgid = source;
  attr->grh.hop_limit = 64;
  for (uint32_t index = 0;; ++index) {
    auto entry = core_of(context).query_gid(port_num, index);
    if (!entry) break;
    if (std::memcmp(entry->gid.raw.data(), own.raw, 16) != 0) continue;
    attr->grh.sgid_index = static_cast<uint8_t>(index);
    return 0;
  }
  errno = ENOENT;
  return -1;
}

NUPA_VERBS ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, uint8_t port_num) {
  ibv_ah_attr attr;
  if (pd == nullptr || ibv_init_ah_from_wc(pd->context, port_num, wc, grh, &attr) != 0)
    return pd == nullptr ? refuse(EINVAL) : nullptr;
  return ibv_create_ah(pd, &attr);
}
