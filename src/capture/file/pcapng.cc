// SPDX-License-Identifier: Apache-2.0
#include "capture/file/pcapng.h"

#include <algorithm>
#include <cstring>

namespace nupa::capture {
namespace {

constexpr uint32_t kSectionHeader = 0x0a0d0d0a;
constexpr uint32_t kInterfaceDescription = 1;
constexpr uint32_t kInterfaceStatistics = 5;
constexpr uint32_t kEnhancedPacket = 6;
constexpr uint32_t kByteOrderMagic = 0x1a2b3c4d;
constexpr uint32_t kEthernet = 1;  // LINKTYPE_ETHERNET
constexpr char kNanoseconds = 9;   // a power of ten
constexpr size_t kLongestOption = 0xffff;

namespace option_code {
constexpr uint16_t kEnd = 0;
constexpr uint16_t kComment = 1;
constexpr uint16_t kSectionOs = 3;
constexpr uint16_t kSectionApplication = 4;
constexpr uint16_t kInterfaceName = 2;
constexpr uint16_t kInterfaceDescription = 3;
constexpr uint16_t kInterfaceResolution = 9;
constexpr uint16_t kPacketFlags = 2;
constexpr uint16_t kStatisticsStart = 2;
constexpr uint16_t kStatisticsEnd = 3;
constexpr uint16_t kStatisticsReceived = 4;
constexpr uint16_t kStatisticsDropped = 5;
}  // namespace option_code

template <class T>
std::string_view raw(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// Times in options have their upper half first, too.
uint64_t halves_of(int64_t ns) {
  const auto value = static_cast<uint64_t>(ns);
  return value >> 32 | value << 32;
}

}  // namespace

void PcapngWriter::u16(uint32_t value) {
  const auto word = static_cast<uint16_t>(value);
  bytes(&word, sizeof word);
}

void PcapngWriter::u32(uint32_t value) { bytes(&value, sizeof value); }
void PcapngWriter::u64(uint64_t value) { bytes(&value, sizeof value); }
void PcapngWriter::time(int64_t ns) { u64(halves_of(ns)); }

void PcapngWriter::bytes(const void* from, size_t length) {
  if (length != 0) out_.append(static_cast<const char*>(from), length);
}

void PcapngWriter::option(uint16_t code, std::string_view value) {
  value = value.substr(0, kLongestOption);
  u16(code);
  u16(static_cast<uint32_t>(value.size()));
  bytes(value.data(), value.size());
  out_.append((4 - value.size() % 4) % 4, '\0');
}

void PcapngWriter::end_of_options() { option(option_code::kEnd, {}); }

size_t PcapngWriter::begin_block(uint32_t type) {
  const size_t at = out_.size();
  u32(type);
  u32(0);
  return at;
}

void PcapngWriter::end_block(size_t at) {
  const auto length = static_cast<uint32_t>(out_.size() - at + sizeof(uint32_t));
  u32(length);
  std::memcpy(&out_[at + sizeof(uint32_t)], &length, sizeof length);
}

void PcapngWriter::section(std::string_view application, std::string_view system) {
  const size_t at = begin_block(kSectionHeader);
  u32(kByteOrderMagic);
  u16(1);
  u16(0);
  u64(~uint64_t{0});  // the length of the section is not given
  option(option_code::kSectionOs, system);
  option(option_code::kSectionApplication, application);
  end_of_options();
  end_block(at);
}

uint32_t PcapngWriter::interface(std::string_view name, std::string_view description, uint32_t snaplen) {
  const size_t at = begin_block(kInterfaceDescription);
  u16(kEthernet);
  u16(0);
  u32(snaplen);
  option(option_code::kInterfaceName, name);
  option(option_code::kInterfaceDescription, description);
  option(option_code::kInterfaceResolution, {&kNanoseconds, 1});
  end_of_options();
  end_block(at);
  return (*interfaces_)++;
}

void PcapngWriter::packet(const PacketInfo& info, std::span<const std::byte> frame) {
  const size_t at = begin_block(kEnhancedPacket);
  u32(info.interface);
  time(info.time_ns);
  u32(static_cast<uint32_t>(frame.size()));
  u32(info.length);
  bytes(frame.data(), frame.size());
  out_.append((4 - frame.size() % 4) % 4, '\0');
  if (!info.comment.empty()) option(option_code::kComment, info.comment);
  option(option_code::kPacketFlags, raw(static_cast<uint32_t>(info.direction)));
  end_of_options();
  end_block(at);
}

void PcapngWriter::statistics(const Statistics& counted) {
  const size_t at = begin_block(kInterfaceStatistics);
  u32(counted.interface);
  time(counted.end_ns);
  option(option_code::kStatisticsStart, raw(halves_of(counted.start_ns)));
  option(option_code::kStatisticsEnd, raw(halves_of(counted.end_ns)));
  option(option_code::kStatisticsReceived, raw(counted.received));
  option(option_code::kStatisticsDropped, raw(counted.dropped));
  end_of_options();
  end_block(at);
}

}  // namespace nupa::capture
