// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/packet_reader.h"

namespace nupa::roce {

PacketReader::PacketReader(PortCounters& counters)
    : counters_(counters),
      lines_(std::make_unique_for_overwrite<Line[]>(net::UdpSocket::kMaxReceive / sizeof(Line) + 1)),
      buffer_(reinterpret_cast<std::byte*>(lines_.get()) + sizeof(Line) - kBthBytes) {}

bool PacketReader::read(const Arrival& arrival, const QpReceiver* queue_pair, Packet* packet) {
  const auto& [data, length, position, received, port, now] = arrival;
  const Route route{received.from.address, received.to, received.from.port, port};
  // The segments of one send count up from 0, and mostly arrive together as they left.
  const bool unchecked =
      queue_pair != nullptr && queue_pair->takes_unchecked() && load_icrc(data + length - kIcrcBytes) == 0;
  if (!unchecked &&
      !icrc_holds(route, data, length, kAnyIdentification, static_cast<uint16_t>(position),
                  queue_pair == nullptr ? nullptr : queue_pair->next_place(), &routes_) &&
      !icrc_holds_as_rxe(route, data, length)) {
    counters_.wrong_crc.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  if (decode(data, length, packet)) return true;
  counters_.malformed.fetch_add(1, std::memory_order_relaxed);
  return false;
}

}  // namespace nupa::roce
