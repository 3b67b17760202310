// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

namespace nupa::roce {

/// Packets that no queue pair got, by reason; for people.
struct PortCounters {
  std::atomic<uint64_t> packets{0};
  std::atomic<uint64_t> malformed{0};
  std::atomic<uint64_t> wrong_crc{0};
  std::atomic<uint64_t> no_queue_pair{0};
  std::atomic<uint64_t> busy{0};  ///< another thread held the queue pair until its inbox was full
};

}  // namespace nupa::roce
