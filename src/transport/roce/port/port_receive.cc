// SPDX-License-Identifier: Apache-2.0
/// The receiving part of a port: takes packets from its sockets, and delivers them to their queue pairs.
#include "base/clock.h"
#include "core/seam/group_address.h"
#include "transport/roce/port/port.h"

namespace nupa::roce {
namespace {

/// Messages that one look takes from a socket.
constexpr uint32_t kMessagesAtOnce = 4;
constexpr uint32_t kLargeMessage = 8192;

}  // namespace

void Port::bring(Hold& hold, QpReceiver& queue_pair, Packet& packet, const net::UdpSocket::Received& received,
                 int64_t now) {
  holds_.came_for(queue_pair, now);
  if (!hold.take(queue_pair)) [[unlikely]] {
    if (!holds_.keep(queue_pair, packet, received, now)) counters_.busy.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  // An acknowledgement completes requests before the answer to them may arrive.
  if (packet.carried != nullptr) {
    Packet ack = decode_carried(packet);
    queue_pair.deliver(ack, received, now);
  }
  queue_pair.deliver(packet, received, now);
  touch(queue_pair);
}

void Port::touch(QpReceiver& queue_pair) {
  windows_.count_sender(queue_pair);
  acks_.touch(queue_pair);
}

void Port::arrived(const Arrival& arrival, Hold& hold) {
  if (arrival.length < kShortestPacket || arrival.length > kMaxPacketBytes) {
    counters_.malformed.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const uint32_t number = name_in(arrival.data).dest_qpn;
  QpReceiver* const queue_pair = demultiplexer_.find(number);
  if (queue_pair == nullptr) {
    if (number == kManagementQpn && (management_ || std::to_integer<uint8_t>(arrival.data[0]) == kAbsence))
      return management_arrived(arrival, hold);
    counters_.no_queue_pair.fetch_add(1, std::memory_order_relaxed);
    return absent_asked(arrival);
  }
  Packet packet;
  if (!reader_.read(arrival, queue_pair, &packet)) return queue_pair->count_unexpected();
  bring(hold, *queue_pair, packet, arrival.received, arrival.now);
}

void Port::management_arrived(const Arrival& arrival, Hold& hold) {
  Packet packet;
  MadDatagram datagram;
  if (!reader_.read(arrival, nullptr, &packet)) return;
  if (packet.opcode == kAbsence) return exited_peers_.absence_came(hold, packet, arrival.received);
  if (read_management(packet, arrival.received, &datagram))
    management_(datagram);
  else
    counters_.malformed.fetch_add(1, std::memory_order_relaxed);
}

void Port::absent_asked(const Arrival& arrival) {
  if (!exited_peers_.may_notify(arrival.now)) return;
  Packet asked;
  if (!reader_.read(arrival, nullptr, &asked)) return;
  TransmitBatch& batch = batch_from(arrival.port);
  exited_peers_.notify(asked, arrival.received, batch, arrival.now);
}

TransmitBatch& Port::batch_from(uint16_t port) {
  TransmitBatch* const further = further_.batch_from(port);
  return further != nullptr ? *further : *batch_;
}

void Port::group_datagram_arrived(const MulticastGroups::Group& group, const Arrival& arrival, Hold& hold) {
  if (arrival.length < kShortestPacket || arrival.length > kMaxPacketBytes ||
      name_in(arrival.data).dest_qpn != core::kGroupQpn) {
    counters_.malformed.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  Packet packet;
  if (!reader_.read(arrival, nullptr, &packet)) return;
  for (const uint32_t member : group.members)
    if (QpReceiver* const queue_pair = demultiplexer_.find(member))
      bring(hold, *queue_pair, packet, arrival.received, arrival.now);
}

void Port::count_packets(uint32_t packets) {
  // Only one thread receives at a time.
  if (packets > 0)
    counters_.packets.store(counters_.packets.load(std::memory_order_relaxed) + packets, std::memory_order_relaxed);
}

uint32_t Port::receive_groups(Hold& hold) {
  uint32_t packets = 0;
  const int64_t now = base::now_ns();
  net::UdpSocket::Received received;
  for (const MulticastGroups::Group& group : groups_.list())
    for (const net::UdpSocket& socket : group.sockets)
      for (uint32_t messages = 0; messages < kMessagesAtOnce; ++messages) {
        if (!reader_.receive(socket, &received)) break;
        reader_.each(received, kUdpPort, now, [&](const Arrival& arrival) {
          group_datagram_arrived(group, arrival, hold);
          ++packets;
        });
      }
  count_packets(packets);
  return packets;
}

uint32_t Port::receive_from(const net::UdpSocket& socket, Hold& hold, progress::Receiver receiver) {
  uint32_t messages = 0;
  uint32_t packets = 0;
  uint32_t bytes = 0;
  bool emptied = false;
  net::UdpSocket::Received received;
  while (messages < kMessagesAtOnce) {
    if (!reader_.receive(socket, &received)) {
      emptied = true;
      break;
    }
    // Not the time of the look: this thread may have been preempted since, and the packet would seem to have waited
    // long.
    const int64_t now = receive_ns_ = base::now_ns();
    reader_.each(received, socket.port(), now, [&](const Arrival& arrival) { arrived(arrival, hold); });
    ++messages;
    bytes += received.length;
    packets += (received.length + received.segment - 1) / received.segment;
    // A thread that posts to the same queue pair gets its turn while the kernel copies.
    if (received.length >= kLargeMessage) hold.release();
    // One small packet is mostly all there is: the program needs it before another look.
    if (receiver != progress::Receiver::kThread && received.length < kLargeMessage) {
      if (&socket != sockets_.data())
        peer_sockets_.interrupt_run();
      else if (peer_sockets_.has_run(received, socket.port()))
        peer_sockets_.lead_to(received, socket, poller_.right(), windows_, datagrams_.load());
      break;
    }
  }
  if (emptied || messages == kMessagesAtOnce) windows_.count_look(emptied);
  count_packets(packets);
  acks_.came(packets, bytes);
  if (packets > 0) poller_.note_traffic();
  return packets;
}

uint32_t Port::receive(Hold& hold, progress::Receiver receiver) {
  const auto look_at = [&](const net::UdpSocket& socket) { return receive_from(socket, hold, receiver); };
  uint32_t packets = peer_sockets_.receive(socket(), receiver, look_at);
  if (!groups_.empty()) packets += receive_groups(hold);
  if (!further_.empty()) packets += further_.receive(receiver, look_at);
  return packets;
}

}  // namespace nupa::roce
