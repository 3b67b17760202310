// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/transmit_batch.h"

#include <cstring>

#include "base/clock.h"
#include "base/crc32.h"
#include "base/fence.h"
#include "base/log.h"
#include "base/memory_fault.h"
#include "base/racing_copy.h"
#include "capture/tap.h"
#include "transport/roce/port/captured.h"

namespace nupa::roce {
namespace {

/// The payload of a null region.
constexpr std::array<std::byte, kMaxMtu> kZeros{};

/// True if memory that the kernel will read is mapped. The kernel itself would report a fault only after the request
/// counts as sent.
bool is_there(const std::byte* memory, size_t length) {
  constexpr size_t kPage = 4096;
  return base::try_access(memory, length, [&] {
    for (size_t at = 0; at < length; at += kPage - reinterpret_cast<uintptr_t>(memory + at) % kPage) {
      std::byte seen;
      base::copy_racing(&seen, memory + at, sizeof seen);
      asm volatile("" : : "m"(seen));
    }
  });
}

}  // namespace

TransmitBatch::TransmitBatch(const std::vector<net::UdpSocket>& sockets, bool of_program, SendBacklog* backlog)
    : sockets_(sockets),
      of_program_(of_program),
      backlog_(backlog),
      bytes_(std::make_unique_for_overwrite<std::byte[]>(kBytes)) {
  for (size_t i = 0; i < sockets.size(); ++i) batches_[i] = std::make_unique<net::UdpBatch>();
  batches_[kOwn] = std::make_unique<net::UdpBatch>();
}

TransmitBatch::~TransmitBatch() {
  if (own_ != nullptr) own_->release(this);
}

bool TransmitBatch::may_use(PeerSocket* own) {
  if (own == nullptr || !of_program_ || !own->claim(this)) return false;
  if (own_.get() != own) own_ = own->shared_from_this();
  return true;
}

Sent TransmitBatch::send(uint8_t path, const Packet& packet, const Fragment* payload, uint32_t fragments) {
  if (must_wait(destinations_[path])) [[unlikely]] {
    held_up_ = true;
    return Sent::kNotNow;
  }
  const bool ack = packet.opcode == kSelectiveAck && packet.payload_length == 0;
  const bool takes_along = waits_ && path == waiting_path_ && packet.payload_length <= kSmallBytes && may_carry(packet);
  if (waits_ && !takes_along) send_waiting();
  if (ack) {
    waiting_ = packet;
    waiting_path_ = path;
    waits_ = true;
    count(packet);
    return Sent::kYes;
  }
  if (!put(path, packet, payload, fragments, takes_along ? &waiting_ : nullptr)) return Sent::kUnreadable;
  waits_ = false;
  count(packet);
  return Sent::kYes;
}

void TransmitBatch::send_waiting() {
  waits_ = false;
  put(waiting_path_, waiting_, nullptr, 0, nullptr);
}

bool TransmitBatch::put(uint8_t path, const Packet& packet, const Fragment* payload, uint32_t fragments,
                        const Packet* ack) {
  const Destination& destination = destinations_[path];
  net::UdpBatch& batch = *batches_[destination.own != nullptr ? kOwn : destination.socket];
  if (kBytes - used_ < kRoom || !batch.has_room(fragments + 2)) send_batches();
  std::byte* const header = &bytes_[used_];
  const uint32_t header_length = encode(packet, header);
  const uint32_t pad = pad_of(packet.payload_length);
  const uint32_t carried = ack == nullptr ? 0 : kCarriedBytes;
  const uint32_t length = header_length + packet.payload_length + pad + carried + kIcrcBytes;
  // The segments of one send get consecutive identifications.
  uint32_t identification = batch.next_position(destination.place, length);
  if (destination.own != nullptr)
    identification += destination.own->identification() + batch.next_message(destination.place, length);
  const Route route{destination.from, destination.to.address, sockets_[destination.socket].port(), destination.to.port};
  const bool checked = !destination.unchecked;
  const bool small = packet.payload_length <= kSmallBytes;
  const bool copied = small || checked;
  uint32_t state = 0;
  const auto begin_crc = [&](const std::byte* end) {
    state = icrc_of_headers(route, static_cast<uint16_t>(identification), length, header,
                            static_cast<uint32_t>(end - header), &routes_);
  };
  std::byte* at = header + header_length;
  if (checked && !small) begin_crc(at);
  for (uint32_t i = 0; i < fragments && copied; ++i) {
    const Fragment& part = payload[i];
    const std::byte* const data = part.data == nullptr ? kZeros.data() : part.data;
    const bool read = base::try_access(data, part.length, [&] {
      if (small)
        base::copy_racing(at, data, part.length);
      else
        state = base::crc32_copy(state, at, data, part.length);
    });
    if (!read) return false;
    at += part.length;
  }
  std::byte* const trailer = at;
  std::memset(at, 0, pad);
  at += pad;
  if (ack != nullptr) {
    constexpr uint32_t kMarkAt = 8;
    header[kMarkAt] = (header[kMarkAt] & std::byte{0x80}) | std::byte{kCarriesAck};
    encode_carried(*ack, at);
    at += kCarriedBytes;
  }
  if (checked && small)
    begin_crc(at);
  else if (checked)
    state = base::crc32(state, trailer, static_cast<size_t>(at - trailer));
  if (checked && packet.crc_as_rxe) [[unlikely]]
    state = continue_as_rxe(state, header, header_length);
  store_icrc(checked ? icrc_of_state(state) : 0, at);
  at += kIcrcBytes;
  const auto begin_packet = [&] {
    batch.begin(destination.place, destination.to, destination.from, destination.from_interface, destination.fields,
                length);
  };
  if (copied) {
    begin_packet();
    batch.add(header, length);
  } else {
    for (uint32_t i = 0; i < fragments; ++i)
      if (payload[i].data != nullptr && !is_there(payload[i].data, payload[i].length)) return false;
    begin_packet();
    batch.add(header, header_length);
    for (uint32_t i = 0; i < fragments; ++i)
      batch.add(payload[i].data == nullptr ? kZeros.data() : payload[i].data, payload[i].length);
    batch.add(trailer, static_cast<uint32_t>(at - trailer));
  }
  used_ = static_cast<uint32_t>(at - bytes_.get());
  if (capture::is_on()) [[unlikely]]
    record_put(destination, route, static_cast<uint16_t>(identification), header, copied ? length : header_length,
               payload, copied ? 0 : fragments, trailer, at);
  // The payload of a response was read.
  base::fence_after_reads();
  return true;
}

void TransmitBatch::record_put(const Destination& destination, const Route& route, uint16_t identification,
                               std::byte* header, uint32_t header_length, const Fragment* payload, uint32_t fragments,
                               std::byte* trailer, const std::byte* end) {
  constexpr uint32_t kMostParts = 66;  // the header, the fragments of a queue pair, the trailer
  base::Piece parts[kMostParts];
  uint32_t count = 0;
  parts[count++] = {header, header_length};
  if (fragments != 0) {
    for (uint32_t i = 0; i < fragments && count + 1 < kMostParts; ++i)
      parts[count++] = {const_cast<std::byte*>(payload[i].data), payload[i].length};
    parts[count++] = {trailer, static_cast<uint64_t>(end - trailer)};
  }
  record_sent({route, destination.fields, destination.qp, identification, destination.unchecked}, parts, count);
}

void TransmitBatch::flush() {
  if (waits_) send_waiting();
  send_batches();
}

void TransmitBatch::send_batches() {
  if (used_ == 0) return;
  used_ = 0;
  for (uint32_t i = 0; i < batches_.size(); ++i) {
    if (batches_[i] == nullptr || batches_[i]->empty()) continue;
    int error = 0;
    const uint32_t messages = batches_[i]->messages();
    const uint32_t waits_at = i == kOwn ? 0 : i;
    net::UdpBacklog* const backlog = backlog_ == nullptr ? nullptr : &backlog_->of(waits_at);
    const uint32_t lost = batches_[i]->flush(i == kOwn ? own_->socket() : sockets_[i], &error, backlog);
    const bool is_full = backlog != nullptr && !backlog->empty();
    if (is_full) backlog_->note(base::now_ns());
    if (i == kOwn) own_->sent(messages, lost + (is_full ? 1 : 0));
    if (lost == 0) continue;
    refused_ += lost;
    if (error == last_error_) continue;
    last_error_ = error;
    NUPA_WARN("cannot send packets: %s", strerror(error));
  }
  // The kernel has read payloads that were not copied.
  base::fence_after_reads();
}

}  // namespace nupa::roce
