// SPDX-License-Identifier: Apache-2.0
#pragma once
/// FLUSH as programs of rdma-core 45 and later call it. Debian 12's headers have no names for it.
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

namespace nupa::test {

constexpr uint64_t kQpExWithFlush = uint64_t{1} << 11;
constexpr auto kWrFlush = static_cast<ibv_wr_opcode>(14);
constexpr auto kWcFlush = static_cast<ibv_wc_opcode>(8);
constexpr int kAccessFlushGlobal = 1 << 8;
constexpr int kAccessFlushPersistent = 1 << 9;
constexpr uint64_t kDeviceFlushGlobal = uint64_t{1} << 38;
constexpr uint8_t kFlushGlobal = 1, kFlushPersistent = 2;
constexpr uint8_t kFlushRange = 0, kFlushMr = 1;

/// ibv_wr_flush(): the last member of the later ibv_qp_ex.
template <class QpEx>
void wr_flush(QpEx* qp, uint32_t rkey, uint64_t remote_addr, size_t length, uint8_t type, uint8_t level) {
  if constexpr (requires { qp->wr_flush; }) {
    qp->wr_flush(qp, rkey, remote_addr, length, type, level);
  } else {
    using Call = void (*)(ibv_qp_ex*, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
    (*reinterpret_cast<Call*>(qp + 1))(qp, rkey, remote_addr, length, type, level);
  }
}

}  // namespace nupa::test
