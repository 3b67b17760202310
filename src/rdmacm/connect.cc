// SPDX-License-Identifier: Apache-2.0
/// Connecting, accepting, rejecting and disconnecting.
#include <algorithm>
#include <cstring>
#include <random>

#include "base/gid.h"
#include "base/random_seed.h"
#include "base/time_code.h"
#include "base/reason.h"
#include "rdmacm/id.h"

namespace nupa::rdmacm {
namespace {

constexpr uint8_t kMostRetries = 7;
constexpr uint16_t kVendorOption = 35;  // IBTA: the vendor option is not supported

}  // namespace

uint32_t random_psn() {
  thread_local std::minstd_rand random{static_cast<uint32_t>(base::random_seed())};
  return static_cast<uint32_t>(random()) & 0xffffff;
}

namespace {

uint64_t guid_of(const Id& id) { return be64toh(device_of(id.shown.verbs)->attr.node_guid); }

/// Writes the header of a REQ or SIDR_REQ of an IP service (IBTA annex A11): version, family, source port, source
/// address, destination address.
void write_header(const Id& id, std::byte* out) {
  std::memset(out, 0, kIpHeaderBytes);
  const bool ipv4 = id.destination.family == AF_INET;
  out[1] = std::byte{static_cast<unsigned char>((ipv4 ? 4 : 6) << 4)};
  out[2] = static_cast<std::byte>(id.source.port >> 8);
  out[3] = static_cast<std::byte>(id.source.port);
  const auto put = [&](size_t at, const Gid& gid) {
    if (ipv4)
      std::memcpy(out + at + 12, &gid.raw[12], 4);
    else
      std::memcpy(out + at, gid.raw.data(), 16);
  };
  put(4, id.source.gid);
  put(20, id.destination.gid);
}

/// Joins the header, the data of rdma_getaddrinfo and the program's data. Returns false if there is no room.
template <size_t kRoom>
bool fill_request_data(const Id& id, const void* data, size_t length, PrivateData<kRoom>* out) {
  const size_t header = id.destination.family == AF_IB ? 0 : kIpHeaderBytes;
  const size_t taken = header + id.connect_data.size();
  if (taken + length > kRoom) {
    base::reject(EINVAL, length, " bytes of private data (there is room for ", kRoom - std::min(kRoom, taken), ")");
    return false;
  }
  if (header != 0) write_header(id, out->bytes.data());
  std::byte* at = out->bytes.data() + header;
  std::copy(id.connect_data.begin(), id.connect_data.end(), at);
  if (length > 0) std::memcpy(at + id.connect_data.size(), data, length);
  out->length = static_cast<uint32_t>(header + id.connect_data.size() + length);
  return true;
}

uint8_t most(uint8_t wanted, uint8_t all, int limit) {
  const auto capable = static_cast<uint8_t>(std::min(limit, 255));
  return wanted == all ? capable : wanted;
}

/// Returns EINVAL if the parameters exceed the device, or if there is neither a queue pair nor its number.
int check(const Id& id, const rdma_conn_param* param) {
  if (param == nullptr) {
    if (id.shown.qp != nullptr || id.is_datagram()) return 0;
    return base::reject(EINVAL, "no parameters, and the id has no queue pair whose number could be sent");
  }
  const OpenDevice* device = device_of(id.shown.verbs);
  if (device == nullptr) return base::reject(EINVAL, "the id is bound to no device");
  if (param->private_data_len > 0 && param->private_data == nullptr)
    return base::reject(EINVAL, "private_data is null, and private_data_len is ", param->private_data_len);
  if (id.is_datagram()) return 0;
  const int reads = device->attr.max_qp_rd_atom, asks = device->attr.max_qp_init_rd_atom;
  if (param->responder_resources != RDMA_MAX_RESP_RES && param->responder_resources > reads)
    return base::reject(EINVAL, "responder_resources ", param->responder_resources, " (max_qp_rd_atom is ", reads, ")");
  if (param->initiator_depth != RDMA_MAX_INIT_DEPTH && param->initiator_depth > asks)
    return base::reject(EINVAL, "initiator_depth ", param->initiator_depth, " (max_qp_init_rd_atom is ", asks, ")");
  return 0;
}

constexpr rdma_conn_param everything() {
  rdma_conn_param param{};
  param.responder_resources = RDMA_MAX_RESP_RES;
  param.initiator_depth = RDMA_MAX_INIT_DEPTH;
  param.retry_count = kMostRetries;
  param.rnr_retry_count = kMostRetries;
  return param;
}

int connect_datagrams(Id& id, const rdma_conn_param& param) {
  DatagramRequest request;
  request.service_id = service_of(id.destination, id.shown.ps);
  request.path = id.route.path;
  if (!fill_request_data(id, param.private_data, param.private_data_len, &request.private_data)) return EINVAL;
  id.state = State::kConnecting;
  const int error = manager()->ask_datagram(request, id.route, id.owner(), &id.connection);
  if (error != 0) id.state = State::kRouteResolved;
  return error;
}

int connect(Id& id, const rdma_conn_param& param) {
  const ibv_device_attr& device = device_of(id.shown.verbs)->attr;
  ConnectionRequest request;
  request.service_id = service_of(id.destination, id.shown.ps);
  request.ca_guid = guid_of(id);
  request.path = id.route.path;
  request.qp_num = id.shown.qp != nullptr ? id.shown.qp->qp_num : param.qp_num;
  switch (id.shown.qp_type) {
    case IBV_QPT_UC:
      request.type = QpType::kUc;
      break;
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
      request.type = QpType::kXrcSend;
      break;
    default:
      request.type = QpType::kRc;
      break;
  }
  id.receive_psn = request.starting_psn = random_psn();
  id.responder_resources = request.responder_resources =
      most(param.responder_resources, RDMA_MAX_RESP_RES, device.max_qp_rd_atom);
  id.initiator_depth = request.initiator_depth =
      most(param.initiator_depth, RDMA_MAX_INIT_DEPTH, device.max_qp_init_rd_atom);
  id.retry_count = request.retry_count = std::min(param.retry_count, kMostRetries);
  id.rnr_retry_count = request.rnr_retry_count = std::min(param.rnr_retry_count, kMostRetries);
  request.flow_control = param.flow_control != 0;
  request.srq = id.shown.qp != nullptr ? id.shown.qp->srq != nullptr : param.srq != 0;
  if (id.ack_timeout) request.path.ack_timeout = *id.ack_timeout;
  if (!fill_request_data(id, param.private_data, param.private_data_len, &request.private_data)) return EINVAL;
  id.state = State::kConnecting;
  id.connect_failed = false;
  const int error = manager()->connect(request, id.route, id.owner(), &id.connection);
  if (error != 0) id.state = State::kRouteResolved;
  return error;
}

int accept_datagrams(Id& id, const rdma_conn_param* param) {
  DatagramReply reply;
  reply.qp_num = id.shown.qp != nullptr ? id.shown.qp->qp_num : param != nullptr ? param->qp_num : 0;
  reply.qkey = id.qkey;
  if (param != nullptr && !reply.private_data.set(param->private_data, param->private_data_len)) return EINVAL;
  const int error = manager()->answer_datagram(id.connection, reply);
  if (error == 0) id.state = State::kConnected;
  return error;
}

int accept(Id& id, const rdma_conn_param* given) {
  const rdma_conn_param param = given != nullptr ? *given : everything();
  const ibv_device_attr& device = device_of(id.shown.verbs)->attr;
  ConnectionReply reply;
  if (!reply.private_data.set(param.private_data, param.private_data_len)) return EINVAL;
  // Uses the peer's request for parameters that this side leaves open.
  const auto agree = [](uint8_t wanted, uint8_t all, uint8_t asked, int limit) {
    return wanted == all ? static_cast<uint8_t>(std::min<int>(asked, limit)) : wanted;
  };
  id.responder_resources =
      agree(param.responder_resources, RDMA_MAX_RESP_RES, id.responder_resources, device.max_qp_rd_atom);
  id.initiator_depth =
      agree(param.initiator_depth, RDMA_MAX_INIT_DEPTH, id.initiator_depth, device.max_qp_init_rd_atom);
  const uint8_t rnr_of_peer = given != nullptr ? std::min(param.rnr_retry_count, kMostRetries) : id.rnr_retry_count;
  if (const int error = bring_up(id); error != 0) return error;
  reply.ca_guid = guid_of(id);
  reply.qp_num = id.shown.qp != nullptr ? id.shown.qp->qp_num : param.qp_num;
  reply.starting_psn = id.receive_psn;
  reply.responder_resources = id.responder_resources;
  reply.initiator_depth = id.initiator_depth;
  reply.rnr_retry_count = rnr_of_peer;
  reply.flow_control = param.flow_control != 0;
  reply.srq = id.shown.qp != nullptr ? id.shown.qp->srq != nullptr : param.srq != 0;
  id.state = State::kAccepting;
  const int error = manager()->accept(id.connection, reply);
  if (error != 0) id.state = State::kRequested;
  return error;
}

/// Acknowledges the event of a request. A synchronous id shows it until the program has answered the request
/// (rdma_get_request(3)).
void drop_request(Id& id) {
  if (!id.sync || id.shown.event == nullptr) return;
  rdma_ack_cm_event(id.shown.event);
  id.shown.event = nullptr;
}

int reject(Id& id, const void* data, uint8_t length, uint16_t reason) {
  {
    std::lock_guard lock(id.mutex);
    PrivateData<148> private_data;
    if (length > 0 && data == nullptr) return answer(EINVAL, "no private data, but a length", "rdma_reject");
    if (!private_data.set(data, length)) return answer(EINVAL, "more than 148 bytes of private data", "rdma_reject");
    if (id.state != State::kRequested && id.state != State::kReplied)
      return answer(EINVAL, "the id has no connection request, or it was accepted", "rdma_reject");
    const int error = manager()->reject(id.connection, static_cast<RejectReason>(reason), private_data);
    if (error != 0) return answer(error, nullptr, "rdma_reject");
    id.state = State::kDisconnected;
  }
  drop_request(id);
  return 0;
}

}  // namespace

void finish_reply(Id& id, Event& event) {
  std::lock_guard lock(id.mutex);
  const ConnectionReply& reply = *event.reply;
  // Each side gives the number of requests that it can serve, which is the limit for the peer.
  id.responder_resources = reply.initiator_depth;
  id.initiator_depth = reply.responder_resources;
  id.remote_qpn = reply.qp_num;
  id.send_psn = reply.starting_psn;
  id.rnr_retry_count = reply.rnr_retry_count;
  uint8_t& timeout = id.route.path.ack_timeout;
  timeout = base::sum_of_codes(timeout, reply.target_ack_delay);
  id.agreed = true;
  id.state = State::kReplied;
  rdma_conn_param& seen = event.seen.param.conn;
  seen.responder_resources = reply.initiator_depth;
  seen.initiator_depth = reply.responder_resources;
  seen.flow_control = reply.flow_control ? 1 : 0;
  seen.rnr_retry_count = reply.rnr_retry_count;
  seen.srq = reply.srq ? 1 : 0;
  seen.qp_num = reply.qp_num;
  if (id.shown.qp == nullptr) return;
  int error = bring_up(id);
  if (error == 0) error = manager()->establish(id.connection);
  if (error == 0) {
    id.state = State::kConnected;
    event.seen.event = RDMA_CM_EVENT_ESTABLISHED;
    return;
  }
  manager()->reject(id.connection, RejectReason::kConsumer, {});
  to_error(id);
  id.connect_failed = true;
  event.seen.event = RDMA_CM_EVENT_CONNECT_ERROR;
  event.seen.status = -error;
}

}  // namespace nupa::rdmacm

