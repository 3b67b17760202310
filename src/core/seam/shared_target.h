// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>
#include <unordered_map>

#include "base/fence.h"
#include "base/prefetch.h"
#include "host/completion_port.h"
#include "core/seam/qp_context.h"
#include "core/seam/request.h"
#include "core/seam/xrc_domain.h"
#include "host/peer_memory.h"

namespace nupa::core {

struct FlushPart;

/// Invalidates the key of a type 2 window that is bound to queue pair `qp_num` (IBTA 10.6.7.2.4). Returns false if
/// `rkey` is no key of such a window.
bool invalidate_window(const shm::Tables& tables, uint32_t rkey, uint32_t qp_num);

/// A queue pair of a process of this host, which may be this process, as a target of Responder. It uses the tables and
/// rings in the process's segment. The send lock of the calling queue pair serialises calls for one object.
class SharedTarget {
 public:
  using Receive = shm::ReceiveRing::Claim;
  using Range = host::RemoteRange;

  /// kOwnMemory: a fault in the receive buffers is an error of the request, since the program may have unmapped memory
  /// that is registered. The memory of other processes is a file that stays mapped.
  enum class Guard : uint8_t { kNone, kOwnMemory };
  /// `qp_index`: a queue pair that peer.queue_pairs() has. `due`: keeps the receiver's event until the sender has its
  /// own completion; null: the event is raised at once.
  SharedTarget(host::Node& node, host::PeerMemories& memories, host::Peer& peer, uint32_t qp_index, host::DueEvent* due,
               Guard guard = Guard::kNone);

  /// Returns whether the queue pair takes requests from (`from_slot`, `from_qpn`); from_qpn 0: from any sender. Cheap
  /// if nothing changed since the last call.
  bool ready(uint32_t from_slot, uint32_t from_qpn) {
    const uint64_t word = remote_->state.load(std::memory_order_acquire);
    if (__builtin_expect(word == accepted_ && peer_.alive(), 1)) return true;
    return revalidate(from_slot, from_qpn);
  }

  /// True after a failed ready() if this process has no address space for the queue pair's receive ring or completion
  /// ring.
  bool lacks_memory() const { return lacks_memory_; }

  host::Peer& peer() const { return peer_; }
  shm::QpShared& remote() const { return *remote_; }

  // Responder calls these, in this order.

  /// XRC: selects the receive queue that a request names; it may belong to another process of the same domain. Never
  /// waits.
  Selection select(uint32_t srqn) { return __builtin_expect(!xrc_, 1) ? Selection::kYes : select_domain_queue(srqn); }
  /// Checks a remote key and the queue pair's own rights for an inbound request. Returns false if the access is
  /// refused. `length` is not 0.
  [[gnu::always_inline]] bool resolve(uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights,
                                      host::RemoteRange* range) {
    if (__builtin_expect((remote_->access.load(std::memory_order_relaxed) & rights) != rights, 0)) return false;
    // XRC: the request names a shared receive queue, whose domain and process hold the key (IBTA A14.5).
    if (__builtin_expect(xrc_, 0)) return resolve_in_domain(rkey, address, length, rights, range);
    return remote_keys_.resolve(rkey, address, length, rights, remote_->pd, remote_->qp_num, range);
  }
  /// Checks the key and the queue pair's rights for a FLUSH (IBTA A19).
  [[gnu::cold]] bool may_flush(const FlushPart& part);
  /// Returns kSuccess; kRemOpErr: the memory is not accessible; kRetryExcErr: the process died; kNotServedYet: the
  /// memory's owner has to copy and has not done so.
  ///
  /// After kNotServedYet the same call, made again, continues. The call returns it at once with kOwnMemory and on the
  /// service thread, otherwise after the time of set_wait().
  WcStatus write(const host::RemoteRange& range, const Piece* pieces, uint32_t count) {
    return host::write_remote(call_, memory(), range, pieces, count);
  }
  /// resolve() never waits for another process.
  static constexpr bool resolves_later() { return false; }
  /// Returns the address after the first `length` bytes of the range; null: this process does not map the memory.
  static const std::byte* behind(const host::RemoteRange& range, uint64_t length) {
    return range.direct == nullptr ? nullptr : range.direct + length;
  }
  WcStatus read(const host::RemoteRange& range, const Piece* pieces, uint32_t count) {
    return host::read_remote(read_call_, memory(), range, pieces, count);
  }
  /// `operand` holds the compare, add or new value and receives the value found. Returns as write(), and kRemAccessErr
  /// if the key does not allow access to the word; kRemInvReqErr if the processor cannot access the word atomically.
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
    // The accesses of the next request come after it.
    base::fence_after_update();
    return WcStatus::kSuccess;
  }
  /// The number of READs and atomics that the queue pair takes at a time.
  uint32_t read_depth() const { return remote_->read_depth.load(std::memory_order_relaxed); }

