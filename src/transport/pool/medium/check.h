// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The measurements of `nupa pool check`, alone and with the same command on another host. One thread.

#include <nupa/result.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "transport/pool/medium/pool_memory.h"

namespace nupa::pool {

/// Measured on this host alone.
struct OwnMeasurements {
  double load_ns = 0;   ///< a word that was loaded before
  double store_ns = 0;  ///< a word
  double flush_ns = 0;  ///< a line is stored, published, invalidated and loaded again
  double to_bytes_per_s = 0;
  double from_bytes_per_s = 0;
};
/// Measured with another host.
struct PeerMeasurements {
  uint16_t host = 0;
  uint32_t lines = 0;        ///< that the other host wrote and this host read
  uint32_t wrong_lines = 0;  ///< of these, the lines that this host read with another content
  double one_way_ns = 0;     ///< a line from host to host: half of a round trip
};

/// EIO: the medium drops writes: lines are not there after they were written back and invalidated. EINVAL: the medium
/// holds no pool. ENOSPC: no block is free for the measurement of copies. Otherwise the errors of Pool::join().
Result<OwnMeasurements> measure_alone(const Spec& spec, const PoolMemory& memory);

/// Exchanges lines with `nupa pool check` of host `peer`. ETIMEDOUT: it did not run within `timeout_ns`, or it stopped.
/// `found`: is called when both have found each other.
Result<PeerMeasurements> measure_with(const PoolMemory& memory, uint16_t peer, int64_t timeout_ns,
                                      const std::function<void()>& found);

/// Records in the page of this host what a check has found, for `nupa doctor`. `peer`: null if it was measured alone.
Result<void> record_check(const PoolMemory& memory, const OwnMeasurements& own, const PeerMeasurements* peer);

}  // namespace nupa::pool
