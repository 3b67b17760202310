// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/endpoint.h"

#include <algorithm>

#include "base/clock.h"

namespace nupa::pool {
namespace {

/// Bytes that a queue pair writes before others of its link have their turn.
constexpr uint64_t kBudget = 256 << 10;
/// The pause between looks at memory that another process copies.
constexpr int64_t kMemoryPauseNs = 100'000;

}  // namespace

ConnectedEndpoint::ConnectedEndpoint(Engine& engine, core::QpContext& context, const QpAttr& attr,
                                     std::shared_ptr<Link> link)
    : Endpoint({.batches = true}),
      engine_(engine),
      context_(context),
      statistics_(Statistics::take(context.statistics())),
      vector_(attr.av),
      remote_qpn_(attr.dest_qp_num),
      link_(std::move(link)),
      responder_(context, statistics_, attr.dest_qp_num, static_cast<uint16_t>(attr.rq_psn)) {
  responder_.set_max_rd_atomic(attr.max_dest_rd_atomic);
  context_.shared().remote_slot.store(0);  // the peer's exit is noticed by its heartbeat
  statistics_.peer = vector_.is_global ? vector_.dgid : engine_.own_gid();
  if (link_ == nullptr) seeks_link_.store(true);
  publish_link();
  engine_.add(*this);
}

bool ConnectedEndpoint::receives() const {
  const QpState state = context_.state();
  return state >= QpState::kRtr && state != QpState::kErr;
}

void ConnectedEndpoint::publish_link() {
  const auto set = [](auto& field, auto value) { field.store(value, std::memory_order_relaxed); };
  set(statistics_.linked, uint32_t{link_ != nullptr});
  if (link_ == nullptr) return;
  set(statistics_.host, uint32_t{link_->peer().host});
  set(statistics_.record, uint32_t{link_->peer().record});
}

void ConnectedEndpoint::set_deadline(int64_t deadline) {
  deadline_.store(deadline, std::memory_order_relaxed);
  if (deadline != INT64_MAX) engine_.expect(*this, deadline);
}

void ConnectedEndpoint::write() {
  if (link_ == nullptr || !has_to_write()) return;
  if (link_->is_lost()) {
    if (!requester_ || requester_->idle()) return;
    return requester_->peer_failed();
  }
  bool waits = !responder_.transmit(*link_, kBudget);
  if (requester_ && !waits) {
    const uint64_t before = statistics_.sent.load(std::memory_order_relaxed);
    waits = requester_->transmit(*link_, {responder_.acknowledged(), responder_.credits()}, kBudget) ==
            Requester::Next::kRoom;
    if (statistics_.sent.load(std::memory_order_relaxed) != before) drop_plain_answer();
  }
  if (waits) engine_.wait_for_room(*link_, *this);
}

bool ConnectedEndpoint::has_to_write() const {
  return responder_.has_responses() || (requester_ && requester_->has_unsent()) || link_->is_lost();
}

void ConnectedEndpoint::drop_plain_answer() {
  uint64_t owed = owed_.load(std::memory_order_relaxed);
  if (owed == 0) return;
  const auto answer = answer_of(owed);
  if (answer && answer->outcome == Outcome::kDone) owed_.compare_exchange_strong(owed, 0);
}

void ConnectedEndpoint::send() {
  if (!requester_) return;
  // Requests of queue pairs that wait for room go first.
  if (link_ != nullptr && link_->has_waiters() && !link_->is_lost())
    engine_.wait_for_room(*link_, *this);
  else
    write();
  engine_.note_posted();
}

void ConnectedEndpoint::settle(TurnClock& clock) {
  if (const uint64_t answer = responder_.take_due(); answer != 0) owed_.store(answer, std::memory_order_release);
  if (responder_.awaits_memory()) {
    if (memory_at_ns_ == INT64_MAX) memory_at_ns_ = clock.now() + kMemoryPauseNs;
  } else {
    memory_at_ns_ = INT64_MAX;
  }
  const int64_t deadline = std::min(memory_at_ns_, requester_ ? requester_->deadline() : INT64_MAX);
  if (deadline != this->deadline()) set_deadline(deadline);
}

void ConnectedEndpoint::start(uint32_t sq_psn) {
  const uint16_t first = requester_ ? requester_->next_sequence() : static_cast<uint16_t>(sq_psn);
  requester_.emplace(context_, statistics_, remote_qpn_, first);
  requester_->set_limits(limits_, max_rd_atomic_);
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
  if (requester_) requester_->flush();
}

void ConnectedEndpoint::stop() {
  // Responses to requests that were taken, while the queue pair exists.
  if (link_ != nullptr && !link_->is_lost()) responder_.transmit(*link_, kBudget);
  responder_.stop();
  flush();
  engine_.ask_back({.rkey = 0, .qp_num = number()});
  const uint64_t answer = responder_.take_due();
  if (answer != 0) owed_.store(answer, std::memory_order_release);
  set_deadline(owes() ? 0 : INT64_MAX);
}

void ConnectedEndpoint::answer() {
  responder_.take_endings();
  write();
  settle(base::now_ns());
  if (link_ == nullptr || link_->is_lost()) return;
  const uint64_t owed = take_owed();
  if (owed == 0 || link_->write_answers({&owed, 1}) != Link::Wrote::kNotNow) return;
  owed_.store(owed, std::memory_order_release);
  set_deadline(0);  // the engine's next turn writes it
}

bool ConnectedEndpoint::take_grant(const Record& record, const Link& link) {
  if (!requester_) return false;
  if (record.kind == RecordKind::kAskBack) {
    // The send lock is held: no thread is placing, and none will by this grant.
    requester_->returns(record.grant);
    return false;
  }
  std::byte* const at = engine_.pool().reach({link.peer().host, record.place, record.bytes});
  return at != nullptr && requester_->granted({record.grant, record.rkey, record.address, record.bytes, at});
}

void ConnectedEndpoint::grant(Link& link, uint32_t rkey) {
  if (!engine_.may_grant() || link.peer() == engine_.self()) return;
  const auto region = context_.region_of(rkey, access::kRemoteWrite);
  if (!region) return;
  const auto place = engine_.pool().place_of(region->at, region->length);
  if (!place) return;
  responder_.report_credits();
  engine_.grant(link, {.peer = link.peer(),
                       .qp_num = number(),
                       .requester = remote_qpn_,
                       .rkey = rkey,
                       .address = region->address,
                       .bytes = region->length,
                       .offset = place->offset});
}

bool ConnectedEndpoint::deliver(const Record& record, const Payload& payload, Link& link, TurnClock& clock) {
  const bool is_response = record.kind == RecordKind::kReadAnswer || record.kind == RecordKind::kAtomicAnswer;
  if (record.source_qp != remote_qpn_ || record.kind == RecordKind::kDatagram || !receives()) return is_response;
  if (link_.get() != &link) return is_response;
  if (record.is_about_grant()) return take_grant(record, link);
  if (record.is(record_trait::kAcks) && requester_) requester_->acknowledge({record.ack, record.credits});
  if (is_response) {
    if (requester_) requester_->response(record, payload);
  } else {
    const bool is_granted =
        record.kind == RecordKind::kPlaced && engine_.grants().has(record.grant, link.peer(), number(), record.rkey);
    responder_.receive(record, payload, link.part_bytes(), is_granted);
    if (const uint32_t rkey = responder_.take_written_key(); rkey != 0) grant(link, rkey);
  }
  write();
  settle(clock);
  return true;
}

void ConnectedEndpoint::answered(const Answer& answer, Link& link, int64_t now) {
  if (link_.get() != &link || !requester_) return;
  requester_->answered(answer, link.part_bytes(), now);
  write();
  settle(now);
}

void ConnectedEndpoint::transmit(int64_t now) {
  write();
  settle(now);
}

void ConnectedEndpoint::on_timer(int64_t now) {
  deadline_.store(INT64_MAX, std::memory_order_relaxed);
  if (now >= memory_at_ns_) memory_at_ns_ = INT64_MAX;
  if (requester_) requester_->on_timer(now);
  write();
  settle(now);
}

void ConnectedEndpoint::resolved(std::shared_ptr<Link> link, int64_t now) {
  if (!seeks_link()) return;
  if (link != nullptr) {
    link_ = std::move(link);
    seeks_link_.store(false, std::memory_order_relaxed);
    publish_link();
    write();
  } else if (requester_ && receives()) {
    requester_->no_peer(now);
  }
  settle(now);
}

void ConnectedEndpoint::not_answered(Link& link, int64_t now) {
  if (link_.get() == &link && requester_) requester_->no_peer(now);
  settle(now);
}

void ConnectedEndpoint::peer_failed(Link& link, bool garbage, int64_t now) {
  if (link_.get() != &link) return;
  if (garbage && receives()) context_.refuse(EventType::kQpFatal);
  // A request detects the exit, as on an adapter. Without a request nothing happens, and the next one fails.
  if (requester_) requester_->peer_failed();
  settle(now);
}

}  // namespace nupa::pool
