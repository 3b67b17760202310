// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <utility>

#include "net/udp_socket.h"
#include "transport/roce/port/packet_pool.h"

namespace nupa::roce {

/// A packet that arrived for a queue pair while another thread held it.
struct HeldPacket {
  Packet packet;  ///< its payload is in `buffer`
  net::UdpSocket::Received from;
  int64_t came_ns = 0;
  std::byte* buffer = nullptr;
  HeldPacket* next = nullptr;
};

/// The packets that wait for one queue pair, in the order of arrival.
class Inbox {
 public:
  bool empty() const { return first_ == nullptr; }

 private:
  friend class HeldPackets;
  HeldPacket* first_ = nullptr;
  HeldPacket* last_ = nullptr;
  uint32_t count_ = 0;
};

/// The memory of all inboxes of a port. One thread at a time.
class HeldPackets {
 public:
  /// Limits of all inboxes together and of one inbox. A posting thread holds its queue pair while it passes a window of
  /// packets to the kernel, and about as many may arrive meanwhile. The rest is for other queue pairs and for packets
  /// out of order.
  static constexpr uint32_t kMost = 1024;
  static constexpr uint32_t kMostOfOne = kMost / 4;

  /// Payloads are copied to buffers of `pool`.
  explicit HeldPackets(PacketPool& pool) : pool_(pool) {}

  /// Adds a copy. `packet` carries no acknowledgement. Returns false if the inbox is full or there is no memory.
  [[gnu::cold]] bool keep(Inbox& inbox, const Packet& packet, const net::UdpSocket::Received& from, int64_t came_ns);
  /// Passes each packet to `use(packet, from, came_ns)` and forgets it. Returns how many there were.
  template <class Use>
  uint32_t take_all(Inbox& inbox, Use&& use) {
    uint32_t taken = 0;
    for (; !inbox.empty(); ++taken) {
      HeldPacket& held = *inbox.first_;
      use(held.packet, std::as_const(held.from), held.came_ns);
      drop_first(inbox);
    }
    return taken;
  }
  /// The queue pair is removed.
  void drop_all(Inbox& inbox) {
    while (!inbox.empty()) drop_first(inbox);
  }

 private:
  HeldPacket* take_place();
  void drop_first(Inbox& inbox);

  PacketPool& pool_;
  std::unique_ptr<HeldPacket[]> places_;  ///< allocated for the first packet
  HeldPacket* free_ = nullptr;
};

}  // namespace nupa::roce
