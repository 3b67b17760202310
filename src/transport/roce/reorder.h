#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "transport/roce/sequence.h"
#include "transport/roce/wire.h"

namespace nupa::roce {

/// Buffers for packets that came before their turn, shared by the queue pairs of a device. Memory is taken at once; any
/// thread.
class PacketPool {
 public:
  explicit PacketPool(uint32_t packets);
  /// Null: all are in use.
  std::byte* take();
  void give_back(std::byte* buffer);
  uint32_t free() const;

 private:
  mutable std::mutex mutex_;
  std::unique_ptr<std::byte[]> memory_;
  std::vector<std::byte*> free_;
};

/// The packets of one connection that came before their turn, by sequence number, within the window of a selective
/// acknowledgement.
class Reorder {
 public:
  explicit Reorder(PacketPool& pool) : pool_(pool) {}
  ~Reorder() { clear(); }
  Reorder(const Reorder&) = delete;
  Reorder& operator=(const Reorder&) = delete;

  bool empty() const { return count_ == 0; }
  bool has(Seq seq) const { return !entries_.empty() && entries_[seq % kBitmapBits].seq == seq; }
  /// Keeps a copy. `placed`: its payload is where it belongs already, only the headers are kept. False: no room.
  bool keep(Seq seq, const Packet& packet, bool placed);
  /// Hands the packet `seq` to `use(packet, placed)` and forgets it unless that says false.
  template <class Use>
  bool take(Seq seq, Use&& use) {
    Entry& entry = entries_[seq % kBitmapBits];
    if (!use(static_cast<const Packet&>(entry.packet), entry.placed)) return false;
    if (entry.seq == seq) forget(entry);  // or clear() was part of its use
    return true;
  }
  /// Sets the bits of what is here: bit i is `from + i`. Returns the words used.
  uint32_t bitmap(Seq from, uint32_t* words) const;
  void clear();

 private:
  struct Entry {
    Seq seq = 0;
    Packet packet;
    std::byte* buffer = nullptr;
    bool placed = false;
  };
  void forget(Entry& entry);

  PacketPool& pool_;
  std::vector<Entry> entries_;  ///< made when the first packet comes out of turn
  uint32_t count_ = 0;
  Seq highest_ = 0;
};

}  // namespace nupa::roce
