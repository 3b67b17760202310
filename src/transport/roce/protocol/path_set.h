// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>

#include "transport/roce/protocol/host.h"
#include "transport/roce/protocol/path.h"

namespace nupa::roce {

/// The paths to the peer; the first one always exists. A packet takes the path on which it will arrive first, by the
/// recent delivery rates. A path on which nothing arrives while others deliver is abandoned. It and paths that were
/// never used are tested by probes, small packets that the peer sends back.
class PathSet {
 public:
  PathSet(std::string_view congestion, uint32_t packet_bytes);

  uint32_t count() const { return count_; }
  /// Both sides have the addresses of `count` paths.
  void set_count(uint32_t count) { count_ = std::min(std::max(count, count_), kMaxPaths); }
  Path& operator[](uint32_t index) { return paths_[index]; }
  const Path& operator[](uint32_t index) const { return paths_[index]; }

  /// Returns the path for a packet of `bytes` that leaves now, if `most` bytes may be in flight on all paths together;
  /// -1: none. *pacing: the earliest time at which a path is ready that only its pace holds back.
  int pick(uint32_t bytes, uint64_t most, int64_t now, int64_t* pacing);
  uint64_t in_flight() const;
  /// True if no packet in flight will be answered.
  bool unanswered() const;
  /// How long silence lasts before something counts as lost, by the slowest path in use.
  int64_t timeout() const;
  bool measured() const;

  /// `oldest`: when the oldest packet in flight on each path was sent (INT64_MAX: none). Returns the paths that are
  /// dead, one bit each. look_deadline() is the time for the next call, whatever arrives until then.
  uint32_t find_dead(const std::array<int64_t, kMaxPaths>& oldest, int64_t now);
  bool is_look_due(int64_t now) const { return look_ns_ != 0 && now >= look_ns_; }
  /// Nothing arrived for a whole timeout.
  void silence(int64_t now);

  /// Sends the probes that are due, made from `packet`.
  void transmit_probes(int64_t now, Packet packet, Output& output);
  /// The peer returned a probe's token, by any path.
  void on_echo(uint32_t token, int64_t now);
  /// When a probe is due; INT64_MAX: never.
  int64_t deadline() const;
  /// When to look again for dead paths, while packets are in flight.
  int64_t look_deadline() const { return look_ns_ == 0 ? INT64_MAX : look_ns_; }

 private:
  bool ready(uint32_t index, uint32_t bytes, int64_t now, int64_t* pacing) const;
  int64_t newest_arrived_beside(uint32_t index) const;
  void die(uint32_t index, int64_t now);
  bool usable(uint32_t index) const;

  std::array<Path, kMaxPaths> paths_;
  uint32_t count_ = 1;
  uint32_t alive_ = 1;        ///< number of living paths
  uint32_t latest_ = 0;       ///< the path of the latest packet
  uint32_t run_ = 0;          ///< consecutive packets on that path
  uint32_t last_resort_ = 0;  ///< the path used when none is alive
  int64_t look_ns_ = 0;       ///< when to look again for dead paths, 0: never
};

}  // namespace nupa::roce
