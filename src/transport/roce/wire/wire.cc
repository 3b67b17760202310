// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/wire/wire.h"

#include <endian.h>

#include <array>
#include <cstring>

namespace nupa::roce {
namespace {

using namespace trait;  // NOLINT: the table below is unreadable otherwise

constexpr uint32_t kOnly = kStarts | kEnds;
constexpr uint32_t kCnpBytes = 16;  // reserved bytes
// Bits of the flags of a selective acknowledgement.
constexpr uint32_t kTriggerValid = 1;
constexpr uint32_t kDuplicatesValid = 2;
constexpr uint32_t kSelectiveBytes = 24;
constexpr uint32_t kFethBits = 0x3f;  // the others are reserved

constexpr std::array<uint32_t, 32> make_traits() {
  std::array<uint32_t, 32> table{};
  const auto set = [&](Operation operation, uint32_t traits) { table[static_cast<uint8_t>(operation)] = traits; };
  set(Operation::kSendFirst, kSend | kStarts | kPayload);
  set(Operation::kSendMiddle, kSend | kPayload);
  set(Operation::kSendLast, kSend | kEnds | kPayload);
  set(Operation::kSendLastImm, kSend | kEnds | kPayload | kImm);
  set(Operation::kSendOnly, kSend | kOnly | kPayload);
  set(Operation::kSendOnlyImm, kSend | kOnly | kPayload | kImm);
  set(Operation::kWriteFirst, kWrite | kStarts | kPayload | kReth);
  set(Operation::kWriteMiddle, kWrite | kPayload);
  set(Operation::kWriteLast, kWrite | kEnds | kPayload);
  set(Operation::kWriteLastImm, kWrite | kEnds | kPayload | kImm);
  set(Operation::kWriteOnly, kWrite | kOnly | kPayload | kReth);
  set(Operation::kWriteOnlyImm, kWrite | kOnly | kPayload | kReth | kImm);
  set(Operation::kReadRequest, kRead | kOnly | kReth);
  set(Operation::kReadResponseFirst, kRead | kResponse | kStarts | kPayload | kAeth);
  set(Operation::kReadResponseMiddle, kRead | kResponse | kPayload);
  set(Operation::kReadResponseLast, kRead | kResponse | kEnds | kPayload | kAeth);
  set(Operation::kReadResponseOnly, kRead | kResponse | kOnly | kPayload | kAeth);
  set(Operation::kAcknowledge, kResponse | kOnly | kAeth);
  set(Operation::kAtomicAcknowledge, kAtomic | kResponse | kOnly | kAeth | kAtomicAckEth);
  set(Operation::kCompareSwap, kAtomic | kOnly | kAtomicEth);
  set(Operation::kFetchAdd, kAtomic | kOnly | kAtomicEth);
  set(Operation::kSendLastInv, kSend | kEnds | kPayload | kIeth);
  set(Operation::kSendOnlyInv, kSend | kOnly | kPayload | kIeth);
  set(Operation::kFlush, kRead | kOnly | kFeth | kReth);
  set(Operation::kAtomicWrite, kAtomic | kOnly | kPayload | kReth);
  return table;
}
constexpr std::array<uint32_t, 32> kTraits = make_traits();

class Writer {
 public:
  explicit Writer(std::byte* out) : at_(out), begin_(out) {}
  void u8(uint32_t value) { *at_++ = static_cast<std::byte>(value); }
  void u24(uint32_t value) {
    u8(value >> 16);
    u8(value >> 8);
    u8(value);
  }
  void u32(uint32_t value) {
    value = htobe32(value);
    raw(value);
  }
  void u64(uint64_t value) {
    value = htobe64(value);
    raw(value);
  }
  template <class T>
  void raw(const T& value) {
    std::memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
  }
  void zeros(uint32_t count) {
    std::memset(at_, 0, count);
    at_ += count;
  }
  uint32_t written() const { return static_cast<uint32_t>(at_ - begin_); }

 private:
  std::byte* at_;
  std::byte* begin_;
};

class Reader {
 public:
  Reader(const std::byte* data, uint32_t length) : at_(data), left_(length) {}
  bool has(uint32_t bytes) const { return left_ >= bytes; }
  uint32_t left() const { return left_; }
  const std::byte* at() const { return at_; }
  uint32_t u8() {
    const auto value = std::to_integer<uint32_t>(*at_);
    skip(1);
    return value;
  }
  uint32_t u24() {
    const uint32_t high = u8();
    const uint32_t middle = u8();
    return high << 16 | middle << 8 | u8();
  }
  uint32_t u32() { return be32toh(raw<uint32_t>()); }
  uint64_t u64() { return be64toh(raw<uint64_t>()); }
  template <class T>
  T raw() {
    T value;
    std::memcpy(&value, at_, sizeof value);
    skip(sizeof value);
    return value;
  }
  void skip(uint32_t bytes) {
    at_ += bytes;
    left_ -= bytes;
  }

