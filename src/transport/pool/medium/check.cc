// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/medium/check.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <limits>
#include <vector>

#include "progress/clock.h"
#include "progress/deadline.h"
#include "progress/waiter.h"
#include "transport/pool/medium/host_lock.h"
#include "transport/pool/medium/lines.h"
#include "transport/pool/medium/make_pool.h"
#include "transport/pool/medium/process_identity.h"
#include "transport/pool/medium/medium_policy.h"

namespace nupa::pool {
namespace {

constexpr int kTrials = 8;
constexpr int kWords = 512;
constexpr int kFlushes = 64;
constexpr uint64_t kCopyBytes = 256 << 10;
constexpr uint32_t kRoundTrips = 2000;
/// A round trip over a slow medium or a busy machine may take long: the measurement ends after this time.
constexpr int64_t kPingNs = 1'000'000'000;
constexpr uint32_t kPatterns = 8;
/// The longest wait for a step of the other host, once both have found each other.
constexpr int64_t kStepNs = 10'000'000'000;

// Check lines of a host's page.
constexpr uint32_t kStateLine = kCheckLines;
constexpr uint32_t kPingLine = kCheckLines + 1;
constexpr uint32_t kPatternLines = kCheckLines + 2;
constexpr uint32_t kNumberOfPatternLines = kNumberOfCheckLines - 2;

/// The state of a check in one word. Bits 40 to 63: its number, never 0. Bits 16 to 39: the number of the other check.
/// Bits 0 to 15: the steps that are done.
struct State {
  uint32_t own = 0;
  uint32_t seen = 0;
  uint32_t steps = 0;
  static constexpr uint32_t kMask = (1u << 24) - 1;
  static State of(uint64_t word) {
    return {static_cast<uint32_t>(word >> 40), static_cast<uint32_t>(word >> 16) & kMask,
            static_cast<uint32_t>(word & 0xffff)};
  }
  uint64_t word() const { return uint64_t{own} << 40 | uint64_t{seen} << 16 | steps; }
};

/// A line whose content follows from the check that writes it. Word 0 is never 0.
Line pattern_of(uint32_t check, uint32_t round, uint32_t number) {
  Line line;
  uint64_t value = (uint64_t{check} << 32 | round << 16 | number) * 0x9e3779b97f4a7c15ull | 1;
  for (uint64_t& word : line.words) {
    word = value;
    value = (value ^ value >> 29) * 0xbf58476d1ce4e5b9ull;
  }
  return line;
}

bool is_equal(const Line& a, const Line& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

/// The shortest time of some trials of `work`, which does something `number` times, for each of them.
template <class Work>
double shortest_ns(int number, Work&& work) {
  double shortest = std::numeric_limits<double>::infinity();
  for (int trial = 0; trial < kTrials; ++trial) {
    const int64_t begin = progress::now_ns();
    work();
    shortest = std::min(shortest, static_cast<double>(progress::now_ns() - begin) / number);
  }
  return shortest;
}

/// Measures by the type of the policy, because a call for each line would be measured as well.
template <CachePolicy Policy>
OwnMeasurements measure_lines(Policy& policy, Line* block) {
  OwnMeasurements measured;
  auto* const words = reinterpret_cast<volatile uint64_t*>(block);
  measured.load_ns = shortest_ns(kWords, [&] {
    for (int i = 0; i < kWords; ++i) [[maybe_unused]] const uint64_t loaded = words[i % kLineWords];
  });
  measured.store_ns = shortest_ns(kWords, [&] {
    for (int i = 0; i < kWords; ++i) words[i % kLineWords] = static_cast<uint64_t>(i);
    policy.fence();
  });
  measured.flush_ns = shortest_ns(kFlushes, [&] {
    for (int i = 0; i < kFlushes; ++i) {
      Line content;
      content.words[0] = static_cast<uint64_t>(i) + 1;
      policy.publish(block + i, content);
      policy.poll(block + i);
    }
  });
  std::vector<std::byte> copy(kCopyBytes, std::byte{1});
  const double to_ns = shortest_ns(1, [&] {
    policy.store(block, copy.data(), kCopyBytes);
    policy.fence();
  });
  const double from_ns = shortest_ns(1, [&] {
    policy.refresh(block, lines_of(kCopyBytes));
    policy.load(copy.data(), reinterpret_cast<const std::byte*>(block), kCopyBytes);
  });
  constexpr double kNsPerS = 1e9;
  measured.to_bytes_per_s = kCopyBytes * kNsPerS / to_ns;
  measured.from_bytes_per_s = kCopyBytes * kNsPerS / from_ns;
  return measured;
}

class LineChecks {
 public:
  LineChecks(const PoolMemory& memory, const Geometry& geometry)
      : policy_(policy_of(memory)), memory_(memory), geometry_(geometry) {}

  Result<void> check_own_lines() {
    const auto check = static_cast<uint32_t>(random_key() >> 40) | 1;
    put_patterns(check, 0);
    const uint16_t host = memory_.spec().host;
    policy_.refresh(line(host, kPatternLines), kNumberOfPatternLines);
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < kNumberOfPatternLines; ++i)
      if (!is_equal(load(host, i), pattern_of(check, 0, i))) ++wrong;
    if (wrong == 0) return {};
    return fail(EIO, memory_.spec().medium(), ": the medium drops writes: ", wrong, " of ", kNumberOfPatternLines,
                " lines are not there after they were written (for CXL: is the region's decoder programmed?)");
  }

  Result<PeerMeasurements> meet(uint16_t peer, int64_t timeout_ns, const std::function<void()>& found) {
    peer_ = peer;
    own_.own = (static_cast<uint32_t>(random_key() >> 40) & State::kMask) | 1;
    put_word(policy_, line(memory_.spec().host, kPingLine), 0);
    publish();
    // The other check is the one that has seen this one: what an earlier check left has not.
    const bool has_met = progress::wait_for(
        [&] {
          const State state = peer_state();
          if (state.own == 0) return false;
          if (own_.seen != state.own) {
            own_.seen = state.own;
            publish();
          }
          return state.seen == own_.own;
        },
        progress::kPeerPolicy, progress::Deadline::in_ns(timeout_ns));
    if (!has_met)
      return fail(ETIMEDOUT, "no `nupa pool check` runs on host ", peer,
                  " (start it there, too, or use --alone; if it runs, the hosts do not share this memory)");
    found();
    PeerMeasurements measured;
    measured.host = peer;
    // Each step ends when both hosts have done it, so no line changes while it is read.
    for (uint32_t round = 0; round < kPatterns; ++round) {
      put_patterns(own_.own, round);
      if (auto done = finish_step(); !done) return tl::unexpected(done.error());
      policy_.refresh(line(peer, kPatternLines), kNumberOfPatternLines);
      for (uint32_t i = 0; i < kNumberOfPatternLines; ++i)
        if (!is_equal(load(peer, i), pattern_of(own_.seen, round, i))) ++measured.wrong_lines;
      measured.lines += kNumberOfPatternLines;
      if (auto done = finish_step(); !done) return tl::unexpected(done.error());
    }
    const auto one_way = ping();
    if (!one_way) return tl::unexpected(one_way.error());
    measured.one_way_ns = *one_way;
    return measured;
  }

 private:
  Line* line(uint16_t host, uint32_t number) {
    return memory_.lines() + geometry_.host_page(host) / kLineBytes + number;
  }
  Line load(uint16_t host, uint32_t number) {
    Line copy;
    policy_.load(reinterpret_cast<std::byte*>(&copy),
                 reinterpret_cast<const std::byte*>(line(host, kPatternLines + number)), sizeof copy);
    return copy;
  }
  void put_patterns(uint32_t check, uint32_t round) {
    for (uint32_t i = 0; i < kNumberOfPatternLines; ++i)
      policy_.publish(line(memory_.spec().host, kPatternLines + i), pattern_of(check, round, i));
  }
  void publish() { put_word(policy_, line(memory_.spec().host, kStateLine), own_.word()); }
  State peer_state() { return State::of(policy_.poll(line(peer_, kStateLine))); }

  tl::unexpected<Error> stopped() const {
    return fail(ETIMEDOUT, "the `nupa pool check` of host ", peer_, " does not answer any more");
  }
  Result<void> finish_step() {
    ++own_.steps;
    publish();
    const bool is_done = progress::wait_for(
        [&] {
          const State state = peer_state();
          return state.own == own_.seen && state.steps >= own_.steps;
        },
        progress::kPeerPolicy, progress::Deadline::in_ns(kStepNs));
    if (!is_done) return stopped();
    return {};
  }

  /// The lower host begins. Returns half of the mean round trip.
  Result<double> ping() {
    constexpr uint32_t kWarm = 16;
    constexpr uint64_t kLast = UINT64_MAX;
    Line* const mine = line(memory_.spec().host, kPingLine);
    const Line* const theirs = line(peer_, kPingLine);
    const bool leads = memory_.spec().host < peer_;
    const auto wait = [&](uint64_t number, uint64_t* seen) {
      return progress::wait_for(
          [&] {
            *seen = policy_.poll(theirs);
            return *seen == number || *seen == kLast;
          },
          progress::kHolderPolicy, progress::Deadline::in_ns(kStepNs));
    };
    int64_t begin = progress::now_ns();
    uint32_t trips = 0;
    for (uint64_t number = 1;; ++number) {
      uint64_t seen = 0;
      if (leads) {
        if (number == kWarm) begin = progress::now_ns();
        const bool is_last = number >= kRoundTrips || progress::now_ns() - begin > kPingNs;
        put_word(policy_, mine, is_last ? kLast : number);
        if (!wait(is_last ? kLast : number, &seen)) return stopped();
        if (number >= kWarm || is_last) ++trips;
        if (is_last) break;
      } else {
        if (!wait(number, &seen)) return stopped();
        put_word(policy_, mine, seen);
        if (number == kWarm) begin = progress::now_ns();
        if (number > kWarm) ++trips;
        if (seen == kLast) break;
      }
    }
    return static_cast<double>(progress::now_ns() - begin) / std::max<uint32_t>(trips, 1) / 2;
  }

  MediumPolicy policy_;
  const PoolMemory& memory_;
  const Geometry& geometry_;
  uint16_t peer_ = 0;
  State own_;
};

}  // namespace

Result<OwnMeasurements> measure_alone(const Spec& spec, const PoolMemory& memory) {
  const auto geometry = read_geometry(memory);
  if (!geometry) return tl::unexpected(geometry.error());
  const auto pool = make_pool(spec);
  if (!pool) return tl::unexpected(pool.error());
  if (const auto joined = (*pool)->join({}); !joined) return tl::unexpected(joined.error());
  if (auto own = LineChecks(memory, *geometry).check_own_lines(); !own) return tl::unexpected(own.error());
  const auto block = (*pool)->allocate(kCopyBytes);
  if (!block) return tl::unexpected(block.error());
  Line* const lines = memory.lines() + block->offset / kLineBytes;
  const auto measured = policy_of(memory).visit([&](auto& policy) { return measure_lines(policy, lines); });
  (*pool)->free(*block);
  return measured;
}

Result<PeerMeasurements> measure_with(const PoolMemory& memory, uint16_t peer, int64_t timeout_ns,
                                      const std::function<void()>& found) {
  const auto geometry = read_geometry(memory);
  if (!geometry) return tl::unexpected(geometry.error());
  return LineChecks(memory, *geometry).meet(peer, timeout_ns, found);
}

Result<void> record_check(const PoolMemory& memory, const OwnMeasurements& own, const PeerMeasurements* peer) {
  const auto geometry = read_geometry(memory);
  if (!geometry) return tl::unexpected(geometry.error());
  constexpr double kBytesPerMb = 1e6;
  CheckLine check;
  check.key = random_key();
  check.at_s = static_cast<uint64_t>(::time(nullptr));
  check.load_ns = static_cast<float>(own.load_ns);
  check.store_ns = static_cast<float>(own.store_ns);
  check.flush_ns = static_cast<float>(own.flush_ns);
  check.to_mb_per_s = static_cast<float>(own.to_bytes_per_s / kBytesPerMb);
  check.from_mb_per_s = static_cast<float>(own.from_bytes_per_s / kBytesPerMb);
  if (peer != nullptr) {
    check.peer = peer->host;
    check.lines = peer->lines;
    check.wrong_lines = peer->wrong_lines;
    check.one_way_ns = static_cast<float>(peer->one_way_ns);
  }
  // Another check of this host may end at the same time.
  HostLock lock(memory.fd(), memory.spec().host);
  const HeldHostLock held(lock);
  if (!held.is_held()) return fail(held.error());
  MediumPolicy policy = policy_of(memory);
  Line* const line = memory.lines() + geometry->host_page(memory.spec().host) / kLineBytes + kLastCheckLine;
  clear_line(policy, line);
  put_line(policy, line, check);
  return {};
}

}  // namespace nupa::pool
