// SPDX-License-Identifier: Apache-2.0
// The bytes that rdma-core's rsockets exchange (librdmacm/docs/rsocket).
#include "rsockets/wire.h"

#include <gtest/gtest.h>

#include <cstring>

using namespace nupa::rsockets;

TEST(RsocketsWire, Encode_Operation_IsInTheUpperThreeBits) {
  EXPECT_EQ(encode(Op::kData, 5), 0x00000005u);
  EXPECT_EQ(encode(Op::kCredits, 0x1234), 0x80001234u);
  EXPECT_EQ(encode(Op::kMapping, 7), 0xc0000007u);
  EXPECT_EQ(encode(Control::kDisconnect), 0xe0000000u);
  EXPECT_EQ(encode(Control::kKeepalive), 0xe0000001u);
  EXPECT_EQ(encode(Control::kShutdown), 0xe0000002u);
}

TEST(RsocketsWire, Decode_EncodedValue_IsTheSame) {
  for (const uint32_t value : {0u, 1u, 65536u, kMaxMessageValue}) {
    for (const Op op : {Op::kData, Op::kWrite, Op::kCredits, Op::kMapping, Op::kControl}) {
      EXPECT_EQ(op_of(encode(op, value)), op);
      EXPECT_EQ(value_of(encode(op, value)), value);
    }
  }
}

TEST(RsocketsWire, Encode_LargestValue_LeavesTheOperation) {
  EXPECT_EQ(op_of(encode(Op::kData, UINT32_MAX)), Op::kData);
}

TEST(RsocketsWire, ConnectData_HasTheSpecifiedLayout) {
  ConnectData data{};
  data.version = kConnectVersion;
  data.flags = kConnectMappings;
  data.credits = htobe16(384);
  data.mappings = 5;
  data.targets = to_network({0x0102030405060708, 0x11121314, 2});
  data.first = to_network({0x2122232425262728, 0x31323334, 65536});
  const unsigned char expected[40] = {
      1, 2, 0x01, 0x80, 0,    0,    0,    5,    0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x11, 0x12, 0x13, 0x14,
      0, 0, 0,    2,    0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0,    1,    0,    0};
  EXPECT_EQ(std::memcmp(&data, expected, sizeof data), 0);
}

TEST(RsocketsWire, FromNetwork_ConvertedBuffer_IsTheSame) {
  const RemoteBuffer buffer{0x123456789abcdef0, 0x87654321, 65536};
  const RemoteBuffer back = from_network(to_network(buffer));
  EXPECT_EQ(back.addr, buffer.addr);
  EXPECT_EQ(back.key, buffer.key);
  EXPECT_EQ(back.length, buffer.length);
  EXPECT_EQ(swapped(swapped(buffer)).addr, buffer.addr);
}

TEST(RsocketsWire, ScaleDown_SmallCountsAreExactAndLargeOnesRoundDown) {
  for (uint32_t count = 0; count <= 128; ++count) EXPECT_EQ(scale_up(scale_down(count)), count);
  EXPECT_EQ(scale_up(scale_down(256)), 256u);
  EXPECT_EQ(scale_up(scale_down(300)), 256u);
  EXPECT_EQ(scale_down(300), 129);
  EXPECT_EQ(scale_up(scale_down(127 << 8)), 127u << 8);
  EXPECT_EQ(scale_up(scale_down(UINT32_MAX)), 127u << 8);
}

TEST(RsocketsWire, DatagramHeaders_HaveTheSpecifiedLayout) {
  EXPECT_EQ(offsetof(DatagramHeader, port), 2u);
  EXPECT_EQ(offsetof(DatagramHeader, addr.ipv4), 4u);
  EXPECT_EQ(offsetof(DatagramHeader, addr.ipv6.addr), 8u);
  EXPECT_EQ(offsetof(UdpHeader, version), 4u);
  EXPECT_EQ(offsetof(UdpHeader, op), 5u);
  EXPECT_EQ(offsetof(UdpHeader, length), 6u);
  EXPECT_EQ(offsetof(UdpHeader, qpn), 8u);
  EXPECT_EQ(offsetof(UdpHeader, addr), 12u);
}
