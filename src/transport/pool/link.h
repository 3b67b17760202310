// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The connection of this process to another process of the pool: a channel, and what waits for room in it.

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/piece.h"
#include "transport/pool/medium/pool.h"
#include "transport/pool/receiver.h"
#include "transport/pool/records.h"

namespace nupa::pool {

/// Writing: any thread. Reading and everything else: within a turn of the engine.
class Link {
 public:
  /// `now`: the time of the engine.
  Link(std::unique_ptr<Channel> channel, int64_t now)
      : made_ns(now),
        channel_(std::move(channel)),
        peer_(channel_->peer()),
        part_bytes_(part_bytes_of(channel_->lines())),
        has_doorbells_(channel_->has_doorbells()) {}

  const ProcessId& peer() const { return peer_; }
  /// Bytes of a message in one record.
  uint32_t part_bytes() const { return part_bytes_; }
  /// The peer rings this process when it has written something. Otherwise a thread looks from time to time.
  bool has_doorbells() const { return has_doorbells_; }
  /// A link is lost when its peer has ended or has written garbage. It stays lost.
  bool is_lost() const { return lost_.load(std::memory_order_acquire); }
  /// Records can be written. Any thread.
  bool is_open() {
    std::lock_guard lock(mutex_);
    return !is_lost() && channel_->is_open();
  }
  void lose() { lost_.store(true, std::memory_order_release); }

  enum class Wrote : uint8_t {
    kYes,
    kNotNow,      ///< the channel is full or not open yet
    kUnreadable,  ///< the program's memory is not mapped any more
    kLost,
  };
  /// Writes a record with the payload of `pieces`, record.length bytes in all. A piece without data stands for zeros.
  Wrote write(const Record& record, const base::Piece* pieces, uint32_t count);
  /// The same with record.length bytes of this library's own memory.
  Wrote write_own(const Record& record, const std::byte* payload);
  /// Copies record.length bytes of `pieces` to `to`, memory that the peer has granted, and writes the record, which has
  /// no payload. The peer's thread that reads the record sees the bytes: publish() releases them.
  Wrote place(const Record& record, std::byte* to, const base::Piece* pieces, uint32_t count);
  /// Copies the bytes of `pieces`. Returns false if the program's memory is not mapped any more.
  static bool gather(const base::Piece* pieces, uint32_t count, std::byte* to);
  /// Writes a kAnswers record.
  Wrote write_answers(std::span<const uint64_t> words);

  /// The queue pair waits for room: the engine calls its transmit() in its turn. Any thread.
  void wait_for_room(Receiver& receiver);
  bool has_waiters() const { return waiters_.load(std::memory_order_relaxed) != 0; }
  /// Returns the queue pair that has waited longest; null: none waits, or there is still no room.
  Receiver* next_waiter();
  size_t waiters() const { return waiters_.load(std::memory_order_relaxed); }
  void forget(Receiver& receiver);

  // Within a turn.
  Channel& channel() { return *channel_; }
  std::unique_ptr<Channel> take_channel() {
    std::lock_guard lock(mutex_);
    lose();
    return std::move(channel_);
  }
  /// Answers that are to be written, oldest first.
  std::vector<uint64_t>& answers() { return answers_; }
  /// Writes answers() as far as there is room. Returns true if none is left.
  bool flush_answers();
  /// Answers of the record at the head that were applied before a queue pair was busy.
  size_t applied = 0;
  /// The number of records that were read.
  uint64_t records = 0;
  bool is_drained = true;   ///< the last look found nothing
  bool is_blocked = false;  ///< the queue pair of the record at the head was busy
  bool has_ended = false;   ///< the peer had ended, or had closed the channel, at the last look at its life
  bool is_silent = false;   ///< it was silent then
  bool wrote_garbage = false;
  const int64_t made_ns;

 private:
  /// Publishes a record of one line.
  Wrote put(const Header& header);
  /// Copies payload behind the header. Returns false if the memory is not mapped.
  bool store(const base::Piece* pieces, uint32_t count, uint32_t length);

  std::mutex mutex_;  ///< leaf: held while one record is written
  std::unique_ptr<Channel> channel_;
  const ProcessId peer_;
  const uint32_t part_bytes_;
  const bool has_doorbells_;
  std::atomic<bool> lost_{false};
  /// For payload of several pieces. It exists from the beginning, so that a post allocates nothing.
  const std::unique_ptr<std::byte[]> staging_ = std::make_unique_for_overwrite<std::byte[]>(kMaxPartBytes);
  Receiver* first_waiter_ = nullptr;  ///< under mutex_, like the next one
  Receiver* last_waiter_ = nullptr;
  std::atomic<size_t> waiters_{0};
  std::vector<uint64_t> answers_;
};

}  // namespace nupa::pool
