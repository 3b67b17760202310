// SPDX-License-Identifier: Apache-2.0
/// Functions that find, open and query the devices.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "progress/of_process.h"
#include "verbs/wrappers.h"

namespace nupa::verbs {
namespace {

progress::ForkMutex& g_mutex = *new progress::ForkMutex;
/// Device and inode of a command descriptor, which are the same for every dup() of it. {0, 0}: not a descriptor.
using FileIdentity = std::pair<uint64_t, uint64_t>;
std::map<FileIdentity, std::weak_ptr<Opened>> g_opened;

VDevice* make_device(const std::string& name, int index) {
  auto* made = new VDevice{};
  made->index = index;
  ibv_device& d = made->device;
  d.node_type = IBV_NODE_CA;
  d.transport_type = IBV_TRANSPORT_IB;
  std::strncpy(d.name, name.c_str(), sizeof d.name - 1);
  std::snprintf(d.dev_name, sizeof d.dev_name, "uverbs%d", index);
  std::snprintf(d.dev_path, sizeof d.dev_path, "/sys/class/infiniband_verbs/%s", d.dev_name);
  std::snprintf(d.ibdev_path, sizeof d.ibdev_path, "/sys/class/infiniband/%s", d.name);
  return made;
}

/// The device of that name at that place in the list. It is never freed, because programs keep pointers to it until
/// they exit. A later list can have another device at the place: a pool was formatted meanwhile.
ibv_device* device_at(const nupa::DeviceName& shown, size_t index) {
  static auto* made = new std::vector<VDevice*>;
  std::lock_guard lock(g_mutex);
  const auto is_it = [&](const VDevice* each) {
    return each->index == static_cast<int>(index) && shown.name == each->device.name;
  };
  auto found = std::find_if(made->begin(), made->end(), is_it);
  if (found == made->end()) found = made->insert(made->end(), make_device(shown.name, static_cast<int>(index)));
  VDevice& device = **found;
  device.node_guid = shown.node_guid;
  return &device.device;
}

FileIdentity identity_of(int fd) {
  struct stat status;
  if (fd < 0 || fstat(fd, &status) != 0) return {};
  return {status.st_dev, status.st_ino};
}

ibv_context* make_context(std::shared_ptr<Opened> opened, int cmd_fd) {
  auto* made = new VContext{};
  made->opened = std::move(opened);
  made->verbs.sz = sizeof(verbs_context);
  set_operations(&made->verbs);
  ibv_context& context = made->verbs.context;
  context.device = made->opened->device;
  context.cmd_fd = cmd_fd;
  context.async_fd = made->opened->core->async_fd();
  context.num_comp_vectors = 1;
  context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  pthread_mutex_init(&context.mutex, nullptr);
  return &context;
}

/// Fills a structure of `room` bytes whose size depends on the caller's header version. An older structure is shorter;
/// the additional fields of a newer one are set to zero.
template <class Attr>
void give(const Attr& from, void* to, size_t room) {
  const size_t known = std::min(room, sizeof from);
  std::memcpy(to, &from, known);
  std::memset(static_cast<char*>(to) + known, 0, room - known);
}

void fill(const DeviceAttr& from, ibv_device_attr* to) {
  std::memset(to, 0, sizeof *to);
  std::memcpy(to->fw_ver, from.fw_ver, sizeof to->fw_ver);
  to->node_guid = from.node_guid;
  to->sys_image_guid = from.sys_image_guid;
  to->max_mr_size = from.max_mr_size;
  to->page_size_cap = from.page_size_cap;
  to->vendor_id = from.vendor_id;
  to->vendor_part_id = from.vendor_part_id;
  to->hw_ver = from.hw_ver;
  to->max_qp = from.max_qp;
  to->max_qp_wr = from.max_qp_wr;
  to->device_cap_flags = from.device_cap_flags;
  to->max_sge = from.max_sge;
  to->max_sge_rd = from.max_sge_rd;
  to->max_cq = from.max_cq;
  to->max_cqe = from.max_cqe;
  to->max_mr = from.max_mr;
  to->max_pd = from.max_pd;
  to->max_qp_rd_atom = from.max_qp_rd_atom;
  to->max_res_rd_atom = from.max_res_rd_atom;
  to->max_qp_init_rd_atom = from.max_qp_init_rd_atom;
  to->atomic_cap = static_cast<ibv_atomic_cap>(from.atomic_cap);
  to->max_mw = from.max_mw;
  to->max_mcast_grp = from.max_mcast_grp;
  to->max_mcast_qp_attach = from.max_mcast_qp_attach;
  to->max_total_mcast_qp_attach = from.max_total_mcast_qp_attach;
  to->max_ah = from.max_ah;
  to->max_srq = from.max_srq;
  to->max_srq_wr = from.max_srq_wr;
  to->max_srq_sge = from.max_srq_sge;
  to->max_pkeys = from.max_pkeys;
  to->local_ca_ack_delay = from.local_ca_ack_delay;
  to->phys_port_cnt = from.phys_port_cnt;
}

}  // namespace

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input, ibv_device_attr_ex* attr,
                    size_t size) {
  constexpr size_t kLeast = offsetof(ibv_device_attr_ex, odp_caps);
  if (attr == nullptr || size < kLeast || (input != nullptr && input->comp_mask != 0)) return answer(EINVAL);
  const DeviceAttr from = core_of(context).query();
  ibv_device_attr_ex full{};
  fill(from, &full.orig_attr);
  full.odp_caps.general_caps = from.odp_general_caps;
  full.odp_caps.per_transport_caps.rc_odp_caps = from.odp_caps_rc;
  full.odp_caps.per_transport_caps.uc_odp_caps = from.odp_caps_uc;
  full.odp_caps.per_transport_caps.ud_odp_caps = from.odp_caps_ud;
  full.xrc_odp_caps = from.odp_caps_xrc;
  full.completion_timestamp_mask = from.completion_timestamp_mask;
  full.hca_core_clock = core_of(context).clock_khz();
  full.device_cap_flags_ex = from.device_cap_flags | kDeviceFlushGlobal | kDeviceAtomicWrite;
  full.cq_mod_caps = {from.max_cq_count, from.max_cq_period};
  full.max_dm_size = from.max_dm_size;
  full.phys_port_cnt_ex = from.phys_port_cnt;
  give(full, attr, size);
  return 0;
}

