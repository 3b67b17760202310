// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <vector>

#include "transport/roce/protocol/host.h"
#include "transport/roce/protocol/sequence.h"
#include "core/seam/request.h"

namespace nupa::roce {

/// A request in the queue, with copies of all that it points to.
struct Request {
  SendWr wr;              ///< sg_list points to the queue's copy
  uint32_t position = 0;  ///< its number in the core's count of the send queue
  uint64_t length = 0;    ///< bytes of the message
  Seq first = 0;          ///< number of its first packet; READ: of the first response
  uint32_t packets = 0;   ///< 0: it runs locally (BIND_MW, LOCAL_INV), or has a fault
  bool done = false;      ///< used by requests that run locally
  /// If not kSuccess, the request has a local fault and completes with this status in its turn.
  WcStatus fault = WcStatus::kSuccess;
  bool answered() const {  ///< by response packets, not by acknowledgements
    return core::is_answered(wr.opcode);
  }
  bool is_atomic() const { return core::is_atomic(wr.opcode); }
  Seq end() const { return first + packets; }
};

/// The requests from the oldest incomplete one on, in a ring that is allocated once. Sequence numbers are assigned when
/// a request is posted, since the number of its packets is known then.
class SendQueue {
 public:
  /// Makes room for at least `max_wr` requests of `max_sge` entries and `max_inline` bytes each. Packets start at
  /// `first`.
  SendQueue(uint32_t max_wr, uint32_t max_sge, uint32_t max_inline, uint32_t mtu, Seq first);

  bool full() const { return tail_ - head_ == requests_.size(); }
  bool empty() const { return head_ == tail_; }
  uint32_t head() const { return head_; }
  uint32_t tail() const { return tail_; }
  Request& at(uint32_t index) { return requests_[index & mask_]; }
  const Request& at(uint32_t index) const { return requests_[index & mask_]; }
  /// The first number of the next request's packets.
  Seq end() const { return end_; }

  /// Appends a copy. The queue must not be full, and the request must fit the constructor's limits. `fault`: the fault
  /// of the request, which then has no packets.
  Request& push(const SendWr& wr, uint32_t position, WcStatus fault = WcStatus::kSuccess);
  void pop() { ++head_; }
  /// Returns the request that `seq` belongs to; `seq` lies in [at(head()).first, end()).
  uint32_t find(Seq seq) const;

  /// Finds the bytes [offset, offset + length) of a request's message. Returns the number of fragments; 0 if a key is
  /// not valid, or if `length` is 0. `out`: room for max_sge.
  uint32_t gather(const Request& request, Host& host, uint64_t offset, uint32_t length, Fragment* out) const;
  /// Copies bytes to a request's buffers. *behind: the address after them, null if they are not in memory. Returns
  /// false if a key is not valid.
  static bool scatter(const Request& request, Host& host, uint64_t offset, const std::byte* data, uint32_t length,
                      const std::byte** behind);

 private:
  std::vector<Request> requests_;
  std::unique_ptr<Sge[]> lists_;
  std::unique_ptr<std::byte[]> inlined_;
  const uint32_t mask_;
  const uint32_t max_sge_;
  const uint32_t max_inline_;
  const uint32_t mtu_;
  uint32_t head_ = 0;
  uint32_t tail_ = 0;
  Seq end_;
};

}  // namespace nupa::roce
