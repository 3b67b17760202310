#pragma once
#include <cerrno>

#include "base/clock.h"
#include "host/peer.h"
#include "progress/waiter.h"
#include "shm/completion_ring.h"

namespace nupa::host {

/// Delivers an armed completion queue's event: counts it and wakes whoever sleeps on the channel. The caller owns the
/// raising (CompletionRing::needs_event said true).
void raise_cq_event(Peer& owner, uint32_t cq_index);

/// An event that is raised a little later: when the one who caused it has its own completion, so that no answer of a
/// woken receiver comes before it. On an adapter the acknowledgement is there first as well, and programs rely on it.
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

/// Tells the owner that something of object `index` needs it: sets the bit and rings.
void call_attention(Peer& owner, uint32_t kind, uint32_t index);

/// The event of a shared receive queue in which fewer receives are left than its limit, once per arming
/// (IBTA 10.2.9.4): whoever takes the limit away raises it.
void tell_limit(Peer& owner, shm::RecvRing& ring, uint32_t srq_index);

/// One completion queue of a process (this one or a peer), ready to be pushed to. Follows resizes. One thread at a
/// time, and with a send lock held: that is what an owner who frees a ring waits for.
class CompletionPort {
 public:
  CompletionPort() = default;
  CompletionPort(Peer& owner, uint32_t cq_index) : owner_(&owner), index_(cq_index) {}
  bool valid() const { return owner_ != nullptr; }

  enum class Pushed {
    kYes,
    kNo,  ///< the queue is gone, or overran and its owner does not mind
    /// The queue pair whose entry is lost fails (IBTA 11.6.3.2): the queue overran, which its owner has been told, or
    /// its owner was stopped while it resized the queue. The message itself was executed and cannot be repeated.
    kLost,
  };
  /// Pushes an entry signed by process `tag` and raises the event it may cause, or leaves that to `due`.
  Pushed push(uint32_t tag, std::atomic<uint64_t>* intent, bool solicited, shm::CqEntry& entry,
              DueEvent* due = nullptr) {
    progress::Waiter waiter(progress::kLockPolicy);
    int64_t until_ns = 0;  // of the wait for a ring that moves
    for (;;) {
      if (__builtin_expect(!ring_.valid() || ring_.shared()->where.load(std::memory_order_acquire) != where_, 0) &&
          !open())
        return Pushed::kNo;
      if (__builtin_expect(timestamps_, 0)) entry.timestamp = base::ticks();
      switch (ring_.push(tag, intent, entry)) {
        case shm::CompletionRing::Push::kOk:
          if (__builtin_expect(ring_.needs_event(solicited), 0)) {
            if (due != nullptr)
              due->hold(*owner_, index_);
            else
              raise_cq_event(*owner_, index_);
          }
          return Pushed::kYes;
        case shm::CompletionRing::Push::kMoved:
          // Closed first, and then the new place is told.
          ring_ = {};
          if (!owner_->alive()) return Pushed::kNo;
          if (until_ns == 0)
            until_ns = base::now_ns() + kMoveLimitNs;
          else if (base::now_ns() >= until_ns)
            return Pushed::kLost;
          waiter.turn();
          break;
        case shm::CompletionRing::Push::kOverrun:
          return overrun() ? Pushed::kLost : Pushed::kNo;
      }
    }
  }

  /// Maps the queue, which push() would do. 0, also if there is none; ENOMEM: there is no address space for it.
  int reach() { return open() || where_ == 0 ? 0 : ENOMEM; }

 private:
  /// How long push() waits for the owner to tell a ring's new place. The owner keeps writers out only while it copies
  /// the entries, at most 2^20, to the new ring.
  static constexpr int64_t kMoveLimitNs = 2'000'000'000;

  bool open();
  /// False: the owner asked not to be told.
  bool overrun();

  Peer* owner_ = nullptr;
  uint64_t where_ = 0;  ///< the ring's place when it was opened
  shm::CompletionRing ring_;
  uint32_t index_ = 0;
  bool timestamps_ = false;
};
static_assert(sizeof(CompletionPort) <= 64);

}  // namespace nupa::host