int query_port(ibv_context* context, uint8_t port_num, ibv_port_attr* attr, size_t length) {
  if (attr == nullptr) return answer(EINVAL);
  auto from = core_of(context).query_port(port_num);
  if (!from) return answer(from.error());
  ibv_port_attr full{};
  full.state = static_cast<ibv_port_state>(from->state);
  full.max_mtu = static_cast<ibv_mtu>(from->max_mtu);
  full.active_mtu = static_cast<ibv_mtu>(from->active_mtu);
  full.gid_tbl_len = from->gid_tbl_len;
  full.port_cap_flags = from->port_cap_flags;
  full.max_msg_sz = from->max_msg_sz;
  full.bad_pkey_cntr = from->bad_pkey_cntr;
  full.qkey_viol_cntr = from->qkey_viol_cntr;
  full.pkey_tbl_len = from->pkey_tbl_len;
  full.lid = from->lid;
  full.sm_lid = from->sm_lid;
  full.max_vl_num = 1;
  full.active_width = static_cast<uint8_t>(from->active_width);
  full.active_speed = static_cast<uint8_t>(from->active_speed);
  full.phys_state = static_cast<uint8_t>(from->phys_state);
  full.link_layer = static_cast<uint8_t>(from->link_layer);
  give(full, attr, length);
  return 0;
}

int query_rt_values(ibv_context* context, ibv_values_ex* values) {
  if (values == nullptr || (values->comp_mask & ~IBV_VALUES_MASK_RAW_CLOCK) != 0) return answer(EINVAL);
  if ((values->comp_mask & IBV_VALUES_MASK_RAW_CLOCK) == 0) return 0;
  // The ABI keeps raw ticks in tv_nsec.
  values->raw_clock.tv_sec = 0;
  values->raw_clock.tv_nsec = static_cast<long>(core_of(context).clock());
  return 0;
}

}  // namespace nupa::verbs

using namespace nupa::verbs;

