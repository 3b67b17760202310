// SPDX-License-Identifier: Apache-2.0
#include <cerrno>

#include "ccl/api/handles.h"

namespace nupa::ccl {
namespace {

/// Makes a message from the program's arguments. If one is wrong, the message is null and the error text is stored.
/// `name`: the array's name in nupa/ccl.h.
Begun make(const nupa_ccl_comm* comm, size_t count, nupa_ccl_type type, const void* data, const char* name) {
  Begun begun{};
  if (comm == nullptr) {
    report(EINVAL, "comm is null");
  } else if (type < 0 || static_cast<uint32_t>(type) >= kTypes) {
    report(EINVAL, "unknown element type");
  } else if (data == nullptr && count > 0) {
    report(EINVAL, std::string(name) + " is null, but its count is not 0");
  } else if (count > SIZE_MAX / 2 / size_of(static_cast<Type>(type))) {
    report(EINVAL, "a count is too large");
  } else {
    begun.communicator = comm->communicator.get();
    begun.message = std::make_shared<Message>();
    begun.element_bytes = size_of(static_cast<Type>(type));
    begun.message->bytes = count * begun.element_bytes;
    begun.type = static_cast<Type>(type);
    if (begun.communicator->checks()) begun.message->type = static_cast<uint8_t>(type);
  }
  return begun;
}

Begun make_send(const nupa_ccl_comm* comm, const void* data, size_t count, nupa_ccl_type type, uint32_t rank,
                int32_t tag, const char* name) {
  Begun begun = make(comm, count, type, data, name);
  if (begun.message == nullptr) return begun;
  if (rank >= begun.communicator->ranks() || tag < 0) {
    report(EINVAL, "rank or tag is out of range");
    begun.message = nullptr;
    return begun;
  }
  begun.message->is_send = true;
  begun.message->peer = rank;
  begun.message->tag = tag;
  begun.message->from = static_cast<const std::byte*>(data);
  return begun;
}

Begun make_receive(const nupa_ccl_comm* comm, void* data, size_t count, nupa_ccl_type type, uint32_t rank, int32_t tag,
                   nupa_ccl_status* status, const char* name) {
  static_assert(NUPA_CCL_ANY_RANK == kNoRank && NUPA_CCL_ANY_TAG == kAnyTag);
  Begun begun = make(comm, count, type, data, name);
  if (begun.message == nullptr) return begun;
  if ((rank != kNoRank && rank >= begun.communicator->ranks()) || tag < kAnyTag) {
    report(EINVAL, "rank or tag is out of range");
    begun.message = nullptr;
    return begun;
  }
  begun.message->peer = rank;
  begun.message->tag = tag;
  begun.message->to = static_cast<std::byte*>(data);
  begun.status = status;
  return begun;
}

}  // namespace
}  // namespace nupa::ccl

using namespace nupa::ccl;

extern "C" {

NUPA_EXPORT int nupa_ccl_send(const void* data, size_t count, nupa_ccl_type type, uint32_t rank, int32_t tag,
                              nupa_ccl_comm* comm, nupa_ccl_request** request) {
  const Begun begun = make_send(comm, data, count, type, rank, tag, "data");
  return begun.message == nullptr ? EINVAL : run_or_start(begun, request);
}

NUPA_EXPORT int nupa_ccl_recv(void* data, size_t count, nupa_ccl_type type, uint32_t rank, int32_t tag,
                              nupa_ccl_comm* comm, nupa_ccl_status* status, nupa_ccl_request** request) {
  const Begun begun = make_receive(comm, data, count, type, rank, tag, status, "data");
  return begun.message == nullptr ? EINVAL : run_or_start(begun, request);
}

NUPA_EXPORT int nupa_ccl_sendrecv(const void* in, size_t in_count, uint32_t to, int32_t in_tag, void* out,
                                  size_t out_count, uint32_t from, int32_t out_tag, nupa_ccl_type type,
                                  nupa_ccl_comm* comm, nupa_ccl_status* status) {
  const Begun send = make_send(comm, in, in_count, type, to, in_tag, "in");
  if (send.message == nullptr) return EINVAL;
  const Begun receive = make_receive(comm, out, out_count, type, from, out_tag, status, "out");
  if (receive.message == nullptr) return EINVAL;
  nupa_ccl_group_start();
  run_or_start(send, nullptr);
  run_or_start(receive, nullptr);
  return nupa_ccl_group_end(nullptr);
}

}  // extern "C"
