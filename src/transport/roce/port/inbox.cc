// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/inbox.h"

#include <cstring>
#include <new>

namespace nupa::roce {

HeldPacket* HeldPackets::take_place() {
  if (places_ == nullptr) {
    places_.reset(new (std::nothrow) HeldPacket[kMost]);
    for (uint32_t i = 0; places_ != nullptr && i < kMost; ++i) {
      places_[i].next = free_;
      free_ = &places_[i];
    }
  }
  HeldPacket* const place = free_;
  if (place != nullptr) free_ = place->next;
  return place;
}

bool HeldPackets::keep(Inbox& inbox, const Packet& packet, const net::UdpSocket::Received& from, int64_t came_ns) {
  if (inbox.count_ == kMostOfOne) return false;
  std::byte* const buffer = packet.payload_length > 0 ? pool_.take() : nullptr;
  if (packet.payload_length > 0 && buffer == nullptr) return false;
  HeldPacket* const held = take_place();
  if (held == nullptr) {
    if (buffer != nullptr) pool_.give_back(buffer);
    return false;
  }
  if (buffer != nullptr) std::memcpy(buffer, packet.payload, packet.payload_length);
  held->packet = packet;
  held->packet.payload = buffer;
  held->packet.carried = nullptr;
  held->from = from;
  held->came_ns = came_ns;
  held->buffer = buffer;
  held->next = nullptr;
  (inbox.empty() ? inbox.first_ : inbox.last_->next) = held;
  inbox.last_ = held;
  ++inbox.count_;
  return true;
}

void HeldPackets::drop_first(Inbox& inbox) {
  HeldPacket* const held = inbox.first_;
  inbox.first_ = held->next;
  --inbox.count_;
  if (held->buffer != nullptr) pool_.give_back(held->buffer);
  held->next = free_;
  free_ = held;
}

}  // namespace nupa::roce
