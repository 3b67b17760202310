// SPDX-License-Identifier: Apache-2.0
/// The multicast groups that a queue pair is a member of (IBTA 10.5).
#include <cerrno>

#include "core/qp.h"
#include "core/seam/group_address.h"

namespace nupa::core {

int Qp::attach_multicast(const Gid& gid, uint16_t) {
  if (!process_.is_here()) return ENODEV;
  if (options_.type != QpType::kUd || !names_group(gid)) return EINVAL;
  shm::SegmentHeader& header = *process_.tables().header;
  std::lock_guard lock(attr_mutex_);
  for (uint32_t i = 0; i < header.mcast_high_water.load(); ++i)
    if (header.mcast[i].qp.load() == index_ + 1 && header.mcast[i].gid == gid) return 0;
  for (uint32_t i = 0; i < shm::kMaxMcast; ++i) {
    uint32_t free = 0;
    // Until the group is written, the entry holds a number that no queue pair has.
    if (!header.mcast[i].qp.compare_exchange_strong(free, shm::kMaxQp + 1)) continue;
    if (const int error = process_.transports().join(device_.entry(), qp_num_, gid); error != 0) {
      header.mcast[i].qp.store(0, std::memory_order_release);
      return error;
    }
    header.mcast[i].gid = gid;
    uint32_t seen = header.mcast_high_water.load();
    while (seen <= i && !header.mcast_high_water.compare_exchange_weak(seen, i + 1)) {
    }
    header.mcast[i].qp.store(index_ + 1, std::memory_order_release);
    return 0;
  }
  return ENOMEM;
}

int Qp::detach_multicast(const Gid& gid, uint16_t) {
  if (!process_.is_here()) return ENODEV;
  if (options_.type != QpType::kUd || !names_group(gid)) return EINVAL;
  shm::SegmentHeader& header = *process_.tables().header;
  std::lock_guard lock(attr_mutex_);
  for (uint32_t i = 0; i < header.mcast_high_water.load(); ++i) {
    if (header.mcast[i].qp.load() != index_ + 1 || !(header.mcast[i].gid == gid)) continue;
    header.mcast[i].qp.store(0, std::memory_order_release);
    process_.transports().leave(qp_num_, gid);
    return 0;
  }
  return EINVAL;
}

}  // namespace nupa::core
