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
  const Destination& destination = destinations_[path];
  io::UdpBatch& batch = *batches_[destination.socket];
  if (count_ == kPackets || !batch.has_room(fragments + 2)) flush();
  std::byte* header = headers_[count_].data();
  std::byte* trailer = trailers_[count_].data();
  const uint32_t header_length = encode(packet, header);
  const uint32_t pad = pad_of(packet.payload_length);
  const uint32_t length = header_length + packet.payload_length + pad + kIcrcBytes;
  // Segments of one send get identifications that count up.
  const uint32_t position = batch.next_position(destination.place, length);
  const Route route{destination.from, destination.to.address, sockets_[destination.socket].port(), destination.to.port};
  uint32_t state = icrc_of_headers(route, static_cast<uint16_t>(position), length, header, header_length);
  batch.begin(destination.place, destination.to, destination.from, destination.from_interface, destination.fields,
              length);
  batch.add(header, header_length);
  for (uint32_t i = 0; i < fragments; ++i) {
    const std::byte* data = payload[i].data == nullptr ? kZeros.data() : payload[i].data;
    state = base::crc32(state, data, payload[i].length);
    batch.add(data, payload[i].length);
  }
  std::memset(trailer, 0, pad);
  state = base::crc32(state, trailer, pad);
  store_icrc(icrc_of_state(state), trailer + pad);
  batch.add(trailer, pad + kIcrcBytes);
  ++count_;
  return true;
}

void Burst::flush() {
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
