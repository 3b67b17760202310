// SPDX-License-Identifier: Apache-2.0
#include "rsockets/stream_buffers.h"

#include <sys/mman.h>

#include <cerrno>
#include <new>

namespace nupa::rsockets {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

std::unique_ptr<StreamBuffers> StreamBuffers::make(ibv_pd* pd, uint32_t receive_bytes, uint32_t send_bytes,
                                                   uint32_t mappings) {
  std::unique_ptr<StreamBuffers> buffers(new (std::nothrow) StreamBuffers);
  if (!buffers) {
    errno = ENOMEM;
    return nullptr;
  }
  const size_t tables_end = receive_bytes + kTargets * sizeof(RemoteBuffer) + mappings * sizeof(RemoteMapping);
  buffers->tables_at_ = receive_bytes;
  buffers->send_at_ = pages(tables_end);
  buffers->send_bytes_ = send_bytes;
  const size_t send_length = pages(send_bytes + kControlSlots * kControlBytes);
  const size_t length = buffers->send_at_ + send_length;
  void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  buffers->base_ = static_cast<std::byte*>(memory);
  buffers->length_ = length;
  buffers->remote_ = ibv_reg_mr(pd, memory, buffers->send_at_, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (buffers->remote_ == nullptr) return nullptr;
  buffers->local_ = ibv_reg_mr(pd, buffers->send(), send_length, IBV_ACCESS_LOCAL_WRITE);
  if (buffers->local_ == nullptr) return nullptr;
  return buffers;
}

StreamBuffers::~StreamBuffers() {
  const int error = errno;
  if (local_ != nullptr) ibv_dereg_mr(local_);
  if (remote_ != nullptr) ibv_dereg_mr(remote_);
  if (base_ != nullptr) munmap(base_, length_);
  errno = error;
}

}  // namespace nupa::rsockets
