// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The counts of a device's port, as adapters have them. See docs/design/sysfs.md.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace nupa::shm {

enum class PortCount : uint32_t {
  // Counted for each queue pair.
  kXmitBytes,      ///< payload
  kXmitPackets,    ///< over shared memory each message is one packet
  kRcvBytes,       ///< payload
  kRcvPackets,     ///< of the queue pair's peers
  kMulticastXmit,  ///< packets, which count above as well
  kMulticastRcv,   ///< packets, which count above as well
  kRcvErrors,      ///< packets that do not belong to the queue pair's connection
  kOutOfSequence,  ///< requests that arrived before their turn
  kSequenceNaks,   ///< answers of peers that a packet is missing
  kAckTimeouts,    ///< times that no answer came in time
  kOutOfBuffer,    ///< requests that found no receive
  kDuplicates,     ///< requests that had arrived before
  kRnrNaks,        ///< answers of peers that there is no receive
  kRequestErrors,  ///< requests that ended with an error, and were not flushed
  // Counted for each device only.
  kFlushedRequests,     ///< requests that ended as flushed
  kRemoteAccessErrors,  ///< requests that the peer refused: no right to the memory
  kRemoteInvalid,       ///< requests that the peer refused: not valid
  kRetriesExceeded,     ///< requests without an answer
  kRnrExceeded,         ///< requests that found no receive until the retries were used up
  kCount,
};
constexpr size_t kPortCounts = static_cast<size_t>(PortCount::kCount);
/// The counts of a queue pair that its transport counts: the first ones.
constexpr size_t kTransportCounts = static_cast<size_t>(PortCount::kDuplicates) + 1;

using PortSums = std::array<uint64_t, kPortCounts>;
inline uint64_t& at(PortSums& sums, PortCount count) { return sums[static_cast<size_t>(count)]; }

/// The counts of a queue pair, written by its owner: each by one thread at a time, but by several at the same time in
/// all. They go on when the queue pair is reset and connected again.
struct PortCountsShared {
  std::atomic<uint64_t> values[kTransportCounts];

  std::atomic<uint64_t>& operator[](PortCount count) { return values[static_cast<size_t>(count)]; }
  const std::atomic<uint64_t>& operator[](PortCount count) const { return values[static_cast<size_t>(count)]; }
  /// Where two threads may count at once.
  void add(PortCount count, uint64_t more) { (*this)[count].fetch_add(more, std::memory_order_relaxed); }
  /// Where one thread at a time counts.
  void add_alone(PortCount count, uint64_t more) {
    std::atomic<uint64_t>& value = (*this)[count];
    value.store(value.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  /// Packets, where one thread at a time counts.
  void sent_packet(uint64_t payload_bytes) {
    add_alone(PortCount::kXmitPackets, 1);
    add_alone(PortCount::kXmitBytes, payload_bytes);
  }
  void received_packet(uint64_t payload_bytes) {
    add_alone(PortCount::kRcvPackets, 1);
    add_alone(PortCount::kRcvBytes, payload_bytes);
  }
};

}  // namespace nupa::shm
