// SPDX-License-Identifier: Apache-2.0
#include "capture/ring.h"

#include <cstring>

namespace nupa::capture {

RecordHeader* Ring::take(uint32_t bytes, uint64_t* position) const {
  const uint64_t size = (sizeof(RecordHeader) + uint64_t{bytes} + kRecordUnit - 1) / kRecordUnit * kRecordUnit;
  uint64_t head = header_->head.load(std::memory_order_relaxed);
  uint64_t pad = 0;
  do {
    const uint64_t left = capacity() - (head & mask_);
    pad = size > left ? left : 0;
    // A tail beyond the head makes the difference large: no room.
    const uint64_t used = head - header_->tail.load(std::memory_order_acquire);
    if (used > capacity() || pad + size > capacity() - used) return nullptr;
  } while (!header_->head.compare_exchange_weak(head, head + pad + size, std::memory_order_relaxed));
  if (pad != 0) {
    RecordHeader& filler = at(head);
    filler.size = static_cast<uint32_t>(pad);
    filler.kind = RecordKind::kPad;
    commit(filler, head);
  }
  *position = head + pad;
  RecordHeader& record = at(*position);
  record.size = static_cast<uint32_t>(size);
  record.kind = RecordKind::kPacket;
  return &record;
}

Ring::Next Ring::next(Record* record) const {
  for (;;) {
    const uint64_t tail = header_->tail.load(std::memory_order_relaxed);
    const RecordHeader& oldest = at(tail);
    if (oldest.stamp.load(std::memory_order_acquire) != tail + 1) return Next::kNone;
    const uint32_t size = oldest.size;
    if (size < kRecordUnit || size % kRecordUnit != 0 || size > capacity() - (tail & mask_)) return Next::kBroken;
    if (oldest.kind == RecordKind::kPad) {
      drop_bytes(size);
      continue;
    }
    const uint32_t captured = oldest.captured;
    *record = {size,          oldest.length,    oldest.qp,    oldest.time_ns,  oldest.direction,
               oldest.device, oldest.transport, oldest.flags, oldest.udp_port, {}};
    const bool is_known = record->device < kMostDevices && record->transport < kMostTransports &&
                          (record->direction == Direction::kInbound || record->direction == Direction::kOutbound);
    if (oldest.kind != RecordKind::kPacket || !is_known || captured > size - sizeof(RecordHeader) ||
        captured > record->length)
      return Next::kBroken;
    record->bytes = {reinterpret_cast<const std::byte*>(&oldest + 1), captured};
    return Next::kRecord;
  }
}

void Ring::drop_bytes(uint32_t size) const {
  const uint64_t tail = header_->tail.load(std::memory_order_relaxed);
  RecordHeader& oldest = at(tail);
  oldest.stamp.store(0, std::memory_order_relaxed);
  std::memset(reinterpret_cast<std::byte*>(&oldest) + sizeof oldest.stamp, 0, size - sizeof oldest.stamp);
  header_->tail.store(tail + size, std::memory_order_release);
}

}  // namespace nupa::capture
