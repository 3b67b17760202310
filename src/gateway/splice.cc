// SPDX-License-Identifier: Apache-2.0
#include "gateway/splice.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "base/gid.h"
#include "base/random_seed.h"
#include "base/time_code.h"
#include "core/relay_access.h"

namespace nupa::gateway {
namespace {

// The header that begins the data of an IP service's request (IBTA annex A11): version, family, source port, source
// address, destination address.
constexpr size_t kHeaderBytes = 36;
constexpr size_t kHeaderFamily = 1;
constexpr std::byte kHeaderIpv4{0x40};
constexpr std::byte kHeaderIpv6{0x60};
constexpr size_t kHeaderSource = 4;
constexpr size_t kHeaderDestination = 20;
constexpr size_t kIpv4Offset = 12;  // an IPv4 address stands at the end of its field

constexpr uint64_t kPortMask = 0xffff;
constexpr uint8_t kMostReads = 16;  // of a queue pair
constexpr uint8_t kRnrTimer = 12;   // 0.64 ms (IBTA table 45)

uint32_t random_psn() {
  thread_local std::minstd_rand random{static_cast<uint32_t>(base::random_seed())};
  return static_cast<uint32_t>(random()) & 0xffffff;
}

void put_address(std::byte* at, const Gid& gid) {
  std::memset(at, 0, sizeof gid.raw);
  if (base::is_ipv4(gid))
    std::memcpy(at + kIpv4Offset, &gid.raw[kIpv4Offset], sizeof gid.raw - kIpv4Offset);
  else
    std::memcpy(at, gid.raw.data(), sizeof gid.raw);
}

Result<std::unique_ptr<QueuePair>> make_queue_pair(const Side& side) {
  QpOptions options;
  options.send_cq = options.recv_cq = side.cq;
  options.cap.max_send_wr = Direction::kDepth;
  options.cap.max_send_sge = 2;
  options.cap.max_recv_wr = options.cap.max_recv_sge = 1;  // the relay takes what arrives
  return side.device->create_qp(side.pd, options);
}

struct Agreed {
  uint32_t dest_qp_num;
  uint32_t rq_psn;
  uint32_t sq_psn;
  uint8_t served_reads;
  uint8_t issued_reads;
  uint8_t timeout;
  uint8_t retry_cnt;
  uint8_t rnr_retry;
  Mtu mtu;
};

int bring_up(QueuePair& qp, const ConnectionRoute& route, const Agreed& agreed) {
  using namespace qp_attr;
  QpAttr attr;
  attr.state = QpState::kInit;
  attr.access_flags = access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
  if (const int error = qp.modify(attr, kState | kPkeyIndex | kPort | kAccessFlags); error != 0) return error;
  attr.state = QpState::kRtr;
  attr.av.is_global = true;
  attr.av.dgid = route.path.remote;
  attr.av.sgid_index = static_cast<uint8_t>(route.gid_index);
  attr.av.hop_limit = route.path.hop_limit;
  attr.av.traffic_class = route.path.traffic_class;
  attr.path_mtu = agreed.mtu;
  attr.dest_qp_num = agreed.dest_qp_num;
  attr.rq_psn = agreed.rq_psn;
  attr.max_dest_rd_atomic = std::min(agreed.served_reads, kMostReads);
  attr.min_rnr_timer = kRnrTimer;
  const uint32_t to_rtr = kState | kAv | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer;
  if (const int error = qp.modify(attr, to_rtr); error != 0) return error;
  attr.state = QpState::kRts;
  attr.sq_psn = agreed.sq_psn;
  attr.timeout = agreed.timeout;
  attr.retry_cnt = agreed.retry_cnt;
  attr.rnr_retry = agreed.rnr_retry;
  attr.max_rd_atomic = std::min(agreed.issued_reads, kMostReads);
  return qp.modify(attr, kState | kSqPsn | kTimeout | kRetryCnt | kRnrRetry | kMaxQpRdAtomic);
}

}  // namespace

Result<std::unique_ptr<Splice>> Splice::create(const Side& near, const ConnectionRoute& near_route, const Side& far,
                                               const ConnectionRoute& far_route, const ConnectionRequest& request,
                                               uint64_t window, const std::function<void()>& on_work) {
  std::unique_ptr<Splice> splice(new Splice);
  splice->request_ = request;
  splice->near_.route = near_route;
  splice->near_.route.path.remote = request.path.remote;
  splice->near_.route.path.mtu = std::min(near_route.path.mtu, request.path.mtu);
  splice->near_.first_psn = random_psn();
  splice->far_.route = far_route;
  splice->far_.first_psn = random_psn();
  const auto note_work = [made = splice.get(), on_work] {
    made->is_ready_ = true;
    on_work();
  };
  auto to_far = Direction::create(*far.device, *far.pd, window, note_work);
  if (!to_far) return tl::unexpected(to_far.error());
  splice->to_far_ = std::move(*to_far);
  auto to_near = Direction::create(*near.device, *near.pd, window, note_work);
  if (!to_near) return tl::unexpected(to_near.error());
  splice->to_near_ = std::move(*to_near);
  auto near_qp = make_queue_pair(near);
  if (!near_qp) return tl::unexpected(near_qp.error());
  splice->near_.qp = std::move(*near_qp);
  auto far_qp = make_queue_pair(far);
  if (!far_qp) return tl::unexpected(far_qp.error());
  splice->far_.qp = std::move(*far_qp);
  core::set_relay(*splice->near_.qp, splice->to_far_->relay());
  core::set_relay(*splice->far_.qp, splice->to_near_->relay());
  splice->to_far_->join(*splice->near_.qp, *splice->far_.qp);
  splice->to_near_->join(*splice->far_.qp, *splice->near_.qp);
  return splice;
}

ConnectionRequest Splice::far_request(const Mapping& mapping) const {
  ConnectionRequest made = request_;
  if (mapping.far_port != 0) made.service_id = (made.service_id & ~kPortMask) | mapping.far_port;
  made.path = far_.route.path;
  // The far program's packets are acknowledged when the near end has them.
  made.path.ack_timeout = base::sum_of_codes(made.path.ack_timeout, request_.path.ack_timeout);
  made.qp_num = far_.qp->number();
  made.starting_psn = far_.first_psn;
  made.responder_resources = std::min(request_.responder_resources, kMostReads);
  made.initiator_depth = std::min(request_.initiator_depth, kMostReads);
  made.private_data.length = static_cast<uint32_t>(made.private_data.bytes.size());
  if (is_ip_service(made.service_id)) {
    made.private_data.bytes[kHeaderFamily] = base::is_ipv4(mapping.far) ? kHeaderIpv4 : kHeaderIpv6;
    put_address(made.private_data.bytes.data() + kHeaderSource, far_.route.path.local);
    put_address(made.private_data.bytes.data() + kHeaderDestination, mapping.far);
  }
  static_assert(kHeaderDestination + sizeof(Gid) == kHeaderBytes);
  return made;
}

int Splice::connect(const ConnectionReply& reply) {
  const uint8_t far_timeout = base::sum_of_codes(far_.route.path.ack_timeout, reply.target_ack_delay);
  const int error =
      bring_up(*far_.qp, far_.route,
               {reply.qp_num, far_.first_psn, reply.starting_psn, reply.initiator_depth, reply.responder_resources,
                far_timeout, request_.retry_count, reply.rnr_retry_count, far_.route.path.mtu});
  if (error != 0) return error;
  return bring_up(
      *near_.qp, near_.route,
      {request_.qp_num, near_.first_psn, request_.starting_psn, reply.responder_resources, reply.initiator_depth,
       request_.path.ack_timeout, request_.retry_count, request_.rnr_retry_count, near_.route.path.mtu});
}

ConnectionReply Splice::near_reply(const ConnectionReply& reply) const {
  ConnectionReply made = reply;
  made.qp_num = near_.qp->number();
  made.starting_psn = near_.first_psn;
  made.responder_resources = std::min(reply.responder_resources, kMostReads);
  made.initiator_depth = std::min(reply.initiator_depth, kMostReads);
  // An acknowledgement comes when the far end has sent its own.
  made.target_ack_delay = base::sum_of_codes(far_.route.path.ack_timeout, reply.target_ack_delay);
  made.private_data.length = static_cast<uint32_t>(made.private_data.bytes.size());
  return made;
}

void Splice::move() {
  if (!has_begun_ || !is_ready_.exchange(false)) return;
  to_far_->post_parts();
  to_near_->post_parts();
}

void Splice::settle() {
  to_far_->settle();
  to_near_->settle();
}

void Splice::look() {
  if (!to_far_->is_idle()) to_far_->look();
  if (!to_near_->is_idle()) to_near_->look();
}

}  // namespace nupa::gateway
