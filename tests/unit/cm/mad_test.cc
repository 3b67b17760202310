// SPDX-License-Identifier: Apache-2.0
// Management datagrams of the communication manager: written and read, and the layout in IBTA's tables.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cm/engine/mad.h"

namespace nupa::cm {
namespace {

/// A field: where it starts, in bits from the end of the header, and how wide it is. 0 is the highest bit of a byte.
struct Field {
  uint32_t byte;
  uint32_t bit;
  uint32_t bits;
  uint64_t value;
};

constexpr uint32_t kHeaderBytes = 24;

uint64_t bits_of(const Mad& mad, uint32_t first, uint32_t count) {
  uint64_t value = 0;
  for (uint32_t i = first; i < first + count; ++i)
    value = value << 1 | (std::to_integer<uint32_t>(mad[i / 8]) >> (7 - i % 8) & 1);
  return value;
}
void clear_bits(Mad& mad, uint32_t first, uint32_t count) {
  for (uint32_t i = first; i < first + count; ++i) mad[i / 8] &= static_cast<std::byte>(~(0x80u >> i % 8));
}

/// Each field holds its value, and everything else is zero.
void expect_fields(Mad mad, std::vector<Field> fields, uint32_t data_at, uint32_t data_bytes) {
  for (const Field& field : fields) {
    const uint32_t at = (kHeaderBytes + field.byte) * 8 + field.bit;
    EXPECT_EQ(field.value, bits_of(mad, at, field.bits)) << "byte " << field.byte << " bit " << field.bit;
    clear_bits(mad, at, field.bits);
  }
  for (uint32_t i = 0; i < data_bytes; ++i)
    ASSERT_EQ(static_cast<std::byte>(i + 1), mad[kHeaderBytes + data_at + i]) << "private data, byte " << i;
  std::memset(&mad[kHeaderBytes + data_at], 0, data_bytes);
  for (size_t i = kHeaderBytes; i < mad.size(); ++i)
    EXPECT_EQ(std::byte{0}, mad[i]) << "byte " << i - kHeaderBytes << " has no field";
  EXPECT_TRUE(data_bytes == 0 || kHeaderBytes + data_at + data_bytes == mad.size()) << "private data comes last";
}

void expect_header(const Mad& mad, Attribute attribute) {
  EXPECT_EQ(0x01070203u, bits_of(mad, 0, 32)) << "version, class, version of the class, method";
  EXPECT_EQ(0u, bits_of(mad, 32, 32)) << "status";
  EXPECT_EQ(0x1122334455667788u, bits_of(mad, 64, 64));
  EXPECT_EQ(static_cast<uint64_t>(attribute) << 16, bits_of(mad, 128, 32));
  EXPECT_EQ(0u, bits_of(mad, 160, 32)) << "modifier";
  const std::optional<Envelope> envelope = read_envelope(mad);
  ASSERT_TRUE(envelope);
  EXPECT_EQ(attribute, envelope->attribute);
  EXPECT_EQ(0x1122334455667788u, envelope->transaction);
}

template <size_t kRoom>
void number(PrivateData<kRoom>& data) {
  for (size_t i = 0; i < kRoom; ++i) data.bytes[i] = static_cast<std::byte>(i + 1);
  data.length = kRoom;
}
template <size_t kRoom>
void expect_same(const PrivateData<kRoom>& expected, const PrivateData<kRoom>& found) {
  EXPECT_EQ(kRoom, found.length);
  EXPECT_EQ(expected.bytes, found.bytes);
}

Envelope envelope_of(Attribute attribute) { return {attribute, 0x1122334455667788, 0xa1a2a3a4, 0xb1b2b3b4}; }
constexpr uint64_t kLocalId = 0xa1a2a3a4;
constexpr uint64_t kRemoteId = 0xb1b2b3b4;

Gid gid_of(uint8_t first) {
  Gid gid;
  for (uint8_t i = 0; i < 16; ++i) gid.raw[i] = static_cast<uint8_t>(first + i);
  return gid;
}

ConnectionRequest request_of(QpType type) {
  ConnectionRequest request;
  request.service_id = 0x0000000001061234;
  request.ca_guid = 0x0102030405060708;
  request.path.local = gid_of(0x20);
  request.path.remote = gid_of(0x40);
  request.path.pkey = 0x8fff;
  request.path.mtu = Mtu::k4096;
  request.path.ack_timeout = 19;
  request.path.traffic_class = 0x6a;
  request.path.hop_limit = 0x3f;
  request.path.service_level = 0xb;
  request.path.rate = 0x25;
  request.path.flow_label = 0xabcde;
  request.qp_num = 0xc0ffee;
  request.type = type;
  request.starting_psn = 0x9abcde;
  request.responder_resources = 0x11;
  request.initiator_depth = 0x12;
  request.retry_count = 5;
  request.rnr_retry_count = 6;
  request.flow_control = true;
  request.srq = true;
  request.max_cm_retries = 13;
  request.remote_response_timeout = 21;
  request.local_response_timeout = 18;
  number(request.private_data);
  return request;
}

TEST(CmMad, WriteReq_HasTheLayoutOfTable106) {
  for (const auto& [type, service, extended] :
       {std::tuple{QpType::kRc, 0u, 0u}, std::tuple{QpType::kUc, 1u, 0u}, std::tuple{QpType::kXrcSend, 3u, 1u}}) {
    const Mad mad = write(envelope_of(Attribute::kReq), request_of(type));
    expect_header(mad, Attribute::kReq);
    expect_fields(mad,
                  {{0, 0, 32, kLocalId},
                   {8, 0, 64, 0x0000000001061234},
                   {16, 0, 64, 0x0102030405060708},
                   {28, 0, 32, 0},         // Q_Key
                   {32, 0, 24, 0xc0ffee},  // queue pair
                   {35, 0, 8, 0x11},       // responder resources
                   {36, 0, 24, 0},         // EE context
                   {39, 0, 8, 0x12},       // initiator depth
                   {40, 0, 24, 0},
                   {43, 0, 5, 21},  // remote response timeout
                   {43, 5, 2, service},
                   {43, 7, 1, 1},          // end-to-end flow control
                   {44, 0, 24, 0x9abcde},  // starting PSN
                   {47, 0, 5, 18},         // local response timeout
                   {47, 5, 3, 5},          // retry count
                   {48, 0, 16, 0x8fff},
                   {50, 0, 4, 5},   // MTU
                   {50, 5, 3, 6},   // RNR retry count
                   {51, 0, 4, 13},  // max CM retries
                   {51, 4, 1, 1},   // SRQ
                   {51, 5, 3, extended},
                   {52, 0, 16, 0xffff},  // LIDs: permissive
                   {54, 0, 16, 0xffff},
                   {56, 0, 64, 0x2021222324252627},
                   {64, 0, 64, 0x28292a2b2c2d2e2f},
                   {72, 0, 64, 0x4041424344454647},
                   {80, 0, 64, 0x48494a4b4c4d4e4f},
                   {88, 0, 20, 0xabcde},  // flow label
                   {91, 2, 6, 0x25},      // rate
                   {92, 0, 8, 0x6a},
                   {93, 0, 8, 0x3f},
                   {94, 0, 4, 0xb},  // service level
                   {94, 4, 1, 0},    // not local to the subnet
                   {95, 0, 5, 19}},  // ack timeout
                  140, 92);
  }
}

TEST(CmMad, ReadRequest_WrittenReq_HasTheSameFields) {
  for (const auto& [sent, seen] : {std::pair{QpType::kRc, QpType::kRc}, std::pair{QpType::kUc, QpType::kUc},
                                   std::pair{QpType::kXrcSend, QpType::kXrcRecv}}) {
    const ConnectionRequest request = request_of(sent);
    const Mad mad = write(envelope_of(Attribute::kReq), request);
    EXPECT_EQ(kLocalId, read_envelope(mad)->local_id);
    EXPECT_EQ(0u, read_envelope(mad)->remote_id);
    const std::optional<ConnectionRequest> found = read_request(mad);
    ASSERT_TRUE(found);
    EXPECT_EQ(seen, found->type);
    EXPECT_EQ(request.path.local, found->path.remote) << "the receiver's view";
    EXPECT_EQ(request.path.remote, found->path.local);
    // Written again as the receiver's other end would: the same bytes.
    ConnectionRequest again = *found;
    again.type = sent;
    std::swap(again.path.local, again.path.remote);
    EXPECT_EQ(mad, write(envelope_of(Attribute::kReq), again));
  }
}

TEST(CmMad, ReadRequest_UnknownTransport_Fails) {
  Mad mad = write(envelope_of(Attribute::kReq), request_of(QpType::kRc));
  mad[kHeaderBytes + 43] = (mad[kHeaderBytes + 43] & std::byte{0xf9}) | std::byte{2 << 1};  // reliable datagram
  EXPECT_FALSE(read_request(mad));
  mad = write(envelope_of(Attribute::kReq), request_of(QpType::kXrcSend));
  mad[kHeaderBytes + 51] = (mad[kHeaderBytes + 51] & std::byte{0xf8}) | std::byte{2};
  EXPECT_FALSE(read_request(mad)) << "an extended type that there is not";
}

TEST(CmMad, WriteMra_HasTheLayoutOfTable107) {
  const Mad mad = write(envelope_of(Attribute::kMra), Delay{Answered::kRep, 22});
  expect_header(mad, Attribute::kMra);
  expect_fields(mad, {{0, 0, 32, kLocalId}, {4, 0, 32, kRemoteId}, {8, 0, 2, 1}, {9, 0, 5, 22}}, 0, 0);
  EXPECT_EQ(Answered::kRep, read_delay(mad).answered);
  EXPECT_EQ(22, read_delay(mad).service_timeout);
}

TEST(CmMad, WriteRej_HasTheLayoutOfTable108) {
  Rejection rejection;
  rejection.answered = Answered::kOther;
  rejection.reason = static_cast<uint16_t>(RejectReason::kTimeout);
  rejection.ca_guid = 0x0102030405060708;
  number(rejection.private_data);
  const Mad mad = write(envelope_of(Attribute::kRej), rejection);
  expect_header(mad, Attribute::kRej);
  expect_fields(mad,
                {{0, 0, 32, kLocalId},
                 {4, 0, 32, kRemoteId},
                 {8, 0, 2, 2},
                 {9, 0, 7, 8},  // bytes of information
                 {10, 0, 16, 4},
                 {12, 0, 64, 0x0102030405060708}},
                84, 148);
  const Rejection found = read_rejection(mad);
  EXPECT_EQ(rejection.answered, found.answered);
  EXPECT_EQ(rejection.reason, found.reason);
  EXPECT_EQ(rejection.ca_guid, found.ca_guid);
  expect_same(rejection.private_data, found.private_data);
}

ConnectionReply reply_of() {
  ConnectionReply reply;
  reply.ca_guid = 0x0102030405060708;
  reply.qp_num = 0xc0ffee;
  reply.starting_psn = 0x9abcde;
  reply.responder_resources = 0x11;
  reply.initiator_depth = 0x12;
  reply.target_ack_delay = 19;
  reply.rnr_retry_count = 6;
  reply.flow_control = true;
  reply.srq = true;
  number(reply.private_data);
  return reply;
}

TEST(CmMad, WriteRep_HasTheLayoutOfTable110) {
  const ConnectionReply reply = reply_of();
  const Mad mad = write(envelope_of(Attribute::kRep), reply);
  expect_header(mad, Attribute::kRep);
  expect_fields(mad,
                {{0, 0, 32, kLocalId},
                 {4, 0, 32, kRemoteId},
                 {12, 0, 24, 0xc0ffee},
                 {20, 0, 24, 0x9abcde},
                 {24, 0, 8, 0x11},
                 {25, 0, 8, 0x12},
                 {26, 0, 5, 19},  // target ack delay
                 {26, 5, 2, 0},   // failover accepted
                 {26, 7, 1, 1},   // end-to-end flow control
                 {27, 0, 3, 6},   // RNR retry count
                 {27, 3, 1, 1},   // SRQ
                 {28, 0, 64, 0x0102030405060708}},
                36, 196);
  EXPECT_EQ(mad, write(envelope_of(Attribute::kRep), read_reply(mad)));
  expect_same(reply.private_data, read_reply(mad).private_data);
}

TEST(CmMad, WriteRtuAndDrep_HaveTheLayoutOfTables111And113) {
  Readiness readiness;
  number(readiness.private_data);
  for (const Attribute attribute : {Attribute::kRtu, Attribute::kDrep}) {
    const Mad mad = write(envelope_of(attribute), readiness);
    expect_header(mad, attribute);
    expect_fields(mad, {{0, 0, 32, kLocalId}, {4, 0, 32, kRemoteId}}, 8, 224);
    expect_same(readiness.private_data, read_readiness(mad).private_data);
  }
}

TEST(CmMad, WriteDreq_HasTheLayoutOfTable112) {
  const Mad mad = write(envelope_of(Attribute::kDreq), Disconnection{0xc0ffee});
  expect_header(mad, Attribute::kDreq);
  expect_fields(mad, {{0, 0, 32, kLocalId}, {4, 0, 32, kRemoteId}, {8, 0, 24, 0xc0ffee}}, 0, 0);
}

TEST(CmMad, WriteApr_HasTheLayoutOfTable116) {
  const Mad mad = write(envelope_of(Attribute::kApr), PathAnswer{kPathUnsupported});
  expect_header(mad, Attribute::kApr);
  expect_fields(mad, {{0, 0, 32, kLocalId}, {4, 0, 32, kRemoteId}, {8, 0, 8, 0}, {9, 0, 8, 2}}, 0, 0);
}

TEST(CmMad, WriteSidrReq_HasTheLayoutOfTable119) {
  DatagramRequest request;
  request.service_id = 0x0000000001111234;
  request.pkey = 0x8fff;
  number(request.private_data);
  const Mad mad = write(envelope_of(Attribute::kSidrReq), request);
  expect_header(mad, Attribute::kSidrReq);
  expect_fields(mad, {{0, 0, 32, kLocalId}, {4, 0, 16, 0x8fff}, {8, 0, 64, 0x0000000001111234}}, 16, 216);
  EXPECT_EQ(kLocalId, read_envelope(mad)->local_id);
  const DatagramRequest found = read_datagram_request(mad);
  EXPECT_EQ(request.service_id, found.service_id);
  EXPECT_EQ(request.pkey, found.pkey);
  expect_same(request.private_data, found.private_data);
}

TEST(CmMad, WriteSidrRep_HasTheLayoutOfTable120) {
  DatagramReply reply;
  reply.status = DatagramStatus::kUnsupportedVersion;
  reply.qp_num = 0xc0ffee;
  reply.qkey = 0x01234567;
  number(reply.private_data);
  const Mad mad = write(envelope_of(Attribute::kSidrRep), reply, 0x0000000001111234);
  expect_header(mad, Attribute::kSidrRep);
  expect_fields(mad,
                {{0, 0, 32, kRemoteId},  // the request's
                 {4, 0, 8, 5},
                 {5, 0, 8, 0},
                 {8, 0, 24, 0xc0ffee},
                 {12, 0, 64, 0x0000000001111234},
                 {20, 0, 32, 0x01234567}},
                96, 136);
  EXPECT_EQ(kRemoteId, read_envelope(mad)->remote_id);
  EXPECT_EQ(0x0000000001111234u, read_service(mad));
  const DatagramReply found = read_datagram_reply(mad);
  EXPECT_EQ(reply.status, found.status);
  EXPECT_EQ(reply.qp_num, found.qp_num);
  EXPECT_EQ(reply.qkey, found.qkey);
  expect_same(reply.private_data, found.private_data);
}

TEST(CmMad, ReadEnvelope_OtherClassVersionOrAttribute_Fails) {
  const Mad mad = write(envelope_of(Attribute::kRtu), Readiness{});
  for (const size_t at : {0, 1, 2, 3, 16, 17}) {
    Mad other = mad;
    other[at] = std::byte{0x7f};
    EXPECT_FALSE(read_envelope(other)) << "byte " << at;
  }
  Mad other = mad;
  other[17] = std::byte{0x0f};
  EXPECT_FALSE(read_envelope(other));
  other[17] = std::byte{0x1b};
  EXPECT_FALSE(read_envelope(other));
}

TEST(CmMad, PrivateData_TooLong_IsRefused) {
  PrivateData<92> data;
  const std::array<std::byte, 93> much{};
  EXPECT_FALSE(data.set(much.data(), much.size()));
  EXPECT_TRUE(data.set(much.data(), 92));
  EXPECT_EQ(92u, data.length);
}

}  // namespace
}  // namespace nupa::cm