using namespace nupa::rdmacm;

NUPA_RDMACM int rdma_connect(rdma_cm_id* shown, rdma_conn_param* given) {
  Id* known = id_of(shown);
  if (known == nullptr) return -1;
  Id& id = *known;
  {
    std::lock_guard lock(id.mutex);
    if (id.state != State::kRouteResolved)
      return answer(EINVAL,
                    "the route is not resolved (RDMA_CM_EVENT_ROUTE_RESOLVED comes first), or the id is connected");
    if (const int error = check(id, given); error != 0) return answer(error);
    const rdma_conn_param param = given != nullptr ? *given : everything();
    const int error = id.is_datagram() ? connect_datagrams(id, param) : connect(id, param);
    if (error != 0) return answer(error);
  }
  return wait_for_event(id);
}

NUPA_RDMACM int rdma_establish(rdma_cm_id* shown) {
  Id* known = id_of(shown);
  if (known == nullptr) return -1;
  Id& id = *known;
  std::lock_guard lock(id.mutex);
  // If the id has a queue pair, this was done for the program.
  if (id.shown.qp != nullptr || id.state != State::kReplied)
    return answer(EINVAL, "the id has a queue pair of rdma_create_qp(), or no RDMA_CM_EVENT_CONNECT_RESPONSE came");
  const int error = manager()->establish(id.connection);
  if (error == 0) id.state = State::kConnected;
  return answer(error);
}

