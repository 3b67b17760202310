// SPDX-License-Identifier: Apache-2.0
/// The capture file: checksums and CRCs of frames, and the blocks of pcapng.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/gid.h"
#include "capture/file/frame.h"
#include "capture/file/pcapng.h"
#include "capture/link_headers.h"
#include "capture/tap.h"
#include "transport/roce/wire/icrc.h"

namespace nupa::capture {
namespace {

constexpr uint16_t kRocePort = 4791;

uint32_t word16(const std::vector<std::byte>& frame, size_t at) {
  return std::to_integer<uint32_t>(frame[at]) << 8 | std::to_integer<uint32_t>(frame[at + 1]);
}

/// A frame with a SEND of 12 bytes, whose CRC is that of the packet with the real port.
class CaptureFrame : public ::testing::Test {
 protected:
  void make(const Gid& source, const Gid& destination, uint16_t port, uint16_t identification, uint16_t flags) {
    datagram_ = {.source = source, .destination = destination, .source_port = 0xc123, .destination_port = port};
    if ((flags & frame_flag::kKnownId) != 0) datagram_.identification = identification;
    payload_.assign(12 + 12 + 4, std::byte{5});
    payload_[0] = std::byte{4};
    real_ = {source, destination, 0xc123, port};
    const uint32_t crc = roce::icrc_of_state(roce::icrc_of_headers(real_, identification, 28, payload_.data(), 24));
    roce::store_icrc(crc, &payload_[24]);
    LinkHeaders link;
    const uint32_t bytes = write_link_headers(datagram_, 28, &link);
    frame_.assign(link.begin(), link.begin() + bytes);
    payload_at_ = bytes;
    frame_.insert(frame_.end(), payload_.begin(), payload_.end());
    record_.length = static_cast<uint32_t>(frame_.size());
    record_.flags = flags;
    record_.udp_port = port;
  }
  bool shown_crc_holds(uint16_t identification) const {
    const roce::Route shown{real_.source, real_.destination, real_.source_port, kRocePort};
    return roce::icrc_holds(shown, &frame_[payload_at_], 28, 0, identification);
  }
  static uint32_t sum(const std::vector<std::byte>& bytes, size_t at, size_t length, uint32_t more = 0) {
    uint32_t all = more;
    for (size_t i = 0; i < length; i += 2)
      all += i + 1 < length ? word16(bytes, at + i) : std::to_integer<uint32_t>(bytes[at + i]) << 8;
    while (all >> 16 != 0) all = (all & 0xffff) + (all >> 16);
    return all;
  }

