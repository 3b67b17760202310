#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>

#include "transport/roce/wire/wire.h"

namespace nupa::roce {

class Channel;

/// Room in a socket that several queue pairs fill: another process' for all that this one sends there, or this
/// process' own for the responses to its READs. Who finds no room waits in line and sends a turn's worth when it is
/// its turn, so that few large messages are under way and not many small ones. Any thread.
class SharedWindow {
 public:
  /// Bytes that one of several sends at a time, so that it ends with a message of 64 KiB and not just behind it: a
  /// message that is begun in a turn and ended in the next one fills the window meanwhile. Where many wait turns are
  /// longer, since each begins with memory that has grown cold.
  static constexpr uint64_t kTurnBytes = 2 * 16 * kMaxPacketBytes;
  static constexpr uint64_t kLongTurnBytes = 2 * kTurnBytes;
  static constexpr uint32_t kMany = 16;

  explicit SharedWindow(uint64_t bytes) : size_(bytes) {}

  void resize(uint64_t bytes) { size_.store(bytes, std::memory_order_relaxed); }
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t size() const { return size_.load(std::memory_order_relaxed); }
  /// Takes at most `wanted` bytes; 0: there is no room worth a turn. When nothing is in use at least `least` are given.
  uint64_t take(uint64_t wanted, uint64_t least);
  /// Whether there is room or not: for what was under way already and is lost.
  void take_anyway(uint64_t bytes) { used_.fetch_add(bytes, std::memory_order_relaxed); }
  /// Sequentially consistent, as what follows it is (FlowWindows::serve()), and what has_room() follows
  /// (FlowWindows::note_waiter()): either who gives back sees who waits, or who waits sees the room.
  void give_back(uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_seq_cst); }
  /// Whether there is room for a turn.
  bool has_room() const { return room(used_.load(std::memory_order_seq_cst)) != 0; }

  /// Of the next turn.
  uint64_t turn_bytes() const { return waiters() < kMany ? kTurnBytes : kLongTurnBytes; }
  uint32_t waiters() const { return waiting_.load(std::memory_order_relaxed); }
  bool has_waiters() const { return waiters() != 0; }
  /// Goes to the end of the line; does not stand there yet.
  void wait(Channel& channel);
  /// Who is at the head, and stays there: only who holds a channel takes it out of the line. Null: nobody.
  Channel* first();
  void forget(Channel& channel);
  /// The same if it is at the head. False: it is not.
  bool leave_head(Channel& channel);
  /// The head goes to the end of the line, if it still is this one.
  void pass_over(Channel& channel);

 private:
  uint64_t room(uint64_t used) const;

  std::atomic<uint64_t> size_;
  std::atomic<uint64_t> used_{0};
  std::atomic<uint32_t> waiting_{0};
  std::mutex mutex_;
  std::deque<Channel*> line_;
};

}  // namespace nupa::roce