NUPA_RDMACM int rdma_accept(rdma_cm_id* shown, rdma_conn_param* param) {
  Id* known = id_of(shown);
  if (known == nullptr) return -1;
  Id& id = *known;
  bool datagrams;
  {
    std::lock_guard lock(id.mutex);
    // The program handles the REP itself, without a queue pair in the id.
    if (id.state == State::kReplied && id.shown.qp == nullptr) {
      const int error = manager()->establish(id.connection);
      if (error == 0) id.state = State::kConnected;
      return answer(error);
    }
    if (id.state != State::kRequested) return answer(EINVAL, "the id has no connection request");
    if (const int error = check(id, param); error != 0) return answer(error);
    datagrams = id.is_datagram();
    const int error = datagrams ? accept_datagrams(id, param) : accept(id, param);
    if (error != 0) return answer(error);
  }
  if (!datagrams) return wait_for_event(id);
  drop_request(id);
  return 0;
}

NUPA_RDMACM int rdma_reject(rdma_cm_id* shown, const void* private_data, uint8_t private_data_len) {
  Id* known = id_of(shown);
  if (known == nullptr) return -1;
  return reject(*known, private_data, private_data_len, static_cast<uint16_t>(nupa::RejectReason::kConsumer));
}

NUPA_RDMACM int rdma_reject_ece(rdma_cm_id* shown, const void* private_data, uint8_t private_data_len) {
  Id* known = id_of(shown);
  if (known == nullptr) return -1;
  return reject(*known, private_data, private_data_len, kVendorOption);
}

