// SPDX-License-Identifier: Apache-2.0
/// IP packets that are cut into fragments or datagrams, or answered by ICMP.
#include <gtest/gtest.h>

#include <algorithm>

#include "netdev/ip_packet.h"
#include "netdev/prefix.h"
#include "packets.h"

namespace nupa::netdev {
namespace {

/// A large segment of datagrams, as the kernel has it: the sum of its pseudo-header is in the sum's place.
VirtioHeader with_udp(Packet& packet, size_t start, uint16_t size) {
  const size_t length = packet.size() - start;
  put(packet, start, {7, 1, 7, 2, static_cast<int>(length >> 8), static_cast<int>(length & 255)});
  const size_t addresses = start == 20 ? 12 : 8;
  const uint32_t open =
      sum(std::span(packet).subspan(addresses, start - addresses), static_cast<uint32_t>(17 + length));
  put(packet, start + 6, {static_cast<int>(open >> 8), static_cast<int>(open & 255)});
  VirtioHeader header;
  header.flags = VirtioHeader::kNeedsChecksum;
  header.gso_type = VirtioHeader::kGsoUdp;
  header.gso_size = size;
  header.csum_start = static_cast<uint16_t>(start);
  header.csum_offset = 6;
  return header;
}

TEST(NetdevPacket, DatagramsOf_Segment_IsCutIntoDatagrams) {
  for (const size_t start : {20u, 40u}) {
    Packet whole = start == 20 ? ipv4(8 + 2500) : ipv6(8 + 2500);
    VirtioHeader header = with_udp(whole, start, 1001);
    ASSERT_TRUE(is_consistent(header, *parse(whole)));
    auto parts = datagrams_of(header, whole);
    ASSERT_EQ(3u, parts.size());
    header.gso_type = VirtioHeader::kGsoNone;
    Packet payload;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto part = parse(parts[i]);
      ASSERT_TRUE(part) << i;
      ASSERT_TRUE(is_consistent(header, *part)) << i;
      EXPECT_EQ(start + 8 + (i < 2 ? 1001u : 498u), parts[i].size());
      EXPECT_EQ(parts[i].size() - start, word(parts[i], start + 4));
      if (start == 20) {
        EXPECT_EQ(0xffffu, sum(std::span(parts[i]).first(20)));
        EXPECT_EQ(0x1234u + i, word(parts[i], 4));  // RFC 6864, 4.1: each datagram has its own
      }
      payload.insert(payload.end(), parts[i].begin() + static_cast<ptrdiff_t>(start) + 8, parts[i].end());
      complete_checksum(header, parts[i]);
      const size_t addresses = start == 20 ? 12 : 8;
      const uint32_t pseudo = sum(std::span(parts[i]).subspan(addresses, start - addresses),
                                  static_cast<uint32_t>(17 + parts[i].size() - start));
      EXPECT_EQ(0xffffu, sum(std::span(parts[i]).subspan(start), pseudo)) << i;
    }
    EXPECT_TRUE(
        std::equal(payload.begin(), payload.end(), whole.begin() + static_cast<ptrdiff_t>(start) + 8, whole.end()));
  }
}

TEST(NetdevPacket, FragmentsOf_Packet_JoinToTheWhole) {
  for (const uint32_t mtu : {576u, 1280u, 1500u}) {
    const Packet whole = ipv4(5001, 17, 0);
    const auto parts = fragments_of(whole, mtu);
    Packet joined(whole.begin(), whole.begin() + 20);
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto part = parse(parts[i]);
      ASSERT_TRUE(part);
      EXPECT_LE(parts[i].size(), mtu);
      EXPECT_EQ(0xffffu, sum(std::span(parts[i]).first(20)));
      EXPECT_EQ(i + 1 < parts.size(), (word(parts[i], 6) & 0x2000) != 0);
      EXPECT_EQ(joined.size() - 20, (word(parts[i], 6) & 0x1fff) * 8);
      EXPECT_EQ(0x1234u, word(parts[i], 4));
      joined.insert(joined.end(), parts[i].begin() + 20, parts[i].end());
    }
    EXPECT_TRUE(std::equal(whole.begin() + 20, whole.end(), joined.begin() + 20, joined.end()));
  }
}

TEST(NetdevPacket, FragmentsOf_Fragment_IsCutAgain) {
  const auto parts = fragments_of(ipv4(5001, 17, 0), 3000);
  ASSERT_EQ(2u, parts.size());
  const auto first = fragments_of(parts[0], 1500), last = fragments_of(parts[1], 1500);
  EXPECT_NE(0u, word(first.back(), 6) & 0x2000);
  EXPECT_EQ(0u, word(last.back(), 6) & 0x2000);
  EXPECT_EQ((parts[0].size() - 20) / 8, word(last.front(), 6) & 0x1fff);
}

