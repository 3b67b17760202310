// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>

#include "core/seam/deferred_sends.h"
#include "core/seam/endpoint.h"
#include "core/seam/responder.h"
#include "core/seam/shared_target.h"
#include "transport/shm/outcome.h"
#include "transport/shm/peers.h"

namespace nupa::shm_transport {

/// The requester's side of an RC, UC or XRC queue pair (IBTA 9.7, 9.8). Requests are executed in post(), by the calling
/// thread. CopyingEndpoint derives from it.
class Connected : public core::Endpoint {
 public:
  /// Waits at most `limit` for the peer's process to answer.
  Connected(Peers& peers, core::QpContext& context, const AddressVector& vector, uint32_t remote_qpn,
            std::chrono::milliseconds limit);
  ~Connected() override { stop_waiting(); }

  core::Posted post(const core::Request& request) override;
  void start(uint32_t sq_psn) override;
  void set_attributes(const QpAttr& attr) override;
  void pause(bool paused) override;
  bool drained() const override { return sends_.empty() || !sends_.front().begun(); }
  void flush() override;
  int64_t progress(int64_t now_ns) override;
  void on_process_exit(host::Peer& process) override;
  void entered_rtr() override;
  std::string_view name() const override { return "shm"; }
  Result<std::shared_ptr<std::byte>> map_remote(uint32_t rkey, uint64_t address, uint64_t length,
                                                uint32_t rights) override;

 protected:
  using Responder = core::Responder<core::SharedTarget>;

  /// Tries the oldest request that waits. *length: the bytes of its message.
  virtual Outcome run_oldest(uint64_t* length);
  /// Returns the time of the next try while a copy engine copies (Outcome::copying()).
  virtual int64_t next_look(int64_t now_ns) { return now_ns; }
  /// The oldest request ends, or is not tried again: an engine does not access its memory any more after this call.
  virtual void stop_copy() {}

  // For CopyingEndpoint.
  core::DeferredSends& sends() { return sends_; }
  core::SharedTarget* target() { return target_; }
  core::QpContext& context() { return context_; }
  bool is_paused() const { return paused_; }
  bool is_reliable() const { return type_ != QpType::kUc; }
  /// Keeps a request that waits behind others, or for the peer.
  [[gnu::noinline]] core::Posted keep(const core::Request& request);
  /// Tries the oldest request that waits. Returns the time of the next try, or 0 if the request has ended.
  int64_t try_oldest(int64_t now_ns);
  /// From now on a polling thread or the service thread tries the requests; neither waits for a memory owner.
  void leave_to_pollers();
  /// Executes a request in the calling thread. It may be tried again.
  Outcome execute_here(const core::Request& request);
  /// The outcome of a request whose target does not take requests now; none: it does.
  std::optional<Outcome> not_taken();
  Outcome outcome_after(core::Verdict verdict);
  /// The outcome of a request to a process that died.
  [[gnu::cold, gnu::noinline]] Outcome lost() const;
  core::Inbound inbound_of(const SendWr& wr) const;

 private:
  Outcome execute(const core::Request& request);
  /// The same for a request of any kind, and for a target that may not be ready.
  [[gnu::noinline]] Outcome execute_any(const core::Request& request);
  Outcome outcome_of(core::Verdict verdict);
  Outcome run_local(const core::Request& request);
  Outcome send_message(const core::Request& request);
  Outcome rdma_write(const core::Request& request);
  Outcome write_with_immediate(const core::Request& request);
  Outcome rdma_read(const core::Request& request);
  Outcome atomic(const core::Request& request);
  Outcome atomic_write(const core::Request& request);

  [[gnu::noinline]] core::Posted keep_tried(const core::Request& request, Outcome outcome);
  /// Tries the requests that wait, in order, until one cannot end. Returns the time of the next try.
  int64_t try_waiting(int64_t now_ns);
  /// Ends the oldest request that waits; after a failure all others end as well.
  void end_oldest(WcStatus status, uint64_t length);
  /// Returns the time of the next try of the oldest request, or 0 if it ends with *status.
  int64_t postpone(const Outcome& outcome, int64_t now_ns, WcStatus* status);
  /// Looks for the peer's process at intervals. If there is none, requests that wait end. Returns the time of the next
  /// search.
  int64_t look_for_peer(int64_t now_ns);
  bool find_target(std::chrono::milliseconds limit);
  /// The outcome of a verdict that is not accepted(). RC and XRC report it on both sides; UC reports nothing to the
  /// requester.
  [[gnu::cold, gnu::noinline]] Outcome refused(core::Verdict verdict);
  [[gnu::cold, gnu::noinline]] Outcome not_ready();
  /// The outcome of a request whose peer was not ready; none: the peer is ready by now.
  [[gnu::cold, gnu::noinline]] std::optional<Outcome> not_answering();
  // Keeps the receive of a SEND whose buffers the receive's owner has to fill (core::Verdict::not_served).
  [[gnu::cold, gnu::noinline]] void hold(const Responder::Message& message);
  /// Returns the held message for another try; empty: the receive does not belong to this process any more.
  [[gnu::cold, gnu::noinline]] Responder::Message take_held(uint32_t srqn);
  /// Called when the oldest request is not tried again: gives up the call that waits for a memory owner, and gives back
  /// the receive that the request has taken.
  [[gnu::cold, gnu::noinline]] void stop_waiting();
  /// Called after a window was invalidated: sets `copier_` if the peer is inside a post, or has a copy engine copy.
  void look_for_copier();

  // Members that each request reads.
  core::SharedTarget* target_ = nullptr;  ///< null until the peer was found
  bool paused_ = false;
  bool holds_ = false;  ///< `held_` has a message
  const QpType type_;
  const uint32_t qp_num_;
  const uint32_t own_slot_;
  core::DeferredSends sends_;
  // Members that few requests read.
  core::QpContext& context_;
  const uint32_t remote_qpn_;
  std::optional<core::SharedTarget> met_;
  Peers& peers_;
  const AddressVector vector_;
  core::RetryLimits limits_;
  const int64_t made_ns_;
  int64_t next_search_ns_ = 0;
  int search_error_ = 0;
  bool missing_ = false;  ///< the peer must be on this host, and was not found for kUnmetLimitNs
  /// The peer of an invalidated window. The oldest request invalidated the window. Only the peer has its key, and may
  /// still copy through it, because it has held its send lock since before, or its copy engine has copied since before.
  struct Copier {
    /// True while the peer may copy.
    bool copies();

    const host::Peer* peer;
    const shm::QpShared* queue_pair;
    uint32_t lock_seen;         ///< odd: the holder at the time of the invalidation
    int64_t until_ns;           ///< end of the wait, because the process may be stopped
    uint32_t copying_seen = 0;  ///< odd: the engine's copy, once that holder has released the lock
    bool is_released = false;
  };
  std::optional<Copier> copier_;
  struct Held {
    Responder::Message message;
    shm::ReceiveRing ring;
    uint64_t queue;  ///< SharedTarget::selected()
    uint64_t epoch;  ///< SharedTarget::epoch()
  };
  std::optional<Held> held_;
};

}  // namespace nupa::shm_transport
