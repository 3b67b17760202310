// SPDX-License-Identifier: Apache-2.0
#include "cm/engine/mad.h"

#include <algorithm>
#include <cstring>

namespace nupa::cm {
namespace {

constexpr size_t kHeader = 24;
constexpr uint8_t kBaseVersion = 1;
constexpr uint8_t kClass = 7;
constexpr uint8_t kClassVersion = 2;
constexpr uint8_t kMethodSend = 3;

constexpr size_t kPrimaryPath = 52;

/// Reads a big-endian number of `bytes` bytes.
uint64_t get(const Mad& mad, size_t at, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value = value << 8 | static_cast<uint64_t>(mad[kHeader + at + i]);
  return value;
}
void put(Mad& mad, size_t at, size_t bytes, uint64_t value) {
  for (size_t i = bytes; i-- > 0; value >>= 8) mad[kHeader + at + i] = static_cast<std::byte>(value);
}
/// Returns the shift of a field of `width` bits in a byte. `first` counts as in the specification: 0 is the highest
/// bit.
constexpr uint32_t shift_of(uint32_t first, uint32_t width) { return 8 - first - width; }
uint8_t get_bits(const Mad& mad, size_t at, uint32_t first, uint32_t width) {
  return static_cast<uint8_t>(get(mad, at, 1) >> shift_of(first, width) & ((1u << width) - 1));
}
void put_bits(Mad& mad, size_t at, uint32_t first, uint32_t width, uint32_t value) {
  const uint32_t mask = ((1u << width) - 1) << shift_of(first, width);
  const auto old = static_cast<uint32_t>(get(mad, at, 1));
  put(mad, at, 1, (old & ~mask) | (value << shift_of(first, width) & mask));
}
Gid get_gid(const Mad& mad, size_t at) {
  Gid gid;
  std::memcpy(gid.raw.data(), &mad[kHeader + at], gid.raw.size());
  return gid;
}
void put_gid(Mad& mad, size_t at, const Gid& gid) { std::memcpy(&mad[kHeader + at], gid.raw.data(), gid.raw.size()); }

template <size_t kRoom>
void put_data(Mad& mad, size_t at, const PrivateData<kRoom>& data) {
  std::memcpy(&mad[kHeader + at], data.bytes.data(), std::min<size_t>(data.length, kRoom));
}
template <size_t kRoom>
void get_data(const Mad& mad, size_t at, PrivateData<kRoom>* data) {
  std::memcpy(data->bytes.data(), &mad[kHeader + at], kRoom);
  data->length = kRoom;
}

Mad begin(const Envelope& envelope) {
  Mad mad{};
  mad[0] = std::byte{kBaseVersion};
  mad[1] = std::byte{kClass};
  mad[2] = std::byte{kClassVersion};
  mad[3] = std::byte{kMethodSend};
  for (size_t i = 0; i < 8; ++i) mad[8 + i] = static_cast<std::byte>(envelope.transaction >> (56 - 8 * i));
  const auto attribute = static_cast<uint16_t>(envelope.attribute);
  mad[16] = static_cast<std::byte>(attribute >> 8);
  mad[17] = static_cast<std::byte>(attribute);
  switch (envelope.attribute) {
    case Attribute::kReq:
    case Attribute::kSidrReq:
      put(mad, 0, 4, envelope.local_id);
      break;
    case Attribute::kSidrRep:
      put(mad, 0, 4, envelope.remote_id);
      break;
    default:
      put(mad, 0, 4, envelope.local_id);
      put(mad, 4, 4, envelope.remote_id);
      break;
  }
  return mad;
}

void put_path(Mad& mad, const ConnectionPath& path) {
  constexpr size_t kAt = kPrimaryPath;
  constexpr uint16_t kPermissive = 0xffff;  // Ethernet has no LIDs; the value of IBTA annex A16
  put(mad, kAt, 2, kPermissive);
  put(mad, kAt + 2, 2, kPermissive);
  put_gid(mad, kAt + 4, path.local);
  put_gid(mad, kAt + 20, path.remote);
  put(mad, kAt + 36, 4, uint64_t{path.flow_label & 0xfffff} << 12 | (path.rate & 0x3f));
  put(mad, kAt + 40, 1, path.traffic_class);
  put(mad, kAt + 41, 1, path.hop_limit);
  put_bits(mad, kAt + 42, 0, 4, path.service_level);
  put_bits(mad, kAt + 43, 0, 5, path.ack_timeout);
}

/// Reads the path as the receiver sees it.
void get_path(const Mad& mad, ConnectionPath* path) {
  constexpr size_t kAt = kPrimaryPath;
  path->remote = get_gid(mad, kAt + 4);
  path->local = get_gid(mad, kAt + 20);
  const uint64_t label = get(mad, kAt + 36, 4);
  path->flow_label = static_cast<uint32_t>(label >> 12);
  path->rate = label & 0x3f;
  path->traffic_class = static_cast<uint8_t>(get(mad, kAt + 40, 1));
  path->hop_limit = static_cast<uint8_t>(get(mad, kAt + 41, 1));
  path->service_level = get_bits(mad, kAt + 42, 0, 4);
  path->ack_timeout = get_bits(mad, kAt + 43, 0, 5);
}

// Transport service types (IBTA table 106). XRC is an extended type (annex A14).
constexpr uint8_t kTypeRc = 0;
constexpr uint8_t kTypeUc = 1;
constexpr uint8_t kTypeExtended = 3;
constexpr uint8_t kExtendedXrc = 1;

}  // namespace

std::optional<Envelope> read_envelope(const Mad& mad) {
  if (mad[0] != std::byte{kBaseVersion} || mad[1] != std::byte{kClass} || mad[2] != std::byte{kClassVersion} ||
      mad[3] != std::byte{kMethodSend})
    return std::nullopt;
  Envelope envelope;
  for (size_t i = 0; i < 8; ++i) envelope.transaction = envelope.transaction << 8 | static_cast<uint64_t>(mad[8 + i]);
  const auto attribute = static_cast<uint16_t>(static_cast<uint16_t>(mad[16]) << 8 | static_cast<uint16_t>(mad[17]));
  if (attribute < static_cast<uint16_t>(Attribute::kReq) || attribute > static_cast<uint16_t>(Attribute::kApr))
    return std::nullopt;
  envelope.attribute = static_cast<Attribute>(attribute);
  const auto first = static_cast<uint32_t>(get(mad, 0, 4));
  switch (envelope.attribute) {
    case Attribute::kReq:
    case Attribute::kSidrReq:
      envelope.local_id = first;
      break;
    case Attribute::kSidrRep:
      envelope.remote_id = first;
      break;
    default:
      envelope.local_id = first;
      envelope.remote_id = static_cast<uint32_t>(get(mad, 4, 4));
      break;
  }
  return envelope;
}

Mad write(const Envelope& envelope, const ConnectionRequest& request) {
  Mad mad = begin(envelope);
  put(mad, 8, 8, request.service_id);
  put(mad, 16, 8, request.ca_guid);
  put(mad, 32, 3, request.qp_num);
  put(mad, 35, 1, request.responder_resources);
  put(mad, 39, 1, request.initiator_depth);
  put_bits(mad, 43, 0, 5, request.remote_response_timeout);
  const bool extended = request.type != QpType::kRc && request.type != QpType::kUc;
  put_bits(mad, 43, 5, 2, extended ? kTypeExtended : request.type == QpType::kUc ? kTypeUc : kTypeRc);
  put_bits(mad, 43, 7, 1, request.flow_control ? 1 : 0);
  put(mad, 44, 3, request.starting_psn);
  put_bits(mad, 47, 0, 5, request.local_response_timeout);
  put_bits(mad, 47, 5, 3, request.retry_count);
  put(mad, 48, 2, request.path.pkey);
  put_bits(mad, 50, 0, 4, static_cast<uint32_t>(request.path.mtu));
  put_bits(mad, 50, 5, 3, request.rnr_retry_count);
  put_bits(mad, 51, 0, 4, request.max_cm_retries);
  put_bits(mad, 51, 4, 1, request.srq ? 1 : 0);
  put_bits(mad, 51, 5, 3, extended ? kExtendedXrc : 0);
  put_path(mad, request.path);
  put_data(mad, 140, request.private_data);
  return mad;
}

std::optional<ConnectionRequest> read_request(const Mad& mad) {
  ConnectionRequest request;
  switch (get_bits(mad, 43, 5, 2)) {
    case kTypeRc:
      request.type = QpType::kRc;
      break;
    case kTypeUc:
      request.type = QpType::kUc;
      break;
    case kTypeExtended:
      if (get_bits(mad, 51, 5, 3) != kExtendedXrc) return std::nullopt;
      request.type = QpType::kXrcRecv;  // the receiver's type
      break;
    default:
      return std::nullopt;
  }
  request.service_id = get(mad, 8, 8);
  request.ca_guid = get(mad, 16, 8);
  request.qp_num = static_cast<uint32_t>(get(mad, 32, 3));
  request.responder_resources = static_cast<uint8_t>(get(mad, 35, 1));
  request.initiator_depth = static_cast<uint8_t>(get(mad, 39, 1));
  request.remote_response_timeout = get_bits(mad, 43, 0, 5);
  request.flow_control = get_bits(mad, 43, 7, 1) != 0;
  request.starting_psn = static_cast<uint32_t>(get(mad, 44, 3));
  request.local_response_timeout = get_bits(mad, 47, 0, 5);
  request.retry_count = get_bits(mad, 47, 5, 3);
  request.path.pkey = static_cast<uint16_t>(get(mad, 48, 2));
  request.path.mtu = static_cast<Mtu>(get_bits(mad, 50, 0, 4));
  request.rnr_retry_count = get_bits(mad, 50, 5, 3);
  request.max_cm_retries = get_bits(mad, 51, 0, 4);
  request.srq = get_bits(mad, 51, 4, 1) != 0;
  get_path(mad, &request.path);
  get_data(mad, 140, &request.private_data);
  return request;
}

Mad write(const Envelope& envelope, const ConnectionReply& reply) {
  Mad mad = begin(envelope);
  put(mad, 12, 3, reply.qp_num);
  put(mad, 20, 3, reply.starting_psn);
  put(mad, 24, 1, reply.responder_resources);
  put(mad, 25, 1, reply.initiator_depth);
  put_bits(mad, 26, 0, 5, reply.target_ack_delay);
  put_bits(mad, 26, 7, 1, reply.flow_control ? 1 : 0);
  put_bits(mad, 27, 0, 3, reply.rnr_retry_count);
  put_bits(mad, 27, 3, 1, reply.srq ? 1 : 0);
  put(mad, 28, 8, reply.ca_guid);
  put_data(mad, 36, reply.private_data);
  return mad;
}

ConnectionReply read_reply(const Mad& mad) {
  ConnectionReply reply;
  reply.qp_num = static_cast<uint32_t>(get(mad, 12, 3));
  reply.starting_psn = static_cast<uint32_t>(get(mad, 20, 3));
  reply.responder_resources = static_cast<uint8_t>(get(mad, 24, 1));
  reply.initiator_depth = static_cast<uint8_t>(get(mad, 25, 1));
  reply.target_ack_delay = get_bits(mad, 26, 0, 5);
  reply.flow_control = get_bits(mad, 26, 7, 1) != 0;
  reply.rnr_retry_count = get_bits(mad, 27, 0, 3);
  reply.srq = get_bits(mad, 27, 3, 1) != 0;
  reply.ca_guid = get(mad, 28, 8);
  get_data(mad, 36, &reply.private_data);
  return reply;
}

Mad write(const Envelope& envelope, const Delay& delay) {
  Mad mad = begin(envelope);
  put_bits(mad, 8, 0, 2, static_cast<uint32_t>(delay.answered));
  put_bits(mad, 9, 0, 5, delay.service_timeout);
  return mad;
}

Delay read_delay(const Mad& mad) { return {static_cast<Answered>(get_bits(mad, 8, 0, 2)), get_bits(mad, 9, 0, 5)}; }

Mad write(const Envelope& envelope, const Rejection& rejection) {
  Mad mad = begin(envelope);
  put_bits(mad, 8, 0, 2, static_cast<uint32_t>(rejection.answered));
  put(mad, 10, 2, rejection.reason);
  if (rejection.ca_guid != 0) {
    put_bits(mad, 9, 0, 7, sizeof rejection.ca_guid);
    put(mad, 12, 8, rejection.ca_guid);
  }
  put_data(mad, 84, rejection.private_data);
  return mad;
}

Rejection read_rejection(const Mad& mad) {
  Rejection rejection;
  rejection.answered = static_cast<Answered>(get_bits(mad, 8, 0, 2));
  rejection.reason = static_cast<uint16_t>(get(mad, 10, 2));
  if (rejection.reason == static_cast<uint16_t>(RejectReason::kTimeout)) rejection.ca_guid = get(mad, 12, 8);
  get_data(mad, 84, &rejection.private_data);
  return rejection;
}

Mad write(const Envelope& envelope, const Readiness& readiness) {
  Mad mad = begin(envelope);
  put_data(mad, 8, readiness.private_data);
  return mad;
}

Readiness read_readiness(const Mad& mad) {
  Readiness readiness;
  get_data(mad, 8, &readiness.private_data);
  return readiness;
}

Mad write(const Envelope& envelope, const Disconnection& disconnection) {
  Mad mad = begin(envelope);
  put(mad, 8, 3, disconnection.remote_qpn);
  return mad;
}

Mad write(const Envelope& envelope, const PathAnswer& answer) {
  Mad mad = begin(envelope);
  put(mad, 9, 1, answer.status);
  return mad;
}

Mad write(const Envelope& envelope, const DatagramRequest& request) {
  Mad mad = begin(envelope);
  put(mad, 4, 2, request.pkey);
  put(mad, 8, 8, request.service_id);
  put_data(mad, 16, request.private_data);
  return mad;
}

DatagramRequest read_datagram_request(const Mad& mad) {
  DatagramRequest request;
  request.pkey = static_cast<uint16_t>(get(mad, 4, 2));
  request.service_id = get(mad, 8, 8);
  get_data(mad, 16, &request.private_data);
  return request;
}

Mad write(const Envelope& envelope, const DatagramReply& reply, uint64_t service_id) {
  Mad mad = begin(envelope);
  put(mad, 4, 1, static_cast<uint64_t>(reply.status));
  put(mad, 8, 3, reply.qp_num);
  put(mad, 12, 8, service_id);
  put(mad, 20, 4, reply.qkey);
  put_data(mad, 96, reply.private_data);
  return mad;
}

DatagramReply read_datagram_reply(const Mad& mad) {
  DatagramReply reply;
  reply.status = static_cast<DatagramStatus>(get(mad, 4, 1));
  reply.qp_num = static_cast<uint32_t>(get(mad, 8, 3));
  reply.qkey = static_cast<uint32_t>(get(mad, 20, 4));
  get_data(mad, 96, &reply.private_data);
  return reply;
}

uint64_t read_service(const Mad& mad) { return get(mad, 12, 8); }

}  // namespace nupa::cm