NUPA_RDMACM int rdma_notify(rdma_cm_id* shown, ibv_event_type event) {
  Id* known = id_of(shown);
  if (known == nullptr) return -1;
  Id& id = *known;
  if (event != IBV_EVENT_COMM_EST) return answer(EINVAL, "only IBV_EVENT_COMM_EST can be notified");
  nupa::ConnectionId connection;
  {
    std::lock_guard lock(id.mutex);
    connection = id.connection;
  }
  return answer(connection == 0 ? EINVAL : manager()->note_established(connection));
}

NUPA_RDMACM int rdma_disconnect(rdma_cm_id* shown) {
  Id* known = id_of(shown);
  if (known == nullptr) return -1;
  Id& id = *known;
  {
    std::lock_guard lock(id.mutex);
    if (id.connection == 0 || id.is_datagram()) return answer(EINVAL, "the id has no connection");
    if (const int error = to_error(id); error != 0) return answer(error);
    if (const int error = manager()->disconnect(id.connection); error != 0) return answer(error);
    id.state = State::kDisconnected;
  }
  return wait_for_event(id);
}

NUPA_RDMACM int rdma_set_local_ece(rdma_cm_id* shown, ibv_ece* ece) {
  // Only for programs that made their queue pair themselves.
  if (shown == nullptr || shown->qp != nullptr || ece == nullptr || ece->vendor_id == 0 || ece->comp_mask != 0)
    return answer(EINVAL);
  Id* id = id_of(shown);
  if (id == nullptr) return -1;
  id->local_ece = *ece;
  return 0;
}

NUPA_RDMACM int rdma_get_remote_ece(rdma_cm_id* shown, ibv_ece* ece) {
  if (shown == nullptr || shown->qp != nullptr || ece == nullptr) return answer(EINVAL);
  *ece = {};  // vendor 0: no options
  return 0;
}
