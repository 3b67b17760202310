// SPDX-License-Identifier: Apache-2.0
// One packet of any bytes: no reader leaves them; what was read can be written and read again; the invariant CRC holds
// for packets that are written with it, and for no packet that was changed.
#include "base/crc32.h"
#include "base/gid.h"
#include "input.h"
#include "targets.h"
#include "transport/roce/wire/icrc.h"

namespace nupa::fuzz {
namespace {

using namespace roce;

constexpr uint32_t kMaskedByte = 4;  // of the base transport header: the CRC says nothing of it

Route route_of(bool ipv4) {
  Route route;
  route.source.raw = {0xfd, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  route.destination.raw = {0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2};
  if (ipv4) {
    route.source = base::ipv4_gid(10, 0, 0, 1);
    route.destination = base::ipv4_gid(10, 0, 0, 2);
  }
  route.source_port = 50000;
  route.destination_port = kUdpPort;
  return route;
}

void seal(const Route& route, uint16_t identification, std::vector<std::byte>& bytes) {
  const auto length = static_cast<uint32_t>(bytes.size());
  uint32_t state = icrc_of_headers(route, identification, length, bytes.data(), kBthBytes);
  state = base::crc32(state, bytes.data() + kBthBytes, length - kBthBytes - kIcrcBytes);
  store_icrc(icrc_of_state(state), bytes.data() + length - kIcrcBytes);
}

void check_crc(Input& input, std::vector<std::byte> bytes) {
  const bool ipv4 = input.u8() % 2 == 0;
  const uint16_t identification = ipv4 ? input.u16() : uint16_t{0};
  const Route route = route_of(ipv4);
  const auto length = static_cast<uint32_t>(bytes.size());
  icrc_holds(route, bytes.data(), length, 0xffff);
  seal(route, identification, bytes);
  require(icrc_holds(route, bytes.data(), length, 0xffff), "a CRC that was just made holds with any identification");
  require(icrc_holds(route, bytes.data(), length, 0, identification), "and with the one it was made with");
  if (length > kBthBytes + kIcrcBytes + 2 || !ipv4) {
    // Up to 32 bits in a row are always noticed.
    const size_t at = input.u16() % (bytes.size() - kIcrcBytes);
    const auto flip = static_cast<std::byte>(input.u8() | 1);
    if (at == kMaskedByte) return;
    bytes[at] ^= flip;
    require(!icrc_holds(route, bytes.data(), length, 0, identification), "a changed packet's CRC does not hold");
  }
}

void check_round_trip(const std::vector<std::byte>& bytes, const Packet& packet) {
  const uint32_t traits = traits_of(packet.opcode);
  require(traits != 0, "a packet has an opcode that exists");
  require(packet.payload >= bytes.data() && packet.payload + packet.payload_length <= bytes.data() + bytes.size(),
          "the payload lies within the packet");
  require((traits & (trait::kPayload)) != 0 || packet.payload_length == 0, "payload stands only where it belongs");
  require((traits & trait::kSelective) == 0 || packet.payload_length <= kBitmapWords * 4, "a bitmap is bounded");
  std::vector<std::byte> again(kMaxHeaderBytes);
  const uint32_t header = encode(packet, again.data());
  require(header <= kMaxHeaderBytes, "headers fit their room");
  again.resize(header);
  again.insert(again.end(), packet.payload, packet.payload + packet.payload_length);
  again.resize(again.size() + pad_of(packet.payload_length) + kIcrcBytes);
  Packet back;
  require(decode(again.data(), static_cast<uint32_t>(again.size()), &back), "what was written can be read");
  require(back.opcode == packet.opcode && back.psn == packet.psn && back.dest_qpn == packet.dest_qpn &&
              back.pkey == packet.pkey && back.mark == packet.mark && back.ack_request == packet.ack_request &&
              back.solicited == packet.solicited && back.address == packet.address && back.rkey == packet.rkey &&
              back.length == packet.length && back.syndrome == packet.syndrome && back.msn == packet.msn &&
              back.found == packet.found && back.compare == packet.compare && back.swap_or_add == packet.swap_or_add &&
              back.imm == packet.imm && back.qkey == packet.qkey && back.source_qpn == packet.source_qpn &&
              back.srqn == packet.srqn && back.trigger == packet.trigger && back.delay_ns == packet.delay_ns &&
              back.window == packet.window && back.marked == packet.marked && back.invalidate == packet.invalidate &&
              back.payload_length == packet.payload_length,
          "and reads the same");
  require(packet.payload_length == 0 || std::memcmp(back.payload, packet.payload, packet.payload_length) == 0,
          "with the same payload");
}

}  // namespace

void packet(const uint8_t* data, size_t length) {
  Input input(data, length);
  const size_t tail = 8;  // what check_crc reads
  std::vector<std::byte> bytes = input.bytes(input.left() > tail ? input.left() - tail : input.left());
  Packet read;
  if (decode(bytes.data(), static_cast<uint32_t>(bytes.size()), &read)) check_round_trip(bytes, read);
  if (bytes.size() >= kShortestPacket && bytes.size() <= kMaxPacketBytes) check_crc(input, bytes);
}

}  // namespace nupa::fuzz
