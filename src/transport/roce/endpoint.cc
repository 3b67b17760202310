#include "transport/roce/endpoint.h"

#include "base/clock.h"
#include "base/spin.h"

namespace nupa::roce {
namespace {

/// A thread that holds a queue pair does so for microseconds, unless it was preempted just there; a packet that waited
/// longer is as good as lost, and comes again.
constexpr int64_t kEnterPatienceNs = 10'000'000;
constexpr uint32_t kBudget = 64;
constexpr int kRounds = 16;
constexpr uint16_t kMembership = 0x8000;

Service service_of_type(QpType type) {
  switch (type) {
    case QpType::kUc:
      return Service::kUc;
    case QpType::kXrcSend:
    case QpType::kXrcRecv:
      return Service::kXrc;
    default:
      return Service::kRc;
  }
}

uint32_t mtu_of(const QpAttr& attr) { return 128u << attr.path_mtu; }

ResponderOptions responder_options(const LocalEnd& end, const QpAttr& attr, const Port& port,
                                   const WireSettings& settings) {
  ResponderOptions options;
  options.service = service_of_type(end.type);
  options.peer_qpn = attr.dest_qp_num;
  options.first_psn = attr.rq_psn;
  options.mtu = mtu_of(attr);
  options.mark = settings.standard ? 0 : kNupaMark;
  // The kernel counts its own overhead with what waits: about as much again for packets that come singly.
  options.window = port.socket().buffer_bytes() / 3;
  return options;
}

}  // namespace

bool EndpointChannel::enter() {
  if (lock_.try_lock()) return true;
  base::Backoff backoff;
  const int64_t until = base::now_ns() + kEnterPatienceNs;
  do {
    backoff.pause();
    if (lock_.try_lock()) return true;
  } while (base::now_ns() < until);
  return false;
}

bool EndpointChannel::receives() const {
  const QpState state = segment::state_of(end_.shared->state.load(std::memory_order_acquire));
  return state >= QpState::kRtr && state != QpState::kErr;
}

ConnectedEndpoint::ConnectedEndpoint(Port& port, const LocalEnd& end, const QpAttr& attr, const Gid& peer,
                                     const WireSettings& settings)
    : EndpointChannel(port, end),
      settings_(settings),
      peer_(peer),
      responder_(*end.host, responder_options(end, attr, port, settings), port.pool()) {
  requester_options_.service = service_of_type(end.type);
  requester_options_.dest_qpn = attr.dest_qp_num;
  requester_options_.mtu = mtu_of(attr);
  requester_options_.max_wr = end.cap.max_send_wr;
  requester_options_.max_sge = end.cap.max_send_sge;
  requester_options_.max_inline = end.cap.max_inline_data;
  requester_options_.congestion = settings.congestion;
  requester_options_.mark = settings.standard ? 0 : kNupaMark;
  requester_options_.read_window = port.socket().buffer_bytes() / 3;
  responder_.set_max_rd_atomic(attr.max_dest_rd_atomic);
  destination_.place = end.qp_num;
  destination_.to.address = peer;
  destination_.to.scope = end.source_interface;
  destination_.from = end.source;
  destination_.from_interface = end.source_interface;
  destination_.traffic_class = attr.av.traffic_class;
  choose_port(settings.standard);
  segment::WireShared& wire = end.shared->wire;
  wire.peer = peer;
  for (auto* counter : {&wire.resent_sequence, &wire.resent_selective, &wire.resent_timeout, &wire.marked,
                        &wire.strangers, &wire.in_flight, &wire.rate})
    counter->store(0);
  wire.round_trip_ns.store(0);
  wire.window.store(~uint64_t{0});
  wire.carrier.store(static_cast<uint32_t>(segment::Carrier::kRoce));
  port.add(*this);
}

ConnectedEndpoint::~ConnectedEndpoint() = default;

void ConnectedEndpoint::choose_port(bool standard) {
  standard_ = standard;
  const uint32_t slot = segment::slot_of(requester_options_.dest_qpn);
  const bool possible = slot >= segment::kMinSlot && slot <= segment::kMaxSlot;
  destination_.to.port = standard || !possible ? kUdpPort : Port::port_of_slot(slot);
}

void ConnectedEndpoint::publish() {
  segment::WireShared& wire = end_.shared->wire;
  const auto tell = [](auto& field, auto value) { field.store(value, std::memory_order_relaxed); };
  tell(wire.standard, static_cast<uint32_t>(heard_ && standard_));
  tell(wire.strangers, strangers_);
  if (!requester_) return;
  const Path& path = requester_->paths()[0];
  const RequesterCounters& counters = requester_->counters();
  tell(wire.round_trip_ns, path.round_trip.smoothed());
  tell(wire.window, path.congestion->window());
  tell(wire.in_flight, path.in_flight);
  tell(wire.resent_sequence, counters.resent_sequence);
  tell(wire.resent_selective, counters.resent_selective);
  tell(wire.resent_timeout, counters.resent_timeout);
  tell(wire.marked, counters.marked);
}

void ConnectedEndpoint::start(uint32_t sq_psn) {
  requester_options_.first_psn = requester_ ? requester_->next_psn() : sq_psn;
  requester_.emplace(*end_.host, requester_options_);
  requester_->set_patience(patience_);
}

void ConnectedEndpoint::set_attributes(const QpAttr& attr) {
  patience_ = {attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic};
  responder_.set_max_rd_atomic(attr.max_dest_rd_atomic);
  if (requester_) requester_->set_patience(patience_);
}

void ConnectedEndpoint::pause(bool paused) {
  if (!requester_) return;
  requester_->pause(paused);
  if (!paused) send();
}

void ConnectedEndpoint::stop() {
  responder_.stop();
  flush();
  set_deadline(INT64_MAX);
}

void ConnectedEndpoint::send() {
  Burst& burst = port_.burst();
  burst.aim(&destination_);
  const int64_t now = base::now_ns();
  bool more = true;
  for (int round = 0; round < kRounds && more; ++round) more = requester_->transmit(now, burst, kBudget);
  burst.flush();
  publish();
  set_deadline(more ? now : requester_->deadline());
}

void ConnectedEndpoint::deliver(const Packet& packet, const io::UdpSocket::Received& from, int64_t now) {
  // Annex A17.4: a packet of another partition or from elsewhere is not of this connection.
  if (!receives() || !(from.from.address == peer_) || !(from.to == end_.source) ||
      (packet.pkey | kMembership) != (uint16_t{0xffff})) {
    ++strangers_;
    return;
  }
  if (!heard_ || (packet.mark != kNupaMark) != standard_) choose_port(settings_.standard || packet.mark != kNupaMark);
  heard_ = true;
  if ((traits_of(packet.opcode) & (trait::kResponse | trait::kCnp)) != 0) {
    if (requester_) requester_->receive(packet, now);
  } else {
    responder_.receive(packet, from.congested, now);
  }
}

void ConnectedEndpoint::transmit(int64_t now, Burst& burst, bool answers) {
  burst.aim(&destination_);
  bool more = true;
  for (int round = 0; round < kRounds && more; ++round) {
    more = answers && responder_.transmit(now, burst, kBudget);
    if (requester_) more = requester_->transmit(now, burst, kBudget) || more;
  }
  int64_t deadline = requester_ ? requester_->deadline() : INT64_MAX;
  if (more) deadline = now;
  if (!answers && responder_.has_output()) {
    constexpr int64_t kAnswerPauseNs = 200'000;
    deadline = std::min(deadline, now + kAnswerPauseNs);
  }
  publish();
  set_deadline(deadline);
}

void ConnectedEndpoint::on_timer(int64_t now) {
  if (!requester_) return;
  const uint64_t before = requester_->counters().resent_timeout;
  requester_->on_timer(now);
  // Nobody answers where the number says: perhaps it is no NUPA peer, whose numbers say nothing.
  if (!heard_ && requester_->counters().resent_timeout != before) choose_port(!standard_ || settings_.standard);
}

}  // namespace nupa::roce
