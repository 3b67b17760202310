// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Statistics of a queue pair over RoCE, for users. The queue pair's owner writes them into the block that the core
/// lends (core::QpContext::statistics()), and `nupa stat` reads them.
#include <atomic>
#include <cstdint>
#include <span>

#include "core/seam/stat_fields.h"
#include "shm/layout.h"
#include "transport/roce/wire/wire.h"

namespace nupa::roce {

constexpr std::string_view kTransportName = "roce";

enum class PathHealth : uint32_t { kUnproven = 0, kAlive = 1, kDead = 2 };

struct PathStatistics {
  Gid from;
  Gid to;
  std::atomic<uint32_t> health;
  std::atomic<uint32_t> ports;         ///< UDP ports: source in the upper half, destination in the lower
  std::atomic<int64_t> round_trip_ns;  ///< smoothed; 0: not measured yet
  std::atomic<uint64_t> window;        ///< bytes that may be in flight, all bits set: no limit
  std::atomic<uint64_t> in_flight;     ///< bytes
  std::atomic<uint64_t> rate;          ///< bytes a second at which it is paced, 0: not paced
  std::atomic<uint64_t> marked;        ///< packets that met a congested queue, as the peer counts
};

struct Statistics {
  std::atomic<uint32_t> paths;
  std::atomic<uint32_t> standard;  ///< 1: the peer sends standard packets only
  // Packets sent again, by reason.
  std::atomic<uint64_t> resent_sequence;
  std::atomic<uint64_t> resent_selective;
  std::atomic<uint64_t> resent_timeout;
  // Packets that were ignored, by reason.
  std::atomic<uint64_t> unexpected_packets;  ///< damaged, or from another address or partition, or with another Q_Key
  std::atomic<uint64_t> duplicates;          ///< requests that had arrived before
  std::atomic<uint64_t> stray;               ///< answers to no outstanding packet
  std::atomic<uint64_t> dropped;             ///< requests too far ahead, or without room to keep them
  PathStatistics path[kMaxPaths];

  /// Makes the block RoCE's from now on, with all counters 0.
  static Statistics& take(shm::StatisticsShared& block);
};
static_assert(sizeof(Statistics) <= shm::StatisticsShared::kBytes && alignof(Statistics) <= sizeof(uint64_t));

/// Explains a block that take() returned, of a queue pair of `type`. Another process has written the bytes: they must
/// not be trusted.
core::Explanation explain(QpType type, const shm::StatisticsShared& block);

}  // namespace nupa::roce
