// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <span>

#include "capture/ring.h"

namespace nupa::capture {

enum class Crc : uint8_t {
  kRight,
  kWrong,
  kOmitted,  ///< both sides have agreed to send zeros
  kUnknown,  ///< not all of the packet was kept
};

/// Completes the frame of a record in place: the checksums of IP and UDP, the identification of a packet that arrived,
/// and the invariant CRC, which covers the UDP port that the frame shows. A CRC that was wrong stays wrong. `frame`:
/// the bytes of the record. Returns what the packet's own CRC was.
Crc complete_frame(const Record& record, std::span<std::byte> frame);

}  // namespace nupa::capture
