// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>

#include "transport/roce/wire/wire.h"

namespace nupa::roce {

class QpReceiver;

/// A flow window: room in a socket that several queue pairs fill. The socket is another process's for all that this one
/// sends there, or this process's own for the responses to its READs. A queue pair that finds no room waits in a queue
/// and sends one quantum in its turn, so that few large messages are in flight and not many small ones. Any thread.
class FlowWindow {
 public:
  /// The quantum. It ends with a message of 64 KiB and not just behind it: a message that is begun in one turn and
  /// ended in the next fills the window meanwhile. With many waiting queue pairs the quantum is longer, since each turn
  /// begins with memory that has left the caches.
  static constexpr uint64_t kQuantumBytes = 2 * 16 * kMaxPacketBytes;
  static constexpr uint64_t kLongQuantumBytes = 2 * kQuantumBytes;
  static constexpr uint32_t kMany = 16;

  explicit FlowWindow(uint64_t bytes) : size_(bytes) {}

  void resize(uint64_t bytes) { size_.store(bytes, std::memory_order_relaxed); }
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t size() const { return size_.load(std::memory_order_relaxed); }
  /// Takes at most `wanted` bytes. Returns 0 if there is less room than a quantum. If nothing is in use, it grants at
  /// least `least`.
  uint64_t take(uint64_t wanted, uint64_t least);
  /// Takes bytes without regard to room: for packets that were in flight already and are lost.
  void take_anyway(uint64_t bytes) { used_.fetch_add(bytes, std::memory_order_relaxed); }
  /// Sequentially consistent, as are FlowWindows::serve(), which follows it, and FlowWindows::note_waiter(), which
  /// precedes has_room(): either the thread that gives back sees the waiter, or the waiter sees the room.
  void give_back(uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_seq_cst); }
  /// True if there is room for a quantum.
  bool has_room() const { return room(used_.load(std::memory_order_seq_cst)) != 0; }

  /// The size of the next quantum.
  uint64_t quantum_bytes() const { return waiters() < kMany ? kQuantumBytes : kLongQuantumBytes; }
  uint32_t waiters() const { return waiting_.load(std::memory_order_relaxed); }
  bool has_waiters() const { return waiters() != 0; }
  /// Appends a queue pair that does not wait yet to the wait queue.
  void wait(QpReceiver& queue_pair);
  /// The first waiter, which stays there: only the thread that holds a queue pair removes it. Null: none waits.
  QpReceiver* first();
  void forget(QpReceiver& queue_pair);
  /// The same if it is the first one. Returns false if it is not.
  bool leave_head(QpReceiver& queue_pair);
  /// Moves the queue pair to the end of the wait queue if it still is the first one.
  void pass_over(QpReceiver& queue_pair);

 private:
  uint64_t room(uint64_t used) const;

  std::atomic<uint64_t> size_;
  std::atomic<uint64_t> used_{0};
  std::atomic<uint32_t> waiting_{0};
  std::mutex mutex_;
  std::deque<QpReceiver*> queue_;
};

}  // namespace nupa::roce
