// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

namespace nupa::netdev {

/// The header of each packet that is read from or written to a TUN device with IFF_VNET_HDR: struct virtio_net_hdr_v1
/// (Virtual I/O Device 1.2, 5.1.6), little-endian (TUNSETVNETLE).
///
///     flags(1) gso_type(1) hdr_len(2) gso_size(2) csum_start(2) csum_offset(2) num_buffers(2)
struct VirtioHeader {
  static constexpr uint8_t kNeedsChecksum = 1;  ///< flags: the checksum from csum_start on is not computed yet
  static constexpr uint8_t kChecksumIsValid = 2;
  static constexpr uint8_t kGsoNone = 0;
  static constexpr uint8_t kGsoTcp4 = 1;
  static constexpr uint8_t kGsoTcp6 = 4;
  static constexpr uint8_t kGsoUdp = 5;  ///< USO: datagrams of gso_size each
  static constexpr uint8_t kGsoEcn = 0x80;

  uint8_t flags = 0;
  uint8_t gso_type = kGsoNone;
  uint16_t hdr_len = 0;   ///< large segment: bytes of all its headers
  uint16_t gso_size = 0;  ///< large segment: payload bytes of each of its packets
  uint16_t csum_start = 0;
  uint16_t csum_offset = 0;  ///< place of the checksum, from csum_start
  uint16_t num_buffers = 0;  ///< not used by TUN

  bool is_large() const { return gso_type != kGsoNone; }
  bool is_datagrams() const { return (gso_type & ~kGsoEcn) == kGsoUdp; }
};
static_assert(sizeof(VirtioHeader) == 12);

}  // namespace nupa::netdev