  /// Takes the oldest receive. Empty: none is posted, or the queue pair has stopped taking requests. The result is
  /// written in place: copying it in wider words would wait for earlier stores to the peer's cache lines.
  void take(Receive* receive);
  Receive take() {
    Receive receive;
    take(&receive);
    return receive;
  }
  void put_back(const Receive& receive) { side_->ring.put_back(receive); }
  static uint64_t room(const Receive& receive) { return receive.room(); }
  /// Copies `pieces`, `length` bytes in all, to `offset` of the receive's buffers. *behind, unless `behind` is null, is
  /// set to the address in this process where the copy ended, or to null if that is not known. Returns kSuccess;
  /// kRemOpErr if the receiver's own list is at fault; kRetryExcErr if it died; kNotServedYet as write(). Only the
  /// bytes that are written are checked: a list may be longer than its region.
  WcStatus place(const Receive& receive, uint64_t offset, const Piece* pieces, uint32_t count, uint64_t length,
                 const std::byte** behind);
  void complete(const Receive& receive, const Inbound& message, WcStatus status);
  /// Drops the receive of a process that died and will not read its completion.
  static void abandon(const Receive& receive) { shm::ReceiveRing::finish(receive); }

  /// Invalidates a type 2 window. Returns false if `rkey` is no key of such a window.
  bool invalidate(uint32_t rkey);
  /// Puts the queue pair into the error state. Its owner gets the event if there is one: a fault that a receive's
  /// completion shows has no event (IBTA 9.9.3, classes B and C).
  void fail(std::optional<EventType> event);

  // These functions are for some users only.

  /// Sets how long a call waits for a memory owner that has to copy. Default: 2 ms.
  void set_wait(int64_t ns) {
    call_.set_wait(ns);
    read_call_.set_wait(ns);
  }
  /// True if a call returned kNotServedYet and has to be repeated.
  bool awaits_owner() const { return call_.is_waiting() || read_call_.is_waiting(); }
  /// Returns whether a memory owner has done a step since the last call of this function.
  bool owner_got_on() {
    const bool wrote = call_.got_on();
    return read_call_.got_on() || wrote;
  }
  /// Gives up a call that returned kNotServedYet and will not be repeated.
  [[gnu::cold]] void forget_calls() {
    call_.forget();
    read_call_.forget();
  }
  /// The queue pair's life that ready() found last; a RESET begins another one.
  uint64_t epoch() const { return epoch_; }
  /// Returns whether the queue whose selected() was `queue` still exists.
  bool stands(uint64_t queue) const;
  /// The ring of the queue that is selected now.
  const shm::ReceiveRing& ring() const { return side_->ring; }
  /// Marks that a sender waits for a receive to be posted.
  void note_waiting() { remote_->sender_waits.store(1, std::memory_order_seq_cst); }
  /// Keeps the mapping of a range that resolve() has just found with this key. Null: the peer is this process.
  std::shared_ptr<host::MappedRegion> region_of(uint32_t rkey) const {
    return (xrc_ ? side_->keys : remote_keys_).region_of(rkey);
  }
  /// The memory in which resolve() found the range.
  host::PeerMemory& memory() { return xrc_ ? side_->keys.memory() : remote_keys_.memory(); }
  /// XRC: identifies the selected queue. If the value differs from before, the queue of a receive taken earlier was
  /// removed, even if a queue has the same number again.
  uint64_t selected() const { return side_->life; }
  /// Returns whether a receive that was taken in an earlier call, from the queue that is selected now, still belongs to
  /// this process.
  bool holds(const Receive& receive) const { return shm::ReceiveRing::is_claimed(receive, tag_); }

 private:
  /// The source of receives and the destination of their completions.
  struct Side {
    explicit Side(std::shared_ptr<host::PeerMemory> memory) : keys(std::move(memory)) {}
    shm::ReceiveRing ring;
    uint32_t srq_index = 0;  ///< index plus 1; 0: the queue pair's own receive queue
    uint32_t srq_number = 0;
    host::KeyCache keys;  ///< cached lkeys of the receiver's buffers
    host::CompletionPort completions;
    std::optional<DomainQueue> queue;  ///< XRC only
    uint64_t life = 0;
  };

