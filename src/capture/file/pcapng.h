// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The pcapng format (draft-ietf-opsawg-pcapng): blocks of a section with Ethernet interfaces and times in nanoseconds.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "capture/ring.h"

namespace nupa::capture {

/// Appends blocks to a text. A section comes first, and each interface before its packets.
class PcapngWriter {
 public:
  /// `interfaces`: how many the section has so far. Both outlive the writer.
  PcapngWriter(std::string& out, uint32_t* interfaces) : out_(out), interfaces_(interfaces) {}

  /// `application`: the program that captures.
  void section(std::string_view application, std::string_view system);
  /// Returns the number of the interface. `snaplen` 0: no limit.
  uint32_t interface(std::string_view name, std::string_view description, uint32_t snaplen);
  struct PacketInfo {
    uint32_t interface = 0;
    int64_t time_ns = 0;  ///< since 1970
    Direction direction = Direction::kOutbound;
    uint32_t length = 0;  ///< of the whole frame
    std::string_view comment{};
  };
  void packet(const PacketInfo& info, std::span<const std::byte> frame);
  struct Statistics {
    uint32_t interface = 0;
    int64_t start_ns = 0;
    int64_t end_ns = 0;
    uint64_t received = 0;  ///< with those that were dropped
    uint64_t dropped = 0;
  };
  void statistics(const Statistics& counted);

 private:
  void u16(uint32_t value);
  void u32(uint32_t value);
  void u64(uint64_t value);
  /// The two halves of a time, the upper one first.
  void time(int64_t ns);
  void bytes(const void* from, size_t length);
  void option(uint16_t code, std::string_view value);
  void end_of_options();
  /// Returns the place of the block, for end_block().
  size_t begin_block(uint32_t type);
  void end_block(size_t at);

  std::string& out_;
  uint32_t* const interfaces_;
};

}  // namespace nupa::capture
