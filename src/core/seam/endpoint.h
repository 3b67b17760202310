// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Endpoints carry the requests of queue pairs to their peers: a transport's half of the seam.

#include <nupa/queue_pair.h>
#include <nupa/result.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string_view>

#include "host/completion_port.h"
#include "core/seam/request.h"

namespace nupa::core {

/// Carries the requests of one queue pair. All calls are made with the queue pair's send lock held, by any thread,
/// unless a function says otherwise. No call waits longer than microseconds.
///
/// Requests end in the order of post() (IBTA 10.8.5). After a request that ended with a status other than kSuccess and
/// kWrFlushErr the endpoint completes all behind it with kWrFlushErr, in order, before it returns from the call in
/// which it reported that; the core calls flush() for this when post() returned the status.
class Endpoint {
 public:
  struct Traits {
    bool batches = false;         ///< send() has work after a run of post() calls
    bool copies_in_post = false;  ///< post() has copied the data when it returns: inline data may have any length
  };

  explicit Endpoint(const Traits& traits) : traits_(traits) {}
  virtual ~Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  /// Takes one checked request. Not called in RESET, INIT, RTR, SQE and ERR: the core flushes there itself. Called in
  /// SQD: the request waits for pause(false). BIND_MW and LOCAL_INV come here too: QpContext::run_local() runs them in
  /// their turn.
  virtual Posted post(const Request& request) = 0;
  /// A run of post() calls is over. Called only if traits().batches.
  virtual void send() {}
  /// The queue pair goes to RTS, from RTR or SQE. `sq_psn`: the number of its first packet, 24 bits; not looked at
  /// where it was in RTS before.
  virtual void start(uint32_t sq_psn) = 0;
  /// Timeout, retry counts and depths of `attr` hold from now on. They are in the specification's codes.
  virtual void set_attributes(const QpAttr& attr) = 0;
  /// SQD: true holds back what has not begun, false lets it go.
  virtual void pause(bool paused) = 0;
  /// While paused: nothing that had begun is left. The core may ask within complete_send().
  virtual bool drained() const = 0;
  /// Completes all that was taken with kWrFlushErr, in order, before it returns.
  virtual void flush() = 0;
  /// ERR and RESET: as flush(), and nothing is received any more; a receive that was being filled is completed as
  /// flushed.
  virtual void stop() { flush(); }
  /// Without the send lock, once, before destruction: no thread of the transport touches the endpoint after this.
  virtual void withdraw() {}

  /// Goes on with requests that wait. Called after QpContext::wake_at(), by the service thread or by a thread that
  /// polls the completion queue of the sends. Returns when it wants the next call (CLOCK_MONOTONIC, ns); INT64_MAX: at
  /// the next wake_at().
  virtual int64_t progress([[maybe_unused]] int64_t now_ns) { return INT64_MAX; }
  /// The service thread has seen a process of this host end. An endpoint that leads to it ends its oldest request, if
  /// there is one, as one that was never answered: with kRetryExcErr where the service is reliable. Without a request
  /// nothing changes: the queue pair stays in its state, and the next post() finds out.
  virtual void on_process_gone([[maybe_unused]] host::Peer& process) {}
  /// The queue pair is in RTR, and on_process_gone() reaches it from now on: a process that has ended before is seen
  /// here.
  virtual void entered_rtr() {}
  /// As QueuePair::map_remote().
  virtual Result<std::shared_ptr<std::byte>> map_remote([[maybe_unused]] uint32_t rkey,
                                                        [[maybe_unused]] uint64_t address,
                                                        [[maybe_unused]] uint64_t length,
                                                        [[maybe_unused]] uint32_t rights) {
    return fail(ENOTSUP, "the transport maps nothing");
  }
  /// The transport's name, at most eight characters. UD: of the first that is used. Any thread.
  virtual std::string_view name() const = 0;

  /// Constant. Any thread.
  const Traits& traits() const { return traits_; }

  /// An event of the receiver that is raised once the sender's own completion is written. The core raises it after
  /// post(); an endpoint raises it after each complete_send() of its own.
  host::DueEvent due;

 private:
  const Traits traits_;
};

/// Sends the datagrams of one UD queue pair by one transport. Calls are made with the queue pair's send lock held.
class DatagramSender {
 public:
  enum class Reach : uint8_t {
    kYes,     ///< the destination is this transport's
    kNotYet,  ///< it may be: its process was asked, and has not answered yet
    kNo,
  };
  virtual ~DatagramSender() = default;

  /// Whether the destination is this transport's. Never waits. After kNotYet the caller asks again soon; a process that
  /// does not answer for 100 ms counts as kNo until it does.
  virtual Reach leads_to(const AddressVector& vector, uint32_t qp_num) = 0;
  /// Sends a request without a fault to its destination, which may be a multicast group. Never waits. kSuccess also
  /// where nobody receives it; else a fault of this end. The data has been copied when it returns. Empty: it cannot be
  /// sent yet, since a process does not answer or a socket is full, and nothing was sent; the caller calls again soon.
  virtual std::optional<WcStatus> send(const Request& request) = 0;
  /// The service thread has seen a process of this host end: what is known of it is to be forgotten.
  virtual void on_process_gone([[maybe_unused]] const host::Peer& process) {}
  /// As Endpoint::withdraw().
  virtual void withdraw() {}
};

}  // namespace nupa::core
