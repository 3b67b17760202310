// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The work of `nupa pool`: make a pool, look at it, and clean it. One thread.

#include <nupa/result.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transport/pool/medium/layout.h"
#include "transport/pool/medium/pool.h"
#include "transport/pool/medium/pool_clock.h"
#include "transport/pool/medium/pool_memory.h"

namespace nupa::pool {

struct FormatOptions {
  uint16_t hosts = 2;
  uint64_t size = 0;        ///< bytes of a file, which is made or gets this size; 0: the size of the medium
  uint64_t ring_bytes = 0;  ///< of each inbox, a power of two; 0: by the size of the pool
  bool force = false;       ///< also if the pool is in use
};
/// Makes a pool. EBUSY: it is in use. EINVAL: an option does not fit the medium; the text names it.
Result<HeaderLine> format_pool(const Spec& spec, const FormatOptions& options, const PoolClock& clock = {});

struct BlockCounts {
  uint64_t total = 0, free = 0, program = 0, inbox = 0;
  /// Inboxes and memory whose owner does not use them any more, and whose writers may write to them.
  uint64_t quarantined = 0;
  bool is_damaged = false;
};
struct ProcessStatus {
  uint16_t record = 0;
  ProcessLine line;
  bool is_alive = false;  ///< its heartbeat changes
  Description description;
  uint32_t channels = 0;
  DoorbellKind doorbell = DoorbellKind::kNone;
};
struct HostStatus {
  uint16_t host = 0;
  bool is_known = false;  ///< a process of the host has joined since the format
  HostLine line;
  bool is_alive = false;  ///< a heartbeat of one of its processes changes
  std::vector<ProcessStatus> processes;
  BlockCounts blocks;
  std::optional<CheckLine> check;  ///< the last one
};
struct PoolStatus {
  HeaderLine header;
  std::vector<HostStatus> hosts;
};
/// Looks at all hosts for `watch_ns`: heartbeats change in that time, or not.
Result<PoolStatus> look_at_pool(const PoolMemory& memory, int64_t watch_ns, const PoolClock& clock = {});

struct Cleaned {
  std::vector<ProcessLine> processes;  ///< that were dead, and whose records are free now
  uint64_t blocks = 0;                 ///< that are free now
  BlockCounts left;
};
/// Ends the records of dead processes of the host, and frees what they left. A record of another boot or another file
/// is dead if its heartbeat is silent. EADDRINUSE: another machine with this host's number is alive.
Result<Cleaned> clean_pool(const PoolMemory& memory, const PoolClock& clock = {});

/// 16 random bytes as text: "6d0f...".
std::string uuid_text(const Uuid& uuid);

}  // namespace nupa::pool
