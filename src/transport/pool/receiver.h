// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A queue pair of the transport, as the engine sees it.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/piece.h"
#include "transport/pool/records.h"

namespace nupa::pool {

class Link;

/// The payload of a record that has arrived: in its header line, in the ring, or in a buffer of the engine. A peer can
/// change what lies in the ring, so each byte there is read once.
struct Payload {
  std::array<base::Piece, 2> pieces{};
  uint32_t count = 0;
};

/// The time of a turn. It is read when it is first needed: a clock costs as much as a look that finds nothing.
class TurnClock {
 public:
  /// Returns the time in nanoseconds, as CLOCK_MONOTONIC.
  using Clock = int64_t (*)();
  explicit TurnClock(Clock clock) : clock_(clock) {}
  explicit TurnClock(int64_t now) : now_ns_(now) {}
  int64_t now() {
    if (now_ns_ == 0) now_ns_ = clock_();
    return now_ns_;
  }

 private:
  const Clock clock_ = nullptr;
  int64_t now_ns_ = 0;
};

/// The functions without a comment on threads are called between enter() and leave(), within a turn of the engine.
class Receiver {
 public:
  virtual ~Receiver() = default;
  /// Any thread.
  virtual uint32_t number() const = 0;
  /// Takes the queue pair's send lock. Never waits. Returns false if another thread holds it.
  virtual bool enter() = 0;
  virtual void leave() = 0;

  /// Takes a record that arrived by `link`. `payload`: record.length bytes, valid during the call. Returns false if the
  /// queue pair does not receive from there: the sender is answered that it is absent.
  virtual bool deliver(const Record& record, const Payload& payload, Link& link, TurnClock& clock) = 0;
  /// Takes an answer to its requests.
  virtual void answered(const Answer& answer, Link& link, int64_t now) = 0;
  /// Writes what waits: answers and requests.
  virtual void transmit(int64_t now) = 0;
  /// A deadline has come.
  virtual void on_timer(int64_t now) = 0;
  /// Finds the peer's process, for a queue pair that seeks its link. Called without its send lock. Null: there is none.
  virtual std::shared_ptr<Link> resolve() { return nullptr; }
  /// The result of resolve().
  virtual void resolved([[maybe_unused]] std::shared_ptr<Link> link, [[maybe_unused]] int64_t now) {}
  /// The peer of the link lives and has not answered the offer of a channel for long.
  virtual void not_answered([[maybe_unused]] Link& link, [[maybe_unused]] int64_t now) {}
  /// The peer of the link does not answer: it has ended, is silent, or has written garbage.
  virtual void peer_failed(Link& link, bool garbage, int64_t now) = 0;
  /// True if it needs resolve(). Any thread.
  bool seeks_link() const { return seeks_link_.load(std::memory_order_relaxed); }

  /// Takes the answer that is due to the peer; 0: none is. Any thread.
  uint64_t take_owed() { return owed_.exchange(0, std::memory_order_acq_rel); }
  bool owes() const { return owed_.load(std::memory_order_relaxed) != 0; }
  /// The link of the answers. Null: there is none.
  virtual std::shared_ptr<Link> link() const = 0;
  int64_t deadline() const { return deadline_.load(std::memory_order_relaxed); }

 protected:
  std::atomic<uint64_t> owed_{0};  ///< word_of() an Answer
  std::atomic<bool> seeks_link_{false};
  std::atomic<int64_t> deadline_{INT64_MAX};

 private:
  friend class Engine;
  friend class Link;
  bool waits_for_room_ = false;      ///< in the list of its link; under Link::mutex_
  Receiver* next_waiter_ = nullptr;  ///< the one behind it in that list
  bool is_owing_ = false;            ///< in Engine::owing_; within a turn
  std::atomic<bool> is_due_{false};  ///< in Engine::due_
};

}  // namespace nupa::pool
