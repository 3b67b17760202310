// SPDX-License-Identifier: Apache-2.0
/// IP packets: how they are read and checked.
#include <gtest/gtest.h>

#include <algorithm>

#include "netdev/ip_packet.h"
#include "netdev/prefix.h"
#include "packets.h"

namespace nupa::netdev {
namespace {

TEST(NetdevPacket, Ipv4IsRead) {
  const auto packet = parse(ipv4(100));
  ASSERT_TRUE(packet);
  EXPECT_EQ(4, packet->version);
  EXPECT_EQ(17, packet->protocol);
  EXPECT_EQ(20, packet->header_bytes);
  EXPECT_EQ(120u, packet->bytes);
  EXPECT_FALSE(packet->may_be_cut);
  EXPECT_FALSE(packet->is_later_part);
  EXPECT_EQ(gid("10.77.0.1"), packet->source);
  EXPECT_EQ(gid("10.77.0.2"), packet->destination);
  EXPECT_TRUE(parse(ipv4(100, 17, 0))->may_be_cut);
  Packet later = ipv4(100, 17, 0);
  put(later, 7, {3});
  EXPECT_TRUE(parse(later)->is_later_part);
}

TEST(NetdevPacket, Ipv6IsRead) {
  const auto packet = parse(ipv6(30, 6));
  ASSERT_TRUE(packet);
  EXPECT_EQ(6, packet->version);
  EXPECT_EQ(6, packet->protocol);
  EXPECT_EQ(70u, packet->bytes);
  EXPECT_FALSE(packet->may_be_cut);
  EXPECT_EQ(gid("fd77::1"), packet->source);
  EXPECT_EQ(gid("fd77::2"), packet->destination);
}

TEST(NetdevPacket, WhatIsNoWholePacketIsNone) {
  for (const Packet& whole : {ipv4(50), ipv6(50)})
    for (size_t length = 0; length <= whole.size() + 1; ++length) {
      Packet packet = whole;
      packet.resize(length);
      EXPECT_EQ(length == whole.size(), parse(packet).has_value()) << length;
    }
  for (int version = 0; version < 16; ++version) {
    Packet packet = ipv4(50);
    put(packet, 0, {version << 4 | 5});
    EXPECT_EQ(version == 4, parse(packet).has_value()) << version;
  }
  for (int words = 0; words < 16; ++words) {
    Packet packet = ipv4(10);
    put(packet, 0, {0x40 | words});
    EXPECT_EQ(words >= 5 && words * 4 <= 30, parse(packet).has_value()) << words;
  }
}

TEST(NetdevPacket, AHeaderMustFitItsPacket) {
  const IpPacket tcp = *parse(ipv4(1000, 6));
  VirtioHeader header;
  EXPECT_TRUE(is_consistent(header, tcp));
  header.flags = VirtioHeader::kNeedsChecksum;
  header.csum_start = 20;
  header.csum_offset = 16;
  EXPECT_TRUE(is_consistent(header, tcp));
  header.csum_start = 19;  // within the first header
  EXPECT_FALSE(is_consistent(header, tcp));
  header.csum_start = 1002;  // the sum would be behind the end
  EXPECT_TRUE(is_consistent(header, tcp));
  header.csum_start = 1003;
  EXPECT_FALSE(is_consistent(header, tcp));
  header.csum_start = 20;
  header.gso_type = VirtioHeader::kGsoTcp4;
  EXPECT_FALSE(is_consistent(header, tcp));  // of no size
  header.gso_size = 100;
  header.hdr_len = 40;
  EXPECT_TRUE(is_consistent(header, tcp));
  header.gso_type |= VirtioHeader::kGsoEcn;
  EXPECT_TRUE(is_consistent(header, tcp));
  EXPECT_FALSE(is_consistent(header, *parse(ipv4(1000, 17))));
  EXPECT_FALSE(is_consistent(header, *parse(ipv6(1000, 6))));
  header.hdr_len = 1021;
  EXPECT_FALSE(is_consistent(header, tcp));
  header.hdr_len = 40;
  header.flags = 0;  // a large segment's sum is always open
  EXPECT_FALSE(is_consistent(header, tcp));
  header.flags = VirtioHeader::kNeedsChecksum;
  for (int type = 0; type < 256; ++type) {
    header.gso_type = static_cast<uint8_t>(type);
    const int kind = type & 0x7f;
    EXPECT_EQ(type == 0 || kind == VirtioHeader::kGsoTcp4, is_consistent(header, tcp)) << type;
  }
}

TEST(NetdevPacket, TheLargestPartOfALargeSegment) {
  Packet packet = ipv4(5000, 6);
  put(packet, 20 + 12, {0x80});  // TCP with options: 32 bytes
  VirtioHeader header;
  EXPECT_EQ(5020u, largest_part(header, packet));
  header.flags = VirtioHeader::kNeedsChecksum;
  header.csum_start = 20;
  header.csum_offset = 16;
  header.gso_type = VirtioHeader::kGsoTcp4;
  header.gso_size = 1448;
  header.hdr_len = 4000;  // more than its headers, as the kernel has it
  EXPECT_EQ(1500u, largest_part(header, packet));
  header.gso_type = VirtioHeader::kGsoUdp;
  EXPECT_EQ(1476u, largest_part(header, packet));
  header.gso_size = 9000;
  EXPECT_EQ(5020u, largest_part(header, packet));
}

TEST(NetdevPacket, AnOpenSumIsCompleted) {
  for (const size_t payload : {8u, 9u, 1000u, 1001u}) {
    Packet packet = ipv4(payload);
    // The kernel leaves the sum of the pseudo-header in its place (RFC 768).
    Packet pseudo(packet.begin() + 12, packet.begin() + 20);
    pseudo.resize(12);
    put(pseudo, 9, {17, static_cast<int>(payload >> 8), static_cast<int>(payload & 255)});
    const uint32_t part = sum(pseudo);
    put(packet, 26, {static_cast<int>(part >> 8), static_cast<int>(part & 255)});
    VirtioHeader header;
    header.flags = VirtioHeader::kNeedsChecksum;
    header.csum_start = 20;
    header.csum_offset = 6;
    complete_checksum(header, packet);
    EXPECT_EQ(0xffffu, sum(std::span(packet).subspan(20), part)) << payload;
  }
}

TEST(NetdevPacket, Parse_MoreThan65535Bytes_IsNone) {
  EXPECT_TRUE(parse(ipv6(65535 - 40)));
  EXPECT_FALSE(parse(ipv6(65536 - 40)));
}

TEST(NetdevPacket, Parse_FragmentThatEndsBeyond65535Bytes_IsNone) {
  // RFC 791, 3.2: offsets count 8 bytes.
  constexpr int kLastOffset = 65512 / 8;
  for (const size_t payload : {22u, 23u, 24u}) {
    Packet last = ipv4(payload, 17, 0);
    put(last, 6, {kLastOffset >> 8, kLastOffset & 255});
    EXPECT_EQ(payload <= 23, parse(last).has_value()) << payload;
  }
}

TEST(NetdevPacket, Parse_EachBitOfTheOffset_MakesALaterPart) {
  for (int bit = 0; bit < 16; ++bit) {
    Packet packet = ipv4(8, 17, 0);
    put(packet, 6, {1 << bit >> 8, 1 << bit & 255});
    const auto read = parse(packet);
    ASSERT_TRUE(read) << bit;
    EXPECT_EQ(bit < 13, read->is_later_part) << bit;  // then come "more fragments", "don't fragment" and a spare one
    EXPECT_EQ(bit != 14, read->may_be_cut) << bit;
  }
}

TEST(NetdevPacket, Parse_Options_AreOfTheHeader) {
  Packet packet = ipv4(24);
  put(packet, 0, {0x4b});
  const auto read = parse(packet);
  ASSERT_TRUE(read);
  EXPECT_EQ(44, read->header_bytes);
  // The first bytes only, as a pump looks at a packet of a peer.
  EXPECT_TRUE(IpPacket::parse(std::span(packet).first(44), packet.size()));
  EXPECT_FALSE(IpPacket::parse(std::span(packet).first(43), packet.size()));
}

TEST(NetdevPacket, IsConsistent_OpenSum_LiesBehindTheHeaderAndWithinThePacket) {
  Packet with_options = ipv4(104);
  put(with_options, 0, {0x46});
  const std::pair<IpPacket, int> packets[] = {
      {*parse(ipv4(100)), 20}, {*parse(with_options), 24}, {*parse(ipv6(100)), 40}};
  for (const auto& [packet, header_bytes] : packets) {
    VirtioHeader header;
    header.flags = VirtioHeader::kNeedsChecksum;
    for (const uint32_t offset : {0u, 6u, 16u, 65535u})
      for (const uint32_t start : {0u, header_bytes - 1u, header_bytes + 0u, packet.bytes - offset - 2,
                                   packet.bytes - offset - 1, packet.bytes, 65535u}) {
        header.csum_start = static_cast<uint16_t>(start);
        header.csum_offset = static_cast<uint16_t>(offset);
        const bool fits = header.csum_start >= header_bytes && header.csum_start + offset + 2 <= packet.bytes;
        EXPECT_EQ(fits, is_consistent(header, packet)) << packet.bytes << ' ' << start << ' ' << offset;
      }
    // Without the flag nothing is done there.
    header.flags = VirtioHeader::kChecksumIsValid;
    EXPECT_TRUE(is_consistent(header, packet));
  }
}

TEST(NetdevPacket, IsConsistent_LaterPart_HasNoOpenSumAndIsNoSegment) {
  Packet later = ipv4(100, 17, 0);
  put(later, 7, {1});
  VirtioHeader header;
  header.csum_start = 20;
  header.csum_offset = 6;
  EXPECT_TRUE(is_consistent(header, *parse(later)));
  header.flags = VirtioHeader::kNeedsChecksum;
  EXPECT_FALSE(is_consistent(header, *parse(later)));
  header.gso_type = VirtioHeader::kGsoUdp;
  header.gso_size = 10;
  EXPECT_FALSE(is_consistent(header, *parse(later)));
  put(later, 7, {0});
  EXPECT_TRUE(is_consistent(header, *parse(later)));
}

TEST(NetdevPacket, IsConsistent_Segment_IsOfTheFamilyAndProtocolOfItsType) {
  VirtioHeader header;
  header.flags = VirtioHeader::kNeedsChecksum;
  header.gso_size = 10;
  struct {
    uint8_t type;
    int version, protocol;
    bool fits;
  } const cases[] = {{VirtioHeader::kGsoTcp4, 4, 6, true},
                     {VirtioHeader::kGsoTcp4, 4, 17, false},
                     {VirtioHeader::kGsoTcp4, 6, 6, false},
                     {VirtioHeader::kGsoTcp6, 6, 6, true},
                     {VirtioHeader::kGsoTcp6, 4, 6, false},
                     {VirtioHeader::kGsoTcp6, 6, 43, true},  // a header between
                     {VirtioHeader::kGsoUdp, 4, 17, true},
                     {VirtioHeader::kGsoUdp, 4, 6, false},
                     {VirtioHeader::kGsoUdp, 6, 17, true},
                     {VirtioHeader::kGsoUdp, 6, 43, true},
                     {2, 4, 17, false},
                     {3, 4, 17, false},  // UFO, which nobody asks for
                     {2, 6, 17, false},
                     {6, 4, 17, false}};
  for (const auto& one : cases)
    for (const int ecn : {0, 0x80}) {
      header.csum_start = one.version == 4 ? 20 : 40;
      header.csum_offset = 6;
      header.gso_type = static_cast<uint8_t>(one.type | ecn);
      const Packet packet = one.version == 4 ? ipv4(100, one.protocol) : ipv6(100, one.protocol);
      EXPECT_EQ(one.fits, is_consistent(header, *parse(packet)))
          << +one.type << ' ' << one.version << ' ' << one.protocol;
    }
}

TEST(NetdevPacket, IsConsistent_Segment_HasRoomForItsHeaders) {
  VirtioHeader header;
  header.flags = VirtioHeader::kNeedsChecksum;
  header.gso_size = 10;
  header.csum_offset = 2;
  const auto fits = [&](uint8_t type, size_t start, Packet packet) {
    header.gso_type = type;
    header.csum_start = static_cast<uint16_t>(start);
    return is_consistent(header, *parse(packet));
  };
  EXPECT_TRUE(fits(VirtioHeader::kGsoTcp4, 20, ipv4(20, 6)));
  EXPECT_FALSE(fits(VirtioHeader::kGsoTcp4, 20, ipv4(19, 6)));
  EXPECT_FALSE(fits(VirtioHeader::kGsoTcp4, 21, ipv4(20, 6)));
  EXPECT_TRUE(fits(VirtioHeader::kGsoTcp6, 40, ipv6(20, 6)));
  EXPECT_FALSE(fits(VirtioHeader::kGsoTcp6, 40, ipv6(19, 6)));
  EXPECT_TRUE(fits(VirtioHeader::kGsoUdp, 20, ipv4(8)));
  EXPECT_FALSE(fits(VirtioHeader::kGsoUdp, 20, ipv4(7)));
  EXPECT_FALSE(fits(VirtioHeader::kGsoUdp, 41, ipv6(8)));
  header.hdr_len = 28;
  EXPECT_TRUE(fits(VirtioHeader::kGsoUdp, 20, ipv4(8)));
  header.hdr_len = 29;
  EXPECT_FALSE(fits(VirtioHeader::kGsoUdp, 20, ipv4(8)));
}

TEST(NetdevPacket, LargestPart_CountsTheHeaderOfTcpWithItsOptions) {
  Packet packet = ipv4(5000, 6);
  VirtioHeader header;
  header.flags = VirtioHeader::kNeedsChecksum;
  header.csum_start = 20;
  header.csum_offset = 16;
  header.gso_size = 1000;
  for (const int words : {5, 8, 15})
    for (const uint8_t type :
         {uint8_t{VirtioHeader::kGsoTcp4}, static_cast<uint8_t>(VirtioHeader::kGsoTcp4 | VirtioHeader::kGsoEcn)}) {
      put(packet, 20 + 12, {words << 4 | 0xf});  // the lower half is reserved bits
      header.gso_type = type;
      EXPECT_EQ(20u + static_cast<uint32_t>(words) * 4 + 1000, largest_part(header, packet)) << words;
    }
}

TEST(NetdevPacket, CompleteChecksum_SumOfZero_IsWrittenAsOnes) {
  // RFC 768: zero is for no sum. Only the field is changed, and only if it is open.
  Packet packet = ipv4(16);
  std::fill(packet.begin() + 20, packet.end(), std::byte{0});
  put(packet, 30, {0xff, 0xff});
  VirtioHeader header;
  header.csum_start = 20;
  header.csum_offset = 6;
  Packet wanted = packet;
  complete_checksum(header, packet);
  EXPECT_EQ(wanted, packet);
  header.flags = VirtioHeader::kNeedsChecksum;
  complete_checksum(header, packet);
  put(wanted, 26, {0xff, 0xff});
  EXPECT_EQ(wanted, packet);
}

TEST(NetdevPacket, CompleteChecksum_ManyCarries_AreAllAdded) {
  // RFC 1071: with 30,000 words of ones, the sum's carries have a carry.
  Packet packet = ipv4(60000);
  std::fill(packet.begin() + 20, packet.end(), std::byte{0xff});
  put(packet, 26, {0, 1});
  VirtioHeader header;
  header.flags = VirtioHeader::kNeedsChecksum;
  header.csum_start = 20;
  header.csum_offset = 6;
  complete_checksum(header, packet);
  EXPECT_EQ(0xfffeu, word(packet, 26));
}

}  // namespace
}  // namespace nupa::netdev
