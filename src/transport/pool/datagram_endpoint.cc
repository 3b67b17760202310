// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/datagram_endpoint.h"

#include <algorithm>

#include "core/seam/grh.h"
#include "core/seam/group_address.h"
#include "core/seam/whole_message.h"

namespace nupa::pool {

DatagramEndpoint::DatagramEndpoint(Engine& engine, core::QpContext& context, const std::vector<GidEntry>& gids,
                                   GroupReach groups)
    : engine_(engine),
      context_(context),
      statistics_(Statistics::take(context.statistics())),
      gids_(gids),
      groups_(groups) {
  engine.add(*this);
}

DatagramEndpoint::Known* DatagramEndpoint::find(const AddressVector& vector, uint32_t qp_num) {
  const auto found = known_.find(qp_num);
  if (found != known_.end()) {
    Known& known = found->second;
    const bool same = known.is_global == vector.is_global && (!known.is_global || known.gid == vector.dgid);
    if (same && known.link != nullptr && !known.link->is_lost()) return &known;
  }
  const auto process = engine_.process_of(vector, qp_num);
  if (!process) {
    if (found != known_.end()) known_.erase(found);
    return nullptr;
  }
  if (known_.size() >= kMaxKnown) known_.clear();
  Known& known = known_[qp_num];
  known = {vector.dgid, vector.is_global, *process, engine_.known_link(*process)};
  return &known;
}

DatagramEndpoint::Reach DatagramEndpoint::leads_to(const AddressVector& vector, uint32_t qp_num) {
  return find(vector, qp_num) != nullptr ? Reach::kYes : Reach::kNo;
}

WcStatus DatagramEndpoint::write(const ProcessId& to, Link* link, const core::Request& request, uint32_t qp_num) {
  const SendWr& wr = request.wr;
  const AddressVector& vector = *request.vector;
  const GidEntry* const source =
      gids_.empty() ? nullptr : &gids_[std::min<size_t>(vector.sgid_index, gids_.size() - 1)];
  const Gid from = source != nullptr ? source->gid : engine_.own_gid();
  core::RouteHeader header =
      core::make_route_header(vector, from, vector.is_global ? vector.dgid : from, request.length);
  Record record;
  record.kind = RecordKind::kDatagram;
  record.qp_num = qp_num;
  record.source_qp = context_.number();
  record.qkey = core::qkey_of(wr, context_);
  record.length = static_cast<uint32_t>(request.length + header.size());
  if (wr.opcode == Opcode::kSendWithImm) record.flags |= record_flag::kImmediate;
  record.immediate = wr.imm_or_rkey;
  if ((wr.flags & send_flag::kSolicited) != 0) record.flags |= record_flag::kSolicited;
  base::Piece pieces[core::kMaxSge + 1] = {{header.data(), header.size()}};
  std::copy_n(request.pieces, request.piece_count, pieces + 1);
  // Behind those that are kept, so that the order stays.
  const bool is_open = link != nullptr && !engine_.keeps_datagrams() && link->is_open();
  switch (is_open ? link->write(record, pieces, request.piece_count + 1)
                  : engine_.keep_datagram(to, record, pieces, request.piece_count + 1)) {
    case Link::Wrote::kUnreadable:
      return WcStatus::kLocProtErr;
    case Link::Wrote::kYes:
      statistics_.sent.fetch_add(1, std::memory_order_relaxed);
      context_.port_counts().sent_packet(request.length);
      if (qp_num == core::kGroupQpn) context_.port_counts().add_alone(shm::PortCount::kMulticastXmit, 1);
      break;
    case Link::Wrote::kNotNow:
    case Link::Wrote::kLost:
      statistics_.dropped.fetch_add(1, std::memory_order_relaxed);
      break;
  }
  engine_.note_posted();
  return WcStatus::kSuccess;
}

std::optional<WcStatus> DatagramEndpoint::send(const core::Request& request) {
  if (request.vector->is_global && core::names_group(request.vector->dgid)) return send_to_group(request);
  Known* const known = find(*request.vector, request.wr.remote_qpn);
  if (known == nullptr) return WcStatus::kSuccess;
  return write(known->process, known->link.get(), request, request.wr.remote_qpn);
}

std::optional<WcStatus> DatagramEndpoint::send_to_group(const core::Request& request) {
  if (groups_ == GroupReach::kNone) return WcStatus::kSuccess;
  std::vector<ProcessId> members = engine_.pool().members(request.vector->dgid);
  if (groups_ == GroupReach::kOtherHosts)
    std::erase_if(members, [this](const ProcessId& process) { return process.host == engine_.pool().host(); });
  else if (engine_.has_members(request.vector->dgid))
    members.push_back(engine_.self());
  for (const ProcessId& process : members) {
    if (!(process == engine_.self()) && engine_.pool().life(process) != Life::kAlive) continue;
    const auto link = engine_.known_link(process);
    if (const WcStatus status = write(process, link.get(), request, core::kGroupQpn); status != WcStatus::kSuccess)
      return status;
  }
  return WcStatus::kSuccess;
}

bool DatagramEndpoint::is_own(const Record& record, const Link& link) const {
  return record.qp_num == core::kGroupQpn && record.source_qp == context_.number() && link.peer() == engine_.self();
}

bool DatagramEndpoint::deliver(const Record& record, const Payload& payload, Link& link, TurnClock&) {
  const QpState state = context_.state();
  if (record.kind != RecordKind::kDatagram || state < QpState::kRtr || state == QpState::kErr ||
      record.qkey != context_.qkey())
    return false;
  if (!context_.hears_itself() && is_own(record, link)) return true;
  statistics_.received.fetch_add(1, std::memory_order_relaxed);
  context_.port_counts().received_packet(record.length - std::min(record.length, core::kGrhBytes));
  if (record.qp_num == core::kGroupQpn) context_.port_counts().add_alone(shm::PortCount::kMulticastRcv, 1);
  core::Inbound inbound;
  inbound.src_qp = record.source_qp;
  inbound.solicited = record.has(record_flag::kSolicited);
  inbound.wc_flags = wc_flag::kGrh;
  if (record.has(record_flag::kImmediate)) {
    inbound.wc_flags |= wc_flag::kWithImm;
    inbound.imm_data = record.immediate;
  }
  // A datagram without a receive, or that does not fit it, is dropped silently (IBTA 9.8.3.2.2).
  core::ContextTarget target(context_);
  core::Responder<core::ContextTarget>::Message message;
  core::Responder<core::ContextTarget>(target, false)
      .send(core::whole_datagram(payload.pieces.data(), payload.count, record.length), &inbound, &message);
  return true;
}

}  // namespace nupa::pool