  Datagram datagram_;
  roce::Route real_;
  std::vector<std::byte> payload_;
  std::vector<std::byte> frame_;
  size_t payload_at_ = 0;
  Record record_;
  const Gid one_ = base::ipv4_gid(10, 0, 0, 1);
  const Gid two_ = base::ipv4_gid(10, 0, 0, 2);
};

TEST_F(CaptureFrame, Ipv4_HasRightChecksumAndCrc) {
  make(one_, two_, kRocePort, 0x1234, frame_flag::kKnownId);
  EXPECT_EQ(Crc::kRight, complete_frame(record_, frame_));
  EXPECT_EQ(0xffffu, sum(frame_, kEthernetBytes, kIpv4Bytes));
  EXPECT_EQ(0x1234u, word16(frame_, kEthernetBytes + 4));
  EXPECT_EQ(kRocePort, word16(frame_, kEthernetBytes + kIpv4Bytes + 2));
  EXPECT_TRUE(shown_crc_holds(0x1234));
  EXPECT_TRUE(std::equal(payload_.begin(), payload_.end(), frame_.end() - 28)) << "nothing was to be changed";
}

TEST_F(CaptureFrame, OtherPort_IsShownAs4791WithARightCrc) {
  make(one_, two_, 61005, 7, frame_flag::kKnownId);
  EXPECT_EQ(Crc::kRight, complete_frame(record_, frame_));
  EXPECT_EQ(kRocePort, word16(frame_, kEthernetBytes + kIpv4Bytes + 2));
  EXPECT_TRUE(shown_crc_holds(7));
}

TEST_F(CaptureFrame, ArrivedPacket_GetsTheIdentificationOfItsCrc) {
  make(one_, two_, 61005, 0xabcd, 0);
  EXPECT_EQ(Crc::kRight, complete_frame(record_, frame_));
  EXPECT_EQ(0xabcdu, word16(frame_, kEthernetBytes + 4));
  EXPECT_TRUE(shown_crc_holds(0xabcd));
}

TEST_F(CaptureFrame, DamagedPacket_StaysDamaged) {
  for (const uint16_t flags : {frame_flag::kKnownId, uint16_t{0}}) {
    make(one_, two_, 61005, 7, flags);
    frame_[payload_at_ + 14] ^= std::byte{1};
    EXPECT_EQ(Crc::kWrong, complete_frame(record_, frame_));
    EXPECT_FALSE(shown_crc_holds(7));
    frame_[payload_at_ + 14] ^= std::byte{1};
    EXPECT_TRUE(flags == 0 || shown_crc_holds(7)) << "only that bit is wrong";
  }
}

TEST_F(CaptureFrame, OmittedCrc_StaysZero) {
  make(one_, two_, 61005, 7, frame_flag::kWithoutCrc);
  roce::store_icrc(0, &frame_[payload_at_ + 24]);
  EXPECT_EQ(Crc::kOmitted, complete_frame(record_, frame_));
  EXPECT_EQ(0u, roce::load_icrc(&frame_[payload_at_ + 24]));
}

TEST_F(CaptureFrame, SyntheticPacket_GetsItsCrc) {
  make(one_, two_, kRocePort, 0, frame_flag::kSynthetic | frame_flag::kKnownId);
  roce::store_icrc(0, &frame_[payload_at_ + 24]);
  EXPECT_EQ(Crc::kRight, complete_frame(record_, frame_));
  EXPECT_TRUE(shown_crc_holds(0));
}

TEST_F(CaptureFrame, Ipv6_HasRightChecksumOfUdp) {
  Gid one{}, two{};
  one.raw = {0xfd, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  two.raw = {0xfd, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2};
  make(one, two, 61005, 0, frame_flag::kKnownId);
  EXPECT_EQ(Crc::kRight, complete_frame(record_, frame_));
  const uint32_t pseudo = sum(frame_, kEthernetBytes + 8, 32, 36 + 17);
  EXPECT_EQ(0xffffu, sum(frame_, kEthernetBytes + kIpv6Bytes, 36, pseudo));
  EXPECT_TRUE(shown_crc_holds(0));
}

TEST_F(CaptureFrame, CutPacket_HasNoCrcToCheck) {
  make(one_, two_, 61005, 7, frame_flag::kKnownId);
  frame_.resize(payload_at_ + 20);
  EXPECT_EQ(Crc::kUnknown, complete_frame(record_, frame_));
  EXPECT_EQ(0xffffu, sum(frame_, kEthernetBytes, kIpv4Bytes));
  frame_.resize(20);
  EXPECT_EQ(Crc::kUnknown, complete_frame(record_, frame_));
}

// pcapng.

/// A block of a file, taken apart by the format's description.
struct Block {
  uint32_t type = 0;
  std::string body;
  uint32_t u32(size_t at) const {
    uint32_t value = 0;
    std::memcpy(&value, &body[at], sizeof value);
    return value;
  }
  /// The options from `at` on, by code.
  std::map<uint32_t, std::string> options(size_t at) const {
    std::map<uint32_t, std::string> all;
    while (at + 4 <= body.size()) {
      const uint32_t code = u32(at) & 0xffff, length = u32(at) >> 16;
      if (code == 0) break;
      all[code] = body.substr(at + 4, length);
      at += 4 + (length + 3) / 4 * 4;
    }
    return all;
  }
};

std::vector<Block> blocks_of(const std::string& file) {
  std::vector<Block> blocks;
  for (size_t at = 0; at < file.size();) {
    uint32_t type = 0, length = 0, again = 0;
    std::memcpy(&type, &file[at], 4);
    std::memcpy(&length, &file[at + 4], 4);
    EXPECT_EQ(0u, length % 4);
    EXPECT_LE(at + length, file.size());
    if (length < 12 || at + length > file.size()) break;
    std::memcpy(&again, &file[at + length - 4], 4);
    EXPECT_EQ(length, again);
    blocks.push_back({type, file.substr(at + 8, length - 12)});
    at += length;
  }
  return blocks;
}

TEST(CapturePcapng, Blocks_HaveTheFieldsOfTheFormat) {
  std::string file;
  uint32_t interfaces = 0;
  PcapngWriter writer(file, &interfaces);
  writer.section("program", "system");
  EXPECT_EQ(0u, writer.interface("nupa0/shm", "words", 0));
  EXPECT_EQ(1u, writer.interface("nupa0/roce", "words", 100));
  const std::byte frame[5] = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}, std::byte{5}};
  constexpr int64_t kTime = 0x123456789abcdef0;
  writer.packet({.interface = 1, .time_ns = kTime, .direction = Direction::kInbound, .length = 9, .comment = "text"},
                frame);
  writer.statistics({.interface = 1, .start_ns = 1, .end_ns = kTime, .received = 5, .dropped = 2});
  const auto blocks = blocks_of(file);
  ASSERT_EQ(5u, blocks.size());
  EXPECT_EQ(0x0a0d0d0au, blocks[0].type);
  EXPECT_EQ(0x1a2b3c4du, blocks[0].u32(0));
  EXPECT_EQ("program", blocks[0].options(16)[4]);
  EXPECT_EQ(1u, blocks[2].type);
  EXPECT_EQ(1u, blocks[2].u32(0)) << "Ethernet";
  EXPECT_EQ(100u, blocks[2].u32(4));
  EXPECT_EQ("nupa0/roce", blocks[2].options(8)[2]);
  EXPECT_EQ("\x09", blocks[2].options(8)[9]) << "nanoseconds";
  EXPECT_EQ(6u, blocks[3].type);
  EXPECT_EQ(1u, blocks[3].u32(0));
  EXPECT_EQ(0x12345678u, blocks[3].u32(4));
  EXPECT_EQ(0x9abcdef0u, blocks[3].u32(8));
  EXPECT_EQ(5u, blocks[3].u32(12));
  EXPECT_EQ(9u, blocks[3].u32(16));
  EXPECT_EQ("\1\2\3\4\5", blocks[3].body.substr(20, 5));
  auto options = blocks[3].options(28);
  EXPECT_EQ("text", options[1]);
  EXPECT_EQ(std::string("\1\0\0\0", 4), options[2]) << "inbound";
  EXPECT_EQ(5u, blocks[4].type);
  auto counted = blocks[4].options(12);
  EXPECT_EQ(std::string("\5\0\0\0\0\0\0\0", 8), counted[4]);
  EXPECT_EQ(std::string("\2\0\0\0\0\0\0\0", 8), counted[5]);
  EXPECT_EQ(std::string("\x78\x56\x34\x12\xf0\xde\xbc\x9a", 8), counted[3]);
}

}  // namespace
}  // namespace nupa::capture
