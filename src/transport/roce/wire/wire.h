// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The packets of RoCEv2: the UDP payload from the base transport header to the invariant CRC (IBTA volume 1, chapter 9
/// and annex A17). All fields are in network byte order in the packet, and in the host's order in Packet. icrc.h has
/// the invariant CRC. Any thread.
///
///     BTH         12  opcode | SE M pad(2) tver(4) | P_Key(16) | FECN BECN resv(6) | dest QP(24) | A resv(7) | PSN(24)
///     XRCETH       4  resv(8) | shared receive queue(24)                   every XRC request
///     DETH         8  Q_Key(32) | resv(8) | source QP(24)                  UD
///     FETH         4  resv(26) | selectivity(2) | placement(4)             FLUSH (annex A19); RETH follows
///     RETH        16  address(64) | R_Key(32) | length(32)                 first packet of a WRITE, READ request
///     AtomicETH   28  address(64) | R_Key(32) | swap or add(64) | compare(64)
///     AETH         4  syndrome(8) | MSN(24)                                all answers except middle ones
///     AtomicAckETH 8  value found(64)
///     ImmDt        4  as the program has it in memory
///     IETH         4  R_Key to invalidate
///     payload, 0 to 3 bytes of pad so that it ends on a word, ICRC 4

#include <nupa/types.h>

#include <cstddef>
#include <cstdint>

