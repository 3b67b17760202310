#include "transport/roce/reorder.h"

#include <algorithm>
#include <cstring>

namespace nupa::roce {

PacketPool::PacketPool(uint32_t packets)
    : memory_(std::make_unique_for_overwrite<std::byte[]>(size_t{packets} * kMaxMtu)) {
  free_.reserve(packets);
  for (uint32_t i = 0; i < packets; ++i) free_.push_back(memory_.get() + size_t{i} * kMaxMtu);
}

std::byte* PacketPool::take() {
  std::lock_guard lock(mutex_);
  if (free_.empty()) return nullptr;
  std::byte* buffer = free_.back();
  free_.pop_back();
  return buffer;
}

void PacketPool::give_back(std::byte* buffer) {
  std::lock_guard lock(mutex_);
  free_.push_back(buffer);
}

uint32_t PacketPool::free() const {
  std::lock_guard lock(mutex_);
  return static_cast<uint32_t>(free_.size());
}

bool Reorder::keep(Seq seq, const Packet& packet, bool placed) {
  if (entries_.empty()) entries_.resize(kBitmapBits);
  Entry& entry = entries_[seq % kBitmapBits];
  std::byte* buffer = nullptr;
  if (!placed && packet.payload_length > 0) {
    buffer = pool_.take();
    if (buffer == nullptr) return false;
    std::memcpy(buffer, packet.payload, packet.payload_length);
  }
  if (entry.seq != 0) forget(entry);  // of before a READ request that covered it
  entry.seq = seq;
  entry.packet = packet;
  entry.packet.payload = buffer;
  entry.buffer = buffer;
  entry.placed = placed;
  highest_ = count_++ == 0 ? seq : std::max(highest_, seq);
  return true;
}

void Reorder::forget(Entry& entry) {
  if (entry.buffer != nullptr) pool_.give_back(entry.buffer);
  entry.buffer = nullptr;
  entry.seq = 0;
  --count_;
}

uint32_t Reorder::bitmap(Seq from, uint32_t* words) const {
  if (count_ == 0 || highest_ < from) return 0;
  const auto bits = static_cast<uint32_t>(std::min<Seq>(highest_ - from + 1, kBitmapBits));
  const uint32_t used = (bits + 31) / 32;
  std::fill_n(words, used, 0);
  for (uint32_t i = 0; i < bits; ++i)
    if (has(from + i)) words[i / 32] |= uint32_t{1} << (i % 32);
  return used;
}

void Reorder::clear() {
  for (Entry& entry : entries_)
    if (entry.seq != 0) forget(entry);
}

}  // namespace nupa::roce
