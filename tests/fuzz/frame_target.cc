// SPDX-License-Identifier: Apache-2.0
// Input from another node of a network: a frame (a virtio header and a packet), a ring of frames, a peer info. No
// reader leaves the bytes, accepted lengths lie within the packet, and the packets that are built are valid.
#include "netdev/peer_info.h"
#include "netdev/ip_packet.h"
#include "netdev/ring.h"
#include "input.h"
#include "targets.h"

namespace nupa::fuzz {
namespace {

using namespace netdev;

/// What is looked at of a packet before the rest of it is trusted to be there.
constexpr size_t kLookedAt = 60;

uint16_t word(Bytes packet, size_t at) {
  return static_cast<uint16_t>(std::to_integer<unsigned>(packet[at]) << 8 | std::to_integer<unsigned>(packet[at + 1]));
}

void check_fragments(const std::vector<std::byte>& packet, const IpPacket& ip, uint32_t mtu) {
  std::vector<std::byte> payload;
  const uint32_t first = (word(packet, 6) & 0x1fffu) * 8;
  for (const std::vector<std::byte>& part : fragments_of(packet, mtu)) {
    const auto read = IpPacket::parse(part, part.size());
    require(read && read->header_bytes == ip.header_bytes && part.size() <= mtu, "a fragment is a packet that fits");
    require(read->source == ip.source && read->destination == ip.destination, "between the same two");
    require((word(part, 6) & 0x1fffu) * 8 == first + payload.size(), "at the place where the last one ended");
    const bool more = (word(part, 6) & 0x2000) != 0;
    payload.insert(payload.end(), part.begin() + ip.header_bytes, part.end());
    const bool is_last = payload.size() == packet.size() - ip.header_bytes;
    require(more == (!is_last || (word(packet, 6) & 0x2000) != 0), "and says whether it is the last");
  }
  require(std::equal(payload.begin(), payload.end(), packet.begin() + ip.header_bytes, packet.end()),
          "fragments are the whole packet");
}

void check_datagrams(const VirtioHeader& header, const std::vector<std::byte>& packet, const IpPacket& ip) {
  const size_t headers = header.csum_start + 8u;
  std::vector<std::byte> payload;
  for (const std::vector<std::byte>& part : datagrams_of(header, packet)) {
    const auto read = IpPacket::parse(part, part.size());
    require(read && read->header_bytes == ip.header_bytes && part.size() <= largest_part(header, packet),
            "a datagram is a packet no larger than it was said to be");
    require(read->source == ip.source && read->destination == ip.destination, "between the same two");
    require(word(part, header.csum_start + 4u) == part.size() - header.csum_start, "with its own length");
    payload.insert(payload.end(), part.begin() + static_cast<ptrdiff_t>(headers), part.end());
  }
  require(std::equal(payload.begin(), payload.end(), packet.begin() + static_cast<ptrdiff_t>(headers), packet.end()),
          "datagrams are the whole segment");
}

void check_packet(Input& input) {
  VirtioHeader header;
  const std::vector<std::byte> head = input.bytes(sizeof header);
  std::memcpy(&header, head.data(), sizeof header);
  const uint32_t mtu = kMinMtu + input.u16() % (kMaxMtu - kMinMtu + 1);
  std::vector<std::byte> packet = input.bytes(input.left());
  // In a block of its own, as the pump has it.
  const std::vector<std::byte> start(packet.begin(), packet.begin() + std::min(packet.size(), kLookedAt));
  const auto ip = IpPacket::parse(start, packet.size());
  if (!ip) return;
  require(ip->bytes == packet.size() && ip->header_bytes <= start.size(), "a packet's header lies within it");
  for (const Refusal refusal : {Refusal::kHostUnreachable, Refusal::kTooBig}) {
    const auto message = icmp_about(refusal, packet, mtu);
    if (!message) continue;
    const auto answer = IpPacket::parse(*message, message->size());
    require(answer && message->size() <= kMinMtu, "an answer is a packet that any link takes");
    require(answer->source == ip->destination && answer->destination == ip->source, "and goes back");
    require(!icmp_about(refusal, *message, mtu), "and is not answered");
  }
  if (!is_consistent(header, *ip)) return;
  const uint32_t largest = largest_part(header, packet);
  require(largest <= packet.size(), "no part of a packet is larger than the packet");
  if (header.is_datagrams()) check_datagrams(header, packet, *ip);
  const std::vector<std::byte> before = packet;
  complete_checksum(header, packet);
  const size_t at = size_t{header.csum_start} + header.csum_offset;
  for (size_t i = 0; i < packet.size(); ++i)
    require(packet[i] == before[i] || i == at || i == at + 1, "a sum changes nothing but its field");
  if (ip->may_be_cut && !header.is_large()) check_fragments(packet, *ip, mtu);
}

void check_ring(Input& input) {
  // Few bytes describe a ring: pieces of records and lengths at chosen places.
  std::vector<std::byte> memory(kRingBytes + kRecordAlign);
  std::byte* const data =
      memory.data() + (kRecordAlign - reinterpret_cast<uintptr_t>(memory.data()) % kRecordAlign) % kRecordAlign;
  RingReader reader(data);
  uint64_t tail = 0;
  for (int turn = 0; turn < 16 && !input.used_up() && !reader.is_broken(); ++turn) {
    const uint32_t length = input.u32();
    const uint64_t place = input.u8() % 4 == 0 ? input.u32() / kRecordAlign * kRecordAlign : reader.head();
    std::memcpy(data + place % kRingBytes, &length, sizeof length);
    tail = input.u8() % 8 == 0 ? input.u64() : tail + record_bytes(length % (2 * kMaxFrameBytes));
    for (int frames = 0; const auto frame = reader.next(tail); ++frames) {
      require(frame->data() >= data && frame->data() + frame->size() <= data + kRingBytes,
              "a frame lies within the ring");
      require(frame->size() <= kMaxFrameBytes, "and is one");
      reader.done();
      require(reader.head() <= tail && frames <= static_cast<int>(kRingBytes / kRecordAlign), "and reading ends");
    }
  }
}

void check_peer_info(Input& input) {
  const std::vector<std::byte> bytes = input.bytes(input.left());
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto peer_info = PeerInfo::decode(text);
  if (!peer_info) return;
  require(is_name(peer_info->node, kLongestNode) && peer_info->mtu >= kMinMtu && peer_info->mtu <= kMaxMtu,
          "a card says what can be");
  const auto again = PeerInfo::decode(peer_info->encode());
  require(again && again->encode() == peer_info->encode(), "and the same when it is written and read again");
}

}  // namespace

void frame(const uint8_t* data, size_t length) {
  Input input(data, length);
  switch (input.u8() % 4) {
    case 0:
      return check_ring(input);
    case 1:
      return check_peer_info(input);
    default:
      return check_packet(input);
  }
}

}  // namespace nupa::fuzz
