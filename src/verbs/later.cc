// SPDX-License-Identifier: Apache-2.0
#include "verbs/later.h"

#include <sys/mman.h>

#include <memory>

#include "base/link_rate.h"
#include "verbs/wrappers.h"

namespace nupa::verbs {
namespace {

bool is_in(const Buf& buf, const void* addr, size_t length) {
  const auto from = reinterpret_cast<uintptr_t>(addr);
  const auto begin = reinterpret_cast<uintptr_t>(buf.addr);
  return from >= begin && from - begin <= buf.size && length <= buf.size - (from - begin);
}

}  // namespace

void* alloc_dmah(ibv_context*, void*) { return refuse(EOPNOTSUPP); }
int dealloc_dmah(void*) { return answer(EOPNOTSUPP); }

ibv_mr* reg_mr_ex(ibv_pd* pd, MrInitAttr* attr) {
  constexpr uint64_t kKnown =
      MrInitAttr::kIova | MrInitAttr::kAddr | MrInitAttr::kFd | MrInitAttr::kFdOffset | MrInitAttr::kBuf;
  if (pd == nullptr || attr == nullptr) return refuse(EINVAL);
  if ((attr->comp_mask & ~kKnown) != 0) return refuse(EOPNOTSUPP);
  const auto has = [attr](uint64_t fields) { return (attr->comp_mask & fields) == fields; };
  if (has(MrInitAttr::kFd)) {
    if (!has(MrInitAttr::kFdOffset | MrInitAttr::kIova) || has(MrInitAttr::kAddr) || has(MrInitAttr::kBuf))
      return refuse(EINVAL);
    return ibv_reg_dmabuf_mr(pd, attr->fd_offset, attr->length, attr->iova, attr->fd, attr->access);
  }
  if (!has(MrInitAttr::kAddr) || has(MrInitAttr::kFdOffset)) return refuse(EINVAL);
  if (has(MrInitAttr::kBuf)) {
    const Buf* const buf = attr->buf;
    if (buf == nullptr || buf->pd != pd || !is_in(*buf, attr->addr, attr->length)) return refuse(EINVAL);
  }
  const uint64_t iova = has(MrInitAttr::kIova) ? attr->iova : reinterpret_cast<uint64_t>(attr->addr);
  return ibv_reg_mr_iova2(pd, attr->addr, attr->length, iova, static_cast<unsigned>(attr->access));
}

int dm_export_dmabuf_fd(ibv_dm*) {
  errno = EOPNOTSUPP;
  return -1;
}

int query_port_speed(ibv_context* context, uint32_t port_num, uint64_t* speed) {
  if (context == nullptr || speed == nullptr || port_num > UINT8_MAX) return answer(EINVAL);
  const auto port = core_of(context).query_port(static_cast<uint8_t>(port_num));
  if (!port) return answer(port.error());
  *speed = base::lanes_of(port->active_width) * base::lane_speed_of(port->active_speed);
  return 0;
}

void* alloc_buf(ibv_pd* pd, size_t size, Buf** buf) try {
  if (pd == nullptr || buf == nullptr || size == 0) return refuse(EINVAL);
  auto made = std::make_unique<Buf>(Buf{pd, nullptr, size});
  made->addr = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made->addr == MAP_FAILED) return refuse(ENOMEM);
  *buf = made.release();
  return (*buf)->addr;
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

void free_buf(Buf* buf) {
  if (buf == nullptr) return;
  munmap(buf->addr, buf->size);
  delete buf;
}

ibv_mr* reg_buf_mr(ibv_pd* pd, Buf* buf, void* addr, size_t length, int access) {
  MrInitAttr attr{};
  attr.length = length;
  attr.access = access;
  attr.comp_mask = MrInitAttr::kBuf | MrInitAttr::kAddr;
  attr.addr = addr;
  attr.buf = buf;
  return reg_mr_ex(pd, &attr);
}

int export_buf_dmabuf_fd(Buf*) {
  errno = ENODATA;
  return -1;
}

int query_comp_cntr_caps(ibv_context*, void*, size_t) { return answer(EOPNOTSUPP); }
void* create_comp_cntr(ibv_context*, void*) { return refuse(EOPNOTSUPP); }
int destroy_comp_cntr(void*) { return answer(EOPNOTSUPP); }
int set_comp_cntr(void*, uint64_t) { return answer(EOPNOTSUPP); }
int set_err_comp_cntr(void*, uint64_t) { return answer(EOPNOTSUPP); }
int inc_comp_cntr(void*, uint64_t) { return answer(EOPNOTSUPP); }
int inc_err_comp_cntr(void*, uint64_t) { return answer(EOPNOTSUPP); }
int read_comp_cntr(void*, uint64_t*) { return answer(EOPNOTSUPP); }
int read_err_comp_cntr(void*, uint64_t*) { return answer(EOPNOTSUPP); }
int qp_attach_comp_cntr(ibv_qp*, void*, void*) { return answer(EOPNOTSUPP); }

}  // namespace nupa::verbs
