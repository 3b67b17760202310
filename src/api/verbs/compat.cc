/// Functions of the ABI before 2006 (IBVERBS_1.0), which no program in use imports, and of the one way that never
/// became public: present, so that the dynamic linker finds every version, and refusing.
#include <cerrno>

#include "wrappers.h"

#define NUPA_OLD(name, node)                                                           \
  extern "C" __attribute__((visibility("default"), used)) long nupa_old_##name(void) { \
    errno = ENOSYS;                                                                    \
    return 0;                                                                          \
  }                                                                                    \
  __asm__(".symver nupa_old_" #name "," #name "@" node);

NUPA_OLD(ibv_ack_async_event, "IBVERBS_1.0")
NUPA_OLD(ibv_ack_cq_events, "IBVERBS_1.0")
NUPA_OLD(ibv_alloc_pd, "IBVERBS_1.0")
NUPA_OLD(ibv_attach_mcast, "IBVERBS_1.0")
NUPA_OLD(ibv_close_device, "IBVERBS_1.0")
NUPA_OLD(ibv_create_ah, "IBVERBS_1.0")
NUPA_OLD(ibv_create_cq, "IBVERBS_1.0")
NUPA_OLD(ibv_create_qp, "IBVERBS_1.0")
NUPA_OLD(ibv_create_srq, "IBVERBS_1.0")
NUPA_OLD(ibv_dealloc_pd, "IBVERBS_1.0")
NUPA_OLD(ibv_dereg_mr, "IBVERBS_1.0")
NUPA_OLD(ibv_destroy_ah, "IBVERBS_1.0")
NUPA_OLD(ibv_destroy_cq, "IBVERBS_1.0")
NUPA_OLD(ibv_destroy_qp, "IBVERBS_1.0")
NUPA_OLD(ibv_destroy_srq, "IBVERBS_1.0")
NUPA_OLD(ibv_detach_mcast, "IBVERBS_1.0")
NUPA_OLD(ibv_free_device_list, "IBVERBS_1.0")
NUPA_OLD(ibv_get_async_event, "IBVERBS_1.0")
NUPA_OLD(ibv_get_cq_event, "IBVERBS_1.0")
NUPA_OLD(ibv_get_device_guid, "IBVERBS_1.0")
NUPA_OLD(ibv_get_device_list, "IBVERBS_1.0")
NUPA_OLD(ibv_get_device_name, "IBVERBS_1.0")
NUPA_OLD(ibv_modify_qp, "IBVERBS_1.0")
NUPA_OLD(ibv_modify_srq, "IBVERBS_1.0")
NUPA_OLD(ibv_open_device, "IBVERBS_1.0")
NUPA_OLD(ibv_query_device, "IBVERBS_1.0")
NUPA_OLD(ibv_query_gid, "IBVERBS_1.0")
NUPA_OLD(ibv_query_pkey, "IBVERBS_1.0")
NUPA_OLD(ibv_query_port, "IBVERBS_1.0")
NUPA_OLD(ibv_query_qp, "IBVERBS_1.0")
NUPA_OLD(ibv_query_srq, "IBVERBS_1.0")
NUPA_OLD(ibv_reg_mr, "IBVERBS_1.0")
NUPA_OLD(ibv_resize_cq, "IBVERBS_1.0")
NUPA_OLD(ibv_register_driver, "IBVERBS_1.1")

// Structures of the kernel's interface, copied field by field for rdma_cm: its library is not served through here.
NUPA_VERBS void ibv_copy_ah_attr_from_kern(void*, const void*) {}
NUPA_VERBS void ibv_copy_qp_attr_from_kern(void*, const void*) {}
NUPA_VERBS void ibv_copy_path_rec_from_kern(void*, const void*) {}
NUPA_VERBS void ibv_copy_path_rec_to_kern(void*, const void*) {}
