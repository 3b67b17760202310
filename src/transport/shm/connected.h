#pragma once
#include <optional>

#include "core/seam/deferred_sends.h"
#include "core/seam/endpoint.h"
#include "core/seam/responder.h"
#include "core/seam/shared_target.h"
#include "transport/shm/outcome.h"
#include "transport/shm/peers.h"

namespace nupa::shm_transport {

/// The initiator's side of an RC, UC or XRC queue pair (IBTA 9.7, 9.8).
class Connected final : public core::Endpoint {
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
  void on_process_gone(host::Peer& process) override;
  void entered_rtr() override;
  std::string_view name() const override { return "shm"; }
  Result<std::shared_ptr<std::byte>> map_remote(uint32_t rkey, uint64_t address, uint64_t length,
                                                uint32_t rights) override;

 private:
  using Responder = core::Responder<core::SharedTarget>;

  Outcome execute(const core::Request& request);
  Outcome run_local(const core::Request& request);
  Outcome send(const core::Request& request);
  Outcome rdma_write(const core::Request& request);
  Outcome rdma_read(const core::Request& request);
  Outcome atomic(const core::Request& request);
  Outcome atomic_write(const core::Request& request);

  /// The request waits behind others, or for the peer.
  [[gnu::noinline]] core::Posted keep(const core::Request& request);
  [[gnu::noinline]] core::Posted keep_tried(const core::Request& request, Outcome outcome);
  /// Tries the requests that wait, as long as one ends. Returns when to try again.
  int64_t try_waiting(int64_t now_ns);
  /// Tries the oldest request that waits. Returns when to try again; 0: it has ended.
  int64_t try_oldest(int64_t now_ns);
  /// Ends the oldest request that waits; after a failure all others as well.
  void end_oldest(WcStatus status, uint64_t length);
  /// When the oldest request is to be tried again; 0: it ends with *status.
  int64_t postpone(const Outcome& outcome, int64_t now_ns, WcStatus* status);
  /// Looks for the peer's process at times; requests that wait end if there is none. Returns when to look again.
  int64_t look_for_peer(int64_t now_ns);
  bool find_target(std::chrono::milliseconds limit);
  bool is_reliable() const { return type_ != QpType::kUc; }
  Outcome outcome_of(core::Verdict verdict);
  /// Of a verdict that is not accepted(): RC and XRC report it on both sides, to UC nothing comes back.
  [[gnu::cold]] Outcome refused(core::Verdict verdict);
  [[gnu::cold]] Outcome not_ready();
  /// What a request ends with that finds no peer ready for it; none: it is ready by now.
  [[gnu::cold]] std::optional<Outcome> not_answering();
  /// Of a request to a process that is gone.
  [[gnu::cold]] Outcome lost() const;
  core::Inbound inbound_of(const core::Request& request) const;
  // A SEND whose receive's buffers their owner has to fill (core::Verdict::not_served) keeps the receive.
  [[gnu::cold]] void hold(const Responder::Message& message);
  /// The message that is held, for another try; empty: the receive is not this process's any more.
  [[gnu::cold]] Responder::Message take_held(uint32_t srqn);
  /// The oldest request is not tried again: what it waits for is given up, the receive it has taken given back.
  [[gnu::cold]] void stop_waiting();
  /// After a window was invalidated: sets `copier_` if the peer is inside a post.
  void look_for_copier();

  // Members that each request reads.
  core::SharedTarget* target_ = nullptr;  ///< once it was met
  bool paused_ = false;
  bool holds_ = false;  ///< `held_` has a message
  const QpType type_;
  const uint32_t qp_num_;
  const uint32_t own_slot_;
  core::DeferredSends sends_;
  // Members that only some read.
  core::QpContext& context_;
  const uint32_t remote_qpn_;
  std::optional<core::SharedTarget> met_;
  Peers& peers_;
  const AddressVector vector_;
  core::RetryLimits limits_;
  const int64_t made_ns_;
  int64_t next_search_ns_ = 0;
  int search_error_ = 0;
  bool missing_ = false;  ///< the peer must be on this host, and was not found for long
  /// The oldest request invalidated a window, and the peer, which alone has its key, may still be copying through it:
  /// it holds its send lock since before.
  struct Copier {
    const host::Peer* peer;
    const std::atomic<uint32_t>* lock;
    uint32_t seen;
    int64_t until_ns;  ///< a process that is stopped is not waited for any longer
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
