// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A ring of bytes in the receiver's memory carries the packets from one node to another. Each packet lies behind a
/// record with its length. Positions count bytes from the beginning of the connection and never decrease. The place in
/// the ring is the position modulo its size. Data does not wrap: a record before the end of the ring may mark the rest
/// as skipped, and the next record is then at the beginning.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "netdev/ip_packet.h"

namespace nupa::netdev {

constexpr uint64_t kRingBytes = uint64_t{1} << 21;
/// Records begin at multiples of a cache line.
constexpr uint32_t kRecordAlign = 64;
/// The largest frame: a packet behind its virtio header.
constexpr uint32_t kMaxFrameBytes = sizeof(VirtioHeader) + kMaxPacketBytes;

/// The record in front of each frame.
struct Record {
  static constexpr uint32_t kSkip = UINT32_MAX;  ///< value of `bytes`: the rest of the ring is skipped
  uint32_t bytes;                                ///< bytes of the frame
  uint32_t zero;
};
static_assert(sizeof(Record) == 8);

constexpr uint64_t record_bytes(uint64_t frame_bytes) {
  return (sizeof(Record) + frame_bytes + kRecordAlign - 1) / kRecordAlign * kRecordAlign;
}
constexpr uint64_t kMaxRecordBytes = record_bytes(kMaxFrameBytes);
static_assert(kRingBytes % kRecordAlign == 0 && kRingBytes >= 4 * kMaxRecordBytes);

/// The writing side. One thread.
class RingWriter {
 public:
  /// `data` has kRingBytes bytes and is aligned to kRecordAlign.
  explicit RingWriter(std::byte* data) : data_(data) {}

  uint64_t tail() const { return tail_; }

  /// Returns the place for the next frame of up to kMaxFrameBytes, or nullptr if the receiver must read first. `head`
  /// is the position up to which the receiver has read.
  std::byte* reserve(uint64_t head) {
    const uint64_t rest = kRingBytes - tail_ % kRingBytes;
    const bool skips = rest < kMaxRecordBytes;
    const uint64_t wanted = skips ? rest + kMaxRecordBytes : kMaxRecordBytes;
    if (kRingBytes - (tail_ - head) < wanted) return nullptr;
    if (skips) {
      *reinterpret_cast<Record*>(data_ + tail_ % kRingBytes) = {Record::kSkip, 0};
      tail_ += rest;
    }
    return data_ + tail_ % kRingBytes + sizeof(Record);
  }
  /// Commits a frame that was written to the place from reserve(). The receiver may then read up to tail().
  void commit(uint32_t frame_bytes) {
    *reinterpret_cast<Record*>(data_ + tail_ % kRingBytes) = {frame_bytes, 0};
    tail_ += record_bytes(frame_bytes);
  }

 private:
  std::byte* data_;
  uint64_t tail_ = 0;
};

/// The reading side. One thread. It checks everything that the peer has written.
class RingReader {
 public:
  explicit RingReader(const std::byte* data) : data_(data) {}

  uint64_t head() const { return head_; }
  bool is_broken() const { return broken_; }

  /// Returns the next frame before `tail`. Returns nothing if there is none, or if the peer has written an invalid
  /// record (is_broken()). The frame stays in the ring until done(), but the peer may change it at any time.
  std::optional<std::span<const std::byte>> next(uint64_t tail) {
    if (tail - head_ > kRingBytes || tail % kRecordAlign != 0) return fail();
    while (head_ != tail) {
      const uint64_t at = head_ % kRingBytes;
      const uint32_t bytes = std::atomic_ref(const_cast<uint32_t&>(reinterpret_cast<const Record*>(data_ + at)->bytes))
                                 .load(std::memory_order_relaxed);
      if (bytes == Record::kSkip) {
        if (tail - head_ < kRingBytes - at) return fail();
        head_ += kRingBytes - at;
        continue;
      }
      if (bytes > kMaxFrameBytes || record_bytes(bytes) > tail - head_ || record_bytes(bytes) > kRingBytes - at)
        return fail();
      taken_ = record_bytes(bytes);
      return std::span(data_ + at + sizeof(Record), bytes);
    }
    return std::nullopt;
  }
  void done() { head_ += taken_; }

 private:
  std::nullopt_t fail() {
    broken_ = true;
    return std::nullopt;
  }

  const std::byte* data_;
  uint64_t head_ = 0;
  uint64_t taken_ = 0;
  bool broken_ = false;
};

/// The words before the ring's bytes in the receiver's memory, for a peer that maps the ring. Each word has its own
/// cache line, so a write of one side does not invalidate the other side's line.
///
/// Memory order, on any processor: `tail` releases the frames before it and `head` the room before it; the other side
/// acquires each before it reads frames or writes into the room. Store and load: a writer stores `tail` and then looks
/// at `sleeps`, a reader stores `sleeps` and then looks at `tail`. Lane has a full barrier between the two on both
/// sides, so the reader sees the frame, or the writer sends the message that wakes it. The same holds for `head` and
/// `waits`.
struct RingWords {
  alignas(64) std::atomic<uint64_t> tail;    ///< written by the writer
  alignas(64) std::atomic<uint64_t> head;    ///< written by the reader
  alignas(64) std::atomic<uint32_t> sleeps;  ///< the reader requests a wakeup; cleared by the writer
  alignas(64) std::atomic<uint32_t> waits;   ///< the writer requests a wakeup when there is room; cleared by the reader
};
static_assert(sizeof(RingWords) == 256 && std::atomic<uint64_t>::is_always_lock_free);
constexpr uint64_t kRingRegionBytes = sizeof(RingWords) + kRingBytes;

}  // namespace nupa::netdev
