// SPDX-License-Identifier: Apache-2.0
#pragma once
/// FLUSH and ATOMIC WRITE in the verbs ABI of rdma-core 45 and later: Debian 12's headers lack these names. Values
/// only.
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

namespace nupa::verbs {

constexpr uint32_t kWrFlush = 14;                    ///< IBV_WR_FLUSH
constexpr uint32_t kWcFlush = 8;                     ///< IBV_WC_FLUSH
constexpr uint32_t kAccessFlushGlobal = 1 << 8;      ///< IBV_ACCESS_FLUSH_GLOBAL
constexpr uint32_t kAccessFlushPersistent = 1 << 9;  ///< IBV_ACCESS_FLUSH_PERSISTENT
constexpr uint64_t kQpExWithFlush = 1 << 11;         ///< IBV_QP_EX_WITH_FLUSH
constexpr uint64_t kDeviceFlushGlobal = 1ull << 38;  ///< in device_cap_flags_ex
constexpr uint64_t kDeviceAtomicWrite = 1ull << 40;  ///< the same; programs check both before they use the operations
/// enum ibv_placement_type, a mask.
enum PlacementType : uint32_t { kFlushGlobal = 1, kFlushPersistent = 2 };
/// enum ibv_selectivity_level.
enum SelectivityLevel : uint32_t { kFlushRange = 0, kFlushMr = 1 };
/// The last member of struct ibv_qp_ex, `wr_flush`. In Debian 12's headers it is missing, and lies behind the
/// structure.
using WrFlush = void (*)(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr, size_t length, uint8_t type,
                         uint8_t level);
/// `behind`: the place behind `qp`.
template <class QpEx>
WrFlush& wr_flush_of(QpEx& qp, WrFlush& behind) {
  if constexpr (requires { qp.wr_flush; })
    return qp.wr_flush;
  else
    return behind;
}

}  // namespace nupa::verbs
