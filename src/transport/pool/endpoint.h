// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>

#include "core/seam/endpoint.h"
#include "transport/pool/engine.h"
#include "transport/pool/requester.h"
#include "transport/pool/responder.h"
#include "transport/pool/statistics.h"

namespace nupa::pool {

/// The endpoint of an RC, UC or XRC queue pair.
class ConnectedEndpoint final : public core::Endpoint, public Receiver {
 public:
  /// `attr`: as given in the transition to RTR. `link`: null: the peer's process was not found yet.
  ConnectedEndpoint(Engine& engine, core::QpContext& context, const QpAttr& attr, std::shared_ptr<Link> link);

  core::Posted post(const core::Request& request) override {
    if (!requester_) return core::Posted::done(WcStatus::kLocQpOpErr);
    requester_->post(request);
    return core::Posted::taken();
  }
  void send() override;
  void start(uint32_t sq_psn) override;
  void set_attributes(const QpAttr& attr) override;
  void pause(bool paused) override;
  bool drained() const override { return !requester_ || requester_->drained(); }
  void flush() override;
  void stop() override;
  void await_peer() override { engine_.take_back({.rkey = 0, .qp_num = number()}); }
  void withdraw() override {
    await_peer();
    engine_.remove(*this);
  }
  void answer() override;
  bool awaits_receive() const override { return requester_ && requester_->awaits_receive(); }
  std::string_view name() const override { return kTransportName; }

  // Receiver
  uint32_t number() const override { return context_.number(); }
  bool enter() override { return context_.try_enter(); }
  void leave() override { context_.leave(); }
  bool deliver(const Record& record, const Payload& payload, Link& link, TurnClock& clock) override;
  void answered(const Answer& answer, Link& link, int64_t now) override;
  void transmit(int64_t now) override;
  void on_timer(int64_t now) override;
  std::shared_ptr<Link> resolve() override { return engine_.link_to(vector_, remote_qpn_); }
  void resolved(std::shared_ptr<Link> link, int64_t now) override;
  void not_answered(Link& link, int64_t now) override;
  void peer_failed(Link& link, bool garbage, int64_t now) override;
  std::shared_ptr<Link> link() const override { return link_; }

 private:
  /// True if the queue pair's state accepts requests.
  bool receives() const;
  /// Takes a grant, or gives one back. Returns false if the peer is to be answered that it is returned.
  bool take_grant(const Record& record, const Link& link);
  /// Grants the region of this key to the requester, if it lies in the pool.
  void grant(Link& link, uint32_t rkey);
  /// write() has work, or has to find that the link is lost.
  bool has_to_write() const;
  /// Writes responses and requests while there is room.
  void write();
  /// A record to the peer has carried the acknowledgement.
  void drop_plain_answer();
  /// Publishes the answer that is due, and sets the deadline.
  void settle(TurnClock& clock);
  void settle(int64_t now) {
    TurnClock clock(now);
    settle(clock);
  }
  /// For `nupa stat`.
  void publish_link();
  void set_deadline(int64_t deadline);

  Engine& engine_;
  core::QpContext& context_;
  Statistics& statistics_;
  const AddressVector vector_;
  const uint32_t remote_qpn_;
  std::shared_ptr<Link> link_;  ///< changed with the send lock within a turn
  Responder responder_;
  std::optional<Requester> requester_;  ///< from RTS on
  core::RetryLimits limits_;
  uint8_t max_rd_atomic_ = 1;
  int64_t memory_at_ns_ = INT64_MAX;  ///< when a response that waits for memory is tried again
};

}  // namespace nupa::pool
