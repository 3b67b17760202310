// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The captured process's side: takes the ring of a capture, and writes packets to it. Any thread; no call waits.

#include <atomic>
#include <string_view>
#include <vector>

#include "base/piece.h"
#include "base/unique_fd.h"
#include "capture/link_headers.h"
#include "capture/ring.h"
#include <nupa/result.h>

namespace nupa::capture {

/// The number of the attached capture; 0: there is none. Read it by the functions below.
inline constinit std::atomic<uint32_t> g_number{0};

/// True while this process is captured: the one cost of a process that is not. All other functions are called behind
/// it; they do nothing if the capture has ended meanwhile.
[[gnu::always_inline]] inline bool is_on() {
  return __builtin_expect(g_number.load(std::memory_order_relaxed) != 0, 0);
}

/// Distinguishes the captures that were attached one after the other. 0: none is attached.
inline uint32_t number() { return g_number.load(std::memory_order_relaxed); }

/// A device of this process as filters and frames name it.
struct DeviceName {
  std::string_view name;
  std::vector<Gid> gids;
};

/// Maps the ring and begins to record. `program`: for people. EBUSY: another capture is attached, or a thread still
/// writes to an earlier one. EPROTO: not a ring. ENOMEM and other errors of mappings. One thread at a time.
Result<void> attach(base::UniqueFd ring, std::string_view program, const std::vector<DeviceName>& devices);
/// Ends the recording. A thread that is in the middle of a record ends it; the last one unmaps the ring. The thread of
/// attach().
void detach();

struct Packet {
  static constexpr uint32_t kUnknownDevice = ~uint32_t{0};

  Datagram datagram{};
  std::string_view transport{};  ///< its name, at most eight characters
  Direction direction = Direction::kOutbound;
  uint32_t device = kUnknownDevice;  ///< kUnknownDevice: that of the local address
  uint32_t qp = 0;                   ///< the queue pair of this process; 0: none
  uint16_t flags = 0;                ///< frame_flag bits
  int64_t time_ns = 0;               ///< CLOCK_MONOTONIC; 0: now
};

/// Records a packet if the filters let it pass. `parts`: the datagram's payload, from the base transport header to the
/// invariant CRC. The first part holds the headers and is readable. Memory of others that is not there reads as zeros.
[[gnu::noinline, gnu::cold]] void record(const Packet& packet, const base::Piece* parts, uint32_t part_count);

}  // namespace nupa::capture
