// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The messages between rsockets peers. The format is rdma-core's (librdmacm/docs/rsocket and the messages that its
/// rsockets send), byte for byte, so that either peer may be rdma-core's.

#include <endian.h>

#include <cstddef>
#include <cstdint>

namespace nupa::rsockets {

/// A buffer that the peer may write. Network byte order in connection data, host byte order in tables.
struct RemoteBuffer {
  uint64_t addr;
  uint32_t key;
  uint32_t length;
};
static_assert(sizeof(RemoteBuffer) == 16);

/// An entry of the table of mapped buffers. `offset` is the offset that the peer passes to riowrite().
struct RemoteMapping {
  uint64_t offset;
  RemoteBuffer buffer;
};
static_assert(sizeof(RemoteMapping) == 24);

/// Private data of the connection request and reply. Numbers of more than a byte are in network order.
///
/// Bytes:
/// - 0: version, 1
/// - 1: flags. 1: tables are written in big-endian order. 2: a table of mapped buffers follows the target buffers
/// - 2-3: credits, the messages that the receiver is ready for
/// - 4-6: 0
/// - 7: entries of the table of mapped buffers, scaled (scale_down)
/// - 8-23: table of target buffers; its length is a count of entries
/// - 24-39: the first target buffer, which goes into entry 0
struct ConnectData {
  uint8_t version;
  uint8_t flags;
  uint16_t credits;
  uint8_t reserved[3];
  uint8_t mappings;
  RemoteBuffer targets;
  RemoteBuffer first;
};
static_assert(sizeof(ConnectData) == 40);

constexpr uint8_t kConnectVersion = 1;
constexpr uint8_t kConnectBigEndian = 1;
constexpr uint8_t kConnectMappings = 2;
/// Entries of the table of target buffers: the one in use and the next one.
constexpr uint32_t kTargets = 2;
/// With AF_IB addresses, the request's data follows the header of IP services (IBTA A11). Its bytes are zero, because
/// there are no IP addresses. A listener with AF_IB addresses receives the header from other peers.
constexpr size_t kIpServiceHeader = 36;

/// The operation, in the upper three bits of the immediate data.
enum class Op : uint32_t {
  kData = 0,     ///< bytes written into the target buffer
  kWrite = 2,    ///< never sent: a write into a mapped buffer has no message
  kCredits = 4,  ///< messages that the peer may send, counted from the start, modulo 2^16
  kMapping = 6,  ///< index of the written entry
  kControl = 7,  ///< a value of Control
};

enum class Control : uint32_t { kDisconnect = 0, kKeepalive = 1, kShutdown = 2 };

constexpr unsigned kOpShift = 29;
/// The largest value in a message, and so the most bytes that one message announces.
constexpr uint32_t kMaxMessageValue = (UINT32_C(1) << kOpShift) - 1;

/// Returns a message in host order. The immediate data is its big-endian form.
constexpr uint32_t encode(Op op, uint32_t value) {
  return static_cast<uint32_t>(op) << kOpShift | (value & kMaxMessageValue);
}
constexpr uint32_t encode(Control control) { return encode(Op::kControl, static_cast<uint32_t>(control)); }
constexpr Op op_of(uint32_t message) { return static_cast<Op>(message >> kOpShift); }
constexpr uint32_t value_of(uint32_t message) { return message & kMaxMessageValue; }

/// Encodes a count in eight bits. Counts above 128 are stored in units of 256, marked by the top bit, so the decoded
/// count may be smaller.
constexpr uint8_t scale_down(uint32_t count) {
  constexpr uint32_t kLargest = 127 << 8;
  if (count > kLargest) count = kLargest;
  return static_cast<uint8_t>(count <= 128 ? count : 128 | count >> 8);
}
constexpr uint32_t scale_up(uint8_t scaled) {
  return scaled <= 128 ? scaled : static_cast<uint32_t>(scaled & 127) << 8;
}

constexpr bool kHostIsBigEndian = BYTE_ORDER == BIG_ENDIAN;

inline RemoteBuffer to_network(const RemoteBuffer& buffer) {
  return {htobe64(buffer.addr), htobe32(buffer.key), htobe32(buffer.length)};
}
inline RemoteBuffer from_network(const RemoteBuffer& buffer) {
  return {be64toh(buffer.addr), be32toh(buffer.key), be32toh(buffer.length)};
}
/// Used for a table that a host of the other byte order reads.
inline RemoteBuffer swapped(const RemoteBuffer& buffer) {
  return {__builtin_bswap64(buffer.addr), __builtin_bswap32(buffer.key), __builtin_bswap32(buffer.length)};
}

/// Precedes the payload of each datagram between UD queue pairs and holds the sender's address. The length is 8
/// (version 4) or 24 (version 6). Port and addresses are in network order.
struct DatagramHeader {
  uint8_t version;
  uint8_t length;
  uint16_t port;
  union {
    uint32_t ipv4;
    struct {
      uint32_t flowinfo;
      uint8_t addr[16];
    } ipv6;
  } addr;
};
static_assert(sizeof(DatagramHeader) == 24);
constexpr uint8_t kDatagramHeaderV4 = 8;
constexpr uint8_t kDatagramHeaderV6 = 24;

/// Precedes the payload of datagrams over the UDP socket, before the peer's queue pair is known. `op` is a value of Op:
/// kData with payload, kControl without. The length is 16 (version 4) or 28 (version 6). All fields are in network
/// order.
struct UdpHeader {
  uint32_t tag;
  uint8_t version;
  uint8_t op;
  uint8_t length;
  uint8_t reserved;
  uint32_t qpn;  ///< the sender's queue pair number, 24 bits
  union {
    uint32_t ipv4;
    uint8_t ipv6[16];
  } addr;
};
static_assert(sizeof(UdpHeader) == 28);
constexpr uint32_t kUdpTag = 0x55555555;
constexpr uint8_t kUdpHeaderV4 = 16;
constexpr uint8_t kUdpHeaderV6 = 28;

}  // namespace nupa::rsockets
