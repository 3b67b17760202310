// SPDX-License-Identifier: Apache-2.0
#include "ccl/algorithms/shm/shared_arrays.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/shm/parts.h"

namespace nupa::ccl::shm {
namespace {

/// The serial of a Place whose array the other ranks do not need.
constexpr uint64_t kNotNeeded = UINT64_MAX;

/// The places of a rank's arrays, which it publishes in its flag line.
struct Published {
  uint64_t in_serial;
  uint64_t in_offset;
  uint64_t out_serial;
  uint64_t out_offset;
  uint64_t in_address;  ///< 0: must not be read
  uint32_t in_entry;
  uint32_t out_entry;
  uint32_t signal_ns;  ///< transfer time of a flag line as this rank has measured it

  Place in() const { return {in_serial, in_offset, in_entry}; }
  Place out() const { return {out_serial, out_offset, out_entry}; }
};
static_assert(sizeof(Published) <= FlagLine::kPayload);

// A copy through a slot moves its cache lines from core to core, while the kernel copies through the caches that cores
// share. Which is faster depends on the distance of the cores, and that may change: kernels and hypervisors move what
// they run.
constexpr size_t kReadFromNear = 32768;
constexpr size_t kReadFromFar = 8192;
constexpr uint32_t kFarNs = 130;
/// The measurement is repeated after kMeasuredEvery operations. It is the best of kTries tries with kSignals signals
/// each.
constexpr uint32_t kMeasuredEvery = 256;
constexpr int kTries = 2;
constexpr int kSignals = 8;

/// Each rank signals and waits for the next rank's signal, `count` times.
CollectiveTask exchange_signals(ShmGroup& group, int count) {
  const uint32_t next = (group.rank() + 1) % group.ranks();
  for (int i = 0; i < count; ++i) {
    const uint32_t step = group.begin(1) + 1;
    group.publish(step);
    if (const int error = co_await group.reached(next, step); error != 0) co_return error;
  }
  co_return 0;
}

CollectiveTask measure_signals(ShmGroup& group) {
  // The barrier makes all ranks name a rank that never comes.
  if (const int error = co_await barrier(group); error != 0) co_return error;
  int64_t best = UINT32_MAX;
  for (int i = 0; i < kTries; ++i) {
    // A late rank must not be part of the measurement.
    if (const int error = co_await exchange_signals(group, 1); error != 0) co_return error;
    const int64_t began = base::now_ns();
    if (const int error = co_await exchange_signals(group, kSignals); error != 0) co_return error;
    best = std::min(best, (base::now_ns() - began) / kSignals);
  }
  group.set_signal_ns(static_cast<uint32_t>(best));
  co_return 0;
}

Place place_of(ShmGroup& group, const Shown& shown) {
  if (!shown.is_needed) return {.serial = kNotNeeded};
  return group.mapped_regions()->publish(shown.data, shown.bytes);
}

Published published_by(const ShmGroup& group, uint32_t rank, uint32_t turn) {
  Published published;
  std::memcpy(&published, group.line_of(rank, turn).payload, sizeof published);
  return published;
}

/// Returns false if the array cannot be mapped although its owner has published it.
bool map(ShmGroup& group, uint32_t rank, const Place& place, const Shown& own, std::byte** mapped) {
  *mapped = nullptr;
  if (place.serial == kNotNeeded) return true;
  *mapped = rank == group.rank() ? static_cast<std::byte*>(const_cast<void*>(own.data))
                                 : group.mapped_regions()->find(rank, place);
  return *mapped != nullptr;
}

}  // namespace

int SharedArrays::read(ShmGroup& group, uint32_t rank, void* to, size_t offset, size_t bytes) const {
  if (bytes == 0) return 0;
  if (!are_mapped) return group.reads()->read(rank, to, in_addresses[rank] + offset, bytes);
  std::memcpy(to, in[rank] + offset, bytes);
  return 0;
}

CollectiveTask show_arrays(ShmGroup& group, Shown in, Shown out, SharedArrays* arrays) {
  if (group.reads() != nullptr && group.count_shown() % kMeasuredEvery == 0)
    if (const int error = co_await measure_signals(group); error != 0) co_return error;
  const uint32_t step = group.begin(1) + 1;
  const uint32_t turn = group.next_turn(step);
  const Place in_at = place_of(group, in);
  const Place out_at = place_of(group, out);
  const Published own{in_at.serial, in_at.offset, out_at.serial,    out_at.offset, reinterpret_cast<uint64_t>(in.data),
                      in_at.entry,  out_at.entry, group.signal_ns()};
  if (!group.may_write(kSmallTurns))
    if (const int error = co_await until_all_left(group, kSmallTurns); error != 0) co_return error;
  group.write_line(turn, &own, sizeof own, step);
  bool are_mapped = true;
  bool are_far = false;
  bool are_readable = group.reads() != nullptr && !out.is_needed;
  for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
    if (const int error = co_await group.wrote_line(rank, turn, step); error != 0) co_return error;
    const Published published = published_by(group, rank, turn);
    are_far = are_far || published.signal_ns >= kFarNs;
    are_mapped = are_mapped && published.in_serial != 0 && published.out_serial != 0;
    are_readable = are_readable && published.out_serial == kNotNeeded &&
                   (published.in_address != 0 || published.in_serial == kNotNeeded);
  }
  group.all_have_begun();
  arrays->read_from = are_far ? kReadFromFar : kReadFromNear;
  if (!are_mapped) {
    for (uint32_t rank = 0; are_readable && rank < group.ranks(); ++rank)
      arrays->in_addresses.push_back(published_by(group, rank, turn).in_address);
    co_return 0;
  }
  for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
    const Published published = published_by(group, rank, turn);
    std::byte* mapped_in;
    std::byte* mapped_out;
    if (!map(group, rank, published.in(), in, &mapped_in) || !map(group, rank, published.out(), out, &mapped_out))
      co_return EFAULT;
    arrays->in.push_back(mapped_in);
    arrays->out.push_back(mapped_out);
  }
  arrays->are_mapped = true;
  co_return 0;
}

}  // namespace nupa::ccl::shm
