// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

namespace nupa::roce {

/// Packets that reached no queue pair, by reason; shown to users.
struct PortCounters {
  std::atomic<uint64_t> packets{0};
  std::atomic<uint64_t> malformed{0};
  std::atomic<uint64_t> wrong_crc{0};
  std::atomic<uint64_t> no_queue_pair{0};
  std::atomic<uint64_t> busy{0};  ///< the inbox of a queue pair that another thread held was full
};

}  // namespace nupa::roce
