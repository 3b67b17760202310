// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/protocol/reorder.h"

#include <algorithm>
#include <cstring>

namespace nupa::roce {

bool Reorder::keep(Seq seq, const Packet& packet, bool placed) {
  if (entries_.empty()) {
    entries_.resize(kBitmapBits);
    places_.resize(kBitmapBits);
    free_.resize(kBitmapBits);
    for (uint32_t i = 0; i < kBitmapBits; ++i) free_[i] = static_cast<uint16_t>(kBitmapBits - 1 - i);
  }
  std::byte* buffer = nullptr;
  if (!placed && packet.payload_length > 0) {
    buffer = pool_.take();
    if (buffer == nullptr) return false;
    std::memcpy(buffer, packet.payload, packet.payload_length);
  }
  if (here_.has(seq)) forget(seq);  // kept before a READ request that covered its number
  const uint16_t place = free_.back();
  free_.pop_back();
  places_[seq % kBitmapBits] = place;
  here_.set(seq);
  Entry& entry = entries_[place];
  entry.seq = seq;
  entry.packet = packet;
  entry.packet.payload = buffer;
  entry.buffer = buffer;
  entry.placed = placed;
  highest_ = count_++ == 0 ? seq : std::max(highest_, seq);
  return true;
}

void Reorder::forget(Seq seq) {
  const uint16_t place = places_[seq % kBitmapBits];
  if (entries_[place].buffer != nullptr) pool_.give_back(entries_[place].buffer);
  entries_[place].buffer = nullptr;
  here_.clear(seq);
  free_.push_back(place);
  --count_;
}

uint32_t Reorder::bitmap(Seq from, uint32_t* words) const {
  if (count_ == 0 || highest_ < from) return 0;
  const auto bits = static_cast<uint32_t>(std::min<Seq>(highest_ - from + 1, kBitmapBits));
  const uint32_t used = (bits + 31) / 32;
  for (uint32_t i = 0; i < used; ++i) words[i] = here_.word(from + 32 * i);
  return used;
}

void Reorder::pass(Seq from, Seq to) {
  if (count_ == 0) return;
  for (Seq seq = from; seq < std::min(to, from + kBitmapBits); ++seq)
    if (has(seq)) forget(seq);
}

void Reorder::clear() {
  for (Seq seq = 0; seq < kBitmapBits && count_ > 0; ++seq)
    if (here_.has(seq)) forget(seq);
}

}  // namespace nupa::roce