TEST(NetdevPacket, IcmpAbout_TooBig_ReportsTheMtu) {
  const auto v4 = icmp_about(Refusal::kTooBig, ipv4(3000), 1400);
  ASSERT_TRUE(v4);
  const auto answer = parse(*v4);
  ASSERT_TRUE(answer);
  EXPECT_EQ(gid("10.77.0.1"), answer->destination);
  EXPECT_EQ(gid("10.77.0.2"), answer->source);
  EXPECT_EQ(0xffffu, sum(std::span(*v4).first(20)));
  EXPECT_EQ(0xffffu, sum(std::span(*v4).subspan(20)));
  EXPECT_EQ(0x0304u, word(*v4, 20));  // destination unreachable, fragmentation needed (RFC 1191)
  EXPECT_EQ(1400u, word(*v4, 26));
  EXPECT_TRUE(std::equal(v4->begin() + 28, v4->end(), ipv4(3000).begin()));
  EXPECT_LE(v4->size(), 576u);

  const auto v6 = icmp_about(Refusal::kTooBig, ipv6(3000), 65000);
  ASSERT_TRUE(v6);
  ASSERT_TRUE(parse(*v6));
  EXPECT_EQ(0x0200u, word(*v6, 40));  // packet too big (RFC 4443, 3.2)
  EXPECT_EQ(65000u, word(*v6, 44) << 16 | word(*v6, 46));
  EXPECT_LE(v6->size(), 1280u);
  Packet pseudo(v6->begin() + 8, v6->begin() + 40);
  const auto length = static_cast<uint32_t>(v6->size() - 40);
  EXPECT_EQ(0xffffu, sum(std::span(*v6).subspan(40), sum(pseudo) + length + 58));
}

TEST(NetdevPacket, IcmpAbout_ErrorsLaterFragmentsAndGroups_SendsNothing) {
  EXPECT_TRUE(icmp_about(Refusal::kHostUnreachable, ipv4(100), 0));
  Packet error = ipv4(100, 1);
  for (int type = 0; type < 20; ++type) {
    put(error, 20, {type});
    const bool is_question = type == 0 || type == 8 || type == 13 || type == 14;
    EXPECT_EQ(is_question, icmp_about(Refusal::kHostUnreachable, error, 0).has_value()) << type;
  }
  Packet error6 = ipv6(100, 58);
  for (const int type : {1, 4, 127, 128, 135}) {
    put(error6, 40, {type});
    EXPECT_EQ(type >= 128, icmp_about(Refusal::kHostUnreachable, error6, 0).has_value()) << type;
  }
  Packet later = ipv4(100, 17, 0);
  put(later, 7, {1});
  EXPECT_FALSE(icmp_about(Refusal::kHostUnreachable, later, 0));
  Packet group = ipv4(100);
  put(group, 16, {224, 0, 0, 1});
  EXPECT_FALSE(icmp_about(Refusal::kHostUnreachable, group, 0));
}

TEST(NetdevPacket, FragmentsOf_PacketThatFillsThem_AreNoMoreThanNeeded) {
  // 1,296 bytes are the next multiple of 8 below 1,300.
  EXPECT_EQ(1u, fragments_of(ipv4(1280, 17, 0), 1300).size());
  const auto two = fragments_of(ipv4(2560, 17, 0), 1307);  // 1,287 bytes fit, of which 1,280 are whole units
  ASSERT_EQ(2u, two.size());
  EXPECT_EQ(1300u, two[0].size());
  EXPECT_EQ(1300u, two[1].size());
  EXPECT_EQ(0x2000u, word(two[0], 6));
  EXPECT_EQ(160u, word(two[1], 6));
  EXPECT_EQ(3u, fragments_of(ipv4(2561, 17, 0), 1307).size());
  EXPECT_EQ(2u, fragments_of(ipv4(2561, 17, 0), 1308).size());  // a unit more
}

TEST(NetdevPacket, FragmentsOf_PacketWithOptions_CopiesThemToEach) {
  Packet whole = ipv4(3000, 17, 0);
  put(whole, 0, {0x46});
  put(whole, 20, {1, 1, 1, 0});
  const auto parts = fragments_of(whole, 1500);
  ASSERT_EQ(3u, parts.size());
  Packet joined(whole.begin(), whole.begin() + 24);
  for (const Packet& part : parts) {
    ASSERT_TRUE(parse(part));
    EXPECT_EQ(24, parse(part)->header_bytes);
    EXPECT_LE(part.size(), 1500u);
    EXPECT_EQ(0xffffu, sum(std::span(part).first(24)));
    EXPECT_EQ(joined.size() - 24, (word(part, 6) & 0x1fff) * 8);
    EXPECT_TRUE(std::equal(whole.begin() + 12, whole.begin() + 24, part.begin() + 12));
    joined.insert(joined.end(), part.begin() + 24, part.end());
  }
  EXPECT_TRUE(std::equal(whole.begin() + 24, whole.end(), joined.begin() + 24, joined.end()));
}