 private:
  const std::byte* at_;
  uint32_t left_;
};

/// Returns the bytes of the extension headers of `opcode`.
uint32_t extension_bytes(uint8_t opcode, uint32_t traits) {
  const Service service = service_of(opcode);
  uint32_t bytes = 0;
  if (service == Service::kUd) bytes += 8;
  if (service == Service::kXrc && (traits & kResponse) == 0) bytes += 4;
  if (traits & kFeth) bytes += 4;
  if (traits & kReth) bytes += 16;
  if (traits & kAtomicEth) bytes += 28;
  if (traits & kAeth) bytes += 4;
  if (traits & kAtomicAckEth) bytes += 8;
  if (traits & kImm) bytes += 4;
  if (traits & kIeth) bytes += 4;
  if (traits & kSelective) bytes += kSelectiveBytes;
  if (traits & kCnp) bytes += kCnpBytes;
  return bytes;
}

void encode_selective(const Packet& packet, Writer& to) {
  to.u8(packet.syndrome);
  to.u24(packet.msn);
  to.u8((packet.trigger_valid ? kTriggerValid : 0) | (packet.duplicates_valid ? kDuplicatesValid : 0));
  to.u24(packet.trigger);
  to.u32(packet.delay_ns);
  to.u32(packet.window);
  to.u32(packet.marked);
  to.u8(packet.trigger_path);
  to.u24(packet.duplicates);
}

void decode_selective(Reader& in, Packet* packet) {
  packet->syndrome = static_cast<uint8_t>(in.u8());
  packet->msn = in.u24();
  const uint32_t flags = in.u8();
  packet->trigger_valid = (flags & kTriggerValid) != 0;
  packet->duplicates_valid = (flags & kDuplicatesValid) != 0;
  packet->trigger = in.u24();
  packet->delay_ns = in.u32();
  packet->window = in.u32();
  packet->marked = in.u32();
  packet->trigger_path = static_cast<uint8_t>(in.u8());
  packet->duplicates = in.u24();
}

}  // namespace

uint32_t traits_of(uint8_t opcode) {
  if (opcode == kCnpOpcode) return kCnp;
  if (opcode == kSelectiveAck) return kResponse | kOnly | kSelective | kPayload;
  if (opcode == kPathProbe) return kPath | kOnly;
  if (opcode == kPathEcho) return kPath | kOnly | kResponse;
  if (opcode == kHandshake) return kPath | kOnly | kPayload;
  if (opcode == kAbsence) return kOnly | kResponse | kImm;
  const uint32_t traits = kTraits[opcode & 0x1f];
  switch (service_of(opcode)) {
    case Service::kRc:
    case Service::kXrc:
      return traits;
    case Service::kUc:
      return (traits & (kSend | kWrite)) != 0 ? traits : 0;
    case Service::kUd:
      return (traits & kSend) != 0 && (traits & kOnly) == kOnly && (traits & kIeth) == 0 ? traits : 0;
    default:
      return 0;
  }
}

uint32_t encode(const Packet& packet, std::byte* out) {
  const uint32_t traits = traits_of(packet.opcode);
  Writer to(out);
  to.u8(packet.opcode);
  to.u8(static_cast<uint32_t>(packet.solicited) << 7 | static_cast<uint32_t>(packet.migrated) << 6 |
        pad_of(packet.payload_length) << 4);
  to.u8(packet.pkey >> 8);
  to.u8(packet.pkey);
  to.u8(static_cast<uint32_t>(packet.fecn) << 7 | static_cast<uint32_t>(packet.becn) << 6);
  to.u24(packet.dest_qpn);
  to.u8(static_cast<uint32_t>(packet.ack_request) << 7 | packet.mark);
  to.u24(packet.psn);
  if (service_of(packet.opcode) == Service::kXrc && (traits & kResponse) == 0) {
    to.u8(0);
    to.u24(packet.srqn);
  }
  if (service_of(packet.opcode) == Service::kUd) {
    to.u32(packet.qkey);
    to.u8(0);
    to.u24(packet.source_qpn);
  }
  if (traits & kFeth) to.u32(packet.flush);
  if (traits & (kReth | kAtomicEth)) {
    to.u64(packet.address);
    to.u32(packet.rkey);
  }
  if (traits & kReth) to.u32(packet.length);
  if (traits & kAtomicEth) {
    to.u64(packet.swap_or_add);
    to.u64(packet.compare);
  }
  if (traits & kAeth) {
    to.u8(packet.syndrome);
    to.u24(packet.msn);
  }
  if (traits & kAtomicAckEth) to.u64(packet.found);
  if (traits & kImm) to.raw(packet.imm);
  if (traits & kIeth) to.u32(packet.invalidate);
  if (traits & kCnp) to.zeros(kCnpBytes);
  if (traits & kSelective) encode_selective(packet, to);
  return to.written();
}

bool may_carry(const Packet& packet) {
  const Service service = service_of(packet.opcode);
  return packet.mark == kNupaMark && (service == Service::kRc || service == Service::kXrc) &&
         (traits_of(packet.opcode) & (kPayload | kResponse)) == kPayload;
}

void encode_carried(const Packet& ack, std::byte* out) {
  Writer to(out);
  to.u8(0);
  to.u24(ack.psn);
  encode_selective(ack, to);
}

Packet decode_carried(const Packet& packet) {
  Packet ack;
  ack.opcode = kSelectiveAck;
  ack.mark = kNupaMark;
  ack.pkey = packet.pkey;
  ack.dest_qpn = packet.dest_qpn;
  Reader in(packet.carried, kCarriedBytes);
  in.skip(1);
  ack.psn = in.u24();
  decode_selective(in, &ack);
  return ack;
}

bool decode(const std::byte* data, uint32_t length, Packet* packet) {
  if (length < kShortestPacket) return false;
  Reader in(data, length);
  packet->opcode = static_cast<uint8_t>(in.u8());
  const uint32_t traits = traits_of(packet->opcode);
  const uint32_t second = in.u8();
  if (traits == 0 || (second & 0xf) != 0) return false;  // only transport header version 0 exists
  packet->solicited = (second & 0x80) != 0;
  packet->migrated = (second & 0x40) != 0;
  const uint32_t pad = second >> 4 & 3;
  packet->pkey = static_cast<uint16_t>(in.u8() << 8);
  packet->pkey = static_cast<uint16_t>(packet->pkey | in.u8());
  const uint32_t congestion = in.u8();
  packet->fecn = (congestion & 0x80) != 0;
  packet->becn = (congestion & 0x40) != 0;
  packet->dest_qpn = in.u24();
  const uint32_t ninth = in.u8();
  packet->ack_request = (ninth & 0x80) != 0;
  packet->mark = ninth & 0x7f;
  packet->psn = in.u24();
  if (!in.has(extension_bytes(packet->opcode, traits) + kIcrcBytes)) return false;
  if (traits & kSelective) decode_selective(in, packet);
  if (service_of(packet->opcode) == Service::kXrc && (traits & kResponse) == 0) {
    in.skip(1);
    packet->srqn = in.u24();
  }
  if (service_of(packet->opcode) == Service::kUd) {
    packet->qkey = in.u32();
    in.skip(1);
    packet->source_qpn = in.u24();
  }
  if (traits & kFeth) packet->flush = in.u32() & kFethBits;
  if (traits & (kReth | kAtomicEth)) {
    packet->address = in.u64();
    packet->rkey = in.u32();
  }
  if (traits & kReth) packet->length = in.u32();
  if (traits & kAtomicEth) {
    packet->swap_or_add = in.u64();
    packet->compare = in.u64();
  }
  if (traits & kAeth) {
    packet->syndrome = static_cast<uint8_t>(in.u8());
    packet->msn = in.u24();
  }
  if (traits & kAtomicAckEth) packet->found = in.u64();
  if (traits & kImm) packet->imm = in.raw<uint32_t>();
  if (traits & kIeth) packet->invalidate = in.u32();
  if (traits & kCnp) in.skip(kCnpBytes);
  uint32_t rest = in.left() - kIcrcBytes;
  packet->carried = nullptr;
  if (packet->mark == kCarriesAck) {
    packet->mark = kNupaMark;
    if (!may_carry(*packet) || rest < kCarriedBytes) return false;
    rest -= kCarriedBytes;
    packet->carried = in.at() + rest;
  }
  if (rest < pad || ((traits & kPayload) == 0 && rest != 0)) return false;
  if ((traits & kSelective) != 0 && (rest % 4 != 0 || pad != 0 || rest > kBitmapWords * 4)) return false;
  packet->payload = in.at();
  packet->payload_length = rest - pad;
  return packet->payload_length <= kMaxMtu;
}

}  // namespace nupa::roce
