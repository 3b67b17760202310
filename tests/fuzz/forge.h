// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Packets of an attacker: a packet that was seen, with fields changed.
#include "engine_end.h"

namespace nupa::fuzz {

/// Changes one field of `packet`; the payload is `payload`, whose length may change.
inline void change_field(Input& input, roce::Packet& packet, std::vector<std::byte>& payload) {
  using namespace roce;
  constexpr uint64_t kFarthest = GuardedHost::kBytes + 64;
  switch (input.below(22)) {
    case 0:
      packet.opcode = opcode_of(service_of(packet.opcode), static_cast<Operation>(input.below(32)));
      break;
    case 1:
      packet.opcode = input.u8();
      break;
    case 2:
      packet.psn = (packet.psn + static_cast<uint32_t>(static_cast<int8_t>(input.u8()))) & kPsnMask;
      break;
    case 3:
      packet.psn = (packet.psn + input.u16() * 257u) & kPsnMask;
      break;
    case 4:
      packet.rkey = 1 + input.below(GuardedHost::kNoKey);
      packet.address = GuardedHost::base_of(packet.rkey) + input.u16() % kFarthest;
      break;
    case 5:
      packet.address = input.u64();
      break;
    case 6:
      packet.length = input.u16();
      break;
    case 7:
      packet.length = input.u32();
      break;
    case 8:
      packet.syndrome = input.u8();
      break;
    case 9:
      packet.msn = input.u16();
      break;
    case 10:
      packet.trigger_valid = true;
      packet.trigger = (packet.psn + static_cast<uint32_t>(static_cast<int8_t>(input.u8()))) & kPsnMask;
      break;
    case 11:
      packet.delay_ns = input.u32();
      break;
    case 12:
      packet.window = input.u32() >> input.below(32);
      break;
    case 13:
      packet.marked = input.u32();
      break;
    case 14:
      packet.mark = input.below(2) == 0 ? kNupaMark : static_cast<uint8_t>(input.u8() & 0x7f);
      break;
    case 15:
      packet.ack_request = !packet.ack_request;
      break;
    case 16:
      packet.srqn = input.u8();
      break;
    case 17:
      payload.resize(input.u16() % (kMaxMtu + 64));
      break;
    case 18:  // a bitmap of any length
      payload = input.bytes(4 * input.below(kBitmapWords + 2));
      break;
    case 19:
      packet.opcode = kSelectiveAck;
      payload.resize(payload.size() / 4 * 4 % (kBitmapWords * 4 + 4));
      break;
    case 20:
      packet.length = static_cast<uint32_t>(payload.size());
      break;
    default:
      packet.invalidate = packet.imm = input.u32();
  }
  packet.payload_length = static_cast<uint32_t>(payload.size());
}

/// `seen`, changed in up to four fields, or byte by byte.
inline Wire forge(Input& input, const Wire& seen) {
  roce::Packet packet;
  if (!roce::decode(seen.data(), static_cast<uint32_t>(seen.size()), &packet)) return seen;
  const uint32_t how = input.below(16);
  if (how == 0) {
    Wire bytes = seen;
    bytes[input.u16() % bytes.size()] ^= static_cast<std::byte>(input.u8());
    bytes.resize(bytes.size() - input.below(8) % bytes.size());
    return bytes;
  }
  std::vector<std::byte> payload(packet.payload, packet.payload + packet.payload_length);
  for (uint32_t i = 0; i <= how % 4; ++i) change_field(input, packet, payload);
  if (roce::traits_of(packet.opcode) == 0) return seen;
  return wire_of(packet, payload.data());
}

}  // namespace nupa::fuzz
