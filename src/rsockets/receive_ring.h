// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace nupa::rsockets {

/// The counters of a ring buffer that the peer fills. The buffer is published to the peer in halves: the first half by
/// the connection data, each later one after as many bytes were read. All counts are of bytes since the start and never
/// wrap. The thread that handles completions calls arrived(), the reader calls consume(), and published() is called
/// under the completions' lock.
///
/// Memory order, on any processor: the completion queue acquires the bytes from the peer, arrived() releases them, and
/// available() acquires them for the reader. The reader releases room by consume(), and publish_due() acquires it
/// before the peer is permitted to write there. Observers wake a sleeping reader.
class ReceiveRing {
 public:
  /// A range that is readable without wrapping.
  struct Span {
    uint32_t offset;
    uint32_t length;
  };

  /// `bytes` must be even.
  void reset(uint32_t bytes) {
    size_ = bytes;
    arrived_.store(0, std::memory_order_relaxed);
    consumed_.store(0, std::memory_order_relaxed);
    published_.store(half(), std::memory_order_relaxed);
  }

  uint32_t size() const { return size_; }
  uint32_t half() const { return size_ / 2; }
  uint64_t available() const {
    return arrived_.load(std::memory_order_acquire) - consumed_.load(std::memory_order_relaxed);
  }

  /// Returns false if the peer announces more bytes than it was given room for.
  bool arrived(uint32_t bytes) {
    const uint64_t total = arrived_.load(std::memory_order_relaxed) + bytes;
    if (total > published_.load(std::memory_order_relaxed)) return false;
    arrived_.store(total, std::memory_order_release);
    return true;
  }

  /// Returns the readable bytes after the first `skip` ones. A peek skips what it has copied.
  Span readable(uint64_t skip = 0) const {
    const uint64_t ready = available();
    if (ready <= skip) return {0, 0};
    const auto offset = static_cast<uint32_t>((consumed_.load(std::memory_order_relaxed) + skip) % size_);
    return {offset, static_cast<uint32_t>(std::min<uint64_t>(ready - skip, size_ - offset))};
  }
  void consume(uint32_t bytes) {
    consumed_.store(consumed_.load(std::memory_order_relaxed) + bytes, std::memory_order_release);
  }

  /// True if a half was read that the peer may fill again.
  bool publish_due() const {
    return published_.load(std::memory_order_relaxed) - consumed_.load(std::memory_order_acquire) <= half();
  }
  uint32_t publish_offset() const { return static_cast<uint32_t>(published_.load(std::memory_order_relaxed) % size_); }
  void published() { published_.store(published_.load(std::memory_order_relaxed) + half(), std::memory_order_relaxed); }

 private:
  uint32_t size_ = 2;
  std::atomic<uint64_t> published_{1};  ///< changed under the completions' lock
  std::atomic<uint64_t> arrived_{0};
  alignas(64) std::atomic<uint64_t> consumed_{0};
};

}  // namespace nupa::rsockets
