#include "transport/window/datagram.h"

#include <netinet/in.h>

#include <algorithm>

#include "base/gid.h"
#include "transport/grh.h"
#include "transport/group_address.h"

namespace nupa::window {

using transport::kGrhBytes;
using transport::Outcome;
using transport::Piece;
using transport::Request;

namespace {

/// 127.0.0.0/8: packets to a group that leave from there come back to this host, and go nowhere else.
bool is_loopback(const Gid& gid) { return base::is_ipv4(gid) && gid.raw[12] == IN_LOOPBACKNET; }

}  // namespace

Target* Datagram::find(uint32_t qpn, const AddressVector& vector) {
  if (last_qpn_ == qpn && last_ != nullptr && last_->lies_at(vector)) return last_->target.get();
  last_ = nullptr;
  auto found = targets_.find(qpn);
  if (found == targets_.end() || !found->second.lies_at(vector)) {
    auto peer = window_.find_peer(qpn, vector, std::chrono::milliseconds(100));
    if (!peer && elsewhere_ == nullptr) return nullptr;
    if (targets_.size() >= kMaxTargets) targets_.clear();
    auto target = peer
                      ? std::make_unique<Target>(window_.node(), window_.memory_of(**peer), segment::index_of(qpn), due)
                      : nullptr;
    found = targets_.insert_or_assign(qpn, Known{std::move(target), vector.dgid, vector.is_global}).first;
  }
  last_qpn_ = qpn;
  last_ = &found->second;
  return last_->target.get();
}

const Gid& Datagram::source_of(const Request& request) const {
  return own_gids_[std::min<uint32_t>(request.vector->sgid_index, segment::kMaxGids - 1)];
}

void Datagram::deliver(Target& target, const Request& request, uint32_t qkey) {
  if (!target.ready(0, 0) || target.remote().type != static_cast<uint32_t>(QpType::kUd)) return;
  if (target.remote().qkey.load(std::memory_order_relaxed) != qkey) return;
  auto claim = target.claim();
  if (!claim) return;
  if (claim.room() < request.length + kGrhBytes) {
    target.put_back(claim);
    return;
  }
  transport::RouteHeader header =
      transport::make_route_header(*request.vector, source_of(request), request.vector->dgid, request.length);

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

  Message message;
  message.byte_len = static_cast<uint32_t>(request.length) + kGrhBytes;
  message.src_qp = qp_.qp_num;
  message.solicited = (request.wr.flags & send_flag::kSolicited) != 0;
  message.sl = request.vector->sl;
  message.slid = request.vector->is_global ? 0 : request.vector->dlid;
  message.wc_flags = request.vector->is_global ? wc_flag::kGrh : 0;
  if (request.wr.opcode == Opcode::kSendWithImm) {
    message.wc_flags |= wc_flag::kWithImm;
    message.imm_data = request.wr.imm_or_rkey;
  }
  target.deliver(claim, pieces, request.piece_count + 1, request.length + kGrhBytes, message);
}

void Datagram::deliver_multicast(const Request& request, uint32_t qkey) {
  for (const uint32_t slot : window_.node().slots()) {
    cm::Peer* peer = nullptr;
    if (slot == window_.node().slot()) {
      peer = &window_.node().self();
    } else if (auto met = window_.node().connect(slot, std::chrono::milliseconds(100)); met) {
      peer = *met;
    }
    if (peer == nullptr) continue;
    const bool skips_itself = slot == window_.node().slot() && !qp_.hears_itself;
    const segment::SegmentHeader& header = *peer->tables().header;
    const uint32_t members = std::min(header.mcast_high_water.load(), segment::kMaxMcast);
    for (uint32_t i = 0; i < members; ++i) {
      const uint32_t member = header.mcast[i].qp.load(std::memory_order_acquire);
      if (member == 0 || member > segment::kMaxQp || !(header.mcast[i].gid == request.vector->dgid)) continue;
      if (skips_itself && member - 1 == segment::index_of(qp_.qp_num)) continue;
      Target target(window_.node(), window_.memory_of(*peer), member - 1, due);
      deliver(target, request, qkey);
    }
  }
}

Outcome Datagram::execute(const Request& request) {
  // The high bit asks for the sender's own Q_Key (IBTA 10.2.5).
  const bool own_qkey = (request.wr.remote_qkey & 0x80000000u) != 0;
  const uint32_t qkey = own_qkey ? qp_.shared->qkey.load(std::memory_order_relaxed) : request.wr.remote_qkey;
  if (request.vector->is_global && transport::names_group(request.vector->dgid)) {
    deliver_multicast(request, qkey);
    // By packets to other hosts only: members on this one would get a second copy.
    if (elsewhere_ != nullptr && !is_loopback(source_of(request))) elsewhere_->execute(request);
  } else if (Target* target = find(request.wr.remote_qpn, *request.vector); target != nullptr) {
    deliver(*target, request, qkey);
  } else if (elsewhere_ != nullptr) {
    return elsewhere_->execute(request);
  }
  return Outcome::done(WcStatus::kSuccess);
}

}  // namespace nupa::window
