#pragma once
#include <memory>
#include <vector>

#include "transport/roce/protocol/host.h"
#include "transport/roce/protocol/sequence.h"
#include "core/seam/request.h"

namespace nupa::roce {

/// A request in the queue, with all that it names copied.
struct Request {
  SendWr wr;              ///< its list is the queue's own copy
  uint32_t position = 0;  ///< the core's count of the send queue
  uint64_t length = 0;    ///< bytes of the message
  Seq first = 0;          ///< of its packets: for READ, of the responses
  uint32_t packets = 0;   ///< 0: it runs here (BIND_MW, LOCAL_INV), or it is at fault
  bool done = false;      ///< of those that run here
  /// It is at fault at this end, and ends with this status in its turn.
  WcStatus fault = WcStatus::kSuccess;
  bool answered() const {  ///< by packets of its own, not by acknowledgements
    return wr.opcode == Opcode::kRdmaRead || is_atomic();
  }
  bool is_atomic() const { return core::is_atomic(wr.opcode); }
  Seq end() const { return first + packets; }
};

/// The requests from the oldest that is not complete, in a ring whose memory is taken once. Sequence numbers are given
/// out when a request is posted, since its packets are known then.
class SendQueue {
 public:
  /// At least `max_wr` requests of `max_sge` entries and `max_inline` bytes each; packets start at `first`.
  SendQueue(uint32_t max_wr, uint32_t max_sge, uint32_t max_inline, uint32_t mtu, Seq first);

  bool full() const { return tail_ - head_ == requests_.size(); }
  bool empty() const { return head_ == tail_; }
  uint32_t head() const { return head_; }
  uint32_t tail() const { return tail_; }
  Request& at(uint32_t index) { return requests_[index & mask_]; }
  const Request& at(uint32_t index) const { return requests_[index & mask_]; }
  /// The number that the next request's packets start with.
  Seq end() const { return end_; }

  /// Appends a copy. The queue is not full, the request fits what the queue was made for. `fault`: of the request,
  /// which then has no packets.
  Request& push(const SendWr& wr, uint32_t position, WcStatus fault = WcStatus::kSuccess);
  void pop() { ++head_; }
  /// The request that sequence number `seq` belongs to; seq lies in [at(head()).first, end()).
  uint32_t find(Seq seq) const;

  /// The bytes [offset, offset + length) of a request's message. Returns how many fragments, 0 with length > 0: a key
  /// does not hold. `out`: room for max_sge.
  uint32_t gather(const Request& request, Host& host, uint64_t offset, uint32_t length, Fragment* out) const;
  /// Brings bytes to a request's buffers; *behind: where they end, null if not in memory. False: a key does not hold.
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
