#pragma once
/// Packets from one node to another lie in a ring of bytes in the receiver's memory, one after the other, each behind a
/// record that tells its length. Positions count bytes from the beginning of the connection and never go back; a place
/// in the ring is the position modulo its size. What is written does not wrap: before the end of the ring a record may
/// say that the next one is at its beginning.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "netdev/ip_packet.h"

namespace nupa::netdev {

constexpr uint64_t kRingBytes = uint64_t{1} << 21;
/// Records begin at multiples of this: a cache line.
constexpr uint32_t kRecordAlign = 64;
/// The largest that is put in: a packet behind its virtio header.
constexpr uint32_t kMaxFrameBytes = sizeof(VirtioHeader) + kMaxPacketBytes;

/// What stands before each frame.
struct Record {
  static constexpr uint32_t kSkip = UINT32_MAX;  ///< the rest of the ring is empty
  uint32_t bytes;                                ///< of the frame
  uint32_t zero;
};
static_assert(sizeof(Record) == 8);

constexpr uint64_t record_bytes(uint64_t frame_bytes) {
  return (sizeof(Record) + frame_bytes + kRecordAlign - 1) / kRecordAlign * kRecordAlign;
}
constexpr uint64_t kMaxRecordBytes = record_bytes(kMaxFrameBytes);
static_assert(kRingBytes % kRecordAlign == 0 && kRingBytes >= 4 * kMaxRecordBytes);

/// The writing end. One thread.
class RingWriter {
 public:
  /// `data`: kRingBytes, aligned to kRecordAlign.
  explicit RingWriter(std::byte* data) : data_(data) {}

  uint64_t tail() const { return tail_; }

  /// Where the next frame of up to kMaxFrameBytes may be put; nullptr: the receiver has to read on first. `head`: how
  /// far it has read.
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
  /// A frame has been put where reserve() said. The receiver may read up to tail() from now on.
  void commit(uint32_t frame_bytes) {
    *reinterpret_cast<Record*>(data_ + tail_ % kRingBytes) = {frame_bytes, 0};
    tail_ += record_bytes(frame_bytes);
  }

 private:
  std::byte* data_;
  uint64_t tail_ = 0;
};

/// The reading end. One thread. What the other end has written is believed nothing.
class RingReader {
 public:
  explicit RingReader(const std::byte* data) : data_(data) {}

  uint64_t head() const { return head_; }
  bool is_broken() const { return broken_; }

  /// The next frame before `tail`; nothing: there is none, or the other end has written what cannot be (is_broken()).
  /// It stays where it is until done(), but the other end may change it at any time.
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

/// What lies before the ring's bytes in the receiver's memory, for an end that has it mapped. Each word on a line of
/// its own: who writes it does not take away what the other one writes.
struct RingWords {
  alignas(64) std::atomic<uint64_t> tail;    ///< the writer's
  alignas(64) std::atomic<uint64_t> head;    ///< the reader's
  alignas(64) std::atomic<uint32_t> sleeps;  ///< the reader's: it wants to be woken; the writer takes it away
  alignas(64) std::atomic<uint32_t> waits;   ///< the writer's: it wants to be told of room; the reader takes it away
};
static_assert(sizeof(RingWords) == 256 && std::atomic<uint64_t>::is_always_lock_free);
constexpr uint64_t kRingRegionBytes = sizeof(RingWords) + kRingBytes;

}  // namespace nupa::netdev
