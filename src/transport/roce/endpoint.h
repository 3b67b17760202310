// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <optional>

#include "core/seam/endpoint.h"
#include "progress/deadline.h"
#include "progress/pauses.h"
#include "transport/roce/protocol/connection.h"
#include "transport/roce/handshake.h"
#include "transport/roce/port/port.h"
#include "transport/roce/statistics.h"

namespace nupa::roce {

/// A queue pair of this transport, and the addresses that its packets leave from.
struct LocalEnd {
  core::QpContext* context = nullptr;
  std::vector<Rail> rails;        ///< for connections; the first has the address that the program chose
  uint32_t max_datagram = 0;      ///< UD: largest message in bytes, which is one packet
  bool only_other_hosts = false;  ///< UD: another transport delivers multicasts to the processes of this host
};

struct WireSettings {
  bool standard = false;  ///< standard packets only; every peer is at port 4791
  std::string_view congestion = "tolerant";
  uint32_t source_ports = 1;  ///< number of UDP ports that packets leave from
  bool unchecked = false;     ///< no invariant CRC if the peer omits it, too
};

/// The common part of both kinds of endpoint, as the port sees them.
class EndpointReceiver : public QpReceiver {
 public:
  EndpointReceiver(Port& port, const LocalEnd& end)
      : port_(port), end_(end), context_(*end.context), statistics_(Statistics::take(end.context->statistics())) {}
  uint32_t number() const override { return context_.number(); }
  bool enter() override { return context_.try_enter(); }
  void leave() override { context_.leave(); }
  int64_t deadline() const override { return deadline_.at(); }
  void count_unexpected() override {
    statistics_.unexpected_packets.fetch_add(1, std::memory_order_relaxed);
    counts().add(shm::PortCount::kRcvErrors, 1);
  }

 protected:
  void set_deadline(int64_t deadline) {
    deadline_.set(deadline);
    if (deadline != INT64_MAX) port_.expect(*this, deadline);
  }
  shm::PortCountsShared& counts() const { return context_.port_counts(); }
  /// True if the queue pair's state accepts packets.
  bool receives() const;

  Port& port_;
  const LocalEnd end_;
  core::QpContext& context_;
  Statistics& statistics_;

 private:
  Deadline deadline_;
};

/// The endpoint of an RC, UC or XRC queue pair.
class ConnectedEndpoint final : public core::Endpoint, public EndpointReceiver {
 public:
  /// `attr`: as given in the transition to RTR.
  ConnectedEndpoint(Port& port, const LocalEnd& end, const QpAttr& attr, const Gid& peer, const WireSettings& settings);
  ~ConnectedEndpoint() override;

  core::Posted post(const core::Request& request) override {
    requester_->post(request.wr, request.position, request.fault);
    return core::Posted::taken();
  }
  void send() override;
  void start(uint32_t sq_psn) override;
  void set_attributes(const QpAttr& attr) override;
  void pause(bool paused) override;
  bool drained() const override { return !requester_ || requester_->drained(); }
  void flush() override;
  void stop() override;
  void withdraw() override { port_.remove(*this); }
  void answer() override { send(); }
  bool awaits_receive() const override { return requester_ && requester_->awaits_receive(); }
  std::string_view name() const override { return kTransportName; }

  void deliver(Packet& packet, const net::UdpSocket::Received& from, int64_t now) override;
  void transmit(int64_t now, TransmitBatch& batch, bool answers) override;
  bool owes_answers() const override { return responder_.has_output(); }
  void on_timer(int64_t now) override;
  void take_turn(FlowWindow& window, int64_t now, TransmitBatch& batch) override;
  void leave_wait_queues() override;
  const std::byte* next_place() const override { return next_place_.load(std::memory_order_relaxed); }
  Peer* peer() override { return process_.get(); }
  bool may_lead_to(const net::UdpAddress& to) const override {
    return to.address == peer_ && (to.port == numbered_port() || to.port == kUdpPort);
  }
  bool is_under_way(const net::UdpAddress& to, const std::optional<PacketName>& packet) const override;
  void doubt_peer(const net::UdpAddress& to) override;
  bool takes_unchecked() const override { return settings_.unchecked; }

 private:
  /// This queue pair's part of a flow window.
  struct Share {
    FlowWindow* window = nullptr;
    uint64_t held = 0;  ///< bytes
    bool is_queued = false;
  };
  void choose_port(bool standard);
  /// The port of a NUPA process that has a queue pair of the peer's number; the standard's port if no NUPA process can
  /// have it.
  uint16_t numbered_port() const;
  /// Sends requests while there is room for them. Returns true if there is more to send at once. `turn`: the flow
  /// window that gave this queue pair its turn.
  bool transmit_requests(int64_t now, TransmitBatch& batch, const FlowWindow* turn);
  void take_room(Share& share, const FlowWindow* turn);
  /// Gives back the room of packets that are not in flight any more.
  void settle(Share& share, uint64_t used);
  void settle();
  void wait_in_queue(Share& share, int64_t now, const FlowWindow* turn);
  void leave_queue(Share& share);
  /// Notifies the port if queue pairs that wait may have room now.
  void notify_waiters();
  void aim(uint32_t path, const Rail& rail, const Gid& to);
  void aim(TransmitBatch& batch);
  void introduce(int64_t now, TransmitBatch& batch);
  /// Sends answers until something blocks them. `most`: calls of the responder.
  void transmit_answers(int64_t now, TransmitBatch& batch, int most);
  /// Sets when the port has to call again: at once if there is `more` to send, otherwise at the earliest deadline of
  /// the parts. If the batch held something back, when there may be room.
  void set_next(int64_t now, bool more, const TransmitBatch& batch);
  /// Both sides have each other's rails.
  void take_paths();
  /// Returns the path that a packet arrived on; -1: it does not belong to this connection.
  int path_of(const net::UdpSocket::Received& from) const;
  /// Publishes the statistics.
  void publish();
  void publish_port_counts();

  const WireSettings settings_;
  const Gid peer_;
  RequesterOptions requester_options_;
  Responder responder_;
  std::optional<Requester> requester_;  ///< from RTS on
  core::RetryLimits limits_;
  uint8_t max_rd_atomic_ = 1;
  Handshake handshake_;
  std::array<Destination, kMaxPaths> destinations_;
  std::shared_ptr<Peer> process_;  ///< the peer's process
  bool shares_windows_ = false;
  Share sends_;
  Share responses_;
  uint32_t paths_ = 1;
  int64_t turn_ns_ = 0;  ///< when packets that a full socket held back are offered again
  /// The pause between looks at memory that another process copies.
  progress::Backoff memory_pause_{progress::kFirstRetryPauseNs, progress::kLongestRetryPauseNs};
  int64_t answers_by_ = INT64_MAX;  ///< when answers that wait have to leave
  std::atomic<const std::byte*> next_place_{nullptr};
  // The counters that are in the port's counts already.
  RequesterCounters counted_requests_;
  ResponderCounters counted_answers_;
  bool received_any_ = false;  ///< something arrived from the peer
  // Reports of the peer's host; used while nothing has arrived from the peer.
  bool refused_standard_ = false;  ///< the standard's port is closed
  bool refused_numbered_ = false;  ///< the port of the queue pair's number is closed
  bool standard_ = false;          ///< the peer is at the standard's port, or may be while nothing has arrived
};

}  // namespace nupa::roce
