#pragma once
#include <optional>

#include "transport/window/domain_queue.h"

namespace nupa::window {

/// What the receiving side is told of one message.
struct Message {
  WcOpcode opcode = WcOpcode::kRecv;
  uint32_t imm_data = 0;
  uint32_t wc_flags = 0;
  uint32_t byte_len = 0;
  uint32_t src_qp = 0;
  uint8_t sl = 0;
  uint16_t slid = 0;
  bool solicited = false;
};

/// A queue pair of a peer as an initiator sees it: it plays the responder's part of the specification on the peer's
/// own shared objects. Calls are serialised by the initiator's send lock.
class Target {
 public:
  /// `due`: what the receiver's event is left to.
  Target(cm::Node& node, const std::shared_ptr<PeerMemory>& memory, uint32_t qp_index, cm::DueEvent& due);

  /// Looks whether the queue pair takes requests from (`from_slot`, `from_qpn`); from_qpn 0: datagrams from anybody.
  /// True if it does. Cheap when nothing changed since the last time.
  bool ready(uint32_t from_slot, uint32_t from_qpn) {
    const uint64_t word = remote_->state.load(std::memory_order_acquire);
    if (__builtin_expect(word == accepted_ && peer_.alive(), 1)) return true;
    return revalidate(from_slot, from_qpn);
  }

  cm::Peer& peer() const { return peer_; }
  segment::QpShared& remote() const { return *remote_; }

  /// Takes a receive from the queue pair's own queue, or from `srq` if given. Empty: none posted (RNR), or the queue
  /// pair stopped taking requests meanwhile.
  segment::ReceiveRing::Claim claim();
  void put_back(const segment::ReceiveRing::Claim& claim) { recv_.put_back(claim); }

  /// Copies `pieces` into the claimed receive's buffers and completes it. kSuccess, or what the requester reports.
  WcStatus deliver(const segment::ReceiveRing::Claim& claim, const core::Piece* pieces, uint32_t count, uint64_t length,
                   const Message& message);
  /// Completes the claimed receive without data (RDMA WRITE with immediate).
  void complete(const segment::ReceiveRing::Claim& claim, const Message& message, WcStatus status);

  /// Checks a remote key for an inbound request of this queue pair (its own rights too). Empty: refused.
  bool resolve(uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights, RemoteRange* range) {
    if (__builtin_expect((remote_->access.load(std::memory_order_relaxed) & rights) != rights, 0)) return false;
    // XRC: the request names a shared receive queue, and its domain and process answer (IBTA A14.5).
    if (__builtin_expect(xrc_, 0))
      return recv_.valid() &&
             buffer_keys_.resolve(rkey, address, length, rights, recv_.shared()->pd, remote_->qp_num, range);
    return remote_keys_.resolve(rkey, address, length, rights, remote_->pd, remote_->qp_num, range);
  }
  /// What holds the mapping of a range that was resolved by this key just now; null: the peer is this process.
  std::shared_ptr<MappedRegion> region_of(uint32_t rkey) const {
    return (xrc_ ? buffer_keys_ : remote_keys_).region_of(rkey);
  }
  /// Invalidates a type 2 window for SEND_WITH_INV. False: the key is not such a window's.
  bool invalidate(uint32_t rkey);

  /// The responder fails: its queue pair goes to the error state, and its owner gets the event if there is one: a fault
  /// that a receive's completion tells has none (IBTA 9.9.3, classes B and C).
  void fail(std::optional<EventType> event);
  /// Marks that a sender waits for a receive to be posted.
  void note_waiting() { remote_->sender_waits.store(1, std::memory_order_seq_cst); }

  /// XRC: lets the next claims come from shared receive queue `number` of the same domain, which may be another
  /// process's. False: there is none. Before each request.
  bool select_srq(uint32_t number, uint64_t xrcd);

  /// Where resolve() found the range.
  PeerMemory& memory() { return xrc_ ? buffer_keys_.memory() : *memory_; }

 private:
  bool revalidate(uint32_t from_slot, uint32_t from_qpn);
  WcStatus scatter(const segment::ReceiveRing::Claim& claim, const core::Piece* pieces, uint32_t count,
                   uint64_t length);

  // What each request looks at stands first, in one cache line; behind it what keys open.
  uint64_t accepted_ = ~uint64_t{0};
  segment::QpShared* remote_;
  cm::Peer& peer_;
  std::shared_ptr<PeerMemory> memory_;
  uint32_t qp_index_;
  uint32_t tag_;            ///< this process's signature on claims
  uint32_t srq_index_ = 0;  ///< plus 1
  uint32_t srq_number_ = 0;
  bool xrc_ = false;
  bool alone_ = false;    ///< nobody else claims from its receive queue
  KeyCache remote_keys_;  ///< rkeys of requests
  KeyCache buffer_keys_;  ///< lkeys of the receiver's buffers
  segment::ReceiveRing recv_;
  cm::CompletionPort completions_;
  cm::Node& node_;
  cm::DueEvent& due_;
  std::optional<DomainQueue> domain_queue_;  ///< XRC: that `recv_` is of
};

}  // namespace nupa::window
