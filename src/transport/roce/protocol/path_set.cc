// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/protocol/path_set.h"

namespace nupa::roce {
namespace {

constexpr uint32_t kRun = 8;
constexpr int64_t kProbeNs = 5'000'000;
/// A probe's token, of 24 bits, is the path's index and a count.
constexpr uint32_t kCountBits = 22;
constexpr uint32_t kCountMask = (1u << kCountBits) - 1;
static_assert(kMaxPaths <= 1u << (24 - kCountBits));
constexpr uint32_t kMostProbeBackoff = 8;
constexpr int64_t kLeastSilenceNs = 1'000'000;

}  // namespace

PathSet::PathSet(std::string_view congestion, uint32_t packet_bytes) {
  for (Path& path : paths_) path.congestion = make_congestion(congestion, packet_bytes);
  paths_[0].health = Path::Health::kAlive;
}

bool PathSet::usable(uint32_t index) const {
  return paths_[index].health == Path::Health::kAlive || (alive_ == 0 && index == last_resort_);
}

uint64_t PathSet::in_flight() const {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count_; ++i) bytes += paths_[i].in_flight;
  return bytes;
}

bool PathSet::unanswered() const {
  for (uint32_t i = 0; i < count_; ++i)
    if (!paths_[i].unanswered()) return false;
  return true;
}

int64_t PathSet::timeout() const {
  if (count_ == 1) return paths_[0].round_trip.timeout();
  int64_t longest = 0;
  for (uint32_t i = 0; i < count_; ++i)
    if (usable(i)) longest = std::max(longest, paths_[i].round_trip.timeout());
  return longest;
}

bool PathSet::measured() const {
  for (uint32_t i = 0; i < count_; ++i)
    if (paths_[i].round_trip.known()) return true;
  return false;
}

int PathSet::pick(uint32_t bytes, uint64_t most, int64_t now, int64_t* pacing) {
  if (in_flight() + bytes > most && !unanswered()) return -1;
  if (count_ == 1) return ready(0, bytes, now, pacing) ? 0 : -1;
  // Consecutive packets on one path leave in one segmented send.
  if (run_ < kRun && ready(latest_, bytes, now, pacing)) {
    ++run_;
    return static_cast<int>(latest_);
  }
  int best = -1;
  double soonest = 0;
  for (uint32_t i = 0; i < count_; ++i) {
    if (!ready(i, bytes, now, pacing)) continue;
    const double when = paths_[i].delivery_ns(bytes);
    if (best >= 0 && when >= soonest) continue;
    best = static_cast<int>(i);
    soonest = when;
  }
  if (best < 0) return -1;
  run_ = 1;
  latest_ = static_cast<uint32_t>(best);
  return best;
}

bool PathSet::ready(uint32_t index, uint32_t bytes, int64_t now, int64_t* pacing) const {
  const Path& path = paths_[index];
  if (!usable(index) || !path.has_room(bytes)) return false;
  if (path.next_send_ns <= now) return true;
  *pacing = *pacing == 0 ? path.next_send_ns : std::min(*pacing, path.next_send_ns);
  return false;
}

void PathSet::die(uint32_t index, int64_t now) {
  Path& path = paths_[index];
  if (path.health == Path::Health::kAlive) --alive_;
  path.health = Path::Health::kDead;
  path.probes_unanswered = 0;
  path.next_probe_ns = now;  // a mistake then lasts for one round trip
}

int64_t PathSet::newest_arrived_beside(uint32_t index) const {
  int64_t newest = 0;
  for (uint32_t i = 0; i < count_; ++i)
    if (i != index && paths_[i].health == Path::Health::kAlive) newest = std::max(newest, paths_[i].newest_arrived_ns);
  return newest;
}

uint32_t PathSet::find_dead(const std::array<int64_t, kMaxPaths>& oldest, int64_t now) {
  look_ns_ = 0;
  uint32_t dead = 0;
  for (uint32_t i = 0; i < count_; ++i) {
    const Path& path = paths_[i];
    // A dead path may have been the last resort. The last living path is not given up here.
    const bool alive = path.health == Path::Health::kAlive;
    const int64_t others = newest_arrived_beside(i);
    if ((alive ? alive_ == 1 : alive_ == 0) || oldest[i] > others) continue;
    // A path is dead for sure if it was overtaken by this much. If nothing more is in flight on other paths, certainty
    // takes longer.
    const int64_t silent_since = std::max(oldest[i], path.heard_ns);
    const int64_t until = silent_since + std::max(2 * path.death_ns(), kLeastSilenceNs);
    const bool overtaken = others - oldest[i] > path.death_ns() && now - path.heard_ns > path.death_ns();
    if (overtaken || now >= until) {
      if (alive) die(i, now);
      dead |= 1u << i;
    } else if (look_ns_ == 0 || until < look_ns_) {
      look_ns_ = until;
    }
  }
  return dead;
}

void PathSet::silence(int64_t now) {
  for (uint32_t i = 0; i < count_; ++i)
    if (paths_[i].in_flight != 0) paths_[i].congestion->on_timeout(now);
  if (count_ == 1) return;
  // The paths in use may have failed; idle paths may be better. If no path is alive, the one with the latest arrival is
  // tried first, since a packet may get lost on the best path, too. Then the paths take turns.
  const bool some = alive_ > 0;
  uint32_t latest = last_resort_;
  for (uint32_t i = 0; i < count_; ++i) {
    if (!usable(i) || paths_[i].in_flight == 0) continue;
    die(i, now);
    if (paths_[i].heard_ns > paths_[latest].heard_ns) latest = i;
  }
  if (alive_ > 0) return;
  last_resort_ = some ? latest : (last_resort_ + 1) % count_;
}

void PathSet::transmit_probes(int64_t now, Packet packet, Output& output) {
  packet.opcode = kPathProbe;
  for (uint32_t i = 0; i < count_; ++i) {
    Path& path = paths_[i];
    if (path.health == Path::Health::kAlive || path.next_probe_ns > now) continue;
    path.probe = (path.probe + 1) & kCountMask;
    packet.psn = i << kCountBits | path.probe;
    if (output.send(static_cast<uint8_t>(i), packet, nullptr, 0) != Sent::kYes) return;
    path.probe_sent_ns = now;
    path.next_probe_ns = now + (kProbeNs << std::min(path.probes_unanswered++, kMostProbeBackoff));
  }
}

void PathSet::on_echo(uint32_t token, int64_t now) {
  const uint32_t index = token >> kCountBits;
  if (index >= count_) return;
  Path& path = paths_[index];
  if (path.health == Path::Health::kAlive || (token & kCountMask) != path.probe || path.probe_sent_ns == 0) return;
  path.round_trip.sample(std::max<int64_t>(now - path.probe_sent_ns, 1));
  path.probe_sent_ns = 0;
  path.health = Path::Health::kAlive;
  path.heard_ns = now;
  ++alive_;
}

int64_t PathSet::deadline() const {
  if (count_ == 1) return INT64_MAX;
  int64_t when = INT64_MAX;
  for (uint32_t i = 0; i < count_; ++i)
    if (paths_[i].health != Path::Health::kAlive) when = std::min(when, paths_[i].next_probe_ns);
  return when;
}

}  // namespace nupa::roce
