// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>
#include <unordered_map>

#include "host/completion_port.h"
#include "core/seam/qp_context.h"
#include "core/seam/request.h"
#include "core/seam/xrc_domain.h"
#include "host/peer_memory.h"

namespace nupa::core {

/// Takes the key of a type 2 window away that is bound to queue pair `qp_num` (IBTA 10.6.7.2.4). False: it is not such
/// a window's.
bool invalidate_window(const shm::Tables& tables, uint32_t rkey, uint32_t qp_num);

/// A queue pair of a process of this host, this one's own included, by the tables and rings that its process shows:
/// what Responder needs of a target. Calls for one object are serialised by the send lock of whoever uses it.
class SharedTarget {
 public:
  using Receive = shm::ReceiveRing::Claim;
  using Range = host::RemoteRange;

  /// The program may have unmapped memory that is registered: with kOwnMemory a fault in its receive buffers is an
  /// error of the request. Memory of other processes is a file that stays.
  enum class Guard : uint8_t { kNone, kOwnMemory };
  /// `qp_index`: of one that peer.queue_pairs() has. `due`: where the receiver's event is left until the sender has its
  /// own completion; null: it is raised at once.
  SharedTarget(host::Node& node, host::PeerMemories& memories, host::Peer& peer, uint32_t qp_index, host::DueEvent* due,
               Guard guard = Guard::kNone);

  /// Looks whether the queue pair takes requests from (`from_slot`, `from_qpn`); from_qpn 0: from anybody. True if it
  /// does. Cheap when nothing changed since the last time.
  bool ready(uint32_t from_slot, uint32_t from_qpn) {
    const uint64_t word = remote_->state.load(std::memory_order_acquire);
    if (__builtin_expect(word == accepted_ && peer_.alive(), 1)) return true;
    return revalidate(from_slot, from_qpn);
  }

  /// After ready() said no: this process has no address space for what the queue pair receives with.
  bool lacks_memory() const { return lacks_memory_; }

  host::Peer& peer() const { return peer_; }
  shm::QpShared& remote() const { return *remote_; }

  // Called by Responder, in this order.

