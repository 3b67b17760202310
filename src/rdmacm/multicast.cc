// SPDX-License-Identifier: Apache-2.0
/// Multicast groups. An IP address is used as the group's GID, as with rdma_cm over RoCEv2 (IBTA annex A17).
#include <algorithm>
#include <cstring>

#include "rdmacm/id.h"

namespace nupa::rdmacm {
namespace {

constexpr uint32_t kAllQueuePairs = 0xffffff;

bool names_group(const Endpoint& at) {
  constexpr uint8_t kFirstOfClassD = 224;
  constexpr uint8_t kLastOfClassD = 239;
  if (at.family == AF_INET) return at.gid.raw[12] >= kFirstOfClassD && at.gid.raw[12] <= kLastOfClassD;
  return at.gid.raw[0] == 0xff;
}

ibv_gid as_gid(const Gid& gid) {
  ibv_gid out;
  std::memcpy(&out, gid.raw.data(), 16);
  return out;
}

std::unique_ptr<Membership> remove(Id& id, const Endpoint& wanted) {
  for (auto it = id.memberships.begin(); it != id.memberships.end(); ++it) {
    if ((*it)->group != wanted.gid) continue;
    auto found = std::move(*it);
    id.memberships.erase(it);
    return found;
  }
  return nullptr;
}

}  // namespace

void finish_join(Event& event) {
  Id& id = *event.id;
  Membership& membership = *event.membership;
  rdma_ud_param& seen = event.seen.param.ud;
  const ibv_gid group = as_gid(membership.group);
  seen.private_data = membership.context;
  seen.ah_attr.is_global = 1;
  seen.ah_attr.port_num = 1;
  seen.ah_attr.grh.dgid = group;
  seen.ah_attr.grh.sgid_index = static_cast<uint8_t>(id.route.gid_index);
  seen.ah_attr.grh.hop_limit = id.route.path.hop_limit;
  seen.ah_attr.grh.traffic_class = id.route.path.traffic_class;
  seen.qp_num = kAllQueuePairs;
  seen.qkey = id.qkey;
  if (id.shown.qp == nullptr || membership.send_only) return;
  if (const int error = ibv_attach_mcast(id.shown.qp, &group, 0); error != 0) {
    event.seen.event = RDMA_CM_EVENT_MULTICAST_ERROR;
    event.seen.status = -error;
    return;
  }
  membership.attached = true;
}

void leave_all(Id& id) {
  for (const auto& membership : id.memberships) {
    const ibv_gid group = as_gid(membership->group);
    if (membership->attached && id.shown.qp != nullptr) ibv_detach_mcast(id.shown.qp, &group, 0);
  }
}

}  // namespace nupa::rdmacm

using namespace nupa::rdmacm;

NUPA_RDMACM int rdma_join_multicast_ex(rdma_cm_id* shown, rdma_cm_join_mc_attr_ex* join, void* context) {
  if (join == nullptr) return answer(EINVAL);
  if (join->comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED) return answer(ENOTSUP);
  constexpr uint32_t kNeeded = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
  if ((join->comp_mask & kNeeded) != kNeeded || join->join_flags >= RDMA_MC_JOIN_FLAG_RESERVED) return answer(EINVAL);
  Endpoint at;
  if (const int error = read_address(join->addr, &at); error != 0) return answer(error);
  Id* known = id_of(shown);
  if (known == nullptr) return -1;
  Id& id = *known;
  {
    std::lock_guard lock(id.mutex);
    if (const int error = use_stand_in(id); error != 0) return answer(error);
    if (!id.is_datagram() || !id.has_device || !names_group(at)) return answer(EINVAL);
    auto membership = std::make_unique<Membership>();
    write_address(at, &membership->address);
    membership->group = at.gid;
    membership->context = context;
    // A send-only member receives nothing, so its queue pair is not attached.
    membership->send_only = join->join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
    auto event = std::make_unique<Event>(&id, RDMA_CM_EVENT_MULTICAST_JOIN);
    event->membership = membership.get();
    id.memberships.push_back(std::move(membership));
    push(std::move(event));
  }
  return wait_for_event(id);
}

NUPA_RDMACM int rdma_join_multicast(rdma_cm_id* id, sockaddr* addr, void* context) {
  rdma_cm_join_mc_attr_ex join{};
  join.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
  join.join_flags = RDMA_MC_JOIN_FLAG_FULLMEMBER;
  join.addr = addr;
  return rdma_join_multicast_ex(id, &join, context);
}

NUPA_RDMACM int rdma_leave_multicast(rdma_cm_id* shown, sockaddr* addr) {
  Id* known = id_of(shown);
  if (known == nullptr) return -1;
  Id& id = *known;
  Endpoint at;
  if (const int error = read_address(addr, &at); error != 0) return answer(error);
  std::unique_ptr<Membership> membership;
  {
    std::lock_guard lock(id.mutex);
    membership = remove(id, at);
  }
  if (membership == nullptr) return answer(EADDRNOTAVAIL);
  // The event is settled first, because a thread that takes it attaches the queue pair.
  settle_events(id, *membership);
  std::lock_guard lock(id.mutex);
  const ibv_gid group = as_gid(membership->group);
  if (membership->attached && shown->qp != nullptr) ibv_detach_mcast(shown->qp, &group, 0);
  return 0;
}