namespace nupa::roce {

constexpr uint16_t kUdpPort = 4791;  ///< UDP's destination port (annex A17.3.1)
constexpr uint32_t kBthBytes = 12;
constexpr uint32_t kIcrcBytes = 4;
/// The longest headers of any packet: BTH, XRCETH and AtomicETH. A selective acknowledgement has 36 bytes before its
/// bitmap.
constexpr uint32_t kMaxHeaderBytes = 48;
constexpr uint16_t kMembership = 0x8000;  ///< bit of a P_Key: full member of the partition (IBTA 10.9.1.1)
constexpr uint32_t kMaxMtu = 4096;
/// The largest payload whose packets, with any headers, fit an IP packet of `ip_mtu` bytes; at least 256 bytes. Linux
/// computes it in the same way (iboe_get_mtu).
constexpr Mtu mtu_within(uint32_t ip_mtu) {
  constexpr uint32_t kIpv6AndUdp = 40 + 8;
  auto code = static_cast<uint32_t>(Mtu::k4096);
  while (code > 1 && (128u << code) + kIpv6AndUdp + kMaxHeaderBytes + kIcrcBytes > ip_mtu) --code;
  return Mtu{code};
}
constexpr uint32_t kMaxPacketBytes = kMaxHeaderBytes + kMaxMtu + kIcrcBytes;

/// The upper three bits of an opcode (IBTA table 38).
enum class Service : uint8_t { kRc = 0, kUc = 1, kRd = 2, kUd = 3, kCnp = 4, kXrc = 5, kVendor = 6 };

/// The lower five bits of an opcode (IBTA table 38).
enum class Operation : uint8_t {
  kSendFirst = 0,
  kSendMiddle = 1,
  kSendLast = 2,
  kSendLastImm = 3,
  kSendOnly = 4,
  kSendOnlyImm = 5,
  kWriteFirst = 6,
  kWriteMiddle = 7,
  kWriteLast = 8,
  kWriteLastImm = 9,
  kWriteOnly = 10,
  kWriteOnlyImm = 11,
  kReadRequest = 12,
  kReadResponseFirst = 13,
  kReadResponseMiddle = 14,
  kReadResponseLast = 15,
  kReadResponseOnly = 16,
  kAcknowledge = 17,
  kAtomicAcknowledge = 18,
  kCompareSwap = 19,
  kFetchAdd = 20,
  kSendLastInv = 22,
  kSendOnlyInv = 23,
  kFlush = 28,
  kAtomicWrite = 29,
};

constexpr uint8_t opcode_of(Service service, Operation operation) {
  return static_cast<uint8_t>(static_cast<uint8_t>(service) << 5 | static_cast<uint8_t>(operation));
}
constexpr Service service_of(uint8_t opcode) { return static_cast<Service>(opcode >> 5); }
constexpr Operation operation_of(uint8_t opcode) { return static_cast<Operation>(opcode & 0x1f); }
constexpr uint8_t kCnpOpcode = 0x81;  ///< congestion notification, annex A17.9.3
// Opcodes that only NUPA processes send to each other (docs/reference/roce-extensions.md).
constexpr uint8_t kSelectiveAck = opcode_of(Service::kVendor, static_cast<Operation>(1));
constexpr uint8_t kPathProbe = opcode_of(Service::kVendor, static_cast<Operation>(2));
constexpr uint8_t kPathEcho = opcode_of(Service::kVendor, static_cast<Operation>(3));
constexpr uint8_t kHandshake = opcode_of(Service::kVendor, static_cast<Operation>(4));
constexpr uint8_t kAbsence = opcode_of(Service::kVendor, static_cast<Operation>(5));

/// Properties of an operation, and the headers that its packets carry.
namespace trait {
constexpr uint32_t kSend = 1u << 0;
constexpr uint32_t kWrite = 1u << 1;
constexpr uint32_t kRead = 1u << 2;
constexpr uint32_t kAtomic = 1u << 3;
constexpr uint32_t kResponse = 1u << 4;  ///< sent by the responder
constexpr uint32_t kStarts = 1u << 5;    ///< first packet of a message
constexpr uint32_t kEnds = 1u << 6;      ///< last packet of a message
constexpr uint32_t kPayload = 1u << 7;
constexpr uint32_t kReth = 1u << 8;
constexpr uint32_t kAtomicEth = 1u << 9;
constexpr uint32_t kAeth = 1u << 10;
constexpr uint32_t kAtomicAckEth = 1u << 11;
constexpr uint32_t kImm = 1u << 12;
constexpr uint32_t kIeth = 1u << 13;
constexpr uint32_t kSelective = 1u << 14;
constexpr uint32_t kCnp = 1u << 15;
constexpr uint32_t kPath = 1u << 16;  ///< manages the paths between NUPA processes
constexpr uint32_t kFeth = 1u << 17;
}  // namespace trait
/// Returns the properties of an opcode; 0 if the opcode does not exist.
uint32_t traits_of(uint8_t opcode);
/// True if a connection's packet is for its requester, false if it is for its responder.
inline bool is_for_requester(uint8_t opcode) { return (traits_of(opcode) & (trait::kResponse | trait::kCnp)) != 0; }

/// Syndromes of AETH (IBTA 9.7.5.2.4): the kind in bits 5 and 6, the kind's value in the lower bits.
enum class AckKind : uint8_t { kAck = 0, kRnrNak = 1, kReserved = 2, kNak = 3 };
enum class NakCode : uint8_t {
  kSequence = 0,
  kInvalidRequest = 1,
  kRemoteAccess = 2,
  kRemoteOperation = 3,
  kInvalidRdRequest = 4
};
constexpr uint8_t kAckUnlimited = 0x1f;  ///< no end-to-end credits
constexpr uint8_t syndrome(AckKind kind, uint8_t value) {
  return static_cast<uint8_t>(static_cast<uint8_t>(kind) << 5 | value);
}
constexpr AckKind ack_kind_of(uint8_t syndrome_value) { return static_cast<AckKind>(syndrome_value >> 5 & 3); }
constexpr uint8_t ack_value_of(uint8_t syndrome_value) { return syndrome_value & 0x1f; }

/// The reserved bits beside the acknowledge-request bit hold zero, or this value if the sender is NUPA.
constexpr uint8_t kNupaMark = 0x2d;
/// The same for a request with a small payload and an acknowledgement behind its pad: reserved(8), PSN(24), and the
/// fields of a selective acknowledgement between its headers and its bitmap.
constexpr uint8_t kCarriesAck = 0x2e;
constexpr uint32_t kCarriedBytes = 28;
constexpr uint32_t kBitmapWords = 32;
constexpr uint32_t kBitmapBits = kBitmapWords * 32;
/// The words of a bitmap are in network byte order in the packet.
constexpr uint32_t bitmap_word(uint32_t bits) { return __builtin_bswap32(bits); }

constexpr uint32_t kMaxPaths = 4;  ///< of one connection

/// One packet without its IP and UDP headers.
struct Packet {
  uint8_t opcode = 0;
  bool solicited = false;
  bool ack_request = false;
  bool fecn = false;
  bool becn = false;
  bool migrated = true;
  uint8_t mark = 0;
  uint16_t pkey = 0xffff;
  uint32_t dest_qpn = 0;
  uint32_t psn = 0;

