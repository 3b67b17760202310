// SPDX-License-Identifier: Apache-2.0
// Tests of RoCEv2 packets: encoding and decoding of headers, and the invariant CRC of packets that adapters sent.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/crc32.h"
#include "base/gid.h"
#include "transport/roce/wire/icrc.h"
#include "transport/roce/protocol/sequence.h"
#include "transport/roce/wire/wire.h"

namespace nupa::roce {
namespace {

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

Gid ipv4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) { return base::ipv4_gid(a, b, c, d); }

/// Bit by bit, as the specification defines it.
uint32_t slow_crc(uint32_t state, const std::byte* data, size_t length) {
  for (size_t i = 0; i < length; ++i) {
    state ^= std::to_integer<uint32_t>(data[i]);
    for (int bit = 0; bit < 8; ++bit) state = (state & 1) != 0 ? state >> 1 ^ base::kCrcPolynomial : state >> 1;
  }
  return state;
}

TEST(Crc32, Crc_OfTheCheckText_IsTheKnownValue) {
  const char text[] = "123456789";
  EXPECT_EQ(0xcbf43926u, ~base::crc32(~0u, reinterpret_cast<const std::byte*>(text), 9));
}

TEST(Crc32, Crc_EachLengthAndAlignment_EqualsBitByBit) {
  std::mt19937_64 random(1);
  std::vector<std::byte> data(1500);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  for (size_t length = 0; length < 1400; ++length) {
    const size_t at = length % 17;
    const auto start = static_cast<uint32_t>(random());
    const uint32_t expected = slow_crc(start, data.data() + at, length);
    ASSERT_EQ(expected, base::crc32(start, data.data() + at, length)) << length;
    std::vector<std::byte> soon(length, std::byte{0x55});
    ASSERT_EQ(expected, base::crc32(start, data.data() + at, length, soon.data())) << length;
    ASSERT_EQ(length, std::count(soon.begin(), soon.end(), std::byte{0x55})) << "it is only fetched";
    std::vector<std::byte> copy(length + 16, std::byte{0x55});
    ASSERT_EQ(expected, base::crc32_copy(start, copy.data() + 3, data.data() + at, length)) << length;
    ASSERT_EQ(0, std::memcmp(copy.data() + 3, data.data() + at, length));
    ASSERT_EQ(std::byte{0x55}, copy[length + 3]) << "nothing behind the end is written";
    const auto* nowhere = reinterpret_cast<const std::byte*>(uintptr_t{4096});
    ASSERT_EQ(expected, base::crc32(start, data.data() + at, length, nowhere)) << "wherever it is";
  }
}

TEST(Crc32, CrcCopy_MemoryChangesMeanwhile_IsTheCrcOfTheCopy) {
  // What is copied lies, by another mapping of the same memory, one byte behind the original: each byte that is written
  // changes what is still to be read.
  constexpr size_t kBytes = 4096;
  const int file = memfd_create("twice", MFD_CLOEXEC);
  ASSERT_EQ(0, ftruncate(file, kBytes));
  const auto map = [&] {
    return static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  };
  std::byte *const from = map(), *const to = map() + 1;
  std::mt19937_64 random(4);
  for (const size_t length : {7, 63, 64, 79, 80 + 7, 256 + 15, 512 + 64 + 9, 1500}) {
    for (size_t i = 0; i < kBytes; ++i) from[i] = static_cast<std::byte>(random());
    const uint32_t crc = base::crc32_copy(~0u, to, from, length);
    EXPECT_EQ(slow_crc(~0u, to, length), crc) << length;
  }
  munmap(from, kBytes);
  munmap(to - 1, kBytes);
  close(file);
}

TEST(Sequence, Nearest_PacketNumbers_WrapBothWays) {
  EXPECT_EQ(first_seq(5) + 0x7fffff, nearest(first_seq(5), (5 + 0x7fffff) & kPsnMask));
  EXPECT_EQ(first_seq(5) - 0x800000, nearest(first_seq(5), (5 + 0x800000) & kPsnMask)) << "half and more is past";
  const Seq far = (Seq{77} << 24) + 3;
  EXPECT_EQ(far - 4, nearest(far, 0xffffff));
  EXPECT_EQ(far, nearest(far, psn_of(far)));
}

/// Every opcode that exists, with every field different.
Packet sample(uint8_t opcode) {
  Packet packet;
  packet.opcode = opcode;
  packet.solicited = true;
  packet.ack_request = true;
  packet.becn = true;
  packet.mark = kNupaMark;
  packet.pkey = 0x8123;
  packet.dest_qpn = 0xabcdef;
  packet.psn = 0x123456;
  packet.address = 0x1122334455667788;
  packet.rkey = 0x99aabbcc;
  packet.length = 0xddeeff01;
  packet.swap_or_add = 0x0102030405060708;
  packet.compare = 0x1112131415161718;
  packet.found = 0x2122232425262728;
  packet.imm = 0x31323334;
  packet.invalidate = 0x41424344;
  packet.syndrome = 0x65;
  packet.msn = 0x515253;
  packet.qkey = 0x61626364;
  packet.source_qpn = 0x717273;
  packet.srqn = 0x818283;
  packet.trigger_valid = true;
  packet.trigger = 0x919293;
  packet.delay_ns = 0xa1a2a3a4;
  packet.window = 0xb1b2b3b4;
  packet.trigger_path = 3;
  packet.marked = 0xc1c2c3c4;
  packet.duplicates_valid = true;
  packet.duplicates = 0xd1d2d3;
  packet.flush = 0x2a;
  return packet;
}

TEST(Wire, EncodeAndDecode_EachOpcode_IsEqual) {
  int known = 0;
  for (int opcode = 0; opcode < 256; ++opcode) {
    const uint32_t traits = traits_of(static_cast<uint8_t>(opcode));
    std::vector<std::byte> packet(kMaxPacketBytes, std::byte{0x77});
    Packet in = sample(static_cast<uint8_t>(opcode));
    in.payload_length = (traits & trait::kSelective) != 0 ? 8 : (traits & trait::kPayload) != 0 ? 6 : 0;
    const uint32_t headers = encode(in, packet.data());
    const uint32_t whole = headers + in.payload_length + pad_of(in.payload_length) + kIcrcBytes;
    Packet out;
    if (traits == 0) {
      EXPECT_FALSE(decode(packet.data(), whole, &out)) << opcode;
      continue;
    }
    ++known;
    ASSERT_LE(headers, kMaxHeaderBytes);
    ASSERT_TRUE(decode(packet.data(), whole, &out)) << opcode;
    EXPECT_EQ(in.payload_length, out.payload_length) << opcode;
    EXPECT_EQ((traits & trait::kPayload) != 0, out.payload == packet.data() + headers && in.payload_length > 0);
    // What the opcode has comes back, what it has not is not read.
    EXPECT_EQ(opcode, out.opcode);
    EXPECT_TRUE(out.solicited && out.ack_request && out.becn && !out.fecn && out.migrated);
    EXPECT_EQ(in.mark, out.mark);
    EXPECT_EQ(in.pkey, out.pkey);
    EXPECT_EQ(in.dest_qpn, out.dest_qpn);
    EXPECT_EQ(in.psn, out.psn);
    const Packet none;
    const auto same = [&](uint32_t trait, auto field) {
      EXPECT_EQ((traits & trait) != 0 ? in.*field : none.*field, out.*field) << opcode;
    };
    same(trait::kReth | trait::kAtomicEth, &Packet::address);
    same(trait::kReth | trait::kAtomicEth, &Packet::rkey);
    same(trait::kReth, &Packet::length);
    same(trait::kFeth, &Packet::flush);
    same(trait::kAtomicEth, &Packet::swap_or_add);
    same(trait::kAtomicEth, &Packet::compare);
    same(trait::kAtomicAckEth, &Packet::found);
    same(trait::kImm, &Packet::imm);
    same(trait::kIeth, &Packet::invalidate);
    same(trait::kAeth | trait::kSelective, &Packet::syndrome);
    same(trait::kAeth | trait::kSelective, &Packet::msn);
    same(trait::kSelective, &Packet::trigger);
    same(trait::kSelective, &Packet::delay_ns);
    same(trait::kSelective, &Packet::window);
    same(trait::kSelective, &Packet::marked);
    same(trait::kSelective, &Packet::trigger_path);
    same(trait::kSelective, &Packet::duplicates_valid);
    same(trait::kSelective, &Packet::duplicates);
    const bool datagram = service_of(in.opcode) == Service::kUd;
    EXPECT_EQ(datagram ? in.qkey : 0, out.qkey);
    EXPECT_EQ(datagram ? in.source_qpn : 0, out.source_qpn);
    const bool xrc = service_of(in.opcode) == Service::kXrc && (traits & trait::kResponse) == 0;
    EXPECT_EQ(xrc ? in.srqn : 0, out.srqn);
    // A byte less than its headers, pad and CRC need is not a packet.
    for (uint32_t length = 0; length < headers + pad_of(in.payload_length) + kIcrcBytes; ++length)
      EXPECT_FALSE(decode(packet.data(), length, &out)) << opcode << " cut to " << length;
  }
  // IBTA table 38: 25 operations of RC and of XRC, 14 of UC, 2 of UD; the notification; five of NUPA's
  // own.
  EXPECT_EQ(25 + 25 + 14 + 2 + 1 + 5, known);
}

TEST(Wire, Encode_Headers_AreTheSpecifiedBytes) {
  Packet packet = sample(opcode_of(Service::kRc, Operation::kWriteOnlyImm));
  packet.becn = false;
  packet.payload_length = 3;
  std::vector<std::byte> out(kMaxHeaderBytes);
  out.resize(encode(packet, out.data()));
  EXPECT_EQ(bytes_of({0x0b, 0xd0, 0x81, 0x23, 0x00, 0xab, 0xcd, 0xef, 0xad, 0x12, 0x34, 0x56,  // BTH
                      0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc,  // RETH
                      0xdd, 0xee, 0xff, 0x01, 0x34, 0x33, 0x32, 0x31}),                        // ImmDt
            out);
}

TEST(Wire, Decode_OtherVersionOrPadWithoutPayload_IsRefused) {
  Packet packet = sample(opcode_of(Service::kRc, Operation::kAcknowledge));
  std::vector<std::byte> bytes(kMaxHeaderBytes);
  const uint32_t length = encode(packet, bytes.data()) + kIcrcBytes;
  ASSERT_TRUE(decode(bytes.data(), length, &packet));
  bytes[1] |= std::byte{1};
  EXPECT_FALSE(decode(bytes.data(), length, &packet));
  bytes[1] = std::byte{0x10};
  EXPECT_FALSE(decode(bytes.data(), length, &packet));
  bytes[1] = std::byte{0};
  EXPECT_FALSE(decode(bytes.data(), length + 4, &packet)) << "an acknowledgement has no payload";
}

TEST(Wire, Decode_PayloadBeyondTheLargestMtu_IsRefused) {
  // With short headers more of it would fit the longest packet.
  Packet packet = sample(opcode_of(Service::kRc, Operation::kSendOnly));
  std::vector<std::byte> bytes(kMaxPacketBytes + 64);
  for (const uint32_t payload : {kMaxMtu, kMaxMtu + 1, kMaxMtu + 4, kMaxMtu + 32}) {
    packet.payload_length = payload;
    const uint32_t length = encode(packet, bytes.data()) + payload + pad_of(payload) + kIcrcBytes;
    Packet out;
    EXPECT_EQ(payload <= kMaxMtu, decode(bytes.data(), length, &out)) << payload;
  }
}

TEST(Wire, Decode_BitmapOfAWrongLength_IsRefused) {
  Packet packet = sample(kSelectiveAck);
  std::vector<std::byte> bytes(kMaxPacketBytes);
  for (uint32_t payload = 0; payload <= kBitmapWords * 4 + 8; ++payload) {
    packet.payload_length = 0;
    const uint32_t length = encode(packet, bytes.data()) + payload + kIcrcBytes;
    Packet out;
    EXPECT_EQ(payload % 4 == 0 && payload <= kBitmapWords * 4, decode(bytes.data(), length, &out)) << payload;
    packet.payload_length = 3;  // which says a pad of one
    encode(packet, bytes.data());
    EXPECT_FALSE(decode(bytes.data(), length, &out)) << payload << " with a pad";
  }
}

TEST(Wire, Decode_PadLongerThanThePayload_IsRefused) {
  Packet packet = sample(opcode_of(Service::kRc, Operation::kSendOnly));
  std::vector<std::byte> bytes(64);
  for (uint32_t pad = 0; pad < 4; ++pad)
    for (uint32_t rest = 0; rest < 8; ++rest) {
      packet.payload_length = 4 - pad;
      Packet out;
      const uint32_t length = encode(packet, bytes.data()) + rest + kIcrcBytes;
      ASSERT_EQ(rest >= pad, decode(bytes.data(), length, &out)) << pad << " of " << rest;
      if (rest >= pad) {
        EXPECT_EQ(rest - pad, out.payload_length);
      }
    }
}

TEST(Wire, Flush_HasFethBeforeReth) {
  Packet packet = sample(opcode_of(Service::kXrc, Operation::kFlush));
  packet.flush = flush_flag::kPersistent | flush_flag::kRegion;
  packet.payload_length = 0;
  std::vector<std::byte> out(kMaxHeaderBytes);
  const uint32_t length = encode(packet, out.data());
  ASSERT_EQ(length, 36u);
  EXPECT_EQ(out[0], std::byte{0xbc});
  EXPECT_EQ(std::vector(out.begin() + 16, out.begin() + 24),
            bytes_of({0x00, 0x00, 0x00, 0x12, 0x11, 0x22, 0x33, 0x44}));  // FETH, beginning of RETH
  out[16] = out[18] = std::byte{0xff};                                    // reserved
  out[19] |= std::byte{0xc0};
  out.resize(length + kIcrcBytes);
  Packet decoded;
  ASSERT_TRUE(decode(out.data(), length + kIcrcBytes, &decoded));
  EXPECT_EQ(decoded.flush, packet.flush);
  EXPECT_EQ(traits_of(opcode_of(Service::kUc, Operation::kFlush)), 0u);
}

TEST(Wire, Decode_ReservedBits_AreIgnored) {
  Packet packet = sample(opcode_of(Service::kUd, Operation::kSendOnly));
  packet.payload_length = 4;
  std::vector<std::byte> bytes(64);
  const uint32_t length = encode(packet, bytes.data()) + 4 + kIcrcBytes;
  bytes[4] |= std::byte{0x3f};  // beside FECN and BECN
  bytes[16] = std::byte{0xff};  // before the source queue pair
  Packet out;
  ASSERT_TRUE(decode(bytes.data(), length, &out));
  EXPECT_FALSE(out.fecn);
  EXPECT_TRUE(out.becn);
  EXPECT_EQ(packet.source_qpn, out.source_qpn);
  EXPECT_EQ(packet.dest_qpn, out.dest_qpn);
  Packet selective = sample(kSelectiveAck);
  selective.payload_length = 0;
  for (const bool valid : {false, true}) {
    selective.trigger_valid = valid;
    selective.duplicates_valid = !valid;
    std::vector<std::byte> ack(64);
    const uint32_t whole = encode(selective, ack.data()) + kIcrcBytes;
    ack[16] |= std::byte{0xfc};  // beside the flags
    ASSERT_TRUE(decode(ack.data(), whole, &out));
    EXPECT_EQ(out.trigger_valid, valid);
    EXPECT_EQ(out.duplicates_valid, !valid);
  }
}

TEST(Wire, MtuWithin_LeavesRoomForTheLongestHeaders) {
  EXPECT_EQ(Mtu::k4096, mtu_within(9000));
  EXPECT_EQ(Mtu::k1024, mtu_within(1500));
  constexpr uint32_t kHeaders = 40 + 8 + kMaxHeaderBytes + kIcrcBytes;
  EXPECT_EQ(Mtu::k2048, mtu_within(4096 + kHeaders - 1));
  EXPECT_EQ(Mtu::k4096, mtu_within(4096 + kHeaders));
  EXPECT_EQ(Mtu::k256, mtu_within(100));
}

TEST(CarriedAcknowledgement, Decode_PacketTooShortForACarriedAcknowledgement_IsRefused) {
  Packet packet;
  packet.opcode = opcode_of(Service::kRc, Operation::kSendOnly);
  packet.mark = kCarriesAck;
  std::vector<std::byte> bytes(64);
  const uint32_t headers = encode(packet, bytes.data());
  Packet out;
  EXPECT_FALSE(decode(bytes.data(), headers + kCarriedBytes - 1 + kIcrcBytes, &out));
  EXPECT_TRUE(decode(bytes.data(), headers + kCarriedBytes + kIcrcBytes, &out));
  EXPECT_EQ(0u, out.payload_length);
}

TEST(Icrc, NotificationOfAConnectX4_HasTheRightCrc) {
  const Route route{ipv4(10, 0, 17, 1), ipv4(10, 0, 18, 1), 0, 4791};
  auto packet = bytes_of({0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0x00, 0x00, 0x00, 0x00, 0,    0,    0,   0, 0,
                          0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0x82, 0xfd, 0x00, 0x2a});
  const auto length = static_cast<uint32_t>(packet.size());
  const uint32_t state = icrc_of_headers(route, 0x718c, length, packet.data(), length - kIcrcBytes);
  EXPECT_EQ(load_icrc(packet.data() + length - kIcrcBytes), icrc_of_state(state));
  // A socket's reader does not know the identification, and finds it.
  const uint32_t blind = icrc_of_state(icrc_of_headers(route, 0, length, packet.data(), length - kIcrcBytes));
  EXPECT_EQ(0x718c, identification_of(blind, load_icrc(packet.data() + length - kIcrcBytes), length));
  EXPECT_TRUE(icrc_holds(route, packet.data(), length, 0xffff));
  EXPECT_FALSE(icrc_holds(route, packet.data(), length, 0x718b));
  Packet decoded;
  ASSERT_TRUE(decode(packet.data(), length, &decoded));
  EXPECT_TRUE(decoded.becn);
  EXPECT_EQ(0x118u, decoded.dest_qpn);
  // Switches set the congestion bits; nothing else may change.
  packet[4] = std::byte{0xff};
  EXPECT_TRUE(icrc_holds(route, packet.data(), length, 0xffff));
  packet[6] ^= std::byte{1};
  EXPECT_FALSE(icrc_holds(route, packet.data(), length, 0xffff));
}

TEST(Icrc, UnreliableSendOfAnAdapter_HasTheRightCrc) {
  const Route route{ipv4(192, 168, 0, 7), ipv4(192, 168, 0, 7), 49152, 4791};
  const auto packet = bytes_of({0x24, 0x60, 0xff, 0xff, 0x00, 0x00, 0x00, 0xd3, 0x00, 0xcf, 0x17, 0x10,
                                0x46, 0x30, 0x81, 0x8b, 0xe2, 0x89, 0x35, 0xd9, 0x0e, 0x9a, 0x95, 0x50,
                                0x54, 0x01, 0xbe, 0x88, 0x5e, 0x50, 0x00, 0x00, 0x78, 0xf3, 0x53, 0xf3});
  const auto length = static_cast<uint32_t>(packet.size());
  const uint32_t state = icrc_of_headers(route, 1144, length, packet.data(), length - kIcrcBytes);
  EXPECT_EQ(load_icrc(packet.data() + length - kIcrcBytes), icrc_of_state(state));
}

/// From the IPv4 header on, as Linux's rdma_rxe sent them.
struct Captured {
  const char* name;
  const char* hex;
};
constexpr Captured kFromRxe[] = {
    {"SEND Only, 1 byte",
     "45000030150640004011111b0a4d00020a4d0001d10012b7001c00000430ffff0000010080bac72e7b000000ed1be2e9"},
    {"SEND Only, 13 bytes",
     "4500003c1674400040110fa10a4d00020a4d0001d21212b7002800000430ffff00000101805e13e97b7b7b7b7b7b7b7b7b7b7b7b7b000000"
     "0c05712d"},
    {"datagram, 30 bytes",
     "450000541bd2400040110a2b0a4d00020a4d0001c15c12b7004000006420ffff00000104007944c111111111000000157b7b7b7b7b7b7b7b"
     "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b0000e6833b56"},
    {"acknowledgement",
     "45000030013b4000401124e60a4d00020a4d0001d02612b7001c00001100ffff000010020085f4341f0000017ebffc91"},
};

TEST(Icrc, PacketsOfRdmaRxe_HaveTheRightCrc) {
  for (const Captured& captured : kFromRxe) {
    std::vector<std::byte> ip;
    for (const char* at = captured.hex; *at != '\0'; at += 2)
      ip.push_back(static_cast<std::byte>(std::stoi(std::string(at, 2), nullptr, 16)));
    const auto u16 = [&](size_t at) {
      return static_cast<uint16_t>(std::to_integer<int>(ip[at]) << 8 | std::to_integer<int>(ip[at + 1]));
    };
    const auto u8 = [&](size_t at) { return std::to_integer<uint8_t>(ip[at]); };
    const Route route{ipv4(u8(12), u8(13), u8(14), u8(15)), ipv4(u8(16), u8(17), u8(18), u8(19)), u16(20), u16(22)};
    const std::byte* data = ip.data() + 28;
    const auto length = static_cast<uint32_t>(ip.size() - 28);
    EXPECT_TRUE(icrc_holds(route, data, length, 0xffff)) << captured.name;
    EXPECT_TRUE(icrc_holds(route, data, length, 0, u16(4))) << captured.name;
    EXPECT_FALSE(icrc_holds(route, data, length, static_cast<uint16_t>(u16(4) - 1))) << captured.name;
    Packet packet;
    ASSERT_TRUE(decode(data, length, &packet)) << captured.name;
    EXPECT_EQ(0, packet.mark) << "a standard peer";
  }
}

TEST(Icrc, Holds_EachLengthAndIdentification_IsTrue) {
  std::mt19937_64 random(3);
  const Route route{ipv4(1, 2, 3, 4), ipv4(5, 6, 7, 8), 1000, 4791};
  for (uint32_t length = kShortestPacket; length <= kMaxPacketBytes; length += 37) {
    std::vector<std::byte> packet(length);
    for (std::byte& byte : packet) byte = static_cast<std::byte>(random());
    const auto identification = static_cast<uint16_t>(random());
    uint32_t state = icrc_of_headers(route, identification, length, packet.data(), kBthBytes);
    state = base::crc32(state, packet.data() + kBthBytes, length - kBthBytes - kIcrcBytes);
    store_icrc(icrc_of_state(state), packet.data() + length - kIcrcBytes);
    ASSERT_TRUE(icrc_holds(route, packet.data(), length, identification));
    ASSERT_FALSE(identification > 0 &&
                 icrc_holds(route, packet.data(), length, static_cast<uint16_t>(identification - 1)));
    // Damage passes only with the chance of 2^-16 that the page names.
    packet[length / 2] ^= std::byte{0x40};
    EXPECT_FALSE(icrc_holds(route, packet.data(), length, 63)) << length;
  }
}

TEST(Icrc, FlushOfRdmaRxe_CountsItsHeadersTwice) {
  constexpr uint32_t kHeaders = 32;
  const Route route{ipv4(10, 77, 0, 2), ipv4(10, 77, 0, 1), 1000, kUdpPort};
  std::vector<std::byte> flush(kHeaders + kIcrcBytes);
  Packet packet = sample(opcode_of(Service::kRc, Operation::kFlush));
  packet.payload_length = 0;
  ASSERT_EQ(encode(packet, flush.data()), kHeaders);
  const auto length = static_cast<uint32_t>(flush.size());
  for (const uint16_t identification : {0, 1, 0x718c, 0xffff}) {
    const uint32_t state = icrc_of_headers(route, identification, length, flush.data(), kHeaders);
    store_icrc(icrc_of_state(continue_as_rxe(state, flush.data(), kHeaders)), flush.data() + kHeaders);
    EXPECT_TRUE(icrc_holds_as_rxe(route, flush.data(), length)) << identification;
    EXPECT_FALSE(icrc_holds(route, flush.data(), length, 63));
  }
  flush[20] ^= std::byte{1};
  EXPECT_FALSE(icrc_holds_as_rxe(route, flush.data(), length)) << "damage";
  flush[20] ^= std::byte{1};
  flush[0] = std::byte{opcode_of(Service::kRc, Operation::kReadRequest)};
  const uint32_t state = icrc_of_headers(route, 0, length, flush.data(), kHeaders);
  store_icrc(icrc_of_state(continue_as_rxe(state, flush.data(), kHeaders)), flush.data() + kHeaders);
  EXPECT_FALSE(icrc_holds_as_rxe(route, flush.data(), length)) << "another request";
}

TEST(Icrc, Ipv6_HasNoIdentification) {
  Route route;
  route.source.raw[15] = 1;
  route.destination.raw[0] = 0xfd;
  std::vector<std::byte> packet(60, std::byte{9});
  uint32_t state = icrc_of_headers(route, 0, 60, packet.data(), 56);
  store_icrc(icrc_of_state(state), packet.data() + 56);
  EXPECT_TRUE(icrc_holds(route, packet.data(), 60, 0));
  // What would be another identification's CRC over IPv4 is damage here.
  const Route over_ipv4{ipv4(1, 2, 3, 4), ipv4(5, 6, 7, 8), 1000, 4791};
  const uint32_t difference =
      icrc_of_headers(over_ipv4, 0, 60, packet.data(), 56) ^ icrc_of_headers(over_ipv4, 5, 60, packet.data(), 56);
  store_icrc(icrc_of_state(state) ^ difference, packet.data() + 56);
  EXPECT_FALSE(icrc_holds(route, packet.data(), 60, 0xffff));
  store_icrc(icrc_of_state(state), packet.data() + 56);
  route.source.raw[14] = 1;
  EXPECT_FALSE(icrc_holds(route, packet.data(), 60, 0xffff));
}

TEST(Icrc, Headers_PacketsOfEqualLengthToTwoPeers_HaveTheirOwnCrc) {
  std::vector<std::byte> packet(60, std::byte{9});
  RouteStates known;
  for (int round = 0; round < 2; ++round)
    for (const uint8_t last : {7, 8}) {
      const Route route{ipv4(1, 2, 3, 4), ipv4(5, 6, 7, last), 1000, 4791};
      EXPECT_EQ(icrc_of_headers(route, 0, 60, packet.data(), 56),
                icrc_of_headers(route, 0, 60, packet.data(), 56, &known))
          << int{last};
    }
}

/// A small SEND with an acknowledgement behind it, as TransmitBatch writes it.
std::vector<std::byte> carrying(const Packet& packet, const Packet& ack, const std::vector<std::byte>& payload) {
  std::vector<std::byte> bytes(kMaxHeaderBytes);
  bytes.resize(encode(packet, bytes.data()));
  bytes[8] = (bytes[8] & std::byte{0x80}) | std::byte{kCarriesAck};
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  bytes.resize(bytes.size() + pad_of(packet.payload_length));
  bytes.resize(bytes.size() + kCarriedBytes + kIcrcBytes);
  encode_carried(ack, bytes.data() + bytes.size() - kCarriedBytes - kIcrcBytes);
  return bytes;
}

TEST(CarriedAcknowledgement, EncodeAndDecode_EachPad_IsEqual) {
  Packet ack;
  ack.psn = 0xabcdef;
  ack.syndrome = syndrome(AckKind::kAck, kAckUnlimited);
  ack.msn = 0x123456;
  ack.trigger_valid = true;
  ack.trigger = 0xfedcba;
  ack.delay_ns = 0x12345678;
  ack.window = 0x9abcdef0;
  ack.marked = 77;
  ack.trigger_path = 3;
  ack.duplicates_valid = true;
  ack.duplicates = 0xa5b6c7;
  for (uint32_t length = 0; length < 9; ++length) {
    Packet packet;
    packet.opcode = opcode_of(Service::kRc, Operation::kSendOnly);
    packet.mark = kNupaMark;
    packet.ack_request = length % 2 == 0;
    packet.dest_qpn = 0x4321;
    packet.psn = 99;
    packet.payload_length = length;
    const std::vector<std::byte> payload(length, std::byte{0x5a});
    const std::vector<std::byte> bytes = carrying(packet, ack, payload);
    Packet out;
    ASSERT_TRUE(decode(bytes.data(), static_cast<uint32_t>(bytes.size()), &out)) << length;
    EXPECT_EQ(kNupaMark, out.mark);
    EXPECT_EQ(packet.ack_request, out.ack_request);
    ASSERT_EQ(length, out.payload_length);
    EXPECT_TRUE(std::equal(payload.begin(), payload.end(), out.payload));
    ASSERT_NE(nullptr, out.carried);
    const Packet back = decode_carried(out);
    EXPECT_EQ(kSelectiveAck, back.opcode);
    EXPECT_EQ(packet.dest_qpn, back.dest_qpn);
    EXPECT_EQ(ack.psn, back.psn);
    EXPECT_EQ(ack.syndrome, back.syndrome);
    EXPECT_EQ(ack.msn, back.msn);
    EXPECT_TRUE(back.trigger_valid);
    EXPECT_EQ(ack.trigger, back.trigger);
    EXPECT_EQ(ack.delay_ns, back.delay_ns);
    EXPECT_EQ(ack.window, back.window);
    EXPECT_EQ(ack.marked, back.marked);
    EXPECT_EQ(ack.trigger_path, back.trigger_path);
    EXPECT_TRUE(back.duplicates_valid);
    EXPECT_EQ(ack.duplicates, back.duplicates);
    EXPECT_EQ(0u, back.payload_length) << "no bitmap";
    for (uint32_t cut = 1; cut <= kCarriedBytes + length; ++cut) {
      Packet none;
      const auto left = static_cast<uint32_t>(bytes.size() - cut);
      // What is cut off the end takes from the payload, never from beside the packet.
      if (!decode(bytes.data(), left, &none) || none.carried == nullptr) continue;
      EXPECT_LE(none.payload + none.payload_length, none.carried) << length << " " << cut;
    }
  }
}

TEST(CarriedAcknowledgement, Decode_OtherPackets_CarryNoAcknowledgement) {
  for (uint32_t opcode = 0; opcode < 256; ++opcode) {
    Packet packet;
    packet.opcode = static_cast<uint8_t>(opcode);
    packet.mark = kNupaMark;
    if (traits_of(packet.opcode) == 0 || may_carry(packet)) continue;
    const std::vector<std::byte> bytes = carrying(packet, Packet{}, {});
    Packet out;
    EXPECT_FALSE(decode(bytes.data(), static_cast<uint32_t>(bytes.size()), &out)) << opcode;
  }
}

}  // namespace
}  // namespace nupa::roce
