// SPDX-License-Identifier: Apache-2.0
#pragma once
/// How a queue pair does over RoCE, for people: written by its owner into the block that the core lends
/// (core::QpContext::statistics()), read by `nupa stat`.
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
  std::atomic<uint32_t> ports;         ///< UDP, source in the upper half, destination in the lower
  std::atomic<int64_t> round_trip_ns;  ///< smoothed; 0: not measured yet
  std::atomic<uint64_t> window;        ///< bytes that may be under way, all bits set: no limit
  std::atomic<uint64_t> in_flight;     ///< bytes
  std::atomic<uint64_t> rate;          ///< bytes a second at which it is paced, 0: not paced
  std::atomic<uint64_t> marked;        ///< packets that met a congested queue, as the peer tells
};

struct Statistics {
  std::atomic<uint32_t> paths;
  std::atomic<uint32_t> standard;  ///< 1: the peer speaks nothing but the standard
  // Packets sent again, by what made them so.
  std::atomic<uint64_t> resent_sequence;
  std::atomic<uint64_t> resent_selective;
  std::atomic<uint64_t> resent_timeout;
  // Packets that changed nothing, by what they were.
  std::atomic<uint64_t> strangers;   ///< damaged, or from elsewhere, of another partition or with another Q_Key
  std::atomic<uint64_t> duplicates;  ///< requests that had come before
  std::atomic<uint64_t> stray;       ///< answers to nothing that waits for one
  std::atomic<uint64_t> dropped;     ///< requests too far ahead, or without room to wait in
  PathStatistics path[kMaxPaths];

  /// The block is RoCE's from now on, and all counters are 0.
  static Statistics& take(shm::StatisticsShared& block);
};
static_assert(sizeof(Statistics) <= shm::StatisticsShared::kBytes && alignof(Statistics) <= sizeof(uint64_t));

/// What a block that take() returned says of a queue pair of `type`. The bytes are another process's: not to be
/// trusted.
core::Explanation explain(QpType type, const shm::StatisticsShared& block);

}  // namespace nupa::roce
