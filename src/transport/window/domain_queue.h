#pragma once
#include <optional>

#include "cm/completion_port.h"
#include "cm/node.h"
#include "segment/receive_ring.h"
#include "transport/window/remote_memory.h"

namespace nupa::window {

/// A receive queue as its owner shows it; not valid(): there is none.
segment::ReceiveRing open_ring(cm::Peer& owner, segment::RecvRing& ring);

/// Copies `pieces`, `length` bytes in all, to `offset` of a receive's buffers, which `keys` of domain `pd` open.
/// kSuccess; kRemOpErr: the receiver's own list is at fault; kRetryExcErr: it died.
WcStatus scatter(KeyCache& keys, const segment::ReceiveRing::Claim& claim, uint32_t pd, uint64_t offset,
                 const core::Piece* pieces, uint64_t length);

/// A shared receive queue of an XRC domain.
struct DomainQueue {
  /// Whether it is still there. What this says holds until the send lock is let go for which an owner waits who frees
  /// the queue.
  bool stands() const;

  cm::Peer* owner;  ///< this process or another one of its host and user
  segment::SrqShared* shared;
  uint32_t index;
  uint32_t number;
  uint64_t where;  ///< of its ring
};
/// The queue `number` of domain `xrcd` (IBTA A14); empty: there is none.
std::optional<DomainQueue> find_domain_queue(cm::Node& node, uint32_t number, uint64_t xrcd);

/// A shared receive queue of an XRC domain as a transport sees it that delivers to it packet by packet. Calls come with
/// the send lock of the queue pair held; a message takes many.
class DomainReceiver {
 public:
  using Claim = segment::ReceiveRing::Claim;

  DomainReceiver(const DomainQueue& queue, std::shared_ptr<PeerMemory> memory, uint32_t tag);

  bool stands() const { return ring_.valid() && queue_.stands(); }
  /// Whether what was claimed in an earlier call is still this process's to fill.
  bool holds(const Claim& claim) const;

  /// Empty: none is posted.
  Claim claim(uint32_t qp_index);
  void put_back(const Claim& claim) { ring_.put_back(claim); }
  bool place(const Claim& claim, uint64_t offset, const std::byte* data, uint32_t length);
  cm::CompletionPort::Pushed complete(const Claim& claim, bool solicited, segment::CqEntry& entry);

  /// Where memory that a request names lies here. False: its key refuses it. `range`.direct null: it is reached by
  /// memory() only.
  bool resolve(uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights, uint32_t qp_num, RemoteRange* range) {
    return keys_.resolve(rkey, address, length, rights, ring_.shared()->pd, qp_num, range);
  }
  PeerMemory& memory() { return keys_.memory(); }

 private:
  DomainQueue queue_;
  uint32_t tag_;
  KeyCache keys_;
  segment::ReceiveRing ring_;
  cm::CompletionPort completions_;
};

}  // namespace nupa::window
