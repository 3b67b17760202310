// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

#include "rsockets/limits.h"
#include "rsockets/wire.h"

namespace nupa::rsockets {

/// The sender's limits: requests of the send queue, bytes of the staging buffer, and messages that the peer can
/// receive. The sender raises its counts, and the thread that handles completions raises the others. Each writes its
/// own counts only, so neither waits for the other. A completion's wr_id holds the sender's counts at the post, so one
/// completion covers all requests before it.
///
/// Memory order, on any processor: completed() releases `freed_` and `completed_`, and room() and requests_in_flight()
/// acquire them before the sender writes staging bytes again. `allowed_` in the same way. The sender's own counts order
/// nothing: other threads read them to guess whether a sender could continue. Observers wake a sleeping sender and have
/// the barrier between a count and the look at sleepers.
class SendWindow {
 public:
  static constexpr uint64_t kControlId = UINT64_C(1) << 63;

  /// Resets all counts. `posted` is the first count of requests; tests begin shortly before it wraps.
  void reset(uint32_t requests, uint32_t bytes, uint32_t posted = 0) {
    requests_ = requests;
    bytes_ = bytes;
    quarter_requests_ = requests / 4 == 0 ? 1 : requests / 4;
    quarter_bytes_ = bytes / 4;
    posted_.store(posted);
    staged_.store(0);
    asked_posted_ = posted;
    asked_staged_ = 0;
    completed_.store(posted);
    freed_.store(0);
    sent_.store(0);
    allowed_.store(0);
  }

  /// Returns the free bytes of the staging buffer, which may wrap at its end.
  uint32_t room() const {
    return bytes_ - (staged_.load(std::memory_order_relaxed) - freed_.load(std::memory_order_acquire));
  }
  uint32_t bytes() const { return bytes_; }
  uint32_t requests_in_flight() const {
    return (posted_.load(std::memory_order_relaxed) - completed_.load(std::memory_order_acquire)) & kSequenceMask;
  }
  bool idle() const { return requests_in_flight() == 0; }
  bool has_credit() const { return sent_.load(std::memory_order_relaxed) != allowed_.load(std::memory_order_acquire); }
  /// True if this side's queue and the peer's credits permit another message.
  bool open() const {
    const uint32_t low = bytes_ < kLowWater ? bytes_ : kLowWater;
    return requests_in_flight() < requests_ && has_credit() && room() >= low;
  }

  /// Counts a request that takes `staged` bytes of the buffer, and a credit if `message` is set. Returns its wr_id.
  /// *signaled is set if the request must be signaled, often enough that a waiting sender always gets a completion.
  uint64_t post(uint32_t staged, bool message, bool* signaled) {
    const uint32_t posted = (posted_.load(std::memory_order_relaxed) + 1) & kSequenceMask;
    const uint32_t end = staged_.load(std::memory_order_relaxed) + staged;
    posted_.store(posted, std::memory_order_relaxed);
    staged_.store(end, std::memory_order_relaxed);
    if (message) {
      sent_.store(static_cast<uint16_t>(sent_.load(std::memory_order_relaxed) + 1), std::memory_order_relaxed);
    }
    *signaled =
        ((posted - asked_posted_) & kSequenceMask) >= quarter_requests_ || end - asked_staged_ >= quarter_bytes_;
    if (*signaled) {
      asked_posted_ = posted;
      asked_staged_ = end;
    }
    return static_cast<uint64_t>(posted) << 32 | end;
  }

  /// Returns the offset of the next staged byte.
  uint32_t staging_offset() const { return staged_.load(std::memory_order_relaxed) % bytes_; }

  void completed(uint64_t wr_id) {
    freed_.store(static_cast<uint32_t>(wr_id), std::memory_order_release);
    completed_.store(static_cast<uint32_t>(wr_id >> 32) & kSequenceMask, std::memory_order_release);
  }
  /// Sets the peer's count of messages that this side may send, modulo 2^16.
  void allow(uint16_t total) { allowed_.store(total, std::memory_order_release); }

 private:
  static constexpr uint32_t kSequenceMask = (UINT32_C(1) << 30) - 1;

  uint32_t requests_ = 0;
  uint32_t bytes_ = 1;  ///< a power of two, so that offsets remain valid when the count wraps
  uint32_t quarter_requests_ = 1;
  uint32_t quarter_bytes_ = 0;
  std::atomic<uint32_t> posted_{0};
  std::atomic<uint32_t> staged_{0};
  std::atomic<uint16_t> sent_{0};
  uint32_t asked_posted_ = 0;  ///< value of posted_ at the last signaled request
  uint32_t asked_staged_ = 0;
  alignas(64) std::atomic<uint32_t> completed_{0};
  std::atomic<uint32_t> freed_{0};
  std::atomic<uint16_t> allowed_{0};
};

/// The table of target buffers, which the peer writes. An entry is taken and cleared before anything is sent into its
/// buffer, so the peer cannot have written the entry again by then.
///
/// Memory order, on any processor: the last 8 bytes of an RDMA WRITE, here `key` and `length`, become visible last
/// (base::copy_in_order), and landed() acquires the length before take() reads the entry. The stores that clear an
/// entry come before the message into its buffer, whose completion the peer acquires before it writes the entry again.
class TargetTable {
 public:
  void reset(RemoteBuffer* entries, const RemoteBuffer& first) {
    entries_ = entries;
    next_ = 0;
    current_ = {};
    left_.store(0, std::memory_order_relaxed);
    entries_[0] = first;
  }

  /// True if the peer has room. Any thread.
  bool open() const {
    return left_.load(std::memory_order_relaxed) != 0 || landed(next_.load(std::memory_order_relaxed));
  }

  /// Returns the room in the current buffer, after taking the next buffer if it is full. Like the functions below,
  /// sender's thread only.
  uint32_t left() {
    const uint32_t now = left_.load(std::memory_order_relaxed);
    return now != 0 ? now : take();
  }
  uint64_t addr() const { return current_.addr; }
  uint32_t key() const { return current_.key; }
  void advance(uint32_t bytes) {
    current_.addr += bytes;
    left_.store(left_.load(std::memory_order_relaxed) - bytes, std::memory_order_relaxed);
  }

 private:
  /// The peer's write of an entry may be in progress. The entry is complete when its length, the last field, and its
  /// address are set.
  bool landed(uint32_t index) const {
    auto& entry = entries_[index];
    return __atomic_load_n(&entry.length, __ATOMIC_ACQUIRE) != 0 && __atomic_load_n(&entry.addr, __ATOMIC_ACQUIRE) != 0;
  }
  uint32_t take() {
    const uint32_t index = next_.load(std::memory_order_relaxed);
    if (!landed(index)) return 0;
    RemoteBuffer& entry = entries_[index];
    current_ = entry;
    // Other threads read these fields in landed() at any time.
    __atomic_store_n(&entry.length, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&entry.addr, 0, __ATOMIC_RELAXED);
    entry.key = 0;
    next_.store((index + 1) % kTargets, std::memory_order_relaxed);
    left_.store(current_.length, std::memory_order_relaxed);
    return current_.length;
  }

  RemoteBuffer* entries_ = nullptr;
  RemoteBuffer current_{};
  std::atomic<uint32_t> next_{0};
  std::atomic<uint32_t> left_{0};
};

}  // namespace nupa::rsockets
