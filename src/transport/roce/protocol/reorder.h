// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <vector>

#include "transport/roce/protocol/bit_ring.h"

namespace nupa::roce {

/// Buffers for packets that arrive before their turn.
class PacketMemory {
 public:
  /// Returns a buffer of kMaxMtu bytes; null if there is none.
  virtual std::byte* take() = 0;
  virtual void give_back(std::byte* buffer) = 0;

 protected:
  ~PacketMemory() = default;
};

/// The packets of one connection that arrived before their turn, by sequence number, within the window of a selective
/// acknowledgement.
class Reorder {
 public:
  explicit Reorder(PacketMemory& pool) : pool_(pool) {}
  ~Reorder() { clear(); }
  Reorder(const Reorder&) = delete;
  Reorder& operator=(const Reorder&) = delete;

  bool empty() const { return count_ == 0; }
  bool has(Seq seq) const { return here_.has(seq) && entry(seq).seq == seq; }
  /// Keeps a copy. `placed`: the payload is already in its place, so that only the headers are kept. Returns false if
  /// there is no room.
  bool keep(Seq seq, const Packet& packet, bool placed);
  /// Passes the packet `seq` to `use(packet, placed)` and forgets it unless that returns false.
  template <class Use>
  bool take(Seq seq, Use&& use) {
    const Entry& kept = entry(seq);
    if (!use(static_cast<const Packet&>(kept.packet), kept.placed)) return false;
    if (has(seq)) forget(seq);  // unless `use` called clear()
    return true;
  }
  /// Sets the bits of the kept packets: bit i stands for `from + i`. Returns the number of words used.
  uint32_t bitmap(Seq from, uint32_t* words) const;
  /// Forgets the packets [from, to), which will not be taken: a READ request uses many numbers at once.
  void pass(Seq from, Seq to);
  void clear();

 private:
  struct Entry {
    Seq seq = 0;
    Packet packet;
    std::byte* buffer = nullptr;
    bool placed = false;
  };
  const Entry& entry(Seq seq) const { return entries_[places_[seq % kBitmapBits]]; }
  void forget(Seq seq);

  PacketMemory& pool_;
  // Allocated when the first packet arrives before its turn. Few entries are in use at a time, and those are used again
  // while they are in the processor's caches.
  std::vector<Entry> entries_;
  std::vector<uint16_t> places_;  ///< index of a number's entry
  std::vector<uint16_t> free_;
  BitRing here_;
  uint32_t count_ = 0;
  Seq highest_ = 0;
};

}  // namespace nupa::roce
