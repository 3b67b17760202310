// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Endpoint and DatagramSender: a transport's part of one queue pair, which carries its requests to the peer.

#include <nupa/queue_pair.h>
#include <nupa/result.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string_view>

#include "host/completion_port.h"
#include "core/seam/request.h"

namespace nupa::core {

/// Carries the requests of one queue pair. Any thread may call it while it holds the queue pair's send lock, unless a
/// function states otherwise. No call waits longer than microseconds.
///
/// Requests end in the order of post() (IBTA 10.8.5). When a request ends with a status other than kSuccess and
/// kWrFlushErr, all requests behind it end with kWrFlushErr, in order. If the endpoint reported that status by
/// complete_send(), it completes them itself before the current call returns; if post() returned it, the core calls
/// flush() for this.
class Endpoint {
 public:
  struct Traits {
    bool batches = false;         ///< send() has work to do after a run of post() calls
    bool copies_in_post = false;  ///< post() copies the data before it returns, so inline data may have any length
    /// Messages do not leave the device: for its port, each message is one packet that was sent and received. The core
    /// counts them. Otherwise the transport counts packets, in QpContext::port_counts().
    bool loops_back = false;
  };

  explicit Endpoint(const Traits& traits) : traits_(traits) {}
  virtual ~Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  /// Takes one checked request. Not called in RESET, INIT, RTR, SQE and ERR, where the core flushes requests itself. In
  /// SQD the request waits for pause(false). BIND_MW and LOCAL_INV are posted here as well: the endpoint calls
  /// QpContext::run_local() when their turn comes.
  virtual Posted post(const Request& request) = 0;
  /// Called after a run of post() calls, only if traits().batches.
  virtual void send() {}
  /// The queue pair enters RTS, from RTR or SQE. `sq_psn`: the sequence number of its first packet, 24 bits; ignored if
  /// the queue pair was in RTS before.
  virtual void start(uint32_t sq_psn) = 0;
  /// Applies the timeout, retry counts, depths and access flags of `attr`, which are in the specification's codes.
  virtual void set_attributes(const QpAttr& attr) = 0;
  /// SQD: true holds back the requests that have not begun, false releases them.
  virtual void pause(bool paused) = 0;
  /// Returns true if no request that had begun is left. Called while paused, possibly within complete_send().
  virtual bool drained() const = 0;
  /// Completes all requests that it has taken, with kWrFlushErr and in order, before it returns.
  virtual void flush() = 0;
  /// ERR and RESET: does the same as flush() and ends receiving. A receive that was being filled is completed as
  /// flushed.
  virtual void stop() { flush(); }
  /// Called without the send lock after stop(), and after set_attributes() has taken rights from the peer. Returns when
  /// the peer writes no memory by the former rights any more, or does not answer for 2 s.
  virtual void await_peer() {}
  /// Called once before destruction, without the send lock. Does the same as await_peer(). No thread of the transport
  /// uses the endpoint afterwards.
  virtual void withdraw() {}

  /// Continues requests that wait. Called after QpContext::wake_at(), by the service thread or by a thread that polls
  /// the completion queue of the sends. Returns the time of the next call that the endpoint needs (CLOCK_MONOTONIC,
  /// ns), or INT64_MAX if the next wake_at() sets it.
  virtual int64_t progress([[maybe_unused]] int64_t now_ns) { return INT64_MAX; }
  /// The service thread has found that a process of this host exited. An endpoint that leads to it ends its oldest
  /// request, if there is one, like a request that was never answered. A reliable service uses kRetryExcErr. Without a
  /// request nothing changes: the queue pair stays in its state, and the next post() finds that the peer exited.
  virtual void on_process_exit([[maybe_unused]] host::Peer& process) {}
  /// The queue pair is in RTR, and on_process_exit() reaches it from now on. The endpoint checks here whether the peer
  /// exited before.
  virtual void entered_rtr() {}
  /// See QueuePair::map_remote().
  virtual Result<std::shared_ptr<std::byte>> map_remote([[maybe_unused]] uint32_t rkey,
                                                        [[maybe_unused]] uint64_t address,
                                                        [[maybe_unused]] uint64_t length,
                                                        [[maybe_unused]] uint32_t rights) {
    return fail(ENOTSUP, "the transport cannot map memory of the peer");
  }
  /// Called when the queue pair's Relay has more to report: the endpoint sends the answers that are due.
  virtual void answer() {}
  /// True if the peer answered the oldest request that it has no receive (RNR), and the endpoint waits to repeat it.
  virtual bool awaits_receive() const { return false; }
  /// The transport's name, at most eight characters. UD: the name of the first transport in use. Any thread.
  virtual std::string_view name() const = 0;

  /// Constant. Any thread.
  const Traits& traits() const { return traits_; }

  /// A completion event of the receiver. It is raised only after the sender's own completion is written: the core
  /// raises it after post(), the endpoint after each of its complete_send() calls.
  host::DueEvent due;

 private:
  const Traits traits_;
};

/// Sends the datagrams of one UD queue pair through one transport. Calls are made with the queue pair's send lock held.
class DatagramSender {
 public:
  enum class Reach : uint8_t {
    kYes,     ///< this transport reaches the destination
    kNotYet,  ///< not known yet: the destination's process was asked and has not answered
    kNo,
  };
  virtual ~DatagramSender() = default;

  /// Returns whether this transport reaches the destination. Never waits. After kNotYet the caller asks again soon. A
  /// process that does not answer for 100 ms counts as kNo until it answers.
  virtual Reach leads_to(const AddressVector& vector, uint32_t qp_num) = 0;
  /// Sends a request that has no fault to its destination, which may be a multicast group. Never waits. The data has
  /// been copied when it returns. Returns kSuccess even if no receiver gets the datagram, or the status of a local
  /// fault. Empty: nothing was sent, because a process does not answer yet or a socket is full; the caller calls again
  /// soon.
  virtual std::optional<WcStatus> send(const Request& request) = 0;
  /// The service thread has found that a process of this host exited: the sender drops all state about it.
  virtual void on_process_exit([[maybe_unused]] const host::Peer& process) {}
  /// See Endpoint::withdraw().
  virtual void withdraw() {}
};

}  // namespace nupa::core
