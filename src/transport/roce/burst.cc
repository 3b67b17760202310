#include "transport/roce/burst.h"

#include <cstring>

#include "base/crc32.h"
#include "base/log.h"

namespace nupa::roce {
namespace {

/// What a null region sends.
constexpr std::array<std::byte, kMaxMtu> kZeros{};

}  // namespace

Burst::Burst(const std::vector<io::UdpSocket>& sockets) : sockets_(sockets) {
  for (size_t i = 0; i < sockets.size(); ++i) batches_[i] = std::make_unique<io::UdpBatch>();
}

bool Burst::send(uint8_t path, const Packet& packet, const Fragment* payload, uint32_t fragments) {
  const bool ack = packet.opcode == kSelectiveAck && packet.payload_length == 0;
  const bool takes_along = waits_ && path == waiting_path_ && packet.payload_length <= kSmallBytes && may_carry(packet);
  if (waits_ && !takes_along) send_waiting();
  if (ack) {
    waiting_ = packet;
    waiting_path_ = path;
    waits_ = true;
    return true;
  }
  waits_ = false;
  put(path, packet, payload, fragments, takes_along ? &waiting_ : nullptr);
  return true;
}

void Burst::send_waiting() {
  waits_ = false;
  put(waiting_path_, waiting_, nullptr, 0, nullptr);
}

void Burst::put(uint8_t path, const Packet& packet, const Fragment* payload, uint32_t fragments, const Packet* ack) {
  const Destination& destination = destinations_[path];
  io::UdpBatch& batch = *batches_[destination.socket];
  if (count_ == kPackets || !batch.has_room(fragments + 2)) send_batches();
  std::byte* header = headers_[count_].data();
  uint32_t header_length = encode(packet, header);
  const uint32_t pad = pad_of(packet.payload_length);
  const uint32_t carried = ack == nullptr ? 0 : kCarriedBytes;
  const uint32_t length = header_length + packet.payload_length + pad + carried + kIcrcBytes;
  // Segments of one send get identifications that count up.
  const uint32_t position = batch.next_position(destination.place, length);
  const Route route{destination.from, destination.to.address, sockets_[destination.socket].port(), destination.to.port};
  batch.begin(destination.place, destination.to, destination.from, destination.from_interface, destination.fields,
              length);
  const bool small = packet.payload_length <= kSmallBytes;
  std::byte* trailer = header + header_length;
  if (small) {
    // One part is cheaper than several.
    for (uint32_t i = 0; i < fragments; ++i) {
      std::memcpy(trailer, payload[i].data == nullptr ? kZeros.data() : payload[i].data, payload[i].length);
      trailer += payload[i].length;
    }
    std::memset(trailer, 0, pad);
    trailer += pad;
    if (ack != nullptr) {
      constexpr uint32_t kMarkAt = 8;
      header[kMarkAt] = (header[kMarkAt] & std::byte{0x80}) | std::byte{kCarriesAck};
      encode_carried(*ack, trailer);
      trailer += kCarriedBytes;
    }
    header_length = static_cast<uint32_t>(trailer - header);
  }
  const bool checked = !destination.unchecked;
  uint32_t state = 0;
  if (checked) state = icrc_of_headers(route, static_cast<uint16_t>(position), length, header, header_length);
  if (small) {
    store_icrc(checked ? icrc_of_state(state) : 0, trailer);
    batch.add(header, header_length + kIcrcBytes);
  } else {
    batch.add(header, header_length);
    for (uint32_t i = 0; i < fragments; ++i) {
      const std::byte* data = payload[i].data == nullptr ? kZeros.data() : payload[i].data;
      if (checked) state = base::crc32(state, data, payload[i].length);
      batch.add(data, payload[i].length);
    }
    std::memset(trailer, 0, pad);
    state = base::crc32(state, trailer, pad);
    store_icrc(checked ? icrc_of_state(state) : 0, trailer + pad);
    batch.add(trailer, pad + kIcrcBytes);
  }
  ++count_;
}

void Burst::flush() {
  if (waits_) send_waiting();
  send_batches();
}

void Burst::send_batches() {
  if (count_ == 0) return;
  count_ = 0;
  for (size_t i = 0; i < sockets_.size(); ++i) {
    if (batches_[i]->empty()) continue;
    int error = 0;
    const uint32_t lost = batches_[i]->flush(sockets_[i], &error);
    if (lost == 0) continue;
    refused_ += lost;
    if (error == last_error_) continue;
    last_error_ = error;
    NUPA_WARN("packets cannot be sent: %s", strerror(error));
  }
}

}  // namespace nupa::roce
