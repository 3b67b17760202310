// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/endpoint.h"

#include "base/clock.h"

namespace nupa::roce {
namespace {

constexpr uint32_t kBudget = 64;
constexpr int kRounds = 16;

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

ResponderOptions responder_options(const LocalEnd& end, const QpAttr& attr, const Port& port,
                                   const WireSettings& settings) {
  ResponderOptions options;
  options.service = service_of_type(end.context->type());
  options.peer_qpn = attr.dest_qp_num;
  options.first_psn = attr.rq_psn;
  options.mtu = bytes_of(attr.path_mtu);
  options.mark = settings.standard ? 0 : kNupaMark;
  options.window = port.receive_share();
  return options;
}

}  // namespace

bool EndpointReceiver::receives() const {
  const QpState state = context_.state();
  return state >= QpState::kRtr && state != QpState::kErr;
}

ConnectedEndpoint::ConnectedEndpoint(Port& port, const LocalEnd& end, const QpAttr& attr, const Gid& peer,
                                     const WireSettings& settings)
    : Endpoint({.batches = true}),
      EndpointReceiver(port, end),
      settings_(settings),
      peer_(peer),
      responder_(*end.context, responder_options(end, attr, port, settings), port.pool()),
      // With XRC, the payload of a response may be in a copy that is released before a packet without CRC leaves.
      handshake_(end.rails, settings.unchecked && !settings.standard && end.context->type() != QpType::kXrcRecv) {
  requester_options_.service = service_of_type(end.context->type());
  requester_options_.dest_qpn = attr.dest_qp_num;
  requester_options_.mtu = bytes_of(attr.path_mtu);
  requester_options_.max_wr = end.context->cap().max_send_wr;
  requester_options_.max_sge = end.context->cap().max_send_sge;
  requester_options_.max_inline = end.context->cap().max_inline_data;
  requester_options_.congestion = settings.congestion;
  requester_options_.mark = settings.standard ? 0 : kNupaMark;
  responder_.set_max_rd_atomic(attr.max_dest_rd_atomic);
  responses_.window = port.response_window().get();
  shares_windows_ = requester_options_.service != Service::kUc;
  // The hop limit of the address vector is not used: programs set it to 1, and an adapter's driver takes the route's.
  for (Destination& destination : destinations_) destination.fields = {attr.av.traffic_class, 0, attr.av.flow_label};
  aim(0, end.rails[0], peer);
  choose_port(settings.standard);
  publish();
  context_.shared().remote_slot.store(0);  // the peer is not in this host's runtime directory
  port.add(*this);
}

ConnectedEndpoint::~ConnectedEndpoint() {
  settle(sends_, 0);
  settle(responses_, 0);
  notify_waiters();
}

void ConnectedEndpoint::notify_waiters() {
  for (const Share* share : {&sends_, &responses_})
    if (share->window->has_waiters() && share->window->has_room()) port_.expect(base::now_ns());
}

void ConnectedEndpoint::leave_wait_queues() {
  leave_queue(sends_);
  leave_queue(responses_);
}

void ConnectedEndpoint::aim(uint32_t path, const Rail& rail, const Gid& to) {
  Destination& destination = destinations_[path];
  destination.place = uint64_t{path} << 32 | context_.number();
  destination.qp = context_.number();
  destination.to.address = to;
  destination.to.scope = rail.interface_index;
  destination.from = rail.address;
  destination.from_interface = rail.interface_index;
  destination.socket = rail.socket;
  PathStatistics& shown = statistics_.path[path];
  shown.from = rail.address;
  shown.to = to;
  shown.ports.store(static_cast<uint32_t>(rail.port) << 16);
}

void ConnectedEndpoint::aim(TransmitBatch& batch) {
  Destination& first = destinations_[0];
  PeerSocket* own = port_.own();
  const bool fits = own != nullptr && received_any_ && !standard_ && first.from_interface == 0 && first.socket == 0 &&
                    own->leads(first.from, process_.get());
  first.own = fits && batch.may_use(own) ? own : nullptr;
  batch.aim(destinations_.data(), &counts());
}

void ConnectedEndpoint::take_paths() {
  for (uint32_t path = 1; path < handshake_.paths(); ++path) {
    aim(path, handshake_.mine(path), handshake_.theirs(path).address);
    destinations_[path].to.port = destinations_[0].to.port;
  }
  paths_ = handshake_.paths();
  if (requester_) requester_->set_paths(paths_);
}

int ConnectedEndpoint::path_of(const net::UdpSocket::Received& from) const {
  for (uint32_t path = 0; paths_ > 1 && path < paths_; ++path)
    if (from.from.address == destinations_[path].to.address && from.to == destinations_[path].from &&
        from.from.port == handshake_.theirs(path).port)
      return static_cast<int>(path);
  // Standard peers send from any port.
  return from.from.address == peer_ && from.to == destinations_[0].from ? 0 : -1;
}

uint16_t ConnectedEndpoint::numbered_port() const {
  const uint32_t slot = shm::slot_of(requester_options_.dest_qpn);
  return slot >= shm::kMinSlot && slot <= shm::kMaxSlot ? Port::port_of_slot(slot) : kUdpPort;
}

void ConnectedEndpoint::choose_port(bool standard) {
  standard_ = standard;
  const uint16_t port = standard ? kUdpPort : numbered_port();
  for (Destination& destination : destinations_) destination.to.port = port;
  std::shared_ptr<Peer> process = port_.peer_at(peer_, port);
  // Standard peers do not state their room.
  if (received_any_ && standard) process->window.resize(UINT64_MAX);
  if (process == process_) return;
  settle(sends_, 0);
  leave_queue(sends_);
  process_ = std::move(process);
  sends_.window = &process_->window;
}

void ConnectedEndpoint::settle(Share& share, uint64_t used) {
  if (share.held == used || share.window == nullptr) return;
  share.window->give_back(share.held - used);
  share.held = used;
}

void ConnectedEndpoint::settle() {
  settle(sends_, requester_->sent_bytes());
  settle(responses_, requester_->awaited_bytes());
}

void ConnectedEndpoint::leave_queue(Share& share) {
  if (share.is_queued) share.window->forget(*this);
  share.is_queued = false;
}

void ConnectedEndpoint::wait_in_queue(Share& share, int64_t now, const FlowWindow* turn) {
  if (!share.is_queued) share.window->wait(*this);
  share.is_queued = true;
  port_.note_waiter();
  // Room that was given back before this queue pair waited has notified no thread. In a turn the port itself looks
  // again.
  if (turn == nullptr && share.window->has_room()) port_.expect(now);
}

void ConnectedEndpoint::take_room(Share& share, const FlowWindow* turn) {
  const uint64_t packet = requester_options_.mtu + kBthBytes + kIcrcBytes;
  if (const uint32_t lost = requester_->lost(); lost != 0) {
    share.window->take_anyway(lost * packet);
    share.held += lost * packet;
  }
  // The first waiter does not need to be notified.
  if (share.is_queued && share.window->has_room() && share.window->leave_head(*this)) share.is_queued = false;
  if (share.window != turn && share.window->has_waiters()) return;
  const uint64_t most = turn != nullptr ? share.window->quantum_bytes() : kBudget * packet;
  share.held += share.window->take(most, packet);
}

bool ConnectedEndpoint::transmit_requests(int64_t now, TransmitBatch& batch, const FlowWindow* turn) {
  bool more = true;
  for (int round = 0; round < kRounds && more; ++round) {
    if (shares_windows_ && (turn == nullptr || round == 0)) {
      settle();
      take_room(sends_, turn);
      if (requester_->asks()) take_room(responses_, turn);
      requester_->set_room(sends_.held, responses_.held);
    }
    more = requester_->transmit(now, batch, kBudget);
  }
  if (!shares_windows_) return more;
  settle();
  if (requester_->starved() == Requester::Starved::kSends) wait_in_queue(sends_, now, turn);
  if (requester_->starved() == Requester::Starved::kResponses) wait_in_queue(responses_, now, turn);
  return more;
}

void ConnectedEndpoint::set_next(int64_t now, bool more, const TransmitBatch& batch) {
  if (!responder_.has_output()) answers_by_ = INT64_MAX;
  // Nothing can leave before, neither answers nor repetitions.
  if (batch.held_up()) [[unlikely]] {
    if (turn_ns_ <= now) turn_ns_ = batch.turn(now);
    return set_deadline(turn_ns_);
  }
  const int64_t requests_by = requester_ ? requester_->deadline() : INT64_MAX;
  set_deadline(more ? now : std::min({requests_by, handshake_.deadline(), answers_by_}));
}

void ConnectedEndpoint::take_turn(FlowWindow& window, int64_t now, TransmitBatch& batch) {
  for (Share* share : {&sends_, &responses_})
    if (share->window == &window) share->is_queued = false;
  if (!requester_) return;
  aim(batch);
  const bool more = transmit_requests(now, batch, &window);
  publish();
  set_next(now, more, batch);
}

void ConnectedEndpoint::publish() {
  Statistics& wire = statistics_;
  const auto set = [](auto& field, auto value) { field.store(value, std::memory_order_relaxed); };
  set(wire.paths, paths_);
  set(wire.standard, static_cast<uint32_t>(received_any_ && standard_));
  set(wire.duplicates, responder_.counters().duplicates);
  set(wire.dropped, responder_.counters().dropped);
  publish_port_counts();
  if (!requester_) return;
  const RequesterCounters& counters = requester_->counters();
  set(wire.resent_sequence, counters.resent_sequence);
  set(wire.resent_selective, counters.resent_selective);
  set(wire.resent_timeout, counters.resent_timeout);
  for (uint32_t i = 0; i < paths_; ++i) {
    const Path& path = requester_->paths()[i];
    PathStatistics& shown = wire.path[i];
    set(shown.health, static_cast<uint32_t>(path.health));
    set(shown.ports, (shown.ports.load(std::memory_order_relaxed) & 0xffff0000) | destinations_[i].to.port);
    set(shown.round_trip_ns, path.round_trip.smoothed());
    set(shown.window, path.congestion->window());
    set(shown.in_flight, path.in_flight);
    set(shown.rate, path.pace);
    set(shown.marked, path.marked_seen);
  }
  set(wire.stray, counters.stray);
}

void ConnectedEndpoint::publish_port_counts() {
  const auto add = [this](shm::PortCount count, uint64_t now, uint64_t before) {
    if (now != before) counts().add_alone(count, now - before);
  };
  const ResponderCounters& answers = responder_.counters();
  add(shm::PortCount::kDuplicates, answers.duplicates, counted_answers_.duplicates);
  add(shm::PortCount::kOutOfSequence, answers.early, counted_answers_.early);
  add(shm::PortCount::kOutOfBuffer, answers.rnr_naks, counted_answers_.rnr_naks);
  counted_answers_ = answers;
  if (!requester_) return;
  const RequesterCounters& requests = requester_->counters();
  add(shm::PortCount::kSequenceNaks, requests.sequence_naks, counted_requests_.sequence_naks);
  add(shm::PortCount::kAckTimeouts, requests.timeouts, counted_requests_.timeouts);
  context_.shared().counters.rnr.fetch_add(requests.rnr_naks - counted_requests_.rnr_naks, std::memory_order_relaxed);
  counted_requests_ = requests;
}

void ConnectedEndpoint::start(uint32_t sq_psn) {
  counted_requests_ = {};
  requester_options_.first_psn = requester_ ? requester_->next_psn() : sq_psn;
  requester_.emplace(context_, requester_options_);
  settle();
  requester_->set_limits(limits_, max_rd_atomic_);
  if (paths_ > 1) requester_->set_paths(paths_);
}

void ConnectedEndpoint::set_attributes(const QpAttr& attr) {
  limits_ = {attr.timeout, attr.retry_cnt, attr.rnr_retry};
  max_rd_atomic_ = attr.max_rd_atomic;
  responder_.set_max_rd_atomic(attr.max_dest_rd_atomic);
  if (requester_) requester_->set_limits(limits_, max_rd_atomic_);
}

void ConnectedEndpoint::pause(bool paused) {
  if (!requester_) return;
  requester_->pause(paused);
  if (!paused) send();
}

void ConnectedEndpoint::flush() {
  if (!requester_) return;
  requester_->flush();
  settle();
  leave_wait_queues();
  notify_waiters();
}

void ConnectedEndpoint::stop() {
  // Sends the answers to packets that have arrived while the endpoint exists; later the peer's repetitions would get
  // none.
  if (TransmitBatch* batch = responder_.has_output() ? port_.batch() : nullptr; batch != nullptr) {
    aim(*batch);
    const int64_t now = base::now_ns();
    batch->take_all(true);
    for (int round = 0; round < kRounds && responder_.transmit(now, *batch, kBudget); ++round) {
    }
    batch->flush();
    batch->take_all(false);
  }
  publish_port_counts();
  responder_.stop();
  flush();
  set_deadline(INT64_MAX);
}

void ConnectedEndpoint::send() {
  // Before RTS posts are rejected, and there is no requester yet.
  if (!requester_) return;
  const int64_t now = base::now_ns();
  TransmitBatch* const mine = port_.batch();
  if (mine == nullptr) return set_deadline(now);  // the serving thread has its own batch
  TransmitBatch& batch = *mine;
  aim(batch);
  // Acknowledgements that are due leave in the same message: a reply of the program that overtakes the acknowledgement
  // of the message that it replies to would cost another acknowledgement.
  if (responder_.has_output()) transmit_answers(now, batch, 1);
  const bool more = transmit_requests(now, batch, nullptr);
  batch.flush();
  // Room may have been given back before this queue pair waited for it.
  notify_waiters();
  publish();
  set_next(now, more, batch);
}

void ConnectedEndpoint::deliver(Packet& packet, const net::UdpSocket::Received& from, int64_t now) {
  // Annex A17.4: a packet of another partition or from another address does not belong to this connection.
  const int path = path_of(from);
  if (!receives() || path < 0 || (packet.pkey | kMembership) != (uint16_t{0xffff})) {
    count_unexpected();
    return;
  }
  counts().received_packet(packet.payload_length);
  packet.path = static_cast<uint8_t>(path);
  // A peer that has sent the mark once counts as NUPA from then on: a packet without it is forged or old, and must not
  // redirect answers.
  const bool standard = settings_.standard || packet.mark != kNupaMark;
  const bool first = !received_any_;
  received_any_ = true;
  if (first || (standard_ && !standard)) choose_port(standard);
  if (!standard_) handshake_.start();
  if (packet.opcode == kHandshake) {
    if (standard_) return;
    if (handshake_.receive(packet)) take_paths();
    for (Destination& destination : destinations_) destination.unchecked = handshake_.unchecked();
  } else if (is_for_requester(packet.opcode)) {
    if (!requester_) return;
    requester_->receive(packet, now);
    next_place_.store(requester_->next_place(), std::memory_order_relaxed);
    if (packet.opcode == kSelectiveAck && requester_->selective()) process_->window.resize(requester_->peer_window());
  } else {
    responder_.set_window(port_.receive_share());
    responder_.receive(packet, from.congested, now);
    next_place_.store(responder_.next_place(), std::memory_order_relaxed);
  }
}

void ConnectedEndpoint::introduce(int64_t now, TransmitBatch& batch) {
  Packet packet;
  packet.mark = requester_options_.mark;
  packet.dest_qpn = requester_options_.dest_qpn;
  handshake_.transmit(now, packet, batch);
}

void ConnectedEndpoint::transmit_answers(int64_t now, TransmitBatch& batch, int most) {
  bool more = true;
  for (int round = 0; round < most && more && !batch.held_up(); ++round)
    more = responder_.transmit(now, batch, kBudget) && !responder_.awaits_memory();
  if (responder_.awaits_memory()) {
    answers_by_ = now + memory_pause_.next_ns();
  } else {
    memory_pause_.reset();
    if (more) answers_by_ = now;
  }
}

void ConnectedEndpoint::transmit(int64_t now, TransmitBatch& batch, bool answers) {
  aim(batch);
  if (handshake_.has_output(now)) introduce(now, batch);
  constexpr int64_t kAnswerPauseNs = 200'000;
  if (answers)
    transmit_answers(now, batch, kRounds);
  else
    answers_by_ = now + kAnswerPauseNs;
  const bool more = requester_ && transmit_requests(now, batch, nullptr);
  publish();
  set_next(now, more, batch);
}

bool ConnectedEndpoint::is_under_way(const net::UdpAddress& to, const std::optional<PacketName>& packet) const {
  const bool guesses = !received_any_ && !settings_.standard;
  if (!requester_ || !requester_->waits() || (!guesses && to.port != destinations_[0].to.port)) return false;
  return !packet || (packet->dest_qpn == requester_options_.dest_qpn && requester_->is_under_way(packet->psn));
}

void ConnectedEndpoint::doubt_peer(const net::UdpAddress& to) {
  if (!requester_) return;
  refused_standard_ = refused_standard_ || to.port == kUdpPort;
  refused_numbered_ = refused_numbered_ || to.port == numbered_port();
  // Before anything has arrived the port is a guess, and repetitions go to both ports in turn: a peer that has neither
  // has exited.
  const bool guesses = !received_any_ && !settings_.standard;
  if (guesses ? !refused_standard_ || !refused_numbered_ : to.port != destinations_[0].to.port) return;
  requester_->doubt_peer();
  set_deadline(std::min(deadline(), requester_->deadline()));
}

void ConnectedEndpoint::on_timer(int64_t now) {
  if (!requester_) return;
  const uint64_t before = requester_->counters().resent_timeout;
  requester_->on_timer(now);
  if (requester_->counters().resent_timeout != before || requester_->lost() != 0) port_.look_for_refusals();
  // There is no answer from the port of the queue pair's number: the peer may be no NUPA process, and its numbers do
  // not give a port.
  if (!received_any_ && requester_->counters().resent_timeout != before) choose_port(!standard_ || settings_.standard);
}

}  // namespace nupa::roce