  /// XRC: the receive queue that a request names, which may be another process's, of its domain. Never waits.
  Selection select(uint32_t srqn) { return __builtin_expect(!xrc_, 1) ? Selection::kYes : select_domain_queue(srqn); }
  /// Checks a remote key, and the queue pair's own rights, for an inbound request. False: refused. `length` is not 0.
  bool resolve(uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights, host::RemoteRange* range) {
    if (__builtin_expect((remote_->access.load(std::memory_order_relaxed) & rights) != rights, 0)) return false;
    // XRC: the request names a shared receive queue, and its domain and process answer (IBTA A14.5).
    if (__builtin_expect(xrc_, 0))
      return side_->ring.valid() &&
             side_->keys.resolve(rkey, address, length, rights, side_->ring.shared()->pd, remote_->qp_num, range);
    return remote_keys_.resolve(rkey, address, length, rights, remote_->pd, remote_->qp_num, range);
  }
  /// kSuccess; kRemOpErr: out of reach; kRetryExcErr: the process died; kNotServedYet: the memory's owner has to copy
  /// and has not done so, and the same call goes on with it. Where no process waits for its own turn (own memory) and
  /// on the service thread it comes at once, else after the time of set_wait().
  WcStatus write(const host::RemoteRange& range, const Piece* pieces, uint32_t count) {
    return host::write_remote(call_, memory(), range, pieces, count);
  }
  /// resolve() waits for no process.
  static constexpr bool resolves_later() { return false; }
  static const std::byte* behind(const host::RemoteRange& range, uint64_t length) {
    return range.direct == nullptr ? nullptr : range.direct + length;
  }
  WcStatus read(const host::RemoteRange& range, const Piece* pieces, uint32_t count) {
    return host::read_remote(read_call_, memory(), range, pieces, count);
  }
  /// `operand` goes in as compare, add or new value and comes back as the value found. As write(); kRemAccessErr: the
  /// key does not open the word; kRemInvReqErr: no word that a processor can be atomic on.
  WcStatus atomic(AtomicOp op, uint32_t rkey, uint64_t address, uint64_t* operand, uint64_t swap) {
    host::RemoteRange range;
    const uint32_t rights = op == AtomicOp::kWrite ? access::kRemoteWrite : access::kRemoteAtomic;
    if (__builtin_expect(!resolve(rkey, address, kAtomicBytes, rights, &range), 0)) return WcStatus::kRemAccessErr;
    auto* const word = reinterpret_cast<uint64_t*>(range.direct);
    if (__builtin_expect(word == nullptr || reinterpret_cast<uintptr_t>(word) % kAtomicBytes != 0, 0))
      return atomic_by_owner(op, range, operand, swap);
    switch (op) {
      case AtomicOp::kCompareSwap:
        __atomic_compare_exchange_n(word, operand, swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        break;
      case AtomicOp::kFetchAdd:
        *operand = __atomic_fetch_add(word, *operand, __ATOMIC_SEQ_CST);
        break;
      case AtomicOp::kWrite:
        __atomic_store_n(word, *operand, __ATOMIC_SEQ_CST);
        break;
    }
    return WcStatus::kSuccess;
  }
  /// READs and atomics that it takes at a time.
  uint32_t read_depth() const { return remote_->read_depth.load(std::memory_order_relaxed); }

  /// Takes the oldest receive. Empty: none is posted, or the queue pair stopped taking requests meanwhile. It is
  /// written where it stays: to read it back in wider words, as a copy does, waits for the stores to the peer's lines
  /// that came before it.
  void take(Receive* receive);
  Receive take() {
    Receive receive;
    take(&receive);
    return receive;
  }
  void put_back(const Receive& receive) { side_->ring.put_back(receive); }
  static uint64_t room(const Receive& receive) { return receive.room(); }
  /// Copies `pieces`, `length` bytes in all, to `offset` of the receive's buffers; *behind, if asked for: where the
  /// copy ended here, null if that is not known. kSuccess; kRemOpErr: the receiver's own list is at fault;
  /// kRetryExcErr: it died; kNotServedYet: as write(). Only what is written is checked: a list may be longer than its
  /// region.
  WcStatus place(const Receive& receive, uint64_t offset, const Piece* pieces, uint32_t count, uint64_t length,
                 const std::byte** behind);
  void complete(const Receive& receive, const Inbound& message, WcStatus status);
  /// The receive of a process that died: nobody reads its completion.
  static void abandon(const Receive& receive) { shm::ReceiveRing::finish(receive); }

  /// Invalidates a type 2 window. False: the key is not such a window's.
  bool invalidate(uint32_t rkey);
  /// The queue pair goes to the error state, and its owner gets the event if there is one: a fault that a receive's
  /// completion shows has none (IBTA 9.9.3, classes B and C).
  void fail(std::optional<EventType> event);

  // For some users only.

  /// How long a call waits for an owner of memory that has to copy: 2 ms unless this says otherwise.
  void set_wait(int64_t ns) {
    call_.set_wait(ns);
    read_call_.set_wait(ns);
  }
  /// A call has to be repeated, as it returned kNotServedYet.
  bool awaits_owner() const { return call_.is_waiting() || read_call_.is_waiting(); }
  /// Whether an owner of memory did something since this was asked last.
  bool owner_got_on() {
    const bool wrote = call_.got_on();
    return read_call_.got_on() || wrote;
  }
  /// Such a call is not repeated.
  [[gnu::cold]] void forget_calls() {
    call_.forget();
    read_call_.forget();
  }
  /// The life of the queue pair that was found last: another number after a RESET.
  uint64_t epoch() const { return epoch_; }
  /// Whether the queue with this selected() is still there, as far as it may be taken away.
  bool stands(uint64_t queue) const;
  /// Of the queue selected now.
  const shm::ReceiveRing& ring() const { return side_->ring; }
  /// Marks that a sender waits for a receive to be posted.
  void note_waiting() { remote_->sender_waits.store(1, std::memory_order_seq_cst); }
  /// Keeps the mapping of a range that was resolved by this key just now; null: the peer is this process.
  std::shared_ptr<host::MappedRegion> region_of(uint32_t rkey) const {
    return (xrc_ ? side_->keys : remote_keys_).region_of(rkey);
  }
  /// Where resolve() found the range.
  host::PeerMemory& memory() { return xrc_ ? side_->keys.memory() : remote_keys_.memory(); }
  /// XRC: which queue is selected. Another number than before: the queue of a receive taken before is gone, even if its
  /// number is back.
  uint64_t selected() const { return side_->life; }
  /// Whether a receive that was taken in an earlier call, from the queue selected now, is still this process's to fill.
  bool holds(const Receive& receive) const { return shm::ReceiveRing::is_claimed(receive, tag_); }

 private:
  /// Where receives come from and complete.
  struct Side {
    explicit Side(std::shared_ptr<host::PeerMemory> memory) : keys(std::move(memory)) {}
    shm::ReceiveRing ring;
    uint32_t srq_index = 0;  ///< plus 1; 0: the queue pair's own queue
    uint32_t srq_number = 0;
    host::KeyCache keys;  ///< lkeys of the receiver's buffers
    host::CompletionPort completions;
    std::optional<DomainQueue> queue;  ///< XRC
    uint64_t life = 0;
  };

  bool revalidate(uint32_t from_slot, uint32_t from_qpn);
  Selection select_domain_queue(uint32_t srqn);
  /// The word is not where this process could be atomic on it: its owner does it.
  [[gnu::cold]] WcStatus atomic_by_owner(AtomicOp op, const host::RemoteRange& range, uint64_t* operand, uint64_t swap);
  WcStatus copy(const host::RemoteRange& range, const Piece& piece);
  WcStatus scatter(const Receive& receive, uint64_t offset, const Piece* pieces, uint64_t length,
                   const std::byte** behind);

  // Members that each request reads stand first, in one cache line; the keys stand behind them.
  uint64_t accepted_ = ~uint64_t{0};
  shm::QpShared* remote_;
  host::Peer& peer_;
  Side* side_ = &own_side_;
  uint32_t qp_index_;
  uint32_t tag_;  ///< this process's signature on claims
  bool xrc_ = false;
  bool lacks_memory_ = false;
  bool alone_ = false;  ///< nobody else claims from its receive queue
  const Guard guard_;
  host::DueEvent* due_;
  host::KeyCache remote_keys_;  ///< rkeys of requests
  Side own_side_;
  host::Node& node_;
  host::PeerMemories& memories_;
  uint64_t epoch_ = 0;
  host::AgentCall call_;
  host::AgentCall read_call_;  ///< answers are made between the parts of a message
  std::unordered_map<uint32_t, std::unique_ptr<Side>> domain_sides_;  ///< XRC: by number
  uint64_t lives_ = 0;
};

}  // namespace nupa::core
