// SPDX-License-Identifier: Apache-2.0
/// Functions of the ABI before 2006 (IBVERBS_1.0), whose structures had another layout. No program in use imports them.
/// They exist so that the dynamic linker finds every version, and fail.
#include <cerrno>

#include "verbs/wrappers.h"

// The functions never read their arguments, so the symbols are declared without them.
#define NUPA_OLD_SYMBOL(type, name, node, result)                                      \
  extern "C" __attribute__((visibility("default"), used)) type nupa_old_##name(void) { \
    errno = ENOSYS;                                                                    \
    return result;                                                                     \
  }                                                                                    \
  __asm__(".symver nupa_old_" #name "," #name "@" node);
#define NUPA_OLD(name) NUPA_OLD_SYMBOL(int, name, "IBVERBS_1.0", ENOSYS)
#define NUPA_OLD_POINTER(name) NUPA_OLD_SYMBOL(void*, name, "IBVERBS_1.0", nullptr)
#define NUPA_OLD_VOID(name) NUPA_OLD_SYMBOL(void, name, "IBVERBS_1.0", )

NUPA_OLD_VOID(ibv_ack_async_event)
NUPA_OLD_VOID(ibv_ack_cq_events)
NUPA_OLD_POINTER(ibv_alloc_pd)
NUPA_OLD(ibv_attach_mcast)
NUPA_OLD(ibv_close_device)
NUPA_OLD_POINTER(ibv_create_ah)
NUPA_OLD_POINTER(ibv_create_cq)
NUPA_OLD_POINTER(ibv_create_qp)
NUPA_OLD_POINTER(ibv_create_srq)
NUPA_OLD(ibv_dealloc_pd)
NUPA_OLD(ibv_dereg_mr)
NUPA_OLD(ibv_destroy_ah)
NUPA_OLD(ibv_destroy_cq)
NUPA_OLD(ibv_destroy_qp)
NUPA_OLD(ibv_destroy_srq)
NUPA_OLD(ibv_detach_mcast)
NUPA_OLD_VOID(ibv_free_device_list)
NUPA_OLD_SYMBOL(int, ibv_get_async_event, "IBVERBS_1.0", -1)
NUPA_OLD_SYMBOL(int, ibv_get_cq_event, "IBVERBS_1.0", -1)
NUPA_OLD_SYMBOL(uint64_t, ibv_get_device_guid, "IBVERBS_1.0", 0)
NUPA_OLD_POINTER(ibv_get_device_list)
NUPA_OLD_POINTER(ibv_get_device_name)
NUPA_OLD(ibv_modify_qp)
NUPA_OLD(ibv_modify_srq)
NUPA_OLD_POINTER(ibv_open_device)
NUPA_OLD(ibv_query_device)
NUPA_OLD_SYMBOL(int, ibv_query_gid, "IBVERBS_1.0", -1)
NUPA_OLD_SYMBOL(int, ibv_query_pkey, "IBVERBS_1.0", -1)
NUPA_OLD(ibv_query_port)
NUPA_OLD(ibv_query_qp)
NUPA_OLD(ibv_query_srq)
NUPA_OLD_POINTER(ibv_reg_mr)
NUPA_OLD(ibv_resize_cq)

/// Providers registered with this function before the private symbols existed.
NUPA_OLD_SYMBOL(void, ibv_register_driver, "IBVERBS_1.1", )
