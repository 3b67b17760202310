// SPDX-License-Identifier: Apache-2.0
/// The 71 private symbols that providers' libraries (libmlx5, libefa) bind at load time. A provider never gets a device
/// here, so almost all of them have nothing to do: each fails in the way of its kind.
#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "base/settings.h"
#include "verbs/wrappers.h"

// The functions never read their arguments, so the symbols are declared without them.
#define NUPA_PRIVATE(name)    \
  NUPA_VERBS int name(void) { \
    errno = EOPNOTSUPP;       \
    return EOPNOTSUPP;        \
  }
#define NUPA_PRIVATE_POINTER(name) \
  NUPA_VERBS void* name(void) {    \
    errno = EOPNOTSUPP;            \
    return nullptr;                \
  }
// Functions whose positive result is a number of bytes or completions.
#define NUPA_PRIVATE_COUNT(name) \
  NUPA_VERBS int name(void) {    \
    errno = EOPNOTSUPP;          \
    return -1;                   \
  }
#define NUPA_PRIVATE_VOID(name) \
  NUPA_VERBS void name(void) {}

/// Providers register from their constructors. There is no adapter for them.
NUPA_VERBS void verbs_register_driver_34(const void*) {}
/// A data symbol: true if objects of a device that was removed may be destroyed.
extern "C" __attribute__((visibility("default"))) bool verbs_allow_disassociate_destroy;
bool verbs_allow_disassociate_destroy = false;

/// Returns the number of attributes of an ioctl command: none.
NUPA_VERBS unsigned int __ioctl_final_num_attrs(unsigned int) { return 0; }

/// Returns the value of VERBS_LOG_LEVEL. A wrong one is reported once and counts as 0, because no call here can return
/// an error.
static uint64_t log_level() {
  const auto wanted = nupa::base::number_setting("VERBS_LOG_LEVEL");
  if (wanted) return *wanted;
  [[maybe_unused]] static const int printed = std::fprintf(stderr, "nupa: %s; using 0\n", wanted.error().what());
  return 0;
}

/// Prints a provider's message if VERBS_LOG_LEVEL (0: none, up to 4; see the manual) allows its level.
NUPA_VERBS void __verbs_log(verbs_context*, uint32_t level, const char* format, ...) {
  if (format == nullptr || log_level() < level) return;
  va_list values;
  va_start(values, format);
  std::vfprintf(stderr, format, values);
  va_end(values);
}

/// Fills the part of a completion queue that programs read.
NUPA_VERBS void verbs_init_cq(ibv_cq* cq, ibv_context* context, ibv_comp_channel* channel, void* cq_context) {
  cq->context = context;
  cq->channel = channel;
  cq->cq_context = cq_context;
  cq->comp_events_completed = 0;
  cq->async_events_completed = 0;
  pthread_mutex_init(&cq->mutex, nullptr);
  pthread_cond_init(&cq->cond, nullptr);
  if (channel != nullptr) __atomic_fetch_add(&channel->refcnt, 1, __ATOMIC_RELAXED);
}

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
