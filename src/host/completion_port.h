// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cerrno>
#include <optional>

#include "host/peer.h"
#include "shm/completion_ring.h"

namespace nupa::host {

/// Delivers an armed completion queue's event: counts it and wakes the sleepers of the channel. Only for the caller for
/// which CompletionRing::needs_event returned true.
void raise_cq_event(Peer& owner, uint32_t cq_index);

/// An event that is raised a little later: when the sender that caused it has its own completion. So no answer of a
/// woken receiver comes before that. On an adapter the acknowledgement comes first as well, and programs rely on it.
class DueEvent {
 public:
  void hold(Peer& owner, uint32_t cq_index) {
    raise();
    owner_ = &owner;
    cq_index_ = cq_index;
  }
  void raise() {
    if (__builtin_expect(owner_ == nullptr, 1)) return;
    Peer& owner = *owner_;
    owner_ = nullptr;
    raise_cq_event(owner, cq_index_);
  }

 private:
  Peer* owner_ = nullptr;
  uint32_t cq_index_ = 0;
};

/// Requests the owner's attention for object `index`: sets the bit and writes the owner's eventfd.
void call_attention(Peer& owner, uint32_t kind, uint32_t index);

/// Raises the event of a shared receive queue that has fewer receives left than its limit, once per arming (IBTA
/// 10.2.9.4): the caller that clears the limit raises it.
void signal_limit(Peer& owner, shm::RecvRing& ring, uint32_t srq_index);

/// One completion queue of a process (this one or a peer), ready for pushes. Follows resizes. One thread at a time,
/// which holds a send lock: an owner that frees a ring waits for that lock.
class CompletionPort {
 public:
  CompletionPort() = default;
  CompletionPort(Peer& owner, uint32_t cq_index) : owner_(&owner), index_(cq_index) {}
  bool valid() const { return owner_ != nullptr; }

  enum class Pushed {
    kYes,
    kNo,  ///< the queue was destroyed, or it overran and ignores that
    /// The queue pair whose entry is lost must fail (IBTA 11.6.3.2). Either the queue overran, which was reported to
    /// its owner, or the owner was stopped while it resized the queue. The message itself was executed and cannot be
    /// repeated.
    kLost,
  };
  /// Pushes an entry signed by process `tag` and raises the event that it causes, or leaves that to `due`.
  Pushed push(uint32_t tag, std::atomic<uint64_t>* intent, bool solicited, const shm::CqEntry& entry,
              DueEvent* due = nullptr) {
    if (__builtin_expect(!is_open() || timestamps_, 0)) return push_slowly(tag, intent, solicited, entry, due);
    // A copy, whose members the compiler need not load again after each atomic access.
    shm::CompletionRing ring = ring_;
    if (__builtin_expect(!ring.try_push(tag, intent, entry), 0)) return push_slowly(tag, intent, solicited, entry, due);
    if (__builtin_expect(ring.needs_event(solicited), 0)) raise_event(due);
    return Pushed::kYes;
  }

  /// The position of the next entry, or an earlier one; nullopt: the queue is not mapped.
  std::optional<uint64_t> next_position() const {
    if (__builtin_expect(!is_open(), 0)) return std::nullopt;
    return ring_.next_position();
  }

  /// Maps the queue, which push() does otherwise. 0, also if there is no queue; ENOMEM: no address space for it.
  int reach() { return open() || where_ == 0 ? 0 : ENOMEM; }

 private:
  /// How long push() waits for the owner to publish a ring's new place. The owner keeps writers out only while it
  /// copies the entries, at most 2^20, to the new ring.
  static constexpr int64_t kMoveLimitNs = 2'000'000'000;

  bool is_open() const { return ring_.valid() && ring_.shared()->where.load(std::memory_order_acquire) == where_; }
  bool open();
  /// push() for a queue that is not open, is full, moves, or has timestamps.
  [[gnu::noinline]] Pushed push_slowly(uint32_t tag, std::atomic<uint64_t>* intent, bool solicited, shm::CqEntry entry,
                                       DueEvent* due);
  [[gnu::noinline]] void raise_event(DueEvent* due);
  /// Reports the overrun to the owner. False: the queue ignores overruns.
  bool overrun();

  Peer* owner_ = nullptr;
  uint64_t where_ = 0;  ///< the ring's place when it was mapped
  shm::CompletionRing ring_;
  uint32_t index_ = 0;
  bool timestamps_ = false;
};
static_assert(sizeof(CompletionPort) <= 64);

}  // namespace nupa::host
