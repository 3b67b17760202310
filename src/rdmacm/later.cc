// SPDX-License-Identifier: Apache-2.0
/// The functions of librdmacm that have the version RDMACM_1.4, later than those of Debian 12's rdma-core 44: addresses
/// whose resolution ends with an event, and events of programs. The system's headers have no declarations of them.
#include <cerrno>
#include <cstring>
#include <memory>

#include "rdmacm/id.h"

namespace nupa::rdmacm {
namespace {

// Numbers in rdma/rdma_cma.h of later releases.
constexpr int kAddrinfoResolved = 16;
constexpr int kUser = 18;
constexpr int kSa = 0x10;   // RAI_SA
constexpr int kDns = 0x20;  // RAI_DNS

std::unique_ptr<Event> event_of(Id* id, int number, int status) {
  auto event = std::make_unique<Event>(id, RDMA_CM_EVENT_ADDR_RESOLVED, status);
  event->set_number(number);
  return event;
}

}  // namespace

#define NUPA_LATER(name) __asm__(#name) __attribute__((visibility("default")))
int write_cm_event(rdma_cm_id* shown, int type, int status, uint64_t arg) NUPA_LATER(rdma_write_cm_event);
int resolve_addrinfo(rdma_cm_id* shown, const char* node, const char* service, const rdma_addrinfo* hints)
    NUPA_LATER(rdma_resolve_addrinfo);
int query_addrinfo(rdma_cm_id* shown, rdma_addrinfo** info) NUPA_LATER(rdma_query_addrinfo);

/// Adds an event of the program to the id's channel: RDMA_CM_EVENT_USER, others are EINVAL.
int write_cm_event(rdma_cm_id* shown, int type, int status, uint64_t arg) {
  Id* const id = id_of(shown);
  if (id == nullptr) return -1;
  if (type != kUser) return answer(EINVAL);
  auto event = event_of(id, type, status);
  std::memcpy(&event->seen.param, &arg, sizeof arg);
  push(std::move(event));
  return 0;
}

/// As rdma_getaddrinfo(), whose errors it returns. The result is there with the event RDMA_CM_EVENT_ADDRINFO_RESOLVED.
/// Names are resolved in this call, as rdma-core does it. EBUSY: the program has not taken the result of an earlier
/// call. ENOTSUP: RAI_SA, because there is no subnet administrator.
int resolve_addrinfo(rdma_cm_id* shown, const char* node, const char* service, const rdma_addrinfo* hints) {
  Id* const id = id_of(shown);
  if (id == nullptr) return -1;
  if (hints != nullptr && (hints->ai_flags & kSa) != 0) return answer(ENOTSUP);
  {
    std::lock_guard lock(id->mutex);
    if (id->is_resolving) return answer(EBUSY);
    id->is_resolving = true;
  }
  rdma_addrinfo plain{};
  if (hints != nullptr) {
    plain = *hints;
    plain.ai_flags &= ~kDns;  // that is done anyway
  }
  rdma_addrinfo* found = nullptr;
  const bool is_found = rdma_getaddrinfo(node, service, hints == nullptr ? nullptr : &plain, &found) == 0;
  const int error = errno;
  {
    std::lock_guard lock(id->mutex);
    id->is_resolving = is_found;
    id->resolved.reset(found);
  }
  if (!is_found) return answer(error);
  push(event_of(id, kAddrinfoResolved, 0));
  return wait_for_event(*id);
}

/// The result, once. The program frees it by rdma_freeaddrinfo(). ENOENT: there is none.
int query_addrinfo(rdma_cm_id* shown, rdma_addrinfo** info) {
  if (info == nullptr) return answer(EINVAL);
  Id* const id = id_of(shown);
  if (id == nullptr) return -1;
  std::lock_guard lock(id->mutex);
  if (id->resolved == nullptr) return answer(ENOENT);
  *info = id->resolved.release();
  id->is_resolving = false;
  return 0;
}

}  // namespace nupa::rdmacm
