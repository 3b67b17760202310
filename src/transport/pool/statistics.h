// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Statistics of a queue pair over a pool, for users. The queue pair's owner writes them into the block that the core
/// lends (core::QpContext::statistics()), and `nupa stat` reads them.
#include <atomic>
#include <cstdint>
#include <string_view>

#include "core/seam/stat_fields.h"
#include "shm/layout.h"

namespace nupa::pool {

constexpr std::string_view kTransportName = "pool";

struct Statistics {
  Gid peer;
  std::atomic<uint32_t> host;    ///< of the peer
  std::atomic<uint32_t> record;  ///< of the peer; the process record in its host's table
  std::atomic<uint32_t> linked;  ///< 1: the peer's process was found
  std::atomic<uint32_t> pad;
  std::atomic<uint64_t> sent;        ///< records of requests
  std::atomic<uint64_t> received;    ///< records of the peer's requests
  std::atomic<uint64_t> resent;      ///< messages that were sent again
  std::atomic<uint64_t> not_ready;   ///< answers of the peer: no receive was posted
  std::atomic<uint64_t> absent;      ///< answers of the peer: no queue pair receives
  std::atomic<uint64_t> room_waits;  ///< times that the channel had no room
  std::atomic<uint64_t> stray;       ///< answers to no request
  std::atomic<uint64_t> placed;      ///< records whose bytes went to the peer's memory at once
  std::atomic<uint64_t> dropped;     ///< records behind one that was not taken, datagrams without room

  /// Makes the block the pool transport's from now on, with all counters 0.
  static Statistics& take(shm::StatisticsShared& block);
};
static_assert(sizeof(Statistics) <= shm::StatisticsShared::kBytes && alignof(Statistics) <= sizeof(uint64_t));

/// Counts in a counter that only the caller changes.
inline void count_one(std::atomic<uint64_t>& counter) {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

/// Explains a block that take() returned, of a queue pair of `type`. Another process has written the bytes: they must
/// not be trusted.
core::Explanation explain(QpType type, const shm::StatisticsShared& block);

}  // namespace nupa::pool
