// SPDX-License-Identifier: Apache-2.0
/// Names of events.
#include <rdma/rdma_cma.h>

#include <array>

extern "C" __attribute__((visibility("default"))) const char* rdma_event_str(rdma_cm_event_type event) {
  // In the order of the enumeration, whose values are the kernel's (rdma_user_cm.h).
  static constexpr std::array<const char*, 18> kNames = {
      "RDMA_CM_EVENT_ADDR_RESOLVED",
      "RDMA_CM_EVENT_ADDR_ERROR",
      "RDMA_CM_EVENT_ROUTE_RESOLVED",
      "RDMA_CM_EVENT_ROUTE_ERROR",
      "RDMA_CM_EVENT_CONNECT_REQUEST",
      "RDMA_CM_EVENT_CONNECT_RESPONSE",
      "RDMA_CM_EVENT_CONNECT_ERROR",
      "RDMA_CM_EVENT_UNREACHABLE",
      "RDMA_CM_EVENT_REJECTED",
      "RDMA_CM_EVENT_ESTABLISHED",
      "RDMA_CM_EVENT_DISCONNECTED",
      "RDMA_CM_EVENT_DEVICE_REMOVAL",
      "RDMA_CM_EVENT_MULTICAST_JOIN",
      "RDMA_CM_EVENT_MULTICAST_ERROR",
      "RDMA_CM_EVENT_ADDR_CHANGE",
      "RDMA_CM_EVENT_TIMEWAIT_EXIT",
      // in later releases
      "RDMA_CM_EVENT_ADDRINFO_RESOLVED",
      "RDMA_CM_EVENT_ADDRINFO_ERROR",
  };
  static_assert(RDMA_CM_EVENT_TIMEWAIT_EXIT == kNames.size() - 3);
  const auto number = static_cast<size_t>(event);
  return number < kNames.size() ? kNames[number] : "UNKNOWN EVENT";
}