  uint64_t address = 0;
  uint32_t rkey = 0;
  uint32_t length = 0;  ///< RETH
  uint32_t flush = 0;   ///< FETH without its reserved bits: flush_flag bits
  uint64_t swap_or_add = 0;
  uint64_t compare = 0;
  uint64_t found = 0;  ///< AtomicAckETH
  uint32_t imm = 0;    ///< in the program's byte order: not swapped
  uint32_t invalidate = 0;
  uint8_t syndrome = 0;
  uint32_t msn = 0;
  uint32_t qkey = 0;
  uint32_t source_qpn = 0;
  uint32_t srqn = 0;

  // The fields of a selective acknowledgement (docs/reference/roce-extensions.md).
  bool trigger_valid = false;
  uint32_t trigger = 0;
  uint32_t delay_ns = 0;
  uint32_t window = 0;
  uint32_t marked = 0;
  uint8_t trigger_path = 0;
  bool duplicates_valid = false;
  uint32_t duplicates = 0;  ///< 24 bits

  uint8_t path = 0;  ///< not in the packet: the connection's path that it came by
  /// Not in the packet: a FLUSH whose invariant CRC is that of rdma_rxe (continue_as_rxe()).
  bool crc_as_rxe = false;

  /// Used in received packets only. The payload of a selective acknowledgement is its bitmap.
  const std::byte* payload = nullptr;
  uint32_t payload_length = 0;         ///< without the pad
  const std::byte* carried = nullptr;  ///< the acknowledgement behind the payload, kCarriedBytes; null if there is none
};

/// The fields of the base header that identify a packet (IBTA 9.2).
struct PacketName {
  uint32_t dest_qpn = 0;
  uint32_t psn = 0;
};
/// `data`: at least kBthBytes.
inline PacketName name_in(const std::byte* data) {
  const auto field = [](const std::byte* at) {
    return std::to_integer<uint32_t>(at[0]) << 16 | std::to_integer<uint32_t>(at[1]) << 8 |
           std::to_integer<uint32_t>(at[2]);
  };
  return {field(data + 5), field(data + 9)};
}

/// Writes the headers of `packet`; its payload_length determines the pad. `out`: room for kMaxHeaderBytes. Returns the
/// bytes written.
uint32_t encode(const Packet& packet, std::byte* out);
constexpr uint32_t pad_of(uint32_t payload_length) { return (4 - (payload_length & 3)) & 3; }

/// Reads the UDP payload [data, data + length), which includes the CRC; the CRC is not checked. Returns false if it is
/// not a packet: too short, an unknown opcode or version, a pad without payload, payload where none belongs, or more
/// payload than the largest MTU.
bool decode(const std::byte* data, uint32_t length, Packet* packet);

/// True if the packet may carry an acknowledgement: a request of a connection between NUPA processes.
bool may_carry(const Packet& packet);
/// Writes a selective acknowledgement without bitmap, to be carried by another packet: kCarriedBytes.
void encode_carried(const Packet& ack, std::byte* out);
/// Returns the acknowledgement that `packet` carried.
Packet decode_carried(const Packet& packet);

/// The fewest bytes of a packet; a shorter datagram is not one.
constexpr uint32_t kShortestPacket = kBthBytes + kIcrcBytes;

}  // namespace nupa::roce
