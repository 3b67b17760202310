#pragma once
#include <array>

#include "transport/roce/protocol/host.h"
#include "transport/roce/protocol/path.h"

namespace nupa::roce {

/// The ways to the other end, of which the first is always there. Packets take the way on which they will be there
/// first, by what each has delivered lately. A way on which nothing arrives while others deliver is left; it and those
/// that were never used are tried by probes, small packets that the other end sends back.
class PathSet {
 public:
  PathSet(std::string_view congestion, uint32_t packet_bytes);

  uint32_t count() const { return count_; }
  /// Both ends know the addresses of so many ways.
  void set_count(uint32_t count) { count_ = std::min(std::max(count, count_), kMaxPaths); }
  Path& operator[](uint32_t index) { return paths_[index]; }
  const Path& operator[](uint32_t index) const { return paths_[index]; }

  /// The path for a packet of `bytes` that leaves now, of `most` that may be under way on all; -1: none. *pacing: when
  /// one has to wait for its pace only, the earliest such time.
  int pick(uint32_t bytes, uint64_t most, int64_t now, int64_t* pacing);
  uint64_t in_flight() const;
  /// Whether nothing that is under way will be answered.
  bool unanswered() const;
  /// How long silence lasts before something is lost, by the slowest in use.
  int64_t timeout() const;
  bool measured() const;

  /// The oldest packets under way on each path were sent at `oldest` (INT64_MAX: none). Returns those that are dead,
  /// one bit each. When it is worth another look, whatever comes until then, look_deadline() says.
  uint32_t find_dead(const std::array<int64_t, kMaxPaths>& oldest, int64_t now);
  bool is_look_due(int64_t now) const { return look_ns_ != 0 && now >= look_ns_; }
  /// Nothing was heard for a whole timeout.
  void silence(int64_t now);

  /// Sends the probes that are due, made from `packet`.
  void transmit_probes(int64_t now, Packet packet, Output& output);
  /// What came back from the other end, by whichever path.
  void on_echo(uint32_t token, int64_t now);
  /// When a probe is due; INT64_MAX: never.
  int64_t deadline() const;
  /// When to look again for dead paths, while something is under way.
  int64_t look_deadline() const { return look_ns_ == 0 ? INT64_MAX : look_ns_; }

 private:
  bool ready(uint32_t index, uint32_t bytes, int64_t now, int64_t* pacing) const;
  int64_t newest_arrived_beside(uint32_t index) const;
  void die(uint32_t index, int64_t now);
  bool usable(uint32_t index) const;

  std::array<Path, kMaxPaths> paths_;
  uint32_t count_ = 1;
  uint32_t alive_ = 1;        ///< how many
  uint32_t latest_ = 0;       ///< the path of the latest packet
  uint32_t run_ = 0;          ///< packets that took it in a row
  uint32_t last_resort_ = 0;  ///< used when none is alive
  int64_t look_ns_ = 0;       ///< when to look again for dead ones, 0: never
};

}  // namespace nupa::roce
