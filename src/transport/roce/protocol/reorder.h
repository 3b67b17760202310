#pragma once
#include <cstddef>
#include <vector>

#include "transport/roce/protocol/bit_ring.h"

namespace nupa::roce {

/// Buffers for packets that came before their turn.
class PacketMemory {
 public:
  /// Of kMaxMtu bytes. Null: there is none.
  virtual std::byte* take() = 0;
  virtual void give_back(std::byte* buffer) = 0;

 protected:
  ~PacketMemory() = default;
};

/// The packets of one connection that came before their turn, by sequence number, within the window of a selective
/// acknowledgement.
class Reorder {
 public:
  explicit Reorder(PacketMemory& pool) : pool_(pool) {}
  ~Reorder() { clear(); }
  Reorder(const Reorder&) = delete;
  Reorder& operator=(const Reorder&) = delete;

  bool empty() const { return count_ == 0; }
  bool has(Seq seq) const { return here_.has(seq) && entry(seq).seq == seq; }
  /// Keeps a copy. `placed`: its payload is where it belongs already, only the headers are kept. False: no room.
  bool keep(Seq seq, const Packet& packet, bool placed);
  /// Hands the packet `seq` to `use(packet, placed)` and forgets it unless that says false.
  template <class Use>
  bool take(Seq seq, Use&& use) {
    const Entry& kept = entry(seq);
    if (!use(static_cast<const Packet&>(kept.packet), kept.placed)) return false;
    if (has(seq)) forget(seq);  // or clear() was part of its use
    return true;
  }
  /// Sets the bits of what is here: bit i is `from + i`. Returns the words used.
  uint32_t bitmap(Seq from, uint32_t* words) const;
  /// The turn of [from, to) will not come: a READ request takes many numbers at once.
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
  // Made when the first packet comes out of turn. Few are in use at a time, and those are used again while they are in
  // the processor's caches.
  std::vector<Entry> entries_;
  std::vector<uint16_t> places_;  ///< by number: where its entry is
  std::vector<uint16_t> free_;
  BitRing here_;
  uint32_t count_ = 0;
  Seq highest_ = 0;
};

}  // namespace nupa::roce
