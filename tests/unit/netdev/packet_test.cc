// Packets as RFC 791, 792, 1071, 1191, 4443 and 8200 have them, and the virtio header before them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/gid.h"
#include "netdev/ip_packet.h"
#include "netdev/prefix.h"

namespace nupa::netdev {
namespace {

using Packet = std::vector<std::byte>;

Gid gid(const std::string& text) { return *address_from(text); }

void put(Packet& packet, size_t at, std::initializer_list<int> bytes) {
  for (const int byte : bytes) packet[at++] = static_cast<std::byte>(byte);
}

uint32_t word(const Packet& packet, size_t at) {
  return std::to_integer<uint32_t>(packet[at]) << 8 | std::to_integer<uint32_t>(packet[at + 1]);
}

/// The sum over bytes that carry a right checksum is all ones (RFC 1071).
uint32_t sum(std::span<const std::byte> bytes, uint32_t start = 0) {
  uint64_t total = start;
  for (size_t i = 0; i < bytes.size(); ++i) total += std::to_integer<uint64_t>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
  while (total > 0xffff) total = (total & 0xffff) + (total >> 16);
  return static_cast<uint32_t>(total);
}

/// 10.77.0.1 to 10.77.0.2, with a payload of counted bytes.
Packet ipv4(size_t payload, int protocol = 17, int flags = 0x40) {
  Packet packet(20 + payload);
  for (size_t i = 0; i < payload; ++i) packet[20 + i] = static_cast<std::byte>(i * 7);
  const int length = static_cast<int>(packet.size());
  put(packet, 0,
      {0x45, 0, length >> 8, length & 255, 0x12, 0x34, flags, 0, 64, protocol, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2});
  const uint32_t check = ~sum(std::span(packet).first(20)) & 0xffff;
  put(packet, 10, {static_cast<int>(check >> 8), static_cast<int>(check & 255)});
  return packet;
}

/// fd77::1 to fd77::2.
Packet ipv6(size_t payload, int next = 17) {
  Packet packet(40 + payload);
  const int length = static_cast<int>(payload);
  put(packet, 0, {0x60, 0, 0, 0, length >> 8, length & 255, next, 64, 0xfd, 0x77});
  put(packet, 23, {1, 0xfd, 0x77});
  put(packet, 39, {2});
  return packet;
}

std::optional<IpPacket> parse(const Packet& packet) { return IpPacket::parse(packet, packet.size()); }

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

TEST(NetdevPacket, ASegmentOfDatagramsIsCut) {
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

TEST(NetdevPacket, FragmentsAreTheWhole) {
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

TEST(NetdevPacket, AFragmentIsCutOnceMore) {
  const auto parts = fragments_of(ipv4(5001, 17, 0), 3000);
  ASSERT_EQ(2u, parts.size());
  const auto first = fragments_of(parts[0], 1500), last = fragments_of(parts[1], 1500);
  EXPECT_NE(0u, word(first.back(), 6) & 0x2000);
  EXPECT_EQ(0u, word(last.back(), 6) & 0x2000);
  EXPECT_EQ((parts[0].size() - 20) / 8, word(last.front(), 6) & 0x1fff);
}

TEST(NetdevPacket, TooBigSaysTheMtu) {
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

TEST(NetdevPacket, NothingIsSaidAboutErrorsPartsAndGroups) {
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

TEST(NetdevPrefix, IsReadAndWritten) {
  for (const char* text : {"10.77.0.1/24", "192.0.2.255/32", "fd77::1/64", "::1/128", "10.0.0.1/0"}) {
    const auto prefix = Prefix::parse(text);
    ASSERT_TRUE(prefix) << text;
    EXPECT_EQ(text, prefix->text());
  }
  EXPECT_EQ("10.77.0.1/32", Prefix::parse("10.77.0.1")->text());
  for (const char* text : {"", "10.77.0", "10.77.0.1/33", "10.77.0.1/", "10.77.0.1/x", "fd77::1/129", "10.77.0.1/24 ",
                           "224.0.0.1/24", "ff02::1/64", "::/0", "10.77.0.1/-1"})
    EXPECT_FALSE(Prefix::parse(text)) << text;
}

TEST(NetdevPrefix, ContainsItsNetwork) {
  const Prefix prefix = *Prefix::parse("10.77.0.130/25");
  EXPECT_TRUE(prefix.contains(gid("10.77.0.255")));
  EXPECT_FALSE(prefix.contains(gid("10.77.0.127")));
  EXPECT_FALSE(prefix.contains(gid("fd77::1")));
  EXPECT_EQ(gid("10.77.0.255"), prefix.broadcast());
  const Prefix six = *Prefix::parse("fd77::1/62");
  EXPECT_TRUE(six.contains(gid("fd77:0:0:3::9")));
  EXPECT_FALSE(six.contains(gid("fd77:0:0:4::9")));
  EXPECT_TRUE(Prefix::parse("10.0.0.1/0")->contains(gid("200.1.2.3")));
}

TEST(NetdevPrefix, Parse_EachPartThatIsWrong_IsRefused) {
  for (const char* text :
       {"10.77.0.1/032x", "10.77.0.1/256", "10.77.0.1/+8", "10.77.0.1/ 8", "10.77.0.1/8/8", " 10.77.0.1/8",
        "10.77.0.1.1/8", "fd77:::1/64", "fd77::1/256", "fd77::g/64", "0.0.0.0x/8", "239.255.255.255/4", "ffff::1/16",
        "::", "/24", "0.0.0.0/24", "0.0.0.0", "255.255.255.255/24", "255.255.255.255"}) {
    const auto prefix = Prefix::parse(text);
    ASSERT_FALSE(prefix) << text;
    EXPECT_EQ(EINVAL, prefix.error().code()) << text;
  }
  EXPECT_EQ(128, Prefix::parse("fd77::1")->length);
  EXPECT_EQ(0, Prefix::parse("fd77::1/0")->length);
  EXPECT_TRUE(Prefix::parse("223.255.255.255/8"));
  EXPECT_TRUE(Prefix::parse("240.0.0.1/8"));
  EXPECT_TRUE(Prefix::parse("feff::1/8"));
  for (const char* text : {"0.0.0.1/8", "0.0.1.0/8", "0.1.0.0/8", "1.0.0.0/8", "255.255.255.254/8", "255.255.254.255/8",
                           "255.254.255.255/8", "254.255.255.255/8", "::1/8", "::255.255.255.255/8"})
    EXPECT_TRUE(Prefix::parse(text)) << text;
}

TEST(NetdevPrefix, Contains_EachBitWithinTheLength_IsCompared) {
  for (const char* text : {"10.77.0.1/0", "10.77.0.1/1", "10.77.0.1/23", "10.77.0.1/24", "10.77.0.1/32", "fd77::1/0",
                           "fd77::1/7", "fd77::1/64", "fd77::1/127", "fd77::1/128"}) {
    const Prefix prefix = *Prefix::parse(text);
    EXPECT_TRUE(prefix.contains(prefix.address)) << text;
    const int first = prefix.is_ipv4() ? 96 : 0;
    for (int bit = first; bit < 128; ++bit) {
      Gid other = prefix.address;
      other.raw[bit / 8] ^= static_cast<uint8_t>(0x80 >> bit % 8);
      EXPECT_EQ(bit - first >= prefix.length, prefix.contains(other)) << text << ' ' << bit;
    }
  }
  // The same last bytes, of the other family.
  EXPECT_FALSE(Prefix::parse("fd77::1/0")->contains(gid("10.77.0.1")));
  EXPECT_FALSE(Prefix::parse("10.77.0.1/0")->contains(gid("::10.77.0.1")));
}

TEST(NetdevPrefix, Broadcast_OfEachLength_IsTheLastAddress) {
  const std::pair<const char*, const char*> cases[] = {
      {"10.77.0.1/32", "10.77.0.1"},   {"10.77.0.2/31", "10.77.0.3"},   {"10.77.0.1/30", "10.77.0.3"},
      {"10.77.0.1/25", "10.77.0.127"}, {"10.77.0.1/23", "10.77.1.255"}, {"10.77.0.1/0", "255.255.255.255"}};
  for (const auto& [text, last] : cases) EXPECT_EQ(gid(last), Prefix::parse(text)->broadcast()) << text;
}

TEST(NetdevPrefix, IsLinkLocal_HoldsForFe80Slash10Only) {
  for (const char* text : {"fe80::1", "febf:ffff::1"}) EXPECT_TRUE(base::is_link_local(gid(text))) << text;
  for (const char* text : {"fec0::1", "fe7f::1", "ff80::1", "fd80::1", "10.77.0.1", "::"})
    EXPECT_FALSE(base::is_link_local(gid(text))) << text;
}

TEST(NetdevPrefix, LinkLocalOf_IsMadeOfTheNodesName) {
  // The first eight bytes of `printf n1 | sha256sum`.
  EXPECT_EQ("fe80::676b:8bb8:4ce7:267d/64", link_local_of("n1").text());
  EXPECT_NE(link_local_of("n1").address, link_local_of("n2").address);
}

TEST(NetdevPrefix, IsMulticast_HoldsForGroupsOfEitherFamilyOnly) {
  for (const char* text : {"224.0.0.0", "239.255.255.255", "ff00::", "ff02::1"})
    EXPECT_TRUE(is_multicast(gid(text))) << text;
  for (const char* text : {"223.255.255.255", "240.0.0.0", "255.255.255.255", "feff::1", "::ffff:0:0", "::224.0.0.1"})
    EXPECT_FALSE(is_multicast(gid(text))) << text;
}

TEST(NetdevPrefix, TextOf_EitherFamily_IsReadAgain) {
  for (const char* text : {"10.77.0.1", "255.255.255.255", "fd77::1", "::1", "2001:db8:1:2:3:4:5:6"}) {
    EXPECT_EQ(text, text_of(gid(text)));
  }
  for (const char* text : {"", "10.77.0.1/24", "10.77.0", "host", "fd77::1%lo", "1"}) {
    const auto address = address_from(text);
    ASSERT_FALSE(address) << text;
    EXPECT_EQ(EINVAL, address.error().code());
  }
}

}  // namespace
}  // namespace nupa::netdev