NUPA_VERBS ibv_device** ibv_get_device_list(int* count) try {
  const auto names = nupa::list_devices();
  auto** list = static_cast<ibv_device**>(std::calloc(names.size() + 1, sizeof(ibv_device*)));
  if (list == nullptr) return refuse(ENOMEM);
  for (size_t i = 0; i < names.size(); ++i) list[i] = device_at(names[i], i);
  if (count != nullptr) *count = static_cast<int>(names.size());
  return list;
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

NUPA_VERBS void ibv_free_device_list(ibv_device** list) { std::free(list); }

NUPA_VERBS const char* ibv_get_device_name(ibv_device* device) { return device == nullptr ? nullptr : device->name; }

NUPA_VERBS int ibv_get_device_index(ibv_device* device) {
  return device == nullptr ? -1 : reinterpret_cast<VDevice*>(device)->index;
}

NUPA_VERBS __be64 ibv_get_device_guid(ibv_device* device) {
  return device == nullptr ? 0 : reinterpret_cast<VDevice*>(device)->node_guid.load();
}

NUPA_VERBS ibv_context* ibv_open_device(ibv_device* device) try {
  if (device == nullptr) return refuse(EINVAL);
  auto core = nupa::open_device(device->name);
  if (!core) return refuse(core.error());
  // A memory file replaces the kernel's command descriptor: a program that has it can import the context.
  const int cmd_fd = memfd_create("nupa-context", MFD_CLOEXEC);
  if (cmd_fd < 0) return refuse(errno);
  auto opened = std::make_shared<Opened>();
  opened->core = std::move(*core);
  opened->device = device;
  {
    std::lock_guard lock(g_mutex);
    g_opened[identity_of(cmd_fd)] = opened;
  }
  return make_context(std::move(opened), cmd_fd);
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

NUPA_VERBS int ibv_close_device(ibv_context* context) {
  if (context == nullptr) return answer(EINVAL);
  VContext* made = context_of(context);
  std::shared_ptr<Opened> last;
  {
    std::lock_guard lock(g_mutex);  // if two threads close one context each, exactly one of them is the last
    if (made->opened.use_count() == 1) {
      g_opened.erase(identity_of(context->cmd_fd));
      last = std::move(made->opened);
    }
    made->opened.reset();
  }
  // The kernel frees forgotten objects when it closes the descriptor; here they stay until the process exits.
  if (last != nullptr && last->core->close() != 0) [[maybe_unused]]
    auto* forgotten = last->core.release();
  ::close(context->cmd_fd);
  pthread_mutex_destroy(&context->mutex);
  delete made;
  return 0;
}

NUPA_VERBS ibv_context* ibv_import_device(int cmd_fd) try {
  std::shared_ptr<Opened> opened;
  {
    std::lock_guard lock(g_mutex);
    const auto found = g_opened.find(identity_of(cmd_fd));
    if (found != g_opened.end()) opened = found->second.lock();
  }
  if (opened != nullptr && !opened->made.holds()) opened = nullptr;
  // A context of another process cannot be imported: its memory belongs to that process.
  if (opened == nullptr) return refuse(identity_of(cmd_fd) == FileIdentity{} ? EBADF : EOPNOTSUPP);
  return make_context(std::move(opened), cmd_fd);
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

NUPA_VERBS int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  if (context == nullptr || attr == nullptr) return answer(EINVAL);
  fill(core_of(context).query(), attr);
  return 0;
}

NUPA_VERBS int ibv_query_port(ibv_context* context, uint8_t port_num, _compat_ibv_port_attr* attr) {
  if (context == nullptr) return answer(EINVAL);
  // The old structure ends before port_cap_flags2.
  return query_port(context, port_num, reinterpret_cast<ibv_port_attr*>(attr),
                    offsetof(ibv_port_attr, port_cap_flags2));
}

NUPA_VERBS int ibv_query_gid(ibv_context* context, uint8_t port_num, int index, ibv_gid* gid) {
  if (context == nullptr || gid == nullptr || index < 0) {
    errno = EINVAL;
    return -1;
  }
  auto entry = core_of(context).query_gid(port_num, static_cast<uint32_t>(index));
  if (!entry && entry.error().code() != ENODATA) {
    errno = explained(entry.error(), "ibv_query_gid");
    return -1;
  }
  // An empty entry reads as zeros.
  std::memset(gid, 0, sizeof *gid);
  if (entry) std::memcpy(gid->raw, entry->gid.raw.data(), sizeof gid->raw);
  return 0;
}

namespace {

ibv_gid_entry entry_of(const nupa::GidEntry& from) {
  ibv_gid_entry entry{};
  std::memcpy(entry.gid.raw, from.gid.raw.data(), sizeof entry.gid.raw);
  entry.gid_index = from.index;
  entry.port_num = from.port_num;
  entry.gid_type = static_cast<uint32_t>(from.type);
  entry.ndev_ifindex = from.interface_index;
  return entry;
}

}  // namespace

NUPA_VERBS int _ibv_query_gid_ex(ibv_context* context, uint32_t port_num, uint32_t index, ibv_gid_entry* entry,
                                 uint32_t flags, size_t size) {
  if (context == nullptr || entry == nullptr || flags != 0 || size < sizeof(ibv_gid_entry) || port_num > UINT8_MAX)
    return answer(EINVAL, "ibv_query_gid_ex");
  auto found = core_of(context).query_gid(static_cast<uint8_t>(port_num), index);
  if (!found) return answer(found.error(), "ibv_query_gid_ex");
  give(entry_of(*found), entry, size);
  return 0;
}

NUPA_VERBS ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t max_entries,
                                        uint32_t flags, size_t size) {
  if (context == nullptr || entries == nullptr || flags != 0 || size == 0) return -EINVAL;
  size_t count = 0;
  for (uint32_t index = 0;; ++index) {
    auto found = core_of(context).query_gid(1, index);
    if (!found) break;
    if (count == max_entries) return -EINVAL;  // returns the whole table or an error
    give(entry_of(*found), reinterpret_cast<char*>(entries) + count * size, size);
    ++count;
  }
  return static_cast<ssize_t>(count);
}

NUPA_VERBS int ibv_query_pkey(ibv_context* context, uint8_t port_num, int index, __be16* pkey) {
  auto found = context == nullptr || pkey == nullptr || index < 0
                   ? nupa::Result<uint16_t>(nupa::fail(EINVAL, "invalid argument"))
                   : core_of(context).query_pkey(port_num, static_cast<uint32_t>(index));
  if (!found) {
    errno = explained(found.error(), "ibv_query_pkey");
    return -1;
  }
  *pkey = *found;
  return 0;
}

NUPA_VERBS int ibv_get_pkey_index(ibv_context* context, uint8_t port_num, __be16 pkey) {
  __be16 first;
  if (ibv_query_pkey(context, port_num, 0, &first) != 0) return -1;
  if (first == pkey) return 0;
  errno = EINVAL;
  return -1;
}
