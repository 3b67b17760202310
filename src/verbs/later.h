// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The functions of libibverbs that have versions later than those of Debian 12's rdma-core 44: IBVERBS_1.15 to 1.18.
/// Its headers have no declarations of them. Types are those of rdma-core 65. Programs call them by the ABI. Any
/// thread.
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

#define NUPA_LATER(name) __asm__(#name) __attribute__((visibility("default")))

namespace nupa::verbs {

/// struct ibv_mr_init_attr.
struct MrInitAttr {
  enum Mask : uint64_t {
    kIova = 1 << 0,
    kAddr = 1 << 1,
    kFd = 1 << 2,
    kFdOffset = 1 << 3,
    kDmah = 1 << 4,
    kBuf = 1 << 5,
  };
  size_t length;
  int access;
  uint64_t comp_mask;
  uint64_t iova;
  void* addr;
  int fd;
  uint64_t fd_offset;
  void* dmah;
  struct Buf* buf;
};

/// struct ibv_buf: programs have its address only.
struct Buf {
  ibv_pd* pd;
  void* addr;
  size_t size;
};

// IBVERBS_1.15. There are no hints for caches (ibv_dmah): EOPNOTSUPP.
void* alloc_dmah(ibv_context* context, void* attr) NUPA_LATER(ibv_alloc_dmah);
int dealloc_dmah(void* dmah) NUPA_LATER(ibv_dealloc_dmah);
/// Registers memory, a dma-buf, or a part of a buffer of ibv_alloc_buf(). EINVAL: these fields do not go together, or
/// the buffer belongs to another protection domain, or is shorter. EOPNOTSUPP: unknown fields, or `dmah`. Others: the
/// errors of ibv_reg_mr() and ibv_reg_dmabuf_mr().
ibv_mr* reg_mr_ex(ibv_pd* pd, MrInitAttr* attr) NUPA_LATER(ibv_reg_mr_ex);

// IBVERBS_1.16.
/// -1 with EOPNOTSUPP: device memory is no dma-buf.
int dm_export_dmabuf_fd(ibv_dm* dm) NUPA_LATER(ibv_dm_export_dmabuf_fd);
/// Returns the speed of the port in units of 100 Mb/s.
int query_port_speed(ibv_context* context, uint32_t port_num, uint64_t* speed) NUPA_LATER(ibv_query_port_speed);

// IBVERBS_1.17.
/// Allocates whole pages of zeros. ENOMEM.
void* alloc_buf(ibv_pd* pd, size_t size, Buf** buf) NUPA_LATER(ibv_alloc_buf);
void free_buf(Buf* buf) NUPA_LATER(ibv_free_buf);
ibv_mr* reg_buf_mr(ibv_pd* pd, Buf* buf, void* addr, size_t length, int access) NUPA_LATER(ibv_reg_buf_mr);

// IBVERBS_1.18. There are no completion counters: EOPNOTSUPP.
/// -1 with ENODATA: no buffer is a dma-buf.
int export_buf_dmabuf_fd(Buf* buf) NUPA_LATER(ibv_export_buf_dmabuf_fd);
int query_comp_cntr_caps(ibv_context* context, void* caps, size_t bytes) NUPA_LATER(_ibv_query_comp_cntr_caps);
void* create_comp_cntr(ibv_context* context, void* attr) NUPA_LATER(ibv_create_comp_cntr);
int destroy_comp_cntr(void* counter) NUPA_LATER(ibv_destroy_comp_cntr);
int set_comp_cntr(void* counter, uint64_t value) NUPA_LATER(ibv_set_comp_cntr);
int set_err_comp_cntr(void* counter, uint64_t value) NUPA_LATER(ibv_set_err_comp_cntr);
int inc_comp_cntr(void* counter, uint64_t amount) NUPA_LATER(ibv_inc_comp_cntr);
int inc_err_comp_cntr(void* counter, uint64_t amount) NUPA_LATER(ibv_inc_err_comp_cntr);
int read_comp_cntr(void* counter, uint64_t* value) NUPA_LATER(ibv_read_comp_cntr);
int read_err_comp_cntr(void* counter, uint64_t* value) NUPA_LATER(ibv_read_err_comp_cntr);
int qp_attach_comp_cntr(ibv_qp* qp, void* counter, void* attr) NUPA_LATER(ibv_qp_attach_comp_cntr);

}  // namespace nupa::verbs
