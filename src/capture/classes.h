// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The class of a packet, as filters name it. Any thread.

#include <cstddef>
#include <cstdint>

namespace nupa::capture {

/// The bytes that names_of() reads: the base transport header.
constexpr uint32_t kNamesBytes = 12;
constexpr uint32_t kManagementQpn = 1;  ///< IBTA 3.9.4

struct PacketNames {
  uint32_t packet_class = 0;  ///< one bit of packet_class
  uint32_t dest_qpn = 0;
};
/// `headers`: at least kNamesBytes, from the base transport header on.
PacketNames names_of(const std::byte* headers);

}  // namespace nupa::capture
