// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Requests that an endpoint could not finish in post(), and the limits of their waiting time.

#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "core/seam/qp_context.h"
#include "core/seam/request.h"
#include "core/seam/timers.h"

namespace nupa::core {

/// A copy of a request that outlives the caller's lists.
struct DeferredSend {
  enum class Reason : uint8_t {
    kOrder,     ///< an older request is before it, or the send queue is paused
    kNotReady,  ///< the receiver has no receive posted (RNR)
    kNoAnswer,  ///< the peer cannot be reached, or does not take requests yet
    kCopying,   ///< a copy engine copies its data: no retry limit applies
  };
  /// True if it was tried: the send queue drains when this request has ended (IBTA 10.3.1.5).
  bool begun() const { return first_try_ns != 0; }

  SendWr wr;
  std::vector<Sge> list;
  std::vector<std::byte> inline_data;
  AddressVector vector;
  bool has_vector = false;
  uint32_t position = 0;
  WcStatus fault = WcStatus::kSuccess;
  Reason reason = Reason::kOrder;
  uint32_t rnr_timer = 0;    ///< kNotReady: the timer code of the receiver (IBTA table 45)
  int64_t first_try_ns = 0;  ///< time of the first failure for this reason (CLOCK_MONOTONIC); 0: not tried yet
};

/// The requests of one queue pair that wait, in order of posting. Calls are made with its send lock held.
class DeferredSends {
 public:
  bool empty() const { return waiting_.empty(); }
  DeferredSend& front() { return *waiting_.front(); }
  const DeferredSend& front() const { return *waiting_.front(); }

  /// Appends a copy. Returns null if there is no memory.
  DeferredSend* keep(const Request& request);
  /// Completes the oldest request. `length`: bytes of the message.
  void end_front(QpContext& context, WcStatus status, uint64_t length);
  void drop_last() { waiting_.pop_back(); }
  /// Completes all requests with kWrFlushErr, in order.
  void flush(QpContext& context);

  /// Calls `execute(const Request&)` with the oldest request and returns its result. If the request has a fault, or one
  /// of its keys was revoked since post(), returns `fault(status)` instead; the overload without `fault` returns the
  /// status.
  template <class Execute, class Fault>
  auto run_front(QpContext& context, Execute&& execute, Fault&& fault) {
    const DeferredSend& oldest = front();
    Piece pieces[kMaxSge];
    uint32_t count = 0;
    uint64_t length = 0;
    if (oldest.fault != WcStatus::kSuccess) return fault(oldest.fault);
    // A local request has no data: its list has no meaning.
    if (!is_local(oldest.wr.opcode) && !translate(oldest, context, pieces, &count, &length))
      return fault(WcStatus::kLocProtErr);
    return execute(Request{oldest.wr, oldest.has_vector ? &oldest.vector : nullptr, pieces, count, length,
                           oldest.position, WcStatus::kSuccess});
  }

  template <class Execute>
  WcStatus run_front(QpContext& context, Execute&& execute) {
    return run_front(context, std::forward<Execute>(execute), [](WcStatus fault) { return fault; });
  }

  /// Records that the oldest request was tried at `now_ns` and has to wait for `reason`. Returns the time of the next
  /// try, or 0 if the retry limits are exceeded: the caller then has to end the request with *status.
  int64_t postpone(DeferredSend::Reason reason, uint32_t rnr_timer, const RetryLimits& limits, int64_t now_ns,
                   WcStatus* status);
  /// Records that a copy engine copies the data of the oldest request since `now_ns`.
  void note_copying(int64_t now_ns);

 private:
  static bool translate(const DeferredSend& send, QpContext& context, Piece* pieces, uint32_t* count, uint64_t* length);

  std::list<std::unique_ptr<DeferredSend>> waiting_;
};

}  // namespace nupa::core
