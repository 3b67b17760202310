// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/datagram.h"

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "core/seam/grh.h"
#include "core/seam/group_address.h"
#include "core/seam/whole_message.h"

namespace nupa::shm_transport {

using core::kGrhBytes;
using core::Piece;
using core::Request;
using core::SharedTarget;
using shm::PortCount;

Datagram::Reach Datagram::search(uint32_t qpn, const AddressVector& vector, Known** known) {
  const auto found = targets_.find(qpn);
  if (found != targets_.end() && found->second.lies_at(vector)) {
    *known = &found->second;
    return Reach::kYes;
  }
  const uint32_t slot = shm::slot_of(qpn);
  const auto peer = peers_.find(qpn, vector, wait_for(slot));
  if (!peer && peer.error().code() == ETIMEDOUT) return may_answer(slot) ? Reach::kNotYet : Reach::kNo;
  asked_.erase(slot);
  if (!peer) return Reach::kNo;
  if (targets_.size() >= kMaxTargets) targets_.clear();
  auto target = std::make_unique<SharedTarget>(peers_.node(), peers_.memories(), *peer->peer, peer->qp_index, &due_);
  // A datagram that only the receive's owner can copy waits for it as long as a search does, and delays those behind it
  // only once.
  target->set_wait(std::chrono::nanoseconds(kAnswerLimit).count());
  *known = &targets_.insert_or_assign(qpn, Known{std::move(target), vector.dgid, vector.is_global}).first->second;
  return Reach::kYes;
}

Datagram::Datagram(Peers& peers, core::QpContext& context, host::DueEvent& due)
    : peers_(peers),
      context_(context),
      due_(due),
      own_gids_(peers.node().segment().tables().header->devices[context.shared().device].gids) {
  // Programs that post a datagram and destroy the queue pair expect that it was sent. So connect to all possible
  // receivers now.
  for (const uint32_t slot : peers_.node().slots())
    [[maybe_unused]] const auto asked = peers_.node().connect(slot, std::chrono::milliseconds(0));
}

std::chrono::milliseconds Datagram::wait_for(uint32_t slot) const {
  return asked_.contains(slot) ? std::chrono::milliseconds(0) : kFirstWait;
}

bool Datagram::may_answer(uint32_t slot) {
  const int64_t now = base::now_ns();
  return now - asked_.try_emplace(slot, now).first->second < std::chrono::nanoseconds(kAnswerLimit).count();
}

Datagram::Reach Datagram::find(uint32_t qpn, const AddressVector& vector, SharedTarget** target) {
  if (last_qpn_ != qpn || last_ == nullptr || !last_->lies_at(vector)) {
    last_ = nullptr;
    Known* known = nullptr;
    if (const Reach reach = search(qpn, vector, &known); reach != Reach::kYes) return reach;
    last_qpn_ = qpn;
    last_ = known;
  }
  *target = last_->target.get();
  return Reach::kYes;
}

Datagram::Reach Datagram::leads_to(const AddressVector& vector, uint32_t qp_num) {
  SharedTarget* target = nullptr;
  return find(qp_num, vector, &target);
}

void Datagram::on_process_exit(const host::Peer& process) {
  last_ = nullptr;
  notified_.reset();
  std::erase_if(targets_, [&](const auto& entry) { return &entry.second.target->peer() == &process; });
}

const Gid& Datagram::source_of(const Request& request) const {
  return own_gids_[std::min<uint32_t>(request.vector->sgid_index, shm::kMaxGids - 1)];
}

void Datagram::deliver(SharedTarget& target, const Request& request, uint32_t qkey) {
  if (!target.ready(0, 0) || target.remote().type != static_cast<uint32_t>(QpType::kUd)) return;
  if (target.remote().qkey.load(std::memory_order_relaxed) != qkey) return;
  core::RouteHeader header =
      core::make_route_header(*request.vector, source_of(request), request.vector->dgid, request.length);
  context_.port_counts().received_packet(request.length);

  constexpr uint32_t kInPlace = 8;
  Piece few[kInPlace];
  std::unique_ptr<Piece[]> many;
  Piece* pieces = few;
  if (request.piece_count + 1 > kInPlace) {
    many = std::make_unique<Piece[]>(request.piece_count + 1);
    pieces = many.get();
  }
  pieces[0] = {header.data(), header.size()};
  std::copy_n(request.pieces, request.piece_count, pieces + 1);

  core::Inbound inbound = core::inbound_of(request.wr, context_.number());
  inbound.sl = request.vector->sl;
  inbound.slid = request.vector->is_global ? 0 : request.vector->dlid;
  inbound.wc_flags |= request.vector->is_global ? wc_flag::kGrh : 0;
  // A datagram that finds no receive, or does not fit into it, is silently dropped (IBTA 9.8.3.2.2).
  core::Responder<SharedTarget>::Message message;
  core::Responder<SharedTarget> responder(target, false);
  const core::SendPart whole = core::whole_datagram(pieces, request.piece_count + 1, request.length + kGrhBytes);
  const core::Verdict verdict = responder.send(whole, &inbound, &message);
  if (!verdict.is_not_served()) return;
  // The owner of the buffers is stopped.
  target.forget_calls();
  responder.give_back(&message);
}

bool Datagram::meet_all() {
  bool all = true;
  for (const uint32_t slot : peers_.node().slots()) {
    auto connected = peers_.node().connect(slot, wait_for(slot));
    if (!connected && connected.error().code() == ETIMEDOUT) {
      all = !may_answer(slot) && all;
      continue;
    }
    asked_.erase(slot);
    if (connected) members_.push_back(std::move(*connected));
  }
  return all;
}

bool Datagram::deliver_multicast(const Request& request, uint32_t qkey) {
  members_.clear();
  if (!meet_all()) {
    members_.clear();
    return false;
  }
  for (const host::PeerRef& connected : members_) {
    host::Peer* const peer = connected.get();
    notified_ = connected;
    const bool skips_itself = !context_.hears_itself();  // a queue pair number is unique on this host
    const shm::SegmentHeader& header = *peer->tables().header;
    const uint32_t members = std::min(header.mcast_high_water.load(), shm::kMaxMcast);
    for (uint32_t i = 0; i < members; ++i) {
      const uint32_t member = header.mcast[i].qp.load(std::memory_order_acquire);
      if (member == 0 || member > shm::kMaxQp || !(header.mcast[i].gid == request.vector->dgid)) continue;
      const shm::QpShared* const receiver = peer->queue_pairs().qp(member - 1);
      if (receiver == nullptr || (skips_itself && receiver->qp_num.load() == context_.number())) continue;
      SharedTarget target(peers_.node(), peers_.memories(), *peer, member - 1, &due_);
      context_.port_counts().add_alone(PortCount::kMulticastRcv, 1);
      deliver(target, request, qkey);
    }
  }
  members_.clear();
  return true;
}

std::optional<WcStatus> Datagram::send(const Request& request) {
  const uint32_t qkey = core::qkey_of(request.wr, context_);
  if (request.vector->is_global && core::names_group(request.vector->dgid)) {
    if (!deliver_multicast(request, qkey)) return std::nullopt;
    context_.port_counts().sent_packet(request.length);
    context_.port_counts().add_alone(PortCount::kMulticastXmit, 1);
    return WcStatus::kSuccess;
  }
  SharedTarget* target = nullptr;
  const Reach reach = find(request.wr.remote_qpn, *request.vector, &target);
  if (__builtin_expect(reach == Reach::kNotYet, 0)) return std::nullopt;
  if (reach == Reach::kYes) {
    context_.port_counts().sent_packet(request.length);
    deliver(*target, request, qkey);
  }
  return WcStatus::kSuccess;
}

}  // namespace nupa::shm_transport