TEST(NetdevPacket, DatagramsOf_SegmentOfWholeDatagrams_HasNoEmptyOne) {
  for (const size_t start : {20u, 40u}) {
    Packet whole = start == 20 ? ipv4(8 + 3000) : ipv6(8 + 3000);
    const VirtioHeader header = with_udp(whole, start, 1000);
    const auto parts = datagrams_of(header, whole);
    ASSERT_EQ(3u, parts.size());
    for (const Packet& part : parts) EXPECT_EQ(start + 1008, part.size());
  }
}

TEST(NetdevPacket, DatagramsOf_LastIdentification_GoesOnFromZero) {
  Packet whole = ipv4(8 + 300);
  put(whole, 4, {0xff, 0xff});
  const VirtioHeader header = with_udp(whole, 20, 100);
  const auto parts = datagrams_of(header, whole);
  ASSERT_EQ(3u, parts.size());
  EXPECT_EQ(0xffffu, word(parts[0], 4));
  EXPECT_EQ(0u, word(parts[1], 4));
  EXPECT_EQ(1u, word(parts[2], 4));
  for (const Packet& part : parts) EXPECT_EQ(0xffffu, sum(std::span(part).first(20)));
}

TEST(NetdevPacket, DatagramsOf_HeaderWithOptions_KeepsThemInItsSum) {
  Packet whole = ipv4(4 + 8 + 200);
  put(whole, 0, {0x46});
  put(whole, 20, {1, 1, 1, 0});
  VirtioHeader header = with_udp(whole, 24, 100);
  ASSERT_TRUE(is_consistent(header, *parse(whole)));
  const auto parts = datagrams_of(header, whole);
  ASSERT_EQ(2u, parts.size());
  for (const Packet& part : parts) {
    EXPECT_EQ(24u + 8 + 100, part.size());
    EXPECT_EQ(part.size(), word(part, 2));
    EXPECT_EQ(0xffffu, sum(std::span(part).first(24)));
  }
}

TEST(NetdevPacket, IcmpAbout_UnreachableHost_SaysSoWithoutAnMtu) {
  const auto v4 = icmp_about(Refusal::kHostUnreachable, ipv4(3000), 1400);
  ASSERT_TRUE(v4);
  EXPECT_EQ(0x0301u, word(*v4, 20));  // destination unreachable, host (RFC 792)
  EXPECT_EQ(0u, word(*v4, 24));
  EXPECT_EQ(0u, word(*v4, 26));
  EXPECT_EQ(0x4500u, word(*v4, 0));
  EXPECT_EQ(64u << 8 | 1, word(*v4, 8));  // hops, and ICMP
  EXPECT_EQ(576u, v4->size());            // RFC 1812, 4.3.2.3
  EXPECT_EQ(0xffffu, sum(std::span(*v4).first(20)));
  EXPECT_EQ(0xffffu, sum(std::span(*v4).subspan(20)));
  const auto v6 = icmp_about(Refusal::kHostUnreachable, ipv6(3000), 1400);
  ASSERT_TRUE(v6);
  EXPECT_EQ(0x0103u, word(*v6, 40));  // destination unreachable, address (RFC 4443, 3.1)
  EXPECT_EQ(0u, word(*v6, 44) | word(*v6, 46));
  EXPECT_EQ(58u << 8 | 64, word(*v6, 6));
  EXPECT_EQ(1280u, v6->size());
  EXPECT_EQ(gid("fd77::2"), parse(*v6)->source);
  EXPECT_EQ(gid("fd77::1"), parse(*v6)->destination);
  EXPECT_TRUE(std::equal(v6->begin() + 48, v6->end(), ipv6(3000).begin()));
}

TEST(NetdevPacket, IcmpAbout_GroupOfEitherFamilyAtEitherEnd_SaysNothing) {
  for (const size_t at : {12u, 16u}) {
    Packet group = ipv4(100);
    for (const int first : {223, 224, 239, 240}) {
      put(group, at, {first});
      EXPECT_EQ(first == 223 || first == 240, icmp_about(Refusal::kTooBig, group, 1400).has_value())
          << at << ' ' << first;
    }
  }
  for (const size_t at : {8u, 24u}) {
    Packet group = ipv6(100);
    put(group, at, {0xff, 2});
    EXPECT_FALSE(icmp_about(Refusal::kTooBig, group, 1400)) << at;
  }
  // A packet of ICMP that ends before its type is no error message.
  EXPECT_TRUE(icmp_about(Refusal::kHostUnreachable, ipv4(0, 1), 0));
  EXPECT_TRUE(icmp_about(Refusal::kHostUnreachable, ipv6(0, 58), 0));
  EXPECT_FALSE(icmp_about(Refusal::kHostUnreachable, Packet(10), 0));
}

}  // namespace
}  // namespace nupa::netdev
