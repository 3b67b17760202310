// SPDX-License-Identifier: Apache-2.0
/// The private symbols that providers' libraries (libmlx5, libefa) bind at load time. A provider never gets a device
/// here, so almost all of them have nothing to do: each fails in the way of its kind. They have
/// the version nodes of version_nodes.h.
#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "base/settings.h"
#include "verbs/version_nodes.h"
#include "verbs/wrappers.h"

using nupa::verbs::answer;
using nupa::verbs::core_of;

// The functions never read their arguments, so the symbols are declared without them.
#define NUPA_PRIVATE(name)                   \
  NUPA_VERBS int nupa_private_##name(void) { \
    errno = EOPNOTSUPP;                      \
    return EOPNOTSUPP;                       \
  }                                          \
  NUPA_IN_EACH_NODE(nupa_private_##name, name)
#define NUPA_PRIVATE_POINTER(name)             \
  NUPA_VERBS void* nupa_private_##name(void) { \
    errno = EOPNOTSUPP;                        \
    return nullptr;                            \
  }                                            \
  NUPA_IN_EACH_NODE(nupa_private_##name, name)
// Functions whose positive result is a number of bytes or completions.
#define NUPA_PRIVATE_COUNT(name)             \
  NUPA_VERBS int nupa_private_##name(void) { \
    errno = EOPNOTSUPP;                      \
    return -1;                               \
  }                                          \
  NUPA_IN_EACH_NODE(nupa_private_##name, name)
#define NUPA_PRIVATE_VOID(name)                \
  NUPA_VERBS void nupa_private_##name(void) {} \
  NUPA_IN_EACH_NODE(nupa_private_##name, name)
/// Functions that the later nodes alone have.
#define NUPA_PRIVATE_LATER_OF(type, name, result)                                          \
  extern "C" __attribute__((visibility("default"), used)) type nupa_private_##name(void) { \
    errno = EOPNOTSUPP;                                                                    \
    return result;                                                                         \
  }                                                                                        \
  NUPA_IN_LATER_NODES(nupa_private_##name, name)
#define NUPA_PRIVATE_LATER(name) NUPA_PRIVATE_LATER_OF(int, name, EOPNOTSUPP)
#define NUPA_PRIVATE_LATER_POINTER(name) NUPA_PRIVATE_LATER_OF(void*, name, nullptr)
#define NUPA_PRIVATE_LATER_VOID(name) NUPA_PRIVATE_LATER_OF(void, name, )

/// Providers register from their constructors, with the function of their node. There is no adapter for them.
NUPA_VERBS void verbs_register_driver_34(const void*) {}
NUPA_VERBS void verbs_register_driver_57(const void*) {}
NUPA_VERBS void verbs_register_driver_59(const void*) {}
NUPA_VERBS void verbs_register_driver_64(const void*) {}
NUPA_VERBS void verbs_register_driver_65(const void*) {}
/// A data symbol: true if objects of a device that was removed may be destroyed.
extern "C" __attribute__((visibility("default"))) bool nupa_private_allow_destroy;
bool nupa_private_allow_destroy = false;
NUPA_IN_EACH_NODE(nupa_private_allow_destroy, verbs_allow_disassociate_destroy)

/// Returns the number of attributes of an ioctl command: none.
NUPA_VERBS unsigned int nupa_private_ioctl_final_num_attrs(unsigned int) { return 0; }
NUPA_IN_EACH_NODE(nupa_private_ioctl_final_num_attrs, __ioctl_final_num_attrs)

/// Returns the value of VERBS_LOG_LEVEL. A wrong one is reported once and counts as 0, because no call here can return
/// an error.
static uint64_t log_level() {
  const auto wanted = nupa::base::number_setting("VERBS_LOG_LEVEL");
  if (wanted) return *wanted;
  [[maybe_unused]] static const int printed = std::fprintf(stderr, "nupa: %s; using 0\n", wanted.error().what());
  return 0;
}

/// Prints a provider's message if VERBS_LOG_LEVEL (0: none, up to 4; see the manual) allows its level.
NUPA_VERBS void nupa_private_verbs_log(verbs_context*, uint32_t level, const char* format, ...) {
  if (format == nullptr || log_level() < level) return;
  va_list values;
  va_start(values, format);
  std::vfprintf(stderr, format, values);
  va_end(values);
}
NUPA_IN_EACH_NODE(nupa_private_verbs_log, __verbs_log)

/// Fills the part of a completion queue that programs read.
NUPA_VERBS void nupa_private_verbs_init_cq(ibv_cq* cq, ibv_context* context, ibv_comp_channel* channel,
                                           void* cq_context) {
  cq->context = context;
  cq->channel = channel;
  cq->cq_context = cq_context;
  cq->comp_events_completed = 0;
  cq->async_events_completed = 0;
  pthread_mutex_init(&cq->mutex, nullptr);
  pthread_cond_init(&cq->cond, nullptr);
  if (channel != nullptr) __atomic_fetch_add(&channel->refcnt, 1, __ATOMIC_RELAXED);
}
NUPA_IN_EACH_NODE(nupa_private_verbs_init_cq, verbs_init_cq)

NUPA_VERBS int nupa_private_ibv_query_gid_type(ibv_context* context, uint8_t port_num, unsigned int index,
                                               unsigned int* type) {
  if (context == nullptr || type == nullptr) return answer(EINVAL);
  auto found = core_of(context).query_gid(port_num, index);
  if (!found && found.error().code() != ENODATA) {
    errno = found.error().code();
    return -1;
  }
  // This private call uses the kernel's two types: 0 for InfiniBand and RoCE v1, 1 for RoCE v2.
  *type = found && found->type == nupa::GidType::kRoceV2 ? 1 : 0;
  return 0;
}
NUPA_IN_EACH_NODE(nupa_private_ibv_query_gid_type, ibv_query_gid_type)

/// For the tracing of providers since rdma-core 49.
NUPA_VERBS const char* nupa_private_ibv_wr_opcode_str(ibv_wr_opcode opcode) {
  static constexpr std::array<const char*, 16> kNames = {"rdma-write",
                                                         "rdma-write-with-imm",
                                                         "send",
                                                         "send-with-imm",
                                                         "rdma-read",
                                                         "atomic-cmp-and-swp",
                                                         "atomic-fetch-and-add",
                                                         "local-inv",
                                                         "bind-mw",
                                                         "send-with-inv",
                                                         "tso",
                                                         "driver1",
                                                         nullptr,
                                                         nullptr,
                                                         "flush",
                                                         "atomic-write"};
  const auto index = static_cast<size_t>(opcode);
  return index < kNames.size() && kNames[index] != nullptr ? kNames[index] : "unknown";
}
NUPA_IN_EACH_NODE(nupa_private_ibv_wr_opcode_str, ibv_wr_opcode_str)

// These two work on the result of _verbs_init_and_alloc_context, which is always null.
NUPA_PRIVATE_VOID(verbs_set_ops)
NUPA_PRIVATE_VOID(verbs_uninit_context)
NUPA_PRIVATE_COUNT(ibv_read_ibdev_sysfs_file)
NUPA_PRIVATE_COUNT(ibv_cmd_poll_cq)
NUPA_PRIVATE_POINTER(_verbs_init_and_alloc_context)
NUPA_PRIVATE(execute_ioctl)
NUPA_PRIVATE(ibv_cmd_advise_mr)
NUPA_PRIVATE(ibv_cmd_alloc_dm)
NUPA_PRIVATE(ibv_cmd_alloc_mw)
NUPA_PRIVATE(ibv_cmd_alloc_pd)
NUPA_PRIVATE(ibv_cmd_attach_mcast)
NUPA_PRIVATE(ibv_cmd_close_xrcd)
NUPA_PRIVATE(ibv_cmd_create_ah)
NUPA_PRIVATE(ibv_cmd_create_counters)
NUPA_PRIVATE(ibv_cmd_create_cq)
NUPA_PRIVATE(ibv_cmd_create_cq_ex)
NUPA_PRIVATE(ibv_cmd_create_cq_ex2)
NUPA_PRIVATE(ibv_cmd_create_flow)
NUPA_PRIVATE(ibv_cmd_create_flow_action_esp)
NUPA_PRIVATE(ibv_cmd_create_qp)
NUPA_PRIVATE(ibv_cmd_create_qp_ex)
NUPA_PRIVATE(ibv_cmd_create_qp_ex2)
NUPA_PRIVATE(ibv_cmd_create_rwq_ind_table)
NUPA_PRIVATE(ibv_cmd_create_srq)
NUPA_PRIVATE(ibv_cmd_create_srq_ex)
NUPA_PRIVATE(ibv_cmd_create_wq)
NUPA_PRIVATE(ibv_cmd_dealloc_mw)
NUPA_PRIVATE(ibv_cmd_dealloc_pd)
NUPA_PRIVATE(ibv_cmd_dereg_mr)
NUPA_PRIVATE(ibv_cmd_destroy_ah)
NUPA_PRIVATE(ibv_cmd_destroy_counters)
NUPA_PRIVATE(ibv_cmd_destroy_cq)
NUPA_PRIVATE(ibv_cmd_destroy_flow)
NUPA_PRIVATE(ibv_cmd_destroy_flow_action)
NUPA_PRIVATE(ibv_cmd_destroy_qp)
NUPA_PRIVATE(ibv_cmd_destroy_rwq_ind_table)
NUPA_PRIVATE(ibv_cmd_destroy_srq)
NUPA_PRIVATE(ibv_cmd_destroy_wq)
NUPA_PRIVATE(ibv_cmd_detach_mcast)
NUPA_PRIVATE(ibv_cmd_free_dm)
NUPA_PRIVATE(ibv_cmd_get_context)
NUPA_PRIVATE(ibv_cmd_modify_cq)
NUPA_PRIVATE(ibv_cmd_modify_flow_action_esp)
NUPA_PRIVATE(ibv_cmd_modify_qp)
NUPA_PRIVATE(ibv_cmd_modify_qp_ex)
NUPA_PRIVATE(ibv_cmd_modify_srq)
NUPA_PRIVATE(ibv_cmd_modify_wq)
NUPA_PRIVATE(ibv_cmd_open_qp)
NUPA_PRIVATE(ibv_cmd_open_xrcd)
NUPA_PRIVATE(ibv_cmd_post_recv)
NUPA_PRIVATE(ibv_cmd_post_send)
NUPA_PRIVATE(ibv_cmd_post_srq_recv)
NUPA_PRIVATE(ibv_cmd_query_context)
NUPA_PRIVATE(ibv_cmd_query_device_any)
NUPA_PRIVATE(ibv_cmd_query_mr)
NUPA_PRIVATE(ibv_cmd_query_port)
NUPA_PRIVATE(ibv_cmd_query_qp)
NUPA_PRIVATE(ibv_cmd_query_srq)
NUPA_PRIVATE(ibv_cmd_read_counters)
NUPA_PRIVATE(ibv_cmd_reg_dm_mr)
NUPA_PRIVATE(ibv_cmd_reg_dmabuf_mr)
NUPA_PRIVATE(ibv_cmd_reg_mr)
NUPA_PRIVATE(ibv_cmd_req_notify_cq)
NUPA_PRIVATE(ibv_cmd_rereg_mr)
NUPA_PRIVATE(ibv_cmd_resize_cq)
NUPA_PRIVATE_POINTER(verbs_open_device)
NUPA_PRIVATE_LATER(ibv_cmd_alloc_dmah)
NUPA_PRIVATE_LATER(ibv_cmd_create_comp_cntr)
NUPA_PRIVATE_LATER(ibv_cmd_destroy_comp_cntr)
NUPA_PRIVATE_LATER(ibv_cmd_export_dmabuf_fd)
NUPA_PRIVATE_LATER(ibv_cmd_free_dmah)
NUPA_PRIVATE_LATER(ibv_cmd_inc_comp_cntr)
NUPA_PRIVATE_LATER(ibv_cmd_inc_err_comp_cntr)
NUPA_PRIVATE_LATER(ibv_cmd_qp_attach_comp_cntr)
NUPA_PRIVATE_LATER(ibv_cmd_query_comp_cntr_caps)
NUPA_PRIVATE_LATER(ibv_cmd_query_port_speed)
NUPA_PRIVATE_LATER(ibv_cmd_read_comp_cntr)
NUPA_PRIVATE_LATER(ibv_cmd_read_err_comp_cntr)
NUPA_PRIVATE_LATER(ibv_cmd_reg_mr_ex)
NUPA_PRIVATE_LATER(ibv_cmd_set_comp_cntr)
NUPA_PRIVATE_LATER(ibv_cmd_set_err_comp_cntr)
NUPA_PRIVATE_LATER_POINTER(ibv_dmabuf_heap_alloc)
NUPA_PRIVATE_LATER_POINTER(ibv_dmabuf_heap_cc_shared_init)
NUPA_PRIVATE_LATER_VOID(ibv_dmabuf_heap_destroy)
NUPA_PRIVATE_LATER_VOID(ibv_dmabuf_heap_free)