  bool revalidate(uint32_t from_slot, uint32_t from_qpn);
  /// resolve() for XRC.
  bool resolve_in_domain(uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights, host::RemoteRange* range);
  Selection select_domain_queue(uint32_t srqn);
  /// This process cannot access the word atomically, so the word's owner executes the operation.
  [[gnu::cold]] WcStatus atomic_by_owner(AtomicOp op, const host::RemoteRange& range, uint64_t* operand, uint64_t swap);
  /// The state changed while a receive was claimed: gives the receive back if the queue pair does not take it any more.
  [[gnu::cold]] void check_state_of(Receive* receive, uint64_t word);
  void signal_limit();
  [[gnu::noinline]] WcStatus place_slowly(const Receive& receive, uint64_t offset, const Piece* pieces, uint32_t count,
                                          uint64_t length, const std::byte** behind);
  WcStatus copy(const host::RemoteRange& range, const Piece& piece);
  WcStatus scatter(const Receive& receive, uint64_t offset, const Piece* pieces, uint64_t length,
                   const std::byte** behind);

  // The members that each request reads come first, in one cache line; the keys follow.
  uint64_t accepted_ = ~uint64_t{0};
  shm::QpShared* remote_;
  host::Peer& peer_;
  Side* side_ = &own_side_;
  uint32_t qp_index_;
  uint32_t tag_;  ///< marks this process's claims
  bool xrc_ = false;
  bool lacks_memory_ = false;
  bool alone_ = false;  ///< no other sender claims from its receive queue
  const Guard guard_;
  host::DueEvent* due_;
  host::KeyCache remote_keys_;  ///< cached rkeys of requests
  Side own_side_;
  host::Node& node_;
  host::PeerMemories& memories_;
  uint64_t epoch_ = 0;
  host::AgentCall call_;
  host::AgentCall read_call_;  ///< separate, because answers to READs are made between the parts of a message
  std::unordered_map<uint32_t, std::unique_ptr<Side>> domain_sides_;  ///< XRC: by number
  uint64_t lives_ = 0;
};

inline void SharedTarget::take(Receive* receive) {
  receive->slot = nullptr;
  if (__builtin_expect(!side_->ring.valid(), 0)) return;
  *receive = side_->ring.claim(tag_, alone_);
  if (__builtin_expect(!*receive, 0)) return;
  receive->slot->claim_qp.store(qp_index_ + 1, std::memory_order_relaxed);
  // The owner may have left this state between ready() and the claim. It looks for claims after it has changed the
  // state. Both sides use a full barrier, so at least one of them sees the other's change.
  const uint64_t word = remote_->state.load(std::memory_order_seq_cst);
  if (__builtin_expect(word != accepted_, 0)) {
    check_state_of(receive, word);
    if (!*receive) return;
  }
  if (__builtin_expect(side_->srq_index != 0, 0)) signal_limit();
}

inline WcStatus SharedTarget::place(const Receive& receive, uint64_t offset, const Piece* pieces, uint32_t count,
                                    uint64_t length, const std::byte** behind) {
  const Sge first = receive.entry(0);
  host::RemoteRange range;
  if (__builtin_expect(offset != 0 || receive.entries == 0 || first.length < length || length == 0 ||
                           behind != nullptr || guard_ == Guard::kOwnMemory,
                       0))
    return place_slowly(receive, offset, pieces, count, length, behind);
  if (__builtin_expect(!side_->keys.resolve(first.lkey, first.addr, length, access::kLocalWrite,
                                            side_->ring.shared()->pd, 0, &range),
                       0))
    return WcStatus::kRemOpErr;
  return host::write_remote(call_, side_->keys.memory(), range, pieces, count);
}

inline void SharedTarget::complete(const Receive& receive, const Inbound& message, WcStatus status) {
  const shm::RecvSlot& slot = *receive.slot;
  shm::CqEntry entry;
  entry.wr_id = slot.wr_id;
  entry.byte_len = message.byte_len;
  entry.imm_data = message.imm_data;
  entry.qp_num = remote_->qp_num;
  entry.src_qp = message.src_qp;
  entry.srq_number = side_->srq_number;
  entry.status = static_cast<uint8_t>(status);
  entry.opcode = static_cast<uint8_t>(message.opcode);
  entry.wc_flags = static_cast<uint8_t>(message.wc_flags);
  entry.solicited = message.solicited;
  entry.sl = message.sl;
  entry.slid = message.slid;
  const auto pushed = side_->completions.push(tag_, &receive.slot->completion,
                                              message.solicited || status != WcStatus::kSuccess, entry, due_);
  shm::ReceiveRing::finish(receive);
  if (__builtin_expect(pushed == host::CompletionPort::Pushed::kLost, 0)) fail(EventType::kQpFatal);
  // The next message needs the next receive: prefetch it while no thread waits.
  base::prefetch_for_write(&side_->ring.slot(receive.position + 1));
}

}  // namespace nupa::core
